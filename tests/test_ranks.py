"""Several processes train one model as one process does, and end together."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from detector_cases import tiny as tiny_detector
from tiny_runs import write_tiny
from training_cases import ALL_STAGES, Spy, tiny, watched

from polyadic.config.schema import Config
from polyadic.progress import Interrupted, request_stop
from polyadic.training import ranks, train
from polyadic.training.detector import train_detector
from polyadic.training.region_cache import Regions

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of fork, in newer Pythons
]
Outcome = tuple[str, Any]  # ("result", value), ("error", line) or ("exit", code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _process(rank: int, n: int, port: int, folder: Path, act: Callable[[int], Any]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.stderr = (folder / f"{rank}.err").open("w")  # pytest has replaced it
    try:
        outcome: Outcome = ("result", act(rank))
    except BaseException as error:
        outcome = ("error", str(error) or type(error).__name__)
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(outcome))
    os._exit(0)


def together(n: int, folder: Path, act: Callable[[int], Any], among: int = 0) -> list[Outcome]:
    """Call a function in n processes of `among`; return what becomes of each, and what it prints."""
    folder.mkdir(exist_ok=True)
    context, port = multiprocessing.get_context("fork"), free_port()
    processes: list[Any] = [
        context.Process(target=_process, args=(rank, among or n, port, folder, act)) for rank in range(n)
    ]
    for process in processes:
        process.start()
    outcomes: list[Outcome] = []
    for rank, process in enumerate(processes):
        process.join(120)
        assert process.exitcode is not None, "it hangs"
        path = folder / f"{rank}.pickle"
        outcomes.append(pickle.loads(path.read_bytes()) if path.exists() else ("exit", process.exitcode))
    return outcomes


def printed(folder: Path) -> list[str]:
    lines = [line for path in sorted(folder.glob("*.err")) for line in path.read_text().splitlines()]
    return [line for line in lines if line.startswith("polyadic: ")]


def curve(folder: Path) -> list[tuple[Any, ...]]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(row["event"], row["stage"], row["epoch"], row.get("norm", 0.0), row.get("loss", 0.0)) for row in entries]


def agree(one: Path, other: Path) -> None:
    """The same curves and the same weights, but for the last digits."""
    mine, theirs = curve(one), curve(other)
    assert [row[:3] for row in mine] == [row[:3] for row in theirs]
    for row, expected in zip(mine, theirs, strict=True):
        assert row[3:] == pytest.approx(expected[3:], rel=2e-4)
    weights, others = (torch.load(folder / "last.pt", weights_only=True)["parts"]["model"] for folder in (one, other))
    for name, x in weights.items():
        torch.testing.assert_close(x, others[name], rtol=1e-3, atol=1e-4, msg=name)


def small(slices: int, **changes: Any) -> Config:
    """22 images in steps of 5: the last has 2, so that one of three processes has none. With dropout."""
    stages = ("boxes", "triplets", "selection")
    values: dict[str, Any] = {f"{stage}.slices": slices for stage in stages} | {
        f"{stage}.images": 5 for stage in stages
    }
    once = {"triplets.epochs": 2, "selection.epochs": 1, "boxes.epochs": 1, "boxes.rate": 0.01}
    return tiny(sources=("evidence",)).change(**values, **once, **changes)


@pytest.mark.parametrize("n", [2, 3])
def test_processes_follow_the_curve_of_one(n: int, tmp_path: Path) -> None:
    train(small(n), tmp_path / "one")
    outcomes = together(n, tmp_path / "said", lambda rank: train(small(1), tmp_path / "many") and None)
    assert outcomes == [("result", None)] * n
    agree(tmp_path / "many", tmp_path / "one")


def test_slices_change_the_last_digits_alone_without_dropout(tmp_path: Path) -> None:
    still = {"head.dropout": 0.0, "selector.dropout": 0.0, "geometry.dropout": 0.0}
    for slices in (1, 4):
        train(small(slices, **still), tmp_path / str(slices))
    agree(tmp_path / "4", tmp_path / "1")


def test_pixels_are_pooled_once_for_all_processes(tmp_path: Path) -> None:
    once = {"backbone.images": 4, "boxes.epochs": 0, "triplets.epochs": 1, "selection.epochs": 0}
    config = tiny(sources=("pixels",), **{**ALL_STAGES, **once, "backbone.slices": 2, "triplets.slices": 2})

    def act(rank: int) -> list[str]:
        names: list[str] = []
        compute = Regions.compute

        def spy(self: Regions, *rest: Any) -> Any:
            names.append(rest[-1].name)
            return compute(self, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Regions, "compute", spy)
            train(config, tmp_path / "many" / "run")
        return names

    outcomes = together(2, tmp_path / "said", act)
    assert [kind for kind, _ in outcomes] == ["result", "result"], outcomes
    mine, theirs = (names for _, names in outcomes)
    assert len(mine) + len(theirs) == len({*mine, *theirs}) == 24  # each image once
    assert abs(len(mine) - len(theirs)) <= 1
    train(config, tmp_path / "one" / "run")
    rows, expected = curve(tmp_path / "many" / "run"), curve(tmp_path / "one" / "run")
    steps = [row[-1] for row in rows if row[:2] == ("step", "backbone")]
    assert steps == pytest.approx([row[-1] for row in expected if row[:2] == ("step", "backbone")], rel=1e-3)


def test_a_detector_learns_in_two_processes_as_in_one(tmp_path: Path) -> None:
    config = tiny_detector().change(**{"training.slices": 2, "training.images": 4})
    train_detector(config, tmp_path / "one")
    outcomes = together(2, tmp_path / "said", lambda rank: train_detector(config, tmp_path / "many") and None)
    assert outcomes == [("result", None)] * 2
    one, many = curve(tmp_path / "one"), curve(tmp_path / "many")
    assert [row[-1] for row in many if row[0] == "step"] == pytest.approx(
        [row[-1] for row in one if row[0] == "step"], rel=1e-3
    )


def test_a_run_stops_everywhere_and_continues_on_another_number_of_processes(tmp_path: Path) -> None:
    train(small(2), tmp_path / "one")

    def stopped(rank: int) -> None:
        with watched(Spy()):
            if rank == 1:
                request_stop()  # one of them is asked
            with suppress(Interrupted):
                train(small(2), tmp_path / "many")
                raise AssertionError("not stopped")

    assert together(2, tmp_path / "said", stopped) == [("result", None)] * 2
    assert json.loads((tmp_path / "many" / "config.json").read_text())["triplets"]["slices"] == 2
    too_many = together(3, tmp_path / "more", lambda rank: train(small(2), tmp_path / "many", resume=True) and None)
    assert "has 2 slices per step, so at most 2 processes" in too_many[0][1]
    assert [kind for kind, _ in too_many] == ["error", "exit", "exit"]
    train(small(2), tmp_path / "many", resume=True)
    agree(tmp_path / "many", tmp_path / "one")


def test_a_process_that_dies_ends_the_others_with_one_line(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        if rank == 1:
            step, count = ranks.add_gradients, iter(range(9))

            def die(*rest: Any) -> None:
                if next(count) == 7:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(*rest)

            ranks.add_gradients = die  # type: ignore[assignment]
        train(small(3), tmp_path / "run")

    start = time.monotonic()
    outcomes = together(3, tmp_path / "said", act)
    assert time.monotonic() - start < 60
    assert outcomes[1] == ("exit", -signal.SIGKILL)
    lines = [value for kind, value in outcomes if kind == "error"] + printed(tmp_path / "said")
    assert len(lines) == 1
    assert "another process of this training ended" in lines[0]
    train(small(3), tmp_path / "one")
    train(small(3), tmp_path / "run", resume=True)
    agree(tmp_path / "run", tmp_path / "one")


def test_processes_of_other_data_or_code_are_refused(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        train(small(2, **{"world.seed": 1} if rank else {}), tmp_path / "run")

    outcomes = together(2, tmp_path / "said", act)
    assert "process 1 on " in outcomes[0][1]
    assert "has other config than process 0" in outcomes[0][1]
    assert outcomes[1] == ("exit", 1)

    def code(rank: int) -> None:
        with ranks.joined():
            ranks.compare(code="a", data="b" * rank)

    assert "process 1 on " in (outcomes := together(2, tmp_path / "said2", code))[0][1]
    assert "has other data than process 0" in outcomes[0][1]


def test_half_of_a_cluster_is_one_line(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        ranks.JOIN = timedelta(seconds=2)
        train(small(2), tmp_path / "run")

    ((kind, line),) = together(1, tmp_path / "said", act, among=2)
    assert kind == "error"
    assert "2 processes were to train together, but not all of them came" in line
    assert "\n" not in line


def test_an_error_in_one_process_ends_all(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    outcomes = together(2, tmp_path / "said", lambda rank: train(small(2), tmp_path / "run") and None)
    assert "exists already" in outcomes[0][1]
    assert outcomes[1] == ("exit", 1)
    assert printed(tmp_path / "said") == []


SCRIPT = """
    import os, signal, sys
    from polyadic.training import ranks
    from polyadic.cli import main

    add, steps = ranks.add_gradients, iter(range(100))

    def die(*rest):
        if next(steps) == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and ranks.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        add(*rest)

    ranks.add_gradients = die
    main()
"""


def test_torchrun_starts_a_killed_run_again_and_it_continues(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    config = write_tiny(tmp_path)
    base = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    rest = ["train", str(config), "--out", "run", "--workers", "0", "--selection.epochs", "0", "--triplets.epochs", "1"]
    command = [*base, "--master-port", str(free_port()), "script.py", *rest]
    result = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("model: run/model, stage triplets, epoch 1") == 1
    assert "another process of this training ended" in result.stderr
    assert len([row for row in curve(tmp_path / "run") if row[0] == "epoch"]) == 1
