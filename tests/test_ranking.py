from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ranked
from ranking_cases import (
    CAPS,
    CHECKS,
    TOPS,
    Compiled,
    assert_same_list,
    dense_scores,
    dense_values,
    pair_weights,
    priors,
    rows,
    tensors_of_pairs,
)

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.ranking import rank_relations
from polyadic.ranking import search as tensors
from polyadic.ranking.dedup import Dedup
from polyadic.ranking.kernel import vectors
from polyadic.ranking.search import RankingProblem, weights_of


@CHECKS
@given(st.data())
def test_the_ranking_equals_sorting_the_dense_tensor(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(TOPS)
    exponent = data.draw(st.sampled_from([1.0, 1.0, 0.25, 0.0]))
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    result = rank_relations(cp, prior, log_selected=pair, k=k, top=top, prior_exponent=exponent)
    scores = dense_scores(cp, prior, pair, exponent)
    assert_same_list(rows(result), ranked(scores, k, top), scores)
    parts = result.log_cp + result.log_prior + result.log_selected + result.log_boxes + result.log_repeat
    torch.testing.assert_close(parts, result.log_score)
    torch.testing.assert_close(result.log_cp, cp[result.pair].log_prob(result.triplet), rtol=1e-9, atol=1e-9)


# Bit for bit: both searches against sorting the same products in the same order, ties included.


@CHECKS
@given(st.data())
def test_both_searches_equal_the_sorted_products_bit_for_bit_with_ties_by_index(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    exponent = data.draw(st.sampled_from([1.0, 0.5] if prior is None or not prior.smoothing else [1.0, 0.5, -1.0]))
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    compiled = Compiled(cp, pair, weights_of(prior, exponent, cp.device))
    terms = compiled.terms
    most = math.prod(terms.shape)
    k, top = data.draw(CAPS) or most, min(data.draw(TOPS), most)
    values = dense_values(terms)
    expected = ranked(torch.where(values > 0, values, -math.inf), k, top)
    index = [int(np.ravel_multi_index(x[1:], terms.shape)) for x in expected]
    for value, flat in (compiled.search(min(k, top), top), tensors.search(terms, min(k, top), top)):
        assert flat.tolist() == index
        assert value.tolist() == [x[0] for x in expected]


@settings(CHECKS, max_examples=60)
@given(st.data())
def test_both_searches_respect_caps_per_pair_bit_for_bit(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    weights = weights_of(data.draw(priors(cp)), 1.0, cp.device)
    compiled = Compiled(cp, pair_weights(cp, data.draw(st.integers(0, 99))), weights)
    terms = compiled.terms
    caps = torch.tensor([data.draw(st.sampled_from([1, 2, 5, 17, 40])) for _ in range(terms.shape[0])])
    top = data.draw(st.sampled_from([1, 3, 10, 40]))
    values = dense_values(terms).flatten(1)
    entries = []
    for pair, cap in enumerate(caps.tolist()):
        own = sorted((-value, pair * values.shape[1] + at) for at, value in enumerate(values[pair].tolist()) if value)
        entries += own[:cap]
    expected = sorted(entries)[:top]
    caps = caps.clamp_max(top)
    for value, flat in (compiled.search(caps, top), tensors.search(terms, caps, top)):
        assert list(zip((-value).tolist(), flat.tolist(), strict=True)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 5, 11])
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 4.0, 40.0])
def test_the_compiled_search_is_exact_at_sizes_that_fill_vectors(rank: int, t: float, dtype: torch.dtype) -> None:
    sizes, generator = (37, 21, 45), torch.Generator().manual_seed(rank)
    cp = CPTensor(*((torch.randn(7, rank, n, generator=generator) * t).to(dtype) for n in sizes))
    seen = torch.stack([torch.randint(n, (900,), generator=generator) for n in sizes], -1)
    counts = torch.rand(900, generator=generator).pow(-1).clamp(max=5000).round()
    prior = TripletPrior.from_triplets(seen, sizes, counts=counts)
    for exponent in (0.0, 1.0, 0.15, -0.5):
        compiled = Compiled(cp, pair_weights(cp, rank), weights_of(prior, exponent, cp.device))
        values = dense_values(compiled.terms).flatten(1)
        for cap, top in ((100, 100), (400, 400), (3, 20), (1, 5)):
            best, place = values.sort(dim=1, descending=True, stable=True)
            flat = (place + torch.arange(7)[:, None] * values.shape[1])[:, :cap].flatten()
            best, order = best[:, :cap].flatten().sort(descending=True, stable=True)
            kept = best[:top] > 0
            value, index = compiled.search(cap, top)
            assert index.tolist() == flat[order][:top][kept].tolist()
            assert value.tolist() == best[:top][kept].tolist()


