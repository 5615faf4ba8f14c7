"""A drawing as a value: shapes in the order of painting, which PNG and SVG both show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from PIL.Image import Image

from polyadic.draw.text import INK, PAPER, Colour, fit_text, line_height, load_font

Point = tuple[float, float]
S = TypeVar("S", bound="Shape")


@dataclass(frozen=True)
class Shape:
    """Something to paint; `kind` says what it stands for, and becomes its class in SVG."""

    points: tuple[Point, ...]
    kind: str

    def moved(self: S, right: float, down: float) -> S:
        return replace(self, points=tuple((x + right, y + down) for x, y in self.points))


@dataclass(frozen=True)
class Photo(Shape):
    """A picture with its top left corner at the one point."""

    image: Image


@dataclass(frozen=True)
class Rectangle(Shape):
    """From the first point to the second, which is just outside; the outline lies inside."""

    fill: Colour | None = None
    outline: Colour | None = None
    thick: int = 1


@dataclass(frozen=True)
class Line(Shape):
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


def text_in_row(text: str, left: float, top: float, row: float, size: int, colour: Colour, kind: str) -> Text:
    """Text in the vertical middle of a row."""
    font = load_font(size)
    baseline = top + (row - line_height(font)) / 2 + font.getmetrics()[0]
    return Text(((left, round(baseline)),), kind, text, size, colour)


def join(drawings: Sequence[tuple[Drawing, tuple[int, int]]]) -> Drawing:
    """Drawings on one paper, each with its top left corner at the point beside it."""
    width = max(at[0] + drawing.size[0] for drawing, at in drawings)
    height = max(at[1] + drawing.size[1] for drawing, at in drawings)
    return Drawing((width, height), tuple(shape.moved(*at) for drawing, at in drawings for shape in drawing.shapes))


def add_title(drawing: Drawing, title: str) -> Drawing:
    """A white bar with the title above the drawing."""
    width = drawing.size[0]
    size = min(20, max(14, width // 54))
    bar = line_height(load_font(size)) + size // 2
    text = fit_text(title, load_font(size), width - size)
    line = Drawing((width, bar), (text_in_row(text, size // 2, 0, bar, size, INK, "title"),))
    return join([(line, (0, 0)), (drawing, (0, bar))])


def tick(left: float, middle: float, size: float) -> Line:
    """The mark of a hit, for those who do not see green; `size` wide and high, around the height `middle`."""
    points = ((left, middle), (left + 0.35 * size, middle + 0.38 * size), (left + size, middle - 0.45 * size))
    return Line(points, "tick", INK, max(1.5, size / 5))


def rimmed(points: tuple[Point, ...], kind: str, colour: Colour, thick: float, rim: Colour = PAPER) -> list[Shape]:
    """A line with a rim that keeps it apart from the picture below."""
    return [Line(points, "rim", rim, thick + 2), Line(points, kind, colour, thick)]
