"""Build the training examples of a stage, one per image: boxes, pairs, targets and features, in worker processes.

The random numbers of an example depend only on the seed, the stage, the epoch and the image, so neither the number of
workers nor an interruption changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from polyadic.boxes import ordered_pairs, suppress
from polyadic.config import DetectorConfig
from polyadic.config.schema import Config
from polyadic.datasets import held_out, load_dataset
from polyadic.datasets.toy.world import World
from polyadic.io.records import read_detections
from polyadic.model.backbone import Backbone
from polyadic.model.evidence import is_witness
from polyadic.model.features import PairInputs, pair_inputs, union_rows
from polyadic.structures.detections import Detections, check_number
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.borrowing import Borrowing
from polyadic.training.pairs import TrainingBoxes, chosen_relations, proposal_boxes, selection_pairs, true_boxes
from polyadic.training.region_cache import Pooled, Regions, digest
from polyadic.training.run import ROUNDED
from polyadic.training.simulation import DetectionNoise

_BLIND = 0.1  # ours: share of images without P(class | box), or without pixels, so that a model works without them
Task = Literal["triplets", "selection", "everything"]


@dataclass(frozen=True, eq=False)
class BoxSource:
    """Choose the boxes of an image: ground truth, a detector's, or simulated ones that change in each epoch."""

    detections: Mapping[str, Detections] | None = None
    borrowing: Borrowing | None = None  # for images without detections
    noise: tuple[DetectionNoise, ...] = ()  # one for each simulated detector
    witnesses: tuple[str, ...] = ()  # names of the detectors: that of `detections`, if there are any, then of `noise`
    nms: float = 1.0  # IoU above which the less confident detection is suppressed; the paper: at test time
    one_predicate: bool = False  # draw one relation per ordered pair of true boxes
    overlapping: bool = False  # skip relations of boxes that do not overlap

    def fixed(self, scene: Scene) -> bool:
        """Whether the boxes of an image are the same in each epoch."""
        return not self.noise and (self.borrowing is None or scene.name in (self.detections or {}))

    @property
    def true(self) -> bool:
        return self.detections is None and not self.noise

    def boxes(self, scene: Scene, rng: np.random.Generator) -> TrainingBoxes:
        """Return the boxes of a scene with the relations between them."""
        check_number(scene.name, max(len(scene.boxes), len((self.detections or {}).get(scene.name, ()))))
        rows = chosen_relations(scene, rng, one_predicate=self.one_predicate, overlapping=self.overlapping)
        if self.true:
            return true_boxes(scene, rows)
        seen = [noise.sample(scene, rng).in_frame(scene.frame) for noise in self.noise]
        if self.detections is not None:
            seen.insert(0, self._detected(scene, rng).in_frame(scene.frame))
        detections = Detections.join(*seen, names=self.witnesses) if len(seen) > 1 else seen[0]
        kept = detections.take(suppress(detections.boxes, detections.scores, self.nms))
        return proposal_boxes(scene, kept, rng, rows)

    def _detected(self, scene: Scene, rng: np.random.Generator) -> Detections:
        assert self.detections is not None, "neither true nor simulated alone"
        if scene.name in self.detections:
            return self.detections[scene.name]
        if self.borrowing is not None:
            return self.borrowing.sample(scene, rng)
        return Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0), scene.frame)


@dataclass(frozen=True, eq=False)
class Example:
    """One image of a batch."""

    scene: Scene
    boxes: TrainingBoxes
    inputs: PairInputs
    target: Shaped[Tensor, "B ..."]  # triplets [B, 3], or whether a pair is annotated [B]
    pooled: Pooled  # the image, where its features are not cached

    def complete(self, regions: Regions | None, backbone: Backbone | None) -> PairInputs:
        """Return the inputs with region features, computed now if they were not in the cache."""
        if regions is None or backbone is None or self.pooled.picture is None:
            return self.inputs
        inside, unions = regions.compute(backbone, self.pooled.picture, self.boxes.boxes, self.scene)
        rows = union_rows(self.inputs.pairs, len(self.boxes.boxes)).to(unions.device)
        return replace(self.inputs.to(unions.device), regions=inside.float(), unions=unions[rows].float())


