"""A folder in which `polyadic predict` is tried: photos, their boxes, two models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_cases import NAMES, detections, model_of, photo

from polyadic.io.records import write_detections

COUNTS = (3, 4, 2, 3, 2)  # boxes of each photo
BOXES = ("--detections", "boxes.jsonl")


def save_models(folder: Path) -> Path:
    model_of("evidence").save(folder / "evidence")
    model_of("pixels", "evidence").save(folder / "pixels")
    return folder


def lay_out(folder: Path, models: Path) -> Path:
    """Five photos in `photos`, their boxes in `boxes.jsonl`, and the models."""
    for name in ("evidence", "pixels"):
        (folder / name).symlink_to(models / name)
    (folder / "photos").mkdir()
    found = []
    for at, n in enumerate(COUNTS):
        photo(at).save(folder / "photos" / f"{at}.png")
        found.append(replace(detections(n, seed=at), image=f"{at}.png"))
    write_detections(folder / "boxes.jsonl", found, NAMES)
    return folder


def records(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
