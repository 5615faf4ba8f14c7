"""Runs that take a second, and what to compare of two of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from polyadic.config.schema import (
    BoxPriorConfig,
    CacheConfig,
    Config,
    DataConfig,
    EvidenceConfig,
    HeadConfig,
    PixelsConfig,
    SelectionConfig,
    StageConfig,
    WorldConfig,
)
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.io.records import write_relations
from polyadic.model.relation_model import RelationModel
from polyadic.progress import Reporter, interruptible, reporting, request_stop
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.training import run as checkpoint
from polyadic.training import stages, train
from polyadic.training.run import Checkpoint

_STAGE = StageConfig(epochs=2, images=8, optimiser="adamw", rate=3e-3, decay=0.01, schedule="one-cycle")
_PIXELS = PixelsConfig(
    backbone="test_byobnet", weights="random", strides=(8,), side=64, longest=96, pool=2, mask=16, spatial=8
)
STAGES = ("backbone", "boxes", "triplets", "selection")
ALL_STAGES: dict[str, Any] = {
    f"{stage}.{key}": value
    for stage in ("backbone", "boxes")
    for key, value in {"epochs": 1, "optimiser": "adamw", "rate": 0.01, "decay": 0.01}.items()
}


def tiny(**changes: Any) -> Config:
    """22 images to learn from, 2 held out; the stages triplets and selection, each of 2 epochs of 3 steps."""
    config = Config(
        device="cpu",
        workers=0,
        threads=1,
        data=DataConfig(dataset="toy"),
        world=WorldConfig(train=24, test=6),
        pixels=_PIXELS,
        evidence=EvidenceConfig(embedding=8, geometry=12),
        head=HeadConfig(rank=3, hidden=32, dropout=0.2),
        selector=SelectionConfig(hidden=16, dropout=0.2),
        geometry=BoxPriorConfig(rank=4, hidden=16),
        triplets=_STAGE,
        selection=_STAGE,
        cache=CacheConfig(gigabytes=0.5),
    )
    return config.change(**changes)


class Spy(Reporter):
    """Record progress events; at the n-th of them, do something."""

    def __init__(self, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.at, self.act, self.text = at, act, ""
        self.seen: list[str] = []

    def _see(self, what: str) -> None:
        self.seen.append(what)
        if len(self.seen) - 1 == self.at:
            self.act()

    def say(self, line: str) -> None:
        self._see(f"say {line}")

    def begin(self, text: str, total: int | None) -> None:
        self.text = text
        self._see(f"begin {text}")

    def move(self, done: int, **numbers: float) -> None:
        self._see(f"{self.text}, step {done}")

    def end(self) -> None:
        self._see(f"end {self.text}")


class SpyAt(Spy):
    """Act at each event that starts so; by default, request a stop."""

    def __init__(self, place: str, act: Callable[[], None] = request_stop) -> None:
        super().__init__()
        self.place, self.then = place, act

    def _see(self, what: str) -> None:
        super()._see(what)
        if what.startswith(self.place):
            self.then()


class Crash(BaseException):
    """The process is gone: nobody catches this."""


def crash() -> NoReturn:
    raise Crash


class StopAfterStep(Spy):
    """Request a stop after the first training step."""

    def move(self, done: int, **numbers: float) -> None:
        if "loss" in numbers:
            request_stop()


@contextmanager
def watched(reporter: Reporter) -> Iterator[None]:
    """Send progress to the reporter, which may stop the job with `request_stop`."""
    with interruptible(), reporting(reporter):
        yield


@dataclass
class Kept:
    """What the checkpoints of a run held, copied."""

    states: dict[str, Any] = field(default_factory=dict)  # optimiser and modules, by stage, as last saved
    epochs: dict[tuple[str, int], Any] = field(default_factory=dict)  # the same, by stage and epochs done
    models: dict[tuple[str, ...], dict[str, Tensor]] = field(default_factory=dict)  # by the stages done


@contextmanager
def keeping() -> Iterator[Kept]:
    kept, save = Kept(), checkpoint.save

    def spy(folder: Path, position: Checkpoint, parts: dict[str, Any], about: dict[str, Any]) -> None:
        held = copy.deepcopy(parts)
        if "state" in held:
            kept.states[position.stage] = kept.epochs[position.stage, position.epoch] = held["state"]
        else:
            kept.models[tuple(position.done)] = held["model"]
        save(folder, position, parts, about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", spy)
        yield kept


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    folder: Path
    kept: Kept
    spy: Spy
    model: Any

    @property
    def result(self) -> dict[str, Any]:
        """All that two equal runs have in common, to the bit."""
        return {"model": self.model.state_dict(), **self.kept.states}


def finish(config: Config, folder: Path, *, resume: bool = False, spy: Spy | None = None) -> Ended:
    spy = spy or Spy()
    with keeping() as kept, watched(spy):
        model = train(config, folder, resume=resume)
    return Ended(folder, kept, spy, model)


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, through dictionaries and lists."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The entries of log.jsonl, each a line of strict JSON, without what the clock says."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is no JSON")

    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line, parse_constant=refuse) for line in lines]
    return [{key: value for key, value in entry.items() if key not in ("time", "seconds")} for entry in entries]


def a_setup(config: Config, folder: Path) -> Any:
    """The data of a run and an untrained model, from which stages are made."""
    setup = stages.Setup(config, folder / "run")
    torch.manual_seed(3)
    setup.model = RelationModel(config, setup.data.vocabulary)
    return setup


def detect(scenes: Iterable[Scene]) -> list[Detections]:
    """A detector that errs: boxes beside the true ones, some false; none in the second image, no word of the third."""
    rng, found = np.random.default_rng(4), []
    for at, scene in enumerate(scenes):
        n = 0 if at == 1 else len(scene.boxes)
        near = np.concatenate([scene.boxes[:n], scene.boxes[: n // 2]]) + rng.normal(0, 1.5, (n + n // 2, 4))
        corners = np.concatenate([near, rng.uniform(0, 150, (n // 3, 4))])
        boxes = np.concatenate([np.minimum(corners[:, :2], corners[:, 2:]), corners[:, 2:] + 1], 1)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2])
        labels = np.concatenate([scene.labels[:n], scene.labels[: n // 2], rng.integers(0, 20, n // 3)])
        if at != 2:
            found.append(Detections(scene.name, boxes, labels, rng.uniform(0.2, 1, len(boxes)), scene.frame))
    return found


def write_detections(path: Path, detections: Iterable[Detections]) -> Path:
    none: dict[str, Any] = {"pairs": np.zeros((0, 2), int), "triplets": np.zeros((0, 3), int), "scores": np.zeros(0)}
    records = [
        Relations(x.image, x.boxes, **none, labels=x.labels, confidences=x.scores, size=x.size) for x in detections
    ]
    return write_relations(path, records, VOCABULARY)
