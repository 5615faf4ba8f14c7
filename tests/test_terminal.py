"""What reaches the terminal: names in files cannot command it, and a closed output is no error."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from predict_cases import BOXES, lay_out, save_models
from tiny_runs import Command
from vrd_files import HORSE, RIDER, relation, write_vrd

import polyadic.cli
from polyadic.progress import printable, safe_console, say, showing, track
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\rdog\u202e"


def plain(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_what_a_terminal_obeys_is_escaped_and_the_rest_stays() -> None:
    assert printable("dög 日本\u3000x\xa0y") == "dög 日本\u3000x\xa0y"
    assert printable(HOSTILE) == r"a\x1b]0;owned\x07\x1b[2J\x9b31m\rdog\u202e"
    assert printable(printable(HOSTILE)) == printable(HOSTILE)
    assert printable("a\nb") == r"a\nb"
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert printable("raw\udcff") == r"raw\udcff"


def test_consoles_escape_text_and_keep_their_own_styles() -> None:
    file = io.StringIO()
    safe_console(file=file, force_terminal=True, color_system="standard").print("[b]a\x1b[2J\x9b31mdog", style="bold")
    assert file.getvalue() == "\x1b[1m[b]a\\x1b[2J\\x9b31mdog\x1b[0m\n"


def test_all_text_of_the_commands_leaves_through_two_doors() -> None:
    doors = re.compile(r"\bprint\(|secho\(|typer\.echo\(|click\.echo\(|Console\(|stdout\.write|stderr\.write")
    folder = Path(polyadic.cli.__file__).parent
    uses = {path.name: doors.findall(path.read_text()) for path in folder.glob("*.py")}
    uses["tables.py"] = [use for use in uses["tables.py"] if use != "print("]  # of a safe console
    assert {name: use for name, use in uses.items() if use} == {"options.py": ["typer.echo("]}


@pytest.mark.parametrize("words", [("data", "stats"), ("data", "check"), ("data", "check", "--json")])
def test_class_and_file_names_of_a_dataset_are_escaped(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    bad = [] if words[1] == "stats" else [relation(RIDER, 9, HORSE)]
    write_vrd(tmp_path, {f"{HOSTILE}.jpg": [relation(RIDER, 0, HORSE), *bad]}, {"c.jpg": [relation(RIDER, 0, HORSE)]})
    (tmp_path / "objects.json").write_text(json.dumps(["person", HOSTILE, "hat"]))
    result = command(words[0], words[1], "vrd", "--root", tmp_path, *words[2:])
    assert "owned" in result.out
    assert plain(result.out + result.err)


def test_predictions_errors_and_notes_are_escaped(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path, save_models(tmp_path / "models"))
    name = f"photos/{HOSTILE}.png"
    Path("photos/0.png").rename(name)
    Path("boxes.jsonl").write_text(Path("boxes.jsonl").read_text().replace('"0.png"', json.dumps(f"{HOSTILE}.png")))
    for options in ((), ("--json",), ("--subject", HOSTILE), ("--out", "r.jsonl"), ("--mapping", HOSTILE)):
        result = command("predict", "evidence", "photos", *BOXES, *options)
        assert plain(result.out + result.err), options
    result = command("predict", "evidence", "photos", *BOXES, "--json")
    assert json.loads(result.out.splitlines()[-1])["image"] == name, "JSON has the name itself"
    Path(name).write_text("no picture")
    assert plain(command("predict", "evidence", "photos", *BOXES).err)

    def warn(*_: object) -> None:
        warnings.warn(HOSTILE, PolyadicWarning, stacklevel=1)
        raise PolyadicError(HOSTILE)

    monkeypatch.setattr("polyadic.datasets.format_of", warn)
    result = command("data", "check", "vrd")
    assert result.err == f"note: {printable(HOSTILE)}\npolyadic: {printable(HOSTILE)}\n"


def test_progress_is_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyadic.progress.SILENCE", 0.0)
    with showing():
        say(f"{HOSTILE}\nnew line")
        list(track([1, 2], f"[/b]{HOSTILE}"))
    _, err = capsys.readouterr()
    assert plain(err)
    assert err.count("\n") == 3
    monkeypatch.setenv("FORCE_COLOR", "1")
    with showing():
        list(track([1, 2], f"[/b]{HOSTILE}"))
    assert "\x1b]0;" not in capsys.readouterr().err


def run(words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command under a shell."""
    line = f"exec {sys.executable} -c 'from polyadic.cli import main; main()' {words}"
    return subprocess.run(["sh", "-c", line], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_a_closed_output_is_discarded() -> None:
    for words in ("data stats toy --split test >&-", "config vrd >&- <&-"):
        done = run(words)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert run("config vrd >&- 2>&- <&-").returncode == 0
    done = run("config nothing >&-")
    assert done.returncode == 1
    assert done.stderr.startswith("polyadic: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_cannot_be_written_is_one_line() -> None:
    done = run("config vrd > /dev/full")
    assert (done.returncode, done.stderr) == (1, "polyadic: output: No space left on device\n")


def test_a_reader_that_has_gone_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("config vrd", stdout=write)
    os.close(write)
    assert (done.returncode in (1, 141), done.stderr) == (True, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", "-1"), "seed: expected a whole number >= 0, got -1"),
        (("--seed", str(2**70)), "seed: "),
        (("--world.seed", "-3"), "world.seed: expected a whole number >= 0"),
        (("--threads", "100000"), "threads: expected a whole number <= 1024, got 100000"),
        (("--workers", "100000"), "workers: expected a whole number <= 1024"),
    ],
)
def test_seeds_and_threads_out_of_range_are_one_line(
    command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in command("train", "toy", "--out", tmp_path / "run", *words).message


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "x.jpg", "--threads", "100000"),
        ("data", "draw", "--seed", "-1", "--out", "w"),
        ("data", "draw", "--seed", str(2**40), "--out", "w"),
        ("reproduce", "toy-two-stages", "--seed", str(2**40)),
    ],
)
def test_options_out_of_range_are_refused(command: Command, words: tuple[str, ...]) -> None:
    result = command(*words)
    assert result.code == 2
    assert "Invalid value for" in result.err
