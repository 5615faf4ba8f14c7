"""Show the progress of long jobs, and stop them cleanly at Ctrl-C; escape text on its way to the terminal.

Library code reports by `say` and `track` and may be stopped wherever it calls `check`. Nothing is shown outside
`showing`, and Ctrl-C is an ordinary KeyboardInterrupt outside `interruptible`: the command line enters both.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")

SILENCE = 30.0  # seconds after which a task without a terminal reports where it is


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escape what a terminal may obey or hide: names in files are not trusted. `lines` keeps line breaks.

    >>> printable("a\x1b[2J dog")
    'a\\x1b[2J dog'
    """
    if text.isprintable():
        return text
    return "".join(letter if _is_plain(letter) or (lines and letter == "\n") else repr(letter)[1:-1] for letter in text)


def _is_plain(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def safe_console(**options: Any) -> Console:
    """Create a rich console that escapes all text that it prints, and takes none of it for markup."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *arguments: Any, **more: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*arguments, **more):
                yield Segment(text if control else printable(text, lines=True), style, control)

    return SafeConsole(markup=False, highlight=False, emoji=False, **options)


class Interrupted(KeyboardInterrupt):
    """A stop was requested, and the job ended at a place where no work is lost."""


class Reporter:
    """Receive progress events. This one ignores them; others show them."""

    busy = False  # a task is shown: tasks inside it are not

    def say(self, line: str) -> None:
        """Show one line that stays."""

    def begin(self, text: str, total: int | None) -> None:
        """Start a task of `total` steps."""

    def move(self, done: int, **numbers: float) -> None:
        """Update the task: steps done, and current values such as the loss."""

    def end(self) -> None:
        """Finish the task."""

    def transfer(self, name: str, done: int, total: int | None) -> None:
        """Update one of several downloads, in bytes."""


_SILENT = Reporter()
_reporter: ContextVar[Reporter] = ContextVar("reporter", default=_SILENT)
_stop = threading.Event()
_held: ContextVar[bool] = ContextVar("held", default=False)


def say(line: str) -> None:
    """Show one line."""
    _reporter.get().say(line)


def transfer(name: str, done: int, total: int | None) -> None:
    """Report the bytes of a file that is being downloaded or unpacked."""
    _reporter.get().transfer(name, done, total)


@contextmanager
def task(text: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show a task; call the yielded function with the steps done and, as keywords, current values."""
    reporter = _reporter.get()
    if reporter.busy:
        yield _SILENT.move
        return
    reporter.busy = True
    reporter.begin(text, total)
    try:
        yield reporter.move
    finally:
        reporter.busy = False
        reporter.end()


def track(items: Iterable[T], text: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, show how many are done, and stop between two of them when asked to."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with task(text, total) as move:
        for done, item in enumerate(items, 1):
            check()
            yield item
            move(done)


@contextmanager
def reporting(reporter: Reporter) -> Iterator[None]:
    """Send progress events to this reporter."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)


@contextmanager
def showing() -> Iterator[None]:
    """Show progress on stderr: a bar on a terminal; elsewhere lines, at least one in `SILENCE` seconds of a task."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = safe_console(stderr=True)
    if not console.is_terminal:
        with reporting(_Lines(console)):
            yield
        return
    description = TextColumn("{task.description}", markup=False)  # a file's name may look like markup
    columns = description, BarColumn(20), TextColumn("{task.fields[numbers]}")
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars, reporting(_Bars(bars)):
        yield


class _Lines(Reporter):
    def __init__(self, console: Console) -> None:
        self.console = console
        self.files: set[str] = set()
        self.text = ""
        self.total: int | None = None
        self.spoke = time.monotonic()

    def say(self, line: str) -> None:
        self.console.print(printable(line), soft_wrap=True)
        self.spoke = time.monotonic()

    def begin(self, text: str, total: int | None) -> None:
        self.text, self.total = text, total

    def move(self, done: int, **numbers: float) -> None:
        if time.monotonic() - self.spoke >= SILENCE:
            self.say(f"{self.text}: {self.place(done, numbers)}")

    def place(self, done: int, numbers: Mapping[str, float]) -> str:
        """Format the steps done and the current values."""
        values = (f"{name} {value:.4g}" for name, value in numbers.items())
        return "  ".join([f"{done}/{'?' if self.total is None else self.total}", *values])

    def transfer(self, name: str, done: int, total: int | None) -> None:
        if name not in self.files:
            self.files.add(name)
            self.say(name)


class _Bars(_Lines):
    """One bar for the task under way, and one per file that is transferred."""

    def __init__(self, bars: Progress) -> None:
        super().__init__(bars.console)
        self.bars = bars
        self.task: TaskID | None = None
        self.transfers: dict[str, TaskID] = {}

    def begin(self, text: str, total: int | None) -> None:
        self.task, self.total = self.bars.add_task(text, total=total, numbers=""), total

    def move(self, done: int, **numbers: float) -> None:
        if self.task is not None:
            self.bars.update(self.task, completed=done, numbers=self.place(done, numbers))

    def end(self) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
            self.task = None

    def transfer(self, name: str, done: int, total: int | None) -> None:
        if name not in self.transfers:
            self.transfers[name] = self.bars.add_task(name, total=total, numbers="")
        size = f"{done / 1e6:,.1f} MB" if total is None else f"{done / 1e6:,.1f}/{total / 1e6:,.1f} MB"
        self.bars.update(self.transfers[name], completed=done, total=total, numbers=size)


def check() -> None:
    """Raise `Interrupted` if a stop was requested."""
    if _stop.is_set() and not _held.get():
        raise Interrupted


def stop_requested() -> bool:
    return _stop.is_set()


@contextmanager
def held(on: bool = True) -> Iterator[None]:
    """Let `check` pass: several processes stop at a place that they agree on. `held(False)` lets it stop again."""
    token = _held.set(on)
    try:
        yield
    finally:
        _held.reset(token)


@contextmanager
def quiet(on: bool = True) -> Iterator[None]:
    """Show nothing, if `on`."""
    with reporting(_SILENT if on else _reporter.get()):
        yield


def request_stop() -> None:
    """Ask the running job to stop at its next `check`."""
    _stop.set()


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or closed terminal into a requested stop; a second one does not wait.

    Signals that are ignored, as `nohup` and `&` in scripts arrange, stay ignored.
    """

    def on_signal(number: int, frame: object) -> None:
        if _stop.is_set():
            raise KeyboardInterrupt
        request_stop()
        with suppress(OSError):
            print("stopping after this step ...", file=sys.stderr, flush=True)

    main = threading.current_thread() is threading.main_thread()  # only there may handlers be set
    names = ("SIGINT", "SIGTERM", "SIGHUP") if main else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, on_signal) for number in numbers}
    _stop.clear()
    try:
        yield
    finally:
        _stop.clear()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay Ctrl-C until the block is done, e.g. until a file is complete."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            signal.raise_signal(signal.SIGINT)


def ignore_interrupt(worker: int) -> None:
    """Initialise a worker process: a signal to the process group reaches it too, but the main process decides."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
