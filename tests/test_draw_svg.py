"""SVG: valid, complete, the same picture as PNG, whatever the names are."""

from __future__ import annotations

import base64
import shutil
import subprocess
import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from draw_cases import BOXES, NAMES, RIDE, draw_relations, grey, svg_relations
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from polyadic.draw import plan_drawing, save_drawing
from polyadic.draw.panels import Drawn
from polyadic.draw.render import render_png
from polyadic.structures.vocabulary import PolyadicError

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


def test_text_is_escaped_and_names_are_read_back() -> None:
    svg = svg_relations(grey(), BOXES, ["a<b>&\"c'", "人と馬"], [RIDE], width=640, title="R&D <1>")
    texts = {element.text for element in elements(svg, "text")}
    assert {"R&D <1>", "a<b>&\"c'", "人と馬", "ride", "person ride horse"} <= texts


def test_the_photo_is_inside_at_the_drawn_size() -> None:
    shades = Image.fromarray(np.linspace(0, 255, 1200).astype(np.uint8)[None].repeat(600, 0))
    (image,) = elements(svg_relations(shades, BOXES, NAMES, [], width=400), "image")
    kind, _, data = image.attrib["href"].partition(",")
    stored = Image.open(BytesIO(base64.b64decode(data)))
    assert (kind, stored.format, stored.size) == ("data:image/jpeg;base64", "JPEG", (400, 200))
    assert (image.attrib["width"], image.attrib["height"]) == ("400", "200")
    assert np.abs(np.asarray(stored.convert("L"), float)[100] - np.linspace(0, 255, 400)).max() < 6


def test_text_keeps_its_place_in_any_font() -> None:
    svg = svg_relations(grey(), BOXES, NAMES, [RIDE], width=400, graph=True)
    assert elements(svg, "text")
    for text in elements(svg, "text"):
        assert text.attrib["lengthAdjust"] == "spacingAndGlyphs"
        assert 0 < float(text.attrib["textLength"]) < 200


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


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="needs rsvg-convert")
def test_a_renderer_shows_what_png_shows(tmp_path: Path) -> None:
    drawing = plan_drawing(grey(), BOXES, NAMES, [RIDE], width=400, graph=True)
    save_drawing(drawing, tmp_path / "a.svg")
    subprocess.run(["rsvg-convert", tmp_path / "a.svg", "-o", tmp_path / "b.png"], check=True, capture_output=True)
    theirs, ours = np.asarray(Image.open(tmp_path / "b.png").convert("RGB"), float), np.asarray(render_png(drawing))
    assert theirs.shape == ours.shape
    assert (np.abs(theirs - ours).max(-1) > 40).mean() < 0.02  # letters differ
