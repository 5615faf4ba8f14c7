"""Detections and relations on disk: round trips, other vocabularies, old files, and one clear line for a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from polyadic.io.records import read_detections, read_relations, write_detections, write_relations
from polyadic.io.store import read_header
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicWarning, Vocabulary

NAMES = Vocabulary(objects=("person", "horse", "hat é", "sky"), predicates=("ride", "wear"))


def random_boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    corner = rng.normal(size=(n, 2)) * 100
    return np.concatenate([corner, corner + rng.exponential(size=(n, 2))], axis=1)


def random_detections(rng: np.random.Generator, image: str, with_distribution: bool | None = None) -> Detections:
    """Some without boxes, without a size, without a distribution."""
    n = int(rng.integers(0, 5))
    boxes = random_boxes(rng, n)
    distribution = rng.dirichlet(np.ones(5), n)[:, 1:].astype(np.float16).astype(np.float32)
    return Detections(
        image,
        boxes,
        rng.integers(0, 4, n),
        rng.random(n),
        None if rng.random() < 0.3 else (640.0, 480.5),
        distribution=distribution if (rng.random() < 0.7 if with_distribution is None else with_distribution) else None,
    )


def random_relations(rng: np.random.Generator, image: str) -> Relations:
    """Some without the detector's labels and without a size."""
    n, m = int(rng.integers(1, 5)), int(rng.integers(0, 6))
    triplets = np.stack([rng.integers(0, 4, m), rng.integers(0, 2, m), rng.integers(0, 4, m)], axis=1)
    columns = random_boxes(rng, n), rng.integers(0, n, (m, 2)), triplets, rng.normal(size=m)
    if rng.random() < 0.5:
        return Relations(image, *columns)
    return Relations(image, *columns, labels=rng.integers(-1, 4, n), confidences=rng.random(n), size=(640.0, 480.5))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), suffix=st.sampled_from([".safetensors", ".jsonl"]))
