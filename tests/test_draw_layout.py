"""Labels, arrows and graphs: what overlaps, what is hidden, where arrows point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draw_cases import (
    BOXES,
    NAMES,
    RIDE,
    TEXTS,
    Frame,
    crowds,
    draw_relations,
    drawn_frames,
    grey,
    overlap,
    svg_frames,
    well_placed,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from polyadic.draw import plan_drawing
from polyadic.draw.layout import (
    Label,
    Rect,
    anchor_points,
    arrange,
    arrow_curves,
    arrow_labels,
    crossings,
    graph_layout,
    nearest_place,
    place_labels,
)
from polyadic.draw.panels import Drawn, bundle
from polyadic.draw.render import render_png, render_svg
from polyadic.draw.shapes import ARROW, HIT, HIT_ARROW, PAPER, Drawing, Polygon, Rectangle, Text, colours_of
from polyadic.structures.relations import number_names

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 5))
CORNERS = st.tuples(st.integers(-10, 30), st.integers(-10, 30))
RECTS = st.tuples(st.integers(-4, 20), st.integers(-4, 14), SIZES).map(
    lambda r: (r[0], r[1], r[0] + r[2][0], r[1] + r[2][1])
)
WISHES = st.tuples(SIZES, st.lists(CORNERS, min_size=1, max_size=3), CORNERS)


# --- the whole picture


def readable(texts: list[Frame], heads: list[Frame]) -> bool:
    apart = all(not overlap(a, b) for i, a in enumerate(texts) for b in texts[:i])
    return apart and not any(overlap(text, head) for text in texts for head in heads)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to look for a smaller crowd would take minutes
)
@given(crowds())
def test_in_a_crowd_no_label_hides_a_label_a_name_or_a_head_and_none_is_lost(crowd: Any) -> None:
    boxes, names, relations = crowd
    drawing = plan_drawing(grey(640, 480), boxes, names, relations, arrows=20, graph=True)
    texts, heads = drawn_frames(drawing, *TEXTS), drawn_frames(drawing, "head")
    assert readable(texts, heads)
    taking_part = {i for relation in relations for i in relation.pair}
    assert len(drawn_frames(drawing, "name")) == len(taking_part or names)
    assert len(drawn_frames(drawing, "node")) == len(taking_part)
    assert len(heads) == 2 * len({relation.pair for relation in relations})  # on the photo and in the graph
    assert all(min(x1, y1) >= 0 and x2 <= drawing.size[0] and y2 <= drawing.size[1] for x1, y1, x2, y2 in texts)

    text = render_svg(drawing)
    np.testing.assert_allclose(svg_frames(text, *TEXTS, "head"), drawn_frames(drawing, *TEXTS, "head"), atol=0.01)
    png = np.asarray(render_png(drawing))
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle) and shape.kind in TEXTS:
            (x1, y1), (x2, y2) = (map(int, point) for point in shape.points)
            for rim in (png[y1:y2, x1 : x1 + 2], png[y1:y2, x2 - 2 : x2]):  # left and right of the text
                assert (rim == shape.fill).all()


@pytest.mark.parametrize("n", [2, 60])
def test_equal_boxes_in_a_tiny_picture_are_drawn_and_labels_left_out(n: int) -> None:
    boxes = np.tile([[20.0, 30, 120, 170]], (n, 1))
    relations = [Drawn(i, i + 1, "a on b", "on") for i in range(n - 1)]
    drawing = plan_drawing(grey(), boxes, ["building"] * n, relations, arrows=30, width=120)
    texts = drawn_frames(drawing, "name", "label")
    assert readable(texts, drawn_frames(drawing, "head"))
    assert 3 <= len(texts) < 60


# --- where labels go


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(WISHES, max_size=12), st.tuples(st.integers(1, 24), st.integers(1, 17)), st.lists(RECTS, max_size=5))
def test_labels_stay_inside_and_do_not_overlap(wishes: list[Any], room: tuple[int, int], taken: list[Rect]) -> None:
    labels = [Label(size, tuple(wanted), anchor) for size, wanted, anchor in wishes]
    places = place_labels(labels, room, taken)
    assert well_placed(places, room, taken)
    for label, place in zip(labels, places, strict=True):
        assert place is None or (place[2] - place[0], place[3] - place[1]) == label.size


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SIZES, CORNERS, st.tuples(st.integers(1, 24), st.integers(1, 17)), st.lists(RECTS, max_size=6))
def test_the_nearest_place_is_as_near_as_trying_every_pixel(
    size: tuple[int, int], wanted: tuple[int, int], room: tuple[int, int], taken: list[Rect]
) -> None:
    every = [(x, y, x + size[0], y + size[1]) for x in range(room[0]) for y in range(room[1])]
    free = [place for place in every if well_placed([place], room, taken)]
    found = nearest_place(size, wanted, room, taken)
    assert (found is None) == (not free)
    if found:
        assert found in free
        assert far(found, wanted) == min(far(place, wanted) for place in free)


def far(place: Rect, wanted: tuple[int, int]) -> int:
    return (place[0] - wanted[0]) ** 2 + (place[1] - wanted[1]) ** 2


def test_a_label_takes_its_first_free_wish_and_has_a_leader_only_if_it_moved() -> None:
    label = Label((4, 2), ((0, 0), (10, 10)), (1, 1))
    first, second, moved, lost = place_labels([label, label, label, replace(label, size=(21, 2))], (20, 20))
    assert (first, second, moved, lost) == ((0, 0, 4, 2), (10, 10, 14, 12), (0, 2, 4, 4), None)
    assert moved is not None
    assert second is not None
    assert label.leader(second) is None
    assert label.leader(moved) == ((1, 1), (1, 2))


def test_a_label_sits_where_it_hides_no_other_arrow() -> None:
    x = np.linspace(0, 200, 49)
    flat, crossing = np.stack([x, 0 * x + 50], 1), np.stack([0 * x + 100, x], 1)
    alone, aside = arrow_labels([(30, 10)], [flat])[0], arrow_labels([(30, 10)] * 2, [flat, crossing])[0]
    assert alone.wanted[0] == (85, 45)
    assert not 70 < aside.wanted[0][0] <= 100  # the other is at x = 100
    assert abs(aside.wanted[0][0] - 85) < 20
    assert sorted(alone.wanted) == sorted(aside.wanted)


# --- arrows


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 299), st.floats(0, 199)), min_size=2, max_size=5), st.data())
def test_arrows_go_from_point_to_point_inside_the_picture(points: list[tuple[float, float]], data: Any) -> None:
    ends = np.array(points)
    index = st.integers(0, len(points) - 1)
    pairs = data.draw(st.lists(st.tuples(index, index), max_size=6))
    for (subject, object), curve in zip(pairs, arrow_curves(ends, pairs, (300, 200)), strict=True):
        assert (curve >= 0).all()
        assert (curve <= [299, 199]).all()
        if subject != object:
            assert np.hypot(*(curve[0] - curve[-1])) > 10  # direction is visible, even between equal points
        if np.hypot(*(ends[subject] - ends[object])) > 45:
            np.testing.assert_allclose(curve[[0, -1]], ends[[subject, object]], atol=3)


def test_opposite_arrows_lie_apart_and_leave_a_gap() -> None:
    ends = np.array([[50.0, 100], [250, 100]])
    there, back = arrow_curves(ends, [(0, 1), (1, 0)], (300, 200), gap=8)
    assert there[24, 1] + 12 < 100 < back[24, 1] - 12
    np.testing.assert_allclose(np.hypot(*(there[[0, -1]] - ends).T), 8, atol=2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_the_points_of_arrows_lie_in_their_boxes_and_apart(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.random((n, 2)) * [300, 200]
    boxes = np.concatenate([low, low + 120 + rng.random((n, 2)) * 150], 1)
    points = anchor_points(boxes, (640, 480))
    assert (points >= boxes[:, :2]).all()
    assert (points <= boxes[:, 2:]).all()
    equal = anchor_points(np.tile(boxes[:1], (4, 1)), (640, 480))
    gaps = np.hypot(*(equal[:, None] - equal[None]).T)[np.triu_indices(4, 1)]
    assert gaps.min() > 25


def texts(drawing: Drawing, kind: str) -> list[str]:
    return [shape.text for shape in drawing.shapes if isinstance(shape, Text) and shape.kind == kind]


def test_nodes_are_the_boxes_that_take_part_with_the_name_and_colour_of_the_photo() -> None:
    boxes = np.concatenate([BOXES[[1]], BOXES, [[150.0, 20, 200, 190]]])
    names = ["person", "person", "horse", "tower"]
    drawing = plan_drawing(grey(), boxes, names, [Drawn(1, 2, "", "ride"), Drawn(0, 2, "", "feed")], graph=True)
    assert sorted(texts(drawing, "node")) == ["horse", "person 1", "person 2"]
    assert sorted(texts(drawing, "name")) == ["horse", "person 1", "person 2"]
    fills = {shape.fill for shape in drawing.shapes if isinstance(shape, Rectangle) and shape.kind == "node"}
    assert fills == {colours_of(names)["person"], colours_of(names)["horse"]}


@pytest.mark.parametrize("hit", [True, False, None])
@pytest.mark.parametrize("relation", [RIDE, replace(RIDE, subject=1, object=0)])
def test_an_edge_points_to_its_object_and_is_green_for_hits_alone(relation: Drawn, hit: bool | None) -> None:
    drawing = plan_drawing(grey(), BOXES, NAMES, [replace(relation, hit=hit)], width=400, graph=True)
    graph = [shape for shape in drawing.shapes if shape.points[0][0] >= 600]  # right of photo and list
    (head,) = (shape for shape in graph if isinstance(shape, Polygon) and shape.kind == "head")
    labels = [shape.fill for shape in graph if isinstance(shape, Rectangle) and shape.kind == "label"]
    assert (head.fill, labels) == ((HIT_ARROW, [HIT]) if hit else (ARROW, [PAPER]))
    ends = [np.mean(shape.points, 0) for shape in graph if isinstance(shape, Rectangle) and shape.kind == "node"]
    gaps = [np.hypot(*(end - head.points[0])) for end in ends]  # in order of the relation: subject, object
    assert gaps[1] < gaps[0]


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
