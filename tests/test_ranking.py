from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import Entry, greedy, log_probability_tensor, ranked
from torch import Tensor

from polyadic import CPTensor, Dedup, PolyadicError, Relations, TripletPrior, Vocabulary, kernels, rank_relations
from polyadic.ranking import tensors
from polyadic.ranking.problem import Problem, Terms, weights_of

CHECKS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CAPS = st.sampled_from([1, 2, 3, 10, None])
TOPS = st.sampled_from([1, 3, 10, 100, 1000])


# Cases: ranks, shapes, flat to very peaked factors, ties, impossible classes, and priors that agree, contradict or
# forbid.


@st.composite
def tensors_of_pairs(draw: st.DrawFn, most: int = 5) -> CPTensor:
    B, R, S, P, O = (draw(st.integers(1, n)) for n in (most, 4, 5, 4, 6))
    t = draw(st.sampled_from([0.0, 1e-3, 1.0, 5.0, 50.0, 3e3]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    factors = [torch.randn(B, R, n, generator=generator, dtype=torch.float64) * t for n in (S, P, O)]
    shape = draw(st.sampled_from(["plain", "copied pairs", "copied classes", "one component", "impossible", "coarse"]))
    for x in factors:
        if shape == "copied pairs":
            x[:] = x[:1].clone()
        elif shape == "copied classes":
            x[:] = x[..., :1].clone()
        elif shape == "one component":
            x[:, 0] += 30
        elif shape == "impossible":
            x[torch.rand(x.shape, generator=generator) < 0.3] = -math.inf
            x[:, 0, 0] = 0.0
        elif shape == "coarse":
            x.div_(max(t, 1)).round_().mul_(math.log(2))
    return CPTensor(*factors)


@st.composite
def priors(draw: st.DrawFn, cp: CPTensor) -> TripletPrior | None:
    kind = draw(st.sampled_from(["none", "few", "many", "all", "contradicting", "no smoothing"]))
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    cells = torch.cartesian_prod(*(torch.arange(n) for n in cp.sizes)).view(-1, 3)
    if kind == "contradicting":  # the rarer in the image, the more frequent in training
        s, p, o = cp.factors
        order = (
            (s[..., None, None] + p[..., None, :, None] + o[..., None, None, :]).logsumexp((0, 1)).flatten().argsort()
        )
        counts = torch.zeros(len(cells), dtype=torch.float64)
        counts[order] = torch.logspace(6, 0, len(cells), dtype=torch.float64)
        return TripletPrior.from_triplets(cells, cp.sizes, counts=counts)
    share = {"few": 0.1, "many": 0.6, "all": 1.1, "no smoothing": 0.5}[kind]
    seen = cells[torch.rand(len(cells), generator=generator) < share]
    seen = seen if len(seen) else cells[:1]
    counts = torch.randint(1, 50, (len(seen),), generator=generator)
    smoothing = 0.0 if kind == "no smoothing" else 1.0
    return TripletPrior.from_triplets(seen, cp.sizes, smoothing=smoothing, counts=counts)


def pair_weights(cp: CPTensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = -3 * torch.rand(cp.batch_shape[0], generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(weight.shape, generator=generator) < 0.2, -math.inf, weight)


def dense_scores(
    cp: CPTensor, prior: TripletPrior | None = None, pair: Tensor | None = None, exponent: float = 1.0
) -> Tensor:
    """[B, S, P, O]: log f_spo of every entry, by the paper's formula."""
    scores = torch.stack([log_probability_tensor(*(x[b] for x in cp.factors)) for b in range(cp.batch_shape[0])])
    if prior is not None and exponent:
        cells = torch.cartesian_prod(*(torch.arange(n) for n in cp.sizes)).view(-1, 3)
        scores = scores + exponent * prior.log_prob(cells).view(cp.sizes)
    return scores if pair is None else scores + pair[:, None, None, None]


def rows(found: Relations) -> list[Entry]:
    return [(r.log_score, r.pair, r.subject, r.predicate, r.object) for r in found]


def assert_same_list(found: list[Entry], expected: list[Entry], scores: Tensor, near: float = 1e-9) -> None:
    """Score by score, and entry by entry where the oracle's neighbours are further apart than rounding."""
    assert len(found) == len(expected)
    assert len({x[1:] for x in found}) == len(found)
    gap = near * max([1.0] + [abs(x[0]) for x in expected])
    for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine[0] == pytest.approx(theirs[0], abs=gap)
        assert mine[0] == pytest.approx(float(scores[mine[1:]]), abs=gap)
        others = [abs(x[0] - theirs[0]) for n, x in enumerate(expected) if n != at]
        if at < len(expected) - 1 and min(others, default=1.0) > gap:
            assert mine[1:] == theirs[1:]


@CHECKS
@given(st.data())
def test_the_list_is_that_of_sorting_the_dense_tensor(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(TOPS)
    exponent = data.draw(st.sampled_from([1.0, 1.0, 0.25, 0.0]))
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    found = rank_relations(cp, prior, log_selected=pair, k=k, top=top, prior_exponent=exponent)
    scores = dense_scores(cp, prior, pair, exponent)
    assert_same_list(rows(found), ranked(scores, k, top), scores)
    parts = found.log_cp + found.log_prior + found.log_selected + found.log_boxes + found.log_repeat
    torch.testing.assert_close(parts, found.log_score)
    torch.testing.assert_close(found.log_cp, cp[found.pair].log_prob(found.triplet), rtol=1e-9, atol=1e-9)


# Bit for bit: both searches against sorting the same products in the same order, ties included.


def dense_values(terms: Terms) -> Tensor:
    a, b, c = terms.a, terms.b, terms.c
    total = torch.zeros(terms.shape, dtype=torch.float64)
    for r in range(a.shape[1]):
        part = a[:, r, :, None, None] * b[:, r, None, :, None] * c[:, r, None, None, :]
        total = part if r == 0 else total + part
    weight = torch.full((math.prod(terms.shape[1:]),), terms.rest, dtype=torch.float64)
    weight[terms.keys] = terms.seen
    return total * weight.view(terms.shape[1:])


def compiled_search(terms: Terms, k: int, top: int) -> tuple[Tensor, Tensor]:
    keys, weight = terms.keys.numpy(), terms.seen.numpy()
    seen = kernels.by_subject(keys, weight, terms.shape[1:])
    a, b, c, gain = (x.numpy() for x in (terms.a, terms.b, terms.c, terms.gain))
    value, flat = kernels.best_entries(a, b, c, gain, terms.rest, keys, weight, seen, k, top)
    return torch.from_numpy(value), torch.from_numpy(flat)


@CHECKS
@given(st.data())
def test_both_searches_equal_the_sorted_products_bit_for_bit_with_ties_by_index(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    exponent = data.draw(st.sampled_from([1.0, 0.5] if prior is None or not prior.smoothing else [1.0, 0.5, -1.0]))
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    terms = Problem(cp, pair, weights_of(prior, exponent, cp.device)).terms(logs=False)
    most = math.prod(terms.shape)
    k, top = data.draw(CAPS) or most, min(data.draw(TOPS), most)
    values = dense_values(terms)
    expected = ranked(torch.where(values > 0, values, -math.inf), k, top)
    index = [int(np.ravel_multi_index(x[1:], terms.shape)) for x in expected]
    for search in (compiled_search, tensors.search):
        value, flat = search(terms, min(k, top), top)
        assert flat.tolist() == index
        assert value.tolist() == [x[0] for x in expected]


@CHECKS
@given(st.data())
def test_the_search_in_logs_equals_the_sorted_dense_tensor(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs())
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(TOPS)
    pair = pair_weights(cp, data.draw(st.integers(0, 99)))
    terms = Problem(cp, pair, weights_of(prior, 1.0, cp.device)).terms(logs=True)
    value, flat = tensors.search(terms, k or math.prod(terms.shape), top)
    found = [
        (score, *(int(n) for n in np.unravel_index(x, terms.shape)))
        for score, x in zip(terms.log_score(value).tolist(), flat.tolist(), strict=True)
    ]
    scores = dense_scores(cp, prior, pair)
    assert_same_list(found, ranked(scores, k, top), scores)


@pytest.mark.parametrize("blocks", [1, 64])
def test_the_torch_search_in_small_blocks_gives_the_same(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(30, 3, n, generator=generator) for n in (12, 7, 9)))
    terms = Problem(cp, torch.zeros(30).double(), weights_of(None, 1.0, cp.device)).terms(logs=False)
    expected = [x.tolist() for x in compiled_search(terms, 5, 60)]
    monkeypatch.setattr(tensors, "_BLOCK", blocks)
    assert [x.tolist() for x in tensors.search(terms, 5, 60)] == expected


# The stated rule for ties, and the adversaries by name.


@pytest.mark.parametrize("k", [1, 4, None])
@pytest.mark.parametrize("with_prior", [False, True])
def test_all_equal_scores_come_in_index_order(k: int | None, with_prior: bool) -> None:
    cp = CPTensor(torch.zeros(6, 3, 4), torch.zeros(6, 3, 3), torch.zeros(6, 3, 5))
    prior = TripletPrior.from_triplets(torch.empty(0, 3).long(), (4, 3, 5)) if with_prior else None
    found = [x[1:] for x in rows(rank_relations(cp, prior, k=k, top=100))]
    order = [tuple(x) for x in torch.cartesian_prod(*(torch.arange(n) for n in (4, 3, 5))).tolist()]
    assert found == [(pair, *x) for pair in range(6) for x in order[:k]][:100]


def test_scores_beyond_float64_are_ranked_in_logs() -> None:
    """Three pairs with one probable triplet each: the fourth place is e^-3000 or so below, and still ranked."""
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(3, 2, n, generator=generator, dtype=torch.float64) * 1e4 for n in (4, 3, 5)))
    found = rank_relations(cp, top=50)
    scores = dense_scores(cp)
    assert float(found.log_score.min()) < -1500
    assert bool(found.log_score.isfinite().all())
    assert_same_list(rows(found), ranked(scores, None, 50), scores)


def test_impossible_triplets_and_pairs_are_left_out() -> None:
    subject = torch.tensor([[[0.0, -math.inf]], [[0.0, 0.0]], [[0.0, 0.0]]])
    cp = CPTensor(subject, torch.zeros(3, 1, 2), torch.zeros(3, 1, 2))
    found = rank_relations(cp, log_selected=torch.tensor([0.0, 0.0, -math.inf]), top=100)
    assert [r.pair for r in found].count(0) == 4
    assert [r.pair for r in found].count(1) == 8
    assert len(found) == 12
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
    found = rank_relations(cp, prior, selected, boxes, prior_exponent=0.5, selected_exponent=2, boxes_exponent=4)
    scores = dense_scores(cp, prior, 2 * selected + 4 * boxes, 0.5)
    assert_same_list(rows(found), ranked(scores, None, 100), scores)
    torch.testing.assert_close(found.log_boxes, 4 * boxes[found.pair])
    torch.testing.assert_close(found.log_prior, 0.5 * prior.log_prob(found.triplet))
    ignored = rank_relations(cp, log_selected=torch.full((6,), -math.inf), selected_exponent=0)
    assert rows(ignored) == rows(rank_relations(cp))


def test_a_prior_can_be_used_again_with_another_exponent() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator).double() for n in (4, 3, 5)))
    seen = torch.stack([torch.randint(n, (40,), generator=generator) for n in (4, 3, 5)], -1)
    prior = TripletPrior.from_triplets(seen, (4, 3, 5), counts=torch.randint(1, 99, (40,), generator=generator))
    for exponent in (1.0, -1.0, 0.3, -0.2, 1.0):
        found = rank_relations(cp, prior, prior_exponent=exponent, k=3)
        scores = dense_scores(cp, prior, exponent=exponent)
        assert_same_list(rows(found), ranked(scores, 3, 100), scores)


