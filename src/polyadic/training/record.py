"""A run's diary: log.jsonl for programs, TensorBoard for eyes. A resumed run goes on where its checkpoint was."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyadic.storing import write_text
from polyadic.training.checkpoint import Position
from polyadic.vocabulary import PolyadicError


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
