"""Between a network's output and `Detections`: choose boxes by score and NMS, and map their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from polyadic.boxes import suppress
from polyadic.structures.detections import MOST_BOXES, Detections, apply
from polyadic.structures.images import Photo
from polyadic.structures.labels import LabelMap, UnknownPolicy
from polyadic.structures.vocabulary import PolyadicError

MOST_SIDE = 4096  # pixels of a network's input: memory is bounded whatever a file says


@dataclass(frozen=True, eq=False)
class Candidates:
    """A network's boxes of one photo, in the photo's frame, with the network's own labels."""

    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]
    scores: Float[np.ndarray, " N"]
    classes: Float[np.ndarray, "N K"] | None = None  # scores of all classes, where the network gives them

    @classmethod
    def join(cls, parts: Sequence[Candidates]) -> Candidates:
        """Put together what several looks found, none with scores of all classes."""
        boxes, labels, scores = zip(*((part.boxes, part.labels, part.scores) for part in parts), strict=True)
        return cls(np.concatenate(boxes), np.concatenate(labels), np.concatenate(scores))

    def take(self, rows: Int[np.ndarray, " M"]) -> Candidates:
        classes = None if self.classes is None else self.classes[rows]
        return Candidates(self.boxes[rows], self.labels[rows], self.scores[rows], classes)

    def choose(self, least: float, same_class: float, nms: float) -> Candidates:
        """Choose boxes with a score of at least `least`, best first; NMS runs per class, then across classes.

        Boxes without area are dropped, and so are the worst of very many.
        """
        sure = np.flatnonzero((self.scores >= least) & (self.boxes[:, 2:] > self.boxes[:, :2]).all(1))
        best = self.take(sure[np.argsort(-self.scores[sure], kind="stable")[:MOST_BOXES]])
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


def distinct(
    detections: Detections, least: float = 0.15, overlap: float = 0.7, most: int = 20
) -> Int[np.ndarray, " M"]:
    """Choose the boxes to show to a person: the rows of the surest ones, one per place. A model may read all."""
    sure = np.flatnonzero(detections.scores >= least)
    best = sure[suppress(detections.boxes[sure], detections.scores[sure], overlap)]
    chosen: np.ndarray = best[np.argsort(-detections.scores[best], kind="stable")[:most]]
    return chosen


def input_size(given: Any) -> tuple[int, int] | None:
    """Return the (height, width) of an ONNX input of one float image [1, 3, H, W] with fixed H and W, else None.

    The first axis may be dynamic, which is a name instead of a number.
    """
    shape = list(given.shape)
    sides = [side for side in shape[2:] if isinstance(side, int) and 0 < side <= MOST_SIDE]
    if given.type != "tensor(float)" or len(shape) != 4 or shape[1] != 3 or len(sides) != 2:
        return None
    return None if isinstance(shape[0], int) and shape[0] != 1 else (sides[0], sides[1])


def run_session(
    session: Any, file: str, outputs: Sequence[str] | None, feed: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Run an ONNX model; its outputs (None: all) must be numbers."""
    try:
        results = session.run(outputs, feed)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{file}: onnxruntime cannot run this model on a picture ({reason:.160})") from error
    for result in results:
        if not isinstance(result, np.ndarray) or result.dtype.kind not in "iuf":
            kind = result.dtype if isinstance(result, np.ndarray) else f"a {type(result).__name__}"
            raise PolyadicError(f"{file}: expected outputs of numbers, got {kind}: this is no detector")
    return list(results)
