"""The input of the searches: the score of every entry as (Σ_r a·b·c)·u, in float64, never formed.

f_spo of pair B at triplet (i, j, k) is ψ_c · ψ_u^a · P(X_sel)^b · P(B_s, B_o | I)^c. The pair's part and 1/Z go
into the subject factor, the rows of the other two are scaled to a peak of 1, and ψ_u to a largest weight of 1: so a
bound that replaces a factor by its peak just leaves it out, and `log_score = log(value) + log_scale`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.prior import SparsePrior

# Above this, no term that matters has been lost to underflow; below, the search is done again in logs.
SAFE = 1e-280


class Weights(NamedTuple):
    """ψ_u^a as sparse + constant: sorted flat triplets, their log-weights, and the log-weight of all others."""

    keys: Tensor  # [M]
    log_seen: Tensor  # [M]
    log_rest: float

    def at(self, flat: Tensor) -> Tensor:
        """Return the weights of flat triplets."""
        if not len(self.keys):
            return torch.full(flat.shape, self.log_rest, dtype=torch.float64, device=flat.device)
        place = torch.searchsorted(self.keys, flat).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place] == flat, self.log_seen[place], self.log_rest)

    @property
    def log_best(self) -> float:
        return max(self.log_rest, float(self.log_seen.max()) if len(self.log_seen) else -math.inf)


def weights_of(prior: SparsePrior | None, exponent: float, device: torch.device) -> Weights:
    """Compute ψ_u^exponent; without a prior, or with exponent 0, one constant."""
    if prior is None or exponent == 0:
        return Weights(torch.empty(0, dtype=torch.long, device=device), torch.empty(0, device=device).double(), 0.0)
    keys = prior.keys.to(device).contiguous()
    return Weights(keys, prior.log_seen.to(device).double() * exponent, prior.log_rest * exponent)


@dataclass(frozen=True, eq=False)
class RankingProblem:
    """One image: factors of B pairs, the log-weight of each pair, and the weights of the triplets."""

    cp: CPTensor  # [B, R, ·]
    log_pair: Tensor  # [B], b log P(X_sel) + c log P(B_s, B_o | I)
    weights: Weights

    def terms(self, logs: bool) -> Terms:
        """Compute the factors of the score, linear (fast, underflows) or in logs (never underflows)."""
        factors = self.cp.factors
        lowest = torch.finfo(factors[0].dtype).min
        peaks = [x.amax(-1, keepdim=True).clamp_min(lowest).double() for x in factors]  # [B, R, 1]
        scaled = [x - peak for x, peak in zip(factors, peaks, strict=True)]
        linear = [x.exp() for x in scaled]
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


_BLOCK = 1 << 22  # numbers of [rows, R, classes] held at once
_SLACK = 1e-9


def search(terms: Terms, k: int | Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Find the values and flat indices of the best `top`, at most `k` per pair (one for all, or [B]), best first."""
    return _Search(terms, k, top).run()


