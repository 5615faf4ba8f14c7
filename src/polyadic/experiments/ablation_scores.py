"""The rows of an ablation: what a run reaches with each part added, with free k and with k = 1.

A run's folder keeps its rows, so that a run that has been scored is not scored again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polyadic
from polyadic.config.schema import Config
from polyadic.evaluation.compare import COUNT_TABLE, compare
from polyadic.evaluation.protocol import FREE_K, Protocol
from polyadic.experiments.predicting import best_k, free_ks, recalls_of, sweep
from polyadic.experiments.runs import best_of, regions_of, seconds_of
from polyadic.files import WEIGHTS, write_text
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import Parts
from polyadic.structures.scenes import Dataset, Scene
from polyadic.training.examples import BoxSource, load_split
from polyadic.training.region_cache import Regions, digest, fill

MODEL = "model"
ALL = ", all images"  # after the name: trained once more, with the held-out images
PHRASES, PREDICATES = "phrase-classification", "predicate-classification"  # true boxes; true labels as well
TEMPERED = "psi_c + selected + tempered prior"

PARTS = {
    "psi_c": Parts(selected=False, prior=False, geometry=False),
    "psi_c + selected": Parts(selected=True, prior=False, geometry=False),
    "psi_c + selected + prior": Parts(selected=True, prior=True, geometry=False, prior_exponent=1.0),
    TEMPERED: Parts(selected=True, prior=True, geometry=False),  # ours: with the config's exponent
    "psi_c + geometry": Parts(selected=False, prior=False, geometry=True),  # ours
}


@dataclass(frozen=True)
class Row:
    """One number. `k` is what was asked for, free or 1, and `used` what it came to."""

    what: str  # model, maybe with ALL, count table or ceiling; others by those who make more kinds
    dataset: str
    protocol: str
    rank: int | None
    seed: int | None
    parts: str
    k: str
    used: str
    N: str
    recall: float
    loss: float | None = None  # -log ψ_c of held-out annotated pairs
    seconds: float | None = None  # of training steps


@dataclass(frozen=True)
class _Setting:
    """What one recall is asked of."""

    protocol: Protocol  # with its k
    parts: str
    k: str  # free or 1

    def how(self) -> tuple[Protocol, Parts]:
        return self.protocol, replace(PARTS[self.parts], labels=self.protocol.task == PREDICATES)


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores runs on the same images under the same protocols."""

    test: Dataset
    held_out: Sequence[Scene]
    protocols: Sequence[Protocol]  # without k

    def score(self, model: RelationModel, config: Config, folder: Path) -> list[Row]:
        """Free k is chosen on the held-out images."""

        def made() -> list[Row]:
            settings = self._choose(model, config, folder)
            loss = float(best_of(folder)["held_out"]["loss"])
            return self._rows(model, config, folder, settings, MODEL, loss)

        return self._kept(folder, self._key(folder, self.held_out), made)

    def score_refit(self, model: RelationModel, config: Config, folder: Path, first: Sequence[Row]) -> list[Row]:
        """Of a model that has learned from all images: each k is that of `first`, of the run that held some out."""
        settings = self._settings_of(first)
        asked = [f"{each.protocol.label} {each.parts}" for each in settings]
        key = self._key(folder, (), *asked)
        return self._kept(folder, key, lambda: self._rows(model, config, folder, settings, MODEL + ALL, None))

    def _choose(self, model: RelationModel, config: Config, folder: Path) -> list[_Setting]:
        names = [name for name, parts in PARTS.items() if _trained(model, parts)]
        if config.ranking.prior in (0.0, 1.0):
            names = [name for name in names if name != TEMPERED]
        asked = [_Setting(each, name, "free") for each in self.protocols for name in names]
        regions, workers = self._regions(model, config, folder, self.held_out), config.workers
        swept = [each.how() for each in asked]
        free = free_ks(model, self.held_out, BoxSource(), regions, swept, workers)
        return [
            _Setting(each.protocol.change(k=k), each.parts, word)
            for each, own in zip(asked, free, strict=True)
            for word, k in (("free", own), ("1", 1))
        ]

    def _settings_of(self, rows: Sequence[Row]) -> list[_Setting]:
        """Those that the rows were made with."""
        found = {
            _Setting(protocol.change(k=None if row.used == "any" else int(row.used)), row.parts, row.k): None
            for row in rows
            for protocol in self.protocols
            if protocol.task in row.protocol
        }
        return list(found)

    def _rows(
        self,
        model: RelationModel,
        config: Config,
        folder: Path,
        settings: Sequence[_Setting],
        what: str,
        loss: float | None,
    ) -> list[Row]:
        regions, asked = self._regions(model, config, folder, self.test.scenes), [each.how() for each in settings]
        tables = recalls_of(model, self.test.scenes, BoxSource(), regions, asked, config.workers)
        seconds = round(seconds_of(folder), 1)
        return [
            Row(
                what,
                self.test.name,
                row.protocol.label,
                config.head.rank,
                config.seed,
                each.parts,
                each.k,
                str(each.protocol.k or "any"),
                str(row.top),
                row.recall,
                loss,
                seconds,
            )
            for each, table in zip(settings, tables, strict=True)
            for row in table
        ]

    def _regions(self, model: RelationModel, config: Config, folder: Path, scenes: Sequence[Scene]) -> Regions | None:
        regions = regions_of(model, config, folder)
        if regions is not None and model.backbone is not None:
            boxes = [scene.boxes for scene in scenes]
            fill(regions, model.backbone, scenes, boxes, config.workers)
        return regions

    def _key(self, folder: Path, held_out: Sequence[Scene], *more: str) -> str:
        """Changes with the model, with the images and with what is asked."""
        weights = (folder / "model" / WEIGHTS).stat()
        images = [part for scene in (*self.test, *held_out) for part in (scene.name, scene.boxes, scene.relations)]
        asked = [protocol.label for protocol in self.protocols]
        return digest(polyadic.__version__, weights.st_size, weights.st_mtime_ns, *asked, *images, *more)

    @staticmethod
    def _kept(folder: Path, key: str, made: Callable[[], list[Row]]) -> list[Row]:
        """From the file that an earlier ablation left, if it is whole and has the same key."""
        path = folder / "scores.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["key"] == key:
                return [Row(**row) for row in found["rows"]]
        rows = made()
        write_text(path, json.dumps({"key": key, "rows": [asdict(row) for row in rows]}, indent=1))
        return rows


