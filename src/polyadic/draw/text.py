"""Text in pictures, in Pillow's own font; letters that it lacks become empty boxes."""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

LONGEST = 200  # characters: more than any picture shows

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
    line = " ".join(text.split())
    if len(line) <= LONGEST and font.getlength(line) <= room:
        return line
    line = line[:LONGEST]
    while line and font.getlength(line + "…") > room:
        line = line[:-1]
    return line + "…"


def line_height(font: ImageFont.FreeTypeFont) -> int:
    return sum(font.getmetrics())