class _Search:
    def __init__(self, terms: Terms, k: int | Tensor, top: int) -> None:
        self.terms, self.top = terms, top
        B, self.S, self.P, self.O = terms.shape
        device = terms.a.device
        self.k = torch.as_tensor(k, device=device).expand(B)
        self.zero = -math.inf if terms.logs else 0.0
        self.values = torch.empty(0, dtype=torch.float64, device=device)
        self.indices = torch.empty(0, dtype=torch.long, device=device)
        # An entry of a pair counts if it is not worse than the pair's (low, low_index).
        self.low = torch.full((B,), self.zero, dtype=torch.float64, device=device)
        self.low_index = torch.full((B,), -1, dtype=torch.long, device=device)
        self.entry = Weights(terms.keys, terms.seen, terms.rest)
        self.cell = self._grouped(terms.keys // self.O)
        self.row = self._grouped(terms.keys // (self.P * self.O))

    def _grouped(self, group: Tensor) -> Weights:
        """Find the largest weight of each cell or row; the rest has at least the constant."""
        keys, place = torch.unique_consecutive(group, return_inverse=True)
        best = torch.full(keys.shape, self.terms.rest, dtype=torch.float64, device=group.device)
        return Weights(keys, best.scatter_reduce(0, place, self.terms.seen, "amax"), self.terms.rest)

    def _times(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y if self.terms.logs else x * y

    def _total(self, x: Tensor) -> Tensor:
        """Sum over r, the second axis: in order, as the compiled kernel does."""
        if self.terms.logs:
            return x.logsumexp(1)
        total = x[:, 0].clone()
        for r in range(1, x.shape[1]):
            total += x[:, r]
        return total

    def _open(self, bound: Tensor, first: Tensor, pair: Tensor) -> Tensor:
        """Test whether a block of entries, with this bound and first index, may hold one that counts."""
        low = self.low[pair]
        if self.terms.logs:
            return (bound > -math.inf) & (bound >= low - _SLACK * low.abs().clamp_min(1).nan_to_num(posinf=1))
        return (bound > low) | ((bound == low) & (first <= self.low_index[pair]))

    def run(self) -> tuple[Tensor, Tensor]:
        a, device = self.terms.a, self.terms.a.device
        _, R, S = a.shape
        subjects = torch.arange(S, device=device)
        bound = self._times(self._total(a), self.row.at(subjects))  # [B, S]
        bound, rows = bound.flatten().sort(descending=True, stable=True)
        # the best row of every pair first: with a small k that closes most of the others
        first = _place_in_group(rows // S) == 0
        for part in (first, ~first):
            self._visit(rows[part], bound[part], max(1, _BLOCK // (R * self.P)))
        return self.values, self.indices

    def _visit(self, rows: Tensor, bound: Tensor, most: int) -> None:
        at, size = 0, 16
        while at < len(rows) and self._reachable(float(bound[at])):
            self._visit_rows(rows[at : at + size], bound[at : at + size])
            at, size = at + size, min(size * 4, most)

    def _reachable(self, bound: float) -> bool:
        low = float(self.values[-1]) if len(self.values) == self.top else self.zero
        slack = _SLACK * max(1.0, abs(low)) if self.terms.logs and math.isfinite(low) else 0.0
        return bound > self.zero and bound >= low - slack

    def _visit_rows(self, rows: Tensor, bound: Tensor) -> None:
        pair = rows // self.S
        keep = self._open(bound, rows * (self.P * self.O), pair)
        rows, pair = rows[keep], pair[keep]
        i = rows % self.S
        mix = self._times(self.terms.a[pair, :, i][..., None], self.terms.b[pair])  # [n, R, P]
        cells = rows[:, None] * self.P + torch.arange(self.P, device=rows.device)  # [n, P]
        best = self.cell.at(cells % (self.S * self.P))
        bound = self._times(self._total(mix), best)
        n, j = self._open(bound, cells * self.O, pair[:, None]).nonzero(as_tuple=True)
        order = bound[n, j].argsort(descending=True, stable=True)
        step = max(1, _BLOCK // (mix.shape[1] * self.O))
        first = _place_in_group(n[order]) == 0  # the best cell of every row first, as above
        for part in (*order[first].split(step), *order[~first].split(step)):
            at, on = n[part], j[part]
            still = self._open(bound[at, on], cells[at, on] * self.O, pair[at])
            at, on = at[still], on[still]
            self._visit_cells(cells[at, on], mix[at, :, on], best[at, on])

    def _visit_cells(self, cells: Tensor, mix: Tensor, best: Tensor) -> None:
        pair = cells // (self.S * self.P)
        plain = self._total(self._times(mix[..., None], self.terms.c[pair]))  # [m, O]
        entries = cells[:, None] * self.O + torch.arange(self.O, device=cells.device)
        keep = self._open(self._times(plain, best[:, None]), entries, pair[:, None])
        plain, entries, pair = plain[keep], entries[keep], pair[:, None].expand_as(keep)[keep]
        value = self._times(plain, self.entry.at(entries % (self.S * self.P * self.O)))
        keep = self._open(value, entries, pair)
        self._merge(value[keep], entries[keep])

    def _merge(self, values: Tensor, indices: Tensor) -> None:
        values, indices = torch.cat([self.values, values]), torch.cat([self.indices, indices])
        indices, order = indices.sort()
        values, order = values[order].sort(descending=True, stable=True)
        indices = indices[order]
        pair = indices // (self.S * self.P * self.O)
        place = _place_in_group(pair)
        cap = self.k[pair]
        keep = (place < cap).nonzero()[: self.top, 0]
        self.values, self.indices = values[keep], indices[keep]
        if len(keep) == self.top:
            self.low.fill_(self.values[-1])
            self.low_index.fill_(self.indices[-1])
        full = keep[place[keep] == cap[keep] - 1]  # the k-th entry of its pair
        self.low[pair[full]], self.low_index[pair[full]] = values[full], indices[full]


def _place_in_group(group: Tensor) -> Tensor:
    """Count the equal elements before each element."""
    ordered, order = group.sort(stable=True)
    _, count = torch.unique_consecutive(ordered, return_counts=True)
    start = (count.cumsum(0) - count).repeat_interleave(count)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - start
    return place
