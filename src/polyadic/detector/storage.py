"""A detector on disk: model.safetensors, config.json, vocabulary.json, versions.json; nothing else is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyadic.config import load_detector_config
from polyadic.storing import (
    fill_model,
    find_model,
    move_model,
    read_vocabulary,
    read_weights,
    write_about,
    write_weights,
)
from polyadic.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from polyadic.detector import Detector

FORMAT = "polyadic.Detector/1"


def save(detector: Detector, folder: Path, about: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_about(folder, detector.config.to_json(), detector.vocabulary)
        write_weights(folder, detector.network.state_dict(), {"format": FORMAT, "about": json.dumps(about)})
    except (OSError, SafetensorError) as error:
        raise PolyadicError(f"cannot write the detector to {folder}: {error}") from error


def load(folder: Path, device: torch.device, vocabulary: Vocabulary | None) -> Detector:
    from polyadic.detector import Detector

    folder = find_model(folder, "`polyadic detect train` and Detector.save")
    weights, _ = read_weights(folder, FORMAT)
    names = read_vocabulary(folder, vocabulary)
    detector = Detector(load_detector_config(folder / "config.json"), names, fetch=False)
    fill_model(detector.network, weights, folder)
    move_model(detector, device, folder)
    return detector.eval()
