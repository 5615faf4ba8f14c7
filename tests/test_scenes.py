"""Scenes, detections and predictions are checked once, where they are made."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import Vocabulary

BOXES = [[0, 0, 5, 5], [1, 1, 9, 9]]


def scene(**changes: Any) -> Scene:
    fields: dict[str, Any] = {
        "boxes": BOXES,
        "labels": [3, 1],
        "relations": [[0, 2, 1], [1, 0, 1]],
        "size": (10.0, 20.0),
    }
    return Scene("a", Path("a.jpg"), **(fields | changes))


@pytest.mark.usefixtures("unchecked")
def test_lists_small_dtypes_and_tensors_become_exact_arrays() -> None:
    for boxes in (BOXES, np.array(BOXES, np.uint8), torch.tensor(BOXES, dtype=torch.float32)):
        made = scene(boxes=boxes)
        assert made.boxes.dtype == np.float64
        assert made.boxes.tolist() == BOXES
    assert scene(relations=[]).triplets.shape == (0, 3)
    assert scene().triplets.tolist() == [[3, 2, 1], [1, 0, 1]]


def test_equal_scenes_compare_equal_and_a_changed_field_does_not(unchecked: None) -> None:
    assert scene() == scene()
    for change in ({"boxes": [[0, 0, 5, 5], [1, 1, 9, 8]]}, {"labels": [3, 2]}, {"size": None}, {"extra": {"a": 1}}):
        assert scene() != scene(**change)
    assert scene() != "a"


def test_a_scene_may_make_its_picture_itself(unchecked: None, tmp_path: Path) -> None:
    def draw() -> Image.Image:
        return Image.new("RGB", (3, 2), (9, 8, 7))

    drawn = scene(source=draw)
    assert drawn.has_picture()
    assert not scene().has_picture()
    assert drawn.open().getpixel((2, 1)) == (9, 8, 7)
    assert drawn == scene()  # how a picture is made is no part of what was annotated
    file = tmp_path / "a.png"
    draw().save(file)
    assert replace(scene(), image=file).has_picture()


def test_the_digest_follows_the_content_of_a_picture(unchecked: None, tmp_path: Path) -> None:
    shapes = [(3, 2), (2, 3), (6, 1)]  # the same pixels in a row
    drawn = {scene(source=lambda size=size: Image.new("RGB", size)).digest() for size in shapes}
    assert len(drawn) == 3
    assert scene(source=lambda: Image.new("L", (3, 2))).digest() in drawn
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"one" if name != "c" else b"two")
    a, b, c = (replace(scene(), image=tmp_path / name).digest() for name in "abc")
    assert a == b != c
    assert a == hashlib.sha256(b"one").hexdigest()
    refused(r"no image a\.jpg that can be read \(No such file or directory\)", scene().digest)


BAD: list[tuple[Any, str]] = [
    (lambda: scene(labels=[3]), "2 boxes need as many labels, got 1"),
    (lambda: scene(relations=[[0, 2, 2]]), "relations point to box 2, but there are 2 boxes"),
    (lambda: scene(labels=[0.5, 1]), "labels must be numbers [n], got float64"),
    (lambda: scene(boxes=[[1, 2, 3]]), "boxes must be [n, 4], got [1, 3]"),
    (lambda: scene(size=(0.0, 5.0)), "the frame must have a width and a height"),
    (lambda: Detections("a", np.array(BOXES), np.array([0, 1]), np.array([0.5, 1.5])), "score 1 must lie in [0, 1]"),
    (lambda: Detections("a", np.array(BOXES), np.array([0]), np.array([0.5, 1])), "need one length, got [2, 1, 2]"),
    (lambda: Relations("a", BOXES, [[0, 1]], [[0, 0, 1]], [np.nan]), "score 0 must be a finite number, got nan"),  # type: ignore[arg-type]
    (lambda: Relations("a", [[5, 0, 0, 5]], [], [], []), "box 0 must be finite [x1, y1, x2, y2]"),  # type: ignore[arg-type]
    (lambda: Dataset("d", "s", Vocabulary(("x",), ("y",)), (scene(), scene()), Path()), "image 'a' occurs twice"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
@pytest.mark.usefixtures("unchecked")
def test_impossible_values_are_refused_in_one_line(case: int) -> None:
    make, message = BAD[case]
    refused(re.escape(message), make)


def test_a_dataset_is_a_sequence_of_scenes_and_counts_its_triplets(unchecked: None) -> None:
    dataset = Dataset("d", "train", Vocabulary(tuple("wxyz"), tuple("pqr")), (scene(),), Path())
    assert (len(dataset), dataset[0].name, [item.name for item in dataset]) == (1, "a", ["a"])
    assert dataset.triplets().tolist() == [[3, 2, 1], [1, 0, 1]]
    assert "1 scenes, 2 relations" in repr(dataset)
    assert dataset.keep(lambda item: False).triplets().shape == (0, 3)
