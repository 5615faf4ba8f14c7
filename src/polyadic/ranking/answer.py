"""The answer of a ranking: an image's triplets, best first, with the terms of their scores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.boxes import ordered_pairs
from polyadic.structures.relations import TERMS, Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


class RankedTriplet(NamedTuple):
    """One row of a `Ranking` in plain Python values."""

    pair: int
    subject: int
    predicate: int
    object: int
    log_score: float
    names: tuple[str, str, str] | None = None

    @property
    def triplet(self) -> tuple[int, int, int]:
        return self.subject, self.predicate, self.object


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The best triplets of one image's pairs, best first: log f_spo and its terms.

    The terms have their exponents applied, so that
    `log_score = log_cp + log_prior + log_selected + log_boxes + log_repeat`; a term that was not given is 0.
    """

    pair: Int[Tensor, " N"]  # which row of the CP tensor
    triplet: Int[Tensor, "N 3"]  # (subject, predicate, object)
    log_score: Float[Tensor, " N"]  # log f_spo
    log_cp: Float[Tensor, " N"]  # log ψ_c
    log_prior: Float[Tensor, " N"]  # a log ψ_u
    log_selected: Float[Tensor, " N"]  # b log P(X_sel)
    log_boxes: Float[Tensor, " N"]  # c log P(B_s, B_o | I)
    log_repeat: Float[Tensor, " N"]  # penalty for a triplet repeated on nearly the same boxes
    vocabulary: Vocabulary | None = None

    def _columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)[:-1]}

    def map(self, change: Callable[[Tensor], Tensor]) -> Ranking:
        """Apply one function to every column."""
        columns: dict[str, Any] = {name: change(column) for name, column in self._columns().items()}
        return replace(self, **columns)

    def __len__(self) -> int:
        return len(self.pair)

    def __repr__(self) -> str:
        first = [f"{' '.join(map(str, row.names or row.triplet))} {row.log_score:.3f}" for row in self[:3]]
        return f"Ranking({len(self)}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def names(self) -> list[tuple[str, str, str]]:
        """Return the triplets in words, best first."""
        if self.vocabulary is None:
            raise PolyadicError("Ranking: class names are unknown; rank with rank_relations(..., vocabulary=...)")
        return [self.vocabulary.decode(triplet) for triplet in self.triplet.tolist()]

    def relations(
        self,
        boxes: Any,
        pairs: Any = None,
        *,
        image: str = "image",
        size: tuple[float, float] | None = None,
    ) -> Relations:
        """Put the triplets on their boxes, to be evaluated, drawn and written.

        Args:
            boxes: [N, 4] xyxy.
            pairs: [B, 2], the (subject box, object box) of each row of the CP tensor; by default all ordered pairs of
                two boxes, `polyadic.boxes.ordered_pairs(N)`.
            image: The image's name, as in the ground truth.
            size: (width, height) of the frame of the boxes; None for the annotated one.
        """
        corners = np.asarray(boxes.cpu() if isinstance(boxes, Tensor) else boxes, np.float64).reshape(-1, 4)
        ends = ordered_pairs(len(corners)) if pairs is None else torch.as_tensor(pairs).cpu()
        rows = self.map(Tensor.cpu)
        if len(rows) and int(rows.pair.max()) >= len(ends):
            raise PolyadicError(
                f"Ranking: pair {int(rows.pair.max())} is ranked, but {len(corners)} boxes have {len(ends)} ordered "
                "pairs; give pairs=[B, 2], the boxes of each row of the CP tensor"
            )
        terms = {name: getattr(rows, name).double().numpy() for name in TERMS.values()}
        return Relations(
            image,
            corners,
            ends[rows.pair].numpy(),
            rows.triplet.numpy(),
            rows.log_score.double().numpy(),
            size=size,
            vocabulary=self.vocabulary,
            **terms,
        )

    @overload
    def __getitem__(self, index: int) -> RankedTriplet: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> Ranking: ...
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> RankedTriplet | Ranking:
        """Return one `RankedTriplet` by number, or the `Ranking` of a slice, an index tensor or a mask."""
        if isinstance(index, slice) or (isinstance(index, Tensor) and index.ndim > 0):
            return self.map(lambda column: column[index])
        at = operator.index(index)
        return self._row(int(self.pair[at]), self.triplet[at].tolist(), float(self.log_score[at]))

    def __iter__(self) -> Iterator[RankedTriplet]:
        for row in zip(self.pair.tolist(), self.triplet.tolist(), self.log_score.tolist(), strict=True):
            yield self._row(*row)

    def _row(self, pair: int, triplet: list[int], score: float) -> RankedTriplet:
        names = None if self.vocabulary is None else self.vocabulary.decode(triplet)
        subject, predicate, object = triplet
        return RankedTriplet(pair, subject, predicate, object, score, names)


def merge_rankings(parts: Sequence[Ranking], sizes: tuple[int, int, int], top: int) -> Ranking:
    """Merge several rankings of different pairs; equal scores by (pair, subject, predicate, object)."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        return Ranking(none, none.view(0, 3), zero, zero, zero, zero, zero, zero)
    columns: dict[str, Any] = {
        field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Ranking)[:-1]
    }
    joined = Ranking(**columns, vocabulary=parts[0].vocabulary)
    order = flat_index(joined, sizes).argsort()
    order = order[joined.log_score[order].argsort(descending=True, stable=True)]
    return joined[order[:top]]


def flat_index(ranking: Ranking, sizes: tuple[int, int, int]) -> Int[Tensor, " N"]:
    """Return the index of each entry in the flattened [B, S, P, O] tensor."""
    S, P, O = sizes
    s, p, o = ranking.triplet.unbind(-1)
    return ((ranking.pair * S + s) * P + p) * O + o
