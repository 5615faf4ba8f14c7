"""What has which colour: classes by their name, hits green, all else dark."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

from polyadic.draw.text import Colour

HIT: Colour = (183, 236, 183)  # behind the text of a hit
HIT_ARROW: Colour = (0, 150, 50)
ARROW: Colour = (35, 35, 35)
HUES = (0, 20, 36, 52, 192, 210, 232, 262, 290, 325)  # degrees, of classes: none is green
LIGHTNESS = (0.5, 0.33, 0.72)
CODES = len(HUES) * len(LIGHTNESS)


def colour_of(name: str) -> Colour:
    """The colour of a class, the same in every picture and every run; never the green of hits."""
    return _colour(_code(name))


def colours_of(names: Iterable[str]) -> dict[str, Colour]:
    """The colours of the classes of one picture: unlike each other while there are enough colours.

    Where two classes would have the same, the later in the alphabet takes the next free one.
    """
    taken: dict[int, str] = {}
    given = {}
    for name in sorted(set(names)):
        wanted = [(_code(name) + step) % CODES for step in range(CODES)]
        code = next((code for code in wanted if code not in taken), wanted[0])
        taken[code] = name
        given[name] = _colour(code)
    return given


def _code(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace")) % CODES


def _colour(code: int) -> Colour:
    lightness, hue = (table[at] for table, at in zip((LIGHTNESS, HUES), divmod(code, len(HUES)), strict=True))
    red, green, blue = (round(255 * value) for value in colorsys.hls_to_rgb(hue / 360, lightness, 0.8))
    return red, green, blue
