from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from refusals import refused
from shared_data import shared
from vg_files import VG200, write_vg200

from polyadic.datasets import load_dataset
from polyadic.structures.vocabulary import PolyadicWarning


def with_image(*tables: Any) -> dict[str, Any]:
    """Train with one image more, 20 of train, of these tables."""
    return {**VG200, "train": {**VG200["train"], "20": tables}}


def test_a_box_with_its_class_is_one_object_and_with_another_class_another(tmp_path: Path) -> None:
    train = load_dataset("vg200", write_vg200(tmp_path))
    assert [scene.name for scene in train] == ["123", "7"]
    scene = train[1]
    assert scene.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 7, 8], [1, 2, 30, 40]]
    assert scene.labels.tolist() == [1, 0, 0]
    assert scene.relations.tolist() == [[0, 3, 1], [0, 0, 2], [1, 0, 0]]
    assert train.vocabulary.decode(scene.triplets[0].tolist()) == ("man", "on", "car")
    assert train[0].relations.tolist() == [[0, 1, 0]]
    assert train.vocabulary.sizes == (3, 4, 3)
    assert [scene.name for scene in load_dataset("vg200", tmp_path, "test")] == ["20"]


def test_the_frame_is_the_pictures_else_from_image_data_else_unknown(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    write_vg200(tmp_path)
    (tmp_path / "VG_100K").mkdir()
    image.new("RGB", (31, 41)).save(tmp_path / "VG_100K" / "7.jpg")
    assert [scene.size for scene in load_dataset("vg200", tmp_path)] == [None, (31, 41)]
    records = [{"image_id": 123, "width": 9, "height": 10}, {"image_id": 7, "width": 1, "height": 1}]
    (tmp_path / "image_data.json").write_text(json.dumps(records))
    train = load_dataset("vg200", tmp_path)
    assert [scene.size for scene in train] == [(9, 10), (31, 41)]
    assert [scene.image for scene in train] == [tmp_path / "images" / "123.jpg", tmp_path / "VG_100K" / "7.jpg"]


def test_a_box_outside_the_frame_is_kept_with_a_warning(tmp_path: Path) -> None:
    write_vg200(tmp_path)
    (tmp_path / "image_data.json").write_text(json.dumps([{"image_id": 7, "width": 30, "height": 20}]))
    with pytest.warns(PolyadicWarning, match=r"vg1_2_meta.h5, image 7, relation 0, sub_boxes: .* leaves the frame"):
        train = load_dataset("vg200", tmp_path)
    assert len(train[1].boxes) == 3


def test_bad_records_are_refused_in_one_line_with_file_and_record(tmp_path: Path) -> None:
    box, message = [[1, 2, 3, 4]], "vg1_2_meta.h5, image 20"
    for number, (tables, fragment) in enumerate(
        (
            ((box, box, [[0, 0, 1]]), "relation 0, rlp_labels, column 0: .* 1 to 3, got 0"),
            ((box, box, [[1, 0, 4]]), "relation 0, rlp_labels, column 2: .* 1 to 3, got 4"),
            ((box, box, [[1, 4, 1]]), "relation 0, rlp_labels, column 1: .* 0 to 3, got 4"),
            (([[1, 2, 0, 4]], box, [[1, 0, 1]]), "relation 0, sub_boxes: expected x1 <= x2"),
            ((box, [], [[1, 0, 1]]), r"sub_boxes, obj_boxes, rlp_labels: .* got \[1, 0, 1\]"),
            ((box, box, None), "no array 'gt/train/20/rlp_labels'"),
        )
    ):
        root = write_vg200(tmp_path / str(number), with_image(*tables))
        refused(f"^{message}.*{fragment}", load_dataset, "vg200", root)


def replaced(name: str, value: Any = None) -> Any:
    """Remove an entry of the file, or replace its value."""

    def harm(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]
            if value is not None:
                file[name] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "polyadic data fetch vg200 --root"),
        (lambda path: path.write_bytes(path.read_bytes()[:-99]), "vg1_2_meta.h5 is not complete HDF5"),
        (replaced("gt/train"), "no group 'gt/train'; it has gt, meta"),
        (replaced("meta/pre"), "no group 'meta/pre/idx2name'"),
        (replaced("meta/cls/idx2name/2"), r"meta/cls: .* from 1, got \[1, 3\]"),
        (replaced("meta/pre/idx2name/0"), r"meta/pre: .* from 0, got \[1, 2, 3\]"),
        (replaced("meta/cls/idx2name/2", "car"), "meta/cls: expected one name for each number"),
        (replaced("gt/train/7/sub_boxes", np.ones((3, 5), np.int32)), r"image 7: .*sub_boxes' must be .*\[3, 5\]"),
        (replaced("meta/cls/idx2name/2", np.bytes_(b"\xff")), "expected numbers and names .*'utf-8'"),
    ],
)
def test_a_file_that_lacks_something_is_refused_in_one_line(tmp_path: Path, harm: Any, message: str) -> None:
    harm(write_vg200(tmp_path) / "vg1_2_meta.h5")
    refused(message, load_dataset, "vg200", tmp_path)


def test_the_published_names_are_200_and_100(tmp_path: Path) -> None:
    classes, verbs = (
        tuple(shared("data", "vg", f"vg200_{kind}.txt").read_text().splitlines()) for kind in ("obj", "rel")
    )
    train = load_dataset("vg200", write_vg200(tmp_path, classes=classes, verbs=verbs))
    assert train.vocabulary.sizes == (200, 100, 200)
    assert tuple(train.vocabulary.objects) == classes[1:]
    assert tuple(train.vocabulary.predicates) == verbs
