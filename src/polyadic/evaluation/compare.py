"""Compare predictions with the count table on the same boxes, and with the ceilings of these boxes.

One pass: each image goes to the evaluator, and its boxes to the count table, the ceilings and the error breakdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from polyadic.evaluation import Evaluator
from polyadic.evaluation.baselines import CountTable
from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.matching import paired
from polyadic.evaluation.misses import MissCounter, Misses
from polyadic.evaluation.protocol import Protocol, Recall, to_csv
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene, scale_boxes
from polyadic.structures.vocabulary import Vocabulary

PREDICTIONS, COUNT_TABLE = "predictions", "count table"
UNLABELLED = "phrase-classification"  # the task on true boxes without their labels
GIVEN, DETECTED = ", labels given", ", given the detector's labels"  # after a row's name
KEPT, RELABELLED = "ceiling, labels kept", "ceiling, relabelled"
COLUMNS = ("what", "dataset", "split", "protocol", "task", "k", "k_unit", "subset", "N", "recall", "mean_recall")


class SanityCheck:
    """Inspect predictions for suspicious input; keep counts and the first example."""

    def __init__(self) -> None:
        self.images = self.without = self.without_boxes = self.most = self.outside = self.squeezed = 0
        self.largest = 0.0
        self.first_outside = self.first_squeezed = ""

    def inspect(self, scene: Scene, predictions: Relations | None) -> None:
        self.images += 1
        if predictions is None:
            self.without += 1
            return
        boxes, pairs = predictions.boxes, predictions.pairs
        if len(predictions):
            keys = pairs[:, 0] * len(boxes) + pairs[:, 1]
            self.most = max(self.most, int(np.unique(keys, return_counts=True)[1].max()))
        size = predictions.size or scene.size
        if size is None or not len(boxes):
            return
        self.largest = max(self.largest, float(boxes.max()))
        slack = 1 + 0.02 * max(size)  # detectors overshoot a little
        far = ((boxes < -slack) | (boxes > np.array([*size, *size]) + slack)).any(1)
        if far.any():
            self.outside += 1
            example = f"{scene.name}: {boxes[far][0].tolist()} in {size[0]:g} x {size[1]:g}"
            self.first_outside = self.first_outside or example
        if predictions.size and scene.size and abs(size[0] * scene.size[1] / size[1] / scene.size[0] - 1) > 0.05:
            self.squeezed += 1
            example = f"{scene.name}: {size[0]:g} x {size[1]:g} for {scene.size[0]:g} x {scene.size[1]:g}"
            self.first_squeezed = self.first_squeezed or example

    def merge(self, other: SanityCheck) -> None:
        """Add the images of another one."""
        for name in ("images", "without", "without_boxes", "outside", "squeezed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most, self.largest = max(self.most, other.most), max(self.largest, other.largest)
        self.first_outside = self.first_outside or other.first_outside
        self.first_squeezed = self.first_squeezed or other.first_squeezed

    def notes(self, ks: Sequence[int | None]) -> list[str]:
        """Return one line for each suspicious finding; `ks` are those evaluated."""
        notes = []
        if self.without:
            notes.append(f"{self.without:,} of {self.images:,} images have no record in the predictions")
        if self.without_boxes:
            notes.append(f"{self.without_boxes:,} of {self.images:,} images have no detections")
        if self.outside:
            where = f"boxes leave the frame in {self.outside:,} images ({self.first_outside})"
            notes.append(f'{where}; without a "size" in the record they are in annotated pixels')
        if 0 < self.largest <= 2:
            notes.append("all boxes lie within 2 pixels: are they relative coordinates? Pixels are expected")
        if self.squeezed:
            many = f"{self.squeezed:,} images ({self.first_squeezed})"
            notes.append(f"the size has another aspect ratio than the annotated frame in {many}")
        if self.most and any(k is not None and k > self.most for k in ks):
            notes.append(f"the predictions have at most {self.most} per pair of boxes: a larger k changes nothing")
        return notes


@dataclass(frozen=True)
class Comparison:
    """Rows (what, recall) of predictions and count table, of the ceilings of each k and N, and notes."""

    dataset: str
    split: str
    rows: tuple[tuple[str, Recall], ...]
    ceilings: tuple[tuple[str, Recall], ...]  # without mean recall
    notes: tuple[str, ...]
    misses: Misses | None = None  # the error breakdown, if requested

    def to_json(self) -> dict[str, Any]:
        where = {"dataset": self.dataset, "split": self.split}
        return {
            **where,
            "recalls": [{"what": what, **where, **row.to_json()} for what, row in self.rows],
            "ceilings": [{"what": what, **where, **row.to_json()} for what, row in self.ceilings],
            "notes": list(self.notes),
            **({} if self.misses is None else {"misses": [{**where, **row} for row in self.misses.to_json()]}),
        }

    def to_csv(self) -> str:
        """Write one line per number: what, protocol, N, recall, mean recall."""
        value = self.to_json()
        return to_csv(COLUMNS, [*value["recalls"], *value["ceilings"]])


def compare(
    data: Dataset,
    predictions: Iterable[Relations],
    protocols: Sequence[Protocol],
    train: Dataset | None = None,
    detections: Mapping[str, Detections] | None = None,
    *,
    reads_labels: bool | None = None,
    bootstrap: int = 0,
    misses: bool = False,
) -> Comparison:
    """Score predictions, the count table of `train` on the same boxes, and the ceilings of these boxes.

    The boxes are `detections`, else those in the predictions; classification tasks use the true ones. `reads_labels`:
    whether the model was given the labels of its boxes (None: not known). If so, the count table gets them too in
    phrase classification; where only the count table has labels, its row says so. Without `train` there is no count
    table. `misses` adds the error breakdown, for which the boxes need labels.
    """
    sums = Comparer(
        data.vocabulary,
        protocols,
        train,
        reads_labels=reads_labels,
        bootstrap=bootstrap,
        misses=misses,
    )
    for scene, answer in paired(data, predictions):
        sums.update(scene, answer, detections)
    return sums.result(data)


class Comparer:
    """Sum what `compare` reports, image by image; the sums of parts of the images merge exactly."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        protocols: Sequence[Protocol],
        train: Dataset | None = None,
        *,
        reads_labels: bool | None = None,
        bootstrap: int = 0,
        misses: bool = False,
    ) -> None:
        seen, n = None if train is None else train.triplets(), len(vocabulary.predicates)
        self.protocols, self.misses = protocols, misses
        self.evaluator = Evaluator(protocols, n, seen, bootstrap)
        table = None if train is None else CountTable.fit(train, vocabulary)
        tasks = dict.fromkeys(protocol.task for protocol in protocols)
        self.references = [
            _Reference(
                [protocol for protocol in protocols if protocol.task == task],
                table,
                n,
                seen=seen,
                bootstrap=bootstrap,
                reads_labels=reads_labels,
            )
            for task in tasks
        ]
        self.counters = [MissCounter(protocol, seen) for protocol in protocols if misses]
        self.check = SanityCheck()

    def update(self, scene: Scene, answer: Relations | None, detections: Mapping[str, Detections] | None) -> None:
        """Add one image with its predictions, if any."""
        self.check.inspect(scene, answer)
        self.evaluator.update(scene, answer)
        given = _given_boxes(scene, answer, detections)
        self.check.without_boxes += detections is not None and given is None
        for reference in self.references:
            reference.update(scene, given, absent=answer is None or not len(answer))
        for counter in self.counters:
            boxes = _boxes_of_task(counter.protocol.task, scene, given, False)
            if boxes is None:
                counter.update(scene, answer, None, None)
                continue
            unnamed = counter.protocol.task == UNLABELLED
            labels = np.full(len(boxes.boxes), UNKNOWN) if unnamed else boxes.labels
            counter.update(scene, answer, boxes.boxes, labels)

    def merge(self, other: Comparer) -> None:
        """Add the images of another one of the same protocols."""
        self.evaluator.merge(other.evaluator)
        self.check.merge(other.check)
        for reference, more in zip(self.references, other.references, strict=True):
            reference.merge(more)
        for counter, counted in zip(self.counters, other.counters, strict=True):
            counter.merge(counted)

    def result(self, data: Dataset) -> Comparison:
        """Return the rows of all images so far."""
        rows = [(PREDICTIONS, row) for row in self.evaluator.result()]
        notes = self.check.notes([protocol.k for protocol in self.protocols])
        ceilings = []
        for reference in self.references:
            rows += [(reference.name, row) for row in reference.recalls()]
            ceilings += reference.ceilings()
            notes += reference.notes()
        order = {protocol: number for number, protocol in enumerate(self.protocols)}
        rows.sort(key=lambda row: order[row[1].protocol])
        outcomes = Misses(tuple(row for counter in self.counters for row in counter.result())) if self.misses else None
        return Comparison(data.name, data.split, tuple(rows), tuple(ceilings), tuple(dict.fromkeys(notes)), outcomes)


