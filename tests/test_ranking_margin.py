"""The float32 half of the compiled search: never off by more than its margin, and never the one that decides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from ranking_cases import Compiled, dense_values, pair_weights

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.ranking import rank_relations
from polyadic.ranking.kernel import vectors
from polyadic.ranking.kernel.outline import TINY, expand_32, margin, outline, value_32
from polyadic.ranking.search import weights_of


def drawn(rank: int, t: float, sizes: tuple[int, int, int], seed: int = 0) -> CPTensor:
    generator = torch.Generator().manual_seed(seed)
    return CPTensor(*(torch.randn(5, rank, n, generator=generator) * t for n in sizes))


@pytest.mark.parametrize("t", [0.0, 1.0, 5.0, 30.0, 200.0])
@pytest.mark.parametrize("rank", [1, 3, 10])
def test_float32_is_off_by_less_than_the_margin(rank: int, t: float) -> None:
    """Each entry's value and the product of its norms, against float64; the latter is a bound."""
    sizes = (13, 7, 20)
    cp = drawn(rank, t, sizes)
    compiled = Compiled(cp, torch.zeros(5).double(), weights_of(None, 1.0, cp.device))
    exact = dense_values(compiled.terms).numpy()  # [5, S, P, O]
    found = outline(*compiled.factors, compiled.weight, compiled.seen, np.full(5, 100), 100)
    slack, (to_p, to_o, width) = margin(rank, sum(sizes)), vectors.places(*sizes)
    e = np.zeros((rank, width), np.float32)
    value = np.empty(exact.shape)
    for pair in range(5):
        expand_32(*compiled.factors, pair, found.peaks, e)
        for i, j, k in np.ndindex(sizes):
            value[pair, i, j, k] = value_32(found.gain, pair, e, i, to_p + j, to_o + k)
    norms = found.norms.astype(np.float64)
    s, p, o = norms[:, : sizes[0]], norms[:, to_p : to_p + sizes[1]], norms[:, to_o : to_o + sizes[2]]
    product = s[:, :, None, None] * p[:, None, :, None] * o[:, None, None, :]
    assert (value <= exact * slack + TINY).all()
    assert (value >= exact / slack - TINY).all()
    assert (product >= exact / slack - TINY).all()
    assert (found.bound >= exact.max((1, 2, 3))).all()
    assert found.bar <= np.sort(exact.ravel())[-100]
    if rank == 1:  # Hölder's inequality is an equation
        assert (product <= exact * slack + 1e-12).all()


def test_sums_of_many_classes_stay_within_the_margin() -> None:
    sizes = (4000, 3, 3000)
    cp = drawn(2, 0.5, sizes)
    weights = weights_of(None, 1.0, cp.device)
    compiled = Compiled(cp, torch.zeros(5).double(), weights)
    found = outline(*compiled.factors, compiled.weight, compiled.seen, np.full(5, 100), 1)
    exact = [np.exp(x.double().logsumexp(-1).numpy()) for x in cp.factors]
    peaks = [np.exp(x.double().amax(-1).numpy()) for x in cp.factors]
    gain = np.prod(peaks, 0) / np.prod(exact, 0).sum(-1, keepdims=True)
    assert np.abs(found.gain / gain - 1).max() < (margin(2, sum(sizes)) - 1) / 2


def nearly_equal(seed: int, rank: int, sizes: tuple[int, int, int], base: float) -> CPTensor:
    """Scores that differ in the last bits of float32, if at all: their exponentials are equal, or out of order."""
    generator = np.random.default_rng(seed)
    factors = []
    for n in sizes:
        steps = generator.integers(0, 4, (6, rank, n)).astype(np.float32)
        factors.append(torch.from_numpy(np.float32(base) + steps * np.spacing(np.float32(base))))
    return CPTensor(*factors)


def sorted_entries(values: NDArray[np.float64], cap: int, top: int) -> list[tuple[float, int]]:
    entries = []
    for pair, own in enumerate(values.reshape(len(values), -1)):
        order = np.lexsort((np.arange(own.size), -own))[:cap]
        entries += [(-float(own[at]), pair * own.size + int(at)) for at in order if own[at] > 0]
    return [(-value, index) for value, index in sorted(entries)[:top]]


@pytest.mark.parametrize("base", [0.1, 1.0, 30.0, 3000.0])
@pytest.mark.parametrize("rank", [1, 4])
def test_float64_decides_what_float32_cannot(rank: int, base: float) -> None:
    """Thousands of entries within the rounding of float32, some exactly equal; with and without a prior, and caps."""
    sizes = (9, 7, 12)
    for seed in range(3):
        cp = nearly_equal(seed, rank, sizes, base)
        seen = torch.cartesian_prod(*(torch.arange(0, n, 2) for n in sizes))
        prior = TripletPrior.from_triplets(seen, sizes, counts=torch.arange(len(seen)) % 3)
        for exponent in (0.0, 1.0, 1e-7):  # equal weights, unequal ones, and ones that differ by rounding alone
            weights = weights_of(prior, exponent, cp.device)
            compiled = Compiled(cp, pair_weights(cp, seed) * 1e-7, weights)
            values = dense_values(compiled.terms).numpy()
            for cap, top in ((10**6, 100), (10**6, 700), (3, 15), (1, 4)):
                value, flat = compiled.search(min(cap, values[0].size), top)
                expected = sorted_entries(values, cap, top)
                assert list(zip(value.tolist(), flat.tolist(), strict=True)) == expected


def test_the_order_of_a_ranking_is_that_of_float64() -> None:
    """Two pairs alike but for one unit in the last place of float32: the better one comes first."""
    low = np.float32(5.0)
    high = np.nextafter(low, np.float32(np.inf))
    subject = torch.zeros(2, 1, 6)
    subject[0, 0, 2], subject[1, 0, 2] = float(low), float(high)
    cp = CPTensor(subject, torch.zeros(2, 1, 3), torch.zeros(2, 1, 4))
    ranking = rank_relations(cp, top=2, k=1)
    assert [(r.pair, r.subject) for r in ranking] == [(1, 2), (0, 2)]
    gap = float(ranking.log_score[0] - ranking.log_score[1])
    share = math.exp(5.0) / (math.exp(5.0) + 5)
    assert gap == pytest.approx(float(high - low) * (1 - share), rel=1e-3)
