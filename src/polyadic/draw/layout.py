"""Geometry: labels, which overlap neither each other nor what is kept free, arrows, and the nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

Rect = tuple[int, int, int, int]  # x1, y1, x2, y2 in whole pixels, x2 and y2 excluded
Size = tuple[int, int]
Corner = tuple[int, int]

ON_ARROW = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)  # where along an arrow its label may sit, best first


@dataclass(frozen=True)
class Label:
    """A rectangle of `size` whose top left corner should be at one of `wanted`, best first."""

    size: Size
    wanted: tuple[Corner, ...]
    anchor: Corner  # what it belongs to

    def leader(self, place: Rect) -> tuple[Corner, Corner] | None:
        """Return the line from the anchor to a label that had to move; None where they touch."""
        x, y = (min(max(self.anchor[a], place[a]), place[a + 2] - 1) for a in (0, 1))
        return None if place[:2] in self.wanted or (x, y) == self.anchor else (self.anchor, (x, y))


def place_labels(labels: Sequence[Label], room: Size, taken: Sequence[Rect] = ()) -> list[Rect | None]:
    """Place each label in turn: at its first wanted place that is free, else at the nearest free one, else None."""
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
    """Find the free place in the room whose corner is nearest to `wanted`, clear of all `taken`.

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
    """Put the label of a box on top of it, else in a corner of it, else below."""
    (w, h), (x1, y1, x2, y2) = size, box
    wanted = ((x1, y1 - h), (x1, y1), (x2 - w, y1), (x1, y2 - h), (x2 - w, y2 - h), (x1, y2))
    return Label(size, wanted, (x1, y1))


def arrow_labels(sizes: Sequence[Size], curves: Sequence[Float[np.ndarray, "_ 2"]]) -> list[Label]:
    """Centre each label on its arrow, where it hides least of the others."""
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


SHORTEST = 44.0  # px between the ends of an arrow, so that its direction is visible
LEAST_BENT = 50.0  # px: how far aside a long arrow bends
MORE_BENT = 0.12  # of the picture's shorter side: how much further the second, third and fourth bend
STEPS = np.linspace(0, 1, 257)[:, None]
Curve = Float[np.ndarray, "257 2"]


def anchor_points(boxes: Float[np.ndarray, "N 4"], room: Size) -> Float[np.ndarray, "N 2"]:
    """Choose a point in each box near its centre, away from other points and from smaller boxes inside it."""
    grid = np.stack(np.meshgrid(np.linspace(-0.7, 0.7, 9), np.linspace(-0.7, 0.7, 9)), -1).reshape(-1, 2)  # [G, 2]
    grid = grid[np.argsort((grid**2).sum(-1), kind="stable")]
    centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    points: np.ndarray = np.zeros(centres.shape)
    done: list[int] = []
    for i in np.argsort(sides.prod(-1), kind="stable").tolist():
        tried = (centres[i] + grid * np.maximum(sides[i], SHORTEST) / 2).clip(4, np.maximum(np.array(room) - 5, 4))
        apart = np.hypot(*(tried[:, None] - points[done]).transpose(2, 0, 1))  # [G, done]
        within = ((tried[:, None] >= boxes[done, :2]) & (tried[:, None] <= boxes[done, 2:])).all(-1)  # [G, done]
        cost = (grid**2).sum(-1) + 6 * (1 - apart / (1.3 * SHORTEST)).clip(0).sum(-1) + 0.4 * within.sum(-1)
        points[i] = tried[cost.argmin()]
        done.append(i)
    return points


def arrow_curves(
    points: Float[np.ndarray, "N 2"], pairs: Sequence[tuple[int, int]], room: Size, gap: float = 0.0
) -> list[Float[np.ndarray, "_ 2"]]:
    """Draw each arrow from subject to object, beginning and ending `gap` pixels from their points.

    All bend to their left, so that opposite ones are apart.
    """
    curves = []
    for i, (subject, object) in enumerate(pairs):
        if subject == object:
            curve = loop(points[subject], 16)
        else:
            start, end = _apart(points[subject], points[object])
            aside = LEAST_BENT + MORE_BENT * (i % 4) * min(room)  # long arrows beside each other differ
            curve = bow(start, end, min(0.2, aside / float(np.hypot(*(end - start)))))
        away = np.minimum(np.hypot(*(curve - curve[0]).T), np.hypot(*(curve - curve[-1]).T))
        curves.append(part(curve, away > gap).clip(0, np.asarray(room, np.float64) - 1))
    return curves


def bow(start: Float[np.ndarray, " 2"], end: Float[np.ndarray, " 2"], bend: float) -> Curve:
    """Return a parabola from start to end, bent to the left by this share of its length."""
    along = end - start
    middle = (start + end) / 2 + np.array([along[1], -along[0]]) * bend
    curve: np.ndarray = (1 - STEPS) ** 2 * start + 2 * STEPS * (1 - STEPS) * middle + STEPS**2 * end
    return curve


def loop(at: Float[np.ndarray, " 2"], radius: float) -> Curve:
    """Return a circle above a point that starts and ends there."""
    turn = 2 * math.pi * STEPS
    circle: np.ndarray = at + radius * np.concatenate([np.sin(turn), np.cos(turn) - 1], 1)
    return circle


