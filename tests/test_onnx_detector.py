"""A detector from an .onnx file: the decoding against a slow loop, the real file on real photos, and bad files."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import plain_iou
from PIL import Image
from refusals import refused
from shared_data import real_vrd, shared

from polyadic.detectors.onnx import OnnxDetector
from polyadic.detectors.yolox import decode, is_decoded, letterbox
from polyadic.structures.images import open_photo
from polyadic.structures.vocabulary import Vocabulary

SIZE = (96, 64)  # height, width
CELLS = 12 * 8 + 6 * 4 + 3 * 2
NAMES = Vocabulary(objects=("dog", "cat", "person"), predicates=("on",))


def slow(raw: np.ndarray, size: tuple[int, int]) -> tuple[list[list[float]], list[list[float]]]:
    """YOLOX's decoding, cell by cell."""
    boxes, scores, at = [], [], 0
    for stride in (8, 16, 32):
        for row in range(size[0] // stride):
            for column in range(size[1] // stride):
                x, y, w, h, objectness, *classes = raw[at].tolist()
                middle = (x + column) * stride, (y + row) * stride
                half = math.exp(w) * stride / 2, math.exp(h) * stride / 2
                boxes.append([middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]])
                scores.append([objectness * share for share in classes])
                at += 1
    return boxes, scores


def random_raw(seed: int, classes: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(CELLS, 4)), rng.random((CELLS, 1 + classes))], 1)


@pytest.mark.parametrize("seed", range(3))
def test_decoding_equals_a_loop_over_the_cells(seed: int) -> None:
    raw = random_raw(seed)
    boxes, scores = decode(raw, SIZE, decoded=False)
    wanted = slow(raw, SIZE)
    np.testing.assert_allclose(boxes, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_decoded_output_is_recognised_and_left_alone(seed: int) -> None:
    raw = random_raw(seed)
    boxes = np.array(slow(raw, SIZE)[0])
    pixels = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], raw[:, 4:]], 1)
    assert not is_decoded(raw, SIZE)
    assert is_decoded(pixels, SIZE)
    np.testing.assert_allclose(decode(pixels, SIZE, decoded=True)[0], boxes, atol=1e-9)


def test_a_photo_lies_at_the_top_left_in_bgr_on_grey() -> None:
    photo = open_photo(Image.new("RGB", (200, 100), (10, 20, 30)))
    pixels, shrunk = letterbox(photo, SIZE)
    assert (pixels.shape, shrunk) == ((1, 3, 96, 64), (64.0, 32.0))
    assert pixels[0, :, 31, 63].tolist() == [30, 20, 10]
    assert pixels[0, :, 32, 0].tolist() == [114, 114, 114]


class FakeInput:
    name, type = "images", "tensor(float)"

    def __init__(self, shape: list[Any]) -> None:
        self.shape = shape


