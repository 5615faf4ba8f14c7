"""Error breakdown per ground-truth relation: against plain loops, against the evaluator's hits, and as printed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import evaluation_oracle as oracle
import numpy as np
import pytest
from evaluation_cases import LU, OBJECTS, PREDICATES, as_plain, random_boxes, random_image
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import real_vrd, shared
from tiny_runs import Command
from vrd_files import write_vrd

from polyadic.datasets import load_dataset
from polyadic.evaluation import Evaluator, evaluate
from polyadic.evaluation.compare import RELABELLED, compare
from polyadic.evaluation.misses import OUTCOMES, MissCounter, Outcome, count_misses
from polyadic.io.records import read_detections, read_relations, write_detections, write_relations
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError

BOXES = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [0, 40, 9, 49]], float)


def outcome_of(
    at: int,
    answers: list[dict[str, Any]],
    truths: list[dict[str, Any]],
    taken: list[bool],
    boxes: list[oracle.Box],
    labels: list[int],
    task: str,
    offset: float,
) -> str:
    """Classify one ground truth by plain loops; `answers` are those that count."""
    truth = truths[at]
    if taken[at]:
        return "hit"
    if not oracle.reachable(boxes, None, truth, task, offset):
        return "box missing"
    there = [answer["triplet"] for answer in answers if oracle.overlap(answer, truth, task, offset) >= 0.5]
    s, p, o = truth["triplet"]
    if any((a, c) == (s, o) for a, _, c in there):
        return "duplicate" if (s, p, o) in there else "wrong predicate"
    return "pair unselected" if oracle.reachable(boxes, labels, truth, task, offset) else "wrong label"


def a_detector(rng: np.random.Generator, scene: Scene) -> Detections:
    """Some of the true boxes, moved a little, with some of the true labels; and a box of its own."""
    kept = np.flatnonzero(rng.random(len(scene.boxes)) < 0.8)
    boxes = np.concatenate(
        [scene.boxes[kept] + rng.integers(0, 2, (len(kept), 4)) * (0, 0, 1, 1), random_boxes(rng, 1)]
    )
    labels = np.append(scene.labels[kept], rng.integers(0, OBJECTS))
    wrong = rng.random(len(labels)) < 0.3
    labels[wrong] = rng.integers(UNKNOWN, OBJECTS, wrong.sum())
    return Detections(scene.name, boxes, labels, np.ones(len(boxes)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.sampled_from([None, 1, 2]),
    task=st.sampled_from(["relationship", "phrase"]),
    offset=st.sampled_from([0, 1]),
    match=st.sampled_from(["one-to-one", "many-to-one"]),
    tie=st.sampled_from(["first", "last"]),
    unit=st.sampled_from(["triplet", "predicate"]),
)
def test_every_outcome_equals_plain_loops(
    seed: int, k: int | None, task: str, offset: int, match: str, tie: str, unit: str
) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, f"{i}.jpg") for i in range(5)]
    boxes_of = {scene.name: a_detector(rng, scene) for scene, _ in images}
    protocol = LU.change(k=k, k_unit=unit, task=task, iou_offset=offset, match=match, tie=tie, tops=(2, 5, 20))
    mine = count_misses([scene for scene, _ in images], [p for _, p in images if p is not None], boxes_of, [protocol])
    for row in mine:
        expected: Counter[str] = Counter()
        for scene, predictions in images:
            answers, truths = as_plain(scene, predictions)
            best = oracle.kept(answers, k, unit, row.top)
            taken = oracle.hits(best, truths, task, match, tie, offset)
            boxes = [tuple(box) for box in boxes_of[scene.name].boxes.tolist()]
            labels = boxes_of[scene.name].labels.tolist()
            expected.update(
                outcome_of(at, best, truths, taken, boxes, labels, task, offset) for at in range(len(truths))
            )
        assert dict(zip(OUTCOMES, row.counts, strict=True)) == {outcome: expected[outcome] for outcome in OUTCOMES}


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.sampled_from([None, 1, 3]),
    aggregate=st.sampled_from(["pooled", "image-mean"]),
    none=st.sampled_from(["count", "drop"]),
    subset=st.sampled_from(["all", "zero-shot"]),
)
def test_hits_equal_the_evaluators_and_every_ground_truth_counts_once(
    seed: int, k: int | None, aggregate: str, none: str, subset: str
) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, f"{i}.jpg") for i in range(6)]
    seen = rng.integers(0, 2, (4, 3))
    protocol = LU.change(k=k, aggregate=aggregate, no_prediction=none, subset=subset, tops=(1, 4, 20))
    evaluator, counter = Evaluator([protocol], PREDICATES, seen), MissCounter(protocol, seen)
    for scene, predictions in images:
        evaluator.update(scene, predictions)
        detections = a_detector(rng, scene)
        counter.update(scene, predictions, detections.boxes, detections.labels)
    for row, recall in zip(counter.result(), evaluator.result(), strict=True):
        assert row.top == recall.top
        assert row.truths == recall.truths
        assert math.isnan(row.share("hit")) if recall.truths == 0 else row.share("hit") == pytest.approx(recall.recall)
        assert recall.truths == 0 or sum(row.shares) == pytest.approx(100)
        if aggregate == "pooled" and recall.truths:
            assert row.count("hit") == round(recall.recall * recall.truths / 100)


def a_scene(*relations: tuple[int, int, int]) -> Scene:
    return Scene("a", Path("a"), (100.0, 100.0), BOXES, np.array([0, 1, 1, 0]), np.array(relations))


def outcomes(
    scene: Scene, pairs: Any, triplets: Any, detections: Detections | None, top: int = 5
) -> dict[Outcome, int]:
    """Outcomes that occur in one image; answers are best first."""
    rows = np.array(pairs, np.int64).reshape(-1, 2), np.array(triplets, np.int64).reshape(-1, 3)
    predictions = Relations("a", BOXES, *rows, -np.arange(len(rows[0]), dtype=float))
    given = {} if detections is None else {"a": detections}
    (row,) = count_misses([scene], [predictions], given, [LU.change(tops=(top,))])
    return {outcome: row.count(outcome) for outcome in OUTCOMES if row.count(outcome)}


def detector(labels: list[int], boxes: np.ndarray = BOXES, size: tuple[float, float] | None = None) -> Detections:
    return Detections("a", boxes[: len(labels)], np.array(labels, np.int64), np.ones(len(labels)), size)


@pytest.mark.parametrize(
    ("outcome", "pairs", "triplets", "labels"),
    [
        ("hit", [[0, 1]], [[0, 0, 1]], [0, 1]),
        ("hit", [[0, 1]], [[0, 0, 1]], []),  # on a box that the detector has not: still a hit
        ("box missing", [], [], [0]),
        ("box missing", [[0, 1]], [[0, 1, 1]], [0]),
        ("wrong predicate", [[0, 1]], [[0, 1, 1]], [0, 1]),
        ("wrong predicate", [[0, 1]], [[0, 1, 1]], [1, 0]),  # the answer has the names, whatever the detector says
        ("pair unselected", [], [], [0, 1]),
        ("pair unselected", [[1, 0]], [[0, 0, 1]], [0, 1]),  # the other way round is another pair
        ("pair unselected", [[0, 1]], [[1, 0, 1]], [0, 1]),
        ("wrong label", [], [], [0, 0]),
        ("wrong label", [[0, 1]], [[0, 0, 0]], [0, UNKNOWN]),
    ],
)
def test_a_miss_has_the_first_cause_that_explains_it(
    outcome: Outcome, pairs: Any, triplets: Any, labels: list[int]
) -> None:
    assert outcomes(a_scene((0, 0, 1)), pairs, triplets, detector(labels)) == {outcome: 1}


def test_an_image_without_boxes_misses_all_and_boxes_of_another_frame_are_scaled() -> None:
    assert outcomes(a_scene((0, 0, 1), (2, 0, 3)), [], [], None) == {"box missing": 2}
    half = detector([0, 1, 1, 0], BOXES / 2, (50.0, 50.0))
    assert outcomes(a_scene((0, 0, 1)), [], [], half) == {"pair unselected": 1}


def test_unusable_arguments_are_refused() -> None:
    scene = a_scene((0, 0, 1))
    with pytest.raises(PolyadicError, match="no labels"):
        MissCounter(LU).update(scene, None, BOXES, None)
    with pytest.raises(PolyadicError, match="zero-shot recall needs the training triplets"):
        MissCounter(LU.change(subset="zero-shot"))
    other = Relations("b", BOXES, np.zeros((0, 2), int), np.zeros((0, 3), int), np.zeros(0))
    with pytest.raises(PolyadicError, match="predictions of 'b' were given for the image 'a'"):
        MissCounter(LU).update(scene, other, BOXES, scene.labels)
    with pytest.raises(PolyadicError, match="N = 7"):
        MissCounter(LU).result().at(LU, 7)


def test_without_ground_truths_there_is_no_share() -> None:
    (row,) = MissCounter(LU.change(tops=(3,))).result()
    assert row.truths == 0
    assert all(map(math.isnan, row.shares))
    assert json.loads(json.dumps(MissCounter(LU).result().to_json()))[0]["share"] is None


def test_missing_boxes_and_the_ceiling_add_up_to_100_percent(tmp_path: Path) -> None:
    root = write_vrd(tmp_path)
    train, test = load_dataset("vrd", root, "train"), load_dataset("vrd", root, "test")
    none = np.zeros((0, 2), np.int64), np.zeros((0, 3), np.int64), np.zeros(0)
    nothing = [Relations(s.name, s.boxes[:1], *none, labels=s.labels[:1], confidences=np.ones(1)) for s in test]
    boxes = {s.name: Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes))) for s in test}
    for task in ("relationship", "phrase", "phrase-classification", "predicate-classification"):
        protocol = LU.change(task=task)
        result = compare(test, nothing, [protocol], train, boxes, misses=True)
        assert result.misses is not None
        row = result.misses.at(protocol, 100)
        tops = {what: row.recall for what, row in result.ceilings if row.top == 100}
        if task != "predicate-classification":
            assert row.share("box missing") == pytest.approx(100 - tops[RELABELLED])
        left: Outcome = "wrong label" if task == "phrase-classification" else "pair unselected"
        assert row.share(left) == pytest.approx(100 - row.share("box missing")) != 0
    assert compare(test, nothing, [LU], train, boxes).misses is None


def test_on_vrd_hits_of_lus_predictions_equal_the_evaluators() -> None:
    folder = shared("data", "vrd", "lu2016")
    test = real_vrd("test")
    published = list(read_relations(folder / "relationship_det_result.mat", test.vocabulary, []))
    boxes = {d.image: d for d in read_detections(folder / "objectDetRCNN.mat", test.vocabulary)}
    protocols = [LU.change(tops=(50, 100)), LU.change(task="phrase", k=1, tops=(50, 100))]
    mine = count_misses(test, published, boxes, protocols)
    theirs = evaluate(test, published, protocols, len(test.vocabulary.predicates))
    for row, recall in zip(mine, theirs, strict=True):
        assert row.truths == recall.truths == 7638
        assert row.share("hit") == pytest.approx(recall.recall, abs=1e-9)
    assert mine.at(protocols[0], 100).share("box missing") == pytest.approx(45.47, abs=0.005)
    assert mine.at(protocols[0], 100).count("pair unselected") < mine.at(protocols[0], 50).count("pair unselected")


def test_evaluate_prints_the_error_breakdown(command: Command, tmp_path: Path) -> None:
    root = write_vrd(tmp_path / "vrd")
    test = load_dataset("vrd", root, "test")
    wrong = [
        Relations(s.name, s.boxes, s.relations[:, ::2], s.triplets * (1, 0, 1), np.ones(len(s.triplets))) for s in test
    ]  # the first predicate everywhere
    file = write_relations(tmp_path / "p.jsonl", wrong, test.vocabulary)
    arguments = ("evaluate", file, "--dataset", "vrd", "--root", root, "--top", "1", "5", "--misses")
    assert "--detections FILE" in command(*arguments).message
    boxes = [Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes))) for s in test]
    beside = write_detections(tmp_path / "boxes.jsonl", boxes, test.vocabulary)
    shown = command(*arguments, "--detections", beside).out
    assert [word for word in OUTCOMES if word in shown] == list(OUTCOMES)
    lines = list(csv.DictReader(io.StringIO(command(*arguments, "--detections", beside, "--csv").out)))
    counts = {row["outcome"]: int(row["ground_truths"]) for row in lines if (row["subset"], row["N"]) == ("all", "5")}
    # c.jpg: one hit, one other predicate; d.jpg: one other predicate, and a hat that wears itself
    assert counts == dict.fromkeys(OUTCOMES, 0) | {"hit": 1, "wrong predicate": 2, "box missing": 1}
    assert {row["dataset"] for row in lines} == {"vrd"}
    value = json.loads(command(*arguments, "--detections", beside, "--json").out)
    rows = [row for row in value["misses"] if (row["subset"], row["N"]) == ("all", 5)]
    assert [row["ground_truths"] for row in rows] == list(counts.values())
