"""Recall against the slow evaluator of tests/evaluation_oracle.py, and what a person sees."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import evaluation_oracle as oracle
import numpy as np
import pytest
from evaluation_cases import PREDICATES, as_plain, random_boxes, random_image
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic import PolyadicError
from polyadic.evaluation import PRESETS, Ceiling, Evaluator, Protocol, choose_k, evaluate, get_protocol
from polyadic.scenes import Predictions, Scene

LU = get_protocol("lu2016")
TASKS = ("relationship", "phrase")
SWITCHES = [
    {"task": task, "match": match, "aggregate": aggregate, "k_unit": unit, "no_prediction": none, "subset": subset}
    | {"tie": tie, "iou_offset": offset}
    for task, match, aggregate, unit, none, subset, tie, offset in itertools.product(
        TASKS,
        ("one-to-one", "many-to-one"),
        ("pooled", "image-mean"),
        ("triplet", "predicate"),
        ("count", "drop"),
        ("all", "zero-shot"),
        ("first", "last"),
        (0, 1),
    )
]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.sampled_from([None, 1, 2, 3]), tops=st.sampled_from([(1, 3), (2, 5, 20)]))
def test_every_switch_equals_the_slow_evaluator(seed: int, k: int | None, tops: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, f"{i}.jpg") for i in range(int(rng.integers(1, 8)))]
    seen = rng.integers(0, 2, (4, 3))
    chosen = [SWITCHES[i] for i in rng.choice(len(SWITCHES), 12, replace=False)]
    protocols = [LU.change(**switches, k=k, tops=tops) for switches in chosen]
    evaluator = Evaluator(protocols, PREDICATES, seen)
    for scene, predictions in images:
        evaluator.update(scene, predictions)
    table = evaluator.result()
    plain = [as_plain(*image) for image in images]
    known = {(int(s), int(p), int(o)) for s, p, o in seen}
    for switches, protocol in zip(chosen, protocols, strict=True):
        for top in tops:
            expected = oracle.recall(plain, **switches, k=k, top=top, seen=known)
            row = table.at(protocol, top)
            for mine, theirs in zip((row.recall, row.mean_recall), expected, strict=True):
                assert math.isnan(mine) if theirs is None else mine == pytest.approx(theirs, abs=1e-9), protocol.label


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_equal_the_slow_evaluator(name: str) -> None:
    rng = np.random.default_rng(len(name))
    images = [random_image(rng, f"{i}.jpg") for i in range(60)]
    protocols = [PRESETS[name].change(task=task) for task in TASKS]
    table = evaluate([s for s, _ in images], [p for _, p in images if p is not None], protocols, PREDICATES)
    for protocol in protocols:
        switches = {field: value for field, value in protocol.to_json().items() if field not in ("name", "tops", "iou")}
        for top in protocol.tops:
            expected = oracle.recall([as_plain(*image) for image in images], **switches, top=top, seen=set())
            row = table.at(protocol, top)
            assert (row.recall, row.mean_recall) == pytest.approx(expected)


def test_the_presets_are_those_of_the_protocol_text() -> None:
    facts = {
        "lu2016": ("one-to-one", "pooled", None, "triplet", "count", "first"),
        "reldn": ("many-to-one", "pooled", None, "predicate", "count", "first"),
        "motifs": ("many-to-one", "image-mean", 1, "predicate", "count", "first"),
        "vtranse": ("one-to-one", "pooled", 1, "predicate", "count", "first"),
        "dsr": ("one-to-one", "pooled", 70, "predicate", "drop", "last"),
    }
    assert {name: (p.match, p.aggregate, p.k, p.k_unit, p.no_prediction, p.tie) for name, p in PRESETS.items()} == facts
    assert all((p.iou_offset, p.iou, p.tops) == (1, 0.5, (20, 50, 100)) for p in PRESETS.values())


def scene(relations: list[tuple[int, int, int]], labels: list[int], boxes: list[list[float]], name: str = "a") -> Scene:
    rows = np.array(relations, np.int64).reshape(-1, 3)
    return Scene(name, Path(name), (100.0, 100.0), np.array(boxes, float), np.array(labels), rows)


def predictions(pairs: list[tuple[int, int]], triplets: list[tuple[int, int, int]], scores: list[float]) -> Predictions:
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9]], float)
    return Predictions("a", boxes, np.array(pairs).reshape(-1, 2), np.array(triplets).reshape(-1, 3), np.array(scores))


TWO = [[0.0, 0, 9, 9], [20.0, 0, 29, 9]]


def recall_of(truth: Scene, answer: Predictions, **switches: object) -> float:
    return float(evaluate([truth], [answer], [LU.change(tops=(20,), **switches)], 5)[0].recall)


def test_a_repeated_truth_needs_a_second_prediction_one_to_one_but_not_many_to_one() -> None:
    truth = scene([(0, 1, 1), (0, 1, 1)], [0, 2], TWO)
    once = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    twice = predictions([(0, 1), (0, 1)], [(0, 1, 2), (0, 1, 2)], [0.5, 0.4])
    assert (recall_of(truth, once), recall_of(truth, twice)) == (50, 100)
    assert recall_of(truth, once, match="many-to-one") == 100


def test_k_counts_triplets_per_pair_of_boxes_or_predicates_per_pair_of_labelled_boxes() -> None:
    truth = scene([(0, 1, 1), (0, 3, 1)], [0, 2], TWO)
    # the better prediction of the pair relabels the object; the second has the true labels
    answer = predictions([(0, 1), (0, 1), (0, 1)], [(0, 1, 1), (0, 1, 2), (0, 3, 2)], [0.9, 0.8, 0.7])
    assert recall_of(truth, answer, k=1) == 0
    assert recall_of(truth, answer, k=1, k_unit="predicate") == 50
    assert recall_of(truth, answer, k=2) == 50
    assert recall_of(truth, answer, k=2, k_unit="predicate") == 100


def test_inclusive_pixels_make_a_one_pixel_box_overlap_and_plain_ones_do_not() -> None:
    truth = scene([(0, 0, 1)], [0, 1], [[3, 3, 3, 3], [5, 5, 5, 5]])
    answer = Predictions("a", truth.boxes, np.array([[0, 1]]), np.array([[0, 0, 1]]), np.array([1.0]))
    assert recall_of(truth, answer) == 100
    assert recall_of(truth, answer, iou_offset=0) == 0


def test_predictions_in_a_smaller_picture_are_scaled_to_the_annotated_frame() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    small = Predictions(
        "a", np.array(TWO) / 2, np.array([[0, 1]]), np.array([[0, 1, 2]]), np.ones(1), size=(50.0, 50.0)
    )
    assert recall_of(truth, small) == 100


def test_images_without_predictions_count_or_leave() -> None:
    scenes = [scene([(0, 1, 1)], [0, 2], TWO, name) for name in "ab"]
    answer = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    for none, expected in (("count", 50), ("drop", 100)):
        assert evaluate(scenes, [answer], [LU.change(no_prediction=none)], 5)[0].recall == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_recall_grows_with_n(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, f"{i}") for i in range(5)]
    table = evaluate(
        [s for s, _ in images], [p for _, p in images if p], [LU.change(tops=(1, 2, 4, 8, 30))], PREDICATES
    )
    values = [row.recall for row in table if not math.isnan(row.recall)]
    assert values == sorted(values)


def test_the_order_of_images_and_the_number_held_at_once_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    images = [random_image(rng, f"{i}") for i in range(50)]
    protocols = [LU.change(tops=(2, 5)), get_protocol("motifs").change(tops=(2, 5))]

    def run(order: list[int]) -> list[float]:
        chosen = [images[i] for i in order]
        table = evaluate([s for s, _ in chosen], [p for _, p in chosen if p], protocols, PREDICATES, bootstrap=20)
        return [x for row in table for x in (row.recall, row.mean_recall, *(row.recall_interval or ()))]

    expected = run(list(range(50)))
    monkeypatch.setattr("polyadic.evaluation._CHUNK", 7)
    assert run(list(range(50))[::-1]) == pytest.approx(expected)


def test_bootstrap_intervals_have_the_width_of_the_exact_standard_error() -> None:
    scenes = [scene([(0, 1, 1)], [0, 2], TWO, str(i)) for i in range(400)]
    answers = [
        Predictions(str(i), np.array(TWO), np.array([[0, 1]]), np.array([[0, 1 if i % 4 else 0, 2]]), np.ones(1))
        for i in range(400)
    ]
    row = evaluate(scenes, answers, [LU], 5, bootstrap=2000)[0]
    assert row.recall == 75
    assert row.recall_interval is not None
    low, high = row.recall_interval
    width = 2 * 1.96 * 100 * math.sqrt(0.75 * 0.25 / 400)
    assert low < 75 < high
    assert high - low == pytest.approx(width, rel=0.15)


def test_free_k_is_the_best_of_the_sweep_and_the_smallest_of_equals() -> None:
    truth = scene([(0, 1, 1), (0, 3, 1)], [0, 2], TWO)
    answer = predictions([(0, 1)] * 3, [(0, 1, 2), (0, 3, 2), (0, 4, 2)], [0.9, 0.8, 0.7])
    assert choose_k([truth], [answer], LU, 5) == 2
    assert choose_k([truth], [answer], LU.change(k=1), 5, candidates=(None, 1)) is None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), task=st.sampled_from(TASKS), offset=st.sampled_from([0, 1]))
def test_the_ceiling_counts_what_some_pair_of_boxes_could_hit(seed: int, task: str, offset: int) -> None:
    rng = np.random.default_rng(seed)
    for aggregate, relabel in itertools.product(("pooled", "image-mean"), (False, True)):
        ceiling = Ceiling(LU.change(task=task, aggregate=aggregate, iou_offset=offset), relabel)
        found = []
        for i in range(4):
            truth, _ = random_image(rng, str(i))
            boxes, labels = random_boxes(rng, 4), rng.integers(0, 2, 4)
            ceiling.update(truth, boxes, labels)
            _, truths = as_plain(truth, None)
            mine = [tuple(box) for box in boxes.tolist()]
            known = None if relabel else labels.tolist()
            found.append([oracle.reachable(mine, known, each, task, offset) for each in truths])
        if any(found):
            assert ceiling.result() == pytest.approx(oracle.share(found, aggregate))


def test_no_prediction_exceeds_the_ceiling_of_its_boxes() -> None:
    rng = np.random.default_rng(0)
    images = [random_image(rng, str(i)) for i in range(40)]
    ceiling = Ceiling(LU, relabel=True)
    best = 0.0
    for each, answer in images:
        ceiling.update(each, None if answer is None else answer.boxes)
    table = evaluate([s for s, _ in images], [p for _, p in images if p], [LU.change(match="many-to-one")], PREDICATES)
    best = max(row.recall for row in table)
    assert 0 < best <= ceiling.result()


def test_classification_refuses_boxes_and_labels_that_are_not_the_true_ones() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    right = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    relabelled = predictions([(0, 1)], [(1, 1, 2)], [0.5])
    moved = Predictions("a", np.array(TWO) + 2, right.pairs, right.triplets, right.scores)
    assert recall_of(truth, right, task="phrase-classification") == 100
    assert recall_of(truth, right, task="predicate-classification") == 100
    assert recall_of(truth, relabelled, task="phrase-classification") == 0
    with pytest.raises(PolyadicError, match=r"a: predicate-classification starts from the 2 true boxes and labels"):
        recall_of(truth, relabelled, task="predicate-classification")
    with pytest.raises(PolyadicError, match=r"a: phrase-classification starts from the 2 true boxes, but the subject"):
        recall_of(truth, moved, task="phrase-classification")


def test_unknown_and_repeated_images_are_refused() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    answer = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    with pytest.raises(PolyadicError, match="'a' is there twice"):
        evaluate([truth], [answer, answer], [LU], 5)
    with pytest.raises(PolyadicError, match="'a' is none of the 0 images"):
        evaluate([], [answer], [LU], 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"match": "some"}, "match must be one-to-one or many-to-one"),
        ({"k": 0}, "k must be a whole number from 1"),
        ({"tops": ()}, "tops must be"),
        ({"iou_offset": 2}, "iou_offset 0 or 1"),
        ({"colour": 1}, "no switch is called 'colour'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_protocols_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolyadicError, match=message):
        LU.change(**changes)


def test_every_number_carries_its_protocol() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    protocol = LU.change(task="phrase", k=10, match="many-to-one", subset="zero-shot")
    table = evaluate([truth], [], [protocol], 5, seen=np.zeros((0, 3), np.int64))
    assert protocol.label == "lu2016 zero-shot phrase, k = 10 triplets, match = many-to-one"
    assert all(protocol.label in line for line in str(table).splitlines())
    record = table.to_json()[0]
    assert record["protocol"] == protocol.label
    assert {"match", "aggregate", "k", "k_unit", "no_prediction", "subset", "tie", "iou_offset", "task", "N"} <= set(
        record
    )


def test_no_truths_give_no_number() -> None:
    row = evaluate([scene([], [0], TWO[:1])], [], [LU], 5)[0]
    assert math.isnan(row.recall)
    assert row.to_json()["recall"] is None


def test_zero_shot_needs_the_training_triplets() -> None:
    with pytest.raises(PolyadicError, match="zero-shot recall needs the training triplets"):
        Evaluator([LU.change(subset="zero-shot")], 5)


def test_the_evaluator_loads_no_torch() -> None:
    code = "import sys, polyadic.evaluation; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_protocol_of_one_s_own_has_a_label() -> None:
    assert Protocol("mine", "one-to-one", "pooled", k=3).label == "mine relationship, k = 3 triplets"
