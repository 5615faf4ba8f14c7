"""Functions for worker processes that load nothing heavy."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from polyadic.structures.vocabulary import PolyadicError


def squares() -> Callable[[int], int]:
    return lambda n: n * n


def failing() -> Callable[[int], int]:
    raise PolyadicError("no such model")


def dying(fatal: int, marker: str) -> Callable[[int], int]:
    """Squares; the process is killed at the number `fatal`, only once if there is a marker."""

    def square(n: int) -> int:
        if n == fatal and not (marker and Path(marker).exists()):
            if marker:
                Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n * n

    return square
