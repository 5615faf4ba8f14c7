"""What a long job tells while it runs, and how it is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: a progress bar, a log, a test."""

    def say(self, line: str) -> None:
        """One line for people."""

    def begin(self, text: str, total: int) -> None:
        """A piece of work of `total` steps starts."""

    def move(self, done: int, **numbers: float) -> None:
        """So many steps are done; numbers of the moment, such as the loss."""

    def end(self) -> None:
        """The piece of work is over."""


class Silent:
    """Looks away."""

    def say(self, line: str) -> None:
        pass

    def begin(self, text: str, total: int) -> None:
        pass

    def move(self, done: int, **numbers: float) -> None:
        pass

    def end(self) -> None:
        pass


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C at a place where nothing is lost."""


class Stop:
    """Becomes true at Ctrl-C; the work looks at it between two steps."""

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        if self.asked:
            raise Interrupted

    @contextmanager
    def on_interrupt(self) -> Iterator[Stop]:
        """The first Ctrl-C asks; a second one does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def ask(number: int, frame: object) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


def ignore_interrupt(worker: int) -> None:
    """For worker processes: Ctrl-C reaches them as well, but the main process decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
