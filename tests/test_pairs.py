"""Which pairs training uses: against loops over relations and boxes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from oracles import plain_iou

from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.training.pairs import TrainingBoxes, chosen_relations, proposal_boxes, selection_pairs, true_boxes


def scene_of(relations: list[tuple[int, int, int]], size: tuple[float, float] = (200.0, 100.0)) -> Scene:
    boxes = [[10, 10, 50, 60], [40, 20, 120, 80], [42, 22, 122, 82], [150, 5, 190, 95]]
    related = np.array(relations, np.int64).reshape(-1, 3)
    return Scene("a.jpg", Path("a.jpg"), size, np.array(boxes, float), np.array([3, 1, 4, 1]), related)


def noisy(scene: Scene, copies: int, seed: int = 0, noise: float = 9.0) -> Detections:
    """Several boxes near each true one, and some anywhere."""
    rng = np.random.default_rng(seed)
    near = np.repeat(scene.boxes, copies, 0) + rng.uniform(-noise, noise, (copies * len(scene.boxes), 4))
    far = rng.uniform(0, 1, (5, 2, 2)) * [200, 100]
    boxes = np.concatenate([near, np.sort(far, 1).reshape(-1, 4)])
    order = rng.permutation(len(boxes))
    n = len(boxes)
    return Detections("a.jpg", boxes[order], rng.integers(0, 5, n), rng.uniform(0, 1, n))


RELATIONS = [(0, 2, 1), (0, 0, 1), (2, 1, 3), (1, 5, 2), (3, 3, 3)]


def test_stage_one_learns_each_relation_between_two_boxes() -> None:
    known = true_boxes(scene_of(RELATIONS))
    assert known.pairs.tolist() == [[0, 1], [0, 1], [2, 3], [1, 2]]  # box 3 with itself is left out
    assert known.triplets.tolist() == [[3, 2, 1], [3, 0, 1], [4, 1, 1], [1, 5, 4]]
    assert known.scores.tolist() == [1, 1, 1, 1]


def test_one_predicate_is_drawn_per_pair_in_proportion_to_its_annotations() -> None:
    scene = scene_of([*RELATIONS, (0, 2, 1), (1, 0, 0)])  # (0, 1) has predicate 2 twice and 0 once; (1, 0) is another
    rng, drawn = np.random.default_rng(0), Counter[int]()
    for _ in range(600):
        known = true_boxes(scene, chosen_relations(scene, rng, one_predicate=True))
        assert sorted(map(tuple, known.pairs.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 3)]
        drawn.update(triplet[1] for pair, triplet in zip(known.pairs, known.triplets, strict=True) if pair[0] == 0)
    assert set(drawn) == {0, 2}
    assert drawn[2] / 600 == pytest.approx(2 / 3, abs=0.06)


def test_relations_of_boxes_that_do_not_overlap_are_skipped_and_are_no_null_pairs() -> None:
    scene, rng = scene_of(RELATIONS), np.random.default_rng(0)  # box 3 is apart from box 2
    rows = chosen_relations(scene, rng, overlapping=True)
    assert rows.tolist() == [True, True, False, True, False]
    for known in (true_boxes(scene, rows), proposal_boxes(scene, noisy(scene, 1, noise=0.1), rng, rows)):
        assert [4, 1, 1] not in known.triplets.tolist()
        assert {triplet[1] for triplet in known.triplets.tolist()} == {2, 0, 5}
        pairs, annotated = selection_pairs(known, rng, 0.0)
        apart = {(int(s), int(o)) for s, o in known.shown} - {(int(s), int(o)) for s, o in known.pairs}
        assert apart
        assert not apart & set(map(tuple, pairs[~annotated].tolist()))
    touching = scene_of([(0, 1, 1)])
    touching.boxes[1] = [50, 20, 120, 80]  # the pixel at x = 50 is in both
    assert chosen_relations(touching, rng, overlapping=True).all()
    touching.boxes[1] = [51, 20, 120, 80]
    assert not chosen_relations(touching, rng, overlapping=True).any()


@pytest.mark.parametrize("copies", [1, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_proposals_equal_a_loop_over_relations_and_boxes(copies: int, seed: int) -> None:
    scene = scene_of(RELATIONS)
    detections = noisy(scene, copies, seed)
    found = proposal_boxes(scene, detections, np.random.default_rng(seed))
    near = [
        {i for i, box in enumerate(detections.boxes.tolist()) if plain_iou(box, true, 0.0) >= 0.5}
        for true in scene.boxes.tolist()
    ]
    rows = list(zip(found.pairs.tolist(), found.triplets.tolist(), strict=True))
    whole: Counter[tuple[int, ...]] = Counter()
    drawn: list[set[int]] = [set() for _ in near]
    for subject, _, object in RELATIONS:
        if subject != object:
            possible = sum(s != o for s in near[subject] for o in near[object])
            assert possible, "the case shows nothing"
    for (s, o), triplet in rows:
        assert s != o
        whole[(s, o, *triplet)] += 1
        owners = [
            (subject, object)
            for subject, predicate, object in RELATIONS
            if subject != object and [scene.labels[subject], predicate, scene.labels[object]] == triplet
        ]
        assert len(owners) == 1  # by construction of RELATIONS, the triplet identifies the boxes
        drawn[owners[0][0]].add(s)
        drawn[owners[0][1]].add(o)
    expected: Counter[tuple[int, ...]] = Counter()
    for at, chosen in enumerate(drawn):
        assert chosen <= near[at]
        assert len(chosen) == min(4, len(near[at]))  # as many as there are, up to 4
    for subject, predicate, object in RELATIONS:
        if subject != object:
            triplet = (scene.labels[subject], predicate, scene.labels[object])
            expected.update((s, o, *triplet) for s in drawn[subject] for o in drawn[object] if s != o)
    assert whole == expected
    np.testing.assert_array_equal(found.boxes, detections.boxes)
    np.testing.assert_array_equal(found.labels, detections.labels)
    np.testing.assert_array_equal(found.scores, detections.scores)


def test_proposals_are_drawn_evenly() -> None:
    scene = scene_of([(0, 0, 3)])
    detections = noisy(scene, copies=9, noise=3.0)
    near = {i for i, b in enumerate(detections.boxes.tolist()) if plain_iou(b, scene.boxes[0].tolist(), 0.0) >= 0.5}
    rounds = 600
    seen: Counter[int] = Counter()
    for seed in range(rounds):
        pairs = proposal_boxes(scene, detections, np.random.default_rng(seed)).pairs
        seen.update(set(pairs[:, 0].tolist()))
    assert set(seen) == near
    share = 4 / len(near)
    deviation = (rounds * share * (1 - share)) ** 0.5
    assert all(abs(count - rounds * share) < 4.5 * deviation for count in seen.values())


def test_proposals_are_scaled_to_the_annotated_frame() -> None:
    scene = scene_of([(0, 0, 3)])
    half = Detections("a.jpg", scene.boxes / [4, 2, 4, 2], scene.labels, np.ones(4), size=(50.0, 50.0))
    found = proposal_boxes(scene, half, np.random.default_rng(0))
    np.testing.assert_allclose(found.boxes, scene.boxes)
    assert found.pairs.tolist() == [[0, 3]]


@pytest.mark.parametrize("relations", [[], RELATIONS])
def test_without_detections_there_are_no_pairs(relations: list[tuple[int, int, int]]) -> None:
    nothing = Detections("a.jpg", np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0), (7.0, 7.0))
    rng = np.random.default_rng(0)
    found = proposal_boxes(scene_of(relations), nothing, rng)
    assert found.pairs.shape == (0, 2)
    assert found.triplets.shape == (0, 3)
    pairs, annotated = selection_pairs(found, rng)
    assert (pairs.shape, annotated.shape) == ((0, 2), (0,))


def test_no_relations_give_no_pairs_of_either_kind() -> None:
    scene, rng = scene_of([]), np.random.default_rng(0)
    for boxes in (true_boxes(scene), proposal_boxes(scene, noisy(scene, 2), rng)):
        assert len(boxes.pairs) == len(boxes.triplets) == 0
        assert len(selection_pairs(boxes, rng)[0]) == 0
        n = len(boxes.boxes)
        assert len(selection_pairs(boxes, rng, nulls=0)[0]) == n * (n - 1)  # all of them null


def test_boxes_without_area_match_nothing() -> None:
    boxes = np.array([[2.0, 2, 2, 2], [0, 0, 5, 5]])
    scene = Scene("a", Path("a"), (9.0, 9.0), boxes, np.array([0, 1]), np.array([[0, 0, 1]]))
    same = Detections("a", scene.boxes, scene.labels, np.ones(2))
    assert len(proposal_boxes(scene, same, np.random.default_rng(0)).pairs) == 0


def five_boxes() -> TrainingBoxes:
    pairs = np.array([[0, 1], [0, 1], [3, 2], [1, 0]])  # one pair twice: two predicates
    return TrainingBoxes(np.zeros((5, 4)), np.zeros(5, np.int64), np.ones(5), pairs, np.zeros((4, 3), np.int64), pairs)


@pytest.mark.parametrize(("nulls", "count"), [(1.0, 3), (2.0, 6), (0.5, 2), (0, 17), (100.0, 17)])
def test_selection_takes_annotated_pairs_once_and_the_given_share_of_null_pairs(nulls: float, count: int) -> None:
    pairs, annotated = selection_pairs(five_boxes(), np.random.default_rng(0), nulls)
    assert {tuple(p) for p in pairs[annotated].tolist()} == {(0, 1), (3, 2), (1, 0)}
    null = [tuple(p) for p in pairs[~annotated].tolist()]
    assert annotated.sum() == 3
    assert len(null) == len(set(null)) == count
    assert not set(null) & {(0, 1), (3, 2), (1, 0)}
    assert all(s != o for s, o in null)


def test_null_pairs_are_drawn_evenly() -> None:
    rounds = 1200
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        pairs, annotated = selection_pairs(five_boxes(), np.random.default_rng(seed))
        seen.update(tuple(p) for p in pairs[~annotated].tolist())
    share = 3 / 17
    deviation = (rounds * share * (1 - share)) ** 0.5
    assert len(seen) == 17
    assert all(abs(count - rounds * share) < 4.5 * deviation for count in seen.values())


def test_pairs_that_overlap_an_annotated_pair_are_never_null() -> None:
    """Of 7 copies of each box 4 are drawn; the others show the relation too, so they must not count as null."""
    scene = scene_of([(0, 1, 1)])
    copies = Detections(scene.name, np.repeat(scene.boxes[:2], 7, 0), np.zeros(14, np.int64), np.ones(14), scene.frame)
    boxes = proposal_boxes(scene, copies, np.random.default_rng(0))
    assert len(boxes.pairs) == 16
    pairs, annotated = selection_pairs(boxes, np.random.default_rng(0), nulls=0)
    null = pairs[~annotated]
    assert len(null) == 14 * 13 - 7 * 7
    assert not ((null[:, 0] < 7) & (null[:, 1] >= 7)).any()
