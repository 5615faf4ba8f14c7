"""Asking the distribution, against the dense f_spo."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import (
    EXPONENTS,
    NAMES,
    dense,
    detections,
    entries,
    model_of,
    pairs_of,
    photo,
    prepared,
    rank,
    rows_of,
    with_geometry,
)
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, ScoredBlock, ScoredPairs, ScoreTerms
from polyadic.prior import TripletPrior
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError

PAIRS = [(s, o) for s in range(4) for o in range(4) if s != o]


def dense_parts(model: Any, given: Detections, parts: ScoreTerms = ALL) -> tuple[Tensor, Tensor]:
    """ψ_c · ψ_u^a and f of every pair and triplet, [B, S, P, O], from the paper's formula."""
    scores = pairs_of(model, given, photo() if model.backbone is not None else None)
    joint = with_geometry(scores) if parts.geometry else dense(scores.cp)
    total = joint.sum((1, 2, 3), keepdim=True)
    joint = joint / total
    weights = model.config.ranking
    triplets = torch.cartesian_prod(*(torch.arange(n) for n in NAMES.sizes))
    if parts.prior:
        joint = joint * (weights.prior * model.prior.log_prob(triplets)).exp().view(NAMES.sizes)
    f = joint * total
    for at, (s, o) in enumerate(PAIRS):
        boxes = math.log(given.scores[s]) + math.log(given.scores[o])
        chosen = weights.selected * float(scores.log_selected[at]) if parts.selected else 0.0
        f[at] *= math.exp(chosen + weights.boxes * boxes)
    return joint, f


CASES: list[tuple[str, dict[str, Any]]] = [("evidence", {}), ("evidence", EXPONENTS), ("pixels", EXPONENTS)]


def case(source: str, values: dict[str, Any]) -> tuple[RelationModel, Detections, ScoredPairs]:
    model, given = model_of(source, **values), detections(4, seed=3)
    return model, given, model.score(photo(), given)


@pytest.mark.parametrize(("source", "values"), CASES, ids=str)
@pytest.mark.parametrize(("subject", "object"), list(itertools.product([0, 3], [1, 2])))
def test_two_labels_give_the_predicates_of_the_most_likely_pair(
    source: str, values: dict[str, Any], subject: int, object: int
) -> None:
    model, given, result = case(source, values)
    joint, f = dense_parts(model, given)
    answers = result.query(subject=NAMES.objects[subject], object=NAMES.objects[object])
    pair = int(f[:, subject, :, object].sum(-1).argmax())
    expected = joint[pair, subject, :, object] / joint[pair, subject, :, object].sum()
    assert len(answers) == len(NAMES.predicates)
    assert sum(answer.probability for answer in answers) == pytest.approx(1)
    assert [answer.probability for answer in answers] == sorted(
        (answer.probability for answer in answers), reverse=True
    )
    for answer in answers:
        predicate = NAMES.predicates.index(answer.names[1])
        assert answer.names[::2] == (NAMES.objects[subject], NAMES.objects[object])
        assert answer.probability == pytest.approx(float(expected[predicate]), rel=1e-4)
        assert answer.score == pytest.approx(float(f[pair, subject, predicate, object]), rel=1e-4)
        assert answer.boxes == tuple(tuple(result.detections.boxes[at].tolist()) for at in PAIRS[pair])


