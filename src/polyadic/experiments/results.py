"""One results table for all experiments: rows of measured numbers, their CSV file, and means over seeds."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import statistics
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import polyadic
from polyadic.config.schema import Config
from polyadic.evaluation.compare import Comparison
from polyadic.evaluation.protocol import Protocol, Recall
from polyadic.files import check_output, hide_paths, versions, write_text
from polyadic.model.relation_model import RelationModel
from polyadic.structures.detections import Detections
from polyadic.structures.inputs import regular_file
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.region_cache import digest

T = TypeVar("T")
FREE: Literal["free"] = "free"  # k chosen on the validation split
Column = tuple[str, str, int]  # of a table: task, k and N


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured under one setting. Fields that do not apply stay empty."""

    what: str  # a model, a variant of it, a baseline or a ceiling
    dataset: str = ""
    split: str = ""
    protocol: str = ""  # its label
    fit: str = ""  # which detections the model was trained for
    task: str = ""
    subset: str = ""
    rank: int | None = None
    seed: int | None = None  # None: no model, or several
    parts: str = ""  # the terms of f_spo
    k: str = ""  # as asked for: a number, free or any
    used: int | None = None  # the k that was ranked with; None: any
    N: int | None = None  # None: any
    recall: float | None = None  # in percent, as mean_recall and share
    mean_recall: float | None = None
    outcome: str = ""  # of ground truths: hit, box missing, ...
    ground_truths: int | None = None
    triplets: int | None = None  # predictions of that outcome
    share: float | None = None
    loss: float | None = None  # -log ψ_c of held-out annotated pairs, the mean
    seconds: float | None = None  # of training steps

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Row:
        """Parse CSV or JSON values; missing columns are empty. In old files only the protocol has the task."""
        row = cls(**{name: _PARSERS[name](value) for name, value in record.items()})
        return row if row.task else replace(row, task=row.protocol.partition(",")[0].rpartition(" ")[2])


def _number(kind: type[int] | type[float]) -> Callable[[Any], int | float | None]:
    return lambda value: None if value in ("", "any", None) else kind(value)


_INTEGERS = {"rank", "seed", "used", "N", "ground_truths", "triplets"}
_REALS = {"recall", "mean_recall", "share", "loss", "seconds"}
COLUMNS = tuple(column.name for column in fields(Row))
_PARSERS: dict[str, Callable[[Any], Any]] = {
    name: _number(int) if name in _INTEGERS else _number(float) if name in _REALS else str for name in COLUMNS
}


def recall_row(what: str, recall: Recall, **more: Any) -> Row:
    """Create the row of a measured recall; `more` are other fields."""
    numbers = {"N": recall.top, "recall": recall.recall, "mean_recall": recall.mean_recall}
    return Row(what=what, **{**_protocol_fields(recall.protocol), **numbers, **more})


def comparison_rows(result: Comparison, free: Container[Protocol] = ()) -> list[Row]:
    """List the rows of all recalls and ceilings; those of the protocols in `free` also as free k."""
    where = {"dataset": result.dataset, "split": result.split}
    recalls = (*result.rows, *result.ceilings)
    chosen = [(what, recall) for what, recall in recalls if recall.protocol.change(subset="all") in free]
    rows = [recall_row(what, recall, **where) for what, recall in recalls]
    return rows + [recall_row(what, recall, **where, k=FREE) for what, recall in chosen]


def _protocol_fields(protocol: Protocol) -> dict[str, Any]:
    name = {"protocol": protocol.label, "task": protocol.task, "subset": protocol.subset}
    return {**name, "k": str(protocol.k or "any"), "used": protocol.k}


def select(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Select the rows that have these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in values.items())]


