"""Answers for a person: probable, informative first, each statement once, each box with one name."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import EXPONENTS, NAMES, detections, model_of, photo, prepared
from refusals import refused

from polyadic.model import scoring
from polyadic.model.answers import (
    AnswerOptions,
    Statements,
    answer,
    ask,
    choose,
    drop_rivals,
    merge_boxes,
    name_boxes,
)
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL
from polyadic.prior import TripletPrior
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import Vocabulary

EVERYTHING: dict[str, Any] = {"k": None, "top": 10_000, "order": "likely", "mirror": "keep", "least": 0.0}


def scenes(*relations: list[tuple[int, int, int]], objects: int = 4) -> Dataset:
    """Scenes of boxes 0, 1, ..., of classes 0, 1, ..., with these relations."""
    boxes = np.array([[at, 0.0, at + 1, 1] for at in range(objects)])
    labels = np.arange(objects)
    names = Vocabulary([f"o{at}" for at in range(objects)], ["next to", "near", "behind", "in front of", "ride"])
    made = [
        Scene(str(at), Path(str(at)), (9, 9), boxes, labels, np.array(rows).reshape(-1, 3))
        for at, rows in enumerate(relations)
    ]
    return Dataset("own", "train", names, tuple(made), Path())


# what training counts say of predicates


def test_reversals_count_what_is_said_of_a_pair_the_other_way_round() -> None:
    data = scenes([(0, 0, 1), (1, 0, 0), (0, 2, 1)], [(0, 2, 1), (1, 3, 0), (1, 3, 0)], [(0, 2, 2), (3, 4, 3)])
    expected = np.zeros((5, 5), int)
    expected[0, 0] = 2  # next to, both ways
    expected[0, 2] = expected[2, 0] = 1
    expected[2, 3] = expected[3, 2] = 1  # an annotation twice counts once
    np.testing.assert_array_equal(data.reversals(), expected)


def test_predicates_that_hold_both_ways_and_inverses_are_learned_from_counts() -> None:
    both_ways = [[(0, 0, 1), (1, 0, 0)]] * 6 + [[(0, 1, 1), (1, 0, 0)]] * 6
    inverse = [[(0, 2, 1), (1, 3, 0)]] * 6 + [[(0, 2, 1)]] * 20
    counts = scenes(*both_ways, *inverse, *[[(0, 4, 1)]] * 30).reversals()
    prior = TripletPrior.from_triplets(torch.zeros(0, 3).long(), (4, 5, 4), reversals=torch.from_numpy(counts))
    marked = {(i, j) for i, j in itertools.product(range(5), repeat=2) if prior.restates[i, j]}
    assert marked == {(0, 0), (0, 1), (1, 0), (2, 3), (3, 2)}
    assert not replace(prior, reversals=None).restates.any()
    few = scenes([(0, 0, 1), (1, 0, 0)]).reversals()  # one pair is no evidence
    assert not replace(prior, reversals=torch.from_numpy(few)).restates.any()


def test_the_information_of_a_predicate_against_a_slow_count() -> None:
    generator = torch.Generator().manual_seed(0)
    free = torch.randint(0, 4, (60, 3), generator=generator)
    free[:, 1] = 0  # goes with anything
    fixed = torch.tensor([[2, 1, 3]] * 9)  # says which pair it is
    triplets = torch.cat([free, fixed]).tolist()
    prior = TripletPrior.from_triplets(torch.tensor(triplets), (4, 3, 4))
    for p in range(3):
        own = [(s, o) for s, q, o in triplets if q == p]
        told = 0.0
        for at, ends in enumerate(own):
            others = own[:at] + own[at + 1 :]
            share = sum((s, o) == ends for s, _, o in triplets) / len(triplets)
            told += math.log((others.count(ends) + 20 * share) / (len(others) + 20)) - math.log(share)
        assert float(prior.information[p]) == pytest.approx(told / (len(own) + 5))
    assert prior.information[1] > 0.2 > prior.information[0]
    assert prior.information[2] == 0


def test_what_a_triplet_tells_is_how_rare_its_pair_is_and_its_predicates_information() -> None:
    triplets = [[0, 1, 2]] * 6 + [[0, 0, 2], [1, 1, 1]]
    pairs = [(s, o) for s, _, o in triplets]
    prior = TripletPrior.from_triplets(torch.tensor(triplets), (3, 2, 3), smoothing=0.0)
    asked = [[0, 1, 2], [1, 1, 1], [2, 0, 2], [2, 1, 2]]
    expected = [float(prior.information[p]) - math.log((pairs.count((s, o)) + 20) / 28) for s, p, o in asked]
    assert prior.told(torch.tensor(asked)).tolist() == pytest.approx(expected)
    nothing = TripletPrior.from_triplets(torch.zeros(0, 3).long(), (3, 2, 3))
    assert nothing.told(torch.tensor(asked)).tolist() == [0, 0, 0, 0]


def test_a_saved_prior_keeps_its_reversals(tmp_path: Path) -> None:
    counts = torch.arange(9).view(3, 3)
    prior = TripletPrior.from_triplets(torch.tensor([[0, 1, 2]]), NAMES, reversals=counts)
    prior.save(tmp_path / "prior")
    loaded = TripletPrior.load(tmp_path / "prior")
    assert torch.equal(torch.as_tensor(loaded.reversals), counts)
    refused(r"reversals must be \[3, 3\]", TripletPrior.from_triplets, prior.triplets, NAMES, reversals=counts[:2, :2])


# which relations are chosen


def candidates(*rows: tuple[int, int, int, float], repeat: float = 1.0) -> Relations:
    """Relations (subject box, predicate, object box, probability) of boxes whose class is their number."""
    pairs = np.array([(s, o) for s, _, o, _ in rows]).reshape(-1, 2)
    labels = np.arange(4)
    triplets = np.array([(s, p, o) for s, p, o, _ in rows]).reshape(-1, 3)
    probability = np.array([q for *_, q in rows])
    zero = np.zeros(len(rows))
    boxes = np.array([[at, 0.0, at + 1, 1] for at in range(4)])
    terms = {"log_cp": np.log(probability), "log_prior": zero, "log_selected": zero, "log_boxes": zero}
    return Relations(
        "a",
        boxes,
        pairs,
        triplets,
        np.log(probability),
        labels=labels,
        confidences=np.ones(4),
        **terms,
        log_repeat=zero + math.log(repeat),
        probability=probability,
    )


def prior_of(data: Dataset) -> TripletPrior:
    triplets, reversals = torch.from_numpy(data.triplets()), torch.from_numpy(data.reversals())
    return TripletPrior.from_triplets(triplets, data.vocabulary, reversals=reversals)


KNOWN = prior_of(
    scenes(
        *[[(0, 0, 1), (1, 0, 0)]] * 6,
        *[[(0, 1, 1), (1, 0, 0)]] * 6,
        *[[(0, 2, 1), (1, 3, 0)]] * 6,
        *[[(2, 0, 3)]] * 4,
        *[[(2, 4, 3)]] * 12,
        *[[(0, 2, 2)], [(1, 3, 3)]] * 30,
    )
)


def chosen(pool: Relations, **options: Any) -> list[tuple[int, int, int]]:
    result = choose(pool, KNOWN, AnswerOptions(**{"least": 0.01, **options}))
    return [(s, p, o) for (s, o), p in zip(result.pairs.tolist(), result.triplets[:, 1].tolist(), strict=True)]


def test_of_two_mirrored_relations_the_likelier_stays() -> None:
    next_to, near, behind, in_front = range(4)
    pool = candidates((0, next_to, 1, 0.4), (1, near, 0, 0.3), (2, behind, 1, 0.2), (1, behind, 2, 0.1))
    assert chosen(pool, order="likely") == [(0, next_to, 1), (2, behind, 1)]
    assert len(chosen(pool, order="likely", mirror="keep")) == 4
    pool = candidates((0, behind, 1, 0.3), (1, in_front, 0, 0.4))
    assert chosen(pool, order="likely") == chosen(pool) == [(1, in_front, 0)]
    pool = candidates((0, behind, 1, 0.4), (1, in_front, 0, 0.3), (1, next_to, 0, 0.2))
    assert chosen(pool, order="likely") == [(0, behind, 1)]  # the reverse has nothing better to say
    assert chosen(pool, order="likely", k=None) == [(0, behind, 1), (1, next_to, 0)]


def test_statements_without_training_counts_know_only_the_same_predicate() -> None:
    said = Statements(None)
    assert said.add((0, 1), 2)
    assert not said.add((1, 0), 2)
    assert said.add((1, 0), 3)


def test_informative_predicates_come_first_and_the_likeliest_in_the_other_order() -> None:
    next_to, ride = 0, 4
    pool = candidates((0, next_to, 1, 0.12), (2, next_to, 3, 0.11), (2, ride, 3, 0.1))
    assert chosen(pool) == [(2, ride, 3), (0, next_to, 1)]
    assert chosen(pool, order="likely") == [(0, next_to, 1), (2, next_to, 3)]


def test_a_repeated_triplet_counts_less_in_the_informative_order() -> None:
    pool = candidates((0, 2, 1, 0.3), (1, 2, 2, 0.29), (2, 2, 3, 0.28), (1, 3, 3, 0.14))
    same = replace(pool, triplets=np.array([[0, 2, 1]] * 3 + [[1, 3, 3]]))
    assert chosen(same, order="likely") == [(0, 2, 1), (1, 2, 2), (2, 2, 3), (1, 3, 3)]
    assert chosen(same) == [(0, 2, 1), (1, 3, 3), (1, 2, 2)]  # said at most twice
    assert len(chosen(same, mirror="keep")) == 4


def test_a_triplet_is_said_once_of_a_box_in_the_informative_order() -> None:
    """Two shirts of one person, or two persons in one shirt: the likelier."""
    pool = candidates((0, 4, 1, 0.2), (0, 4, 2, 0.3), (3, 4, 2, 0.1), (3, 4, 0, 0.05))
    same = replace(pool, triplets=np.array([[0, 4, 1]] * 4))
    assert chosen(same) == [(0, 4, 2), (3, 4, 0)]
    assert len(chosen(same, order="likely")) == 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mirror", ["keep", "drop"])
def test_the_informative_order_against_a_slow_choice(seed: int, mirror: str) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(s, o) for s in range(4) for o in range(4) if s < o]
    pool = candidates(*[(s, int(rng.integers(2, 5)), o, float(rng.uniform(0.02, 0.3))) for s, o in pairs])
    names = rng.integers(0, 2, 4)  # two names for four boxes
    pool = replace(pool, triplets=np.stack([names[pool.pairs[:, 0]], pool.triplets[:, 1], names[pool.pairs[:, 1]]], 1))
    rows = [(tuple(r.pair), r.triplet, r.probability) for r in pool]
    if mirror == "drop":
        alone: list[Any] = []
        for row in sorted(rows, key=lambda row: -row[2]):
            (s, o), triplet, _ = row
            if not any(triplet == other and (s == a or o == b) for (a, b), other, _ in alone):
                alone.append(row)
        rows = alone
    expected: list[Any] = []
    while rows:
        said = [triplet for _, triplet, _ in expected]

        def gain(row: Any, said: list[Any] = said) -> float:
            _, (s, p, o), probability = row
            repeats, phrases = said.count((s, p, o)), sum((s, p) == other[:2] for other in said)
            told = math.exp(0.5 * float(KNOWN.told(torch.tensor([s, p, o]))))
            return float(probability * told / 2**repeats / (1 + phrases))

        best = max(rows, key=gain)
        rows.remove(best)
        if mirror == "keep" or said.count(best[1]) < 2:
            expected.append(best)
    result = choose(pool, KNOWN, AnswerOptions(mirror=mirror))  # type: ignore[arg-type]
    assert [(r.pair, r.triplet) for r in result] == [row[:2] for row in expected]


def test_overlapping_boxes_of_a_name_are_one_object_with_the_likeliest_relations_of_all() -> None:
    pool = candidates((1, 2, 2, 0.3), (0, 2, 2, 0.2), (1, 4, 3, 0.1), (0, 1, 1, 0.1))
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 6], [20, 0, 30, 10], [20, 0, 30, 10]])  # IoU 0.6, 0, 1
    pool = replace(pool, boxes=boxes, named=np.array([0, 0, 1, 2]), confidences=np.array([0.9, 0.5, 0.8, 0.7]))
    pool = replace(pool, triplets=np.array([[0, 2, 1], [0, 2, 1], [0, 4, 2], [0, 1, 0]]))
    merged = merge_boxes(pool)
    assert [(r.pair, r.triplet, r.probability) for r in merged] == [((0, 2), (0, 2, 1), 0.3), ((0, 3), (0, 4, 2), 0.1)]
    assert merged.boxes.tolist() == boxes.tolist()
    apart = boxes.copy()
    apart[1, 3] = 4.9
    for other in (replace(pool, boxes=apart), replace(pool, confidences=np.ones(4))):  # IoU 0.49; drawn by hand
        assert merge_boxes(other).pairs.tolist() == pool.pairs.tolist()
    assert len(merge_boxes(pool[:0])) == 0


def test_of_two_names_for_one_place_the_surer_stays() -> None:
    pool = candidates((0, 2, 2, 0.3), (1, 2, 2, 0.2), (2, 4, 3, 0.1), (0, 1, 1, 0.05))
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 7.5], [20, 0, 30, 10], [20, 0, 30, 6]])  # IoU 0.75, 0.6
    pool = replace(pool, boxes=boxes, named=np.arange(4), confidences=np.array([0.5, 0.9, 0.8, 0.7]))
    assert drop_rivals(pool).pairs.tolist() == [[1, 2], [2, 3]]
    for other in (replace(pool, named=np.array([0, 0, 1, 2])), replace(pool, confidences=np.ones(4))):  # drawn by hand
        assert drop_rivals(other).pairs.tolist() == pool.pairs.tolist()
    chain = np.array([[0.0, 0, 10, 10], [0, 2, 10, 10], [0, 4, 10, 10], [20, 0, 30, 6]])  # IoU 0.8, 0.6; 0.75
    between = replace(pool, boxes=chain, confidences=np.array([0.9, 0.8, 0.7, 0.6]))
    assert drop_rivals(between).pairs.tolist() == [[0, 2], [2, 3]]  # a rival that was dropped drops no other


def test_a_rival_is_left_out_of_answers_and_found_by_its_name() -> None:
    model, given = model_of("evidence"), detections(3)
    given = replace(given, boxes=given.boxes[[0, 0, 1]], labels=np.array([0, 1, 2]), scores=np.array([0.9, 0.8, 0.7]))
    scored, options = prepared(model, given), AnswerOptions(least=0.0, top=100, k=None)
    assert {box for row in answer(scored, options) for box in row.pair} == {0, 2}
    assert {box for row in answer(scored, replace(options, mirror="keep")) for box in row.pair} == {0, 1, 2}
    assert {1} < {box for row in ask(scored, {"subject": NAMES.objects[1]}, options) for box in row.pair}


def test_the_threshold_is_a_probability_and_includes_the_penalty_for_repeats_on_the_same_boxes() -> None:
    pool = candidates((0, 2, 1, 0.3), (0, 2, 2, 0.1))
    assert chosen(pool, least=0.1) == [(0, 2, 1), (0, 2, 2)]
    assert chosen(replace(pool, log_repeat=np.log([1.0, 0.5])), least=0.1) == [(0, 2, 1)]


# answers of a model


def test_every_answer_is_a_triplet_of_the_boxes_names_by_falling_probability() -> None:
    model, given = model_of("evidence", **EXPONENTS), detections(4)
    scored = prepared(model, given)
    result = answer(scored, AnswerOptions(**EVERYTHING))
    assert len(result) == 12 * len(NAMES.predicates)
    dense = scored.rank(None, 10_000, probability=True)
    expected = {(*r.pair, *r.triplet): r.probability for r in dense}
    assert result.probability is not None
    assert (np.diff(result.probability) <= 1e-15).all() or model.config.ranking.repeat < 1
    for relation in result:
        (s, o), triplet = relation.pair, relation.triplet
        assert triplet[::2] == (given.labels[s], given.labels[o])
        assert relation.probability == pytest.approx(expected[(s, o, *triplet)])


def test_the_label_probability_of_a_box_is_the_weighted_mean_over_its_pairs() -> None:
    model = model_of("evidence")
    scored = prepared(model, detections(3))
    (block,) = scored.blocks()
    assert block.log_selected is not None
    total = np.zeros((3, 4))
    weights = np.zeros(3)
    log_pair = block.log_pair(ALL, 1.0)
    assert log_pair is not None
    for at, (s, o) in enumerate(block.pairs.tolist()):
        weight = math.exp(2 * float(log_pair[at]))
        dense = block.joint()[at : at + 1].dense()[0].double().numpy()
        total[s] += weight * dense.sum((1, 2))
        total[o] += weight * dense.sum((0, 1))
        weights[[s, o]] += weight
    np.testing.assert_allclose(scored.label_probability(), total / weights[:, None], rtol=1e-4)


def test_boxes_keep_their_names_or_get_the_most_probable_one() -> None:
    model, given = model_of("pixels"), detections(4)
    scored = prepared(model, given, photo())
    best = scored.label_probability().argmax(1)
    assert (best != given.labels).any()
    np.testing.assert_array_equal(name_boxes(scored, "keep"), given.labels)
    np.testing.assert_array_equal(name_boxes(scored, "refine"), best)
    unknown = prepared(model, replace(given, labels=np.array([UNKNOWN, *given.labels[1:]])), photo())
    named = name_boxes(unknown, "keep")
    assert named[0] == unknown.label_probability()[0].argmax()
    assert named[1:].tolist() == given.labels[1:].tolist()
    refined = model.predict(photo(), given, labels="refine", **{**EVERYTHING, "top": 50})
    assert refined.box_classes() == [NAMES.objects[at] for at in best]
    assert all(relation.triplet[0] == best[relation.pair[0]] for relation in refined)


@pytest.mark.parametrize(
    "given", [{"subject": 0}, {"object": 1}, {"predicate": "by"}, {"subject": 0, "predicate": "on"}]
)
def test_a_query_selects_among_all_answers(given: dict[str, Any]) -> None:
    model, boxes = model_of("evidence"), detections(4)
    words = {name: NAMES.objects[boxes.labels[at]] if isinstance(at, int) else at for name, at in given.items()}
    scored = prepared(model, boxes)
    options = AnswerOptions(**EVERYTHING)
    names = ("subject", "predicate", "object")
    everything = [r for r in answer(scored, options) if all(r.names[names.index(n)] == w for n, w in words.items())]
    result = ask(scored, words, options)
    assert result.given == words
    assert [(r.pair, r.triplet) for r in result] == [(r.pair, r.triplet) for r in everything]
    assert [r.probability for r in result] == pytest.approx([r.probability for r in everything])


def test_a_query_in_a_crowd_gives_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, boxes = model_of("evidence", **EXPONENTS), replace(detections(9), labels=np.arange(9) % 3)
    options, words = AnswerOptions(**{**EVERYTHING, "top": 30}), {"subject": "dog"}
    whole = ask(model.score(None, boxes), words, options)
    monkeypatch.setattr(scoring, "BLOCK", 20)
    monkeypatch.setattr(scoring, "KEPT", 0)
    blocks = ask(model.score(None, boxes), words, options)
    assert {r.names[0] for r in whole} == {"dog"}
    assert [(r.pair, r.triplet) for r in blocks] == [(r.pair, r.triplet) for r in whole]


def test_a_query_for_an_absent_name_says_so() -> None:
    model, boxes = model_of("evidence"), replace(detections(3), labels=np.array([0, 0, 1]))
    scored = prepared(model, boxes)
    result = ask(scored, {"object": "bed"}, AnswerOptions())
    assert len(result) == 0
    assert "none of the boxes is likely a bed" in str(result.note)
    assert f"{scored.label_probability()[:, 3].max():.1%}" in str(result.note)
    assert "no two boxes" in str(ask(scored, {"subject": "cat", "object": "cat"}, AnswerOptions()).note)


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_refused() -> None:
    model, given = model_of("evidence"), detections(2)
    for options, words in (
        ({"order": "best"}, "order must be 'informative' or 'likely', got 'best'"),
        ({"labels": "drop"}, "labels must be"),
        ({"mirror": True}, "mirror must be"),
        ({"k": 0}, "k must be a whole number from 1, got 0"),
        ({"top": "many"}, "top must be"),
        ({"least": 2}, "least must be a probability"),
    ):
        refused(words, lambda options=options: model.predict_many([None], [given], **options))


def test_the_pretrained_model_answers_on_a_photo_without_boxes_one_or_many() -> None:
    model = RelationModel.pretrained()
    for n in (0, 1):
        assert len(model.predict(photo(), replace(detections(n), labels=np.zeros(n, int)))) == 0
    crowd = replace(detections(12), labels=np.zeros(12, int))
    result = model.predict(photo(), crowd, top=50)
    statements = {(frozenset(r.pair), r.names[1]) for r in result}
    assert len(statements) == len(result)


def test_the_docs_quote_the_information_of_the_pretrained_model() -> None:
    text = " ".join((Path(__file__).parents[1] / "docs" / "predict.md").read_text().split())
    quoted = re.findall(r"([a-z ]+) (-?\d\.\d)[,.]", text[text.index("nats): ") + len("nats):") :][:120])
    model = RelationModel.pretrained()
    assert model.prior is not None
    assert len(quoted) == 7
    for name, number in quoted:
        at = model.vocabulary.predicates.index(name.strip())
        assert float(model.prior.information[at]) == pytest.approx(float(number), abs=0.051)
