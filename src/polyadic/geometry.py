"""A prior that knows the boxes (ours): P(s, p, o | geometry), itself a CP tensor, from annotations alone.

ψ_u grown up: a mixture of R' products whose weights and factors follow from the boxes. The product of two CP tensors is
a CP tensor of rank R·R', so ψ_c times it is ranked exactly, as everything else.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from polyadic.boxes import GEOMETRY
from polyadic.cp import CPTensor


class GeometryPrior(nn.Module):
    """Geometry of a pair -> CP tensor. The classes of a component are fixed, its weight and predicates move.

    `discount` is the exponent of the class frequencies that are divided out: at 1 the prior says how much more likely
    than by chance a triplet is at these boxes, and ψ_c, which has its own idea of the frequencies, is not told twice.
    """

    mean: Tensor
    scale: Tensor
    log_frequency: Tensor

    def __init__(
        self,
        sizes: tuple[int, int, int],
        rank: int = 16,
        hidden: int = 256,
        dropout: float = 0.3,
        discount: float = 0.0,
    ) -> None:
        super().__init__()
        S, P, O = sizes
        self.sizes, self.rank, self.discount = sizes, rank, discount
        self.trunk = nn.Sequential(
            nn.Linear(GEOMETRY, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.factors = nn.Linear(hidden, rank * (S + P + O))
        nn.init.normal_(self.factors.bias, std=1.0)  # components must differ from the start
        self.register_buffer("mean", torch.zeros(GEOMETRY))
        self.register_buffer("scale", torch.ones(GEOMETRY))
        self.register_buffer("log_frequency", torch.zeros(S + P + O))

    @torch.no_grad()
    def fit_scale(self, geometry: Float[Tensor, "B 24"], triplets: Tensor) -> None:
        """Standardise by these pairs; class frequencies with one added to each count."""
        self.mean.copy_(geometry.mean(0))
        self.scale.copy_(geometry.std(0, correction=0).clamp_min(1e-3))
        counts = [torch.bincount(x, minlength=n) + 1.0 for x, n in zip(triplets.unbind(-1), self.sizes, strict=True)]
        self.log_frequency.copy_(torch.cat([(count / count.sum()).log() for count in counts]))

    def forward(self, geometry: Float[Tensor, "B 24"]) -> CPTensor:
        """P(triplet | geometry), which is trained."""
        h = self.trunk((geometry - self.mean) / self.scale)
        return CPTensor(*self.factors(h).float().view(len(h), self.rank, sum(self.sizes)).split(self.sizes, -1))

    def weight(self, geometry: Float[Tensor, "B 24"]) -> CPTensor:
        """What ψ_c is multiplied by: `forward`, the class frequencies divided out as far as `discount` says."""
        cp: CPTensor = self(geometry)
        if not self.discount:
            return cp
        logs = (self.discount * self.log_frequency).split(self.sizes)
        return CPTensor(*(x - log for x, log in zip(cp.factors, logs, strict=True)))
