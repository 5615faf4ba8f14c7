from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import shared
from vg_files import FIELDS, VG200, h5_values, write_vg150, write_vg200

from polyadic.datasets import coco as coco_relations
from polyadic.datasets import format_of, load_dataset
from polyadic.datasets.check import convert
from polyadic.datasets.reading import Report
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


def ends(label: int, *bbox: int) -> dict[str, Any]:
    return {"category": label, "bbox": list(bbox)}


# the same relation twice, a box with two classes, a box related to itself, an image without relations
VRD: dict[str, Any] = {
    "b.jpg": [
        {"subject": ends(1, 0, 10, 5, 20), "predicate": 0, "object": ends(0, 1, 2, 3, 4)},
        {"subject": ends(0, 0, 10, 5, 20), "predicate": 2, "object": ends(1, 0, 10, 5, 20)},
        {"subject": ends(1, 0, 10, 5, 20), "predicate": 0, "object": ends(0, 1, 2, 3, 4)},
        {"subject": ends(0, 1, 2, 3, 4), "predicate": 1, "object": ends(0, 1, 2, 3, 4)},
    ],
    "a.jpg": [],
}


def write_vrd(root: Path) -> Path:
    root.mkdir(parents=True)
    files = {
        "objects.json": ["person", "horse"],
        "predicates.json": ["ride", "on", "near"],
        "annotations_train.json": VRD,
        "annotations_test.json": {"c.jpg": VRD["b.jpg"][2:]},
        "train_image_metadata.json": {"b.jpg": {"width": 30, "height": 20}},
        "test_image_metadata.json": {},
    }
    for name, value in files.items():
        (root / name).write_text(json.dumps(value))
    return root


WRITERS = {"vrd": write_vrd, "vg150": write_vg150, "vg200": write_vg200}


def contents(root: Path) -> dict[str, Any]:
    values = {path.name: json.loads(path.read_text()) for path in root.glob("*.json")}
    return {**values, **{path.name: h5_values(path) for path in root.glob("*.h5")}}


@pytest.mark.parametrize("name", WRITERS)
def test_there_and_back_every_file_is_equal(tmp_path: Path, name: str) -> None:
    old = WRITERS[name](tmp_path / "old")
    there = convert(name, old, "coco", tmp_path / "coco")
    assert there == [tmp_path / "coco" / "train.json", tmp_path / "coco" / "test.json"]
    back = convert("coco", tmp_path / "coco", name, tmp_path / "back")
    assert {path.name for path in back} == set(contents(old))
    assert contents(tmp_path / "back") == contents(old)
    kind = format_of(name)
    for split in ("train", "test"):
        a, b = (kind.read(root, split, Report()) for root in (old, tmp_path / "back"))
        assert [s.name for s in a] == [s.name for s in b]
        for x, y in zip(a, b, strict=True):
            assert (x.size, x.boxes.tolist(), x.labels.tolist()) == (y.size, y.boxes.tolist(), y.labels.tolist())
            assert x.relations.tolist() == y.relations.tolist()


@pytest.mark.parametrize("name", WRITERS)
def test_converted_scenes_are_the_scenes(tmp_path: Path, name: str) -> None:
    old = WRITERS[name](tmp_path / "old")
    convert(name, old, "coco", tmp_path / "coco")
    for split in ("train", "test"):
        a, b = format_of(name).read(old, split, Report()), load_dataset("coco", tmp_path / "coco", split)
        assert a.vocabulary == b.vocabulary
        assert [Path(s.name).stem for s in a] == [Path(s.name).stem for s in b]
        for x, y in zip(a, b, strict=True):
            assert (x.image.name, x.size) == (y.image.name, y.size)
            assert np.array_equal(x.boxes, y.boxes)
            assert np.array_equal(x.triplets, y.triplets)


