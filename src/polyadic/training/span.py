"""Train a wide first layer on frozen features through their inner products (ours).

Every step of SGD changes the weights W of a layer on frozen inputs by a combination of these: W = W0 + Aᵀ X, where X
are the n distinct inputs in training. So A [n, H] is trained instead. The output of an input x is W0 x + Aᵀ X x, a
gradient G of A stands for Gᵀ X of W, and the squared norm of that is the sum of G Gᵀ ∘ X Xᵀ.

A step has gradients for the rows of its own images alone; the others only coast on their velocity V, which decays by
the momentum m in each step. At a constant rate they would come to rest at B = A - rate m / (1 - m) V, so B and the V of
the last gradient are kept: a step changes its own rows and reads the rest. These are the steps of plain SGD, momentum
and clipping included, up to rounding, but W, its gradient and its momentum are never touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from polyadic.config.schema import StageConfig
from polyadic.model.heads import Branch
from polyadic.structures.vocabulary import PolyadicError

_CHUNK, _COLUMNS = 2048, 2048  # rows and columns per product


class FrozenRows:
    """The distinct rows of frozen features that a layer meets, found by their content; first those of training."""

    def __init__(
        self, fit: Iterable[Float[Tensor, "_ D"]], held_out: Iterable[Float[Tensor, "_ D"]], device: torch.device
    ) -> None:
        self._place: dict[bytes, int] = {}
        rows = [self._new(block) for block in fit]
        self.fitted = len(self._place)  # n
        rows += [self._new(block) for block in held_out]
        self.x = torch.cat(rows).to(device)  # [n + held out, D], in float16 as the cache keeps them

    def _new(self, block: Float[Tensor, "M D"]) -> Float16[Tensor, "L D"]:
        half = block.half()
        fresh = []
        for at, key in enumerate(_keys(half)):
            if key not in self._place:
                self._place[key] = len(self._place)
                fresh.append(at)
        return half[fresh]

    def find(self, block: Float[Tensor, "M D"]) -> Int[Tensor, " M"]:
        """Find the places of some rows."""
        try:
            return torch.tensor([self._place[key] for key in _keys(block.half())], device=self.x.device)
        except KeyError:
            raise PolyadicError("head.span: features that are neither of training nor of held-out images") from None

    def products(self, precision: torch.dtype = torch.float32) -> Float[Tensor, "N n"]:
        """Compute the inner products of all rows with those of training."""
        return self.project(self.x[: self.fitted], precision)

    def project(self, weight: Tensor, precision: torch.dtype = torch.float32) -> Float[Tensor, "N H"]:
        """Multiply all rows with the rows of a matrix [H, D]; a lower precision is that of the factors."""
        result = torch.zeros(len(self.x), len(weight), device=self.x.device)
        for ours, theirs in zip(self.x.split(_COLUMNS, 1), weight.split(_COLUMNS, 1), strict=True):
            matrix = theirs.to(precision).T
            for rows, part in zip(result.split(_CHUNK), ours.split(_CHUNK), strict=True):
                rows.add_(part.to(precision) @ matrix)  # added up in float32
        return result


def _keys(rows: Float16[Tensor, "M D"]) -> list[bytes]:
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows.detach().cpu().contiguous().numpy()]


class SpanLayer(nn.Module):
    """Stands in for a linear layer whose first inputs are frozen, until it is removed."""

    resting: Tensor
    velocity: Tensor
    touched: Tensor
    steps: Tensor

    def __init__(
        self,
        layer: nn.Linear,
        rows: FrozenRows,
        products: Float[Tensor, "N n"],
        settings: StageConfig,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self._layer, self._rows, self._products = [layer], rows, products  # not modules of this one
        self._rate, self._momentum, self._precision = settings.rate, settings.momentum, precision
        self._width = rows.x.shape[1]  # D
        start = layer.weight.detach()
        self._start = rows.project(start[:, : self._width], precision)  # W0 x
        zeros = start.new_zeros(rows.fitted, len(start))
        self.register_buffer("resting", zeros)  # B
        self.register_buffer("velocity", zeros.clone())  # V, when the row had its last gradient
        self.register_buffer("touched", torch.zeros(rows.fitted, dtype=torch.int64, device=start.device))  # that step
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=start.device))
        self.rest = nn.Parameter(start[:, self._width :].clone())  # the weights of inputs that are not frozen
        self.gradients: list[tuple[Int[Tensor, " M"], Float[Tensor, "M H"]]] = []  # of this step: rows, gradients
        self._factors: tuple[Tensor, Tensor] | None = None  # B and V in the precision
        self.register_load_state_dict_post_hook(lambda *_: setattr(self, "_factors", None))
        layer.weight.requires_grad_(False)
        layer.forward = self._forward  # type: ignore[method-assign, assignment]

    def _forward(self, x: Float[Tensor, "M E"]) -> Float[Tensor, "M H"]:
        frozen, other = x.split([self._width, x.shape[1] - self._width], 1)
        at = self._rows.find(frozen)
        inner = self._products[at]
        if self._factors is None:
            self._factors = self.resting.to(self._precision), self.velocity.to(self._precision)
        resting, velocity = self._factors
        change = inner.to(resting) @ resting + (inner * self._reach()).to(velocity) @ velocity
        output = self._start[at] + change + linear(other, self.rest, self._layer[0].bias)
        if output.requires_grad:
            output.register_hook(lambda gradient: self.gradients.append((at, gradient.float())))
        return output

    def _reach(self) -> Float[Tensor, " n"]:
        """Compute how far A is from where it comes to rest, in velocities."""
        decay = self._momentum ** (self.steps - self.touched).float()
        return self._rate * self._momentum / (1 - self._momentum) * decay

    def scale(self, factor: float) -> None:
        """Multiply this step's gradients."""
        for _, gradient in self.gradients:
            gradient.mul_(factor)

    def square(self) -> Float[Tensor, ""]:
        """Compute the squared norm of the gradient that the layer's weights would have."""
        if not self.gradients:
            return self.resting.new_zeros(())
        at, gradient = self._joined()
        return ((gradient @ gradient.T) * self._products[at][:, at]).sum().clamp_min(0)

    def step(self) -> None:
        """Take a step of SGD, and forget the gradients."""
        self.steps += 1
        if not self.gradients:
            return
        at, gradient = self._joined()
        decay = self._momentum ** (self.steps - self.touched[at]).float()
        self.velocity[at] = decay[:, None] * self.velocity[at] + gradient
        self.touched[at] = self.steps
        self.resting[at] -= self._rate / (1 - self._momentum) * gradient
        if self._factors is not None and self._precision != self.resting.dtype:  # otherwise they are B and V
            for factor, whole in zip(self._factors, (self.resting, self.velocity), strict=True):
                factor[at] = whole[at].to(factor)
        self.gradients = []

    def _joined(self) -> tuple[Int[Tensor, " L"], Float[Tensor, "L H"]]:
        """Add up the gradients of rows that occur more than once."""
        device = self.resting.device
        at, place = torch.cat([rows.to(device) for rows, _ in self.gradients]).unique(return_inverse=True)
        every = torch.cat([gradient.to(device) for _, gradient in self.gradients])
        return at, every.new_zeros(len(at), every.shape[1]).index_add_(0, place, every)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the weights that the layer has now into it, for example to save them."""
        layer, start = self._layer[0], self._layer[0].weight.data
        coefficients = self.resting + self._reach()[:, None] * self.velocity
        weight = torch.empty_like(start)
        turned = coefficients.T.to(self._precision)
        weight[:, : self._width] = turned @ self._rows.x[: self._rows.fitted].to(self._precision)
        weight[:, : self._width] += start[:, : self._width]
        weight[:, self._width :] = self.rest.detach()
        layer.weight.data = weight
        try:
            yield
        finally:
            layer.weight.data = start

    def remove(self) -> None:
        """Leave the layer with its own forward and the weights it began with."""
        del self._layer[0].forward
        self._layer[0].weight.requires_grad_(True)


def span_layers(
    *groups: tuple[Sequence[Branch], tuple[Iterable[Tensor], Iterable[Tensor]]],
    device: torch.device,
    settings: StageConfig,
    precision: torch.dtype,
) -> list[SpanLayer]:
    """Let inner products stand in for the first layers of branches; a group shares its features, fit and held out."""
    layers = []
    for branches, (fit, held_out) in groups:
        rows = FrozenRows(fit, held_out, device)
        products = rows.products(precision)
        layers += [SpanLayer(branch.first, rows, products, settings, precision) for branch in branches]
    return layers


def clip_gradients(parameters: Sequence[nn.Parameter], spans: Sequence[SpanLayer], most: float) -> Tensor:
    """Clip the total norm of all gradients, as if those of the spans were of their layers' weights; return it."""
    if not spans:
        return nn.utils.clip_grad_norm_(parameters, most)
    plain = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = torch.stack([plain.square(), *(span.square() for span in spans)]).sum().sqrt()
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    for span in spans:
        span.scale(min(1.0, most / (float(norm) + 1e-6)))
    return norm
