"""Where the nodes of a graph go on paper: connected parts apart, side by side in rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from polyadic.draw.spread import spread

STEP = np.array([190.0, 110.0])  # px from a node to its neighbour: to the side, down


def components(n: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The connected parts, the largest first.

    >>> components(5, [(3, 1), (4, 0), (1, 2)])
    [[1, 2, 3], [0, 4]]
    """
    part = list(range(n))
    for a, b in edges:
        part = [part[a] if each == part[b] else each for each in part]
    parts = [[i for i in range(n) if part[i] == each] for each in dict.fromkeys(part)]
    return sorted(parts, key=len, reverse=True)


def settle(start: Float[np.ndarray, "N 2"], edges: Sequence[tuple[int, int]]) -> list[tuple[list[int], np.ndarray]]:
    """Each connected part with the positions of its nodes, neighbours about 1 apart."""
    parts = []
    for part in components(len(start), edges):
        place = {node: at for at, node in enumerate(part)}
        own = [(place[a], place[b]) for a, b in edges if a in place]
        parts.append((part, spread(start[part], own)))
    return parts


def arrange(
    parts: Sequence[tuple[list[int], Float[np.ndarray, "_ 2"]]],
    sizes: Int[np.ndarray, "N 2"],
    width: int,
    factor: float,
) -> tuple[Float[np.ndarray, "N 2"], int]:
    """The centres of nodes of these sizes on a paper of this width, with steps `factor` times as long; the height."""
    centres = np.zeros(sizes.shape)
    rows: list[list[tuple[list[int], Float[np.ndarray, " 2"]]]] = []
    left = 0.0
    for part, points in parts:
        rim = sizes[part].max(0)  # half of it on each side
        centres[part], extent = _scaled(points, STEP * factor, rim, width)
        if extent[0] > left:
            rows.append([])
            left = width
        rows[-1].append((part, extent))
        left -= extent[0]
    top = 0.0
    for row in rows:
        high = max(float(extent[1]) for _, extent in row)
        spare = (width - sum(float(extent[0]) for _, extent in row)) / (2 * len(row))
        x = spare
        for part, extent in row:
            centres[part] += np.array([x, top + (high - extent[1]) / 2])
            x += extent[0] + 2 * spare
        top += high
    return centres, int(np.ceil(top))


def _scaled(
    points: Float[np.ndarray, "M 2"], step: Float[np.ndarray, " 2"], rim: Int[np.ndarray, " 2"], width: int
) -> tuple[Float[np.ndarray, "M 2"], Float[np.ndarray, " 2"]]:
    """From the top left corner, and how much paper they need; what is too wide is laid on its side, then squeezed."""
    extent = np.ptp(points, axis=0)
    if extent[0] * step[0] + rim[0] > width and extent[0] > extent[1]:
        points, extent = points[:, ::-1], extent[::-1]
    scale = np.minimum(step, [(width - rim[0]) / max(float(extent[0]), 1e-9), np.inf])
    return (points - points.min(0)) * scale + rim / 2, extent * scale + rim
