"""Detectors of the DETR family from .onnx files: a tiny graph run by onnxruntime, and the real one on real photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_files import write_detr
from oracles import plain_iou
from PIL import Image
from refusals import refused
from shared_data import real_vrd, shared

from polyadic import Vocabulary, load_detector
from polyadic.detectors.onnx import OnnxDetector

pytest.importorskip("onnxruntime", reason="needs onnxruntime")

NAMES = Vocabulary(objects=("dog", "cat", "person"), predicates=("on",))
CLASSES = ["zebra", "dog", "people"]  # the network's: 0, 1, 2
RED = (255, 0, 0)
SEEN = [
    ([0.25, 0.5, 0.75, 1.0], 2, 0.5),
    ([0.25, 0.5, 0.75, 1.0], 1, 0.4),  # the same query under a second label
    ([0.25, 0.5, 0.75, 0.9], 2, 0.35),  # IoU 0.8 with the first: the same person
    ([0.5, 0.5, 1.25, 0.75], 1, 0.75),  # beyond the right edge
    ([0.0, 0.0, 0.5, 0.5], 0, 0.9),  # a class that the vocabulary lacks
    ([0.0, 0.0, 0.1, 0.1], 1, 0.2),  # too unsure
    ([0.3, 0.3, 0.3, 0.6], 1, 0.9),  # without area
]


@pytest.mark.parametrize("batch", [1, "N"])
def test_boxes_of_a_squashed_red_photo_come_out_best_first_in_its_frame(tmp_path: Path, batch: int | str) -> None:
    detector = load_detector(write_detr(tmp_path / "x.onnx", SEEN, batch=batch), NAMES, names=CLASSES)
    assert isinstance(detector, OnnxDetector)
    found = detector(Image.new("RGB", (400, 100), RED))
    assert found.size == (400.0, 100.0)
    assert found.labels.tolist() == [0, 2]
    np.testing.assert_allclose(found.scores, [0.75, 0.5], atol=1e-6)
    np.testing.assert_allclose(found.boxes, [[200, 50, 400, 75], [100, 50, 300, 100]], atol=1e-3)
    assert found.distribution is None
    assert detector.dropped == {"zebra": 1}
    assert len(detector(Image.new("RGB", (400, 100), (0, 0, 255)))) == 0


def test_thresholds_apply(tmp_path: Path) -> None:
    file, photo = write_detr(tmp_path / "x.onnx", SEEN), Image.new("RGB", (90, 90), RED)
    assert OnnxDetector(file, NAMES, names=CLASSES, nms=1)(photo).labels.tolist() == [0, 2, 0, 2]
    assert OnnxDetector(file, NAMES, names=CLASSES, most=1)(photo).labels.tolist() == [0]
    assert len(OnnxDetector(file, NAMES, names=CLASSES, score=0.1)(photo)) == 3
    assert len(OnnxDetector(write_detr(file, []), NAMES, names=CLASSES)(photo)) == 0


@pytest.mark.usefixtures("unchecked")
def test_another_layout_or_other_names_are_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"

    def run(**graph: object) -> None:
        boxes = graph.pop("seen", SEEN)
        load_detector(write_detr(file, boxes, **graph), NAMES, names=CLASSES)(Image.new("RGB", (9, 9), RED))  # type: ignore[arg-type]

    refused(r"float images \[1, 3, H, W\] .*'h'", run, sides=("h", 64))
    refused(r"float images \[1, 3, H, W\].*got .*\[4, 3", run, batch=4, seen=[])
    refused("x.onnx: expected one float input", run, outputs=("kinds", "corners", "confidence"))
    refused("x.onnx: label 7 has no name among the 3", run, seen=[([0, 0, 1, 1], 7, 0.9)])
    refused(r"x.onnx: expected finite boxes and scores in \[0, 1\]", run, seen=[([0, 0, 1, 1], 1, 1.5)])
    refused(r"x.onnx: expected finite boxes", run, seen=[([0, 0, 1, np.nan], 1, 0.9)])
    refused("x.onnx: the names of its classes are needed", load_detector, write_detr(file, SEEN), NAMES)


@pytest.mark.filterwarnings("ignore:teddy bear")
def test_the_real_file_names_most_objects_of_real_photos() -> None:
    """Of the objects on 30 test photos whose class COCO has, with the right name; 0.70 on 300 photos."""
    data = real_vrd("test")
    detector = load_detector(shared("weights", "deimv2_femto_coco.onnx"), data.vocabulary)
    assert isinstance(detector, OnnxDetector)
    reached = set(detector.label_map.targets.values())
    found = total = 0
    for scene in [scene for scene in data if scene.has_picture()][:30]:
        seen = detector(scene.image).inside(scene.frame)
        for box, label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            if label in reached:
                total += 1
                found += any(plain_iou(box, other) >= 0.5 for other in seen.boxes[seen.labels == label].tolist())
    assert total > 60
    assert found > 0.6 * total
