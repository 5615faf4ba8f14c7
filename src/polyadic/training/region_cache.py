"""Region features of a frozen backbone, kept on disk: computed once, so that later epochs cost only the heads.

One safetensors file per entry, named by the digest of all that the features depend on: picture, boxes, weights, code.
A file is written under another name, then renamed: readers see it whole or not at all, and runs and processes share a
folder without locks. What breaks later is found by its checksum and made anew.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import struct
import time
import warnings
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config.schema import PixelsConfig
from polyadic.cp import require_tensor
from polyadic.files import atomic_write
from polyadic.model.backbone import Backbone, prepare_picture
from polyadic.model.features import pool_regions, union_rows
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning
from polyadic.training.loading import load_batches

_FORMAT = "polyadic.FeatureCache/1"
_KEY = re.compile(r"[0-9a-f]{16,128}")
_FILE = re.compile(rf"({_KEY.pattern})\.safetensors|\.{_KEY.pattern}(?:\.safetensors)?\.\d+\.[0-9a-f]+\.part")
_STALE = 3600  # seconds after which a half-written file has no writer any more
_SHARERS = 16  # so many processes stay below the limit together; see _scan


def digest(*parts: str | bytes | int | float | np.ndarray | Tensor) -> str:
    """A key: equal for equal parts, on every machine; types, dtypes, shapes and borders between parts count.

    >>> digest("ab", "c") == digest("a", "bc"), digest(1) == digest(1.0)
    (False, False)
    """
    key = hashlib.blake2b(digest_size=20)
    for part in parts:
        kind, data = _encode(part)
        key.update(f"{kind} {len(data)}\n".encode())
        key.update(data)
    return key.hexdigest()


class _File(NamedTuple):
    used: int  # mtime in ns
    size: int
    path: str
    key: str | None  # None while it is half written


@dataclass(eq=False)
class FeatureCache:
    """A folder of entries, at most `limit` bytes: before it is exceeded, the least recently used ones go.

    Entries that were used since `opened` stay: a run, its workers included, never removes what it needs itself. To
    ask for an entry is to use it. A pickled copy belongs to the same run. Not for several threads at once.
    """

    folder: Path
    limit: int  # bytes; 0 keeps nothing
    opened: float = field(default_factory=time.time)
    _mine: set[str] = field(default_factory=set, init=False, repr=False)  # keys used by this process
    _checked: set[str] = field(default_factory=set, init=False, repr=False)
    _idle: deque[_File] = field(default_factory=deque, init=False, repr=False)  # may go, oldest first
    _total: int = field(default=0, init=False, repr=False)  # bytes, as far as this process knows
    _credit: int = field(default=0, init=False, repr=False)  # bytes until the next scan

    def __post_init__(self) -> None:
        if not isinstance(self.limit, int) or self.limit < 0:
            raise PolyadicError(f"FeatureCache: the limit must be a whole number of bytes from 0 up, got {self.limit}")
        self.folder = Path(self.folder)
        self._scan()

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path, int, float]]:
        return FeatureCache, (self.folder, self.limit, self.opened)

    def has(self, key: str) -> bool:
        """Whether there is an entry, sound or not."""
        there = self._path(key).is_file()
        if there:
            self._use(key)
        return there

    def load(self, key: str, rows: Mapping[str, Int[Tensor, " _"]] | None = None) -> dict[str, Tensor] | None:
        """The tensors, mapped into memory, or None: then compute and `store` them. `rows` picks some of a tensor.

        The first time it is read whole, for its checksum; later only the rows asked for. A broken entry is removed.
        """
        path = self._path(key)
        try:
            with path.open("rb") as file:  # safe_open would call each failure "not found"
                entry = _read(path, key, check=key not in self._checked)
                if isinstance(entry, str) and not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return self.load(key, rows)  # replaced while it was read: safe_open opens the path twice
        except FileNotFoundError:
            return None
        except (PermissionError, IsADirectoryError) as error:
            entry = f"cannot be read ({error.strerror})"
        except OSError as error:  # too many open files and the like: not the entry's fault
            raise PolyadicError(f"FeatureCache: cannot read {path} ({error}); see ulimit -n and the disk") from error
        if isinstance(entry, str):
            self._discard(path, entry)
            return None
        self._checked.add(key)
        self._use(key)
        return entry | {name: _pick(entry, name, index) for name, index in (rows or {}).items()}

    def store(self, key: str, tensors: Mapping[str, Tensor]) -> bool:
        """Keep the tensors; False when they do not fit beside the entries that must stay."""
        path = self._path(key)
        if self.limit == 0:
            return False
        data = _serialise(key, tensors)
        growth = len(data)
        with suppress(OSError):
            growth -= path.stat().st_size
        if not self._make_room(growth):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as part:
                part.write_bytes(data)  # no fsync: the checksum finds what a power cut leaves
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            raise PolyadicError(
                f"FeatureCache: cannot write {in_bytes(len(data))} to {self.folder} ({error.strerror}); "
                + ("free some space, or set a lower limit" if full else "make it writable")
                + " or choose another folder; earlier entries are kept"
            ) from error
        self._total += growth
        self._mine.add(key)
        self._checked.discard(key)
        return True

    def used(self) -> int:
        """Bytes on disk now, those of other processes included."""
        self._scan()
        return self._total

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise PolyadicError(f"FeatureCache: a key is what digest(...) returns, got {key!r:.60}")
        return self.folder / key[:2] / f"{key}.safetensors"

    def _use(self, key: str) -> None:
        if key not in self._mine:
            self._mine.add(key)
            with suppress(OSError):  # somebody else's file, or gone
                os.utime(self._path(key))

    def _discard(self, path: Path, reason: str) -> None:
        try:
            path.unlink(missing_ok=True)
            outcome = "removed, to be made anew"
        except OSError as error:
            outcome = f"and cannot be removed ({error.strerror}): remove it by hand"
        warnings.warn(f"FeatureCache: {path} {reason}; {outcome}", PolyadicWarning, stacklevel=3)

    def _make_room(self, need: int) -> bool:
        """Remove idle entries until `need` more bytes fit; nothing is removed when that would not help."""
        if need > self._credit:
            self._scan()
        self._credit -= need
        excess = self._total + need - self.limit
        if excess > 0 and excess > sum(file.size for file in self._idle):
            return False
        while excess > 0 and self._idle:
            used, size, path, key = self._idle.popleft()
            try:
                if key in self._mine or os.stat(path).st_mtime_ns != used:
                    continue  # used since the scan
                os.unlink(path)
            except FileNotFoundError:
                pass  # another process was quicker
            except OSError:
                continue
            self._total -= size
            excess -= size
        return excess <= 0

    def _scan(self) -> None:
        """Count what is there, sweep what killed writers left, and list what may go.

        The next scan is due when this process has stored its share of the room left, so that sharers cannot fill it
        unseen; near the limit it is due after a thousandth of it.
        """
        self._total, idle = 0, []
        dead, before = (time.time() - _STALE) * 1e9, self.opened * 1e9
        for file in self._files():
            if file.key is None and file.used < dead:
                with suppress(OSError):
                    os.unlink(file.path)
                continue
            self._total += file.size
            if file.key is not None and file.used < before and file.key not in self._mine:
                idle.append(file)
        self._idle = deque(sorted(idle))
        self._credit = max((self.limit - self._total) // _SHARERS, self.limit // 1000)

    def _files(self) -> Iterator[_File]:
        """Entries and half-written files; files of others are none of our business."""
        try:
            with os.scandir(self.folder) as folders:
                groups = [group.path for group in folders if len(group.name) == 2 and group.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise PolyadicError(
                f"FeatureCache: {self.folder} is not a folder that can be read ({error.strerror}); choose another"
            ) from error
        for group in groups:
            with suppress(OSError), os.scandir(group) as files:
                for file in files:
                    if match := _FILE.fullmatch(file.name):
                        with suppress(FileNotFoundError):
                            status = file.stat()
                            yield _File(status.st_mtime_ns, status.st_size, file.path, match[1])


def announce(entries: int, bytes_per_entry: int, cache: FeatureCache, present: int = 0) -> str:
    """One line for people, before the work: what the features will take, and whether they fit.

    >>> announce(1227, 1_140_000, FeatureCache(Path("features"), 20_000_000_000), present=263)
    'features of 1,227 images: 1.4 GB, of which 299.8 MB are there; limit 20 GB'
    """
    line = f"features of {entries:,} images: {in_bytes(entries * bytes_per_entry)}"
    if present:
        line += f", of which {in_bytes(present * bytes_per_entry)} are there"
    line += f"; limit {in_bytes(cache.limit)}"
    over = entries - cache.limit // max(1, bytes_per_entry)
    return f"{line}: {over:,} images will be computed anew each epoch" if over > 0 else line


def in_bytes(n: int) -> str:
    """A size for people: "1.4 GB"."""
    size, unit = float(n), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def _encode(part: str | bytes | int | float | np.ndarray | Tensor) -> tuple[str, bytes | memoryview]:
    """What a part is, in one line, and its bytes in little-endian order."""
    if isinstance(part, str):
        return "str", part.encode("utf-8", "surrogatepass")
    if isinstance(part, bytes):
        return "bytes", part
    if isinstance(part, int):
        return type(part).__name__, format(part, "x").encode()  # True is not 1
    if isinstance(part, float):
        return "float", struct.pack("<d", part)
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufc":
        little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
        return f"array {part.dtype.name} {part.shape}", little.reshape(-1).view(np.uint8).data
    if isinstance(part, Tensor) and part.layout == torch.strided:
        flat = part.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        bits = flat.contiguous().view(whole).numpy()
        little = np.ascontiguousarray(bits, bits.dtype.newbyteorder("<"))
        return f"tensor {part.dtype} {tuple(part.shape)}", little.view(np.uint8).data
    got = f"{part.dtype} array" if isinstance(part, np.ndarray) else type(part).__name__
    raise PolyadicError(f"digest: parts must be text, bytes, numbers, arrays or dense tensors of numbers, got {got}")


def _serialise(key: str, tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors import SafetensorError
    from safetensors.torch import save

    dense = {name: require_tensor(tensor, f"FeatureCache: {name}").detach().cpu() for name, tensor in tensors.items()}
    try:
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in dense.items()}
        return save(copies, {"format": _FORMAT, "checksum": _checksum(key, copies)})
    except (KeyError, RuntimeError, SafetensorError) as error:
        kinds = sorted({f"{tensor.dtype} {tensor.layout}" for tensor in dense.values()})
        raise PolyadicError(f"FeatureCache: expected dense tensors that safetensors can hold, got {kinds}") from error


def _read(path: Path, key: str, check: bool) -> dict[str, Tensor] | str:
    """The tensors, or what is wrong with them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        return f"cannot be read ({error})"
    if check and metadata.get("format") != _FORMAT:
        return f"is not an entry of {_FORMAT}"
    if check and metadata.get("checksum") != _checksum(key, tensors):
        return "has a wrong checksum"
    return tensors


