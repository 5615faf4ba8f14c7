"""mAP against a slow evaluator, written from COCO's definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import plain_iou

from polyadic.evaluation.average_precision import average_precision
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.scenes import Scene

FRAME = (120.0, 80.0)


def scene_of(name: str, boxes: Sequence[Sequence[float]], labels: Sequence[int]) -> Scene:
    corners = np.asarray(boxes, float).reshape(-1, 4)
    return Scene(name, Path(name), FRAME, corners, np.asarray(labels, int), np.zeros((0, 3), int))


def detections_of(name: str, boxes: Any, labels: Sequence[int], scores: Any) -> Detections:
    corners = np.asarray(boxes, float).reshape(-1, 4)
    return Detections(name, corners, np.asarray(labels, int), np.asarray(scores, float), FRAME)


def slow(pairs: list[tuple[Scene, Detections]], classes: int, threshold: float) -> float:
    """Mean over the classes that occur of the mean precision at recalls 0, 0.01, ..., 1."""
    precisions = []
    for label in range(classes):
        truths = sum(int((scene.labels == label).sum()) for scene, _ in pairs)
        if not truths:
            continue
        rows: list[tuple[float, bool]] = []
        for scene, detections in pairs:
            mine = [at for at in range(len(detections)) if detections.labels[at] == label]
            free = [at for at in range(len(scene.boxes)) if scene.labels[at] == label]
            for at in sorted(mine, key=lambda one: -detections.scores[one])[:100]:
                near = [
                    (plain_iou(detections.boxes[at].tolist(), scene.boxes[other].tolist()), other) for other in free
                ]
                best = max(near, default=(0.0, -1))
                if best[0] >= threshold:
                    free.remove(best[1])
                rows.append((float(detections.scores[at]), best[0] >= threshold))
        rows.sort(key=lambda row: -row[0])
        hits, curve = 0, []
        for seen, (_, hit) in enumerate(rows, 1):
            hits += hit
            curve.append((hits / truths, hits / seen))
        points = [max((p for r, p in curve if r >= step / 100 - 1e-12), default=0.0) for step in range(101)]
        precisions.append(sum(points) / 101)
    return 100 * sum(precisions) / len(precisions)


def random_pairs(seed: int, images: int = 6, classes: int = 5) -> list[tuple[Scene, Detections]]:
    """Detections near true boxes and elsewhere, some twice, some of a wrong class; class 4 never occurs."""
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(images):
        n = 0 if number == 1 else int(rng.integers(1, 8))
        corner, extent = rng.uniform(0, 50, (n, 2)), rng.uniform(5, 29, (n, 2))
        boxes, labels = np.concatenate([corner, corner + extent], 1), rng.integers(0, classes - 1, n)
        near = np.concatenate([boxes, boxes[: n // 2]])
        near = near + rng.normal(0, 2, near.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        corner = rng.uniform(0, 50, (4, 2))
        far = np.concatenate([corner, corner + rng.uniform(5, 29, (4, 2))], 1)
        guess = np.concatenate([labels, labels[: n // 2], rng.integers(0, classes, 4)])
        wrong = rng.random(len(guess)) < 0.15
        guess = np.where(wrong, rng.integers(0, classes, len(guess)), guess)
        inside = np.concatenate([near, far]).clip(0, [*FRAME, *FRAME])
        scores = rng.random(len(guess))
        name = f"{number}.jpg"
        pairs.append(
            (scene_of(name, boxes.tolist(), labels.tolist()), detections_of(name, inside, guess.tolist(), scores))
        )
    return pairs


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_cocos_average_precision(seed: int) -> None:
    pairs = random_pairs(seed)
    got = average_precision(pairs, 5)
    assert got["AP50"] == pytest.approx(slow(pairs, 5, 0.5), abs=1e-6)
    steps = [slow(pairs, 5, 0.5 + 0.05 * step) for step in range(10)]
    assert got["mAP"] == pytest.approx(sum(steps) / 10, abs=1e-6)
    assert 1 < got["mAP"] < got["AP50"] < 99


def test_true_boxes_score_100_and_no_boxes_score_0() -> None:
    truths = [scene for scene, _ in random_pairs(3)]
    perfect = [
        (scene, detections_of(scene.name, scene.boxes, scene.labels.tolist(), [0.5] * len(scene.boxes)))
        for scene in truths
    ]
    assert average_precision(perfect, 5) == pytest.approx({"mAP": 100.0, "AP50": 100.0})
    none = [(scene, detections_of(scene.name, [], [], [])) for scene in truths]
    assert average_precision(none, 5) == {"mAP": 0.0, "AP50": 0.0}
    assert average_precision([(scene_of("a", [], []), detections_of("a", [[0, 0, 9, 9]], [1], [0.5]))], 5) == {}
    assert average_precision([], 5) == {}


def test_a_distribution_counts_for_each_likely_class() -> None:
    scene = scene_of("a", [[0, 0, 10, 20], [30, 30, 50, 70]], [2, 0])
    sure = detections_of("a", scene.boxes, [1, 0], [0.6, 0.9])
    assert average_precision([(scene, sure)], 3) == pytest.approx({"mAP": 50.0, "AP50": 50.0})
    spread = replace(sure, distribution=np.array([[0.0, 0.6, 0.3], [0.9, 0.0, 0.0]], np.float32))
    assert average_precision([(scene, spread)], 3) == pytest.approx({"mAP": 100.0, "AP50": 100.0})
    torn = replace(
        sure, scores=np.array([0.6, 0.2]), distribution=np.array([[0.0, 0.6, 0.3], [0.2, 0.0, 0.5]], np.float32)
    )
    half = average_precision([(scene, torn)], 3)  # class 2: the box of the horse is surer, and wrong
    assert half["AP50"] == pytest.approx((100 + 50) / 2)


def test_a_box_named_by_a_second_look_counts_for_its_label_with_its_score() -> None:
    for seed in range(3):
        rng, named = np.random.default_rng(seed), []
        pairs = random_pairs(seed)
        for scene, found in pairs:
            look = rng.dirichlet(np.full(5, 0.3), len(found)).astype(np.float32)
            named.append((scene, replace(found, distribution=look)))
        assert average_precision(named, 5) == pytest.approx(average_precision(pairs, 5))


def test_boxes_are_compared_in_the_annotated_frame() -> None:
    scene = scene_of("a", [[0, 0, 60, 40]], [0])
    found = Detections("a", np.array([[0.0, 0.0, 30.0, 20.0]]), np.array([0]), np.array([0.5]), (60.0, 40.0))
    assert average_precision([(scene, found)], 1)["mAP"] == pytest.approx(100)
    assert average_precision([(scene, replace(found, size=FRAME))], 1)["mAP"] == 0


def test_ground_truths_without_area_and_unknown_labels_are_ignored() -> None:
    scene = scene_of("a", [[0, 0, 60, 40], [5, 5, 5, 9]], [0, 0])
    found = detections_of("a", [[0, 0, 60, 40], [0, 0, 60, 40]], [0, UNKNOWN], [0.5, 0.9])
    assert average_precision([(scene, found)], 1)["mAP"] == pytest.approx(100)
