"""Simulated detections against a made-up detector whose every number is known, and on the real VRD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import plain_iou
from refusals import refused
from shared_data import real_vrd, shared

from polyadic.io.records import read_detections
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import Vocabulary
from polyadic.training.simulation import Assumptions, DetectionNoise

NAMES = Vocabulary(objects=tuple("abcde"), predicates=("on",))
C = len(NAMES.objects)
SHARE = np.array([0.35, 0.25, 0.2, 0.15, 0.05])  # of the true boxes
ASSUMED = Assumptions(ceiling=0.8, jitter=0.06, duplicates=0.15, co_located=0.3)
RECALL = np.array([0.8, 0.8, 0.5, 0.3, 0.8])
PRECISION = np.array([0.6, 0.5, 0.8, 0.8, 0.3])
CONFUSION = np.array(
    [
        [0.0, 0.7, 0.0, 0.0, 0.3],
        [0.8, 0.0, 0.1, 0.1, 0.0],
        [0.5, 0.5, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.4, 0.6, 0.0, 0.0, 0.0],
    ]
)
TRUE = 3.0  # boxes per scene: one to five
FALSE_BY_CLASS = RECALL * SHARE * TRUE * 1.15 * (1 - PRECISION) / PRECISION  # so that r·t = p·h
FALSE = float(FALSE_BY_CLASS.sum())
FREE = FALSE_BY_CLASS - 0.3 * FALSE * SHARE @ CONFUSION


def made_up_scenes(n: int, seed: int) -> Dataset:
    """One to five boxes, each in its own column of the frame: no two true boxes overlap."""
    rng = np.random.default_rng(seed)
    scenes = []
    for i in range(n):
        m, size = int(rng.integers(1, 6)), (float(rng.integers(400, 900)), float(rng.integers(300, 700)))
        columns = rng.permutation(5)[:m]
        left, top = (columns + rng.uniform(0.1, 0.4, m)) / 5, rng.uniform(0.05, 0.45, m)
        right, bottom = left + rng.uniform(0.05, 0.11, m), top + rng.uniform(0.1, 0.3, m)
        boxes = np.stack([left, top, right, bottom], axis=1) * [*size, *size]
        labels = rng.choice(C, m, p=SHARE)
        scenes.append(Scene(f"{seed}-{i}", Path("x.jpg"), size, boxes, labels, np.zeros((0, 3), np.int64)))
    return Dataset("made up", "train", NAMES, tuple(scenes), Path("."))


def right_scores(n: int, rng: np.random.Generator) -> np.ndarray:
    return 0.5 + 0.5 * rng.beta(5, 2, n)  # no confidence below 0.5


def wrong_scores(n: int, rng: np.random.Generator) -> np.ndarray:
    return 0.5 + 0.5 * rng.beta(1.5, 4, n)


def made_up_detector(scene: Scene, rng: np.random.Generator) -> Detections:
    """Box by box, from the numbers above. False boxes: mean FALSE, variance twice the mean."""
    rows: list[tuple[np.ndarray, int, float]] = []

    def moved(box: np.ndarray) -> np.ndarray:
        sides = np.tile(box[2:] - box[:2], 2)
        return np.asarray(box + rng.normal(size=4) * 0.06 * sides)

    for box, label in zip(scene.boxes, scene.labels.tolist(), strict=True):
        if rng.random() < RECALL[label]:
            times = 1 + int(rng.random() < 0.15)
            rows += [(moved(box), label, float(score)) for score in right_scores(times, rng)]
    for _ in range(rng.negative_binomial(FALSE, 0.5)):
        score = wrong_scores(1, rng)[0]
        if rng.random() < 0.3:
            below = rng.integers(len(scene.boxes))
            rows.append((moved(scene.boxes[below]), int(rng.choice(C, p=CONFUSION[scene.labels[below]])), score))
        else:
            x, w = rng.uniform(0, 0.6), rng.uniform(0.1, 0.4)  # in a strip below all true boxes
            box = np.array([x, 0.85, x + w, rng.uniform(0.9, 1)]) * [*scene.frame, *scene.frame]
            rows.append((box, int(rng.choice(C, p=FREE / FREE.sum())), score))
    boxes, labels, scores = zip(*rows, strict=True) if rows else ([], [], [])
    return Detections(
        scene.name, np.array(boxes).reshape(-1, 4), np.array(labels, np.int64), np.array(scores), scene.size
    )


def detect(scenes: Sequence[Scene], seed: int) -> list[Detections]:
    rng = np.random.default_rng(seed)
    return [made_up_detector(scene, rng) for scene in scenes]


def distance(a: Any, b: Any) -> float:
    """Total variation of two histograms."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)


