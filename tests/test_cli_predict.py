"""`polyadic predict`: photos in, relations out; what goes wrong is one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_cases import NAMES, detections
from predict_cases import BOXES, COUNTS, lay_out, records, save_models
from tiny_runs import Command, Result

from polyadic.io.records import write_detections
from polyadic.model.relation_model import RelationModel


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def here(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return lay_out(tmp_path, models)


ALL = ("--min-probability", "0", "--mirror", "keep", "--order", "likely")  # every answer, by probability


def test_relations_are_printed_as_a_table_under_what_the_number_means(command: Command, here: Path) -> None:
    result = command("predict", "pixels", "photos/0.png", *BOXES, "--top", "4", *ALL)
    assert (result.code, result.err) == (0, "model: pixels; boxes: boxes.jsonl\n")
    heading, title, *lines = result.out.splitlines()
    assert "annotator" in heading
    assert title == "photos/0.png"
    numbers = [float(line.split()[-1].rstrip("%")) for line in lines]
    assert len(numbers) == 4
    assert numbers == sorted(numbers, reverse=True)
    model = RelationModel.load("pixels")
    relations = model.predict("photos/0.png", detections(3, seed=0), top=4, least=0, mirror="keep", order="likely")
    for line, relation in zip(lines, relations, strict=True):
        words = (relation.box_names[0], relation.names[1], relation.box_names[1])
        assert line.split()[:-1] == " ".join(words).split()
        assert "[" not in line


def test_a_record_has_boxes_names_and_score_parts(command: Command, here: Path) -> None:
    result = command("predict", "pixels", "photos", *BOXES, "--out", "r", "--top", "5", "--k", "any", *ALL)
    assert (result.code, result.out, result.err) == (0, "5 photos, 25 relations: r\n", "")
    for at, record in enumerate(records("r")):
        assert list(record) == ["image", "size", "boxes", "relations", "made"]
        assert (record["image"], record["size"]) == (f"photos/{at}.png", [100, 60])
        assert len(record["boxes"]) == COUNTS[at]
        assert all(list(box) == ["box", "name", "label", "score"] for box in record["boxes"])
        for each in record["relations"]:
            assert list(each) == ["subject", "predicate", "object", "probability", "score", "parts"]
            assert list(each["subject"]) == list(each["object"]) == ["box", "name"]
            assert list(each["parts"]) == ["detector", "psi_c", "psi_u", "selected", "repeat"]
            assert each["score"] == pytest.approx(math.prod(each["parts"].values()))
            assert 0 < each["probability"] < 1
    first = NAMES.objects[detections(4, seed=1).labels[0]]
    words = ("predict", "pixels", "photos/1.png", *BOXES, "--subject", first, "--json", *ALL)
    asked = records_of(command(*words))[0]
    assert list(asked) == ["image", "size", "boxes", "relations", "given"]
    assert asked["given"] == {"subject": first}
    assert {each["subject"]["name"] for each in asked["relations"]} == {first}


def test_a_query_takes_one_or_two_names(command: Command, here: Path) -> None:
    subject, object = (NAMES.objects[label] for label in detections(4, seed=1).labels[:2])
    ends = ("--subject", subject, "--object", object)
    (record,) = records_of(command("predict", "pixels", "photos/1.png", *BOXES, *ends, "--json"))
    assert {(each["subject"]["name"], each["object"]["name"]) for each in record["relations"]} == {(subject, object)}
    assert {each["predicate"] for each in record["relations"]} == set(NAMES.predicates)
    assert sum(each["probability"] for each in record["relations"]) == pytest.approx(1)
    words = ("predict", "pixels", "photos", *BOXES)
    assert "give at most two" in command(*words, *ends, "--predicate", "on").message
    message = command(*words, "--predicate", "onn").message
    assert "no predicate is called 'onn'; did you mean 'on'?" in message


def test_a_query_for_something_that_is_not_there_has_no_answer(command: Command, here: Path) -> None:
    absent = next(name for at, name in enumerate(NAMES.objects) if at not in detections(3, seed=0).labels)
    words = ("predict", "evidence", "photos/0.png", *BOXES, "--object", absent)
    result = command(*words)
    assert (result.code, len(result.out.splitlines())) == (0, 3)
    assert f"none of the boxes is likely a {absent} (best " in result.out
    (record,) = records_of(command(*words, "--json"))
    assert (record["relations"], absent in record["note"]) == ([], True)


def test_a_threshold_filters_and_fewer_than_two_boxes_have_no_relations(command: Command, here: Path) -> None:
    words = ("predict", "evidence", "photos/1.png", *BOXES)
    relations = records_of(command(*words, "--json", *ALL))[0]["relations"]
    bar = relations[3]["probability"] * 0.999999
    result = command(*words, "--json", *ALL, "--min-probability", str(bar))
    assert len(records_of(result)[0]["relations"]) == 4
    none = command(*words, "--min-probability", "1")
    assert none.code == 0
    assert "no relations: none at or above 100%; the likeliest is" in none.out
    for n, why in ((0, "no boxes were found"), (1, "only one box")):
        write_detections("few.jsonl", [replace(detections(n), image="0.png")], NAMES, overwrite=True)
        few = ("predict", "pixels", "photos/0.png", "--detections", "few.jsonl")
        assert why in command(*few).out.splitlines()[2]
        (record,) = records_of(command(*few, "--json"))
        assert why in record["note"]


def records_of(result: Result) -> list[dict[str, Any]]:
    assert result.code == 0
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_missing_detector_is_an_error_before_any_photo_is_read(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.structures.images.open_photo", lambda path: pytest.fail("a photo was read"))
    message = command("predict", "evidence", "photos").message
    assert "has no detector: give --detector" in message
    assert "or boxes with --detections" in message


def test_the_models_detector_is_used_without_detections(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(run: Path | None, device: str, threads: int) -> RelationModel:
        model = RelationModel.load(run or "nowhere")
        model.set_detector(lambda photo: replace(detections(3), image=photo.name))
        return model

    monkeypatch.setattr("polyadic.cli.predict.load_model", load)
    found = records_of(command("predict", "pixels", "photos", "--json"))
    assert [len(record["boxes"]) for record in found] == [3] * 5


def test_a_model_without_pixels_needs_only_boxes(command: Command, here: Path) -> None:
    result = command("predict", "evidence", *BOXES, "--json")
    assert [record["image"] for record in records_of(result)] == [f"{at}.png" for at in range(5)]
    with_photos = records_of(command("predict", "evidence", "photos", *BOXES, "--json"))
    assert [record["relations"] for record in records_of(result)] == [record["relations"] for record in with_photos]
    assert "PATHS are missing: this model sees pixels" in command("predict", "pixels", *BOXES).message
    assert "PATHS are missing: name photos" in command("predict", "evidence").message
    assert "--draw needs photos" in command("predict", "evidence", *BOXES, "--draw", "d").message
    unsized = [replace(detections(2), image=name, size=size) for name, size in (("a", (9.0, 9.0)), ("b", None))]
    write_detections("unsized.jsonl", unsized, NAMES)
    message = command("predict", "evidence", "--detections", "unsized.jsonl").message
    assert "unsized.jsonl has no size for 1 of 2 images (the first is 'b'): name the photos" in message
    Path("none.jsonl").touch()
    assert "none.jsonl: no image in this file" in command("predict", "evidence", "--detections", "none.jsonl").message


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no run": (("nowhere", "photos", *BOXES), "nowhere: no such run, photo or folder"),
    "no photo": (("nowhere.jpg", *BOXES), "no image nowhere.jpg"),
    "no photos": (("evidence", "no.jpg", "none", *BOXES), "no image no.jpg, nor any of the 1 others"),
    "half a run": (("half", "photos", *BOXES), "half holds no saved model: config.json is missing"),
    "a folder": (("empty", "photos", *BOXES), "empty holds neither a saved model (model.safetensors) nor an image"),
    "no boxes": (("evidence", "photos", "--detections", "no.jsonl"), "no file no.jsonl"),
    "other boxes": (("evidence", "photos", "--detections", "photos/0.png"), "0.png, line 1: not complete JSON"),
    "twice": (("evidence", "photos", "--detector", "x", "--detector", "x"), "--detector: x is given twice"),
    "no photos for a detector": (("evidence", *BOXES, "--detector", "x"), "PATHS are missing"),
    "k": (("evidence", "photos", *BOXES, "--k", "0"), "--k: expected a whole number from 1, or any, got '0'"),
    "k free": (("evidence", "photos", *BOXES, "--k", "free"), "got 'free'"),
    "resume": (("evidence", "photos", *BOXES, "--resume"), "--resume needs --out"),
    "resume, overwrite": (
        ("evidence", "photos", *BOXES, "--out", "r", "--resume", "--overwrite"),
        "mutually exclusive",
    ),
    "pattern": (("evidence", "*.jpg", *BOXES), "*.jpg: no file matches this pattern"),
    "device": (("evidence", "photos", *BOXES, "--device", "abacus"), "abacus"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", BAD)
def test_user_errors_print_one_line(command: Command, here: Path, case: str) -> None:
    Path("empty").mkdir()
    Path("half").mkdir()
    Path("half/model.safetensors").touch()
    words, message = BAD[case]
    assert message in command("predict", *words).message


def test_option_values_out_of_range_print_usage(command: Command, here: Path) -> None:
    bad = {
        "--top": "0",
        "--batch": "few",
        "--min-probability": "1.5",
        "--order": "x",
        "--labels": "x",
        "--unknown": "x",
        "--draw-as": "gif",
    }
    for option, value in bad.items():
        result = command("predict", "evidence", "photos", *BOXES, option, value)
        assert result.code == 2
        assert option in result.err


def test_unknown_classes_are_dropped_or_kept(command: Command, here: Path) -> None:
    record = json.loads(Path("boxes.jsonl").read_text().splitlines()[1])
    record["labels"][0] = "zebra"
    Path("one.jsonl").write_text(json.dumps(record))
    words = ("predict", "pixels", "photos/1.png", "--detections", "one.jsonl", "--json")
    dropped, kept = command(*words), command(*words, "--unknown", "keep")
    assert [len(records_of(result)[0]["boxes"]) for result in (dropped, kept)] == [3, 4]
    assert "zebra (1)" in dropped.err
    assert records_of(kept)[0]["boxes"][0]["label"] is None


def test_the_output_of_predict_can_be_evaluated(command: Command, here: Path) -> None:
    assert command("predict", "evidence", "photos", *BOXES, "--out", "r.jsonl", *ALL).code == 0
    boxes: list[dict[str, Any]] = []
    relations = []
    for at, record in enumerate(records("r.jsonl")):  # true is the best relation of each photo
        best = record["relations"][0]
        for end in ("subject", "object"):
            x1, y1, x2, y2 = record["boxes"][best[end]["box"]]["box"]
            named = {"id": len(boxes), "image_id": at, "category_id": NAMES.objects.index(best[end]["name"])}
            boxes.append({**named, "bbox": [x1, y1, x2 - x1, y2 - y1]})
        ends = {"subject_id": len(boxes) - 2, "object_id": len(boxes) - 1}
        relations.append({"id": at, "image_id": at, "predicate_id": NAMES.predicates.index(best["predicate"]), **ends})
    truth = {
        "images": [{"id": at, "file_name": f"{at}.png", "width": 100, "height": 60} for at in range(5)],
        "categories": [{"id": at, "name": name} for at, name in enumerate(NAMES.objects)],
        "rel_categories": [{"id": at, "name": name} for at, name in enumerate(NAMES.predicates)],
        "annotations": boxes,
        "rel_annotations": relations,
    }
    for split in ("train", "test"):
        Path(f"{split}.json").write_text(json.dumps(truth))
    result = command("evaluate", "r.jsonl", "--dataset", "coco", "--root", ".", "--k", "1", "--top", "1", "--json")
    rows = [row for row in json.loads(result.out)["recalls"] if row["what"] == "predictions" and row["subset"] == "all"]
    assert [(row["recall"], row["truths"]) for row in rows] == [(100, 5)]
