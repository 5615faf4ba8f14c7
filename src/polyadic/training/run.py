"""Where a run stands, on disk: enough to go on to the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyadic.config import difference, leaves
from polyadic.config.settings import Settings
from polyadic.files import atomic_write, write_text
from polyadic.progress import undisturbed
from polyadic.structures.vocabulary import PolyadicError

FILE = "last.pt"


@dataclass
class Position:
    """The stage, the epoch in it, the step in that; the best so far. Random numbers follow from these and the seed."""

    stage: str = ""
    epoch: int = 0
    step: int = 0
    total: int = 0  # steps of all stages
    rows: int = 0  # of this epoch, with the sum of their losses
    loss: float = 0.0
    best: float | None = None  # of this stage, with its loss, which decides between equals
    best_loss: float = 0.0
    done: list[str] = field(default_factory=list)  # stages that are over

    def next_epoch(self) -> None:
        self.epoch, self.step, self.rows, self.loss = self.epoch + 1, 0, 0, 0.0

    def next_stage(self, name: str) -> None:
        self.stage, self.epoch, self.step, self.rows, self.loss, self.best = name, 0, 0, 0, 0.0, None


def save(folder: Path, position: Position, parts: dict[str, Any], about: dict[str, Any]) -> None:
    """Whole or not at all: the one before survives a full disk."""
    try:
        with undisturbed(), atomic_write(folder / FILE) as part, part.open("wb") as file:
            torch.save({"position": asdict(position), "parts": parts, "about": about}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        cure = "the one before is kept: free some space, then --resume"
        if not (folder / FILE).exists():
            cure = "free some space, and start again"
        raise PolyadicError(f"cannot write a checkpoint to {folder} ({reason}); {cure}") from error


def load(folder: Path) -> tuple[Position, dict[str, Any], dict[str, Any]]:
    path = folder / FILE
    if not path.is_file():
        raise PolyadicError(f"{folder} has no checkpoint to resume from ({FILE}): remove it and start without --resume")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        return Position(**held["position"]), held["parts"], held["about"]
    except (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolyadicError(
            f"{path} cannot be read: it is damaged or cut off ({reason:.120}); the best model so far is in model/"
        ) from error


LOCK_FILE = ".lock"


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """The system forgets the lock when the process ends, however it ends; where there is no `fcntl`, nobody is kept."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = (folder / LOCK_FILE).open("w")
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


class Record:
    """One line per entry, with the time; numbers go to TensorBoard as well."""

    def __init__(self, folder: Path, position: Position) -> None:
        """`position`: where the run stands; what was written beyond it will be written again."""
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "log.jsonl"
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            write_text(self.path, "".join(f"{line}\n" for line in lines if _before(line, position)))
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=position.total + 1)

    def write(self, event: str, total: int, numbers: dict[str, float], **more: Any) -> None:
        entry = {"event": event, "total": total, **more, **numbers, "time": round(time.time(), 3)}
        try:
            self.file.write(json.dumps(entry, allow_nan=False) + "\n")
            self.file.flush()
            group = f"{more['stage']}/held_out" if event == "epoch" else more["stage"]
            for name, number in numbers.items():
                self.board.add_scalar(f"{group}/{name}", number, total)
        except OSError as error:
            raise PolyadicError(
                f"cannot write to {self.path} ({error.strerror}); checkpoints are kept: free some space, then --resume"
            ) from error

    def close(self) -> None:
        for each in (self.file, self.board):
            with suppress(OSError):  # a full disk, of which `write` has told
                each.close()


def _before(line: str, position: Position) -> bool:
    """Whether an entry is of what has been done. The last line may be cut off; an epoch ends with its validation."""
    try:
        entry = json.loads(line)
        total, epoch = entry["total"], entry["event"] == "epoch"
    except (ValueError, KeyError, TypeError):
        return False
    return bool(total < position.total or (total == position.total and not (epoch and position.step)))


def check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolyadicError(
            f"{folder} exists already: go on in it with --resume, or choose another folder (--overwrite begins anew)"
        )


def check_same(config: Settings, before: Settings, folder: Path, free: tuple[str, ...]) -> None:
    """Keys that start with a word of `free` may differ when a run is resumed."""
    for key in difference(config, before, free):
        raise PolyadicError(
            f"{folder} was started with {key} = {dict(leaves(before))[key]!r}, not {dict(leaves(config))[key]!r}: "
            "resume it as it was, or start another run"
        )


def config_path(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise PolyadicError(f"{folder} is not a run: it has no config.json")
    return path