@pytest.mark.parametrize(("source", "values"), CASES, ids=str)
@pytest.mark.parametrize(
    "labels", [{"predicate": 1}, {"subject": 2}, {"object": 0}, {"subject": 1, "predicate": 2}], ids=str
)
def test_other_queries_give_the_best_pairs_and_labels(
    source: str, values: dict[str, Any], labels: dict[str, int]
) -> None:
    model, given, result = case(source, values)
    joint, f = dense_parts(model, given)
    axes = ("subject", "predicate", "object")
    mask = torch.zeros(NAMES.sizes, dtype=torch.bool)
    mask[tuple(labels.get(name, slice(None)) for name in axes)] = True
    f = f.masked_fill(~mask, 0)
    sums = joint.masked_fill(~mask, 0).sum((1, 2, 3))
    best = f.flatten().argsort(descending=True)[:7].tolist()
    words: dict[str, Any] = {
        name: (NAMES.predicates if name == "predicate" else NAMES.objects)[label] for name, label in labels.items()
    }
    answers = result.query(**words, top=7)
    assert len(answers) == 7
    for answer, flat in zip(answers, best, strict=True):
        pair, s, p, o = (int(x) for x in torch.unravel_index(torch.tensor(flat), f.shape))
        assert answer.names == NAMES.decode((s, p, o))
        assert answer.boxes[0] == tuple(result.detections.boxes[PAIRS[pair][0]].tolist())
        assert answer.score == pytest.approx(float(f[pair, s, p, o]), rel=1e-4)
        assert answer.probability == pytest.approx(float(joint[pair, s, p, o] / sums[pair]), rel=1e-4)


def test_probabilities_of_two_unknowns_sum_to_one() -> None:
    _, _, result = case("evidence", EXPONENTS)
    answers = result.query(predicate="on", pair=(1, 2), top=16)
    assert sum(answer.probability for answer in answers) == pytest.approx(1)


@pytest.mark.parametrize(
    "parts", [ScoreTerms(prior=False), ScoreTerms(geometry=False), ScoreTerms(selected=False)], ids=str
)
def test_queries_respect_score_terms(parts: ScoreTerms) -> None:
    model, given, _ = case("evidence", {})
    joint, f = dense_parts(model, given, parts)
    result = rank(model, None, given, terms=parts)
    asked = model.score(None, given)
    answers = asked.query(
        subject="dog", object="cup", pair=(2, 0), terms=parts
    )  # seen as dog by cup: the prior would change it
    at = PAIRS.index((2, 0))
    row = joint[at, 0, :, 2]
    assert answers[0].probability == pytest.approx(float(row.max() / row.sum()), rel=1e-4)
    assert answers[0].score == pytest.approx(float(f[at, 0, :, 2].max()), rel=1e-4)
    best = f.flatten(1).max(-1).values.sort(descending=True).values
    np.testing.assert_allclose(result.f_spo, best, rtol=1e-4)


def test_the_terms_of_an_answer_multiply_to_its_score() -> None:
    _, _, result = case("evidence", EXPONENTS)
    record = result.query(predicate="by", top=5).to_dict()
    assert record["given"] == {"predicate": "by"}
    for answer in record["relations"]:
        assert math.prod(answer["parts"].values()) == pytest.approx(answer["score"])
        assert 0 < answer["probability"] <= 1
    assert json.loads(result.query(predicate="by", top=5).to_json()) == record


@pytest.mark.parametrize(("source", "values"), CASES, ids=str)
def test_the_probability_of_a_triplet_is_that_of_its_boxes_its_selection_and_itself_given_its_pair(
    source: str, values: dict[str, Any]
) -> None:
    model, given, _ = case(source, values)
    joint, f = dense_parts(model, given)
    result = rank(model, photo(), given, k=2, top=11)
    for relation, pair in zip(result, rows_of(result), strict=True):
        assert relation.probability == pytest.approx(float(f[pair][relation.triplet] / joint[pair].sum()), rel=1e-4)
    assert [answer["probability"] for answer in result.to_dict()["relations"]] == [
        answer.probability for answer in result
    ]


def bare(
    cp: CPTensor, log_boxes: Tensor, blocks: int = 100, prior: TripletPrior | None = None, values: Any = None
) -> ScoredPairs:
    """An image of 3 boxes, 6 pairs, whose distributions are given."""
    model = model_of("evidence", **(values or {}))
    model.prior = prior
    scored = prepared(model, detections(3))
    parts = [slice(at, at + blocks) for at in range(0, 6, blocks)]
    kept = tuple(ScoredBlock(scored.pairs[rows], cp[rows], None, log_boxes[rows]) for rows in parts)
    return replace(scored, kept=kept)


