"""Each number of a run, in one value: what it is, whose it is (the paper's or ours), and the presets.

A config is read from a preset's name or a TOML or JSON file, changed by `section.field=value`, and saved in full beside
the weights. An unknown key is refused with the nearest known one.
"""

from __future__ import annotations

from polyadic.config.checks import difference, keys, value_at
from polyadic.config.detector import DETECTOR_PRESETS, DetectorConfig
from polyadic.config.files import load_config, load_detector_config
from polyadic.config.merging import parse_value
from polyadic.config.presets import PRESETS
from polyadic.config.schema import (
    Cache,
    Config,
    Data,
    Evidence,
    Geometry,
    Head,
    Pixels,
    Ranking,
    Selection,
    Stage,
    Validation,
    World,
)

__all__ = [
    "DETECTOR_PRESETS",
    "PRESETS",
    "Cache",
    "Config",
    "Data",
    "DetectorConfig",
    "Evidence",
    "Geometry",
    "Head",
    "Pixels",
    "Ranking",
    "Selection",
    "Stage",
    "Validation",
    "World",
    "difference",
    "keys",
    "load_config",
    "load_detector_config",
    "parse_value",
    "value_at",
]
