"""The best recall that given boxes allow: a truth is reachable when two different boxes overlap it enough.

With the detector's labels kept, both must be right as well; a model that relabels boxes needs the overlap alone. Any
k and any N: what no ranking of pairs of two different boxes can exceed; a prediction that relates a box to itself may.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from polyadic.evaluation.batch import among, seen_keys, triplet_keys
from polyadic.evaluation.protocol import Protocol
from polyadic.kernels import matching
from polyadic.scenes import Detections, Scene
from polyadic.vocabulary import PolyadicError


@dataclass
class Ceiling:
    """Takes images one by one and sums the truths within reach, aggregated as the protocol does."""

    protocol: Protocol
    relabel: bool = False
    seen: Int[np.ndarray, "M 3"] | None = None  # training triplets, for zero-shot
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)
    _hits: float = 0.0
    _all: float = 0.0
    _truths: int = 0

    def __post_init__(self) -> None:
        if self.seen is None and self.protocol.subset == "zero-shot":
            raise PolyadicError("Ceiling: zero-shot recall needs the training triplets (seen=...)")
        self._seen = seen_keys(self.seen)

    def update(
        self,
        scene: Scene,
        boxes: Float[np.ndarray, "N 4"] | None,
        labels: Int[np.ndarray, " N"] | None = None,
        absent: bool | None = None,
    ) -> None:
        """One image and its boxes in the annotated frame, None for none.

        `absent`: whether it counts as an image without predictions (`no_prediction`), by default if there are none.
        """
        truths, rows = scene.triplets, scene.relations
        if self.protocol.subset == "zero-shot":
            counted = ~among(triplet_keys(truths), self._seen)
            truths, rows = truths[counted], rows[counted]
        absent = boxes is None if absent is None else absent
        if not len(truths) or (absent and self.protocol.no_prediction == "drop"):
            return
        boxes = np.zeros((0, 4)) if boxes is None else boxes
        if labels is None:
            if not self.relabel and len(boxes):
                raise PolyadicError(f"Ceiling: the boxes of {scene.name} have no labels to keep; use relabel=True")
            labels = np.zeros(len(boxes), np.int64)
        checked = Detections(scene.name, boxes, labels, np.ones(len(boxes)))
        where = self.protocol.task == "phrase", self.protocol.iou, self.protocol.iou_offset
        found = matching.reachable(
            checked.boxes, checked.labels, self.relabel, scene.boxes[rows[:, ::2]], truths, *where
        )
        weight = 1.0 if self.protocol.aggregate == "pooled" else 1 / len(truths)
        self._hits += weight * int(found.sum())
        self._all += weight * len(truths)
        self._truths += len(truths)

    def result(self) -> float:
        """Percent of the truths of all images so far."""
        return 100 * self._hits / self._all if self._all else float("nan")
