from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from cp_cases import SIZES, random_cp, random_triplets
from oracles import gradient, log_probability_tensor, probability_tensor
from refusals import refused
from torch import Tensor

from polyadic.cp import CPTensor

ALL = torch.cartesian_prod(*(torch.arange(n) for n in SIZES))
BATCHES: list[tuple[int, ...]] = [(), (0,), (1,), (6,), (2, 3), (2, 0, 3)]


def oracle(cp: CPTensor) -> Tensor:
    """[B, S, P, O] by the paper's formula, pair by pair."""
    flat = [x.detach().reshape(-1, *x.shape[-2:]) for x in cp.factors]
    return torch.stack([probability_tensor(*(x[b] for x in flat)) for b in range(len(flat[0]))])


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_dense_equals_the_probability_tensor_of_the_paper(rank: int) -> None:
    cp = random_cp(6, rank=rank)
    torch.testing.assert_close(cp.dense(), oracle(cp), rtol=0, atol=1e-14)


@pytest.mark.parametrize("rank", [1, 3])
def test_log_prob_log_z_and_nll_equal_the_dense_tensor(rank: int) -> None:
    cp = random_cp(6, rank=rank)
    y = oracle(cp)
    for triplet in ALL:
        expected = y[(slice(None), *triplet)].log()
        torch.testing.assert_close(cp.log_prob(triplet.expand(6, 3)), expected)
        torch.testing.assert_close(cp.nll(triplet.expand(6, 3)), -expected)
    unnormalised = sum(torch.einsum("bi,bj,bk->bijk", *(x[:, r].exp() for x in cp.factors)) for r in range(rank))
    assert isinstance(unnormalised, Tensor)
    torch.testing.assert_close(cp.log_z().exp(), unnormalised.sum((1, 2, 3)))


def test_many_triplets_per_pair_are_scored_at_once() -> None:
    cp = random_cp(6)
    many = cp.log_prob(ALL.expand(6, *ALL.shape))
    torch.testing.assert_close(many.exp().view(6, *SIZES), oracle(cp))


@pytest.mark.parametrize("batch", BATCHES)
def test_any_batch_shape(batch: tuple[int, ...]) -> None:
    cp, one = random_cp(*batch, rank=2), random_triplets(*batch)
    flat = random_cp(math.prod(batch), rank=2) if batch else random_cp(1, rank=2)
    y = oracle(flat).reshape(*batch, *SIZES) if flat.batch_shape[0] else torch.zeros(*batch, *SIZES).double()
    torch.testing.assert_close(cp.dense(), y)
    assert cp.log_z().shape == batch
    assert cp.log_prob(one).shape == batch
    assert cp.nll(one).shape == batch
    assert cp.nll(one[..., None, :].expand(*batch, 7, 3)).shape == batch
    assert cp.mixture().log_weight.shape == (*batch, 2)
    torch.testing.assert_close(cp.log_marginal("predicate").exp(), y.sum((-3, -1)))
    torch.testing.assert_close(cp.log_marginal("object", "subject").exp(), y.sum(-2).transpose(-1, -2))
    assert cp.log_conditional("predicate", subject=1, object=2).shape == (*batch, 3)
    assert cp.sample(2).shape == (*batch, 2, 3)
    assert cp.log_prob(cp.sample(2)).shape == (*batch, 2)
    assert cp.product(cp).batch_shape == batch


def test_mixture_weights_and_factors_are_distributions_that_rebuild_y() -> None:
    cp = random_cp(6)
    mixture = cp.mixture()
    for part in mixture:
        torch.testing.assert_close(part.exp().sum(-1), torch.ones(part.shape[:-1], dtype=torch.float64))
    rebuilt = torch.einsum("br,bri,brj,brk->bijk", *(x.exp() for x in mixture))
    torch.testing.assert_close(rebuilt, oracle(cp))


