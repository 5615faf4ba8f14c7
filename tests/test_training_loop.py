"""The training loop: steps, clipping, schedules, optimisers, errors, and data from workers."""

from __future__ import annotations

import itertools
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from training_cases import finish, log_of, same, tiny

from polyadic.config import PRESETS
from polyadic.config.schema import Config, StageConfig
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import loop
from polyadic.training.examples import load_training
from polyadic.training.loading import load_batches
from polyadic.training.run import Checkpoint, MetricLog, Run
from polyadic.training.stages import Stage

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later, of threads


def test_a_step_is_clipped_by_the_total_norm(tmp_path: Path) -> None:
    one = {"epochs": 1, "images": 100, "optimiser": "sgd", "momentum": 0.0, "schedule": "constant", "decay": 0.0}
    stage = {f"triplets.{key}": value for key, value in one.items()} | {"triplets.rate": 0.5, "selection.epochs": 0}
    moved = []
    for clip in (0.01, 1e6):
        config = tiny(sources=("evidence",), **stage, **{"triplets.clip": clip})
        run = finish(config, tmp_path / str(clip))
        before, after = run.kept.models[()], run.kept.models["triplets",]
        weights = [name for name, _ in run.model.named_parameters()]
        squares = [(after[name] - before[name]).double().square().sum() for name in weights]
        moved.append(math.sqrt(sum(squares)) / 0.5)
        (step,) = (entry for entry in log_of(run.folder) if entry["event"] == "step")
        assert step["norm"] == pytest.approx(moved[-1] if clip == 1e6 else step["norm"], rel=1e-3)
    assert moved[0] == pytest.approx(0.01, rel=1e-3)
    assert moved[1] > 0.1


@pytest.mark.parametrize("slices", [1, 3])
def test_a_summed_loss_moves_weights_as_many_times_further_as_there_are_pairs(tmp_path: Path, slices: int) -> None:
    one = {"epochs": 1, "images": 100, "optimiser": "sgd", "momentum": 0.0, "schedule": "constant", "decay": 0.0}
    stage = {f"triplets.{key}": value for key, value in one.items()} | {"triplets.rate": 1e-3, "selection.epochs": 0}
    steps, norms = [], []
    for reduction in ("mean", "sum"):
        change = {"triplets.reduction": reduction, "triplets.slices": slices, "triplets.clip": 1e9, "head.dropout": 0.0}
        run = finish(tiny(sources=("evidence",), **stage, **change), tmp_path / reduction)
        before, after = run.kept.models[()], run.kept.models["triplets",]
        steps.append({name: after[name] - before[name] for name, _ in run.model.head.named_parameters(prefix="head")})
        (step,) = (entry for entry in log_of(run.folder) if entry["event"] == "step")
        norms.append((step["norm"], step["loss"]))
    pairs = sum(len(scene.relations) for scene in load_training(tiny(sources=("evidence",))).fit)
    assert pairs > 30
    for name, moved in steps[0].items():
        torch.testing.assert_close(steps[1][name], moved * pairs, rtol=0.02, atol=2e-6 * pairs)
    assert norms[1][0] == pytest.approx(norms[0][0] * pairs, rel=1e-4)
    assert norms[1][1] == pytest.approx(norms[0][1], rel=1e-6)  # what is logged is the mean


def test_schedules_by_hand() -> None:
    constant, cosine, cycle = (StageConfig(schedule=name) for name in ("constant", "cosine", "one-cycle"))
    assert [loop.factor(constant, step, 7) for step in range(7)] == [1.0] * 7
    half = [loop.factor(cosine, step, 6) for step in range(6)]
    assert half == pytest.approx([1, (2 + 3**0.5) / 4, 0.75, 0.5, 0.25, (2 - 3**0.5) / 4])
    assert [loop.factor(cycle, step, 20) for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize("total", [1, 2, 9, 10, 37, 5000])
def test_one_cycle_rises_for_a_tenth_to_the_rate_and_falls_to_nearly_nothing(total: int) -> None:
    rates = [loop.factor(StageConfig(schedule="one-cycle"), step, total) for step in range(total)]
    top = int(np.argmax(rates))
    assert top == math.ceil(0.1 * total) if total > 2 else top <= 1
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 10 / total**2 or total <= 2


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimisers_by_name(name: Any, kind: type[torch.optim.Optimizer]) -> None:
    stage = StageConfig(optimiser=name, rate=0.03, momentum=0.7, decay=0.2)
    made = loop.make_optimiser(stage, [{"params": [nn.Parameter(torch.zeros(2))], "factor": 1.0}])
    assert type(made) is kind
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.2)
    assert group.get("momentum", 0.7) == 0.7


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, at: int) -> int:
        return at


