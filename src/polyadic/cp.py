"""ψ_c: a distribution over triplets as a sum of R rank-1 tensors, in logs.

Paper: Preliminaries, Formulation, Training Loss, supplement.

The network's scores s_{a,r} are the logs of the factors; exp, outer product, sum over r and division by Z make the
probability tensor y. No method but `dense` forms it. Imports torch only, beside the package's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from polyadic.structures.vocabulary import PolyadicError


def require_tensor(value: object, what: str) -> Tensor:
    """Return `value` if it is a tensor; converting lists and arrays would silently choose a device and dtype."""
    if not isinstance(value, Tensor):
        raise PolyadicError(f"{what} must be a torch tensor, got {type(value).__name__}; convert with torch.as_tensor")
    return value


Variable = Literal["subject", "predicate", "object"]
VARIABLES: tuple[Variable, ...] = ("subject", "predicate", "object")


class Mixture(NamedTuple):
    """As a mixture: log P(r), and log P(X_a | r) for each variable. A component of weight 0 is all -inf."""

    log_weight: Float[Tensor, "*B R"]
    subject: Float[Tensor, "*B R S"]
    predicate: Float[Tensor, "*B R P"]
    object: Float[Tensor, "*B R O"]


@dataclass(frozen=True, eq=False, repr=False)
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
            raise PolyadicError(
                f"CPTensor: factors must be [*B, R, classes] and agree on [*B, R], "
                f"got {[list(x.shape) for x in factors]}; view the network's output as [pairs, rank, classes]"
            )
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
        """Check values in one pass and one synchronisation."""
        with torch.no_grad():
            peaks = torch.stack([x.amax(-1) for x in self.factors])  # [3, *B, R]; amax passes NaN on
            good = (peaks < torch.inf).all(0).all(-1) & (peaks > -torch.inf).all(0).any(-1)  # [*B]
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

    def __repr__(self) -> str:
        return f"CPTensor(pairs={list(self.batch_shape)}, rank={self.rank}, sizes={self.sizes}, {self.subject.dtype})"

    def __getitem__(self, index: int | slice | Tensor) -> CPTensor:
        """Select pairs along the first batch axis, or by a mask over batch axes."""
        if not self.batch_shape:
            raise PolyadicError("CPTensor: a single pair has no batch axis to index")
        too_deep = isinstance(index, Tensor) and index.dtype == torch.bool and index.ndim > len(self.batch_shape)
        if too_deep or not isinstance(index, int | slice | Tensor):
            kind = f"a mask {list(index.shape)}" if isinstance(index, Tensor) else repr(index)
            raise PolyadicError(f"CPTensor: index pairs by a number, a slice, a tensor or a mask [*B], got {kind}")
        return CPTensor(*(x[index] for x in self.factors))

    def to(self, *args: Any, **kwargs: Any) -> CPTensor:
        """Convert as `Tensor.to` does: a device, a dtype or both."""
        return CPTensor(*(x.to(*args, **kwargs) for x in self.factors))

    def detach(self) -> CPTensor:
        return CPTensor(*(x.detach() for x in self.factors))

    def log_z(self) -> Float[Tensor, "*B"]:
        """Compute the log of the partition function Z, the sum pushed inside: O(R(S+P+O))."""
        peaks = _peaks(self.factors)
        shift = torch.stack(_shifts(peaks)).sum(0)[..., 0, 0]
        return _log_components(self.factors, peaks).logsumexp(-1) + shift

    def log_prob(self, triplet: Integer[Tensor, "*T 3"]) -> Float[Tensor, "*T"]:
        """Compute log y of one triplet per pair [*B, 3], or of T triplets per pair [*B, T, 3], in O(R(S+P+O+T))."""
        many = self._many(triplet)
        self._check_labels(many)
        peaks = _peaks(self.factors)
        joint = _at_triplets(self.factors, many, _shifts(peaks)).logsumexp(-2)  # [*B, T]
        return (joint - _log_components(self.factors, peaks).logsumexp(-1)[..., None]).reshape(triplet.shape[:-1])

    def nll(self, target: Integer[Tensor, "*T 3"], weight: Float[Tensor, "*T"] | None = None) -> Float[Tensor, "*B"]:
        """Compute the paper's loss per pair, L = -Σ t log y, with the supplement's closed-form gradient.

        `target` is one triplet per pair [*B, 3], or several [*B, T, 3] where rows of (-1, -1, -1) are padding. Several
        weigh the same and sum to 1 unless `weight`, [*B] or [*B, T], gives t itself. Padding alone has loss 0.
        `-log_prob` is the same loss through autograd: slower, with more memory (`benchmarks/loss.py`).
        Inside `torch.compile`, values and labels are not checked.
        """
        many = self._many(target)
        padding = (many == -1).all(-1)  # [*B, T]
        self._check_labels(many.masked_fill(padding[..., None], 0))
        if weight is None:
            weight = (~padding).to(self.subject.dtype) / (~padding).sum(-1, keepdim=True).clamp_min(1)
        else:
            if require_tensor(weight, "CPTensor.nll: weight").shape != target.shape[:-1]:
                raise PolyadicError(
                    f"CPTensor.nll: weight must be one number per target {list(target.shape[:-1])}, "
                    f"got {list(weight.shape)}"
                )
            weight = weight.to(self.subject.dtype).reshape(many.shape[:-1]).masked_fill(padding, 0)
            if not torch.compiler.is_compiling() and not bool(((weight >= 0) & weight.isfinite()).all()):
                raise PolyadicError("CPTensor.nll: weights must be finite and not negative")
        loss: Tensor = _ClosedFormNLL.apply(*self.factors, many.masked_fill(padding[..., None], 0), weight)
        return loss

    def mixture(self) -> Mixture:
        """Compute weights P(r) and normalised factors P(X_a | r), all in logs."""
        peaks = _peaks(self.factors)
        weight = _log_components(self.factors, peaks).log_softmax(-1)
        empty = (weight == -torch.inf)[..., None]
        parts = [
            (x - peak - _log_mass(x, peak)[..., None]).masked_fill(empty, -torch.inf)
            for x, peak in zip(self.factors, peaks, strict=True)
        ]
        return Mixture(weight, *parts)

    def log_marginal(self, *variables: Variable) -> Float[Tensor, "*X"]:
        """Compute the log of the marginal of one variable, [*B, X], or of two in the order asked for, [*B, X, Y].

        >>> cp = CPTensor(torch.zeros(5, 3), torch.zeros(5, 4), torch.zeros(5, 6))
        >>> cp.log_marginal("object", "predicate").shape
        torch.Size([6, 4])
        """
        mixture = self.mixture()
        return _mix(mixture.log_weight, [getattr(mixture, name) for name in _known(variables, most=2)])

    def log_conditional(self, *variables: Variable, **given: int | Tensor) -> Float[Tensor, "*X"]:
        """Compute log P(variables | given), for example `log_conditional("predicate", subject=i, object=k)`, [*B, P].

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
        """Condition on some labels: all mass on them, renormalised, and again a CP tensor."""
        factors = dict(zip(VARIABLES, self.factors, strict=True))
        for name, label in self._labels(labels).items():
            x = factors[name]
            classes = torch.arange(x.shape[-1], device=x.device)
            factors[name] = x.masked_fill((classes != label[..., None])[..., None, :], -torch.inf)
        peaks = torch.stack([x.amax(-1) for x in factors.values()]).sum(0).amax(-1)
        _check_possible(peaks, labels)
        return CPTensor(factors["subject"], factors["predicate"], factors["object"])

    def sample(self, n: int, generator: torch.Generator | None = None) -> Int[Tensor, "*B n 3"]:
        """Sample `n` triplets per pair: a component by weight, then each variable by factor. O(n · B · (S+P+O))."""
        if not isinstance(n, int) or n < 1:
            raise PolyadicError(f"CPTensor.sample: n must be a whole number from 1 up, got {n!r}")
        if self.subject.numel() == 0:
            return torch.empty(*self.batch_shape, n, 3, dtype=torch.long, device=self.device)
        mixture = self.mixture()
        weight = mixture.log_weight.detach().exp().reshape(-1, self.rank)
        parts = [x.detach().reshape(len(weight), *x.shape[-2:]) for x in mixture[1:]]
        component = torch.multinomial(weight, n, replacement=True, generator=generator)  # [B, n]
        pair = torch.arange(len(component), device=self.device)[:, None]
        drawn = [
            torch.multinomial(part[pair, component].flatten(0, 1).exp(), 1, generator=generator).view(component.shape)
            for part in parts
        ]
        return torch.stack(drawn, -1).reshape(*self.batch_shape, n, 3)

    def product(self, other: CPTensor) -> CPTensor:
        """Compute the normalised elementwise product, exactly: a CP tensor of rank R·R'. Batch shapes broadcast."""
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

    def heaviest(self, rank: int) -> CPTensor:
        """Keep the `rank` components of the largest weight P(r) of each pair, all if there are no more."""
        if not isinstance(rank, int) or rank < 1:
            raise PolyadicError(f"CPTensor.heaviest: rank must be a whole number from 1 up, got {rank!r}")
        if rank >= self.rank:
            return self
        best = self.mixture().log_weight.topk(rank, -1).indices[..., None]  # [*B, rank, 1]
        return CPTensor(*(x.gather(-2, best.expand(*best.shape[:-1], x.shape[-1])) for x in self.factors))

    @classmethod
    def mean(cls, tensors: Sequence[CPTensor]) -> CPTensor:
        """Average several distributions over the same triplets, exactly: a CP tensor with the components of all."""
        if not tensors or any((x.sizes, x.batch_shape) != (tensors[0].sizes, tensors[0].batch_shape) for x in tensors):
            raise PolyadicError(
                "CPTensor.mean: expected tensors of one size and batch shape, "
                f"got {', '.join(f'{x.sizes} {list(x.batch_shape)}' for x in tensors) or 'none'}"
            )
        subject = torch.cat([x.subject - x.log_z()[..., None, None] for x in tensors], -2)
        return cls(subject, *(torch.cat([x.factors[at] for x in tensors], -2) for at in (1, 2)))

    def dense(self) -> Float[Tensor, "*B S P O"]:
        """Form the probability tensor y itself: for oracles and small vocabularies only."""
        weight, s, p, o = (x.exp() for x in self.mixture())
        s = (s * weight[..., None])[..., :, None, None]  # [*B, R, S, 1, 1]
        p, o = p[..., None, :, None], o[..., None, None, :]
        # products and sums, no einsum, which autocast would round to half
        return _add(s[..., r, :, :, :] * p[..., r, :, :, :] * o[..., r, :, :, :] for r in range(self.rank))

    def _many(self, triplet: Tensor) -> Tensor:
        """[*B, 3] or [*B, T, 3] -> [*B, T, 3]."""
        require_tensor(triplet, "CPTensor: triplets")
        if triplet.is_floating_point() or triplet.is_complex() or triplet.dtype == torch.bool:
            raise PolyadicError(f"CPTensor: triplets must be integers, got {triplet.dtype}")
        batch, shape = self.batch_shape, triplet.shape
        if shape[-1:] != (3,) or shape[: len(batch)] != batch or len(shape) - len(batch) not in (1, 2):
            raise PolyadicError(
                f"CPTensor: triplets must be [*B, 3] or [*B, T, 3] with B = {list(batch)}, got {list(shape)}"
            )
        return (triplet if len(shape) - len(batch) == 2 else triplet[..., None, :]).long()

    def _check_labels(self, triplet: Tensor) -> None:
        if torch.compiler.is_compiling() or triplet.is_meta or triplet.numel() == 0:
            return
        sizes = torch.tensor(self.sizes, device=triplet.device)
        bad = ((triplet < 0) | (triplet >= sizes)).any(-1)
        if bool(bad.any()):
            raise PolyadicError(
                f"CPTensor: labels count from 0, below (S, P, O) = {self.sizes}, and must not be negative, "
                f"got {triplet[bad][0].tolist()} ({int(bad.sum())} such triplets)"
            )

    def _labels(self, given: dict[str, int | Tensor]) -> dict[Variable, Tensor]:
        labels = {}
        for name in _known(tuple(given), most=3):
            value = given[name]
            if not isinstance(value, int | Tensor) or isinstance(value, bool):
                raise PolyadicError(f"CPTensor: {name} must be a label or a tensor of labels, got {value!r:.60}")
            label = torch.as_tensor(value, device=self.device)
            if label.is_floating_point() or label.dtype == torch.bool or label.shape not in ((), self.batch_shape):
                raise PolyadicError(
                    f"CPTensor: {name} must be a label or integers {list(self.batch_shape)}, "
                    f"got {label.dtype} {list(label.shape)}"
                )
            size = self.sizes[VARIABLES.index(name)]
            if bool(((label < 0) | (label >= size)).any()):
                raise PolyadicError(f"CPTensor: {name} labels must lie in 0..{size - 1}, got {label.tolist()}")
            labels[name] = label.long().expand(self.batch_shape)
        return labels


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


