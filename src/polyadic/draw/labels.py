"""Labels to paint: lines of text, each on its own colour, hits with a tick; a leader where a label had to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyadic.draw.colours import HIT
from polyadic.draw.layout import Label, Rect, Size
from polyadic.draw.shapes import Line, Rectangle, Shape, rimmed, text_in_row, tick
from polyadic.draw.text import FAINT, INK, Colour, fit_text, line_height, load_font, on_colour

PAD = 4  # px left and right of the text


@dataclass(frozen=True)
class Words:
    """The name of a box, or the predicates of an arrow, one below the other."""

    lines: tuple[tuple[str, Colour], ...]
    font_size: int

    @property
    def size(self) -> Size:
        font = load_font(self.font_size)
        widths = [round(font.getlength(text)) + _mark(fill, self.font_size) for text, fill in self.lines]
        return max(widths) + 2 * PAD, len(self.lines) * line_height(font)

    def shapes(self, place: Rect, kind: str) -> list[Shape]:
        left, top, right, _ = place
        row = line_height(load_font(self.font_size))
        painted: list[Shape] = []
        for i, (text, fill) in enumerate(self.lines):
            y = top + i * row
            painted.append(Rectangle(((left, y), (right, y + row)), kind, fill))
            mark = _mark(fill, self.font_size)
            painted.append(text_in_row(text, left + PAD + mark, y, row, self.font_size, on_colour(fill), kind))
            painted += [tick(left + PAD, y + row / 2, mark - PAD)] if mark else []
        return painted


def words(lines: Sequence[tuple[str, Colour]], font_size: int, room: float) -> Words:
    """Each line cut to fit into `room` pixels."""
    font = load_font(font_size)
    fitted = ((fit_text(text, font, room - 2 * PAD - _mark(fill, font_size)), fill) for text, fill in lines)
    return Words(tuple(fitted), font_size)


def _mark(fill: Colour, font_size: int) -> int:
    """The room of the tick before the text of a hit."""
    return round(0.7 * font_size) + PAD if fill == HIT else 0


def leaders(
    labels: Sequence[Label], texts: Sequence[Words], places: Sequence[Rect | None], on_photo: bool
) -> list[Shape]:
    """Lines from what a label belongs to, to the label; on a photo in its colour with a dark rim."""
    painted: list[Shape] = []
    for label, text, place in zip(labels, texts, places, strict=True):
        line = label.leader(place) if place else None
        if line and on_photo:
            painted += rimmed(line, "leader", text.lines[0][1], 1, rim=INK)
        elif line:
            painted.append(Line(line, "leader", FAINT, 1))
    return painted
