"""Relations beside baseline and ceiling: a recall says little without what counts alone reach on the same boxes.

One pass: each image goes to the evaluator, its boxes to the count table and to the ceilings, and is forgotten.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from polyadic.evaluation import Evaluator
from polyadic.evaluation.baselines import Ceiling, CountTable
from polyadic.evaluation.matching import paired
from polyadic.evaluation.misses import MissCounter, Misses
from polyadic.evaluation.protocol import Protocol, Recall
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene, scale_boxes


class Look:
    """Looks at each image as it passes; keeps counts and the first example."""

    def __init__(self) -> None:
        self.images = self.without = self.without_boxes = self.most = self.outside = self.squeezed = 0
        self.largest = 0.0
        self.first_outside = self.first_squeezed = ""

    def at(self, scene: Scene, found: Relations | None) -> None:
        self.images += 1
        if found is None:
            self.without += 1
            return
        if len(found):
            keys = found.pairs[:, 0] * len(found.boxes) + found.pairs[:, 1]
            self.most = max(self.most, int(np.unique(keys, return_counts=True)[1].max()))
        size = found.size or scene.size
        if size is None or not len(found.boxes):
            return
        self.largest = max(self.largest, float(found.boxes.max()))
        slack = 1 + 0.02 * max(size)  # detectors overshoot a little
        far = ((found.boxes < -slack) | (found.boxes > np.array([*size, *size]) + slack)).any(1)
        if far.any():
            self.outside += 1
            example = f"{scene.name}: {found.boxes[far][0].tolist()} in {size[0]:g} x {size[1]:g}"
            self.first_outside = self.first_outside or example
        if found.size and scene.size and abs(size[0] * scene.size[1] / size[1] / scene.size[0] - 1) > 0.05:
            self.squeezed += 1
            example = f"{scene.name}: {size[0]:g} x {size[1]:g} for {scene.size[0]:g} x {scene.size[1]:g}"
            self.first_squeezed = self.first_squeezed or example

    def notes(self, ks: Sequence[int | None]) -> list[str]:
        """One line for each thing that looks wrong; `ks` are those asked for."""
        notes = []
        if self.without:
            notes.append(f"{self.without:,} of {self.images:,} images have no record in the predictions")
        if self.without_boxes:
            notes.append(f"{self.without_boxes:,} of {self.images:,} images have no detections")
        if self.outside:
            where = f"boxes leave the frame in {self.outside:,} images ({self.first_outside})"
            notes.append(f'{where}; they count in annotated pixels unless the record has a "size"')
        if 0 < self.largest <= 2:
            notes.append("all boxes lie within 2 pixels: are they shares of the picture? Pixels are expected")
        if self.squeezed:
            many = f"{self.squeezed:,} images ({self.first_squeezed})"
            notes.append(f"the size is of another shape than the annotated frame in {many}")
        if self.most and any(k is not None and k > self.most for k in ks):
            notes.append(
                f"the predictions have at most {self.most} per pair of boxes: a larger k changes nothing for them"
            )
        return notes


PREDICTIONS, COUNT_TABLE = "predictions", "count table"
KEPT, RELABELLED = "ceiling, labels kept", "ceiling, relabelled"


@dataclass(frozen=True)
class Comparison:
    """Rows (what, recall) of predictions and count table, the ceilings by protocol, and what could not be said."""

    dataset: str
    split: str
    rows: tuple[tuple[str, Recall], ...]
    ceilings: tuple[tuple[str, Protocol, float], ...]
    notes: tuple[str, ...]
    misses: Misses | None = None  # where the truths go, if asked for

    def to_json(self) -> dict[str, Any]:
        where = {"dataset": self.dataset, "split": self.split}
        return {
            **where,
            "recalls": [{"what": what, **where, **row.to_json()} for what, row in self.rows],
            "ceilings": [
                {"what": what, **where, "protocol": protocol.label, "task": protocol.task, "subset": protocol.subset}
                | {"recall": None if np.isnan(value) else value}
                for what, protocol, value in self.ceilings
            ],
            "notes": list(self.notes),
            **({} if self.misses is None else {"misses": [{**where, **row} for row in self.misses.to_json()]}),
        }

    def to_csv(self) -> str:
        """One line per number: what, protocol, N, recall, mean recall."""
        columns = (
            "what",
            "dataset",
            "split",
            "protocol",
            "task",
            "k",
            "k_unit",
            "subset",
            "N",
            "recall",
            "mean_recall",
        )
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        ceilings = [{**each, "N": "any"} for each in self.to_json()["ceilings"]]
        for record in [*self.to_json()["recalls"], *ceilings]:
            writer.writerow({**record, "k": record.get("k") or "any"})
        return text.getvalue()


def without_k(protocol: Protocol) -> Protocol:
    """The protocol of a ceiling, which holds for any k."""
    return replace(protocol, k=None, k_unit="triplet")


def compare(
    data: Dataset,
    predictions: Iterable[Relations],
    protocols: Sequence[Protocol],
    train: Dataset | None = None,
    detections: Mapping[str, Detections] | None = None,
    bootstrap: int = 0,
    misses: bool = False,
) -> Comparison:
    """Score predictions, the count table of `train` on the same boxes, and the ceilings of these boxes.

    The boxes are `detections`, else those in the predictions; classification tasks have the true ones. Without `train`
    there is no count table. `misses`: also tell where the truths go, for which the boxes need labels.
    """
    seen = None if train is None else train.triplets()
    n = len(data.vocabulary.predicates)
    main = Evaluator(protocols, n, seen, bootstrap)
    table = None if train is None else CountTable.fit(train, data.vocabulary)
    tasks = dict.fromkeys(protocol.task for protocol in protocols)
    others = [_Beside([p for p in protocols if p.task == task], table, n, seen, bootstrap) for task in tasks]
    counters = [MissCounter(protocol, seen) for protocol in protocols if misses]
    look = Look()
    for scene, each in paired(data, predictions):
        look.at(scene, each)
        main.update(scene, each)
        given = _boxes(scene, each, detections)
        look.without_boxes += detections is not None and given is None
        for other in others:
            other.update(scene, given, absent=each is None or not len(each))
        for counter in counters:
            boxes = _of_task(counter.protocol.task, scene, given)
            if boxes is None:
                counter.update(scene, each, None, None)
            else:
                unnamed = counter.protocol.task == "phrase-classification"
                counter.update(
                    scene, each, boxes.boxes, np.full(len(boxes.boxes), UNKNOWN) if unnamed else boxes.labels
                )
    rows = [(PREDICTIONS, row) for row in main.result()]
    notes = look.notes([protocol.k for protocol in protocols])
    ceilings = []
    for other in others:
        rows += [(COUNT_TABLE, row) for row in other.recalls()]
        ceilings += other.ceilings()
        notes += other.notes()
    order = {protocol: number for number, protocol in enumerate(protocols)}
    rows.sort(key=lambda row: order[row[1].protocol])
    fates = Misses(tuple(row for counter in counters for row in counter.result())) if misses else None
    return Comparison(data.name, data.split, tuple(rows), tuple(ceilings), tuple(dict.fromkeys(notes)), fates)


def _boxes(scene: Scene, predictions: Relations | None, detections: Mapping[str, Detections] | None) -> _Boxes | None:
    """The boxes that a model could use on this image, in the annotated frame."""
    if detections is not None:
        found: Detections | Relations | None = detections.get(scene.name)
    else:
        found = predictions
    if found is None:
        return None
    boxes = found.boxes
    if found.size is not None:
        boxes = scale_boxes(boxes, found.size, scene.frame)
    scores = found.scores if isinstance(found, Detections) else found.confidences
    return _Boxes(boxes, found.labels, scores)


@dataclass(frozen=True)
class _Boxes:
    boxes: np.ndarray
    labels: np.ndarray | None
    scores: np.ndarray | None


def _of_task(task: str, scene: Scene, given: _Boxes | None) -> _Boxes | None:
    """Classification starts from the true boxes, and from their labels where these are known."""
    if not task.endswith("classification"):
        return given
    known = task == "predicate-classification"
    return _Boxes(scene.boxes, scene.labels if known else None, np.ones(len(scene.boxes)) if known else None)


class _Beside:
    """Count table and ceilings of one task."""

    def __init__(
        self,
        mine: Sequence[Protocol],
        table: CountTable | None,
        predicates: int,
        seen: Int[np.ndarray, "M 3"] | None,
        bootstrap: int,
    ) -> None:
        self.task, self.table = mine[0].task, table
        self.evaluators = {  # one for each cut, so that no number depends on the company it is printed in
            cut: Evaluator([each for each in mine if (each.k, each.k_unit) == cut], predicates, seen, bootstrap)
            for cut in dict.fromkeys((each.k, each.k_unit) for each in mine)
        }
        self.top = max(max(each.tops) for each in mine)
        both = KEPT, RELABELLED
        kinds = {"phrase-classification": (RELABELLED,), "predicate-classification": (KEPT,)}.get(self.task, both)
        bases = dict.fromkeys(map(without_k, mine))
        self.tops = [(what, Ceiling(each, what == RELABELLED, seen)) for each in bases for what in kinds]
        self.unlabelled = False

    def update(self, scene: Scene, given: _Boxes | None, absent: bool) -> None:
        """One image. `absent`: nothing was predicted for it, so it is dropped where the predictions drop it."""
        given = _of_task(self.task, scene, given)
        labels = None if given is None else given.labels
        self.unlabelled |= given is not None and labels is None and len(given.boxes) > 0
        for what, ceiling in self.tops:
            if what == RELABELLED or not self.unlabelled:
                ceiling.update(scene, None if given is None else given.boxes, labels, absent)
        if not self.has_table:
            return
        for (k, unit), evaluator in self.evaluators.items():
            found = None if given is None else self._predict(scene.name, given, k, unit == "predicate")
            evaluator.update(scene, found, absent)

    @property
    def has_table(self) -> bool:
        return self.table is not None and (not self.unlabelled or self.task == "phrase-classification")

    def _predict(self, image: str, given: _Boxes, k: int | None, per_labels: bool) -> Relations:
        assert self.table is not None
        if given.labels is None or given.scores is None:
            return self.table.predict_unlabelled(image, given.boxes, k, per_labels, self.top)
        return self.table.predict(Detections(image, given.boxes, given.labels, given.scores), k)

    def recalls(self) -> Iterable[Recall]:
        if not self.has_table:
            return []
        return [row for evaluator in self.evaluators.values() for row in evaluator.result()]

    def ceilings(self) -> list[tuple[str, Protocol, float]]:
        usable = [(what, each) for what, each in self.tops if what == RELABELLED or not self.unlabelled]
        return [(what, each.protocol, each.result()) for what, each in usable]

    def notes(self) -> list[str]:
        if self.table is None:
            return ["no count table: it needs the training split"]
        if not self.has_table:
            return ["no count table: it needs the boxes' labels and confidences, in the predictions or as detections"]
        return []