class Examples(TorchDataset[Example]):
    """List the examples of one epoch."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        task: Task,
        source: BoxSource,
        *,
        sources: Sequence[str],
        regions: Regions | None,
        seed: tuple[int, str, int],  # the run's, the stage, the epoch
        nulls: float = 1.0,
        classes: int = 0,  # of P(class | box), where it is evidence
        witnesses: Sequence[str] = (),  # distinguished in evidence
        optional: bool = False,  # images without a picture have no features; in training, some others have none either
    ) -> None:
        self.scenes, self.task, self.source, self.sources = scenes, task, source, sources
        self.classes, self.witnesses, self.optional = classes, witnesses, optional
        self.regions, self.seed, self.nulls = regions, seed, nulls

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> Example:
        scene = self.scenes[at]
        rng = np.random.default_rng(number_of(*self.seed, scene.name))
        boxes = self.source.boxes(scene, rng)
        target: Tensor
        if self.task == "triplets":
            pairs, target = torch.from_numpy(boxes.pairs), torch.from_numpy(boxes.triplets)
        elif self.task == "selection":
            chosen, annotated = selection_pairs(boxes, rng, self.nulls)
            pairs, target = torch.from_numpy(chosen), torch.from_numpy(annotated)
        else:
            pairs = ordered_pairs(len(boxes.boxes))
            target = torch.zeros(len(pairs))
        training = self.task != "everything"
        names = None if training and rng.random() < _BLIND else boxes.names
        unseen = self.optional and (not scene.has_picture() or (training and rng.random() < _BLIND))
        pooled = Pooled()
        if self.regions is not None and not unseen:
            pooled = self.regions.find(scene, boxes.boxes, pairs, self.source.fixed(scene))
        inputs = pair_inputs(
            boxes.boxes,
            pairs,
            scene.frame,
            sources=self.sources,
            labels=boxes.labels,
            scores=boxes.scores,
            names=names,
            classes=self.classes,
            source=boxes.source,
            witnesses=self.witnesses,
            regions=pooled.regions,
            unions=pooled.unions,
        )
        return Example(scene, boxes, inputs, target, Pooled(picture=pooled.picture))


def number_of(*parts: int | str) -> int:
    """Derive a seed from the parts, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Hold training and held-out scenes, and all annotations, which count even where the image is missing."""

    fit: tuple[Scene, ...]
    validation: tuple[Scene, ...]
    annotations: Dataset
    vocabulary: Vocabulary
    detections: dict[str, Detections] | None = None
    borrowing: Borrowing | None = None
    noise: tuple[DetectionNoise, ...] = ()
    witnesses: tuple[str, ...] = ()  # as in `BoxSource`
    pictured: tuple[bool, ...] = ()  # of fit and validation, where some may have no picture: which have one
    notes: tuple[str, ...] = ()  # remarks to print

    @property
    def proposals(self) -> BoxSource:
        """The boxes of a detector, real, borrowed or simulated."""
        return BoxSource(self.detections, self.borrowing, self.noise, self.witnesses)

    def fingerprint(self) -> str:
        """Compute a digest, so that a run is not resumed on other data."""
        parts: list[str | np.ndarray] = [self.vocabulary.to_json(), self.annotations.triplets()]
        for scene in (*self.fit, *self.validation):
            parts += [scene.name, scene.boxes, scene.labels, scene.relations]
        for name, detections in sorted((self.detections or {}).items()):
            parts += [name, detections.boxes, detections.labels, detections.scores]
        if self.pictured:
            parts.append(np.array(self.pictured))
        for noise in self.noise:
            for name, array in sorted(noise.to_arrays().items()):
                parts += [name, array.round(6)]  # fitted numbers depend on the CPU in the last digits
        return ROUNDED + digest(*parts)


def load_split(
    config: Config | DetectorConfig, split: str, images: Literal["unchecked", "required", "present"] = "unchecked"
) -> Dataset:
    """Load a split of the config's dataset."""
    data = config.data
    if data.dataset != "toy":
        if not data.root:
            raise PolyadicError(f"{data.dataset}: where is it? Give its folder with --data (config key data.root)")
        exact = isinstance(config, Config) and config.data.exact_boxes
        return load_dataset(data.dataset, data.root, split, images, exact_boxes=exact)
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
    """Choose how missing images are handled: a model without pixels needs none, but may skip scenes without one."""
    if config.data.pictures == "optional" or (config.data.pictures == "required" and "pixels" not in config.sources):
        return "unchecked"
    return config.data.pictures


