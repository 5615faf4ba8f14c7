"""Folders to annotate, evaluated runs, and servers that end, die and come back: in a real browser."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from serve_cases import PATIENCE, ROOT, Visitor, browser, needs_browser, process, served
from tiny_runs import TINY, call
from vrd_files import many_vrd

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


def photo_folder(folder: Path) -> Path:
    """Three photos, one of them turned by its EXIF."""
    folder.mkdir()
    with Image.open(ROOT / "examples" / "astronaut.jpg") as photo:
        small = photo.resize((256, 200))
        for name in ("a.jpg", "c.jpg"):
            small.save(folder / name)
        turned = small.transpose(Image.Transpose.ROTATE_90)  # as a camera held upright stores it
        exif = turned.getexif()
        exif[0x0112] = 6
        turned.save(folder / "b.jpg", exif=exif)
    return folder


def test_a_folder_is_resumed_after_a_kill_and_trained_on(chromium: Any, tmp_path: Path) -> None:
    from polyadic import load_dataset

    folder = photo_folder(tmp_path / "photos")
    with process(folder) as (running, server), Visitor(chromium, server, expect_errors=True) as visitor:
        page = visitor.page
        page.wait_for_selector("#progress:text-is('0 of 3 done')")
        page.wait_for_selector(".box")
        page.click("#tab-relations")
        page.locator("#list .accept").first.click()
        page.wait_for_selector("#saved:text-is('Saved')")
        page.click("#done")
        page.wait_for_selector("#progress:text-is('1 of 3 done')")
        visitor.until("document.querySelector('#photos').value === '1'")
        visitor.until("document.querySelector('#saved').textContent === ''")
        visitor.frames()  # until the boxes are those of this photo
        boxes = page.locator(".box").count()
        page.locator(".box").first.focus()
        page.keyboard.press("Delete")
        page.wait_for_selector("#saved:text-is('Saved')")
        running.send_signal(signal.SIGKILL)  # a draft of b.jpg, a.jpg done
        running.wait()
    with process(folder) as (running, server), Visitor(chromium, server) as visitor:
        page = visitor.page
        page.wait_for_selector("#progress:text-is('1 of 3 done')")
        visitor.until("document.querySelector('#photos').value === '1'")
        visitor.until(f"document.querySelectorAll('.box').length === {boxes - 1}")
        page.click("#tab-relations")
        page.locator("#list .accept").first.click()
        page.wait_for_selector("#saved:text-is('Saved')")
        for done in (2, 3):
            page.click("#done")
            page.wait_for_selector(f"#progress:text-is('{done} of 3 done')")
        assert call("serve", folder, "--port", "0", "--no-browser") == 1  # one server per folder
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) in (130, -2)
    data = load_dataset("coco", folder, images="required")
    assert [scene.name for scene in data] == ["a.jpg", "b.jpg", "c.jpg"]
    assert all(len(scene.relations) for scene in data.scenes[:2])
    assert data.scenes[1].frame == (200.0, 256.0)  # as stored
    assert json.loads((folder / "train.json").read_text())["drafts"] == {}
    (tmp_path / "tiny.toml").write_text(
        TINY.replace('preset = "toy"\n', "").replace("world = { train = 24, test = 6 }\n", "")
    )
    tiny = tmp_path / "tiny.toml"
    assert call("train", tiny, "--data", folder, "--data.dataset", "coco", "--out", tmp_path / "run") == 0


def test_nothing_is_saved_for_a_photo_that_is_not_shown(chromium: Any, tmp_path: Path) -> None:
    """A dropped photo, and an unreadable one: the annotations of the folder stay as they are."""
    folder = photo_folder(tmp_path / "photos")
    (folder / "b.jpg").write_bytes(b"no image")
    with process(folder) as (_, server), Visitor(chromium, server, expect_errors=True) as visitor:
        page = visitor.page
        page.wait_for_selector(".box")
        visitor.drop((ROOT / "examples" / "astronaut.jpg").read_bytes())
        page.wait_for_selector("#banner:has-text('annotates a folder')")
        page.click("#next")
        page.wait_for_selector("#banner:has-text('b.jpg is not a readable image')")
        visitor.until("!document.querySelector('.box').checkVisibility()")
        assert page.is_disabled("#done")
        page.keyboard.press("n")
        page.click("#next")
        visitor.until("document.querySelector('#photos').value === '2'")
        page.wait_for_selector(".box")
        assert not (folder / "train.json").exists()


def test_a_page_survives_the_death_of_its_server(chromium: Any) -> None:
    with process() as (running, server):
        port = server.port
        with Visitor(chromium, server, expect_errors=True) as visitor:
            visitor.open_example()
            page, before = visitor.page, visitor.words()
            running.kill()
            running.wait()
            page.locator(".box", has=page.get_by_text("helmet", exact=True)).focus()
            for _ in range(9):
                page.keyboard.press("ArrowUp")
            page.wait_for_selector("#banner:has-text('does not answer')")
            with process(port=port):
                page.wait_for_selector("#banner", state="hidden")
                visitor.wait_for_change(before)  # what was done meanwhile is answered
                assert page.locator(".box").count() == 4


def test_a_server_with_another_token_is_told_and_nothing_is_lost(chromium: Any, tmp_path: Path) -> None:
    folder = photo_folder(tmp_path / "photos")
    with process(folder) as (running, server), Visitor(chromium, server, expect_errors=True) as visitor:
        page = visitor.page
        page.wait_for_selector(".box")
        running.kill()
        running.wait()
        boxes = page.locator(".box").count()
        page.locator(".box").first.focus()
        page.keyboard.press("Delete")
        page.wait_for_selector("#banner:has-text('does not answer')")
        with process(folder, port=server.port, token="another-token-of-it") as (_, again):
            page.wait_for_selector("#banner:has-text('still on this page')")
            page.fill("#address", "http://127.0.0.1")
            page.keyboard.press("Enter")
            page.wait_for_selector("#banner:has-text('whole address')")
            page.fill("#address", f"polyadic serve: {again.url}")
            page.keyboard.press("Enter")
            page.wait_for_selector("#saved:text-is('Saved')")  # what was done meanwhile
            page.wait_for_selector("#banner", state="hidden")
            page.wait_for_selector("#renew", state="hidden")
            assert len(again.post("/api/folder/open", {"number": 0})["boxes"]) == boxes - 1
            assert page.url == again.url


@pytest.fixture(scope="module")
def vrd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vrd")
    many_vrd(folder / "data")
    path = folder / "tiny.toml"
    path.write_text(TINY.replace('preset = "toy"', 'preset = "vrd"').replace("world = { train = 24, test = 6 }\n", ""))
    code = call("train", path, "--data", folder / "data", "--out", folder / "run", "--validation.images", "6")
    assert code == 0
    return folder / "run"


def test_an_evaluated_run_shows_table_curves_errors_and_photos(chromium: Any, vrd_run: Path) -> None:
    from polyadic.serve.answers import Answerer
    from polyadic.serve.app import Page
    from polyadic.serve.run import RunView

    view = RunView.open(vrd_run, None)
    view.evaluate()
    assert view.problem == ""
    with served(Page(Answerer(view.run.model, None), view=view)) as server, Visitor(chromium, server) as visitor:
        page = visitor.page
        page.wait_for_selector("#recall")
        rows = page.locator("#recall tbody tr").all_inner_texts()
        assert any(row.startswith("this run") for row in rows)
        assert any(row.startswith("the paper, Rank-5 w/ X_sel & prior") and "44.02" in row for row in rows)
        assert page.locator(".curve").count() > 2
        assert page.locator(".outcomes li").count() == 6
        assert page.locator(".confusion tbody tr").count() >= 2
        page.wait_for_selector("#list li")
        assert page.locator("#truth .found, #truth .missed").count() >= 2
        hits = page.locator("#list li.hit").count()
        assert hits == page.locator(".arrow.hit").count() or hits > 8
        page.select_option("#sort", "wrong predicate")
        order = page.locator("#run-photos button").all_inner_texts()
        page.locator("#run-photos button").nth(1).click()
        page.wait_for_selector("#run-photos button[aria-current=true]:nth-child(1)")
        assert len(order) == 8
    assert "hit" in view.describe()["photos"][0]


def test_photos_of_a_run_agree_with_its_table(vrd_run: Path) -> None:
    from polyadic.serve.run import RunView

    view = RunView.open(vrd_run, None)
    view.evaluate()
    report = view.describe()
    last = report["report"]["outcomes"][-1]
    for outcome in report["report"]["names"]:
        total = next(
            x["ground_truths"]
            for x in report["report"]["outcomes"]
            if (x["N"], x["k"], x["outcome"]) == (last["N"], last["k"], outcome)
        )
        assert sum(photo[outcome] for photo in report["photos"]) == total
    confusion = report["report"]["confusion"]
    for row, none, total in zip(confusion["counts"], confusion["none"], confusion["totals"], strict=True):
        assert sum(row) + none <= total


def test_the_scores_of_a_run_are_kept_beside_it(vrd_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyadic.experiments.runs import RUN_FILES
    from polyadic.serve import run

    (vrd_run / "page.json").unlink(missing_ok=True)  # of the tests before
    views = [run.RunView.open(vrd_run, None) for _ in range(3)]
    assert views[0].describe()["photos"] == []
    views[0].evaluate()
    assert "of 8" in views[0].describe()["place"]
    with monkeypatch.context() as patch:
        patch.setattr(run, "evaluate_run", None)  # it cannot be called
        views[1].evaluate()
    assert views[1].describe()["report"] == views[0].describe()["report"]
    assert views[1].photos == views[0].photos
    (vrd_run / "page.json").write_text("{")
    views[2].evaluate()  # a damaged file is measured again
    assert (views[2].problem, views[2].report) == ("", views[0].report)
    assert {path.name for path in vrd_run.iterdir()} <= RUN_FILES  # so `train --overwrite` may replace the run


def test_the_page_is_usable_at_360_pixels_and_in_the_dark(chromium: Any) -> None:
    from polyadic import RelationModel
    from polyadic.serve.answers import Answerer
    from polyadic.serve.app import Page

    page_of_model = Page(Answerer(RelationModel.pretrained(), None))
    narrow: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "has_touch": True}
    with served(page_of_model) as server, Visitor(chromium, server, **narrow) as visitor:
        visitor.open_example("street")
        page = visitor.page
        for tab in ("relations", "ask", "annotate"):
            page.click(f"#tab-{tab}")
            assert page.evaluate("document.documentElement.scrollWidth") == 360
        dark = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
        assert max(int(x) for x in dark[4:-1].split(",")) < 60
        car = page.locator(".box", has=page.get_by_text("car", exact=True))
        before, (x, y) = car.locator(".area").bounding_box(), visitor.center(".box:has(text:text-is('car')) .area")
        touch(page, (x, y), (x - 40, y - 30))
        after = car.locator(".area").bounding_box()
        assert after["x"] - before["x"] == pytest.approx(-40, abs=2)
        assert page.locator("#list").get_attribute("aria-live") == "polite"
        for role in ("radio", "tab"):
            assert page.get_by_role(role).count() >= 3
        names = page.locator(".box").evaluate_all("boxes => boxes.map(x => [x.tabIndex, x.getAttribute('aria-label')])")
        assert all(index == 0 and "box at" in name for index, name in names)


def touch(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag with a finger."""
    session = page.context.new_cdp_session(page)
    points = [(start[0] + (end[0] - start[0]) * t / 4, start[1] + (end[1] - start[1]) * t / 4) for t in range(5)]
    for at, (x, y) in enumerate(points):
        kind = "touchMove" if at else "touchStart"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_timeout(100)


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    def luminance(colour: tuple[float, ...]) -> float:
        parts = [x / 255 / 12.92 if x / 255 <= 0.03928 else ((x / 255 + 0.055) / 1.055) ** 2.4 for x in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme: str) -> None:
    """WCAG AA: 4.5 for text on its background, in both themes; names on boxes likewise."""
    css = (ROOT / "src/polyadic/serve/static/style.css").read_text()
    block = css.split(":root {")[2 if theme == "dark" else 1]
    colours = {}
    for name in ("bg", "surface", "text", "muted", "accent", "on-accent", "soft", "good", "bad"):
        digits = block.split(f"--{name}: #")[1].split(";")[0]
        digits = digits if len(digits) == 6 else "".join(2 * x for x in digits)
        colours[name] = tuple(int(digits[at : at + 2], 16) for at in (0, 2, 4))
    for text in ("text", "muted", "accent", "good", "bad"):
        for ground in ("surface", "bg", "soft"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
