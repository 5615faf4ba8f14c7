"""The training loop: steps, clipping, learning-rate schedule, validation and checkpoints of one stage.

The random numbers of a step are seeded by (seed, stage, epoch, step), of its slices also by their number, the order of
images by (seed, stage, epoch), so an interrupted and resumed run equals one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from polyadic import progress
from polyadic.config.schema import StageConfig
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import ranks
from polyadic.training.budget import TIMED, check_room, say_time
from polyadic.training.examples import number_of
from polyadic.training.loading import load_batches
from polyadic.training.run import Checkpoint, Run
from polyadic.training.span import SpanLayer, clip_gradients

if TYPE_CHECKING:
    from polyadic.training.stages import Stage

MINUTES = 10  # between checkpoints inside an epoch
_LEAST_SCALE = 2.0**-16  # of the loss in float16, halved at each gradient that is not finite
_CURE = "a lower learning rate, a smaller clip or float32 may help"


def fit(stage: Stage, run: Run) -> None:
    """Train a stage from the run's checkpoint to the end of its last epoch; keep the best epoch's model."""
    learner, at = _Learner(stage, run.state), run.checkpoint
    images = len(stage.examples(0))  # type: ignore[arg-type]
    if images == 0:
        raise PolyadicError(f"stage {stage.name}: no image has an annotated pair to learn from")
    if ranks.world() > stage.settings.slices:
        most = stage.settings.slices
        ranks.fail(f"stage {stage.name} has {most} slices per step, so at most {most} processes can share it")
    steps = math.ceil(images / stage.settings.images)
    if at.epoch < stage.settings.epochs:
        check_room(stage, run, steps)
    try:
        while at.epoch < stage.settings.epochs:
            with closing(_epoch(stage, run, learner, steps)) as batches:
                for batch in batches:
                    with _locating(stage, at, batch):
                        learner.update(stage, batch, seed=(run.config.seed, stage.name, at.epoch, at.step))
            _validate(stage, run)
            at.next_epoch()
            run.save(state=learner.state())
    except progress.Interrupted:
        run.save(state=learner.state())
        raise


class _Learner:
    """The optimiser of a stage, with gradient clipping and, in float16, loss scaling."""

    def __init__(self, stage: Stage, state: dict[str, Any] | None) -> None:
        stage.train_mode()  # also unfreezes what is trained
        self.modules, self.clip, self.mean = stage.modules, stage.settings.clip, stage.settings.reduction == "mean"
        self.parameters = [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]
        self.optimiser = make_optimiser(stage.settings, stage.rate_groups(self.parameters))
        self.scaler = torch.amp.GradScaler(stage.device.type, enabled=stage.precision == torch.float16)
        self.loss, self.rows, self.norm = 0.0, 0, math.nan  # of the last step
        self.stop = False  # a process was asked to stop
        ranks.broadcast(self.modules.values())
        if state is not None:
            factors = [group["factor"] for group in self.optimiser.param_groups]
            self.optimiser.load_state_dict(state["optimiser"])
            for group, factor in zip(self.optimiser.param_groups, factors, strict=True):
                group["factor"] = factor  # checkpoints of older versions have none
            self.scaler.load_state_dict(state["scaler"])

    def state(self) -> dict[str, Any]:
        """Collect what a checkpoint needs to continue in the middle of a stage."""
        modules = {name: module.state_dict() for name, module in self.modules.items()}
        return {"optimiser": self.optimiser.state_dict(), "scaler": self.scaler.state_dict(), "modules": modules}

    def _add_up(self, spans: Sequence[SpanLayer]) -> None:
        """Add up the gradients of all processes; divide sums over the rows of all slices by their number."""
        used = [parameter.grad is not None for parameter in self.parameters]
        numbers = ranks.total([self.rows, self.loss, progress.stop_requested(), *used])
        self.rows, self.stop = int(numbers[0]), bool(numbers[2])
        self.loss = numbers[1] / max(self.rows, 1)
        if ranks.world() > 1:
            ranks.add_gradients(self.parameters, [number > 0 for number in numbers[3:]])
        for parameter in self.parameters:
            if parameter.grad is not None and self.mean:
                parameter.grad.div_(max(self.rows, 1))
        for span in spans:
            span.gradients = [each for theirs in ranks.gather(span.gradients) for each in theirs]
            span.scale(1 / max(self.rows, 1) if self.mean else 1.0)

    def start_step(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimiser.zero_grad(set_to_none=True)

    def update(self, stage: Stage, slices: dict[int, list[Any]], seed: tuple[int, str, int, int]) -> None:
        """Take one step down the gradient of the loss over the rows of all slices; none where there are no rows.

        `slices` are those of this process, by number. The loss, always the mean, and the gradient, of the mean or the
        sum as the config says, are of all processes.
        """
        self.loss, self.rows, self.norm = 0.0, 0, math.nan
        whole = stage.settings.slices == 1
        for number, batch in slices.items():
            torch.manual_seed(number_of(*seed) if whole else number_of(*seed, number))
            result = stage.loss(batch) if batch else None
            if result is None:
                continue
            loss, count = result
            value = float(loss.detach())
            if not math.isfinite(value) and ranks.world() == 1:
                raise PolyadicError(f"the loss is {value}; {_CURE}")
            self.rows, self.loss = self.rows + count, value if whole else self.loss + value * count
            self.scaler.scale(loss if whole and self.mean else loss * count).backward()
        if not whole:
            self._add_up(stage.spans)
        if not self.rows:
            return
        if not math.isfinite(self.loss):
            ranks.fail(f"the loss is {self.loss}; {_CURE}")
        self.scaler.unscale_(self.optimiser)
        self.norm = float(clip_gradients(self.parameters, stage.spans, self.clip))
        if not math.isfinite(self.norm) and not self.scaler.is_enabled():
            raise PolyadicError(f"the gradient is {self.norm}; {_CURE}")
        self.scaler.step(self.optimiser)
        for span in stage.spans:
            span.step()
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < _LEAST_SCALE:  # every step was skipped
            raise PolyadicError(f"no gradient is finite in float16; {_CURE}")


def _epoch(stage: Stage, run: Run, learner: _Learner, steps: int) -> Generator[dict[int, list[Any]], None, None]:
    """Yield this process's slices of the remaining steps of an epoch; count, log and save after each step."""
    at, settings, start = run.checkpoint, stage.settings, time.monotonic()
    if at.step >= steps:
        return
    saved, warm, every = start, start, max(1, steps // 50)
    stage.train_mode()
    with progress.task(f"{stage.name} {at.epoch + 1}/{settings.epochs}", steps) as move:
        move(at.step)
        examples, workers = stage.examples(at.epoch), run.config.workers if stage.reads_files else 0
        mine = range(ranks.rank(), settings.slices, ranks.world())
        batches = load_batches(examples, _order(stage, run, steps, mine), workers)
        for _ in range(at.step, steps):
            batch = {number: next(batches) for number in mine}
            rate = settings.rate * factor(settings, at.epoch * steps + at.step, settings.epochs * steps)
            learner.start_step(rate)
            yield batch
            at.count(learner.rows, learner.loss)
            if at.epoch == 0 and at.step == 1:  # the first step reads files and starts workers
                warm = time.monotonic()
            if at.epoch == 0 and at.step == 1 + TIMED:
                say_time(stage, time.monotonic() - warm, steps)
            move(at.step, loss=at.mean_loss, rate=rate)
            if at.step % every == 0 or at.step == steps:
                numbers = {"loss": at.mean_loss, "rate": rate, "seconds": round(time.monotonic() - start, 3)}
                if math.isfinite(learner.norm):  # not in a step without pairs, or that the scaler skips
                    numbers["norm"] = learner.norm
                run.log.write("step", at.total, numbers, stage=stage.name, epoch=at.epoch + 1, step=at.step)
            if learner.stop:
                raise progress.Interrupted
            progress.check()
            if time.monotonic() - saved > 60 * MINUTES:
                run.save(state=learner.state())
                saved = time.monotonic()


def _order(stage: Stage, run: Run, steps: int, mine: range) -> list[list[int]]:
    """List the images of each remaining step of the epoch, slice by slice of this process."""
    at, size, slices = run.checkpoint, stage.settings.images, stage.settings.slices
    generator = torch.Generator().manual_seed(number_of(run.config.seed, stage.name, at.epoch))
    shuffled = torch.randperm(len(stage.examples(at.epoch)), generator=generator).tolist()  # type: ignore[arg-type]
    whole = [shuffled[step * size : (step + 1) * size] for step in range(at.step, steps)]
    return [images[number::slices] for images in whole for number in mine]


def _validate(stage: Stage, run: Run) -> None:
    """Validate, save the model if it is the best so far, and log."""
    ranks.broadcast(stage.modules.values())  # batch statistics are each process's own
    at, numbers, metric = run.checkpoint, stage.validate(), stage.best_metric
    value = numbers.get(metric)
    if at.metric != metric:  # a run of an older version chose by another one
        at.metric, at.best = metric, None
    is_best = value is None or at.best is None or (value < at.best if stage.lower_is_better else value > at.best)
    if is_best:
        at.best = value
        if ranks.is_first():
            stage.save(run.folder / "model", stage=stage.name, epoch=at.epoch + 1, held_out=numbers, chosen_by=metric)
    run.log.write("epoch", at.total, numbers, best=at.best, chosen_by=metric, stage=stage.name, epoch=at.epoch + 1)
    result = "nothing is held out, so the last epoch is kept"
    if value is not None:
        others = "".join(f", {name} {number:.2f}" for name, number in numbers.items() if name != metric)
        result = f"held-out {metric} {value:.4f}{' (best so far)' if is_best else ''}{others}"
    progress.say(f"{stage.name} {at.epoch + 1}/{stage.settings.epochs}: {result}")


@contextmanager
def _locating(stage: Stage, at: Checkpoint, slices: dict[int, list[Any]]) -> Iterator[None]:
    """Add stage, epoch, step and images to an error, such as scores that are not finite."""
    try:
        yield
    except PolyadicError as error:
        names = [name for batch in slices.values() for name in stage.names(batch)]
        images = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        place = f"stage {stage.name}, epoch {at.epoch + 1}, step {at.step + 1}, images {images}"
        raise PolyadicError(f"{place}: {error}") from error


def make_optimiser(settings: StageConfig, parameters: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Build the optimiser of a stage, of groups of parameters with a `factor` of the learning rate each."""
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            parameters,
            settings.rate,
            momentum=settings.momentum,
            weight_decay=settings.decay,
            fused=True,  # reads wide layers once per step
        )
    kind: type[torch.optim.Adam] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimiser]
    return kind(parameters, settings.rate, weight_decay=settings.decay)


def factor(settings: StageConfig, step: int, total: int) -> float:
    """Compute the factor of the learning rate. One-cycle rises for a tenth of the steps, then falls as a cosine."""
    if settings.schedule == "constant":
        return 1.0
    rise = 0.1 * total if settings.schedule == "one-cycle" else 0.0
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(total - rise, 1)))
