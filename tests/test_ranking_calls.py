"""Ranking as it is called: repetitions, inference mode, threads, own priors, names, and bad input."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import greedy
from ranking_cases import CAPS, CHECKS, dense_scores, priors, rows, tensors_of_pairs
from refusals import refused
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.ranking import rank_relations
from polyadic.ranking import search as tensors
from polyadic.ranking.dedup import Dedup
from polyadic.ranking.search import Terms
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


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
    result = rank_relations(cp, prior, pair, k=k, top=top, dedup=Dedup(boxes, iou, weight))
    scores = dense_scores(cp, prior, pair)
    expected = greedy(scores, boxes, iou, weight, k, top)
    separate = torch.tensor([x[0] for x in expected]).diff().abs()
    assert [x[0] for x in rows(result)] == pytest.approx([x[0] for x in expected], abs=1e-6)
    if len(separate) == 0 or float(separate.min()) > 1e-6:
        assert [x[1:] for x in rows(result)][:-1] == [x[1:] for x in expected][:-1]


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


def test_a_first_exponent_does_not_affect_the_next() -> None:
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


def test_any_object_with_the_prior_protocol_is_accepted_and_checked() -> None:
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


def test_rankings_have_names_and_a_prior_of_another_vocabulary_is_refused() -> None:
    names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
    cp = CPTensor(torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 1, 1), torch.tensor([[[0.0, 1.0]]]))
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 1]]), names)
    result = rank_relations(cp, prior, vocabulary=names)
    assert result.names()[0] == ("person", "ride", "horse")
    assert repr(result).startswith("Ranking(4: person ride horse -")
    others = Vocabulary(objects=("person", "zebra"), predicates=("ride",))
    with pytest.raises(PolyadicError, match=r"another vocabulary \(object 1 is 'horse' against 'zebra'\)"):
        rank_relations(cp, prior, vocabulary=others)
    with pytest.raises(PolyadicError, match="class names are unknown"):
        rank_relations(cp, prior).names()


def test_impossible_pairs_do_not_trigger_the_search_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
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
    result = rank_relations(cp, log_selected=selected, k=1)
    assert searched == [0, 1]
    assert result[19].pair == 3
    assert float(result.log_cp[19]) == pytest.approx(float(cp[3].log_prob(result.triplet[19])), abs=1e-5)


def test_a_weight_shared_by_all_pairs_does_not_change_the_order() -> None:
    generator = torch.Generator().manual_seed(0)
    cp = CPTensor(*(torch.randn(6, 2, n, generator=generator) for n in (4, 3, 5)))
    plain = [x[1:] for x in rows(rank_relations(cp))]
    for weight in (-1e3, -1e20, float(torch.finfo(torch.float32).min)):
        assert [x[1:] for x in rows(rank_relations(cp, log_selected=torch.full((6,), weight)))] == plain


# Bad input: one clear line.

CP = CPTensor(torch.zeros(2, 1, 4), torch.zeros(2, 1, 3), torch.zeros(2, 1, 5))
PRIOR = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]]), (4, 3, 5))
LABELS = torch.zeros(2, 2, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"k": 0}, "k must be a whole number from 1 up or None for no limit, got 0"),
        ({"k": 1.5}, "k must be"),
        ({"k": torch.tensor([1, 2, 3])}, r"k of each pair .*\[2\], got torch.int64 \[3\]"),
        ({"k": torch.tensor([1, 0])}, "from 0 up"),
        ({"top": 0}, "top must be a whole number from 1 up, got 0"),
        (
            {"prior": TripletPrior.from_triplets(LABELS.new_zeros(1, 3), (4, 3, 6))},
            r"sizes \(4, 3, 6\).*\(4, 3, 5\).*same vocabulary",
        ),
        ({"log_selected": torch.zeros(3)}, r"log_selected must be one number per pair \[2\], got \[3\]"),
        ({"log_boxes": torch.tensor([0.0, 0.9])}, "logarithm of a probability, at most 0.*pair 1 has 0.89"),
        ({"log_selected": torch.tensor([0.0, -math.inf]), "selected_exponent": -1.0}, "pair 1 has -inf"),
        ({"log_selected": [0.0, 0.0]}, "log_selected must be a torch tensor, got list; convert with torch.as_tensor"),
        ({"prior": PRIOR, "prior_exponent": math.nan}, "prior_exponent must be a finite number"),
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
        ({"labels": LABELS[:1], "k_unit": "predicate"}, r"integers \[2, 2\]"),
        ({"labels": LABELS + 4, "k_unit": "predicate"}, r"below \(S, O\) = \(4, 5\).*\[4, 4\] for pair 0"),
        ({"dedup": Dedup(torch.zeros(3, 2, 4))}, "boxes of 3 pairs"),
    ],
)
def test_invalid_input_is_refused_in_one_line(call: dict[str, Any], says: str) -> None:
    refused(says, lambda: rank_relations(CP, **call))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rank_relations(CP[0]), "pairs of one image"),
        (lambda: rank_relations(PRIOR, CP), "expected a CPTensor.*got TripletPrior, CPTensor"),  # type: ignore[arg-type]
        (lambda: Dedup([0.0]), "torch tensor, got list"),  # type: ignore[arg-type]
        (lambda: Dedup(torch.zeros(2, 4)), r"\[B, 2, 4\]"),
        (lambda: Dedup(torch.full((2, 2, 4), math.nan)), "finite"),
        (lambda: Dedup(torch.zeros(2, 2, 4), weight=2.0), "0..1"),
    ],
)
def test_invalid_batches_and_boxes_are_refused(call: Any, says: str) -> None:
    refused(says, call)
