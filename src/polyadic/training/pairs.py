"""Choose the pairs to train on (Implementation details; Modeling missing annotations).

Stage 1: each annotated relation between two ground-truth boxes. Stage 1b: pairs of proposals that match the two boxes
of a relation, at most 4 proposals per ground-truth box at IoU >= 0.5. Stage 2: annotated pairs and as many null pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.utils.data import Dataset

from polyadic.boxes import box_place, context_features, ordered_pairs
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene

MOST, IOU = 4, 0.5  # paper


@dataclass(frozen=True, eq=False)
class TrainingBoxes:
    """Hold the boxes of one training image, in the annotated frame, and the relations between them."""

    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]
    scores: Float[np.ndarray, " N"]
    pairs: Int[np.ndarray, "M 2"]  # one row per relation and matching pair of boxes
    triplets: Int[np.ndarray, "M 3"]
    shown: Int[np.ndarray, "K 2"]  # all pairs that match an annotated one, never used as null pairs
    names: Float[np.ndarray, "N C"] | None = None  # P(class | box), where the detector gives it
    source: Shaped[np.ndarray, " N"] | None = None  # the detector, where several looked

    def annotated(self) -> Bool[np.ndarray, "N N"]:
        """Mark the ordered pairs that are annotated."""
        annotated = np.zeros((len(self.boxes), len(self.boxes)), bool)
        annotated[self.pairs[:, 0], self.pairs[:, 1]] = True
        return annotated


def chosen_relations(
    scene: Scene, rng: np.random.Generator, *, one_predicate: bool = False, overlapping: bool = False
) -> Bool[np.ndarray, " M"]:
    """Mark the relations to learn from in this epoch; those of a box with itself never.

    On VG150 the field draws one of the predicates of an ordered pair (one that is annotated twice twice as likely), and
    may skip pairs of boxes that do not overlap (inclusive pixels).
    """
    subjects, objects = scene.relations[:, 0], scene.relations[:, 2]
    chosen: np.ndarray = subjects != objects
    if overlapping:
        a, b = scene.boxes[subjects], scene.boxes[objects]
        chosen &= (np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]) + 1 > 0).all(1)
    if one_predicate:
        order = rng.permutation(len(chosen))
        _, first = np.unique(scene.relations[order][:, ::2], axis=0, return_index=True)
        drawn = np.zeros(len(chosen), bool)
        drawn[order[first]] = True
        chosen &= drawn
    return chosen


def true_boxes(scene: Scene, rows: Bool[np.ndarray, " M"] | None = None) -> TrainingBoxes:
    """Return the boxes of stage 1 with the chosen relations; by default all but those of a box with itself."""
    other = scene.relations[:, 0] != scene.relations[:, 2]
    rows = other if rows is None else rows
    pairs, shown = scene.relations[rows][:, ::2], scene.relations[other][:, ::2]
    known = pairs, scene.triplets[rows], shown
    return TrainingBoxes(scene.boxes, scene.labels, np.ones(len(scene.boxes)), *known)


def proposal_boxes(
    scene: Scene, detections: Detections, rng: np.random.Generator, rows: Bool[np.ndarray, " M"] | None = None
) -> TrainingBoxes:
    """Return all detections for stage 1b, with relations between at most 4 drawn per ground-truth box, IoU >= 0.5."""
    rows = np.ones(len(scene.relations), bool) if rows is None else rows
    boxes = detections.in_frame(scene.frame).boxes
    near = iou(boxes, scene.boxes) >= IOU  # [detections, true boxes]
    on = [np.flatnonzero(column) for column in near.T]  # by true box
    drawn = [rng.permutation(rows)[:MOST] for rows in on]
    pairs, triplets, shown = [np.zeros((0, 2), np.int64)], [np.zeros((0, 3), np.int64)], [np.zeros((0, 2), np.int64)]
    for (subject, _, object), triplet, row in zip(scene.relations, scene.triplets, rows, strict=True):
        if subject == object:
            continue
        shown.append(_combinations(on[subject], on[object]))
        if not row:
            continue
        both = _combinations(drawn[subject], drawn[object])
        pairs.append(both)
        triplets.append(np.repeat(triplet[None], len(both), 0))
    known = np.concatenate(pairs), np.concatenate(triplets), np.concatenate(shown)
    names, source = detections.distribution, detections.source
    return TrainingBoxes(boxes, detections.labels, detections.scores, *known, names=names, source=source)


def selection_pairs(
    boxes: TrainingBoxes, rng: np.random.Generator, nulls: float = 1.0
) -> tuple[Int[np.ndarray, "M 2"], Bool[np.ndarray, " M"]]:
    """Draw the pairs of stage 2: annotated ones, once each, and `nulls` times as many others (0: all); mark which."""
    annotated = boxes.annotated()
    other = ~np.eye(len(annotated), dtype=bool)
    other[boxes.shown[:, 0], boxes.shown[:, 1]] = False
    positive, negative = np.argwhere(annotated), np.argwhere(other)
    if nulls:
        count = min(len(negative), round(nulls * len(positive)))
        negative = negative[np.sort(rng.permutation(len(negative))[:count])]
    chosen = np.repeat([True, False], [len(positive), len(negative)])
    return np.concatenate([positive, negative]), chosen


def _combinations(subjects: Int[np.ndarray, " S"], objects: Int[np.ndarray, " O"]) -> Int[np.ndarray, "_ 2"]:
    both = np.empty((len(subjects), len(objects), 2), np.int64)
    both[..., 0], both[..., 1] = subjects[:, None], objects
    different: np.ndarray = both.reshape(-1, 2)[(both[..., 0] != both[..., 1]).ravel()]
    return different


def iou(a: Float[np.ndarray, "N 4"], b: Float[np.ndarray, "M 4"]) -> Float[np.ndarray, "N M"]:
    shared = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    overlap = shared.clip(0).prod(-1)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(-1) for x in (a, b))
    union = area_a[:, None] + area_b[None] - overlap
    iou: np.ndarray = np.where(union > 0, overlap / np.where(union > 0, union, 1), 0.0)
    return iou


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Hold all ordered pairs of true boxes of one or several images, and the annotations among them."""

    name: str
    places: Float[Tensor, "N 7"]  # of the boxes
    labels: Int[Tensor, " N"]
    pairs: Int[Tensor, "B 2"]
    numbers: Float[Tensor, "B 39"]
    at: Int[Tensor, " M"]  # the pair of an annotation
    predicates: Int[Tensor, " M"]

    @classmethod
    def of(cls, scene: Scene) -> AllPairs:
        known = true_boxes(scene)
        n, pairs = len(known.boxes), ordered_pairs(len(known.boxes))
        boxes, labels = torch.from_numpy(known.boxes).float(), torch.from_numpy(known.labels)
        frames = torch.tensor(scene.frame, dtype=torch.float32).expand(n, 2)
        row = torch.zeros(n, n, dtype=torch.long)
        row[pairs[:, 0], pairs[:, 1]] = torch.arange(len(pairs))
        first, second = torch.from_numpy(known.pairs).unbind(-1)
        numbers, predicates = context_features(boxes, frames, pairs), torch.from_numpy(known.triplets)[:, 1]
        return cls(scene.name, box_place(boxes, frames), labels, pairs, numbers, row[first, second], predicates)

    @classmethod
    def join(cls, parts: Sequence[AllPairs]) -> AllPairs:
        boxes = [0, *accumulate(len(part.labels) for part in parts)]
        pairs = [0, *accumulate(len(part.pairs) for part in parts)]
        return cls(
            "",
            torch.cat([part.places for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.pairs + start for part, start in zip(parts, boxes, strict=False)]),
            torch.cat([part.numbers for part in parts]),
            torch.cat([part.at + start for part, start in zip(parts, pairs, strict=False)]),
            torch.cat([part.predicates for part in parts]),
        )

    def to(self, device: torch.device) -> AllPairs:
        columns = (self.places, self.labels, self.pairs, self.numbers, self.at, self.predicates)
        return AllPairs(self.name, *(x.to(device) for x in columns))


class AnnotatedImages(Dataset[AllPairs]):
    """Images with an annotated pair."""

    def __init__(self, scenes: tuple[Scene, ...]) -> None:
        self.rows = [pairs for pairs in map(AllPairs.of, scenes) if len(pairs.at)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> AllPairs:
        return self.rows[at]