@pytest.mark.parametrize(
    "names", [n for k in (1, 2) for n in itertools.permutations(("subject", "predicate", "object"), k)]
)
def test_marginals_equal_sums_of_the_dense_tensor(names: tuple[Any, ...]) -> None:
    cp = random_cp(6)
    letters = {"subject": "i", "predicate": "j", "object": "k"}
    expected = torch.einsum(f"bijk->b{''.join(letters[n] for n in names)}", oracle(cp))
    torch.testing.assert_close(cp.log_marginal(*names).exp(), expected)


def test_conditionals_equal_those_of_the_dense_tensor() -> None:
    cp, y = random_cp(6), oracle(random_cp(6))
    for i, j in itertools.product(range(SIZES[0]), range(SIZES[1])):
        expected = y[:, i, j] / y[:, i, j].sum(-1, keepdim=True)
        torch.testing.assert_close(cp.log_conditional("object", subject=i, predicate=j).exp(), expected)
    for i, k in itertools.product(range(SIZES[0]), range(SIZES[2])):
        expected = y[:, i, :, k] / y[:, i, :, k].sum(-1, keepdim=True)
        torch.testing.assert_close(cp.log_conditional("predicate", subject=i, object=k).exp(), expected)
        given = cp.given(subject=torch.full((6,), i), object=torch.full((6,), k)).dense()
        torch.testing.assert_close(given[:, i, :, k], expected)
        torch.testing.assert_close(given.sum((1, 2, 3)), torch.ones(6, dtype=torch.float64))
    labels = random_triplets(6)[:, 1]
    expected = torch.stack([y[b, :, j] / y[b, :, j].sum() for b, j in enumerate(labels.tolist())])
    torch.testing.assert_close(cp.log_conditional("subject", "object", predicate=labels).exp(), expected)


def test_samples_follow_the_distribution() -> None:
    cp = random_cp(2, t=1.5)
    n = 40_000
    drawn = cp.sample(n, torch.Generator().manual_seed(0))  # [2, n, 3]
    y = oracle(cp)
    for b in range(2):
        s, p, o = drawn[b].unbind(-1)
        count = torch.bincount((s * SIZES[1] + p) * SIZES[2] + o, minlength=math.prod(SIZES)).double()
        expected = y[b].flatten() * n
        chi2 = float(((count - expected) ** 2 / expected).sum())
        assert chi2 < 59 + 5 * math.sqrt(2 * 59)  # 59 degrees of freedom, five deviations