def test_float32_and_half_factors_rank_as_their_exact_values_do() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        factors = [torch.randn(6, 2, n, generator=generator).to(dtype) for n in (4, 3, 5)]
        found, exact = (
            rank_relations(CPTensor(*factors)),
            rank_relations(CPTensor(*(x.double() for x in factors))),
        )
        assert rows(found) == rows(exact)


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
    found = rank_relations(cp, prior, pair, k=k, top=top, labels=labels, k_unit="predicate")
    scores = dense_scores(cp, prior, pair)
    allowed = torch.full_like(scores, -math.inf)
    for b, (s, o) in enumerate(labels.tolist()):
        allowed[b, s, :, o] = scores[b, s, :, o]
    assert_same_list(rows(found), ranked(allowed, k, top), scores)


def test_known_labels_rank_by_the_conditional_through_given() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator).double() for n in (4, 3, 5)))
    labels = torch.tensor([[b % 4, b % 5] for b in range(6)])
    known = cp.given(subject=labels[:, 0], object=labels[:, 1])
    found = rank_relations(known, labels=labels, k_unit="predicate")
    conditional = cp.log_conditional("predicate", subject=labels[:, 0], object=labels[:, 1])
    torch.testing.assert_close(found.log_score, conditional[found.pair, found.triplet[:, 1]])
    assert [x[1:] for x in rows(found)] == [x[1:] for x in rows(rank_relations(known))]


