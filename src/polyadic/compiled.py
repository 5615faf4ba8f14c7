"""Compile kernels with numba and keep the machine code on disk, where a damaged file is compiled again.

numba unpickles and links what it finds in its cache: a truncated file ends in an exception, a flipped bit in LLVM's
abort. Here each file ends in a checksum, and one without the right checksum counts as absent.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile on first use and keep the machine code on disk, or in memory where no folder can be written."""
    if function is None:
        return lambda function: compiled(function, **options)
    try:
        kernel: Any = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        return njit(nogil=True, **options)(function)
    with suppress(AttributeError):  # another numba: its cache works, without checksums
        cache = kernel._cache
        stamp = cache._impl.locator.get_source_stamp(), _stamp(function)
        cache._cache_file = _SealedFiles(cache._cache_path, cache._impl.filename_base, stamp)
    return kernel


def _stamp(function: Callable[..., Any]) -> tuple[tuple[str, int, int], ...]:
    """Describe the state of a function's folder: it may have inlined functions of the other files."""
    files = sorted(Path(function.__code__.co_filename).parent.glob("*.py"))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)


class _SealedFiles(IndexDataCacheFile):
    """numba's files, with a checksum behind each pickle, which unpickling ignores."""

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk: the kernel stays in memory
            super().save(key, data)

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return content + hashlib.sha256(content).digest()

    def _load_index(self) -> Any:
        start = pickle.dumps(self._version, protocol=-1)
        try:
            content = Path(self._index_path).read_bytes()
        except OSError:
            return {}
        return super()._load_index() if content.startswith(start) and _is_whole(content[len(start) :]) else {}

    def _load_data(self, name: str) -> Any:
        if not _is_whole(Path(self._data_path(name)).read_bytes()):
            raise OSError(f"{name} is damaged")  # as if it were absent
        return super()._load_data(name)


def _is_whole(content: bytes) -> bool:
    return hashlib.sha256(content[:-32]).digest() == content[-32:]
