"""Load examples in worker processes, in order.

A batch is sent as one block of shared memory: torch would need an open file for each tensor in it, and would hang where
few are allowed. A worker's error arrives as its one-line message, without a traceback.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from polyadic.progress import check, ignore_interrupt
from polyadic.structures.vocabulary import PolyadicError

T = TypeVar("T")
_LOST = (ConnectionError, EOFError)  # what the end of another process looks like


@dataclass(frozen=True)
class _Failure:
    message: str


class _Catching(TorchDataset[Any]):
    """Return an error as a value: torch would put the worker's traceback into its message."""

    def __init__(self, examples: TorchDataset[Any]) -> None:
        self.examples = examples

    def __getitem__(self, at: int) -> Any:
        try:
            return self.examples[at]
        except PolyadicError as error:
            return _Failure(str(error))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if type(value) is Tensor else NotImplemented


def _pack(batch: list[Any]) -> UInt8[Tensor, " n"]:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batch)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def _unpack(block: UInt8[Tensor, " n"]) -> list[Any]:
    batch: list[Any] = pickle.loads(block.numpy().data)
    return batch


def _begin(worker: int) -> None:
    """Initialise a worker, whose thread that shares memory would print a traceback when the main process is killed."""
    ignore_interrupt(worker)
    show = sys.excepthook
    sys.excepthook = lambda kind, error, trace: None if isinstance(error, _LOST) else show(kind, error, trace)


def load_batches(examples: TorchDataset[T], batches: Sequence[Sequence[int]], workers: int) -> Iterator[list[T]]:
    """Yield the examples with these indices, batch by batch; with 0 workers, load them in this process."""
    loader: DataLoader[Any] = DataLoader(
        _Catching(examples),
        batch_sampler=batches,  # type: ignore[arg-type]
        collate_fn=_pack if workers else list,
        num_workers=workers,
        worker_init_fn=_begin if workers else None,
    )
    for block in _unless_stopped(loader):
        batch = _unpack(block) if workers else block
        for example in batch:
            if isinstance(example, _Failure):
                raise PolyadicError(example.message)
        yield batch


def _unless_stopped(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield what the workers load; one that a signal ends before it can ignore it is no error after a stop request."""
    try:
        yield from loader
    except RuntimeError:
        check()
        raise
