"""The best recall that given boxes allow: a truth is reachable when two different boxes overlap it enough.

With the detector's labels kept, both must be right as well; a model that relabels boxes needs the overlap alone. Any
k and any N: what no ranking of these boxes can exceed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from polyadic.evaluation.protocol import Protocol
from polyadic.kernels import matching
from polyadic.scenes import Scene
from polyadic.vocabulary import PolyadicError


@dataclass
class Ceiling:
    """Takes images one by one and sums the truths within reach, aggregated as the protocol does."""

    protocol: Protocol
    relabel: bool = False
    seen: Int[np.ndarray, "M 3"] | None = None  # training triplets, for zero-shot
    _seen: set[tuple[int, int, int]] = field(init=False, repr=False)
    _hits: float = 0.0
    _all: float = 0.0
    _truths: int = 0

    def __post_init__(self) -> None:
        if self.seen is None and self.protocol.subset == "zero-shot":
            raise PolyadicError("Ceiling: zero-shot recall needs the training triplets (seen=...)")
        self._seen = set() if self.seen is None else {(s, p, o) for s, p, o in np.unique(self.seen, axis=0).tolist()}

    def update(
        self, scene: Scene, boxes: Float[np.ndarray, "N 4"] | None, labels: Int[np.ndarray, " N"] | None = None
    ) -> None:
        """One image and its boxes in the annotated frame; None when nothing was predicted for it."""
        truths, rows = scene.triplets, scene.relations
        if self.protocol.subset == "zero-shot":
            counted = np.array([tuple(triplet) not in self._seen for triplet in truths.tolist()], bool)
            truths, rows = truths[counted], rows[counted]
        if not len(truths) or (boxes is None and self.protocol.no_prediction == "drop"):
            return
        boxes = np.zeros((0, 4)) if boxes is None else boxes
        if labels is None:
            if not self.relabel and len(boxes):
                raise PolyadicError(f"Ceiling: the boxes of {scene.name} have no labels to keep; use relabel=True")
            labels = np.zeros(len(boxes), np.int64)
        where = self.protocol.task == "phrase", self.protocol.iou, self.protocol.iou_offset
        found = matching.reachable(boxes, labels, self.relabel, scene.boxes[rows[:, ::2]], truths, *where)
        weight = 1.0 if self.protocol.aggregate == "pooled" else 1 / len(truths)
        self._hits += weight * int(found.sum())
        self._all += weight * len(truths)
        self._truths += len(truths)

    def result(self) -> float:
        """Percent of the truths of all images so far."""
        return 100 * self._hits / self._all if self._all else float("nan")
