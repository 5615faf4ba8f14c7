"""The same triplet on nearly the same boxes: the answer bit for bit, ties included, and how little is searched."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import greedy
from ranking_cases import CAPS, CHECKS, rows
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.ranking import rank_relations
from polyadic.ranking.dedup import Dedup, Floats, Ints, deduplicate

PLACES = torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10], [30, 30, 40, 40], [5, 5, 5, 5]])


@st.composite
def images(draw: st.DrawFn) -> tuple[CPTensor, Tensor]:
    """Pairs on few boxes, one of them empty; half of the images with exactly equal scores within and between pairs."""
    B, R, S, P, O = (draw(st.integers(1, n)) for n in (9, 3, 4, 3, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    factors = [torch.randn(B, R, n, generator=generator, dtype=torch.float64) for n in (S, P, O)]
    if draw(st.booleans()):
        factors = [x[:1].round().expand(B, R, -1) * math.log(2) for x in factors]
    return CPTensor(*factors), PLACES[torch.randint(len(PLACES), (B, 2), generator=generator)]


def every_score(cp: CPTensor) -> Tensor:
    """[B, S, P, O]: of all entries, as the search has them to the last bit."""
    B, sizes = cp.batch_shape[0], cp.sizes
    everything = rank_relations(cp, top=B * math.prod(sizes))
    scores = torch.empty(B, *sizes, dtype=torch.float64)
    scores[(everything.pair, *everything.triplet.T)] = everything.log_score
    return scores


@settings(CHECKS, max_examples=120)
@given(st.data())
def test_the_ranking_is_the_greedy_list_bit_for_bit_with_ties_by_index(data: st.DataObject) -> None:
    cp, boxes = data.draw(images())
    k, top = data.draw(CAPS), data.draw(st.sampled_from([1, 2, 5, 20, 60]))
    iou, weight = data.draw(st.sampled_from([0.45, 0.9, 1.0])), data.draw(st.sampled_from([0.1, 0.5, 0.0, 1.0]))
    result = rank_relations(cp, k=k, top=top, dedup=Dedup(boxes, iou, weight))
    assert rows(result) == greedy(every_score(cp), boxes, iou, weight, k, top)


@pytest.mark.parametrize("k", [1, 4, None])
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_many_copies_of_one_pair_are_ranked_as_by_the_greedy_oracle(k: int | None, weight: float) -> None:
    generator = torch.Generator().manual_seed(1)
    factors = [torch.randn(1, 2, n, generator=generator, dtype=torch.float64) for n in (5, 4, 6)]
    cp = CPTensor(*(x + 0.01 * torch.randn(25, *x.shape[1:], generator=generator) for x in factors))
    boxes = PLACES[:2].expand(25, 2, 4)
    result = rank_relations(cp, k=k, top=40, dedup=Dedup(boxes, weight=weight))
    assert rows(result) == greedy(every_score(cp), boxes, 0.45, weight, k, 40)


def test_a_cap_of_each_pair_counts_what_is_taken() -> None:
    generator = torch.Generator().manual_seed(2)
    cp = CPTensor(*(torch.randn(4, 2, n, generator=generator, dtype=torch.float64) for n in (3, 4, 5)))
    caps, boxes = torch.tensor([1, 5, 2, 9]), PLACES[:2].expand(4, 2, 4)
    plain, without = rank_relations(cp, k=caps), every_score(cp)
    for pair, cap in enumerate(caps.tolist()):
        best = without[pair].flatten().sort(descending=True).values[:cap]
        assert plain.log_score[plain.pair == pair].tolist() == best.tolist()
    result = rank_relations(cp, k=caps, dedup=Dedup(boxes, weight=0.0))
    assert result.pair.bincount().tolist() == caps.tolist()
    assert len(result.triplet.unique(dim=0)) == len(result)


def test_labels_with_a_cap_of_each_pair_keep_the_best_predicates() -> None:
    generator = torch.Generator().manual_seed(3)
    cp = CPTensor(*(torch.randn(3, 2, n, generator=generator, dtype=torch.float64) for n in (3, 6, 4)))
    labels = torch.tensor([[0, 1], [2, 3], [2, 3]])
    result = rank_relations(cp, k=torch.tensor([2, 1, 50]), labels=labels, k_unit="predicate")
    assert result.pair.bincount().tolist() == [2, 1, 6]
    boxes = PLACES[torch.tensor([[0, 3], [0, 3], [1, 3]])]
    apart = rank_relations(cp, k=1, labels=labels, k_unit="predicate", dedup=Dedup(boxes, weight=0.0))
    own = [cp.log_prob(torch.tensor([[s, p, o] for s, o in labels.tolist()])) for p in range(6)]
    scores = torch.full((3, *cp.sizes), -math.inf, dtype=torch.float64)
    for pair, (s, o) in enumerate(labels.tolist()):
        scores[pair, s, :, o] = torch.stack(own)[:, pair]
    assert [x[1:] for x in rows(apart)] == [x[1:] for x in greedy(scores, boxes, 0.45, 0.0, 1, 100)]


class Asked:
    """A search over given scores [B, triplets] that remembers what it was asked for."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, k: Ints, top: int) -> tuple[Floats, Ints]:
        self.calls.append((k.tolist(), top))
        best, place = self.scores.sort(dim=-1, descending=True, stable=True)
        inside = torch.arange(best.shape[1]) < torch.from_numpy(k)[:, None]
        flat = (place + torch.arange(len(best))[:, None] * best.shape[1])[inside]
        order = best[inside].argsort(descending=True, stable=True)[:top]
        return best[inside][order].numpy(), flat[order].numpy()


def test_disjoint_pairs_are_searched_once_and_no_deeper_than_without_dedup() -> None:
    search = Asked(torch.randn(3, 5000, generator=torch.Generator().manual_seed(4)).double())
    boxes = torch.stack([torch.stack([PLACES[0] + 50 * n, PLACES[3]]) for n in range(3)])
    deduplicate(search, Dedup(boxes), 5000, np.full(3, 2), 100)
    assert search.calls == [([2, 2, 2], 6)]


def test_a_pair_is_searched_as_deep_as_the_pairs_near_it_can_reach_into_it() -> None:
    search = Asked(torch.randn(4, 5000, generator=torch.Generator().manual_seed(5)).double())
    near, far = PLACES[[0, 3]], PLACES[[3, 0]]
    boxes = torch.stack([near, far, near + 1, far + 100])
    score, flat, lost = deduplicate(search, Dedup(boxes), 5000, np.array([3, 4, 5, 6]), 100)
    assert search.calls == [([8, 4, 8, 6], 26)]
    assert np.bincount(flat // 5000).tolist() == [3, 4, 5, 6]
    assert len(score) == len(lost) == 18


def test_an_image_deeper_than_the_first_pool_is_searched_again() -> None:
    """All pairs say the same: of 20 entries per triplet all but the first lose, and the first pool runs dry."""
    one = torch.randn(1, 300, generator=torch.Generator().manual_seed(6)).double()
    search = Asked(one.expand(20, 300))
    boxes = PLACES[:2].expand(20, 2, 4)
    score, flat, lost = deduplicate(search, Dedup(boxes, weight=0.0), 300, np.full(20, 300), 7)
    assert len(search.calls) > 1
    assert all(deep <= sum(wide) for wide, deep in search.calls)
    assert flat.tolist() == one[0].argsort(descending=True)[:7].tolist()
    assert (score.tolist(), lost.tolist()) == (one[0].sort(descending=True).values[:7].tolist(), [0.0] * 7)
