"""One picture with its boxes, arrows and ranked triplets; hits have a green shade and a green arrow."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image as Pillow
from PIL import ImageDraw
from PIL.Image import Image

from polyadic.draw.arrows import arrow_curves, draw_arrows, keep_free
from polyadic.draw.layout import arrow_label, box_label, place_labels
from polyadic.draw.sheet import add_title
from polyadic.draw.text import FAINT, INK, PAPER, Colour, fit_text, line_height, load_font
from polyadic.scenes import scale_boxes
from polyadic.vocabulary import PolyadicError, Vocabulary

HIT: Colour = (183, 236, 183)  # behind the text of a hit
HIT_ARROW: Colour = (0, 150, 50)
ARROW: Colour = (35, 35, 35)
HUES = (0, 20, 36, 52, 192, 210, 232, 262, 290, 325)  # degrees, of classes: none is green
LIGHTNESS = (0.5, 0.33, 0.72)
PAD = 4  # px left and right of a label's text


@dataclass(frozen=True)
class Drawn:
    """One relation to draw; `subject` and `object` are indices of boxes."""

    subject: int
    object: int
    text: str  # "person ride horse", in the list
    predicate: str  # "ride", on the arrow
    score: float | None = None
    hit: bool | None = None  # None: nobody knows


def relations_to_draw(
    vocabulary: Vocabulary,
    pairs: Int[np.ndarray, "M 2"],
    triplets: Int[np.ndarray, "M 3"],
    scores: Float[np.ndarray, " M"] | None = None,
    hits: Bool[np.ndarray, " M"] | None = None,
) -> list[Drawn]:
    """Best first if there are scores, else in the given order; all columns are in one order, `hits` too.

    Of a scene: `relations_to_draw(vocabulary, scene.relations[:, ::2], scene.triplets)`.
    """
    lengths = {len(column) for column in (pairs, triplets, scores, hits) if column is not None}
    if len(lengths) > 1:
        raise PolyadicError(f"relations_to_draw: pairs, triplets, scores, hits need one length, got {sorted(lengths)}")
    order = range(len(pairs)) if scores is None else np.argsort(-scores, kind="stable").tolist()
    drawn = []
    for i in order:
        words = vocabulary.decode(triplets[i].tolist())
        subject, object = pairs[i].tolist()
        score = None if scores is None else float(scores[i])
        drawn.append(Drawn(subject, object, " ".join(words), words[1], score, None if hits is None else bool(hits[i])))
    return drawn


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
) -> Image:
    """The picture with boxes and arrows, beside it all relations as a list in the given order.

    Only boxes that a relation names are drawn, or all if there are no relations. A label without a free place is left
    out.

    Args:
        image: of any mode.
        boxes: in pixels of the image, or of `frame`.
        names: the class of each box; a class has the same colour in all pictures.
        relations: best first.
        arrows: how many of them get an arrow.
        title: a line above all.
        width: of the picture without the list, which takes half as much; a very high picture becomes narrower.
        frame: (width, height) of the frame of the boxes, if not the image's.
    """
    boxes = np.asarray(boxes, np.float64)
    _check(image, boxes, names, relations, arrows, width, frame)
    picture = _scaled(image, width)
    room = np.array([*picture.size, *picture.size])
    boxes = scale_boxes(boxes, frame or image.size, picture.size).clip(0, room - 1)
    pointed = relations[:arrows]
    main = {i for relation in pointed for i in (relation.subject, relation.object)}
    rest = {i for relation in relations for i in (relation.subject, relation.object)} or set(range(len(boxes)))
    shown = [*sorted(main), *sorted(rest - main)]
    thick = max(2, width // 240)

    pen = ImageDraw.Draw(picture)
    for i in reversed(shown):
        pen.rectangle(boxes[i].round().tolist(), outline=colour_of(names[i]), width=thick if i in main else 1)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    curves = arrow_curves(centres, [(relation.subject, relation.object) for relation in pointed], picture.size)
    draw_arrows(picture, curves, [HIT_ARROW if relation.hit else ARROW for relation in pointed], thick)
    _draw_labels(
        picture,
        [(names[i], colour_of(names[i]), boxes[i]) for i in shown],
        [
            (relation.predicate, HIT if relation.hit else PAPER, curve)
            for relation, curve in zip(pointed, curves, strict=True)
        ],
        _font_size(width),
    )
    both = _with_list(picture, relations, width // 2, _font_size(width))
    return both if title is None else add_title(both, title)


def colour_of(name: str) -> Colour:
    """The colour of a class, the same in every picture and every run; never the green of hits."""
    code = zlib.crc32(name.encode("utf-8", "replace")) % (len(HUES) * len(LIGHTNESS))
    lightness, hue = (table[at] for table, at in zip((LIGHTNESS, HUES), divmod(code, len(HUES)), strict=True))
    red, green, blue = (round(255 * value) for value in colorsys.hls_to_rgb(hue / 360, lightness, 0.8))
    return red, green, blue


def _check(
    image: Image,
    boxes: np.ndarray,
    names: Sequence[str],
    relations: Sequence[Drawn],
    arrows: int,
    width: int,
    frame: tuple[float, float] | None,
) -> None:
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
    for i in (i for relation in relations for i in (relation.subject, relation.object)):
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


def _scaled(image: Image, width: int) -> Image:
    """In RGB on white, `width` wide and at most twice as high. Much enlarged pixels stay square."""
    factor = min(width / image.width, 2 * width / image.height)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    if image.mode in {"1", "P", "PA"}:  # Pillow would pick single pixels of these
        image = image.convert("RGBA")
    how = Pillow.Resampling.NEAREST if factor >= 4 else Pillow.Resampling.LANCZOS
    scaled = image.resize(size, how, reducing_gap=3.0).convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", size, PAPER), scaled).convert("RGB")


def _draw_labels(
    picture: Image,
    boxes: Sequence[tuple[str, Colour, np.ndarray]],
    arrows: Sequence[tuple[str, Colour, np.ndarray]],
    font_size: int,
) -> None:
    """The names of boxes, then the predicates of arrows, where there is room; heads stay visible."""
    font = load_font(font_size)
    texts = [fit_text(text, font, picture.width - 2 * PAD) for text, _, _ in (*boxes, *arrows)]
    sizes = [(round(font.getlength(text)) + 2 * PAD, line_height(font)) for text in texts]
    labels = [box_label(size, box) for size, (_, _, box) in zip(sizes, boxes, strict=False)]
    labels += [arrow_label(size, curve) for size, (_, _, curve) in zip(sizes[len(boxes) :], arrows, strict=True)]
    kept = keep_free([curve for _, _, curve in arrows], font_size // 2)
    pen = ImageDraw.Draw(picture)
    placed = [
        (text, fill, label, place)
        for text, (_, fill, _), label, place in zip(
            texts, (*boxes, *arrows), labels, place_labels(labels, picture.size, kept), strict=True
        )
        if place
    ]
    for _, fill, label, place in placed:
        if leader := label.leader(place):
            pen.line(leader, fill=INK, width=3)
            pen.line(leader, fill=fill, width=1)
    for text, fill, _, (x1, y1, x2, y2) in placed:
        pen.rectangle((x1, y1, x2 - 1, y2 - 1), fill=fill)
        light = 0.3 * fill[0] + 0.59 * fill[1] + 0.11 * fill[2] > 140
        pen.text((x1 + PAD, (y1 + y2) / 2), text, fill=INK if light else PAPER, font=font, anchor="lm")


def _with_list(picture: Image, relations: Sequence[Drawn], width: int, font_size: int) -> Image:
    """The picture with all relations beside it, as many rows as they need."""
    font = load_font(font_size)
    row = line_height(font) + 6
    both = Pillow.new("RGB", (picture.width + width, max(picture.height, row * max(len(relations), 1))), PAPER)
    both.paste(picture)
    pen = ImageDraw.Draw(both)
    left, right = picture.width + 8, both.width - 8
    indent = font.getlength(f"{len(relations)} ") + 4
    if not relations:
        pen.text((left, row / 2), "no relations", fill=FAINT, font=font, anchor="lm")
    for i, relation in enumerate(relations):
        top, middle = i * row, i * row + row / 2
        if relation.hit:
            pen.rectangle((picture.width, top, both.width, top + row - 2), fill=HIT)
        score = "" if relation.score is None else f"{relation.score:.3g}"
        text = fit_text(relation.text, font, right - left - indent - font.getlength(score) - 8)
        pen.text((left + indent - 6, middle), str(i + 1), fill=FAINT, font=font, anchor="rm")
        pen.text((left + indent, middle), text, fill=INK, font=font, anchor="lm")
        pen.text((right, middle), score, fill=FAINT, font=font, anchor="rm")
    return both


def _font_size(width: int) -> int:
    return max(11, width // 45)
