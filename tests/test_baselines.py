"""The count table against the formula written out, and on the real VRD."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from shared_data import real_vrd, shared

from polyadic.evaluation import evaluate
from polyadic.evaluation.baselines import CountTable
from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.protocol import get_protocol
from polyadic.io.records import read_detections
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import Vocabulary

S, P = 3, 4
NAMES = Vocabulary(objects=tuple("abc"), predicates=tuple("wxyz"))


def random_scenes(rng: np.random.Generator) -> list[Scene]:
    scenes = []
    for i in range(12):
        n, m = int(rng.integers(2, 5)), int(rng.integers(0, 7))
        boxes = np.tile([0.0, 0, 9, 9], (n, 1))
        relations = np.stack([rng.integers(0, n, m), rng.integers(0, P, m), rng.integers(0, n, m)], axis=1)
        scenes.append(Scene(str(i), Path(str(i)), (10.0, 10.0), boxes, rng.integers(0, S, n), relations))
    return scenes


def formula(scenes: list[Scene], s: int, p: int, o: int) -> float:
    """P(p | s, o) · P(annotated | s, o), recomputed from the rows."""
    rows = [
        (int(scene.labels[a]), q, int(scene.labels[b]))
        for scene in scenes
        for a, q, b in {tuple(row) for row in scene.relations.tolist()}
    ]
    C = Counter(rows)

    def count(subject: int | None = None, predicate: int | None = None, object: int | None = None) -> int:
        wanted = (subject, predicate, object)
        return sum(n for row, n in C.items() if all(w is None or w == r for w, r in zip(wanted, row, strict=True)))

    p_p = (count(predicate=p) + 1) / (count() + P)
    p_s = (count(subject=s, predicate=p) + 5 * p_p) / (count(subject=s) + 5)
    p_o = (count(object=o, predicate=p) + 5 * p_p) / (count(object=o) + 5)
    p_so = (C[s, p, o] + 2 * 0.5 * (p_s + p_o)) / (count(subject=s, object=o) + 2)
    annotated = possible = 0
    for scene in scenes:
        labels = scene.labels.tolist()
        ends = {(a, b) for a, _, b in scene.relations.tolist()}
        annotated += sum((labels[a], labels[b]) == (s, o) for a, b in ends)
        possible += sum(
            labels[a] == s and labels[b] == o for a in range(len(labels)) for b in range(len(labels)) if a != b
        )
    return p_so * (annotated + 0.5) / (possible + 3.5)


@pytest.mark.parametrize("seed", range(3))
def test_the_count_table_equals_the_formula(seed: int) -> None:
    scenes = random_scenes(np.random.default_rng(seed))
    table = CountTable.fit(scenes, NAMES)
    for s in range(S):
        for o in range(S):
            assert table.row(s, o).tolist() == pytest.approx([formula(scenes, s, p, o) for p in range(P)])


def test_predictions_are_the_best_k_predicates_of_each_ordered_pair_times_both_confidences() -> None:
    scenes = random_scenes(np.random.default_rng(0))
    table = CountTable.fit(scenes, NAMES)
    boxes = np.array([[0, 0, 5, 5], [1, 1, 9, 9], [2, 2, 3, 3]], float)
    relations = table.predict(Detections("x", boxes, np.array([0, 2, 2]), np.array([0.5, 0.9, 0.1])), k=2)
    assert len(relations) == 6 * 2
    assert {tuple(pair) for pair in relations.pairs.tolist()} == {(a, b) for a in range(3) for b in range(3) if a != b}
    for (a, b), (s, p, o), score in zip(
        relations.pairs.tolist(), relations.triplets.tolist(), relations.scores.tolist(), strict=True
    ):
        labels, confidence = [0, 2, 2], [0.5, 0.9, 0.1]
        row = table.row(s, o)
        assert (s, o) == (labels[a], labels[b])
        assert score == pytest.approx(row[p] * confidence[a] * confidence[b])
        assert (row > row[p]).sum() < 2
    assert table.predict(Detections("x", boxes, np.array([0, 2, 2]), np.ones(3), (9.0, 7.0))).size == (9.0, 7.0)
    assert len(table.predict(Detections("x", boxes[:0], np.zeros(0, np.int64), np.zeros(0)))) == 0


def test_without_labels_every_pair_gets_the_triplets_likeliest_for_any_pair() -> None:
    scenes = random_scenes(np.random.default_rng(0))
    table = CountTable.fit(scenes, NAMES)
    boxes = np.array([[0, 0, 5, 5], [1, 1, 9, 9], [2, 2, 3, 3]], float)
    relations = table.predict_unlabelled("x", boxes, k=3)
    share = (np.bincount(np.concatenate([scene.labels for scene in scenes]), minlength=S) + 1.0) / (
        sum(len(scene.labels) for scene in scenes) + S
    )
    every = sorted(
        (-share[s] * share[o] * formula(scenes, s, p, o), s, p, o) for s in range(S) for p in range(P) for o in range(S)
    )
    assert len(relations) == 6 * 3
    best = {tuple(triplet) for triplet in relations.triplets.tolist()}
    assert best == {(s, p, o) for _, s, p, o in every[:3]}
    assert relations.scores.max() == pytest.approx(-every[0][0])
    # six pairs share one list: the best 7 of an image are in the first two of it, and every pair of labels has one of k
    assert len(table.predict_unlabelled("x", boxes, top=7)) == 6 * 2
    once = table.predict_unlabelled("x", boxes, k=1, per_labels=True).triplets
    labels = [tuple(t[::2]) for t in np.unique(once, axis=0).tolist()]
    assert len(labels) == len(set(labels)) > 3
    assert len(CountTable.fit([], NAMES).predict_unlabelled("x", boxes)) == 0


def test_on_lus_proposals_count_table_and_ceilings_reproduce_known_numbers() -> None:
    train, test = real_vrd("train"), real_vrd("test")
    table = CountTable.fit(train, train.vocabulary)
    detections = list(read_detections(shared("data", "vrd", "lu2016", "objectDetRCNN.mat"), test.vocabulary))
    lu = get_protocol("lu2016")
    known = {(1, "relationship"): (16.04, 16.76), (10, "relationship"): (19.61, 23.53), (10, "phrase"): (22.24, 26.71)}
    protocols = {key: lu.change(k=key[0], task=key[1], tops=(50, 100)) for key in known}
    ours = {(1, "relationship"): (16.03, 16.76), (10, "relationship"): (19.66, 23.55), (10, "phrase"): (22.30, 26.76)}
    recalls = evaluate(test, [table.predict(one, 10) for one in detections], list(protocols.values()), 70)
    for key, numbers in known.items():
        measured = [recalls.at(protocols[key], top).recall for top in (50, 100)]
        assert measured == pytest.approx(numbers, abs=0.06)  # from another implementation
        assert measured == pytest.approx(ours[key], abs=0.005)
    ceilings = {
        ("relationship", False): 32.85,
        ("relationship", True): 54.53,
        ("phrase", False): 37.64,
        ("phrase", True): 82.51,
    }
    by_image = {one.image: one for one in detections}
    for (task, relabel), number in ceilings.items():
        ceiling = Ceiling(lu.change(task=task), relabel)
        for scene in test:
            ceiling.update(scene, by_image[scene.name].boxes, by_image[scene.name].labels)
        assert ceiling.result() == pytest.approx(number, abs=0.005)
