"""Machine code on disk: a damaged file costs one compilation, and nothing else."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from polyadic.compiled import _SealedFiles, compiled


@pytest.fixture(scope="module")
def function(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """A function whose machine code has been stored in __pycache__ beside it."""
    path = tmp_path_factory.mktemp("kernel") / "small_kernel.py"
    path.write_text("def double(x):\n    return 2 * x\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        module = importlib.import_module("small_kernel")
    assert compiled(module.double)(21) == 42
    found: Callable[..., Any] = module.double
    return found


def stored(function: Callable[..., Any], suffix: str) -> Path:
    (path,) = Path(function.__code__.co_filename).parent.glob(f"__pycache__/*.{suffix}")
    return path


def from_disk(function: Callable[..., Any]) -> bool:
    """Use it as a new process would; whether the machine code came from the disk."""
    kernel = compiled(function)
    assert kernel(21) == 42
    return bool(kernel.stats.cache_hits)


def flip(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "no checksum": lambda content: content[:-32],
    "other content": lambda content: b"cos\nsystem\n(S'exit 1'\ntR.",
    "flipped bit": lambda content: flip(content) if len(content) > 5000 else content[:-1] + b"x",
}


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_compiled_again_once(
    function: Callable[..., Any], suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    assert from_disk(function)
    path = stored(function, suffix)
    path.write_bytes(damage(path.read_bytes()))
    assert not from_disk(function)
    assert from_disk(function)


def test_a_disk_without_room_for_machine_code_is_no_error(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stored(function, "nbc").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(_SealedFiles, "_open_for_write", full)
        assert not from_disk(function)
    assert not from_disk(function)
    assert from_disk(function)


def test_a_change_of_another_file_in_the_folder_compiles_again(function: Callable[..., Any]) -> None:
    """It may define a function that was inlined here."""
    assert from_disk(function)
    other = Path(function.__code__.co_filename).with_name("other_kernel.py")
    for source in ("x = 1\n", "x = 22\n"):
        other.write_text(source)
        assert not from_disk(function)
        assert from_disk(function)
