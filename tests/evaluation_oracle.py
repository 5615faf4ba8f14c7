"""The evaluators of the field as plain loops, written from the protocol text. Slow on purpose; imports nothing of ours.

An image is (predictions, truths): predictions are dicts of `pair` (any key of the ordered box pair), `subject` and
`object` boxes, `triplet` and `score`; truths are dicts of `subject`, `object`, `triplet`.
"""

from __future__ import annotations

from typing import Any

Box = tuple[float, float, float, float]
Image = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def iou(a: Box, b: Box, offset: float) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    area_a = (a[2] - a[0] + offset) * (a[3] - a[1] + offset)
    area_b = (b[2] - b[0] + offset) * (b[3] - b[1] + offset)
    return both / (area_a + area_b - both)


def around(a: Box, b: Box) -> Box:
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def overlap(prediction: dict[str, Any], truth: dict[str, Any], task: str, offset: float) -> float:
    if task == "phrase":
        phrases = [around(each["subject"], each["object"]) for each in (prediction, truth)]
        return iou(phrases[0], phrases[1], offset)
    return min(iou(prediction[end], truth[end], offset) for end in ("subject", "object"))


def kept(predictions: list[dict[str, Any]], k: int | None, k_unit: str, top: int) -> list[dict[str, Any]]:
    """A stable descending sort; k per pair (of labelled boxes, if predicates are counted); then the first N."""
    ranked = sorted(predictions, key=lambda prediction: -prediction["score"])  # Python's sort is stable
    count: dict[Any, int] = {}
    best = []
    for prediction in ranked:
        s, _, o = prediction["triplet"]
        key = (prediction["pair"], s, o) if k_unit == "predicate" else prediction["pair"]
        count[key] = count.get(key, 0) + 1
        if k is None or count[key] <= k:
            best.append(prediction)
    return best[:top]


def hits(
    predictions: list[dict[str, Any]], truths: list[dict[str, Any]], task: str, match: str, tie: str, offset: float
) -> list[bool]:
    """Which truths are hit by predictions that are in falling order and already cut."""
    taken = [False] * len(truths)
    for prediction in predictions:
        best, chosen = -1.0, None
        for at, truth in enumerate(truths):
            if truth["triplet"] != prediction["triplet"]:
                continue
            value = overlap(prediction, truth, task, offset)
            if value < 0.5:
                continue
            if match == "many-to-one":
                taken[at] = True
            elif not taken[at] and (value > best or (tie == "last" and value >= best)):
                best, chosen = value, at
        if chosen is not None:
            taken[chosen] = True
    return taken


def recall(
    images: list[Image],
    *,
    task: str,
    match: str,
    aggregate: str,
    iou_offset: float,
    k: int | None,
    k_unit: str,
    no_prediction: str,
    subset: str,
    tie: str,
    top: int,
    seen: set[tuple[int, int, int]],
) -> tuple[float | None, float | None]:
    """R@N and mR@N in percent; None where there is no truth."""
    results = []  # per image: (predicate, hit) of each counted truth
    for predictions, truths in images:
        if no_prediction == "drop" and not predictions:
            continue
        counted = [truth for truth in truths if subset == "all" or truth["triplet"] not in seen]
        found = hits(kept(predictions, k, k_unit, top), counted, task, match, tie, iou_offset)
        results.append([(truth["triplet"][1], hit) for truth, hit in zip(counted, found, strict=True)])
    predicates = {predicate for result in results for predicate, _ in result}
    if not predicates:
        return None, None
    each = [
        share([[hit for p, hit in result if p == predicate] for result in results], aggregate)
        for predicate in predicates
    ]
    return share([[hit for _, hit in result] for result in results], aggregate), sum(each) / len(each)


def share(images: list[list[bool]], aggregate: str) -> float:
    full = [hits for hits in images if hits]
    if aggregate == "pooled":
        return 100 * sum(map(sum, full)) / sum(map(len, full))
    return 100 * sum(sum(hits) / len(hits) for hits in full) / len(full)


def reachable(boxes: list[Box], labels: list[int] | None, truth: dict[str, Any], task: str, offset: float) -> bool:
    """Whether two different boxes, with the right labels if labels are kept, could hit a truth."""
    for i, subject in enumerate(boxes):
        for j, object in enumerate(boxes):
            right = labels is None or (labels[i], labels[j]) == (truth["triplet"][0], truth["triplet"][2])
            if i != j and right and overlap({"subject": subject, "object": object}, truth, task, offset) >= 0.5:
                return True
    return False
