"""The feature cache: entries come back bit for bit, damage is detected, and the size limit holds."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor

from polyadic.structures.vocabulary import PolyadicWarning
from polyadic.training.region_cache import FeatureCache, announce, digest

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
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(*(x.reshape(-1).contiguous().view(torch.uint8) for x in (got[name], tensor)))


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache", 10**9)


def path_of(cache: FeatureCache, key: str = KEY) -> Path:
    return cache.folder / key[:2] / f"{key}.safetensors"


def files(cache: FeatureCache) -> list[str]:
    return sorted(path.name for path in cache.folder.rglob("*") if path.is_file())


# entries


def test_an_entry_comes_back_bit_for_bit(cache: FeatureCache) -> None:
    assert not cache.has(KEY)
    assert cache.load(KEY) is None
    assert cache.store(KEY, features())
    assert cache.has(KEY)
    assert_same(cache.load(KEY), features())
    assert_same(FeatureCache(cache.folder, 0).load(KEY), features())  # another run
    assert cache.load(KEYS[1]) is None
    assert cache.used() == path_of(cache).stat().st_size


def test_views_and_gradients_are_stored_as_values(cache: FeatureCache) -> None:
    whole = torch.arange(12.0).view(3, 4).requires_grad_()
    assert cache.store(KEY, {"all": whole, "turned": whole.T, "part": whole[1:], "wide": whole[:1].expand(2, 4)})
    values = whole.detach().clone()
    expected = {"all": values, "turned": values.T.contiguous(), "part": values[1:], "wide": values[:1].repeat(2, 1)}
    assert_same(cache.load(KEY), expected)


def test_rows_are_selected_in_the_order_requested(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    rows = {"pairs": torch.tensor([6, 0, 0]), "index": torch.empty(0, dtype=torch.long)}
    expected = features() | {"pairs": features()["pairs"][[6, 0, 0]], "index": torch.empty(0, 2, dtype=torch.long)}
    assert_same(cache.load(KEY, rows), expected)


def test_concurrent_writers_of_one_key_do_no_damage(cache: FeatureCache) -> None:
    def work(_: int) -> None:
        mine = FeatureCache(cache.folder, 10**9)
        for _ in range(20):
            assert mine.store(KEY, features())
            assert_same(mine.load(KEY), features())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert files(cache) == [path_of(cache).name]


# damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flipped": flip,
    "other dtype": lambda path: path.write_bytes(path.read_bytes().replace(b'"I64"', b'"F64"')),
    "other shape": lambda path: path.write_bytes(path.read_bytes().replace(b"[6,2]", b"[2,6]")),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello, I am not a tensor"),
    "foreign": lambda path: save_file(features(), path),
    "renamed": lambda path: path.write_bytes((path.parents[1] / KEYS[1][:2] / f"{KEYS[1]}.safetensors").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_removed_and_can_be_stored_again(
    cache: FeatureCache, damage: Callable[[Path], object]
) -> None:
    for key in KEYS[:2]:
        cache.store(key, features())
    damage(path_of(cache))
    with pytest.warns(PolyadicWarning, match=f"{path_of(cache)} is damaged"):
        assert cache.load(KEY) is None
    assert not cache.has(KEY)
    assert cache.store(KEY, features())
    assert_same(cache.load(KEY), features())
    assert_same(cache.load(KEYS[1]), features())


@pytest.mark.parametrize("bit", [0, 5])
def test_no_flipped_bit_anywhere_gives_other_tensors(cache: FeatureCache, bit: int) -> None:
    tensors = {"a": torch.tensor([[1, 2, 3]], dtype=torch.int32), "b": torch.tensor([[4.0], [5.0]])}
    cache.store(KEY, tensors)
    intact = path_of(cache).read_bytes()
    detected = 0
    for at in range(len(intact)):
        broken = bytearray(intact)
        broken[at] ^= 1 << bit
        path_of(cache).write_bytes(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolyadicWarning)
            got = FeatureCache(cache.folder, 0).load(KEY)
        if got is None:
            detected += 1
        else:  # a blank of the padding
            assert_same(got, tensors)
    assert detected > 0.9 * len(intact)


def test_an_interrupted_write_leaves_nothing(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.store(KEY, features())
    assert files(cache) == []
    assert cache.store(KEY, features())


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from polyadic.training.region_cache import FeatureCache
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
FeatureCache(Path(sys.argv[1]), 10**9).store(sys.argv[2], {"x": torch.ones(3)})
"""


