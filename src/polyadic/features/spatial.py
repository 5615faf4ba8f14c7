"""Pair mask -> spatial feature, and what is done to pooled features before the branches see them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SpatialFeature(nn.Module):
    """2 x 64 x 64 -> two convolutions -> fully connected -> 512; kernels and channels are ours."""

    def __init__(self, side: int = 64, width: int = 512) -> None:
        super().__init__()
        border = (-side % 8 + 1) // 2
        # the first takes a mask of two boxes apart into patches: much cheaper on a CPU than small strides
        self.convolutions = nn.Sequential(
            nn.Conv2d(2, 32, 8, stride=8, padding=border),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        cells = ((side + 2 * border) // 8 + 1) // 2
        self.out = nn.Sequential(nn.Linear(64 * cells**2, width), nn.ReLU())

    def forward(self, masks: Float[Tensor, "B 2 H W"]) -> Float[Tensor, "B E"]:
        spatial: Tensor = self.out(self.convolutions(masks).flatten(1))
        return spatial


class Reduction(nn.Module):
    """Principal components of region features, each of unit variance on average (ours); fitted once, then frozen."""

    mean: Tensor
    basis: Tensor

    def __init__(self, width: int, components: int) -> None:
        super().__init__()
        self.width = components or width
        self.register_buffer("mean", torch.zeros(width) if components else torch.zeros(0))
        self.register_buffer("basis", torch.zeros(width, components) if components else torch.zeros(0, 0))

    @torch.no_grad()
    def fit(self, sample: Float[Tensor, "M D"]) -> None:
        if not len(self.mean):
            return
        self.mean.copy_(sample.mean(0))
        _, values, basis = torch.svd_lowrank(sample - self.mean, q=min(self.width, *sample.shape), niter=4)
        scale = (values.square().sum() / len(sample) / self.width).sqrt().clamp_min(1e-6)
        self.basis.zero_()
        self.basis[:, : basis.shape[1]] = basis / scale

    def forward(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M K"]:
        return (x - self.mean) @ self.basis if len(self.mean) else x


class Numbers(nn.Module):
    """A few numbers beside many features (ours): themselves and a layer of them, so that dropout leaves some."""

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(count, hidden)
        self.width = count + hidden

    def forward(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "M D"]:
        return torch.cat([x, self.layer(x).relu().to(x)], -1)
