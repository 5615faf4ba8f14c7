from __future__ import annotations

import math

import pytest
import torch
from oracles import probability_tensor, ranked
from torch import Tensor

from polyadic import CPTensor, Vocabulary
from polyadic.boxes import GEOMETRY, ordered_pairs, pair_geometry
from polyadic.config import Config
from polyadic.geometry import GeometryPrior
from polyadic.model import PairScores, Parts, RelationModel

SIZES = (4, 3, 5)


def prior_of(discount: float = 0.0, rank: int = 3) -> GeometryPrior:
    torch.manual_seed(0)
    return GeometryPrior(SIZES, rank, hidden=8, discount=discount).double().eval()


def some_geometry(n: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(n, GEOMETRY, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_triplets(n: int = 50, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([(torch.rand(n, generator=generator) ** 2 * size).long() for size in SIZES], 1)


def dense(cp: CPTensor, at: int) -> Tensor:
    return probability_tensor(*(x[at].detach() for x in cp.factors))


def test_it_gives_a_distribution_over_triplets_for_each_pair() -> None:
    cp = prior_of()(some_geometry())
    assert (cp.batch_shape, cp.rank, cp.sizes) == ((6,), 3, SIZES)
    assert not torch.allclose(dense(cp, 0), dense(cp, 1))
    assert prior_of(0.5).weight(some_geometry(0)).batch_shape == (0,)


def test_it_sees_geometry_as_standardised_by_what_it_was_fitted_to() -> None:
    geometry, triplets = some_geometry(40), some_triplets(40)
    shift = torch.linspace(-50, 50, GEOMETRY, dtype=torch.float64)
    plain, moved = prior_of(), prior_of()
    plain.fit_scale(geometry, triplets)
    moved.fit_scale(geometry * 30 + shift, triplets)
    for a, b in zip(plain(geometry).factors, moved(geometry * 30 + shift).factors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    column = geometry[:, 3]
    torch.testing.assert_close(plain.mean[3], column.mean())
    torch.testing.assert_close(plain.scale[3], column.sub(column.mean()).square().mean().sqrt())


def test_one_pair_or_equal_ones_can_be_fitted_to() -> None:
    prior = prior_of()
    prior.fit_scale(some_geometry(1), some_triplets(1))
    assert all(x.isfinite().all() for x in prior(some_geometry(3)).factors)


@pytest.mark.parametrize("discount", [0.0, 0.4, 1.0])
def test_the_discount_divides_out_class_frequencies(discount: float) -> None:
    prior, triplets, geometry = prior_of(discount), some_triplets(), some_geometry()
    prior.fit_scale(geometry, triplets)
    full, weight = prior(geometry), prior.weight(geometry)
    counts = [[1 + sum(t[a] == i for t in triplets.tolist()) for i in range(n)] for a, n in enumerate(SIZES)]
    divisor = torch.ones(SIZES, dtype=torch.float64)
    for s, p, o in torch.cartesian_prod(*(torch.arange(n) for n in SIZES)).tolist():
        shares = (counts[a][i] / sum(counts[a]) for a, i in enumerate((s, p, o)))
        divisor[s, p, o] = math.prod(shares) ** discount
    for at in range(len(geometry)):
        expected = dense(full, at) / divisor
        torch.testing.assert_close(dense(weight, at), expected / expected.sum(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_the_product_with_the_networks_tensor_is_ranked_as_the_dense_product(discount: float) -> None:
    names = Vocabulary(objects=("a", "b", "c", "d"), predicates=("x", "y", "z"))
    settings = {"sources": ("evidence",), "head.hidden": 2, "selector.hidden": 2, "boxes.epochs": 1, "head.rank": 2}
    small = {"geometry.hidden": 4, "geometry.rank": 3, "geometry.discount": discount}
    torch.manual_seed(0)
    model = RelationModel(Config().change(**settings, **small), names).eval()
    assert model.geometry is not None
    pairs, generator = ordered_pairs(3), torch.Generator().manual_seed(3)
    boxes = torch.rand(3, 2, 2, generator=generator).sort(1).values.flatten(1) * 80
    frame = torch.tensor([[80.0, 80]]).expand(len(pairs), 2)
    geometry = pair_geometry(boxes[pairs[:, 0]], boxes[pairs[:, 1]], frame)
    triplets = torch.randint(3, (20, 3), generator=generator)
    model.geometry.fit_scale(geometry, triplets)
    factors = (torch.randn(len(pairs), 2, n, dtype=torch.float64, generator=generator) for n in names.sizes)
    cp = CPTensor(*factors)
    with torch.no_grad():
        grown = model.geometry.weight(geometry)
    scores = PairScores(boxes, pairs, cp, None, None, grown)
    expected = torch.stack([dense(cp, at) * dense(grown, at) for at in range(len(pairs))])
    expected = expected / expected.sum((1, 2, 3), keepdim=True)  # the product is normalised
    best = ranked(expected.log(), None, 30)
    found = model.rank(scores, top=30)
    assert [(r.pair, *r.triplet) for r in found] == [entry[1:] for entry in best]
    torch.testing.assert_close(found.log_score, torch.tensor([entry[0] for entry in best], dtype=torch.float64))
    plain = ranked(torch.stack([dense(cp, at) for at in range(len(pairs))]).log(), None, 30)
    without = model.rank(scores, top=30, parts=Parts(geometry=False))
    assert [(r.pair, *r.triplet) for r in without] == [entry[1:] for entry in plain]


def test_it_learns_a_known_distribution() -> None:
    """Two kinds of geometry, each with its own two triplets: P(t | geometry) is .75 and .25."""
    torch.manual_seed(0)
    table = torch.tensor([[[0, 0, 1], [1, 1, 0]], [[2, 2, 3], [0, 2, 4]]])
    kinds, rare = torch.arange(80) % 2, torch.arange(80) // 2 % 4 == 0
    triplets = table[kinds, rare.long()]

    def draw() -> Tensor:
        geometry = torch.randn(80, GEOMETRY) * 0.1
        geometry[:, 0] += kinds
        return geometry

    prior = GeometryPrior(SIZES, rank=4, hidden=16, dropout=0.0)
    prior.fit_scale(draw(), triplets)
    optimiser = torch.optim.Adam(prior.parameters(), 0.01)
    for _ in range(250):
        loss = prior(draw()).nll(triplets).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        cp = prior(draw())
    for kind in (0, 1):
        found = [float(cp.log_prob(table[kind, at].expand(80, 3)).exp()[kinds == kind].mean()) for at in (0, 1)]
        assert found == pytest.approx([0.75, 0.25], abs=0.05)
