"""A detector's second look at annotated boxes, P(class | box), as input of a label head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_cases import tiny

from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.datasets.toy.world import World
from polyadic.experiments.proposals import detect_split
from polyadic.experiments.runs import open_run, predict_split
from polyadic.io.records import read_detections, write_detections
from polyadic.model.heads import LabelHead
from polyadic.model.scoring import ALL
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train
from polyadic.training.examples import BoxSource

LABELS: dict[str, Any] = {
    "head.rank": 1,
    "head.labels": True,
    "boxes.epochs": 1,
    "selection.epochs": 0,
    "triplets.epochs": 1,
    "evidence.names": 1,
}


def look_at(scene: Scene, sure: float = 0.9) -> Detections:
    """Look at the annotated boxes with eyes that are `sure` of the right class."""
    n, classes = len(scene.boxes), len(VOCABULARY.objects)
    rows = np.full((n, classes), (1 - sure) / (classes - 1), np.float32)
    rows[np.arange(n), scene.labels] = sure
    return Detections(scene.name, scene.boxes, scene.labels, rows.max(1).astype(float), scene.frame, distribution=rows)


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world, path = World(24, 6, 0), tmp_path_factory.mktemp("looks") / "looks.safetensors"
    scenes = [scene for split in ("train", "test") for scene in world.dataset(split)]
    write_detections(path, map(look_at, scenes), VOCABULARY)
    return path


def test_a_label_head_multiplies_the_look_with_a_learned_exponent() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"hidden": 7, "dropout": 0.0, "input_dropout": 0.0, "layers": 1}
    head = LabelHead(4, (5, 3, 5), names=True, **options).double().eval()
    assert head.label.trust is not None
    x, names = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    with torch.no_grad():
        head.label.trust.weight.normal_()
        plain, seen = head.labels(x), head.labels(x, names)
        exponent = head.label.trust(head.label.hidden(x))  # [N, 1]
    torch.testing.assert_close(seen, (plain + exponent * names).log_softmax(-1))


def test_good_eyes_make_better_labels_in_training_and_evaluation(looks: Path, tmp_path: Path) -> None:
    shares = []
    for name, more in {"blind": {}, "seeing": {"data.looks": str(looks)}}.items():
        train(tiny(**LABELS, **more), tmp_path / name)
        run = open_run(tmp_path / name)
        (relations,) = predict_split(run.model, run.images(boxes=BoxSource()), [(1, ALL)], top=5)
        right = [
            scene.labels[pair].tolist() == triplet[::2].tolist()
            for scene, some in zip(run.data, relations, strict=True)
            for pair, triplet in zip(some.pairs, some.triplets, strict=True)
        ]
        shares.append(np.mean(right))
    assert shares[1] > shares[0] + 0.2


def test_looks_of_other_boxes_and_without_a_reader_are_refused(looks: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.safetensors"
    boxes = [replace(one, boxes=one.boxes + 3) for one in read_detections(looks, VOCABULARY)]
    write_detections(moved, boxes, VOCABULARY)
    fewer, other = tmp_path / "fewer.safetensors", tmp_path / "other.safetensors"
    write_detections(fewer, [one.take(np.arange(1)) for one in read_detections(looks, VOCABULARY)], VOCABULARY)
    write_detections(other, [replace(boxes[0], image="elsewhere")], VOCABULARY)
    messages = {moved: "other boxes than", fewer: "other boxes than", other: "no training image"}
    for path, message in messages.items():
        with pytest.raises(PolyadicError, match=rf"data\.looks.* {message}"):
            train(tiny(**LABELS, **{"data.looks": str(path)}), tmp_path / "run")
    with pytest.raises(PolyadicError, match=r"data\.looks is read by a label head"):
        tiny(**{"data.looks": str(looks)})


def test_a_detector_without_a_second_look_is_refused(tmp_path: Path) -> None:
    from detector_cases import tiny as tiny_detector

    from polyadic.training.detector import train_detector

    train_detector(tiny_detector(), tmp_path / "run")
    with pytest.raises(PolyadicError, match="second look"):
        detect_split(tmp_path / "run", "test", tmp_path / "looks.safetensors", annotated=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(PolyadicError, match="mutually exclusive"):
        detect_split(tmp_path / "run", "test", tmp_path / "looks.safetensors", annotated=True, beside="boxes.jsonl")
