"""Conversion to COCO + rel_annotations, and back to VRD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vrd_files as files
from refusals import refused
from shared_data import shared
from vg_files import FIELDS, write_vg150, write_vg200
from vrd_files import HAT, RIDER, relation

from polyadic.datasets import coco, format_of, load_dataset
from polyadic.datasets.check import convert
from polyadic.datasets.reading import Report
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

# the same relation twice, a box with two classes, a box related to itself, an image without relations
TWICE = (1, RIDER[1])
RELATIONS = [relation(RIDER, 0, HAT), relation(TWICE, 1, RIDER), relation(RIDER, 0, HAT), relation(HAT, 1, HAT)]


def write_vrd(root: Path) -> Path:
    files.write_vrd(root, {"b.jpg": RELATIONS, "a.jpg": []}, {"c.jpg": RELATIONS[2:]}, sizes=False, pictures=False)
    (root / "train_image_metadata.json").write_text(json.dumps({"b.gif": {"width": 60, "height": 90}}))
    (root / "test_image_metadata.json").write_text("{}")
    return root


WRITERS = {"vrd": write_vrd, "vg150": write_vg150, "vg200": write_vg200}


def contents(root: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in root.glob("*.json")}


@pytest.mark.parametrize("name", WRITERS)
def test_converted_scenes_equal_the_original_ones(tmp_path: Path, name: str) -> None:
    old = WRITERS[name](tmp_path / "old")
    assert convert(name, old, "coco", tmp_path / "coco") == [
        tmp_path / "coco" / "train.json",
        tmp_path / "coco" / "test.json",
    ]
    for split in ("train", "test"):
        a, b = format_of(name).read(old, split, Report()), load_dataset("coco", tmp_path / "coco", split)
        assert a.vocabulary == b.vocabulary
        assert [Path(s.name).stem for s in a] == [Path(s.name).stem for s in b]
        for x, y in zip(a, b, strict=True):
            assert (x.image.name, x.size) == (y.image.name, y.size)
            assert np.array_equal(x.boxes, y.boxes)
            assert np.array_equal(x.triplets, y.triplets)


def test_vrd_survives_the_round_trip(tmp_path: Path) -> None:
    old = write_vrd(tmp_path / "old")
    convert("vrd", old, "coco", tmp_path / "coco")
    convert("coco", tmp_path / "coco", "vrd", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(old)


def test_the_published_vrd_survives_the_round_trip(tmp_path: Path, unchecked: None) -> None:
    old = shared("data", "vrd", "annotations_train.json").parent
    convert("vrd", old, "coco", tmp_path / "coco")
    convert("coco", tmp_path / "coco", "vrd", tmp_path / "back")
    for name in ("annotations_train.json", "annotations_test.json", "objects.json", "predicates.json"):
        assert json.loads((tmp_path / "back" / name).read_text()) == json.loads((old / name).read_text())


def test_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    new = tmp_path / "coco"
    new.mkdir()
    (new / "test.json").write_text("mine")
    for root in (write_vrd(tmp_path / "old"), tmp_path / "nowhere"):  # reported before anything is read
        refused("coco is not empty", convert, "vrd", root, "coco", new)
    assert [(path.name, path.read_text()) for path in new.iterdir()] == [("test.json", "mine")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interruption_leaves_nothing(tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    old, content = write_vrd(tmp_path / "old"), coco.content

    def interrupted(dataset: Dataset) -> Any:
        if dataset.split == "test":
            raise error
        return content(dataset)

    monkeypatch.setattr(coco, "content", interrupted)
    with pytest.raises((KeyboardInterrupt, PolyadicError)):
        convert("vrd", old, "coco", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("a", "b"), [("vrd", "vg150"), ("coco", "coco"), ("vrd", "vrd")])
def test_other_conversions_are_refused(tmp_path: Path, a: str, b: str) -> None:
    refused(f"got {a} to {b}", convert, a, tmp_path, b, tmp_path)


def write_own(root: Path, boxes: int, *splits: str) -> Path:
    corners = np.asarray([[0, 1, 5, 6], [2, 3, 9, 9], [1, 1, 2, 2.5]][:boxes], np.float64)
    scene = Scene("a.jpg", root / "a.jpg", (10, 12), corners, np.arange(boxes) % 2, np.asarray([[1, 0, 0]]))
    root.mkdir(exist_ok=True)
    coco.write([Dataset("own", s, Vocabulary(("man", "cup"), ("holds",)), (scene,), root) for s in splits], root)
    return root


def test_own_data_becomes_vrd_when_all_boxes_are_related(tmp_path: Path) -> None:
    own = write_own(tmp_path / "own", 2, "train", "test")
    convert("coco", own, "vrd", tmp_path / "vrd")
    train = load_dataset("vrd", tmp_path / "vrd")
    assert train.vocabulary.objects == ("man", "cup")
    assert train[0].boxes.tolist() == [[2, 3, 9, 9], [0, 1, 5, 6]]
    assert train[0].triplets.tolist() == [[1, 0, 0]]
    refused("not 'validation'", convert, "coco", write_own(own, 2, "validation"), "vrd", tmp_path / "new")
    write_own(own, 3, "train")
    refused(r"a\.jpg has 1 boxes outside relations", convert, "coco", own, "vrd", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_error_in_the_source_stops_the_conversion(tmp_path: Path) -> None:
    labels = FIELDS["labels"].copy()
    labels[7] = 9
    write_vg150(tmp_path / "old", labels=labels)
    refused("image 14, box 0, labels", convert, "vg150", tmp_path / "old", "coco", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", WRITERS)
def test_linked_pictures_are_found(tmp_path: Path, name: str) -> None:
    old = WRITERS[name](tmp_path / "old")
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "test"):
        for scene in format_of(name).read(old, split, Report()):
            scene.image.parent.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (64, 64)).save(scene.image)
    convert(name, old, "coco", tmp_path / "coco", link_images=True)
    for split in ("train", "test"):
        assert len(load_dataset("coco", tmp_path / "coco", split, images="required")) > 0
    if name == "vrd":
        convert("coco", tmp_path / "coco", name, tmp_path / "back", link_images=True)
        assert len(load_dataset(name, tmp_path / "back", images="required")) > 0
