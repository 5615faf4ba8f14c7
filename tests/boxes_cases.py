"""Table 1 on proposals of a drawn world so small that each of its runs trains in a blink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model_cases import prepared
from training_cases import Spy, tiny, watched

from polyadic.config.schema import Config
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.datasets.toy.world import World
from polyadic.evaluation import Evaluator
from polyadic.experiments.results import FREE, Results, select
from polyadic.experiments.table1 import boxes_table, protocols_of
from polyadic.io.records import write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene

SMALL: dict[str, Any] = {
    "world.train": 24,
    "world.test": 7,
    "evidence.embedding": 6,
    "evidence.geometry": 7,
    "head.rank": 3,
    "head.hidden": 10,
    "selector.hidden": 9,
    "ranking.nms": 1.0,
    "ranking.prior": 0.15,
    "ranking.boxes": 0.0,
    "ranking.repeat": 0.1,
    "triplets.epochs": 0,
    "proposals.epochs": 1,
    "proposals.images": 7,
    "proposals.optimiser": "adamw",
    "proposals.rate": 0.02,
    "selection.epochs": 1,
    "selection.images": 10,
}
MOST = 7  # boxes per image
Numbers = dict[tuple[str, int, str, int], tuple[float, float]]  # by task, k, subset, N: recall and mean recall


def small(**changes: Any) -> Config:
    """22 images to learn from, 2 held out, 7 to be tested on; the stages proposals and selection."""
    return tiny(sources=("evidence",), **{**SMALL, **changes})


def scenes(split: str) -> tuple[Scene, ...]:
    return World(24, 7).dataset(split).scenes


def propose(images: Iterable[Scene], seed: int = 0) -> list[Detections]:
    """Some true boxes, moved a little, one twice, one under another label; not a word of the last image."""
    rng, found = np.random.default_rng(seed), []
    for scene in images:
        rows = np.unique(scene.relations[:, ::2])[: MOST - 1]
        rows = np.append(rows, rows[:1])
        boxes = scene.boxes[rows] + rng.uniform(-1, 1, (len(rows), 4))
        boxes = boxes.clip(0, np.tile(scene.frame, 2))
        labels = scene.labels[rows].copy()
        labels[1] = (labels[1] + 1) % len(VOCABULARY.objects)
        found.append(Detections(scene.name, boxes, labels, rng.uniform(0.2, 1, len(rows)), scene.frame))
    return found[:-1]


def proposal_file(path: Path, split: str = "test", seed: int = 0) -> Path:
    return write_detections(path, propose(scenes(split), seed), VOCABULARY)


def make(
    config: Config,
    proposals: Path,
    out: Path,
    seeds: Sequence[int],
    taken_apart: Sequence[int] = (),
    spy: Spy | None = None,
) -> Results:
    with watched(spy or Spy()):
        return boxes_table(config, proposals, out, seeds=seeds, ingredients=taken_apart)


def numbers_of(found: Results, **asked: Any) -> Numbers:
    """The rows with such values."""
    rows = [row for row in select(found.rows, **asked) if row.recall is not None and row.k != FREE]
    numbers: Numbers = {}
    for row in rows:
        assert row.N is not None
        assert row.recall is not None
        assert row.mean_recall is not None
        numbers[row.task, int(row.k), row.subset, row.N] = row.recall, row.mean_recall
    assert len(numbers) == len(rows) == 16, "each once"
    return numbers


def close(a: Numbers, b: Numbers) -> bool:
    """But for rounding; NaN, which says that there are no truths, is NaN."""
    return a.keys() == b.keys() and all(np.allclose(a[key], b[key], equal_nan=True) for key in a)


def slow_numbers(
    judged: Iterable[tuple[Scene, RelationModel]],
    boxes: Mapping[str, Detections],
    parts: ScoreTerms = ALL,
    ks: Sequence[int | None] = (1, 10),
) -> Numbers:
    """Image by image, each with the model that is to judge it."""
    numbers: Numbers = {}
    images, seen = list(judged), World(24, 7).dataset("train").triplets()
    for k in ks:
        evaluator = Evaluator(protocols_of(k), len(VOCABULARY.predicates), seen)
        for scene, model in images:
            none = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0), scene.frame)
            given = boxes.get(scene.name, none)
            evaluator.update(scene, prepared(model, given).rank(k, 100, terms=parts))
        for row in evaluator.result():
            numbers[row.protocol.task, row.protocol.k or 0, row.protocol.subset, row.top] = (
                row.recall,
                row.mean_recall,
            )
    return numbers
