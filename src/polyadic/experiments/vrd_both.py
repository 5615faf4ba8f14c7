"""Pixels and a detector's word together on given proposals of VRD, beside its word alone; both from the same pictures.

Only some of the training images may have a picture, so the models of all annotations are no fair opponent.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from polyadic import progress
from polyadic.config import PRESETS
from polyadic.config.schema import Config
from polyadic.evaluation.compare import PREDICTIONS
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.boxes_scores import KS
from polyadic.experiments.evaluating import detections_of, evaluate_run
from polyadic.experiments.runs import open_run, pictured, seconds_of
from polyadic.experiments.table1 import TASKS, TOPS
from polyadic.files import hide_paths, versions, write_text
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train

EVIDENCE, BOTH = "evidence", "pixels and evidence"


@dataclass(frozen=True)
class Row:
    """A recall."""

    what: str
    seed: int
    task: str
    k: int
    N: int
    recall: float
    mean_recall: float
    seconds: float  # of the training


def configs(root: Path, weights: Path, proposals: Path) -> dict[str, Config]:
    """The two kinds of model: as alike as they can be."""
    place = {"data.root": str(root), "data.pictures": "present", "data.simulate": str(proposals)}
    alone = PRESETS["vrd-boxes"].change(**place, **{"validation.images": 0})
    seen = replace(PRESETS["vrd-pixels"].pixels, weights=str(weights), side=384, longest=384, place=False)
    fresh = replace(alone.cache, gigabytes=0.0)  # simulated boxes are never the same
    head = replace(alone.head, input_dropout=0.3)  # many pixels, few pictures
    both = replace(alone, sources=("pixels", "evidence"), pixels=seen, head=head, cache=fresh, workers=1)
    return {EVIDENCE: alone, BOTH: both}


def vrd_both(
    root: Path, weights: Path, proposals: Path, out: Path, seeds: Sequence[int]
) -> tuple[list[Row], dict[str, Config]]:
    """Interrupted, it goes on when it is called again."""
    for name, path in (("--weights", weights), ("--proposals", proposals)):
        if not path.expanduser().is_file():
            raise PolyadicError(f"{name}: no file {path}")
    made = configs(*(path.expanduser().resolve() for path in (root, weights, proposals)))
    protocols = [get_protocol("lu2016").change(task=task, k_unit="triplet", tops=TOPS) for task in TASKS]
    if not len(pictured(made[BOTH], "test")):
        raise PolyadicError("no test image of vrd has a picture to score on")
    rows = []
    for seed in seeds:
        for what, config in made.items():
            folder = out.expanduser().resolve() / f"{what.replace(' ', '-')}-seed-{seed}"
            progress.say(folder.name)
            begun = (folder / "config.json").is_file()
            train(config.change(seed=seed), folder, resume=begun)
            run = open_run(folder)
            boxes = detections_of(proposals.expanduser(), run)
            found = evaluate_run(run, protocols, KS, boxes)
            taken = round(seconds_of(folder), 1)
            rows += [
                Row(what, seed, row.protocol.task, row.protocol.k, row.top, row.recall, row.mean_recall, taken)
                for name, row in found.result.rows
                if name == PREDICTIONS and row.protocol.subset == "all" and row.protocol.k is not None
            ]
    return rows, made


def write(rows: Sequence[Row], made: dict[str, Config], path: Path) -> tuple[Path, Path]:
    """The rows, and beside them as JSON the configs and versions that made them."""
    check_file(path, {row.seed for row in rows})
    text = io.StringIO()
    writer = csv.DictWriter(text, _HEADER, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    about = {what: config.to_json() for what, config in made.items()}
    for config in about.values():
        hide_paths(config)
    beside = path.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())
    write_text(beside, json.dumps({"configs": about, "versions": versions()}, indent=1) + "\n")
    return path, beside


def check_file(path: Path, seeds: Container[int]) -> None:
    """Before the work: a file that is not of this kind stays, and so does one with more seeds."""
    if path.suffix != ".csv":
        raise PolyadicError(f"--csv: expected a name that ends in .csv, got {path}")
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.partition("\n")[0] != ",".join(_HEADER):
        raise PolyadicError(f"--csv: {path} exists and is not a table of this command; choose another name")
    more = [row["seed"] for row in csv.DictReader(io.StringIO(text)) if int(row["seed"]) not in seeds]
    if more:
        raise PolyadicError(f"--csv: {path} has seed {more[0]}, which would be dropped; ask for it, or choose another")


_HEADER = [each.name for each in fields(Row)]
