"""One picture of an image's relations: the photo, the ranked list and the scene graph, as PNG or as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image as Pillow
from PIL.Image import Image

from polyadic.draw.panels import Drawn, fit_photo, graph_panel, list_panel, number_names, photo_panel, photo_size
from polyadic.draw.render import render_png, render_svg
from polyadic.draw.shapes import PAPER, Drawing, Photo, add_title, colours_of, join
from polyadic.structures.scenes import scale_boxes
from polyadic.structures.vocabulary import PolyadicError


def plan_drawing(
    image: Image,
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    relations: Sequence[Drawn],
    *,
    arrows: int = 5,
    title: str | None = None,
    width: int = 640,
    frame: tuple[float, float] | None = None,
    graph: bool = False,
) -> Drawing:
    """The photo with boxes and arrows, beside it all relations as a list in the given order and as a graph.

    Only boxes that a relation names are drawn, or all if there are no relations. No label hides another one or the
    head of an arrow; on a photo so small that a label has no free place, it is left out.

    Args:
        image: of any mode.
        boxes: in pixels of the image, or of `frame`.
        names: the class of each box, which gives its colour; boxes of one class are numbered from left to right.
        relations: best first.
        arrows: how many of them get an arrow.
        title: a line above all.
        width: of the photo. The list takes half as much, the graph as much; beside a very wide photo they are below.
        frame: (width, height) of the frame of the boxes, if not the image's.
        graph: whether to draw the graph.
    """
    boxes = np.asarray(boxes, np.float64)
    check_drawing(image, boxes, names, relations, arrows, width, frame)
    size, font_size = photo_size(image.size, width), max(11, width // 45)
    boxes = scale_boxes(boxes, frame or image.size, size)
    numbered, by_class = number_names(boxes, names), colours_of(names)
    colours = [by_class[name] for name in names]

    photo = photo_panel(fit_photo(image, size), boxes, numbered, colours, relations, arrows, width, font_size)
    rows = list_panel(relations, names, numbered, width // 2, font_size)
    wide = photo.size[0] > 1.5 * width
    left, top = (0, photo.size[1] + 8) if wide else (photo.size[0], 0)
    panels = [(photo, (0, 0)), (rows, (left, top))]
    if graph and relations:
        beside = width // 2 if wide else max(photo.size[1], width // 2)
        room = (photo.size[0] - width // 2 if wide else width), min(beside, width)
        panels.append((graph_panel(boxes, numbered, colours, relations, room, font_size), (left + width // 2, top)))
    drawing = join(panels)
    return drawing if title is None else add_title(drawing, title)


def draw_relations(
    image: Image,
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    relations: Sequence[Drawn],
    *,
    arrows: int = 5,
    title: str | None = None,
    width: int = 640,
    frame: tuple[float, float] | None = None,
    graph: bool = False,
) -> Image:
    """The picture in pixels; see `plan_drawing`."""
    return render_png(
        plan_drawing(image, boxes, names, relations, arrows=arrows, title=title, width=width, frame=frame, graph=graph)
    )


def svg_relations(
    image: Image,
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    relations: Sequence[Drawn],
    *,
    arrows: int = 5,
    title: str | None = None,
    width: int = 640,
    frame: tuple[float, float] | None = None,
    graph: bool = False,
) -> str:
    """The same picture as the text of an SVG file, the photo inside; see `plan_drawing`."""
    return render_svg(
        plan_drawing(image, boxes, names, relations, arrows=arrows, title=title, width=width, frame=frame, graph=graph)
    )


def save_drawing(drawing: Drawing, path: Path) -> None:
    """SVG, or what Pillow knows by the suffix: .png, .jpg and so on."""
    if path.suffix.lower() == ".svg":
        path.write_text(render_svg(drawing), encoding="utf-8")
        return
    try:
        render_png(drawing).save(path)
    except ValueError as error:
        raise PolyadicError(f"save_drawing: expected a name that ends in .svg, .png or .jpg, got {path}") from error


def check_drawing(
    image: Image,
    boxes: np.ndarray,
    names: Sequence[str],
    relations: Sequence[Drawn],
    arrows: int,
    width: int,
    frame: tuple[float, float] | None,
) -> None:
    """Refuse what cannot be drawn."""
    if boxes.ndim != 2 or boxes.shape[1] != 4 or len(names) != len(boxes):
        raise PolyadicError(
            f"draw_relations: boxes must be [N, 4] with N names, got {list(boxes.shape)} and {len(names)} names"
        )
    wrong = ~(np.isfinite(boxes).all(1) & (boxes[:, 2:] >= boxes[:, :2]).all(1))
    if wrong.any():
        at = int(wrong.argmax())
        raise PolyadicError(
            f"draw_relations: box {at} must be finite xyxy with x1 <= x2 and y1 <= y2, got {boxes[at].tolist()}"
        )
    for i in (i for relation in relations for i in relation.pair):
        if not 0 <= i < len(boxes):
            raise PolyadicError(
                f"draw_relations: a relation points to box {i}, but there are {len(boxes)} (counted from 0)"
            )
    if 0 in image.size:
        raise PolyadicError(f"draw_relations: the image must have pixels, got size {image.size}")
    if arrows < 0 or width < 100:
        raise PolyadicError(f"draw_relations: expected arrows >= 0 and width >= 100, got {arrows} and {width}")
    if frame is not None and not (frame[0] > 0 and frame[1] > 0):
        raise PolyadicError(f"draw_relations: the frame must have a width and a height, got {frame}")


def side_by_side(panels: Sequence[Image], titles: Sequence[str] | None = None, gap: int = 16) -> Image:
    """Pictures in a row, each with its title: "without prior", "with prior"."""
    if titles is not None:
        if len(titles) != len(panels):
            raise PolyadicError(f"side_by_side: {len(panels)} panels need as many titles, got {len(titles)}")
        panels = [_titled(panel, title) for panel, title in zip(panels, titles, strict=True)]
    return contact_sheet(panels, columns=max(len(panels), 1), gap=gap)


def _titled(panel: Image, title: str) -> Image:
    return render_png(add_title(Drawing(panel.size, (Photo(((0, 0),), "photo", panel),)), title))


def contact_sheet(pictures: Sequence[Image], columns: int = 2, gap: int = 16) -> Image:
    """Pictures row by row on white; a column is as wide as its widest picture, a row as high as its highest."""
    if not pictures or columns < 1 or gap < 0:
        raise PolyadicError(
            f"contact_sheet: expected pictures, columns >= 1 and gap >= 0, got {len(pictures)}, {columns}, {gap}"
        )
    widths = [max(picture.width for picture in pictures[c::columns]) for c in range(min(columns, len(pictures)))]
    heights = [max(p.height for p in pictures[r : r + columns]) for r in range(0, len(pictures), columns)]
    size = (sum(widths) + gap * (len(widths) - 1), sum(heights) + gap * (len(heights) - 1))
    sheet = Pillow.new("RGB", size, PAPER)
    for i, picture in enumerate(pictures):
        row, column = divmod(i, columns)
        at = (sum(widths[:column]) + gap * column, sum(heights[:row]) + gap * row)
        sheet.paste(picture, at)
    return sheet


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
