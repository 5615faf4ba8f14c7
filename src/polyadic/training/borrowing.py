"""Detections for training images without a photo, borrowed from those of images with one (ours).

A detector can run only where there are pixels, but annotations without a photo teach relations too. Every true box of
such an image borrows the detections of a similar object in a photo: same class, similar size and shape. They are moved
with their box, so hits, misses, jitter, duplicates, wrong names, scores and P(class | box) come as the detector makes
them. Detections on no object are taken from one other photo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.pairs import iou

_ON, _INSIDE = 0.3, 0.8  # IoU, and share of a detection inside a true box, from which the detection belongs to it
_SIMILAR = 12  # objects among which one is drawn
_THIN = 1e-3  # share of the frame: a side of a borrowed box that is cut to less is no box
_PHOTOS = 8  # photos among which the one with the most classes in common gives the detections on no object


@dataclass(frozen=True, eq=False)
class Borrowing:
    """The detections of photos, by the true object that they belong to."""

    lenders: tuple[Detections, ...]  # in shares of the frame
    owners: tuple[Int[np.ndarray, " _"], ...]  # of each detection: the true box, or -1
    scenes: tuple[Scene, ...]
    places: Mapping[int, Int[np.ndarray, "_ 2"]]  # by class: photo and true box
    shapes: Mapping[int, Float[np.ndarray, "_ 3"]]  # of these: log area, log aspect, height of the centre

    @classmethod
    def fit(cls, detections: Mapping[str, Detections], scenes: Sequence[Scene]) -> Borrowing:
        """Assign the detections of all scenes that have some to their true boxes."""
        lending = tuple(scene for scene in scenes if scene.name in detections and len(scene.boxes))
        if not lending:
            raise PolyadicError("data.detections has boxes of no training image to borrow from")
        found = [detections[scene.name].in_frame(scene.frame).in_frame((1.0, 1.0)) for scene in lending]
        places: dict[int, list[tuple[int, int]]] = {}
        shapes: dict[int, list[np.ndarray]] = {}
        for at, scene in enumerate(lending):
            for row, (label, shape) in enumerate(zip(scene.labels.tolist(), _shapes(scene), strict=True)):
                places.setdefault(label, []).append((at, row))
                shapes.setdefault(label, []).append(shape)
        return cls(
            tuple(found),
            tuple(_owners(_shares(scene), boxes.boxes) for scene, boxes in zip(lending, found, strict=True)),
            lending,
            {label: np.array(rows) for label, rows in places.items()},
            {label: np.stack(rows) for label, rows in shapes.items()},
        )

    def sample(self, scene: Scene, rng: np.random.Generator) -> Detections:
        """Borrow the detections of one scene, in its frame and in random order."""
        boxes, rows = [np.zeros((0, 4))], list[tuple[int, np.ndarray]]()
        for target, label, shape in zip(_shares(scene), scene.labels.tolist(), _shapes(scene), strict=True):
            if label not in self.places:
                continue
            far = np.abs(self.shapes[label] - shape).sum(1)
            at, row = self.places[label][rng.choice(np.argsort(far, kind="stable")[:_SIMILAR])].tolist()
            chosen = np.flatnonzero(self.owners[at] == row)
            boxes.append(_moved(self.lenders[at].boxes[chosen], _shares(self.scenes[at])[row], target))
            rows.append((at, chosen))
        at = self._backdrop(scene, rng)
        chosen = np.flatnonzero(self.owners[at] < 0)
        boxes.append(self.lenders[at].boxes[chosen])
        rows.append((at, chosen))
        lent = [self.lenders[at].take(chosen) for at, chosen in rows]
        named = all(part.distribution is not None for part in lent)
        seen = all(part.source is not None for part in lent)
        borrowed = Detections(
            scene.name,
            np.concatenate(boxes).clip(0, 1),
            np.concatenate([part.labels for part in lent]),
            np.concatenate([part.scores for part in lent]),
            (1.0, 1.0),
            distribution=np.concatenate([part.distribution for part in lent]) if named else None,
            source=np.concatenate([part.source for part in lent]) if seen else None,
        )
        visible = (borrowed.boxes[:, 2:] - borrowed.boxes[:, :2] > _THIN).all(1)
        return borrowed.take(rng.permutation(np.flatnonzero(visible))).in_frame(scene.frame)

    def _backdrop(self, scene: Scene, rng: np.random.Generator) -> int:
        """Draw some photos; choose the one with the most classes in common."""
        drawn = rng.integers(0, len(self.scenes), _PHOTOS)
        common = [len(np.intersect1d(self.scenes[at].labels, scene.labels)) for at in drawn]
        return int(drawn[int(np.argmax(common))])


def _shares(scene: Scene) -> Float[np.ndarray, "N 4"]:
    shares: np.ndarray = scene.boxes / np.tile(scene.frame, 2)
    return shares


def _shapes(scene: Scene) -> Float[np.ndarray, "N 3"]:
    boxes = _shares(scene)
    width, height = np.maximum(boxes[:, 2:] - boxes[:, :2], 1e-3).T
    return np.stack([np.log(width * height), np.log(width / height), 2 * (boxes[:, 1] + boxes[:, 3])], 1)


def _owners(true: Float[np.ndarray, "G 4"], boxes: Float[np.ndarray, "N 4"]) -> Int[np.ndarray, " N"]:
    """Find the true box that each detection lies on, else the smallest one that it lies in, else -1."""
    overlap = iou(boxes, true)  # [N, G]
    shared = np.minimum(boxes[:, None, 2:], true[None, :, 2:]) - np.maximum(boxes[:, None, :2], true[None, :, :2])
    area, size = ((x[:, 2:] - x[:, :2]).prod(1) for x in (boxes, true))
    inside = shared.clip(0).prod(-1) >= _INSIDE * area[:, None]
    smallest = np.where(inside, size, np.inf).argmin(1)
    owners = np.where(inside.any(1), smallest, -1)
    return np.where(overlap.max(1) >= _ON, overlap.argmax(1), owners)


def _moved(
    boxes: Float[np.ndarray, "N 4"], lender: Float[np.ndarray, " 4"], target: Float[np.ndarray, " 4"]
) -> Float[np.ndarray, "N 4"]:
    """Move boxes as their true box moves from the lender's place to the target's."""
    scale = (target[2:] - target[:2]) / np.maximum(lender[2:] - lender[:2], 1e-3)
    moved: np.ndarray = (boxes.reshape(-1, 2) - lender[:2]) * scale + target[:2]
    return moved.reshape(-1, 4)
