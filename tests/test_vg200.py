from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from shared_data import shared
from vg_files import VG200, write_vg200

from polyadic.datasets import load_dataset
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning


def with_image(*tables: Any) -> dict[str, Any]:
    """Train with one image more, 20 of train, of these tables."""
    return {**VG200, "train": {**VG200["train"], "20": tables}}


@pytest.mark.parametrize("idx2name", [True, False])
def test_a_box_with_its_class_is_one_object_and_with_another_class_another(tmp_path: Path, idx2name: bool) -> None:
    train = load_dataset("vg200", write_vg200(tmp_path, idx2name=idx2name))
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


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (
            ([[1, 2, 3, 4]], [[1, 2, 3, 4]], [[0, 0, 1]]),
            "image 20, relation 0, rlp_labels, column 0: .* 1 to 3, got 0",
        ),
        (
            ([[1, 2, 3, 4]], [[1, 2, 3, 4]], [[1, 0, 4]]),
            "image 20, relation 0, rlp_labels, column 2: .* 1 to 3, got 4",
        ),
        (
            ([[1, 2, 3, 4]], [[1, 2, 3, 4]], [[1, 4, 1]]),
            "image 20, relation 0, rlp_labels, column 1: .* 0 to 3, got 4",
        ),
        (([[1, 2, 0, 4]], [[1, 2, 3, 4]], [[1, 0, 1]]), "image 20, relation 0, sub_boxes: expected x1 <= x2"),
        (([[1, 2, 3, 4]], [[1, 5, 3, 4]], [[1, 0, 1]]), "image 20, relation 0, obj_boxes: expected x1 <= x2"),
        (([[1, 2, 3, 4]], [], [[1, 0, 1]]), r"image 20, sub_boxes, obj_boxes, rlp_labels: .* got \[1, 0, 1\]"),
        (([[1, 2, 3, 4]], [[1, 2, 3, 4]], None), "image 20: no array 'gt/train/20/rlp_labels'"),
    ],
)
def test_bad_records_are_one_line_with_file_and_record(tmp_path: Path, tables: Any, says: str) -> None:
    write_vg200(tmp_path, with_image(*tables))
    with pytest.raises(PolyadicError, match=f"^vg1_2_meta.h5, {says}") as caught:
        load_dataset("vg200", tmp_path)
    assert "\n" not in str(caught.value)


def _without(name: str) -> Any:
    def harm(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]

    return harm


def _renamed(old: str, new: str) -> Any:
    def harm(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file.move(old, new)

    return harm


def _is(name: str, value: Any) -> Any:
    def harm(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]
            file[name] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.unlink(), "no .*vg1_2_meta.h5. Get it with: polyadic data fetch vg200 --root"),
        (lambda path: path.write_bytes(path.read_bytes()[:-99]), "vg1_2_meta.h5 is not complete HDF5"),
        (lambda path: path.write_bytes(b"PK"), "vg1_2_meta.h5 is not complete HDF5"),
        (_without("gt/train"), "vg1_2_meta.h5: no group 'gt/train'; it has test"),
        (_without("meta"), "vg1_2_meta.h5: no group 'meta'"),
        (_without("meta/pre"), "vg1_2_meta.h5: no group 'meta/pre'"),
        (_without("meta/cls/idx2name/2"), r"vg1_2_meta.h5, meta/cls: .* from 1 on, got \[1, 3\]"),
        (_without("meta/pre/idx2name/0"), r"vg1_2_meta.h5, meta/pre: .* from 0 on, got \[1, 2, 3\]"),
        (
            _renamed("meta/cls/idx2name/2", "meta/cls/idx2name/two"),
            "vg1_2_meta.h5, meta/cls: expected numbers and names",
        ),
        (_is("meta/cls/idx2name/2", "car"), "vg1_2_meta.h5, meta/cls: expected one name for each number"),
        (_is("gt/train/7/sub_boxes", np.ones((3, 5), np.int32)), r"image 7: 'gt/train/7/sub_boxes' must be .*\[3, 5\]"),
        (_is("gt/train/7", 3), "image 7: no array 'gt/train/7/sub_boxes'"),
        (_is("gt", 3), "vg1_2_meta.h5: no group 'gt'"),
        (_is("meta/cls/idx2name/2", np.bytes_(b"\xff")), "'meta/cls/idx2name/2' is not UTF-8 text"),
    ],
)
def test_a_file_that_lacks_something_is_one_line(tmp_path: Path, harm: Any, says: str) -> None:
    harm(write_vg200(tmp_path) / "vg1_2_meta.h5")
    with pytest.raises(PolyadicError, match=says) as caught:
        load_dataset("vg200", tmp_path)
    assert "\n" not in str(caught.value)


def test_the_published_names_are_200_and_100(tmp_path: Path) -> None:
    classes, verbs = (
        tuple(shared("data", "vg", f"vg200_{kind}.txt").read_text().splitlines()) for kind in ("obj", "rel")
    )
    train = load_dataset("vg200", write_vg200(tmp_path, classes=classes, verbs=verbs))
    assert train.vocabulary.sizes == (200, 100, 200)
    assert tuple(train.vocabulary.objects) == classes[1:]
    assert tuple(train.vocabulary.predicates) == verbs
