"""One thread that computes, behind a bounded queue: under load, requests are refused instead of piling up."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

WAITING = 16  # requests in the queue


class BusyError(Exception):
    """The queue is full."""


class Worker:
    """Run jobs one after the other; a daemon thread, so that the server's end waits for none of them."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = queue.Queue(waiting)
        threading.Thread(target=self._work, daemon=True, name="polyadic-serve").start()

    def waiting(self) -> int:
        """Count the jobs in the queue."""
        return self._jobs.qsize()

    def start(self, job: Callable[[], Any]) -> None:
        """Queue a job that nobody waits for."""
        self._jobs.put((job, None))

    async def run(self, job: Callable[[], T]) -> T:
        """Queue a job and wait for its result; a cancelled one is not started. A full queue raises `BusyError`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._jobs.put_nowait((job, future))
        except queue.Full:
            raise BusyError from None
        return await future

    def _work(self) -> None:
        while True:
            job, future = self._jobs.get()
            if future is not None and future.cancelled():
                continue
            try:
                result, error = job(), None
            except BaseException as problem:  # reported to who waits for it
                result, error = None, problem
            if future is None:
                continue
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the server has ended
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its client has gone
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
