"""Cases for the tests of ranking: ranks, shapes, flat to very peaked factors, ties, impossible classes, and priors that
agree, contradict or forbid; and the dense scores to compare with.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from oracles import Entry, log_probability_tensor
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.ranking import Ranking
from polyadic.ranking import kernel as kernels
from polyadic.ranking.kernel import vectors
from polyadic.ranking.search import Terms, Weights

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


def dense_values(terms: Terms) -> Tensor:
    a, b, c = terms.a, terms.b, terms.c
    total = torch.zeros(terms.shape, dtype=torch.float64)
    for r in range(a.shape[1]):
        part = a[:, r, :, None, None] * b[:, r, None, :, None] * c[:, r, None, None, :]
        total = part if r == 0 else total + part
    weight = torch.full((math.prod(terms.shape[1:]),), terms.rest, dtype=torch.float64)
    weight[terms.keys] = terms.seen
    return total * weight.view(terms.shape[1:])


class Compiled:
    """The compiled search of one problem, and the products that it compares, expanded for all pairs."""

    def __init__(self, cp: CPTensor, log_pair: Tensor, weights: Weights) -> None:
        self.factors = [x.contiguous().numpy() for x in cp.factors]
        shift = float(log_pair.max()) if bool((log_pair > -math.inf).any()) else 0.0
        self.weight = (log_pair - shift).exp().numpy()
        keys, log_seen = weights.keys.numpy(), weights.log_seen.numpy()
        self.seen = kernels.index_seen(keys, log_seen, weights.log_rest, cp.sizes)
        B, R = self.factors[0].shape[:2]
        peaks = np.empty((B, 3, R), self.factors[0].dtype)
        to_p, to_o, width = vectors.places(*cp.sizes)
        e, gain, scores = np.empty((B, R, width)), np.empty((B, R)), np.full((R, width), -math.inf)
        for pair, weight in enumerate(self.weight):
            for axis, x in enumerate(self.factors):
                vectors.find_peaks(x, pair, axis, peaks)
            kernels.expand(*self.factors, pair, weight, peaks, scores, e[pair], gain[pair])
        e[..., :to_p] *= gain[..., None]
        a, b, c = (torch.from_numpy(e[..., at : at + n]) for at, n in zip((0, to_p, to_o), cp.sizes, strict=True))
        seen = torch.from_numpy(np.exp(log_seen - weights.log_best))
        log_scale = shift + weights.log_best
        self.terms = Terms(a, b, c, a.amax(-1), weights.keys, seen, self.seen.rest, log_scale, logs=False)

    def search(self, k: int | Tensor, top: int) -> tuple[Tensor, Tensor]:
        caps = torch.as_tensor(k).expand(len(self.weight)).contiguous().numpy()
        value, flat = kernels.search(*self.factors, self.weight, self.seen, caps, top)
        return torch.from_numpy(value), torch.from_numpy(flat)