class LineStage(Stage):
    """Fit a line."""

    name = "line"
    best_metric = "score"
    device = torch.device("cpu")

    def __init__(self, loss: Any, settings: StageConfig, precision: torch.dtype = torch.float32) -> None:
        self.line, self.settings, self.precision = nn.Linear(2, 1), settings, precision
        self.modules = {"line": self.line}
        self.row_loss, self.metrics = loss, itertools.repeat({"score": 1.0})
        self.saved: list[dict[str, float]] = []

    def examples(self, epoch: int) -> Dataset[int]:
        return Numbers()

    def loss(self, batch: list[int]) -> Any:
        return self.row_loss(self.line, batch)

    def validate(self) -> dict[str, float]:
        return next(self.metrics)

    def save(self, folder: Path, **about: Any) -> None:
        self.saved.append(about["held_out"])

    def names(self, batch: list[int]) -> list[str]:
        return [f"image {at}" for at in batch]


class LineRun(Run):
    """Remember which checkpoints and models are saved."""

    def __init__(self, folder: Path, stage: LineStage) -> None:
        super().__init__(folder, Config(workers=0), {})
        self.checkpoint.stage, self.stage = "line", stage
        self.kept: list[str] = []

    def save(self, state: dict[str, Any] | None = None) -> None:
        self.kept += ["best"] * (len(self.stage.saved) - self.kept.count("best"))
        self.kept.append(f"epoch {self.checkpoint.epoch}")


def run(
    folder: Path, loss: Any, settings: StageConfig, precision: torch.dtype = torch.float32
) -> tuple[nn.Linear, list[str]]:
    """Train a line; return what was saved, in order."""
    torch.manual_seed(0)
    folder.mkdir()
    stage = LineStage(loss, settings, precision)
    line_run = LineRun(folder, stage)
    with line_run.training():
        loop.fit(stage, line_run)
    return stage.line, line_run.kept


def mean_square(line: nn.Linear, batch: list[int]) -> tuple[Tensor, int]:
    x = torch.tensor([[at, 1.0] for at in batch])
    return (line(x) - x[:, :1] * 2).square().mean(), len(batch)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda line, x: x * math.nan, "the loss is nan"),
        (lambda line, x: x * math.inf, "the loss is inf"),
        (lambda line, x: x * 0 + (line.weight * 0).sum().sqrt(), "the gradient is nan"),
    ],
)
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_and_names_the_images(
    tmp_path: Path, bad: Any, said: str
) -> None:
    calls: list[list[int]] = []

    def loss(line: nn.Linear, batch: list[int]) -> tuple[Tensor, int]:
        calls.append(batch)
        x, rows = mean_square(line, batch)
        return (bad(line, x) if len(calls) == 4 else x), rows

    with pytest.raises(PolyadicError) as caught:
        run(tmp_path / "run", loss, StageConfig(epochs=2, images=5, rate=1e-3))
    line = str(caught.value)
    assert line.startswith("stage line, epoch 2, step 1, images ")
    names = line[len("stage line, epoch 2, step 1, images ") :].partition(":")[0]
    assert names == ", ".join(f"image {at}" for at in calls[3][:4]) + " and 1 more"
    assert said in line
    assert "lower learning rate" in line
    assert "\n" not in line


def test_in_float16_a_gradient_that_is_never_finite_stops_the_run(tmp_path: Path) -> None:
    def bad(line: nn.Linear, batch: list[int]) -> tuple[Tensor, int]:
        x, rows = mean_square(line, batch)
        return x + (line.weight * 0).sum().sqrt(), rows

    with pytest.raises(PolyadicError, match=r"^stage line, epoch 3, .*no gradient is finite in float16"):
        run(tmp_path / "run", bad, StageConfig(epochs=9, images=1, rate=1e-3), torch.float16)


def test_a_step_without_pairs_changes_nothing_and_the_log_stays_json(tmp_path: Path) -> None:
    def loss(line: nn.Linear, batch: list[int]) -> tuple[Tensor, int] | None:
        return None if 3 in batch else mean_square(line, batch)

    run(tmp_path / "run", loss, StageConfig(epochs=2, images=4, rate=1e-3))
    steps = [entry for entry in log_of(tmp_path / "run") if entry["event"] == "step"]
    assert len(steps) == 6
    assert sum("norm" not in entry for entry in steps) == 2


