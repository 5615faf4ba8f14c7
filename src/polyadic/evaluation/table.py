"""The evaluator's answer: one row per protocol and N, in percent, each with its protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from polyadic.evaluation.protocol import Protocol
from polyadic.vocabulary import PolyadicError


@dataclass(frozen=True)
class Recall:
    """R@N and mR@N in percent under one protocol; the intervals are bootstrap percentiles, where asked for."""

    protocol: Protocol
    top: int  # N
    recall: float
    mean_recall: float  # per predicate, then the mean over the predicates that occur
    truths: int
    images: int
    recall_interval: tuple[float, float] | None = None
    mean_recall_interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values; a recall over no truths is null."""
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


@dataclass(frozen=True)
class Recalls(Sequence[Recall]):
    """All rows of an evaluation."""

    rows: tuple[Recall, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Recall]:
        return iter(self.rows)

    def at(self, protocol: Protocol, top: int) -> Recall:
        """The row of one protocol and N."""
        for row in self.rows:
            if row.protocol == protocol and row.top == top:
                return row
        raise PolyadicError(f"no row for {protocol.label} at N = {top}")

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
