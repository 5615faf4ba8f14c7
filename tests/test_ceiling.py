"""The ceiling of a k and N: against all sets of predictions on small images, and by hand."""

from __future__ import annotations

import itertools
from typing import Any

import evaluation_oracle as oracle
import numpy as np
import pytest
from evaluation_cases import as_plain, random_boxes, scene
from hypothesis import given, settings
from hypothesis import strategies as st

from polyadic import evaluate, get_protocol
from polyadic.evaluation.ceiling import Ceiling
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene

LU = get_protocol("lu2016")
THREE = [[0.0, 0, 9, 9], [20.0, 0, 29, 9], [40.0, 0, 49, 9]]


def most_hits(truth: Scene, boxes: np.ndarray, labels: list[int] | None, switches: dict[str, Any], top: int) -> int:
    """Try every set of at most `top` predictions, one of each pair and triplet that occurs, in every order."""
    _, truths = as_plain(truth, None)
    mine, best = [tuple(box) for box in boxes.tolist()], 0
    pairs = [(i, j) for i in range(len(mine)) for j in range(len(mine)) if i != j]
    wanted = [t["triplet"] for t in truths]  # a triplet that is annotated twice may be predicted twice
    cells = [
        {"pair": pair, "triplet": triplet, "subject": mine[pair[0]], "object": mine[pair[1]]}
        for pair in pairs
        for triplet in wanted
        if labels is None or (labels[pair[0]], labels[pair[1]]) == (triplet[0], triplet[2])
    ]
    task, match, offset = switches["task"], switches["match"], switches["iou_offset"]
    useful = [x for x in cells if any(oracle.hits([x], [t], task, match, "first", offset)[0] for t in truths)]
    for size in range(1, min(top, len(truths)) + 1):
        for some in itertools.permutations(useful, size):
            groups: dict[Any, int] = {}
            for x in some:
                ends = (x["triplet"][0], x["triplet"][2]) if switches["k_unit"] == "predicate" else ()
                groups[x["pair"], ends] = groups.get((x["pair"], ends), 0) + 1
            if switches["k"] is None or max(groups.values()) <= switches["k"]:
                best = max(best, sum(oracle.hits(list(some), truths, task, match, "first", offset)))
        if best == len(truths):
            break
    return best


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    task=st.sampled_from(["relationship", "phrase"]),
    match=st.sampled_from(["one-to-one", "many-to-one"]),
    k=st.sampled_from([1, 2, None]),
    unit=st.sampled_from(["triplet", "predicate"]),
    relabel=st.booleans(),
)
def test_the_ceiling_is_what_the_best_set_of_predictions_hits(
    seed: int, task: str, match: str, k: int | None, unit: str, relabel: bool
) -> None:
    rng = np.random.default_rng(seed)
    boxes, labels = random_boxes(rng, 3), rng.integers(0, 2, 3)
    n = int(rng.integers(1, 4))
    rows = [(*rng.permutation(3)[:2].tolist(), int(rng.integers(0, 2))) for _ in range(n)]
    truth = scene([(s, p, o) for s, o, p in rows], rng.integers(0, 2, 3).tolist(), random_boxes(rng, 3).tolist())
    switches = {"task": task, "match": match, "k": k, "k_unit": unit, "iou_offset": 1.0}
    protocol = LU.change(**switches, tops=(1, 2, 3))
    ceiling = Ceiling(protocol, relabel)
    ceiling.update(truth, boxes, labels)
    for top in protocol.tops:
        expected = most_hits(truth, boxes, None if relabel else labels.tolist(), switches, top)
        assert ceiling.result(protocol, top) == pytest.approx(100 * expected / n), (top, switches)


def test_k_predictions_per_pair_hit_k_of_its_truths_and_n_those_of_an_image() -> None:
    truth = scene([(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 2)], [0, 1, 0], THREE)
    protocols = {k: LU.change(task="predicate-classification", k=k, tops=(1, 3, 50)) for k in (1, 2, None)}
    ceiling = Ceiling(list(protocols.values()))
    ceiling.update(truth, truth.boxes, truth.labels)
    expected = {1: (25, 50, 50), 2: (25, 75, 75), None: (25, 75, 100)}
    for k, numbers in expected.items():
        assert tuple(ceiling.result(protocols[k], top) for top in (1, 3, 50)) == numbers
    assert ceiling.result(protocols[1]) == 50
    rows = [row for row in ceiling.rows() if row.protocol == protocols[2]]
    assert [(row.top, row.recall, row.truths, row.images) for row in rows] == [
        (1, 25, 4, 1),
        (3, 75, 4, 1),
        (50, 75, 4, 1),
    ]


def test_many_to_one_needs_one_prediction_for_truths_of_one_triplet_in_one_place() -> None:
    twice = scene([(0, 1, 1), (2, 1, 1), (0, 0, 1)], [0, 1, 0], [THREE[0], THREE[1], [0.0, 0, 9, 10]])
    one, many = LU.change(k=1, tops=(1, 2)), LU.change(k=1, tops=(1, 2), match="many-to-one")
    ceiling = Ceiling([one, many], relabel=True)
    ceiling.update(twice, np.array(THREE[:2]))
    assert [ceiling.result(one, top) for top in (1, 2)] == pytest.approx([100 / 3, 100 / 3])
    assert [ceiling.result(many, top) for top in (1, 2)] == pytest.approx([200 / 3, 200 / 3])


@pytest.mark.parametrize("match", ["one-to-one", "many-to-one"])
@pytest.mark.parametrize("k", [1, 2, None])
def test_no_ranking_of_many_random_predictions_exceeds_the_ceiling(k: int | None, match: str) -> None:
    rng = np.random.default_rng(7)
    protocol = LU.change(k=k, match=match, tops=(1, 2, 5, 20))
    ceiling, scenes, answers = Ceiling(protocol, relabel=True), [], []
    for i in range(60):
        boxes = random_boxes(rng, 5)
        pairs = [rng.permutation(5)[:2] for _ in range(6)]
        truth = scene([(s, int(rng.integers(0, 2)), o) for s, o in pairs], [0, 1, 0, 1, 0], boxes.tolist(), str(i))
        near = boxes + rng.normal(0, 0.5, boxes.shape).clip(-0.5, 0.5)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2])
        every = np.concatenate([truth.relations[:, ::2]] * 2)
        triplets = np.concatenate([truth.triplets] * 2)
        answers.append(Relations(str(i), near, every, triplets, rng.random(len(every))))
        ceiling.update(truth, near)
        scenes.append(truth)
    for row in evaluate(scenes, answers, [protocol], 2):
        assert 0 < row.recall <= ceiling.result(protocol, row.top) <= 100
