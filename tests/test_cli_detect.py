"""`polyadic detect` as a person types it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detector_cases import tiny
from tiny_runs import Command, call, write_tiny
from training_cases import Spy, watched

from polyadic.config import DETECTOR_PRESETS, load_detector_config
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.datasets.toy.world import World
from polyadic.detectors.detector import Detector
from polyadic.experiments import proposals as writing
from polyadic.experiments.proposals import detect_split
from polyadic.io.records import read_detections
from polyadic.progress import Interrupted, request_stop
from polyadic.structures.images import Photo
from polyadic.training import proposals
from polyadic.training.proposals import detect_stored


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(tiny(score=0.0, most=5).to_toml())
    return path


@pytest.fixture(scope="module")
def run(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "detector"
    assert call("detect", "train", config, "--out", out) == 0
    return out


def test_training_prints_the_model_and_the_next_command(command: Command, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--training.epochs=1", "--seed", "4", "--dataset", "toy")
    result = command("detect", "train", "--preset", config, "--out", out, *words)
    assert result.code == 0
    assert result.out.startswith(f"detector: {out / 'model'}, best at epoch 1: held-out mAP ")
    assert result.out.endswith(f"next: polyadic detect run {out} --split train --out proposals.safetensors\n")
    assert "detector 1/1: held-out mAP" in result.err
    kept = load_detector_config(out / "config.json")
    assert (kept.training.epochs, kept.seed, kept.most) == (1, 4, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("toy", "--preset", "vgg16"), "expected one CONFIG, got toy and --preset vgg16"),
        (
            ("resnet",),
            "no preset and no file is called resnet; presets: vgg16, resnet50-fpn, mobilenetv3-fpn, yolox-nano, toy",
        ),
        ((), "CONFIG is missing: a preset (vgg16, "),
        (("vgg16",), "vrd: where is it? Give its folder with --data"),
    ],
)
def test_user_errors_print_one_line(
    command: Command, tmp_path: Path, unchecked: None, words: tuple[str, ...], message: str
) -> None:
    assert message in command("detect", "train", *words, "--out", tmp_path / "run").message
    assert not (tmp_path / "run").exists()


def test_presets_are_listed_and_printed_as_toml(command: Command, tmp_path: Path) -> None:
    listed = command("detect", "config").out
    assert [line.split()[0] for line in listed.splitlines()] == list(DETECTOR_PRESETS)
    for name, config in DETECTOR_PRESETS.items():
        path = tmp_path / "own.toml"
        path.write_text(command("detect", "config", name).out)
        assert load_detector_config(path) == config


def test_written_proposals_equal_the_detectors_output(command: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "test.safetensors"
    result = command("detect", "run", run, "--split", "test", "--out", out, "--batch", "2")
    assert result.code == 0
    first, precision, ceiling = result.out.splitlines()
    assert first == f"{out}: 5 images, 5.0 boxes per image"
    assert precision.startswith("mAP ")
    assert ceiling.startswith("relations with both boxes found: ")
    detector = Detector.load(run)
    scenes = World(12, 5).dataset("test")
    stored = list(read_detections(out, VOCABULARY))
    assert [each.image for each in stored] == [scene.name for scene in scenes]
    for each, scene in zip(stored, scenes, strict=True):
        found = detector(Photo(scene.name, scene.open(), scene.frame))
        np.testing.assert_allclose(each.boxes, found.boxes, atol=1e-3)
        assert each.labels.tolist() == found.labels.tolist()
        assert each.distribution is not None
        assert found.distribution is not None
        np.testing.assert_allclose(each.distribution, found.distribution, atol=1e-3)  # stored in float16
    assert [path.name for path in tmp_path.iterdir()] == ["test.safetensors"]


def test_an_interrupted_and_resumed_file_is_identical(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "PART", 3)
    straight, out = tmp_path / "straight.safetensors", tmp_path / "out.safetensors"
    detect_split(run, "train", straight, batch=2)
    parts = 0
    while parts < 20:
        try:
            with watched(Spy(2, request_stop)):
                detect_split(run, "train", out, batch=2, resume=parts > 0)
            break
        except Interrupted:
            parts += 1
            assert not out.exists()
    assert 1 < parts < 20
    assert out.read_bytes() == straight.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "straight.safetensors"]


def test_a_file_is_replaced_only_with_overwrite(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "boxes.jsonl"
    words = ("detect", "run", run, "--split", "validation", "--out", out)
    first = command(*words)
    assert first.code == 0
    before = out.read_bytes()
    assert "exists: choose another name" in command(*words).message
    assert command(*words, "--resume").out == first.out, "it is complete: measured again"
    assert "mutually exclusive" in command(*words, "--resume", "--overwrite").message
    assert command(*words, "--overwrite").code == 0
    assert out.read_bytes() == before
    other = tmp_path / "other.safetensors"
    with pytest.raises(Interrupted), watched(Spy(2, request_stop)):
        detect_split(run, "train", other, batch=2)
    again = ("detect", "run", run, "--out", other)
    assert "is incomplete: continue it with --resume" in command(*again, "--split", "train").message
    assert "was started with another detector or split" in command(*again, "--split", "test", "--resume").message
    assert command(*again, "--split", "test", "--overwrite").code == 0
    assert len(list(read_detections(other, VOCABULARY))) == 5


def test_two_processes_do_not_write_one_file(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.jsonl"
    words = ("detect", "run", run, "--split", "test", "--out", out)
    found: list[str] = []

    def detect(*arguments: Any, **options: Any) -> Any:
        """In the middle of one, start another."""
        with monkeypatch.context() as patch:
            patch.setattr(writing, "detect_stored", detect_stored)
            found.extend(command(*words, *more).message for more in ((), ("--resume",), ("--overwrite",)))
        return detect_stored(*arguments, **options)

    monkeypatch.setattr(writing, "detect_stored", detect)
    assert command(*words).code == 0
    assert len(found) == 3
    assert all("another process is writing" in message for message in found)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert len(list(read_detections(out, VOCABULARY))) == 5


def test_bad_runs_and_files_print_one_line(command: Command, run: Path, tmp_path: Path) -> None:
    def error(folder: Path, *words: str | Path) -> str:
        return command("detect", "run", folder, "--split", "test", *words).message

    out = tmp_path / "a.safetensors"
    assert "holds no saved model: no such folder" in error(tmp_path / "none", "--out", out)
    assert "written as .safetensors (with class distributions) or .jsonl" in error(run, "--out", tmp_path / "a.txt")
    assert "no folder" in error(run, "--out", tmp_path / "none" / "a.jsonl")
    assert "no dataset is called 'vdr'" in error(run, "--out", out, "--dataset", "vdr")
    assert "takes no folder" in error(run, "--out", out, "--data", tmp_path)
    relations = tmp_path / "relations"
    assert call("train", write_tiny(tmp_path), "--out", relations, "--triplets.epochs", "1") == 0
    assert "is not a run of a detector" in error(relations, "--out", out)
    assert "is not a run of a detector" in command("detect", "train", "--resume", "--out", relations).message
