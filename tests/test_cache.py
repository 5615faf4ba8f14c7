from __future__ import annotations

import errno
import hashlib
import os
import pickle
import resource
import shutil
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
from safetensors.torch import save_file
from torch import Tensor

from polyadic import PolyadicError
from polyadic.cache import FeatureCache, announce, digest, in_bytes
from polyadic.vocabulary import PolyadicWarning

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


def test_what_is_stored_comes_back_bit_for_bit(cache: FeatureCache) -> None:
    assert not cache.has(KEY)
    assert cache.load(KEY) is None
    assert cache.store(KEY, features())
    assert cache.has(KEY)
    assert_same(cache.load(KEY), features())
    assert_same(FeatureCache(cache.folder, 0).load(KEY), features())  # another run
    assert cache.load(KEYS[1]) is None
    assert cache.used() == path_of(cache).stat().st_size


def test_views_gradients_and_shared_memory_are_stored_as_values(cache: FeatureCache) -> None:
    whole = torch.arange(12.0).view(3, 4).requires_grad_()
    assert cache.store(KEY, {"all": whole, "turned": whole.T, "part": whole[1:], "wide": whole[:1].expand(2, 4)})
    values = whole.detach().clone()
    expected = {"all": values, "turned": values.T.contiguous(), "part": values[1:], "wide": values[:1].repeat(2, 1)}
    assert_same(cache.load(KEY), expected)


def test_rows_are_picked_in_the_order_asked(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    rows = {"pairs": torch.tensor([6, 0, 0]), "index": torch.empty(0, dtype=torch.long)}
    expected = features() | {"pairs": features()["pairs"][[6, 0, 0]], "index": torch.empty(0, 2, dtype=torch.long)}
    assert_same(cache.load(KEY, rows), expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"pears": torch.tensor([0])}, "rows of 'pears' are asked for, but the entry has .*'pairs'"),
        ({"pairs": torch.tensor([1, 7])}, r"must be int64 from 0 to 6, got torch.int64 \[1, 7\]"),
        ({"pairs": torch.tensor([-1])}, "from 0 to 6"),
        ({"pairs": torch.tensor([True])}, "got torch.bool"),
        ({"scalar": torch.tensor([0])}, "rows of 'scalar'"),
    ],
)
def test_wrong_rows_are_told(cache: FeatureCache, rows: dict[str, Tensor], message: str, unchecked: None) -> None:
    cache.store(KEY, features())
    with pytest.raises(PolyadicError, match=message):
        cache.load(KEY, rows)


