"""Configs: every number of a run in one value.

A config is loaded from a preset's name or from a TOML or JSON file, changed by dotted key, and saved in full beside
the weights. An unknown key is refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyadic.config.presets import DETECTOR_PRESETS, OWN, PRESETS, fit_size
from polyadic.config.schema import Config, DetectorConfig
from polyadic.config.settings import C, difference, leaves
from polyadic.structures.vocabulary import PolyadicError

__all__ = [
    "DETECTOR_PRESETS",
    "OWN",
    "PRESETS",
    "Config",
    "DetectorConfig",
    "difference",
    "fit_size",
    "leaves",
    "load_config",
    "load_detector_config",
]


def load_config(source: str | Path) -> Config:
    """Load a preset by name, or a TOML or JSON file; a file may start from a preset with the key `preset`."""
    return _load(source, PRESETS, Config())


def load_detector_config(source: str | Path) -> DetectorConfig:
    """Load the config of a detector, likewise."""
    return _load(source, DETECTOR_PRESETS, DetectorConfig())


def _load(source: str | Path, presets: Mapping[str, C], base: C) -> C:
    if str(source) in presets:
        return presets[str(source)]
    path = Path(source).expanduser()
    if not path.is_file():
        raise PolyadicError(f"no preset and no file is called {source}; presets: {', '.join(presets)}")
    values = _read(path)
    preset = values.pop("preset", None)
    if preset is not None and (not isinstance(preset, str) or preset not in presets):
        raise PolyadicError(f"{path.name}: no preset is called {preset!r}; known: {', '.join(presets)}")
    try:
        return (base if preset is None else presets[preset]).merge(values)
    except PolyadicError as error:
        raise PolyadicError(f"{path.name}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    from polyadic.structures.labels import read_file  # imports NumPy, which `--help` needs not

    values = read_file(path, "a config")
    if not isinstance(values, dict):
        raise PolyadicError(f"{path.name} must hold keys and values, got {type(values).__name__}")
    return values
