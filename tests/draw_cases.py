"""A grey photo with a person and a horse, crowds of boxes, and helpers of the drawing tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from polyadic.draw import plan_drawing
from polyadic.draw.layout import Rect
from polyadic.draw.panels import Drawn
from polyadic.draw.render import render_png, render_svg
from polyadic.draw.shapes import Colour, Drawing, Polygon, Rectangle, colours_of

GREY = (128, 128, 128)
BOXES = np.array([[20.0, 30, 120, 170], [250, 60, 380, 180]])
NAMES = ["person", "horse"]
RIDE = Drawn(0, 1, "person ride horse", "ride", "0.5", True)
TEXTS = ("name", "label", "node")  # kinds of shapes that nothing may hide
Frame = tuple[float, float, float, float]


def grey(width: int = 400, height: int = 200) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def colour_of(name: str) -> Colour:
    return colours_of([name])[name]


def draw_relations(*arguments: Any, **options: Any) -> Image.Image:
    return render_png(plan_drawing(*arguments, **options))


def svg_relations(*arguments: Any, **options: Any) -> str:
    return render_svg(plan_drawing(*arguments, **options))


def pixels(image: Image.Image, colour: tuple[int, int, int]) -> np.ndarray:
    """Where the image has exactly this colour, [H, W]."""
    same: np.ndarray = (np.asarray(image) == colour).all(-1)
    return same


def overlap(a: Rect | Frame, b: Rect | Frame) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def well_placed(places: list[Rect | None], room: tuple[int, int], taken: list[Rect]) -> bool:
    rects = [place for place in places if place]
    inside = all(p[0] >= 0 and p[1] >= 0 and p[2] <= room[0] and p[3] <= room[1] for p in rects)
    apart = all(not overlap(p, q) for i, p in enumerate(rects) for q in (*rects[:i], *taken))
    return inside and apart


def around(points: Any) -> Frame:
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def drawn_frames(drawing: Drawing, *kinds: str) -> list[Frame]:
    """The rectangles and heads of these kinds."""
    return [
        around(shape.points)
        for shape in drawing.shapes
        if shape.kind in kinds and isinstance(shape, Rectangle | Polygon)
    ]


def svg_frames(text: str, *kinds: str) -> list[Frame]:
    """The same from the text of an SVG file."""
    frames = []
    for element in ET.fromstring(text):
        tag, get = element.tag.rpartition("}")[2], element.attrib
        if get.get("class") in kinds and tag == "rect":
            x, y, w, h = (float(get[name]) for name in ("x", "y", "width", "height"))
            frames.append((x, y, x + w, y + h))
        elif get.get("class") in kinds and tag == "polygon":
            frames.append(around([tuple(map(float, point.split(","))) for point in get["points"].split()]))
    return frames


WORDS = st.sampled_from(["on", "next to", "in the front of", "wear", "<&>", "馬に乗る"])
CLASSES = st.sampled_from(["person", "horse", "traffic light", "sky", "ß"])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[np.ndarray, list[str], list[Drawn]]:
    """Up to 40 boxes anywhere in and around 640 x 480, and up to 20 relations of them."""
    corner, side = st.tuples(st.integers(-60, 660), st.integers(-60, 500)), st.integers(0, 300)
    n, m = draw(st.integers(1, 40)), draw(st.integers(0, 20))
    boxes = draw(st.lists(st.tuples(corner, side, side), min_size=n, max_size=n))
    array = np.array([(x, y, x + w, y + h) for (x, y), w, h in boxes], np.float64)
    names = draw(st.lists(CLASSES, min_size=len(boxes), max_size=len(boxes)))
    index = st.integers(0, len(boxes) - 1)
    hit = st.sampled_from([True, False, None])
    rows = draw(st.lists(st.tuples(index, index, WORDS, hit), min_size=m, max_size=m))
    return array, names, [Drawn(s, o, f"{names[s]} {p} {names[o]}", p, hit=h) for s, o, p, h in rows]
