"""Arrows from subject to object, bent so that opposite ones are apart, and the text on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from polyadic.draw.layout import Label, Rect, Size
from polyadic.draw.shapes import (
    FAINT,
    HIT,
    INK,
    PAPER,
    Colour,
    Point,
    Polygon,
    Polyline,
    Rectangle,
    Shape,
    fit_text,
    line_height,
    load_font,
    on_colour,
    rimmed,
    text_in_row,
    tick,
)

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


def arrow_shapes(
    curves: Sequence[Float[np.ndarray, "_ 2"]], colours: Sequence[Colour], thick: float
) -> tuple[list[Shape], list[Shape]]:
    """Return the lines, the best on top, and the heads, which go above all lines; both have a white rim."""
    lines: list[Shape] = []
    heads: list[Shape] = []
    for curve, colour in reversed(list(zip(curves, colours, strict=True))):
        before, head = head_of(curve, thick)
        line = np.concatenate([curve[:before], (head[1:2] + head[2:]) / 2])
        middle = head.mean(0)
        rim = middle + (head - middle) * (1 + 0.7 / thick)
        lines += rimmed(_points(line), "arrow", colour, thick)
        heads += [Polygon(_points(rim), "rim", PAPER), Polygon(_points(head), "head", colour)]
    return lines, heads


def keep_free(curves: Sequence[Float[np.ndarray, "_ 2"]], labels: Sequence[Size], thick: float) -> list[Rect]:
    """List what labels must not hide: arrow heads, and whole arrows that are hardly longer than their label."""
    rects = []
    for curve, label in zip(curves, labels, strict=True):
        hidden = (np.ptp(curve, axis=0) < np.array(label) + 6 * thick + 10).all()
        for points in (head_of(curve, thick)[1], *(curve[i : i + 6] for i in range(0, len(curve) if hidden else 0, 6))):
            (x1, y1), (x2, y2) = np.floor(points.min(0)).astype(int), np.ceil(points.max(0)).astype(int)
            rects.append((int(x1) - 2, int(y1) - 2, int(x2) + 2, int(y2) + 2))
    return rects


def _points(array: Float[np.ndarray, "_ 2"]) -> tuple[Point, ...]:
    return tuple((float(x), float(y)) for x, y in array)


PAD = 4  # px left and right of the text


@dataclass(frozen=True)
class Words:
    """The name of a box, or the predicates of an arrow, one below the other."""

    lines: tuple[tuple[str, Colour], ...]
    font_size: int

    @property
    def size(self) -> Size:
        font = load_font(self.font_size)
        widths = [round(font.getlength(text)) + _mark(fill, self.font_size) for text, fill in self.lines]
        return max(widths) + 2 * PAD, len(self.lines) * line_height(font)

    def shapes(self, place: Rect, kind: str) -> list[Shape]:
        left, top, right, _ = place
        row = line_height(load_font(self.font_size))
        painted: list[Shape] = []
        for i, (text, fill) in enumerate(self.lines):
            y = top + i * row
            painted.append(Rectangle(((left, y), (right, y + row)), kind, fill))
            mark = _mark(fill, self.font_size)
            corner, ink = (left + PAD + mark, y), on_colour(fill)
            painted.append(text_in_row(text, corner, row=row, size=self.font_size, colour=ink, kind=kind))
            painted += [tick(left + PAD, y + row / 2, mark - PAD)] if mark else []
        return painted


def fit_words(lines: Sequence[tuple[str, Colour]], font_size: int, room: float) -> Words:
    """Truncate each line to `room` pixels."""
    font = load_font(font_size)
    fitted = ((fit_text(text, font, room - 2 * PAD - _mark(fill, font_size)), fill) for text, fill in lines)
    return Words(tuple(fitted), font_size)


def _mark(fill: Colour, font_size: int) -> int:
    """Return the width of the tick before the text of a hit."""
    return round(0.7 * font_size) + PAD if fill == HIT else 0


def leaders(
    labels: Sequence[Label], texts: Sequence[Words], places: Sequence[Rect | None], on_photo: bool
) -> list[Shape]:
    """Connect labels to what they belong to; on a photo in their colour with a dark rim."""
    painted: list[Shape] = []
    for label, text, place in zip(labels, texts, places, strict=True):
        line = label.leader(place) if place else None
        if line and on_photo:
            painted += rimmed(line, "leader", text.lines[0][1], 1, rim=INK)
        elif line:
            painted.append(Polyline(line, "leader", FAINT, 1))
    return painted
