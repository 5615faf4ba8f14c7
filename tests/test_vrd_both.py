"""`polyadic reproduce vrd-lu-pixels` on small files of VRD's layout."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import Command
from training_cases import tiny
from vrd_files import many_vrd, pictured_vrd

from polyadic.config import PRESETS
from polyadic.datasets import load_dataset
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.evaluating import evaluate_run
from polyadic.experiments.runs import open_run
from polyadic.io.records import read_detections, write_detections
from polyadic.structures.detections import Detections
from polyadic.training.examples import load_training

SMALL: dict[str, Any] = {
    "sources": ("evidence",),
    "data.dataset": "vrd",
    "triplets.epochs": 0,
    "proposals.epochs": 2,
    "proposals.optimiser": "adamw",
    "proposals.rate": 0.01,
    "selection.epochs": 1,
}
COLUMNS = [(task, k, n) for task in ("relationship", "phrase") for k in ("1", "10") for n in ("50", "100")]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setitem(PRESETS, "vrd-boxes", tiny(**SMALL))
    monkeypatch.setitem(PRESETS, "vrd-pixels", tiny(**{"pixels.reduce": 6}))
    return Command(capsys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The dataset, weights, and proposals: true boxes of the test images, moved a little, some with a wrong label."""
    root, weights = pictured_vrd(tmp_path_factory.mktemp("both"))
    data, rng, found = load_dataset("vrd", root, "test"), np.random.default_rng(1), []
    for scene in data:
        labels = np.where(
            rng.uniform(size=len(scene.labels)) < 0.3, rng.integers(0, 3, len(scene.labels)), scene.labels
        )
        boxes = scene.boxes + rng.uniform(-1, 1, scene.boxes.shape)
        found.append(Detections(scene.name, boxes, labels, rng.uniform(0.3, 1, len(labels)), scene.frame))
    return root, weights, write_detections(root.parent / "found.jsonl", found, data.vocabulary)


def test_both_kinds_learn_from_the_same_pictures_and_are_scored_on_the_same_boxes(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, weights, proposals = files
    words = ("--data", root, "--weights", weights, "--proposals", proposals, "--out", tmp_path / "out", "--seeds", "2")
    shown = command("reproduce", "vrd-lu-pixels", *words)
    assert shown.code == 0, shown.err
    with (tmp_path / "out" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    kinds = {"evidence": ("evidence",), "pixels and evidence": ("pixels", "evidence")}
    assert {(row["what"], row["seed"]) for row in rows} == {(what, seed) for what in kinds for seed in "01"}
    for what, sources in kinds.items():
        run = open_run(tmp_path / "out" / f"{what.replace(' ', '-')}-seed-1")
        assert (run.config.sources, run.config.validation.images) == (sources, 0)
        assert len(load_training(run.config).fit) == 22, "two training images have no picture"
        assert len(run.data) == 7, "one test image has none"
        mine = {(r["task"], r["k"], r["N"]): float(r["recall"]) for r in rows if (r["what"], r["seed"]) == (what, "1")}
        assert set(mine) == set(COLUMNS)
        boxes = {each.image: each for each in read_detections(proposals, run.data.vocabulary)}
        protocol = get_protocol("lu2016").change(task="phrase", tops=(50, 100))
        scored = evaluate_run(run, [protocol], (10,), boxes).result.rows
        expected = [r.recall for name, r in scored if name == "predictions" and r.protocol.subset == "all"]
        assert [mine["phrase", "10", n] for n in ("50", "100")] == expected
    about = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert about["configs"]["pixels and evidence"]["head"]["input_dropout"] == 0.3
    assert str(tmp_path) not in json.dumps(about)
    assert str(root) not in json.dumps(about)
    fewer = command("reproduce", "vrd-lu-pixels", *words[:-1], "1")
    assert "table1.csv has seed 1, which would be dropped" in fewer.message
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    assert command("reproduce", "vrd-lu-pixels", *words).code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")} == made


def test_scenes_without_a_picture_are_left_out_where_the_config_says_so(files: tuple[Path, Path, Path]) -> None:
    config = tiny(**SMALL, **{"data.root": str(files[0]), "data.simulate": str(files[2]), "validation.images": 0})
    assert len(load_training(config).fit) == 24
    present = load_training(config.change(**{"data.pictures": "present"}))
    assert (len(present.fit), len(present.annotations)) == (22, 24)
    seen = replace(config, sources=("pixels", "evidence")).change(**{"data.pictures": "present"})
    assert [scene.name for scene in load_training(seen).fit] == [scene.name for scene in present.fit]


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_one_line(command: Command, files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    (tmp_path / "letter.csv").write_text("dear\n")
    (tmp_path / "noise.csv").write_bytes(b"\xff\xfe\x00")
    bare = tmp_path / "bare"
    many_vrd(bare)
    base = {"--data": files[0], "--weights": files[1], "--proposals": files[2], "--out": tmp_path / "out"}
    bad: list[tuple[dict[str, Path], str]] = [
        ({"--weights": tmp_path / "none.safetensors"}, "--weights: no file"),
        ({"--proposals": tmp_path / "none.mat"}, "--proposals: no file"),
        ({"--csv": tmp_path / "letter.csv"}, "letter.csv exists and is not a table of this command"),
        ({"--csv": tmp_path / "noise.csv"}, "noise.csv exists and is not a table of this command"),
        ({"--data": bare}, "no test image of vrd has a picture"),
        ({"--csv": tmp_path / "letter.txt"}, "expected a name that ends in .csv"),
    ]
    for change, message in bad:
        words = [word for pair in {**base, **change}.items() for word in pair]
        assert message in command("reproduce", "vrd-lu-pixels", *words).message
    assert (tmp_path / "letter.csv").read_text() == "dear\n"
