"""The pictures: flat shapes on whole pixels, painted with NumPy, so that every machine draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from polyadic.datasets.toy.shapes import PAINT

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 160  # width and height of a picture
_SKY = (210, 215, 210)  # of no tint
_GROUND = 112  # from this row on the background is darker
_DARKER = 14
_LINE = 1  # the stencil's number for the outline; the colours follow


@dataclass(frozen=True)
class Thing:
    """An object: what is drawn in which box, and how far its colours are off."""

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
        """Pixels in both boxes."""
        width = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        height = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(width, 0) * max(height, 0)

    @property
    def stencil(self) -> UInt8[np.ndarray, "h w"]:
        return stencil(self.key, self.width, self.height)


@lru_cache(maxsize=4096)
def stencil(key: str, width: int, height: int) -> UInt8[np.ndarray, "h w"]:
    """Which colour each pixel of a box has, 0 for none. It touches all four sides of the box."""
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
    """The picture of a scene, the later things over the earlier ones."""
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
