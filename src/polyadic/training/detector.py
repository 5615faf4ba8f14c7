"""A detector from its first step to its last, in a folder that it can be resumed from: the same loop, other losses.

A run is a folder: config.json, model/ (the best so far by held-out mAP, complete), last.pt, log.jsonl, tensorboard/.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyadic import progress
from polyadic.config import DetectorConfig, load_detector_config
from polyadic.detectors.faster_rcnn import Detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.files import write_text
from polyadic.model.relation_model import PRECISION
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run as checkpoint
from polyadic.training.loop import Runner, Task
from polyadic.training.proposals import BoxData, Pictures, Shown, detect_scenes, load_boxes
from polyadic.training.run import Position, Record, check_new, check_same, config_path, only_one
from polyadic.training.trainer import pick_device

STAGE = "detector"
# what may differ when a run is resumed: where things are, and how fast
_FREE = ("data.root", "weights", "device", "workers", "threads")


def train_detector(
    config: DetectorConfig,
    out: str | Path,
    *,
    resume: bool = False,
) -> Detector:
    """Train into the folder `out`, new or empty; with `resume`, go on in it. Returns the best detector so far."""
    folder = Path(out).expanduser()
    if resume:
        before = detector_run_config(folder)
        check_same(config, before, folder, _FREE)
        if (config.weights == "random") != (before.weights == "random"):  # it decides what is frozen
            check_same(config, before, folder, tuple(key for key in _FREE if key != "weights"))
    else:
        check_new(folder)
    if not config.training.epochs:
        raise PolyadicError("nothing to train: training.epochs is 0")
    data, device = load_boxes(config), pick_device(config.device)
    for line in data.notes:
        progress.say(line)
    if config.threads:
        torch.set_num_threads(config.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA is deterministic with it
    about = {"data": data.fingerprint()}
    position, parts = Position(), dict[str, Any]()
    if resume:
        position, parts, known = checkpoint.load(folder)
        if known != about:
            raise PolyadicError(f"{folder} was trained on other data than this {config.data.dataset}")
    if STAGE not in position.done:
        torch.manual_seed(config.seed)
        detector = Detector(config, data.vocabulary, fetch=not resume).to(device)
        if resume:
            state = parts["state"]["modules"][STAGE] if "state" in parts else parts["model"]
            detector.network.load_state_dict(state)
        else:
            _begin(config, folder, position, detector, about)
        with only_one(folder):
            _learn(detector, data, folder, position, parts.get("state"), about)
    return Detector.load(folder / "model", device)


def detector_run_config(folder: Path) -> DetectorConfig:
    """The config of a detector's run."""
    path = config_path(folder)
    try:
        return load_detector_config(path)
    except PolyadicError as error:
        raise PolyadicError(f"{folder} is no run of a detector ({error})") from error


def _begin(config: DetectorConfig, folder: Path, position: Position, detector: Detector, about: dict[str, Any]) -> None:
    """The folder, with enough in it to be resumed from; or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.save(folder, position, {"model": detector.network.state_dict()}, about)
        write_text(folder / "config.json", json.dumps(config.to_json(), indent=1))
    except OSError as error:
        raise PolyadicError(f"cannot write the run to {folder} ({error.strerror})") from error


def _learn(
    detector: Detector,
    data: BoxData,
    folder: Path,
    position: Position,
    state: dict[str, Any] | None,
    about: dict[str, Any],
) -> None:
    config = detector.config
    if state is None:
        position.next_stage(STAGE)

    def save_best(numbers: dict[str, float]) -> None:
        detector.save(folder / "model", stage=STAGE, epoch=position.epoch + 1, held_out=numbers)

    def save_position(at: Position, held: dict[str, Any]) -> None:
        checkpoint.save(folder, at, {"state": held}, about)

    record = Record(folder, position)
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        runner = Runner(
            config.seed,
            detector.device,
            PRECISION[config.precision],
            config.workers,
            record,
            save_best,
            save_position,
        )
        runner.run(_task(detector, data), position, state)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        record.close()
    position.done.append(STAGE)
    checkpoint.save(folder, position, {}, about)


def _task(detector: Detector, data: BoxData) -> Task:
    config = detector.config

    def loss(batch: list[Shown]) -> tuple[Tensor, int]:
        parts = detector.losses([x.picture for x in batch], [x.boxes for x in batch], [x.labels for x in batch])
        return torch.stack(list(parts.values())).sum(), len(batch)

    def validate() -> dict[str, float]:
        images, workers = config.training.images, config.workers
        found = detect_scenes(detector, data.validation, images, workers, "validation")
        return average_precision(found, len(data.vocabulary.objects))

    def train_mode() -> None:
        detector.train()

    return Task(
        STAGE,
        config.training,
        {STAGE: detector.network},
        lambda epoch: Pictures(data.fit, config.seed, epoch),
        loss,
        lambda batch: [each.name for each in batch],
        train_mode,
        validate,
        "mAP",
    )
