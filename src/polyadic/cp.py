"""ψ_c: a distribution over triplets as a sum of R rank-1 tensors, in logs.

Paper: Preliminaries, Formulation, Training Loss, supplement.

The network's scores s_{a,r} are the logs of the factors; exp, outer product, sum over r and division by Z make the
probability tensor y. No method but `dense` forms it. Imports torch only, beside the package's error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.structures import PolyadicError

Variable = Literal["subject", "predicate", "object"]
VARIABLES: tuple[Variable, ...] = ("subject", "predicate", "object")


class Mixture(NamedTuple):
    """As a mixture: log P(r), and log P(X_a | r) for each variable. A component of weight 0 is all -inf."""

    log_weight: Float[Tensor, "*B R"]
    subject: Float[Tensor, "*B R S"]
    predicate: Float[Tensor, "*B R P"]
    object: Float[Tensor, "*B R O"]


@dataclass(frozen=True, eq=False)
class CPTensor:
    """One distribution over (subject, predicate, object) per box pair, from R log-factors each; the w_r are absorbed.

    Any batch shape, the empty one included. -inf is probability 0. Factors in float16 or bfloat16 are raised to
    float32.

    >>> cp = CPTensor(torch.zeros(2, 5, 3), torch.zeros(2, 5, 4), torch.zeros(2, 5, 6))  # 2 pairs, rank 5
    >>> (1 / cp.log_prob(torch.tensor([[0, 1, 2], [2, 3, 5]])).exp()).round()  # 3 x 4 x 6 equal triplets
    tensor([72., 72.])
    """

    subject: Float[Tensor, "*B R S"]
    predicate: Float[Tensor, "*B R P"]
    object: Float[Tensor, "*B R O"]

    def __post_init__(self) -> None:
        factors = (self.subject, self.predicate, self.object)
        if any(not isinstance(x, Tensor) or not x.is_floating_point() for x in factors):
            kinds = [x.dtype if isinstance(x, Tensor) else type(x).__name__ for x in factors]
            raise PolyadicError(f"CPTensor: factors must be floating-point tensors of log-scores, got {kinds}")
        if min(x.ndim for x in factors) < 2 or len({x.shape[:-1] for x in factors}) > 1:
            leading = [list(x.shape) for x in factors]
            raise PolyadicError(f"CPTensor: factors must agree on [*B, R] of [*B, R, classes], got {leading}")
        if min(x.shape[-1] for x in factors) < 1 or self.subject.shape[-2] < 1:
            raise PolyadicError(
                f"CPTensor: the rank and each class count must be at least 1, got {[list(x.shape) for x in factors]}"
            )
        if len({x.device for x in factors}) > 1:
            raise PolyadicError(
                f"CPTensor: factors must be on one device, got {[str(x.device) for x in factors]}; move them with .to()"
            )
        dtype = reduce(torch.promote_types, (x.dtype for x in factors), torch.float32)
        for name, x in zip(VARIABLES, factors, strict=True):
            object.__setattr__(self, name, x.to(dtype))
        if not (torch.compiler.is_compiling() or self.subject.is_meta):
            self._check_values()

    def _check_values(self) -> None:
        """One pass and one synchronisation: the largest log-entry of each pair is finite, or something is wrong."""
        with torch.no_grad():
            peaks = [x.amax(-1) for x in self.factors]  # amax passes NaN on
            good = torch.stack(peaks).sum(0).amax(-1).isfinite()
            if bool(good.all()):
                return
            for name, peak in zip(VARIABLES, peaks, strict=True):
                bad = peak.isnan() | (peak == torch.inf)
                if bool(bad.any()):
                    raise PolyadicError(
                        f"CPTensor: {name} scores must be below +inf and not NaN; "
                        f"{int(bad.sum())} of {bad.numel()} vectors are not, the first at {bad.nonzero()[0].tolist()}. "
                        "Look for a diverged loss or a division by zero before the last layer"
                    )
            raise PolyadicError(
                f"CPTensor: every pair needs a component with a finite score in each factor; "
                f"pair {(~good).nonzero()[0].tolist()} has total probability 0"
            )

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.subject, self.predicate, self.object

    @property
    def batch_shape(self) -> torch.Size:
        return self.subject.shape[:-2]

    @property
    def rank(self) -> int:
        return self.subject.shape[-2]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""
        return self.subject.shape[-1], self.predicate.shape[-1], self.object.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.subject.device

    def __getitem__(self, index: int | slice | Tensor) -> CPTensor:
        """Pairs along the first batch axis."""
        if not self.batch_shape:
            raise PolyadicError("CPTensor: a single pair has no batch axis to index")
        return CPTensor(*(x[index] for x in self.factors))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CPTensor:
        return CPTensor(*(x.to(device=device, dtype=dtype) for x in self.factors))

    def log_z(self) -> Float[Tensor, "*B"]:
        """Log of the partition function Z, the sum pushed inside: O(R(S+P+O))."""
        shift = torch.stack([_shift(x)[..., 0, 0] for x in self.factors]).sum(0)
        return self._log_components().logsumexp(-1) + shift

    def _log_components(self) -> Tensor:
        """[*B, R]: log of the mass of each component, relative to the shifts of the three factors."""
        return torch.stack([_log_sum(x) for x in self.factors]).sum(0)

    def log_prob(self, triplet: Int[Tensor, "*T 3"]) -> Float[Tensor, "*T"]:
        """Log y of one triplet per pair [*B, 3], or of T triplets per pair [*B, T, 3], in O(R(S+P+O+T))."""
        many = self._many(triplet)
        self._check_labels(many)
        found = self._log_joint(many) - self._log_components().logsumexp(-1)[..., None]  # [*B, T]
        return found.reshape(triplet.shape[:-1])

    def _log_joint(self, triplet: Tensor) -> Tensor:
        """[*B, T]: log of Σ_r exp(s + p + o) at each triplet, relative to the shifts."""
        return _at_triplets(self.factors, triplet).logsumexp(-2)

    def nll(self, target: Int[Tensor, "*T 3"], weight: Float[Tensor, "*T"] | None = None) -> Float[Tensor, "*B"]:
        """The paper's loss per pair, L = -Σ t log y, with the supplement's closed-form gradient.

        `target` is one triplet per pair [*B, 3], or several [*B, T, 3] where rows of (-1, -1, -1) are padding. Several
        weigh the same and sum to 1 unless `weight` [*B, T] gives t itself. A pair of padding alone has loss 0.
        `-log_prob` is the same loss through autograd: slower, more memory, NaN where a whole component is -inf.
        """
        many = self._many(target)
        padding = (many == -1).all(-1)  # [*B, T]
        self._check_labels(many.masked_fill(padding[..., None], 0))
        if weight is None:
            weight = (~padding).to(self.subject.dtype) / (~padding).sum(-1, keepdim=True).clamp_min(1)
        else:
            weight = weight.to(self.subject.dtype).reshape(many.shape[:-1]).masked_fill(padding, 0)
            if not torch.compiler.is_compiling() and not bool(((weight >= 0) & weight.isfinite()).all()):
                raise PolyadicError("CPTensor.nll: weights must be finite and not negative")
        loss: Tensor = _ClosedFormNLL.apply(*self.factors, many.clamp_min(0), weight)
        return loss

    def mixture(self) -> Mixture:
        """Weights P(r) and normalised factors P(X_a | r), all in logs."""
        sums = [_log_sum(x) for x in self.factors]
        weight = torch.stack(sums).sum(0).log_softmax(-1)
        empty = weight == -torch.inf
        parts = [
            (x - _shift(x) - total.masked_fill(total == -torch.inf, 0)[..., None]).masked_fill(
                empty[..., None], -torch.inf
            )
            for x, total in zip(self.factors, sums, strict=True)
        ]
        return Mixture(weight, *parts)

    def log_marginal(self, *variables: Variable) -> Float[Tensor, ...]:
        """Log of the marginal of one variable, [*B, X], or of two in the order asked for, [*B, X, Y].

        >>> cp = CPTensor(torch.zeros(5, 3), torch.zeros(5, 4), torch.zeros(5, 6))
        >>> cp.log_marginal("object", "predicate").shape
        torch.Size([6, 4])
        """
        mixture = self.mixture()
        return _mix(mixture.log_weight, [getattr(mixture, name) for name in _known(variables, most=2)])

    def log_conditional(self, *variables: Variable, **given: int | Tensor) -> Float[Tensor, ...]:
        """Log of P(variables | given), for example `log_conditional("predicate", subject=i, object=k)`, [*B, P].

        A given label is one number for all pairs or a tensor [*B].
        """
        asked = _known(variables, most=2)
        if not given or set(asked) & set(given):
            raise PolyadicError(
                f"log_conditional: expected other variables to condition on, got {asked} given {sorted(given)}"
            )
        mixture = self.mixture()
        log_weight = mixture.log_weight
        for name, label in self._labels(given).items():
            log_weight = log_weight + _at(getattr(mixture, name), label[..., None])[..., 0]
        evidence = log_weight.logsumexp(-1)  # log P(given), [*B]
        _check_possible(evidence, given)
        return _mix(log_weight - evidence[..., None], [getattr(mixture, name) for name in asked])

    def given(self, **labels: int | Tensor) -> CPTensor:
        """The distribution once some labels are known: all mass on them, renormalised, and again a CP tensor."""
        factors = dict(zip(VARIABLES, self.factors, strict=True))
        for name, label in self._labels(labels).items():
            x = factors[name]
            classes = torch.arange(x.shape[-1], device=x.device)
            factors[name] = x.masked_fill((classes != label[..., None])[..., None, :], -torch.inf)
        peaks = torch.stack([x.amax(-1) for x in factors.values()]).sum(0).amax(-1)
        _check_possible(peaks, labels)
        return CPTensor(factors["subject"], factors["predicate"], factors["object"])

    def sample(self, n: int, generator: torch.Generator | None = None) -> Int[Tensor, "n *B 3"]:
        """`n` triplets per pair: a component by its weight, then each variable by its factor. O(n · B · (S+P+O))."""
        if n < 1:
            raise PolyadicError(f"CPTensor.sample: n must be at least 1, got {n}")
        if self.subject.numel() == 0:
            return torch.empty(n, *self.batch_shape, 3, dtype=torch.long, device=self.device)
        mixture = self.mixture()
        weight = mixture.log_weight.detach().exp().reshape(-1, self.rank)
        parts = [x.detach().reshape(len(weight), *x.shape[-2:]) for x in mixture[1:]]
        component = torch.multinomial(weight, n, replacement=True, generator=generator)  # [B, n]
        pair = torch.arange(len(component), device=self.device)[:, None]
        drawn = [
            torch.multinomial(part[pair, component].flatten(0, 1).exp(), 1, generator=generator).view(component.shape)
            for part in parts
        ]
        return torch.stack(drawn, -1).transpose(0, 1).reshape(n, *self.batch_shape, 3)

    def product(self, other: CPTensor) -> CPTensor:
        """The normalised elementwise product, exact: a CP tensor of rank R·R'. Batch shapes broadcast."""
        if self.sizes != other.sizes:
            raise PolyadicError(f"CPTensor.product: class counts must agree, got {self.sizes} and {other.sizes}")
        try:
            torch.broadcast_shapes(self.batch_shape, other.batch_shape)
        except RuntimeError as error:
            raise PolyadicError(
                f"CPTensor.product: batch shapes must broadcast, "
                f"got {list(self.batch_shape)} and {list(other.batch_shape)}"
            ) from error
        pairs = zip(self.factors, other.factors, strict=True)
        return CPTensor(*((a[..., :, None, :] + b[..., None, :, :]).flatten(-3, -2) for a, b in pairs))

    def dense(self) -> Float[Tensor, "*B S P O"]:
        """The probability tensor y itself: for oracles and small vocabularies only."""
        weight, s, p, o = (x.exp() for x in self.mixture())
        return torch.einsum("...r,...ri,...rj,...rk->...ijk", weight, s, p, o)

    def _many(self, triplet: Tensor) -> Tensor:
        """[*B, 3] or [*B, T, 3] -> [*B, T, 3]."""
        if triplet.is_floating_point() or triplet.is_complex() or triplet.dtype == torch.bool:
            raise PolyadicError(f"CPTensor: triplets must be integers, got {triplet.dtype}")
        batch, shape = self.batch_shape, triplet.shape
        if shape[-1:] != (3,) or shape[: len(batch)] != batch or len(shape) - len(batch) not in (1, 2):
            raise PolyadicError(
                f"CPTensor: triplets must be [*B, 3] or [*B, T, 3] with B = {list(batch)}, got {list(shape)}"
            )
        return triplet if len(shape) - len(batch) == 2 else triplet[..., None, :]

    def _check_labels(self, triplet: Tensor) -> None:
        if torch.compiler.is_compiling() or triplet.is_meta or triplet.numel() == 0:
            return
        sizes = torch.tensor(self.sizes, device=triplet.device)
        bad = ((triplet < 0) | (triplet >= sizes)).any(-1)
        if bool(bad.any()):
            raise PolyadicError(
                f"CPTensor: labels must lie below (S, P, O) = {self.sizes} and not be negative, "
                f"got {triplet[bad][0].tolist()} ({int(bad.sum())} such triplets)"
            )

    def _labels(self, given: dict[str, int | Tensor]) -> dict[Variable, Tensor]:
        found = {}
        for name in _known(tuple(given), most=3):
            label = torch.as_tensor(given[name], device=self.device)
            if label.is_floating_point() or label.shape not in ((), self.batch_shape):
                raise PolyadicError(
                    f"CPTensor: {name} must be a label or integers {list(self.batch_shape)}, "
                    f"got {label.dtype} {list(label.shape)}"
                )
            size = self.sizes[VARIABLES.index(name)]
            if bool(((label < 0) | (label >= size)).any()):
                raise PolyadicError(f"CPTensor: {name} labels must lie in 0..{size - 1}, got {label.tolist()}")
            found[name] = label.expand(self.batch_shape)
        return found


