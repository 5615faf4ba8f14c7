"""Each detector's output becomes the same `Detections`, or one clear line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

NAMES = Vocabulary(objects=("horse", "person", "traffic light"), predicates=("ride",))
BOXES: list[list[float]] = [[1.5, 2, 30, 40], [-0.5, 4, 700, 9], [5, 6, 7, 8], [1, 1, 2, 2]]
THEIRS = ["Person", "horses", "zebra", "traffic_light"]
SCORES = [0.5, 0.25, 0.75, 1.0]
EXPECTED = Detections(
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


def transformers(**options: Any) -> Detections:
    """One image of `post_process_object_detection`, and the config's names, whose keys are words in config.json."""
    output = {"scores": torch.tensor(SCORES), "labels": torch.arange(4), "boxes": torch.tensor(BOXES)}
    id2label: Any = {str(at): name for at, name in enumerate(THEIRS)}
    return Detections.from_transformers(output, id2label, NAMES, **FRAME, **options)


def arrays(**options: Any) -> Detections:
    return Detections.from_arrays(BOXES, THEIRS, SCORES, vocabulary=NAMES, **FRAME, **options)


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


CONSTRUCTORS = [torchvision, transformers, arrays, supervision_by_name, supervision_by_number, ultralytics]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("construct", CONSTRUCTORS)
def test_every_constructor_gives_the_same_and_warns_once_of_dropped_boxes(construct: Any) -> None:
    with pytest.warns(PolyadicWarning) as warned:
        assert construct() == EXPECTED
    assert len(warned) == 1
    assert str(warned[0].message).startswith(
        "a.jpg: dropped 1 box of classes that are not in the vocabulary: zebra (1)"
    )
    assert construct(unknown="keep") == KEPT


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("construct", CONSTRUCTORS)
def test_a_mapping_overrides_names_and_may_be_a_file(construct: Any, tmp_path: Path) -> None:
    file = tmp_path / "mapping.json"
    file.write_text(json.dumps({"zebra": "horse", "Person": ""}))
    for mapping in ({"zebra": "horse", "Person": None}, file):
        mapped = construct(mapping=mapping)
        assert mapped.labels.tolist() == [0, 0, 2]
        assert mapped.boxes.tolist() == BOXES[1:]


def test_labels_may_be_indices_of_the_vocabulary_and_scores_default_to_one() -> None:
    for labels in ([2, 0], np.array([2, 0], np.uint8), np.array([2.0, 0.0]), torch.tensor([2, 0])):
        made = Detections.from_arrays(torch.tensor(BOXES[:2]).bfloat16(), labels, [1 + 1e-6, 1], vocabulary=NAMES)
        assert (made.labels.tolist(), made.scores.tolist(), made.size) == ([2, 0], [1, 1], None)
    with pytest.warns(PolyadicWarning, match=r"dropped 1 box .*: unnamed \(1\)"):
        assert len(Detections.from_arrays(BOXES[:2], [2, -1], vocabulary=NAMES)) == 1


