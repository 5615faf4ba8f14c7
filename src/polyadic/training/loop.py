"""One stage of training: steps, clipping, schedule, checkpoints, validation; and going on after an interruption.

A step's random numbers are seeded by (seed, stage, epoch, step), the order of images by (seed, stage, epoch), so that a
run that was interrupted and one that was not are the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config.schema import StageConfig
from polyadic.progress import Interrupted
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import number_of
from polyadic.training.loading import load_batches
from polyadic.training.run import Position, Record

MINUTES = 10  # between checkpoints inside an epoch
_LEAST_SCALE = 2.0**-16  # of the loss in float16, halved at each gradient that is not finite


@dataclass(frozen=True, eq=False)
class Task:
    """What a stage is, beside its numbers."""

    name: str
    stage: StageConfig
    modules: dict[str, nn.Module]  # what learns
    examples: Callable[[int], Dataset[Any]]  # of an epoch
    loss: Callable[[list[Any]], tuple[Tensor, int] | None]  # mean over rows, and how many; None for an empty batch
    names: Callable[[list[Any]], list[str]]  # the images of a batch
    train_mode: Callable[[], None]
    validate: Callable[[], dict[str, float]]  # nothing where nothing is held out
    better: str  # which of the numbers decides, the larger the better; without it the last epoch is the best
    finish: Callable[[], None] = lambda: None
    read: bool = True  # examples are read from disk: worker processes help


@dataclass(eq=False)
class Runner:
    """What all stages share."""

    seed: int
    device: torch.device
    precision: torch.dtype
    workers: int
    record: Record
    save_best: Callable[[dict[str, float]], None]
    save_position: Callable[[Position, dict[str, Any]], None]

    def run(self, task: Task, position: Position, state: dict[str, Any] | None) -> None:
        """Train from `position` to the end of the stage. `state` is the optimiser's, when resumed in the middle."""
        task.train_mode()  # thaws what learns
        parameters = [p for module in task.modules.values() for p in module.parameters() if p.requires_grad]
        optimiser = make_optimiser(task.stage, parameters)
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == torch.float16)
        if state is not None:
            optimiser.load_state_dict(state["optimiser"])
            scaler.load_state_dict(state["scaler"])

        def keep() -> None:
            held = {"optimiser": optimiser.state_dict(), "scaler": scaler.state_dict()}
            held["modules"] = {name: module.state_dict() for name, module in task.modules.items()}
            self.save_position(position, held)

        images = len(task.examples(0))  # type: ignore[arg-type]
        if images == 0:
            raise PolyadicError(f"stage {task.name}: no image has an annotated pair to learn from")
        steps = math.ceil(images / task.stage.images)
        try:
            while position.epoch < task.stage.epochs:
                self._epoch(task, position, parameters, optimiser, scaler, steps, keep)
                numbers = task.validate()
                score, loss = numbers.get(task.better), numbers.get("loss", 0.0)
                best = position.best
                if score is None or best is None or (score, -loss) > (best, -position.best_loss):
                    position.best, position.best_loss = score, loss
                    self.save_best(numbers)
                about = {"stage": task.name, "epoch": position.epoch + 1}
                self.record.write("epoch", position.total, numbers, best=position.best, **about)
                words = ", ".join(f"{name} {value:.2f}" for name, value in numbers.items())
                told = f"held-out {words}" if words else "nothing is held out, so the last epoch is kept"
                progress.say(f"{task.name} {position.epoch + 1}/{task.stage.epochs}: {told}")
                position.next_epoch()
                keep()
        except Interrupted:
            keep()
            raise

    def _epoch(
        self,
        task: Task,
        position: Position,
        parameters: list[nn.Parameter],
        optimiser: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        steps: int,
        keep: Callable[[], None],
    ) -> None:
        if position.step >= steps:
            return
        stage, start = task.stage, time.monotonic()
        saved, every = start, max(1, steps // 50)
        task.train_mode()
        with progress.task(f"{task.name} {position.epoch + 1}/{stage.epochs}", steps) as move:
            move(position.step)
            examples = task.examples(position.epoch)
            for batch in load_batches(examples, self._order(task, position, steps), self.workers if task.read else 0):
                torch.manual_seed(number_of(self.seed, task.name, position.epoch, position.step))
                rate = stage.rate * factor(stage, position.epoch * steps + position.step, stage.epochs * steps)
                for group in optimiser.param_groups:
                    group["lr"] = rate
                optimiser.zero_grad(set_to_none=True)
                try:
                    found = task.loss(batch)
                except PolyadicError as error:  # scores that are not finite
                    raise PolyadicError(f"{_where(task, position, batch)}: {error}") from error
                norm = None
                if found is not None:
                    loss, rows = found
                    value = float(loss.detach())
                    if not math.isfinite(value):
                        raise PolyadicError(f"{_where(task, position, batch)}: the loss is {value}; {_CURE}")
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimiser)
                    norm = float(nn.utils.clip_grad_norm_(parameters, stage.clip))
                    if not math.isfinite(norm) and not scaler.is_enabled():
                        raise PolyadicError(f"{_where(task, position, batch)}: the gradient is {norm}; {_CURE}")
                    scaler.step(optimiser)
                    scaler.update()
                    if scaler.is_enabled() and scaler.get_scale() < _LEAST_SCALE:  # each step was skipped
                        raise PolyadicError(
                            f"{_where(task, position, batch)}: no gradient is finite in float16; {_CURE}"
                        )
                    position.rows, position.loss = position.rows + rows, position.loss + value * rows
                position.step += 1
                position.total += 1
                mean = position.loss / max(position.rows, 1)
                move(position.step, loss=mean, rate=rate)
                if position.step % every == 0 or position.step == steps:
                    numbers = {"loss": mean, "rate": rate, "seconds": round(time.monotonic() - start, 3)}
                    if norm is not None and math.isfinite(
                        norm
                    ):  # not in a step without pairs, or that the scaler skips
                        numbers["norm"] = norm
                    place = {"stage": task.name, "epoch": position.epoch + 1, "step": position.step}
                    self.record.write("step", position.total, numbers, **place)
                progress.check()
                if time.monotonic() - saved > 60 * MINUTES:
                    keep()
                    saved = time.monotonic()

    def _order(self, task: Task, position: Position, steps: int) -> list[list[int]]:
        """What is left of the epoch, by step."""
        chance = torch.Generator().manual_seed(number_of(self.seed, task.name, position.epoch))
        shuffled = torch.randperm(len(task.examples(position.epoch)), generator=chance).tolist()  # type: ignore[arg-type]
        size = task.stage.images
        return [shuffled[at * size : (at + 1) * size] for at in range(position.step, steps)]


_CURE = "a lower learning rate, a smaller clip or float32 may help"


def _where(task: Task, position: Position, batch: list[Any]) -> str:
    names = task.names(batch)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"stage {task.name}, epoch {position.epoch + 1}, step {position.step + 1}, images {shown}"


def make_optimiser(stage: StageConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if stage.optimiser == "sgd":
        return torch.optim.SGD(parameters, stage.rate, momentum=stage.momentum, weight_decay=stage.decay)
    kind: type[torch.optim.Adam] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[stage.optimiser]
    return kind(parameters, stage.rate, weight_decay=stage.decay)


def factor(stage: StageConfig, step: int, total: int) -> float:
    """Of the learning rate. One-cycle rises for a tenth of the steps, then falls as a cosine; cosine only falls."""
    if stage.schedule == "constant":
        return 1.0
    rise = 0.1 * total if stage.schedule == "one-cycle" else 0.0
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(total - rise, 1)))