def test_the_exponentials_of_the_compiled_search_are_accurate() -> None:
    x = -np.concatenate([np.linspace(0, 87, 100_001), np.geomspace(1e-300, 1, 1000)])
    exact = np.exp(x)
    assert np.abs(np.array([vectors.exp(y) for y in x]) / exact - 1).max() < 5e-16
    single = x.astype(np.float32)
    found = np.array([vectors.exp_32(y) for y in single])
    assert np.abs(found / np.exp(single.astype(np.float64)) - 1).max() < 2.5e-5
    assert [vectors.exp(y) for y in (0.0, -0.0, -709.0, -math.inf)] == [1, 1, 0, 0]
    assert vectors.exp_32(np.float32(-math.inf)) < 1e-37  # an upper bound: not 0


@CHECKS
@given(st.data())
def test_the_search_in_logs_equals_the_sorted_dense_tensor(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(TOPS)
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    terms = RankingProblem(cp, pair, weights_of(prior, 1.0, cp.device)).terms(logs=True)
    value, flat = tensors.search(terms, k or math.prod(terms.shape), top)
    result = [
        (score, *(int(n) for n in np.unravel_index(x, terms.shape)))
        for score, x in zip(terms.log_score(value).tolist(), flat.tolist(), strict=True)
    ]
    scores = dense_scores(cp, prior, pair)
    assert_same_list(result, ranked(scores, k, top), scores)


@pytest.mark.parametrize("blocks", [1, 64])
def test_the_torch_search_in_small_blocks_gives_the_same(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(30, 3, n, generator=generator) for n in (12, 7, 9)))
    compiled = Compiled(cp, torch.zeros(30).double(), weights_of(None, 1.0, cp.device))
    expected = [x.tolist() for x in compiled.search(5, 60)]
    monkeypatch.setattr(tensors, "_BLOCK", blocks)
    assert [x.tolist() for x in tensors.search(compiled.terms, 5, 60)] == expected


# The stated rule for ties, and the adversaries by name.


@pytest.mark.parametrize("k", [1, 4, None])
@pytest.mark.parametrize("with_prior", [False, True])
def test_all_equal_scores_come_in_index_order(k: int | None, with_prior: bool) -> None:
    cp = CPTensor(torch.zeros(6, 3, 4), torch.zeros(6, 3, 3), torch.zeros(6, 3, 5))
    prior = TripletPrior.from_triplets(torch.empty(0, 3).long(), (4, 3, 5)) if with_prior else None
    result = [x[1:] for x in rows(rank_relations(cp, prior, k=k, top=100))]
    order = [tuple(x) for x in torch.cartesian_prod(*(torch.arange(n) for n in (4, 3, 5))).tolist()]
    assert result == [(pair, *x) for pair in range(6) for x in order[:k]][:100]


def test_scores_beyond_float64_are_ranked_in_logs() -> None:
    """Three pairs with one probable triplet each: the fourth place is e^-3000 or so below, and still ranked."""
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(3, 2, n, generator=generator, dtype=torch.float64) * 1e4 for n in (4, 3, 5)))
    result = rank_relations(cp, top=50)
    scores = dense_scores(cp)
    assert float(result.log_score.min()) < -1500
    assert bool(result.log_score.isfinite().all())
    assert_same_list(rows(result), ranked(scores, None, 50), scores)


def test_scores_that_are_denormal_in_float64_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(2, 2, n, generator=generator, dtype=torch.float64) for n in (4, 3, 5)))
    pair = torch.tensor([0.0, -735.0], dtype=torch.float64)
    scores = dense_scores(cp, pair=pair)
    assert_same_list(rows(rank_relations(cp, log_selected=pair, top=120)), ranked(scores, None, 120), scores)


def test_impossible_triplets_and_pairs_are_left_out() -> None:
    subject = torch.tensor([[[0.0, -math.inf]], [[0.0, 0.0]], [[0.0, 0.0]]])
    cp = CPTensor(subject, torch.zeros(3, 1, 2), torch.zeros(3, 1, 2))
    result = rank_relations(cp, log_selected=torch.tensor([0.0, 0.0, -math.inf]), top=100)
    assert [r.pair for r in result].count(0) == 4
    assert [r.pair for r in result].count(1) == 8
    assert len(result) == 12
    nothing = rank_relations(cp, log_selected=torch.full((3,), -math.inf))
    assert len(nothing) == 0


