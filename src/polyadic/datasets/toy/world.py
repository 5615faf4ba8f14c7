"""The toy world as a dataset. Scene i of a split depends on the seed, the split and i alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from polyadic import progress
from polyadic.datasets import coco
from polyadic.datasets.reading import Report
from polyadic.datasets.toy.annotator import annotate
from polyadic.datasets.toy.drawing import SIDE, draw
from polyadic.datasets.toy.layout import CLASS, INDEX, THEMES, TINT, TINTS, VOCABULARY, arrange, pick
from polyadic.files import new_folder
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class World:
    """Numbers of scenes and a seed; a smaller world of the same seed is a prefix of a larger one."""

    train: int = 800
    test: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train", "test", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise PolyadicError(f"World: {name} must be a whole number from 0 up, got {value!r}")

    def dataset(self, split: str) -> Dataset:
        """Return the scenes of `train` or `test`; `load_dataset("toy", split="fit")` splits the training scenes."""
        if split not in SPLITS:
            raise PolyadicError(f"World: no split is called {split!r}; known: {', '.join(SPLITS)}")
        scenes = tuple(_scene(self.seed, split, number) for number in range(getattr(self, split)))
        return Dataset("toy", split, VOCABULARY, scenes, Path())


def _scene(seed: int, split: str, number: int) -> Scene:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split), number)))
    theme = pick(rng, [1.0] * len(THEMES))
    tint = pick(rng, TINTS[theme, 0].tolist()) - TINT, pick(rng, TINTS[theme, 1].tolist()) - TINT
    things = arrange(rng)
    appearances = np.array([INDEX[thing.key] for thing in things])
    boxes = np.array([[thing.x, thing.y, thing.x + thing.width, thing.y + thing.height] for thing in things], float)
    name = f"{split}_{number:06}.png"
    return Scene(
        name=name,
        image=Path("images", name),
        size=(float(SIDE), float(SIDE)),
        boxes=boxes,
        labels=CLASS[appearances, theme],
        relations=annotate(rng, appearances, boxes, theme),
        extra={"theme": THEMES[theme], "tint": list(tint), "appearances": [thing.key for thing in things]},
        source=partial(draw, tint, things),
    )


def read(root: Path, split: str, report: Report) -> Dataset:
    """Return the default world, which needs no files."""
    return World().dataset(split)


def write(world: World, folder: str | Path) -> list[Path]:
    """Write pictures to `images/` and one COCO file per split, which `load_dataset("coco", folder)` reads."""
    folder = Path(folder).expanduser()
    with new_folder(folder) as part:
        (part / "images").mkdir()
        datasets = [world.dataset(split) for split in SPLITS]
        for scene in progress.track([scene for dataset in datasets for scene in dataset], "drawing"):
            scene.open().save(part / scene.image)
        return [folder / file.name for file in coco.write(datasets, part)]
