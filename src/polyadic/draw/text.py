"""Text in pictures, measured in Pillow's own font; letters that it lacks become empty boxes in PNG."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache

from PIL import ImageFont

LONGEST = 200  # characters: more than any picture shows
UNWRITABLE = re.compile("[^ -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, or anywhere

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (25, 25, 25)
FAINT: Colour = (110, 110, 110)


@lru_cache
def load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font


def fit_text(text: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    """`text` in one line, cut with an ellipsis where it is wider than `room` pixels."""
    line = UNWRITABLE.sub("\ufffd", " ".join(text.split()))
    if len(line) <= LONGEST and font.getlength(line) <= room:
        return line
    line = line[:LONGEST]
    cut = bisect_right(range(1, len(line) + 1), room, key=lambda n: font.getlength(line[:n] + "…"))
    return line[:cut] + "…"


def line_height(font: ImageFont.FreeTypeFont) -> int:
    return sum(font.getmetrics())


def on_colour(fill: Colour) -> Colour:
    """Of ink and paper the one that is readable on this colour."""
    return INK if 0.3 * fill[0] + 0.59 * fill[1] + 0.11 * fill[2] > 140 else PAPER
