"""A config's data: splits, detections, the noise model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from polyadic.cache import digest
from polyadic.config import Config, DetectorConfig
from polyadic.datasets import held_out, load_dataset
from polyadic.datasets.toy import World
from polyadic.predictions import read_detections
from polyadic.scenes import Dataset, Detections, Scene
from polyadic.simulation import DetectionNoise
from polyadic.vocabulary import PolyadicError, Vocabulary


@dataclass(frozen=True, eq=False)
class TrainingData:
    """`fit` is what the network learns from; `annotations` may be more: without a picture, triplets still count."""

    fit: tuple[Scene, ...]
    validation: tuple[Scene, ...]
    annotations: Dataset
    vocabulary: Vocabulary
    detections: dict[str, Detections] | None = None
    noise: DetectionNoise | None = None
    notes: tuple[str, ...] = ()  # what a person should know of it

    def fingerprint(self) -> str:
        """So that a run is not resumed on other data."""
        parts: list[str | np.ndarray] = [self.vocabulary.to_json(), self.annotations.triplets()]
        for scene in (*self.fit, *self.validation):
            parts += [scene.name, scene.boxes, scene.labels, scene.relations]
        for name, found in sorted((self.detections or {}).items()):
            parts += [name, found.boxes, found.labels, found.scores]
        for name, array in sorted((self.noise.to_arrays() if self.noise else {}).items()):
            parts += [name, array]
        return digest(*parts)


def load_split(
    config: Config | DetectorConfig, split: str, images: Literal["unchecked", "required", "present"] = "unchecked"
) -> Dataset:
    """A split of the config's dataset."""
    data = config.data
    if data.dataset != "toy":
        if not data.root:
            raise PolyadicError(f"{data.dataset}: where is it? Give its folder with --data (config key data.root)")
        return load_dataset(data.dataset, data.root, split, images)
    if split not in ("train", "test", "fit", "validation"):
        raise PolyadicError(f"toy has no split {split!r}; known: train, test, fit, validation")
    world = World(config.world.train, config.world.test, config.world.seed)
    whole = _drawn(world, "test" if split == "test" else "train")
    if split in ("train", "test"):
        return whole
    names = held_out(whole.scenes)
    return whole.keep(lambda scene: (scene.name in names) == (split == "validation"), split)


@lru_cache(maxsize=4)
def _drawn(world: World, split: str) -> Dataset:
    return world.dataset(split)


def pictures_of(config: Config) -> Literal["unchecked", "required", "present"]:
    """Which scenes count: a model that looks at no pixels needs no picture, but may keep to scenes that have one."""
    if config.data.pictures == "required" and "pixels" not in config.sources:
        return "unchecked"
    return config.data.pictures


def load_training(config: Config) -> TrainingData:
    part = "fit" if config.validation.images else "train"
    annotations = load_split(config, part)
    wanted = pictures_of(config)
    fit = annotations if wanted == "unchecked" else load_split(config, part, wanted)
    held_out = load_split(config, "validation", wanted).scenes if config.validation.images else ()
    names = annotations.vocabulary
    detections = None
    if config.data.detections:
        detections = {each.image: each for each in read_detections(Path(config.data.detections), names)}
    noise = None
    if config.data.simulate:
        source = Path(config.data.simulate)
        sizes = {scene.name: scene.size for split in ("train", "test") for scene in _known(config, split) if scene.size}
        noise = DetectionNoise.fit(read_detections(source, names), annotations, sizes)
    if config.proposals.epochs and detections is None and noise is None and not config.data.detector:
        raise PolyadicError(
            "the stage [proposals] needs boxes: a detector (data.detector), its boxes of the training images "
            "(data.detections), or any of its outputs to simulate them (data.simulate)"
        )
    usable = tuple(scene for scene in fit if (scene.relations[:, 0] != scene.relations[:, 2]).any())
    if not usable:
        raise PolyadicError(f"{annotations.name} {part}: no image has a relation of two boxes to learn from")
    most = held_out[: config.validation.images]
    notes = []
    if len(fit) < len(annotations):
        notes.append(
            f"{annotations.name}: {len(fit):,} of {len(annotations):,} training images have a picture; "
            "the others count for the priors alone"
        )
    flat = [(scene.name, int(at)) for scene in (*usable, *most) for at in np.flatnonzero(~_has_area(scene))]
    if flat:
        first = f"the first is box {flat[0][1]} of {flat[0][0]}"
        notes.append(f"{annotations.name}: {len(flat):,} boxes have no area and are taken as one pixel wide; {first}")
    return TrainingData(usable, most, annotations, names, detections, noise, tuple(notes))


def _has_area(scene: Scene) -> np.ndarray:
    return np.asarray((scene.boxes[:, 2:] > scene.boxes[:, :2]).all(1))


def _known(config: Config, split: str) -> Dataset | tuple[Scene, ...]:
    try:
        return load_split(config, split)
    except PolyadicError:
        return ()
