"""A drawing as a Pillow image: rectangles and text on whole pixels, lines and heads smooth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from PIL import Image as Pillow
from PIL import ImageDraw
from PIL.Image import Image

from polyadic.draw.shapes import Dot, Drawing, Line, Photo, Polygon, Rectangle, Shape, Text
from polyadic.draw.text import PAPER, load_font

FINER = 3  # smooth shapes are drawn this much larger, then reduced


def render_png(drawing: Drawing) -> Image:
    """In RGB, one pixel per unit."""
    picture = Pillow.new("RGB", drawing.size, PAPER)
    for smooth, shapes in groupby(drawing.shapes, lambda shape: isinstance(shape, Line | Polygon | Dot)):
        (_paint_smooth if smooth else _paint)(picture, list(shapes))
    return picture


def _paint(picture: Image, shapes: Sequence[Shape]) -> None:
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        if isinstance(shape, Photo):
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
    """On a finer layer, no larger than the shapes need."""
    reach = 2 + max(math.ceil(getattr(shape, "radius", getattr(shape, "thick", 0))) for shape in shapes)
    xs, ys = ([point[axis] for shape in shapes for point in shape.points] for axis in (0, 1))
    left, top = math.floor(min(xs)) - reach, math.floor(min(ys)) - reach
    size = math.ceil(max(xs)) + reach - left, math.ceil(max(ys)) + reach - top
    finer = Pillow.new("RGBA", (size[0] * FINER, size[1] * FINER))
    pen = ImageDraw.Draw(finer)
    for shape in shapes:
        points = [((x - left) * FINER, (y - top) * FINER) for x, y in shape.points]
        if isinstance(shape, Line):
            pen.line(points, fill=shape.colour, width=round(shape.thick * FINER), joint="curve")
        elif isinstance(shape, Polygon):
            pen.polygon(points, fill=shape.fill)
        else:
            assert isinstance(shape, Dot), shape
            (x, y), radius = points[0], shape.radius * FINER
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shape.fill)
    smooth = finer.reduce(FINER)
    picture.paste(smooth, (left, top), mask=smooth)
