"""A detector and a relation model together: training on its boxes, predicting, scoring as in Table 1."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import detector_cases
import numpy as np
import pytest
from model_cases import model_of, rank
from model_cases import same as same_relations
from refusals import refused
from tiny_runs import Command
from training_cases import Spy, same, tiny, watched

from polyadic.config import DETECTOR_PRESETS, PRESETS
from polyadic.config.schema import Config
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.datasets.toy.world import World
from polyadic.detectors.detector import Detector
from polyadic.evaluation.compare import Comparison
from polyadic.evaluation.protocol import Recall, get_protocol
from polyadic.experiments.results import comparison_rows
from polyadic.experiments.table1 import COLUMNS, PAPER, headline
from polyadic.io.records import write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.progress import Interrupted, request_stop
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import proposals as proposing
from polyadic.training import train
from polyadic.training.detector import train_detector
from polyadic.training.examples import BoxSource
from polyadic.training.validation import score_scenes

STAGE: dict[str, Any] = {"proposals.epochs": 1, "proposals.optimiser": "adamw", "proposals.rate": 3e-3}
WORLD: dict[str, Any] = {"world.train": 24, "world.test": 6}


def config_of(detector: Path, **changes: Any) -> Config:
    own: dict[str, Any] = {"data.detector": str(detector), "triplets.epochs": 1, "selection.epochs": 1}
    return tiny(sources=("pixels", "evidence"), **own, **STAGE, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and a relation model that was trained with it."""
    folder = tmp_path_factory.mktemp("two")
    train_detector(detector_cases.tiny(score=0.0, most=7, **WORLD), folder / "detector")
    train(config_of(folder / "detector"), folder / "run")
    return folder


def test_a_saved_model_includes_its_detector(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "run" / "model", tmp_path / "elsewhere")
    model = RelationModel.load(tmp_path / "elsewhere")
    scene = World(0, 6).dataset("test")[2]
    found = rank(model, scene.open())
    assert len(found) == 20
    given = Detector.load(root / "detector").detect([scene.open()])[0]
    assert same_relations(found, rank(model, scene.open(), given))
    model.save(tmp_path / "again")
    assert same_relations(found, rank(RelationModel.load(tmp_path / "again"), scene.open()))
    kept = json.loads((tmp_path / "again" / "config.json").read_text())["data"]["detector"]
    assert kept == "detector"  # no path of this machine


def test_training_with_a_detector_equals_training_with_its_boxes_from_a_file(root: Path, tmp_path: Path) -> None:
    detector = Detector.load(root / "detector")
    scenes = World(24, 6).dataset("train").scenes
    found = (replace(detector(scene.open()), image=scene.name, size=scene.frame) for scene in scenes)
    write_detections(tmp_path / "boxes.safetensors", found, VOCABULARY)
    given = config_of(root / "detector", **{"data.detections": str(tmp_path / "boxes.safetensors")})
    train(given.change(**{"data.detector": ""}), tmp_path / "run")
    here, there = (RelationModel.load(folder / "run").state_dict() for folder in (root, tmp_path))
    assert same(here, there)
    assert not (tmp_path / "run" / "model" / "detector").exists()


def test_interrupted_detection_resumes_to_the_same_weights(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposing, "PART", 8)
    config = config_of(root / "detector")
    look = Spy()
    with watched(look):
        train(config, tmp_path / "whole")
    at = next(n for n, seen in enumerate(look.seen) if seen == "boxes, step 16")
    with pytest.raises(Interrupted), watched(Spy(at, request_stop)):
        train(config, tmp_path / "run")
    stored = sorted((tmp_path / "run" / "detected").rglob("*.safetensors"))
    assert len(stored) == 2
    again = Spy()
    with watched(again):
        train(config, tmp_path / "run", resume=True)
    assert again.seen.count("boxes, step 8") == 1, "the last eight of 24 alone"
    assert "boxes, step 16" not in again.seen
    here, there = (RelationModel.load(tmp_path / name).state_dict() for name in ("whole", "run"))
    assert same(here, there)


