"""Images with boxes to train a detector on, and the proposals that it detects for the relation model."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config import DetectorConfig
from polyadic.detectors.detector import Detector, part_labels, to_pixels
from polyadic.files import find_model
from polyadic.io.records import read_detections, write_detections
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.examples import load_split, number_of
from polyadic.training.loading import load_batches
from polyadic.training.pairs import iou
from polyadic.training.region_cache import digest

GREY = 114  # YOLOX: of the padding
_VISIBLE, _LEAST_SIDE = 0.4, 4  # ours: share and pixels of a box that must remain
_SAME_NAME, _SAME_PLACE = 0.4, 0.7  # ours: IoU from which a teacher's box is one that was annotated
RELATED = ("vrd", "vg200")  # datasets that annotate only boxes in relations


@dataclass(frozen=True, eq=False)
class BoxData:
    """Hold training and held-out scenes; every box has an area and lies within its frame."""

    fit: tuple[Scene, ...]  # with the teachers' boxes, behind the annotators'
    validation: tuple[Scene, ...]
    vocabulary: Vocabulary
    notes: tuple[str, ...]  # remarks to print
    taught: Mapping[str, int] = field(default_factory=dict)  # how many boxes of an image are the teachers'

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
    if config.data.folds:
        kept = in_fold(fit.scenes, config.data.folds, config.data.fold)
        fit = fit.keep(lambda scene: scene.name not in kept)
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
    taught: dict[str, int] = {}
    if config.data.teachers:
        boxes = {
            image.image: image for image in read_detections(Path(config.data.teachers).expanduser(), fit.vocabulary)
        }
        annotated, scenes = (
            scenes,
            [_teach(scene, boxes.get(scene.name), config.data.teacher_score) for scene in scenes],
        )
        taught = {new.name: len(new.labels) - len(old.labels) for old, new in zip(annotated, scenes, strict=True)}
        notes.append(
            f"{sum(taught.values()):,} boxes of {Path(config.data.teachers).name} are learned beside {after:,}"
        )
        if not sum(taught.values()):
            raise PolyadicError(f"data.teachers: {config.data.teachers} has no box of a training image")
    return BoxData(tuple(scenes), validation, fit.vocabulary, tuple(notes), taught)


def in_fold(scenes: Sequence[Scene], folds: int, fold: int) -> set[str]:
    """Name the scenes of one fold: every `folds`-th in the order of names."""
    return {name for at, name in enumerate(sorted(scene.name for scene in scenes)) if at % folds == fold}


def _teach(scene: Scene, teachers: Detections | None, least: float) -> Scene:
    """Add the teachers' boxes of objects that nobody annotated; where both are, the annotator's name is right."""
    if teachers is None:
        return scene
    given = teachers.inside(scene.frame)
    given = given.take((given.scores >= least) & (given.labels != UNKNOWN))
    overlap = iou(given.boxes, scene.boxes)
    same = given.labels[:, None] == scene.labels
    known = (overlap > np.where(same, _SAME_NAME, _SAME_PLACE)).any(1)
    boxes, labels = (
        np.concatenate([scene.boxes, given.boxes[~known]]),
        np.concatenate([scene.labels, given.labels[~known]]),
    )
    return replace(scene, boxes=boxes, labels=labels)


def _usable(scene: Scene) -> Scene:
    """Clip the boxes to the frame, and drop those without area."""
    width, height = scene.frame
    boxes = scene.boxes.clip(0, [width, height, width, height])
    kept: np.ndarray = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
    place = kept.cumsum() - 1
    relations = scene.relations[kept[scene.relations[:, 0]] & kept[scene.relations[:, 2]]].copy()
    relations[:, ::2] = place[relations[:, ::2]]
    return replace(scene, boxes=boxes[kept], labels=scene.labels[kept], relations=relations)


def part_pairs(scene: Scene, whole: int, parts: Sequence[int]) -> Int[np.ndarray, "Q 2"]:
    """List the rows of a whole and a part of it that are related, in either order."""
    rows = scene.relations[:, ::2]
    both = np.unique(np.concatenate([rows, rows[:, ::-1]]), axis=0)
    chosen: np.ndarray = both[(scene.labels[both[:, 0]] == whole) & np.isin(scene.labels[both[:, 1]], parts)]
    return chosen


def part_places(scenes: Iterable[Scene], whole: int, parts: Sequence[int]) -> Float[np.ndarray, "M 4"]:
    """Compute the median place of each part in shares of its whole's box; a part that is never annotated fills it."""
    shares: dict[int, list[np.ndarray]] = {part: [] for part in parts}
    for scene in scenes:
        for one, other in part_pairs(scene, whole, parts):
            low, side = scene.boxes[one, :2], np.maximum(scene.boxes[one, 2:] - scene.boxes[one, :2], 1)
            shares[int(scene.labels[other])].append((scene.boxes[other].reshape(2, 2) - low).ravel() / np.tile(side, 2))
    return np.array([np.median(shares[part], 0) if shares[part] else [0, 0, 1, 1] for part in parts])