def test_the_published_vrd_comes_back_equal(tmp_path: Path, unchecked: None) -> None:
    old = shared("data", "vrd", "annotations_train.json").parent
    convert("vrd", old, "coco", tmp_path / "coco")
    back = convert("coco", tmp_path / "coco", "vrd", tmp_path / "back")
    names = [f"annotations_{split}.json" for split in ("train", "test")] + ["objects.json", "predicates.json"]
    for name in names:
        assert tmp_path / "back" / name in back
        assert (tmp_path / "back" / name).exists()
        assert json.loads((tmp_path / "back" / name).read_text()) == json.loads((old / name).read_text())


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("taken", ["train.json", "test.json"])
def test_nothing_is_overwritten_and_nothing_written_then(tmp_path: Path, name: str, taken: str) -> None:
    old, new = WRITERS[name](tmp_path / "old"), tmp_path / "coco"
    new.mkdir()
    (new / taken).write_text("mine")
    with pytest.raises(PolyadicError, match=f"{taken} exists and is not overwritten") as caught:
        convert(name, old, "coco", new)
    assert "\n" not in str(caught.value)
    assert [(path.name, path.read_text()) for path in new.iterdir()] == [(taken, "mine")]
    with pytest.raises(PolyadicError, match="exists and is not overwritten"):
        convert(name, tmp_path / "nowhere", "coco", new)  # said before anything is read


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interruption_leaves_nothing(tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    old, content = write_vrd(tmp_path / "old"), coco_relations._content

    def interrupted(dataset: Dataset) -> Any:
        if dataset.split == "test":
            raise error
        return content(dataset)

    monkeypatch.setattr(coco_relations, "_content", interrupted)
    with pytest.raises((KeyboardInterrupt, PolyadicError)):
        convert("vrd", old, "coco", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("a", "b"), [("vrd", "vg150"), ("coco", "coco"), ("vg150", "vg200"), ("vrd", "vrd")])
def test_other_pairs_are_refused(tmp_path: Path, a: str, b: str) -> None:
    with pytest.raises(PolyadicError, match=f"to coco or back, got {a} to {b}"):
        convert(a, tmp_path, b, tmp_path)
    with pytest.raises(PolyadicError, match="no dataset is called 'voc'"):
        convert(a, tmp_path, "voc", tmp_path)


def own(root: Path, used: bool, split: str = "train") -> Path:
    boxes = np.asarray([[0, 1, 5, 6], [2, 3, 9, 9], [1, 1, 2, 2.5]][: 2 if used else 3], np.float64)
    relations = np.asarray([[1, 0, 0]])
    scene = Scene("a.jpg", root / "a.jpg", (10, 12), boxes, np.arange(len(boxes)) % 2, relations)
    root.mkdir(exist_ok=True)
    coco_relations.write([Dataset("own", split, Vocabulary(("man", "cup"), ("holds",)), (scene,), root)], root)
    return root


def test_own_data_becomes_vrd_when_all_boxes_are_related(tmp_path: Path) -> None:
    convert("coco", own(tmp_path / "own", used=True), "vrd", tmp_path / "vrd", ["train"])
    train = load_dataset("vrd", tmp_path / "vrd")
    assert train.vocabulary.objects == ("man", "cup")
    assert train[0].boxes.tolist() == [[2, 3, 9, 9], [0, 1, 5, 6]]
    assert train[0].triplets.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vrd", "a.jpg has 1 boxes outside relations, which VRD's format cannot hold"),
        ("vg200", "only a dataset that came from VG200"),
        ("vg150", "only a dataset that came from VG150"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_in_one_line(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(PolyadicError, match=says) as caught:
        convert("coco", own(tmp_path / "own", used=False), name, tmp_path / "new", ["train"])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_own_validation_data_is_not_dropped_in_silence(tmp_path: Path) -> None:
    for split in ("train", "test", "validation"):
        own(tmp_path / "own", True, split)
    with pytest.raises(PolyadicError, match="not 'validation'"):
        convert("coco", tmp_path / "own", "vrd", tmp_path / "vrd")
    assert len(convert("coco", tmp_path / "own", "vrd", tmp_path / "vrd", ["train", "test"])) > 0


def test_errors_in_the_source_stop_it(tmp_path: Path) -> None:
    labels = FIELDS["labels"].copy()
    labels[7] = 9
    write_vg150(tmp_path / "old", labels=labels)
    with pytest.raises(PolyadicError, match="image 14, box 0, labels"):
        convert("vg150", tmp_path / "old", "coco", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def edited(root: Path, change: Any) -> None:
    data = json.loads((root / "train.json").read_text())
    change(data)
    (root / "train.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda d: d["annotations"][0].update(bbox=[1, 2, 3.25, 4]),
            "image 10.jpg has boxes whose .* not whole numbers",
        ),
        (lambda d: d["images"][0]["vg150"].pop("row"), "what 'vg150' says is not as it was written"),
        (lambda d: d["images"][0]["vg150"]["others"]["boxes_512"].pop(), "has 3 rows for boxes_512, but 2 were kept"),
        (lambda d: d["categories"].reverse(), "class names differ from VG150's: object 0"),
        (lambda d: d["images"][0].pop("vg150"), "only a dataset that came from VG150"),
        (lambda d: d["images"].pop(), "holds all 5 images of train and test, got 4"),
    ],
)
def test_a_converted_file_that_was_changed_goes_back_whole_or_not(tmp_path: Path, change: Any, says: str) -> None:
    convert("vg150", write_vg150(tmp_path / "old"), "coco", tmp_path / "coco")
    edited(tmp_path / "coco", change)
    with pytest.raises(PolyadicError, match=says) as caught:
        convert("coco", tmp_path / "coco", "vg150", tmp_path / "back")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "back").exists()


def test_a_label_that_was_corrected_goes_back(tmp_path: Path) -> None:
    convert("vg200", write_vg200(tmp_path / "old"), "coco", tmp_path / "coco")
    edited(tmp_path / "coco", lambda data: data["annotations"][0].update(category_id=2))
    convert("coco", tmp_path / "coco", "vg200", tmp_path / "back")
    found = h5_values(tmp_path / "back" / "vg1_2_meta.h5")["gt/train/123/rlp_labels"]
    assert found == ("int16", [[2, 1, 2]])
    assert VG200["train"]["123"][2] == [[3, 1, 3]]


@pytest.mark.parametrize("name", WRITERS)
def test_linked_pictures_are_found_there_and_back(tmp_path: Path, name: str) -> None:
    old = WRITERS[name](tmp_path / "old")
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "test"):
        for scene in format_of(name).read(old, split, Report()):
            scene.image.parent.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (64, 64)).save(scene.image)
    convert(name, old, "coco", tmp_path / "coco", link_images=True)
    convert("coco", tmp_path / "coco", name, tmp_path / "back", link_images=True)
    for split in ("train", "test"):
        assert len(load_dataset("coco", tmp_path / "coco", split, images="required")) > 0
        assert len(load_dataset(name, tmp_path / "back", split, images="required")) > 0
