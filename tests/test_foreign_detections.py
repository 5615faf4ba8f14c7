"""Other people's detectors: each output becomes the same `Detections`, or one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

NAMES = Vocabulary(objects=("horse", "person", "traffic light"), predicates=("ride",))
BOXES: list[list[float]] = [[1.5, 2, 30, 40], [-0.5, 4, 700, 9], [5, 6, 7, 8], [1, 1, 2, 2]]
THEIRS = ["Person", "horses", "zebra", "traffic_light"]
SCORES = [0.5, 0.25, 0.75, 1.0]
WANTED = Detections(
    "a.jpg", np.array(BOXES)[[0, 1, 3]], np.array([1, 0, 2]), np.array([0.5, 0.25, 1.0]), size=(640.0, 480.0)
)
KEPT = Detections("a.jpg", np.array(BOXES), np.array([1, 0, -1, 2]), np.array(SCORES), size=(640.0, 480.0))
FRAME: dict[str, Any] = {"image": "a.jpg", "size": (640, 480)}


def torchvision(**options: Any) -> Detections:
    """Labels with holes and a background, as torchvision numbers COCO's."""
    names = ["__background__", "Person", "N/A", "horses", "N/A", "zebra", "traffic_light"]
    labels = torch.tensor([1, 3, 5, 6])
    output = {"boxes": torch.tensor(BOXES, requires_grad=True), "labels": labels, "scores": torch.tensor(SCORES)}
    return Detections.from_torchvision(output, names, NAMES, **FRAME, **options)


def arrays(**options: Any) -> Detections:
    return Detections.from_arrays(BOXES, THEIRS, SCORES, vocabulary=NAMES, **FRAME, **options)


def coco(**options: Any) -> Detections:
    boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in BOXES]
    records = [
        {"image_id": 5, "category_id": 10 * at + 3, "bbox": box, "score": score}
        for at, (box, score) in enumerate(zip(boxes, SCORES, strict=True))
    ]
    categories = [{"id": 10 * at + 3, "name": name} for at, name in enumerate(THEIRS)]
    images = [{"id": 5, "file_name": "a.jpg", "width": 640, "height": 480}]
    return Detections.from_coco_results(records, categories, NAMES, images=images, **options)["a.jpg"]


def supervision(data: dict[str, Any] | None = None, **changes: Any) -> SimpleNamespace:
    """What of a `supervision.Detections` is read."""
    fields = {"confidence": np.array(SCORES, np.float32), "class_id": np.array([4, 3, 2, 0])}
    return SimpleNamespace(**({"xyxy": np.array(BOXES, np.float32), "data": data or {}} | fields | changes))


def supervision_by_name(**options: Any) -> Detections:
    return Detections.from_supervision(supervision({"class_name": np.array(THEIRS)}), NAMES, **FRAME, **options)


def supervision_by_number(**options: Any) -> Detections:
    names = ["traffic_light", "cow", "zebra", "horses", "Person"]
    return Detections.from_supervision(supervision(), NAMES, names, **FRAME, **options)


def result(**changes: Any) -> SimpleNamespace:
    """What of an ultralytics `Results` is read: whole numbers are floats, the shape is (height, width)."""
    boxes = SimpleNamespace(xyxy=torch.tensor(BOXES), conf=torch.tensor(SCORES), cls=torch.tensor([0.0, 1.0, 2.0, 3.0]))
    names = dict(enumerate(THEIRS))
    return SimpleNamespace(**({"boxes": boxes, "names": names, "orig_shape": (480, 640), "path": "/x/a.jpg"} | changes))


def ultralytics(**options: Any) -> Detections:
    return Detections.from_ultralytics(result(), NAMES, **options)


WAYS = [torchvision, arrays, coco, supervision_by_name, supervision_by_number, ultralytics]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_gives_the_same_and_warns_once_of_what_it_drops(way: Any) -> None:
    with pytest.warns(PolyadicWarning) as told:
        found = way()
    assert found == WANTED
    assert len(told) == 1
    where = "COCO results" if way is coco else "a.jpg"
    assert str(told[0].message).startswith(f"{where}: dropped 1 box of classes that the vocabulary lacks: zebra (1);")


def test_the_warning_points_at_the_line_of_the_caller(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from polyadic import Detections, Vocabulary\n"
        "names = Vocabulary(['a'], ['on'])\n"
        "Detections.from_arrays([[0, 0, 1, 1]], ['b'], vocabulary=names)\n"
        "Detections.from_coco_results([{'image_id': 1, 'category_id': 2, 'bbox': [0, 0, 1, 1]}], {2: 'b'}, names)\n"
    )
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stderr
    assert "mine.py:3: PolyadicWarning: image: dropped 1 box" in said
    assert "mine.py:4: PolyadicWarning: COCO results: dropped 1 box" in said


@pytest.mark.parametrize("way", WAYS)
def test_what_has_no_name_is_kept_as_unknown_by_choice(way: Any) -> None:
    assert way(unknown="keep") == KEPT


