"""The page in a real browser: photos, dragging by mouse and keyboard, asking, annotating, exporting."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serve_cases import ROOT, Served, Visitor, browser, needs_browser, served
from tiny_runs import Command

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    from polyadic.serve.answers import Answerer
    from polyadic.serve.app import Page

    with served(Page(Answerer.open())) as running:
        yield running


@pytest.fixture
def visitor(chromium: Any, server: Served) -> Iterator[Visitor]:
    with Visitor(chromium, server) as one:
        yield one


def test_a_dropped_photo_gets_boxes_arrows_and_a_list(visitor: Visitor) -> None:
    page = visitor.page
    visitor.drop((ROOT / "examples" / "astronaut.jpg").read_bytes())
    page.wait_for_selector("#list li")
    names = page.locator(".box .name").all_text_contents()
    assert any(name.startswith("person") for name in names)
    assert any("person" in line and "%" in line for line in visitor.words())
    assert page.locator(".arrow").count() == min(8, len(visitor.words()))
    assert page.locator("#list li").first.locator(".part").count() == 4  # detector, psi_c, psi_u, P(X_sel)
    assert page.locator("#stage image").get_attribute("href").startswith("blob:")


def test_an_untouched_photo_has_the_answers_of_predict_also_after_undo(visitor: Visitor, command: Command) -> None:
    lines = command("predict", ROOT / "examples" / "astronaut.jpg", "--json").out.splitlines()
    expected = [
        (x["subject"]["name"], x["predicate"], x["object"]["name"], 100 * x["probability"])
        for x in json.loads(lines[0])["relations"]
    ]
    page = visitor.page
    visitor.drop((ROOT / "examples" / "astronaut.jpg").read_bytes())
    page.wait_for_selector("#list li")
    before = visitor.words()
    shown = [re.sub(r" \d+(?= )", "", line) for line in before]  # person 2 -> person
    assert len(shown) == len(expected) > 5
    for line, (*names, percent) in zip(shown, expected, strict=True):
        words, _, number = line.split("%")[0].rpartition(" ")
        assert words == " ".join(names)
        assert float(number) == pytest.approx(percent, rel=0.05)  # two digits
    assert "vrd-photos" in page.inner_text("#status")
    page.locator(".box").first.focus()
    page.keyboard.press("ArrowDown")
    visitor.wait_for_change(before)
    assert "vrd-photos" in page.inner_text("#status")
    page.keyboard.press("Control+z")
    visitor.wait_for(before)
    visitor.open_example()  # with boxes drawn by hand
    visitor.until("document.querySelector('#status').textContent.includes('vrd-boxes')")


def test_the_distribution_follows_while_a_box_is_dragged(visitor: Visitor) -> None:
    visitor.open_example()
    page, before = visitor.page, visitor.words()
    helmet = page.locator(".box", has=page.get_by_text("helmet", exact=True))
    box = helmet.locator(".area").bounding_box()
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] - 30
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y - 150, steps=8)
    visitor.wait_for_change(before)
    moved, shown = helmet.locator(".area").bounding_box(), visitor.words()  # the button is still down
    page.mouse.move(x - 250, y - 330, steps=8)
    page.mouse.up()
    assert shown != before
    assert (moved["x"], moved["y"]) == pytest.approx((box["x"] - 100, box["y"] - 150), abs=1.5)
    visitor.wait_for_change(shown)
    page.keyboard.press("Control+z")
    visitor.wait_for(before)


def test_hovering_links_the_list_with_arrows_and_boxes(visitor: Visitor) -> None:
    visitor.open_example()
    page = visitor.page
    page.locator("#list li", has_text="hold").hover()
    assert page.locator(".tag.bold text").text_content() == "hold"
    assert sorted(page.locator(".box.related .name").all_text_contents()) == ["helmet", "person"]
    page.mouse.move(5, 5)
    page.wait_for_selector(".arrow.bold", state="detached")


def test_boxes_move_resize_rename_and_go_by_keyboard(visitor: Visitor) -> None:
    visitor.open_example()
    page, before = visitor.page, visitor.words()
    helmet = page.locator(".box", has=page.get_by_text("helmet", exact=True))
    helmet.focus()
    old = helmet.locator(".area").bounding_box()
    for _ in range(8):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowLeft")
    visitor.wait_for_change(before)
    new = helmet.locator(".area").bounding_box()
    assert new["y"] < old["y"] - 40
    assert new["width"] < old["width"]
    page.keyboard.press("Enter")
    visitor.until("document.activeElement.id === 'box-name'")
    page.keyboard.type("bag")
    page.keyboard.press("Enter")
    bag = page.locator(".box", has=page.get_by_text("bag", exact=True))
    bag.wait_for()
    visitor.until("document.querySelector('#list').innerText.includes('bag')")
    page.keyboard.press("Delete")
    bag.wait_for(state="detached")
    assert page.locator(".box").count() == 3


def test_an_empty_canvas_is_drawn_on_and_asked(visitor: Visitor) -> None:
    page = visitor.page
    page.click("#empty")
    visitor.frames()
    stage = page.locator("#stage > svg").first.bounding_box()

    def draw(name: str, *corners: float) -> None:
        x1, y1, x2, y2 = corners
        page.click("[data-tool=draw]")
        page.mouse.move(stage["x"] + x1 * stage["width"], stage["y"] + y1 * stage["height"])
        page.mouse.down()
        page.mouse.move(stage["x"] + x2 * stage["width"], stage["y"] + y2 * stage["height"], steps=4)
        page.mouse.up()
        visitor.until("document.activeElement.id === 'box-name'")
        page.keyboard.type(name)
        page.keyboard.press("Enter")

    draw("person", 0.4, 0.1, 0.6, 0.6)
    draw("horse", 0.3, 0.4, 0.8, 0.9)
    page.wait_for_selector("#list li:has-text('ride')")
    page.locator("#list li:has-text('ride') .words").click()
    page.wait_for_selector("#predicates-of-pair li")
    first = page.locator("#predicates-of-pair li").first.inner_text()
    assert first.startswith(("ride", "on"))
    assert page.locator("#components li").count() == 10
    visitor.slide("rank", 3)
    visitor.until("document.querySelectorAll('#components li').length === 3")


def test_boxes_drawn_one_after_the_other_get_their_own_names(visitor: Visitor) -> None:
    page = visitor.page
    page.click("#empty")
    visitor.frames()
    stage = page.locator("#stage > svg").first.bounding_box()
    for name, corners in (("person", (60, 60, 160, 200)), ("horse", (50, 120, 300, 300)), ("hat", (90, 40, 130, 80))):
        x1, y1, x2, y2 = corners  # the larger box moves below the others in the document
        page.mouse.move(stage["x"] + x1, stage["y"] + y1)
        page.mouse.down()
        page.mouse.move(stage["x"] + x2, stage["y"] + y2, steps=3)
        page.mouse.up()
        visitor.until("document.activeElement.id === 'box-name' && !document.activeElement.value")
        page.keyboard.type(name)
        page.keyboard.press("Enter")
    page.keyboard.press("n")
    visitor.until("document.activeElement.id === 'box-name' && !document.activeElement.value")
    page.keyboard.type("dog")
    page.keyboard.press("Enter")
    page.locator(".box .name", has_text="dog").wait_for()
    assert sorted(page.locator(".box .name").all_text_contents()) == ["dog", "hat", "horse", "person"]
    horse = page.locator(".box", has=page.get_by_text("horse", exact=True)).locator(".area").bounding_box()
    assert horse["width"] == pytest.approx(250, abs=2)


COVERED = """() => {
  const shown = [...document.querySelectorAll('.tag .chip, .box .chip')].filter((x) => x.checkVisibility({ visibilityProperty: true }));
  const places = shown.map((x) => x.getBoundingClientRect());
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
  return places.filter((a, at) => places.slice(0, at).some((b) => meet(a, b))).length;
}"""  # noqa: E501


def test_labels_on_a_crowded_photo_do_not_cover_each_other(visitor: Visitor) -> None:
    people = [{"box": [20 + 13 * i, 40 + 7 * i, 120 + 13 * i, 290 + 7 * i], "label": "person"} for i in range(9)]
    hats = [{"box": [50 + 13 * i, 30 + 7 * i, 90 + 13 * i, 60 + 7 * i], "label": "hat"} for i in range(9)]
    crowd = {"image": "crowd", "size": [400, 400], "photo": None, "boxes": people + hats}
    page = visitor.page
    page.route("**/api/detect", lambda route: route.fulfill(json=crowd))
    visitor.open_example()
    visitor.until("document.querySelectorAll('.arrow').length === 8")
    assert page.evaluate(COVERED) == 0
    assert 0 < page.locator(".tag").count() < 8  # the rest has no free place
    assert page.locator(".box.crowded").count() > 0
    for line in page.locator("#list li").all():
        line.hover()
        visitor.frames()
        assert page.locator(".tag.bold text").count() == 1
        assert page.locator(".box.related .name:visible").count() == 2


def test_a_question_about_a_predicate_and_a_certain_label(visitor: Visitor) -> None:
    visitor.open_example("street")
    page = visitor.page
    page.click("#tab-ask")
    page.click("[data-ask=names]")
    page.fill("#ask-predicate", "ride")
    page.keyboard.press("Enter")
    page.wait_for_selector("#fitting li")
    assert "person ride bike" in page.locator("#fitting li").first.inner_text()
    page.click("[data-ask=label]")
    page.locator(".box", has=page.get_by_text("bike", exact=True)).locator(".chip").click()
    page.fill("#ask-label", "horse")
    page.keyboard.press("Enter")
    page.wait_for_selector("#moved-relations li:has-text('horse')")
    assert "→ horse 100%" in page.inner_text("#moved-names")
    assert "▲" in page.inner_text("#moved-relations") or "new" in page.inner_text("#moved-relations")
    page.locator(".box", has=page.get_by_text("person 1", exact=True)).focus()  # the bike stays a horse
    page.fill("#ask-label", "elephant")
    page.keyboard.press("Enter")
    page.wait_for_selector("#moved-names:has-text('→ elephant 100%')")
    assert "bike is certainly" in page.inner_text(".ask-form")
    page.click("#ask-other")
    page.keyboard.type("dog")
    page.keyboard.press("Enter")
    page.wait_for_selector("#moved-names:has-text('→ dog 100%')")
    assert "person 1 is certainly" in page.inner_text(".ask-form")


def exported(page: Any, kind: str) -> bytes:
    with page.expect_download() as waiting:
        page.click(f"[data-export={kind}]")
    return Path(waiting.value.path()).read_bytes()


def test_relations_are_accepted_corrected_linked_and_exported(visitor: Visitor, tmp_path: Path) -> None:
    from polyadic import load_dataset, read_relations

    visitor.open_example()
    page = visitor.page
    page.locator("#list li", has_text="wear").locator(".accept").click()
    page.click("[data-tool=link]")
    page.mouse.move(*visitor.center(".box:has(text:text-is('table')) .chip"))
    page.mouse.down()
    page.mouse.move(*visitor.center(".box:has(text:text-is('helmet')) .chip"), steps=5)
    page.mouse.up()
    page.wait_for_selector("#offers [data-offer]")
    page.fill("#new-predicate", "stands beside")  # a name that the model does not know
    page.click("#add-relation")
    page.wait_for_selector("#stated li:nth-child(2)")
    assert (page.evaluate("document.activeElement.getAttribute('aria-label')") or "").startswith("helmet")
    page.locator("#stated input").first.fill("has")
    page.keyboard.press("Enter")
    visitor.until("document.querySelectorAll('.arrow.stated').length === 2")
    (tmp_path / "train.json").write_bytes(exported(page, "coco"))
    (scene,) = load_dataset("coco", tmp_path)
    vocabulary = load_dataset("coco", tmp_path).vocabulary
    assert [vocabulary.decode(row) for row in scene.triplets.tolist()] == [
        ("person", "has", "jacket"),
        ("table", "stands beside", "helmet"),
    ]
    (tmp_path / "out.json").write_bytes(exported(page, "json"))
    record = json.loads((tmp_path / "out.json").read_text())
    assert [x["predicate"] for x in record["relations"]] == ["has", "stands beside"]
    (tmp_path / "out.jsonl").write_text(json.dumps(record))
    assert len(next(iter(read_relations(tmp_path / "out.jsonl", vocabulary)))) == 2
    assert b"stands beside" in exported(page, "svg")
    assert np.asarray(Image.open(io.BytesIO(exported(page, "png")))).std() > 20


def test_sliders_change_what_is_answered(visitor: Visitor) -> None:
    visitor.open_example("street")
    page = visitor.page
    visitor.slide("top", 3)
    visitor.until("document.querySelectorAll('#list li').length === 3")
    visitor.slide("top", 40)
    visitor.until("document.querySelectorAll('#list li').length > 3")
    shown = visitor.words()
    visitor.slide("k", 11)
    visitor.wait_for_change(shown)
    for name, value in (("prior", 1.5), ("rank", 1)):
        shown = visitor.words()
        visitor.slide(name, value)
        visitor.wait_for_change(shown)
    shown = visitor.words()
    page.select_option("#choice-order", "likely")
    visitor.wait_for_change(shown)


def test_a_model_that_sees_pixels_answers_for_the_photo_and_gets_it_again(chromium: Any) -> None:
    """The boxes stay where they are and the photo changes: so do the answers, and they are those of predict."""
    from model_cases import model_of

    from polyadic.experiments.table1 import with_config
    from polyadic.serve.answers import Answerer
    from polyadic.serve.app import Page
    from polyadic.structures.detections import Detections
    from polyadic.structures.images import Photo

    model = with_config(model_of("pixels"), {"ranking.nms": 0.7})
    for weights in (*model.head.parameters(), *model.features.parameters()):
        weights.data.mul_(3)  # so that pixels matter, without training

    def detect(photo: Photo) -> Detections:
        boxes = np.array([[0.1, 0.1, 0.5, 0.9], [0.3, 0.4, 0.9, 0.9], [0.5, 0.0, 0.7, 0.3], [0.11, 0.1, 0.5, 0.9]])
        scores = np.array([0.9, 0.8, 0.7, 0.3])  # the last one is the first one again
        return Detections(photo.name, boxes * np.tile(photo.size, 2), np.array([0, 1, 2, 0]), scores, photo.size)

    model.set_detector(detect)
    answerer = Answerer(model, detect)
    with (ROOT / "examples" / "astronaut.jpg").open("rb") as file:
        original = file.read()
    buffer = io.BytesIO()
    Image.open(io.BytesIO(original)).rotate(180).save(buffer, "PNG")
    with served(Page(answerer)) as server, Visitor(chromium, server, expect_errors=True) as visitor:
        page, shown = visitor.page, list[str]()
        assert not page.is_visible("#empty")  # boxes alone are nothing for it
        assert page.locator("#examples option").count() == 2
        visitor.slide("top", 30)
        for content in (original, buffer.getvalue()):
            visitor.drop(content)
            visitor.wait_for_change(shown)
            shown = visitor.words()
            expected = model.predict(Image.open(io.BytesIO(content)), top=30)
            assert [line.split()[:3] for line in shown] == [list(x.names) for x in expected]
        assert page.locator(".box").count() == 3
        answerer.shelf.photos.clear()  # other tabs have opened photos
        page.locator(".box").first.focus()
        for _ in range(12):
            page.keyboard.press("ArrowRight")
        visitor.wait_for_change(shown)
        assert page.is_hidden("#banner")
        assert all("410" in text for text in visitor.problems)


def test_a_wrong_file_is_one_line_and_the_page_goes_on(chromium: Any, server: Served, tmp_path: Path) -> None:
    (tmp_path / "evil <img src=x onerror=alert(1)>.svg").write_text("<svg><script>alert(1)</script></svg>")
    with Visitor(chromium, server, expect_errors=True) as visitor:  # chromium reports the status 422
        page = visitor.page
        page.set_input_files("#file", tmp_path / "evil <img src=x onerror=alert(1)>.svg")
        page.wait_for_selector("#banner:has-text('is not a readable image')")
        assert page.locator("#banner img").count() == 0
        visitor.open_example()
        page.wait_for_selector("#banner", state="hidden")
        assert all("422" in text for text in visitor.problems)


def test_names_with_markup_are_text(visitor: Visitor) -> None:
    visitor.open_example()
    page, evil = visitor.page, '<img src=x onerror="document.title=1">'
    page.locator(".box", has=page.get_by_text("table", exact=True)).focus()
    page.fill("#box-name", evil)
    page.keyboard.press("Enter")
    visitor.until("[...document.querySelectorAll('.box .name')].some((x) => x.textContent.includes('<img'))")
    page.locator("#list .accept").first.click()
    page.click("#tab-annotate")
    page.locator("#stated input").first.fill(evil)
    page.keyboard.press("Enter")
    visitor.until("[...document.querySelectorAll('.tag text')].some((x) => x.textContent.includes('<img'))")
    page.click("[data-view=graph]")
    assert page.locator("img").count() == 0
    assert page.title() == "polyadic"


def test_the_page_of_the_api_sends_its_examples(visitor: Visitor) -> None:
    page = visitor.page
    page.click("#api-link")
    page.wait_for_selector("section:has-text('/api/relations') button")
    page.locator("section:has-text('POST /api/relations') button").first.click()
    page.wait_for_selector("section:has-text('POST /api/relations') pre:has-text('psi_c')")
