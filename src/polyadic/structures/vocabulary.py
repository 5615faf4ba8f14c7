"""Class names behind the indices, and the package's error. Imports nothing heavy: any module may import it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TypeVar


class PolyadicError(ValueError):
    """Invalid input: the message says what was expected, what was given, and the fix."""


class PolyadicWarning(UserWarning):
    """Suspicious data that is used as it is."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory could not be allocated; torch says so in the text of a RuntimeError."""
    words = ("alloc", "overflow", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


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
                ((twice, _),) = Counter(names).most_common(1)
                raise PolyadicError(f"Vocabulary: {field.name} has {twice!r} twice; each name needs one index")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""
        return len(self.objects), len(self.predicates), len(self.objects)

    def encode(self, triplet: Sequence[str]) -> tuple[int, int, int]:
        """Return the indices of (subject, predicate, object) names."""
        subject, predicate, object = _three(triplet)
        return (
            _index(self.objects, subject, "object"),
            _index(self.predicates, predicate, "predicate"),
            _index(self.objects, object, "object"),
        )

    def decode(self, triplet: Sequence[int]) -> tuple[str, str, str]:
        """Return the names of (subject, predicate, object) indices."""
        subject, predicate, object = _three(triplet)
        if not (min(triplet) >= 0 and max(subject, object) < len(self.objects) and predicate < len(self.predicates)):
            raise PolyadicError(f"Vocabulary: triplet {tuple(triplet)} is outside the sizes {self.sizes}")
        return self.objects[subject], self.predicates[predicate], self.objects[object]

    def index(self, variable: str, name: str) -> int:
        """Return the index of a name as `subject`, `predicate` or `object`."""
        known, kind = (self.predicates, "predicate") if variable == "predicate" else (self.objects, "object")
        return _index(known, name, kind)

    def to_json(self) -> str:
        return json.dumps({"objects": self.objects, "predicates": self.predicates})

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        try:
            names = json.loads(text)
            return cls(objects=tuple(names["objects"]), predicates=tuple(names["predicates"]))
        except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
            raise PolyadicError(
                f'Vocabulary: expected JSON {{"objects": [...], "predicates": [...]}}, got {text[:60]!r} ({error!r})'
            ) from error

    def difference(self, other: Vocabulary) -> str | None:
        """Describe the first difference between two vocabularies; None when they are equal."""
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
