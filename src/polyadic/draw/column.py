"""A photo with its list below it: a column of a picture that compares several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL.Image import Image

from polyadic.draw.colours import colours_of
from polyadic.draw.listing import list_panel
from polyadic.draw.photo import fit_photo, photo_panel, photo_size
from polyadic.draw.picture import check_drawing
from polyadic.draw.relations import Drawn, number_names
from polyadic.draw.shapes import Drawing, add_title, join
from polyadic.scenes import scale_boxes

GAP = 8  # px between photo and list


def plan_column(
    image: Image,
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    relations: Sequence[Drawn],
    *,
    title: str,
    arrows: int = 5,
    width: int = 480,
    frame: tuple[float, float] | None = None,
    below: Drawing | None = None,
) -> Drawing:
    """As `plan_drawing`, but upright: a title, the photo, then the list of the relations, or what `below` is."""
    boxes = np.asarray(boxes, np.float64)
    check_drawing(image, boxes, names, relations, arrows, width, frame)
    size, by_class = photo_size(image.size, width), colours_of(names)
    boxes = scale_boxes(boxes, frame or image.size, size)
    numbered, colours = number_names(boxes, names), [by_class[name] for name in names]
    font_size = _font_size(width)
    photo = photo_panel(fit_photo(image, size), boxes, numbered, colours, relations, arrows, width, font_size)
    below = below or list_panel(relations, names, numbered, width, font_size)
    return add_title(join([(photo, (0, 0)), (below, (0, photo.size[1] + GAP))]), title)


def plan_list(relations: Sequence[Drawn], width: int = 480) -> Drawing:
    """The list alone: the relations' own texts, whose boxes need not be drawn."""
    nobody = [""] * (1 + max((i for relation in relations for i in relation.pair), default=0))
    return list_panel(relations, nobody, nobody, width, _font_size(width))


def _font_size(width: int) -> int:
    return max(12, width // 36)
