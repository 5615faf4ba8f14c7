"""Error breakdown per ground-truth relation: each is a hit, or a miss with the first cause that explains it.

In order: no two different boxes overlap the ground truth; a prediction there has both names but another predicate, or
it was used for another ground truth; no prediction there has both names, although the detector does, or because it
does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from polyadic.evaluation import kernel
from polyadic.evaluation.matching import Batch, among, check_image, image_share, paired, seen_keys, triplet_keys
from polyadic.evaluation.protocol import Protocol, ProtocolRow, Rows, to_csv
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene, scale_boxes
from polyadic.structures.vocabulary import PolyadicError

Outcome = Literal["hit", "box missing", "wrong label", "wrong predicate", "pair unselected", "duplicate"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_HIT, _BOX, _LABEL, _PREDICATE, _PAIR, _DUPLICATE = range(len(OUTCOMES))


@dataclass(frozen=True)
class OutcomeCounts(ProtocolRow):
    """Outcomes of the ground truths among the best N predictions of each image, under one protocol."""

    counts: tuple[int, ...]  # ground truths, in the order of OUTCOMES
    shares: tuple[float, ...]  # percent, aggregated as the protocol does; that of hits is R@N

    @property
    def truths(self) -> int:
        return sum(self.counts)

    def count(self, outcome: Outcome) -> int:
        return self.counts[OUTCOMES.index(outcome)]

    def share(self, outcome: Outcome) -> float:
        return self.shares[OUTCOMES.index(outcome)]


class Misses(Rows[OutcomeCounts]):
    """The outcomes under each protocol and N."""

    def to_json(self) -> list[dict[str, Any]]:
        """Return one record per protocol, N and outcome; a share of no ground truths is null."""
        return [
            {"protocol": row.protocol.label, "task": row.protocol.task, "k": row.protocol.k or "any"}
            | {"k_unit": row.protocol.k_unit, "subset": row.protocol.subset, "N": row.top, "outcome": outcome}
            | {"ground_truths": count, "share": None if np.isnan(share) else share}
            for row in self.rows
            for outcome, count, share in zip(OUTCOMES, row.counts, row.shares, strict=True)
        ]

    def to_csv(self, **where: str) -> str:
        """Write one line per number; `where`, such as the dataset, comes first on each."""
        columns = (*where, "protocol", "task", "k", "k_unit", "subset", "N", "outcome", "ground_truths", "share")
        return to_csv(columns, ({**where, **record} for record in self.to_json()))


@dataclass
class MissCounter:
    """Count the outcomes of ground truths, image by image. Hits are those of `Evaluator`."""

    protocol: Protocol
    seen: Int[np.ndarray, "M 3"] | None = None  # training triplets, for zero-shot
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)
    _counts: Int[np.ndarray, "N F"] = field(init=False, repr=False)
    _weights: Int[np.ndarray, "N F"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._seen = seen_keys(self.seen, [self.protocol])
        shape = len(self.protocol.tops), len(OUTCOMES)
        self._counts, self._weights = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def update(
        self,
        scene: Scene,
        predictions: Relations | None,
        boxes: Float[np.ndarray, "N 4"] | None,
        labels: Int[np.ndarray, " N"] | None,
    ) -> None:
        """Add one image with its predictions, and the detector's boxes and labels (UNKNOWN fits none).

        The boxes are in the annotated frame. None stands for no predictions and for no boxes.
        """
        check_image(scene, predictions)
        absent = predictions is None or not len(predictions)
        if not len(scene.relations) or (absent and self.protocol.no_prediction == "drop"):
            return
        if boxes is not None and len(boxes) and labels is None:
            raise PolyadicError(
                f"error breakdown: the boxes of {scene.name} have no labels; give the detector's boxes and labels "
                "(--detections FILE)"
            )
        if boxes is None or labels is None:
            boxes, labels = np.zeros((0, 4)), np.zeros(0, np.int64)
        detections = Detections(scene.name, boxes, labels, np.ones(len(boxes)))  # checks them
        outcomes = self._outcomes(Batch.of([(scene, predictions, absent)]), detections)  # [N, T]
        if self.protocol.subset == "zero-shot":
            outcomes = outcomes[:, ~among(triplet_keys(scene.triplets), self._seen)]
        if not outcomes.shape[1]:
            return
        counts = (outcomes[:, :, None] == np.arange(len(OUTCOMES))).sum(1)
        self._counts += counts
        self._weights += (
            counts if self.protocol.aggregate == "pooled" else counts * image_share(np.array([outcomes.shape[1]]))
        )

    def _outcomes(self, batch: Batch, detections: Detections) -> Int[np.ndarray, "N T"]:
        protocol, most = self.protocol, max(self.protocol.tops)
        tops, any_match = np.array(protocol.tops)[:, None], protocol.change(match="many-to-one")
        # the same batch with keys of subject and object alone
        keys, truth_keys = (triplet_keys(triplets * (1, 0, 1)) for triplets in (batch.triplets, batch.truths))
        names = replace(batch, keys=keys, truth_keys=truth_keys, _ranks={})
        hit = batch.ranks(protocol, most) < tops
        predicted = batch.ranks(any_match, most) < tops  # the whole triplet, even if another ground truth took it
        named = names.ranks(any_match, most) < tops  # both names
        how = protocol.task == "phrase", protocol.iou, protocol.iou_offset
        located, labelled = (
            kernel.reachable(detections.boxes, detections.labels, relabel, batch.truth_boxes, batch.truths, *how)
            for relabel in (True, False)
        )
        # the first test that holds decides
        tests = [(hit, _HIT), (~located, _BOX), (predicted, _DUPLICATE), (named, _PREDICATE), (labelled, _PAIR)]
        conditions = [np.broadcast_to(test, hit.shape) for test, _ in tests]
        return np.select(conditions, [outcome for _, outcome in tests], _LABEL)

    def merge(self, other: MissCounter) -> None:
        """Add the images of another counter of the same protocol."""
        self._counts = self._counts + other._counts
        self._weights = self._weights + other._weights

    def result(self) -> Misses:
        """Return the outcomes of all ground truths so far, one row per N."""
        rows = []
        for top, counts, weights in zip(self.protocol.tops, self._counts, self._weights, strict=True):
            with np.errstate(invalid="ignore"):
                shares = 100 * weights / weights.sum()
            rows.append(OutcomeCounts(self.protocol, top, tuple(counts.tolist()), tuple(shares.tolist())))
        return Misses(tuple(rows))


def count_misses(
    scenes: Iterable[Scene],
    predictions: Iterable[Relations],
    detections: Mapping[str, Detections],
    protocols: Sequence[Protocol],
    seen: Int[np.ndarray, "M 3"] | None = None,
) -> Misses:
    """Classify every ground truth of `scenes`; `predictions`, in any order, were made from `detections`, by image."""
    counters = [MissCounter(protocol, seen) for protocol in protocols]
    for scene, answer in paired(scenes, predictions):
        given = detections.get(scene.name)
        boxes, labels = (None, None) if given is None else (given.boxes, given.labels)
        if given is not None and given.size is not None:
            boxes = scale_boxes(given.boxes, given.size, scene.frame)
        for counter in counters:
            counter.update(scene, answer, boxes, labels)
    return Misses(tuple(row for counter in counters for row in counter.result()))
