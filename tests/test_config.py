from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from polyadic.config import (
    DETECTOR_PRESETS,
    PRESETS,
    DetectorConfig,
    difference,
    leaves,
    load_config,
    load_detector_config,
)
from polyadic.config.schema import Config, PixelsConfig, StageConfig

NAMES = sorted(PRESETS)


def written(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def text_of(value: Any) -> str:
    """As a person would type it in a flag."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", [*NAMES, *DETECTOR_PRESETS])
def test_every_preset_comes_back_from_toml_and_json_and_says_whose_each_value_is(tmp_path: Path, name: str) -> None:
    presets, load = (PRESETS, load_config) if name in PRESETS else (DETECTOR_PRESETS, load_detector_config)
    config: Any = presets[name].change(**{"data.root": 'C:\\data "é" 😀', "seed": 7})
    assert load(written(tmp_path, config.to_toml())) == config
    assert load(written(tmp_path, json.dumps(config.to_json()), "run.json")) == config
    assert load(name) == presets[name]
    lines = [line for line in config.to_toml().splitlines() if " = " in line]
    assert len(lines) == len(list(leaves(config)))
    assert all("  # paper: " in line or "  # ours: " in line or "  # ours; the paper has " in line for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_every_value_parses_back_to_it(name: str) -> None:
    config = PRESETS[name]
    for key, value in leaves(config):
        assert config.change_text({key: text_of(value)}) == config, key
        assert config.change(**{key: value}) == config, key


def test_flags_are_read_as_people_write_them() -> None:
    for yes, no in (("true", "false"), ("True", "False"), ("1", "0")):
        assert Config().change_text({"head.context": yes}).head.context is True
        assert Config().change_text({"head.context": no}).head.context is False
    for text in ("8, 16", "8 16", "8,16"):
        assert Config().change_text({"pixels.strides": text}).pixels.strides == (8, 16)
    assert Config().change_text({"triplets.rate": "1e-3"}).triplets.rate == 0.001
    config = Config().change(**{"triplets.rate": 1, "pixels.strides": [8, 16]})
    assert (type(config.triplets.rate), config.pixels.strides) == (float, (8, 16))


def test_the_default_preset_is_the_papers() -> None:
    config = PRESETS["vrd"]
    sums = {f"{stage}.reduction": "sum" for stage in ("triplets", "selection")}
    assert config == Config().change(**sums)  # files of older versions do not say, and have the mean
    assert config.sources == ("pixels",)
    assert (config.pixels.backbone, config.pixels.strides) == ("vgg16", (16,))  # conv5_3
    assert (config.pixels.pool, config.pixels.mask, config.pixels.spatial) == (7, 64, 512)
    assert (config.head.rank, config.head.hidden, config.selector.hidden) == (5, 4096, 4096)
    assert not config.head.context
    assert config.selector.nulls == 1  # as many null as valid examples
    for stage in (config.triplets, config.proposals, config.selection):
        assert (stage.optimiser, stage.rate, stage.clip) == ("sgd", 1e-4, 20)
    assert config.triplets.epochs == 7
    ranking = config.ranking
    assert (ranking.prior, ranking.selected, ranking.boxes, ranking.smoothing, ranking.repeat) == (1, 1, 1, 1, 1)


def test_every_field_says_whether_it_is_the_papers_or_ours() -> None:
    for section in fields(Config):
        value = getattr(Config(), section.name)
        for setting in fields(value) if is_dataclass(value) else (section,):
            owner, _, words = setting.metadata.get("about", "").partition(": ")
            assert owner in ("paper", "ours"), f"{section.name}.{setting.name}"
            assert words.strip(), f"{section.name}.{setting.name}"


def test_a_file_changes_what_it_names_and_starts_from_its_preset(tmp_path: Path) -> None:
    path = written(tmp_path, 'preset = "vg150"\nseed = 3\n[head]\nrank = 2\n')
    config = load_config(path)
    assert difference(config, PRESETS["vg150"]) == ["seed", "head.rank"]
    assert (config.seed, config.head.rank, config.data.dataset) == (3, 2, "vg150")
    path = written(tmp_path, "seed = 4\n")
    assert load_config(path).data.dataset == "vrd"


def test_difference_skips_ignored_keys() -> None:
    other = Config().change(**{"workers": 5, "head.rank": 1, "cache.gigabytes": 1})
    assert difference(Config(), other) == ["workers", "head.rank", "cache.gigabytes"]
    assert difference(Config(), other, ("workers", "cache.")) == ["head.rank"]


BAD_FILES = {
    "sed = 1": "no config key sed; did you mean seed?",
    "[head]\nrnak = 1": "no config key head.rnak; did you mean head.rank?",
    "[heads]\nrank = 1": "no config key heads; did you mean head?",
    "hidden = 1": "did you mean head.hidden?",
    "head = 3": "head is a section",
    '[head]\nrank = "5"': "head.rank: expected a whole number, got '5'",
    "[head]\nrank = 5.0": "head.rank: expected a whole number, got 5.0",
    "[head]\nrank = true": "head.rank: expected a whole number, got True",
    "[head]\nrank = 0": "head.rank: expected a whole number >= 1, got 0",
    "[head]\ncontext = 1": "head.context: expected true or false, got 1",
    "[head]\ndropout = 1.0": "head.dropout: expected a number < 1.0, got 1.0",
    "[triplets]\nrate = nan": "triplets.rate: expected a number > 0.0, got nan",
    '[triplets]\noptimiser = "adamm"': "triplets.optimiser: expected one of sgd, adam, adamw (did you mean adam?)",
    "[pixels]\nstrides = 16": "pixels.strides: expected a list",
    "[pixels]\nstrides = []": "pixels.strides",
    "[pixels]\nstrides = [8, 8]": "pixels.strides",
    "sources = []": "sources",
    'sources = ["pixels", "pixels"]': "sources",
    'preset = "vgr"': "'vgr'; known: vrd, vg150",
    "seed = ": "is not a config",
}


def test_configs_load_no_torch() -> None:
    code = "import sys, polyadic.config as c; c.load_config('vrd').to_toml(); print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"


def test_of_a_detector_the_paper_says_two_things() -> None:
    lines = DetectorConfig().to_toml().splitlines()
    assert [line.split()[0] for line in lines if "  # paper: " in line] == ["network", "nms"]
    assert DETECTOR_PRESETS["vgg16"] == DetectorConfig()
    assert (DetectorConfig().network, DetectorConfig().nms) == ("vgg16", 0.7)


def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, unchecked: None) -> None:
    for text, message in BAD_FILES.items():
        refused(f"run.toml.*{re.escape(message)}", partial(load_config, written(tmp_path, text)))
    for text, message in BAD_DETECTORS.items():
        refused(re.escape(message), partial(load_detector_config, written(tmp_path, text)))
    (tmp_path / "c.toml").write_bytes(b"\x89PNG\xff\xfe")
    bad_paths: dict[str | Path, str] = {
        "vdr": "no preset and no file is called vdr; presets: vrd, ",
        written(tmp_path, "[1]", "a.json"): r"a\.json must hold keys and values, got list",
        written(tmp_path, "{", "b.json"): r"b\.json is not a config",
        tmp_path / "c.toml": r"c\.toml is not a config .*utf-8",
    }
    for path, message in bad_paths.items():
        refused(message, partial(load_config, path))


BAD_DETECTORS = {
    "nms = 1.5": "nms: expected a number <= 1.0, got 1.5",
    "side = 8": "side: expected a whole number >= 32, got 8",
    "[training]\nimages = 0": "training.images: expected a whole number >= 1, got 0",
    "[validation]\nk = 1": "no config key validation.k",
    'preset = "vrd"': "'vrd'; known: vgg16, resnet50-fpn",
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Config().change_text({"head.rnk": "1"}), "did you mean head.rank?"),
        (lambda: Config().change_text({"head": "1"}), "head is a section"),
        (lambda: Config().change_text({"head.rank": "five"}), "head.rank: expected a whole number, got 'five'"),
        (lambda: Config().change_text({"head.context": "maybe"}), "head.context: expected true or false, got 'maybe'"),
        (
            lambda: Config().change_text({"pixels.strides": "8;16"}),
            "pixels.strides: expected a whole number, got '8;16'",
        ),
        (lambda: Config().change_text({"head.rank.x": "1"}), "no config key head.rank.x"),
        (lambda: Config().change(**{"head.rank": 0}), "head.rank: expected a whole number >= 1, got 0"),
        (lambda: Config(pixels=PixelsConfig(pool=0)), "pixels.pool: expected a whole number >= 1, got 0"),
        (lambda: Config(selection=StageConfig(clip=-1)), "selection.clip: expected a number > 0.0, got -1"),
    ],
)
def test_a_bad_flag_or_value_is_refused_in_one_line(act: Any, message: str) -> None:
    refused(re.escape(message), act)
