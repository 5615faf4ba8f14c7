from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_cases import KEY, KEYS, LONG_AGO, assert_same, features, files, path_of

from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.region_cache import FeatureCache, digest


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
from polyadic.training.region_cache import FeatureCache, digest
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
