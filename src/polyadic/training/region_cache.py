"""Cache region features of the frozen backbone on disk, so that later epochs cost only the heads.

One safetensors file per entry, named by the digest of everything that the features depend on: image, boxes, weights,
precision. Files are written atomically, so runs and processes share a folder without locks. A checksum detects damaged
entries, which are removed and recomputed.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
import warnings
import zlib
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config.schema import PixelsConfig
from polyadic.files import atomic_write
from polyadic.model.backbone import Backbone, prepare_picture
from polyadic.model.features import pool_regions, union_rows
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning
from polyadic.training import ranks
from polyadic.training.budget import check_disk, in_bytes
from polyadic.training.loading import load_batches

_FORMAT = "polyadic.FeatureCache/1"
_ENTRY = re.compile(r"[0-9a-f]{16,}\.safetensors")
_PART = re.compile(r"\.[0-9a-f]{16,}\.safetensors\.\d+\.[0-9a-f]+\.part")  # as `atomic_write` names it
_STALE = 3600  # seconds after which a half-written file has no writer any more

Parts = tuple[float | np.ndarray, ...]  # what an entry depends on beside image, network and precision


def digest(*parts: str | int | float | np.ndarray | Tensor) -> str:
    """Compute a key, equal for equal parts on every machine; types, dtypes, shapes and part boundaries count.

    >>> digest("ab", "c") == digest("a", "bc"), digest(1) == digest(1.0)
    (False, False)
    """
    key = hashlib.blake2b(digest_size=20)
    for part in parts:
        kind, data = _encode(part)
        key.update(f"{kind} {len(data)}\n".encode())
        key.update(data)
    return key.hexdigest()


def _encode(part: str | int | float | np.ndarray | Tensor) -> tuple[str, bytes | memoryview]:
    """Describe a part in one line, and return its bytes."""
    if isinstance(part, str):
        return "str", part.encode("utf-8", "surrogatepass")
    if isinstance(part, int):
        return type(part).__name__, format(part, "x").encode()  # True is not 1
    if isinstance(part, float):
        return "float", struct.pack("<d", part)
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufc":
        little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
        return f"array {part.dtype.name} {part.shape}", little.reshape(-1).view(np.uint8).data
    if isinstance(part, Tensor):
        return f"tensor {part.dtype} {tuple(part.shape)}", _bytes(part.detach().cpu())
    raise PolyadicError(f"digest: expected text, numbers, numeric arrays or tensors, got {type(part).__name__}")


@dataclass(eq=False)
class FeatureCache:
    """Store tensors by key in a folder, at most `limit` bytes; the least recently used entries are evicted.

    Entries used since `opened` are never evicted, so a run and its workers keep what they need.
    """

    folder: Path
    limit: int  # bytes; 0 stores nothing
    opened: float = field(default_factory=time.time)
    _touched: set[str] = field(default_factory=set, init=False, repr=False)  # keys used by this process
    _checked: set[str] = field(default_factory=set, init=False, repr=False)
    _total: int = field(default=0, init=False, repr=False)  # bytes at the last scan, and stored since
    _stored: int = field(default=0, init=False, repr=False)  # bytes since the last scan
    _idle: list[tuple[float, int, Path]] = field(default_factory=list, init=False, repr=False)  # evictable

    def __post_init__(self) -> None:
        self._scan()

    def has(self, key: str) -> bool:
        """Whether there is an entry, intact or not."""
        exists = self._path(key).is_file()
        if exists:
            self._touch(key)
        return exists

    def load(self, key: str, rows: Mapping[str, Int[Tensor, " _"]] | None = None) -> dict[str, Tensor] | None:
        """Return the tensors, memory-mapped, or None; `rows` selects rows of some tensors.

        The first load of an entry reads all of it to verify its checksum. A damaged entry is removed with a warning.
        """
        path = self._path(key)
        try:
            tensors = _read(path, key, check=key not in self._checked)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            with suppress(OSError):
                path.unlink()
            warnings.warn(f"feature cache: {path} is damaged ({error}); recomputing it", PolyadicWarning, stacklevel=2)
            return None
        self._checked.add(key)
        self._touch(key)
        return tensors | {name: tensors[name][index] for name, index in (rows or {}).items()}

    def store(self, key: str, tensors: Mapping[str, Tensor]) -> bool:
        """Store the tensors; return False if they do not fit."""
        if self.limit == 0:
            return False
        path, data = self._path(key), _serialise(key, tensors)
        if not self._make_room(len(data)):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as part:
                part.write_bytes(data)  # no fsync: the checksum detects what a power cut leaves
        except OSError as error:
            raise PolyadicError(
                f"feature cache: cannot write {in_bytes(len(data))} to {self.folder} ({error.strerror}); free some "
                "space, lower cache.gigabytes or choose another cache.folder; earlier entries are kept"
            ) from error
        self._total += len(data)
        self._stored += len(data)
        self._touched.add(key)
        self._checked.discard(key)
        return True

    def used(self) -> int:
        """Count the bytes on disk now, including those of other processes."""
        self._scan()
        return self._total

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def _touch(self, key: str) -> None:
        if key not in self._touched:
            self._touched.add(key)
            with suppress(OSError):  # another user's file, or gone
                os.utime(self._path(key))

    def _make_room(self, need: int) -> bool:
        """Evict idle entries until `need` more bytes fit; evict nothing if that would not suffice."""
        if (self._total + need > self.limit and not self._idle) or self._stored > self.limit // 50:
            self._scan()
        excess = self._total + need - self.limit
        if excess > sum(size for _, size, _ in self._idle):
            return False
        while excess > 0 and self._idle:
            used, size, path = self._idle.pop(0)
            with suppress(OSError):
                if path.stem in self._touched or path.stat().st_mtime != used:
                    continue  # used since the scan
                path.unlink()
            self._total -= size
            excess -= size
        return excess <= 0

    def _scan(self) -> None:
        """Count the bytes, sweep what killed writers left, and list evictable entries, oldest first."""
        self._total = self._stored = 0
        self._idle = []
        for path, status in self._files():
            if _ENTRY.fullmatch(path.name):
                self._total += status.st_size
                if status.st_mtime < self.opened and path.stem not in self._touched:
                    self._idle.append((status.st_mtime, status.st_size, path))
            elif _PART.fullmatch(path.name) and status.st_mtime < time.time() - _STALE:
                path.unlink(missing_ok=True)
        self._idle.sort()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            groups = [group.path for group in os.scandir(self.folder) if len(group.name) == 2 and group.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise PolyadicError(
                f"feature cache: cannot read the folder {self.folder} ({error.strerror}); choose another cache.folder"
            ) from error
        for group in groups:
            for file in os.scandir(group):
                with suppress(FileNotFoundError):
                    yield Path(file.path), file.stat()


def announce(entries: int, bytes_per_entry: int, cache: FeatureCache, present: int = 0, what: str = "features") -> str:
    """Say before the work how much space the features need and whether they fit.

    >>> announce(1227, 1_140_000, FeatureCache(Path("features"), 20_000_000_000), present=263)
    'features of 1,227 images: 1.4 GB, of which 299.8 MB are cached; limit 20 GB'
    """
    line = f"{what} of {entries:,} images: {in_bytes(entries * bytes_per_entry)}"
    if present:
        line += f", of which {in_bytes(present * bytes_per_entry)} are cached"
    line += f"; limit {in_bytes(cache.limit)}"
    over = entries - cache.limit // max(1, bytes_per_entry)
    return f"{line}: {over:,} images will be recomputed in each epoch" if over > 0 else line


def _serialise(key: str, tensors: Mapping[str, Tensor]) -> bytes:
    copies = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}
    return save(copies, {"format": _FORMAT, "checksum": _checksum(key, copies)})


def _read(path: Path, key: str, *, check: bool) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    if check and metadata.get("format") != _FORMAT:
        raise ValueError(f"not an entry of {_FORMAT}")
    if check and metadata.get("checksum") != _checksum(key, tensors):
        raise ValueError("wrong checksum")
    return tensors


def _checksum(key: str, tensors: Mapping[str, Tensor]) -> str:
    """Compute a CRC of names, dtypes, shapes and bytes; with the key, so that a renamed file is detected."""
    value = zlib.crc32(key.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(_bytes(tensor), value)
    return f"{value:08x}"


def _bytes(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")  # an empty tensor may have stride 0, and then no view
    data: memoryview = tensor.reshape(-1).contiguous().view(torch.uint8).numpy().data
    return data


@dataclass(frozen=True, eq=False)
class Pooled:
    """Features of an image's boxes and of the union boxes of its pairs; or the image, to compute them from."""

    regions: Float[Tensor, "N D"] | None = None
    unions: Float[Tensor, "B E"] | None = None
    picture: UInt8[Tensor, "3 H W"] | None = None


