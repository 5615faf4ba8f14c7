"""Score a detector: COCO's average precision, computed by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.scenes import Scene

_LEAST = 0.01  # a box counts for each class of at least this probability


def average_precision(pairs: Iterable[tuple[Scene, Detections]], classes: int) -> dict[str, float]:
    """Return `mAP` (mean over IoU 0.50 to 0.95) and `AP50` in percent over the classes that occur; {} without any box.

    A box whose score is its label's probability counts for each of its likely classes with that probability, as is
    usual for Faster R-CNN; any other, for example one named by a second look, for its label with its score. True boxes
    without area are ignored: nothing overlaps them.
    """
    images: list[dict[str, Any]] = []
    truths: list[dict[str, Any]] = []
    guesses: list[dict[str, Any]] = []
    for number, (scene, detections) in enumerate(pairs, 1):
        width, height = scene.frame
        images.append({"id": number, "width": width, "height": height})
        has_area = (scene.boxes[:, 2:] > scene.boxes[:, :2]).all(1)
        for box, label in zip(_extents(scene.boxes[has_area]), scene.labels[has_area].tolist(), strict=True):
            area = box[2] * box[3]
            entry = {"id": len(truths) + 1, "image_id": number, "category_id": label + 1, "bbox": box, "area": area}
            truths.append({**entry, "iscrowd": 0})
        inside = detections.inside(scene.frame)
        rows, labels, scores = _guesses(inside)
        for box, label, score in zip(_extents(inside.boxes[rows]), labels.tolist(), scores.tolist(), strict=True):
            guesses.append({"image_id": number, "category_id": label + 1, "bbox": box, "score": score})
    if not truths:
        return {}
    if not guesses:
        return {"mAP": 0.0, "AP50": 0.0}
    names = [{"id": label + 1, "name": str(label)} for label in range(classes)]
    precision = _precision({"images": images, "annotations": truths, "categories": names}, guesses)
    fifty = precision[0]
    return {
        "mAP": 100 * float(precision[precision > -1].mean()),
        "AP50": 100 * float(fifty[fifty > -1].mean()),
    }


def _guesses(detections: Detections) -> tuple[Int[np.ndarray, " M"], Int[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Return box indices, classes and confidences."""
    if detections.distribution is None:
        rows = np.flatnonzero(detections.labels != UNKNOWN)
        return rows, detections.labels[rows], detections.scores[rows]
    spread = detections.distribution.astype(np.float64)
    named = np.flatnonzero(detections.labels != UNKNOWN)
    labels, scores = detections.labels[named], detections.scores[named]
    other = ~np.isclose(spread[named, labels], scores, rtol=1e-3, atol=1e-4)  # files keep float16
    spread[named[other]] = 0
    spread[named[other], labels[other]] = scores[other]
    counted = spread >= _LEAST
    counted[named[other], labels[other]] = True
    rows, labels = np.nonzero(counted)
    return rows, labels, spread[rows, labels]


def _extents(boxes: Float[np.ndarray, "N 4"]) -> list[list[float]]:
    """Convert to [x, y, width, height]."""
    extents: list[list[float]] = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()
    return extents


def _precision(truths: dict[str, Any], guesses: list[dict[str, Any]]) -> Float[np.ndarray, "T R K"]:
    """Return precision by IoU threshold, recall and class; -1 for a class that does not occur."""
    from faster_coco_eval import COCO, COCOeval_faster

    known = COCO(truths)
    evaluator = COCOeval_faster(known, known.loadRes(guesses), "bbox", print_function=lambda *_: None)
    evaluator.evaluate()
    evaluator.accumulate()
    precision: np.ndarray = np.asarray(evaluator.eval["precision"], np.float64)[:, :, :, 0, -1]
    return precision