def test_sampling_repeats_with_a_seed_and_never_draws_probability_zero() -> None:
    cp = random_cp(3)
    subject = cp.subject.clone()
    subject[..., 1] = -math.inf
    cp = CPTensor(subject, cp.predicate, cp.object)
    first, again = (cp.sample(500, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert not (first[..., 0] == 1).any()


def test_product_is_the_normalised_elementwise_product_of_rank_r_times_r() -> None:
    a, b = random_cp(6, rank=2), random_cp(6, rank=3, seed=5)
    both = a.product(b)
    expected = oracle(a) * oracle(b)
    assert both.rank == 6
    torch.testing.assert_close(both.dense(), expected / expected.sum((1, 2, 3), keepdim=True))
    shared = random_cp(rank=3, seed=5)  # one tensor for all pairs
    torch.testing.assert_close(a.product(shared).dense()[4], a[4].product(shared).dense())


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_heaviest_components_are_the_mixture_without_the_others(rank: int) -> None:
    cp = random_cp(6, rank=5)
    weight, *parts = (x.exp() for x in cp.mixture())
    kept = weight.argsort(-1, descending=True)[:, :rank]
    expected = torch.zeros(6, *SIZES, dtype=torch.float64)
    for b, components in enumerate(kept.tolist()):
        for r in components:
            expected[b] += weight[b, r] * torch.einsum("i,j,k->ijk", *(x[b, r] for x in parts))
    torch.testing.assert_close(cp.heaviest(rank).dense(), expected / expected.sum((1, 2, 3), keepdim=True))
    refused("whole number from 1", cp.heaviest, 0)


# The gradient: the supplement's formula, our closed form, autograd and finite differences agree.


def test_the_mean_of_several_is_the_mean_of_their_dense_tensors() -> None:
    parts = [random_cp(2, 3, rank=rank, t=2.0, seed=rank) for rank in (1, 4, 2)]
    for some in (parts, parts[:1]):
        mean = CPTensor.mean(some)
        assert mean.rank == sum(cp.rank for cp in some)
        expected = torch.stack([oracle(cp) for cp in some]).mean(0).view(2, 3, *SIZES)
        torch.testing.assert_close(mean.dense(), expected, rtol=0, atol=1e-14)
    large = CPTensor(parts[0].subject + 1e4, parts[0].predicate - 300, parts[0].object)  # a constant has no weight
    torch.testing.assert_close(
        CPTensor.mean([large, *parts[1:]]).dense(), CPTensor.mean(parts).dense(), rtol=1e-9, atol=0
    )


def test_the_gradient_of_a_mean_reaches_all_of_its_tensors() -> None:
    parts = [random_cp(3, rank=rank, seed=rank, grad=True) for rank in (2, 3)]
    factors = [x for cp in parts for x in cp.factors]
    triplet = random_triplets(3)
    result = torch.autograd.grad(CPTensor.mean(parts).nll(triplet).sum(), factors)
    slow = -torch.stack([cp.log_prob(triplet).exp() for cp in parts]).mean(0).log().sum()
    for mine, expected in zip(result, torch.autograd.grad(slow, factors), strict=True):
        assert mine.any()
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_closed_form_gradient_equals_the_supplement_and_autograd(rank: int) -> None:
    cp, triplet = random_cp(5, rank=rank, grad=True), random_triplets(5)
    closed = torch.autograd.grad(cp.nll(triplet).sum(), cp.factors)
    automatic = torch.autograd.grad(-cp.log_prob(triplet).sum(), cp.factors)
    for b in range(5):
        t = torch.zeros(SIZES, dtype=torch.float64)
        t[tuple(triplet[b].tolist())] = 1
        for mine, auto, paper in zip(closed, automatic, gradient(cp[b].factors, t), strict=True):
            torch.testing.assert_close(mine[b], paper.detach(), rtol=0, atol=1e-14)
            torch.testing.assert_close(auto[b], paper.detach(), rtol=0, atol=1e-14)


def test_closed_form_gradient_passes_gradcheck() -> None:
    cp, several = random_cp(2, 3, rank=2, grad=True), random_triplets(2, 3, 4)
    weight = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert torch.autograd.gradcheck(lambda *x: CPTensor(*x).nll(several, weight), cp.factors)
    assert torch.autograd.gradcheck(lambda *x: CPTensor(*x).nll(several[..., 0, :]), cp.factors)


def test_several_targets_are_the_cross_entropy_against_their_distribution() -> None:
    cp = random_cp(3, grad=True)
    targets = torch.tensor(
        [
            [[0, 0, 0], [1, 2, 3], [1, 2, 3]],  # one twice: it weighs 2/3
            [[3, 1, 4], [0, 2, 1], [-1, -1, -1]],  # padded
            [[-1, -1, -1], [-1, -1, -1], [-1, -1, -1]],  # not annotated
        ]
    )
    t = torch.zeros(3, *SIZES, dtype=torch.float64)
    t[0, 0, 0, 0], t[0, 1, 2, 3] = 1 / 3, 2 / 3
    t[1, 3, 1, 4] = t[1, 0, 2, 1] = 1 / 2
    loss = cp.nll(targets)
    torch.testing.assert_close(loss, -(t * oracle(cp).log()).sum((1, 2, 3)))
    grads = torch.autograd.grad(loss.sum(), cp.factors)
    for b in range(2):
        for mine, paper in zip(grads, gradient(cp[b].factors, t[b]), strict=True):
            torch.testing.assert_close(mine[b], paper.detach(), rtol=0, atol=1e-14)
    assert all(float(x[2].abs().max()) == 0 for x in grads)
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.9, 5.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    t[0, 0, 0, 0], t[0, 1, 2, 3], t[1, 3, 1, 4], t[1, 0, 2, 1] = 0.5, 0.5, 0.1, 0.9
    torch.testing.assert_close(cp.nll(targets, weights), -(t * oracle(cp).log()).sum((1, 2, 3)))


def test_the_gradient_of_factors_and_weights_can_be_differentiated_again() -> None:
    cp, several = random_cp(2), random_triplets(2, 3)
    weight = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    subject = cp.subject.clone().requires_grad_()

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return CPTensor(x, cp.predicate, cp.object).nll(several, w)

    assert torch.autograd.gradcheck(loss, (subject, weight))
    assert torch.autograd.gradgradcheck(loss, (subject, weight))
    cp = random_cp(2, rank=2, grad=True)
    several[0, 1] = -1  # padding
    assert torch.autograd.gradgradcheck(lambda *x: CPTensor(*x).nll(several), cp.factors)


# Numbers: large, small, and of few bits.


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_adding_a_constant_to_one_factor_changes_nothing(shift: float) -> None:
    cp, triplet = random_cp(rank=3), torch.tensor([1, 2, 3])
    shifted = CPTensor(cp.subject + shift, cp.predicate, cp.object)
    torch.testing.assert_close(shifted.log_prob(triplet), cp.log_prob(triplet), rtol=0, atol=1e-9)
    torch.testing.assert_close(shifted.nll(triplet), cp.nll(triplet), rtol=0, atol=1e-9)
    torch.testing.assert_close(shifted.log_z(), cp.log_z() + shift, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_of_1e4_stay_finite_and_right(dtype: torch.dtype) -> None:
    cp = random_cp(6, t=1e4 / 3, dtype=dtype, grad=True)
    triplet = random_triplets(6)
    loss = cp.nll(triplet)
    grads = torch.autograd.grad(loss.sum(), cp.factors)
    result = [loss, cp.log_prob(triplet), cp.log_z(), cp.dense(), *grads, cp.mixture().log_weight]
    result += [
        cp.log_marginal("object"),
        cp.log_marginal("subject", "predicate"),
        cp.log_conditional("object", subject=0),
    ]
    assert all(bool(x.isfinite().all()) for x in result)
    expected = torch.stack([-log_probability_tensor(*(x[b] for x in cp.factors))[tuple(triplet[b])] for b in range(6)])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(cp.log_marginal("object").exp().sum(-1), torch.ones(6).to(loss), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_the_gradient_comes_back_in_half(
    dtype: torch.dtype,
) -> None:
    leaves = [x.to(dtype).requires_grad_() for x in random_cp(6, t=3).factors]
    cp, triplet = CPTensor(*leaves), random_triplets(6)
    assert cp.subject.dtype == torch.float32
    exact = CPTensor(*(x.detach().double() for x in leaves))
    torch.testing.assert_close(cp.nll(triplet).double(), exact.nll(triplet), rtol=0, atol=1e-5)
    cp.nll(triplet).sum().backward()
    assert all(x.grad is not None and x.grad.dtype == dtype for x in leaves)


def test_minus_infinity_is_probability_zero() -> None:
    base = random_cp(2, rank=3)
    subject = base.subject.clone()
    subject[:, 0] = -math.inf  # a component without weight
    subject[:, 1, 2] = -math.inf  # a class that one component excludes
    leaves = [subject.requires_grad_(), base.predicate, base.object]
    cp = CPTensor(*leaves)
    torch.testing.assert_close(cp.dense(), oracle(cp))
    assert bool((cp.mixture().log_weight[:, 0] == -math.inf).all())
    assert bool((cp.mixture().predicate[:, 0] == -math.inf).all())
    torch.testing.assert_close(cp.log_marginal("subject", "object").exp(), oracle(cp).sum(2))
    triplet = torch.tensor([[1, 1, 1], [2, 2, 2]])
    (grad,) = torch.autograd.grad(cp.nll(triplet).sum(), subject)
    assert bool(grad.isfinite().all())
    assert float(grad[:, 0].abs().max()) == 0
    (automatic,) = torch.autograd.grad(-cp.log_prob(triplet).sum(), subject)
    torch.testing.assert_close(grad, automatic)
    blocked = cp.given(subject=torch.tensor([0, 3]))
    assert bool((blocked.log_prob(torch.tensor([[1, 0, 0], [1, 0, 0]])) == -math.inf).all())


def test_float32_keeps_its_digits_when_a_far_component_is_high_in_one_factor() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(6, 2, n, generator=generator) for n in SIZES]
    factors[0][:, 0] += 1e4  # component 0: high subject scores, but no mass
    factors[1][:, 0] -= 2e4
    cp, exact, triplet = CPTensor(*factors), CPTensor(*(x.double() for x in factors)), random_triplets(6)
    for result in (cp.nll(triplet), -cp.log_prob(triplet)):
        torch.testing.assert_close(result.double(), exact.nll(triplet), rtol=0, atol=2e-6)
    torch.testing.assert_close(cp.dense().double(), exact.dense(), rtol=0, atol=1e-6)


def test_scores_near_the_float32_limit_are_valid() -> None:
    cp = CPTensor(torch.full((2, 4), 3e38), torch.full((2, 3), 3e38), torch.zeros(2, 5))
    torch.testing.assert_close(cp.dense(), torch.full(SIZES, 1 / 60))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    cp, triplet = random_cp(6), random_triplets(6)
    assert torch.equal(cp.nll(triplet.to(dtype)), cp.nll(triplet))


def test_autocast_does_not_round_the_distribution() -> None:
    cp = random_cp(6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cp.dense(), cp.dense().float())
        y = cp.dense()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.sum((1, 2, 3)), torch.ones(6), rtol=0, atol=1e-6)


# Training.


def test_training_recovers_a_distribution_with_two_modes_which_rank_one_cannot() -> None:
    target = torch.tensor([[0, 0, 0], [3, 2, 4]])  # the modes share no label
    losses = {}
    for rank in (1, 2):
        torch.manual_seed(0)
        factors = [torch.randn(rank, n, requires_grad=True) for n in SIZES]
        optimiser = torch.optim.Adam(factors, 0.1)
        for _ in range(400):
            optimiser.zero_grad()
            loss = CPTensor(*factors).nll(target)
            loss.backward()
            optimiser.step()
        losses[rank] = loss.item()
    assert losses[2] == pytest.approx(math.log(2), abs=0.02)  # the entropy of two equal modes
    assert losses[1] == pytest.approx(3 * math.log(2), abs=0.02)  # independent variables, each with two values


COMPILED = """
import torch
from polyadic import CPTensor

def step(s, p, o, triplet):
    return CPTensor(s, p, o).nll(triplet).mean()

torch.manual_seed(0)
compiled = torch.compile(step, backend="{backend}", fullgraph=True)
factors = [torch.randn(5, 3, n, requires_grad=True) for n in (4, 3, 5)]
triplet = torch.stack([torch.randint(n, (5,)) for n in (4, 3, 5)], -1)
for _ in range(3):  # a training loop
    loss, expected = compiled(*factors, triplet), step(*factors, triplet)
    torch.testing.assert_close(loss, expected)
    grads, expected = torch.autograd.grad(loss, factors), torch.autograd.grad(expected, factors)
    torch.testing.assert_close(grads, expected)
    factors = [(x - g).detach().requires_grad_() for x, g in zip(factors, grads)]
print("same")
"""


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_in_one_graph_gives_the_same_loss_and_gradient(backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("torch.compile's inductor needs g++")
    code = COMPILED.format(backend=backend)  # in a process of its own: the shape checks cannot be traced
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "same\n", done.stderr


def test_every_tensor_stays_on_the_device_of_the_factors() -> None:
    leaves = [torch.empty(6, 2, n, device="meta", requires_grad=True) for n in SIZES]
    cp, triplet = CPTensor(*leaves), torch.empty(6, 4, 3, device="meta", dtype=torch.long)
    cp.nll(triplet).sum().backward()
    parts = [
        cp.log_prob(triplet),
        cp.log_z(),
        cp.dense(),
        cp.log_marginal("subject", "object"),
        *cp.mixture(),
    ]
    assert all(x.device.type == "meta" for x in [*parts, *cp.product(cp).factors])
    assert all(x.grad is not None and x.grad.device.type == "meta" for x in leaves)


# Bad input.

Z = torch.zeros
IMPOSSIBLE = CPTensor(torch.tensor([[0.0, -math.inf, 0.0, 0.0]]), Z(1, 3), Z(1, 5))  # subject 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: CPTensor(Z(2, 3, 4), Z(2, 1, 3), Z(2, 3, 5)),
            r"agree on .*\[2, 3, 4\], \[2, 1, 3\].*view the network",
        ),
        (lambda: CPTensor(Z(4), Z(3), Z(5)), r"agree on \[\*B, R\]"),
        (lambda: CPTensor(Z(2, 0, 4), Z(2, 0, 3), Z(2, 0, 5)), "at least 1"),
        (lambda: CPTensor(Z(1, 4).long(), Z(1, 3), Z(1, 5)), "floating-point"),
        (lambda: CPTensor([[0.0]], Z(1, 3), Z(1, 5)), "floating-point tensors of log-scores, got .*list"),  # type: ignore[arg-type]
        (lambda: CPTensor(Z(1, 4), Z(1, 3, device="meta"), Z(1, 5)), "one device"),
        (lambda: CPTensor(Z(2, 1, 4), Z(2, 1, 3) + math.nan, Z(2, 1, 5)), r"predicate scores.*not NaN.*\[0, 0\]"),
        (lambda: CPTensor(Z(2, 1, 4), Z(2, 1, 3), Z(2, 1, 5) - math.inf), r"pair \[0\] has total probability 0"),
        (
            lambda: random_cp(2).log_prob(torch.tensor([[0, 0, 0], [0, 3, 0]])),
            r"below \(S, P, O\).*\[0, 3, 0\] \(1 such",
        ),
        (lambda: random_cp(2).log_prob(torch.tensor([[0, 0, 0], [-1, 0, 0]])), "not be negative"),
        (lambda: random_cp(2).nll(torch.tensor([0, 0, 0])), r"\[\*B, T, 3\] with B = \[2\], got \[3\]"),
        (lambda: random_cp(2).nll(torch.zeros(2, 3)), "integers, got torch.float32"),
        (lambda: random_cp(2).nll(torch.zeros(2, 3).long(), torch.tensor([1.0, -1.0])), "not negative"),
        (lambda: random_cp(2).log_marginal("verb"), "different names out of"),  # type: ignore[arg-type]
        (lambda: random_cp(2).log_conditional("subject"), "other variables to condition on"),
        (lambda: random_cp(2).log_conditional("subject", predicate=3), r"predicate labels must lie in 0\.\.2"),
        (lambda: random_cp(2).given(subject=torch.tensor([0.0, 1.0])), "subject must be a label or integers"),
        (lambda: random_cp(2).sample(0), "n must be a whole number from 1 up, got 0"),
        (lambda: random_cp(2).nll(torch.zeros(2, 4, 3).long(), torch.ones(4, 2)), r"\[2, 4\], got \[4, 2\]"),
        (lambda: random_cp(2).nll([[0, 0, 0]] * 2), "torch tensor, got list; convert with torch.as_tensor"),  # type: ignore[arg-type]
        (lambda: random_cp(2).given(subject="person"), "subject must be a label"),  # type: ignore[arg-type]
        (lambda: random_cp(2)[..., :2], "index pairs by"),  # type: ignore[index]
        (lambda: random_cp(2)[torch.ones(2, 3, dtype=torch.bool)], "index pairs by"),
        (lambda: random_cp(2).product(CPTensor(Z(2, 1, 4), Z(2, 1, 3), Z(2, 1, 6))), "class counts must agree"),
        (lambda: random_cp(2).product(random_cp(3)), "batch shapes must broadcast"),
        (lambda: random_cp()[0], "no batch axis"),
        (lambda: CPTensor.mean([random_cp(3), random_cp(4)]), r"tensors of one size and batch shape, got \(4"),
        (lambda: CPTensor.mean([]), "got none"),
        (lambda: IMPOSSIBLE.log_conditional("object", subject=1), "probability 0"),
        (lambda: IMPOSSIBLE.given(subject=1), "probability 0"),
    ],
)
def test_invalid_input_is_refused_in_one_line(make: Any, says: str) -> None:
    refused(says, make)