def _known(names: tuple[str, ...], most: int) -> list[Variable]:
    known = [name for name in VARIABLES if name in names]
    if not 1 <= len(names) <= most or len(known) != len(names):
        raise PolyadicError(f"CPTensor: expected 1 to {most} different names out of {VARIABLES}, got {names}")
    return sorted(known, key=names.index)


def _check_possible(evidence: Tensor, given: dict[str, int | Tensor]) -> None:
    if bool((evidence == -torch.inf).any()):
        where = (evidence == -torch.inf).nonzero()[0].tolist()
        raise PolyadicError(
            f"CPTensor: {', '.join(given)} given have probability 0 at pair {where}: nothing to condition on"
        )


def _shift(x: Tensor) -> Tensor:
    """[*B, 1, 1]: a constant per pair and factor that cancels in y. Without it float32 loses 1e-3 at scores of 1e4."""
    return x.detach().amax((-2, -1), keepdim=True)


def _log_sum(x: Tensor) -> Tensor:
    """[*B, R]: log Σ_i exp(s^i - shift)."""
    return (x - _shift(x)).logsumexp(-1)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """[*B, R, X] at class indices [*B, T] -> [*B, R, T]."""
    return x.gather(-1, index[..., None, :].expand(*x.shape[:-1], index.shape[-1]))


