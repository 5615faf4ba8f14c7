"""The scene graph: who is in it, what is written on its edges, what is green, and that it is easy to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draw_cases import BOXES, NAMES, RIDE, draw_relations, drawn_frames, grey

from polyadic.draw import plan_drawing
from polyadic.draw.layout import arrange, crossings, graph_layout
from polyadic.draw.panels import Drawn, bundle, number_names
from polyadic.draw.shapes import ARROW, HIT, HIT_ARROW, PAPER, Drawing, Polygon, Rectangle, Text, colours_of


def texts(drawing: Drawing, kind: str) -> list[str]:
    return [shape.text for shape in drawing.shapes if isinstance(shape, Text) and shape.kind == kind]


def right_of_list(drawing: Drawing, width: int = 400) -> Drawing:
    """The graph alone."""
    shapes = tuple(shape for shape in drawing.shapes if shape.points[0][0] >= 1.5 * width)
    return replace(drawing, shapes=shapes)


def test_nodes_are_the_boxes_that_take_part_with_the_name_and_colour_of_the_photo() -> None:
    boxes = np.concatenate([BOXES[[1]], BOXES, [[150.0, 20, 200, 190]]])
    names = ["person", "person", "horse", "tower"]
    drawing = plan_drawing(grey(), boxes, names, [Drawn(1, 2, "", "ride"), Drawn(0, 2, "", "feed")], graph=True)
    assert sorted(texts(drawing, "node")) == ["horse", "person 1", "person 2"]
    assert sorted(texts(drawing, "name")) == ["horse", "person 1", "person 2"]
    fills = {shape.fill for shape in drawing.shapes if isinstance(shape, Rectangle) and shape.kind == "node"}
    assert fills == {colours_of(names)["person"], colours_of(names)["horse"]}


def test_boxes_of_one_class_are_numbered_from_left_to_right() -> None:
    boxes = np.array([[50.0, 0, 60, 9], [10, 0, 20, 9], [0, 0, 90, 9], [30, 0, 40, 9]])
    assert number_names(boxes, ["dog", "dog", "cat", "dog"]) == ["dog 3", "dog 1", "cat", "dog 2"]


def test_the_list_has_the_numbers_too_where_its_text_has_the_names() -> None:
    boxes, names = np.concatenate([BOXES, BOXES[:1] + 30]), ["person", "horse", "person"]
    relations = [RIDE, Drawn(2, 1, "man ride horse", "ride"), Drawn(2, 1, "person ride horse", "ride")]
    rows = texts(plan_drawing(grey(), boxes, names, relations), "row")
    assert rows[1::3] == ["person 1 ride horse", "man ride horse", "person 2 ride horse"]


def test_what_is_said_of_one_pair_stands_on_one_arrow() -> None:
    on = replace(RIDE, predicate="on", hit=False)
    relations = [replace(RIDE, hit=False), on, RIDE, Drawn(1, 0, "", "carry", hit=None)]
    there, back = bundle(relations)
    assert (there.pair, there.lines, there.colour) == ((0, 1), (("ride", HIT), ("on", PAPER)), HIT_ARROW)
    assert (back.pair, back.lines, back.colour) == ((1, 0), (("carry", PAPER),), ARROW)
    many = bundle([replace(RIDE, predicate=f"p{i}", hit=i == 1) for i in range(9)])[0]
    assert [text for text, _ in many.lines] == ["p0", "p1", "p2", "p3", "and 5 more"]
    assert [fill for _, fill in many.lines] == [PAPER, HIT, PAPER, PAPER, PAPER]


@pytest.mark.parametrize("hit", [True, False, None])
def test_green_is_for_hits_alone_in_the_graph(hit: bool | None) -> None:
    drawing = plan_drawing(grey(), BOXES, NAMES, [replace(RIDE, hit=hit)], width=400, graph=True)
    parts = right_of_list(drawing)
    heads = [shape.fill for shape in parts.shapes if isinstance(shape, Polygon) and shape.kind == "head"]
    labels = [shape.fill for shape in parts.shapes if isinstance(shape, Rectangle) and shape.kind == "label"]
    assert (heads, labels) == (([HIT_ARROW], [HIT]) if hit else ([ARROW], [PAPER]))


def test_an_edge_points_to_its_object() -> None:
    for relation in (RIDE, replace(RIDE, subject=1, object=0)):
        parts = right_of_list(plan_drawing(grey(), BOXES, NAMES, [relation], width=400, graph=True))
        tip = next(shape.points[0] for shape in parts.shapes if shape.kind == "head")
        nodes = drawn_frames(parts, "node")  # in order of the relation: subject, object
        gaps = [np.hypot((x1 + x2) / 2 - tip[0], (y1 + y2) / 2 - tip[1]) for x1, y1, x2, y2 in nodes]
        assert gaps[1] < gaps[0]


def test_a_graph_keeps_the_arrangement_of_the_photo_where_it_can() -> None:
    parts = right_of_list(plan_drawing(grey(), BOXES, NAMES, [RIDE], width=400, graph=True))
    person, horse = drawn_frames(parts, "node")
    assert person[2] < horse[0]


TREE = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (2, 6), (3, 7), (3, 8)]
STAR = [(0, i) for i in range(1, 9)]
WHEEL = [*[(0, i) for i in range(1, 7)], *[(i, i % 6 + 1) for i in range(1, 7)]]
SQUARE = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]  # with one diagonal, which tempts the other corners together


@pytest.mark.parametrize("edges", [TREE, STAR, WHEEL, SQUARE])
def test_graphs_that_need_no_crossing_get_none(edges: list[tuple[int, int]]) -> None:
    n = 1 + max(map(max, edges))
    for seed in range(6):
        ((_, points),) = graph_layout(np.random.default_rng(seed).random((n, 2)), edges)
        assert crossings(points, edges) == 0
        lengths = np.hypot(*(points[[a for a, _ in edges]] - points[[b for _, b in edges]]).T)
        assert 0.5 < lengths.min() <= lengths.max() < 1.6


def test_connected_parts_lie_apart_within_the_width() -> None:
    edges = [(0, 1), (1, 2), (3, 4), (5, 6), (6, 7), (7, 8), (9, 9)]
    sizes = np.full((10, 2), [90, 40])
    centres, height = arrange(graph_layout(np.random.default_rng(0).random((10, 2)), edges), sizes, 400, 1.0)
    assert (centres - sizes / 2 >= -1e-6).all()
    assert (centres + sizes / 2 <= np.array([400, height]) + 1e-6).all()
    rects = [around_part(centres, sizes, part) for part in ([0, 1, 2], [3, 4], [5, 6, 7, 8], [9])]
    for i, (low, high) in enumerate(rects):
        assert all(((high <= a + 1e-6) | (b <= low + 1e-6)).any() for a, b in rects[:i])


def around_part(centres: np.ndarray, sizes: np.ndarray, part: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return (centres[part] - sizes[part] / 2).min(0), (centres[part] + sizes[part] / 2).max(0)


def test_a_long_chain_goes_down_the_paper() -> None:
    edges = [(i, i + 1) for i in range(9)]
    start = np.stack([np.arange(10.0), np.zeros(10)], 1)
    centres, height = arrange(graph_layout(start, edges), np.full((10, 2), [90, 40]), 500, 1.0)
    assert height > 600
    assert np.hypot(*np.diff(centres, axis=0).T).min() > 60


def test_no_graph_is_drawn_unless_asked_for_or_of_nothing() -> None:
    for relations, graph, width in (([RIDE], False, 600), ([], True, 600), ([RIDE], True, 1000)):
        assert draw_relations(grey(), BOXES, NAMES, relations, width=400, graph=graph).width == width
