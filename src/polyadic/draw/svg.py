"""A drawing as SVG text with the photo inside it; text is as wide as in PNG, whatever font the reader has."""

from __future__ import annotations

import base64
from io import BytesIO
from xml.sax.saxutils import escape

from polyadic.draw.shapes import Dot, Drawing, Line, Photo, Point, Polygon, Rectangle, Shape, Text
from polyadic.draw.text import Colour

QUALITY = 88  # of the photo's JPEG


def render_svg(drawing: Drawing) -> str:
    """One file that needs no other; each shape's class says what it is: "box", "name", "label", "head" and so on."""
    width, height = drawing.size
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_element(shape) for shape in drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _element(shape: Shape) -> str:
    (x, y), kind = shape.points[0], f'class="{shape.kind}"'
    if isinstance(shape, Photo):
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
    if isinstance(shape, Line):
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


def _jpeg(photo: Photo) -> str:
    stored = BytesIO()
    photo.image.save(stored, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(stored.getvalue()).decode("ascii")


def _path(points: tuple[Point, ...]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{round(value, 2):.10g}"


def _hex(colour: Colour | None) -> str:
    return "none" if colour is None else "#{:02x}{:02x}{:02x}".format(*colour)
