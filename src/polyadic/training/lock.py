"""One process per run: a second one would write over the first one's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyadic.vocabulary import PolyadicError

FILE = ".lock"


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """The system forgets the lock when the process ends, however it ends; where there is no `fcntl`, nobody is kept."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = (folder / FILE).open("w")
    except OSError as error:
        raise PolyadicError(f"cannot write to {folder} ({error.strerror})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PolyadicError(f"{folder}: another process is training in it; wait for it, or stop it") from error
        except OSError:  # a file system without locks
            pass
        yield
