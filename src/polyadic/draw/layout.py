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