def label_counts(detections: Sequence[Detections], classes: int = C) -> np.ndarray:
    return np.bincount(np.concatenate([image.labels for image in detections]), minlength=classes) / len(detections)


def score_distance(a: Sequence[Detections], b: Sequence[Detections]) -> float:
    x, y = (np.concatenate([image.scores for image in detections]) for detections in (a, b))
    edges = np.quantile(x, np.linspace(0, 1, 16)[1:-1])
    return distance(*(np.bincount(np.searchsorted(edges, s), minlength=15) for s in (x, y)))


def places(scenes: Sequence[Scene], detections: Sequence[Detections]) -> tuple[float, float]:
    """Share of detections on a true box of another label, and the spread of edges of those on one of their own."""
    elsewhere, total, moves = 0, 0, []
    for scene, image in zip(scenes, detections, strict=True):
        total += len(image)
        for box, label in zip(image.boxes, image.labels.tolist(), strict=True):
            for true, name in zip(scene.boxes, scene.labels.tolist(), strict=True):
                if plain_iou(box.tolist(), true.tolist()) > 0.5:
                    elsewhere += label != name
                    if label == name:
                        w, h = true[2:] - true[:2]
                        moves.append((box - true) / [w, h, w, h])
    return elsewhere / total, float(np.std(moves))


TRAIN, SEEN, HELD_OUT = made_up_scenes(2500, 1), made_up_scenes(3000, 2), made_up_scenes(1200, 3)
FEW = replace(TRAIN, scenes=TRAIN.scenes[:20])


@pytest.fixture(scope="module")
def outputs() -> list[Detections]:
    return detect(SEEN.scenes, 4)


@pytest.fixture(scope="module")
def noise(outputs: list[Detections]) -> DetectionNoise:
    return DetectionNoise.fit(outputs, TRAIN, assumed=ASSUMED)


@pytest.fixture(scope="module")
def simulated(noise: DetectionNoise) -> list[Detections]:
    rng = np.random.default_rng(5)
    return [noise.sample(scene, rng) for scene in HELD_OUT]


def test_fit_recovers_recall_precision_false_boxes_and_confusion(noise: DetectionNoise) -> None:
    # over seeds the largest standard deviation is 0.028 of recall (class c), 0.021 of precision (class e)
    np.testing.assert_allclose(noise.recall, RECALL, atol=0.08)
    np.testing.assert_allclose(noise.precision, PRECISION, atol=0.06)
    assert noise.false_mean == pytest.approx(FALSE, rel=0.05)
    assert noise.false_variance == pytest.approx(2 * FALSE, rel=0.12)
    assert [distance(a, b) < 0.12 for a, b in zip(noise.confusion, CONFUSION, strict=True)] == [True] * C
    assert np.diag(noise.confusion).tolist() == [0] * C


@pytest.mark.parametrize(("side", "draw"), [("right", right_scores), ("wrong", wrong_scores)])
def test_fit_recovers_both_densities_of_confidence(
    noise: DetectionNoise, side: str, draw: Callable[[int, np.random.Generator], np.ndarray]
) -> None:
    edges = noise.levels[1:, 0]
    true = np.bincount(np.searchsorted(edges, draw(100_000, np.random.default_rng(0)), "right"), minlength=20)
    assert distance(getattr(noise, side), true) < 0.08
    assert distance(noise.right, noise.wrong) > 0.5


@pytest.mark.parametrize("ceiling", [0.5, 0.9])
def test_right_detections_are_as_many_by_recall_as_by_precision(outputs: list[Detections], ceiling: float) -> None:
    noise = DetectionNoise.fit(outputs, TRAIN, assumed=replace(ASSUMED, ceiling=ceiling))
    np.testing.assert_allclose(
        noise.recall * noise.frequency * 1.15, noise.precision * label_counts(outputs), rtol=0.01
    )
    np.testing.assert_allclose(np.maximum(noise.recall, noise.precision), ceiling)


