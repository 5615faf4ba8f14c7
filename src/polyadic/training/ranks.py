"""Several processes that train one model: `torchrun -m polyadic train ...`. Who is who, and what they exchange.

A step's images are cut into slices (`StageConfig.slices`), which the processes share; each slice has random numbers of
its own. The step's loss is the sum over all rows of all slices divided by their number, so the number of processes
changes the last digits alone. In one process every function here does nothing.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from polyadic import progress
from polyadic.structures.vocabulary import PolyadicError

T = TypeVar("T")
JOIN = timedelta(seconds=60)  # for all processes to come together
PATIENCE = timedelta(hours=2)  # for one that is alive, and still reads or detects
_BUCKET = 1 << 23  # numbers of gradients that are added at a time
_group: dist.ProcessGroup | None = None


def world() -> int:
    """Return the number of processes."""
    return 1 if _group is None else dist.get_world_size(_group)


def rank() -> int:
    """Return the number of this process, from 0."""
    return 0 if _group is None else dist.get_rank(_group)


def is_first() -> bool:
    """Whether this is the process that writes files and shows progress."""
    return rank() == 0


def restarted_in(folder: Path) -> bool:
    """Whether torchrun starts the processes of this run again after one died (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and (folder / "last.pt").is_file()


@contextmanager
def joined() -> Iterator[None]:
    """Bring the processes of torchrun together; errors of one of them end all, with one line."""
    global _group  # noqa: PLW0603
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    if expected == 1 or _group is not None:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        store, number, size = next(iter(rendezvous("env://", timeout=JOIN)))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the addresses of the one before
        store = PrefixStore(f"polyadic/{attempt}", store)
        dist.init_process_group(backend, timeout=JOIN, store=store, rank=number, world_size=size)
        dist.barrier()
        _group = dist.new_group(timeout=PATIENCE)  # type: ignore[assignment]
    except (RuntimeError, ValueError) as error:
        raise PolyadicError(
            f"{expected} processes were to train together, but not all of them came within {JOIN.seconds} seconds "
            f"({' '.join(str(error).split()):.100})"
        ) from error
    try:
        with progress.held(), progress.quiet(not is_first()):
            yield
    except PolyadicError as error:
        if is_first():
            raise
        _tell(f"polyadic: process {rank()} on {platform.node()}: {error}")
        os._exit(1)
    finally:
        _group = None
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _tell(line: str) -> None:
    with suppress(OSError):
        print(progress.printable(line), file=sys.stderr, flush=True)


@contextmanager
def _exchanging() -> Iterator[None]:
    """Say in one line, by one process, that another one is gone."""
    try:
        yield
    except RuntimeError as error:
        line = "another process of this training ended or does not answer; nothing is lost: continue with --resume"
        store: Any = dist.distributed_c10d._get_default_store()
        told = 0
        with suppress(Exception):  # the store may be gone as well
            told = int(store.add("told", 1))
        if told > 1:
            os._exit(1)
        if is_first():
            raise PolyadicError(line) from error
        _tell(f"polyadic: {line}")
        os._exit(1)


def total(numbers: Sequence[float]) -> list[float]:
    """Add numbers over all processes."""
    if world() == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    with _exchanging():
        dist.all_reduce(values, group=_group)
    summed: list[float] = values.tolist()
    return summed


def gather(value: T) -> list[T]:
    """Collect a value of each process, in the order of their numbers."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    with _exchanging():
        dist.all_gather_object(values, value, group=_group)
    return values


def wait() -> None:
    """Wait for the others."""
    gather(None)


def check() -> None:
    """Stop all processes at the same place if one of them was asked to."""
    if world() == 1:
        progress.check()
    elif any(gather(progress.stop_requested())):
        raise progress.Interrupted


def together(act: Callable[[], T]) -> T:
    """Do something in each process; if it fails in any of them, end all with the first one's error."""
    if world() == 1:
        return act()
    result: list[T] = []
    message = ""
    try:
        result.append(act())
    except PolyadicError as error:
        message = str(error)
    messages = gather(message)
    failed = [number for number, text in enumerate(messages) if text]
    if not failed:
        return result[0]
    where = "" if len(failed) == world() else f"process {failed[0]}: "
    fail(f"{where}{messages[failed[0]]}")
    raise AssertionError("fail ends the process")


def fail(message: str) -> None:
    """End all processes, which know of the same error, with one line."""
    if is_first():
        raise PolyadicError(message)
    os._exit(1)


def first_does(act: Callable[[], T]) -> T:
    """Do something in the first process alone; the others wait, and get its result."""
    value = together(lambda: act() if is_first() else None)
    result: Any = gather(value)[0]
    return result  # type: ignore[no-any-return]


def in_turn(act: Callable[[], object]) -> None:
    """Do something in the first process before the others begin, e.g. store what they then read."""
    if world() > 1:
        if is_first():
            act()
        wait()


def compare(**digests: str) -> None:
    """Refuse to train with processes of different code or data."""
    everywhere = gather((platform.node(), digests))
    host, ours = everywhere[0]
    for number, (other, theirs) in enumerate(everywhere):
        for name, value in theirs.items():
            if value != ours[name]:
                fail(f"process {number} on {other} has other {name} than process 0 on {host}: make them the same")


def share(items: Sequence[T]) -> Sequence[T]:
    """Return this process's share of some items: each item is in one share."""
    return items[rank() :: world()]


def share_of_disk(folder: Path) -> tuple[int, int]:
    """Return this process's number among those that see the same folder, and how many they are."""
    if world() == 1:
        return 0, 1
    folder.mkdir(parents=True, exist_ok=True)
    token = gather(secrets.token_hex(4))[0]
    mark = folder / f".{token}.{rank()}"
    mark.touch()
    wait()
    seen = sorted(int(path.name.rsplit(".", 1)[1]) for path in folder.glob(f".{token}.*"))
    wait()
    mark.unlink(missing_ok=True)
    return seen.index(rank()), len(seen)


def broadcast(modules: Iterable[nn.Module]) -> None:
    """Give all processes the first one's weights and buffers."""
    if world() == 1:
        return
    with _exchanging(), torch.no_grad():
        for module in modules:
            for value in module.state_dict().values():
                dist.broadcast(value, 0, group=_group)


def add_gradients(parameters: Sequence[nn.Parameter], used: Sequence[bool]) -> None:
    """Add the gradients of all processes; `used`: whether any process has one."""
    some: list[Tensor] = []
    for parameter, is_used in zip(parameters, used, strict=True):
        if is_used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            some.append(parameter.grad)
    while some:
        size, bucket = 0, list[Tensor]()
        while some and (not bucket or (size + some[0].numel() <= _BUCKET and some[0].dtype == bucket[0].dtype)):
            bucket.append(some.pop(0))
            size += bucket[-1].numel()
        flat = torch.cat([x.reshape(-1) for x in bucket])
        with _exchanging():
            dist.all_reduce(flat, group=_group)
        for x, summed in zip(bucket, flat.split([x.numel() for x in bucket]), strict=True):
            x.copy_(summed.view_as(x))
