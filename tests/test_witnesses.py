"""Several detectors of one photo: their boxes together, each with the name of the one that saw it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_cases import ALL_BOXES, NAMES, detections, model_of
from onnx_files import write_detr
from PIL import Image
from predict_cases import BOXES, lay_out, save_models
from refusals import refused
from tiny_runs import Command

from polyadic import Detections, read_detections, read_relations, write_relations
from polyadic.detectors.candidates import distinct
from polyadic.detectors.witnesses import Witnesses
from polyadic.io.records import write_detections


def test_joined_boxes_stay_in_order_and_remember_who_saw_them() -> None:
    first, second = detections(3), detections(2, seed=1)
    both = Detections.join(first, second)
    assert both.source is not None
    assert both.source.tolist() == ["0", "0", "0", "1", "1"]
    assert both.take(np.arange(3)) == replace(first, source=np.array(["0"] * 3))
    assert Detections.join(first, second, names=["a", "b"]).take(np.array([4])).source == ["b"]
    again = Detections.join(both, first)
    assert again.source is not None
    assert again.source.tolist() == [*both.source, "2", "2", "2"]
    assert Detections.join(detections(0), first).source.tolist() == ["1"] * 3  # type: ignore[union-attr]
    assert first != Detections.join(first)


def test_the_distributions_of_a_detector_that_gives_none_are_zeros() -> None:
    spread = np.full((2, 3), 0.2, np.float32)
    known = Detections("a", np.array([[0.0, 0, 1, 1]] * 2), np.array([0, 1]), np.array([0.2, 0.2]), distribution=spread)
    plain = Detections("a", np.array([[0.0, 0, 1, 1]] * 2), np.array([2, -1]), np.array([0.7, 0.9]))
    joined = Detections.join(known, plain).distribution
    assert joined is not None
    np.testing.assert_allclose(joined, [[0.2] * 3, [0.2] * 3, [0.0] * 3, [0.0] * 3], atol=1e-7)
    assert Detections.join(plain, plain).distribution is None


def test_a_detector_that_can_name_any_box_names_those_of_the_others() -> None:
    class Namer:
        names_any_box = True

        def __call__(self, photo: Any) -> Detections:
            return self.name_boxes(photo, detections(2))

        def name_boxes(self, photo: Any, boxes: Detections) -> Detections:
            return replace(boxes, distribution=np.full((len(boxes), len(NAMES.objects)), 0.1, np.float32))

    photo = Image.new("RGB", (120, 90))
    for order in (("own", "other"), ("other", "own")):
        detectors: dict[str, Any] = {"own": Namer(), "other": lambda _: detections(3, seed=1)}
        joined = Witnesses({name: detectors[name] for name in order})(photo)
        assert joined.distribution is not None
        assert (joined.distribution == np.float32(0.1)).all()
        assert len(joined) == 5


def test_a_person_sees_the_surest_boxes_one_per_place() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10], [50, 0, 60, 10], [70, 0, 80, 10]])
    found = Detections("a", boxes, np.array([0, 1, 0, 2, 1]), np.array([0.5, 0.6, 0.1, 0.4, 0.2]), (90.0, 90.0))
    np.testing.assert_array_equal(found.boxes[distinct(found)], boxes[[1, 3, 4]])
    np.testing.assert_array_equal(found.boxes[distinct(found, most=2)], boxes[[1, 3]])


@pytest.mark.usefixtures("unchecked")
def test_boxes_that_do_not_belong_together_are_refused_in_one_line() -> None:
    one = detections(2)
    refused("expected one image in one frame", Detections.join, one, replace(one, image="other"))
    refused("expected one image in one frame", Detections.join, one, replace(one, size=None))
    refused("got 0 detections", Detections.join)
    refused("2 detections and 1 names", Detections.join, one, one, names=["a"])
    wide, narrow = (replace(one, distribution=np.zeros((2, n), np.float32)) for n in (9, 8))
    refused("need one vocabulary.* 8 and 9 classes", Detections.join, wide, narrow)
    tiny = replace(one, distribution=np.zeros((2, 1), np.float32), labels=np.zeros(2, np.int64))
    refused(
        "need one vocabulary.* 1 classes and labels up to 1",
        Detections.join,
        tiny,
        replace(one, labels=np.array([0, 1])),
    )
    refused(r"source must be names \[2\]", replace, one, source=np.array(["a"]))
    refused(r"source must be names \[2\]", replace, one, source=np.array([0, 1]))


@pytest.mark.parametrize("suffix", ["jsonl", "safetensors"])
def test_the_source_is_written_and_read(tmp_path: Path, suffix: str) -> None:
    both = Detections.join(detections(3), detections(2, seed=1), names=["a", "b"])
    alone = replace(detections(2), image="alone")
    file = write_detections(tmp_path / f"x.{suffix}", [both, alone], NAMES)
    assert list(read_detections(file, NAMES)) == [both, alone]


def test_a_source_of_another_length_is_refused(tmp_path: Path) -> None:
    record = {"image": "a", "boxes": [[0, 0, 1, 1]], "labels": [NAMES.objects[0]], "source": []}
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    refused("line 1: source and boxes need one length", list, read_detections(tmp_path / "x.jsonl", NAMES))


def test_relations_of_joined_boxes_keep_the_source(tmp_path: Path) -> None:
    model = model_of("evidence", **ALL_BOXES)
    both = Detections.join(detections(3), detections(2, seed=1), names=["a", "b"])
    found = model.predict(None, both)
    assert [box["source"] for box in found.to_dict()["boxes"]] == ["a", "a", "a", "b", "b"]
    file = write_relations(tmp_path / "r.jsonl", [found], NAMES)
    (read,) = read_relations(file, NAMES)
    assert read.detections == found.detections
    plain = model.predict(None, replace(both, source=None))
    np.testing.assert_array_equal(plain.scores, found.scores)
    assert "source" not in plain.to_dict()["boxes"][0]


def test_witnesses_detect_as_one_detector_in_the_photos_frame() -> None:
    class Many:
        def __call__(self, photo: Any) -> Detections:
            pytest.fail("several photos at once are faster")

        def detect(self, photos: list[Any]) -> list[Detections]:
            half = Detections("?", np.array([[0.0, 0, 1, 1]]), np.array([1]), np.array([0.5]), (2.0, 1.0))
            return [half] * len(photos)

    seen = Witnesses({"many": Many(), "one": lambda photo: detections(2)})
    found = seen(np.zeros((100, 200, 3), np.uint8))
    assert found.size == (200.0, 100.0)
    assert found.boxes[0].tolist() == [0, 0, 100, 100]
    assert found.source is not None
    assert found.source.tolist() == ["many", "one", "one"]
    refused("at least one detector", Witnesses, {})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def here(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos, boxes and models, and two detectors of two classes, of which the second knows another name."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    monkeypatch.chdir(tmp_path)
    for name, box, other in (("a", [0.1, 0.1, 0.5, 0.5], "zebra"), ("b", [0.4, 0.4, 0.9, 0.9], "gnu")):
        write_detr(tmp_path / f"{name}.onnx", [(box, 0, 0.9), ([*box[:2], 1.0, 1.0], 1, 0.8)])
        (tmp_path / f"{name}.names").write_text(f"{NAMES.objects[0]}\n{other}")
    lay_out(tmp_path, models)
    for path in (tmp_path / "photos").iterdir():
        with Image.open(path) as photo:
            Image.new("RGB", photo.size, "red").save(path)
    return tmp_path


A, B = ("--detector", "a.onnx"), ("--detector", "b.onnx")


def sources_of(command: Command, *words: str) -> list[list[str]]:
    result = command("predict", *words, "--json")
    assert result.code == 0, result.message
    return [[box.get("source") for box in json.loads(line)["boxes"]] for line in result.out.splitlines()]


def test_several_detectors_and_a_file_are_joined(command: Command, here: Path) -> None:
    assert sources_of(command, "evidence", "photos/0.png", *A) == [[None]]
    assert sources_of(command, "evidence", "photos", *A, *B) == [["a.onnx", "b.onnx"]] * 5
    first, second, *_ = sources_of(command, "evidence", "photos", *BOXES, *B)
    assert first == ["boxes.jsonl"] * 3 + ["b.onnx"]
    assert second == ["boxes.jsonl"] * 4 + ["b.onnx"]
    said = command("predict", "evidence", "photos/0.png", *A, *B)
    assert "boxes: a.onnx (1 of its 2 classes" in said.err
    assert "b.onnx (1 of its 2 classes" in said.err
    assert "note: a.onnx: dropped 1 box" in said.err
    assert "note: b.onnx: dropped 1 box of classes unknown to the model: gnu (1)" in said.err


def test_a_mapping_serves_all_detectors(command: Command, here: Path) -> None:
    (here / "m.toml").write_text(f'zebra = "{NAMES.objects[1]}"\ngnu = ""')
    mapping = ("--mapping", "m.toml")
    assert sources_of(command, "evidence", "photos/0.png", *A, *B, *mapping) == [["a.onnx", "a.onnx", "b.onnx"]]
    assert "the detector has no class 'gnu'" in command("predict", "evidence", "photos", *A, *mapping).message
    (here / "m.toml").write_text('okapi = ""')
    assert "no detector has a class 'okapi'" in command("predict", "evidence", "photos", *A, *B, *mapping).message


def test_a_file_is_not_resumed_with_other_class_names(command: Command, here: Path) -> None:
    words = ("predict", "evidence", "photos", *A, "--out", "names.jsonl")
    assert command(*words).code == 0
    (here / "a.names").write_text(f"{NAMES.objects[1]}\nzebra")
    assert "another model or other options" in command(*words, "--resume").message


def test_a_detector_of_no_known_class_is_refused(command: Command, here: Path) -> None:
    (here / "a.names").write_text("okapi\nzebra")
    for words in (A, (*A, *B)):
        assert (
            "none of the 2 classes of a.onnx (okapi, zebra" in command("predict", "evidence", "photos", *words).message
        )
    kept = command("predict", "evidence", "photos/0.png", *A, "--unknown", "keep")
    assert kept.code == 0, kept.message


def test_a_resumed_file_has_the_same_witnesses(command: Command, here: Path) -> None:
    out = ("--out", "r.jsonl")
    assert command("predict", "evidence", "photos", *A, *B, *out).code == 0
    assert command("predict", "evidence", "photos", *A, *B, *out, "--resume").code == 0
    for others in (A, (*B, *A), (*A, *B, *BOXES)):
        message = command("predict", "evidence", "photos", *others, *out, "--resume").message
        assert "another model or other options" in message


def test_photos_missing_from_the_file_are_skipped(command: Command, here: Path) -> None:
    write_detections("few.jsonl", [replace(detections(2), image=f"{at}.png") for at in range(2)], NAMES)
    result = command("predict", "evidence", "photos", "--detections", "few.jsonl", *A, "--json")
    assert (result.code, len(result.out.splitlines())) == (1, 2)
    assert "4.png: no detections" in result.err
