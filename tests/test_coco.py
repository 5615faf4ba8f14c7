from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from refusals import refused

from polyadic.datasets import coco, load_dataset
from polyadic.datasets.reading import Report
from polyadic.structures.vocabulary import PolyadicWarning, Vocabulary

# ids neither dense nor sorted, some of them strings; image "b" has no boxes
TRAIN: dict[str, Any] = {
    "info": {"year": 2024},
    "images": [
        {"id": 70, "file_name": "a.jpg", "width": 40, "height": 30, "license": 3},
        {"id": "x", "file_name": "sub/b.jpg", "width": 20.5, "height": 10},
        {"id": 5, "file_name": "c.jpg", "width": 50, "height": 60},
    ],
    "annotations": [
        {"id": 900, "image_id": 70, "category_id": 8, "bbox": [1, 2, 10, 20], "area": 200, "iscrowd": 0},
        {"id": "q", "image_id": 5, "category_id": 2, "bbox": [0.5, 0, 3, 4]},
        {"id": 3, "image_id": 70, "category_id": 2, "bbox": [5, 5, 5, 5]},
        {"id": 4, "image_id": 70, "category_id": 8, "bbox": [0, 0, 40, 30]},
    ],
    "categories": [{"id": 8, "name": "person"}, {"id": 2, "name": "horse", "supercategory": "animal"}],
    "rel_categories": [{"id": 30, "name": "ride"}, {"id": 10, "name": "on"}, {"id": 20, "name": "near"}],
    "rel_annotations": [
        {"id": 1, "image_id": 70, "subject_id": 3, "predicate_id": 20, "object_id": 900},
        {"id": 9, "image_id": 5, "subject_id": "q", "predicate_id": 10, "object_id": "q"},
        {"id": 2, "image_id": 70, "subject_id": 900, "predicate_id": 30, "object_id": 3},
    ],
}


def put(root: Path, data: Any = TRAIN, name: str = "train.json") -> Path:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(data))
    return root


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    data = copy.deepcopy(TRAIN)
    change(data)
    return data


def test_scenes_follow_the_file_whatever_the_ids(tmp_path: Path) -> None:
    train = load_dataset("coco", put(tmp_path))
    a, b, c = train
    assert [scene.name for scene in train] == ["a.jpg", "sub/b.jpg", "c.jpg"]
    assert train.vocabulary == Vocabulary(("person", "horse"), ("ride", "on", "near"))
    assert a.boxes.tolist() == [[1, 2, 11, 22], [5, 5, 10, 10], [0, 0, 40, 30]]
    assert a.labels.tolist() == [0, 1, 0]
    assert a.relations.tolist() == [[1, 2, 0], [0, 0, 1]]
    assert c.relations.tolist() == [[0, 1, 0]]
    assert (b.size, b.boxes.shape, b.relations.shape) == ((20.5, 10), (0, 4), (0, 3))
    assert (a.extra, train.extra) == ({"license": 3}, {"info": {"year": 2024}})


def test_other_splits_are_matched_by_name_and_may_have_other_ids(tmp_path: Path) -> None:
    def shuffle(data: dict[str, Any]) -> None:
        data["categories"] = [{"id": 8, "name": "horse"}, {"id": 2, "name": "person"}]
        data["rel_categories"].reverse()

    put(put(tmp_path), changed(shuffle), "test.json")
    test = load_dataset("coco", tmp_path, "test")
    assert test.vocabulary == load_dataset("coco", tmp_path).vocabulary
    assert test[0].labels.tolist() == [1, 0, 1]
    assert test[0].relations.tolist() == [[1, 2, 0], [0, 0, 1]]


def test_a_test_file_may_stand_alone(tmp_path: Path) -> None:
    assert load_dataset("coco", put(tmp_path, name="test.json"), "test").vocabulary.objects == ("person", "horse")


def test_a_class_unknown_in_training_is_an_error(tmp_path: Path) -> None:
    put(put(tmp_path), changed(lambda d: d["categories"][1].update(name="zebra")), "test.json")
    text = refused(r"^test.json, categories \(id 2\), name: 'zebra'", load_dataset, "coco", tmp_path, "test")
    assert "more)" not in text, "what follows from it is not reported again"


@pytest.mark.parametrize("name", ["validation.json", "val.json", "annotations/validation.json", "annotations/val.json"])
def test_a_validation_split_of_its_own_is_used(tmp_path: Path, name: str) -> None:
    put(tmp_path)
    assert not coco.has_validation(tmp_path)
    put(tmp_path, {**TRAIN, "images": TRAIN["images"][1:2], "annotations": [], "rel_annotations": []}, name)
    assert coco.has_validation(tmp_path)
    assert [scene.name for scene in load_dataset("coco", tmp_path, "validation")] == ["sub/b.jpg"]
    assert len(load_dataset("coco", tmp_path, "fit")) == 3


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    put(put(tmp_path), name="annotations/train.json")
    refused("both exist", load_dataset, "coco", tmp_path)


@pytest.mark.parametrize("folder", ["images", ".", "train"])
def test_pictures_are_found_in_images_the_root_or_the_split(tmp_path: Path, folder: str) -> None:
    put(tmp_path)
    (tmp_path / folder / "sub").mkdir(parents=True)
    (tmp_path / folder / "sub" / "b.jpg").touch()
    (tmp_path / folder / "c.gif").touch()
    a, b, c = load_dataset("coco", tmp_path)
    assert b.image == tmp_path / folder / "sub" / "b.jpg"
    assert a.image == tmp_path / "images" / "a.jpg"
    assert c.image == tmp_path / folder / "c.gif"