def _at_triplets(factors: tuple[Tensor, ...], triplet: Tensor) -> Tensor:
    """[*B, R, T]: the log of each component at each triplet [*B, T, 3], relative to the shifts."""
    parts = zip(factors, triplet.unbind(-1), strict=True)
    return torch.stack([_at(x, index) - _shift(x) for x, index in parts]).sum(0)


def _mix(log_weight: Tensor, factors: list[Tensor]) -> Tensor:
    """Log Σ_r P(r) Π_a P(X_a | r), one component at a time: [*B, R] and one or two [*B, R, X] -> [*B, X(, Y)]."""
    first = log_weight[..., None] + factors[0]  # [*B, R, X]
    if len(factors) == 1:
        return first.logsumexp(-2)
    parts = (first[..., r, :, None] + factors[1][..., r, None, :] for r in range(first.shape[-2]))
    return reduce(torch.logaddexp, parts)


class _ClosedFormNLL(torch.autograd.Function):
    """L = -Σ t log y and the supplement's ∂L/∂s_{a,r}^i = Σt · P(r) P(i | r) - Σ_{t at i} t · P(r | triplet).

    Saves the inputs and [*B, R] numbers only; the softmax of each factor is made again in backward, in the buffer of
    the gradient.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, o: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        factors = (s, p, o)
        lowest = torch.finfo(s.dtype).min
        peaks = [x.amax(-1, keepdim=True).clamp_min(lowest) for x in factors]  # [*B, R, 1]
        masses = [(x - peak).exp_().sum(-1) for x, peak in zip(factors, peaks, strict=True)]  # [*B, R]
        shifts = [peak.amax(-2, keepdim=True) for peak in peaks]  # [*B, 1, 1]
        relative = [(peak - shift)[..., 0] for peak, shift in zip(peaks, shifts, strict=True)]
        component = torch.stack([mass.log() + rel for mass, rel in zip(masses, relative, strict=True)]).sum(0)
        log_z = component.logsumexp(-1, keepdim=True)  # [*B, 1]
        parts = zip(factors, target.unbind(-1), shifts, strict=True)
        joint = torch.stack([_at(x, index) - shift for x, index, shift in parts]).sum(0)  # [*B, R, T]
        log_joint = joint.logsumexp(-2)  # [*B, T]
        ctx.save_for_backward(s, p, o, target, weight, component - log_z, joint, *peaks, *masses)
        return -(weight * (log_joint - log_z)).masked_fill(weight == 0, 0).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, p, o, target, weight, log_mixture, joint, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for with create_graph: the gradient must be differentiable itself
            log_y = CPTensor(s, p, o).log_prob(target)
            loss = -(weight * log_y).masked_fill(weight == 0, 0).sum(-1)
            return (
                *torch.autograd.grad(loss, (s, p, o), grad, create_graph=True, allow_unused=True),
                None,
                None,
            )
        peaks, masses = rest[:3], rest[3:]
        tiny = torch.finfo(s.dtype).tiny
        spread = (grad * weight.sum(-1))[..., None] * log_mixture.exp()  # [*B, R]
        responsibility = joint.softmax(-2) * (grad[..., None] * weight)[..., None, :]  # [*B, R, T]
        responsibility = responsibility.masked_fill((weight == 0)[..., None, :], 0)
        grads = []
        for x, peak, mass, index in zip((s, p, o), peaks, masses, target.unbind(-1), strict=True):
            d = (x - peak).exp_().mul_((spread / mass.clamp_min(tiny))[..., None])
            grads.append(d.scatter_add_(-1, index[..., None, :].expand_as(responsibility), -responsibility))
        return *grads, None, None
