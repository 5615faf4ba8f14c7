"""Numbers of `boxes_table` as files and as tables: means and deviations over seeds, the paper's rows beside them."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from polyadic.experiments.boxes_scores import FULL, KS, FateRow, Row
from polyadic.experiments.boxes_table import BoxesTable, LossRow
from polyadic.experiments.table1 import COLUMNS as PAPER_COLUMNS
from polyadic.experiments.table1 import PAPER, TASKS, TOPS
from polyadic.experiments.table4 import Cell
from polyadic.files import hide_paths, versions, write_text
from polyadic.structures.vocabulary import PolyadicError

COLUMNS = tuple((task, k, top) for task in TASKS for k in KS for top in TOPS)
KINDS = {"": Row, "-misses": FateRow, "-losses": LossRow}  # what a file's name ends in, and its rows


@dataclass(frozen=True)
class Line:
    """Recalls in the order of COLUMNS."""

    label: str
    cells: tuple[Cell, ...]


def headline(rows: Sequence[Row], dataset: str, subset: str = "all", mean_recall: bool = False) -> list[Line]:
    """Count table and ceilings, each fit, the seeds' models as one, and of the whole test set the paper."""
    tested = [row for row in rows if row.split == "test" and row.subset == subset]
    lines = []
    for fit in ("baseline", "plain", "cross-fitted"):
        mine = [row for row in tested if row.fit == fit]
        for what in dict.fromkeys(row.what for row in mine):
            name = what if fit == "baseline" else fit if what == FULL else f"{fit}, {what}"
            lines.append(_line(name, (row for row in mine if row.what == what), mean_recall))
    if subset == "all" and not mean_recall:
        for name, cells in PAPER.get(dataset, {}).items():
            place = dict(zip(PAPER_COLUMNS, cells, strict=True))
            lines.append(Line(name, tuple(Cell(place[task, str(k), top]) for task, k, top in COLUMNS)))
    return lines


def ingredients(rows: Sequence[Row], split: str) -> list[Line]:
    """Each variant, trained without the held-out images, on the test images or on those."""
    mine = [row for row in rows if (row.fit, row.split, row.subset) == ("held-out", split, "all")]
    return [_line(what, (row for row in mine if row.what == what)) for what in dict.fromkeys(row.what for row in mine)]


def held_out_losses(losses: Sequence[LossRow]) -> dict[str, Cell]:
    return {
        what: _cell(row.loss for row in losses if row.what == what)
        for what in dict.fromkeys(row.what for row in losses)
    }


def shares(fates: Sequence[FateRow], fit: str, k: int, top: int) -> dict[str, Cell]:
    """Percent of the truths by fate, over seeds."""
    mine = [row for row in fates if (row.fit, row.k, row.N) == (fit, k, top) and row.seed is not None]
    return {fate: _cell(row.share for row in mine if row.fate == fate) for fate in dict.fromkeys(r.fate for r in mine)}


def _line(label: str, rows: Iterable[Row], mean_recall: bool = False) -> Line:
    held = list(rows)

    def at(task: str, k: int, top: int) -> Cell:
        found = [row for row in held if (row.task, row.k, row.N) == (task, k, top)]
        return _cell(row.mean_recall if mean_recall else row.recall for row in found)

    return Line(label, tuple(at(*column) for column in COLUMNS))


def _cell(values: Iterable[float]) -> Cell:
    held = list(values)
    if len(held) < 2 or any(map(math.isnan, held)):  # NaN: no truths; `stdev` breaks at it
        return Cell(statistics.fmean(held))
    return Cell(statistics.fmean(held), statistics.stdev(held))


def write(found: BoxesTable, path: Path) -> list[Path]:
    """NAME.csv, NAME-misses.csv, NAME-losses.csv, and NAME.json with the config, seeds and versions that made them."""
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for (end, kind), rows in zip(KINDS.items(), (found.rows, found.fates, found.losses), strict=True):
        file = _beside(path, end)
        if rows:
            write_text(file, _csv(rows, kind))
            files.append(file)
        else:
            file.unlink(missing_ok=True)  # an earlier table's
    config = found.config.to_json()
    hide_paths(config)
    about = {"config": config, "seeds": found.seeds, "dataset": found.dataset, "training_seconds": found.trained}
    write_text(path.with_suffix(".json"), json.dumps({**about, "versions": versions()}, indent=1) + "\n")
    return [*files, path.with_suffix(".json")]


def read(path: Path) -> tuple[list[Row], list[FateRow], list[LossRow]]:
    """What `write` wrote."""
    found: list[list[Any]] = []
    for end, kind in KINDS.items():
        file = _beside(path, end)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found.append([_parsed(kind, record) for record in csv.DictReader(io.StringIO(text))])
    return found[0], found[1], found[2]


def check_file(path: Path) -> None:
    """Before the work: a file that is not of this kind stays."""
    if path.suffix != ".csv":
        raise PolyadicError(f"--csv: expected a name that ends in .csv, got {path}")
    for end, kind in KINDS.items():
        file, header = _beside(path, end), ",".join(_header(kind)).encode() + b"\n"
        if file.exists() and (not file.is_file() or not file.read_bytes().startswith(header)):
            raise PolyadicError(f"--csv: {file} exists and is not a table of this command; choose another name")


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.stem + end + ".csv")


def _header(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]


def _csv(rows: Sequence[Any], kind: type) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _header(kind), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in asdict(row).items()})
    return text.getvalue()


def _parsed(kind: type, record: dict[str, str]) -> Any:
    whole, real = ("seed", "k", "N", "truths"), ("recall", "mean_recall", "share", "loss", "seconds")
    values: dict[str, Any] = {
        name: None if text == "" else int(text) if name in whole else float(text) if name in real else text
        for name, text in record.items()
    }
    return kind(**values)