@dataclass(eq=False)
class Entries(ABC):
    """Look up what a network makes of images. Sent to worker processes, which read the cache but never run it."""

    what: ClassVar[str]  # is stored
    smaller: ClassVar[str]  # config keys whose lower values make it smaller
    pixels: PixelsConfig
    cache: FeatureCache
    fingerprint: str  # of the network
    precision: torch.dtype
    digests: dict[str, str] = field(default_factory=dict)  # of the images, by name
    full: bool = False  # nothing more fits into the cache

    def entry(self, scene: Scene, *parts: float | np.ndarray) -> str:
        """Compute the key of an image's entry, which depends on these parts too."""
        if scene.name not in self.digests:
            self.digests[scene.name] = scene.digest()
        return digest(self.digests[scene.name], *parts, self.fingerprint, str(self.precision))


@dataclass(eq=False)
class Regions(Entries):
    """Look up region features."""

    what = "features"
    smaller = "pixels.pool or pixels.strides"

    def key(self, scene: Scene, boxes: Float[np.ndarray, "N 4"]) -> str:
        return self.entry(scene, boxes, *scene.frame)

    def find(self, scene: Scene, boxes: Float[np.ndarray, "N 4"], pairs: Int[Tensor, "B 2"], kept: bool) -> Pooled:
        """Return cached features or the image; `kept` says whether features of these boxes may be in the cache."""
        if kept and self.cache.limit:
            features = self.cache.load(self.key(scene, boxes), {"unions": union_rows(pairs, len(boxes))})
            if features is not None:
                return Pooled(features["regions"], features["unions"])
        return Pooled(picture=prepare_picture(scene.open(), self.pixels))

    def compute(
        self, backbone: Backbone, picture: UInt8[Tensor, "3 H W"], boxes: Float[np.ndarray, "N 4"], scene: Scene
    ) -> tuple[Tensor, Tensor]:
        """Compute the features of the boxes and of the union boxes of all pairs."""
        corners = torch.from_numpy(boxes).float()
        return pool_regions(backbone, picture, corners, scene.frame, self.precision)


