"""Take the screenshots of README and docs/serve.md, in the system's chromium.

    python docs/images/screenshots.py              # writes beside this file
    python docs/images/screenshots.py --all DIR    # also dark and narrow ones, to look at

Colours are reduced to 256, so that a picture with a photo stays below 160 kB.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from serve_cases import Visitor, browser, served  # noqa: E402
from tiny_runs import call  # noqa: E402

from polyadic.serve.answers import Answerer  # noqa: E402
from polyadic.serve.app import Page  # noqa: E402
from polyadic.serve.run import RunView  # noqa: E402

LOOKS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1000, "height": 670}},
    "-dark": {"viewport": {"width": 1300, "height": 820}, "color_scheme": "dark"},
    "-narrow": {"viewport": {"width": 360, "height": 740}},
}
RUN = (
    "--world.train",
    "300",
    "--world.test",
    "60",
    "--threads",
    "1",
    "--triplets.epochs",
    "8",
    "--sources",
    "evidence",
)


def relations(visitor: Visitor) -> None:
    visitor.open_example()


def grow(visitor: Visitor, width: int, height: int) -> None:
    """Enlarge the usual window: these pages have more to show."""
    if visitor.page.viewport_size == LOOKS[""]["viewport"]:
        visitor.page.set_viewport_size({"width": width, "height": height})


def ask(visitor: Visitor) -> None:
    grow(visitor, 1000, 830)
    visitor.open_example()
    visitor.page.locator("#list li", has_text="hold").locator(".words").click()
    visitor.page.wait_for_selector("#components li")


def graph(visitor: Visitor) -> None:
    visitor.open_example("street")
    visitor.page.click("[data-view=graph]")
    visitor.page.click("#tab-annotate")


def run(visitor: Visitor) -> None:
    grow(visitor, 1300, 860)
    visitor.page.wait_for_selector("#list li")


def save(visitor: Visitor, path: Path) -> None:
    """Save what is visible, with 256 colours."""
    visitor.page.wait_for_timeout(400)
    picture = Image.open(io.BytesIO(visitor.page.screenshot())).convert("RGB")
    small = picture.quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="DIR", help="every page in every look, to look at")
    asked = parser.parse_args()
    plain = Page(Answerer.open())
    pages: dict[str, tuple[Page, Callable[[Visitor], None]]] = {
        "serve": (plain, relations),
        "serve-ask": (plain, ask),
        "serve-graph": (plain, graph),
    }
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        call("train", "toy", "--out", f"{folder}/toy", *RUN)
        view = RunView.open(Path(folder) / "toy", None)
        view.evaluate()
        pages["serve-run"] = Page(Answerer(view.run.model, None), view=view), run
        for name, (page, prepare) in pages.items():
            for look, context in LOOKS.items():
                if (look or name == "serve-graph") and asked.all is None:
                    continue
                with served(page) as server, Visitor(chromium, server, **context) as visitor:
                    prepare(visitor)
                    save(visitor, (asked.all or Path(__file__).parent) / f"{name}{look}.png")


if __name__ == "__main__":
    main()
