"""Arrows from subject to object: bent, so that two arrows of one pair lie apart, and smooth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image as Pillow
from PIL import ImageDraw
from PIL.Image import Image

from polyadic.draw.text import PAPER, Colour

SHORTEST = 36.0  # px between the ends of an arrow, else nobody sees where it points
SHORT = 80.0  # px: a label on it would hide it
FINER = 3  # drawn this much larger, then reduced: smooth edges


def arrow_curves(
    centres: Float[np.ndarray, "N 2"], pairs: Sequence[tuple[int, int]], room: tuple[int, int]
) -> list[Float[np.ndarray, "33 2"]]:
    """The points of each arrow from subject to object: bent to the left, and more so if the pair has arrows before."""
    earlier: Counter[tuple[int, int]] = Counter()
    curves = []
    edge = np.asarray(room, np.float64) - 1
    t = np.linspace(0, 1, 33)[:, None]
    for subject, object in pairs:
        start, end = _apart(centres[subject], centres[object])
        along = end - start
        left = np.array([along[1], -along[0]])
        middle = (start + end) / 2 + left * (0.2 + 0.45 * earlier[subject, object])
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
        curves.append(curve.clip(0, edge))
        earlier[subject, object] += 1
    return curves


def _apart(start: Float[np.ndarray, " 2"], end: Float[np.ndarray, " 2"]) -> tuple[np.ndarray, np.ndarray]:
    """The ends of an arrow, moved apart where two boxes have nearly the same centre."""
    along = end - start
    length = float(np.hypot(*along))
    if length >= SHORTEST:
        return start, end
    direction = along / length if length > 0 else np.array([1.0, 0.0])
    middle = (start + end) / 2
    return middle - direction * SHORTEST / 2, middle + direction * SHORTEST / 2


def keep_free(curves: Sequence[Float[np.ndarray, "_ 2"]], reach: int) -> list[tuple[int, int, int, int]]:
    """What labels must not hide: the head of an arrow, and all of a short one."""
    points = []
    for curve in curves:
        short = np.hypot(*(curve[-1] - curve[0])) < SHORT
        points += (curve[::8] if short else curve[-1:]).astype(int).tolist()
    return [(x - reach, y - reach, x + reach, y + reach) for x, y in points]


def draw_arrows(
    picture: Image, curves: Sequence[Float[np.ndarray, "_ 2"]], colours: Sequence[Colour], thick: int
) -> None:
    """The best last, so that they lie on top; a white rim keeps them apart from the picture."""
    finer = Pillow.new("RGBA", (picture.width * FINER, picture.height * FINER))
    pen = ImageDraw.Draw(finer)
    for curve, colour in reversed(list(zip(curves, colours, strict=True))):
        _draw_arrow(pen, (curve + 0.5) * FINER, PAPER, thick * FINER, rim=FINER)
        _draw_arrow(pen, (curve + 0.5) * FINER, colour, thick * FINER, rim=0)
    smooth = finer.reduce(FINER)
    picture.paste(smooth, mask=smooth)


def _draw_arrow(pen: ImageDraw.ImageDraw, curve: Float[np.ndarray, "_ 2"], fill: Colour, thick: int, rim: int) -> None:
    """A dot at the subject, a line, and a head with its tip at the object."""
    tip = curve[-1]
    outside = np.hypot(*(curve - tip).T) > 5 * thick  # the line ends where the head begins
    line = curve[: max(1, int(outside.sum()))]
    along = (tip - line[-1]) / max(1.0, float(np.hypot(*(tip - line[-1]))))
    across = np.array([along[1], -along[0]]) * (2 * thick + 1.5 * rim)
    back = line[-1] - rim * along
    head = [tip + 2 * rim * along, back + across, back - across]
    pen.line([(x, y) for x, y in [*line, line[-1] + along]], fill=fill, width=thick + 2 * rim, joint="curve")
    pen.polygon([(x, y) for x, y in head], fill=fill)
    (x, y), radius = curve[0], 1.2 * thick + rim
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
