"""Cache what frozen layers of a backbone make of each image, so that training those behind them costs only these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor

from polyadic.model.backbone import picture_size
from polyadic.model.split import SplitBackbone
from polyadic.structures.scenes import Scene
from polyadic.training.region_cache import Entries, fill_entries


@dataclass(eq=False)
class FrozenMaps(Entries):
    """Look up the maps before the trained layers."""

    what = "feature maps"
    smaller = "pixels.side"

    def find(self, scene: Scene) -> dict[str, Tensor] | None:
        """Return the cached maps of an image, or None."""
        return self.cache.load(self.entry(scene)) if self.cache.limit else None


def fill_maps(maps: FrozenMaps, split: SplitBackbone, scenes: Sequence[Scene], workers: int) -> None:
    """Compute the maps that the cache lacks."""
    if not maps.cache.limit or not scenes:
        return

    def compute(_: int, picture: Tensor) -> dict[str, Tensor]:
        return split.before(picture, maps.precision)

    sizes = [picture_size(*scene.frame, maps.pixels) for scene in scenes]
    per_image = round(split.bytes_per_pixel() * fmean(width * height for width, height in sizes))
    fill_entries(maps, scenes, [()] * len(scenes), compute, per_image=per_image, workers=workers)
