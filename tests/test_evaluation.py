"""Recall against the slow evaluator of tests/evaluation_oracle.py, and what a person sees."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import evaluation_oracle as oracle
import numpy as np
import pytest
from evaluation_cases import LU, PREDICATES, TWO, as_plain, predictions, random_boxes, random_image, recall_of, scene
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic.evaluation import Evaluator, choose_k, evaluate
from polyadic.evaluation import kernel as matching
from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.protocol import FREE_K, PRESETS, Protocol, get_protocol, small_tops
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError

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
    for image in images:
        evaluator.update(*image)
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
    answer = Relations("a", truth.boxes, np.array([[0, 1]]), np.array([[0, 0, 1]]), np.array([1.0]))
    assert recall_of(truth, answer) == 100
    assert recall_of(truth, answer, iou_offset=0) == 0


def test_predictions_in_a_smaller_picture_are_scaled_to_the_annotated_frame() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    small = Relations("a", np.array(TWO) / 2, np.array([[0, 1]]), np.array([[0, 1, 2]]), np.ones(1), size=(50.0, 50.0))
    assert recall_of(truth, small) == 100


def test_of_equal_overlaps_the_first_or_the_last_truth_is_taken() -> None:
    # the first prediction overlaps both truths alike, the second only the first truth
    boxes = [[0.0, 0, 9, 9], [2.0, 0, 11, 9], [50.0, 0, 59, 9]]
    truth = scene([(0, 1, 2), (1, 1, 2)], [0, 0, 2], boxes)
    mine = np.array([[1.0, 0, 10, 9], [-3.0, 0, 6, 9], [50.0, 0, 59, 9]])
    answer = Relations("a", mine, np.array([[0, 2], [1, 2]]), np.array([[0, 1, 2]] * 2), np.array([0.9, 0.8]))
    assert recall_of(truth, answer, tie="first") == 50
    assert recall_of(truth, answer, tie="last") == 100


def test_a_hit_needs_the_protocol_s_overlap() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    answer = Relations("a", np.array([[0.0, 0, 9, 5], TWO[1]]), np.array([[0, 1]]), np.array([[0, 1, 2]]), np.ones(1))
    assert recall_of(truth, answer, iou=0.6) == 100  # 60 of 100 pixels
    assert recall_of(truth, answer, iou=0.61) == 0


@pytest.mark.parametrize("unit", ["predicate", "triplet"])
def test_the_kept_predictions_are_those_of_a_plain_count_when_the_hash_table_is_crowded(unit: str) -> None:
    rng = np.random.default_rng(1)
    n = 3000
    triplets = np.stack([rng.integers(0, 30, n), rng.integers(0, 5, n), rng.integers(0, 30, n)], axis=1)
    pairs, scores = rng.integers(0, 40, (n, 2)) if unit == "triplet" else np.zeros((n, 2), np.int64), rng.random(n)
    rows = [
        {"row": i, "pair": tuple(pair), "triplet": tuple(triplet), "score": score}
        for i, (pair, triplet, score) in enumerate(zip(pairs.tolist(), triplets.tolist(), scores.tolist(), strict=True))
    ]
    for k in (1, 2):
        expected = [row["row"] for row in oracle.kept(rows, k, unit, n)]
        found = matching.keep_best(np.array([0, n]), scores, pairs, triplets, k, unit == "predicate", n)[0]
        assert found[found >= 0].tolist() == expected


def test_the_number_of_truths_and_images_is_that_of_the_subset() -> None:
    scenes = [
        scene([(0, 1, 1), (0, 2, 1)], [0, 2], TWO, "a"),
        scene([(0, 1, 1)], [0, 2], TWO, "b"),
        scene([], [0, 2], TWO, "c"),
    ]
    protocols = [LU, LU.change(subset="zero-shot"), LU.change(no_prediction="drop")]
    table = evaluate(scenes, [predictions([(0, 1)], [(0, 1, 2)], [1.0])], protocols, 5, seen=np.array([[0, 1, 2]]))
    assert [(table.at(p, 20).truths, table.at(p, 20).images) for p in protocols] == [(3, 2), (1, 1), (2, 1)]


def test_images_without_predictions_count_or_are_dropped() -> None:
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


def test_neither_the_order_of_images_nor_the_batch_size_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    images = [random_image(rng, f"{i}") for i in range(50)]
    protocols = [LU.change(tops=(2, 5)), get_protocol("motifs").change(tops=(2, 5))]

    def run(order: list[int]) -> list[float]:
        chosen = [images[i] for i in order]
        table = evaluate([s for s, _ in chosen], [p for _, p in chosen if p], protocols, PREDICATES, bootstrap=20)
        return [x for row in table for x in (row.recall, row.mean_recall, *(row.recall_interval or ()))]

    expected = run(list(range(50)))
    monkeypatch.setattr("polyadic.evaluation._IMAGES", 7)
    assert run(list(range(50))[::-1]) == pytest.approx(expected)
    monkeypatch.setattr("polyadic.evaluation._ROWS", 30)
    assert run(list(range(50))) == pytest.approx(expected)
    evaluator = Evaluator(protocols, PREDICATES)
    for image in images:
        evaluator.update(*image)
        assert len(evaluator._waiting) < 7
        assert sum(0 if answer is None else len(answer) for _, answer, _ in evaluator._waiting) < 30


def test_bootstrap_intervals_have_the_width_of_the_exact_standard_error() -> None:
    scenes = [scene([(0, 1, 1)], [0, 2], TWO, str(i)) for i in range(400)]
    answers = [
        Relations(str(i), np.array(TWO), np.array([[0, 1]]), np.array([[0, 1 if i % 4 else 0, 2]]), np.ones(1))
        for i in range(400)
    ]
    row = evaluate(scenes, answers, [LU], 5, bootstrap=4000)[0]
    assert (row.recall, row.mean_recall, row.truths, row.images) == (75, 75, 400, 400)
    assert row.mean_recall_interval == row.recall_interval  # one predicate
    assert row.recall_interval is not None
    low, high = row.recall_interval
    width = 2 * 1.96 * 100 * math.sqrt(0.75 * 0.25 / 400)
    assert low < 75 < high
    assert high - low == pytest.approx(width, rel=0.06)
    seeds = [Evaluator([LU], 5, bootstrap=50, seed=seed) for seed in (0, 0, 1)]
    for evaluator in seeds:
        for truth, answer in zip(scenes, answers, strict=True):
            evaluator.update(truth, answer)
    first, same, other = (evaluator.result()[0].recall_interval for evaluator in seeds)
    assert first == same != other


def test_the_interval_of_mean_recall_is_that_of_mean_recall() -> None:
    # predicate 1 is always hit, predicate 2 (one truth in four) never: R 75, mR 50 in every replicate
    scenes = [scene([(0, 1, 1)] * 3 + [(0, 2, 1)], [0, 2], TWO, str(i)) for i in range(50)]
    answers = [
        Relations(str(i), np.array(TWO), np.array([[0, 1]] * 3), np.array([[0, 1, 2]] * 3), np.ones(3))
        for i in range(50)
    ]
    row = evaluate(scenes, answers, [LU], 5, bootstrap=20)[0]
    assert (row.recall, row.mean_recall) == (75, 50)
    assert row.recall_interval == pytest.approx((75, 75))
    assert row.mean_recall_interval == pytest.approx((50, 50))


def test_free_k_is_the_best_of_the_sweep_and_the_smallest_of_equals() -> None:
    truth = scene([(0, 1, 1), (0, 3, 1)], [0, 2], TWO)
    answer = predictions([(0, 1)] * 3, [(0, 1, 2), (0, 3, 2), (0, 4, 2)], [0.9, 0.8, 0.7])
    assert choose_k([truth], [answer], LU, 5) == 2
    assert choose_k([truth], [answer], LU.change(k=1), 5, candidates=(None, 1)) is None
    assert FREE_K == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 70, None)
    with pytest.raises(PolyadicError, match="no ground truths to choose k on"):
        choose_k([], [], LU, 5)


def test_free_k_weighs_both_n_and_all_truths() -> None:
    # 60 wrong pairs come first at k = 1; at k = 2 the second triplets of all pairs push the truth beyond 100
    boxes = np.concatenate([np.array(TWO), np.tile([[60.0, 60, 69, 69]], (60, 1))])
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    wrong = np.array([[i, 0] for i in range(2, 62)])
    pairs = np.concatenate([wrong, wrong, [[0, 1]]])
    triplets = np.array([[1, 0, 0]] * 60 + [[1, 3, 0]] * 60 + [[0, 1, 2]])
    scores = np.concatenate([np.full(60, 0.9), np.full(60, 0.8), [0.7]])
    answer = Relations("a", boxes, pairs, triplets, scores)
    early = Relations("b", boxes, pairs[::-1], triplets[::-1].copy(), scores)  # the truth of b is first, at any k
    other = scene([(0, 1, 1)], [0, 2], TWO, "b")
    assert choose_k([truth, other], [answer, early], LU, 5, candidates=(2, 1)) == 1  # R@100 is larger, R@50 the same
    zero_shot = LU.change(subset="zero-shot")
    assert choose_k([truth], [answer], zero_shot, 5, candidates=(2, 1)) == 1  # chosen on all truths


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), task=st.sampled_from(TASKS), offset=st.sampled_from([0, 1]))
def test_the_ceiling_counts_what_some_pair_of_boxes_could_hit(seed: int, task: str, offset: int) -> None:
    rng = np.random.default_rng(seed)
    for aggregate, relabel in itertools.product(("pooled", "image-mean"), (False, True)):
        ceiling = Ceiling(LU.change(task=task, aggregate=aggregate, iou_offset=offset), relabel)
        reached = []
        for i in range(4):
            truth, _ = random_image(rng, str(i))
            boxes, labels = random_boxes(rng, 4), rng.integers(0, 2, 4)
            ceiling.update(truth, boxes, labels)
            _, truths = as_plain(truth, None)
            mine = [tuple(box) for box in boxes.tolist()]
            known = None if relabel else labels.tolist()
            reached.append([oracle.reachable(mine, known, true, task, offset) for true in truths])
        if any(reached):
            assert ceiling.result() == pytest.approx(oracle.share(reached, aggregate))


def test_classification_refuses_boxes_and_labels_that_are_not_the_true_ones() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    right = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    relabelled = predictions([(0, 1)], [(1, 1, 2)], [0.5])
    moved = Relations("a", np.array(TWO) + 2, right.pairs, right.triplets, right.scores)
    assert recall_of(truth, right, task="phrase-classification") == 100
    assert recall_of(truth, right, task="predicate-classification") == 100
    assert recall_of(truth, relabelled, task="phrase-classification") == 0
    with pytest.raises(PolyadicError, match="true boxes and labels"):
        recall_of(truth, relabelled, task="predicate-classification")
    with pytest.raises(PolyadicError, match="true boxes"):
        recall_of(truth, moved, task="phrase-classification")


def test_no_prediction_exceeds_the_ceiling_of_its_boxes() -> None:
    rng = np.random.default_rng(0)
    images = [random_image(rng, str(i)) for i in range(40)]
    ceiling = Ceiling(LU, relabel=True)
    answers = []
    for truth, answer in images:
        ceiling.update(truth, None if answer is None else answer.boxes)
        if answer is not None:  # a box related to itself may hit what no two boxes can
            answers.append(answer[answer.pairs[:, 0] != answer.pairs[:, 1]])
    table = evaluate([truth for truth, _ in images], answers, [LU.change(match="many-to-one")], PREDICATES)
    assert 0 < max(row.recall for row in table) <= ceiling.result()


def test_the_ceiling_counts_the_truths_that_the_protocol_counts(unchecked: None) -> None:
    far = [[70.0, 70, 79, 79], [90.0, 70, 99, 79]]
    scenes = [
        scene([(0, 1, 1), (2, 1, 3), (0, 3, 1)], [0, 2, 1, 1], TWO + far, "a"),
        scene([(0, 4, 1)], [0, 2], TWO, "b"),
    ]
    seen = np.array([[0, 1, 2], [1, 1, 1]])

    def ceiling(**switches: object) -> float:
        made = Ceiling(LU.change(**switches), seen=seen)
        made.update(scenes[0], np.array(TWO), np.array([0, 2]))
        made.update(scenes[1], None)
        return made.result()

    assert ceiling() == 50  # of a two in reach, one not; of b none
    assert ceiling(subset="zero-shot") == 50  # (0, 3, 1) of a, not (0, 4, 1) of b
    assert ceiling(subset="zero-shot", no_prediction="drop") == 100
    assert ceiling(no_prediction="drop") == pytest.approx(200 / 3)
    assert ceiling(aggregate="image-mean") == pytest.approx(100 / 3)
    assert ceiling(aggregate="image-mean", subset="zero-shot") == 50
    with pytest.raises(PolyadicError, match="need one length"):
        Ceiling(LU).update(scenes[0], np.array(TWO), np.array([0]))


def test_unknown_and_repeated_images_are_refused() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    answer = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    with pytest.raises(PolyadicError, match="'a' occurs twice"):
        evaluate([truth], [answer, answer], [LU], 5)
    with pytest.raises(PolyadicError, match="'a' is none of the 0 images"):
        evaluate([], [answer], [LU], 5)
    with pytest.raises(PolyadicError, match="scenes: image 'a' occurs twice"):
        evaluate([truth, truth], [], [LU], 5)
    with pytest.raises(PolyadicError, match="predictions of 'a' were given for the image 'b'"):
        Evaluator([LU], 5).update(scene([], [0, 2], TWO, "b"), answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocols": "lu2017"}, "lu2017"),
        ({"protocols": []}, "give at least one"),
        ({"predictions": {"a": None}}, "must be Relations"),
        ({"predicates": 1}, "among 1 predicates"),
        ({"seen": np.zeros((2, 2), int)}, "seen must be whole numbers [n, 3]"),
        ({"bootstrap": -1}, "bootstrap must be a number of replicates"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_evaluated_is_one_line(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"scenes": [scene([(0, 1, 1)], [0, 2], TWO)], "predictions": [], "protocols": [LU]}
    with pytest.raises(PolyadicError) as error:
        evaluate(**(arguments | {"predicates": 5} | change))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_predicted_classes_out_of_range_and_unknown_frames_are_refused() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    for triplet in ((0, 5, 2), (0, -1, 2), (1 << 20, 0, 0)):
        with pytest.raises(PolyadicError, match="predictions of a: classes count from 0"):
            recall_of(truth, predictions([(0, 1)], [triplet], [0.5]))
    unknown = replace(truth, size=None)
    small = replace(predictions([(0, 1)], [(0, 1, 2)], [0.5]), size=(50.0, 50.0))
    with pytest.raises(PolyadicError, match="the size of the annotated frame is unknown"):
        recall_of(unknown, small)


def test_there_is_no_row_for_a_protocol_that_was_not_evaluated() -> None:
    with pytest.raises(PolyadicError, match="no row for lu2016"):
        evaluate([scene([], [0, 2], TWO)], [], [LU], 5).at(LU, 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"match": "some"}, "match must be one-to-one or many-to-one"),
        ({"k": 0}, "k must be a positive whole number"),
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
    label = Protocol("mine", "one-to-one", "pooled", k=3, iou=0.7).label
    assert label.startswith("mine relationship, k = 3 triplets, match = one-to-one, aggregate = pooled")
    assert "iou = 0.7" in label
    assert LU.change(iou=0.7).label == "lu2016 relationship, any k, iou = 0.7"


def test_protocols_may_be_given_by_name_alone_or_in_a_list() -> None:
    truth, answer = scene([(0, 1, 1)], [0, 2], TWO), predictions([(0, 1)], [(0, 1, 2)], [0.5])
    expected = evaluate([truth], [answer], [LU], 5)
    for protocols in ("lu2016", LU, ["lu2016"]):
        assert evaluate([truth], [answer], protocols, 5) == expected


def test_small_n_are_chosen_where_the_best_n_hold_every_pair() -> None:
    tops = (20, 50, 100)
    assert small_tops([2, 3, 3], tops) == ((1, 5, 50), small_tops([2, 3, 3], tops)[1])
    assert "at most 6 ordered pairs" in small_tops([2, 3, 3], tops)[1]
    assert small_tops([2] * 9 + [9], tops)[0] == (1, 50)  # nine of ten images decide
    assert small_tops([4, 4], (20, 100))[0] == (1, 5, 10, 100)
    assert small_tops([2, 6, 6], tops) == (tops, "")
    assert small_tops([], tops) == (tops, "")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 30), min_size=2, max_size=4))
def test_evaluators_of_parts_merge_to_the_bit_in_any_grouping(seed: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, f"{i}.jpg") for i in range(30)]
    seen = rng.integers(0, 2, (4, 3))
    chosen = [SWITCHES[i] for i in rng.choice(len(SWITCHES), 6, replace=False)]
    protocols = [LU.change(**switches, k=2, tops=(1, 3)) for switches in chosen]

    def part(rows: list[int]) -> Evaluator:
        evaluator = Evaluator(protocols, PREDICATES, seen, bootstrap=7)
        for row in rows:
            evaluator.update(*images[row])
        return evaluator

    def merged(evaluators: list[Evaluator]) -> Evaluator:
        first, *rest = evaluators
        for other in rest:
            first.merge(other)
        return first

    order = rng.permutation(30).tolist()
    places = [0, *sorted(cuts), 30]
    spans = [order[a:b] for a, b in itertools.pairwise(places)]
    whole = repr(part(list(range(30))).result())
    assert repr(merged([part(span) for span in spans]).result()) == whole
    right = merged([part(spans[0]), merged([part(span) for span in spans[1:]])])  # (a + (b + c)) = ((a + b) + c)
    assert repr(right.result()) == whole
    with pytest.raises(PolyadicError, match="must be the same"):
        part([0]).merge(Evaluator(protocols[:1], PREDICATES, seen, bootstrap=7))
