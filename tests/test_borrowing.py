"""Borrowed detections: what a detector made of an object in one photo, moved to a similar object elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.borrowing import Borrowing
from polyadic.training.examples import BoxSource
from polyadic.training.simulation import DetectionNoise

PERSON, HORSE, HAT = 0, 1, 2


def a_scene(name: str, boxes: list[list[float]], labels: list[int], size: tuple[float, float] = (100.0, 50.0)) -> Scene:
    none = np.zeros((0, 3), np.int64)
    return Scene(name, Path("x.jpg"), size, np.array(boxes, float).reshape(-1, 4), np.array(labels, np.int64), none)


def seen(name: str, boxes: list[list[float]], labels: list[int], size: tuple[float, float]) -> Detections:
    """Detections whose scores and class distributions tell which is which."""
    scores = np.arange(1, len(boxes) + 1) / 10
    rows = np.eye(3, dtype=np.float32)[np.array(labels, np.int64)] * scores[:, None].astype(np.float32)
    corners = np.array(boxes, float).reshape(-1, 4)
    source = np.array([f"detector {at}" for at in range(len(boxes))], np.str_)
    return Detections(name, corners, np.array(labels, np.int64), scores, size, distribution=rows, source=source)


LENDER = a_scene("lender", [[10, 10, 30, 40], [60, 10, 80, 30]], [PERSON, HORSE])
# on the person, under another name; a hat inside it; nothing on the horse; something elsewhere
FOUND = seen("lender", [[12, 10, 32, 40], [14, 10, 22, 16], [85, 0, 95, 9]], [HORSE, HAT, HAT], (100.0, 50.0))


def borrow(target: Scene, seed: int = 0) -> Detections:
    lenders = Borrowing.fit({"lender": FOUND}, [LENDER, target])
    return lenders.sample(target, np.random.default_rng(seed))


def rows_by_score(detections: Detections) -> Detections:
    return detections.take(np.argsort(detections.scores))


def test_detections_move_and_scale_with_their_object() -> None:
    target = a_scene("target", [[100, 100, 140, 220]], [PERSON], (400.0, 400.0))  # twice as wide, four times as high
    borrowed = rows_by_score(borrow(target))
    expected = [[104, 100, 144, 220], [108, 100, 124, 124], [340, 0, 380, 72]]  # the last one stays where it was
    np.testing.assert_allclose(borrowed.boxes, expected)
    assert borrowed.labels.tolist() == [HORSE, HAT, HAT]
    assert borrowed.size == target.frame
    assert borrowed.distribution is not None
    assert borrowed.source is not None
    assert borrowed.source.tolist() == ["detector 0", "detector 1", "detector 2"]
    assert FOUND.distribution is not None
    np.testing.assert_allclose(borrowed.distribution, FOUND.distribution)


def test_a_missed_object_is_missed_again_and_an_unknown_class_borrows_nothing() -> None:
    for label in (HORSE, HAT):
        borrowed = borrow(a_scene("target", [[10, 10, 30, 30]], [label]))
        np.testing.assert_allclose(borrowed.boxes, FOUND.boxes[2:])


def test_what_leaves_the_frame_is_cut_and_dropped() -> None:
    target = a_scene("target", [[-30, 10, -10, 40]], [PERSON])  # everything on it lies outside
    np.testing.assert_allclose(borrow(target).boxes, FOUND.boxes[2:])


def test_the_most_similar_objects_lend() -> None:
    small, large = [[10.0, 10.0, 20.0, 20.0]], [[0.0, 0.0, 90.0, 50.0]]
    scenes = [a_scene(f"small {i}", small, [PERSON]) for i in range(12)] + [a_scene("large", large, [PERSON])]
    found = {s.name: seen(s.name, s.boxes.tolist(), [HAT if s.name == "large" else HORSE], s.frame) for s in scenes}
    lenders = Borrowing.fit(found, scenes)
    for seed in range(20):
        borrowed = lenders.sample(a_scene("target", [[40, 20, 50, 30]], [PERSON]), np.random.default_rng(seed))
        assert HAT not in borrowed.labels


def test_training_uses_real_detections_where_there_are_some() -> None:
    target = a_scene("target", [[10, 10, 30, 40]], [PERSON])
    found = {"lender": FOUND}
    source = BoxSource(found, Borrowing.fit(found, [LENDER, target]))
    assert source.fixed(LENDER)
    assert not source.fixed(target)
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(source.boxes(LENDER, rng).boxes, FOUND.boxes)
    assert len(source.boxes(target, rng).boxes) == 3
    assert len(BoxSource(found).boxes(target, rng).boxes) == 0  # without borrowing: nothing was detected


def test_the_boxes_of_a_real_and_a_simulated_detector_keep_their_names() -> None:
    target = a_scene("target", [[10, 10, 30, 40]], [PERSON])
    unnamed = replace(FOUND, source=None)
    noise = DetectionNoise.fit(
        [FOUND], Dataset("d", "train", Vocabulary(("person", "horse", "hat"), ("on",)), (LENDER,), Path())
    )
    source = BoxSource(
        {"lender": unnamed}, Borrowing.fit({"lender": unnamed}, [LENDER]), (noise,), ("real", "simulated")
    )
    for scene in (LENDER, target):
        boxes = source.boxes(scene, np.random.default_rng(0))
        assert boxes.source is not None
        assert boxes.source.tolist() == ["real"] * 3 + ["simulated"] * (len(boxes.boxes) - 3)


def test_a_draw_depends_on_the_random_numbers_alone() -> None:
    target = a_scene("target", [[10, 10, 30, 40], [50, 10, 70, 40]], [PERSON, HORSE])
    assert borrow(target, 3) == borrow(target, 3)


def test_nothing_to_borrow_from_is_an_error() -> None:
    with pytest.raises(PolyadicError, match="no training image to borrow"):
        Borrowing.fit({"elsewhere": FOUND}, [LENDER])
