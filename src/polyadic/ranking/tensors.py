"""The exact search in torch operations, on any device with float64, linear or in logs.

Rows (pair, subject) are visited by falling bound in growing blocks; each block's surviving cells (subject,
predicate), then their surviving entries, are merged into the answer, which raises the bar for the next block. In
linear terms the order of operations is that of the compiled kernel, so are the values, and bounds need no slack
(see `polyadic.kernels.ranking`). In logs, exp and log are not monotone in the last bit, so bounds get a little slack;
that costs visits, never entries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyadic.ranking.problem import Terms, Weights

_BLOCK = 1 << 22  # numbers of [rows, R, classes] held at once
_SLACK = 1e-9


def search(terms: Terms, k: int | Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Values and flat indices of the best `top` entries, at most `k` per pair (one for all, or [B]), best first."""
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
        """The largest weight of each cell or row; the rest has at least the constant."""
        keys, place = torch.unique_consecutive(group, return_inverse=True)
        best = torch.full(keys.shape, self.terms.rest, dtype=torch.float64, device=group.device)
        return Weights(keys, best.scatter_reduce(0, place, self.terms.seen, "amax"), self.terms.rest)

    def _times(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y if self.terms.logs else x * y

    def _total(self, x: Tensor) -> Tensor:
        """Over r, the second axis: in order, as the compiled kernel does."""
        if self.terms.logs:
            return x.logsumexp(1)
        total = x[:, 0].clone()
        for r in range(1, x.shape[1]):
            total += x[:, r]
        return total

    def _open(self, bound: Tensor, first: Tensor, pair: Tensor) -> Tensor:
        """Whether a block of entries, its bound and its first index given, may hold one that counts."""
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
    """For each element, how many equal ones stand before it."""
    ordered, order = group.sort(stable=True)
    _, count = torch.unique_consecutive(ordered, return_counts=True)
    start = (count.cumsum(0) - count).repeat_interleave(count)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - start
    return place
