"""Run tasks in processes of this machine, one at a time in each; a process that dies costs only its task."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from polyadic.progress import check, ignore_interrupt
from polyadic.structures.vocabulary import PolyadicError

T = TypeVar("T")
TRIES = 3  # of a task whose process dies
PATIENCE = 0.5  # seconds between looks for a stop request


@dataclass(frozen=True)
class Lost:
    """A task that was not done."""

    problem: str


def run_tasks(
    start: Callable[[], Callable[[int], T]], tasks: Iterable[int], workers: int
) -> Iterator[tuple[int, T | Lost]]:
    """Yield each task with its result, in the order in which they end.

    Each process calls `start` once and what it returns for each task. A task during which its process dies is
    repeated, at most `TRIES` times in all. An error in `start` ends the job.
    """
    waiting = deque(tasks)
    tries: dict[int, int] = {}
    pool: list[_Worker[T]] = []
    try:
        while waiting or any(worker.task is not None for worker in pool):
            while len(pool) < workers and sum(worker.task is None for worker in pool) < len(waiting):
                free = min(set(range(workers)) - {worker.number for worker in pool})
                pool.append(_Worker(start, free))
            for worker in pool:
                if waiting and worker.idle:
                    worker.give(waiting.popleft())
            ready = wait([worker.connection for worker in pool], PATIENCE)
            check()
            for worker in [worker for worker in pool if worker.connection in ready]:
                task = worker.task
                answer = worker.receive()
                if not isinstance(answer, _Died):
                    if task is not None:
                        yield task, answer
                    continue
                pool.remove(worker)
                if task is None:
                    if not answer.started:
                        raise PolyadicError(f"a worker process {answer} while it loaded the model")
                    continue
                tries[task] = tries.get(task, 0) + 1
                if tries[task] < TRIES:
                    waiting.appendleft(task)
                else:
                    yield task, Lost(f"{TRIES} worker processes died on it; the last {answer}")
    finally:
        for worker in pool:
            worker.stop()


@dataclass(frozen=True)
class _Died:
    code: int | None
    started: bool

    def __str__(self) -> str:
        if self.code is not None and self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended with code {self.code}"


@dataclass(frozen=True)
class _Failed:
    message: str


@dataclass(eq=False)
class _Worker(Generic[T]):
    """A process, and the task that it is at."""

    start: Callable[[], Callable[[int], T]]
    number: int
    task: int | None = None
    started: bool = False
    connection: Connection[Any, Any] = field(init=False)
    process: SpawnProcess = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.start, self.number), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here when the process dies

    @property
    def idle(self) -> bool:
        return self.started and self.task is None

    def give(self, task: int) -> None:
        self.task = task
        with suppress(OSError):  # it has died: `receive` will say so
            self.connection.send(task)

    def receive(self) -> T | _Died:
        """Return the result of the task, or how the process died. The first message says that it is ready."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return _Died(self.process.exitcode, self.started)
        if isinstance(answer, _Failed):
            raise PolyadicError(answer.message)
        self.started, self.task = True, None
        result: T = answer
        return result

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def _work(connection: Connection[Any, Any], start: Callable[[], Callable[[int], Any]], number: int) -> None:
    """Do tasks until the main process closes the connection or is gone."""
    import warnings

    ignore_interrupt(number)
    os.environ["LOCAL_RANK"] = str(number)  # which GPU
    warnings.simplefilter("ignore")
    try:
        try:
            run = start()
            connection.send(None)
            while True:
                connection.send(run(connection.recv()))
        except PolyadicError as error:
            connection.send(_Failed(str(error)))
    except (EOFError, OSError):
        os._exit(0)
