"""Train a detector: its stage in the same loop and run folder as the relation model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config import DetectorConfig, load_detector_config
from polyadic.detectors.faster_rcnn import Detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.model.relation_model import PRECISION
from polyadic.model.storage import pick_device
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.loop import fit
from polyadic.training.proposals import BoxData, DetectorExamples, Shown, detect_scenes, load_boxes
from polyadic.training.run import Run, check_new, check_same, config_path, only_one
from polyadic.training.stages import Stage

STAGE = "detector"
# what may differ when a run is resumed: paths and speed
_FREE = ("data.root", "weights", "device", "workers", "threads")


class DetectorStage(Stage):
    """Train a detector on all boxes of an image, judged by mean average precision."""

    name = STAGE
    best_metric = "mAP"

    def __init__(self, detector: Detector, data: BoxData) -> None:
        self.detector, self.data, self.config = detector, data, detector.config
        self.settings, self.device = detector.config.training, detector.device
        self.precision = PRECISION[detector.config.precision]
        self.modules = {STAGE: detector.network}

    def examples(self, epoch: int) -> Dataset[Any]:
        """List the training images, half of them mirrored."""
        return DetectorExamples(self.data.fit, self.config.seed, epoch)

    def loss(self, batch: list[Shown]) -> tuple[Tensor, int]:
        """Sum Faster R-CNN's losses."""
        parts = self.detector.losses([x.picture for x in batch], [x.boxes for x in batch], [x.labels for x in batch])
        return torch.stack(list(parts.values())).sum(), len(batch)

    def validate(self) -> dict[str, float]:
        """Compute mAP and AP50 on the held-out images."""
        images, workers = self.settings.images, self.config.workers
        detections = detect_scenes(self.detector, self.data.validation, images, workers, "validation")
        return average_precision(detections, len(self.data.vocabulary.objects))

    def save(self, folder: Path, **about: Any) -> None:
        self.detector.save(folder, **about)

    def names(self, batch: list[Shown]) -> list[str]:
        return [image.name for image in batch]

    def train_mode(self) -> None:
        self.detector.train()


def train_detector(config: DetectorConfig, out: str | Path, *, resume: bool = False) -> Detector:
    """Train into the folder `out`, new or empty; with `resume`, continue in it. Return the best detector so far."""
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
    run = Run(folder, config, {"data": data.fingerprint()})
    weights = run.resume() if resume else None
    if STAGE not in run.checkpoint.done:
        torch.manual_seed(config.seed)
        detector = Detector(config, data.vocabulary, fetch=not resume).to(device)
        if resume:
            detector.network.load_state_dict(weights if run.state is None else run.state["modules"][STAGE])
        else:
            run.begin(detector.network.state_dict())
        if run.state is None:
            run.checkpoint.next_stage(STAGE)
        with only_one(folder), run.training():
            fit(DetectorStage(detector, data), run)
        run.checkpoint.done.append(STAGE)
        run.save()
    return Detector.load(folder / "model", device)


def detector_run_config(folder: Path) -> DetectorConfig:
    """Load the config of a detector's run."""
    path = config_path(folder)
    try:
        return load_detector_config(path)
    except PolyadicError as error:
        raise PolyadicError(f"{folder} is not a run of a detector ({error})") from error
