"""An interrupted and resumed run equals one that was never interrupted, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import (
    ALL_STAGES,
    Crash,
    Ended,
    Spy,
    StopAfterStep,
    crash,
    finish,
    keeping,
    log_of,
    same,
    tiny,
    watched,
)

from polyadic import progress
from polyadic.config.schema import Config
from polyadic.progress import Interrupted, interruptible, request_stop
from polyadic.training import loop, train
from polyadic.training import run as checkpoint

PLACES = (  # progress events at which a run of all stages is stopped
    "backbone 1/1, step 1",
    "say boxes 1/1",
    "features, step 9",
    "end features",
    "triplets 1/2, step 3",
    "end triplets 1/2 +2",  # in its validation
    "say triplets 2/2",
    "selection 1/2, step 1",
    "say selection 2/2",
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("features")
    return tiny(**ALL_STAGES, **{"cache.folder": str(folder), "pixels.reduce": 6})


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return finish(config, tmp_path_factory.mktemp("whole") / "run")


def at_place(whole: Ended, place: str) -> int:
    """Find the first event that starts so; "+2" is two events later."""
    start, _, later = place.partition(" +")
    return next(at for at, seen in enumerate(whole.spy.seen) if seen.startswith(start)) + int(later or 0)


def check(got: Ended, whole: Ended) -> None:
    for stage, state in got.kept.states.items():  # of the stages that ran after the resume
        assert same(state, whole.kept.states[stage]), stage
    assert same(got.model.state_dict(), whole.model.state_dict())
    assert got.model.stages == whole.model.stages
    assert log_of(got.folder) == log_of(whole.folder)


@pytest.mark.parametrize("place", PLACES)
def test_a_stopped_run_resumes_bit_for_bit(whole: Ended, config: Config, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "run"
    late = place == "say selection 2/2"  # the work is done: nothing is left to stop
    changed = config.change(**{"cache.folder": str(tmp_path / "features")}) if "features" in place else config
    spy = Spy(at_place(whole, place), request_stop)
    with watched(spy), nullcontext() if late else pytest.raises(Interrupted):
        train(changed, folder)
    assert late or len(spy.seen) <= spy.at + 9, "it stops soon"
    check(finish(changed, folder, resume=True), whole)


@pytest.mark.parametrize(("place", "minutes"), [*((place, 0) for place in PLACES[::3]), ("say triplets", 10)])
def test_a_crashed_run_resumes_bit_for_bit(
    whole: Ended, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, minutes: int
) -> None:
    monkeypatch.setattr(loop, "MINUTES", minutes)  # 0: a checkpoint after each step
    with pytest.raises(Crash), watched(Spy(at_place(whole, place), crash)):
        train(config, tmp_path / "run")
    check(finish(config, tmp_path / "run", resume=True), whole)


def test_a_run_stopped_after_every_step_resumes_bit_for_bit(whole: Ended, config: Config, tmp_path: Path) -> None:
    folder, parts = tmp_path / "run", 0
    with keeping() as kept:
        while parts < 30:
            try:
                with watched(StopAfterStep()):
                    model = train(config, folder, resume=parts > 0)
                break
            except Interrupted:
                parts += 1
    assert parts == 3 + 3 + 6 + 6
    assert set(kept.states) == {"backbone", "boxes", "triplets", "selection"}
    check(Ended(folder, kept, Spy(), model), whole)


SCRIPT = """
    import sys
    import torch
    from pathlib import Path
    from polyadic.config import load_config
    from polyadic.progress import Interrupted, Reporter, interruptible, reporting
    from polyadic.training import train

    class Lines(Reporter):
        def begin(self, text, total):
            self.text = text
        def move(self, done, **numbers):
            print(f"{self.text}, step {done}", flush=True)

    torch.set_num_threads(1)
    with interruptible(), reporting(Lines()):
        try:
            train(load_config(sys.argv[1]), sys.argv[2])
        except Interrupted:
            sys.exit(130)
"""


def start(config: Config, folder: Path, place: str) -> subprocess.Popen[str]:
    """Start a run in a session of its own, and wait until it reaches this place."""
    path = folder.with_suffix(".toml")
    path.write_text(config.to_toml(), encoding="utf-8")
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), str(folder)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stdout is not None
    for line in run.stdout:
        if line.strip() == place:
            return run
    raise AssertionError(run.communicate()[1])


def session(leader: int) -> list[int]:
    """List the live processes of a session."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == leader and state != "Z":
            processes.append(int(path.parent.name))
    return processes


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_ended_by_a_signal_leaves_no_workers_behind_and_resumes(
    whole: Ended, config: Config, tmp_path: Path, how: signal.Signals
) -> None:
    run = start(config.change(workers=2), tmp_path / "run", "triplets 1/2, step 1")
    assert len(session(run.pid)) > 1, "workers are running"
    if how == signal.SIGKILL:
        run.kill()
    else:
        os.killpg(run.pid, how)  # as a terminal or a job scheduler does: workers receive it too
    _, errors = run.communicate(timeout=60)
    assert run.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert "Traceback" not in errors
    gone(run.pid)
    check(finish(config, tmp_path / "run", resume=True), whole)


def gone(leader: int) -> None:
    deadline = time.monotonic() + 30  # torch's workers look for their parent every few seconds
    while session(leader) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session(leader)


def test_a_finished_run_is_returned_as_it_is(whole: Ended, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("nothing is left to train")

    log = log_of(whole.folder)
    monkeypatch.setattr(loop, "make_optimiser", never)
    monkeypatch.setattr(checkpoint, "save", never)
    again = train(config, whole.folder, resume=True)
    assert same(again.state_dict(), whole.model.state_dict())
    assert again.stages == ("backbone", "boxes", "triplets", "selection")
    assert not again.training
    assert log_of(whole.folder) == log


def test_paths_and_speed_may_change_on_resume_and_the_weights_stay(
    whole: Ended, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted), watched(Spy(at_place(whole, "triplets 1/2, step 2"), request_stop)):
        train(config, tmp_path / "run")
    other = config.change(**{"cache.gigabytes": 0.0, "cache.folder": "", "device": "auto"})
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        other = other.change(device="cpu")
    check(finish(other, tmp_path / "run", resume=True), whole)


def test_a_second_ctrl_c_stops_at_once() -> None:
    before: Callable[..., Any] | int | None = signal.getsignal(signal.SIGINT)
    with interruptible():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            progress.check()
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.type is KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is before
