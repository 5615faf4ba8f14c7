from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import agree, prepared
from oracles import probability_tensor, ranked
from torch import Tensor

from polyadic.boxes import CONTEXT, context_features, ordered_pairs
from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.model.box_prior import GeometryPrior
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredBlock, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import Vocabulary

SIZES = (4, 3, 5)


def prior_of(rank: int = 7, sizes: tuple[int, int, int] = SIZES) -> GeometryPrior:
    torch.manual_seed(0)
    prior = GeometryPrior(sizes, rank=rank, hidden=8, embedding=6).double().eval()
    for classes in (prior.subject, prior.object):
        torch.nn.init.normal_(classes.own)
    return prior


def some_geometry(n: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(n, CONTEXT, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rates(cp: CPTensor, at: int) -> Tensor:
    """[S, P, O]: the tensor as it is, not normalised."""
    return torch.einsum("ri,rj,rk->ijk", *(x[at].detach().double().exp() for x in cp.factors))


def test_each_pair_gets_a_cp_tensor_with_one_predicate_per_component() -> None:
    prior = prior_of()
    cp = prior(some_geometry())
    assert (cp.batch_shape, cp.rank, cp.sizes) == ((6,), 7, SIZES)
    assert not torch.allclose(rates(cp, 0), rates(cp, 1))
    assert torch.equal((cp.predicate > -torch.inf).sum(-1), torch.ones(6, 7, dtype=torch.long))
    assert torch.equal(cp.predicate[2].argmax(-1), prior.predicates)
    assert prior(some_geometry(0)).batch_shape == (0,)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_every_predicate_has_a_component(rank: int) -> None:
    prior = prior_of(rank)
    assert prior.rank == max(rank, 3)
    prior.fit_scale(some_geometry(), torch.tensor([1, 1, 1, 1]))
    assert set(prior.predicates.tolist()) == {0, 1, 2}


def test_frequent_predicates_have_more_components() -> None:
    prior = prior_of(8)
    predicates = torch.tensor([0] * 19 + [1] * 9 + [2])  # with one added to each count: 20, 10, 2
    prior.fit_scale(some_geometry(400), predicates)
    assert torch.bincount(prior.predicates).tolist() == [5, 2, 1]  # d'Hondt: 20/2, 20/3, 20/4 and 10/2, 20/5
    started = prior.weights.bias.detach().exp()
    assert [float(started[prior.predicates == p].sum() * 400) for p in range(3)] == pytest.approx([20, 10, 2])


def test_geometry_is_standardised_by_the_fitted_scale() -> None:
    geometry, predicates = some_geometry(40), torch.arange(40) % 3
    shift = torch.linspace(-50, 50, CONTEXT, dtype=torch.float64)
    plain, moved = prior_of(), prior_of()
    plain.fit_scale(geometry, predicates)
    moved.fit_scale(geometry * 30 + shift, predicates)
    for a, b in zip(plain(geometry).factors, moved(geometry * 30 + shift).factors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    column = geometry[:, 3]
    torch.testing.assert_close(plain.mean[3], column.mean())
    torch.testing.assert_close(plain.scale[3], column.sub(column.mean()).square().mean().sqrt())


def test_fitting_to_one_pair_or_equal_pairs_is_finite() -> None:
    prior = prior_of()
    prior.fit_scale(some_geometry(1), torch.tensor([2]))
    assert all((x < torch.inf).all() and not x.isnan().any() for x in prior(some_geometry(3)).factors)


def test_the_loss_is_the_poisson_likelihood() -> None:
    """A pair may have no annotation, one, or several, the same one twice included."""
    prior, geometry = prior_of(), some_geometry(5)
    labels = torch.tensor([[0, 1], [3, 4], [2, 0], [3, 4], [1, 1]])
    annotations = [(1, 2), (1, 0), (3, 1), (3, 1), (4, 0)]
    expected = 0.0
    for at, (s, o) in enumerate(labels.tolist()):
        row = rates(prior(geometry), at)[s, :, o]
        counts = [sum((at, p) == item for item in annotations) for p in range(3)]
        expected += sum(float(rate) - n * math.log(rate) for rate, n in zip(row, counts, strict=True))
    rows, predicates = (torch.tensor(column) for column in zip(*annotations, strict=True))
    result = prior.nll(geometry, labels, rows, predicates)
    assert float(result.detach()) == pytest.approx(expected, rel=1e-5)
    result.backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in prior.parameters())


def test_the_product_with_the_networks_tensor_is_ranked_as_the_dense_product() -> None:
    names = Vocabulary(objects=("a", "b", "c", "d"), predicates=("x", "y", "z"))
    settings = {"sources": ("evidence",), "head.hidden": 2, "selector.hidden": 2, "boxes.epochs": 1, "head.rank": 2}
    small = {"geometry.hidden": 4, "geometry.rank": 5, "geometry.embedding": 3}
    torch.manual_seed(0)
    model = RelationModel(Config().change(**settings, **small), names).eval()
    assert model.geometry is not None
    pairs, generator = ordered_pairs(3), torch.Generator().manual_seed(3)
    boxes = torch.rand(3, 2, 2, generator=generator).sort(1).values.flatten(1) * 80
    geometry = context_features(boxes, torch.tensor([[80.0, 80]]).expand(3, 2), pairs)
    model.geometry.fit_scale(geometry, torch.tensor([0, 0, 1]))
    factors = (torch.randn(len(pairs), 2, n, dtype=torch.float64, generator=generator) for n in names.sizes)
    cp = CPTensor(*factors)
    with torch.no_grad():
        rate = model.geometry(geometry)
    block = ScoredBlock(pairs, cp, None, None, rate)
    given = Detections("a", boxes.double().numpy(), np.zeros(3, np.int64), np.ones(3), (80.0, 80.0))
    scores = replace(prepared(model, given), kept=(block,))
    psi_c = [probability_tensor(*(x[at] for x in cp.factors)) for at in range(len(pairs))]
    expected = torch.stack([item * rates(rate, at) for at, item in enumerate(psi_c)])
    totals = expected.sum((1, 2, 3), keepdim=True)
    assert bool((totals < 1).any())
    best = ranked((expected / totals.clamp_min(1)).log(), None, 30)
    agree(scores.rank(top=30), best)
    plain = ranked(torch.stack(psi_c).log(), None, 30)
    agree(scores.rank(top=30, terms=ScoreTerms(geometry=False)), plain)


def test_it_learns_how_often_pairs_are_annotated_and_with_what() -> None:
    """Two kinds of geometry, two pairs of labels: predicate and rate depend on both."""
    torch.manual_seed(0)
    n = 400
    kind, which = torch.arange(n) % 2, torch.arange(n) // 2 % 2
    labels = torch.tensor([[0, 1], [2, 3]])[which]
    often = torch.tensor([[1.0, 0.25], [0.5, 0.75]])[kind, which]  # share of pairs that are annotated
    named = torch.tensor([[0, 1], [2, 0]])[kind, which]
    rows = ((torch.arange(n) // 4 % 4 + 0.5) / 4 < often).nonzero()[:, 0]

    def draw() -> Tensor:
        geometry = torch.randn(n, CONTEXT) * 0.1
        geometry[:, 0] += kind
        return geometry

    prior = GeometryPrior(SIZES, rank=5, hidden=16, dropout=0.0, embedding=4)
    prior.fit_scale(draw(), named[rows])
    optimiser = torch.optim.Adam(prior.parameters(), 0.02)
    for _ in range(200):
        loss = prior.nll(draw(), labels, rows, named[rows]) / n
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        cp = prior(draw())
    for a in (0, 1):
        for b in (0, 1):
            at = int(((kind == a) & (which == b)).nonzero()[0])
            s, o = labels[at].tolist()
            result = rates(cp, at)[s, :, o]
            assert float(result[named[at]]) == pytest.approx(float(often[at]), abs=0.1)
            assert float(result.sum() - result[named[at]]) < 0.1