def test_samples_are_like_the_detector_s_outputs_on_held_out_scenes(simulated: list[Detections]) -> None:
    real = detect(HELD_OUT.scenes, 6)
    numbers, expected = ([len(image) for image in detections] for detections in (simulated, real))
    assert np.mean(numbers) == pytest.approx(np.mean(expected), rel=0.05)
    assert np.var(numbers) == pytest.approx(np.var(expected), rel=0.15)
    np.testing.assert_allclose(label_counts(simulated), label_counts(real), rtol=0.15)
    assert distance(label_counts(simulated), label_counts(real)) < 0.03
    assert score_distance(simulated, real) < 0.04
    elsewhere, jitter = places(HELD_OUT.scenes, simulated)
    expected_elsewhere, expected_jitter = places(HELD_OUT.scenes, real)
    assert elsewhere == pytest.approx(0.3 * FALSE / np.mean(numbers), abs=0.02)
    assert elsewhere == pytest.approx(expected_elsewhere, abs=0.02)
    assert jitter == pytest.approx(expected_jitter, rel=0.04)
    assert jitter == pytest.approx(0.06, rel=0.04)


def test_false_boxes_on_no_true_one_are_the_detector_s_own(noise: DetectionNoise) -> None:
    empty = Scene("e", Path("e"), (200.0, 100.0), np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros((0, 3), np.int64))
    rng = np.random.default_rng(0)
    detections = [noise.sample(empty, rng) for _ in range(4000)]
    assert np.mean([len(image) for image in detections]) == pytest.approx(noise.false_mean, rel=0.06)
    assert np.var([len(image) for image in detections]) == pytest.approx(noise.false_variance, rel=0.15)
    assert distance(label_counts(detections), np.bincount(noise.labels, noise.weights, minlength=C)) < 0.02
    assert distance(label_counts(detections), FREE) < 0.05
    known = {tuple(box) for box in np.round(noise.boxes * [200, 100, 200, 100], 6).tolist()}
    assert {tuple(box) for image in detections for box in np.round(image.boxes, 6).tolist()} <= known


def test_a_false_box_on_a_true_one_has_a_label_that_this_one_is_taken_for(noise: DetectionNoise) -> None:
    always = replace(ASSUMED, co_located=1.0, jitter=0.02)
    next_label = np.roll(np.eye(C), 1, axis=1)
    noise = replace(noise, assumed=always, recall=np.zeros(C), confusion=next_label, false_mean=6.0)
    scene = next(scene for scene in HELD_OUT if len(set(scene.labels.tolist())) > 2)
    detections = noise.sample(scene, np.random.default_rng(0))
    assert len(set(detections.labels.tolist())) > 2
    for box, label in zip(detections.boxes, detections.labels.tolist(), strict=True):
        on = [plain_iou(box.tolist(), true) > 0.5 for true in scene.boxes.tolist()]
        below = scene.labels[on].tolist()
        assert [(name + 1) % C for name in below] == [label]


def test_the_summary_adds_up_to_the_detector_s_boxes(noise: DetectionNoise, outputs: list[Detections]) -> None:
    summary = noise.summary()
    assert summary["right_per_image"] + summary["false_per_image"] == pytest.approx(
        label_counts(outputs).sum(), rel=0.01
    )
    assert summary["recall"] == pytest.approx(RECALL @ SHARE, abs=0.03)
    assert summary["precision"] == pytest.approx(1 - FALSE / label_counts(outputs).sum(), abs=0.03)
    assert summary["confidence_right"] == pytest.approx(0.5 + 0.5 * 5 / 7, abs=0.02)
    assert summary["confidence_wrong"] == pytest.approx(0.5 + 0.5 * 1.5 / 5.5, abs=0.02)
    assert "recall 0." in repr(noise)


def one(labels: Sequence[int], scores: Sequence[float], size: tuple[float, float] | None = (100.0, 50.0)) -> Detections:
    boxes = np.tile([10.0, 10, 40, 30], (len(labels), 1))
    return Detections("one", boxes, np.array(labels, np.int64), np.array(scores, float), size)


def test_classes_never_detected_are_seldom_found_and_classes_never_annotated_are_false() -> None:
    train = replace(TRAIN, scenes=tuple(scene for scene in TRAIN if not (scene.labels == 4).any()))
    detections = [one([0, 1, 2, 4], [0.9, 0.8, 0.7, 0.6])] * 50 + [one([], [])] * 50
    noise = DetectionNoise.fit(detections, train)
    assert noise.recall[3] < 0.05
    assert noise.precision[4] < 0.05
    assert 0 < noise.recall[4] <= 0.78
    scene = replace(TRAIN[0], labels=np.full(len(TRAIN[0].labels), 3))
    assert (noise.sample(scene, np.random.default_rng(0)).labels != 3).all()


