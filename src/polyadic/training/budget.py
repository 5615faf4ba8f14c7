"""Check before a stage starts that it fits into memory and on the disk, and say what it costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyadic import progress
from polyadic.config.schema import StageConfig
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.training.run import Run
    from polyadic.training.stages import Stage

_LARGE = 1 << 28  # bytes from which the cost is worth a line
_LONG = 60  # seconds of an epoch from which it is
TIMED = 3  # steps after the first from which an epoch's time is known


def check_room(stage: Stage, run: Run, steps: int) -> None:
    """Refuse a stage that memory or the disk cannot hold; say what a large one needs."""
    trained = size_of(p for module in stage.modules.values() for p in module.parameters() if p.requires_grad)
    whole = trained if run.model is None else size_of(run.model.state_dict().values())
    states = trained * states_of(stage.settings)
    memory = trained + states  # gradients, and what the optimiser keeps; the weights are there already
    disk = (
        2 * whole + trained + states
    )  # the best model and the checkpoint, whose predecessors go when they are written
    free = free_memory(stage.device)
    if free is not None and memory > free:
        raise PolyadicError(
            f"stage {stage.name} needs {in_bytes(memory)} of memory for gradients and optimiser, and {in_bytes(free)} "
            "are free: choose smaller layers (head.hidden, selector.hidden) or fewer features (pixels.pool, "
            "pixels.reduce)"
        )
    check_disk(run.folder, disk, f"stage {stage.name}: checkpoint and model")
    if memory + trained > _LARGE:
        progress.say(
            f"{stage.name}: {trained // 4 / 1e6:,.0f} million weights, {in_bytes(trained + memory)} of memory, "
            f"{in_bytes(disk)} on disk; {stage.settings.epochs} epochs of {steps:,} steps"
        )


def check_disk(folder: Path, need: int, what: str) -> None:
    """Refuse to start what the disk cannot hold."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if need > free:
        raise PolyadicError(f"{what} need {in_bytes(need)} in {folder}, and {in_bytes(free)} are free")


def say_time(stage: Stage, seconds: float, steps: int) -> None:
    """Estimate the time of an epoch from the first few steps."""
    epoch = seconds / TIMED * steps
    if epoch > _LONG:
        total = epoch * stage.settings.epochs
        progress.say(f"{stage.name}: about {epoch / 60:.0f} minutes per epoch, {total / 60:.0f} in all")


def states_of(settings: StageConfig) -> int:
    """Count the numbers that the optimiser keeps for each weight."""
    if settings.optimiser == "sgd":
        return int(settings.momentum > 0)
    return 2


def size_of(tensors: Iterable[Tensor | nn.Parameter]) -> int:
    """Sum the bytes."""
    return sum(x.numel() * x.element_size() for x in tensors)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated; None where the system does not say."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def in_bytes(n: int) -> str:
    """Format a size: "1.4 GB"."""
    size, unit = float(n), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
