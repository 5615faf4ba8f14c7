"""Match a detector's class names with the vocabulary's objects.

A name matches exactly; else ignoring case, spaces, underscores and hyphens; else as singular and plural
(`wine_glasses`, `Wine glass`). A name that fits two objects equally well matches neither. A user's mapping overrides
all of this. `LabelMap.report()` shows the result: read it once per detector.
"""

from __future__ import annotations

import json
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import msgspec
import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.inputs import regular_file
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

UNKNOWN = -1  # the label of a box whose class is not in the vocabulary
IGNORED = -2  # of a class that the user's mapping drops on purpose
UnknownPolicy: TypeAlias = Literal["drop", "keep"]  # boxes of other classes are dropped, or kept as UNKNOWN
NameMapping: TypeAlias = Mapping[str, str | None] | str | Path | None  # names to names, or a JSON or TOML file of them

_PLACEHOLDERS = ("", "N/A", "__background__")  # in torchvision's lists of names
_PLURALS = [
    *(("people", "person"), ("children", "child"), ("men", "man"), ("ies", "y"), ("ves", "f"), ("ves", "fe")),
    *((f"{end}es", end) for end in ("s", "x", "z", "ch", "sh", "o")),
]


@final
class Synonyms(dict[str, str]):
    """A mapping of names that a detector need not have; it must have all names of a user's own mapping.

    `doubtful` names come with a reason, which is said where they are used.
    """

    def __init__(self, names: Mapping[str, str], doubtful: Mapping[str, str] | None = None) -> None:
        super().__init__(names)
        self.doubtful = dict(doubtful or {})


@dataclass(frozen=True)
class LabelMap:
    """From a detector's labels to the vocabulary's objects.

    >>> vocabulary = Vocabulary(objects=("person", "traffic light", "monitor", "sky"), predicates=("near",))
    >>> names = LabelMap.match(["Person", "traffic_lights", "tv", "zebra"], vocabulary, {"tv": "monitor"})
    >>> names.apply([3, 1, 0, 1]).labels.tolist()
    [1, 0, 1]
    """

    vocabulary: Vocabulary
    names: Mapping[int, str]  # the detector's, by label
    targets: Mapping[str, int]  # by the detector's name: an object's index, UNKNOWN or IGNORED
    doubtful: Mapping[str, str] = field(default_factory=dict)  # reasons, by the detector's name

    @classmethod
    def match(
        cls, names: Sequence[str] | Mapping[int, str], vocabulary: Vocabulary, mapping: NameMapping = None
    ) -> LabelMap:
        """Match the detector's names; `mapping` maps some of them to an object's name, or to null or "" to drop."""
        given = names if isinstance(names, Mapping) else {} if isinstance(names, str) else dict(enumerate(names))
        if not given or not all(isinstance(name, str) for name in given.values()):
            raise PolyadicError(f"LabelMap: expected the names of a detector's classes, got {names!r:.60}")
        values = read_mapping(mapping)
        if not isinstance(mapping, Synonyms):
            check_names(values, set(given.values()), "mapping: the detector has no class")
        match = NameMatcher(vocabulary, values)
        targets = {name: match(name) for name in given.values()}
        return cls(vocabulary, dict(sorted(given.items())), targets, getattr(mapping, "doubtful", {}))

    def apply(self, labels: Sequence[int] | Int[np.ndarray, " N"], unknown: UnknownPolicy = "drop") -> MappedLabels:
        """Map the detector's labels to the vocabulary's."""
        numbers = np.asarray(labels).tolist()
        for label in numbers:
            if label not in self.names:
                low, high = min(self.names), max(self.names)
                raise PolyadicError(f"label {label} has no name among the {len(self.names)} from {low} to {high}")
        names = [self.names[label] for label in numbers]
        warn_doubtful(names, self.doubtful)
        return map_names(names, self.targets.__getitem__, unknown)

    def spread(self, distribution: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "N C"]:
        """Map P(detector's class | box), columns by rising label, to P(object | box); other classes are left out.

        Independent scores may sum to more than 1: such rows are divided by their sum.
        """
        targets = np.array([self.targets[name] for name in self.names.values()])
        spread = np.zeros((len(distribution), len(self.vocabulary.objects)), np.float32)
        known = np.flatnonzero(targets >= 0)
        np.add.at(spread.T, targets[known], np.asarray(distribution, np.float32).T[known])
        return np.asarray(spread / np.maximum(spread.sum(1, keepdims=True), 1))

    @property
    def classes(self) -> list[str]:
        """The detector's class names, once each."""
        return [name for name in dict.fromkeys(self.names.values()) if name not in _PLACEHOLDERS]

    def summary(self) -> str:
        """Count the classes that match."""
        mapped = sum(self.targets[name] >= 0 for name in self.classes)
        return f"{mapped} of its {len(self.classes)} classes are objects of the model"

    def report(self) -> str:
        """Describe what matches and what does not, in a few lines."""
        classes, objects = self.classes, self.vocabulary.objects
        mapped = [name for name in classes if self.targets[name] >= 0]
        renamed = [f"{name} -> {objects[at]}" for name in mapped if objects[at := self.targets[name]] != name]
        ignored = [name for name in classes if self.targets[name] == IGNORED]
        unmatched = [name for name in classes if self.targets[name] == UNKNOWN]
        reached = {self.targets[name] for name in mapped}
        missed = [name for at, name in enumerate(objects) if at not in reached]
        sections = [
            (f"{len(renamed)} under another name", renamed, 40),
            (f"{len(ignored)} dropped by the mapping", ignored, 40),
            (f"{len(unmatched)} without an object (dropped, or unknown)", unmatched, 40),
            (f"{len(missed)} of the {len(objects)} objects that no class reaches", missed, 8),
        ]
        lines = [f"{len(mapped)} of the detector's {len(classes)} classes are objects of the vocabulary"]
        for title, names, most in sections:
            if names:
                text = f"  {title}: {_first(names, most)}"
                lines.append(textwrap.fill(text, 110, subsequent_indent="    ", break_on_hyphens=False))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class MappedLabels:
    """Labels of the boxes that stay; the others are counted by the detector's names."""

    rows: Int[np.ndarray, " M"]
    labels: Int[np.ndarray, " M"]
    unknown: Counter[str]  # not in the vocabulary: dropped, or kept as UNKNOWN
    ignored: Counter[str]  # dropped by the user's mapping


