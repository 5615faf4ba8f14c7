"""What a long job tells while it runs, and how it is asked to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Becomes true at Ctrl-C, or when the system asks to end; the work looks at it between two steps."""

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        if self.asked:
            raise Interrupted

    @contextmanager
    def on_interrupt(self) -> Iterator[Stop]:
        """The first Ctrl-C asks, as do SIGTERM and a closed terminal; a second one does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def ask(number: int, frame: object) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            with suppress(OSError):
                print("stopping after this step ...", file=sys.stderr, flush=True)

        asking = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.signal(number, ask) for number in asking}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the file that is being written in here is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            signal.raise_signal(signal.SIGINT)


def ignore_interrupt(worker: int) -> None:
    """For worker processes: Ctrl-C reaches them as well, but the main process decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