def test_a_null_size_means_an_unknown_frame(tmp_path: Path) -> None:
    put(tmp_path, changed(lambda d: d["images"][0].update(width=None, height=None)))
    assert load_dataset("coco", tmp_path)[0].size is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bbox": [35, 2, 10, 20]}, r"annotations\[0\] \(id 900\), bbox: .* leaves the frame 40 x 30"),
        ({"iscrowd": 1}, r"annotations\[0\] \(id 900\), iscrowd: marks a crowd"),
    ],
)
def test_odd_boxes_are_kept_with_a_warning(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    put(tmp_path, changed(lambda d: d["annotations"][0].update(change)))
    with pytest.warns(PolyadicWarning, match=f"^train.json, {says}"):
        assert len(load_dataset("coco", tmp_path)[0].boxes) == 3


def record(key: str, number: int, **values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data[key][number].update(values)


def without(key: str, number: int, name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data[key][number].pop(name)


# file, record, id and field are named
BOX, IMAGE, RELATION = r"annotations\[0\] \(id 900\)", r"images\[0\] \(id 70\)", r"rel_annotations\[0\] \(id 1\)"
REQUIRED = {key: [f.name for f in msgspec.structs.fields(kind) if f.required] for key, kind in coco.LISTS.items()}
BAD: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (record("annotations", 0, image_id=71), f"{BOX}, image_id: .*71"),
    (record("annotations", 0, category_id="8"), f"{BOX}, category_id: .*'8'"),
    (record("annotations", 0, bbox=[1, 2, -10, 20]), f"{BOX}, bbox: expected x1 <= x2"),
    (record("annotations", 0, bbox=[1, 2, None, 3]), r"annotations\[0\], bbox\[2\]: Expected `float`, got `null`"),
    (record("annotations", 0, bbox=[1, 2, 3]), r"annotations\[0\], bbox: Expected `array` of length 4"),
    (record("annotations", 0, id=3), r"annotations\[2\], id: .* got 3 again"),
    (record("annotations", 0, id=1.5), r"annotations\[0\], id: Expected `int"),
    (record("images", 0, height=None), f"{IMAGE}, width, height: .* 40.* and None"),
    (record("images", 0, width=0), r"images\[0\], width: Expected `float` > 0"),
    (record("images", 0, file_name=3), r"images\[0\], file_name: Expected `str`"),
    (record("rel_annotations", 0, subject_id=0), f"{RELATION}, subject_id: no id 0 in annotations"),
    (record("rel_annotations", 0, predicate_id=0), f"{RELATION}, predicate_id: no id 0 in rel_categories"),
    (record("rel_annotations", 0, object_id="q"), f"{RELATION}, image_id: .* of one image, got 70, 5, 70"),
    *((without(key, 0, name), rf"{key}\[0\], {name}: ") for key in coco.LISTS for name in REQUIRED[key]),
    (lambda d: d["images"].append(7), r"images\[3\]: Expected `object`, got `int` in 7"),
    (record("categories", 0, name="horse"), r"categories\[1\] \(id 2\), name: .* got 'horse'"),
]


def test_bad_records_are_refused_in_one_line_with_file_and_record(tmp_path: Path) -> None:
    for number, (change, message) in enumerate(BAD):
        root = put(tmp_path / str(number), changed(change))
        refused(f"^train.json, {message}", load_dataset, "coco", root)


def test_all_bad_records_are_reported_not_only_the_first(tmp_path: Path) -> None:
    def harm(data: dict[str, Any]) -> None:
        data["annotations"][0]["bbox"] = [1, 2, -1, 1]
        data["rel_annotations"][1]["object_id"] = 77

    report = Report()
    coco.read(put(tmp_path, changed(harm)), "train", report)
    assert [problem.kind for problem in report.errors] == ["inverted box", "dangling id"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no .*train.json"),
        (json.dumps(TRAIN)[:-40], "train.json: not complete JSON"),
        ("[]", "train.json: Expected `object`, got `array`"),
        ('{"images": [], "annotations": [], "categories": []}', "train.json, rel_categories: .* got no such key"),
        (json.dumps({**TRAIN, "categories": []}), "train.json, categories: has no classes"),
    ],
)
def test_missing_truncated_and_foreign_files_are_refused_in_one_line(
    tmp_path: Path, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "train.json").write_text(text)
    refused(says, load_dataset, "coco", tmp_path)


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    train = load_dataset("coco", put(tmp_path / "old"))
    (tmp_path / "new").mkdir()
    files = coco.write([train], tmp_path / "new")
    assert files == [tmp_path / "new" / "train.json"]
    written = json.loads(files[0].read_text())
    assert [image["id"] for image in written["images"]] == [1, 2, 3]
    assert [box["id"] for box in written["annotations"]] == [1, 2, 3, 4]
    back = load_dataset("coco", tmp_path / "new")
    assert back.extra == train.extra
    assert [(s.name, s.size, s.extra) for s in back] == [(s.name, s.size, s.extra) for s in train]
    for a, b in zip(back, train, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.relations, b.relations)
