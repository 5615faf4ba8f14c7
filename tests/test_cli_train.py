"""`polyadic train` and `polyadic config` as a person types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import PIXELS, Command, call, write_tiny

from polyadic import progress
from polyadic.cli.options import split_words
from polyadic.config import PRESETS, leaves, load_config

SHORT = ("--triplets.epochs", "1", "--selection.epochs", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs share it, and with it their features."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return write_tiny(folder)


def test_training_prints_the_model_and_the_next_command(command: Command, folder: Path, tiny: Path) -> None:
    out = folder / "said"
    result = command(
        "train", tiny, "--out", out, "--head.rank=3", "--triplets.rate", "2e-3", "--seed", "1", *PIXELS, *SHORT
    )
    assert result.code == 0
    about = f"model: {out / 'model'}, stage triplets, epoch 1, chosen by held-out loss: loss "
    assert result.out.startswith(about)
    assert result.out.endswith(f"next: polyadic evaluate {out}\n")
    assert "triplets 1/1: held-out loss" in result.err
    config = load_config(out / "config.json")
    keys = ("head.rank", "triplets.rate", "seed", "triplets.epochs", "head.hidden", "pixels.strides")
    assert [dict(leaves(config))[key] for key in keys] == [3, 2e-3, 1, 1, 32, (8,)]


def test_a_resumed_run_ends_with_the_same_weights(command: Command, folder: Path, tiny: Path) -> None:
    words = ["train", str(tiny), "--triplets.epochs", "20", "--selection.epochs", "1", "--out"]
    out = folder / "interrupted"
    code = f"from polyadic.cli import main; main({[*words, str(out)]!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        for line in job.stderr:
            if line.startswith("triplets 2/20"):
                job.send_signal(signal.SIGINT)
                break
        rest = job.stderr.read().splitlines()
        assert job.wait(60) == 130
    assert rest[-1] == f"polyadic: stopped, no work is lost; continue with: polyadic train --resume --out {out}"
    assert not any("Traceback" in line or line.startswith("selection") for line in rest)
    assert command("train", "--resume", "--out", out).code == 0
    whole = folder / "whole"
    assert command(*words, whole).code == 0
    resumed, straight = (load_file(each / "model" / "model.safetensors") for each in (out, whole))
    assert list(resumed) == list(straight)
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_a_run_is_replaced_only_with_overwrite(command: Command, folder: Path, tiny: Path) -> None:
    out = folder / "kept"
    train = ("train", tiny, "--out", out, *SHORT)
    assert command(*train).code == 0
    log = (out / "log.jsonl").read_text()
    assert "exists already: continue it with --resume" in command(*train).message
    other = command(*train, "--resume", "--head.rank", "4").message
    assert "was started with head.rank = 2, not 4" in other
    assert "mutually exclusive" in command(*train, "--resume", "--overwrite").message
    late = (*PIXELS, "--pixels.weights", "none.pth")  # found out after the data is read
    missing = command(*train, "--overwrite", *late).message
    assert "no file none.pth" in missing
    assert (out / "log.jsonl").read_text() == log
    (out / "mine.txt").touch()
    assert "--overwrite would delete mine.txt" in command(*train, "--overwrite", "--seed", "5").message
    assert (out / "log.jsonl").read_text() == log
    (out / "mine.txt").unlink()
    assert command(*train, "--overwrite", "--seed", "5").code == 0
    assert load_config(out / "config.json").seed == 5
    assert [each.name for each in folder.iterdir() if "kept" in each.name] == ["kept"]


def test_overwrite_refuses_a_folder_that_is_not_a_run(
    command: Command, tmp_path: Path, folder: Path, tiny: Path
) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / "config.json").write_text("{}")
    message = command("train", tiny, "--out", out, "--overwrite").message
    assert "--overwrite replaces runs only, and" in message
    assert (out / "config.json").exists()
    assert "is not a run: it has no config.json" in command("train", "--resume", "--out", tmp_path / "none").message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--head.rnk", "3"), "no config key head.rnk; did you mean head.rank?"),
        (("--resum", "3"), "no option --resum; did you mean --resume?"),
        (("--head", "3"), "head is a section"),
        (("--head.rank", "0"), "head.rank: expected a whole number >= 1"),
        (("--triplets.optimiser", "sdg"), "did you mean sgd?"),
        (("--head.rank",), "--head.rank needs a value"),
        (("--pixels.strides", "8", "16"), "join several values of a field by commas"),
        (("--data.dataset", "vrd"), "vrd: where is it? Give its folder with --data"),
        (("--device", "abacus"), "device 'abacus' cannot be used here"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_user_errors_print_one_line_and_create_nothing(
    command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    result = command("train", write_tiny(tmp_path), "--out", tmp_path / "run", *words)
    assert message in result.message
    assert not (tmp_path / "run").exists()


def test_a_config_must_be_named(command: Command, tmp_path: Path) -> None:
    assert "CONFIG is missing" in command("train", "--out", tmp_path / "run").message
    assert "no preset and no file is called toi" in command("train", "toi", "--out", tmp_path / "run").message


def test_config_fields_may_stand_anywhere_and_use_an_equals_sign() -> None:
    words = ["--head.rank", "3", "toy", "--ranking.prior", "-1", "--seed=2", "--data.root=a=b"]
    assert split_words(words) == ("toy", {"head.rank": "3", "ranking.prior": "-1", "seed": "2", "data.root": "a=b"})


def test_a_printed_preset_loads_as_the_preset(command: Command, tmp_path: Path) -> None:
    printed = command("config", "toy").out
    assert "rank = 5" in printed
    assert "# paper: R, Table 4" in printed
    path = tmp_path / "mine.toml"
    path.write_text(printed)
    assert load_config(path) == PRESETS["toy"]


def test_config_lists_the_presets(command: Command) -> None:
    lines = command("config").out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert lines[0].split(maxsplit=1)[1].startswith("dataset vrd, ")


def test_progress_bars_are_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with progress.showing():
            for _ in progress.track([1, 2, 3], "features"):
                pass
            progress.say("a line [that] stays")
            with progress.task("triplets 1/2", 40) as move:
                move(7, loss=1.2345, rate=1e-4)
                time.sleep(0.3)
        shown = capsys.readouterr().err
        assert "a line [that] stays" in shown
        for text in ("triplets 1/2", "7/40", "loss 1.23", "rate 0.0001"):
            assert (text in shown) is terminal


def test_without_a_terminal_a_long_task_says_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 8))  # seconds
    monkeypatch.setattr("polyadic.progress.time.monotonic", lambda: float(next(clock)))
    with progress.showing(), progress.task("triplets 1/2", 40) as move:
        for step in range(1, 13):
            move(step, loss=1.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "triplets 1/2: 4/40  loss 1.5"  # 32 seconds
    assert len(lines) == 3


def test_the_data_root_is_stored_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("data", "draw", "--out", tmp_path / "drawn", "--train", "24", "--test", "6") == 0
    monkeypatch.chdir(tmp_path)
    tiny = write_tiny(tmp_path)
    words = ("--data.dataset", "coco", *SHORT)
    assert call("train", tiny, *words, "--data", "drawn", "--out", "run") == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["data"]["root"] == str(tmp_path / "drawn")
    assert call("train", tiny, *words, "--resume", "--out", "run") == 0  # the run knows where its data is
