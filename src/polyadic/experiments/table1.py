"""Scores in the form of the paper's Table 1: relationship and phrase detection with k = 1, 10 and free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polyadic.evaluation.compare import Comparison
from polyadic.evaluation.protocol import Protocol

TASKS, KS, TOPS = ("relationship", "phrase"), ("1", "10", "free"), (50, 100)
COLUMNS = tuple((task, k, top) for task in TASKS for k in KS for top in TOPS)

# in the order of COLUMNS
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "vrd": {
        "the paper, Lu's proposals": (
            *(17.67, 18.64, 24.08, 28.29, 24.08, 28.29),
            *(20.80, 22.13, 29.17, 34.33, 29.17, 34.33),
        ),
        "the paper, better proposals": (
            *(24.20, 25.87, 27.09, 34.93, 27.09, 34.93),
            *(28.53, 30.92, 32.29, 41.28, 32.29, 41.28),
        ),
    }
}


@dataclass(frozen=True)
class Line:
    """A row: recalls in the order of COLUMNS, NaN where there is none."""

    label: str
    cells: tuple[float, ...]


def table1(result: Comparison, free: Mapping[Protocol, int | None]) -> list[Line]:
    """The predictions, the count table, the ceilings of the boxes, and where they are known the paper's numbers.

    `free` has, of each task, the protocol with the k that was chosen on the validation split.
    """
    chosen: dict[str, int | None] = {protocol.task: k for protocol, k in free.items()}
    rows = [(what, row) for what, row in result.rows if row.protocol.subset == "all"]
    lines = []
    for name in dict.fromkeys(what for what, _ in rows):
        cells: dict[tuple[str, int | None, int], float] = {
            (row.protocol.task, row.protocol.k, row.top): row.recall for what, row in rows if what == name
        }
        asked = ((task, chosen.get(task, -1) if k == "free" else int(k), top) for task, k, top in COLUMNS)
        lines.append(Line(name, tuple(cells.get(key, math.nan) for key in asked)))
    for name in dict.fromkeys(what for what, _, _ in result.ceilings):
        values: dict[str, float] = {
            each.task: value for what, each, value in result.ceilings if what == name and each.subset == "all"
        }
        lines.append(Line(name, tuple(values.get(task, math.nan) for task, _, _ in COLUMNS)))
    return lines + [Line(label, cells) for label, cells in PAPER.get(result.dataset, {}).items()]