# Repetitions.


@settings(CHECKS, max_examples=80)
@given(st.data())
def test_dedup_is_the_greedy_list_over_all_entries(data: st.DataObject) -> None:
    cp = data.draw(tensors_of_pairs(most=6))
    prior = data.draw(priors(cp))
    k, top = data.draw(CAPS), data.draw(st.sampled_from([1, 3, 10, 40]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    places = torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [30, 30, 40, 40]])
    boxes = places[torch.randint(3, (cp.batch_shape[0], 2), generator=generator)]
    iou, weight = data.draw(st.sampled_from([0.45, 0.9])), data.draw(st.sampled_from([0.1, 0.5, 0.0, 1.0]))
    pair = -torch.rand(len(boxes), generator=generator, dtype=torch.float64)  # no exact ties between copies
    found = rank_relations(cp, prior, pair, k=k, top=top, dedup=Dedup(boxes, iou, weight))
    scores = dense_scores(cp, prior, pair)
    expected = greedy(scores, boxes, iou, weight, k, top)
    separate = torch.tensor([x[0] for x in expected]).diff().abs()
    assert [x[0] for x in rows(found)] == pytest.approx([x[0] for x in expected], abs=1e-6)
    if len(separate) == 0 or float(separate.min()) > 1e-6:
        assert [x[1:] for x in rows(found)][:-1] == [x[1:] for x in expected][:-1]


