"""The ranked triplets as a list, hits on green and with a tick."""

from __future__ import annotations

from collections.abc import Sequence

from polyadic.draw.colours import HIT
from polyadic.draw.relations import Drawn
from polyadic.draw.shapes import Drawing, Rectangle, Shape, text_in_row, tick
from polyadic.draw.text import FAINT, INK, fit_text, line_height, load_font


def list_panel(
    relations: Sequence[Drawn], names: Sequence[str], numbered: Sequence[str], width: int, font_size: int
) -> Drawing:
    """One row per relation: rank, text, score. Where the text has the names of the boxes, it has their numbers too."""
    font = load_font(font_size)
    row = line_height(font) + 6
    mark = round(0.7 * font_size) if any(relation.hit for relation in relations) else 0
    left, right = 8 + mark + (4 if mark else 0), width - 8
    indent = font.getlength(f"{len(relations)} ") + 4
    shapes: list[Shape] = []
    if not relations:
        shapes.append(text_in_row("no relations", left, 0, row, font_size, FAINT, "row"))
    for i, relation in enumerate(relations):
        top = i * row
        if relation.hit:
            shapes.append(Rectangle(((0, top), (width, top + row - 1)), "hit", HIT))
            shapes.append(tick(8, top + row / 2, mark))
        rank, score = str(i + 1), "" if relation.score is None else f"{relation.score:.3g}"
        told = _told(relation, names) == " ".join(relation.text.split())
        text = _told(relation, numbered) if told else relation.text
        text = fit_text(text, font, right - left - indent - font.getlength(score) - 8)
        for x, words, colour in (
            (left + indent - 6 - font.getlength(rank), rank, FAINT),
            (left + indent, text, INK),
            (right - font.getlength(score), score, FAINT),
        ):
            shapes.append(text_in_row(words, x, top, row, font_size, colour, "row"))
    return Drawing((width, row * max(len(relations), 1)), tuple(shapes))


def _told(relation: Drawn, names: Sequence[str]) -> str:
    return " ".join(f"{names[relation.subject]} {relation.predicate} {names[relation.object]}".split())
