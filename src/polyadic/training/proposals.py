"""Images with boxes to train a detector on, and the proposals that it detects for the relation model."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config import DetectorConfig
from polyadic.detectors.faster_rcnn import Detector, to_pixels
from polyadic.files import find_model
from polyadic.io.records import read_detections, write_detections
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.examples import load_split, number_of
from polyadic.training.loading import load_batches
from polyadic.training.region_cache import digest

RELATED = ("vrd", "vg200")  # datasets that annotate only boxes in relations


@dataclass(frozen=True, eq=False)
class BoxData:
    """Hold training and held-out scenes; every box has an area and lies within its frame."""

    fit: tuple[Scene, ...]
    validation: tuple[Scene, ...]
    vocabulary: Vocabulary
    notes: tuple[str, ...]  # remarks to print

    def fingerprint(self) -> str:
        """Compute a digest, so that a run is not resumed on other data."""
        parts: list[str | np.ndarray] = [self.vocabulary.to_json()]
        for scene in (*self.fit, *self.validation):
            parts += [scene.name, scene.boxes, scene.labels]
        return digest(*parts)


def load_boxes(config: DetectorConfig) -> BoxData:
    """Load the boxes of a dataset; images without boxes are background where all objects are annotated."""
    fit = load_split(config, "fit" if config.validation.images else "train", config.data.pictures)
    held_out = load_split(config, "validation", config.data.pictures).scenes if config.validation.images else ()
    name, notes = fit.name, []
    if name in RELATED:
        notes.append(
            f"{name} has boxes in relations alone: an object that nobody related is background to the detector, "
            "and its precision looks worse than it is"
        )
    scenes = [_usable(scene) for scene in fit]
    validation = tuple(_usable(scene) for scene in held_out[: config.validation.images])
    before, after = (sum(len(scene.boxes) for scene in some) for some in (fit, scenes))
    if after < before:
        notes.append(f"{name}: {before - after:,} boxes have no area within their picture and are left out")
    bare = sum(not len(scene.boxes) for scene in scenes)
    if bare and name in RELATED:
        scenes = [scene for scene in scenes if len(scene.boxes)]
        notes.append(f"{name}: {bare:,} images without boxes are left out")
    elif bare:
        notes.append(f"{name}: {bare:,} images have no boxes: all of them is background")
    if not any(len(scene.boxes) for scene in scenes):
        raise PolyadicError(f"{name} fit: no image has a box to learn from")
    return BoxData(tuple(scenes), validation, fit.vocabulary, tuple(notes))


def _usable(scene: Scene) -> Scene:
    """Clip the boxes to the frame, and drop those without area."""
    width, height = scene.frame
    boxes = scene.boxes.clip(0, [width, height, width, height])
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    none = np.zeros((0, 3), np.int64)  # relations count boxes, and are not needed here
    return replace(scene, boxes=boxes[kept], labels=scene.labels[kept], relations=none)


@dataclass(frozen=True, eq=False)
class Shown:
    """Hold one image of a batch, with boxes in its pixels."""

    name: str
    picture: UInt8[Tensor, "3 H W"]
    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]


class DetectorExamples(Dataset[Shown]):
    """List the images of one epoch, half of them mirrored; which ones depends only on seed, epoch and image."""

    def __init__(self, scenes: Sequence[Scene], seed: int, epoch: int) -> None:
        self.scenes, self.seed, self.epoch = scenes, seed, epoch

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> Shown:
        scene = self.scenes[at]
        picture = to_pixels(scene.photo())
        height, width = picture.shape[1:]
        boxes = torch.from_numpy(scene.boxes_in(width, height)).float()
        if number_of(self.seed, "mirror", self.epoch, scene.name) % 2:
            picture, boxes = mirror(picture, boxes)
        return Shown(scene.name, picture, boxes, torch.from_numpy(scene.labels))


def mirror(
    picture: UInt8[Tensor, "3 H W"], boxes: Float[Tensor, "N 4"]
) -> tuple[UInt8[Tensor, "3 H W"], Float[Tensor, "N 4"]]:
    """Flip an image and its boxes horizontally."""
    width = picture.shape[2]
    left, top, right, bottom = boxes.unbind(-1)
    return picture.flip(-1), torch.stack([width - right, top, width - left, bottom], -1)


def detect_scenes(
    detector: Detector,
    scenes: Sequence[Scene],
    images: int,
    workers: int = 0,
    text: str = "boxes",
) -> Iterator[tuple[Scene, Detections]]:
    """Detect the boxes of each image, in order and in the annotated frame, `images` at a time."""
    batches = [list(range(at, min(at + images, len(scenes)))) for at in range(0, len(scenes), images)]
    done = 0
    with progress.task(text, len(scenes)) as move:
        for batch in load_batches(_Photos(scenes), batches, workers):
            progress.check()
            for detections in detector.detect(batch, images):
                yield scenes[done], detections
                done += 1
            move(done)


class _Photos(Dataset[Photo]):
    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> Photo:
        return self.scenes[at].photo()


KEPT = "detector"  # in the model's folder
FOUND = "detected"  # in the run's folder
PART = 200  # images per file: what a crash may cost


def fingerprint(detector: Detector) -> str:
    """Compute a digest of everything that the boxes depend on, except the images."""
    config = detector.config
    how = json.dumps(
        [config.network, config.side, config.longest, config.nms, config.score, config.most, config.precision]
    )
    weights = (x.detach().cpu().numpy() for _, x in sorted(detector.network.state_dict().items()))
    return digest(how, detector.vocabulary.to_json(), *weights)


def keep_detector(source: Path, model: Path) -> None:
    """Copy the detector into the relation model's folder, atomically, so that the model needs nothing else."""
    target, half = model / KEPT, model / f".{KEPT}.{os.getpid()}.part"
    if target.exists():
        return
    model.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(find_model(source, "`polyadic detect train`"), half)
        half.rename(target)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def detected(
    detector: Detector, scenes: Sequence[Scene], folder: Path | None = None, workers: int = 0
) -> dict[str, Detections]:
    """Detect the boxes of each scene, by name; `folder` stores them for later runs and after an interruption."""
    twice = next((name for name, n in Counter(scene.name for scene in scenes).items() if n > 1), None)
    if twice is not None:
        raise PolyadicError(f"two images are called {twice!r} (in training and validation?): names must be unique")
    batch = max(1, detector.config.training.images)
    if folder is None:
        return {scene.name: image for scene, image in detect_scenes(detector, scenes, batch, workers)}
    parts = parts_folder(folder, detector, scenes)
    return {image.image: image for image in detect_stored(detector, scenes, parts, batch=batch, workers=workers)}


def parts_folder(folder: Path, detector: Detector, scenes: Sequence[Scene]) -> Path:
    """Name the folder of these boxes by everything that they depend on."""
    key = digest(fingerprint(detector), *(f"{scene.name} {scene.frame} {scene.image}" for scene in scenes))
    return folder / key[:16]


def detect_stored(
    detector: Detector, scenes: Sequence[Scene], parts: Path, *, batch: int, workers: int = 0
) -> Iterator[Detections]:
    """Detect the boxes of each scene, in order, and store them in parts; those already stored are read.

    An interruption keeps what has been detected.
    """
    stored = sorted(parts.glob("*.safetensors"))
    done = 0
    for path in stored:
        for detections in read_detections(path, detector.vocabulary):
            yield detections
            done += 1
    parts.mkdir(parents=True, exist_ok=True)
    rest = (detections for _, detections in detect_scenes(detector, scenes[done:], batch, workers))
    for number in count(len(stored)):
        path = parts / f"{number:06}.safetensors"
        some: list[Detections] = []
        try:
            some.extend(islice(rest, PART))
        finally:
            if some:
                write_detections(path, some, detector.vocabulary, overwrite=True)
        if not some:
            return
        yield from read_detections(path, detector.vocabulary)  # as a resumed run reads them