class NameMatcher:
    """Find the object's index of a name: UNKNOWN where there is none, IGNORED where the mapping drops it."""

    def __init__(self, vocabulary: Vocabulary, mapping: Mapping[str, str | None]) -> None:
        self._cache: dict[str, int] = {}
        self._levels: list[dict[str, set[int]]] = [{}, {}, {}]
        for at, name in enumerate(vocabulary.objects):
            for level, forms in zip(self._levels, _forms(name), strict=True):
                for form in forms:
                    level.setdefault(form, set()).add(at)
        self._mapped = {}
        for name, target in mapping.items():
            at = self._search(target, 2) if target else IGNORED
            if at == UNKNOWN:
                hint = _hint(str(target), vocabulary.objects)
                raise PolyadicError(f"mapping: {name!r} maps to {target!r}, which is not an object{hint}")
            self._mapped[name] = at
        self._mapped_folded = {fold(name): at for name, at in self._mapped.items()}

    def __call__(self, name: str) -> int:
        at = self._cache.get(name)
        if at is None:
            at = self._mapped.get(name, self._mapped_folded.get(fold(name)))
            self._cache[name] = at = self._search(name, 3) if at is None else at
        return at

    def _search(self, name: str, levels: int) -> int:
        for level, forms in zip(self._levels[:levels], _forms(name), strict=False):
            hits: set[int] = set().union(*(level.get(form, ()) for form in forms))
            if hits:
                return hits.pop() if len(hits) == 1 else UNKNOWN
        return UNKNOWN


def map_names(names: Sequence[str], match: Callable[[str], int], unknown: UnknownPolicy) -> MappedLabels:
    """Map the detector's name of each box to a label, and select the boxes that stay."""
    if unknown not in ("drop", "keep"):
        raise PolyadicError(f"unknown: expected 'drop' or 'keep', got {unknown!r}")
    targets = np.array([match(name) for name in names], np.int64)
    rows = np.flatnonzero(targets >= (0 if unknown == "drop" else UNKNOWN))
    counts = [Counter(names[at] for at in np.flatnonzero(targets == kind).tolist()) for kind in (UNKNOWN, IGNORED)]
    return MappedLabels(rows, targets[rows], *counts)


