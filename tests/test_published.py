"""Published formats: Lu's .mat files, neural-motifs' pickles, COCO's results; a bad file is one clear line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy.io import savemat

from polyadic.io.published import from_coco_results, from_motifs
from polyadic.io.records import read_detections, read_relations
from polyadic.structures.detections import Detections
from polyadic.structures.labels import Synonyms
from polyadic.structures.vocabulary import PolyadicWarning, Vocabulary

NAMES = Vocabulary(objects=("person", "horse", "hat é"), predicates=("ride", "wear"))


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
    result = {
        "detection_bboxes": cells(np.array([[9, 9, 200, 200]], np.uint8), none),
        "detection_labels": cells(np.array([[3]], np.uint8), np.zeros((0, 1))),
        "detection_confs": cells(np.array([[0.25]]), np.zeros((0, 1))),
    }
    savemat(folder / "objectDetRCNN.mat", result)


def test_relations_of_lu_et_al_have_classes_from_zero_and_one_box_per_detection(tmp_path: Path) -> None:
    write_lu(tmp_path)
    first, second = read_relations(tmp_path / "relationship_det_result.mat", NAMES, [])
    assert (first.image, second.image, len(second)) == ("x.jpg", "y.jpg", 0)
    assert first.triplets.tolist() == [[0, 1, 2], [0, 0, 2], [1, 0, 2]]
    assert first.scores.tolist() == [7.5, 3, 1]
    # one box under two labels is two detections, so the third prediction is another pair
    assert (first.pairs[0] == first.pairs[1]).all()
    assert first.pairs[2, 0] != first.pairs[0, 0]
    assert first.boxes[first.pairs[2, 0]].tolist() == [9, 9, 200, 200]
    assert len({int(row) for row in first.pairs[:, 1]}) == 1  # the object's label is the object's
    assert len(first.boxes) == 3
    boxes, none = read_detections(tmp_path / "objectDetRCNN.mat", NAMES, Synonyms({"x": NAMES.objects[0]}))
    assert (boxes.labels.tolist(), boxes.scores.tolist(), len(none)) == ([2], [0.25], 0)


def spoil_mat(name: str, **changes: Any) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        from scipy.io import loadmat

        content = {k: v for k, v in loadmat(folder / name).items() if k[0] != "_"} | changes
        savemat(folder / name, {k: v for k, v in content.items() if v is not None})

    return apply


RESULT = "relationship_det_result.mat"
BAD_MATS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: (f / RESULT).write_bytes((f / RESULT).read_bytes()[:300]), "is not a complete MATLAB file"),
    "no order": (lambda f: (f / "imagePath.mat").unlink(), "imagePath.mat; Lu's files name their images"),
    "no field": (spoil_mat(RESULT, rlp_confs_ours=None), "no field 'rlp_confs'; it has"),
    "class": (
        spoil_mat(RESULT, rlp_labels_ours=cells([[1, 3, 3]] * 3, np.zeros((0, 3)))),
        r"image x\.jpg: row 0: class 3 is outside 1 to 2",
    ),
    "lengths": (
        spoil_mat(RESULT, rlp_confs_ours=cells([[7.5]], np.zeros((0, 1)))),
        r"image x\.jpg: fields of different lengths",
    ),
    "numbers": (spoil_mat(RESULT, rlp_confs_ours=np.ones(3)), "expected a cell array 'rlp_confs_ours'"),
}


@pytest.mark.parametrize("case", sorted(BAD_MATS))
def test_a_bad_mat_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_MATS[case]
    write_lu(tmp_path)
    spoil(tmp_path)
    refused(message, lambda: list(read_relations(tmp_path / RESULT, NAMES, [])))


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
    first, second = read_relations(path, NAMES, ["7", "8"])
    assert (first.image, second.image) == ("7", "8")
    assert first.triplets.tolist() == [[0, 0, 2], [0, 1, 2], [2, 0, 0], [2, 1, 0]]
    assert first.scores.tolist() == pytest.approx([0.28, 0.08, 0.04, 0.12])
    assert first.pairs.tolist() == [[0, 1], [0, 1], [1, 0], [1, 0]]
    path.write_bytes(pickle.dumps({"8": ENTRY}))
    assert [image.image for image in read_relations(path, NAMES, ["7", "8"])] == ["8"]
    assert from_motifs(ENTRY, "7", NAMES) == first


class Evil:
    def __reduce__(self) -> Any:
        return exec, ("print('run')",)  # not print itself: Ray replaces it in a process that has used it


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([ENTRY], "expected one entry for each of the 2 images, got 1 entries"),
        (
            [ENTRY, {**ENTRY, "pred_classes": np.array([1, 4])}],
            r"preds\.pkl, entry 1: .*pred_classes must lie in 1 to 3",
        ),
        ([ENTRY, {"pred_boxes": 1}], "entry 1: .*no 'pred_classes'"),
        ([ENTRY, {**ENTRY, "rel_scores": np.ones((2, 2))}], r"rel_scores must be \[2, 3\]"),
        ([ENTRY, {**ENTRY, "pred_rel_inds": np.array([[0, 1], [1, 2]])}], "point to box 2 of 2"),
        ([ENTRY, 7], "entry 1: expected a dictionary, got a int"),
        ([ENTRY, Evil()], "it holds a builtins.exec, expected arrays only"),
    ],
)
def test_a_bad_pickle_is_refused_in_one_line_and_never_run(
    tmp_path: Path, content: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "preds.pkl"
    path.write_bytes(pickle.dumps(content))
    refused(message, lambda: list(read_relations(path, NAMES, ["7", "8"])))
    assert capsys.readouterr().out == ""
    path.write_bytes(pickle.dumps(content)[:50])
    refused("is not a pickle of neural-motifs entries", lambda: list(read_relations(path, NAMES, ["7", "8"])))


BOX = {"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}
CATEGORIES = [{"id": 3, "name": "people"}, {"id": 9, "name": "zebra"}]
IMAGES = [{"id": 9, "file_name": "b.jpg"}, {"id": 7, "file_name": "a.jpg", "width": 20, "height": 10}]
EXPECTED = Detections("a.jpg", np.array([[1.0, 2, 4, 6]]), np.array([0]), np.array([0.5]), (20.0, 10.0))


def test_coco_images_are_named_by_file_if_listed_else_by_id_and_empty_ones_are_included() -> None:
    content = {"images": IMAGES, "categories": CATEGORIES, "annotations": [{**BOX, "id": 1}]}
    assert from_coco_results([BOX], {"3": "person"}, NAMES) == {"7": replace(EXPECTED, image="7", size=None)}
    for result in (
        from_coco_results([BOX], CATEGORIES, NAMES, images=IMAGES),
        from_coco_results([BOX], content, NAMES),
        from_coco_results(content, None, NAMES),
    ):
        assert list(result) == ["b.jpg", "a.jpg"]
        assert len(result["b.jpg"]) == 0
        assert result["a.jpg"] == EXPECTED
    with pytest.warns(PolyadicWarning, match=r"COCO results: dropped 1 box .*zebra \(1\)"):
        assert len(from_coco_results([{**BOX, "category_id": 9}], CATEGORIES, NAMES)["7"]) == 0
    kept = from_coco_results([{**BOX, "category_id": 9}], CATEGORIES, NAMES, unknown="keep")
    assert kept["7"].labels.tolist() == [-1]
    mapped = from_coco_results([{**BOX, "category_id": 9}], CATEGORIES, NAMES, mapping={"zebra": "horse"})
    assert mapped["7"].labels.tolist() == [1]


def test_coco_results_get_categories_from_an_argument_or_a_file_beside_them(tmp_path: Path) -> None:
    path, beside, given = tmp_path / "results.json", tmp_path / "categories.json", tmp_path / "instances.json"
    path.write_text(json.dumps([BOX]))
    refused(r"results\.json: COCO results name no classes", lambda: list(read_detections(path, NAMES)))
    given.write_text(json.dumps({"images": IMAGES[1:], "categories": CATEGORIES}))
    assert list(read_detections(path, NAMES, categories=given)) == [EXPECTED]
    beside.write_text(json.dumps(CATEGORIES))
    assert list(read_detections(path, NAMES)) == [replace(EXPECTED, image="7", size=None)]
    for extra in ({"categories": CATEGORIES}, {}):
        path.write_text(json.dumps({"images": IMAGES[1:], "annotations": [BOX], **extra}))
        assert list(read_detections(path, NAMES)) == [EXPECTED]
    path.write_text(json.dumps([BOX, {**BOX, "category_id": 9}]))
    with pytest.warns(PolyadicWarning, match=r"results\.json: dropped 1 box .*zebra \(1\)"):
        assert [len(image) for image in read_detections(path, NAMES)] == [1]
    given.write_text("[{")
    refused(r"instances\.json is not COCO categories", lambda: list(read_detections(path, NAMES, categories=given)))


def of_coco(categories: Any = CATEGORIES, images: Any = None, **changes: Any) -> Any:
    record = {key: value for key, value in {**BOX, **changes}.items() if value is not None}
    return lambda: from_coco_results([record], categories, NAMES, images=images)


BAD_COCO: dict[str, tuple[Any, str]] = {
    "no record": (lambda: from_coco_results([3], CATEGORIES, NAMES), r"results: .*\$\[0\]"),
    "no image": (of_coco(image_id=None), "results: .*`image_id`"),
    "foreign category": (of_coco(category_id=2), "label 2 has no name"),
    "foreign image": (of_coco(images=[{"id": 1, "file_name": "a"}]), r"results\[0\]: image_id 7 is not in the list"),
    "negative": (of_coco(bbox=[1, 2, -3, 4]), r"results: .*>= 0.*\$\[0\]\.bbox"),
    "score": (of_coco(score=3), r"results: .*\$\[0\]\.score"),
    "categories": (of_coco(categories=["person"]), "COCO categories: .*"),
    "an id twice": (of_coco(images=[{"id": 1, "file_name": "a"}] * 2), "occurs twice"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", sorted(BAD_COCO))
def test_bad_coco_results_are_refused_in_one_line(case: str) -> None:
    make, message = BAD_COCO[case]
    refused(message, make)
