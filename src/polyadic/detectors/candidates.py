"""Between a network's output and `Detections`: choose boxes by score and NMS, and map their classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from polyadic.boxes import suppress
from polyadic.structures.detections import Detections, apply
from polyadic.structures.images import Photo
from polyadic.structures.labels import LabelMap, UnknownPolicy


@dataclass(frozen=True, eq=False)
class Candidates:
    """A network's boxes of one photo, in the photo's frame, with the network's own labels."""

    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]
    scores: Float[np.ndarray, " N"]
    classes: Float[np.ndarray, "N K"] | None = None  # scores of all classes, where the network gives them

    def take(self, rows: Int[np.ndarray, " M"]) -> Candidates:
        classes = None if self.classes is None else self.classes[rows]
        return Candidates(self.boxes[rows], self.labels[rows], self.scores[rows], classes)

    def choose(self, least: float, same_class: float, nms: float) -> Candidates:
        """Choose boxes with a score of at least `least`, best first; NMS runs per class, then across classes.

        Boxes without area are dropped.
        """
        sure = np.flatnonzero((self.scores >= least) & (self.boxes[:, 2:] > self.boxes[:, :2]).all(1))
        best = self.take(sure[np.argsort(-self.scores[sure], kind="stable")])
        apart = best.labels[:, None] * (best.boxes.max(initial=0) + 1)  # offsets per class keep classes apart
        once = best.take(suppress(best.boxes + apart, best.scores, same_class))
        return once.take(suppress(once.boxes, once.scores, nms))

    def name(
        self, photo: Photo, label_map: LabelMap, unknown: UnknownPolicy, where: str
    ) -> tuple[Detections, Counter[str]]:
        """Map labels to the vocabulary's objects; also count the boxes of other classes. `where` is for errors."""
        mapped = apply(label_map, self.labels, unknown, where)
        known = self.take(mapped.rows)
        spread = None if known.classes is None else label_map.spread(known.classes)
        found = Detections(photo.name, known.boxes, mapped.labels, known.scores, photo.size, distribution=spread)
        return found, mapped.unknown


def input_size(given: Any) -> tuple[int, int] | None:
    """Return the (height, width) of an ONNX input of float images [., 3, H, W] with fixed H and W, else None."""
    shape = list(given.shape)
    sides = [side for side in shape[2:] if isinstance(side, int) and side > 0]
    if given.type != "tensor(float)" or len(shape) != 4 or shape[1] != 3 or len(sides) != 2:
        return None
    return sides[0], sides[1]