def test_dedup_makes_room_for_the_second_best_of_a_copied_pair() -> None:
    factors = (torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0]]))
    cp = CPTensor(*(x.expand(2, *x.shape) for x in factors))
    boxes = torch.tensor([[[0.0, 0, 10, 10], [5, 5, 9, 9]], [[0.0, 0, 10, 11], [5, 5, 9, 10]]])
    plain = [x[1:] for x in rows(rank_relations(cp, log_boxes=torch.tensor([0.0, -0.1]), k=1))]
    assert plain == [(0, 0, 0, 0), (1, 0, 0, 0)]
    found = rank_relations(cp, log_boxes=torch.tensor([0.0, -0.1]), k=1, dedup=Dedup(boxes))
    assert [x[1:] for x in rows(found)] == [(0, 0, 0, 0), (1, 0, 1, 0)]
    assert found.log_repeat.tolist() == [0, 0]
    both = rank_relations(cp, log_boxes=torch.tensor([0.0, -0.1]), dedup=Dedup(boxes), top=8)
    assert both.log_repeat.tolist() == pytest.approx([math.log(0.1) * p for p in both.pair.tolist()])


def test_dedup_of_exactly_equal_scores_ends() -> None:
    cp = CPTensor(torch.zeros(40, 2, 30), torch.zeros(40, 2, 20), torch.zeros(40, 2, 30))
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 9, 9]]).expand(40, 2, 4)
    found = rank_relations(cp, k=1, dedup=Dedup(boxes), top=40)
    assert [x[1:] for x in rows(found)][:3] == [(0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 0, 2)]
    assert found.log_repeat.tolist() == [0] * 40


# Where it is called from.


def test_inference_mode_before_and_after_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(6, 2, n, generator=generator) for n in (4, 3, 5)]
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]]), (4, 3, 5))
    with torch.inference_mode():
        inside = rows(rank_relations(CPTensor(*factors), prior))
    assert rows(rank_relations(CPTensor(*factors), prior)) == inside
    scores = torch.zeros(1, requires_grad=True)
    (prior.log_prob(torch.tensor([[0, 0, 0]])) * scores).sum().backward()


def test_threads_with_one_prior_do_not_disturb_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = torch.stack([torch.randint(n, (60,), generator=generator) for n in (9, 7, 8)], -1)
    prior = TripletPrior.from_triplets(seen, (9, 7, 8))
    cps = [CPTensor(*(torch.randn(20, 3, n, generator=generator) for n in (9, 7, 8))) for _ in range(24)]
    alone = [rows(rank_relations(cp, prior, k=3)) for cp in cps]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda cp: rows(rank_relations(cp, prior, k=3)), cps))
    assert together == alone


