"""What the documents name exists, and what they quote was measured."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_function_and_test_in_the_map_of_the_paper_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    names = set(re.findall(r"`((?:cp|prior|ranking|test_\w+)\.[\w.]+)`", text))
    assert len(names) > 20
    for name in names:
        module, *path = name.split(".")
        found: object = importlib.import_module(module if module.startswith("test_") else f"polyadic.{module}")
        for part in path:
            found = getattr(found, part)


def test_the_layers_in_contributing_are_the_rooms_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for room in ("structures", "boxes", "cp", "kernels", "prior", "ranking"):
        assert f"`{room}" in text or f" {room}" in text
        assert (ROOT / "src" / "polyadic" / f"{room}.py").exists() or (ROOT / "src" / "polyadic" / room).is_dir()


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
