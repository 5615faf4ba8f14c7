"""Every command of README runs as written, on small data; what README shows is what it prints."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shared_data import shared
from tiny_runs import Command
from vrd_files import many_vrd

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    polyadic ")]
HERO = next(line for line in COMMANDS if "astronaut" in line)
TINY = (
    "--threads 1 --sources evidence --head.hidden 8 --selector.hidden 8 --evidence.embedding 8 --evidence.geometry 8 "
    "--backbone.epochs 0 --triplets.epochs 1 --selection.epochs 1 --validation.images 6"
)
SMALLER = {  # the same command in seconds: a smaller network, fewer pictures
    "polyadic train toy --out runs/toy": f"{TINY} --world.train 12 --world.test 4",
    "polyadic train vrd --data data/vrd --out runs/vrd": TINY,
}
NEEDS_WEIGHTS = (
    "polyadic predict photo.jpg"  # by torchvision's detector: run in test_pretrained, with weights made there
)
SERVES = "polyadic serve"  # until Ctrl-C: run in test_serve_modes


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def lay_out(folder: Path) -> None:
    """Lay out what README's commands name: photos, boxes, VRD, own data, predictions, the example."""
    for name in ("examples", "docs/images"):  # as in a clone
        shutil.copytree(ROOT / name, folder / name)
    (folder / "photos").mkdir()
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8))
    for path in ("photo.jpg", "photos/photo.jpg"):
        photo.save(folder / path)
    boxes = {"boxes": [[10, 5, 60, 90], [5, 40, 95, 95]], "labels": ["person", "horse"], "scores": [0.9, 0.8]}
    (folder / "boxes.json").write_text(json.dumps({"image": "photo.jpg", "size": [100, 100], **boxes}))
    many_vrd(folder / "data" / "vrd")
    own, predictions = (
        re.findall(r"```json\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)[0]
        for name in ("datasets.md", "protocols.md")
    )
    (folder / "mine").mkdir()
    for split, picture in (("train", "a.jpg"), ("test", "b.jpg")):
        (folder / "mine" / f"{split}.json").write_text(own.replace("a.jpg", picture))
        Image.new("RGB", (640, 480)).save(folder / "mine" / picture)
    (folder / "predictions.jsonl").write_text(predictions.replace("a.jpg", "b0.jpg"))


def test_readme_is_short_and_narrow() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120
    assert len(COMMANDS) > 8


def test_every_command_runs(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS:
        if line in (NEEDS_WEIGHTS, SERVES) or "yolox_nano.onnx" in line:
            continue
        result = command(*shlex.split(f"{line} {SMALLER.get(line, '')}")[1:])
        assert result.code == 0, f"{line}\n{result.err}\n{result.out}"
    assert (tmp_path / "out" / "astronaut.png").stat().st_size > 100_000
    assert json.loads((tmp_path / "relations.jsonl").read_text())["relations"]


def test_the_onnx_command_runs(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(line for line in COMMANDS if "yolox_nano.onnx" in line)
    for name in ("yolox_nano.onnx", "coco.names"):
        shutil.copy(shared("weights", name), tmp_path)
    shutil.copy(ROOT / "examples" / "astronaut.jpg", tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    result = command(*shlex.split(line)[1:])
    assert (result.code, (tmp_path / "out" / "photo.png").exists()) == (0, True), result.err


def test_the_first_screen_shows_what_the_command_prints(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert len(shown) == 1
    assert command(*shlex.split(HERO)[1:]).out == shown[0]


def test_the_first_screen_s_python_gives_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ">>>" not in block)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["relations"][0].names == ("person", "wear", "jacket")
    assert names["relations"][0].probability == pytest.approx(0.40, abs=0.005)
