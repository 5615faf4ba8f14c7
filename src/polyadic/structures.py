"""The tensors that flow between the rooms: ranked relations, and the contract of a prior."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, SupportsIndex, overload, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.vocabulary import PolyadicError, Vocabulary


def require_tensor(value: object, what: str) -> Tensor:
    """`value` itself if it is a tensor; lists and arrays would lose their device and dtype in silence."""
    if not isinstance(value, Tensor):
        raise PolyadicError(f"{what} must be a torch tensor, got {type(value).__name__}; convert with torch.as_tensor")
    return value


@runtime_checkable
class SparsePrior(Protocol):
    """What ranking asks of a prior ψ_u: the same log-weight for all triplets but a sorted list of seen ones."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""

    @property
    def keys(self) -> Int[Tensor, " M"]:
        """Seen triplets as strictly rising flat indices (s·P + p)·O + o."""

    @property
    def log_seen(self) -> Float[Tensor, " M"]:
        """Their log-probabilities, float64."""

    @property
    def log_rest(self) -> float:
        """The log-probability of each other triplet."""


class Relation(NamedTuple):
    """One row of `Relations` in plain Python numbers."""

    pair: int
    subject: int
    predicate: int
    object: int
    log_score: float

    @property
    def triplet(self) -> tuple[int, int, int]:
        return self.subject, self.predicate, self.object


@dataclass(frozen=True, eq=False, repr=False)
class Relations:
    """The ranked triplets of one image, best first: f_spo and what it is made of.

    The parts have their exponents applied, so that
    `log_score = log_cp + log_prior + log_selected + log_boxes + log_repeat`; a part that was not given is 0.
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

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self._columns().items()}
        if len(set(lengths.values())) > 1:
            raise PolyadicError(f"Relations: all columns need one length, got {lengths}")
        if tuple(self.triplet.shape[1:]) != (3,):
            raise PolyadicError(f"Relations: triplet must be [N, 3], got {list(self.triplet.shape)}")

    def _columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "vocabulary"}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Relations:
        changed: dict[str, Any] = {name: change(column) for name, column in self._columns().items()}
        return replace(self, **changed)

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
        subject, predicate, object = self.triplet[at].tolist()
        return Relation(int(self.pair[at]), subject, predicate, object, float(self.log_score[at]))

    def __iter__(self) -> Iterator[Relation]:
        columns = (self.pair.tolist(), self.triplet.tolist(), self.log_score.tolist())
        for pair, (subject, predicate, object), score in zip(*columns, strict=True):
            yield Relation(pair, subject, predicate, object, score)

    def to(self, device: torch.device | str) -> Relations:
        """On another device; scores become float32 where there is no float64 (MPS)."""
        single = torch.device(device).type == "mps"
        return self._map(lambda x: (x.float() if single and x.is_floating_point() else x).to(device))
