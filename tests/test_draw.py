"""Drawings as PNG and SVG: hits, boxes and arrows, and odd input."""

from __future__ import annotations

import base64
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draw_cases import BOXES, NAMES, RIDE, colour_of, draw_relations, grey, pixels, svg_relations
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from polyadic.draw import contact_sheet, plan_drawing, save_drawing, side_by_side
from polyadic.draw.panels import Drawn, relations_to_draw
from polyadic.draw.render import render_png
from polyadic.draw.shapes import ARROW, HIT, HIT_ARROW, PAPER, SPURIOUS, Polyline, colours_of
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

# --- hits


def test_only_rows_labels_and_arrows_of_hits_are_green() -> None:
    hits = [True, False, None, True, False]
    drawn = draw_relations(grey(), BOXES, NAMES, [replace(RIDE, hit=hit) for hit in hits])
    row = 24
    assert [drawn.getpixel((drawn.width - 2, row * i + row // 2)) == HIT for i in range(len(hits))] == [
        bool(hit) for hit in hits
    ]
    assert not pixels(drawn, HIT)[row * len(hits) :, 640:].any()
    for hit in (True, False, None):
        drawn = draw_relations(grey(), BOXES, NAMES, [replace(RIDE, hit=hit)], width=400)
        shade, arrow = pixels(drawn, HIT), pixels(drawn, HIT_ARROW)
        assert [bool(part.any()) for part in (shade[:, :400], shade[:, 400:], arrow)] == [bool(hit)] * 3
        assert pixels(drawn, ARROW).any() != bool(hit)


def test_rows_of_spurious_relations_are_red_and_crossed_unless_they_are_hits() -> None:
    kinds = [(True, False), (False, True), (True, True), (None, False)]
    relations = [replace(RIDE, hit=hit, spurious=spurious) for hit, spurious in kinds]
    drawing = plan_drawing(grey(), BOXES, NAMES, relations)
    drawn, row = render_png(drawing), 24
    shades = [drawn.getpixel((drawn.width - 2, row * i + row // 2)) for i in range(len(kinds))]
    assert shades == [HIT, SPURIOUS, HIT, PAPER]
    crosses = [shape for shape in drawing.shapes if isinstance(shape, Polyline) and shape.kind == "cross"]
    assert len(crosses) == 2
    heights = [y for cross in crosses for _, y in cross.points]
    assert row < min(heights) < max(heights) < 2 * row


def test_classes_are_never_green() -> None:
    for i in range(300):
        red, green, blue = colour_of(f"class {i}")
        assert green <= max(red, blue)


# --- arrows


@pytest.mark.parametrize("relation", [RIDE, replace(RIDE, subject=1, object=0)])
def test_the_head_of_an_arrow_is_at_its_object(relation: Drawn) -> None:
    green = pixels(draw_relations(grey(), BOXES, NAMES, [relation], width=400), HIT_ARROW)
    at = [
        green[int(y) - 20 : int(y) + 21, int(x) - 20 : int(x) + 21].sum() for x, y in (BOXES[:, :2] + BOXES[:, 2:]) / 2
    ]
    assert at[relation.object] > 1.3 * at[relation.subject] > 0


def test_only_the_first_relations_get_an_arrow_and_a_thick_box() -> None:
    relations = [RIDE, replace(RIDE, subject=1, object=0, hit=False)]
    assert not pixels(draw_relations(grey(), BOXES, NAMES, relations, arrows=1, width=400), ARROW).any()
    none = draw_relations(grey(), BOXES, NAMES, relations, arrows=0, width=400)
    one = draw_relations(grey(), BOXES, NAMES, relations, arrows=1, width=400)
    assert not pixels(none, HIT_ARROW).any()
    assert [pixels(p, colour_of("horse"))[150, 245:255].sum() for p in (none, one)] == [1, 2]


# --- boxes and colours


def test_boxes_lie_where_they_are_in_the_image_or_in_the_frame() -> None:
    box = np.array([[100.0, 50, 300, 150]])
    for image, frame in ((grey(400, 200), None), (grey(100, 50), (400.0, 200.0)), (grey(800, 400), (400, 200))):
        drawn = draw_relations(image, box, ["dog"], [], width=400, frame=frame)
        here = pixels(drawn, colour_of("dog"))[:, :400]
        rows, columns = np.nonzero(here[50:])  # the label is above
        assert (columns.min(), rows.min() + 50, columns.max(), rows.max() + 50) == (100, 50, 299, 149)


def test_classes_of_one_picture_differ_in_colour_while_there_are_enough() -> None:
    names = [f"class {i}" for i in range(30)]
    assert len(set(colours_of(names).values())) == len(names)
    assert len(set(colours_of([*names, "one more"]).values())) == len(names)
    assert colours_of(["horse"]) == {"horse": colour_of("horse")}
    assert colours_of(names) == colours_of(reversed(names))


def test_boxes_without_a_relation_are_left_out() -> None:
    boxes = np.concatenate([BOXES, [[150.0, 20, 200, 190]]])
    for relations, shown in (([RIDE], False), ([], True)):
        drawn = draw_relations(grey(), boxes, [*NAMES, "tower"], relations, width=400)
        assert pixels(drawn, colour_of("tower")).any() == shown


# --- what comes in


def test_relations_are_ranked_by_score_and_keep_their_hits() -> None:
    names = Vocabulary(objects=("person", "horse", "hat"), predicates=("ride", "wear"))
    pairs, triplets = np.array([[0, 1], [0, 2], [1, 0]]), np.array([[0, 0, 1], [0, 1, 2], [1, 1, 0]])
    made = relations_to_draw(names, pairs, triplets, np.array([0.2, 0.9, 0.2]), np.array([True, False, False]))
    assert made == [
        Drawn(0, 2, "person wear hat", "wear", "0.9", False),
        Drawn(0, 1, "person ride horse", "ride", "0.2", True),
        Drawn(1, 0, "horse wear person", "wear", "0.2", False),
    ]
    assert [(r.subject, r.score, r.hit) for r in relations_to_draw(names, pairs, triplets)] == [
        (0, "", None),
        (0, "", None),
        (1, "", None),
    ]


@pytest.mark.parametrize(
    ("size", "drawn"),
    [
        ((6000, 3000), (960, 320)),
        ((1, 1), (960, 640)),
        ((40, 2000), (640, 1920)),  # a strip 38 px wide, with room for labels beside it
        ((12000, 300), (1920, 245)),  # 48 px high, the list below it
    ],
)
def test_huge_tiny_high_and_flat_pictures_get_a_readable_size(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    image = Image.new("L", size, 128)
    assert draw_relations(image, np.array([[0.0, 0, 3, 3], [1, 1, 5, 4]]), NAMES, [RIDE]).size == drawn


ODD: list[tuple[list[list[float]], list[str], list[Drawn]]] = [
    ([], [], []),
    ([[20, 30, 120, 170]], ["person"], []),
    ([[20, 30, 120, 170]], ["person"], [Drawn(0, 0, "person watch person", "watch")]),
    ([[-900, -800, -700, -600], [500, 300, 900, 800]], NAMES, [RIDE]),
    ([[-50, -50, 900, 900], [20, 20, 20, 20]], NAMES, [RIDE]),
    ([[20, 30, 120, 170]] * 2, ["人\n\t馬", "\ud800 \u0301é \u05d0\0"], [Drawn(0, 1, "", "→" * 500, "-inf")]),
    ([[20, 30, 120, 170]] * 2, ["", "x" * 5000], [Drawn(0, 1, "y" * 5000, "", "1e-300", True)] * 40),
]


@pytest.mark.parametrize(("boxes", "names", "relations"), ODD)
def test_odd_boxes_names_and_relations_are_drawn(boxes: Any, names: list[str], relations: list[Drawn]) -> None:
    array = np.array(boxes, np.float64).reshape(-1, 4)
    drawn = draw_relations(grey(), array, names, relations, width=400, title="一", graph=True)
    assert drawn.width == (1000 if relations else 600)
    assert "</svg>" in svg_relations(grey(), array, names, relations, width=400, title="一", graph=True)


ONE: Any = {"pairs": np.zeros((1, 2), int), "triplets": np.zeros((1, 3), int)}
WORDS = Vocabulary(objects=("person",), predicates=("ride",))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: plan_drawing(grey(), BOXES, ["person"], [RIDE]), "1 names"),
        (lambda: plan_drawing(grey(), BOXES[:, ::-1], NAMES, [RIDE]), "box 0 must be finite"),
        (lambda: plan_drawing(grey(), BOXES, NAMES, [replace(RIDE, object=2)]), "box 2, but there are 2"),
        (lambda: plan_drawing(grey(), BOXES, NAMES, [RIDE], arrows=-1), "arrows >= 0"),
        (lambda: plan_drawing(grey(), BOXES, NAMES, [RIDE], width=20), "got .* 20"),
        (lambda: plan_drawing(grey(), BOXES, NAMES, [RIDE], frame=(0.0, 5.0)), "frame"),
        (lambda: plan_drawing(Image.new("RGB", (0, 5)), BOXES, NAMES, [RIDE]), "the image must have pixels"),
        (lambda: relations_to_draw(WORDS, **ONE, hits=np.array([True, False])), "one length"),
        (lambda: side_by_side([grey(), grey()], ["with prior"]), "as many titles"),
        (lambda: contact_sheet([], 2), "expected pictures, columns >= 1"),
        (lambda: contact_sheet([grey()], 0), "expected pictures, columns >= 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(act: Any, message: str) -> None:
    refused(message, act)


# --- sheets


def test_panels_stand_side_by_side_and_sheets_row_by_row() -> None:
    red, blue, tall = (Image.new("RGB", s, c) for s, c in (((30, 20), "red"), ((50, 10), "blue"), ((40, 60), "lime")))
    row = side_by_side([red, blue], gap=4)
    assert (row.size, row.getpixel((29, 19)), row.getpixel((31, 5)), row.getpixel((34, 5)), row.getpixel((34, 15))) == (
        (84, 20),
        (255, 0, 0),
        (255, 255, 255),
        (0, 0, 255),
        (255, 255, 255),
    )
    sheet = contact_sheet([red, blue, tall], columns=2, gap=4)
    assert (sheet.size, sheet.getpixel((44, 0)), sheet.getpixel((39, 83))) == ((94, 84), (0, 0, 255), (0, 255, 0))


def test_titles_stand_above_the_pictures() -> None:
    plain, titled = side_by_side([grey(), grey()]), side_by_side([grey(), grey()], ["without prior", "with prior"])
    bar = titled.height - plain.height
    assert bar > 0
    assert titled.crop((0, bar, *titled.size)).tobytes() == plain.tobytes()
    dark = np.asarray(titled.convert("L"))[:bar] < 60
    assert dark[:, :400].any()
    assert dark[:, 416:].any()
    one = draw_relations(grey(), BOXES, NAMES, [RIDE], title="with prior")
    assert one.height > draw_relations(grey(), BOXES, NAMES, [RIDE]).height


def test_drawing_loads_no_torch() -> None:
    code = "import sys, polyadic.draw; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


ANY = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates and control characters, too


def elements(text: str, tag: str) -> list[ET.Element]:
    return ET.fromstring(text.encode()).findall("{http://www.w3.org/2000/svg}" + tag)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(ANY, ANY, ANY, ANY)
def test_any_text_gives_valid_xml_and_says_what_was_given(name: str, predicate: str, text: str, title: str) -> None:
    relations = [Drawn(0, 1, text, predicate)]
    svg = svg_relations(grey(), BOXES, [name, "</text>"], relations, width=100, title=title, graph=True)
    assert any((element.text or "").startswith("</") for element in elements(svg, "text"))
    assert render_png(plan_drawing(grey(), BOXES, [name, "x"], relations, width=100, title=title)).width == 150


def test_the_photo_is_inside_at_the_drawn_size() -> None:
    shades = Image.fromarray(np.linspace(0, 255, 1200).astype(np.uint8)[None].repeat(600, 0))
    (image,) = elements(svg_relations(shades, BOXES, NAMES, [], width=400), "image")
    kind, _, data = image.attrib["href"].partition(",")
    stored = Image.open(BytesIO(base64.b64decode(data)))
    assert (kind, stored.format, stored.size) == ("data:image/jpeg;base64", "JPEG", (400, 200))
    assert (image.attrib["width"], image.attrib["height"]) == ("400", "200")
    assert np.abs(np.asarray(stored.convert("L"), float)[100] - np.linspace(0, 255, 400)).max() < 6


def test_a_drawing_is_saved_by_its_suffix(tmp_path: Path) -> None:
    drawing = plan_drawing(grey(), BOXES, ["人", "horse"], [RIDE], width=400, graph=True)
    for suffix in ("svg", "png", "jpg"):
        save_drawing(drawing, tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / "a.png") as stored, Image.open(tmp_path / "a.jpg") as jpeg:
        stored.load()
        assert jpeg.size == stored.size
    assert stored.tobytes() == draw_relations(grey(), BOXES, ["人", "horse"], [RIDE], width=400, graph=True).tobytes()
    root = ET.parse(tmp_path / "a.svg").getroot()
    assert (int(root.attrib["width"]), int(root.attrib["height"])) == stored.size
    with pytest.raises(PolyadicError, match=r"ends in \.svg, \.png or \.jpg, got .*a\.txt"):
        save_drawing(drawing, tmp_path / "a.txt")