@dataclass(frozen=True, eq=False)
class LabelReader:
    """Map class names while a file is read, and count the boxes of classes that the vocabulary lacks."""

    vocabulary: Vocabulary
    mapping: NameMapping = None
    unknown: UnknownPolicy = "drop"
    dropped: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)  # names of the file's boxes, where it names them one by one

    @cached_property
    def matcher(self) -> NameMatcher:
        """Match names that the file gives box by box, so that nothing says which names it may have."""
        return NameMatcher(self.vocabulary, read_mapping(self.mapping))

    def map(self, names: Sequence[str], match: Callable[[str], int] | None = None) -> MappedLabels:
        """Map one image's names."""
        warn_doubtful(names, getattr(self.mapping, "doubtful", {}))
        mapped = map_names(names, match or self.matcher, self.unknown)
        self.dropped.update(mapped.unknown)
        if match is None:
            self.seen.update(names)
        return mapped

    def check_mapping(self, where: str) -> None:
        """Refuse lines of the user's mapping for classes that no box of the file has, once it is read."""
        if self.seen and not isinstance(self.mapping, Synonyms):
            check_names(read_mapping(self.mapping), self.seen, f"{where}: mapping: no box has the class")


def warn_dropped(where: str, dropped: Counter[str], unknown: UnknownPolicy, stacklevel: int = 2) -> None:
    """Warn once of all boxes dropped because their class is not in the vocabulary."""
    if dropped and unknown == "drop":
        counts = [f"{name or 'unnamed'} ({n:,})" for name, n in dropped.most_common()]
        number = f"{dropped.total():,} box{'es' * (dropped.total() > 1)}"
        warnings.warn(
            f"{where}: dropped {number} of classes that are not in the vocabulary: {_first(counts, 8)}; "
            "give a mapping, or keep them as unknown",
            PolyadicWarning,
            stacklevel=stacklevel + 1,
        )


def warn_doubtful(names: Iterable[str], doubtful: Mapping[str, str]) -> None:
    """Warn of each doubtful name that a box has."""
    for name in sorted(doubtful.keys() & set(names)):
        warnings.warn(f"{name}: {doubtful[name]}", PolyadicWarning, stacklevel=3)


def read_mapping(mapping: NameMapping) -> dict[str, str | None]:
    """Check a user's mapping; read it if it is a path."""
    if mapping is None:
        return {}
    where, values = "mapping", mapping
    if isinstance(mapping, str | Path):
        where, values = Path(mapping).name, read_file(mapping, "a mapping")
    try:
        return msgspec.convert(values, dict[str, str | None])
    except msgspec.ValidationError as error:
        raise PolyadicError(f'{where}: expected names to names ("" or null drops): {error}') from error


def check_names(mapping: Iterable[str], names: set[str], problem: str) -> None:
    """Refuse a line of a mapping for a class that the detector does not have."""
    known = {fold(name) for name in names}
    for name in mapping:
        if fold(name) not in known:
            raise PolyadicError(f"{problem} {name!r}{_hint(name, names)}")


def read_file(path: str | Path, what: str) -> Any:
    """Read a JSON file, or a TOML file if it is called so; `what` names the expected content in errors."""
    path = Path(path).expanduser()
    decode = msgspec.toml.decode if path.suffix.lower() == ".toml" else _decode_json
    try:
        return decode(regular_file(path).read_bytes())
    except OSError as error:
        raise PolyadicError(f"cannot read {path} ({error.strerror}), expected {what}") from error
    except (ValueError, RecursionError) as error:  # msgspec's and tomllib's errors are ValueErrors
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not {what} in JSON or TOML ({reason:.120})") from error


def _decode_json(text: bytes) -> Any:
    """Decode JSON; a key that is given twice is refused, as in TOML."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
        if twice:
            raise PolyadicError(f"the key {twice[0]!r} is given twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def fold(name: str) -> str:
    """Remove case, spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def _forms(name: str) -> tuple[set[str], set[str], set[str]]:
    """Return a name unchanged, folded, and folded with all singulars that it may be the plural of."""
    plain = fold(name)
    forms = {plain, *(plain[: -len(many)] + one for many, one in _PLURALS if plain.endswith(many))}
    if plain.endswith("s") and len(plain) > 3:  # "bus" is no plural
        forms.add(plain[:-1])
    return {name}, {plain}, forms


def _first(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _hint(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
