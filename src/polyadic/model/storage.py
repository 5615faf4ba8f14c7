"""Save and load a model: one folder, loadable on another machine without the dataset.

model.safetensors (weights, and in its header the trained stages and digests of all parts), config.json,
vocabulary.json, prior.safetensors, versions.json; detector/, where it has one. Files are written atomically.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyadic.config import load_config
from polyadic.detectors.detector import Detector
from polyadic.files import (
    PARTS,
    WEIGHTS,
    fill_model,
    find_model,
    move_model,
    parse_json,
    read_vocabulary,
    read_weights,
    write_about,
    write_weights,
)
from polyadic.prior import TripletPrior
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary

if TYPE_CHECKING:
    from polyadic.model.relation_model import RelationModel

FORMAT = "polyadic.RelationModel/1"
PRIOR, DETECTOR = "prior.safetensors", "detector"
LARGEST = torch.finfo(torch.float16).max


def save(model: RelationModel, folder: Path, about: Mapping[str, Any], half: bool = False) -> None:
    from safetensors import SafetensorError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_about(folder, model.config.to_json(), model.vocabulary)
        if model.prior is not None:
            model.prior.to("cpu").save(folder / PRIOR)
        metadata = {"format": FORMAT, "stages": json.dumps(model.stages), "about": json.dumps(about)}
        parts = PARTS if model.prior is None else (*PARTS, PRIOR)
        write_weights(folder, _halved(model) if half else model.state_dict(), metadata, parts)
        if model.detector_slot.folder != folder / DETECTOR:
            _save_detector(model, folder / DETECTOR)
        if model.prior is None:
            (folder / PRIOR).unlink(missing_ok=True)  # of another model saved here before
    except (OSError, SafetensorError) as error:
        raise PolyadicError(f"cannot write the model to {folder}: {error}") from error


def _halved(model: RelationModel) -> dict[str, Tensor]:
    """Convert weights to float16: half the bytes; loading converts them back to float32."""
    weights: dict[str, Tensor] = model.state_dict()
    large = next((name for name, x in weights.items() if x.is_floating_point() and (x.abs() > LARGEST).any()), None)
    if large is not None:
        raise PolyadicError(f"save: {large} has numbers beyond float16's {LARGEST:,.0f}; save without half=True")
    return {name: x.half() if x.is_floating_point() else x for name, x in weights.items()}


def _save_detector(model: RelationModel, target: Path) -> None:
    """Replace the saved detector by the model's; detectors of other kinds than ours cannot be saved."""
    detector = model.detector
    if isinstance(detector, Detector):
        detector.save(target)
        return
    if target.is_dir():
        shutil.rmtree(target)
    if detector is not None:
        warnings.warn(
            f"{type(detector).__name__} is not saved with the model: call model.set_detector again after loading",
            PolyadicWarning,
            stacklevel=4,
        )


def load(folder: Path, device: torch.device, vocabulary: Vocabulary | None) -> RelationModel:
    from polyadic.model.relation_model import DetectorSlot, RelationModel

    folder = find_model(folder, "`polyadic train` and RelationModel.save")
    weights, metadata, parts = read_weights(folder, FORMAT)
    names = read_vocabulary(folder, vocabulary)
    config = load_config(folder / "config.json")
    prior = None
    if (folder / PRIOR).is_file() if parts is None else PRIOR in parts:
        prior = replace(TripletPrior.load(folder / PRIOR), vocabulary=names)
    model = RelationModel(config, names, prior, fetch=False)
    fill_model(model, weights, folder)
    stages = metadata.get("stages", "").encode()
    model.stages = tuple(parse_json(stages, f"{folder / WEIGHTS}, stages", list[str]))
    if (folder / DETECTOR).is_dir():
        model.detector_slot = DetectorSlot(folder=folder / DETECTOR)
    move_model(model, device, folder)
    return model.eval()


def pick_device(name: str) -> torch.device:
    """Return the device of a config; `auto` is the first of CUDA, MPS and the CPU.

    Of several processes on a machine, each takes the GPU of its LOCAL_RANK.
    """
    if name == "auto":
        mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    if name == "cuda" and torch.cuda.device_count():
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PolyadicError(f"device {name!r} cannot be used here ({str(error).splitlines()[0]:.120})") from error
    return device
