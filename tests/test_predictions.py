"""Relations on disk: round trips, other people's files, and one clear line for a bad one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from polyadic.io.published import from_motifs
from polyadic.io.records import read_detections, read_predictions, write_jsonl
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

NAMES = Vocabulary(objects=("person", "horse", "hat é"), predicates=("ride", "wear"))


def random_predictions(rng: np.random.Generator, image: str) -> Relations:
    n, m = int(rng.integers(1, 5)), int(rng.integers(0, 6))
    corner = rng.normal(size=(n, 2)) * 100
    boxes = np.concatenate([corner, corner + rng.exponential(size=(n, 2))], axis=1)
    triplets = np.stack([rng.integers(0, 3, m), rng.integers(0, 2, m), rng.integers(0, 3, m)], axis=1)
    scores = rng.normal(size=m).astype(np.float32).astype(np.float64)
    columns = boxes, rng.integers(0, n, (m, 2)), triplets, scores
    if rng.random() < 0.5:
        return Relations(image, *columns)
    return Relations(image, *columns, labels=rng.integers(0, 3, n), confidences=rng.random(n), size=(640.0, 480.5))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_read_is_what_was_written(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    written = [random_predictions(rng, f"{i} ü.jpg") for i in range(4)]
    path = write_jsonl(tmp_path_factory.mktemp("p") / "p.jsonl", written, NAMES)
    assert list(read_predictions(path, NAMES, [])) == written


def test_a_file_is_replaced_only_when_told_to_and_appears_complete(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    one = [random_predictions(np.random.default_rng(0), "a")]
    write_jsonl(path, one, NAMES)
    with pytest.raises(PolyadicError, match="exists; choose another name, or overwrite=True"):
        write_jsonl(path, one, NAMES)

    def fails() -> Any:
        yield one[0]
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_jsonl(path, fails(), NAMES, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == ["p.jsonl"]
    assert list(read_predictions(path, NAMES, [])) == one


GOOD: dict[str, Any] = {
    "image": "a.jpg",
    "boxes": [[0, 0, 5, 5], [1, 1, 9, 9]],
    "pairs": [[0, 1]],
    "triplets": [["person", "ride", "horse"]],
    "scores": [0.5],
}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


BAD_LINES: dict[str, tuple[str, str]] = {
    "cut": (json.dumps(GOOD)[:40], "not complete JSON"),
    "binary": ("\x00\x01\x02", "not complete JSON"),
    "list": ("[1, 2]", "expected one object per line, with image, boxes"),
    "missing key": (json.dumps(without("scores")), "no 'scores'; a record has image"),
    "unknown key": (json.dumps({**GOOD, "score": 1}), "unknown key 'score'"),
    "image": (json.dumps({**GOOD, "image": 7}), "image: expected a name, got 7"),
    "a key twice": ('{"image": "a", "scores": [1], "scores": [2]}', "'scores' occurs twice in one object"),
    "number as text": (json.dumps({**GOOD, "scores": ["0.5"]}), "scores: expected a list of numbers"),
    "truth value": (json.dumps({**GOOD, "scores": [True]}), "scores: expected a list of numbers"),
    "huge": (json.dumps({**GOOD, "scores": [10**400]}), "scores: expected a list of numbers"),
    "far pointer": (
        json.dumps({**GOOD, "pairs": [[0, 10**30]]}),
        "pairs: expected rows of 2 numbers|pairs: expected whole",
    ),
    "deep": ("[" * 200000, "JSON nested too deeply|not complete JSON"),
    "page": ("<!DOCTYPE html>", "a web page or XML, not JSON"),
    "nan": (json.dumps({**GOOD, "scores": [float("nan")]}), "score 0 must be a finite number, got nan"),
    "infinite": (json.dumps({**GOOD, "scores": [float("inf")]}), "score 0 must be a finite number, got inf"),
    "null": (json.dumps({**GOOD, "scores": [None]}), "scores: expected a list of numbers"),
    "text": (json.dumps({**GOOD, "scores": ["high"]}), "scores: expected a list of numbers"),
    "short": (json.dumps({**GOOD, "scores": []}), r"need one length, got \[1, 1, 0\]"),
    "pointer": (json.dumps({**GOOD, "pairs": [[0, 2]]}), "pairs point to box 2, but there are 2 boxes"),
    "half": (json.dumps({**GOOD, "pairs": [[0, 0.5]]}), "pairs: expected whole numbers"),
    "inside out": (json.dumps({**GOOD, "boxes": [[5, 0, 0, 5], [1, 1, 9, 9]]}), r"box 0 must be finite .*got \[5\.0"),
    "ragged": (json.dumps({**GOOD, "boxes": [[5, 0, 0], [1, 1, 9, 9]]}), "boxes: expected rows of 4 numbers"),
    "three": (json.dumps({**GOOD, "boxes": [[5, 0, 0]]}), "boxes: expected rows of 4 numbers"),
    "class": (
        json.dumps({**GOOD, "triplets": [["persom", "ride", "horse"]]}),
        r"triplets\[0\]: no object is called 'persom'; did you mean 'person'",
    ),
    "predicate": (
        json.dumps({**GOOD, "triplets": [["person", "rides", "horse"]]}),
        "no predicate is called 'rides'; did you mean 'ride'",
    ),
    "pair of names": (json.dumps({**GOOD, "triplets": [["person", "ride"]]}), r"triplets\[0\]: expected three names"),
    "not names": (json.dumps({**GOOD, "triplets": [[0, 0, 1]]}), r"triplets\[0\]: no object is called 0"),
    "labels alone": (
        json.dumps({**GOOD, "labels": ["person", "horse"]}),
        "labels and confidences of the boxes come together",
    ),
    "confidence": (
        json.dumps({**GOOD, "labels": ["person", "horse"], "confidences": [2, 0]}),
        r"score 0 must lie in \[0, 1\]",
    ),
    "size": (json.dumps({**GOOD, "size": [0, 5]}), r"size: expected \[width, height\]"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_LINES))
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, case: str) -> None:
    line, message = BAD_LINES[case]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**GOOD, "image": "first.jpg"}) + "\n" + line + "\n")
    with pytest.raises(PolyadicError, match=message) as error:
        list(read_predictions(path, NAMES, []))
    assert str(error.value).startswith("p.jsonl, line 2")
    assert "\n" not in str(error.value)


def test_the_same_image_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text((json.dumps(GOOD) + "\n") * 2)
    with pytest.raises(PolyadicError, match=r"p\.jsonl, line 2: image 'a\.jpg' was on line 1 already"):
        list(read_predictions(path, NAMES, []))


def test_detections_come_from_a_predictions_file_whose_boxes_have_labels(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**GOOD, "labels": ["person", "horse"], "confidences": [0.5, 1]}))
    boxes = np.array(GOOD["boxes"], float)
    assert list(read_detections(path, NAMES)) == [Detections("a.jpg", boxes, np.array([0, 1]), np.array([0.5, 1]))]
    path.write_text(json.dumps(GOOD))
    with pytest.raises(PolyadicError, match="has no labels and confidences"):
        list(read_detections(path, NAMES))


def cells(*rows: Any) -> np.ndarray:
    cell = np.empty((1, len(rows)), object)
    for at, row in enumerate(rows):
        cell[0, at] = np.asarray(row)
    return cell


def write_lu(folder: Path) -> None:
    """Two images as the official files have them: classes from 1, small unsigned boxes, one cell per image."""
    savemat(folder / "imagePath.mat", {"imagePath": cells(["x.jpg"], ["y.jpg"])})
    none = np.zeros((0, 4), np.uint8)
    content = {
        "rlp_labels_ours": cells(np.array([[1, 2, 3], [1, 1, 3], [2, 1, 3]], np.uint8), np.zeros((0, 3))),
        "rlp_confs_ours": cells(np.array([[7.5], [3], [1]], np.float32), np.zeros((0, 1))),
        "sub_bboxes_ours": cells(np.array([[9, 9, 200, 200]] * 3, np.uint8), none),
        "obj_bboxes_ours": cells(np.array([[1, 2, 30, 40]] * 3, np.uint8), none),
    }
    savemat(folder / "relationship_det_result.mat", content)
    found = {
        "detection_bboxes": cells(np.array([[9, 9, 200, 200]], np.uint8), none),
        "detection_labels": cells(np.array([[3]], np.uint8), np.zeros((0, 1))),
        "detection_confs": cells(np.array([[0.25]]), np.zeros((0, 1))),
    }
    savemat(folder / "objectDetRCNN.mat", found)


def test_lu_s_predictions_are_read_with_classes_from_zero_and_one_box_per_detection(tmp_path: Path) -> None:
    write_lu(tmp_path)
    first, second = read_predictions(tmp_path / "relationship_det_result.mat", NAMES, [])
    assert (first.image, second.image, len(second)) == ("x.jpg", "y.jpg", 0)
    assert first.triplets.tolist() == [[0, 1, 2], [0, 0, 2], [1, 0, 2]]
    assert first.scores.tolist() == [7.5, 3, 1]
    # one box under two labels is two detections, so the third prediction is another pair
    assert (first.pairs[0] == first.pairs[1]).all()
    assert first.pairs[2, 0] != first.pairs[0, 0]
    assert first.boxes[first.pairs[2, 0]].tolist() == [9, 9, 200, 200]
    assert len({int(row) for row in first.pairs[:, 1]}) == 1  # the object's label is the object's
    assert len(first.boxes) == 3
    found = list(read_detections(tmp_path / "objectDetRCNN.mat", NAMES))
    assert (found[0].labels.tolist(), found[0].scores.tolist(), len(found[1])) == ([2], [0.25], 0)


def spoil_mat(name: str, **changes: Any) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        from scipy.io import loadmat

        content = {k: v for k, v in loadmat(folder / name).items() if k[0] != "_"} | changes
        savemat(folder / name, {k: v for k, v in content.items() if v is not None})

    return apply


RESULT = "relationship_det_result.mat"
BAD_MATS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: (f / RESULT).write_bytes((f / RESULT).read_bytes()[:300]), "is not a complete MATLAB file"),
    "foreign": (lambda f: (f / RESULT).write_text("hello"), "is not a complete MATLAB file"),
    "no order": (lambda f: (f / "imagePath.mat").unlink(), "imagePath.mat; Lu's files name their images"),
    "no field": (spoil_mat(RESULT, rlp_confs_ours=None), "no field 'rlp_confs'; it has"),
    "fewer": (spoil_mat("imagePath.mat", imagePath=cells(["x.jpg"])), "2 images, but imagePath.mat names 1"),
    "class": (
        spoil_mat(RESULT, rlp_labels_ours=cells([[1, 3, 3]] * 3, np.zeros((0, 3)))),
        r"image x\.jpg, row 0: class 3 is outside 1 to 2",
    ),
    "lengths": (
        spoil_mat(RESULT, rlp_confs_ours=cells([[7.5]], np.zeros((0, 1)))),
        r"image x\.jpg: fields of different lengths",
    ),
    "nan": (
        spoil_mat(RESULT, rlp_confs_ours=cells([[7.5], [np.nan], [1]], np.zeros((0, 1)))),
        r"image x\.jpg: .*score 1 must be a finite number",
    ),
    "numbers": (spoil_mat(RESULT, rlp_confs_ours=np.ones(3)), "expected a cell array 'rlp_confs_ours'"),
}


@pytest.mark.parametrize("case", sorted(BAD_MATS))
def test_a_bad_mat_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_MATS[case]
    write_lu(tmp_path)
    spoil(tmp_path)
    with pytest.raises(PolyadicError, match=message) as error:
        list(read_predictions(tmp_path / RESULT, NAMES, []))
    assert "\n" not in str(error.value)


ENTRY: dict[str, Any] = {
    "pred_boxes": np.array([[0, 0, 5, 5], [1, 1, 9, 9]], np.float32),
    "pred_classes": np.array([1, 3]),
    "obj_scores": np.array([0.5, 0.8]),
    "pred_rel_inds": np.array([[0, 1], [1, 0]]),
    "rel_scores": np.array([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]]),
}


def test_motifs_entries_give_every_predicate_of_every_pair_the_product_of_scores(tmp_path: Path) -> None:
    path = tmp_path / "preds.pkl"
    path.write_bytes(pickle.dumps([ENTRY, ENTRY], protocol=2))
    first, second = read_predictions(path, NAMES, ["7", "8"])
    assert (first.image, second.image) == ("7", "8")
    assert first.triplets.tolist() == [[0, 0, 2], [0, 1, 2], [2, 0, 0], [2, 1, 0]]
    assert first.scores.tolist() == pytest.approx([0.28, 0.08, 0.04, 0.12])
    assert first.pairs.tolist() == [[0, 1], [0, 1], [1, 0], [1, 0]]
    path.write_bytes(pickle.dumps({"8": ENTRY}))
    assert [each.image for each in read_predictions(path, NAMES, ["7", "8"])] == ["8"]
    assert from_motifs(ENTRY, "7", NAMES) == first


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([ENTRY], "expected one entry for each of the 2 images, got 1 entries"),
        ("text", "got a str"),
        (
            [ENTRY, {**ENTRY, "pred_classes": np.array([1, 4])}],
            r"preds\.pkl, entry 1: .*pred_classes must lie in 1 to 3",
        ),
        ([ENTRY, {"pred_boxes": 1}], "entry 1: .*no 'pred_classes'"),
        ([ENTRY, {**ENTRY, "rel_scores": np.ones((2, 2))}], r"rel_scores must be \[2, 3\]"),
        ([ENTRY, {**ENTRY, "pred_rel_inds": np.array([[0, 1], [1, 2]])}], "point to box 2 of 2"),
        ([ENTRY, {**ENTRY, "obj_scores": np.array([0.5, np.nan])}], "must be a finite number"),
        ([ENTRY, 7], "entry 1: expected a dictionary, got a int"),
        ([ENTRY, Evil()], "it holds a builtins.print, expected arrays only"),
    ],
)
def test_a_bad_pickle_is_refused_in_one_line_and_never_run(
    tmp_path: Path, content: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "preds.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(PolyadicError, match=message) as error:
        list(read_predictions(path, NAMES, ["7", "8"]))
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_a_cut_pickle_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "preds.pkl"
    path.write_bytes(pickle.dumps([ENTRY])[:50])
    with pytest.raises(PolyadicError, match="is not a pickle of neural-motifs entries"):
        list(read_predictions(path, NAMES, ["7"]))
    with pytest.raises(PolyadicError, match="no file"):
        read_predictions(tmp_path / "none.jsonl", NAMES, [])
