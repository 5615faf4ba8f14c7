from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from shared_data import shared
from vg_files import FIELDS, OBJECTS, PREDICATES, image_data, many_vg150, write_vg150

from polyadic.datasets import load_dataset, vg150
from polyadic.datasets.reading import Report
from polyadic.evaluation import evaluate, get_protocol
from polyadic.io.records import read_relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicWarning


def read(root: Path, split: str = "train") -> tuple[Dataset, Report]:
    report = Report()
    return vg150.read(root, split, report), report


def changed(name: str, at: Any, value: Any) -> dict[str, np.ndarray]:
    values = FIELDS[name].copy()
    values[at] = value
    return {name: values}


def test_every_image_of_a_split_is_read_as_it_is(tmp_path: Path) -> None:
    train, report = read(write_vg150(tmp_path))
    assert not report.problems
    assert [scene.name for scene in train] == ["10", "11", "12"]
    assert [len(scene.boxes) for scene in train] == [3, 2, 0]
    assert [len(scene.relations) for scene in train] == [3, 0, 0]
    assert train[2].boxes.shape == (0, 4)
    assert train[0].relations.tolist() == [[0, 1, 1], [1, 3, 2], [0, 1, 1]]
    assert train[0].labels.tolist() == [0, 1, 2]
    assert train[0].image == tmp_path / "images" / "10.jpg"
    test, _ = read(tmp_path, "test")
    assert [scene.name for scene in test] == ["13", "14"]
    assert test[0].relations.tolist() == [[1, 0, 0], [1, 0, 0]]


def test_names_follow_their_numbers_not_their_order(tmp_path: Path) -> None:
    train, _ = read(write_vg150(tmp_path))
    assert train.vocabulary.objects == ("car", "man", "wheel")
    assert train.vocabulary.predicates == ("has", "on", "of", "near")
    assert train.vocabulary.decode(train[0].triplets[0].tolist()) == ("car", "on", "man")


def test_boxes_are_truncated_as_in_the_field_or_exact_in_a_frame_whose_longer_side_is_1024(tmp_path: Path) -> None:
    train, _ = read(write_vg150(tmp_path, **changed("boxes_1024", 0, [2, 3, 5, 7])))
    assert train[0].boxes.tolist() == [[0, 0, 5, 7], [249, 283, 350, 316], [0, 0, 1024, 768]]  # -0.5 becomes 0
    exact = load_dataset("vg150", tmp_path, exact_boxes=True)
    assert exact[0].boxes.tolist() == [[-0.5, -0.5, 4.5, 6.5], [249.5, 283.5, 350.5, 316.5], [0, 0, 1024, 768]]
    refused("exact_boxes is for vg150", lambda: load_dataset("vg200", tmp_path, exact_boxes=True))
    assert [scene.size for scene in train] == [(1024, 768), (600, 1024), (1024, 1024)]
    assert train[0].boxes_in(800, 600)[2].tolist() == [0, 0, 800, 600]


@pytest.mark.parametrize("corrupted", [True, False])
def test_the_four_corrupted_images_may_still_be_listed(tmp_path: Path, corrupted: bool) -> None:
    train, _ = read(write_vg150(tmp_path, image_data(corrupted)))
    assert [scene.size for scene in train] == [(1024, 768), (600, 1024), (1024, 1024)]


@pytest.mark.parametrize("folder", ["images", "VG_100K", "VG_100K_2"])
def test_pictures_are_found_in_each_folder_that_is_in_use(tmp_path: Path, folder: str) -> None:
    write_vg150(tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "11.jpg").touch()
    train, _ = read(tmp_path)
    assert train[1].image == tmp_path / folder / "11.jpg"
    assert not train[0].image.exists()


def test_the_field_drops_empty_images_and_keeps_repeated_relations(tmp_path: Path) -> None:
    write_vg150(tmp_path)
    train, test = load_dataset("vg150", tmp_path), load_dataset("vg150", tmp_path, "test")
    assert [scene.name for scene in train] == ["10"]
    assert train[0].relations.tolist() == [[0, 1, 1], [1, 3, 2], [0, 1, 1]]
    assert [scene.name for scene in test] == ["13"]
    assert len(test[0].relations) == 2


