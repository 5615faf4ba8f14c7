"""Which files the other commands replace: their own, and never an input. The rule itself is in `polyadic.files`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from test_records import NAMES, random_detections
from tiny_runs import Command, write_tiny
from vrd_files import write_vrd

import polyadic
from polyadic.cli.train import replacing
from polyadic.datasets import load_dataset
from polyadic.draw import save_picture
from polyadic.experiments.pictures import _save
from polyadic.experiments.proposals import _check_out
from polyadic.experiments.results import Results, Row, check_target
from polyadic.files import atomic_write, check_output, is_ours, lock, lock_folder, new_folder
from polyadic.io.records import write_detections
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.run import only_one


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_detections_replace_detections_only(tmp_path: Path, suffix: str) -> None:
    path, parts = tmp_path / f"d{suffix}", tmp_path / f"d{suffix}.parts"
    one = [random_detections(np.random.default_rng(0), "a", with_distribution=False)]
    for foreign in (b"a note", b'\x08\0\0\0\0\0\0\0{"a": 1}', b"{}\n", b"[]", b"\xff" * 600):
        path.write_bytes(foreign)
        refused("was not written by polyadic", write_detections, path, one, NAMES, overwrite=True)
        refused("was not written by polyadic", _check_out, path, parts, False, True)
        assert path.read_bytes() == foreign
    path.unlink()
    write_detections(path, one, NAMES)
    write_detections(path, one, NAMES, overwrite=True)
    _check_out(path, parts, False, True)
    parts.mkdir()
    (parts / "thesis.tex").touch()
    refused("would delete .*thesis.tex", _check_out, path, parts, False, True)


def test_results_replace_results_only(tmp_path: Path) -> None:
    results = Results((Row(what="a", dataset="toy", N=1, recall=2.0),))
    results.write(tmp_path / "t.csv")
    check_target(tmp_path / "t.csv")
    (tmp_path / "t.json").write_text(json.dumps({"annotations": []}))
    refused(r"t\.json was not written by polyadic", check_target, tmp_path / "t.csv")
    (tmp_path / "t.json").unlink()
    (tmp_path / "t.csv").write_text("name,age\n")
    refused(r"t\.csv was not written by polyadic", check_target, tmp_path / "t.csv")


def test_pictures_replace_pictures_of_ours_only(tmp_path: Path) -> None:
    picture, scenes = Image.new("RGB", (8, 8)), load_dataset("vrd", write_vrd(tmp_path / "vrd"), "test").scenes[:1]
    for path in _save(tmp_path / "new", scenes, [picture]):
        assert is_ours(path, "drawing")
    _save(tmp_path / "new", scenes, [picture])
    picture.save(path)  # somebody else's
    refused("was not written by polyadic", _save, tmp_path / "new", scenes, [picture])
    save_picture(picture, tmp_path / "a.jpg")
    refused("expected a name that ends in", save_picture, picture, tmp_path / "a.xyz")


def test_a_run_that_holds_an_input_is_not_replaced(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("config.json", "last.pt", "model/model.safetensors"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    tiny = write_tiny(tmp_path)
    for key, value in (("data.detector", run), ("pixels.weights", run / "model"), ("data.simulate", run / "last.pt")):
        result = command("train", tiny, "--out", run, "--overwrite", f"--{key}", value)
        assert f"would delete {value}, which is an input" in result.message
    assert (run / "last.pt").exists()
    with pytest.raises(PolyadicError, match="is an input"), replacing(run, True, [run / "config.json"]):
        pass
    with replacing(run, True, ["", None, "timm"]):
        run.mkdir()
    assert list(tmp_path.iterdir()) != []


def test_no_reader_runs_code_from_a_file() -> None:
    source = Path(polyadic.__file__).parent
    calls = re.compile(r"\b(?:torch\.load|load_state_dict\(str|pickle\.loads?|np\.load|eval|exec)\([^\n]*")
    uses = {str(path.relative_to(source)): calls.findall(path.read_text()) for path in source.rglob("*.py")}
    uses.pop("training/loading.py")  # what our own worker processes send
    lines = [line for found in uses.values() for line in found if not line.startswith("eval()")]  # of a module
    assert len(lines) == 3
    assert all("weights_only=True" in line for line in lines)


def test_empty_files_are_new_ones_and_places_are_checked(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    check_output(tmp_path / "empty", "records")
    check_output(tmp_path / "new", "records")
    refused("folder", check_output, tmp_path, "records", replace=True)
    refused("no folder", check_output, tmp_path / "no" / "file", "records")
    (tmp_path / "full").write_text("x")
    refused("exists; choose another name, or overwrite=True", check_output, tmp_path / "full", "records")
    refused("--out: .*full exists; .*--overwrite", check_output, tmp_path / "full", "records", option="--out")


def test_a_lock_whose_file_was_removed_or_moved_is_not_taken(tmp_path: Path) -> None:
    folder, busy = tmp_path / "run", pytest.raises(PolyadicError, match="busy")
    with lock_folder(folder, "busy"), busy, lock_folder(folder, "busy"):
        pass
    assert not folder.exists(), "nothing was written to it"
    with lock_folder(folder, "busy"):
        (folder / "file").touch()
        folder.rename(tmp_path / "old")
        with busy, lock_folder(tmp_path / "old", "busy"):
            pass
    assert (tmp_path / "old" / "file").exists()
    (tmp_path / "a").touch()
    refused("cannot write to", lock_folder(tmp_path / "a", "busy").__enter__)


def test_a_run_in_training_is_not_replaced_nor_begun_again(command: Command, tmp_path: Path) -> None:
    """Two processes start at once, or one replaces what the other trains: their files would be mixed."""
    tiny, run = write_tiny(tmp_path), tmp_path / "run"
    run.mkdir()
    with only_one(run):
        message = command("train", tiny, "--out", run).message
        assert "another process is training in it" in message
        assert [path.name for path in run.iterdir()] == [".lock"], "not even its config"
        for name in ("config.json", "last.pt"):
            (run / name).touch()
        message = command("train", tiny, "--out", run, "--overwrite").message
        assert "another process is training in it" in message
    refused("exists already", only_one(run, new=True).__enter__)
    assert sorted(path.name for path in run.iterdir()) == [".lock", "config.json", "last.pt"]


def test_two_folders_of_one_name_are_filled_apart(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a") as first:
        (first / "x").write_text("first")
        with new_folder(tmp_path / "a") as second:
            (second / "y").write_text("second")
        with pytest.raises(OSError, match="a"):
            (tmp_path / "a").rmdir()
        (first / "z").write_text("first")
        files = sorted(path.name for path in first.iterdir())
        assert files == ["x", "z"]
        (tmp_path / "a" / "y").unlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "x", "z"]


def test_a_file_is_locked_once_and_long_names_are_written_aside(tmp_path: Path) -> None:
    with lock(tmp_path / "file", "busy"), pytest.raises(PolyadicError, match="busy"), lock(tmp_path / "file", "busy"):
        pass
    with lock(tmp_path / "file", "busy"):
        pass
    long = tmp_path / ("é" * 120)
    with atomic_write(long) as part:
        part.write_text("x")
    assert long.read_text() == "x"