def test_the_first_exponent_does_not_spoil_the_next() -> None:
    """1e-17 makes all weights equal, 2000 makes most of them 0: neither may decide the order that is kept."""
    cp = CPTensor(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(1, 1, 20))
    triplets = torch.tensor([[0, 0, i] for i in range(20)])
    counts = torch.tensor([10] * 16 + [1, 50, 50, 100])
    for first in (2000.0, 1e-17):
        prior = TripletPrior.from_triplets(triplets, (1, 1, 20), counts=counts)
        rank_relations(cp, prior, prior_exponent=first, top=1)
        assert [r.object for r in rank_relations(cp, prior, top=3)] == [19, 17, 18]


@dataclass
class OwnPrior:
    """A prior of the user's: any object with these four. Not hashable."""

    sizes: tuple[int, int, int]
    keys: Tensor
    log_seen: Tensor
    log_rest: float


def test_any_object_with_the_four_parts_is_a_prior_and_is_checked() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator) for n in (4, 3, 5)))
    seen = torch.stack([torch.randint(n, (40,), generator=generator) for n in (4, 3, 5)], -1)
    good = TripletPrior.from_triplets(seen, (4, 3, 5))
    own = OwnPrior((4, 3, 5), good.keys, good.log_seen, good.log_rest)
    assert rows(rank_relations(cp, own)) == rows(rank_relations(cp, good))
    with pytest.raises(PolyadicError, match="rise strictly"):
        rank_relations(cp, replace(own, keys=own.keys.flip(0)))
    with pytest.raises(PolyadicError, match="must not be NaN"):
        rank_relations(cp, replace(own, log_seen=own.log_seen * math.nan))


def test_names_come_with_the_answer_and_a_prior_of_other_names_is_refused() -> None:
    names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
    cp = CPTensor(torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 1, 1), torch.tensor([[[0.0, 1.0]]]))
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 1]]), names)
    found = rank_relations(cp, prior, vocabulary=names)
    assert found.names()[0] == ("person", "ride", "horse")
    assert repr(found).startswith("Relations(4: person ride horse -")
    others = Vocabulary(objects=("person", "zebra"), predicates=("ride",))
    with pytest.raises(PolyadicError, match=r"another vocabulary \(object 1 is 'horse' against 'zebra'\)"):
        rank_relations(cp, prior, vocabulary=others)
    with pytest.raises(PolyadicError, match="no names are known"):
        rank_relations(cp, prior).names()


def test_pairs_without_weight_do_not_send_the_image_to_the_slow_search(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(20, 2, n, generator=generator) for n in (4, 3, 5)))
    selected = torch.zeros(20)
    selected[3] = -math.inf
    searched: list[int] = []
    plain = tensors.search

    def counted(terms: Terms, k: int, top: int) -> tuple[Tensor, Tensor]:
        searched.append(terms.shape[0])
        return plain(terms, k, top)

    monkeypatch.setattr(tensors, "search", counted)
    assert len(rank_relations(cp, log_selected=selected, k=1)) == 19
    selected[3] = -1e9  # a mask that underflows: that pair alone is searched in logs
    found = rank_relations(cp, log_selected=selected, k=1)
    assert searched == [0, 1]
    assert found[19].pair == 3
    assert float(found.log_cp[19]) == pytest.approx(float(cp[3].log_prob(found.triplet[19])), abs=1e-5)


def test_a_weight_that_all_pairs_share_changes_no_order_however_small() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator) for n in (4, 3, 5)))
    plain = [x[1:] for x in rows(rank_relations(cp))]
    for weight in (-1e3, -1e20, float(torch.finfo(torch.float32).min)):
        assert [x[1:] for x in rows(rank_relations(cp, log_selected=torch.full((6,), weight)))] == plain


def test_numpy_numbers_will_do_for_k_and_top() -> None:
    cp = CPTensor(torch.zeros(6, 1, 4), torch.zeros(6, 1, 3), torch.zeros(6, 1, 5))
    assert len(rank_relations(cp, k=np.int64(2), top=np.int32(5))) == 5


# Size, and bad input.


def test_a_vocabulary_whose_dense_tensor_cannot_exist_is_ranked() -> None:
    sizes = (5000, 500, 5000)  # 50 GB per pair in float32
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 5, n, generator=generator) * 2 for n in sizes))
    seen = torch.stack([torch.randint(n, (10_000,), generator=generator) for n in sizes], -1)
    for prior in (None, TripletPrior.from_triplets(seen, sizes)):
        found = rank_relations(cp, prior, top=20)
        problem = Problem(cp, torch.zeros(6).double(), weights_of(prior, 1.0, cp.device))
        value, flat = tensors.search(problem.terms(logs=False), 20, 20)
        assert found.log_score.tolist() == pytest.approx(problem.terms(logs=False).log_score(value).tolist(), abs=1e-12)
        key = (found.triplet[:, 0] * 500 + found.triplet[:, 1]) * 5000 + found.triplet[:, 2]
        assert (found.pair * math.prod(sizes) + key).tolist() == flat.tolist()


