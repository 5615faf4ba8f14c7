"""What "Recall@N" means: a protocol is a value with a name, and every number carries it.

On the same predictions the choice of protocol moves the number more than the choice of method. Each preset is read
from the evaluator that established it; docs/protocols.md explains each switch.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from polyadic.structures.vocabulary import PolyadicError

Task = Literal["relationship", "phrase", "phrase-classification", "predicate-classification"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class Protocol:
    """One meaning of recall: every switch of the field's evaluators.

    >>> PRESETS["lu2016"].change(task="phrase", k=10).label
    'lu2016 phrase, k = 10 triplets'
    >>> PRESETS["lu2016"].change(match="many-to-one").label
    'lu2016 relationship, any k, match = many-to-one'
    """

    name: str
    match: Literal["one-to-one", "many-to-one"]  # many-to-one: a prediction may hit several ground truths
    aggregate: Literal["pooled", "image-mean"]  # over all ground truths, or the mean of the images' recalls
    task: Task = "relationship"
    k: int | None = None  # predictions kept per ordered box pair; None: any number
    k_unit: Literal["triplet", "predicate"] = "triplet"  # per pair of boxes, or per pair of labelled boxes
    no_prediction: Literal["count", "drop"] = "count"  # ground truths of images without predictions
    subset: Literal["all", "zero-shot"] = "all"  # zero-shot: triplets that never occur in training
    tie: Literal["first", "last"] = "first"  # which of several ground truths of equal overlap is hit (one-to-one)
    iou_offset: float = 1.0  # 1: inclusive pixel boxes, "+1" on each side; 0: plain
    iou: float = 0.5  # the least overlap of a hit
    tops: tuple[int, ...] = (20, 50, 100)  # N

    def __post_init__(self) -> None:
        object.__setattr__(self, "tops", tuple(self.tops))
        for switch, allowed in SWITCHES.items():
            if getattr(self, switch) not in allowed:
                raise PolyadicError(f"Protocol: {switch} must be {' or '.join(allowed)}, got {getattr(self, switch)!r}")
        if self.k is not None and (not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1):
            raise PolyadicError(f"Protocol: k must be a positive whole number, or None for any, got {self.k!r}")
        whole = all(isinstance(top, int) and top > 0 for top in self.tops)
        if not self.tops or not whole or list(self.tops) != sorted(set(self.tops)):
            raise PolyadicError(f"Protocol: tops must be increasing positive whole numbers, got {self.tops!r}")
        if not 0 < self.iou <= 1 or self.iou_offset not in (0, 1):
            raise PolyadicError(f"Protocol: iou in (0, 1] and iou_offset 0 or 1, got {self.iou!r}, {self.iou_offset!r}")

    def change(self, **switches: Any) -> Protocol:
        """Return the protocol with other switches; its label names them."""
        unknown = set(switches) - {field.name for field in fields(self)}
        if unknown:
            raise PolyadicError(f"Protocol: no switch is called {sorted(unknown)[0]!r}")
        return replace(self, **switches)

    @property
    def label(self) -> str:
        """Name the preset, task, k, and each switch that differs from the preset."""
        k = "any k" if self.k is None else f"k = {self.k} {self.k_unit}{'s' if self.k > 1 else ''}"
        zero = "zero-shot " if self.subset == "zero-shot" else ""
        named = {"name", "task", "k", "k_unit", "subset", "tops"}
        preset = PRESETS.get(self.name)  # a custom protocol lists all its switches
        switches = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in named}
        others = [f"{name} = {x}" for name, x in switches.items() if preset is None or x != getattr(preset, name)]
        return ", ".join([f"{self.name} {zero}{self.task}", k, *others])

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


SWITCHES: dict[str, tuple[str, ...]] = {
    "match": ("one-to-one", "many-to-one"),
    "aggregate": ("pooled", "image-mean"),
    "task": TASKS,
    "k_unit": ("triplet", "predicate"),
    "no_prediction": ("count", "drop"),
    "subset": ("all", "zero-shot"),
    "tie": ("first", "last"),
}

PRESETS: dict[str, Protocol] = {
    preset.name: preset
    for preset in (
        Protocol("lu2016", "one-to-one", "pooled"),  # the official evaluator of VRD
        Protocol("reldn", "many-to-one", "pooled", k_unit="predicate"),
        Protocol("motifs", "many-to-one", "image-mean", k=1, k_unit="predicate"),  # k = 1: graph constraint
        Protocol("vtranse", "one-to-one", "pooled", k=1, k_unit="predicate"),
        Protocol("dsr", "one-to-one", "pooled", k=70, k_unit="predicate", no_prediction="drop", tie="last"),
    )
}
FREE_K: tuple[int | None, ...] = (*range(1, 11), 15, 20, 70, None)  # the sweep from which free k is chosen


def get_protocol(name: str) -> Protocol:
    """Return a preset: lu2016, reldn, motifs, vtranse or dsr; `.change(task="phrase", k=10)` sets its switches."""
    if name not in PRESETS:
        raise PolyadicError(f"no protocol is called {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


def as_protocols(protocols: str | Protocol | Sequence[str | Protocol]) -> list[Protocol]:
    """Return protocols by name or value, one or several."""
    several = [protocols] if isinstance(protocols, (str, Protocol)) else list(protocols)
    if not several:
        raise PolyadicError("protocols: give at least one")
    return [get_protocol(protocol) if isinstance(protocol, str) else protocol for protocol in several]


def small_tops(boxes: Iterable[int], tops: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Choose N for images with so few boxes that the best N hold every pair, and say why; else `tops` and "".

    `boxes` are the numbers of boxes per image. Nine of ten images decide.
    """
    pairs = sorted(n * (n - 1) for n in boxes)
    most = pairs[(9 * len(pairs) - 1) // 10] if pairs else 0
    if not pairs or most > tops[0]:
        return tuple(tops), ""
    small = tuple(n for n in (1, 5, 10) if n == 1 or n < most)
    shown = (*small, 50) if 50 in tops else (*small, tops[-1])
    return shown, (
        f"nearly all images have at most {most} ordered pairs of boxes: at k = 1 every prediction counts, and "
        f"R@{shown[-1]} says nothing about their order: see {', '.join(f'R@{n}' for n in small)}"
    )


@dataclass(frozen=True)
class ProtocolRow:
    """A result under one protocol and N."""

    protocol: Protocol
    top: int  # N


@dataclass(frozen=True)
class Recall(ProtocolRow):
    """R@N and mR@N in percent under one protocol, with bootstrap intervals if requested."""

    recall: float
    mean_recall: float  # per predicate, then the mean over the predicates that occur
    truths: int  # ground truths counted
    images: int
    recall_interval: tuple[float, float] | None = None
    mean_recall_interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; a recall over no ground truths is null."""
        intervals = {"recall_interval": self.recall_interval, "mean_recall_interval": self.mean_recall_interval}
        return {
            "protocol": self.protocol.label,
            **{name: value for name, value in self.protocol.to_json().items() if name not in ("name", "tops")},
            "preset": self.protocol.name,
            "N": self.top,
            "recall": _number(self.recall),
            "mean_recall": _number(self.mean_recall),
            "truths": self.truths,
            "images": self.images,
            **{name: list(map(_number, value)) for name, value in intervals.items() if value is not None},
        }


R = TypeVar("R", bound=ProtocolRow)


@dataclass(frozen=True)
class Rows(Sequence[R]):
    """Results, one row per protocol and N."""

    rows: tuple[R, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    def at(self, protocol: Protocol, top: int) -> R:
        """Return the row of one protocol and N."""
        for row in self.rows:
            if row.protocol == protocol and row.top == top:
                return row
        raise PolyadicError(f"no row for {protocol.label} at N = {top}")


class Recalls(Rows[Recall]):
    """All recalls of an evaluation."""

    def to_json(self) -> list[dict[str, Any]]:
        return [row.to_json() for row in self.rows]

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            between = f" ({row.recall_interval[0]:.2f} to {row.recall_interval[1]:.2f})" if row.recall_interval else ""
            lines.append(
                f"{row.protocol.label}: R@{row.top} {row.recall:.2f}{between}, mR@{row.top} {row.mean_recall:.2f}"
            )
        return "\n".join(lines)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def to_csv(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Write records as CSV text; "any" stands for an unlimited k."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**record, "k": record.get("k") or "any"} for record in records)
    return text.getvalue()
