"""Random CP tensors and triplets for the tests; unequal sizes catch swapped axes."""

from __future__ import annotations

import torch
from torch import Tensor

from polyadic.cp import CPTensor

SIZES = (4, 3, 5)


def random_cp(
    *batch: int,
    rank: int = 3,
    t: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    grad: bool = False,
) -> CPTensor:
    generator = torch.Generator().manual_seed(seed)
    factors = [torch.randn(*batch, rank, n, generator=generator, dtype=torch.float64) * t for n in SIZES]
    return CPTensor(*(x.to(dtype).requires_grad_(grad) for x in factors))


def random_triplets(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, shape, generator=generator) for n in SIZES], -1)