class _Missing(Dataset[tuple[str, "Tensor | None"]]):
    """Images without an entry in the cache, read by the workers."""

    def __init__(self, entries: Entries, scenes: Sequence[Scene], parts: Sequence[Parts]) -> None:
        self.entries, self.scenes, self.parts = entries, scenes, parts

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> tuple[str, Tensor | None]:
        scene = self.scenes[at]
        picture = scene.digest()
        self.entries.digests[scene.name] = picture
        if self.entries.cache.has(self.key(at)):
            return picture, None
        return picture, prepare_picture(scene.open(), self.entries.pixels)

    def key(self, at: int) -> str:
        return self.entries.entry(self.scenes[at], *self.parts[at])


def fill(
    regions: Regions,
    backbone: Backbone,
    scenes: Sequence[Scene],
    boxes: Sequence[Float[np.ndarray, "_ 4"]],
    workers: int,
) -> None:
    """Compute the region features that the cache lacks."""
    if not scenes:
        return

    def compute(at: int, picture: Tensor) -> dict[str, Tensor]:
        inside, unions = regions.compute(backbone, picture, boxes[at], scenes[at])
        return {"regions": inside, "unions": unions}

    parts = [(rows, *scene.frame) for scene, rows in zip(scenes, boxes, strict=True)]
    per_image = round(2 * sum(_numbers(backbone, len(rows)) for rows in boxes) / len(boxes))  # two bytes each
    fill_entries(regions, scenes, parts, compute, per_image=per_image, workers=workers)


def fill_entries(
    entries: Entries,
    scenes: Sequence[Scene],
    parts: Sequence[Parts],
    compute: Callable[[int, Tensor], dict[str, Tensor]],
    *,
    per_image: int,
    workers: int,
) -> None:
    """Compute the entries that the cache lacks, of about so many bytes. An interruption loses none of those stored.

    Of several processes that see the same folder, each computes those of its own images.
    """
    if not entries.cache.limit or entries.full or not scenes:
        return
    place, among = ranks.share_of_disk(entries.cache.folder)
    with progress.held(False):
        _fill(_Missing(entries, scenes, parts), range(place, len(scenes), among), compute, per_image, workers)
    entries.full = any(ranks.gather(entries.full))


def _fill(
    images: _Missing,
    mine: range,
    compute: Callable[[int, Tensor], dict[str, Tensor]],
    per_image: int,
    workers: int,
) -> None:
    entries, cache, what = images.entries, images.entries.cache, images.entries.what
    present = sum(cache.has(images.key(at)) for at in mine if images.scenes[at].name in entries.digests)
    if present == len(mine):
        return
    announced, pictures = False, load_batches(images, [[at] for at in mine], workers)
    for n, ((picture_digest, picture),) in enumerate(progress.track(pictures, what, len(mine))):
        at = mine[n]
        entries.digests[images.scenes[at].name] = picture_digest
        if picture is not None and not entries.full:
            if not announced:
                missing_bytes = min((len(mine) - max(present, n)) * per_image, cache.limit)
                check_disk(cache.folder, missing_bytes, f"{what} (less with a lower cache.gigabytes)")
                progress.say(announce(len(mine), per_image, cache, max(present, n), what))
                announced = True
            entries.full = not cache.store(images.key(at), compute(at, picture))
    if entries.full:
        warnings.warn(
            f"the feature cache is full ({cache.folder}): the other {what} are recomputed in each epoch; "
            f"raise cache.gigabytes, or reduce {entries.smaller}",
            PolyadicWarning,
            stacklevel=2,
        )


def _numbers(backbone: Backbone, n: int) -> int:
    """Count the numbers stored for an image of n boxes, union boxes included."""
    total: int = n * backbone.box_width + n * (n - 1) // 2 * backbone.width
    return total