def to_csv(rows: Sequence[Row]) -> str:
    """Format one line per row, with the columns that some row fills."""
    records = [{name: "" if value is None else value for name, value in asdict(row).items()} for row in rows]
    used = [name for name in COLUMNS if name == "what" or any(record[name] != "" for record in records)]
    text = io.StringIO()
    writer = csv.DictWriter(text, used, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read what `write_results` wrote."""
    try:
        with regular_file(path).open(encoding="utf-8", newline="") as file:
            records = list(csv.reader(file, strict=True))
        if not {"what"} <= set(records[0]) <= set(COLUMNS):
            raise ValueError(f"unknown columns {records[0]}")
        rows = tuple(Row.parse(dict(zip(records[0], values, strict=True))) for values in records[1:])
    except (OSError, TypeError, ValueError, LookupError, csv.Error) as error:
        raise PolyadicError(f"{path} is not a table of results, or is damaged: choose another name") from error
    return rows


def check_target(path: Path, planned: Container[tuple[str, int | None, int | None]] | None = None) -> None:
    """Before any work, refuse to replace a file that is no results table, or whose runs are not `planned` again.

    Args:
        path: The CSV file that will be written.
        planned: What, rank and seed of the rows to come; None allows any.
    """
    if path.suffix != ".csv":
        raise PolyadicError(f"--csv: expected a name that ends in .csv, got {path}")
    place = next(parent for parent in path.absolute().parents if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise PolyadicError(f"--csv: no folder can be made at {path.parent}: {place} is a file or cannot be written to")
    beside = path.with_suffix(".json")
    if beside.exists():
        check_output(beside, "results", option="--csv", replace=True)
    if not path.exists():
        return
    check_output(path, "results", option="--csv", replace=True)
    for row in read_rows(path):
        if planned is not None and row.seed is not None and (row.what, row.rank, row.seed) not in planned:
            rank = "" if row.rank is None else f"rank {row.rank}, "
            raise PolyadicError(
                f"--csv: {path} has rows of {row.what}, {rank}seed {row.seed} that would be lost: include these runs, "
                "or choose another name"
            )


def config_record(config: Config) -> dict[str, Any]:
    """Export a config without the paths of this machine."""
    record = config.to_json()
    hide_paths(record)
    return record


def cached_rows(path: Path, depends: Iterable[Any], measure: Callable[[], list[Row]]) -> list[Row]:
    """Read rows that `cached` kept, or measure them."""

    def records() -> list[dict[str, Any]]:
        return [{name: value for name, value in asdict(row).items() if value not in ("", None)} for row in measure()]

    return cached(path, depends, records, lambda stored: [Row.parse(record) for record in stored])


def cached(path: Path, depends: Iterable[Any], measure: Callable[[], Any], parse: Callable[[Any], T]) -> T:
    """Read kept JSON values; measure them if the file is absent, damaged or what they depend on has changed.

    `depends` has models, scenes, detections, text, numbers and arrays.
    """
    key = digest(polyadic.__version__, *(part for value in depends for part in _parts(value)))
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return parse(stored["rows"])
    measured = measure()
    with suppress(OSError):  # what cannot be kept is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"key": key, "rows": measured}, indent=1))
    return parse(measured)


def _parts(value: Any) -> Iterator[Any]:
    """List what `digest` takes of a value."""
    if isinstance(value, Scene):
        yield from (value.name, value.boxes, value.labels, value.relations)
    elif isinstance(value, Detections):
        yield from (value.image, repr(value.size), value.boxes, value.labels, value.scores)
        yield from () if value.distribution is None else (value.distribution,)
    elif isinstance(value, RelationModel):
        yield from (repr(value.config.ranking), *(weights.cpu() for weights in value.state_dict().values()))
    else:
        yield value


@dataclass(frozen=True, eq=False)
class Results:
    """All rows of an experiment, and what the file beside them says: configs, seeds and so on."""

    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> tuple[Path, Path]:
        """Write the rows, and a JSON file of the same name with `about` and the versions."""
        beside = path.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, to_csv(self.rows))
        write_text(beside, json.dumps({**self.about, "versions": versions()}, indent=1) + "\n")
        return path, beside


@dataclass(frozen=True, eq=False)
class RunScores:
    """Recalls beside baseline and ceiling, the k chosen for each protocol with free k, and notes."""

    result: Comparison
    free: dict[Protocol, int | None]
    notes: tuple[str, ...]


class Cell(NamedTuple):
    """A mean over seeds; the deviation is that of a sample, NaN for a single value."""

    mean: float
    deviation: float = math.nan


def cell(values: Iterable[float | None]) -> Cell:
    """Compute mean and deviation; NaN where there is no value, or one is NaN (no ground truths)."""
    numbers = [value for value in values if value is not None]
    if not numbers or any(map(math.isnan, numbers)):
        return Cell(math.nan)
    return Cell(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else math.nan)


def recall_cells(rows: Iterable[Row], columns: Sequence[Column], metric: str = "recall") -> tuple[Cell, ...]:
    """Compute the cells of a line of a table; a row without N, an old ceiling, holds for any k and N."""
    rows = list(rows)
    return tuple(
        cell(getattr(row, metric) for row in rows if row.task == task and (row.N is None or (row.k, row.N) == (k, n)))
        for task, k, n in columns
    )


@dataclass(frozen=True)
class TableLine:
    """One line of a table: numbers in the order of its columns, and the paper's where it has them."""

    label: str
    cells: tuple[Cell, ...]
    loss: Cell | None = None
    paper: tuple[float, ...] | None = None