@dataclass(frozen=True)
class _Boxes:
    boxes: np.ndarray
    labels: np.ndarray | None
    scores: np.ndarray | None


def _given_boxes(
    scene: Scene, predictions: Relations | None, detections: Mapping[str, Detections] | None
) -> _Boxes | None:
    """Return the boxes that a model could use on this image, in the annotated frame."""
    source: Detections | Relations | None = predictions if detections is None else detections.get(scene.name)
    if source is None:
        return None
    boxes = source.boxes if source.size is None else scale_boxes(source.boxes, source.size, scene.frame)
    scores = source.scores if isinstance(source, Detections) else source.confidences
    return _Boxes(boxes, source.labels, scores)


def _boxes_of_task(task: str, scene: Scene, given: _Boxes | None, labelled: bool) -> _Boxes | None:
    """Return the true boxes for classification, with labels where task or model have them, else the given ones."""
    if not task.endswith("classification"):
        return given
    if labelled or task != UNLABELLED:
        return _Boxes(scene.boxes, scene.labels, np.ones(len(scene.boxes)))
    return _Boxes(scene.boxes, None, None)


class _Reference:
    """Count table and ceilings of one task."""

    def __init__(
        self,
        protocols: Sequence[Protocol],
        table: CountTable | None,
        predicates: int,
        *,
        seen: Int[np.ndarray, "M 3"] | None,
        bootstrap: int,
        reads_labels: bool | None,
    ) -> None:
        self.task, self.table, self.labelled = protocols[0].task, table, bool(reads_labels)
        detected = not self.task.endswith("classification")
        given = GIVEN if self.labelled and self.task == UNLABELLED else ""
        self.name = COUNT_TABLE + (DETECTED if detected and reads_labels is False else given)
        cuts: dict[tuple[int | None, str], list[Protocol]] = {}  # one evaluator each: no number depends on the others
        for protocol in protocols:
            cuts.setdefault((protocol.k, protocol.k_unit), []).append(protocol)
        self.evaluators = {cut: Evaluator(several, predicates, seen, bootstrap) for cut, several in cuts.items()}
        self.top = max(max(protocol.tops) for protocol in protocols)
        kinds = {UNLABELLED: (RELABELLED,), "predicate-classification": (KEPT,)}
        self.limits = [
            (what, Ceiling(protocols, what == RELABELLED, seen)) for what in kinds.get(self.task, (KEPT, RELABELLED))
        ]
        self.unlabelled = False

    def update(self, scene: Scene, given: _Boxes | None, absent: bool) -> None:
        """Add one image. `absent`: it has no predictions, so it is dropped where the predictions drop it."""
        given = _boxes_of_task(self.task, scene, given, self.labelled)
        labels = None if given is None else given.labels
        self.unlabelled |= given is not None and labels is None and len(given.boxes) > 0
        for _, ceiling in self._usable():
            ceiling.update(scene, None if given is None else given.boxes, labels, absent)
        if not self.has_table:
            return
        for (k, unit), evaluator in self.evaluators.items():
            answer = None if given is None else self._predict(scene.name, given, k, unit == "predicate")
            evaluator.update(scene, answer, absent)

    def merge(self, other: _Reference) -> None:
        """Add the images of another one of the same protocols."""
        self.unlabelled |= other.unlabelled
        for cut, evaluator in self.evaluators.items():
            evaluator.merge(other.evaluators[cut])
        for (_, ceiling), (_, more) in zip(self.limits, other.limits, strict=True):
            ceiling.merge(more)

    def _usable(self) -> list[tuple[str, Ceiling]]:
        return [(what, ceiling) for what, ceiling in self.limits if what == RELABELLED or not self.unlabelled]

    @property
    def has_table(self) -> bool:
        return self.table is not None and (not self.unlabelled or self.task == UNLABELLED)

    def _predict(self, image: str, given: _Boxes, k: int | None, per_labels: bool) -> Relations:
        assert self.table is not None
        if given.labels is None or given.scores is None:
            return self.table.predict_unlabelled(image, given.boxes, k, per_labels, self.top)
        return self.table.predict(Detections(image, given.boxes, given.labels, given.scores), k)

    def recalls(self) -> list[Recall]:
        return [row for evaluator in self.evaluators.values() for row in evaluator.result()] if self.has_table else []

    def ceilings(self) -> list[tuple[str, Recall]]:
        return [(what, row) for what, ceiling in self._usable() for row in ceiling.rows()]

    def notes(self) -> list[str]:
        if self.table is None:
            return ["no count table: it needs the training split"]
        if not self.has_table:
            return ["no count table: it needs the boxes' labels and confidences, in the predictions or as detections"]
        return []