class FakeSession:
    """Return the same output for every input."""

    def __init__(self, output: np.ndarray, shape: list[Any] | None = None, kind: str = "tensor(float)") -> None:
        self.output = output
        self.given = FakeInput(shape or [1, 3, *SIZE])
        self.given.type = kind

    def get_inputs(self) -> list[FakeInput]:
        return [self.given]

    def run(self, names: object, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [self.output]


def raw_of(*boxes: tuple[int, float, float, list[float]], classes: int = 3) -> np.ndarray:
    """Output of a model that sees boxes: (cell of the first grid, width and height in pixels, class scores)."""
    raw = np.zeros((1, CELLS, 5 + classes), np.float32)
    for cell, width, height, scores in boxes:
        raw[0, cell] = [0, 0, math.log(width / 8), math.log(height / 8), 0.5, *scores]
    return raw


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def make(session: FakeSession, names: Any = ("dog", "zebra", "people"), **options: Any) -> OnnxDetector:
        monkeypatch.setattr("polyadic.detectors.onnx._open", lambda path, threads: session)
        return OnnxDetector(tmp_path / "x.onnx", NAMES, names=names, **options)

    return make


# cells 35 and 36 of the first grid are neighbours: row 4, columns 3 and 4, at (24, 32) and (32, 32)
SEEN = raw_of(
    (35, 24, 32, [0.9, 0.1, 0.8]),  # a dog, and nearly as likely a person
    (36, 24, 32, [0.8, 0, 0]),  # IoU 0.5 with it: the same dog
    (43, 24, 32, [0, 0, 1.0]),  # 8 px lower, IoU 0.6, another class: a person
    (44, 24, 33, [0, 0.7, 0]),  # one that the vocabulary lacks
    (1, 32, 16, [0, 0, 0.7]),  # half outside, at the top
    (95, 9, 9, [0.3, 0.3, 0.3]),  # too unsure
)


def test_boxes_come_out_best_first_once_per_object_in_the_photo_s_frame(fake: Any) -> None:
    detector = fake(FakeSession(SEEN))
    found = detector(open_photo(Image.new("RGB", (128, 192)), "a.jpg"))
    assert (found.image, found.size) == ("a.jpg", (128.0, 192.0))
    assert found.labels.tolist() == [2, 0, 2]
    np.testing.assert_allclose(found.scores, [0.5, 0.45, 0.35], atol=1e-6)
    np.testing.assert_allclose(found.boxes, [[24, 48, 72, 112], [24, 32, 72, 96], [0, 0, 48, 16]], atol=1e-4)
    assert detector.dropped == {"zebra": 1}
    kept = fake(FakeSession(SEEN), unknown="keep")(Image.new("RGB", (128, 192)))
    assert sorted(kept.labels.tolist()) == [-1, 0, 2, 2]


def test_boxes_of_a_letterboxed_photo_are_scaled_back(fake: Any) -> None:
    """200 x 100 becomes 64 x 32 in an input of 64 x 96: all is scaled by 3.125, and the padding is no photo."""
    found = fake(FakeSession(raw_of((9, 16, 8, [0, 0, 0.9]))))(Image.new("RGB", (200, 100)))
    np.testing.assert_allclose(found.boxes, np.array([[0, 4, 16, 12]]) * 3.125, atol=1e-4)


def test_distributions_are_objectness_times_class_without_what_the_vocabulary_lacks(fake: Any) -> None:
    found = fake(FakeSession(SEEN))(Image.new("RGB", (64, 96)))
    np.testing.assert_allclose(found.distribution, [[0, 0, 0.5], [0.45, 0, 0.4], [0, 0, 0.35]], atol=1e-6)
    sure = raw_of((35, 24, 32, [0.9, 1.0, 0.6]))
    sure[0, 35, 4] = 1
    merged = fake(FakeSession(sure), mapping={"zebra": "dog"})(Image.new("RGB", (64, 96)))
    np.testing.assert_allclose(merged.distribution, [[1.9 / 2.5, 0, 0.6 / 2.5]], atol=1e-6)  # they summed to 2.5


def test_one_location_is_kept_once_and_at_most_as_many_boxes_as_wanted(fake: Any) -> None:
    photo = Image.new("RGB", (64, 96))
    assert fake(FakeSession(SEEN), nms=0.55)(photo).labels.tolist() == [2, 2]  # IoU of dog and person: 0.6
    assert fake(FakeSession(SEEN), most=1)(photo).labels.tolist() == [2]
    assert len(fake(FakeSession(SEEN), score=0.46)(photo)) == 1
    assert len(fake(FakeSession(raw_of()))(photo)) == 0
    assert [len(boxes) for boxes in fake(FakeSession(SEEN)).detect([photo, photo])] == [3, 3]


BAD: list[tuple[FakeSession, dict[str, Any], str]] = [
    (FakeSession(np.zeros((1, 7, CELLS))), {}, "expected YOLOX's output"),
    (FakeSession(np.zeros((1, CELLS, 5))), {}, "expected YOLOX's output"),
    (FakeSession(raw_of() - 3), {}, r"class scores in \[0, 1\]"),
    (FakeSession(raw_of() * np.nan), {}, r"class scores in \[0, 1\]"),
    (FakeSession(raw_of(), [1, 3, "h", "w"]), {}, "H and W fixed"),
    (FakeSession(raw_of(), [1, 3, 100, 64]), {}, "multiples of 32"),
    (FakeSession(raw_of(), kind="tensor(uint8)"), {}, "one float input"),
    (FakeSession(raw_of()), {"names": ["dog"]}, r"1 names, but x\.onnx has 3 classes"),
    (FakeSession(raw_of()), {"names": None}, "names of its 3 classes are needed"),
    (FakeSession(raw_of()), {"names": "none.names"}, "none.names cannot be read"),
    (FakeSession(raw_of()), {"score": 2.0}, "score"),
    (FakeSession(raw_of()), {"most": 0}, "most"),
]


@pytest.mark.usefixtures("unchecked")
def test_another_layout_or_setting_is_refused_in_one_line(fake: Any) -> None:
    for session, options, message in BAD:
        refused(message, fake, session, **options)


def test_class_names_are_read_from_a_file_beside_the_model(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "coco.names").write_text("cat\n\ndog \nbird\n")
    assert list(fake(FakeSession(SEEN), None).label_map.names.values()) == ["cat", "dog", "bird"]
    (tmp_path / "other.names").write_text("x\ny\nz")
    refused(r"beside it: coco\.names, other\.names", lambda: fake(FakeSession(SEEN), None))
    (tmp_path / "x.names").write_text("a\nb\nc")
    assert list(fake(FakeSession(SEEN), None).label_map.names.values()) == ["a", "b", "c"]
    assert list(fake(FakeSession(SEEN), tmp_path / "other.names").label_map.names.values()) == ["x", "y", "z"]


def test_a_file_that_is_not_onnx_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    (tmp_path / "x.onnx").write_text("no model")
    (tmp_path / "empty.onnx").touch()
    for name in ("x.onnx", "empty.onnx"):
        refused(f"{name} is not an ONNX model that onnxruntime can run", OnnxDetector, tmp_path / name, NAMES)
    refused(r"is a folder, expected an \.onnx file", OnnxDetector, tmp_path, NAMES)
    refused(r"no file .*none\.onnx", OnnxDetector, tmp_path / "none.onnx", NAMES)


def test_a_missing_onnxruntime_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "x.onnx").touch()
    refused(r"need onnxruntime: pip install 'polyadic\[onnx\]'", OnnxDetector, tmp_path / "x.onnx", NAMES)


def test_the_real_file_finds_most_people_of_real_photos() -> None:
    """Of the persons that VRD annotates on 20 test photos; the network is the smallest of its family."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    data = real_vrd("test")
    detector = OnnxDetector(shared("weights", "yolox_nano.onnx"), data.vocabulary)
    person = data.vocabulary.objects.index("person")
    found = people = 0
    for scene in [scene for scene in data if (scene.labels == person).any() and scene.has_picture()][:20]:
        seen = detector(scene.image).inside(scene.frame)
        assert (np.diff(seen.scores) <= 0).all()
        boxes = seen.boxes[seen.labels == person]
        for box in scene.boxes[scene.labels == person].tolist():
            people += 1
            found += any(plain_iou(box, other) >= 0.5 for other in boxes.tolist())
    assert people > 30
    assert found > 0.6 * people
