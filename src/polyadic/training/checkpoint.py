"""Where a run stands, on disk: enough to go on to the same weights, bit for bit."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyadic.training.watch import undisturbed
from polyadic.vocabulary import PolyadicError

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
    half = folder / f".{FILE}.part"
    try:
        with undisturbed(), half.open("wb") as file:
            torch.save({"position": asdict(position), "parts": parts, "about": about}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, folder / FILE)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        cure = "the one before is kept: free some space, then --resume"
        if not (folder / FILE).exists():
            cure = "free some space, and start again"
        raise PolyadicError(f"cannot write a checkpoint to {folder} ({reason}); {cure}") from error
    finally:
        with suppress(OSError):
            half.unlink()


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
