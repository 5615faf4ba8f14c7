"""Cases for the tests of ranking: ranks, shapes, flat to very peaked factors, ties, impossible classes, and priors that
agree, contradict or forbid; and the dense scores to compare with.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from oracles import Entry, log_probability_tensor
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.ranking import Ranking

CHECKS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CAPS = st.sampled_from([1, 2, 3, 10, None])
TOPS = st.sampled_from([1, 3, 10, 100, 1000])


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


def rows(result: Ranking) -> list[Entry]:
    return [(r.log_score, r.pair, r.subject, r.predicate, r.object) for r in result]


def assert_same_list(result: list[Entry], expected: list[Entry], scores: Tensor, near: float = 1e-9) -> None:
    """Score by score, and entry by entry where no other cell is within rounding: a cap may choose either of two."""
    assert len(result) == len(expected)
    assert len({x[1:] for x in result}) == len(result)
    gap = near * max([1.0] + [abs(x[0]) for x in expected])
    for mine, theirs in zip(result, expected, strict=True):
        assert mine[0] == pytest.approx(theirs[0], abs=gap)
        assert mine[0] == pytest.approx(float(scores[mine[1:]]), abs=gap)
        if ((scores - theirs[0]).abs() <= gap).sum() == 1:
            assert mine[1:] == theirs[1:]
