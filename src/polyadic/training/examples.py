"""What a stage learns from, image by image: boxes, pairs, targets, features. Worker processes make it.

Everything random in an example depends on the seed, the stage, the epoch and the image alone, so that neither the
number of workers nor an interruption changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import Dataset

from polyadic.boxes import ordered_pairs, suppress
from polyadic.features import Backbone, PairInputs
from polyadic.model import make_inputs, union_rows
from polyadic.sampling import Boxes, proposal_boxes, selection_pairs, true_boxes
from polyadic.scenes import Detections, Scene
from polyadic.simulation import DetectionNoise
from polyadic.training.regions import Pooled, Regions

Task = Literal["triplets", "selection", "everything"]


@dataclass(frozen=True, eq=False)
class BoxSource:
    """The boxes of an image: the true ones, a detector's, or simulated ones, anew in each epoch."""

    detections: Mapping[str, Detections] | None = None
    noise: DetectionNoise | None = None
    nms: float = 1.0  # of two detections that overlap by more, the less sure one is left out; the paper: at test time

    @property
    def fixed(self) -> bool:
        return self.noise is None

    @property
    def true(self) -> bool:
        return self.detections is None and self.noise is None

    def boxes(self, scene: Scene, rng: np.random.Generator) -> Boxes:
        if self.true:
            return true_boxes(scene)
        if self.noise is not None:
            found = self.noise.sample(scene, rng)
        else:
            assert self.detections is not None, "neither true nor simulated"
            none = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0), scene.frame)
            found = self.detections.get(scene.name, none)
        return proposal_boxes(scene, found.take(suppress(found.boxes, found.scores, self.nms)), rng)


@dataclass(frozen=True, eq=False)
class Example:
    """One image of a batch."""

    scene: Scene
    boxes: Boxes
    inputs: PairInputs
    target: Shaped[Tensor, "B ..."]  # triplets [B, 3], or whether a pair is annotated [B]
    pooled: Pooled  # the picture, where its features are still to be computed

    def complete(self, regions: Regions | None, backbone: Backbone | None) -> PairInputs:
        """With the features of its picture, computed now if they were not in the cache."""
        if regions is None or backbone is None or self.pooled.picture is None:
            return self.inputs
        inside, unions = regions.compute(backbone, self.pooled.picture, self.boxes.boxes, self.scene)
        rows = union_rows(self.inputs.pairs, len(self.boxes.boxes)).to(unions.device)
        return replace(self.inputs.to(unions.device), regions=inside.float(), unions=unions[rows].float())


class Examples(Dataset[Example]):
    """The examples of one epoch."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        task: Task,
        source: BoxSource,
        sources: Sequence[str],
        regions: Regions | None,
        seed: tuple[int, str, int],  # the run's, the stage, the epoch
        nulls: float = 1.0,
    ) -> None:
        self.scenes, self.task, self.source, self.sources = scenes, task, source, sources
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
        pooled = Pooled() if self.regions is None else self.regions.find(scene, boxes.boxes, pairs, self.source.fixed)
        inputs = make_inputs(
            boxes.boxes,
            boxes.labels,
            boxes.scores,
            scene.frame,
            pairs,
            self.sources,
            pooled.regions,
            pooled.unions,
        )
        return Example(scene, boxes, inputs, target, Pooled(picture=pooled.picture))


def number_of(*parts: int | str) -> int:
    """A number for a random generator, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1
