"""Several pictures on one: with and without the prior side by side, and sheets of many."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image as Pillow
from PIL.Image import Image

from polyadic.draw.png import render_png
from polyadic.draw.shapes import Drawing, Photo, add_title
from polyadic.draw.text import PAPER
from polyadic.vocabulary import PolyadicError


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