def test_no_boxes_are_no_error() -> None:
    none = Detections("image", np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    assert Detections.from_arrays([], [], [], vocabulary=NAMES) == none
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    assert Detections.from_torchvision(empty, ["person"], NAMES) == none
    nothing = supervision(xyxy=np.zeros((0, 4)), class_id=np.zeros(0, int), confidence=np.zeros(0))
    assert Detections.from_supervision(nothing, NAMES) == none


def test_boxes_are_clipped_to_the_image_on_request() -> None:
    assert EXPECTED.inside((640.0, 480.0)).boxes.tolist() == [[1.5, 2, 30, 40], [0, 4, 640, 9], [1, 1, 2, 2]]


def test_boxes_without_size_are_in_the_frame_they_are_matched_with() -> None:
    image: Any = None
    photo = Photo("a.jpg", image, (100.0, 50.0), orientation=6)
    unsized = Detections("a.jpg", np.array([[10.0, 10, 102, 40]]), np.array([0]), np.ones(1))
    assert unsized.on_photo(photo).boxes.tolist() == unsized.boxes.tolist()
    assert unsized.in_frame((200.0, 100.0)).boxes.tolist() == unsized.boxes.tolist()
    assert unsized.in_frame((200.0, 100.0)).on_photo(photo).boxes.tolist() == [[5, 5, 51, 20]]
    assert unsized.in_frame((50.0, 100.0)).on_photo(photo) == Detections(
        "a.jpg", photo.upright(unsized.boxes), np.array([0]), np.ones(1), photo.size
    )
    refused(
        "boxes reach 102 x 40 pixels, but the photo has 90 x 50; give the frame",
        lambda: unsized.on_photo(Photo("a.jpg", image, (90.0, 50.0))),
    )


def of_arrays(boxes: Any = BOXES[:1], labels: Any = ("person",), scores: Any = None, **options: Any) -> Any:
    return lambda: Detections.from_arrays(boxes, labels, scores, vocabulary=NAMES, **options)


def of_torchvision(**changes: Any) -> Any:
    output = {"boxes": torch.tensor(BOXES), "labels": torch.ones(4, dtype=torch.int64), "scores": torch.ones(4)}
    return lambda: Detections.from_torchvision(output | changes, ["", "person"], NAMES)


BAD: dict[str, tuple[Any, str]] = {
    "boxes of three": (of_arrays([[1, 2, 3]]), "boxes must be [n, 4], got [1, 3]"),
    "more boxes": (of_arrays(BOXES), "got boxes [4, 4], labels [1], scores [1]"),
    "score": (of_arrays(scores=[1.2]), "score 0 must lie in [0, 1], got 1.2"),
    "index": (of_arrays(labels=[3]), "indices from 0 to 2, got 3"),
    "half": (of_arrays(labels=[0.5]), "labels must be whole numbers"),
    "mapped numbers": (of_arrays(labels=[1], mapping={"a": "person"}), "a mapping is for names"),
    "size": (of_arrays(size=(0, 5)), "size must be (width, height)"),
    "policy": (of_arrays(unknown="forget"), "expected 'drop' or 'keep'"),
    "batch": (lambda: Detections.from_torchvision([{}], ["person"], NAMES), "output[0]"),
    "no scores": (
        lambda: Detections.from_torchvision({"boxes": [], "labels": []}, ["person"], NAMES),
        "no 'scores' in the output",
    ),
    "no name": (of_torchvision(labels=torch.tensor([1, 1, 7, 1])), "image: label 7 has no name"),
    "no supervision": (lambda: Detections.from_supervision([], NAMES), "expected supervision.Detections"),
    "no classes": (lambda: Detections.from_supervision(supervision(), NAMES), "class_id with names=[...]"),
    "a list of results": (lambda: Detections.from_ultralytics([result()], NAMES), "result[0]"),
    "no detector": (lambda: Detections.from_ultralytics(result(boxes=None), NAMES), "a.jpg: the result has no boxes"),
}


@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.usefixtures("unchecked")
def test_unusable_input_is_refused_in_one_line(case: str) -> None:
    make, message = BAD[case]
    refused(re.escape(message), make)


@pytest.mark.parametrize("size", [(314, 512), (157.0, 256.0), (315, 511)])
def test_a_swapped_size_is_refused(size: tuple[float, float]) -> None:
    photo = Photo("a.jpg", Image.new("RGB", (512, 314)), (512.0, 314.0))
    with pytest.raises(PolyadicError, match=r"but the photo has 512 x 314; give size as \(width, height\)"):
        replace(KEPT, size=size).on_photo(photo)


@pytest.mark.parametrize("size", [(512, 314), (256, 157), (640, 640), (512, 500)])
def test_copies_of_another_size_or_shape_are_scaled(size: tuple[float, float]) -> None:
    photo = Photo("a.jpg", Image.new("RGB", (512, 314)), (512.0, 314.0))
    assert replace(KEPT, size=size).on_photo(photo).size == photo.size


def test_a_nearly_square_photo_has_no_swapped_size() -> None:
    photo = Photo("a.jpg", Image.new("RGB", (500, 495)), (500.0, 495.0))
    assert replace(KEPT, size=(495, 500)).on_photo(photo).size == photo.size


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "size", [5, "ab", (1,), (1, 2, 3), (-5, -5), (0, 4), (float("nan"), 4), (None, 3), {}, object()]
)
def test_a_size_is_two_positive_numbers(size: Any) -> None:
    with pytest.raises(PolyadicError, match="size must be"):
        replace(KEPT, size=size)