@pytest.mark.parametrize(("n", "size"), [(60_000, 5_000), (50_000, 5_000), (30, 3), (4, 0)])
def test_the_first_5000_validate_or_a_tenth_of_a_small_set(n: int, size: int, unchecked: None) -> None:
    none = np.zeros((0, 4))
    scene = Scene("", Path(), None, none, np.zeros(0, np.int64), np.zeros((0, 3), np.int64))
    scenes = tuple(_named(scene, str(i)) for i in range(n))
    assert vg150.held_out(scenes) == {str(i) for i in range(size)}


def _named(scene: Scene, name: str) -> Scene:
    copy = object.__new__(Scene)
    copy.__dict__.update(scene.__dict__, name=name)
    return copy


def test_a_box_outside_the_frame_is_kept_with_a_warning(tmp_path: Path) -> None:
    write_vg150(tmp_path, **changed("boxes_1024", 1, [1000, 760, 100, 20]))
    train, _ = read(tmp_path)
    assert train[0].boxes[1].tolist() == [950, 750, 1050, 770]
    with pytest.warns(PolyadicWarning, match="image 10, box 1"):
        load_dataset("vg150", tmp_path)


# file, record and field are named
BAD: list[tuple[dict[str, Any], str]] = [
    (changed("labels", 1, 4), "VG-SGG.h5, image 10, box 1, labels: .*1 to 3, got 4"),
    (changed("labels", 1, 0), "image 10, box 1, labels: .*got 0"),
    (changed("predicates", 1, 5), "image 10, relation 1, predicates: .*1 to 4, got 5"),
    (changed("relationships", 1, [1, 3]), r"image 10, relation 1, relationships: .*got \[1, 3\]"),
    (changed("boxes_1024", 1, [300, 300, -2, 33]), "image 10, box 1, boxes_1024: expected x1 <= x2"),
    (changed("img_to_last_box", 1, 9), r"image 11, img_to_first_box: .* got \[3, 9\]"),
    (changed("split", 1, 1), "VG-SGG.h5, record 1, split: expected 0 or 2, got 1"),
    ({"labels": None}, "VG-SGG.h5: no array 'labels'"),
    ({"labels": np.ones(9, np.int64)}, r"'labels' must be .*got int64 \[9\]"),
    ({"labels": np.ones((8, 1), np.int64)}, r"labels, boxes_1024 need one length, got \[8, 9\]"),
    ({"records": image_data(False)[:-1]}, "image_data.json: 4 images .*has 5"),
    ({"records": {}}, "image_data.json: Expected `array`"),
    ({"records": [1, *image_data(False)[1:]]}, "image_data.json, record 0: Expected `object`, got `int`"),
    ({"records": [{"width": 3, "height": 4}, *image_data(False)[1:]]}, "record 0, image_id: "),
    ({"records": [{"image_id": 10, "width": 3, "height": 0}, *image_data(False)[1:]]}, "record 0, height: .* > 0"),
    ({"records": [*image_data(False)[:1] * 2, *image_data(False)[2:]]}, "record 1, image_id: .*another record"),
    ({"dicts": {"label_to_idx": OBJECTS}}, "VG-SGG-dicts.json, predicate_to_idx: .* got no such key"),
    (
        {"dicts": {"label_to_idx": {"a": 1, "b": 3}, "predicate_to_idx": PREDICATES}},
        "label_to_idx: expected .* got {'a': 1, 'b': 3}",
    ),
    ({"dicts": {"label_to_idx": {"a": "1"}, "predicate_to_idx": PREDICATES}}, "label_to_idx: expected .*'1'"),
]


def test_bad_records_are_refused_in_one_line_with_file_and_record(tmp_path: Path) -> None:
    for number, (bad, message) in enumerate(BAD):
        root = write_vg150(tmp_path / str(number), **bad)
        refused(message, load_dataset, "vg150", root)


def test_all_bad_records_are_reported_not_only_the_first(tmp_path: Path) -> None:
    _, report = read(write_vg150(tmp_path, **changed("labels", [0, 2], 9), **changed("predicates", 1, 0)))
    assert [problem.record for problem in report.errors] == [
        "image 10, box 0",
        "image 10, box 2",
        "image 10, relation 1",
    ]


@pytest.mark.parametrize("name", ["VG-SGG.h5", "VG-SGG-dicts.json", "image_data.json"])
def test_missing_truncated_and_foreign_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = write_vg150(tmp_path) / name
    truncated = path.read_bytes()[:-9]
    path.unlink()
    for content, message in ((None, "data fetch vg150"), (truncated, "not complete"), (b"<html>", name)):
        if content is not None:
            path.write_bytes(content)
        refused(message, load_dataset, "vg150", tmp_path)


def test_the_published_names_are_150_and_50(tmp_path: Path) -> None:
    dicts = json.loads(shared("data", "vg", "VG-SGG-dicts.json").read_text())
    train, _ = read(write_vg150(tmp_path, dicts=dicts))
    assert train.vocabulary.sizes == (150, 50, 150)
    assert train.vocabulary.objects[0] == "airplane"
    assert train.vocabulary.predicates[0] == "above"
    assert list(train.vocabulary.objects) == sorted(train.vocabulary.objects)


def motifs_entry(centres: np.ndarray, labels: np.ndarray, verbs: int, rng: np.random.Generator) -> dict[str, Any]:
    """One image as neural-motifs writes it in predcls: integer corners, scaled to 592 pixels and back in float32."""
    corners = centres.copy()  # whole numbers
    for axis in (0, 1):
        for row in corners:
            row[axis] = int(row[axis] - row[axis + 2] / 2)  # towards 0
            row[axis + 2] = row[axis] + row[axis + 2]
    small = corners.astype(np.float32) * np.float32(592 / 1024)
    n = len(corners)
    pairs = np.argwhere(~np.eye(n, dtype=bool))
    return {
        "pred_boxes": small * np.float32(1024) / np.float32(592),
        "pred_classes": labels.copy(),
        "obj_scores": np.ones(n, np.float32),
        "pred_rel_inds": pairs,
        "rel_scores": rng.dirichlet(np.ones(verbs + 1), len(pairs)).astype(np.float32),
    }


@pytest.mark.parametrize("task", ["phrase-classification", "predicate-classification"])
@pytest.mark.parametrize("exact", [False, True])
def test_pickles_by_the_arithmetic_of_neural_motifs_are_scored(tmp_path: Path, task: str, exact: bool) -> None:
    n, rng = 60, np.random.default_rng(0)
    sizes = rng.integers(1, 400, (3 * n, 2))
    low = rng.integers(0, 360, (3 * n, 2))
    boxes = np.concatenate([low + (sizes + 1) // 2, sizes], axis=1).astype(np.int32)
    assert (sizes % 2 == 1).any(1).reshape(n, 3).any(1).mean() > 0.9  # nearly every image has an odd size
    many_vg150(tmp_path, train=10, test=n - 10, boxes_1024=boxes)
    test = load_dataset("vg150", tmp_path, "test", exact_boxes=exact)
    labels = np.array([1, 2, 3])
    rows = boxes.reshape(n, 3, 4)[10:]
    entries = [motifs_entry(some, labels, len(test.vocabulary.predicates), rng) for some in rows]
    path = tmp_path / "predcls.pkl"
    path.write_bytes(pickle.dumps(entries))
    predictions = list(read_relations(path, test.vocabulary, [scene.name for scene in test]))
    if not exact:
        for scene, relations in zip(test, predictions, strict=True):
            np.testing.assert_allclose(relations.boxes, scene.boxes, rtol=0, atol=2e-4)
    (recall,) = evaluate(test, predictions, get_protocol("motifs").change(task=task, k=None, tops=(50,)))
    assert recall.recall == 100  # 6 pairs x 4 predicates: all are among the best 50
    moved = [entry | {"pred_boxes": entry["pred_boxes"] + np.float32(2)} for entry in entries]
    path.write_bytes(pickle.dumps(moved))
    others = list(read_relations(path, test.vocabulary, [scene.name for scene in test]))
    refused("is none of them", lambda: evaluate(test, others, get_protocol("motifs").change(task=task)))