def test_no_pairs_give_no_relations() -> None:
    cp = CPTensor(torch.zeros(0, 2, 4), torch.zeros(0, 2, 3), torch.zeros(0, 2, 5))
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]]), (4, 3, 5))
    assert len(rank_relations(cp, prior, torch.zeros(0), torch.zeros(0), dedup=Dedup(torch.zeros(0, 2, 4)))) == 0
    assert len(rank_relations(cp, labels=torch.zeros(0, 2).long(), k_unit="predicate")) == 0


def test_exponents_weigh_each_part() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator) for n in (4, 3, 5)))
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]] * 9 + [[3, 2, 4]]), (4, 3, 5))
    selected, boxes = (-torch.rand(6, generator=generator).double() for _ in range(2))
    result = rank_relations(cp, prior, selected, boxes, prior_exponent=0.5, selected_exponent=2, boxes_exponent=4)
    scores = dense_scores(cp, prior, 2 * selected + 4 * boxes, 0.5)
    assert_same_list(rows(result), ranked(scores, None, 100), scores)
    torch.testing.assert_close(result.log_boxes, 4 * boxes[result.pair])
    torch.testing.assert_close(result.log_prior, 0.5 * prior.log_prob(result.triplet))
    ignored = rank_relations(cp, log_selected=torch.full((6,), -math.inf), selected_exponent=0)
    assert rows(ignored) == rows(rank_relations(cp))


def test_a_prior_can_be_used_again_with_another_exponent() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator).double() for n in (4, 3, 5)))
    seen = torch.stack([torch.randint(n, (40,), generator=generator) for n in (4, 3, 5)], -1)
    prior = TripletPrior.from_triplets(seen, (4, 3, 5), counts=torch.randint(1, 99, (40,), generator=generator))
    for exponent in (1.0, -1.0, 0.3, -0.2, 1.0):
        result = rank_relations(cp, prior, prior_exponent=exponent, k=3)
        scores = dense_scores(cp, prior, exponent=exponent)
        assert_same_list(rows(result), ranked(scores, 3, 100), scores)


def test_float32_and_half_factors_rank_as_their_exact_values_do() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        factors = [torch.randn(6, 2, n, generator=generator).to(dtype) for n in (4, 3, 5)]
        result, exact = (
            rank_relations(CPTensor(*factors)),
            rank_relations(CPTensor(*(x.double() for x in factors))),
        )
        assert rows(result) == rows(exact)


# Fixed labels.


@CHECKS
@given(st.data())
def test_with_labels_only_predicates_compete(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(TOPS)
    B, (S, _, O) = cp.batch_shape[0], cp.sizes
    labels = torch.tensor([[b % S, (2 * b + 1) % O] for b in range(B)])
    pair = pair_weights(cp, 0)
    result = rank_relations(cp, prior, pair, k=k, top=top, labels=labels, k_unit="predicate")
    scores = dense_scores(cp, prior, pair)
    allowed = torch.full_like(scores, -math.inf)
    for b, (s, o) in enumerate(labels.tolist()):
        allowed[b, s, :, o] = scores[b, s, :, o]
    assert_same_list(rows(result), ranked(allowed, k, top), scores)


def test_known_labels_rank_by_the_conditional_through_given() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator).double() for n in (4, 3, 5)))
    labels = torch.tensor([[b % 4, b % 5] for b in range(6)])
    known = cp.given(subject=labels[:, 0], object=labels[:, 1])
    result = rank_relations(known, labels=labels, k_unit="predicate")
    conditional = cp.log_conditional("predicate", subject=labels[:, 0], object=labels[:, 1])
    torch.testing.assert_close(result.log_score, conditional[result.pair, result.triplet[:, 1]])
    assert [x[1:] for x in rows(result)] == [x[1:] for x in rows(rank_relations(known))]


def test_a_vocabulary_whose_dense_tensor_cannot_exist_is_ranked() -> None:
    sizes = (5000, 500, 5000)  # 50 GB per pair in float32
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 5, n, generator=generator) * 2 for n in sizes))
    seen = torch.stack([torch.randint(n, (10_000,), generator=generator) for n in sizes], -1)
    for prior in (None, TripletPrior.from_triplets(seen, sizes)):
        result = rank_relations(cp, prior, top=20)
        problem = RankingProblem(cp, torch.zeros(6).double(), weights_of(prior, 1.0, cp.device))
        value, flat = tensors.search(problem.terms(logs=False), 20, 20)
        assert result.log_score.tolist() == pytest.approx(
            problem.terms(logs=False).log_score(value).tolist(), abs=1e-12
        )
        key = (result.triplet[:, 0] * 500 + result.triplet[:, 1]) * 5000 + result.triplet[:, 2]
        assert (result.pair * math.prod(sizes) + key).tolist() == flat.tolist()
