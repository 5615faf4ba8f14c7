"""Region features of many images: from the cache, or computed; the backbone is frozen, so once is enough."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from polyadic.cache import FeatureCache, announce, digest
from polyadic.config import Pixels
from polyadic.features import Backbone, prepare_picture
from polyadic.model import pool_regions, union_rows
from polyadic.scenes import Scene
from polyadic.training.loading import load_batches
from polyadic.training.watch import Stop, Watcher
from polyadic.vocabulary import PolyadicWarning


@dataclass(frozen=True, eq=False)
class Pooled:
    """Features of an image's boxes and of the boxes around the pairs asked for; or its picture, to compute them."""

    regions: Float[Tensor, "N D"] | None = None
    unions: Float[Tensor, "B E"] | None = None
    picture: UInt8[Tensor, "3 H W"] | None = None


@dataclass(eq=False)
class Regions:
    """Where features come from. Travels to worker processes, which read the cache but never run the backbone."""

    pixels: Pixels
    cache: FeatureCache
    fingerprint: str  # of the backbone
    precision: torch.dtype
    digests: dict[str, str] = field(default_factory=dict)  # of the pictures, by name
    full: bool = False  # nothing more fits into the cache

    def key(self, scene: Scene, boxes: Float[np.ndarray, "N 4"]) -> str:
        if scene.name not in self.digests:
            self.digests[scene.name] = scene.digest()
        return digest(self.digests[scene.name], boxes, *scene.frame, self.fingerprint, str(self.precision))

    def find(self, scene: Scene, boxes: Float[np.ndarray, "N 4"], pairs: Int[Tensor, "B 2"], kept: bool) -> Pooled:
        """`kept`: the features of these boxes may be in the cache."""
        if kept and self.cache.limit:
            found = self.cache.load(self.key(scene, boxes), {"unions": union_rows(pairs, len(boxes))})
            if found is not None:
                return Pooled(found["regions"], found["unions"])
        return Pooled(picture=prepare_picture(scene.open(), self.pixels))

    def compute(
        self, backbone: Backbone, picture: UInt8[Tensor, "3 H W"], boxes: Float[np.ndarray, "N 4"], scene: Scene
    ) -> tuple[Tensor, Tensor]:
        corners = torch.from_numpy(boxes).float()
        return pool_regions(backbone, picture, corners, scene.frame, self.precision)


class _Missing(Dataset[tuple[str, "Tensor | None"]]):
    """Pictures whose features are not in the cache, read by the workers."""

    def __init__(self, regions: Regions, scenes: Sequence[Scene], boxes: Sequence[np.ndarray]) -> None:
        self.regions, self.scenes, self.boxes = regions, scenes, boxes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> tuple[str, Tensor | None]:
        scene = self.scenes[at]
        picture = scene.digest()
        self.regions.digests[scene.name] = picture
        if self.regions.cache.has(self.regions.key(scene, self.boxes[at])):
            return picture, None
        return picture, prepare_picture(scene.open(), self.regions.pixels)


def fill(
    regions: Regions,
    backbone: Backbone,
    scenes: Sequence[Scene],
    boxes: Sequence[Float[np.ndarray, "_ 4"]],
    workers: int,
    watcher: Watcher,
    stop: Stop,
) -> None:
    """Compute what the cache lacks. What has been computed stays, whenever this is interrupted."""
    if not regions.cache.limit or regions.full or not scenes:
        return
    numbers = sum(_numbers(backbone, len(each)) for each in boxes)
    per_image = round(2 * numbers / len(boxes))  # two bytes each
    known = [scene.name in regions.digests for scene in scenes]
    present = sum(regions.cache.has(regions.key(s, b)) for s, b, k in zip(scenes, boxes, known, strict=True) if k)
    if present == len(scenes):
        return
    missing, told = _Missing(regions, scenes, boxes), False
    watcher.begin("features", len(scenes))
    for at, ((picture_digest, picture),) in enumerate(
        load_batches(missing, [[i] for i in range(len(scenes))], workers)
    ):
        stop.check()
        scene = scenes[at]
        regions.digests[scene.name] = picture_digest
        if picture is not None and not regions.full:
            if not told:
                watcher.say(announce(len(scenes), per_image, regions.cache, max(present, at)))
                told = True
            inside, unions = regions.compute(backbone, picture, boxes[at], scene)
            stored = regions.cache.store(regions.key(scene, boxes[at]), {"regions": inside, "unions": unions})
            regions.full = not stored
        watcher.move(at + 1)
    watcher.end()
    if regions.full:
        warnings.warn(
            f"the feature cache is full ({regions.cache.folder}): the rest is computed anew in each epoch; "
            "give it more by cache.gigabytes, or keep less by pixels.pool or fewer pixels.strides",
            PolyadicWarning,
            stacklevel=2,
        )


def _numbers(backbone: Backbone, n: int) -> int:
    """How many an image of n boxes has, with the boxes around pairs."""
    total: int = n * (backbone.width + backbone.crop_width) + n * (n - 1) // 2 * backbone.width
    return total
