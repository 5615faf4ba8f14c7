"""A run that was interrupted, by word or by force, ends as one that was not: to the bit."""

from __future__ import annotations

import os
import random
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

PLACES = {  # what a reporter hears of a run of all stages, and where a run is stopped
    "backbone 1/1, step 1",
    "end backbone 1/1",
    "validation, step 1",
    "say backbone 1/1",
    "begin boxes 1/1",
    "boxes 1/1, step 2",
    "say boxes 1/1",
    "begin features",
    "features, step 9",
    "end features",
    "begin triplets 1/2",
    "triplets 1/2, step 3",
    "end triplets 1/2 +2",  # in its validation
    "say triplets 1/2",
    "triplets 2/2, step 2",
    "say triplets 2/2",
    "begin selection 1/2",
    "selection 1/2, step 1",
    "end selection 2/2 +1",
    "say selection 2/2",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("features")
    return tiny(**ALL_STAGES, **{"cache.folder": str(folder), "pixels.reduce": 6})


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return finish(config, tmp_path_factory.mktemp("whole") / "run")


def at_place(whole: Ended, place: str) -> int:
    """The first time; "+2" is two moments later."""
    start, _, later = place.partition(" +")
    return next(at for at, seen in enumerate(whole.spy.seen) if seen.startswith(start)) + int(later or 0)


def check(got: Ended, whole: Ended) -> None:
    for stage, state in got.kept.states.items():  # of the stages that the last part of the run had a share in
        assert same(state, whole.kept.states[stage]), stage
    assert same(got.model.state_dict(), whole.model.state_dict())
    assert got.model.stages == whole.model.stages
    assert log_of(got.folder) == log_of(whole.folder)


def test_the_run_has_all_the_places(whole: Ended) -> None:
    for place in PLACES:
        at_place(whole, place)


@pytest.mark.parametrize("place", sorted(PLACES))
def test_stopped_and_resumed_is_never_stopped(whole: Ended, config: Config, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "run"
    late = place == "say selection 2/2"  # the work is done: nothing is left to stop
    changed = config.change(**{"cache.folder": str(tmp_path / "own")}) if "features" in place else config
    spy = Spy(at_place(whole, place), request_stop)
    with watched(spy), nullcontext() if late else pytest.raises(Interrupted):
        train(changed, folder)
    assert late or len(spy.seen) <= spy.at + 9, "it stops soon"
    check(finish(changed, folder, resume=True), whole)


@pytest.mark.parametrize(("place", "minutes"), [*((place, 0) for place in sorted(PLACES)[::3]), ("say triplets", 10)])
def test_crashed_and_resumed_is_never_crashed(
    whole: Ended, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, minutes: int
) -> None:
    monkeypatch.setattr(loop, "MINUTES", minutes)  # 0: a checkpoint after each step
    with pytest.raises(Crash), watched(Spy(at_place(whole, place), crash)):
        train(config, tmp_path / "run")
    check(finish(config, tmp_path / "run", resume=True), whole)


def test_stopped_after_each_single_step(whole: Ended, config: Config, tmp_path: Path) -> None:
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


def test_stopped_and_crashed_at_random_again_and_again(whole: Ended, config: Config, tmp_path: Path) -> None:
    chance, parts, folder = random.Random(5), 0, tmp_path / "run"
    while parts < 30:
        act = chance.choice([request_stop, crash])
        try:
            with watched(Spy(chance.randrange(60), act)):
                train(config, folder, resume=parts > 0)
            break
        except (Interrupted, Crash):
            parts += 1
    assert parts > 1
    check(finish(config, folder, resume=True), whole)


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
    """A run of its own, in its own session, that has come to this place."""
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
    """Processes of a session, but the dead ones."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@needs_proc
def test_ctrl_c_with_workers_ends_quietly_and_the_run_goes_on(whole: Ended, config: Config, tmp_path: Path) -> None:
    run = start(config.change(workers=2), tmp_path / "run", "triplets 1/2, step 1")
    assert len(session(run.pid)) > 1, "workers are at work"
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: workers hear it too
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in errors
    gone(run.pid)
    check(finish(config, tmp_path / "run", resume=True), whole)


@needs_proc
def test_killed_with_workers_leaves_no_orphans_and_the_run_goes_on(
    whole: Ended, config: Config, tmp_path: Path
) -> None:
    run = start(config.change(workers=2), tmp_path / "run", "triplets 2/2, step 1")
    run.kill()
    run.communicate(timeout=60)
    assert run.returncode == -signal.SIGKILL
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


def test_what_is_free_may_change_and_the_weights_stay(whole: Ended, config: Config, tmp_path: Path) -> None:
    with pytest.raises(Interrupted), watched(Spy(at_place(whole, "triplets 1/2, step 2"), request_stop)):
        train(config, tmp_path / "run")
    other = config.change(**{"cache.gigabytes": 0.0, "cache.folder": "", "device": "auto"})
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        other = other.change(device="cpu")
    check(finish(other, tmp_path / "run", resume=True), whole)


def test_a_second_ctrl_c_does_not_wait() -> None:
    before: Callable[..., Any] | int | None = signal.getsignal(signal.SIGINT)
    with interruptible():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            progress.check()
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.type is KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is before