def _trained(model: RelationModel, parts: Parts) -> bool:
    """Whether the parts are there; ψ_u is counted, not trained. A ψ_c of labels alone says nothing of predicates."""
    there = (not parts.selected or "selection" in model.stages) and (not parts.geometry or "boxes" in model.stages)
    return there and (parts.geometry or not model.config.head.labels)


def baselines(config: Config, test: Dataset, protocol: Protocol) -> Iterator[Row]:
    """What counts alone reach, its k chosen like the model's, and what no ranking of these boxes exceeds."""
    swept = [sweep(protocol, k) for k in FREE_K]
    before = compare(load_split(config, "validation"), [], swept, load_split(config, "fit"))
    counted = [row for what, row in before.rows if what == COUNT_TABLE]
    free = best_k([[row for row in counted if row.protocol == each] for each in swept])
    cuts = {"free": free, "1": 1}
    protocols = dict.fromkeys(protocol.change(k=k) for k in cuts.values())
    found = compare(test, [], list(protocols), load_split(config, "train"))
    for word, k in cuts.items():
        for what, row in found.rows:
            if what == COUNT_TABLE and row.protocol.k == k:
                place: dict[str, Any] = {"rank": None, "seed": None, "parts": "", "k": word, "used": str(k or "any")}
                yield Row(what, test.name, row.protocol.label, **place, N=str(row.top), recall=row.recall)
    for what, base, value in found.ceilings:
        yield Row(what, test.name, base.label, None, None, "", "any", "any", "any", value)
