"""Train a detector: its stage in the same loop and run folder as the relation model's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config import DetectorConfig, load_detector_config
from polyadic.detectors.detector import Detector, part_labels
from polyadic.detectors.yolox_nano import YoloxNano
from polyadic.evaluation.average_precision import average_precision
from polyadic.model.relation_model import PRECISION
from polyadic.model.storage import pick_device
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import ranks
from polyadic.training.loop import fit
from polyadic.training.proposals import BoxData, DetectorExamples, Shown, detect_scenes, load_boxes, part_places
from polyadic.training.run import Run, check_new, check_same, code_digest, compared, config_path, only_one
from polyadic.training.stages import Stage

STAGE = "detector"
COLUMNS = ("picture", "boxes", "labels", "weights", "parts")
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
        return DetectorExamples(self.data, self.config, epoch)

    def loss(self, batch: list[Shown]) -> tuple[Tensor, int]:
        """Sum the network's losses."""
        columns = ([getattr(shown, name) for shown in batch] for name in COLUMNS)
        parts = self.detector.losses(*columns)
        return torch.stack(list(parts.values())).sum(), len(batch)

    def validate(self) -> dict[str, float]:
        """Compute mAP and AP50 on the held-out images."""
        images, workers = self.settings.images, self.config.workers
        mine = ranks.share(self.data.validation)
        found = ranks.gather(list(detect_scenes(self.detector, mine, images, workers, "validation")))
        detected = (pair for part in found for pair in part)
        if isinstance(self.detector.network, YoloxNano):  # one place may have several boxes, each for its own label
            detected = ((scene, replace(boxes, distribution=None)) for scene, boxes in detected)
        return average_precision(detected, len(self.data.vocabulary.objects))

    def save(self, folder: Path, **about: Any) -> None:
        self.detector.save(folder, **about)

    def names(self, batch: list[Shown]) -> list[str]:
        return [image.name for image in batch]

    def train_mode(self) -> None:
        self.detector.train()

    def rate_groups(self, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Let layers that start from COCO's weights learn more slowly than new ones."""
        network = self.detector.network
        if not isinstance(network, YoloxNano) or self.config.weights == "random":
            return super().rate_groups(parameters)
        new = {id(p) for module in network.new_layers() for p in module.parameters()}
        return [
            {"params": [p for p in parameters if id(p) in new], "factor": 1.0},
            {"params": [p for p in parameters if id(p) not in new], "factor": self.config.pretrained_rate},
        ]


def train_detector(config: DetectorConfig, out: str | Path, *, resume: bool = False) -> Detector:
    """Train into the folder `out`, new or empty; with `resume`, continue in it. Return the best detector so far.

    Under torchrun all processes call this with the same arguments, and share the work.
    """
    with ranks.joined():
        return _train(config, Path(out).expanduser(), resume)


def _check_folder(config: DetectorConfig, folder: Path, resume: bool) -> tuple[bool, int]:
    """Check that a run may begin in a folder, or continue; return which, and the slices of its steps."""
    if not config.training.epochs:
        raise PolyadicError("nothing to train: training.epochs is 0")
    resume = resume or ranks.restarted_in(folder)
    if not resume:
        check_new(folder)
        return resume, max(config.training.slices, ranks.world())
    before = detector_run_config(folder)
    check_same(config, before, folder, (*_FREE, "training.slices"))
    if (config.weights == "random") != (before.weights == "random"):  # it decides what is frozen
        check_same(config, before, folder, tuple(key for key in _FREE if key != "weights"))
    return resume, before.training.slices


def _train(config: DetectorConfig, folder: Path, resume: bool) -> Detector:
    resume, slices = ranks.first_does(partial(_check_folder, config, folder, resume))
    config = config.change(**{"training.slices": slices})
    data, device = ranks.together(lambda: load_boxes(config)), pick_device(config.device)
    for line in data.notes:
        progress.say(line)
    if config.threads:
        torch.set_num_threads(config.threads)
    run = Run(folder, config, {"data": data.fingerprint()})
    ranks.compare(code=code_digest(), config=compared(config, _FREE), **run.about)
    with only_one(folder, new=not resume):
        weights = run.resume() if resume else None
        if STAGE not in run.checkpoint.done:
            torch.manual_seed(config.seed)
            detector = Detector(config, data.vocabulary, fetch=not resume).to(device)
            if resume:
                stored: Any = weights if run.state is None else run.state["modules"][STAGE]
                detector.network.load_state_dict(stored)
            else:
                if isinstance(detector.network, YoloxNano) and detector.network.parts is not None:
                    places = part_places(data.fit, *part_labels(config, data.vocabulary))
                    detector.network.parts.places.copy_(torch.from_numpy(places))
                run.begin(detector.network.state_dict())
            if run.state is None:
                run.checkpoint.next_stage(STAGE)
            with run.training():
                fit(DetectorStage(detector, data), run)
            run.checkpoint.done.append(STAGE)
            run.save()
    ranks.wait()  # for the first process to save
    return Detector.load(folder / "model", device)


def detector_run_config(folder: Path) -> DetectorConfig:
    """Load the config of a detector's run."""
    path = config_path(folder)
    try:
        return load_detector_config(path)
    except PolyadicError as error:
        raise PolyadicError(f"{folder} is not a run of a detector ({error})") from error
