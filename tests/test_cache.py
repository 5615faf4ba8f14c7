from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_cases import KEY, KEYS, LONG_AGO, assert_same, features, files, path_of
from safetensors.torch import save_file
from torch import Tensor

from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning
from polyadic.training.region_cache import FeatureCache


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
from polyadic.training.region_cache import FeatureCache
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

    monkeypatch.setattr("polyadic.training.region_cache._checksum", replaced)
    assert_same(cache.load(KEY), features(seed=1))


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
