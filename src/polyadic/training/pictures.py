"""Pictures with their boxes: what a detector learns from, and what it is asked about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from polyadic.cache import digest
from polyadic.config import DetectorConfig
from polyadic.detector import Detector, to_pixels
from polyadic.scenes import Detections, Photo, Scene
from polyadic.training.data import load_split
from polyadic.training.examples import number_of
from polyadic.training.loading import load_batches
from polyadic.training.watch import Silent, Stop, Watcher
from polyadic.vocabulary import PolyadicError, Vocabulary

RELATED = ("vrd", "vg200")  # datasets whose boxes are those of their relations


@dataclass(frozen=True, eq=False)
class BoxData:
    """Scenes to learn from and held-out ones; every box has an area and lies in its frame."""

    fit: tuple[Scene, ...]
    validation: tuple[Scene, ...]
    vocabulary: Vocabulary
    notes: tuple[str, ...]  # what a person should know of it

    def fingerprint(self) -> str:
        """So that a run is not resumed on other data."""
        parts: list[str | np.ndarray] = [self.vocabulary.to_json()]
        for scene in (*self.fit, *self.validation):
            parts += [scene.name, scene.boxes, scene.labels]
        return digest(*parts)


def load_boxes(config: DetectorConfig) -> BoxData:
    """Images without boxes are background to learn from, where a dataset claims to show all objects."""
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
    """With its boxes cut off at the frame, and without those of which nothing is left."""
    width, height = scene.frame
    boxes = scene.boxes.clip(0, [width, height, width, height])
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    none = np.zeros((0, 3), np.int64)  # relations count boxes, and are not needed here
    return replace(scene, boxes=boxes[kept], labels=scene.labels[kept], relations=none)


@dataclass(frozen=True, eq=False)
class Shown:
    """One image of a batch, its boxes in its own pixels."""

    name: str
    picture: UInt8[Tensor, "3 H W"]
    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]


class Pictures(Dataset[Shown]):
    """The images of one epoch, half of them mirrored; which ones depends on seed, epoch and image alone."""

    def __init__(self, scenes: Sequence[Scene], seed: int, epoch: int) -> None:
        self.scenes, self.seed, self.epoch = scenes, seed, epoch

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> Shown:
        scene = self.scenes[at]
        picture = to_pixels(_photo(scene))
        height, width = picture.shape[1:]
        boxes = torch.from_numpy(scene.boxes_in(width, height)).float()
        if number_of(self.seed, "mirror", self.epoch, scene.name) % 2:
            picture, boxes = mirror(picture, boxes)
        return Shown(scene.name, picture, boxes, torch.from_numpy(scene.labels))


def mirror(
    picture: UInt8[Tensor, "3 H W"], boxes: Float[Tensor, "N 4"]
) -> tuple[UInt8[Tensor, "3 H W"], Float[Tensor, "N 4"]]:
    """Left becomes right."""
    width = picture.shape[2]
    left, top, right, bottom = boxes.unbind(-1)
    return picture.flip(-1), torch.stack([width - right, top, width - left, bottom], -1)


def detect_scenes(
    detector: Detector,
    scenes: Sequence[Scene],
    images: int,
    workers: int = 0,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    text: str = "boxes",
) -> Iterator[tuple[Scene, Detections]]:
    """What the detector finds in each image, in order and in the annotated frame; `images` at once."""
    watcher = watcher or Silent()
    watcher.begin(text, len(scenes))
    batches = [list(range(at, min(at + images, len(scenes)))) for at in range(0, len(scenes), images)]
    done = 0
    for batch in load_batches(_Photos(scenes), batches, workers):
        if stop is not None:
            stop.check()
        for found in detector.detect(batch, images):
            yield scenes[done], found
            done += 1
        watcher.move(done)
    watcher.end()


class _Photos(Dataset[Photo]):
    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> Photo:
        return _photo(self.scenes[at])


def _photo(scene: Scene) -> Photo:
    """The dataset's picture, with the annotated frame as its size."""
    return Photo(scene.name, scene.open(), scene.frame)
