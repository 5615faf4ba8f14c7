"""The view of an evaluated run: its table beside the paper's, curves, errors, confusions, and photos with hits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.detectors.detector import Detector
from polyadic.evaluation.misses import OUTCOMES, MissCounter
from polyadic.evaluation.protocol import Protocol, get_protocol, small_tops
from polyadic.experiments.paper import TABLES
from polyadic.experiments.pictures import matches
from polyadic.experiments.results import FREE, Column, Row, comparison_rows, recall_cells, select
from polyadic.experiments.runs import K, OpenRun, evaluate_run, open_run, predict_scenes, read_detections_of
from polyadic.experiments.table4 import PAPER as ABLATION
from polyadic.experiments.table4 import PHRASES
from polyadic.model.scoring import ALL
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

POINTS = 300  # of a curve
CLASSES = 12  # of the confusion view
LISTED = 20  # relations of a photo


@dataclass
class RunView:
    """A run under evaluation, and what is known of it so far."""

    run: OpenRun
    detections: Mapping[str, Detections] | None  # None: the ground-truth boxes
    protocol: Protocol
    report: dict[str, Any] | None = None
    problem: str = ""
    predictions: list[tuple[Scene, Relations, dict[str, int]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.run.folder.resolve().name

    @classmethod
    def open(cls, folder: Path, detections: Path | None) -> RunView:
        """Open a run with the test split of its data."""
        run = open_run(folder)
        boxes: Mapping[str, Detections] | None = None
        if detections is not None:
            boxes = read_detections_of(detections, run)
        elif isinstance(run.model.detector, Detector):
            boxes = detected(run.model.detector, run.data.scenes, run.folder / FOUND)
        task = PHRASES if boxes is None else "relationship"
        counts = [len(scene.boxes) for scene in run.data if len(scene.relations)]
        if boxes is not None:
            counts = [len(boxes[scene.name]) for scene in run.data if scene.name in boxes]
        tops = small_tops(counts, (50, 100))[0]
        return cls(run, boxes, get_protocol("lu2016").change(task=task, k_unit="triplet", tops=tops))

    def evaluate(self) -> None:
        """Score the split, then rank each photo at the chosen k; a failure is shown on the page."""
        try:
            self._evaluate()
        except (PolyadicError, MemoryError) as error:
            self.problem = hide_folders(str(error)) or "not enough memory"

    def _evaluate(self) -> None:
        try:
            ks: tuple[K, ...] = (1, FREE)
            scores = evaluate_run(self.run, [self.protocol], ks, detections=self.detections, misses=True)
        except PolyadicError:  # no validation images to choose k on
            ks = (1, None)
            scores = evaluate_run(self.run, [self.protocol], ks, detections=self.detections, misses=True)
        k = next(iter(scores.free.values()), None)
        protocol = self.protocol.change(k=k)
        images = self.run.images(boxes=BoxSource(self.detections))
        top = max(protocol.tops)
        for scene, (relations,) in predict_scenes(self.run.model, images, [(k, ALL)], top=top):
            self.predictions.append((scene, relations, self._outcomes(scene, relations, protocol)))
        words = [str(k) if k is not None else "any" for k in ks]
        columns: list[Column] = [(protocol.task, word, top) for word in words for top in protocol.tops]
        misses = scores.result.misses
        self.report = {
            "dataset": scores.result.dataset,
            "split": scores.result.split,
            "protocol": protocol.label,
            "columns": [{"k": word, "N": top} for _, word, top in columns],
            "table": self._table(comparison_rows(scores.result, scores.free), columns),
            "outcomes": [] if misses is None else [x for x in misses.to_json() if x["subset"] == "all"],
            "names": list(OUTCOMES),
            "confusion": self._confusion(),
            "notes": list(dict.fromkeys((*scores.notes, *scores.result.notes, *self._paper_notes()))),
        }

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
        if self.detections is not None:
            empty = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
            found = self.detections.get(scene.name, empty).in_frame(scene.frame)
            boxes, labels = found.boxes, found.labels
        counter.update(scene, relations, boxes, labels)
        row = list(counter.result())[-1]
        return dict(zip(OUTCOMES, row.counts, strict=True))

    def _confusion(self) -> dict[str, Any]:
        """Count, for each ground truth, the best predicate that was predicted for its boxes with its names."""
        counts: Counter[tuple[int, int]] = Counter()
        for scene, relations, _ in self.predictions:
            blind = replace(relations, triplets=relations.triplets * (1, 0, 1))
            truth = replace(scene, relations=scene.relations * (1, 0, 1))
            fits = matches(truth, blind, self.protocol)  # [M, T]
            for at, predicate in enumerate(scene.relations[:, 1].tolist()):
                rows = np.flatnonzero(fits[:, at])
                counts[predicate, int(relations.triplets[rows[0], 1]) if len(rows) else -1] += 1
        names = self.run.data.vocabulary.predicates
        totals: Counter[int] = Counter()
        for (truth_class, _), n in counts.items():
            totals[truth_class] += n
        best = [at for at, _ in totals.most_common(CLASSES)]
        return {
            "names": [names[at] for at in best],
            "totals": [totals[at] for at in best],
            "counts": [[counts[a, b] for b in best] for a in best],
            "none": [counts[a, -1] for a in best],
        }

    def curves(self) -> list[dict[str, Any]]:
        """Read the training log: losses of steps, thinned, and held-out metrics of epochs, by stage."""
        path = self.run.folder / "log.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        entries = [entry for line in lines if (entry := _parse(line)) is not None]
        curves = []
        for stage in dict.fromkeys(entry["stage"] for entry in entries):
            some = [entry for entry in entries if entry["stage"] == stage]
            steps = [[entry["total"], entry["loss"]] for entry in some if entry["event"] == "step"]
            epochs = [
                {name: x for name, x in entry.items() if name == "total" or "loss" in name or name.startswith("R@")}
                for entry in some
                if entry["event"] == "epoch"
            ]
            thinned = steps[:: max(1, len(steps) // POINTS)]
            curves.append({"stage": str(stage), "steps": thinned, "epochs": epochs})
        return curves

    def describe(self) -> dict[str, Any]:
        """Return what is known: the curves at once, the rest when the split is scored."""
        photos = [
            {"name": scene.name, "truths": len(scene.relations), **counts} for scene, _, counts in self.predictions
        ]
        return {
            "run": self.name,
            "curves": self.curves(),
            "report": self.report,
            "problem": self.problem,
            "photos": photos if self.report is not None else [],
        }

    def show(self, request: OpenRequest, answerer: Answerer) -> dict[str, Any]:
        """Open a test photo with its predictions and which of them are annotated."""
        if self.report is None or request.number >= len(self.predictions):
            raise RefusedError(422, f"there is no photo {request.number}")
        scene, relations, _ = self.predictions[request.number]
        shown = relations.in_frame(scene.frame)[:LISTED]
        hits = matches(scene, shown, self.protocol)
        photo = None  # the boxes alone are shown where there is no picture
        if scene.has_picture():
            with suppress(PolyadicError):
                photo = answerer.shelf.put(Opened(scene.photo()))
        record = shown.to_dict()
        names = self.run.data.vocabulary
        for relation, hit in zip(record["relations"], np.asarray(hits.any(1)).tolist(), strict=True):
            relation["hit"] = hit
        labels = [names.objects[label] for label in scene.labels.tolist()] if self.detections is None else None
        for box, label in zip(record["boxes"], labels or shown.box_classes(), strict=True):
            box["label"] = label
        found = set(np.flatnonzero(matches(scene, relations, self.protocol).any(0)).tolist())
        return {
            **record,
            "size": list(scene.frame),
            "photo": photo,
            "truth": [
                {"names": list(names.decode(triplet)), "found": at in found}
                for at, triplet in enumerate(scene.triplets.tolist())
            ],
        }


def _parse(line: str) -> dict[str, Any] | None:
    """Parse a line of the training log; the last one may be cut off."""
    try:
        entry: dict[str, Any] = json.loads(line)
        return entry if {"stage", "event", "total", "loss"} <= set(entry) else None
    except (ValueError, TypeError):
        return None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 2)
