"""Entries for the tests of the feature cache."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyadic.training.region_cache import FeatureCache, digest

KEYS = [digest("entry", i) for i in range(8)]
KEY = KEYS[0]
LONG_AGO = time.time() - 100_000


def features(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "boxes": torch.randn(5, 3, generator=generator).half(),
        "pairs": torch.randn(7, 2, 4, generator=generator).bfloat16(),
        "index": torch.randint(-(2**62), 2**62, (6, 2), generator=generator),
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "mask": torch.tensor([True, False, True]),
    }


def assert_same(got: dict[str, Tensor] | None, expected: dict[str, Tensor]) -> None:
    assert got is not None
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert bytes(got[name].reshape(-1).view(torch.uint8).tolist()) == bytes(
            tensor.reshape(-1).view(torch.uint8).tolist()
        )


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache", 10**9)


def path_of(cache: FeatureCache, key: str = KEY) -> Path:
    return cache.folder / key[:2] / f"{key}.safetensors"


def files(cache: FeatureCache) -> list[str]:
    return sorted(path.name for path in cache.folder.rglob("*") if path.is_file())
