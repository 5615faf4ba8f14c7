"""A trained detector in a run: it finds the boxes of the stage [proposals], and stays beside the model for photos."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from polyadic.cache import digest
from polyadic.detector import Detector
from polyadic.predictions import read_detections, write_detections
from polyadic.scenes import Detections, Scene
from polyadic.storing import find_model
from polyadic.training.pictures import detect_scenes
from polyadic.training.watch import Silent, Stop, Watcher
from polyadic.vocabulary import PolyadicError

KEPT = "detector"  # in the model's folder
FOUND = "detected"  # in the run's folder
IMAGES = 200  # in one file: what an interruption may cost


def fingerprint(detector: Detector) -> str:
    """Of all that its boxes depend on, but the pictures."""
    config = detector.config
    how = json.dumps(
        [config.network, config.side, config.longest, config.nms, config.score, config.most, config.precision]
    )
    weights = (x.detach().cpu().numpy() for _, x in sorted(detector.network.state_dict().items()))
    return digest(how, detector.vocabulary.to_json(), *weights)


def keep_detector(source: Path, model: Path) -> None:
    """A copy in the folder of the relation model, which then needs nothing else; whole or not at all."""
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
    detector: Detector,
    scenes: Sequence[Scene],
    folder: Path | None = None,
    workers: int = 0,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
) -> dict[str, Detections]:
    """The boxes of each scene by its name; `folder` keeps them for the next time, and for after an interruption."""
    watcher, own = watcher or Silent(), fingerprint(detector)
    found: dict[str, Detections] = {}
    twice = next((name for name, n in Counter(scene.name for scene in scenes).items() if n > 1), None)
    if twice is not None:
        raise PolyadicError(f"two images are called {twice!r} (training and validation?): give each its own name")
    for at in range(0, len(scenes), IMAGES):
        part = scenes[at : at + IMAGES]
        text = f"boxes {at + 1:,} to {at + len(part):,} of {len(scenes):,}"
        key = digest(own, *(f"{scene.name} {scene.frame} {scene.image}" for scene in part))
        path = None if folder is None else folder / f"{key[:16]}.safetensors"
        if path is not None and path.is_file():
            found |= {each.image: each for each in read_detections(path, detector.vocabulary)}
            continue
        batch = max(1, detector.config.training.images)
        new = [each for _, each in detect_scenes(detector, part, batch, workers, watcher, stop, text)]
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_detections(path, new, detector.vocabulary, overwrite=True)
        found |= {each.image: each for each in new}
    return found