def _checksum(key: str, tensors: Mapping[str, Tensor]) -> str:
    """Of names, dtypes, shapes and bytes; with the key, so that a renamed file is found out."""
    value = zlib.crc32(key.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def _pick(tensors: Mapping[str, Tensor], name: str, index: Int[Tensor, " _"]) -> Tensor:
    if name not in tensors:
        raise PolyadicError(f"FeatureCache: rows of {name!r} are asked for, but the entry has {sorted(tensors)}")
    n = len(tensors[name]) if tensors[name].ndim else 0
    if index.dtype != torch.long or bool(((index < 0) | (index >= n)).any()):
        raise PolyadicError(
            f"FeatureCache: rows of {name!r} must be int64 from 0 to {n - 1}, got {index.dtype} {index.tolist()!s:.60}"
        )
    return tensors[name][index]


@dataclass(frozen=True, eq=False)
class Pooled:
    """Features of an image's boxes and of the boxes around the pairs asked for; or its picture, to compute them."""

    regions: Float[Tensor, "N D"] | None = None
    unions: Float[Tensor, "B E"] | None = None
    picture: UInt8[Tensor, "3 H W"] | None = None


@dataclass(eq=False)
class Regions:
    """Where features come from. Travels to worker processes, which read the cache but never run the backbone."""

    pixels: PixelsConfig
    cache: FeatureCache
    fingerprint: str  # of the backbone
    precision: torch.dtype
    digests: dict[str, str] = field(default_factory=dict)  # of the pictures, by name
    full: bool = False  # nothing more fits into the cache

    def key(self, scene: Scene, boxes: Float[np.ndarray, "N 4"]) -> str:
        if scene.name not in self.digests:
            self.digests[scene.name] = scene.digest()
        return digest(self.digests[scene.name], boxes, *scene.frame, self.fingerprint, str(self.precision))

    def find(self, scene: Scene, boxes: Float[np.ndarray, "N 4"], pairs: Int[Tensor, "B 2"], kept: bool) -> Pooled:
        """`kept`: the features of these boxes may be in the cache."""
        if kept and self.cache.limit:
            features = self.cache.load(self.key(scene, boxes), {"unions": union_rows(pairs, len(boxes))})
            if features is not None:
                return Pooled(features["regions"], features["unions"])
        return Pooled(picture=prepare_picture(scene.open(), self.pixels))

    def compute(
        self, backbone: Backbone, picture: UInt8[Tensor, "3 H W"], boxes: Float[np.ndarray, "N 4"], scene: Scene
    ) -> tuple[Tensor, Tensor]:
        corners = torch.from_numpy(boxes).float()
        return pool_regions(backbone, picture, corners, scene.frame, self.precision)


class _Missing(Dataset[tuple[str, "Tensor | None"]]):
    """Pictures whose features are not in the cache, read by the workers."""

    def __init__(self, regions: Regions, scenes: Sequence[Scene], boxes: Sequence[np.ndarray]) -> None:
        self.regions, self.scenes, self.boxes = regions, scenes, boxes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> tuple[str, Tensor | None]:
        scene = self.scenes[at]
        picture = scene.digest()
        self.regions.digests[scene.name] = picture
        if self.regions.cache.has(self.regions.key(scene, self.boxes[at])):
            return picture, None
        return picture, prepare_picture(scene.open(), self.regions.pixels)


def fill(
    regions: Regions,
    backbone: Backbone,
    scenes: Sequence[Scene],
    boxes: Sequence[Float[np.ndarray, "_ 4"]],
    workers: int,
) -> None:
    """Compute what the cache lacks. What has been computed stays, whenever this is interrupted."""
    if not regions.cache.limit or regions.full or not scenes:
        return
    numbers = sum(_numbers(backbone, len(rows)) for rows in boxes)
    per_image = round(2 * numbers / len(boxes))  # two bytes each
    known = [scene.name in regions.digests for scene in scenes]
    present = sum(regions.cache.has(regions.key(s, b)) for s, b, k in zip(scenes, boxes, known, strict=True) if k)
    if present == len(scenes):
        return
    missing, announced = _Missing(regions, scenes, boxes), False
    pictures = load_batches(missing, [[i] for i in range(len(scenes))], workers)
    for at, ((picture_digest, picture),) in enumerate(progress.track(pictures, "features", len(scenes))):
        scene = scenes[at]
        regions.digests[scene.name] = picture_digest
        if picture is not None and not regions.full:
            if not announced:
                progress.say(announce(len(scenes), per_image, regions.cache, max(present, at)))
                announced = True
            inside, unions = regions.compute(backbone, picture, boxes[at], scene)
            stored = regions.cache.store(regions.key(scene, boxes[at]), {"regions": inside, "unions": unions})
            regions.full = not stored
    if regions.full:
        warnings.warn(
            f"the feature cache is full ({regions.cache.folder}): the rest is computed anew in each epoch; "
            "give it more by cache.gigabytes, or keep less by pixels.pool or fewer pixels.strides",
            PolyadicWarning,
            stacklevel=2,
        )


def _numbers(backbone: Backbone, n: int) -> int:
    """How many an image of n boxes has, with the boxes around pairs."""
    total: int = n * (backbone.width + backbone.crop_width) + n * (n - 1) // 2 * backbone.width
    return total
