"""One run from its first stage to its last, in a folder that it can be resumed from."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic import progress
from polyadic.config.schema import Config
from polyadic.detectors.faster_rcnn import Detector
from polyadic.files import write_text
from polyadic.model.relation_model import PRECISION, RelationModel
from polyadic.prior import TripletPrior
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run as checkpoint
from polyadic.training import stages
from polyadic.training.examples import BoxSource, Examples, load_training
from polyadic.training.loop import Runner
from polyadic.training.proposals import FOUND, KEPT, detected, fingerprint, keep_detector
from polyadic.training.region_cache import FeatureCache, Regions, fill
from polyadic.training.run import Position, Record, only_one

_SAMPLE = 8192  # regions from which principal components are found


def pick_device(name: str) -> torch.device:
    """The device of a config; `auto` is the first of CUDA, MPS and the CPU."""
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PolyadicError(f"device {name!r} cannot be used here ({str(error).splitlines()[0]:.120})") from error
    return device


class Trainer:
    """Data, model, features and diary of a run."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        if not stages.planned(config):
            raise PolyadicError("nothing to train: no stage has epochs (triplets.epochs, selection.epochs, ...)")
        self.device = pick_device(config.device)
        self.precision = PRECISION[config.precision]
        self.regions: Regions | None = None
        self.data = load_training(config)
        for line in self.data.notes:
            progress.say(line)
        self.about = {"data": self.data.fingerprint()}
        self.detector: Detector | None = None
        if config.data.detector:
            kept = folder / "model" / KEPT
            self.detector = Detector.load(
                kept if kept.is_dir() else Path(config.data.detector), self.device, self.data.vocabulary
            )
            self.about["detector"] = fingerprint(self.detector)

    def run(self, resume: bool) -> RelationModel:
        config, position, parts = self.config, Position(), None
        if config.threads:
            torch.set_num_threads(config.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA is deterministic with it
        if resume:
            position, parts, about = checkpoint.load(self.folder)
            if about != self.about:
                raise PolyadicError(f"{self.folder} was trained on other data than this {config.data.dataset}")
        torch.manual_seed(config.seed)
        triplets = torch.from_numpy(self.data.annotations.triplets())
        prior = TripletPrior.from_triplets(triplets, self.data.vocabulary, smoothing=config.ranking.smoothing)
        self.model = RelationModel(config, self.data.vocabulary, prior, fetch=not resume).to(self.device)
        if parts is not None:
            self.model.load_state_dict(parts["model"])
            self.model.stages = tuple(position.done)
        else:
            self._begin(position)
        with only_one(self.folder):
            self._detect()
            self._stages(position, parts)
        return self.model.eval()

    def _stages(self, position: Position, parts: dict[str, Any] | None) -> None:
        self.record = Record(self.folder, position)
        deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            for name in stages.planned(self.config):
                if name not in position.done:
                    self._stage(name, position, parts.get("state") if parts is not None else None)
                    parts = None
        finally:
            torch.use_deterministic_algorithms(deterministic)
            self.record.close()

    def _detect(self) -> None:
        """The detector stays with the model; where boxes are needed and not given, it finds them."""
        if self.detector is None:
            return
        try:
            keep_detector(Path(self.config.data.detector), self.folder / "model")
            self.model.saved_detector = self.folder / "model" / KEPT
            if self.config.proposals.epochs and self.data.detections is None:
                scenes = (*self.data.fit, *self.data.validation)
                place, workers = self.folder / FOUND, self.config.workers
                found = detected(self.detector, scenes, place, workers)
                boxes = sum(map(len, found.values()))
                if not boxes:
                    raise PolyadicError("the detector finds no box in any training image: train it longer")
                progress.say(f"the detector finds {boxes / len(found):.1f} boxes per image")
                self.data = replace(self.data, detections=found)
        except OSError as error:
            raise PolyadicError(f"cannot write the run to {self.folder} ({error.strerror})") from error

    def _begin(self, position: Position) -> None:
        """The folder, with enough in it to be resumed from; or nothing."""
        path = self.folder / "config.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._keep(position, {})
            write_text(path, json.dumps(self.config.to_json(), indent=1))
        except OSError as error:
            raise PolyadicError(f"cannot write the run to {self.folder} ({error.strerror})") from error

    def _keep(self, position: Position, more: dict[str, Any]) -> None:
        checkpoint.save(self.folder, position, {"model": self.model.state_dict(), **more}, self.about)

    def _stage(self, name: str, position: Position, state: dict[str, Any] | None) -> None:
        resumed = position.stage == name and state is not None
        if not resumed:
            position.next_stage(name)
        torch.manual_seed(self.config.seed)
        task = stages.STAGES[name](self, not resumed)
        if resumed and state is not None:
            for key, module in task.modules.items():
                module.load_state_dict(state["modules"][key])
        before = self.model.stages
        self.model.stages = (*before, name)

        def save_best(numbers: dict[str, float]) -> None:
            self.model.save(self.folder / "model", stage=name, epoch=position.epoch + 1, held_out=numbers)

        runner = Runner(
            self.config.seed,
            self.device,
            self.precision,
            self.config.workers,
            self.record,
            save_best,
            lambda at, held: self._keep(at, {"state": held}),
        )
        runner.run(task, position, state if resumed else None)
        task.finish()
        self.model.load_state_dict(RelationModel.load(self.folder / "model", self.device).state_dict())
        position.done.append(name)
        position.stage = ""
        self._keep(position, {})

    def fill(self, source: BoxSource) -> None:
        """Open the cache, once the backbone is what it will be, and compute what it lacks."""
        backbone, config = self.model.backbone, self.config
        if backbone is None:
            return
        if self.regions is None:
            folder = Path(config.cache.folder).expanduser() if config.cache.folder else self.folder.parent / "features"
            cache = FeatureCache(folder, int(config.cache.gigabytes * 1e9))
            self.regions = Regions(config.pixels, cache, backbone.fingerprint(), self.precision)
        if source.fixed:
            scenes = (*self.data.fit, *self.data.validation)
            rng, tested = np.random.default_rng(0), replace(source, nms=config.ranking.nms)
            boxes = [source.boxes(scene, rng).boxes for scene in self.data.fit]
            boxes += [tested.boxes(scene, rng).boxes for scene in self.data.validation]
            fill(self.regions, backbone, scenes, boxes, config.workers)

    def region_sample(self, source: BoxSource) -> tuple[Tensor, Tensor]:
        """Features of some boxes, [M, D], and of boxes around pairs, [L, E]."""
        examples = Examples(self.data.fit, "triplets", source, self.config.sources, self.regions, (0, "sample", 0))
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(self.config.seed)).tolist()
        boxes, unions = list[Tensor](), list[Tensor]()
        for at in order:
            inputs = examples[at].complete(self.regions, self.model.backbone).to(self.device)
            assert inputs.regions is not None, "asked for where there are pixels"
            assert inputs.unions is not None, "asked for where there are pixels"
            boxes.append(inputs.regions)
            unions.append(inputs.unions)
            if sum(map(len, (*boxes, *unions))) >= _SAMPLE:
                break
        return torch.cat(boxes), torch.cat(unions)
