"""The real VRD files, where they are: POLYADIC_SHARED, else ../shared beside the checkout, else the test is skipped."""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path

import pytest

from polyadic.datasets import load_dataset
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicWarning


def shared(*parts: str) -> Path:
    base = Path(os.environ.get("POLYADIC_SHARED") or Path(__file__).parents[2] / "shared")
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)}, which is neither in POLYADIC_SHARED nor in ../shared")
    return path


def real_vrd(split: str) -> Dataset:
    """A split of the real VRD, read once per test run; one training image has a wrong frame."""
    return _load(shared("data", "vrd"), split)


@cache
def _load(root: Path, split: str) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyadicWarning)
        return load_dataset("vrd", root, split)