@pytest.mark.parametrize("way", WAYS)
def test_the_user_s_mapping_is_asked_first_and_from_a_file_too(way: Any, tmp_path: Path) -> None:
    file = tmp_path / "mapping.json"
    file.write_text(json.dumps({"zebra": "horse", "Person": ""}))
    for mapping in ({"zebra": "horse", "Person": None}, file):
        found = way(mapping=mapping)
        assert found.labels.tolist() == [0, 0, 2]
        assert found.boxes.tolist() == BOXES[1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_precision_will_do_and_scores_may_round_above_one(dtype: torch.dtype) -> None:
    boxes = torch.tensor([[1.0, 2, 3, 4]], dtype=dtype)
    found = Detections.from_arrays(boxes, torch.tensor([2]), np.array([1 + 1e-6]), vocabulary=NAMES)
    assert found == Detections("image", np.array([[1.0, 2, 3, 4]]), np.array([2]), np.array([1.0]))


def test_indices_of_the_vocabulary_are_labels_too_and_scores_are_one_by_default() -> None:
    for labels in ([2, 0], np.array([2, 0], np.uint8), np.array([2.0, 0.0])):
        found = Detections.from_arrays(BOXES[:2], labels, vocabulary=NAMES)
        assert (found.labels.tolist(), found.scores.tolist(), found.size) == ([2, 0], [1, 1], None)
    with pytest.warns(PolyadicWarning, match=r"dropped 1 box .*: unnamed \(1\)"):
        assert len(Detections.from_arrays(BOXES[:2], [2, -1], vocabulary=NAMES)) == 1


def test_no_boxes_are_no_error() -> None:
    none = Detections("image", np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    assert Detections.from_arrays([], [], [], vocabulary=NAMES) == none
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    assert Detections.from_torchvision(empty, ["person"], NAMES) == none
    nothing = supervision(xyxy=np.zeros((0, 4)), class_id=np.zeros(0, int), confidence=np.zeros(0))
    assert Detections.from_supervision(nothing, NAMES) == none
    assert Detections.from_coco_results([], [{"id": 1, "name": "person"}], NAMES) == {}


def test_boxes_are_cut_at_the_image_later() -> None:
    with pytest.warns(PolyadicWarning):
        found = arrays()
    assert found.inside((640.0, 480.0)).boxes.tolist() == [[1.5, 2, 30, 40], [0, 4, 640, 9], [1, 1, 2, 2]]


def test_coco_images_are_named_by_file_if_listed_else_by_id_and_the_empty_ones_are_there(tmp_path: Path) -> None:
    record = {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}
    categories = [{"id": 1, "name": "person"}]
    images = [{"id": 9, "file_name": "b.jpg"}, {"id": 7, "file_name": "a.jpg", "width": 20, "height": 10}]
    whole = {"images": images, "categories": categories, "annotations": [{**record, "id": 1}]}
    (tmp_path / "results.json").write_text(json.dumps([record]))
    (tmp_path / "truth.json").write_text(json.dumps(whole))
    by_id = Detections.from_coco_results([record], {"1": "person"}, NAMES)
    assert list(by_id) == ["7"]
    assert by_id["7"].boxes.tolist() == [[1, 2, 4, 6]]
    listed = [
        Detections.from_coco_results([record], categories, NAMES, images=images),
        Detections.from_coco_results([record], whole, NAMES),
        Detections.from_coco_results(whole, None, NAMES),
        Detections.from_coco_results(tmp_path / "results.json", tmp_path / "truth.json", NAMES),
        Detections.from_coco_results([record], categories, NAMES, images=tmp_path / "truth.json"),
    ]
    for found in listed:
        assert list(found) == ["b.jpg", "a.jpg"]
        assert (len(found["b.jpg"]), found["a.jpg"].size, found["a.jpg"].scores.tolist()) == (0, (20.0, 10.0), [0.5])


def of_arrays(boxes: Any = BOXES[:1], labels: Any = ("person",), scores: Any = None, **options: Any) -> Any:
    return lambda: Detections.from_arrays(boxes, labels, scores, vocabulary=NAMES, **options)


def of_coco(categories: Any = ({"id": 1, "name": "person"},), images: Any = None, **changes: Any) -> Any:
    record = {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5} | changes
    record = {key: value for key, value in record.items() if value is not None}
    return lambda: Detections.from_coco_results([record], categories, NAMES, images=images)


def of_torchvision(**changes: Any) -> Any:
    output = {"boxes": torch.tensor(BOXES), "labels": torch.ones(4, dtype=torch.int64), "scores": torch.ones(4)}
    return lambda: Detections.from_torchvision(output | changes, ["", "person"], NAMES)


BAD: dict[str, tuple[Any, str]] = {
    "boxes of three": (of_arrays([[1, 2, 3]]), "boxes must be [n, 4], got [1, 3]"),
    "ragged": (of_arrays([[1, 2, 3, 4], [1]], ["person"] * 2), "image: boxes must be one array"),
    "words": (of_arrays([["a", "b", "c", "d"]]), "image: boxes must be numbers, got <U1 [1, 4]"),
    "inside out": (of_arrays([[9, 2, 3, 4]]), "box 0 must be finite [x1, y1, x2, y2] with x1 <= x2"),
    "nan": (of_arrays([[np.nan, 2, 3, 4]]), "box 0 must be finite"),
    "more boxes": (of_arrays(BOXES), "got boxes [4, 4], labels [1], scores [1]"),
    "one number": (of_arrays(3.0), "got boxes [], labels [1]"),
    "more scores": (of_arrays(scores=[1, 1]), "got boxes [1, 4], labels [1], scores [2]"),
    "score": (of_arrays(scores=[1.2]), "score 0 must lie in [0, 1], got 1.2"),
    "score nan": (of_arrays(scores=[np.nan]), "score 0 must lie in [0, 1], got nan"),
    "score below": (of_arrays(scores=[-0.1]), "score 0 must lie in [0, 1], got -0.1"),
    "index": (of_arrays(labels=[3]), "labels are names, or indices from 0 to 2, got 3"),
    "half": (of_arrays(labels=[0.5]), "labels must be whole numbers [n], got float64 [1]"),
    "none": (of_arrays(labels=[None]), "expected one class name per box, got [None]"),
    "mapped numbers": (of_arrays(labels=[1], mapping={"a": "person"}), "a mapping is for names"),
    "size": (of_arrays(size=(0, 5)), "size must be (width, height) in pixels, got (0, 5)"),
    "size of three": (of_arrays(size=(1, 2, 3)), "size must be (width, height) in pixels"),
    "choice": (of_arrays(unknown="forget"), "expected 'drop' or 'keep', got 'forget'"),
    "batch": (
        lambda: Detections.from_torchvision([{}], ["person"], NAMES),
        "got a list; it is one per image: give output[0]",
    ),
    "no scores": (
        lambda: Detections.from_torchvision({"boxes": [], "labels": []}, ["person"], NAMES),
        "no 'scores' in the output, which has boxes, labels",
    ),
    "no name": (
        of_torchvision(labels=torch.tensor([1, 1, 7, 1])),
        "image: label 7 has no name among the 2 from 0 to 1",
    ),
    "two axes": (of_torchvision(labels=torch.ones(4, 1)), "labels must be whole numbers [n], got float64 [4, 1]"),
    "no supervision": (lambda: Detections.from_supervision([], NAMES), "expected supervision.Detections with .xyxy"),
    "no classes": (
        lambda: Detections.from_supervision(supervision(), NAMES),
        'neither data["class_name"] nor class_id with names=[...] says the classes',
    ),
    "no class id": (
        lambda: Detections.from_supervision(supervision(class_id=None), NAMES, ["person"]),
        'neither data["class_name"] nor class_id',
    ),
    "a list of results": (
        lambda: Detections.from_ultralytics([result()], NAMES),
        "one image's, result[0], with .boxes",
    ),
    "no detector": (lambda: Detections.from_ultralytics(result(boxes=None), NAMES), "a.jpg: the result has no boxes"),
    "no record": (
        lambda: Detections.from_coco_results([3], [{"id": 1, "name": "x"}], NAMES),
        "results[0]: no image_id",
    ),
    "no records": (lambda: Detections.from_coco_results({"a": 1}, None, NAMES), "expected a list of records"),
    "no image": (of_coco(image_id=None), "results[0]: no image_id, a whole number or a name"),
    "no category": (of_coco(category_id=None), "results[0]: category_id must be a whole number, got None"),
    "foreign category": (of_coco(category_id=2), "label 2 has no name among the 1 from 1 to 1"),
    "foreign image": (of_coco(images=[{"id": 1, "file_name": "a"}]), "image_id 7 is not in the list of images"),
    "no bbox": (of_coco(bbox=None), "results[0]: bbox must be [x, y, width, height] in pixels, got None"),
    "negative": (of_coco(bbox=[1, 2, -3, 4]), "got [1, 2, -3, 4]"),
    "infinite": (of_coco(bbox=[1, 2, float("inf"), 4]), "box 0 must be finite"),
    "coco score": (of_coco(score=3), "results[0]: score must lie in [0, 1], got 3"),
    "no categories": (of_coco(categories=["person"]), "expected categories"),
    "null categories": (of_coco(categories=None), "expected categories"),
    "an id twice": (of_coco(images=[{"id": 1, "file_name": "a"}] * 2), "images[1]: id 1 or file_name 'a' occurs twice"),
    "an image without id": (of_coco(images=[{"file_name": "a"}]), "images[0]: expected id, file_name, width, height"),
    "image size": (of_coco(images=[{"id": 1, "file_name": "a", "width": 0, "height": 4}]), "images[0]: size must be"),
}


@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_used_is_refused_in_one_line(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(PolyadicError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("unchecked")
def test_an_absent_or_damaged_coco_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match=r"no file .*none\.json"):
        Detections.from_coco_results(tmp_path / "none.json", None, NAMES)
    (tmp_path / "cut.json").write_text("[{")
    with pytest.raises(PolyadicError, match=r"cut\.json is not COCO"):
        Detections.from_coco_results(tmp_path / "cut.json", None, NAMES)
