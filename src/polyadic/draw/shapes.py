"""A drawing as a value: shapes in the order of painting, which PNG and SVG both show."""

from __future__ import annotations

import colorsys
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from PIL import ImageFont
from PIL.Image import Image

LONGEST = 200  # characters: more than fits in any picture
UNWRITABLE = re.compile("[^ -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, or anywhere

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (25, 25, 25)
FAINT: Colour = (110, 110, 110)


@lru_cache
def load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font


def fit_text(text: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    """Return `text` in one line, truncated with an ellipsis where it is wider than `room` pixels."""
    line = UNWRITABLE.sub("\ufffd", " ".join(text.split()))
    if len(line) <= LONGEST and font.getlength(line) <= room:
        return line
    line = line[:LONGEST]
    cut = bisect_right(range(1, len(line) + 1), room, key=lambda n: font.getlength(line[:n] + "…"))
    return line[:cut] + "…"


def line_height(font: ImageFont.FreeTypeFont) -> int:
    return sum(font.getmetrics())


def on_colour(fill: Colour) -> Colour:
    """Return ink or paper, whichever is readable on this colour."""
    return INK if 0.3 * fill[0] + 0.59 * fill[1] + 0.11 * fill[2] > 140 else PAPER


Point = tuple[float, float]
S = TypeVar("S", bound="Shape")


@dataclass(frozen=True)
class Shape:
    """Something to paint; `kind` says what it is, and becomes its class in SVG."""

    points: tuple[Point, ...]
    kind: str

    def moved(self: S, right: float, down: float) -> S:
        return replace(self, points=tuple((x + right, y + down) for x, y in self.points))


@dataclass(frozen=True)
class PhotoShape(Shape):
    """A picture with its top left corner at the one point."""

    image: Image


@dataclass(frozen=True)
class Rectangle(Shape):
    """From the first point to the second, which is just outside; the outline lies inside."""

    fill: Colour | None = None
    outline: Colour | None = None
    thick: int = 1


@dataclass(frozen=True)
class Polyline(Shape):
    colour: Colour
    thick: float


@dataclass(frozen=True)
class Polygon(Shape):
    fill: Colour


@dataclass(frozen=True)
class Dot(Shape):
    fill: Colour
    radius: float


@dataclass(frozen=True)
class Text(Shape):
    """One line; the point is the left end of its baseline."""

    text: str
    size: int
    colour: Colour

    @property
    def length(self) -> float:
        return load_font(self.size).getlength(self.text)


@dataclass(frozen=True)
class Drawing:
    """Shapes on white paper; the first is painted first."""

    size: tuple[int, int]
    shapes: tuple[Shape, ...]


def text_in_row(text: str, corner: Point, *, row: float, size: int, colour: Colour, kind: str) -> Text:
    """Centre text vertically in a row of this height, whose top left corner is given."""
    font = load_font(size)
    baseline = corner[1] + (row - line_height(font)) / 2 + font.getmetrics()[0]
    return Text(((corner[0], round(baseline)),), kind, text, size, colour)


def join(drawings: Sequence[tuple[Drawing, tuple[int, int]]]) -> Drawing:
    """Put drawings on one sheet, each with its top left corner at the given point."""
    width = max(at[0] + drawing.size[0] for drawing, at in drawings)
    height = max(at[1] + drawing.size[1] for drawing, at in drawings)
    return Drawing((width, height), tuple(shape.moved(*at) for drawing, at in drawings for shape in drawing.shapes))


def add_title(drawing: Drawing, title: str) -> Drawing:
    """Add a white bar with the title above the drawing."""
    width = drawing.size[0]
    size = min(20, max(14, width // 54))
    bar = line_height(load_font(size)) + size // 2
    text = fit_text(title, load_font(size), width - size)
    line = Drawing((width, bar), (text_in_row(text, (size // 2, 0), row=bar, size=size, colour=INK, kind="title"),))
    return join([(line, (0, 0)), (drawing, (0, bar))])


def tick(left: float, middle: float, size: float) -> Polyline:
    """Draw the mark of a hit, for readers who cannot see green; `size` wide and high, around the height `middle`."""
    points = ((left, middle), (left + 0.35 * size, middle + 0.38 * size), (left + size, middle - 0.45 * size))
    return Polyline(points, "tick", INK, max(1.5, size / 5))


def rimmed(points: tuple[Point, ...], kind: str, colour: Colour, thick: float, rim: Colour = PAPER) -> list[Shape]:
    """Draw a line with a rim that sets it off from the picture."""
    return [Polyline(points, "rim", rim, thick + 2), Polyline(points, kind, colour, thick)]


HIT: Colour = (183, 236, 183)  # behind the text of a hit
HIT_ARROW: Colour = (0, 150, 50)
ARROW: Colour = (35, 35, 35)
HUES = (0, 20, 36, 52, 192, 210, 232, 262, 290, 325)  # degrees, for classes: none is green
LIGHTNESS = (0.5, 0.33, 0.72)
CODES = len(HUES) * len(LIGHTNESS)


def colour_of(name: str) -> Colour:
    """Return the colour of a class, the same in every picture and every run; never the green of hits."""
    return _colour(_code(name))


def colours_of(names: Iterable[str]) -> dict[str, Colour]:
    """Return distinct colours for the classes of one picture, while there are enough.

    Where two classes would have the same colour, the later in the alphabet takes the next free one.
    """
    taken: dict[int, str] = {}
    colours = {}
    for name in sorted(set(names)):
        wanted = [(_code(name) + step) % CODES for step in range(CODES)]
        code = next((code for code in wanted if code not in taken), wanted[0])
        taken[code] = name
        colours[name] = _colour(code)
    return colours


def _code(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace")) % CODES


def _colour(code: int) -> Colour:
    lightness, hue = (table[at] for table, at in zip((LIGHTNESS, HUES), divmod(code, len(HUES)), strict=True))
    red, green, blue = (round(255 * value) for value in colorsys.hls_to_rgb(hue / 360, lightness, 0.8))
    return red, green, blue