def _apart(start: Float[np.ndarray, " 2"], end: Float[np.ndarray, " 2"]) -> tuple[np.ndarray, np.ndarray]:
    """Move the ends of an arrow apart where they are nearly the same point."""
    along = end - start
    length = float(np.hypot(*along))
    if length >= SHORTEST:
        return start, end
    direction = along / length if length > 0 else np.array([1.0, 0.0])
    middle = (start + end) / 2
    return middle - direction * SHORTEST / 2, middle + direction * SHORTEST / 2


def part(curve: Curve, visible: Bool[np.ndarray, " K"]) -> Float[np.ndarray, "_ 2"]:
    """Return the curve from its first visible point to its last, in fewer points."""
    at = np.flatnonzero(visible)
    first, last = (at[0], at[-1]) if len(at) > 1 else (0, len(curve) - 1)
    fewer: np.ndarray = curve[np.unique(np.linspace(first, last, 49).round().astype(int))]
    return fewer


def head_of(curve: Float[np.ndarray, "_ 2"], thick: float) -> tuple[int, np.ndarray]:
    """Return how many points of the line come before the head, and the head: tip, left, right."""
    tip = curve[-1]
    outside = np.flatnonzero(np.hypot(*(curve - tip).T) > 5.5 * thick)  # the line ends where the head begins
    last = int(outside[-1]) if len(outside) else 0
    along = tip - curve[last]
    along = along / (np.hypot(*along) or 1.0)
    across = np.array([along[1], -along[0]]) * 2.4 * thick
    back = tip - 6 * thick * along
    return last + 1, np.stack([tip, back + across, back - across])


def keep_free(curves: Sequence[Float[np.ndarray, "_ 2"]], labels: Sequence[Size], thick: float) -> list[Rect]:
    """List what labels must not hide: arrow heads, and whole arrows that are hardly longer than their label."""
    rects = []
    for curve, label in zip(curves, labels, strict=True):
        hidden = (np.ptp(curve, axis=0) < np.array(label) + 6 * thick + 10).all()
        for points in (head_of(curve, thick)[1], *(curve[i : i + 6] for i in range(0, len(curve) if hidden else 0, 6))):
            (x1, y1), (x2, y2) = np.floor(points.min(0)).astype(int), np.ceil(points.max(0)).astype(int)
            rects.append((int(x1) - 2, int(y1) - 2, int(x2) + 2, int(y2) + 2))
    return rects


STEP = np.array([190.0, 110.0])  # px from a node to its neighbour: to the side, down


def graph_layout(
    start: Float[np.ndarray, "N 2"], edges: Sequence[tuple[int, int]]
) -> list[tuple[list[int], Float[np.ndarray, "_ 2"]]]:
    """Place the nodes of each connected part, the largest first; neighbours are about 1 apart.

    Where edges cross needlessly, networkx's layout starts again from a planar one. Each part is turned and mirrored to
    match `start`, the places in the photo.
    """
    import networkx as nx
    from scipy.linalg import orthogonal_procrustes

    graph = nx.Graph()
    graph.add_nodes_from(range(len(start)))
    graph.add_edges_from((a, b) for a, b in edges if a != b)
    parts = []
    for part in sorted(map(sorted, nx.connected_components(graph)), key=len, reverse=True):
        sub = nx.convert_node_labels_to_integers(graph.subgraph(part), ordering="sorted")
        points = _settle(sub, None)  # from a circle
        if crossings(points, list(sub.edges)) and nx.check_planarity(sub)[0]:
            planar = _settle(sub, nx.planar_layout(sub))
            points = min(points, planar, key=lambda layout: crossings(layout, list(sub.edges)))
        turn, _ = orthogonal_procrustes(points, start[part] - start[part].mean(0))
        parts.append((part, points @ turn))
    return parts


def _settle(graph: Any, start: Any) -> Float[np.ndarray, "N 2"]:
    import networkx as nx

    placed = nx.kamada_kawai_layout(graph, pos=start)
    points = np.array([placed[node] for node in range(len(graph))])
    lengths = [np.hypot(*(placed[a] - placed[b])) for a, b in graph.edges]
    settled: np.ndarray = (points - points.mean(0)) / (np.mean(lengths) if lengths else 1.0)
    return settled


def crossings(points: Float[np.ndarray, "N 2"], edges: Sequence[tuple[int, int]]) -> int:
    """Count the pairs of straight edges that cross, other than at a common node.

    >>> crossings(np.array([[0.0, 0], [1, 1], [0, 1], [1, 0]]), [(0, 1), (2, 3), (0, 2)])
    1
    """

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> float:
        return float(np.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])))

    count = 0
    for (a, b), (c, d) in combinations(edges, 2):
        if len({a, b, c, d}) == 4:
            p, q, r, s = points[[a, b, c, d]]
            count += side(p, q, r) * side(p, q, s) < 0 and side(r, s, p) * side(r, s, q) < 0
    return count


def arrange(
    parts: Sequence[tuple[list[int], Float[np.ndarray, "_ 2"]]],
    sizes: Int[np.ndarray, "N 2"],
    width: int,
    factor: float,
) -> tuple[Float[np.ndarray, "N 2"], int]:
    """Return the centres of nodes of these sizes on paper of this width, and its height; steps are `factor` as long."""
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
    """Scale points from the top left corner, and return their extent; what is too wide is transposed, then squeezed."""
    extent = np.ptp(points, axis=0)
    if extent[0] * step[0] + rim[0] > width and extent[0] > extent[1]:
        points, extent = points[:, ::-1], extent[::-1]
    scale = np.minimum(step, [(width - rim[0]) / max(float(extent[0]), 1e-9), np.inf])
    return (points - points.min(0)) * scale + rim / 2, extent * scale + rim