def test_the_partial_file_of_a_killed_writer_is_ignored_and_removed_after_an_hour(cache: FeatureCache) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder), KEY], check=False)
    assert done.returncode == -signal.SIGKILL
    (half,) = path_of(cache).parent.iterdir()
    assert not cache.has(KEY)
    FeatureCache(cache.folder, 10**9)  # its writer may still be alive
    assert half.exists()
    foreign = half.with_name(".somebody.part")
    foreign.touch()
    for path in (half, foreign):
        os.utime(path, (LONG_AGO, LONG_AGO))
    FeatureCache(cache.folder, 10**9)
    assert not half.exists()
    assert foreign.exists()


def test_an_unusable_folder_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(r"cannot read the folder .*file", FeatureCache, tmp_path / "file", 1)
    cache = FeatureCache(tmp_path / "cache", 10**9)
    path_of(cache).mkdir(parents=True)
    refused("cannot write", lambda: cache.store(KEY, features()))


# the limit


def fill(folder: Path, keys: list[str], mtimes: list[float]) -> int:
    """Store entries of an earlier run, used at these times; return the size of one."""
    earlier = FeatureCache(folder, 10**9)
    for key, used in zip(keys, mtimes, strict=True):
        assert earlier.store(key, features())
        os.utime(path_of(earlier, key), (used, used))
    return path_of(earlier, keys[0]).stat().st_size


def kept(cache: FeatureCache) -> list[int]:
    return [i for i, key in enumerate(KEYS) if path_of(cache, key).exists()]


def test_the_least_recently_used_entries_are_evicted_first(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:4], [LONG_AGO + x for x in (30, 10, 40, 20)])
    cache = FeatureCache(tmp_path, 4 * size)
    left = []
    for key in KEYS[4:]:
        assert cache.store(key, features())
        assert cache.used() == 4 * size
        left.append([i for i in kept(cache) if i < 4])
    assert left == [[0, 2, 3], [0, 2], [2], []]


@pytest.mark.parametrize("use", [FeatureCache.has, FeatureCache.load], ids=["has", "load"])
def test_entries_used_or_stored_by_this_run_stay(tmp_path: Path, use: Callable[[FeatureCache, str], Any]) -> None:
    size = fill(tmp_path, KEYS[:3], [LONG_AGO + x for x in (1, 2, 3)])
    cache = FeatureCache(tmp_path, 3 * size)
    use(cache, KEYS[0])
    assert cache.store(KEYS[3], features())
    assert cache.store(KEYS[4], features())
    assert not cache.store(KEYS[5], features())  # all that is left belongs to this run
    assert kept(cache) == [0, 3, 4]
    for i in (0, 3, 4):  # even when the clock of the disk is behind
        os.utime(path_of(cache, KEYS[i]), (LONG_AGO, LONG_AGO))
    assert not cache.store(KEYS[5], features())
    assert kept(cache) == [0, 3, 4]


def test_a_worker_keeps_what_other_workers_of_its_run_use(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:2], [LONG_AGO, LONG_AGO + 1])
    cache = FeatureCache(tmp_path, 3 * size)
    first, second = (pickle.loads(pickle.dumps(cache)) for _ in range(2))
    time.sleep(0.02)  # file times are coarse
    assert first.has(KEYS[0])
    assert first.store(KEYS[2], features())
    second.used()  # as after some entries
    assert second.store(KEYS[3], features())
    assert kept(cache) == [0, 2, 3]
    assert not second.store(KEYS[4], features())
    later = FeatureCache(tmp_path, 3 * size, opened=time.time() + 1)
    assert later.store(KEYS[5], features())
    assert later.used() == 3 * size


