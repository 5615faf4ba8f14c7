"""Random scenes and predictions with everything that makes evaluators disagree, in our values and in the oracle's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polyadic.evaluation import evaluate
from polyadic.evaluation.protocol import get_protocol
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene

LU = get_protocol("lu2016")
OBJECTS, PREDICATES = 3, 2  # few classes, so that triplets repeat


def random_boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Small whole numbers: overlaps tie, and often are exactly one half."""
    corner = rng.integers(0, 4, (n, 2))
    return np.concatenate([corner, corner + rng.integers(0, 5, (n, 2))], axis=1).astype(np.float64)


def random_image(rng: np.random.Generator, name: str) -> tuple[Scene, Relations | None]:
    n, m = int(rng.integers(1, 5)), int(rng.integers(0, 7))
    boxes = random_boxes(rng, n)
    relations = np.stack(
        [rng.integers(0, n, m), rng.integers(0, PREDICATES, m), rng.integers(0, n, m)], axis=1
    )  # self-pairs
    if m and rng.random() < 0.5:
        relations = np.concatenate([relations, relations[:2]])  # exact copies
    scene = Scene(name, Path(name), (10.0, 10.0), boxes, rng.integers(0, OBJECTS, n), relations.reshape(-1, 3))
    if rng.random() < 0.2:
        return scene, None
    mine = np.concatenate([boxes + rng.integers(0, 2, boxes.shape) * (0, 0, 1, 1), random_boxes(rng, 1)])
    count = int(rng.integers(0, 25))
    pairs = rng.integers(0, len(mine), (count, 2))
    triplets = np.stack(
        [rng.integers(0, OBJECTS, count), rng.integers(0, PREDICATES, count), rng.integers(0, OBJECTS, count)], axis=1
    )
    if count and len(relations) and rng.random() < 0.8:  # aim at truths
        aim = relations[rng.integers(0, len(relations), count)]
        take = rng.random(count) < 0.7
        pairs[take] = aim[take][:, ::2]
        triplets[take] = np.stack([scene.labels[aim[:, 0]], aim[:, 1], scene.labels[aim[:, 2]]], axis=1)[take]
    scores = rng.integers(0, 4, count) / 4.0  # many ties
    return scene, Relations(name, mine, pairs.reshape(-1, 2), triplets.reshape(-1, 3), scores)


def as_plain(scene: Scene, predictions: Relations | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same image for the oracle."""
    boxes = [tuple(box) for box in scene.boxes.tolist()]
    truths = [
        {"subject": boxes[s], "object": boxes[o], "triplet": (int(scene.labels[s]), p, int(scene.labels[o]))}
        for s, p, o in scene.relations.tolist()
    ]
    if predictions is None:
        return [], truths
    mine = [tuple(box) for box in predictions.boxes.tolist()]
    rows = zip(predictions.pairs.tolist(), predictions.triplets.tolist(), predictions.scores.tolist(), strict=True)
    return [
        {"pair": (s, o), "subject": mine[s], "object": mine[o], "triplet": tuple(triplet), "score": score}
        for (s, o), triplet, score in rows
    ], truths


def scene(relations: list[tuple[int, int, int]], labels: list[int], boxes: list[list[float]], name: str = "a") -> Scene:
    rows = np.array(relations, np.int64).reshape(-1, 3)
    return Scene(name, Path(name), (100.0, 100.0), np.array(boxes, float), np.array(labels), rows)


def predictions(pairs: list[tuple[int, int]], triplets: list[tuple[int, int, int]], scores: list[float]) -> Relations:
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9]], float)
    return Relations("a", boxes, np.array(pairs).reshape(-1, 2), np.array(triplets).reshape(-1, 3), np.array(scores))


TWO = [[0.0, 0, 9, 9], [20.0, 0, 29, 9]]


def recall_of(truth: Scene, answer: Relations, **switches: object) -> float:
    return float(evaluate([truth], [answer], [LU.change(tops=(20,), **switches)], 5)[0].recall)
