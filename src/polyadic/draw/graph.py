"""The scene graph: a node for each box that takes part, an edge for each pair, with its predicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from polyadic.draw.arrange import arrange, settle
from polyadic.draw.arrows import arrow_shapes, bow, keep_free, loop, part
from polyadic.draw.labels import Words, leaders, words
from polyadic.draw.layout import Label, Rect, Size, arrow_labels, place_labels
from polyadic.draw.relations import Drawn, boxes_of, bundle
from polyadic.draw.shapes import Drawing, Shape
from polyadic.draw.text import Colour

BENDS = (0.0, 0.12, -0.12, 0.24, -0.24, 0.4, -0.4)  # of an edge, best first
BENDS_OF_TWO = (0.16, 0.28, 0.42)  # where there is an opposite edge: each keeps to its left
THICK = 1.6
GAP = 10  # px around a node, at least
FACTORS = (1.15, 1.0, 0.9, 0.8)  # of the usual distance, the first that fits
GROWTH = 1.2  # of the height, until every label has a place


@dataclass(frozen=True)
class Graph:
    """What is to be placed; `edges` are (subject node, object node)."""

    nodes: tuple[Words, ...]
    edges: tuple[tuple[int, int], ...]
    predicates: tuple[Words, ...]  # of each edge
    colours: tuple[Colour, ...]  # of each edge


def graph_panel(
    boxes: Float[np.ndarray, "N 4"],
    names: Sequence[str],
    colours: Sequence[Colour],
    relations: Sequence[Drawn],
    room: Size,
    font_size: int,
) -> Drawing:
    """As wide as the room, and higher where the graph needs it. An edge with a hit is green."""
    shown, bundles = boxes_of(relations), bundle(relations)
    if not shown:
        return Drawing(room, ())
    most = 0.3 * room[0]
    graph = Graph(
        tuple(words([(names[i], colours[i])], font_size, most) for i in shown),
        tuple((shown.index(each.pair[0]), shown.index(each.pair[1])) for each in bundles),
        tuple(words(each.lines, font_size, most) for each in bundles),
        tuple(each.colour for each in bundles),
    )
    sizes = np.array([node.size for node in graph.nodes]) + 2 * GAP
    parts = settle((boxes[shown, :2] + boxes[shown, 2:]) / 2, graph.edges)
    tried = [arrange(parts, sizes, room[0], factor) for factor in FACTORS]
    centres, height = next((each for each in tried if each[1] <= room[1]), tried[-1])
    height = max(height, room[1])
    while not (drawing := _placed(graph, centres, (room[0], height))):
        height = round(height * GROWTH)
    return drawing


def _placed(graph: Graph, centres: Float[np.ndarray, "N 2"], room: Size) -> Drawing | None:
    """None where there is not enough room."""
    wanted = []
    for node, centre in zip(graph.nodes, centres, strict=True):
        w, h = node.size[0] + 2 * GAP, node.size[1] + 2 * GAP
        corner = round(float(centre[0]) - w / 2), round(float(centre[1]) - h / 2)
        wanted.append(Label((w, h), (corner,), corner))
    rects = [(r[0] + GAP, r[1] + GAP, r[2] - GAP, r[3] - GAP) for r in place_labels(wanted, room) if r]
    if len(rects) < len(wanted):
        return None
    curves = _curves(graph.edges, rects, room)
    sizes = [text.size for text in graph.predicates]
    labels = arrow_labels(sizes, curves)
    places = place_labels(labels, room, [*rects, *keep_free(curves, sizes, THICK)])
    lines, heads = arrow_shapes(curves, graph.colours, THICK)
    shapes: list[Shape] = [*leaders(labels, graph.predicates, places, on_photo=False), *lines, *heads]
    for node, rect in zip(graph.nodes, rects, strict=True):
        shapes += node.shapes(rect, "node")
    for text, place in zip(graph.predicates, places, strict=True):
        if place is None:
            return None
        shapes += text.shapes(place, "label")
    return Drawing(room, tuple(shapes))


def _curves(edges: Sequence[tuple[int, int]], rects: Sequence[Rect], room: Size) -> list[np.ndarray]:
    """From node to node, each with the least bend that avoids other nodes."""
    frames, edge = np.array(rects, np.float64), np.array(room) - 1.0
    centres = (frames[:, :2] + frames[:, 2:]) / 2
    curves = []
    for subject, object in edges:
        own, others = frames[[subject, object]], np.delete(frames, [subject, object], 0)
        if subject == object:
            tried = [loop(np.array([centres[subject, 0], own[0, 1] + 4]), 18)]
        else:
            bends = BENDS_OF_TWO if (object, subject) in edges else BENDS
            tried = [bow(centres[subject], centres[object], bend) for bend in bends]
        hidden = [int(_inside(curve, others, 4).sum()) for curve in tried]
        curve = tried[int(np.argmin(hidden))]
        curves.append(part(curve, ~_inside(curve, own, 2)).clip(0, edge))
    return curves


def _inside(curve: Float[np.ndarray, "K 2"], rects: Float[np.ndarray, "M 4"], margin: float) -> Bool[np.ndarray, " K"]:
    """Which points lie in a rectangle, or so near to it."""
    low, high = rects[:, :2] - margin, rects[:, 2:] + margin
    inside = np.logical_and(curve[:, None] > low, curve[:, None] < high)  # [K, M, 2]
    some: np.ndarray = np.any(np.all(inside, axis=2), axis=1)
    return some
