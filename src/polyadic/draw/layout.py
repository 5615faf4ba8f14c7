"""Where labels go: they overlap neither each other nor what is kept free, and stay in the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Rect = tuple[int, int, int, int]  # x1, y1, x2, y2 in whole pixels, x2 and y2 excluded
Size = tuple[int, int]
Corner = tuple[int, int]

ON_ARROW = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)  # where along an arrow its label may sit, best first


@dataclass(frozen=True)
class Label:
    """A rectangle of `size`, which would like to have its top left corner at one of `wanted`, best first."""

    size: Size
    wanted: tuple[Corner, ...]
    anchor: Corner  # what it belongs to

    def leader(self, place: Rect) -> tuple[Corner, Corner] | None:
        """The line from the anchor to a label that had to move; None where they touch."""
        x, y = (min(max(self.anchor[a], place[a]), place[a + 2] - 1) for a in (0, 1))
        return None if place[:2] in self.wanted or (x, y) == self.anchor else (self.anchor, (x, y))


def place_labels(labels: Sequence[Label], room: Size, taken: Sequence[Rect] = ()) -> list[Rect | None]:
    """A place for each label in turn: its first wanted one that is free, else the nearest free one, else None."""
    taken = list(taken)
    places: list[Rect | None] = []
    for label in labels:
        wanted = (_free(label.size, corner, room, taken) for corner in label.wanted)
        place = next((rect for rect in wanted if rect), None) or nearest_place(label.size, label.wanted[0], room, taken)
        places.append(place)
        taken += [place] if place else []
    return places


def _free(size: Size, corner: Corner, room: Size, taken: Sequence[Rect]) -> Rect | None:
    x1, y1, x2, y2 = rect = (*corner, corner[0] + size[0], corner[1] + size[1])
    inside = x1 >= 0 and y1 >= 0 and x2 <= room[0] and y2 <= room[1]
    return rect if inside and not any(x1 < t[2] and t[0] < x2 and y1 < t[3] and t[1] < y2 for t in taken) else None


def nearest_place(size: Size, wanted: Corner, room: Size, taken: Sequence[Rect]) -> Rect | None:
    """The place for a rectangle inside the room, clear of all `taken`, with its corner nearest to `wanted`.

    Only corners in line with `wanted` or with the edge of a taken rectangle can be nearest: O(taken³), as one product
    of matrices.

    >>> nearest_place((4, 2), (1, 0), (10, 10), [(0, 0, 10, 1)])
    (1, 1, 5, 3)
    """
    rects = np.array(taken, np.int64).reshape(-1, 4)
    limits = [room[0] - size[0], room[1] - size[1]]
    if min(limits) < 0:
        return None
    x, y = (_in_line(wanted[a], rects[:, a] - size[a], rects[:, a + 2], limits[a]) for a in (0, 1))
    across = (x[:, None] < rects[:, 2]) & (x[:, None] + size[0] > rects[:, 0])  # [X, taken]
    along = (y[:, None] < rects[:, 3]) & (y[:, None] + size[1] > rects[:, 1])  # [Y, taken]
    free = across.astype(np.float32) @ along.astype(np.float32).T == 0  # [X, Y]
    if not free.any():
        return None
    distance = (x[:, None] - wanted[0]) ** 2.0 + (y[None] - wanted[1]) ** 2.0
    i, j = np.unravel_index(np.where(free, distance, np.inf).argmin(), free.shape)
    left, top = int(x[i]), int(y[j])
    return left, top, left + size[0], top + size[1]


def _in_line(wanted: int, before: Int[np.ndarray, " M"], after: Int[np.ndarray, " M"], limit: int) -> np.ndarray:
    lines: np.ndarray = np.unique([min(max(wanted, 0), limit), *before, *after])
    return lines[(lines >= 0) & (lines <= limit)]


def box_label(size: Size, box: Rect) -> Label:
    """On top of its box, else in a corner of it, else below."""
    (w, h), (x1, y1, x2, y2) = size, box
    wanted = ((x1, y1 - h), (x1, y1), (x2 - w, y1), (x1, y2 - h), (x2 - w, y2 - h), (x1, y2))
    return Label(size, wanted, (x1, y1))


def arrow_labels(sizes: Sequence[Size], curves: Sequence[Float[np.ndarray, "_ 2"]]) -> list[Label]:
    """Each centred on its arrow, where it hides least of the others."""
    labels = []
    for i, (size, curve) in enumerate(zip(sizes, curves, strict=True)):
        points = curve[[round(t * (len(curve) - 1)) for t in ON_ARROW]].astype(int)  # [W, 2]
        corners = points - np.array(size) // 2
        others = np.concatenate([np.empty((0, 2)), *curves[:i], *curves[i + 1 :]])
        inside = (others >= corners[:, None]) & (others < corners[:, None] + size)  # [W, all points, 2]
        order = np.argsort(inside.all(-1).sum(-1), kind="stable")
        wanted = tuple((int(x), int(y)) for x, y in corners[order])
        middle = points[order[0]]
        labels.append(Label(size, wanted, (int(middle[0]), int(middle[1]))))
    return labels


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
