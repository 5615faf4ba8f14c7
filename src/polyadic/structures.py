"""What the rooms agree on: tensors where tensors are meant, and the contract of a prior."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.vocabulary import PolyadicError

_TOGETHER = 1 << 18  # pixels: ten pictures of the drawn world, or half a photo


def require_tensor(value: object, what: str) -> Tensor:
    """`value` itself if it is a tensor; lists and arrays would lose their device and dtype in silence."""
    if not isinstance(value, Tensor):
        raise PolyadicError(f"{what} must be a torch tensor, got {type(value).__name__}; convert with torch.as_tensor")
    return value


def at_once(device: torch.device, pixels: float) -> int:
    """How many pictures of so many pixels pass a network together: on a CPU large ones are faster one by one."""
    return max(1, int(_TOGETHER / max(pixels, 1))) if device.type == "cpu" else 1 << 30


@runtime_checkable
class SparsePrior(Protocol):
    """What ranking asks of a prior ψ_u: the same log-weight for all triplets but a sorted list of seen ones."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""

    @property
    def keys(self) -> Int[Tensor, " M"]:
        """Seen triplets as strictly rising flat indices (s·P + p)·O + o."""

    @property
    def log_seen(self) -> Float[Tensor, " M"]:
        """Their log-probabilities, float64."""

    @property
    def log_rest(self) -> float:
        """The log-probability of each other triplet."""
