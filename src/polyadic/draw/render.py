"""Render a drawing as a Pillow image or as SVG: rectangles and text on whole pixels, lines and heads smooth."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from io import BytesIO
from itertools import groupby
from xml.sax.saxutils import escape

from PIL import Image as Pillow
from PIL import ImageDraw
from PIL.Image import Image

from polyadic.draw.shapes import (
    PAPER,
    Colour,
    Dot,
    Drawing,
    PhotoShape,
    Point,
    Polygon,
    Polyline,
    Rectangle,
    Shape,
    Text,
    load_font,
)
from polyadic.files import MARK

FINER = 3  # smooth shapes are drawn this much larger, then reduced


def render_png(drawing: Drawing) -> Image:
    """Paint in RGB, one pixel per unit."""
    picture = Pillow.new("RGB", drawing.size, PAPER)
    for smooth, shapes in groupby(drawing.shapes, lambda shape: isinstance(shape, Polyline | Polygon | Dot)):
        (_paint_smooth if smooth else _paint)(picture, list(shapes))
    return picture


def _paint(picture: Image, shapes: Sequence[Shape]) -> None:
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        if isinstance(shape, PhotoShape):
            x, y = shape.points[0]
            picture.paste(shape.image, (round(x), round(y)))
        elif isinstance(shape, Text):
            pen.text(shape.points[0], shape.text, fill=shape.colour, font=load_font(shape.size), anchor="ls")
        else:
            assert isinstance(shape, Rectangle), shape
            (x1, y1), (x2, y2) = shape.points
            corners = (round(x1), round(y1), round(x2) - 1, round(y2) - 1)
            pen.rectangle(corners, fill=shape.fill, outline=shape.outline, width=shape.thick)


def _paint_smooth(picture: Image, shapes: Sequence[Shape]) -> None:
    """Paint on a finer layer, no larger than the shapes need, and reduce it."""
    reach = 2 + max(math.ceil(getattr(shape, "radius", getattr(shape, "thick", 0))) for shape in shapes)
    xs, ys = ([point[axis] for shape in shapes for point in shape.points] for axis in (0, 1))
    left, top = math.floor(min(xs)) - reach, math.floor(min(ys)) - reach
    size = math.ceil(max(xs)) + reach - left, math.ceil(max(ys)) + reach - top
    finer = Pillow.new("RGBA", (size[0] * FINER, size[1] * FINER))
    pen = ImageDraw.Draw(finer)
    for shape in shapes:
        points = [((x - left) * FINER, (y - top) * FINER) for x, y in shape.points]
        if isinstance(shape, Polyline):
            pen.line(points, fill=shape.colour, width=round(shape.thick * FINER), joint="curve")
        elif isinstance(shape, Polygon):
            pen.polygon(points, fill=shape.fill)
        else:
            assert isinstance(shape, Dot), shape
            (x, y), radius = points[0], shape.radius * FINER
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shape.fill)
    smooth = finer.reduce(FINER)
    picture.paste(smooth, (left, top), mask=smooth)


QUALITY = 88  # of the photo's JPEG


def render_svg(drawing: Drawing) -> str:
    """Return one self-contained file; each shape's class says what it is: "box", "name", "label", "head" and so on."""
    width, height = drawing.size
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">',
        f"<!-- {MARK} -->",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_element(shape) for shape in drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _element(shape: Shape) -> str:
    (x, y), kind = shape.points[0], f'class="{shape.kind}"'
    if isinstance(shape, PhotoShape):
        w, h = shape.image.size
        return f'<image {kind} x="{_n(x)}" y="{_n(y)}" width="{w}" height="{h}" href="{_jpeg(shape)}"/>'
    if isinstance(shape, Text):
        length = f' textLength="{_n(shape.length)}" lengthAdjust="spacingAndGlyphs"' if shape.text else ""
        return (
            f'<text {kind} x="{_n(x)}" y="{_n(y)}" font-size="{shape.size}" fill="{_hex(shape.colour)}"{length}>'
            f"{escape(shape.text)}</text>"
        )
    if isinstance(shape, Rectangle):
        return _rectangle(shape, kind)
    if isinstance(shape, Polyline):
        return (
            f'<polyline {kind} points="{_path(shape.points)}" fill="none" stroke="{_hex(shape.colour)}" '
            f'stroke-width="{_n(shape.thick)}" stroke-linejoin="round"/>'
        )
    if isinstance(shape, Polygon):
        return f'<polygon {kind} points="{_path(shape.points)}" fill="{_hex(shape.fill)}"/>'
    assert isinstance(shape, Dot), shape
    return f'<circle {kind} cx="{_n(x)}" cy="{_n(y)}" r="{_n(shape.radius)}" fill="{_hex(shape.fill)}"/>'


def _rectangle(shape: Rectangle, kind: str) -> str:
    (x1, y1), (x2, y2) = shape.points
    inset = shape.thick / 2 if shape.outline else 0.0
    line = f' stroke="{_hex(shape.outline)}" stroke-width="{shape.thick}"' if shape.outline else ""
    return (
        f'<rect {kind} x="{_n(x1 + inset)}" y="{_n(y1 + inset)}" width="{_n(max(0.0, x2 - x1 - 2 * inset))}" '
        f'height="{_n(max(0.0, y2 - y1 - 2 * inset))}" fill="{_hex(shape.fill)}"{line}/>'
    )


def _jpeg(photo: PhotoShape) -> str:
    stored = BytesIO()
    photo.image.save(stored, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(stored.getvalue()).decode("ascii")


def _path(points: tuple[Point, ...]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{round(value, 2):.10g}"


def _hex(colour: Colour | None) -> str:
    return "none" if colour is None else "#{:02x}{:02x}{:02x}".format(*colour)