def load_training(config: Config) -> TrainingData:
    """Load all that a run of this config trains on."""
    part = "fit" if config.validation.images else "train"
    annotations = load_split(config, part)
    wanted = pictures_of(config)
    fit = annotations if wanted == "unchecked" else load_split(config, part, wanted)
    held_out = load_split(config, "validation", wanted).scenes if config.validation.images else ()
    names = annotations.vocabulary
    detections = None
    if config.data.detections:
        detections = _read_all(config.data.detections, names, annotations.sizes)
        held_out = tuple(scene for scene in held_out if scene.name in detections)
    noise: tuple[DetectionNoise, ...] = ()
    if config.data.simulate:
        sizes = {scene.name: scene.size for split in ("train", "test") for scene in _known(config, split) if scene.size}
        sources = [read_detections(Path(source), names) for source in config.data.simulate]
        noise = tuple(DetectionNoise.fit(source, annotations, sizes) for source in sources)
    if config.proposals.epochs and detections is None and not noise and not config.data.detector:
        raise PolyadicError(
            "the stage [proposals] needs boxes: a detector (data.detector), its boxes of the training images "
            "(data.detections), or any of its outputs to simulate them (data.simulate)"
        )
    usable = tuple(scene for scene in fit if (scene.relations[:, 0] != scene.relations[:, 2]).any())
    if not usable:
        raise PolyadicError(f"{annotations.name} {part}: no image has a relation of two boxes to learn from")
    borrowing = None
    if config.data.borrow and detections is not None:
        borrowing = Borrowing.fit(detections, usable)
    most = held_out[: config.validation.images]
    notes = []
    if len(fit) < len(annotations):
        notes.append(
            f"{annotations.name}: {len(fit):,} of {len(annotations):,} training images are present; "
            "the others count only for the prior"
        )
    flat = [(scene.name, int(at)) for scene in (*usable, *most) for at in np.flatnonzero(~_has_area(scene))]
    if flat:
        first = f"the first is box {flat[0][1]} of {flat[0][0]}"
        notes.append(f"{annotations.name}: {len(flat):,} boxes have no area and are treated as one pixel wide; {first}")
    seen_by = config.data.detections[:1] or ((config.data.detector,) if config.data.detector else ())
    witnesses = tuple(Path(file).stem for file in (*seen_by, *config.data.simulate))
    _check_witnesses(config, detections or {}, witnesses)
    pictured: tuple[bool, ...] = ()
    if config.data.pictures == "optional":
        pictured = tuple(scene.has_picture() for scene in (*usable, *most))
        if not any(pictured[: len(usable)]):
            raise PolyadicError(
                f"{annotations.name}: none of the {len(usable):,} training images has a picture: check the folder, or "
                "train without pixels (--sources evidence)"
            )
        having = f"{sum(pictured):,} of {len(pictured):,} images have a picture"
        notes.append(f"{annotations.name}: {having}; the others are learned from without pixels")
    return TrainingData(
        usable, most, annotations, names, detections, borrowing, noise, witnesses, pictured, tuple(notes)
    )


def _check_witnesses(config: Config, detections: Mapping[str, Detections], joined: tuple[str, ...]) -> None:
    """Refuse a pattern that no detector's name matches: its columns would be empty."""
    known = {name for image in detections.values() if image.source is not None for name in set(image.source.tolist())}
    known |= set(joined) if len(joined) > 1 else set()
    for pattern in config.evidence.witnesses:
        if not any(is_witness(name, pattern) for name in known):
            names = ", ".join(sorted(known)) or "none, the boxes have no source"
            raise PolyadicError(f"evidence.witnesses: no detector matches {pattern!r}; there are: {names}")


def _read_all(
    files: Sequence[str], names: Vocabulary, sizes: Mapping[str, tuple[float, float]]
) -> dict[str, Detections]:
    """Read the detections of several files; an image may be in one of them."""
    detections: dict[str, Detections] = {}
    for file in files:
        for image in read_detections(Path(file), names, sizes=sizes):
            if image.image in detections:
                raise PolyadicError(f"data.detections: {file} has {image.image!r}, which a file before it has too")
            detections[image.image] = image
    return detections


def _has_area(scene: Scene) -> np.ndarray:
    return np.asarray((scene.boxes[:, 2:] > scene.boxes[:, :2]).all(1))


def _known(config: Config, split: str) -> Dataset | tuple[Scene, ...]:
    try:
        return load_split(config, split)
    except PolyadicError:
        return ()
