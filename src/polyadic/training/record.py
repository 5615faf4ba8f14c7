"""A run's diary: log.jsonl for programs, TensorBoard for eyes. A resumed run goes on where its checkpoint was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from polyadic.model.storage import write_text


class Record:
    """One line per entry, with the time; numbers go to TensorBoard as well."""

    def __init__(self, folder: Path, total: int) -> None:
        """`total`: steps done so far; what an earlier run wrote beyond them will be written again."""
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "log.jsonl"
        if self.path.exists():
            kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _total(line) <= total]
            write_text(self.path, "".join(f"{line}\n" for line in kept))
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=total + 1)

    def write(self, event: str, total: int, numbers: dict[str, float], **more: Any) -> None:
        entry = {"event": event, "total": total, **more, **numbers, "time": round(time.time(), 3)}
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
        for name, number in numbers.items():
            self.board.add_scalar(f"{more.get('stage', 'run')}/{name}", number, total)

    def close(self) -> None:
        self.file.close()
        self.board.close()


def _total(line: str) -> float:
    try:
        return float(json.loads(line)["total"])
    except (ValueError, KeyError, TypeError):  # cut off by a crash
        return float("inf")
