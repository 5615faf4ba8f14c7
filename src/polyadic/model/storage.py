"""A model on disk: one folder, loadable on another machine without the dataset.

model.safetensors (weights, and in its header what has been trained), config.json, vocabulary.json, prior.safetensors,
versions.json. Each file is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyadic.config import Config
from polyadic.prior import TripletPrior
from polyadic.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from polyadic.model import RelationModel

FORMAT = "polyadic.RelationModel/1"
WEIGHTS, PRIOR = "model.safetensors", "prior.safetensors"


def save(model: RelationModel, folder: Path, about: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        config = model.config.to_json()
        hide_paths(config)
        write_text(folder / "config.json", json.dumps(config, indent=1))
        write_text(folder / "vocabulary.json", model.vocabulary.to_json())
        write_text(folder / "versions.json", json.dumps(versions(), indent=1))
        if model.prior is not None:
            model.prior.to("cpu").save(folder / PRIOR)
        metadata = {"format": FORMAT, "stages": json.dumps(model.stages), "about": json.dumps(about)}
        tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
        half = folder / f".{WEIGHTS}.{os.getpid()}.part"
        try:
            save_file(tensors, half, metadata)
            readable(half)
            os.replace(half, folder / WEIGHTS)
        finally:
            with suppress(OSError):
                half.unlink()
        if model.prior is None:
            (folder / PRIOR).unlink(missing_ok=True)  # of another model, saved here before
    except (OSError, SafetensorError) as error:
        raise PolyadicError(f"cannot write the model to {folder}: {error}") from error


def load(folder: Path, device: torch.device, vocabulary: Vocabulary | None) -> RelationModel:
    from safetensors import SafetensorError, safe_open

    from polyadic.model import RelationModel

    folder = folder.expanduser()
    if not (folder / WEIGHTS).exists() and (folder / "model" / WEIGHTS).exists():
        folder = folder / "model"  # a training run
    missing = [name for name in (WEIGHTS, "config.json", "vocabulary.json") if not (folder / name).is_file()]
    if missing:
        what = "no such folder" if not folder.is_dir() else f"{missing[0]} is missing"
        raise PolyadicError(f"{folder} holds no saved model: {what}; `polyadic train` and RelationModel.save make one")
    try:
        names = Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolyadicError(f"{folder / 'vocabulary.json'} cannot be read: {error}") from error
    difference = names.difference(vocabulary) if vocabulary is not None else None
    if difference:
        raise PolyadicError(f"{folder} was trained with another vocabulary ({difference}); train again on this dataset")
    config = read_config(folder / "config.json")
    prior = None
    if (folder / PRIOR).is_file():
        prior = replace(TripletPrior.load(folder / PRIOR), vocabulary=names)
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise PolyadicError(f"{folder / WEIGHTS} cannot be read: it is damaged or cut off ({error})") from error
    if metadata.get("format") != FORMAT:
        raise PolyadicError(f"{folder / WEIGHTS} is not a saved model: expected {FORMAT}, got {metadata.get('format')}")
    model = RelationModel(config, names, prior, fetch=False)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{folder / WEIGHTS} does not fit config.json beside it ({reason:.200})") from error
    model.stages = tuple(json.loads(metadata["stages"]))
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"cannot load {folder} to the device {device} ({reason:.120}); cpu always works") from error


def read_config(path: Path) -> Config:
    from polyadic.config import load_config

    return load_config(path)


def hide_paths(config: dict[str, Any]) -> None:
    """Folders of this machine mean nothing on another: of a file its name stays."""
    config["data"]["root"] = config["cache"]["folder"] = ""
    for section, name in (("data", "detections"), ("data", "simulate"), ("pixels", "weights")):
        config[section][name] = Path(config[section][name]).name


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("polyadic", "torch", "torchvision", "timm", "numpy", "pillow"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def readable(path: Path) -> None:
    """As other files are: safetensors makes files for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        half.write_text(text, encoding="utf-8")
        os.replace(half, path)
    finally:
        with suppress(OSError):
            half.unlink()
