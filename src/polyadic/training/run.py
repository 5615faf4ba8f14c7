"""The folder of a training run: config, checkpoint, lock and metric log.

It holds config.json, model/ (the best so far, complete), last.pt, log.jsonl and tensorboard/. A run that was
interrupted anywhere can be resumed to the same weights, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from torch import nn

from polyadic.config import Config, DetectorConfig, difference, leaves
from polyadic.files import LOCK_FILE, atomic_write, lock_folder, write_text
from polyadic.progress import undisturbed
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning
from polyadic.training import ranks

FILE = "last.pt"
ROUNDED = "2:"  # before a digest of data whose fitted numbers are rounded


@dataclass
class Checkpoint:
    """Stage, epoch and step of a run, and the best score so far. With the seed they determine all random numbers."""

    stage: str = ""
    epoch: int = 0
    step: int = 0
    total: int = 0  # steps of all stages
    rows: int = 0  # of this epoch, with the sum of their losses
    loss: float = 0.0
    best: float | None = None  # of this stage
    metric: str = ""  # by which the best epoch is chosen
    done: list[str] = field(default_factory=list)  # finished stages

    def count(self, rows: int, loss: float) -> None:
        """Count one step."""
        self.rows, self.loss = self.rows + rows, self.loss + loss * rows
        self.step, self.total = self.step + 1, self.total + 1

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.rows, 1)

    def next_epoch(self) -> None:
        self.epoch, self.step, self.rows, self.loss = self.epoch + 1, 0, 0, 0.0

    def next_stage(self, name: str) -> None:
        self.stage, self.epoch, self.step, self.rows, self.loss = name, 0, 0, 0, 0.0
        self.best, self.metric = None, ""


class Run:
    """A run in its folder: where it stands, and what it writes."""

    log: MetricLog

    def __init__(self, folder: Path, config: Config | DetectorConfig, about: dict[str, Any]) -> None:
        """`about` identifies the data: a run is not resumed on other data."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes CUDA deterministic
        self.folder, self.config, self.about = folder, config, about
        self.checkpoint = Checkpoint()
        self.state: dict[str, Any] | None = None  # of the optimiser and the trained modules, in the middle of a stage
        self.model: nn.Module | None = None  # its weights are kept in every checkpoint

    def begin(self, weights: dict[str, Any]) -> None:
        """Create the folder with enough in it to resume from."""
        if not ranks.is_first():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(self.folder, self.checkpoint, {"model": weights}, self.about)
            write_text(self.folder / "config.json", json.dumps(self.config.to_json(), indent=1))
        except OSError as error:
            raise PolyadicError(f"cannot write the run to {self.folder} ({error.strerror})") from error

    def resume(self) -> dict[str, Any] | None:
        """Read the checkpoint; return the weights of the model in it."""
        self.checkpoint, parts, about = load(self.folder)
        if getattr(self.config.data, "simulate", "") and not about["data"].startswith(ROUNDED):
            about = {**about, "data": self.about["data"]}  # of an old run: the digest depended on the CPU
        stored, now = ({**each, "data": each["data"].removeprefix(ROUNDED)} for each in (about, self.about))
        if stored != now:
            raise PolyadicError(f"{self.folder} was trained on other data than this {self.config.data.dataset}")
        self.state = parts.get("state")
        return parts.get("model")

    def save(self, state: dict[str, Any] | None = None) -> None:
        """Write a checkpoint; `state` is needed in the middle of a stage."""
        if not ranks.is_first():
            return
        parts = {} if self.model is None else {"model": self.model.state_dict()}
        save(self.folder, self.checkpoint, parts if state is None else {**parts, "state": state}, self.about)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Keep other processes out of the folder, log metrics, and compute deterministically."""
        memory: Any = torch.utils.deterministic
        before, fill = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
        self.log = MetricLog(self.folder, self.checkpoint, writes=ranks.is_first())
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # nothing reads it, and a wide layer's step spends a quarter on it
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)
            memory.fill_uninitialized_memory = fill
            self.log.close()


def save(folder: Path, checkpoint: Checkpoint, parts: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a checkpoint atomically: the previous one survives a full disk."""
    try:
        with undisturbed(), atomic_write(folder / FILE) as part, part.open("wb") as file:
            torch.save({"position": asdict(checkpoint), "parts": parts, "about": about}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        cure = "the one before is kept: free some space, then --resume"
        if not (folder / FILE).exists():
            cure = "free some space, and start again"
        raise PolyadicError(f"cannot write a checkpoint to {folder} ({reason}); {cure}") from error


def load(folder: Path) -> tuple[Checkpoint, dict[str, Any], dict[str, Any]]:
    """Read a checkpoint, the weights in it, and what identifies its data."""
    path = folder / FILE
    if not path.is_file():
        raise PolyadicError(f"{folder} has no checkpoint to resume from ({FILE}): remove it and start without --resume")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        known = {name: value for name, value in content["position"].items() if name != "best_loss"}  # of old runs
        return Checkpoint(**known), content["parts"], content["about"]
    except (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolyadicError(
            f"{path} cannot be read: it is damaged or cut off ({reason:.120}); the best model so far is in model/"
        ) from error


@contextmanager
def only_one(folder: Path, new: bool = False) -> Iterator[None]:
    """Lock the folder of a run; if it shall be `new`, check that nobody was faster.

    Of several processes that train together, the first has the lock, and all end if it is not free.
    """
    with ExitStack() as held:
        ranks.together(lambda: _lock(held, folder, new) if ranks.is_first() else None)
        yield


def _lock(held: ExitStack, folder: Path, new: bool) -> None:
    held.enter_context(lock_folder(folder, f"{folder}: another process is training in it; wait for it, or stop it"))
    if new:
        check_new(folder)


class MetricLog:
    """Log metrics to JSONL, one timed entry per line, and to TensorBoard where it is installed (an extra).

    If it cannot be written, training continues.
    """

    def __init__(self, folder: Path, checkpoint: Checkpoint, *, writes: bool = True) -> None:
        """Drop entries beyond the checkpoint: they will be written again."""
        self.path, self.size = folder / "log.jsonl", 0
        self.files: list[IO[bytes]] = []  # the log, and the curves if any; none: nothing is written
        if not writes:
            return
        with self._continuing():
            if self.path.exists():
                lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
                write_text(self.path, "".join(f"{line}\n" for line in lines if _is_before(line, checkpoint)))
                self.size = self.path.stat().st_size
            self.files.append(self.path.open("ab"))
            with suppress(ImportError):
                self.files.append(_start_board(folder / "tensorboard", checkpoint.total + 1))

    def write(self, event: str, total: int, numbers: dict[str, float], **more: Any) -> None:
        """Write the numbers of a step or an epoch."""
        if not self.files:
            return
        log, *boards = self.files
        entry = {"event": event, "total": total, **more, **numbers, "time": round(time.time(), 3)}
        group = f"{more['stage']}/held_out" if event == "epoch" else more["stage"]
        with self._continuing():
            log.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            log.flush()
            for board in boards:
                _add_scalars(board, {f"{group}/{name}": number for name, number in numbers.items()}, total)
            self.size = log.tell()

    @contextmanager
    def _continuing(self) -> Iterator[None]:
        """Warn once if the log cannot be written, e.g. on a full disk; write no more, and leave no partial line."""
        try:
            yield
        except OSError as error:
            self.close()
            with suppress(OSError):
                os.truncate(self.path, self.size)
            place = error.filename or self.path.parent
            text = f"cannot write to {place} ({error.strerror}): training continues without log and curves"
            warnings.warn(text, PolyadicWarning, stacklevel=3)

    def close(self) -> None:
        """Close both files; what cannot be written was reported."""
        while self.files:
            with suppress(OSError):
                self.files.pop().close()


def _start_board(folder: Path, purge: int) -> IO[bytes]:
    """Start a file for TensorBoard, which hides earlier entries from the step `purge` on.

    Not by SummaryWriter: it writes in a thread, which dies with a traceback on a full disk.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"  # sorted by time
    board = (folder / name).open("wb")
    start = SessionLog(status=SessionLog.START)
    for entry in ({"file_version": "brain.Event:2"}, {"step": purge, "session_log": start}):
        RecordWriter(board).write(Event(wall_time=time.time(), **entry).SerializeToString())
    board.flush()
    return board


def _add_scalars(board: IO[bytes], numbers: Mapping[str, float], step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
    event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
    RecordWriter(board).write(event.SerializeToString())
    board.flush()


class LogEntry(msgspec.Struct):
    """What every entry of the log has; `numbers` are the loss, the metrics and the seconds."""

    event: str
    stage: str
    total: int
    numbers: dict[str, float] = msgspec.field(default_factory=dict)


def log_entry(line: str) -> LogEntry | None:
    """Parse a line of the log; None if it is damaged, as the last one may be."""
    try:
        values = msgspec.json.decode(line.encode("utf-8", "replace"), type=dict[str, Any])
        entry = msgspec.convert(values, LogEntry)
    except (msgspec.MsgspecError, RecursionError):
        return None
    entry.numbers = {name: float(x) for name, x in values.items() if type(x) is float or type(x) is int}
    return entry


def _is_before(line: str, checkpoint: Checkpoint) -> bool:
    """Tell whether an entry is of work that is done; validation ends an epoch."""
    entry = log_entry(line)
    if entry is None:
        return False
    total, epoch = entry.total, entry.event == "epoch"
    return bool(total < checkpoint.total or (total == checkpoint.total and not (epoch and checkpoint.step)))


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {LOCK_FILE}):
        raise PolyadicError(
            f"{folder} exists already: continue it with --resume, or choose another folder (--overwrite starts again)"
        )


def check_same(
    config: Config | DetectorConfig, before: Config | DetectorConfig, folder: Path, free: tuple[str, ...]
) -> None:
    """Refuse to resume with another config; keys that start with a word of `free` may differ."""
    for key in difference(config, before, free):
        raise PolyadicError(
            f"{folder} was started with {key} = {dict(leaves(before))[key]!r}, not {dict(leaves(config))[key]!r}: "
            "resume it as it was, or start another run"
        )


def compared(config: Config | DetectorConfig, free: tuple[str, ...]) -> str:
    """Write out the config without what may differ between processes and when a run is resumed."""
    return repr([(key, value) for key, value in leaves(config) if not key.startswith(free)])


def code_digest() -> str:
    """Compute a digest of this package's code and of torch's version."""
    root = Path(__file__).parents[1]
    value = hashlib.sha256(torch.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        value.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return value.hexdigest()[:16]


def config_path(folder: Path) -> Path:
    """Find the config of a run."""
    path = folder / "config.json"
    if not path.is_file():
        raise PolyadicError(f"{folder} is not a run: it has no config.json")
    return path