def test_detections_survive_a_round_trip(seed: int, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    with_distribution = None if suffix == ".safetensors" else False  # JSON Lines hold no distributions
    written = [random_detections(rng, f"{i} ü.jpg", with_distribution) for i in range(int(rng.integers(0, 6)))]
    path = write_detections(tmp_path_factory.mktemp("d") / f"d{suffix}", iter(written), NAMES)
    assert list(read_detections(path, NAMES)) == written


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_relations_survive_a_round_trip(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    written = [random_relations(rng, f"a/{i} ü.jpg") for i in range(4)]
    path = write_relations(tmp_path_factory.mktemp("p") / "p.jsonl", written, NAMES)
    assert list(read_relations(path, NAMES)) == written
    refused("exists", write_relations, path, written, NAMES)


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_unknown_labels_are_written_and_dropped_or_kept_on_reading(tmp_path: Path, suffix: str) -> None:
    boxes = np.array([[0.0, 0, 5, 5], [1, 1, 9, 9], [2, 2, 3, 3]])
    one = Detections("a.jpg", boxes, np.array([-1, 2, -1]), np.array([0.5, 0.25, 1]))
    path = write_detections(tmp_path / f"d{suffix}", [one], NAMES)
    assert list(read_detections(path, NAMES, unknown="keep")) == [one]
    with pytest.warns(PolyadicWarning, match=r"dropped 2 boxes .*unnamed \(2\)") as warned:
        assert list(read_detections(path, NAMES)) == [one.take(np.array([1]))]
    assert len(warned) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_file_of_another_vocabulary_is_matched_by_name(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(3)
    written = [random_detections(rng, f"{i}", with_distribution=suffix == ".safetensors") for i in range(9)]
    path = write_detections(tmp_path / f"d{suffix}", written, NAMES)
    turned = Vocabulary(objects=("sky", "tie", "Person", "horses", "hat é"), predicates=("on",))
    order = np.array([2, 3, 4, 0])
    for before, after in zip(written, read_detections(path, turned), strict=True):
        assert after.labels.tolist() == order[before.labels].tolist()
        assert np.array_equal(after.boxes, before.boxes)
        if before.distribution is not None and after.distribution is not None:
            assert np.array_equal(after.distribution[:, order], before.distribution)
            assert not after.distribution[:, 1].any()
    smaller = Vocabulary(objects=("horse", "ski"), predicates=("on",))
    horses, skies = (sum(int((image.labels == label).sum()) for image in written) for label in (1, 3))
    with pytest.warns(PolyadicWarning, match=r"d\.\w+: dropped .*person") as warned:
        assert sum(len(image) for image in read_detections(path, smaller)) == horses
    assert len(warned) == 1
    mapped = list(read_detections(path, smaller, {"sky": "ski", "person": "", "hat é": None}))
    assert sum(len(image) for image in mapped) == horses + skies
    kept = list(read_detections(path, smaller, unknown="keep"))
    assert [len(image) for image in kept] == [len(image) for image in written]


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_file_is_replaced_only_with_overwrite_and_appears_complete(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    one = [random_detections(np.random.default_rng(0), "a", with_distribution=False)]
    write_detections(path, one, NAMES)
    refused("exists; choose another name, or overwrite=True", write_detections, path, one, NAMES)

    def fails() -> Iterator[Detections]:
        yield replace(one[0], image="b")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_detections(path, fails(), NAMES, overwrite=True)
    assert [image.name for image in tmp_path.iterdir()] == [path.name]
    assert list(read_detections(path, NAMES)) == one
    two = [replace(one[0], image="b")]
    assert list(read_detections(write_detections(path, two, NAMES, overwrite=True), NAMES)) == two


def test_the_header_holds_vocabulary_and_notes(tmp_path: Path) -> None:
    path = write_detections(tmp_path / "d.safetensors", [], NAMES, run="runs/toy", split="test")
    with safe_open(path, "np") as file:
        texts = read_header(file.metadata())
    assert json.loads(texts["about"]) == {"run": "runs/toy", "split": "test"}
    assert Vocabulary.from_json(texts["vocabulary"]) == NAMES


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_invalid_detections_are_not_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    one = Detections("a", np.zeros((1, 4)), np.array([4]), np.ones(1))
    refused("a: label 4 is outside the 4 object classes", write_detections, path, [one], NAMES)
    refused("image 'a' occurs twice", lambda: write_detections(path, [replace(one, labels=np.array([0]))] * 2, NAMES))
    refused(r"no folder .*/none to write d\.", write_detections, tmp_path / "none" / path.name, [], NAMES)
    refused("written as", write_detections, tmp_path / "d.pkl", [], NAMES)
    wide = Detections("a", np.zeros((1, 4)), np.array([0]), np.ones(1), distribution=np.ones((1, 3)) / 3)
    refused("3 columns for 4 object classes", write_detections, tmp_path / "d.safetensors", [wide], NAMES)
    assert list(tmp_path.iterdir()) == []


BOXES: dict[str, Any] = {
    "image": "a.jpg",
    "size": [20, 10],
    "boxes": [[0, 0, 5, 5], [1, 1, 9, 9]],
    "labels": ["Person", "horses"],
    "scores": [0.5, 1],
}
DETECTIONS = Detections("a.jpg", np.array(BOXES["boxes"], float), np.array([0, 1]), np.array([0.5, 1]), (20.0, 10.0))
# relations as files of earlier versions have them
COLUMNS: dict[str, Any] = {
    "image": "a.jpg",
    "size": [20, 10],
    "boxes": BOXES["boxes"],
    "labels": ["person", "horse"],
    "confidences": [0.5, 1],
    "pairs": [[0, 1]],
    "triplets": [["person", "ride", "horse"]],
    "scores": [0.25],
}
RELATION = {"subject": {"box": 0, "name": "person"}, "predicate": "ride", "object": {"box": 1, "name": "horse"}}
RECORD: dict[str, Any] = {
    "image": "a.jpg",
    "size": [20, 10],
    "boxes": [
        {"box": [0, 0, 5, 5], "label": "person", "score": 0.5},
        {"box": [1, 1, 9, 9], "label": "horse", "score": 1},
    ],
    "relations": [{**RELATION, "probability": 0.5, "score": 0.25, "parts": {"psi_c": 0.5}}],
    "made": "0123",
    "given": {"subject": "person"},
}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(record if isinstance(record, str) else json.dumps(record) for record in records))
    return path


def test_relations_in_columns_and_as_objects_are_the_same(tmp_path: Path) -> None:
    (columns,) = read_relations(write(tmp_path / "p.jsonl", COLUMNS), NAMES)
    (objects,) = read_relations(write(tmp_path / "p.jsonl", RECORD), NAMES)
    assert columns == objects
    assert (columns.pairs.tolist(), columns.triplets.tolist(), columns.scores.tolist()) == (
        [[0, 1]],
        [[0, 0, 1]],
        [0.25],
    )
    assert columns.detections == DETECTIONS


def test_detections_come_from_a_file_of_relations_if_its_boxes_have_labels(tmp_path: Path) -> None:
    for record in (COLUMNS, RECORD):
        assert list(read_detections(write(tmp_path / "p.jsonl", record), NAMES)) == [DETECTIONS]
    bare = {key: value for key, value in COLUMNS.items() if key not in ("labels", "confidences")}
    refused("has no labels of its boxes", lambda: list(read_detections(write(tmp_path / "p.jsonl", bare), NAMES)))


def test_images_get_the_names_of_the_dataset(tmp_path: Path) -> None:
    record = {**RECORD, "image": "/data/test/7.jpg"}
    path = write(tmp_path / "p.jsonl", record)
    for images, name in (((), "/data/test/7.jpg"), (("7.jpg", "test/7.jpg"), "test/7.jpg"), (("7", "8"), "7")):
        assert [image.image for image in read_relations(path, NAMES, images)] == [name]
    write(path, record, {**record, "image": "other/7.jpg"})
    refused(r"line 2: image '7' is on line 1 too", lambda: list(read_relations(path, NAMES, ["7"])))


def test_a_json_file_holds_one_image_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(BOXES, indent=2))
    assert list(read_detections(path, NAMES)) == [DETECTIONS]
    path.write_text(json.dumps([BOXES, {**BOXES, "image": "b.jpg"}]))
    assert list(read_detections(path, NAMES)) == [DETECTIONS, replace(DETECTIONS, image="b.jpg")]
    path.write_text("[]")
    assert list(read_detections(path, NAMES)) == []


def test_scores_default_to_one_and_sizes_fill_in_what_the_file_lacks(tmp_path: Path) -> None:
    bare = {"image": "b.jpg", "boxes": BOXES["boxes"], "labels": BOXES["labels"]}
    path = write(tmp_path / "d.jsonl", BOXES, bare, {**bare, "image": "c.jpg"})
    images = list(read_detections(path, NAMES, sizes={"a.jpg": (1.0, 1.0), "b.jpg": (2.0, 2.0)}))
    assert [image.size for image in images] == [(20.0, 10.0), (2.0, 2.0), None]
    assert images[1].scores.tolist() == [1, 1]


BAD_DETECTIONS: dict[str, tuple[Any, str]] = {
    "missing": ({"image": "a", "boxes": []}, "no labels"),
    "unknown key": ({**BOXES, "label": []}, "unknown field `label`"),
    "label": ({**BOXES, "labels": ["person", 3]}, r"at `\$\.labels\[1\]`"),
    "score": ({**BOXES, "scores": [1, 1.5]}, r"score 1 must lie in \[0, 1\], got 1\.5"),
    "inside out": ({**BOXES, "boxes": [[5, 0, 0, 5], [1, 1, 9, 9]]}, "box 0 must be finite"),
    "size": ({**BOXES, "size": [0, 5]}, r"at `\$\.size\[0\]`"),
    "no confidences": ({**COLUMNS, "confidences": None}, "relations without confidences"),
    "again": ({**BOXES, "image": "first.jpg"}, "image 'first.jpg' occurs twice"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_DETECTIONS))
def test_bad_detections_are_named_with_file_and_record(tmp_path: Path, case: str) -> None:
    record, message = BAD_DETECTIONS[case]
    first = {**BOXES, "image": "first.jpg"}
    write(tmp_path / "d.jsonl", first, "", record)
    (tmp_path / "d.json").write_text(json.dumps([first, record]))
    for name, place in (("d.jsonl", "d.jsonl, line 3"), ("d.json", "d.json, record 1")):
        text = refused(message, list, read_detections(tmp_path / name, NAMES))
        assert text.startswith(name if case == "again" else place)


BAD_RELATIONS: dict[str, tuple[Any, str]] = {
    "cut": (json.dumps(RECORD)[:40], "not complete JSON"),
    "page": ("<!DOCTYPE html>", "a web page or XML, not JSON"),
    "missing key": ({key: COLUMNS[key] for key in COLUMNS if key != "scores"}, "expected relations, or pairs"),
    "unknown key": ({**RECORD, "score": 1}, "unknown field `score`"),
    "nan": ({**COLUMNS, "scores": [float("nan")]}, "score 0 must be a finite number"),
    "pointer": ({**COLUMNS, "pairs": [[0, 2]]}, "pairs point to box 2, but there are 2 boxes"),
    "class": ({**COLUMNS, "triplets": [["persom", "ride", "horse"]]}, "'persom'; did you mean 'person'"),
    "predicate": ({**RECORD, "relations": [{**RELATION, "predicate": "rides", "score": 1}]}, "did you mean 'ride'"),
    "labels alone": ({**COLUMNS, "confidences": None}, "labels and confidences of the boxes come together"),
    "confidence": ({**COLUMNS, "confidences": [2, 0]}, r"score 0 must lie in \[0, 1\]"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_RELATIONS))
def test_bad_relations_are_named_with_file_and_line(tmp_path: Path, case: str) -> None:
    record, message = BAD_RELATIONS[case]
    path = write(tmp_path / "p.jsonl", {**RECORD, "image": "first.jpg"}, record)
    assert refused(message, list, read_relations(path, NAMES)).startswith("p.jsonl, line 2")


def spoil(change: Callable[[dict[str, Any], dict[str, str]], object]) -> Callable[[Path], None]:
    """Change a file's tensors or its header, which is written as earlier versions did."""

    def apply(path: Path) -> None:
        with safe_open(path, "np") as file:
            texts = read_header(file.metadata())
        tensors = load_file(path)
        change(tensors, texts)
        save_file(tensors, path, texts)

    return apply


BAD_TENSORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is not a complete safetensors file"),
    "weights": (lambda path: save_file({"w": np.ones(3)}, path), "does not hold detections; its header says None"),
    "no labels": (spoil(lambda x, _: x.pop("labels")), "no column 'labels'"),
    "fewer": (spoil(lambda x, _: x.update(scores=x["scores"][:-1])), "columns of different lengths"),
    "offsets": (spoil(lambda x, _: x.update(offsets=x["offsets"][::-1].copy())), "offsets do not divide"),
    "label": (spoil(lambda x, _: x.update(labels=x["labels"] + 4)), "labels outside the 4 classes"),
    "score": (spoil(lambda x, _: x.update(scores=x["scores"] + 2)), r"score 0 must lie in \[0, 1\]"),
    "names": (spoil(lambda _, texts: texts.update(images="[")), "images: not complete JSON"),
}


def test_a_header_of_earlier_versions_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    written = [random_detections(rng, str(i)) for i in range(5)]
    path = write_detections(tmp_path / "d.safetensors", written, NAMES)
    spoil(lambda *_: None)(path)
    assert list(read_detections(path, NAMES)) == written


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_TENSORS))
def test_a_damaged_safetensors_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    change, message = BAD_TENSORS[case]
    rng = np.random.default_rng(5)
    path = write_detections(
        tmp_path / "d.safetensors", [random_detections(rng, str(i), i > 0) for i in range(3)], NAMES
    )
    assert [len(image) for image in read_detections(path, NAMES)] == [3, 2, 2]
    change(path)
    assert refused(message, list, read_detections(path, NAMES)).startswith("d.safetensors")


def test_a_folder_a_missing_file_and_a_mapping_of_numbers_are_refused(tmp_path: Path) -> None:
    for read in (read_detections, read_relations):
        refused("is a folder, expected a file", lambda read=read: list(read(tmp_path, NAMES)))
        refused(r"no file .*none\.json", lambda read=read: list(read(tmp_path / "none.json", NAMES)))
    (tmp_path / "x.mat").touch()
    refused(
        "number their classes, so no mapping of names applies",
        lambda: list(read_detections(tmp_path / "x.mat", NAMES, {"a": "sky"})),
    )


def test_reading_loads_no_torch() -> None:
    from test_imports import loaded_after

    loaded = loaded_after("from polyadic.io.records import read_detections, read_relations")
    assert "polyadic" in loaded
    assert "torch" not in loaded
