"""Detectors so small that they train in a second, and photos for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyadic.config import DETECTOR_PRESETS, DetectorConfig
from polyadic.datasets.toy.world import World
from polyadic.detectors.detector import Detector
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import Vocabulary

NAMES = Vocabulary(objects=("person", "horse", "hat", "tree"), predicates=("ride", "wear"))
_TINY = {"side": 64, "longest": 96, "device": "cpu", "threads": 1, "workers": 0}


def tiny(network: Any = "small", **changes: Any) -> DetectorConfig:
    """11 images to learn from, 1 held out; 2 epochs of 3 steps."""
    config = DETECTOR_PRESETS["toy"].change(network=network, **_TINY)
    few = {"world.train": 12, "world.test": 5, "training.epochs": 2, "training.images": 4}
    return config.change(**{**few, **changes})


def detector_of(config: DetectorConfig | None = None, names: Vocabulary = NAMES, sure: float = 1.0) -> Detector:
    """Random, but with opinions: `sure` scales what it says of classes and corners, which differ from box to box."""
    torch.manual_seed(3)
    detector = Detector(config or tiny(), names, fetch=False).eval()
    heads: Any = detector.network.roi_heads
    seen: list[Tensor] = []
    hook = heads.box_head.register_forward_hook(lambda module, inputs, out: seen.append(out))
    detector(photo())
    hook.remove()
    mean, spread = seen[0].float().mean(0), seen[0].float().std(0).mean()
    with torch.no_grad():
        for layer in (heads.box_predictor.cls_score, heads.box_predictor.bbox_pred):
            layer.weight *= sure / spread
            layer.bias.copy_(-layer.weight @ mean)
    return detector


def scenes(count: int = 5) -> tuple[Scene, ...]:
    return World(0, count).dataset("test").scenes


def photo(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    """Coarse noise, which a network can see."""
    pixels = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


def photo_file(folder: Path, **size: int) -> Path:
    path = folder / "photo.png"
    photo(**size).save(path)
    return path
