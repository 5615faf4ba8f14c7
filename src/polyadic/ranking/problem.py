"""What the searches work on: the score of every entry as (Σ_r a·b·c)·u, in float64, never formed.

f_spo of pair B at triplet (i, j, k) is ψ_c · ψ_u^a · P(X_sel)^b · P(B_s, B_o | I)^c. The pair's part and 1/Z go
into the subject factor, the rows of the other two are scaled to a peak of 1, and ψ_u to a largest weight of 1: so a
bound that replaces a factor by its peak just leaves it out, and `log_score = log(value) + log_scale`.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.structures import SparsePrior

# Above this, no term that matters has been lost to underflow; below, the search is done again in logs.
SAFE = 1e-280


class Weights(NamedTuple):
    """ψ_u^a as sparse + constant: sorted flat triplets, their log-weights, and the log-weight of all others."""

    keys: Tensor  # [M]
    log_seen: Tensor  # [M]
    log_rest: float

    def at(self, flat: Tensor) -> Tensor:
        """The weight of any flat triplets."""
        if not len(self.keys):
            return torch.full(flat.shape, self.log_rest, dtype=torch.float64, device=flat.device)
        place = torch.searchsorted(self.keys, flat).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place] == flat, self.log_seen[place], self.log_rest)

    @property
    def log_best(self) -> float:
        return max(self.log_rest, float(self.log_seen.max()) if len(self.log_seen) else -math.inf)


def weights_of(prior: SparsePrior | None, exponent: float, device: torch.device) -> Weights:
    """ψ_u^exponent; without a prior, or with exponent 0, one constant."""
    if prior is None or exponent == 0:
        return Weights(torch.empty(0, dtype=torch.long, device=device), torch.empty(0, device=device).double(), 0.0)
    keys = prior.keys.to(device).contiguous()
    return Weights(keys, prior.log_seen.to(device).double() * exponent, prior.log_rest * exponent)


class Workspace(threading.local):
    """Memory for the factors of one image, kept for the next: fresh pages would cost as much as the exponentials."""

    _MOST = 1 << 23  # numbers: 64 MB; larger images get memory of their own

    def __init__(self) -> None:
        self._memory = np.empty(0)  # not a tensor: one made in inference mode could not be used outside

    def take(self, size: int) -> Tensor:
        """Uninitialised float64 numbers on the CPU, valid until the next call."""
        memory = self._memory
        if size > len(memory):
            memory = np.empty(size)
            if size <= self._MOST:
                self._memory = memory
        return torch.from_numpy(memory[:size])


@dataclass(frozen=True, eq=False)
class Problem:
    """One image: factors of B pairs, the log-weight of each pair, and the weights of the triplets."""

    cp: CPTensor  # [B, R, ·]
    log_pair: Tensor  # [B], b log P(X_sel) + c log P(B_s, B_o | I)
    weights: Weights

    def terms(self, logs: bool, workspace: Workspace | None = None) -> Terms:
        """The factors of the score, linear (fast, underflows) or in logs (never underflows).

        With a workspace, they live in its memory, until its next use.
        """
        factors = self.cp.factors
        lowest = torch.finfo(factors[0].dtype).min
        peaks = [x.amax(-1, keepdim=True).clamp_min(lowest).double() for x in factors]  # [B, R, 1]
        sizes = [x.numel() for x in factors]
        if workspace is None:
            flat = torch.empty(sum(sizes), dtype=torch.float64, device=self.cp.device)
        else:
            flat = workspace.take(sum(sizes))
        scaled = [part.view(x.shape) for part, x in zip(flat.split(sizes), factors, strict=True)]
        for y, x, peak in zip(scaled, factors, peaks, strict=True):
            y.copy_(x).sub_(peak)
        exps = flat.exp() if logs else flat.exp_()  # of all three at once
        linear = [part.view(x.shape) for part, x in zip(exps.split(sizes), factors, strict=True)]
        height = (peaks[0] + peaks[1] + peaks[2])[..., 0]  # [B, R]
        mass = (linear[0].sum(-1) * linear[1].sum(-1) * linear[2].sum(-1)).log()  # [B, R]
        gain = height - (height + mass).logsumexp(-1, keepdim=True)  # log of each component's peak in ψ_c
        best, rest = self.weights.log_best, self.weights.log_rest
        scale = float(self.log_pair.max()) if len(self.log_pair) else 0.0
        scale = scale if scale > -math.inf else 0.0
        gain = gain + (self.log_pair - scale)[:, None]
        highest = float(gain.max()) if gain.numel() else 0.0
        if highest > -math.inf:
            gain, scale = gain - highest, scale + highest
        seen = self.weights.log_seen - best
        if logs:
            a, b, c = scaled
            return Terms(a + gain[..., None], b, c, gain, self.weights.keys, seen, rest - best, scale + best, logs=True)
        a, b, c = linear
        gain, rest = gain.exp(), math.exp(rest - best)
        return Terms(a.mul_(gain[..., None]), b, c, gain, self.weights.keys, seen.exp(), rest, scale + best, logs=False)


@dataclass(frozen=True, eq=False)
class Terms:
    """`value = total_r(a · b · c) · u`; in logs, products are sums and the total is a logsumexp."""

    a: Tensor  # [B, R, S], carries the pair's weight and 1/Z
    b: Tensor  # [B, R, P], rows peak at 1
    c: Tensor  # [B, R, O], rows peak at 1
    gain: Tensor  # [B, R], the peaks of a's rows
    keys: Tensor  # [M], sorted flat triplets with a weight of their own
    seen: Tensor  # [M], those weights, at most 1
    rest: float  # the weight of all other triplets, at most 1
    log_scale: float
    logs: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, S, P, O)."""
        return self.a.shape[0], self.a.shape[2], self.b.shape[2], self.c.shape[2]

    def log_score(self, value: Tensor) -> Tensor:
        return (value if self.logs else value.log()) + self.log_scale
