"""Slow answers, written from the paper's formulas with loops and dense tensors. Imports nothing of the package."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor


def probability_tensor(s: Tensor, p: Tensor, o: Tensor) -> Tensor:
    """y^{ijk} of one pair: exp, outer product, sum over r, divide by the sum over l, m, n."""
    tensor = torch.zeros(s.shape[1], p.shape[1], o.shape[1], dtype=torch.float64)
    for r in range(s.shape[0]):
        tensor += torch.einsum("i,j,k->ijk", s[r].double().exp(), p[r].double().exp(), o[r].double().exp())
    return tensor / tensor.sum()


def log_probability_tensor(s: Tensor, p: Tensor, o: Tensor) -> Tensor:
    """The same in logs, for scores whose exp overflows."""
    joint = s.double()[:, :, None, None] + p.double()[:, None, :, None] + o.double()[:, None, None, :]
    return joint.logsumexp(0) - joint.flatten().logsumexp(0)


def gradient(factors: tuple[Tensor, Tensor, Tensor], t: Tensor) -> list[Tensor]:
    """The supplement's ∂L/∂s_{a,r'}^i for a target tensor t that sums to 1, term by term."""
    exps = [x.detach().double().exp() for x in factors]
    R = len(exps[0])
    masses = [[float(x[r].sum()) for r in range(R)] for x in exps]
    Z = sum(masses[0][r] * masses[1][r] * masses[2][r] for r in range(R))
    grads = [torch.zeros_like(x) for x in exps]
    for a, r in itertools.product(range(3), range(R)):
        others = math.prod(masses[b][r] for b in range(3) if b != a)
        for i in range(exps[a].shape[1]):
            grads[a][r, i] = float(exps[a][r, i]) * others / Z
    for cell in t.nonzero().tolist():
        parts = [math.prod(float(exps[a][r, cell[a]]) for a in range(3)) for r in range(R)]
        for a, r in itertools.product(range(3), range(R)):
            grads[a][r, cell[a]] -= float(t[tuple(cell)]) * parts[r] / sum(parts)
    return grads


def prior_tensor(triplets: list[tuple[int, int, int]], sizes: tuple[int, int, int], smoothing: float) -> Tensor:
    """ψ_u: count, add the constant to all entries, divide by the sum."""
    tensor = torch.full(sizes, smoothing, dtype=torch.float64)
    for triplet in triplets:
        tensor[triplet] += 1
    return tensor / tensor.sum()


Entry = tuple[float, int, int, int, int]  # score, pair, subject, predicate, object


def ranked(scores: Tensor, k: int | None, top: int) -> list[Entry]:
    """Sort the dense [B, S, P, O] scores, ties by index; keep k per pair, then the first `top`; drop -inf."""
    found: list[Entry] = []
    for pair in range(len(scores)):
        own = [
            (float(score), pair, *index)
            for index, score in np.ndenumerate(scores[pair].double().numpy())
            if score > -math.inf
        ]
        found += sorted(own, key=lambda e: (-e[0], e[1:]))[:k]
    return sorted(found, key=lambda e: (-e[0], e[1:]))[:top]


def greedy(scores: Tensor, boxes: Tensor, iou: float, weight: float, k: int | None, top: int) -> list[Entry]:
    """Take the best entry; the same triplet on overlapping boxes loses, once; go on."""
    left = {index: float(score) for index, score in np.ndenumerate(scores.double().numpy()) if score > -math.inf}
    lost: set[tuple[int, ...]] = set()
    taken: list[Entry] = []
    count = [0] * len(scores)
    while left and len(taken) < top:
        index = min(left, key=lambda x: (-left[x], x))
        score = left.pop(index)
        if score == -math.inf:
            break
        pair, triplet = index[0], index[1:]
        if k is not None and count[pair] == k:
            continue
        taken.append((score, pair, *triplet))
        count[pair] += 1
        for other in range(len(scores)):
            copy = (other, *triplet)
            near = all(plain_iou(boxes[pair, n].tolist(), boxes[other, n].tolist()) > iou for n in range(2))
            if copy in left and copy not in lost and near:
                lost.add(copy)
                left[copy] += math.log(weight) if weight else -math.inf
    return taken


def plain_iou(a: list[float], b: list[float], offset: float = 0.0) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    inside = max(width, 0.0) * max(height, 0.0)
    areas = [(x[2] - x[0] + offset) * (x[3] - x[1] + offset) for x in (a, b)]
    union = sum(areas) - inside
    return inside / union if union > 0 else 0.0
