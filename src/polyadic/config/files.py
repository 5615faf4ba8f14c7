"""A config by name or from a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyadic.config.detector import DETECTOR_PRESETS, DetectorConfig
from polyadic.config.merging import merge
from polyadic.config.presets import PRESETS
from polyadic.config.schema import Config
from polyadic.config.settings import C
from polyadic.structures.vocabulary import PolyadicError


def load_config(source: str | Path) -> Config:
    """A preset by name, or a TOML or JSON file; a file may start from a preset with the key `preset`."""
    return _load(source, PRESETS, Config())


def load_detector_config(source: str | Path) -> DetectorConfig:
    """The same of a detector."""
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
    config: C = merge(presets[preset] if preset is not None else base, values, file=path.name)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".json":
            values = json.loads(text)
        elif sys.version_info >= (3, 11):
            import tomllib

            values = tomllib.loads(text)
        else:
            import tomli

            values = tomli.loads(text)
    except (OSError, ValueError) as error:  # both decoders' errors are
        raise PolyadicError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PolyadicError(f"{path.name} must hold keys and values, got {type(values).__name__}")
    return values
