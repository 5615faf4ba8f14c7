"""A detector's class names, matched with the vocabulary's objects.

A name is looked for exactly; else whatever its case, spaces, underscores and hyphens; else as singular and plural
(`wine_glasses`, `Wine glass`). What fits two objects equally well fits none. A user's own mapping comes before all
that. `LabelMap.report()` shows what came of it: look at it once per detector.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

UNKNOWN = -1  # the label of a box whose class the vocabulary has no name for
Choice: TypeAlias = Literal["drop", "keep"]  # what becomes of such boxes
Own: TypeAlias = Mapping[str, str | None] | str | Path | None  # a user's mapping of names, or the file that holds it
IGNORED = -2  # of a class that the user's mapping drops on purpose

_HOLES = ("", "N/A", "__background__")  # numbers that torchvision's lists of names leave out
_PLURALS = [
    *(("people", "person"), ("children", "child"), ("men", "man"), ("ies", "y"), ("ves", "f"), ("ves", "fe")),
    *((f"{end}es", end) for end in ("s", "x", "z", "ch", "sh", "o")),
]


@final
class Synonyms(dict[str, str]):
    """A mapping of names that a detector may or may not have; of a user's own mapping it must have all."""


@dataclass(frozen=True)
class LabelMap:
    """From a detector's labels to the vocabulary's objects.

    >>> vocabulary = Vocabulary(objects=("person", "traffic light", "monitor", "sky"), predicates=("near",))
    >>> names = LabelMap.match(["Person", "traffic_lights", "tv", "zebra"], vocabulary, own={"tv": "monitor"})
    >>> names.apply([3, 1, 0, 1]).labels.tolist()
    [1, 0, 1]
    """

    vocabulary: Vocabulary
    names: Mapping[int, str]  # the detector's, by its labels
    targets: Mapping[str, int]  # by the detector's name: an object's index, UNKNOWN or IGNORED

    @classmethod
    def match(cls, names: Sequence[str] | Mapping[int, str], vocabulary: Vocabulary, own: Own = None) -> LabelMap:
        """`own` maps a detector's name to an object's; to null or "" if its boxes are to go."""
        mine = read_mapping(own)
        given = names if isinstance(names, Mapping) else {} if isinstance(names, str) else dict(enumerate(names))
        if not given or not all(isinstance(name, str) for name in given.values()):
            raise PolyadicError(f"LabelMap: expected the names of a detector's classes, got {names!r:.60}")
        find = Matcher(vocabulary, mine)
        known = {fold(name) for name in given.values()}
        for name in () if isinstance(own, Synonyms) else mine:
            if fold(name) not in known:
                raise PolyadicError(f"mapping: the detector has no class {name!r}{_hint(name, given.values())}")
        return cls(vocabulary, dict(sorted(given.items())), {name: find(name) for name in given.values()})

    @classmethod
    def load(cls, path: str | Path, names: Sequence[str] | Mapping[int, str], vocabulary: Vocabulary) -> LabelMap:
        """With an own mapping from a JSON or TOML file: `{"tv": "monitor", "tie": ""}`."""
        return cls.match(names, vocabulary, Path(path))

    def apply(self, labels: Sequence[int] | Int[np.ndarray, " N"], unknown: Choice = "drop") -> Mapped:
        """The detector's labels as the vocabulary's, and which boxes stay."""
        numbers = np.asarray(labels).tolist()
        for label in numbers:
            if label not in self.names:
                low, high = min(self.names), max(self.names)
                raise PolyadicError(f"label {label} has no name among the {len(self.names)} from {low} to {high}")
        return sort_out([self.names[label] for label in numbers], self.targets.__getitem__, unknown)

    def spread(self, distribution: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "N C"]:
        """P(detector's class | box), by rising label, as P(object | box); what has no object is left out.

        Independent scores may sum to more than 1: such rows are divided by their sum.
        """
        targets = np.array([self.targets[name] for name in self.names.values()])
        spread = np.zeros((len(distribution), len(self.vocabulary.objects)), np.float32)
        known = np.flatnonzero(targets >= 0)
        np.add.at(spread.T, targets[known], np.asarray(distribution, np.float32).T[known])
        return np.asarray(spread / np.maximum(spread.sum(1, keepdims=True), 1))

    def report(self) -> str:
        """What maps and what does not, in a few lines for people."""
        classes = [name for name in dict.fromkeys(self.names.values()) if name not in _HOLES]
        objects = self.vocabulary.objects
        mapped = [name for name in classes if self.targets[name] >= 0]
        renamed = [f"{name} -> {objects[at]}" for name in mapped if (at := self.targets[name]) != _at(objects, name)]
        ignored = [name for name in classes if self.targets[name] == IGNORED]
        without = [name for name in classes if self.targets[name] == UNKNOWN]
        reached = {self.targets[name] for name in mapped}
        missed = [name for at, name in enumerate(objects) if at not in reached]
        lines = [f"{len(mapped)} of the detector's {len(classes)} classes are objects of the vocabulary"]
        lines += [_listed(f"{len(renamed)} under another name", renamed, 40)] if renamed else []
        lines += [_listed(f"{len(ignored)} dropped by the mapping", ignored, 40)] if ignored else []
        lines += [_listed(f"{len(without)} without an object (dropped, or unknown)", without, 40)] if without else []
        if missed:
            lines.append(_listed(f"{len(missed)} of the {len(objects)} objects that no class reaches", missed, 8))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Mapped:
    """Labels of the vocabulary for the boxes that stay; the others are counted by the detector's names."""

    rows: Int[np.ndarray, " M"]
    labels: Int[np.ndarray, " M"]
    unknown: Counter[str]  # of no object: dropped, or kept as UNKNOWN
    ignored: Counter[str]  # dropped by the user's mapping


