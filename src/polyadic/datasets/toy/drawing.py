"""Draw pictures: flat shapes on whole pixels, painted with NumPy, identical on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, UInt8

if TYPE_CHECKING:
    from PIL.Image import Image


Colour = tuple[int, int, int]
Cover = Callable[[Float[np.ndarray, "h w"], Float[np.ndarray, "h w"]], Bool[np.ndarray, "h w"]]
Shape = tuple[int, Cover]  # which colour, and which points (x, y) it covers


def _box(colour: int, x1: float, y1: float, x2: float, y2: float) -> Shape:
    return colour, lambda x, y: (x >= x1) & (x < x2) & (y >= y1) & (y < y2)


def _disc(colour: int, x1: float, y1: float, x2: float, y2: float) -> Shape:
    return colour, lambda x, y: ((2 * x - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y - y1 - y2) / (y2 - y1)) ** 2 <= 1


def _polygon(colour: int, *points: tuple[float, float]) -> Shape:
    def cover(x: Float[np.ndarray, "h w"], y: Float[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
        odd = np.zeros(x.shape, bool)  # how often a ray to the left crosses the outline
        for (x1, y1), (x2, y2) in zip(points, (*points[1:], points[0]), strict=True):
            if y1 != y2:
                odd ^= ((y1 <= y) != (y2 <= y)) & (x > x1 + (y - y1) * ((x2 - x1) / (y2 - y1)))
        return odd

    return colour, cover


PAINT: dict[str, tuple[list[Colour], list[Shape]]] = {
    "person": (
        [(236, 188, 150), (196, 58, 74), (54, 66, 120)],
        [
            _box(0, 0, 0.34, 1, 0.44),
            _box(1, 0.2, 0.3, 0.8, 0.68),
            _box(2, 0.22, 0.66, 0.46, 1),
            _box(2, 0.54, 0.66, 0.78, 1),
            _disc(0, 0.24, 0, 0.76, 0.32),
        ],
    ),
    "dog": (
        [(150, 98, 52), (92, 56, 30)],
        [
            _polygon(0, (0, 0.1), (0.1, 0.1), (0.22, 0.4), (0.12, 0.5), (0, 0.2)),
            _box(0, 0.1, 0.36, 0.74, 0.72),
            _box(0, 0.12, 0.6, 0.26, 1),
            _box(0, 0.58, 0.6, 0.72, 1),
            _box(0, 0.6, 0.06, 1, 0.5),
            _box(1, 0.56, 0, 0.7, 0.34),
            _box(1, 0.9, 0.2, 1, 0.32),
        ],
    ),
    "bird": (
        [(60, 130, 214), (32, 78, 160), (246, 190, 40)],
        [
            _polygon(1, (0, 0.36), (0.1, 0.36), (0.34, 0.56), (0.1, 0.72), (0, 0.72)),
            _box(2, 0.4, 0.84, 0.47, 1),
            _box(2, 0.56, 0.84, 0.63, 1),
            _polygon(2, (0.8, 0.36), (1, 0.44), (1, 0.56), (0.8, 0.62)),
            _disc(0, 0.14, 0.3, 0.88, 0.92),
            _polygon(1, (0.26, 0.62), (0.2, 0), (0.36, 0), (0.66, 0.62)),
        ],
    ),
    "tree": (
        [(110, 74, 44), (46, 128, 58), (74, 160, 76)],
        [
            _box(0, 0.41, 0.55, 0.59, 1),
            _disc(1, 0, 0.2, 0.62, 0.72),
            _disc(1, 0.38, 0.2, 1, 0.72),
            _disc(2, 0.16, 0, 0.84, 0.54),
        ],
    ),
    "flag": (
        [(96, 96, 104), (214, 40, 52), (250, 250, 246)],
        [_box(0, 0, 0, 0.12, 1), _box(1, 0.12, 0.03, 1, 0.6), _box(2, 0.12, 0.22, 1, 0.41)],
    ),
    "box": (
        [(200, 152, 92), (158, 112, 60), (236, 212, 160)],
        [_box(0, 0, 0, 1, 1), _box(1, 0, 0.26, 1, 0.33), _box(2, 0.4, 0, 0.6, 1)],
    ),
    "hat": (
        [(44, 40, 56), (226, 178, 44)],
        [_box(0, 0, 0.72, 1, 1), _box(0, 0.2, 0, 0.8, 0.8), _box(1, 0.2, 0.48, 0.8, 0.7)],
    ),
    "kite": (
        [(232, 88, 178), (118, 226, 214), (90, 60, 140)],
        [
            _box(2, 0.46, 0.7, 0.54, 1),
            _box(2, 0.34, 0.88, 0.66, 0.94),
            _polygon(0, (0.44, 0), (0.56, 0), (1, 0.36), (1, 0.44), (0.56, 0.8), (0.44, 0.8), (0, 0.44), (0, 0.36)),
            _polygon(1, (0.5, 0.02), (0.98, 0.4), (0.5, 0.4)),
            _polygon(1, (0.5, 0.78), (0.02, 0.4), (0.5, 0.4)),
        ],
    ),
    "round": (
        [(232, 128, 36), (250, 176, 84), (96, 58, 34)],
        [
            _disc(0, 0, 0, 1, 1),
            _disc(1, 0.16, 0.16, 0.84, 0.84),
            _disc(0, 0.3, 0.3, 0.7, 0.7),
            _disc(2, 0.4, 0.4, 0.6, 0.6),
        ],
    ),
    "tall": (
        [(236, 232, 224), (128, 132, 146), (70, 74, 92)],
        [
            _disc(1, 0.14, 0, 0.86, 0.36),
            _polygon(0, (0.14, 0.18), (0.86, 0.18), (1, 1), (0, 1)),
            _polygon(1, (0.1, 0.42), (0.9, 0.42), (0.93, 0.56), (0.07, 0.56)),
            _polygon(1, (0.04, 0.74), (0.96, 0.74), (0.98, 0.86), (0.02, 0.86)),
            _box(2, 0.4, 0.24, 0.6, 0.36),
        ],
    ),
    "vehicle": (
        [(40, 164, 156), (52, 54, 62), (214, 240, 250)],
        [
            _box(0, 0.24, 0, 0.72, 0.5),
            _polygon(0, (0, 0.42), (1, 0.42), (1, 0.6), (0.94, 0.8), (0.06, 0.8), (0, 0.6)),
            _box(2, 0.31, 0.1, 0.46, 0.36),
            _box(2, 0.52, 0.1, 0.66, 0.36),
            _disc(1, 0.1, 0.56, 0.4, 1),
            _disc(1, 0.6, 0.56, 0.9, 1),
        ],
    ),
    "lattice": (
        [(170, 132, 190), (132, 96, 156)],
        [
            *(_box(1, 0, y, 1, y + 0.14) for y in (0.18, 0.66)),
            *(_box(0, x, 0, x + 0.12, 1) for x in (0, 0.22, 0.44, 0.66, 0.88)),
        ],
    ),
}


SIDE = 160  # width and height of a picture
_SKY = (210, 215, 210)  # of no tint
_GROUND = 112  # from this row on the background is darker
_DARKER = 14
_LINE = 1  # the stencil's number for the outline; the colours follow


@dataclass(frozen=True)
class Thing:
    """An object: its appearance, its box, and the shift of its colours."""

    key: str
    x: int
    y: int
    width: int
    height: int
    shade: tuple[int, int, int]

    @property
    def rows_and_columns(self) -> tuple[slice, slice]:
        return slice(self.y, self.y + self.height), slice(self.x, self.x + self.width)

    def common(self, other: Thing) -> int:
        """Count the pixels in both boxes."""
        width = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        height = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(width, 0) * max(height, 0)

    @property
    def stencil(self) -> UInt8[np.ndarray, "h w"]:
        return stencil(self.key, self.width, self.height)


@lru_cache(maxsize=4096)
def stencil(key: str, width: int, height: int) -> UInt8[np.ndarray, "h w"]:
    """Return the colour of each pixel of a box, 0 for none; it touches all four sides of the box."""
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    picture = np.zeros((height, width), np.uint8)
    for colour, covers in PAINT[key][1]:
        picture[covers(x, y)] = colour + _LINE + 1
    filled = np.pad(picture > 0, 1)
    inner = filled[:-2, 1:-1] & filled[2:, 1:-1] & filled[1:-1, :-2] & filled[1:-1, 2:]
    picture[(picture > 0) & ~inner] = _LINE
    picture.flags.writeable = False
    return picture


def draw(tint: tuple[int, int], things: Sequence[Thing]) -> Image:
    """Draw a scene, later things over earlier ones."""
    from PIL import Image

    canvas = np.empty((SIDE, SIDE, 3), np.uint8)
    sky = np.array([_SKY[0] + tint[0], _SKY[1], _SKY[2] + tint[1]])
    canvas[:_GROUND], canvas[_GROUND:] = sky, sky - _DARKER
    for thing in things:
        colours = np.array(PAINT[thing.key][0]) + thing.shade
        palette = np.clip([(0, 0, 0), colours[0] * 2 // 5, *colours], 0, 255).astype(np.uint8)
        part = canvas[thing.rows_and_columns]
        part[:] = np.where(thing.stencil[..., None] > 0, palette[thing.stencil], part)
    return Image.fromarray(canvas)