def test_nothing_is_evicted_for_an_entry_that_cannot_fit(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:2], [LONG_AGO, LONG_AGO + 1])
    assert not FeatureCache(tmp_path, 2 * size).store(KEYS[2], {"x": torch.zeros(2 * size)})
    cache = FeatureCache(tmp_path, 0)
    assert not cache.store(KEYS[3], features())
    assert kept(cache) == [0, 1]


def test_foreign_files_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:1], [LONG_AGO])
    others = [tmp_path / "notes.txt", tmp_path / KEY[:2] / "weights.safetensors", tmp_path / "mine" / "a.part"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(5 * size))
        os.utime(path, (LONG_AGO, LONG_AGO))
    cache = FeatureCache(tmp_path, size)
    assert cache.used() == size
    assert cache.store(KEYS[1], features())
    assert all(path.exists() for path in others)


def test_the_announcement_says_how_much_fits(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, 20_000_000_000)
    assert announce(1_227, 1_140_000, cache) == "features of 1,227 images: 1.4 GB; limit 20 GB"
    assert "342 MB are cached" in announce(1_227, 1_140_000, cache, 300)
    cache.limit = 1_000_000_000
    assert "350 images will be recomputed" in announce(1_227, 1_140_000, cache)
    assert announce(10, 100_000_000, cache).endswith("; limit 1 GB")  # to the last byte


# keys


NUMBERS = arrays(
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]), array_shapes(min_dims=0, min_side=0, max_side=3)
)
PARTS = st.lists(
    st.one_of(
        st.text(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        NUMBERS,
        NUMBERS.map(torch.from_numpy),
    ),
    max_size=4,
)


def identity(part: Any) -> tuple[Any, ...]:
    """Describe a part by all that distinguishes it from another, in plain values."""
    if isinstance(part, np.ndarray | Tensor):
        return type(part), str(part.dtype), tuple(part.shape), np.asarray(part).tobytes()
    return type(part), repr(part)


@given(PARTS, PARTS)
def test_digests_are_equal_exactly_where_the_parts_are(a: list[Any], b: list[Any]) -> None:
    assert (digest(*a) == digest(*b)) == ([identity(x) for x in a] == [identity(x) for x in b])
    assert digest(*a) == digest(*pickle.loads(pickle.dumps(a)))


DIFFERENT: list[tuple[Any, ...]] = [
    *((), ("",), ("", ""), ("ab", "c"), ("a", "bc"), ("abc",), ("1",), (1,), (1.0,), (True,), (-1,), (0.0,), (-0.0,)),
    *((np.zeros((2, 3)),), (np.zeros((3, 2)),), (np.zeros(6),), (np.zeros(6, np.float32),), (np.zeros(6, np.int64),)),
    *((torch.zeros(6),), (torch.zeros(6).half(),), (torch.zeros(6).bfloat16(),), (torch.zeros(6).int(),)),
    *((torch.zeros(0, 3),), (torch.zeros(3, 0),), (torch.zeros(()),), (torch.zeros(1),)),
]


def test_a_digest_is_the_same_on_every_machine_and_for_every_layout() -> None:
    by_hand = b"str 3\nnet" + b"int 2\nff" + b"float 8\n" + bytes.fromhex("000000000000e03f")
    by_hand += b"array int16 (1, 2) 4\n" + b"\x02\x01\x00\x00" + b"tensor torch.bfloat16 (1,) 2\n" + b"\x80\x3f"
    parts = ("net", 255, 0.5, np.array([[258, 0]], np.int16), torch.ones(1, dtype=torch.bfloat16))
    assert digest(*parts) == hashlib.blake2b(by_hand, digest_size=20).hexdigest()
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    assert digest(values) == digest(values.astype("<f4")) == digest(np.asfortranarray(values))
    tensor = torch.arange(6.0).view(2, 3)
    assert digest(tensor) == digest(tensor.T.contiguous().T.requires_grad_())


@pytest.mark.parametrize("bad", [None, [1], np.array(["a"]), np.array([object()])])
def test_parts_without_stable_bytes_are_refused(bad: Any, unchecked: None) -> None:
    refused("digest: expected", digest, "x", bad)
