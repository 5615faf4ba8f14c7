"""`polyadic reproduce table1` and `vrd-lu`, on small files of the datasets' own layouts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes_cases import SMALL
from scipy.io import savemat
from tiny_runs import Command
from training_cases import tiny
from vg_files import many_vg150, many_vg200
from vrd_files import many_vrd

from polyadic.config import PRESETS
from polyadic.datasets import load_dataset
from polyadic.io.records import write_detections
from polyadic.structures.detections import Detections

WRITERS: dict[str, Callable[[Path], Path]] = {"vrd": many_vrd, "vg150": many_vg150, "vg200": many_vg200}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    few = {key: value for key, value in SMALL.items() if not key.startswith("world.")}
    monkeypatch.setitem(PRESETS, "vrd-boxes", tiny(sources=("evidence",), **few, **{"data.dataset": "vrd"}))
    return Command(capsys)


def found_in(root: Path, dataset: str, split: str) -> list[Detections]:
    """A detector that is nearly right."""
    rng = np.random.default_rng(1)
    return [
        Detections(x.name, x.boxes + rng.uniform(0, 1, x.boxes.shape), x.labels, rng.random(len(x.boxes)), x.frame)
        for x in load_dataset(dataset, root, split)
    ]


def write_found(path: Path, root: Path, dataset: str, split: str = "test") -> Path:
    names = load_dataset(dataset, root, split).vocabulary
    return write_detections(path, found_in(root, dataset, split), names)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("dataset", WRITERS)
def test_table_1_of_any_dataset_is_one_command(command: Command, tmp_path: Path, dataset: str) -> None:
    root = WRITERS[dataset](tmp_path / "data")
    proposals = write_found(tmp_path / "found.jsonl", root, dataset)
    words = ("--dataset", dataset, "--data", root, "--proposals", proposals, "--seeds", "1", "--out", tmp_path / "out")
    shown = command("reproduce", "table1", *words)
    assert shown.code == 0, shown.err
    assert f"{dataset} test, lu2016, recall in percent, 1 seed" in shown.out
    assert ("the paper, Lu's proposals" in shown.out) == (dataset == "vrd")
    assert "where the truths go, cross-fitted, k = 10, best 100, in percent: hit " in shown.out
    assert "…" not in shown.out, "no number is cut off"
    rows = rows_of(tmp_path / "out" / "table1.csv")
    assert {(row["fit"], row["seed"]) for row in rows} == {("baseline", ""), ("plain", "0"), ("cross-fitted", "0")}
    best = max(float(row["recall"]) for row in rows if row["fit"] == "plain" and row["subset"] == "all")
    assert f"{best:.2f}" in shown.out
    assert best > 0
    assert (tmp_path / "out" / "table1-misses.csv").is_file()


def test_real_training_proposals_take_the_place_of_simulated_ones(command: Command, tmp_path: Path) -> None:
    root = many_vrd(tmp_path / "data")
    proposals, training = (write_found(tmp_path / f"{x}.jsonl", root, "vrd", x) for x in ("test", "train"))
    words = ("--data", root, "--proposals", proposals, "--training-proposals", training, "--out", tmp_path / "out")
    shown = command("reproduce", "table1", *words, "--seeds", "1", "--csv", tmp_path / "mine.csv")
    assert shown.code == 0, shown.err
    assert {row["fit"] for row in rows_of(tmp_path / "mine.csv")} == {"baseline", "plain"}
    assert str(tmp_path / "mine.json") in shown.out
    about = json.loads((tmp_path / "mine.json").read_text())
    assert about["config"]["proposals"]["epochs"] == 1


def write_lu(root: Path) -> None:
    """Lu's proposals of the test images, beside the dataset."""

    def cells(rows: list[Any]) -> np.ndarray:
        cell = np.empty((1, len(rows)), object)
        for at, row in enumerate(rows):
            cell[0, at] = np.asarray(row)
        return cell

    found, folder = found_in(root, "vrd", "test"), root / "lu2016"
    folder.mkdir()
    savemat(folder / "imagePath.mat", {"imagePath": cells([[each.image] for each in found])})
    content = {
        "detection_bboxes": cells([each.boxes.round().astype(np.uint8) for each in found]),
        "detection_labels": cells([(each.labels[:, None] + 1).astype(np.uint8) for each in found]),
        "detection_confs": cells([each.scores[:, None] for each in found]),
    }
    savemat(folder / "objectDetRCNN.mat", content)


def test_lus_proposals_are_found_beside_the_dataset_and_each_ingredient_is_told(
    command: Command, tmp_path: Path
) -> None:
    root = many_vrd(tmp_path / "data")
    write_lu(root)
    words = ("reproduce", "vrd-lu", "--data", root, "--out", tmp_path / "out", "--seeds", "1")
    shown = command(*words, "--ingredients", "1")
    assert shown.code == 0, shown.err
    for told in (
        "labels as detected",
        "trained on true boxes",
        "ingredients, validation, ",
        "the paper, Lu's proposals",
    ):
        assert told in shown.out
    assert "…" not in shown.out
    assert {row["fit"] for row in rows_of(tmp_path / "out" / "table1.csv")} >= {"held-out", "cross-fitted"}
    again = command(*words, "--ingredients", "0")
    assert again.code == 0
    assert "labels as detected" not in again.out
    assert not (tmp_path / "out" / "table1-losses.csv").exists()


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_one_line(command: Command, tmp_path: Path) -> None:
    root = many_vrd(tmp_path / "data")
    proposals, other = (write_found(tmp_path / f"{split}.jsonl", root, "vrd", split) for split in ("test", "train"))
    (tmp_path / "letter.csv").write_text("dear\n")
    base = {"--data": root, "--proposals": proposals, "--out": tmp_path / "out"}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"--proposals": tmp_path / "none.jsonl"}, "none.jsonl"),
        ({"--proposals": other}, "train.jsonl has boxes of none of the 8 test images"),
        ({"--dataset": "vg"}, "data.dataset must be vrd, vg150, vg200, coco, toy, got 'vg'"),
        ({"--data": tmp_path / "nowhere"}, "nowhere"),
        ({"--csv": tmp_path / "letter.csv"}, "letter.csv exists and is not a table of this command"),
        ({"--csv": tmp_path / "letter.txt"}, "expected a name that ends in .csv"),
        ({"--training-proposals": tmp_path / "none.jsonl"}, "none.jsonl"),
    ]
    for changes, told in bad:
        words = [word for pair in {**base, **changes}.items() for word in pair]
        assert told in command("reproduce", "table1", *words, "--seeds", "1").message
    missing = command("reproduce", "vrd-lu", "--data", root, "--out", tmp_path / "out")
    assert "objectDetRCNN.mat" in missing.message
    assert not list(tmp_path.glob("out/plain*"))