CP = CPTensor(torch.zeros(2, 1, 4), torch.zeros(2, 1, 3), torch.zeros(2, 1, 5))
PRIOR = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]]), (4, 3, 5))
LABELS = torch.zeros(2, 2, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"k": 0}, "k must be a whole number from 1 up or None for no limit, got 0"),
        ({"k": -1}, "k must be"),
        ({"k": 1.5}, "k must be"),
        ({"top": 0}, "top must be a whole number from 1 up, got 0"),
        (
            {"prior": TripletPrior.from_triplets(LABELS.new_zeros(1, 3), (4, 3, 6))},
            r"sizes \(4, 3, 6\).*\(4, 3, 5\).*same vocabulary",
        ),
        ({"log_selected": torch.zeros(3)}, r"log_selected must be one number per pair \[2\], got \[3\]"),
        ({"log_selected": torch.tensor([0.0, math.nan])}, "logarithm of a probability.*pair 1 has nan"),
        ({"log_boxes": torch.tensor([math.inf, 0.0])}, "pair 0 has inf"),
        ({"log_boxes": torch.tensor([0.0, 0.9])}, "logarithm of a probability, at most 0.*pair 1 has 0.89"),
        ({"log_selected": torch.tensor([0.0, -math.inf]), "selected_exponent": -1.0}, "pair 1 has -inf"),
        ({"log_selected": [0.0, 0.0]}, "log_selected must be a torch tensor, got list; convert with torch.as_tensor"),
        ({"labels": np.zeros((2, 2)), "k_unit": "predicate"}, "labels must be a torch tensor, got ndarray"),
        ({"prior": PRIOR, "prior_exponent": math.nan}, "prior_exponent must be a finite number"),
        ({"prior_exponent": None}, "prior_exponent must be a finite number, got None"),
        ({"prior": torch.zeros(2)}, "expected a CPTensor, a TripletPrior or None.*got CPTensor, Tensor"),
        ({"dedup": True}, "got CPTensor, NoneType and bool"),
        ({"vocabulary": Vocabulary(("a", "b", "c", "d"), ("x", "y", "z"))}, r"vocabulary has sizes \(4, 3, 4\)"),
        (
            {
                "prior": TripletPrior.from_triplets(LABELS.new_zeros(1, 3), (4, 3, 5), smoothing=0),
                "prior_exponent": -1.0,
            },
            "smoothing above 0",
        ),
        ({"k_unit": "predicate"}, "without labels"),
        ({"k_unit": "verb"}, "k_unit is 'triplet'"),
        ({"labels": LABELS[:1], "k_unit": "predicate"}, r"integers \[2, 2\]"),
        ({"labels": LABELS + 4, "k_unit": "predicate"}, r"below \(S, O\) = \(4, 5\).*\[4, 4\] for pair 0"),
        ({"labels": LABELS - 1, "k_unit": "predicate"}, "not be negative"),
        ({"dedup": Dedup(torch.zeros(3, 2, 4))}, "boxes of 3 pairs"),
    ],
)
def test_bad_input_is_one_clear_line(call: dict[str, Any], says: str) -> None:
    with pytest.raises(PolyadicError, match=says) as error:
        rank_relations(CP, **call)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("unchecked")
def test_bad_batches_and_boxes_are_one_clear_line() -> None:
    with pytest.raises(PolyadicError, match="pairs of one image"):
        rank_relations(CP[0])
    with pytest.raises(PolyadicError, match=r"expected a CPTensor.*got TripletPrior, CPTensor"):
        rank_relations(PRIOR, CP)  # type: ignore[arg-type]
    for boxes, options, says in [
        ([0.0], {}, "torch tensor, got list"),
        (torch.zeros(2, 4), {}, r"\[B, 2, 4\]"),
        (torch.full((2, 2, 4), math.nan), {}, "finite"),
        (torch.zeros(2, 2, 4), {"weight": 2.0}, "0..1"),
    ]:
        with pytest.raises(PolyadicError, match=says):
            Dedup(boxes, **options)  # type: ignore[arg-type]