def _add(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _peaks(factors: Sequence[Tensor]) -> list[Tensor]:
    """[*B, R, 1] each: the largest score of each vector; of one that is all -inf, the lowest number."""
    lowest = torch.finfo(factors[0].dtype).min
    return [x.detach().amax(-1, keepdim=True).clamp_min(lowest) for x in factors]


def _shifts(peaks: Sequence[Tensor]) -> list[Tensor]:
    """[*B, 1, 1] each: the peaks of the highest component.

    Scores are taken relative to them: constants that cancel in y, without which float32 loses 1e-3 at scores of 1e4.
    """
    first = _add(peaks).argmax(-2, keepdim=True)
    return [peak.gather(-2, first) for peak in peaks]


def _heights(peaks: Sequence[Tensor], shifts: Sequence[Tensor]) -> list[Tensor]:
    """[*B, R] each: the peaks relative to the shifts."""
    return [(peak - shift)[..., 0] for peak, shift in zip(peaks, shifts, strict=True)]


def _log_mass(x: Tensor, peak: Tensor) -> Tensor:
    """[*B, R]: log Σ_i exp(s^i - peak); 0 for a vector that is all -inf, which its peak already sinks."""
    dead = peak == torch.finfo(x.dtype).min
    return (x - peak).masked_fill(dead, -torch.inf).exp().sum(-1).masked_fill(dead[..., 0], 1).log()


def _log_components(factors: Sequence[Tensor], peaks: Sequence[Tensor]) -> Tensor:
    """[*B, R]: log of the mass of each component, relative to the shifts."""
    dead = _add(peak == torch.finfo(peak.dtype).min for peak in peaks)[..., 0]
    masses = _add(_log_mass(x, peak) for x, peak in zip(factors, peaks, strict=True))
    return (masses + _add(_heights(peaks, _shifts(peaks)))).masked_fill(dead, -torch.inf)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """[*B, R, X] at class indices [*B, T] -> [*B, R, T]."""
    return x.gather(-1, index[..., None, :].expand(*x.shape[:-1], index.shape[-1]))


def _at_triplets(factors: Sequence[Tensor], triplet: Tensor, shifts: Sequence[Tensor]) -> Tensor:
    """[*B, R, T]: the log of each component at each triplet [*B, T, 3], relative to the shifts."""
    parts = zip(factors, triplet.unbind(-1), shifts, strict=True)
    return _add(_at(x, index) - shift for x, index, shift in parts)


def _mix(log_weight: Tensor, factors: list[Tensor]) -> Tensor:
    """Log Σ_r P(r) Π_a P(X_a | r), one component at a time: [*B, R] and one or two [*B, R, X] -> [*B, X(, Y)]."""
    first = log_weight[..., None] + factors[0]  # [*B, R, X]
    if len(factors) == 1:
        return first.logsumexp(-2)
    parts = (first[..., r, :, None] + factors[1][..., r, None, :] for r in range(first.shape[-2]))
    return reduce(torch.logaddexp, parts)


class _ClosedFormNLL(torch.autograd.Function):
    """L = -Σ t log y and the supplement's ∂L/∂s_{a,r}^i = Σt · P(r) P(i | r) - Σ_{t at i} t · P(r | triplet).

    Saves the inputs and [*B, R] numbers only; backward recomputes the softmax of each factor in the buffer of
    the gradient.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        *factors, target, weight = inputs  # [*B, R, ·] three times, [*B, T, 3], [*B, T]
        peaks = _peaks(factors)
        shifts = _shifts(peaks)
        masses = [(x - peak).exp_().sum(-1) for x, peak in zip(factors, peaks, strict=True)]  # [*B, R]
        component = _add(mass.log() for mass in masses) + _add(_heights(peaks, shifts))  # [*B, R]
        log_z = component.logsumexp(-1, keepdim=True)  # [*B, 1]
        joint = _at_triplets(factors, target, shifts)  # [*B, R, T]
        log_joint = joint.logsumexp(-2)  # [*B, T]
        surprise = log_z - log_joint  # -log y, [*B, T]
        ctx.save_for_backward(*inputs, component - log_z, joint, surprise, *peaks, *masses)
        return (weight * surprise).masked_fill(weight == 0, 0).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, p, o, target, weight, log_mixture, joint, surprise, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for with create_graph: the gradient must be differentiable itself
            loss = -(weight * CPTensor(s, p, o).log_prob(target)).masked_fill(weight == 0, 0).sum(-1)
            asked = [x for x in (s, p, o, weight) if x.requires_grad]
            grads_of_asked = iter(torch.autograd.grad(loss, asked, grad, create_graph=True))
            first = [next(grads_of_asked) if x.requires_grad else None for x in (s, p, o)]
            return *first, None, next(grads_of_asked, None)
        peaks, masses = rest[:3], rest[3:]
        tiny = torch.finfo(s.dtype).tiny
        spread = (grad * weight.sum(-1))[..., None] * log_mixture.exp()  # [*B, R]
        responsibility = joint.softmax(-2) * (grad[..., None] * weight)[..., None, :]  # [*B, R, T]
        responsibility = responsibility.masked_fill((weight == 0)[..., None, :], 0)
        grads = []
        for x, peak, mass, index in zip((s, p, o), peaks, masses, target.unbind(-1), strict=True):
            d = (x - peak).exp_().mul_((spread / mass.clamp_min(tiny))[..., None])
            grads.append(d.scatter_add_(-1, index[..., None, :].expand_as(responsibility), -responsibility))
        return *grads, None, grad[..., None] * surprise if ctx.needs_input_grad[4] else None
