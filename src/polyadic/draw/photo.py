"""The photo with its boxes, the arrows of the best relations, and labels that hide nothing that matters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image as Pillow
from PIL.Image import Image

from polyadic.draw.arrows import anchor_points, arrow_curves, arrow_shapes, keep_free
from polyadic.draw.labels import leaders, words
from polyadic.draw.layout import Rect, Size, arrow_labels, box_label, place_labels
from polyadic.draw.relations import Drawn, boxes_of, bundle
from polyadic.draw.shapes import Dot, Drawing, Photo, Rectangle, Shape
from polyadic.draw.text import PAPER, Colour
from polyadic.scenes.pictures import to_rgb

SMALLEST = 5  # px: the side of the smallest box that is drawn


def photo_size(size: Size, width: int) -> Size:
    """`width` wide and at most twice as high; what would become a thin strip is drawn up to three times as long."""
    factor = min(width / size[0], 2 * width / size[1])
    factor = max(factor, min(width / 4 / min(size), 3 * width / max(size)))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def fit_photo(image: Image, size: Size) -> Image:
    """In RGB on white; much enlarged pixels stay square."""
    how = Pillow.Resampling.NEAREST if size[0] >= 4 * image.width else Pillow.Resampling.LANCZOS
    return to_rgb(image).resize(size, how, reducing_gap=3.0)


def photo_panel(
    photo: Image,
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    colours: Sequence[Colour],
    relations: Sequence[Drawn],
    arrows: int,
    width: int,
    font_size: int,
) -> Drawing:
    """Boxes are in pixels of the photo as it is drawn. Around a thin strip there is room for labels."""
    room = max(photo.width, width // 2), max(photo.height, width // 3)
    at = (room[0] - photo.width) // 2, (room[1] - photo.height) // 2
    placed = _visible(boxes, photo.size) + np.array([*at, *at])
    thick = max(2, width // 240)
    pointed = bundle(relations[:arrows])
    main = boxes_of(relations[:arrows])
    shown = [*main, *(i for i in boxes_of(relations) or range(len(boxes)) if i not in main)]
    rects = {i: _whole(placed[i]) for i in shown}
    points = np.zeros((len(boxes), 2))
    points[main] = anchor_points(placed[main], room)
    curves = arrow_curves(points, [each.pair for each in pointed], room, gap=1.5 * thick + 3)

    dots = [_dot(points[i], 1.5 * thick) for i in main]
    most = 0.45 * room[0]
    texts = [words([(names[i], colours[i])], font_size, most) for i in shown]
    texts += [words(each.lines, font_size, most) for each in pointed]
    labels = [box_label(text.size, rects[i]) for text, i in zip(texts, shown, strict=False)]
    sizes = [text.size for text in texts[len(shown) :]]
    labels += arrow_labels(sizes, curves)
    places = place_labels(labels, room, [*keep_free(curves, sizes, thick), *dots])

    shapes: list[Shape] = [Photo((at,), "photo", photo)]
    for i in reversed(shown):
        x1, y1, x2, y2 = rects[i]
        line = thick if i in main else 1
        shapes.append(Rectangle(((x1, y1), (x2, y2)), "box", outline=colours[i], thick=line))
    lines, heads = arrow_shapes(curves, [each.colour for each in pointed], thick)
    shapes += [*leaders(labels, texts, places, on_photo=True), *lines]
    for i in main:
        centre = float(points[i, 0]), float(points[i, 1])
        shapes += [Dot((centre,), "rim", PAPER, 1.5 * thick + 1), Dot((centre,), "anchor", colours[i], 1.5 * thick)]
    shapes += heads
    for n, (text, place) in enumerate(zip(texts, places, strict=True)):
        shapes += text.shapes(place, "name" if n < len(shown) else "label") if place else []
    return Drawing(room, tuple(shapes))


def _visible(boxes: Float[np.ndarray, "N 4"], size: Size) -> Float[np.ndarray, "N 4"]:
    """Cut off at the edges of the photo, and large enough to be seen."""
    edge = np.array(size, np.float64)
    low, high = boxes[:, :2].clip(0, edge), boxes[:, 2:].clip(0, edge)
    least = np.minimum(SMALLEST, edge)
    more = (least - (high - low)).clip(0) / 2
    low = np.minimum((low - more).clip(0), edge - least)
    return np.concatenate([low, np.maximum(high, low + least)], 1)


def _whole(box: Float[np.ndarray, " 4"]) -> Rect:
    x1, y1, x2, y2 = (round(float(value)) for value in box)
    return x1, y1, x2, y2


def _dot(point: Float[np.ndarray, " 2"], radius: float) -> Rect:
    (x1, y1), (x2, y2) = np.floor(point - radius - 1).astype(int), np.ceil(point + radius + 1).astype(int)
    return int(x1), int(y1), int(x2), int(y2)