def mapped_and_resident(tensor: Tensor) -> int:
    """kB of the tensor's mapping that are in memory, from the kernel's own table."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            low, high = (int(x, 16) for x in first.split("-"))
            inside = low <= tensor.data_ptr() < high and ".safetensors" in line
        elif inside and first == "Rss:":
            return int(line.split()[1])
    raise AssertionError("not mapped")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux only")
def test_an_entry_is_mapped_and_not_read_before_it_is_needed(cache: FeatureCache) -> None:
    cache.store(KEY, {"x": torch.ones(4_000, 1_024)})  # 16 MB
    cache.load(KEY)  # the check reads it all
    entry = cache.load(KEY)
    assert entry is not None
    before = mapped_and_resident(entry["x"])
    entry["x"].sum()
    assert before < 6_000  # the kernel reads ahead
    assert mapped_and_resident(entry["x"]) > 15_000


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "flipped": flip,
    "other dtype": lambda path: path.write_bytes(path.read_bytes().replace(b'"I64"', b'"F64"')),
    "other shape": lambda path: path.write_bytes(path.read_bytes().replace(b"[6,2]", b"[2,6]")),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello, I am not a tensor"),
    "foreign": lambda path: save_file(features(), path),
    "other format": lambda path: save_file(features(), path, {"format": "polyadic.TripletPrior/1"}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_broken_entry_is_removed_and_rebuilt(cache: FeatureCache, damage: Callable[[Path], object]) -> None:
    for key in KEYS[:2]:
        cache.store(key, features())
    damage(path_of(cache))
    with pytest.warns(PolyadicWarning, match=f"{path_of(cache)} .*; removed, to be made anew"):
        assert cache.load(KEY) is None
    assert not cache.has(KEY)
    assert cache.store(KEY, features())
    assert_same(cache.load(KEY), features())
    assert_same(cache.load(KEYS[1]), features())


def test_an_entry_is_checked_once_and_again_when_it_is_stored_anew(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    cache.load(KEY)
    flip(path_of(cache))
    assert cache.load(KEY) is not None  # damage in the middle of a run is for the next one to find
    cache.store(KEY, features())
    flip(path_of(cache))
    with pytest.warns(PolyadicWarning, match="wrong checksum"):
        assert cache.load(KEY) is None


def test_an_entry_under_another_name_is_foreign(cache: FeatureCache) -> None:
    cache.store(KEYS[1], features())
    path_of(cache).parent.mkdir(exist_ok=True)
    path_of(cache, KEYS[1]).rename(path_of(cache))
    with pytest.warns(PolyadicWarning, match="wrong checksum"):
        assert cache.load(KEY) is None


@pytest.mark.parametrize("bit", [0, 5])
def test_no_flipped_bit_anywhere_gives_other_tensors(cache: FeatureCache, bit: int) -> None:
    tensors = {"a": torch.tensor([[1, 2, 3]], dtype=torch.int32), "b": torch.tensor([[4.0], [5.0]])}
    cache.store(KEY, tensors)
    sound = path_of(cache).read_bytes()
    found = 0
    for at in range(len(sound)):
        broken = bytearray(sound)
        broken[at] ^= 1 << bit
        path_of(cache).write_bytes(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolyadicWarning)
            got = FeatureCache(cache.folder, 0).load(KEY)
        if got is None:
            found += 1
        else:  # a blank of the padding
            assert_same(got, tensors)
    assert found > 0.9 * len(sound)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_entry_is_removed_and_rebuilt(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    path_of(cache).chmod(0)
    with pytest.warns(PolyadicWarning, match="Permission denied.*removed"):
        assert cache.load(KEY) is None
    assert cache.store(KEY, features())
    assert_same(cache.load(KEY), features())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(cache: FeatureCache) -> None:
    cache.folder.mkdir(mode=0o500)
    with pytest.raises(PolyadicError, match=r"^FeatureCache: cannot write .*Permission denied.*make it writable.*$"):
        cache.store(KEY, features())


def test_what_cannot_be_removed_is_told(cache: FeatureCache) -> None:
    path_of(cache).mkdir(parents=True)
    with pytest.warns(PolyadicWarning, match="cannot be removed .*: remove it by hand"):
        assert cache.load(KEY) is None
    with pytest.raises(PolyadicError, match="cannot write"):
        cache.store(KEY, features())
    assert files(cache) == []


def test_too_many_open_files_cost_no_entry(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    cache.load(KEY)  # what is imported lazily is there
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(PolyadicError, match=r"cannot read .*Too many open files.*ulimit"):
            cache.load(KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert_same(cache.load(KEY), features())


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_before_the_rename_leaves_nothing(
    cache: FeatureCache, stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*paths: Path) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(stop):
            cache.store(KEY, features())
    assert files(cache) == []
    assert not cache.has(KEY)
    assert cache.store(KEY, features())


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from polyadic.cache import FeatureCache
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
FeatureCache(Path(sys.argv[1]), 10**9).store(sys.argv[2], {"x": torch.ones(3)})
"""


