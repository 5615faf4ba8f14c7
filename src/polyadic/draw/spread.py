"""Positions of a connected graph's nodes, as far apart as the graph says; the same in every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

TRIES = 16
ENOUGH = 3  # more tries only as long as edges cross
STEPS = 60


def spread(start: Float[np.ndarray, "N 2"], edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "N 2"]:
    """From `start`, where things are in the photo, and from there with noise: the try with the fewest crossings.

    Neighbours are 1 apart, others as many as there are steps between them. O(N³ + tries · steps · N²).
    """
    rng = np.random.default_rng(0)
    low, high = start.min(0), start.max(0)
    hops = _hops(len(start), edges)
    size = max(1.0, float(hops.max()))
    first = (start - low) / np.where(high > low, high - low, 1.0) * size
    best: np.ndarray = first
    least = (np.inf, np.inf)
    for i in range(TRIES):
        noise = rng.normal(size=first.shape) * size * (0.02 + 0.1 * i)
        found = _settle(first + noise, hops)
        cost = crossings(found, edges), _stress(found, hops) * (1 + 0.05 * i)
        if cost < least:
            best, least = found, cost
        if i >= ENOUGH and not least[0]:
            break
    return best


def _hops(n: int, edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "N N"]:
    """Steps between nodes, all of which are connected."""
    hops = np.full((n, n), np.inf)
    np.fill_diagonal(hops, 0)
    for a, b in edges:
        if a != b:
            hops[a, b] = hops[b, a] = 1
    for k in range(n):
        hops = np.minimum(hops, hops[:, k, None] + hops[None, k])
    return hops


def _settle(points: Float[np.ndarray, "N 2"], hops: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N 2"]:
    """Gansner's majorisation: each step solves the quadratic bound of the stress."""
    weight = np.where(hops > 0, 1 / np.maximum(hops, 1e-9) ** 2, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(STEPS):
        pull = weight * hops / np.maximum(_distances(points), 1e-9)
        points = inverse @ (pull.sum(1)[:, None] * points - pull @ points)
    return points


def _distances(points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, "N N"]:
    distances: np.ndarray = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    return distances


def _stress(points: Float[np.ndarray, "N 2"], hops: Float[np.ndarray, "N N"]) -> float:
    return float((((_distances(points) - hops) / np.maximum(hops, 1.0)) ** 2).sum())


def crossings(points: Float[np.ndarray, "N 2"], edges: Sequence[tuple[int, int]]) -> int:
    """How many pairs of straight edges cross, other than at a node of both.

    >>> crossings(np.array([[0.0, 0], [1, 1], [0, 1], [1, 0]]), [(0, 1), (2, 3), (0, 2)])
    1
    """
    ends = np.array(sorted({(min(edge), max(edge)) for edge in edges}), np.int64).reshape(-1, 2)
    a, b = points[ends[:, 0]], points[ends[:, 1]]  # [M, 2]

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        turned: np.ndarray = np.sign(
            (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])
        )
        return turned

    one, other = (a[:, None], b[:, None]), (a[None], b[None])
    apart = (ends[:, None, :, None] != ends[None, :, None]).all((-1, -2))
    cut = (side(*one, other[0]) * side(*one, other[1]) < 0) & (side(*other, one[0]) * side(*other, one[1]) < 0)
    return int((cut & apart).sum()) // 2