def test_the_logged_loss_is_the_mean_over_the_rows_of_the_epoch_so_far(tmp_path: Path) -> None:
    values: list[tuple[float, int]] = []

    def loss(line: nn.Linear, batch: list[int]) -> tuple[Tensor, int]:
        x, rows = mean_square(line, batch)
        values.append((float(x.detach()), rows))
        return x, rows

    run(tmp_path / "run", loss, StageConfig(epochs=1, images=4, rate=1e-3))
    logged = [entry["loss"] for entry in log_of(tmp_path / "run") if entry["event"] == "step"]
    assert [rows for _, rows in values] == [4, 4, 3]
    total = np.cumsum([x * n for x, n in values]) / np.cumsum([n for _, n in values])
    assert logged == pytest.approx(total.tolist())


def test_an_equal_score_is_no_better(tmp_path: Path) -> None:
    _, kept = run(tmp_path / "run", mean_square, StageConfig(epochs=3, images=20, rate=1e-3))
    assert kept == ["best", "epoch 1", "epoch 2", "epoch 3"]


def test_sgd_steps_by_hand(tmp_path: Path) -> None:
    """Full batches of a line, with momentum: v <- m v + g, w <- w - r v."""
    line, _ = run(tmp_path / "run", mean_square, StageConfig(epochs=5, images=11, rate=1e-3, momentum=0.5, clip=1e9))
    torch.manual_seed(0)
    start = nn.Linear(2, 1)
    w = np.array([*start.weight.detach().double().tolist()[0], start.bias.item()])
    v, x = np.zeros(3), np.array([[at, 1.0, 1.0] for at in range(11)])
    for _ in range(5):
        v = 0.5 * v + 2 * x.T @ (x @ w - 2 * x[:, 0]) / 11
        w = w - 1e-3 * v
    got = [*line.weight.detach().tolist()[0], line.bias.item()]
    assert got == pytest.approx(w.tolist(), rel=1e-4)


@forks
def test_batches_of_many_tensors_need_few_open_files() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = _Many()
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        got = list(load_batches(many, [list(range(at, at + 40)) for at in range(0, 160, 40)], 2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert same(got, [[many[i] for i in range(at, at + 40)] for at in range(0, 160, 40)])


class _Many(torch.utils.data.Dataset[Any]):
    def __getitem__(self, at: int) -> tuple[list[Tensor], Tensor, np.ndarray, str]:
        return [torch.full((3, 2), float(at + i)) for i in range(9)], torch.arange(at % 3), np.eye(2), f"{at}"


@pytest.mark.parametrize(("lower", "kept"), [(True, [3.0, 2.0]), (False, [3.0])])
def test_the_stage_says_whether_a_lower_value_is_better(tmp_path: Path, lower: bool, kept: list[float]) -> None:
    stage = LineStage(lambda line, batch: None, StageConfig(epochs=3, images=11, rate=1e-3))
    stage.lower_is_better = lower
    stage.metrics = iter([{"score": score} for score in (3.0, 2.0, 2.5)])  # type: ignore[assignment]
    line_run = LineRun(tmp_path, stage)
    with line_run.training():
        loop.fit(stage, line_run)
    assert [numbers["score"] for numbers in stage.saved] == kept


def test_the_best_of_a_run_that_chose_by_another_metric_counts_no_more(tmp_path: Path) -> None:
    stage = LineStage(lambda line, batch: None, StageConfig(epochs=1, images=11, rate=1e-3))
    stage.metrics = iter([{"score": 1.0}])  # type: ignore[assignment]
    line_run = LineRun(tmp_path, stage)
    line_run.checkpoint.best = 40.0  # a recall: checkpoints had no name for it
    with line_run.training():
        loop.fit(stage, line_run)
    assert [numbers["score"] for numbers in stage.saved] == [1.0]


def test_metrics_are_logged_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)  # not installed
    log = MetricLog(tmp_path, Checkpoint())
    log.write("step", 1, {"loss": 0.5}, stage="triplets")
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text())["loss"] == 0.5
    assert not (tmp_path / "tensorboard").exists()


def test_the_paper_s_recipe_learns_a_small_world_by_the_sum_and_hardly_by_the_mean(tmp_path: Path) -> None:
    """Its optimiser, rate, clipping and epochs, on 135 drawn images; a uniform distribution has the loss 8.48."""
    recipe = {f"triplets.{name}": value for name, value in asdict(PRESETS["vrd"].triplets).items()}
    world = tiny(sources=("evidence",)).change(**{"world.train": 150, "head.hidden": 256, "selection.epochs": 0})
    losses = {}
    for reduction in ("sum", "mean"):
        run = finish(world.change(**{**recipe, "triplets.reduction": reduction}), tmp_path / reduction)
        losses[reduction] = [entry["loss"] for entry in log_of(run.folder) if entry["event"] == "epoch"]
    assert recipe["triplets.reduction"] == "sum"
    assert losses["sum"] == sorted(losses["sum"], reverse=True)
    assert losses["sum"][-1] < 3.5
    assert losses["mean"][-1] > losses["sum"][-1] + 1.5
