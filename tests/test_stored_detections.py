"""Detections on disk: round trips, other people's files, other vocabularies, and one clear line for a bad one."""

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
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from polyadic.io.records import read_detections, write_detections
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

NAMES = Vocabulary(objects=("person", "horse", "hat é", "sky"), predicates=("ride", "wear"))


def random_detections(rng: np.random.Generator, image: str, told: bool | None = None) -> Detections:
    """Some without boxes, without a size, without a distribution; labels known."""
    n = int(rng.integers(0, 5))
    corner = rng.normal(size=(n, 2)) * 100
    distribution = rng.dirichlet(np.ones(5), n)[:, 1:].astype(np.float16).astype(np.float32)
    return Detections(
        image,
        np.concatenate([corner, corner + rng.exponential(size=(n, 2))], axis=1),
        rng.integers(0, 4, n),
        rng.random(n),
        None if rng.random() < 0.3 else (640.0, 480.5),
        distribution if (rng.random() < 0.7 if told is None else told) else None,
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), suffix=st.sampled_from([".safetensors", ".jsonl"]))
def test_what_is_read_is_what_was_written(seed: int, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    told = None if suffix == ".safetensors" else False  # JSON Lines have no place for distributions
    written = [random_detections(rng, f"{i} ü.jpg", told) for i in range(int(rng.integers(0, 6)))]
    path = write_detections(tmp_path_factory.mktemp("d") / f"d{suffix}", iter(written), NAMES)
    assert list(read_detections(path, NAMES)) == written


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_unknown_labels_survive_and_are_dropped_or_kept_by_choice(tmp_path: Path, suffix: str) -> None:
    boxes = np.array([[0.0, 0, 5, 5], [1, 1, 9, 9], [2, 2, 3, 3]])
    one = Detections("a.jpg", boxes, np.array([-1, 2, -1]), np.array([0.5, 0.25, 1]))
    path = write_detections(tmp_path / f"d{suffix}", [one], NAMES)
    assert list(read_detections(path, NAMES, unknown="keep")) == [one]
    with pytest.warns(PolyadicWarning, match=r"dropped 2 boxes .*unnamed \(2\)") as told:
        assert list(read_detections(path, NAMES)) == [one.take(np.array([1]))]
    assert len(told) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_file_of_another_vocabulary_is_matched_by_name(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(3)
    written = [random_detections(rng, f"{i}", told=suffix == ".safetensors") for i in range(9)]
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
    horses, skies = (sum(int((each.labels == label).sum()) for each in written) for label in (1, 3))
    with pytest.warns(PolyadicWarning, match=r"d\.\w+: dropped .*person") as told:
        assert sum(len(each) for each in read_detections(path, smaller)) == horses
    assert len(told) == 1
    mapped = list(read_detections(path, smaller, {"sky": "ski", "person": "", "hat é": None}))
    assert sum(len(each) for each in mapped) == horses + skies
    kept = list(read_detections(path, smaller, unknown="keep"))
    assert [len(each) for each in kept] == [len(each) for each in written]


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_file_is_replaced_only_when_told_to_and_appears_complete(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    one = [random_detections(np.random.default_rng(0), "a", told=False)]
    write_detections(path, one, NAMES)
    with pytest.raises(PolyadicError, match="exists; choose another name, or overwrite=True"):
        write_detections(path, one, NAMES)

    def fails() -> Iterator[Detections]:
        yield replace(one[0], image="b")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_detections(path, fails(), NAMES, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert list(read_detections(path, NAMES)) == one
    two = [replace(one[0], image="b")]
    assert list(read_detections(write_detections(path, two, NAMES, overwrite=True), NAMES)) == two


def test_the_header_says_what_the_writer_wants_to_be_said(tmp_path: Path) -> None:
    path = write_detections(tmp_path / "d.safetensors", [], NAMES, run="runs/toy", split="test")
    with safe_open(path, "np") as file:
        texts = file.metadata()
    assert json.loads(texts["about"]) == {"run": "runs/toy", "split": "test"}
    assert Vocabulary.from_json(texts["vocabulary"]) == NAMES


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    one = Detections("a", np.zeros((1, 4)), np.array([4]), np.ones(1))
    with pytest.raises(PolyadicError, match="a: label 4 is outside the 4 object classes"):
        write_detections(path, [one], NAMES)
    with pytest.raises(PolyadicError, match="image 'a' occurs twice"):
        write_detections(path, [replace(one, labels=np.array([0]))] * 2, NAMES)
    with pytest.raises(PolyadicError, match=r"no folder .*/none to write d\."):
        write_detections(tmp_path / "none" / path.name, [], NAMES)
    with pytest.raises(PolyadicError, match=r"written as \.safetensors or \.jsonl, got '\.pkl'"):
        write_detections(tmp_path / "d.pkl", [], NAMES)
    assert list(tmp_path.iterdir()) == []


def test_a_distribution_of_another_width_is_not_written(tmp_path: Path) -> None:
    one = Detections("a", np.zeros((1, 4)), np.array([0]), np.ones(1), distribution=np.ones((1, 3)) / 3)
    with pytest.raises(PolyadicError, match="a: distribution has 3 columns for 4 object classes"):
        write_detections(tmp_path / "d.safetensors", [one], NAMES)


GOOD: dict[str, Any] = {
    "image": "a.jpg",
    "size": [20, 10],
    "boxes": [[0, 0, 5, 5], [1, 1, 9, 9]],
    "labels": ["Person", "horses"],
    "scores": [0.5, 1],
}
FOUND = Detections("a.jpg", np.array(GOOD["boxes"], float), np.array([0, 1]), np.array([0.5, 1]), (20.0, 10.0))
PREDICTIONS = {"pairs": [[0, 1]], "triplets": [["person", "ride", "horse"]], "scores": [7]}


def test_one_photo_s_boxes_may_be_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(GOOD, indent=2))
    assert list(read_detections(path, NAMES)) == [FOUND]
    path.write_text(json.dumps([GOOD, {**GOOD, "image": "b.jpg"}]))
    assert list(read_detections(path, NAMES)) == [FOUND, replace(FOUND, image="b.jpg")]
    path.write_text(json.dumps({key: GOOD[key] for key in ("image", "boxes", "labels")}))
    (bare,) = read_detections(path, NAMES, sizes={"a.jpg": (4.0, 3.0)})
    assert (bare.scores.tolist(), bare.size) == ([1, 1], (4.0, 3.0))
    path.write_text("[]")
    assert list(read_detections(path, NAMES)) == []


def test_sizes_are_for_images_whose_size_the_file_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    bare = {key: value for key, value in GOOD.items() if key != "size"} | {"image": "b.jpg"}
    path.write_text("\n".join(json.dumps(each) for each in (GOOD, bare, {**bare, "image": "c.jpg"})))
    found = read_detections(path, NAMES, sizes={"a.jpg": (1.0, 1.0), "b.jpg": (2.0, 2.0)})
    assert [each.size for each in found] == [(20.0, 10.0), (2.0, 2.0), None]


def test_a_predictions_file_gives_the_boxes_confidences_not_the_triplets_scores(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**GOOD, **PREDICTIONS, "confidences": [0.5, 1]}))
    assert list(read_detections(path, NAMES)) == [FOUND]


BOX = {"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}
CATEGORIES = [{"id": 3, "name": "person"}, {"id": 9, "name": "zebra"}]
IMAGES = [{"id": 7, "file_name": "a.jpg", "width": 20, "height": 10}]


def test_coco_results_find_their_categories_in_the_file_beside_it_or_given(tmp_path: Path) -> None:
    path, beside, given = tmp_path / "results.json", tmp_path / "categories.json", tmp_path / "instances.json"
    path.write_text(json.dumps([BOX]))
    with pytest.raises(PolyadicError, match=r"results\.json: COCO results name no classes; .*categories\.json beside"):
        list(read_detections(path, NAMES))
    given.write_text(json.dumps({"images": IMAGES, "categories": CATEGORIES}))
    wanted = Detections("a.jpg", np.array([[1.0, 2, 4, 6]]), np.array([0]), np.array([0.5]), (20.0, 10.0))
    assert list(read_detections(path, NAMES, categories=given)) == [wanted]
    beside.write_text(json.dumps(CATEGORIES))
    assert list(read_detections(path, NAMES)) == [replace(wanted, image="7", size=None)]
    path.write_text(json.dumps({"images": IMAGES, "categories": CATEGORIES, "annotations": [BOX]}))
    assert list(read_detections(path, NAMES)) == [wanted]
    path.write_text(json.dumps({"images": IMAGES, "annotations": [BOX]}))
    assert list(read_detections(path, NAMES)) == [wanted]
    path.write_text(json.dumps([BOX, {**BOX, "category_id": 9}]))
    with pytest.warns(PolyadicWarning, match=r"results\.json: dropped 1 box .*zebra \(1\)"):
        assert len(next(read_detections(path, NAMES))) == len(list(read_detections(path, NAMES))) == 1
    path.write_text(json.dumps([BOX, {**BOX, "score": 2}]))
    with pytest.raises(PolyadicError, match=r"results\.json: COCO results\[1\]: score must lie in"):
        list(read_detections(path, NAMES))


BAD_RECORDS: dict[str, tuple[Any, str]] = {
    "list": ([1], "expected an object with image, boxes, labels, scores, size, got"),
    "missing": ({"image": "a", "boxes": []}, "no 'labels'; a record has image"),
    "unknown key": ({**GOOD, "label": []}, "unknown key 'label'"),
    "image": ({**GOOD, "image": 7}, "image: expected a name, got 7"),
    "labels": ({**GOOD, "labels": "person"}, "labels: expected a list of names, got 'person'"),
    "label": ({**GOOD, "labels": ["person", 3]}, r"labels\[1\]: expected a name, got 3"),
    "fewer labels": ({**GOOD, "labels": ["person"]}, r"got boxes \[2, 4\], labels \[1\], scores \[2\]"),
    "fewer scores": ({**GOOD, "scores": [1]}, r"got boxes \[2, 4\], labels \[2\], scores \[1\]"),
    "score": ({**GOOD, "scores": [1, 1.5]}, r"score 1 must lie in \[0, 1\], got 1\.5"),
    "text": ({**GOOD, "scores": ["0.5", 1]}, "scores: expected a list of numbers"),
    "inside out": ({**GOOD, "boxes": [[5, 0, 0, 5], [1, 1, 9, 9]]}, "box 0 must be finite"),
    "three": ({**GOOD, "boxes": [[5, 0, 0]] * 2}, "boxes: expected rows of 4 numbers"),
    "size": ({**GOOD, "size": [0, 5]}, r"size: expected \[width, height\]"),
    "no confidences": ({**GOOD, **PREDICTIONS}, "image 'a.jpg' has no labels and confidences of its boxes"),
    "again": ({**GOOD, "image": "first.jpg"}, "image 'first.jpg' occurs twice"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_RECORDS))
def test_a_bad_record_is_named_with_its_file_and_place(tmp_path: Path, case: str) -> None:
    record, message = BAD_RECORDS[case]
    first = {**GOOD, "image": "first.jpg"}
    (tmp_path / "d.jsonl").write_text(json.dumps(first) + "\n\n" + json.dumps(record))
    (tmp_path / "d.json").write_text(json.dumps([first, record]))
    for name, place in (("d.jsonl", "d.jsonl, line 3"), ("d.json", "d.json, record 1")):
        with pytest.raises(PolyadicError, match=message) as error:
            list(read_detections(tmp_path / name, NAMES))
        assert str(error.value).startswith(name if case == "again" else place)
        assert "\n" not in str(error.value)


def spoil(change: Callable[[dict[str, Any], dict[str, str]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with safe_open(path, "np") as file:
            texts = file.metadata()
        tensors = load_file(path)
        change(tensors, texts)
        save_file(tensors, path, texts)

    return apply


BAD_TENSORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is not a complete safetensors file"),
    "foreign": (lambda path: path.write_text("hello"), "is not a complete safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "is not a complete safetensors file"),
    "weights": (lambda path: save_file({"w": np.ones(3)}, path), "no file of detections; its header says None"),
    "no labels": (spoil(lambda x, _: x.pop("labels")), "no 'labels' in the file"),
    "fewer": (spoil(lambda x, _: x.update(scores=x["scores"][:-1])), "columns of different lengths"),
    "offsets": (spoil(lambda x, _: x.update(offsets=x["offsets"][::-1].copy())), "columns of different lengths"),
    "no offsets": (spoil(lambda x, _: x.update(offsets=x["offsets"][:0])), "columns of different lengths"),
    "flags": (spoil(lambda x, _: x.update(told=1 - x["told"])), "columns of different lengths"),
    "label": (spoil(lambda x, _: x.update(labels=x["labels"] + 4)), "labels outside the 4 classes"),
    "score": (spoil(lambda x, _: x.update(scores=x["scores"] + 2)), r"score 0 must lie in \[0, 1\]"),
    "names": (spoil(lambda _, texts: texts.update(images="[")), "damaged header"),
    "fewer names": (spoil(lambda _, texts: texts.update(images="[]")), "columns of different lengths"),
    "sizes": (spoil(lambda _, texts: texts.update(sizes="[3, 4, 5]")), "damaged header"),
    "vocabulary": (spoil(lambda _, texts: texts.pop("vocabulary")), "damaged header"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_TENSORS))
def test_a_damaged_safetensors_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    change, message = BAD_TENSORS[case]
    rng = np.random.default_rng(5)
    path = write_detections(
        tmp_path / "d.safetensors", [random_detections(rng, str(i), i > 0) for i in range(3)], NAMES
    )
    assert [len(each) for each in read_detections(path, NAMES)] == [3, 2, 2]
    change(path)
    with pytest.raises(PolyadicError, match=message) as error:
        list(read_detections(path, NAMES))
    assert str(error.value).startswith("d.safetensors")
    assert "\n" not in str(error.value)


def test_a_folder_an_absent_file_and_a_mapping_of_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match="is a folder, expected a file"):
        list(read_detections(tmp_path, NAMES))
    with pytest.raises(PolyadicError, match=r"no file .*none\.json"):
        list(read_detections(tmp_path / "none.json", NAMES))
    (tmp_path / "x.mat").touch()
    with pytest.raises(PolyadicError, match="number their classes, so no mapping of names applies"):
        list(read_detections(tmp_path / "x.mat", NAMES, {"a": "sky"}))


def test_reading_detections_loads_no_torch() -> None:
    from test_imports import loaded_after

    loaded = loaded_after("from polyadic.io.records import read_detections; from polyadic.structures import labels")
    assert "polyadic" in loaded
    assert "torch" not in loaded
