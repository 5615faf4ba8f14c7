"""An ablation in the form of the paper's Table 4: means and deviations over seeds, files, the paper's own numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from polyadic.experiments.ablation import Ablation
from polyadic.experiments.ablation_scores import ALL, MODEL, PHRASES, TEMPERED, Row
from polyadic.files import hide_paths, versions, write_text
from polyadic.structures.vocabulary import PolyadicError

COLUMNS = (("free", "50"), ("free", "100"), ("1", "50"), ("1", "100"))  # k, N
_ADDED = {
    "psi_c + selected": "w/ X_sel",
    "psi_c + selected + prior": "w/ X_sel & prior",
    TEMPERED: "w/ X_sel & prior^{exponent:g}",
    "psi_c + geometry": "w/ prior that knows the boxes",
}

# R@50 and R@100 with free k, then with k = 1
PAPER: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "vg150": {
        "Rank-1": (37.35, 44.49, 32.16, 34.30),
        "Rank-2": (42.53, 47.52, 33.64, 35.26),
        "Rank-3": (41.89, 48.35, 33.89, 35.31),
        "Rank-4": (41.74, 48.22, 33.29, 35.14),
        "Rank-5": (42.71, 48.95, 32.21, 35.35),
        "Rank-5 w/ X_sel": (46.25, 53.05, 34.57, 36.57),
        "Rank-5 w/ X_sel & prior": (47.54, 54.69, 35.60, 37.68),
    },
    "vrd": {
        "Rank-1": (39.01, 46.3, 31.12, 33.04),
        "Rank-2": (41.29, 51.58, 33.43, 35.16),
        "Rank-3": (40.28, 49.5, 32.46, 34.96),
        "Rank-4": (39.63, 49.64, 32.03, 33.52),
        "Rank-5": (40.47, 50.75, 32.59, 34.06),
        "Rank-5 w/ X_sel": (42.89, 52.47, 33.51, 35.78),
        "Rank-5 w/ X_sel & prior": (44.02, 53.99, 34.14, 36.07),
    },
}


@dataclass(frozen=True)
class Cell:
    """Over seeds; the deviation is that of a sample, NaN for a single seed."""

    mean: float
    deviation: float = math.nan


@dataclass(frozen=True)
class Line:
    """A row of the table: recalls in the order of COLUMNS, the held-out loss, the paper's recalls where it has them."""

    label: str
    cells: tuple[Cell, ...]
    loss: Cell | None = None
    paper: tuple[float, ...] | None = None


def table4(ablation: Ablation, task: str = PHRASES) -> list[Line]:
    """The ranks plain, the first and the last one with each part added; the same from all images; then all else.

    The paper's numbers are of phrase classification.
    """
    asked = [row for row in ablation.rows if task in row.protocol]
    dataset = asked[0].dataset if task == PHRASES else ""
    ends = dict.fromkeys((ablation.ranks[0], ablation.ranks[-1]))
    named = [(f"Rank-{rank}", rank, "psi_c") for rank in ablation.ranks]
    for rank in ends:
        for parts, words in _ADDED.items():
            named.append((f"Rank-{rank} {words.format(exponent=ablation.config.ranking.prior)}", rank, parts))
    lines = []
    for what in (MODEL, MODEL + ALL):
        mine = [row for row in asked if row.what == what]
        for label, rank, parts in named:
            rows = [row for row in mine if (row.rank, row.parts) == (rank, parts)]
            if rows:  # not every model has every part
                lines.append(_line(dataset, label + what.removeprefix(MODEL), rows))
    others = [row for row in asked if not row.what.startswith(MODEL)]
    names = dict.fromkeys(row.what for row in others)
    return lines + [_line(dataset, what, (row for row in others if row.what == what)) for what in names]


def _line(dataset: str, label: str, rows: Iterable[Row]) -> Line:
    rows = list(rows)
    cells = [_cell(row.recall for row in rows if row.k in (k, "any") and row.N in (n, "any")) for k, n in COLUMNS]
    losses = {row.seed: row.loss for row in rows if row.loss is not None}
    return Line(label, tuple(cells), _cell(losses.values()) if losses else None, PAPER.get(dataset, {}).get(label))


def _cell(values: Iterable[float]) -> Cell:
    held = list(values)
    return Cell(statistics.fmean(held), statistics.stdev(held) if len(held) > 1 else math.nan)


def to_csv(ablation: Ablation) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _HEADER, lineterminator="\n")
    writer.writeheader()
    for row in ablation.rows:
        writer.writerow({name: "" if value is None else value for name, value in asdict(row).items()})
    return text.getvalue()


_HEADER = [each.name for each in fields(Row)]


def read_rows(path: Path) -> tuple[Row, ...]:
    """What `to_csv` wrote."""
    whole, real = ("rank", "seed"), ("recall", "loss", "seconds")

    def parsed(record: dict[str, str]) -> Row:
        values: dict[str, Any] = dict(record)
        for names, kind in ((whole, int), (real, float)):
            values |= {name: None if record[name] == "" else kind(record[name]) for name in names}
        return Row(**values)

    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(map(parsed, csv.DictReader(file)))
    except (TypeError, ValueError, KeyError, csv.Error) as error:
        raise PolyadicError(
            f"{path} is damaged or cut off: not every line is an ablation's; move it, or choose another name"
        ) from error


def write(ablation: Ablation, path: Path) -> tuple[Path, Path]:
    """The rows, and beside them as JSON the config and the versions that made them. Replaces an earlier ablation's."""
    check_file(path)
    beside = path.with_suffix(".json")
    config = ablation.config.to_json()
    hide_paths(config)
    about: dict[str, Any] = {"config": config, "ranks": ablation.ranks, "seeds": ablation.seeds, "versions": versions()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_csv(ablation))
    write_text(beside, json.dumps(about, indent=1) + "\n")
    return path, beside


def check_file(path: Path, made: Container[tuple[str, str, str]] | None = None) -> None:
    """Before the work: a file that no ablation wrote stays, and so does one with runs that would be dropped.

    `made` are those that will be there: what, rank, seed; None: the models of `ablate`, whichever they are.
    """
    if path.suffix != ".csv":
        raise PolyadicError(f"--csv: expected a name that ends in .csv, got {path}")
    if not path.exists():
        return
    if path.read_text(encoding="utf-8", errors="replace").partition("\n")[0] != ",".join(_HEADER):
        raise PolyadicError(f"--csv: {path} exists and is not an ablation's; choose another name")
    for row in read_rows(path):
        kept = row.what == MODEL if made is None else (row.what, str(row.rank), str(row.seed)) in made
        if row.seed is not None and not kept:
            what = "" if row.what == MODEL else f"{row.what}, "
            raise PolyadicError(
                f"--csv: {path} has {what}rank {row.rank} with seed {row.seed}, which this ablation would drop; "
                "ask for them too, or choose another name"
            )
