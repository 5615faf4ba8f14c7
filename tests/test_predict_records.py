"""What `polyadic predict --out` writes, read as predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_cases import NAMES

from polyadic.io.records import read_jsonl
from polyadic.structures.vocabulary import PolyadicError

RECORD: dict[str, Any] = {
    "image": "/data/test/7.jpg",
    "size": [100, 60],
    "boxes": [{"box": [0, 0, 9, 9], "label": "dog", "score": 0.5}, {"box": [1, 2, 9, 8], "label": None, "score": 1}],
    "relations": [
        {"subject": {"box": 0, "name": "dog"}, "predicate": "on", "object": {"box": 1, "name": "bed"}, "score": 0.25}
    ],
    "made": "0123",
    "given": {"subject": "dog"},
}


def read_one(record: Any, images: tuple[str, ...] = ()) -> Any:
    Path("one.jsonl").write_text(json.dumps(record) + "\n")
    (found,) = read_jsonl("one.jsonl", NAMES, images)
    return found


def test_a_photo_is_called_as_its_dataset_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_one(RECORD).image == "7.jpg"
    assert read_one(RECORD, ("8.jpg",)).image == "7.jpg"  # told by the evaluation as none of the split
    assert read_one(RECORD, ("7.jpg", "test/7.jpg")).image == "test/7.jpg"
    assert read_one(RECORD, ("7", "8")).image == "7"
    assert read_one(RECORD).labels.tolist() == [0, -1]
    for record in (RECORD, {**RECORD, "image": "other/7.jpg"}):
        with Path("two.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    with pytest.raises(PolyadicError, match=r"line 2: image '7.jpg' was on line 1 already"):
        list(read_jsonl("two.jsonl", NAMES))


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"size": ...}, "no 'size'; a record of `polyadic predict` has image, size, boxes, relations"),
    "foreign": ({"x": 1}, "unknown key 'x'; `polyadic predict` writes image, size"),
    "image": ({"image": 7}, "image: expected a name, got 7"),
    "flat box": ({"boxes": [[0, 0, 9, 9]]}, r"boxes\[0\]: expected an object with box, label and score"),
    "boxes": ({"boxes": 3}, r"boxes\[0\]: expected an object"),
    "label": ({"boxes": [{"box": [0, 0, 9, 9], "label": "dgo", "score": 1}]}, r"boxes\[0\]: no object .* 'dog'\?"),
    "relation": ({"relations": [{"subject": 0}]}, r"relations\[0\]: expected an object with subject, predicate"),
    "name": (
        {"relations": [{**RECORD["relations"][0], "predicate": "onn"}]},
        r"triplets\[0\]: no predicate is called 'onn'; did you mean 'on'\?",
    ),
    "pair": (
        {"relations": [{**RECORD["relations"][0], "object": {"box": 2, "name": "bed"}}]},
        "pairs point to box 2, but there are 2 boxes",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_bad_record_is_named_with_its_file_and_line(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, told = BAD_RECORDS[case]
    record = {key: value for key, value in {**RECORD, **change}.items() if value is not ...}
    with pytest.raises(PolyadicError, match=f"^one.jsonl, line 1.*{told}"):
        read_one(record)
