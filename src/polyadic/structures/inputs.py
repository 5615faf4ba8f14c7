"""Check files before they are opened: a pipe, a device or a socket may block for ever, or never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from polyadic.structures.vocabulary import PolyadicError


def regular_file(path: Path) -> Path:
    """Return the path; refuse one that is neither a file nor a folder. What is missing is reported by who opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PolyadicError(f"{path} is not a regular file but a pipe, a device or a socket: copy its content to one")
    return path


def existing_file(path: str | Path, what: str = "a file") -> Path:
    """Return the path without `~`, if it is a regular file; `what` names the expected kind in errors."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected {what}")
    if not path.exists():
        raise PolyadicError(f"no file {path}")
    return regular_file(path)
