"""Bad inputs through the command: each ends with a clear line and no traceback. A new reader adds rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from detector_cases import tiny
from hostile_cases import DETECTIONS, Row
from hostile_cases import ROWS as CASES
from hostile_models import ROWS as MODELS
from hostile_scale import ROWS as SCALE
from model_cases import model_of
from PIL import Image
from tiny_runs import Command
from vg_files import write_vg150, write_vg200
from vrd_files import OBJECTS, PREDICATES, write_vrd

from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.detectors.detector import Detector
from polyadic.io.records import write_detections
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import Vocabulary

ROWS = CASES + MODELS + SCALE


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    model_of("evidence").save(folder / "evidence")
    for write in (write_vrd, write_vg150, write_vg200):
        write(folder / write.__name__.removeprefix("write_"))
    Detector(tiny(), VOCABULARY, fetch=False).save(folder / "detector")
    (folder / "det.toml").write_text(tiny().to_toml())
    Image.new("RGB", (100, 60), "red").save(folder / "p.png")
    return folder


def test_the_table_is_long_and_its_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 200


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bad_input_is_one_clear_line(
    row: Row, shared: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in shared.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name, content in row.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    result = command(*row.command)
    assert result.code in (1, 2), result.out
    assert row.fragment in result.out + result.err
    assert not any(letter in result.out + result.err for letter in "\x1b\x9b\r"), "nothing commands the terminal"
    if row.command[0] != "data":  # which prints a report
        assert sum(line.startswith("polyadic: ") for line in result.err.splitlines()) >= 1
        assert len(result.err) < 1000


def test_a_photo_with_100_000_boxes_is_skipped_and_the_others_go_on(
    shared: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = {**DETECTIONS, "boxes": [[1, 2, 30, 40], [5, 6, 70, 50]]}
    many = {"boxes": [[1, 2, 30, 40]] * 100_000, "labels": ["dog"] * 100_000, "scores": [0.5] * 100_000}
    crowd = [{**few, "image": "a"}, {**few, **many, "image": "b"}, {**few, "image": "c"}]
    Path("d.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in crowd))
    result = command("predict", shared / "evidence", "--detections", "d.jsonl", "--json")
    assert (result.code, [json.loads(line)["image"] for line in result.out.splitlines()]) == (1, ["a", "c"])
    assert "skipped: b: 100,000 boxes, more than the 3,000" in result.err


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("field", ["detections", "simulate"])
def test_training_refuses_an_image_with_100_000_boxes(
    shared: Path, tmp_path: Path, command: Command, field: str
) -> None:
    boxes = np.tile([1.0, 2, 30, 40], (100_000, 1))
    crowd = Detections("a.jpg", boxes, np.zeros(len(boxes), np.int64), np.full(len(boxes), 0.5), (100.0, 100.0))
    names = Vocabulary(objects=OBJECTS, predicates=PREDICATES)
    write_detections(tmp_path / "d.safetensors", [crowd], names)
    words = ("--proposals.epochs", "1", "--triplets.epochs", "0", "--workers", "0", "--validation.images", "0")
    boxes_of = (f"--data.{field}", tmp_path / "d.safetensors")
    result = command("train", "vrd-boxes", "--data", shared / "vrd", "--out", tmp_path / "run", *words, *boxes_of)
    assert "a.jpg: 100,000 boxes, more than the 3,000" in result.err
    assert result.code == 1
