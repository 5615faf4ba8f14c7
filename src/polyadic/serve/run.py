"""The view of an evaluated run: its table beside the paper's, curves, errors, confusions, and photos with hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.detectors.detector import Detector
from polyadic.evaluation.misses import OUTCOMES, MissCounter
from polyadic.evaluation.protocol import Protocol, get_protocol, small_tops
from polyadic.experiments.paper import TABLES
from polyadic.experiments.results import FREE, Column, Row, cached, comparison_rows, recall_cells, select
from polyadic.experiments.runs import K, OpenRun, evaluate_run, is_run, open_run, predict_scenes, read_detections_of
from polyadic.experiments.spurious import matches
from polyadic.experiments.table4 import PAPER as ABLATION
from polyadic.experiments.table4 import PHRASES
from polyadic.model.scoring import ALL
from polyadic.progress import Reporter, reporting
from polyadic.serve.answers import Answerer, Opened
from polyadic.serve.guard import RefusedError, hide_folders
from polyadic.serve.messages import OpenRequest
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import BoxSource
from polyadic.training.proposals import FOUND, detected
from polyadic.training.run import log_entry

POINTS = 300  # of a curve
CLASSES = 12  # of the confusion view
LISTED = 20  # relations of a photo
KEPT = "page.json"  # in the run's folder


class _Place(Reporter):
    """Where the evaluation is, in words for the page."""

    def __init__(self) -> None:
        self.text, self.total = "", 0

    def begin(self, text: str, total: int | None) -> None:
        self.text, self.total = text, total or 0

    def move(self, done: int, **numbers: float) -> None:
        self.text = f"{self.text.partition(':')[0]}: {done:,} of {self.total:,}"


@dataclass
class RunView:
    """A run under evaluation, and what is known of it so far."""

    run: OpenRun
    given: Path | None = None  # a file of detections
    boxes: Mapping[str, Detections] | None = None  # None: the ground-truth boxes
    report: dict[str, Any] | None = None
    photos: list[dict[str, Any]] = field(default_factory=list)  # of each test photo: outcomes, and what is shown
    problem: str = ""
    place: _Place = field(default_factory=_Place)

    @property
    def name(self) -> str:
        return self.run.folder.resolve().name

    @classmethod
    def open(cls, folder: Path, detections: Path | None) -> RunView:
        """Open a run with the test split of its data."""
        return cls(open_run(folder), detections)

    @cached_property
    def protocol(self) -> Protocol:
        task = PHRASES if self.boxes is None else "relationship"
        counts = [len(scene.boxes) for scene in self.run.data if len(scene.relations)]
        if self.boxes is not None:
            counts = [len(self.boxes[scene.name]) for scene in self.run.data if scene.name in self.boxes]
        tops = small_tops(counts, (50, 100))[0]
        return get_protocol("lu2016").change(task=task, k_unit="triplet", tops=tops)

    def evaluate(self) -> None:
        """Score the split, or read the scores kept beside the run; a failure is shown on the page."""
        try:
            with reporting(self.place):
                self._evaluate()
        except (PolyadicError, MemoryError) as error:
            self.problem = hide_folders(str(error)) or "not enough memory"

    def _evaluate(self) -> None:
        run = self.run
        if self.given is not None:
            self.boxes = read_detections_of(self.given, run)
        elif isinstance(run.model.detector, Detector):
            cache = run.folder / FOUND if is_run(run.folder) else None
            self.boxes = detected(run.model.detector, run.data.scenes, cache, run.config.workers)
        boxes = () if self.boxes is None else self.boxes.values()
        depends = [self.protocol.label, repr(self.protocol.tops), run.model, *run.data, *boxes]
        kept = (
            cached(run.folder / KEPT, depends, self._measure, lambda stored: stored)
            if is_run(run.folder)
            else self._measure()
        )
        self.photos, self.report = kept["photos"], kept["report"]

    def _measure(self) -> dict[str, Any]:
        """Score the split, then rank each photo at the chosen k."""
        try:
            ks: tuple[K, ...] = (1, FREE)
            scores = evaluate_run(self.run, [self.protocol], ks, detections=self.boxes, misses=True)
        except PolyadicError:  # no validation images to choose k on
            ks = (1, None)
            scores = evaluate_run(self.run, [self.protocol], ks, detections=self.boxes, misses=True)
        k = next(iter(scores.free.values()), None)
        protocol = self.protocol.change(k=k)
        images = self.run.images(boxes=BoxSource(self.boxes))
        top = max(protocol.tops)
        photos, confusion = [], _Confusion()
        for scene, (relations,) in predict_scenes(self.run.model, images, [(k, ALL)], top=top):
            counts = self._outcomes(scene, relations, protocol)
            about = {"name": scene.name, "truths": len(scene.relations), **counts}
            photos.append({"about": about, "shown": self._record(scene, relations)})
            confusion.update(scene, relations, self.protocol)
        words = [str(k) if k is not None else "any" for k in ks]
        columns: list[Column] = [(protocol.task, word, top) for word in words for top in protocol.tops]
        misses = scores.result.misses
        report = {
            "dataset": scores.result.dataset,
            "split": scores.result.split,
            "protocol": protocol.label,
            "columns": [{"k": word, "N": top} for _, word, top in columns],
            "table": self._table(comparison_rows(scores.result, scores.free), columns),
            "outcomes": [] if misses is None else [x for x in misses.to_json() if x["subset"] == "all"],
            "names": list(OUTCOMES),
            "confusion": confusion.most_frequent(self.run.data.vocabulary.predicates),
            "notes": list(dict.fromkeys((*scores.notes, *scores.result.notes, *self._paper_notes()))),
        }
        return {"report": report, "photos": photos}

    def _table(self, rows: list[Row], columns: list[Column]) -> list[dict[str, Any]]:
        """List this run, baselines and ceilings, then the published rows, where they are of the same columns."""
        rows = [row for row in rows if row.subset == "all"]
        lines: list[dict[str, Any]] = [
            {"name": what, "cells": [_number(cell.mean) for cell in recall_cells(select(rows, what=what), columns)]}
            for what in dict.fromkeys(row.what for row in rows)
        ]
        for name, published in self._published().items():
            lines.append({"name": name, "cells": [_number(published.get(c, np.nan)) for c in columns], "paper": True})
        return [line for line in lines if any(cell is not None for cell in line["cells"])]

    def _published(self) -> dict[str, dict[Column, float]]:
        dataset, table = self.run.data.name, TABLES[1]
        if self.protocol.task != PHRASES:
            columns = table.columns[""]
            rows = table.published if dataset == table.dataset else {}
            return {name: dict(zip(columns, numbers, strict=True)) for name, numbers in rows.items()}
        places: list[Column] = [(PHRASES, k, top) for k in (FREE, "1") for top in (50, 100)]
        known = ABLATION.get(dataset, {})
        return {f"the paper, {name}": dict(zip(places, row, strict=True)) for name, row in known.items()}

    def _paper_notes(self) -> list[str]:
        best = list(ABLATION["vrd"].values())[-1]
        text = f"The paper has no numbers on this dataset; on VRD it has {best[0]} / {best[1]} (R@50 / R@100, free k)."
        return [] if self._published() else [text]

    def _outcomes(self, scene: Scene, relations: Relations, protocol: Protocol) -> dict[str, int]:
        """Count what became of each ground truth of a photo among its best N."""
        counter = MissCounter(protocol)
        boxes, labels = scene.boxes, np.full(len(scene.boxes), UNKNOWN)  # no detector named them
        if self.boxes is not None:
            empty = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
            found = self.boxes.get(scene.name, empty).in_frame(scene.frame)
            boxes, labels = found.boxes, found.labels
        counter.update(scene, relations, boxes, labels)
        row = list(counter.result())[-1]
        return dict(zip(OUTCOMES, row.counts, strict=True))

    def _record(self, scene: Scene, relations: Relations) -> dict[str, Any]:
        """Describe a photo's best predictions, which of them are annotated, and which annotations were found."""
        shown = relations.in_frame(scene.frame)[:LISTED]
        hits = matches(scene, shown, self.protocol)
        record = shown.to_dict()
        names = self.run.data.vocabulary
        for relation, hit in zip(record["relations"], np.asarray(hits.any(1)).tolist(), strict=True):
            relation["hit"] = hit
        labels = [names.objects[label] for label in scene.labels.tolist()] if self.boxes is None else None
        for box, label in zip(record["boxes"], labels or shown.box_classes(), strict=True):
            box["label"] = label
        found = set(np.flatnonzero(matches(scene, relations, self.protocol).any(0)).tolist())
        truth = [
            {"names": list(names.decode(triplet)), "found": at in found}
            for at, triplet in enumerate(scene.triplets.tolist())
        ]
        return {**record, "size": list(scene.frame), "truth": truth}

    def curves(self) -> list[dict[str, Any]]:
        """Read the training log: losses of steps, thinned, and held-out metrics of epochs, by stage."""
        path = self.run.folder / "log.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        entries = [entry for line in lines if (entry := log_entry(line)) is not None and "loss" in entry.numbers]
        curves = []
        for stage in dict.fromkeys(entry.stage for entry in entries):
            some = [entry for entry in entries if entry.stage == stage]
            steps = [[entry.total, entry.numbers["loss"]] for entry in some if entry.event == "step"]
            epochs = [
                {name: x for name, x in entry.numbers.items() if "loss" in name or name.startswith("R@")}
                | {"total": entry.total}
                for entry in some
                if entry.event == "epoch"
            ]
            thinned = steps[:: max(1, len(steps) // POINTS)]
            curves.append({"stage": stage, "steps": thinned, "epochs": epochs})
        return curves

    def describe(self) -> dict[str, Any]:
        """Return what is known: the curves at once, the rest when the split is scored."""
        return {
            "run": self.name,
            "curves": self.curves(),
            "report": self.report,
            "place": self.place.text,
            "problem": self.problem,
            "photos": [photo["about"] for photo in self.photos],
        }

    def show(self, request: OpenRequest, answerer: Answerer) -> dict[str, Any]:
        """Open a test photo with its predictions and which of them are annotated."""
        if request.number >= len(self.photos):
            raise RefusedError(422, f"there is no photo {request.number}")
        scene, photo = self.run.data[request.number], None  # the boxes alone are shown where there is no picture
        if scene.has_picture():
            with suppress(PolyadicError):
                photo = answerer.shelf.put(Opened(scene.photo()))
        return {**self.photos[request.number]["shown"], "photo": photo}


class _Confusion:
    """Count, for each ground truth, the best predicate that was predicted for its boxes with its names."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()

    def update(self, scene: Scene, relations: Relations, protocol: Protocol) -> None:
        blind = replace(relations, triplets=relations.triplets * (1, 0, 1))
        truth = replace(scene, relations=scene.relations * (1, 0, 1))
        fits = matches(truth, blind, protocol)  # [M, T]
        for at, predicate in enumerate(scene.relations[:, 1].tolist()):
            rows = np.flatnonzero(fits[:, at])
            self.counts[predicate, int(relations.triplets[rows[0], 1]) if len(rows) else -1] += 1

    def most_frequent(self, names: Sequence[str]) -> dict[str, Any]:
        counts, totals = self.counts, Counter[int]()
        for (predicate, _), n in counts.items():
            totals[predicate] += n
        best = [at for at, _ in totals.most_common(CLASSES)]
        return {
            "names": [names[at] for at in best],
            "totals": [totals[at] for at in best],
            "counts": [[counts[a, b] for b in best] for a in best],
            "none": [counts[a, -1] for a in best],
        }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 2)
