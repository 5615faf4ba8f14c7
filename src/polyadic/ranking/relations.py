"""Ranked triplets of one image: f_spo and what it is made of; where the image is known, also in words and pictures."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.scenes import Detections
from polyadic.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from networkx import MultiDiGraph
    from PIL.Image import Image

    from polyadic.ranking.origin import Origin
    from polyadic.ranking.query import Answers

Box = tuple[float, float, float, float]
_PLAIN = ("vocabulary", "origin")


class Relation(NamedTuple):
    """One row of `Relations` in plain Python numbers; in words where they are known."""

    pair: int
    subject: int
    predicate: int
    object: int
    log_score: float
    names: tuple[str, str, str] | None = None
    boxes: tuple[Box, Box] | None = None  # of subject and object

    @property
    def triplet(self) -> tuple[int, int, int]:
        return self.subject, self.predicate, self.object

    @property
    def score(self) -> float:
        """f_spo itself."""
        return math.exp(self.log_score)


@dataclass(frozen=True, eq=False, repr=False)
class Relations:
    """The ranked triplets of one image, best first: f_spo and what it is made of.

    The parts have their exponents applied, so that
    `log_score = log_cp + log_prior + log_selected + log_boxes + log_repeat`; a part that was not given is 0.
    Where a model has predicted them (`origin`), they can be drawn, written and asked.
    """

    pair: Int[Tensor, " N"]  # which ordered box pair
    triplet: Int[Tensor, "N 3"]  # (subject, predicate, object)
    log_score: Float[Tensor, " N"]  # log f_spo
    log_cp: Float[Tensor, " N"]  # log ψ_c
    log_prior: Float[Tensor, " N"]  # a log ψ_u
    log_selected: Float[Tensor, " N"]  # b log P(X_sel)
    log_boxes: Float[Tensor, " N"]  # c log P(B_s, B_o | I)
    log_repeat: Float[Tensor, " N"]  # the price of repeating a triplet on nearly the same boxes
    vocabulary: Vocabulary | None = None
    origin: Origin | None = None  # the image they are of

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self._columns().items()}
        if len(set(lengths.values())) > 1:
            raise PolyadicError(f"Relations: all columns need one length, got {lengths}")
        if tuple(self.triplet.shape[1:]) != (3,):
            raise PolyadicError(f"Relations: triplet must be [N, 3], got {list(self.triplet.shape)}")

    def _columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _PLAIN}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Relations:
        changed: dict[str, Any] = {name: change(column) for name, column in self._columns().items()}
        return replace(self, **changed)

    @classmethod
    def join(cls, parts: Sequence[Relations], vocabulary: Vocabulary | None = None) -> Relations:
        """One list after the other, in no new order."""
        none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        parts = [cls(none, none.view(0, 3), zero, zero, zero, zero, zero, zero), *parts]
        columns: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0]._columns()
        }
        return cls(**columns, vocabulary=vocabulary)

    def __len__(self) -> int:
        return len(self.pair)

    def __repr__(self) -> str:
        first = []
        for relation in self[:3]:
            words = self.vocabulary.decode(relation.triplet) if self.vocabulary else relation.triplet
            first.append(f"{' '.join(map(str, words))} {relation.log_score:.3f}")
        return f"Relations({len(self)}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def names(self) -> list[tuple[str, str, str]]:
        """The triplets in words, best first."""
        if self.vocabulary is None:
            raise PolyadicError("Relations: no names are known; rank with rank_relations(..., vocabulary=...)")
        return [self.vocabulary.decode(relation.triplet) for relation in self]

    @overload
    def __getitem__(self, index: int) -> Relation: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> Relations: ...
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> Relation | Relations:
        """One `Relation` by number, or the `Relations` of a slice, an index tensor or a mask."""
        if isinstance(index, slice) or (isinstance(index, Tensor) and index.ndim > 0):
            return self._map(lambda column: column[index])
        at = operator.index(index)
        return self._row(int(self.pair[at]), self.triplet[at].tolist(), float(self.log_score[at]))

    def __iter__(self) -> Iterator[Relation]:
        for row in zip(self.pair.tolist(), self.triplet.tolist(), self.log_score.tolist(), strict=True):
            yield self._row(*row)

    def _row(self, pair: int, triplet: list[int], score: float) -> Relation:
        subject, predicate, object = triplet
        names = self.vocabulary.decode((subject, predicate, object)) if self.vocabulary else None
        boxes = None
        if self.origin is not None:
            s, o = (tuple(self.origin.detections.boxes[at].tolist()) for at in self.origin.pairs[pair].tolist())
            boxes = s, o
        return Relation(pair, subject, predicate, object, score, names, boxes)

    def to(self, device: torch.device | str) -> Relations:
        """On another device; scores become float32 where there is no float64 (MPS)."""
        single = torch.device(device).type == "mps"
        return self._map(lambda x: (x.float() if single and x.is_floating_point() else x).to(device))

    def above(self, score: float) -> Relations:
        """Those of at least this score, f_spo."""
        return self[self.log_score.exp() >= score]

    def probability(self) -> Float[Tensor, " N"]:
        """P(triplet | its pair of boxes): ψ_c ψ_u over its sum for the pair; detector and P(X_sel) are left aside."""
        from polyadic.ranking.query import triplet_probability

        return triplet_probability(self)

    def query(
        self,
        subject: str | None = None,
        predicate: str | None = None,
        object: str | None = None,
        pair: tuple[int, int] | None = None,
        top: int | None = None,
    ) -> Answers:
        """What the distribution says of the rest, given some names: exact, and without the dense tensor.

        `query(subject="person", object="horse")` is P(predicate | person, horse, pair), all of it, for the pair of
        boxes that is most likely a person and a horse, or for `pair` (subject box, object box).
        `query(predicate="ride")` are the pairs and labels most likely for it. All parts of f_spo count.
        """
        from polyadic.ranking.query import answer

        given = {"subject": subject, "predicate": predicate, "object": object}
        return answer(self.known_origin(), {name: word for name, word in given.items() if word is not None}, pair, top)

    def to_dict(self) -> dict[str, Any]:
        """In JSON values: the image, its boxes, and the relations, best first, each with the parts of its score."""
        from polyadic.ranking.showing import to_dict

        return to_dict(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    def to_networkx(self) -> MultiDiGraph:
        """The scene graph: a node for each box that takes part, an edge for each relation, with all that is known."""
        from polyadic.ranking.showing import to_networkx

        return to_networkx(self)

    def box_names(self) -> list[str]:
        """A name for each box: as its best relation calls it, else as the detector does."""
        from polyadic.ranking.showing import box_names

        return box_names(self)

    def draw(self, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True) -> Image:
        """The photo (a path, a PIL image, an array or a tensor) with boxes, arrows, the list and the scene graph."""
        from polyadic.draw import render_png
        from polyadic.ranking.showing import drawing

        return render_png(drawing(self, image, arrows, width, graph))

    def save_drawing(
        self, path: str | Path, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True
    ) -> None:
        """`draw` into a file: .svg, with the photo inside, or .png, .jpg and so on."""
        from polyadic.draw import save_drawing
        from polyadic.ranking.showing import drawing

        save_drawing(drawing(self, image, arrows, width, graph), Path(path))

    @property
    def detections(self) -> Detections:
        """The boxes that were related, those that overlapped too much left out."""
        return self.known_origin().detections

    def known_origin(self) -> Origin:
        """`origin`, where it must be known."""
        if self.origin is None:
            raise PolyadicError(
                "Relations: these were ranked from bare tensors and know no image; RelationModel.predict gives ones "
                "that do"
            )
        return self.origin