def test_a_killed_writer_leaves_nothing_visible_and_is_swept_after_an_hour(cache: FeatureCache) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder), KEY], check=False)
    assert done.returncode == -signal.SIGKILL
    (half,) = path_of(cache).parent.iterdir()
    assert half.name.startswith(f".{KEY}.")
    assert not cache.has(KEY)
    assert cache.load(KEY) is None
    FeatureCache(cache.folder, 10**9)  # its writer may still live
    assert half.exists()
    stranger = half.with_name(".somebody.part")
    stranger.touch()
    for path in (half, stranger):
        os.utime(path, (LONG_AGO, LONG_AGO))
    FeatureCache(cache.folder, 10**9)
    assert not half.exists()
    assert stranger.exists()


def fill(folder: Path, keys: list[str], mtimes: list[float]) -> int:
    """Entries of an earlier run, used at these times; the size of one."""
    earlier = FeatureCache(folder, 10**9)
    for key, used in zip(keys, mtimes, strict=True):
        assert earlier.store(key, features())
        os.utime(path_of(earlier, key), (used, used))
    return path_of(earlier, keys[0]).stat().st_size


def kept(cache: FeatureCache) -> list[int]:
    return [i for i, key in enumerate(KEYS) if path_of(cache, key).exists()]


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:4], [LONG_AGO + x for x in (30, 10, 40, 20)])
    cache = FeatureCache(tmp_path, 4 * size)
    left = []
    for key in KEYS[4:]:
        assert cache.store(key, features())
        assert cache.used() == 4 * size
        left.append([i for i in kept(cache) if i < 4])
    assert left == [[0, 2, 3], [0, 2], [2], []]


@pytest.mark.parametrize("use", [FeatureCache.has, FeatureCache.load], ids=["has", "load"])
def test_used_and_stored_entries_of_this_run_stay(tmp_path: Path, use: Callable[[FeatureCache, str], Any]) -> None:
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


def test_a_worker_keeps_what_the_others_of_its_run_use(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:2], [LONG_AGO, LONG_AGO + 1])
    cache = FeatureCache(tmp_path, 3 * size)
    first, second = (pickle.loads(pickle.dumps(cache)) for _ in range(2))
    time.sleep(0.02)  # file times are coarse
    assert first.has(KEYS[0])
    assert first.store(KEYS[2], features())
    assert second.store(KEYS[3], features())
    assert kept(cache) == [0, 2, 3]
    assert not second.store(KEYS[4], features())
    later = FeatureCache(tmp_path, 3 * size, opened=time.time() + 1)
    assert later.store(KEYS[5], features())
    assert later.used() == 3 * size


def test_an_entry_that_another_process_used_after_the_scan_stays(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:3], [LONG_AGO + x for x in (1, 2, 3)])
    cache = FeatureCache(tmp_path, 3 * size)
    cache._credit = 10**9  # no scan is due
    os.utime(path_of(cache, KEYS[0]))
    path_of(cache, KEYS[1]).unlink()
    assert cache.store(KEYS[3], features())
    assert kept(cache) == [0, 2, 3]
    used = path_of(cache, KEYS[2]).stat().st_mtime_ns
    assert cache.has(KEYS[2])
    os.utime(path_of(cache, KEYS[2]), ns=(used, used))  # as on a disk that keeps no times
    assert not cache.store(KEYS[4], features())
    assert kept(cache) == [0, 2, 3]


def test_the_running_total_is_what_a_scan_finds(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:4], [LONG_AGO + x for x in (1, 2, 3, 4)])
    cache = FeatureCache(tmp_path, 5 * size)
    cache._credit = 10**9  # no scan is due
    for key, n, left in [(KEYS[4], 0, 5), (KEYS[5], size, 4), (KEYS[5], 0, 4), (KEYS[6], 0, 5), (KEYS[7], 0, 5)]:
        tensors = {"x": torch.zeros(n, dtype=torch.uint8)} if n else features()
        assert cache.store(key, tensors)
        assert cache._total == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) <= 5 * size
        assert len(kept(cache)) == left, key


def test_sharers_notice_what_the_others_store(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:1], [LONG_AGO])
    sharers = [FeatureCache(tmp_path, 100 * size) for _ in range(3)]
    for i in range(100):
        for worker, cache in enumerate(sharers):
            cache.store(digest(worker, i), features())
    assert 99 * size <= sharers[0].used() <= 100 * size