class Matcher:
    """The object's index of one name after another: UNKNOWN where there is none, IGNORED where the user says so."""

    def __init__(self, vocabulary: Vocabulary, own: Mapping[str, str | None]) -> None:
        self._found: dict[str, int] = {}
        self._levels: list[dict[str, set[int]]] = [{}, {}, {}]
        for at, name in enumerate(vocabulary.objects):
            for level, forms in zip(self._levels, _forms(name), strict=True):
                for form in forms:
                    level.setdefault(form, set()).add(at)
        self._own = {}
        for name, target in own.items():
            at = self._search(target, 2) if target else IGNORED
            if at == UNKNOWN:
                hint = _hint(str(target), vocabulary.objects)
                raise PolyadicError(f"mapping: {name!r} goes to {target!r}, which is no object{hint}")
            self._own[name] = at
        self._own_folded = {fold(name): at for name, at in self._own.items()}

    def __call__(self, name: str) -> int:
        at = self._found.get(name)
        if at is None:
            at = self._own.get(name, self._own_folded.get(fold(name)))
            self._found[name] = at = self._search(name, 3) if at is None else at
        return at

    def _search(self, name: str, levels: int) -> int:
        for level, forms in zip(self._levels[:levels], _forms(name), strict=False):
            hits: set[int] = set().union(*(level.get(form, ()) for form in forms))
            if hits:
                return hits.pop() if len(hits) == 1 else UNKNOWN
        return UNKNOWN


def sort_out(names: Sequence[str], find: Callable[[str], int], unknown: Choice) -> Mapped:
    """Which boxes stay, and as what, given the detector's name of each."""
    if unknown not in ("drop", "keep"):
        raise PolyadicError(f"unknown: expected 'drop' or 'keep', got {unknown!r}")
    targets = np.array([find(name) for name in names], np.int64)
    rows = np.flatnonzero(targets >= (0 if unknown == "drop" else UNKNOWN))
    counts = [Counter(names[at] for at in np.flatnonzero(targets == kind).tolist()) for kind in (UNKNOWN, IGNORED)]
    return Mapped(rows, targets[rows], *counts)


def warn_of_dropped(where: str, dropped: Counter[str], unknown: Choice, stacklevel: int = 2) -> None:
    """One warning for all boxes that went because the vocabulary has no name for their class."""
    if dropped and unknown == "drop":
        each = [f"{name or 'unnamed'} ({n:,})" for name, n in dropped.most_common()]
        number = f"{dropped.total():,} box{'es' * (dropped.total() > 1)}"
        warnings.warn(
            f"{where}: dropped {number} of classes that the vocabulary lacks: {_few(each, 8)}; "
            "give a mapping, or keep them as unknown",
            PolyadicWarning,
            stacklevel=stacklevel + 1,
        )


def read_mapping(own: Own) -> dict[str, str | None]:
    """A user's mapping, checked; from a file if it is a path."""
    if own is None:
        return {}
    where, values = "mapping", own
    if isinstance(own, str | Path):
        where, values = Path(own).name, read_file(own, "a mapping")
    if not isinstance(values, Mapping):
        raise PolyadicError(f"{where}: expected detector's names to objects, got {type(values).__name__}")
    for name, target in values.items():
        if not isinstance(name, str) or not (target is None or isinstance(target, str)):
            raise PolyadicError(f'{where}: expected names to names ("" or null drops), got {name!r}: {target!r:.40}')
    return dict(values)


def read_file(path: str | Path, what: str) -> Any:
    """The content of a JSON file, or of a TOML file if it is called so."""
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() != ".toml":
            content = json.loads(text, object_pairs_hook=_once)
        elif sys.version_info >= (3, 11):
            import tomllib

            content = tomllib.loads(text)
        else:
            import tomli

            content = tomli.loads(text)
    except OSError as error:
        raise PolyadicError(f"no file {path} that can be read ({error.strerror}), expected {what}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not {what} in JSON or TOML ({reason:.120})") from error
    return content


def fold(name: str) -> str:
    """Without regard to case, spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"{next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)!r} occurs twice")
    return value


def _forms(name: str) -> tuple[set[str], set[str], set[str]]:
    """A name as it is, folded, and folded with all singulars that it may be the plural of."""
    plain = fold(name)
    forms = {plain, *(plain[: -len(many)] + one for many, one in _PLURALS if plain.endswith(many))}
    if plain.endswith("s") and len(plain) > 3:  # a bus is no plural
        forms.add(plain[:-1])
    return {name}, {plain}, forms


def _at(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if name in names else None


def _few(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _listed(title: str, names: Sequence[str], most: int) -> str:
    return textwrap.fill(
        f"{title}: {_few(names, most)}", 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _hint(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
