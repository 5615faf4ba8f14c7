"""Table 1 on given proposals, by models of boxes and labels: from data to numbers.

Training sees simulated detections like the proposals (`data.simulate`). Where those are of the test images, the noise
model has seen unlabelled outputs of the very images scored. So there are two fits. Plain: noise from all proposals.
Cross-fitted: noise from those of one half of the images, scored on the other half, both ways. A third kind of run holds
training images out, and tells what each ingredient is worth. A detector's real boxes of the training images
(`data.detections`) need no noise and no second fit.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polyadic
from polyadic import progress
from polyadic.config.schema import Config
from polyadic.evaluation.compare import COUNT_TABLE, compare
from polyadic.experiments.boxes_scores import (
    FULL,
    KS,
    FateRow,
    Fit,
    Group,
    Row,
    Scorer,
    Scores,
    Variant,
    place_of,
    protocols_of,
    variants,
)
from polyadic.experiments.runs import seconds_of
from polyadic.experiments.table1 import TOPS
from polyadic.files import write_text
from polyadic.io.records import existing, read_detections, write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train
from polyadic.training.examples import BoxSource, load_split, load_training
from polyadic.training.region_cache import digest


@dataclass(frozen=True)
class LossRow:
    """-log ψ_c of held-out relations, the mean, and what the training took."""

    what: str
    seed: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class BoxesTable:
    """All numbers; `seconds` are those of what was done this time."""

    dataset: str
    config: Config
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    fates: tuple[FateRow, ...]
    losses: tuple[LossRow, ...]
    trained: dict[str, float]  # seconds of each run's training steps
    seconds: float


def boxes_table(
    config: Config,
    proposals: Path,
    out: Path,
    seeds: Sequence[int],
    taken_apart: Sequence[int],
) -> BoxesTable:
    """Train and score everything; what is there already is kept, so that it goes on after an interruption.

    `proposals` are boxes of the test images. `taken_apart` are the seeds of the runs that tell what each ingredient is
    worth; those are many.
    """
    start = time.monotonic()
    lab = _Lab(config, proposals.expanduser().resolve(), out.expanduser().resolve(), tuple(seeds))
    scores = [lab.baseline(), *lab.plain()]
    if not config.data.detections:
        scores += lab.cross_fitted()
    losses: list[LossRow] = []
    if taken_apart:
        for name, seed, folder, tested, held_out in lab.taken_apart(taken_apart):
            scores += [tested, held_out]
            if held_out.loss is not None:
                losses.append(LossRow(name, seed, held_out.loss, round(seconds_of(folder), 1)))
    rows, fates = (tuple(row for each in scores for row in getattr(each, what)) for what in ("rows", "fates"))
    return BoxesTable(
        lab.test.name, config, lab.seeds, rows, fates, tuple(losses), lab.trained, time.monotonic() - start
    )


class _Lab:
    """The data, the runs, the scores."""

    def __init__(self, config: Config, proposals: Path, out: Path, seeds: tuple[int, ...]) -> None:
        self.config, self.proposals, self.out, self.seeds = config, proposals, out, seeds
        self.trained: dict[str, float] = {}
        self.test = load_split(config, "test")
        if config.data.detections:
            existing(config.data.detections)  # before the work
        self.scorer = Scorer(load_split(config, "train").triplets())
        known = read_detections(proposals, self.test.vocabulary, sizes=self.test.sizes)
        self.boxes: dict[str, Detections] = {each.image: each for each in known}
        missing = sum(scene.name not in self.boxes for scene in self.test)
        if missing == len(self.test):
            raise PolyadicError(f"{proposals.name} has boxes of none of the {missing:,} test images")
        if missing:
            progress.say(f"{proposals.name} has no boxes of {missing:,} of {len(self.test):,} test images")

    def plain(self) -> Iterator[Scores]:
        everything = self._fed(self.config.change(**{"validation.images": 0}), self.proposals)
        models = []
        for seed in self.seeds:
            models.append(self._train(everything, f"plain-seed-{seed}", seed))
            yield self._score(f"plain-seed-{seed}", [(models[-1:], self.test)], "plain", seed)
        if len(models) > 1:
            yield self._score("plain-mean", [(models, self.test)], "plain", None)

    def cross_fitted(self) -> Iterator[Scores]:
        """Each half is scored by models whose noise is that of the other."""
        everything = self.config.change(**{"validation.images": 0})
        halves = [self._test_half(half) for half in (0, 1)]
        models: tuple[list[RelationModel], list[RelationModel]] = [], []
        for seed in self.seeds:
            for half in (0, 1):
                noise = self._fed(everything, self._proposals_of(half))
                models[half].append(self._train(noise, f"from-half-{half}-seed-{seed}", seed))
            both: list[Group] = [(models[1 - half][-1:], halves[half]) for half in (0, 1)]
            yield self._score(f"cross-fitted-seed-{seed}", both, "cross-fitted", seed)
        if len(self.seeds) > 1:
            mixed: list[Group] = [(models[1 - half], halves[half]) for half in (0, 1)]
            yield self._score("cross-fitted-mean", mixed, "cross-fitted", None)

    def taken_apart(self, seeds: Sequence[int]) -> Iterator[tuple[str, int, Path, Scores, Scores]]:
        """Each variant trained without the held-out images, and scored on the test images and on those."""
        trained: dict[str, list[Variant]] = {}
        for variant in variants(self.config):
            trained.setdefault(json.dumps(dict(variant.training), sort_keys=True), []).append(variant)
        config = self._fed(self.config, self.proposals)
        known, held_out = load_training(config), load_split(config, "validation")
        boxes = BoxSource(known.detections, None if known.detections is not None else known.noise)
        for seed in seeds:
            for same in trained.values():
                name = f"held-out-{same[0].name.replace(' ', '-')}-seed-{seed}"
                model = self._train(config.change(**same[0].training), name, seed)
                tested = self._score(f"{name}-test", [([model], self.test)], "held-out", seed, same)
                known_there = self._score(f"{name}-validation", [([model], held_out)], "held-out", seed, same, boxes)
                yield same[0].name, seed, self.out / name, replace(tested, fates=()), replace(known_there, fates=())

    def baseline(self) -> Scores:
        """What counts alone reach on the same boxes, and what no ranking of them exceeds."""
        protocols = [each for k in KS for each in protocols_of(k)]
        train = load_split(self.config, "train")
        found = compare(self.test, [], protocols, train, self.boxes)
        rows = [
            Row(what, "baseline", self.test.split, None, *place_of(row.protocol), row.top, row.recall, row.mean_recall)
            for what, row in found.rows
            if what == COUNT_TABLE
        ]
        for what, each, value in found.ceilings:
            rows += [
                Row(what, "baseline", self.test.split, None, each.task, k, each.subset, top, value, math.nan)
                for k in KS
                for top in TOPS
            ]
        return Scores(tuple(rows))

    def _test_half(self, half: int) -> Dataset:
        return self.test.keep(lambda scene: half_of(scene.name) == half, self.test.split)

    def _fed(self, config: Config, noise: Path) -> Config:
        return config if config.data.detections else config.change(**{"data.simulate": str(noise)})

    def _proposals_of(self, half: int) -> Path:
        path = self.out / f"proposals-{half}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = [each for name, each in self.boxes.items() if half_of(name) == half]
        return write_detections(path, mine, self.test.vocabulary, overwrite=True)

    def _train(self, config: Config, name: str, seed: int) -> RelationModel:
        """Goes on in a run that is there; one that is complete has nothing left to do."""
        folder = self.out / name
        begun = (folder / "config.json").is_file()
        if folder.exists() and not begun and (not folder.is_dir() or any(folder.iterdir())):
            raise PolyadicError(f"{folder} is no run, and in the way: move it, or give another --out")
        progress.say(name)
        model = train(config.change(seed=seed), folder, resume=begun)
        self.trained[name] = round(seconds_of(folder), 1)
        return model

    def _score(
        self,
        name: str,
        groups: Sequence[Group],
        fit: Fit,
        seed: int | None,
        asked: Sequence[Variant] = (Variant(FULL),),
        source: BoxSource | None = None,
    ) -> Scores:
        """From the file of an earlier time, if it is of these models, images and boxes."""
        source = source or BoxSource(self.boxes)
        path, key = self.out / "scores" / f"{name}.json", _key(groups, asked, source)
        with suppress(OSError, ValueError, TypeError, KeyError):  # not there, or damaged
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["key"] == key:
                rows, fates = (Row(**row) for row in held["rows"]), (FateRow(**row) for row in held["fates"])
                return Scores(tuple(rows), tuple(fates), held["loss"])
        found = self.scorer.score(groups, source, fit, seed, asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"key": key, **asdict(found)}, indent=1))
        return found


def half_of(name: str) -> int:
    """0 or 1, by the name alone: the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


def _key(groups: Sequence[Group], asked: Sequence[Variant], source: BoxSource) -> str:
    parts: list[Any] = [polyadic.__version__, repr(asked)]
    for name, found in sorted((source.detections or {}).items()):
        parts += [name, repr(found.size), found.boxes, found.labels, found.scores]
    for name, array in sorted((source.noise.to_arrays() if source.noise else {}).items()):
        parts += [name, array]
    for models, data in groups:
        parts.append(data.split)
        parts += [part for scene in data for part in (scene.name, scene.boxes, scene.labels, scene.relations)]
        for model in models:
            parts += [repr(model.config.ranking), *(x.cpu() for x in model.state_dict().values())]
    return digest(*parts)