def test_a_use_is_written_down_once_per_process(cache: FeatureCache) -> None:
    fill(cache.folder, KEYS[:1], [LONG_AGO])
    cache.load(KEY)
    assert path_of(cache).stat().st_mtime > LONG_AGO + 1
    os.utime(path_of(cache), (LONG_AGO, LONG_AGO))
    cache.load(KEY)
    assert path_of(cache).stat().st_mtime == pytest.approx(LONG_AGO, abs=1)
    FeatureCache(cache.folder, 0).load(KEY)
    assert path_of(cache).stat().st_mtime > LONG_AGO + 1


def test_nothing_is_removed_for_an_entry_that_cannot_fit(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:2], [LONG_AGO, LONG_AGO + 1])
    cache = FeatureCache(tmp_path, 2 * size)
    assert not cache.store(KEYS[2], {"x": torch.zeros(2 * size)})
    assert kept(cache) == [0, 1]
    assert cache.store(KEYS[1], features(seed=1))  # in place of itself
    assert kept(cache) == [0, 1]
    assert_same(cache.load(KEYS[1]), features(seed=1))
    os.utime(path_of(cache, KEYS[1]), (LONG_AGO, LONG_AGO))
    assert not cache.store(KEYS[2], {"x": torch.zeros(size // 4)})  # a bit more than the one that may go
    assert kept(cache) == [0, 1]


def test_limit_zero_keeps_nothing_and_removes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, KEYS[:1], [LONG_AGO])
    cache = FeatureCache(tmp_path, 0)
    assert not cache.store(KEYS[1], features())
    assert kept(cache) == [0]


def test_files_of_others_are_not_counted_nor_removed(tmp_path: Path) -> None:
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


def test_the_folder_is_scanned_seldom_while_there_is_room(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = 0
    scan = FeatureCache._scan

    def counted(self: FeatureCache) -> None:
        nonlocal scans
        scans += 1
        scan(self)

    monkeypatch.setattr(FeatureCache, "_scan", counted)
    tensors = {"x": torch.ones(250)}
    assert all(cache.store(digest(i), tensors) for i in range(100))
    assert scans == 0
    entry = cache.used() // 100
    cache.limit = 200 * entry
    cache.used()
    assert sum(cache.store(digest(i), tensors) for i in range(100, 150)) == 50
    assert scans < 20
    assert sum(cache.store(digest(i), tensors) for i in range(150, 220)) == 50
    assert cache.used() == 200 * entry


def test_a_full_disk_is_one_line_and_loses_nothing(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(KEY, features())

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(PolyadicError) as caught:
            cache.store(KEYS[1], {"x": torch.zeros(300_000)})
    message = str(caught.value)
    assert message == (
        f"FeatureCache: cannot write 1.2 MB to {cache.folder} (No space left on device); free some space, or set a "
        "lower limit or choose another folder; earlier entries are kept"
    )
    assert files(cache) == [path_of(cache).name]
    assert_same(cache.load(KEY), features())


FULL = """
import sys, torch
from pathlib import Path
from polyadic import PolyadicError
from polyadic.cache import FeatureCache, digest
cache = FeatureCache(Path(sys.argv[1]), 10**9)
entry = {"x": torch.arange(5_000.0)}
assert cache.store(digest(0), entry)
for i in range(1, 30):
    try:
        cache.store(digest(i), entry)
    except PolyadicError as error:
        assert "No space left on device" in str(error), error
        break
else:
    raise SystemExit("never full")
assert i > 2 and all(torch.equal(cache.load(digest(j))["x"], entry["x"]) for j in range(i))
assert not cache.has(digest(i)) and not list(cache.folder.rglob("*.part"))
print("survived")
"""


def test_a_disk_that_is_really_full_loses_nothing(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=256k none "$0" && exec "$@"'
    tiny = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(tmp_path)]  # seen by itself only
    if not shutil.which("unshare") or subprocess.run([*tiny, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs a private mount")
    command = [*tiny, sys.executable, "-c", FULL, str(tmp_path / "cache")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == "survived\n", done.stderr


def test_a_mapped_entry_outlives_its_file(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    entry = cache.load(KEY)
    cache.store(KEY, features(seed=1))
    path_of(cache).unlink()
    assert_same(entry, features())


def test_writers_of_one_key_do_no_damage(cache: FeatureCache) -> None:
    def work(seed: int) -> int:
        mine = FeatureCache(cache.folder, 10**9)
        for _ in range(20):
            assert mine.store(KEY, features(seed=seed % 2))
            got = mine.load(KEY)
            assert got is not None
            assert_same(got, features(seed=int(not torch.equal(got["index"], features()["index"]))))
        return seed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
    assert files(cache) == [path_of(cache).name]
    assert cache.used() == path_of(cache).stat().st_size


def test_an_entry_that_is_replaced_while_it_is_read_is_read_again(
    cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FeatureCache(cache.folder, 10**9)
    other.store(KEY, features())

    def replaced(key: str, tensors: dict[str, Tensor]) -> str:
        monkeypatch.undo()
        other.store(key, features(seed=1))
        return "of a mixture"

    monkeypatch.setattr("polyadic.cache._checksum", replaced)
    assert_same(cache.load(KEY), features(seed=1))


def test_sharers_of_a_full_folder_tolerate_vanishing_files(tmp_path: Path) -> None:
    size = fill(tmp_path, KEYS[:1], [LONG_AGO])

    def work(worker: int) -> int:
        mine = FeatureCache(tmp_path, 6 * size)
        for i in range(25):
            mine.store(digest(worker, i), features())
            mine.load(digest(1 - worker, i))
            mine._mine.clear()  # as if each were a new run
            mine.opened = time.time() + 1
        return worker

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [0, 1]
    assert FeatureCache(tmp_path, 0).used() <= 7 * size  # one more for each that looked at the same time


def test_a_pickled_cache_belongs_to_the_same_run_and_checks_for_itself(cache: FeatureCache) -> None:
    cache.store(KEY, features())
    cache.load(KEY)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.folder, copy.limit, copy.opened) == (cache.folder, cache.limit, cache.opened)
    flip(path_of(cache))
    with pytest.warns(PolyadicWarning, match="wrong checksum"):
        assert copy.load(KEY) is None


@pytest.mark.parametrize("limit", [-1, 1.5, None, "20 GB"])
def test_a_wrong_limit_is_told(tmp_path: Path, limit: Any, unchecked: None) -> None:
    with pytest.raises(PolyadicError, match="limit must be a whole number of bytes from 0 up"):
        FeatureCache(tmp_path, limit)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolyadicError, match="file is not a folder that can be read"):
        FeatureCache(tmp_path / "file", 1)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "ABCDEF0123456789", KEY + "/", KEY + "\n"])
def test_only_digests_are_keys(cache: FeatureCache, key: str) -> None:
    for use in (cache.has, cache.load, lambda key: cache.store(key, features())):
        with pytest.raises(PolyadicError, match="a key is what digest"):
            use(key)


@pytest.mark.parametrize("bad", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128), [1, 2]])
def test_what_is_no_dense_tensor_is_refused(cache: FeatureCache, bad: Any, unchecked: None) -> None:
    with pytest.raises(PolyadicError, match=r"expected dense tensors|must be a torch tensor"):
        cache.store(KEY, {"x": bad})


NUMBERS = arrays(
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]), array_shapes(min_dims=0, min_side=0, max_side=3)
)
PARTS = st.lists(
    st.one_of(
        st.text(),
        st.binary(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        NUMBERS,
        NUMBERS.map(torch.from_numpy),
    ),
    max_size=4,
)


def told(part: Any) -> tuple[Any, ...]:
    """All that tells a part from another, in plain values."""
    if isinstance(part, np.ndarray | Tensor):
        return type(part), str(part.dtype), tuple(part.shape), np.asarray(part).tobytes()
    return type(part), repr(part)


@given(PARTS, PARTS)
def test_digests_are_equal_just_where_the_parts_are(a: list[Any], b: list[Any]) -> None:
    assert (digest(*a) == digest(*b)) == ([told(x) for x in a] == [told(x) for x in b])
    assert digest(*a) == digest(*pickle.loads(pickle.dumps(a)))


DIFFERENT: list[tuple[Any, ...]] = [
    *((), ("",), ("", ""), (b"",), ("ab", "c"), ("a", "bc"), ("abc",), (b"abc",)),
    *(("1",), (1,), (1.0,), (True,), (-1,), (0.0,), (-0.0,)),
    *((np.zeros((2, 3)),), (np.zeros((3, 2)),), (np.zeros(6),), (np.zeros(6, np.float32),), (np.zeros(6, np.int64),)),
    *((torch.zeros(6),), (torch.zeros(6).half(),), (torch.zeros(6).bfloat16(),), (torch.zeros(6).int(),)),
    *((torch.zeros(0, 3),), (torch.zeros(3, 0),), (torch.zeros(()),), (torch.zeros(1),)),
    *((torch.tensor([1j]),), (torch.tensor([1j]).conj(),)),
]


def test_types_shapes_and_borders_count() -> None:
    assert len({digest(*parts) for parts in DIFFERENT}) == len(DIFFERENT)


def test_a_digest_is_the_same_on_every_machine_and_for_every_layout() -> None:
    by_hand = b"str 3\nnet" + b"bytes 1\n\x00" + b"int 2\nff" + b"float 8\n" + bytes.fromhex("000000000000e03f")
    by_hand += b"array int16 (1, 2) 4\n" + b"\x02\x01\x00\x00" + b"tensor torch.bfloat16 (1,) 2\n" + b"\x80\x3f"
    parts = ("net", b"\x00", 255, 0.5, np.array([[258, 0]], np.int16), torch.ones(1, dtype=torch.bfloat16))
    assert digest(*parts) == hashlib.blake2b(by_hand, digest_size=20).hexdigest()
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    assert digest(values) == digest(values.astype("<f4")) == digest(np.asfortranarray(values))
    tensor = torch.arange(6.0).view(2, 3)
    assert digest(tensor) == digest(tensor.T.contiguous().T.requires_grad_())
    assert digest(10**5_000) != digest(10**5_000 + 1)


@pytest.mark.parametrize("bad", [None, [1], np.array(["a"]), np.array([object()]), torch.eye(2).to_sparse()])
def test_parts_without_stable_bytes_are_refused(bad: Any, unchecked: None) -> None:
    with pytest.raises(PolyadicError, match="digest: parts must be"):
        digest("x", bad)


def test_the_announcement_says_what_fits(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, 20_000_000_000)
    assert announce(1_227, 1_140_000, cache) == "features of 1,227 images: 1.4 GB; limit 20 GB"
    assert announce(1_227, 1_140_000, cache, 300) == (
        "features of 1,227 images: 1.4 GB, of which 342 MB are there; limit 20 GB"
    )
    cache.limit = 1_000_000_000
    assert announce(1_227, 1_140_000, cache).endswith("limit 1 GB: 350 images will be computed anew each epoch")
    assert announce(10, 100_000_000, cache).endswith("; limit 1 GB")  # to the last byte
    cache.limit = 0
    assert announce(1_227, 1_140_000, cache).endswith("limit 0 B: 1,227 images will be computed anew each epoch")


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_960, "1 MB"),
        (1_440_000_000, "1.4 GB"),
        (2 * 10**15, "2000 TB"),
    ],
)
def test_sizes_are_for_people(n: int, text: str) -> None:
    assert in_bytes(n) == text