def test_a_run_is_not_resumed_with_another_detector(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model" / "detector")
    train_detector(detector_cases.tiny(seed=1, score=0.0, most=7, **WORLD), tmp_path / "other")
    with pytest.raises(PolyadicError, match="was trained on other data"):
        train(config_of(tmp_path / "other"), tmp_path / "run", resume=True)


def test_cached_boxes_belong_to_one_detector_and_precision(root: Path, tmp_path: Path) -> None:
    scenes = World(0, 3).dataset("test").scenes
    one = Detector.load(root / "detector")
    proposing.detected(one, scenes, tmp_path)
    other = detector_cases.detector_of(one.config, one.vocabulary)
    found = proposing.detected(other, scenes, tmp_path)
    for scene in scenes:
        np.testing.assert_allclose(found[scene.name].boxes, other(scene.open()).boxes, atol=1e-2)
    half = Detector(one.config.change(precision="bfloat16"), one.vocabulary, fetch=False)
    half.load_state_dict(one.state_dict())
    assert proposing.fingerprint(half) != proposing.fingerprint(one)
    proposing.detected(half.eval(), scenes, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(PolyadicError, match=r"two images are called 'test_000000\.png'"):
        proposing.detected(one, (*scenes, scenes[0]))


@pytest.mark.parametrize(
    ("blind", "message"),
    [(True, "the detector finds no box in any training image"), (False, "was trained with another vocabulary")],
)
def test_a_detector_of_no_use_is_an_error(root: Path, tmp_path: Path, blind: bool, message: str) -> None:
    known = Detector.load(root / "detector")
    blind_one = Detector(known.config.change(score=0.99), known.vocabulary, fetch=False)
    (blind_one if blind else detector_cases.detector_of()).save(tmp_path / "other")
    refused(message, lambda: train(config_of(tmp_path / "other"), tmp_path / "run"))


def test_evaluate_prints_table_1(root: Path, command: Command) -> None:
    shown = command("evaluate", root / "run", "--table1")
    assert shown.code == 0
    for words in ("relationship detection", "phrase detection", "k = 1 R@50", "k = 10 R@50", "free k R@50", "ceiling"):
        assert words in shown.out
    value = json.loads(command("evaluate", root / "run", "--table1", "--json").out)
    rows = [row for row in value["recalls"] if row["subset"] == "all" and row["what"] == "predictions"]
    assert {row["task"] for row in rows} == {"relationship", "phrase"}
    assert {1, 10} <= {row["k"] for row in rows}
    assert {row["N"] for row in rows} == {50, 100}
    assert len(list((root / "run" / "detected").iterdir())) == 3  # of training, test and validation
    assert "sets --task, --k and --top itself" in command("evaluate", root / "run", "--table1", "--k", "1").message


def test_the_runs_detector_scores_like_its_boxes_from_a_file(root: Path, command: Command, tmp_path: Path) -> None:
    detector = Detector.load(root / "detector")
    scenes = World(24, 6).dataset("test").scenes
    found = (replace(detector(scene.open()), image=scene.name, size=scene.frame) for scene in scenes)
    write_detections(tmp_path / "boxes.safetensors", found, VOCABULARY)
    options = ("--task", "relationship", "--k", "3", "--csv")
    own = command("evaluate", root / "run", *options)
    given = command("evaluate", root / "run", *options, "--detections", tmp_path / "boxes.safetensors")
    assert own.out == given.out


def test_overlapping_detections_are_left_out_when_tested_but_not_when_trained() -> None:
    scene = World(0, 3).dataset("test")[1]
    box = scene.boxes[:3]
    boxes = np.concatenate([box, box[:1] + np.array([0, 0, 1, 1])])
    given = Detections(scene.name, boxes, np.zeros(4, np.int64), np.array([0.5, 0.9, 0.8, 0.7]), scene.frame)
    source = BoxSource({scene.name: given})
    assert len(source.boxes(scene, np.random.default_rng(0)).boxes) == 4
    model = model_of("evidence")
    ((_, scores),) = score_scenes(model, [scene], source)
    np.testing.assert_allclose(scores.detections.boxes, boxes[1:], atol=1e-4)  # the surer of the two stays


def test_table_1_finds_each_number_under_its_task_k_and_top() -> None:
    base = get_protocol("lu2016").change(k_unit="triplet", tops=(50, 100))
    rows, free, expected, number = [], {}, {}, 0.0
    for task in ("relationship", "phrase"):
        for k in (1, 10, 4):
            protocol = base.change(task=task, k=k)
            for subset in ("all", "zero-shot"):
                for top in (50, 100):
                    number += 1
                    rows.append(("predictions", Recall(protocol.change(subset=subset), top, number, 0.0, 1, 1)))
                    if subset == "all":
                        expected[task, "free" if k == 4 else str(k), top] = number
        free[base.change(task=task, k=4)] = 4
    ceilings = (("ceiling", Recall(base.change(task="relationship", k=1), 50, 77.0, math.nan, 1, 1)),)
    lines = {
        line.label: [cell.mean for cell in line.cells]
        for line in headline(
            comparison_rows(Comparison("vrd", "test", tuple(rows), ceilings, ()), free), "vrd", columns=COLUMNS
        )
    }
    assert lines["predictions"] == [expected[column] for column in COLUMNS]
    assert lines["ceiling"][0] == 77
    assert np.isnan(lines["ceiling"][-1])
    assert {*PAPER["vrd"]} <= set(lines)


def test_one_command_trains_both_stages_and_reuses_them(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = detector_cases.tiny(score=0.0, most=7, **WORLD)
    few = tiny(**{"triplets.epochs": 1, "selection.epochs": 1})
    monkeypatch.setitem(DETECTOR_PRESETS, "toy", small)
    monkeypatch.setitem(PRESETS, "toy", few)
    shown = command("reproduce", "toy-two-stages", "--out", tmp_path / "out")
    assert shown.code == 0
    assert "relationship detection" in shown.out
    assert "detector on held-out scenes: mAP" in shown.out
    with (tmp_path / "out" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["what"] for row in rows} >= {"predictions", "count table"}
    about = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert about["relations"]["data"]["detector"] == "detector"
    assert len(list((tmp_path / "out" / "pictures").glob("*.png"))) == 7
    again = command("reproduce", "toy-two-stages", "--out", tmp_path / "out")
    assert "held-out recall" not in again.err  # nothing is trained twice
    assert again.out.splitlines()[:-1] == shown.out.splitlines()[:-1]  # but for the seconds
