"""The values that flow between the rooms: names, results, the contract of a prior, and the one error.

Imports torch and nothing of this package, so every other module may import it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeVar, overload, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


class PolyadicError(ValueError):
    """Input that cannot be used: the message says what was expected, what came, and the cure."""


def require_tensor(value: object, what: str) -> Tensor:
    """`value` itself if it is a tensor; lists and arrays would lose their device and dtype in silence."""
    if not isinstance(value, Tensor):
        raise PolyadicError(f"{what} must be a torch tensor, got {type(value).__name__}; convert with torch.as_tensor")
    return value


@dataclass(frozen=True)
class Vocabulary:
    """The class names behind the indices: subjects and objects share one list, as in the paper.

    >>> names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
    >>> names.sizes, names.decode((0, 0, 1))
    ((2, 1, 2), ('person', 'ride', 'horse'))
    """

    objects: Sequence[str]
    predicates: Sequence[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            names = () if isinstance(given, str) else tuple(given)
            object.__setattr__(self, field.name, names)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise PolyadicError(f"Vocabulary: {field.name} must be a list of non-empty names, got {given!r:.60}")
            if len(set(names)) < len(names):
                twice = next(name for i, name in enumerate(names) if name in names[:i])
                raise PolyadicError(f"Vocabulary: {field.name} has {twice!r} twice; each name needs one index")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""
        return len(self.objects), len(self.predicates), len(self.objects)

    def encode(self, triplet: Sequence[str]) -> tuple[int, int, int]:
        """Indices of (subject, predicate, object) names."""
        subject, predicate, object = _three(triplet)
        return (
            _index(self.objects, subject, "object"),
            _index(self.predicates, predicate, "predicate"),
            _index(self.objects, object, "object"),
        )

    def decode(self, triplet: Sequence[int]) -> tuple[str, str, str]:
        """Names of (subject, predicate, object) indices."""
        subject, predicate, object = _three(triplet)
        if not (min(triplet) >= 0 and max(subject, object) < len(self.objects) and predicate < len(self.predicates)):
            raise PolyadicError(f"Vocabulary: triplet {tuple(triplet)} is outside the sizes {self.sizes}")
        return self.objects[subject], self.predicates[predicate], self.objects[object]

    def to_json(self) -> str:
        return json.dumps({"objects": self.objects, "predicates": self.predicates})

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        try:
            names = json.loads(text)
            return cls(objects=tuple(names["objects"]), predicates=tuple(names["predicates"]))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise PolyadicError(
                f'Vocabulary: expected JSON {{"objects": [...], "predicates": [...]}}, got {text[:60]!r} ({error!r})'
            ) from error

    def difference(self, other: Vocabulary) -> str | None:
        """The first place where two vocabularies disagree, in words; None when they are equal."""
        for kind, mine, theirs in (
            ("object", self.objects, other.objects),
            ("predicate", self.predicates, other.predicates),
        ):
            if len(mine) != len(theirs):
                return f"{len(mine)} {kind}s against {len(theirs)}"
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if a != b:
                    return f"{kind} {i} is {a!r} against {b!r}"
        return None


T = TypeVar("T")


def _three(triplet: Sequence[T]) -> tuple[T, T, T]:
    if len(triplet) != 3:
        raise PolyadicError(f"Vocabulary: expected (subject, predicate, object), got {triplet!r:.60}")
    return triplet[0], triplet[1], triplet[2]


def _index(names: Sequence[str], name: str, kind: str) -> int:
    if name in names:
        return names.index(name)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise PolyadicError(f"Vocabulary: no {kind} is called {name!r}{hint}")


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
