"""A drawing as a value: shapes in the order of painting, which PNG and SVG both show; arrows and labels as shapes."""

from __future__ import annotations

import colorsys
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from PIL import ImageFont
from PIL.Image import Image

from polyadic.draw.layout import Label, Rect, Size, head_of

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


def cross(left: float, middle: float, size: float) -> list[Polyline]:
    """Draw the mark of a spurious triplet, as large as a tick."""
    up, down = middle - 0.42 * size, middle + 0.42 * size
    ends = ((left, up), (left + 0.84 * size, down)), ((left, down), (left + 0.84 * size, up))
    return [Polyline(points, "cross", INK, max(1.5, size / 5)) for points in ends]


def rimmed(points: tuple[Point, ...], kind: str, colour: Colour, thick: float, rim: Colour = PAPER) -> list[Shape]:
    """Draw a line with a rim that sets it off from the picture."""
    return [Polyline(points, "rim", rim, thick + 2), Polyline(points, kind, colour, thick)]


HIT: Colour = (183, 236, 183)  # behind the text of a hit
SPURIOUS: Colour = (250, 205, 200)  # likewise
HIT_ARROW: Colour = (0, 150, 50)
ARROW: Colour = (35, 35, 35)
HUES = (0, 20, 36, 52, 192, 210, 232, 262, 290, 325)  # degrees, for classes: none is green
LIGHTNESS = (0.5, 0.33, 0.72)
CODES = len(HUES) * len(LIGHTNESS)


def colours_of(names: Iterable[str]) -> dict[str, Colour]:
    """Return distinct colours for the classes of one picture, while there are enough; never the green of hits.

    A class has the same colour in every picture; where two would share one, the later in the alphabet takes the next.
    """
    taken: dict[str, int] = {}
    for name in sorted(set(names)):
        first = zlib.crc32(name.encode("utf-8", "replace"))
        wanted = [(first + step) % CODES for step in range(CODES)]
        taken[name] = next((code for code in wanted if code not in taken.values()), wanted[0])
    return {name: _colour(code) for name, code in taken.items()}


def _colour(code: int) -> Colour:
    lightness, hue = (table[at] for table, at in zip((LIGHTNESS, HUES), divmod(code, len(HUES)), strict=True))
    red, green, blue = (round(255 * value) for value in colorsys.hls_to_rgb(hue / 360, lightness, 0.8))
    return red, green, blue


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
