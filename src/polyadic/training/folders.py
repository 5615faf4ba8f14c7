"""The folder of a run: new, or one that is gone on in as it was."""

from __future__ import annotations

from pathlib import Path

from polyadic.config import difference, value_at
from polyadic.config.settings import Settings
from polyadic.vocabulary import PolyadicError


def check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolyadicError(
            f"{folder} exists already: go on in it with --resume, or choose another folder (--overwrite begins anew)"
        )


def check_same(config: Settings, before: Settings, folder: Path, free: tuple[str, ...]) -> None:
    """Keys that start with a word of `free` may differ when a run is resumed."""
    for key in difference(config, before, free):
        raise PolyadicError(
            f"{folder} was started with {key} = {value_at(before, key)!r}, not {value_at(config, key)!r}: "
            "resume it as it was, or start another run"
        )


def config_path(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise PolyadicError(f"{folder} is not a run: it has no config.json")
    return path