def random_cp(pairs: int, seed: int = 0) -> CPTensor:
    torch.manual_seed(seed)
    return CPTensor(*(torch.randn(pairs, 3, n, dtype=torch.float64) for n in NAMES.sizes))


@pytest.mark.parametrize("seed", range(6))
def test_the_prior_counts_in_the_choice_of_the_pair(seed: int) -> None:
    """A prior so strong that it decides which pair is likeliest."""
    cp = random_cp(6, seed)
    triplets = torch.tensor([[0, 0, 1], [0, 1, 1], [2, 2, 3], [1, 1, 1]])
    prior = TripletPrior.from_triplets(triplets, NAMES, counts=torch.tensor([500.0, 3, 90, 70]))
    mass = -torch.rand(6, dtype=torch.float64)
    scored = bare(cp, mass, blocks=4, prior=prior)
    cells = torch.cartesian_prod(*(torch.arange(n) for n in NAMES.sizes))
    joint = cp.dense() * prior.log_prob(cells).exp().view(NAMES.sizes)
    pair = int((joint[:, 0, :, 1].sum(-1).log() + mass).argmax())
    plain = int((cp.dense()[:, 0, :, 1].sum(-1).log() + mass).argmax())
    answers = scored.query(subject="dog", object="cat")
    assert set(rows_of(answers)) == {pair}
    expected = (joint[pair, 0, :, 1] / joint[pair, 0, :, 1].sum()).sort(descending=True).values
    np.testing.assert_allclose(np.asarray(answers.probability), expected)
    assert seed != 1 or pair != plain  # in one of the cases the prior decides
    two = scored.query(predicate="by", top=9)
    sums = joint[:, :, 1].sum((1, 2))
    for relation, row in zip(two, rows_of(two), strict=True):
        assert relation.probability == pytest.approx(float(joint[row][relation.triplet] / sums[row]))


@pytest.mark.parametrize("blocks", [1, 2, 4, 100])
def test_equal_answers_are_ordered_by_pair_and_names_in_any_blocks(blocks: int) -> None:
    cp = CPTensor(*(torch.zeros(6, 2, n, dtype=torch.float64) for n in NAMES.sizes))
    scored = bare(cp, torch.zeros(6, dtype=torch.float64), blocks)
    result = scored.rank(2, 7)
    assert [entry[1:] for entry in entries(result)] == [(at // 2, 0, 0, at % 2) for at in range(7)]
    answers = scored.query(predicate="by", top=20)
    assert [entry[1:] for entry in entries(answers)] == [(at // 16, at % 16 // 4, 1, at % 4) for at in range(20)]
    assert set(rows_of(scored.query(subject="dog", object="cup"))) == {0}


def test_an_image_without_pairs_has_no_answers() -> None:
    model = model_of("evidence")
    for n in (0, 1):
        result = model.score(None, detections(n))
        assert len(result.query(predicate="on")) == len(result.query(subject="dog", object="cat")) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "give one or two of subject, predicate and object"),
        ({"subject": "dgo"}, "no object is called 'dgo'; did you mean 'dog'?"),
        ({"predicate": "dog"}, "no predicate is called 'dog'"),
        (
            {"predicate": "on", "pair": (1, 1)},
            r"pair must be two different boxes of the 4, counted from 0, got \(1, 1\)",
        ),
        ({"predicate": "on", "pair": (False, True)}, "pair must be two different boxes"),
    ],
)
def test_invalid_queries_are_refused(words: dict[str, Any], says: str) -> None:
    _, _, result = case("evidence", {})
    with pytest.raises(PolyadicError, match=says):
        result.query(**words)
