"""Train a wide first layer on frozen features through their inner products (ours).

Every step of SGD changes the weights W of a layer on frozen inputs by a combination of these: W = W0 + Aᵀ X, where X
are the n distinct inputs in training. So A [n, H] is trained instead. The output of an input x is W0 x + Aᵀ X x, a
gradient G of A stands for Gᵀ X of W, and the squared norm of that is the sum of G Gᵀ ∘ X Xᵀ. These are the steps of
plain SGD, momentum and clipping included, up to rounding, but W, its gradient and its momentum are never touched. With
few images n is smaller than the width of the features, 25,088 in the paper's network, and a step costs a fraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from polyadic.model.heads import Branch
from polyadic.structures.vocabulary import PolyadicError

_CHUNK = 2048  # rows per product


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

    def products(self) -> Float[Tensor, "N n"]:
        """Compute the inner products of all rows with those of training."""
        return self.project(self.x[: self.fitted])

    def project(self, weight: Tensor) -> Float[Tensor, "N H"]:
        """Multiply all rows with the rows of a matrix [H, D]."""
        matrix = weight.float().T
        return torch.cat([part.float() @ matrix for part in self.x.split(_CHUNK)])


def _keys(rows: Float16[Tensor, "M D"]) -> list[bytes]:
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows.detach().cpu().contiguous().numpy()]


class _Product(torch.autograd.Function):
    """`inner @ A`, whose gradient of A is the output's gradient at the places of the rows."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, inner: Float[Tensor, "M n"], at: Int[Tensor, " M"]) -> Float[Tensor, "M H"]:
        ctx.save_for_backward(at)
        ctx.rows = len(a)
        return inner @ a

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (at,), (gradient,) = ctx.saved_tensors, gradients
        return gradient.new_zeros(ctx.rows, gradient.shape[1]).index_add_(0, at, gradient), None, None


class SpanLayer(nn.Module):
    """Stands in for a linear layer whose first inputs are frozen, until it is removed."""

    def __init__(self, layer: nn.Linear, rows: FrozenRows, products: Float[Tensor, "N n"]) -> None:
        super().__init__()
        self._layer, self._rows, self._products = [layer], rows, products  # not modules of this one
        self._width = rows.x.shape[1]  # D
        start = layer.weight.detach()
        self._start = rows.project(start[:, : self._width])  # W0 x
        self.coefficients = nn.Parameter(start.new_zeros(rows.fitted, len(start)))  # A
        self.rest = nn.Parameter(start[:, self._width :].clone())  # the weights of inputs that are not frozen
        layer.weight.requires_grad_(False)
        layer.forward = self._forward  # type: ignore[method-assign, assignment]

    def _forward(self, x: Float[Tensor, "M E"]) -> Float[Tensor, "M H"]:
        frozen, other = x.split([self._width, x.shape[1] - self._width], 1)
        at = self._rows.find(frozen)
        with torch.autocast(x.device.type, enabled=False):
            change: Tensor = _Product.apply(self.coefficients, self._products[at], at)
        return self._start[at] + change + linear(other, self.rest, self._layer[0].bias)

    def square(self) -> Float[Tensor, ""]:
        """Compute the squared norm of the gradient that the layer's weights would have."""
        gradient = self.coefficients.grad
        if gradient is None:
            return self.coefficients.new_zeros(())
        at = gradient.abs().amax(1).nonzero()[:, 0]
        some = gradient[at]
        return ((some @ some.T) * self._products[at][:, at]).sum().clamp_min(0)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the weights that the layer has now into it, for example to save them."""
        layer, start = self._layer[0], self._layer[0].weight.data
        weight = torch.empty_like(start)
        torch.matmul(
            self.coefficients.detach().T, self._rows.x[: self._rows.fitted].float(), out=weight[:, : self._width]
        )
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
    *groups: tuple[Sequence[Branch], tuple[Iterable[Tensor], Iterable[Tensor]]], device: torch.device
) -> list[SpanLayer]:
    """Let inner products stand in for the first layers of branches; a group shares its features, fit and held out."""
    layers = []
    for branches, (fit, held_out) in groups:
        rows = FrozenRows(fit, held_out, device)
        products = rows.products()
        layers += [SpanLayer(branch.first, rows, products) for branch in branches]
    return layers


def clip_gradients(parameters: Sequence[nn.Parameter], spans: Sequence[SpanLayer], most: float) -> Tensor:
    """Clip the total norm of all gradients, as if those of the spans were of their layers' weights; return it."""
    if not spans:
        return nn.utils.clip_grad_norm_(parameters, most)
    apart = {id(span.coefficients) for span in spans}
    plain = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None and id(p) not in apart])
    norm = torch.stack([plain.square(), *(span.square() for span in spans)]).sum().sqrt()
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm
