"""VRD: its reader on files that the test writes, and the published statistics on the real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from refusals import refused
from shared_data import real_vrd
from vrd_files import RIDER, TRAIN, relation, write_vrd

from polyadic.datasets import SPLITS, load_dataset
from polyadic.datasets.check import statistics, zero_shot
from polyadic.structures.vocabulary import PolyadicWarning


def test_boxes_classes_and_relations_are_those_of_the_file(tmp_path: Path) -> None:
    scene = load_dataset("vrd", write_vrd(tmp_path), "train")[0]
    assert (scene.name, scene.size) == ("a.jpg", (100.0, 100.0))
    assert scene.boxes.tolist() == [[20, 10, 50, 60], [5, 40, 80, 90], [25, 8, 40, 15]]  # xyxy from [y, y, x, x]
    assert scene.labels.tolist() == [0, 1, 2]
    assert scene.relations.tolist() == [[0, 0, 1], [0, 1, 2], [0, 1, 1]]
    assert scene.triplets.tolist() == [[0, 0, 1], [0, 1, 2], [0, 1, 1]]


def test_scenes_without_relations_self_pairs_repeats_and_boxes_of_two_classes_are_kept(tmp_path: Path) -> None:
    both = (1, RIDER[1])  # the rider's box, called a horse
    root = write_vrd(tmp_path, test={"x.jpg": [relation(RIDER, 1, both), relation(RIDER, 1, RIDER)]})
    train, test = load_dataset("vrd", root, "train"), load_dataset("vrd", root, "test")
    assert [len(scene.relations) for scene in train] == [3, 2, 0]
    assert train[1].relations.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert test[0].labels.tolist() == [0, 1]
    assert test[0].boxes[0].tolist() == test[0].boxes[1].tolist()
    assert test[0].relations.tolist() == [[0, 1, 1], [0, 1, 0]]


def test_boxes_follow_a_picture_of_another_size(tmp_path: Path) -> None:
    scene = load_dataset("vrd", write_vrd(tmp_path), "train")[0]
    picture = scene.open()
    assert picture.size == (50, 50)
    assert scene.boxes_in(*picture.size)[0].tolist() == [10, 5, 25, 30]


def test_without_metadata_the_frame_is_the_picture_s_size_or_unknown(tmp_path: Path) -> None:
    root = write_vrd(
        tmp_path / "a", sizes=False, train={"t.jpg": [relation((0, [1, 9, 1, 9]), 1, (2, [2, 30, 2, 40]))]}
    )
    assert load_dataset("vrd", root, "train")[0].size == (50.0, 50.0)
    bare = load_dataset("vrd", write_vrd(tmp_path / "b", sizes=False, pictures=False), "train")[0]
    assert bare.size is None
    refused(r"a\.jpg: the size of the annotated frame is unknown", bare.boxes_in, 10, 10)


@pytest.mark.parametrize("stored", ["a.gif", "a.jpg", "a.png"])
def test_a_gif_or_png_that_the_annotations_call_jpg_opens(tmp_path: Path, stored: str) -> None:
    root = write_vrd(tmp_path)
    folder = root / "sg_dataset" / "sg_train_images"
    (folder / "a.jpg").unlink()
    Image.new("P", (40, 20), 3).save(folder / stored, format="PNG" if stored == "a.png" else "GIF")
    picture = load_dataset("vrd", root, "train")[0].open()
    assert (picture.mode, picture.size) == ("RGB", (40, 20))


def test_fit_and_validation_split_the_training_scenes_deterministically(tmp_path: Path) -> None:
    many = {f"{i}.jpg": TRAIN["a.jpg"] for i in range(40)}
    root = write_vrd(tmp_path / "a", train=many, pictures=False)
    parts = {split: [scene.name for scene in load_dataset("vrd", root, split)] for split in SPLITS}
    assert len(parts["validation"]) == 4
    assert sorted(parts["fit"] + parts["validation"]) == sorted(parts["train"])
    assert not set(parts["validation"]) & set(parts["test"])
    turned = write_vrd(tmp_path / "b", train=dict(reversed(many.items())), pictures=False)
    assert {scene.name for scene in load_dataset("vrd", turned, "validation")} == set(parts["validation"])


def test_missing_pictures_are_skipped_only_on_request(tmp_path: Path) -> None:
    root = write_vrd(tmp_path)
    (root / "sg_dataset" / "sg_train_images" / "b.jpg").unlink()
    assert len(load_dataset("vrd", root, "train")) == 3
    assert [scene.name for scene in load_dataset("vrd", root, "train", images="present")] == ["a.jpg", "empty.jpg"]
    missing = r'1 of 3 pictures are missing \(b\.jpg\).*images="present"'
    refused(missing, load_dataset, "vrd", root, "train", images="required")


def break_file(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


def break_relation(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        annotations = json.loads((root / "annotations_train.json").read_text())
        change(annotations["b.jpg"][1])
        (root / "annotations_train.json").write_text(json.dumps(annotations))

    return apply


# file, record and field are named
BAD: list[tuple[Callable[[Path], object], str]] = [
    (break_file("annotations_train.json", '{"a.jpg": [{"pred'), r"annotations_train\.json: not complete JSON"),
    (break_file("annotations_train.json", "[]"), r"annotations_train\.json: Expected `object`, got `array`"),
    (break_file("annotations_train.json", '{"a.jpg": 5}'), r"train\.json, a\.jpg: .*got 5"),
    (break_file("annotations_train.json", '{"a.jpg": [7]}'), r"a\.jpg, relation 0: Expected `object`, got `int`"),
    (break_file("objects.json", '{"person": 0}'), r"objects\.json: Expected `array`"),
    (break_file("objects.json", '["a", "b", "a"]'), "'a' occurs twice"),
    (lambda root: (root / "predicates.json").unlink(), "polyadic data fetch vrd"),
    (break_file("train_image_metadata.json", '{"a.jpg": {"width": 3}}'), r"metadata\.json, a\.jpg, height: "),
    (break_relation(lambda r: r.pop("predicate")), r"train\.json, b\.jpg, relation 1, predicate: "),
    (break_relation(lambda r: r["object"].pop("category")), r"b\.jpg, relation 1, object\.category: Object missing"),
    (break_relation(lambda r: r["object"].update(category=3)), r"object\.category: .*0 to 2, got 3"),
    (break_relation(lambda r: r.update(predicate="ride")), r"relation 1, predicate: Expected `int`, got `str`"),
    (break_relation(lambda r: r["subject"].update(bbox=[60, 10, 20, 50])), r"subject\.bbox: expected x1 <= x2"),
    (break_relation(lambda r: r["subject"].update(bbox=[1, 2, 3, float("nan")])), "four finite numbers"),
]


def test_bad_files_are_refused_in_one_line_that_names_the_record(tmp_path: Path) -> None:
    for number, (spoil, message) in enumerate(BAD):
        root = write_vrd(tmp_path / str(number))
        spoil(root)
        refused(message, load_dataset, "vrd", root, "train")


def test_a_box_outside_the_frame_is_kept_with_a_warning(tmp_path: Path) -> None:
    root = write_vrd(tmp_path, test={"x.jpg": [relation(RIDER, 0, (1, [40, 190, 5, 80]))]})
    with pytest.warns(PolyadicWarning, match=r"x\.jpg, relation 0, object\.bbox: .*leaves the frame"):
        scene = load_dataset("vrd", root, "test")[0]
    assert scene.boxes[1].tolist() == [5, 40, 80, 190]


def test_unknown_datasets_splits_and_roots_are_refused(tmp_path: Path) -> None:
    root = write_vrd(tmp_path)
    refused("vrt", load_dataset, "vrt", root, "train")
    refused("'val'", load_dataset, "vrd", root, "val")
    refused("as root", load_dataset, "vrd", root / "no", "train")


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    return {split: real_vrd(split) for split in SPLITS}


def test_the_published_statistics_of_vrd(real: dict[str, Any]) -> None:
    train, test = statistics(real["train"]), statistics(real["test"])
    assert (train["images"], test["images"]) == (4000, 1000)
    assert (train["relations"], test["relations"]) == (30355, 7638)
    assert (train["images without relations"], test["images without relations"]) == (220, 45)
    assert train["distinct triplets"] == 6672
    assert test["relations of a box with itself"] == 34
    assert test["relations repeated exactly"] == 160
    assert train["pairs with several predicates, share"] == pytest.approx(0.09, abs=0.002)
    assert zero_shot(real["train"], real["test"])["zero-shot truths"] == 1169


def test_the_validation_split_of_vrd_never_changes(real: dict[str, Any]) -> None:
    names = [scene.name for scene in real["validation"]]
    assert (len(names), len(real["fit"])) == (400, 3600)
    assert not set(names) & {scene.name for scene in real["test"]}
    assert hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16] == "6b2d8da192fc211a"


def test_every_real_test_picture_opens_and_the_gif_is_among_them(real: dict[str, Any]) -> None:
    scene = next(scene for scene in real["test"] if scene.name == "4392556686_44d71ff5a0_o.jpg")
    assert scene.image.name == "4392556686_44d71ff5a0_o.gif"
    assert scene.open().mode == "RGB"
    assert scene.size is not None
    assert all(scene.image.exists() for scene in real["test"])
