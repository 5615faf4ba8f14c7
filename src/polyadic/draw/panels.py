"""The panels of a picture: the photo with boxes and arrows, the list of relations, the scene graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image as Pillow
from PIL.Image import Image

from polyadic.draw.layout import (
    Label,
    Rect,
    Size,
    anchor_points,
    arrange,
    arrow_curves,
    arrow_labels,
    bow,
    box_label,
    graph_layout,
    keep_free,
    loop,
    part,
    place_labels,
)
from polyadic.draw.shapes import (
    ARROW,
    FAINT,
    HIT,
    HIT_ARROW,
    INK,
    PAPER,
    SPURIOUS,
    Colour,
    Dot,
    Drawing,
    PhotoShape,
    Rectangle,
    Shape,
    Words,
    arrow_shapes,
    colours_of,
    cross,
    fit_text,
    fit_words,
    leaders,
    line_height,
    load_font,
    text_in_row,
    tick,
)
from polyadic.structures.images import to_rgb
from polyadic.structures.relations import number_names
from polyadic.structures.scenes import check_boxes, check_indices, scale_boxes
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

MOST_LINES = 5  # on one arrow; the list shows all


@dataclass(frozen=True)
class Drawn:
    """One relation to draw; `subject` and `object` are indices of boxes."""

    subject: int
    object: int
    text: str  # "person ride horse", in the list
    predicate: str  # "ride", on the arrow
    score: str = ""  # as shown
    hit: bool | None = None  # None: unknown
    spurious: bool = False  # crossed in the list

    @property
    def pair(self) -> tuple[int, int]:
        return self.subject, self.object


class Bundle(NamedTuple):
    """All relations of one pair, subject first: one arrow, with a line of text for each predicate."""

    pair: tuple[int, int]
    lines: tuple[tuple[str, Colour], ...]
    colour: Colour


def relations_to_draw(
    vocabulary: Vocabulary,
    pairs: Int[np.ndarray, "M 2"],
    triplets: Int[np.ndarray, "M 3"],
    scores: Float[np.ndarray, " M"] | None = None,
    hits: Bool[np.ndarray, " M"] | None = None,
) -> list[Drawn]:
    """Return rows to draw, best first if there are scores, else in the given order; `hits` are in the order of `pairs`.

    For a scene: `relations_to_draw(vocabulary, scene.relations[:, ::2], scene.triplets)`.
    """
    lengths = {len(column) for column in (pairs, triplets, scores, hits) if column is not None}
    if len(lengths) > 1:
        raise PolyadicError(f"relations_to_draw: pairs, triplets, scores, hits need one length, got {sorted(lengths)}")
    order = range(len(pairs)) if scores is None else np.argsort(-scores, kind="stable").tolist()
    drawn = []
    for i in order:
        words = vocabulary.decode(triplets[i].tolist())
        subject, object = pairs[i].tolist()
        score = "" if scores is None else f"{scores[i]:.3g}"
        drawn.append(Drawn(subject, object, " ".join(words), words[1], score, None if hits is None else bool(hits[i])))
    return drawn


def bundle(relations: Sequence[Drawn]) -> list[Bundle]:
    """Group relations by pair, in order of the best of each; green where at least one is a hit."""
    pairs: dict[tuple[int, int], dict[str, bool]] = {}
    for relation in relations:
        hits = pairs.setdefault(relation.pair, {})
        hits[relation.predicate] = hits.get(relation.predicate, False) or bool(relation.hit)
    bundles = []
    for pair, hits in pairs.items():
        lines = [(predicate, HIT if hit else PAPER) for predicate, hit in hits.items()]
        if len(lines) > MOST_LINES:
            lines[MOST_LINES - 1 :] = [(f"and {len(lines) - MOST_LINES + 1} more", PAPER)]
        bundles.append(Bundle(pair, tuple(lines), HIT_ARROW if any(hits.values()) else ARROW))
    return bundles


def boxes_of(relations: Sequence[Drawn]) -> list[int]:
    """List the boxes that occur, in order of their first relation."""
    return list(dict.fromkeys(i for relation in relations for i in relation.pair))


SMALLEST = 5  # px: the side of the smallest box that is drawn


@dataclass(frozen=True)
class Canvas:
    """The photo at the size in which it is drawn, its boxes in these pixels, their names and colours."""

    photo: Image
    boxes: Float[np.ndarray, "N 4"]
    classes: Sequence[str]
    names: Sequence[str]  # classes, numbered where several boxes have one
    colours: Sequence[Colour]
    width: int  # asked for
    font_size: int

    @classmethod
    def prepare(
        cls,
        image: Image,
        boxes: Float[np.ndarray, "N 4"],
        names: Sequence[str],
        relations: Sequence[Drawn],
        *,
        width: int,
        frame: tuple[float, float] | None,
        font_size: int,
    ) -> Canvas:
        """Check and scale what is to be drawn."""
        boxes = np.asarray(boxes, np.float64)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or len(names) != len(boxes):
            got = f"{list(boxes.shape)} and {len(names)} names"
            raise PolyadicError(f"drawing: boxes must be [N, 4] with N names, got {got}")
        check_boxes(boxes, "drawing")
        pairs = np.array([relation.pair for relation in relations], np.int64)
        check_indices(pairs, len(boxes), "drawing: a relation points to box")
        if 0 in image.size or width < 100:
            raise PolyadicError(
                f"drawing: the image must have pixels and width be >= 100, got {image.size} and {width}"
            )
        if frame is not None and not (frame[0] > 0 and frame[1] > 0):
            raise PolyadicError(f"drawing: the frame must have a width and a height, got {frame}")
        size, by_class = photo_size(image.size, width), colours_of(names)
        boxes = scale_boxes(boxes, frame or image.size, size)
        colours = [by_class[name] for name in names]
        return cls(fit_photo(image, size), boxes, names, number_names(boxes, names), colours, width, font_size)


def photo_size(size: Size, width: int) -> Size:
    """Return `width` and at most twice that height; a photo that would be a thin strip is drawn up to 3 x `width`."""
    factor = min(width / size[0], 2 * width / size[1])
    factor = max(factor, min(width / 4 / min(size), 3 * width / max(size)))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def fit_photo(image: Image, size: Size) -> Image:
    """Resize to RGB on white; strongly enlarged pixels stay square."""
    how = Pillow.Resampling.NEAREST if size[0] >= 4 * image.width else Pillow.Resampling.LANCZOS
    return to_rgb(image).resize(size, how, reducing_gap=3.0)


def photo_panel(canvas: Canvas, relations: Sequence[Drawn], arrows: int) -> Drawing:
    """Draw boxes, and arrows for the first relations. A thin strip gets margins as room for labels."""
    if arrows < 0:
        raise PolyadicError(f"drawing: expected arrows >= 0, got {arrows}")
    photo, width, colours = canvas.photo, canvas.width, canvas.colours
    room = max(photo.width, width // 2), max(photo.height, width // 3)
    at = (room[0] - photo.width) // 2, (room[1] - photo.height) // 2
    placed = _visible(canvas.boxes, photo.size) + np.array([*at, *at])
    thick = max(2, width // 240)
    pointed = bundle(relations[:arrows])
    main = boxes_of(relations[:arrows])
    shown = [*main, *(i for i in boxes_of(relations) or range(len(placed)) if i not in main)]
    rects = {i: _whole(placed[i]) for i in shown}
    points = np.zeros((len(placed), 2))
    points[main] = anchor_points(placed[main], room)
    curves = arrow_curves(points, [group.pair for group in pointed], room, gap=1.5 * thick + 3)

    dots = [_dot(points[i], 1.5 * thick) for i in main]
    most = 0.45 * room[0]
    texts = [fit_words([(canvas.names[i], colours[i])], canvas.font_size, most) for i in shown]
    texts += [fit_words(group.lines, canvas.font_size, most) for group in pointed]
    labels = [box_label(text.size, rects[i]) for text, i in zip(texts, shown, strict=False)]
    sizes = [text.size for text in texts[len(shown) :]]
    labels += arrow_labels(sizes, curves)
    places = place_labels(labels, room, [*keep_free(curves, sizes, thick), *dots])

    shapes: list[Shape] = [PhotoShape((at,), "photo", photo)]
    for i in reversed(shown):
        x1, y1, x2, y2 = rects[i]
        line = thick if i in main else 1
        shapes.append(Rectangle(((x1, y1), (x2, y2)), "box", outline=colours[i], thick=line))
    lines, heads = arrow_shapes(curves, [group.colour for group in pointed], thick)
    shapes += [*leaders(labels, texts, places, on_photo=True), *lines]
    for i in main:
        centre = float(points[i, 0]), float(points[i, 1])
        shapes += [Dot((centre,), "rim", PAPER, 1.5 * thick + 1), Dot((centre,), "anchor", colours[i], 1.5 * thick)]
    shapes += heads
    for n, (text, place) in enumerate(zip(texts, places, strict=True)):
        shapes += text.shapes(place, "name" if n < len(shown) else "label") if place else []
    return Drawing(room, tuple(shapes))


def _visible(boxes: Float[np.ndarray, "N 4"], size: Size) -> Float[np.ndarray, "N 4"]:
    """Clip boxes to the photo, and enlarge them where they would be invisible."""
    edge = np.array(size, np.float64)
    low, high = boxes[:, :2].clip(0, edge), boxes[:, 2:].clip(0, edge)
    least = np.minimum(SMALLEST, edge)
    more = (least - (high - low)).clip(0) / 2
    low = np.minimum((low - more).clip(0), edge - least)
    return np.concatenate([low, np.maximum(high, low + least)], 1)


def _whole(box: Float[np.ndarray, " 4"]) -> Rect:
    x1, y1, x2, y2 = (round(float(value)) for value in box)
    return x1, y1, x2, y2


def _dot(point: Float[np.ndarray, " 2"], radius: float) -> Rect:
    (x1, y1), (x2, y2) = np.floor(point - radius - 1).astype(int), np.ceil(point + radius + 1).astype(int)
    return int(x1), int(y1), int(x2), int(y2)


BENDS = (0.0, 0.12, -0.12, 0.24, -0.24, 0.4, -0.4)  # of an edge, best first
BENDS_OF_TWO = (0.16, 0.28, 0.42)  # where there is an opposite edge: both bend to their left
THICK = 1.6
GAP = 10  # px around a node, at least
FACTORS = (1.15, 1.0, 0.9, 0.8)  # of the usual distance, the first that fits
GROWTH = 1.2  # factor of the height, until every label has a place


def graph_panel(canvas: Canvas, relations: Sequence[Drawn], room: Size) -> Drawing:
    """Draw the scene graph as wide as the room, and higher where it needs that. An edge with a hit is green."""
    shown, bundles = boxes_of(relations), bundle(relations)
    if not shown:
        return Drawing(room, ())
    most = 0.3 * room[0]
    nodes = [fit_words([(canvas.names[i], canvas.colours[i])], canvas.font_size, most) for i in shown]
    edges = [
        Bundle((shown.index(s), shown.index(o)), fit_words(lines, canvas.font_size, most).lines, colour)
        for (s, o), lines, colour in bundles
    ]
    sizes = np.array([node.size for node in nodes]) + 2 * GAP
    parts = graph_layout((canvas.boxes[shown, :2] + canvas.boxes[shown, 2:]) / 2, [edge.pair for edge in edges])
    tried = [arrange(parts, sizes, room[0], factor) for factor in FACTORS]
    centres, height = next((attempt for attempt in tried if attempt[1] <= room[1]), tried[-1])
    height = max(height, room[1])
    while not (drawing := _draw_graph(nodes, edges, centres, (room[0], height))):
        height = round(height * GROWTH)
    return drawing


def _draw_graph(
    nodes: Sequence[Words], edges: Sequence[Bundle], centres: Float[np.ndarray, "N 2"], room: Size
) -> Drawing | None:
    """Draw nodes, edges and labels, or return None where there is not enough room."""
    wanted = []
    for node, centre in zip(nodes, centres, strict=True):
        w, h = node.size[0] + 2 * GAP, node.size[1] + 2 * GAP
        corner = round(float(centre[0]) - w / 2), round(float(centre[1]) - h / 2)
        wanted.append(Label((w, h), (corner,), corner))
    rects = [(r[0] + GAP, r[1] + GAP, r[2] - GAP, r[3] - GAP) for r in place_labels(wanted, room) if r]
    if len(rects) < len(wanted):
        return None
    curves = _curves([edge.pair for edge in edges], rects, room)
    texts = [Words(edge.lines, nodes[0].font_size) for edge in edges]
    sizes = [text.size for text in texts]
    labels = arrow_labels(sizes, curves)
    places = place_labels(labels, room, [*rects, *keep_free(curves, sizes, THICK)])
    lines, heads = arrow_shapes(curves, [edge.colour for edge in edges], THICK)
    shapes: list[Shape] = [*leaders(labels, texts, places, on_photo=False), *lines, *heads]
    for node, rect in zip(nodes, rects, strict=True):
        shapes += node.shapes(rect, "node")
    for text, place in zip(texts, places, strict=True):
        if place is None:
            return None
        shapes += text.shapes(place, "label")
    return Drawing(room, tuple(shapes))


def _curves(edges: Sequence[tuple[int, int]], rects: Sequence[Rect], room: Size) -> list[np.ndarray]:
    """Connect nodes, each edge with the least bend that avoids other nodes."""
    frames, edge = np.array(rects, np.float64), np.array(room) - 1.0
    centres = (frames[:, :2] + frames[:, 2:]) / 2
    curves = []
    for subject, object in edges:
        ends, others = frames[[subject, object]], np.delete(frames, [subject, object], 0)
        if subject == object:
            tried = [loop(np.array([centres[subject, 0], ends[0, 1] + 4]), 18)]
        else:
            bends = BENDS_OF_TWO if (object, subject) in edges else BENDS
            tried = [bow(centres[subject], centres[object], bend) for bend in bends]
        hidden = [int(_inside(curve, others, 4).sum()) for curve in tried]
        curve = tried[int(np.argmin(hidden))]
        curves.append(part(curve, ~_inside(curve, ends, 2)).clip(0, edge))
    return curves


def _inside(curve: Float[np.ndarray, "K 2"], rects: Float[np.ndarray, "M 4"], margin: float) -> Bool[np.ndarray, " K"]:
    """Mark the points that are in a rectangle or within `margin` of it."""
    low, high = rects[:, :2] - margin, rects[:, 2:] + margin
    inside = np.logical_and(curve[:, None] > low, curve[:, None] < high)  # [K, M, 2]
    some: np.ndarray = np.any(np.all(inside, axis=2), axis=1)
    return some


def list_panel(canvas: Canvas, relations: Sequence[Drawn], width: int, numbered: bool = True) -> Drawing:
    """Draw one row per relation: rank, text, score. Texts that consist of the boxes' names get their numbers too."""
    font_size, font = canvas.font_size, load_font(canvas.font_size)
    row = line_height(font) + 6
    mark = round(0.7 * font_size) if any(relation.hit or relation.spurious for relation in relations) else 0
    left, right = 8 + mark + (4 if mark else 0), width - 8
    indent = font.getlength(f"{len(relations)} ") + 4
    shapes: list[Shape] = []
    if not relations:
        shapes.append(text_in_row("no relations", (left, 0), row=row, size=font_size, colour=FAINT, kind="row"))
    for i, relation in enumerate(relations):
        top = i * row
        if relation.hit:
            shapes.append(Rectangle(((0, top), (width, top + row - 1)), "hit", HIT))
            shapes.append(tick(8, top + row / 2, mark))
        elif relation.spurious:
            shapes.append(Rectangle(((0, top), (width, top + row - 1)), "spurious", SPURIOUS))
            shapes += cross(8, top + row / 2, mark)
        rank, score, text = str(i + 1), relation.score, relation.text
        if numbered and _sentence(relation, canvas.classes) == " ".join(text.split()):
            text = _sentence(relation, canvas.names)
        text = fit_text(text, font, right - left - indent - font.getlength(score) - 8)
        for x, content, colour in (
            (left + indent - 6 - font.getlength(rank), rank, FAINT),
            (left + indent, text, INK),
            (right - font.getlength(score), score, FAINT),
        ):
            shapes.append(text_in_row(content, (x, top), row=row, size=font_size, colour=colour, kind="row"))
    return Drawing((width, row * max(len(relations), 1)), tuple(shapes))


def _sentence(relation: Drawn, names: Sequence[str]) -> str:
    return " ".join(f"{names[relation.subject]} {relation.predicate} {names[relation.object]}".split())
