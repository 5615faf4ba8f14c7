"""A small dataset in VRD's layout, written by the test: three object classes, two predicates, four images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import timm
from PIL import Image
from safetensors.torch import save_file

OBJECTS, PREDICATES = ["person", "horse", "hat"], ["ride", "wear"]


def relation(subject: tuple[int, list[int]], predicate: int, object: tuple[int, list[int]]) -> dict[str, Any]:
    """Boxes are [ymin, ymax, xmin, xmax], as in the files."""
    ends = [{"category": category, "bbox": box} for category, box in (subject, object)]
    return {"subject": ends[0], "predicate": predicate, "object": ends[1]}


RIDER, HORSE, HAT = (0, [10, 60, 20, 50]), (1, [40, 90, 5, 80]), (2, [8, 15, 25, 40])
TRAIN: dict[str, Any] = {
    "a.jpg": [relation(RIDER, 0, HORSE), relation(RIDER, 1, HAT), relation(RIDER, 1, HORSE)],
    "b.jpg": [relation(RIDER, 0, HORSE), relation(RIDER, 0, HORSE)],
    "empty.jpg": [],
}
TEST: dict[str, Any] = {
    "c.jpg": [relation(RIDER, 0, HORSE), relation(HORSE, 1, HAT)],
    "d.jpg": [relation(RIDER, 1, HAT), relation(HAT, 1, HAT)],
}


def write_vrd(root: Path, train: Any = None, test: Any = None, sizes: bool = True, pictures: bool = True) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "objects.json").write_text(json.dumps(OBJECTS))
    (root / "predicates.json").write_text(json.dumps(PREDICATES))
    for split, scenes in (("train", TRAIN if train is None else train), ("test", TEST if test is None else test)):
        (root / f"annotations_{split}.json").write_text(json.dumps(scenes))
        folder = root / "sg_dataset" / f"sg_{split}_images"
        folder.mkdir(parents=True, exist_ok=True)
        if sizes:
            frames = {name: {"width": 100, "height": 100} for name in scenes}
            (root / f"{split}_image_metadata.json").write_text(json.dumps(frames))
        if pictures:
            for name in scenes:
                Image.new("RGB", (50, 50), (200, 30, 30)).save(folder / name)
    return root


def many_vrd(root: Path) -> Path:
    """24 training and 8 test images, enough to train on: riders, horses and hats in different places."""

    def scene(at: int) -> list[dict[str, Any]]:
        def moved(thing: tuple[int, list[int]]) -> tuple[int, list[int]]:
            category, (top, bottom, left, right) = thing
            down, aside = at % 9, at % 14
            return category, [top + down, bottom + down, left + aside, right + aside]

        rider, horse, hat = map(moved, (RIDER, HORSE, HAT))
        relations = [relation(rider, 0, horse), relation(rider, 1, hat), relation(horse, 1, hat)]
        return relations[: 2 + at % 2]

    train, test = ({f"{split}{at}.jpg": scene(at) for at in range(n)} for split, n in (("a", 24), ("b", 8)))
    return write_vrd(root, train, test, pictures=False)


def pictured_vrd(folder: Path) -> tuple[Path, Path]:
    """`many_vrd` with pictures of noise but for two training images and a test image, and weights of a backbone."""
    root, rng = many_vrd(folder / "data"), np.random.default_rng(0)
    for split, missing in (("train", {3, 8}), ("test", {5})):
        names = json.loads((root / f"annotations_{split}.json").read_text())
        for at, name in enumerate(names):
            if at not in missing:
                pixels = rng.integers(0, 256, (50, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "sg_dataset" / f"sg_{split}_images" / name)
    weights = folder / "weights.safetensors"
    save_file(timm.create_model("test_byobnet").state_dict(), weights)
    return root, weights
