"""Draw the relations of an image: photo, ranked list and scene graph in one picture, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image as Pillow
from PIL.Image import Image
from PIL.PngImagePlugin import PngInfo

from polyadic.draw.panels import Canvas, Drawn, graph_panel, list_panel, photo_panel
from polyadic.draw.render import render_png, render_svg
from polyadic.draw.shapes import PAPER, Drawing, PhotoShape, add_title, join
from polyadic.files import MARK, atomic_write, write_text
from polyadic.structures.vocabulary import PolyadicError

GAP = 8  # px between a photo and what is below it


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
    """Draw the photo with boxes and arrows, and beside it all relations as a list and optionally as a graph.

    Only boxes that occur in a relation are drawn, or all if there are no relations. Labels hide neither each other nor
    arrow heads; on a photo so small that a label has no free place, it is left out.

    Args:
        image: of any mode.
        boxes: in pixels of the image, or of `frame`.
        names: the class of each box, which determines its colour; boxes of one class are numbered from left to right.
        relations: best first.
        arrows: how many of them get an arrow.
        title: a line at the top.
        width: of the photo. The list is half as wide, the graph as wide; both go below a very wide photo.
        frame: (width, height) of the frame of the boxes, if it is not the image's.
        graph: whether to draw the graph.
    """
    font_size = max(11, width // 45)
    canvas = Canvas.prepare(image, boxes, names, relations, width=width, frame=frame, font_size=font_size)
    photo = photo_panel(canvas, relations, arrows)
    wide = photo.size[0] > 1.5 * width
    left, top = (0, photo.size[1] + GAP) if wide else (photo.size[0], 0)
    panels = [(photo, (0, 0)), (list_panel(canvas, relations, width // 2), (left, top))]
    if graph and relations:
        beside = width // 2 if wide else max(photo.size[1], width // 2)
        room = (photo.size[0] - width // 2 if wide else width), min(beside, width)
        panels.append((graph_panel(canvas, relations, room), (left + width // 2, top)))
    drawing = join(panels)
    return drawing if title is None else add_title(drawing, title)


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
    listed: Sequence[Drawn] | None = None,
) -> Drawing:
    """Draw a title, the photo, and below it the list of the relations, or of `listed`, whose boxes are not drawn."""
    font_size = max(12, width // 36)
    canvas = Canvas.prepare(image, boxes, names, relations, width=width, frame=frame, font_size=font_size)
    photo = photo_panel(canvas, relations, arrows)
    below = list_panel(canvas, relations if listed is None else listed, width, numbered=listed is None)
    return add_title(join([(photo, (0, 0)), (below, (0, photo.size[1] + GAP))]), title)


def save_drawing(drawing: Drawing, path: Path) -> None:
    """Save as SVG, or in the format that Pillow derives from the suffix: .png, .jpg and so on."""
    if path.suffix.lower() == ".svg":
        write_text(path, render_svg(drawing))
    else:
        save_picture(render_png(drawing), path)


def save_picture(picture: Image, path: Path) -> None:
    """Save a picture in the format of its suffix, complete or not at all; a PNG says that it is ours."""
    kind = Pillow.registered_extensions().get(path.suffix.lower())
    if kind not in Pillow.SAVE:
        raise PolyadicError(f"save_drawing: expected a name that ends in .svg, .png or .jpg, got {path}")
    about = PngInfo()
    about.add_text("Software", MARK)
    with atomic_write(path) as part:
        picture.save(part, kind, **({"pnginfo": about} if kind == "PNG" else {}))


def side_by_side(panels: Sequence[Image], titles: Sequence[str] | None = None, gap: int = 16) -> Image:
    """Put pictures in a row, each below its title: "without prior", "with prior"."""
    if titles is not None:
        if len(titles) != len(panels):
            raise PolyadicError(f"side_by_side: {len(panels)} panels need as many titles, got {len(titles)}")
        panels = [_titled(panel, title) for panel, title in zip(panels, titles, strict=True)]
    return contact_sheet(panels, columns=max(len(panels), 1), gap=gap)


def _titled(panel: Image, title: str) -> Image:
    return render_png(add_title(Drawing(panel.size, (PhotoShape(((0, 0),), "photo", panel),)), title))


def contact_sheet(pictures: Sequence[Image], columns: int = 2, gap: int = 16) -> Image:
    """Put pictures row by row on white; a column is as wide as its widest picture, a row as high as its highest."""
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
        sheet.paste(picture, (sum(widths[:column]) + gap * column, sum(heights[:row]) + gap * row))
    return sheet
