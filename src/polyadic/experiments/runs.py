"""A run on disk, opened to be used: model, config, data, features."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyadic.config.schema import Config
from polyadic.datasets import format_of
from polyadic.files import WEIGHTS
from polyadic.model.relation_model import PRECISION, RelationModel
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run_config
from polyadic.training.examples import load_split, pictures_of
from polyadic.training.region_cache import FeatureCache, Regions
from polyadic.training.trainer import pick_device


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model beside the data that it is used on."""

    folder: Path
    config: Config
    model: RelationModel
    data: Dataset  # of one split
    regions: Regions | None

    def validation(self) -> tuple[Scene, ...]:
        """The held-out images, those that training looked at."""
        return validation_of(self.config)


def open_run(
    folder: str | Path, split: str = "test", dataset: str | None = None, root: str | Path | None = None
) -> Run:
    """A run, or a saved model, with a split of its dataset or of another one of the same vocabulary."""
    folder = Path(folder).expanduser()
    if folder.name == "model" and (folder.parent / "config.json").is_file():
        folder = folder.parent  # the run knows more: where the data is
    config = run_config(folder)
    if dataset is not None and dataset != config.data.dataset:
        format_of(dataset)
        config = config.change(**{"data.dataset": dataset, "data.root": ""})
    if root is not None:
        if config.data.dataset == "toy":
            raise PolyadicError(f"toy is drawn and takes no root, got {root}")
        config = config.change(**{"data.root": str(root)})
    data = pictured(config, split)
    if config.threads:
        torch.set_num_threads(config.threads)
    device = pick_device("cpu" if config.device == "cpu" else "auto")  # maybe another machine's
    model = RelationModel.load(folder, device, data.vocabulary)
    return Run(folder, config, model, data, regions_of(model, config, folder))


def pictured(config: Config, split: str) -> Dataset:
    """A split, with its pictures where the model looks at them; or where the config asks for scenes that have one."""
    return load_split(config, split, pictures_of(config))


def validation_of(config: Config) -> tuple[Scene, ...]:
    return pictured(config, "validation").scenes[: config.validation.images]


def regions_of(model: RelationModel, config: Config, folder: Path) -> Regions | None:
    """Features from the cache that training filled, if it is still there, else computed."""
    if model.backbone is None:
        return None
    beside = Path(config.cache.folder).expanduser() if config.cache.folder else folder.parent / "features"
    cache = FeatureCache(beside, int(config.cache.gigabytes * 1e9))
    return Regions(config.pixels, cache, model.backbone.fingerprint(), PRECISION[config.precision])


# all that a run's folder may hold
WRITTEN = {"config.json", "model", "last.pt", "log.jsonl", "tensorboard", "scores.json", "detected", ".lock"}


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "last.pt").is_file()


def best_of(folder: Path) -> dict[str, Any]:
    """Of a run's model: the stage and epoch that it is from, and the held-out numbers by which it was chosen."""
    from safetensors import SafetensorError, safe_open

    path = folder / "model" / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["about"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise PolyadicError(f"{path} cannot be read: it is damaged or cut off ({error})") from error
    return about


def seconds_of(folder: Path) -> float:
    """Of all training steps of a run, interruptions left out; features and validation are not counted."""
    total = last = 0.0
    for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["event"] == "step":
            now = float(entry["seconds"])
            total += now - last if now > last else now  # the clock starts anew with each epoch
            last = now
        else:
            last = 0.0
    return total