def test_confidences_keep_their_floor_and_their_spikes() -> None:
    rng = np.random.default_rng(0)
    detections = [one(rng.permutation(4).tolist(), [1.0, 1.0, *rng.uniform(0.5, 0.9, 2)]) for _ in range(200)]
    noise = DetectionNoise.fit(detections, TRAIN)
    scores = np.concatenate([noise.sample(scene, rng).scores for scene in TRAIN[:500]])
    assert 0.5 <= scores.min() < 0.52
    assert not ((scores > 0.9) & (scores < 1)).any()
    assert 0.4 < (scores == 1).mean() < 0.6


def test_frames_are_the_detections_own_then_those_given() -> None:
    with_size = DetectionNoise.fit([one([0], [0.5])], TRAIN, {"one": (1.0, 1.0)})
    given_ = DetectionNoise.fit([one([0], [0.5], None)], TRAIN, {"one": (50.0, 40.0)})
    assert with_size.boxes.tolist() == [[0.1, 0.2, 0.4, 0.6]]
    assert given_.boxes.tolist() == [[0.2, 0.25, 0.8, 0.75]]


corner = st.floats(-50, 900)


@settings(max_examples=60, deadline=None)
@given(
    boxes=st.lists(st.tuples(corner, corner, st.floats(0, 400), st.floats(0, 400)), max_size=6),
    size=st.tuples(st.floats(0.3, 900), st.floats(0.3, 900)),
    jitter=st.sampled_from([0.0, 0.08, 1.0]),
    seed=st.integers(0, 99),
)
def test_every_box_has_an_area_and_lies_in_the_frame(
    boxes: list[tuple[float, ...]], size: tuple[float, float], jitter: float, seed: int
) -> None:
    noise = DetectionNoise.fit([one([2, 0, 0], [0.7, 0, 1])], FEW, assumed=Assumptions(ceiling=1, jitter=jitter))
    noise = replace(noise, recall=np.ones(C), false_mean=3.0)
    xywh = np.array(boxes, float).reshape(-1, 4)
    true = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
    labels = np.arange(len(true)) % C
    detections = noise.sample(
        Scene("s", Path("s"), size, true, labels, np.zeros((0, 3), np.int64)), np.random.default_rng(seed)
    )
    assert len(detections) >= len(true)
    assert (detections.boxes[:, 2:] > detections.boxes[:, :2]).all()
    assert (detections.boxes >= 0).all()
    assert (detections.boxes[:, 2:] <= np.array(size)).all()
    assert ((detections.scores > 0) & (detections.scores <= 1)).all()
    assert (detections.image, detections.size) == ("s", size)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused_in_one_line() -> None:
    rng, far = np.random.default_rng(0), replace(TRAIN[0], labels=TRAIN[0].labels + 9)
    cases: dict[str, Callable[[], object]] = {
        "none in 2 images": lambda: DetectionNoise.fit([one([], [])] * 2, TRAIN),
        "training scenes with boxes": lambda: DetectionNoise.fit([one([0], [1])], replace(TRAIN, scenes=())),
        "frame of one .* got None": lambda: DetectionNoise.fit([one([0], [1], None)], TRAIN),
        "label 5 of detections of one": lambda: DetectionNoise.fit([one([5], [1])], TRAIN),
        "of scene 1-0": lambda: DetectionNoise.fit([one([0], [1])], TRAIN).sample(far, rng),
        "jitter must be": lambda: Assumptions(jitter=-0.1),
        "ceiling must be": lambda: Assumptions(ceiling=0),
    }
    for message, make in cases.items():
        refused(message, make)


def test_on_vrd_simulated_detections_are_like_lu_s() -> None:
    train, test = real_vrd("train"), real_vrd("test")
    detections = list(read_detections(shared("data", "vrd", "lu2016", "objectDetRCNN.mat"), test.vocabulary))
    noise = DetectionNoise.fit(detections, train, {scene.name: scene.frame for scene in test})
    rng = np.random.default_rng(0)
    simulated = [noise.sample(scene, rng) for scene in train]
    numbers, expected = ([len(image) for image in some] for some in (simulated, detections))
    assert np.mean(numbers) == pytest.approx(np.mean(expected), rel=0.03)
    assert np.var(numbers) == pytest.approx(np.var(expected), rel=0.1)
    assert distance(label_counts(simulated, 100), label_counts(detections, 100)) < 0.03  # two halves of Lu's: 0.07
    assert score_distance(simulated, detections) < 0.03