@dataclass(frozen=True, eq=False)
class Shown:
    """Hold one image of a batch, with boxes in its pixels."""

    name: str
    picture: UInt8[Tensor, "3 H W"]
    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    weights: Float[Tensor, " N"]  # in the loss
    parts: Int[Tensor, "Q 2"]  # rows of a whole and its part


class DetectorExamples(Dataset[Shown]):
    """List the images of one epoch, half of them mirrored; random numbers depend only on seed, epoch and image.

    For a network of square inputs (`side`) each image is enlarged or reduced, cut and placed at random, and its
    colours vary.
    """

    def __init__(self, data: BoxData, config: DetectorConfig, epoch: int) -> None:
        self.data, self.config, self.epoch = data, config, epoch
        self.whole, self.parts = part_labels(config, data.vocabulary)

    def __len__(self) -> int:
        return len(self.data.fit)

    def __getitem__(self, at: int) -> Shown:
        scene, config = self.data.fit[at], self.config
        photo, labels = scene.photo(), torch.from_numpy(scene.labels)
        boxes, weights = scene.boxes_in(*photo.image.size), torch.ones(len(labels))
        weights[len(labels) - self.data.taught.get(scene.name, 0) :] = config.data.teacher_weight
        pairs = part_pairs(scene, self.whole, self.parts)
        if config.network == "yolox-nano":
            rng = np.random.default_rng(number_of(config.seed, "zoom", self.epoch, scene.name))
            image, boxes, kept = zoom(photo.image, boxes, config.longest, config.zoom, rng)
            picture, labels, weights = vary_colours(image, rng), labels[kept], weights[kept]
            place = np.full(len(scene.labels), -1)
            place[kept] = np.arange(len(kept))
            pairs = place[pairs][(place[pairs] >= 0).all(1)]
        else:
            picture = to_pixels(photo)
        corners = torch.from_numpy(boxes).float()
        if number_of(config.seed, "mirror", self.epoch, scene.name) % 2:
            picture, corners = mirror(picture, corners)
        return Shown(scene.name, picture, corners, labels, weights, torch.from_numpy(pairs))


def zoom(
    image: Image, boxes: Float[np.ndarray, "N 4"], side: int, most: float, rng: np.random.Generator
) -> tuple[UInt8[np.ndarray, "S S 3"], Float[np.ndarray, "M 4"], Int[np.ndarray, " M"]]:
    """Show an image at a random scale in a square, cut or padded at random; also return what remains of the boxes.

    Scale: that of the whole image in the square, times 1/most to most; width over height varies by 20%.
    """
    from PIL.Image import Resampling

    scale = side / max(image.size) * most ** rng.uniform(-1, 1)
    stretch = np.exp(rng.uniform(-0.1, 0.1))
    scales, whole = scale * np.array([stretch, 1 / stretch]), np.array(image.size, float)
    window = np.minimum(whole, side / scales)  # what is shown, in pixels of the image
    corner = rng.uniform(0, 1, 2) * (whole - window)
    size = np.clip(np.round(window * scales), 2, side).astype(int)
    place = np.array([rng.integers(0, side - length + 1) for length in size])
    cut = image.convert("RGB").resize(tuple(size.tolist()), Resampling.BILINEAR, box=(*corner, *(corner + window)))
    square = np.full((side, side, 3), GREY, np.uint8)
    square[place[1] : place[1] + size[1], place[0] : place[0] + size[0]] = np.asarray(cut)
    moved = (boxes - np.tile(corner, 2)) * np.tile(size / window, 2)
    inside = moved.clip(0, np.tile(size, 2).astype(float))
    before, after = (np.prod(x[:, 2:] - x[:, :2], 1) for x in (moved, inside))
    kept = np.flatnonzero((after > _VISIBLE * before) & ((inside[:, 2:] - inside[:, :2]) > _LEAST_SIDE).all(1))
    return square, inside[kept] + np.tile(place, 2), kept


def vary_colours(image: UInt8[np.ndarray, "H W 3"], rng: np.random.Generator) -> UInt8[Tensor, "3 H W"]:
    """Change saturation, brightness and the balance of colours at random."""
    pixels = image.astype(np.float32)
    grey = pixels.mean(2, keepdims=True)
    pixels = (grey + (pixels - grey) * rng.uniform(0.6, 1.4)) * rng.uniform(0.7, 1.3) * rng.uniform(0.92, 1.08, 3)
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(2, 0, 1).contiguous()


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
