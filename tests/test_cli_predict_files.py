"""What `polyadic predict` writes: what worked is kept, resuming ends in the same file, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_cases import photo
from predict_cases import BOXES, lay_out, records, save_models
from tiny_runs import Command

from polyadic import progress
from polyadic.experiments.photos import PhotoLog, drawing_paths


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def here(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return lay_out(tmp_path, models)


def test_unreadable_photos_are_skipped_and_reported(command: Command, here: Path) -> None:
    Path("photos/1.png").write_text("no picture")
    Path("photos/3.png").unlink()
    Path("photos/3.png").symlink_to("nowhere")
    result = command("predict", "pixels", "photos", "photos/9.png", *BOXES, "--out", "r.jsonl")
    assert result.code == 1
    assert [record["image"] for record in records("r.jsonl")] == [f"photos/{at}.png" for at in (0, 2, 4)]
    assert result.err.splitlines() == [
        "polyadic: skipped: photos/1.png is not a readable image (unknown format)",
        "polyadic: skipped: no image photos/3.png",
        "polyadic: skipped: photos/9.png: no detections",
        "polyadic: 3 of 6 photos failed",
    ]
    photo(1).save("photos/1.png")
    again = command("predict", "pixels", "photos", *BOXES, "--out", "r.jsonl", "--resume")
    assert again.code == 1
    assert again.out.startswith("1 photo, ")
    assert "skipping 3 photos that are already in r.jsonl" in again.err


def test_an_interrupted_and_resumed_output_is_identical(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("predict", "pixels", "photos", *BOXES, "--batch", "2", "--out")
    assert command(*words, "whole.jsonl").code == 0
    whole = Path("whole.jsonl").read_bytes()
    checks = iter(range(100))

    def stop_before_the_third_batch() -> None:
        if next(checks) == 2:
            raise progress.Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(progress, "check", stop_before_the_third_batch)
        stopped = command(*words, "r.jsonl")
    assert stopped.code == 130
    assert stopped.err == "polyadic: stopped after 4 photos; continue with --resume\n"
    assert len(records("r.jsonl")) == 4
    assert command(*words, "r.jsonl", "--resume").code == 0
    assert Path("r.jsonl").read_bytes() == whole
    done = command(*words, "r.jsonl", "--resume")
    assert (done.code, done.out) == (0, "0 photos, 0 relations: r.jsonl\n")
    assert Path("r.jsonl").read_bytes() == whole


@pytest.mark.parametrize("cut", [5, "end", "all"])
def test_a_truncated_last_line_is_rewritten(command: Command, here: Path, cut: int | str) -> None:
    words = ("predict", "pixels", "photos", *BOXES, "--out")
    command(*words, "whole.jsonl")
    whole = Path("whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    more = 0 if cut == "all" else len(lines[3]) - 1 if cut == "end" else int(cut)
    Path("r.jsonl").write_bytes(whole[: len(b"".join(lines[:3])) + more])
    result = command(*words, "r.jsonl", "--resume")
    assert (result.code, result.err) == (0, "skipping 3 photos that are already in r.jsonl\n")
    assert Path("r.jsonl").read_bytes() == whole


def test_a_file_with_other_content_or_options_is_not_resumed(command: Command, here: Path) -> None:
    words = ("predict", "evidence", "photos", *BOXES, "--out")
    assert command(*words, "r.jsonl").code == 0
    content = Path("r.jsonl").read_bytes()
    assert "r.jsonl exists: continue it with --resume" in command(*words, "r.jsonl").message
    other: list[tuple[str, ...]] = [("--top", "9"), ("--k", "2"), ("--min-probability", "1e-9"), ("--subject", "dog")]
    for options in (*other, ("--unknown", "keep")):
        message = command(*words, "r.jsonl", "--resume", *options).message
        assert "was written with another model or other options" in message
    assert "another model" in command("predict", "pixels", *words[2:], "r.jsonl", "--resume").message
    shutil.copytree("evidence", "own")
    config = json.loads(Path("own/config.json").read_text())
    config["ranking"]["prior"] = 0.25
    Path("own/config.json").write_text(json.dumps(config))
    assert "another model" in command("predict", "own", *words[2:], "r.jsonl", "--resume").message
    assert Path("r.jsonl").read_bytes() == content
    for foreign in (b"a note that somebody keeps", b'{"image": "x"}\n', b"text\n", b'{"objects": []}'):
        Path("note").write_bytes(foreign)
        assert "note, line 1: not a record of `polyadic predict`" in command(*words, "note", "--resume").message
        assert "note was not written by polyadic" in command(*words, "note", "--overwrite").message
        assert Path("note").read_bytes() == foreign
    assert command(*words, "r.jsonl", "--overwrite").code == 0
    assert Path("r.jsonl").read_bytes() == content
    Path("empty").touch()
    assert command(*words, "empty").code == 0


def test_unwritable_targets_are_an_error_before_any_photo_is_read(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.structures.images.open_photo", lambda path: pytest.fail("a photo was read"))
    words = ("predict", "evidence", "photos", *BOXES)
    assert "--out: photos is a folder, expected a file" in command(*words, "--out", "photos").message
    assert "--out: no folder no to write r.jsonl in" in command(*words, "--out", "no/r.jsonl").message
    assert "--draw: boxes.jsonl cannot be a folder" in command(*words, "--draw", "boxes.jsonl").message
    assert "--draw: boxes.jsonl/in cannot be a folder" in command(*words, "--draw", "boxes.jsonl/in").message
    os.mkfifo("pipe")
    for options in ((), ("--overwrite",), ("--resume",)):
        message = command(*words, "--out", "pipe", *options).message
        assert "--out: pipe is not a regular file" in message
    assert Path("pipe").is_fifo()


def test_a_full_disk_leaves_complete_records(command: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("predict", "evidence", "photos", *BOXES, "--out")
    assert command(*words, "whole.jsonl").code == 0
    write = PhotoLog.write

    def full(self: PhotoLog, result: Any) -> None:
        if result.name != "photos/2.png":
            return write(self, result)

        class Full:
            def __init__(self, file: Any) -> None:
                self.file = file

            def __enter__(self) -> Full:
                return self

            def __exit__(self, *error: object) -> None:
                self.file.close()

            def write(self, text: bytes) -> None:
                self.file.write(text[:100])
                self.file.flush()
                raise OSError(28, "No space left on device")

        opened = Path.open
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", lambda path, mode: Full(opened(path, mode)))
            return write(self, result)

    with monkeypatch.context() as patch:
        patch.setattr(PhotoLog, "write", full)
        message = command(*words, "r.jsonl").message
    assert "r.jsonl cannot be written (No space left on device); its records are complete" in message
    assert len(records("r.jsonl")) == 2
    assert command(*words, "r.jsonl", "--resume").code == 0
    assert Path("r.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_drawings_mirror_the_layout_of_the_photos(command: Command, here: Path) -> None:
    result = command("predict", "evidence", "photos/0.png", "photos/1.png", *BOXES, "--draw", "new/drawn")
    assert result.code == 0
    assert result.out.endswith("new/drawn\n")
    assert sorted(path.name for path in Path("new/drawn").iterdir()) == ["0.png", "1.png"]
    words = ("predict", "evidence", "photos", *BOXES, "--draw")
    assert "--draw: new/drawn/0.png exists" in command(*words, "new/drawn").message
    assert command(*words, "new/drawn", "--overwrite", "--draw-as", "svg").code == 0
    assert Path("new/drawn/4.svg").read_text().startswith("<svg")


def test_a_drawing_never_replaces_a_photo(command: Command, here: Path) -> None:
    before = Path("photos/0.png").read_bytes()
    Path("link").symlink_to("photos")
    for folder in ("photos", "link"):
        words = ("predict", "evidence", "photos/0.png", "photos/1.png", *BOXES, "--draw", folder)
        for options in (("--overwrite",), ("--resume", "--out", "r")):
            message = command(*words, *options).message
            assert f"--draw: {folder}/0.png is one of the inputs" in message
        assert "is a folder of photos" in command("predict", "evidence", "photos", *words[4:]).message
    assert Path("photos/0.png").read_bytes() == before


def test_photos_with_equal_names_get_different_drawings(tmp_path: Path) -> None:
    root = tmp_path / "root"
    paths = [root / name for name in ("a/x.jpg", "b/x.jpg", "b/x.png", "y.jpg", "Y.png", "y.jpg.gif")]
    paths += [tmp_path / "c" / "x.jpg", tmp_path / "d" / "x.jpg"]
    root.mkdir()
    found = drawing_paths(paths, [str(root), "c/x.jpg", "d/x.jpg"], tmp_path / "out", suffix="png", overwrite=False)
    names = [str(found[str(path)].relative_to(tmp_path / "out")) for path in paths]
    assert names[:3] == ["a/x.png", "b/x.jpg.png", "b/x.png.png"]
    assert len({name.lower() for name in names}) == len(paths)
    assert found == drawing_paths(paths, [str(root)], tmp_path / "out", suffix="png", overwrite=False)


@pytest.mark.parametrize("name", ["a b.png", "dög 日本.png", "new\nline.png", "[1]*.png", "raw\udcff.png"])
def test_file_names_may_have_any_characters(command: Command, here: Path, name: str) -> None:
    try:
        shutil.move("photos/0.png", f"photos/{name}")
    except (OSError, UnicodeError):
        pytest.skip("the file system has no such names")
    Path("boxes.jsonl").write_text(Path("boxes.jsonl").read_text().replace('"0.png"', json.dumps(name)))
    words = ("predict", "evidence", "photos", *BOXES)
    for _ in range(2):
        assert command(*words, "--out", "r.jsonl", "--resume", "--draw", "drawn").code == 0
    assert f"photos/{name}" in [record["image"] for record in records("r.jsonl")]
    assert len(records("r.jsonl")) == len(list(Path("drawn").iterdir())) == 5
    result = command(*words)
    assert len([line for line in result.out.splitlines() if line.startswith("photos/")]) == 5
    Path(f"photos/{name}").write_text("no picture")
    assert len(command(*words).err.splitlines()) == 3  # the model, the bad photo, the count


def test_pipes_and_devices_are_no_photos_and_no_boxes(command: Command, here: Path) -> None:
    os.mkfifo("photos/5.png")
    Path("photos/6.png").symlink_to("/dev/zero")
    result = command("predict", "pixels", "photos/0.png", "photos/5.png", "photos/6.png", "--detections", "three.jsonl")
    assert "no file three.jsonl" in result.message
    lines = Path("boxes.jsonl").read_text().splitlines()
    more = [lines[0].replace("0.png", f"{at}.png") for at in (5, 6)]
    Path("three.jsonl").write_text("\n".join([lines[0], *more]))
    result = command("predict", "pixels", "photos/0.png", "photos/5.png", "photos/6.png", "--detections", "three.jsonl")
    assert result.code == 1
    assert "photos/0.png" in result.out
    assert result.err.count("is not a regular file") == 2
    os.mkfifo("boxes.json")
    for option in ("--detections", "--mapping"):
        words = ("predict", "evidence", "photos/0.png", *BOXES)
        assert "boxes.json is not a regular file" in command(*words, option, "boxes.json").message


@pytest.mark.parametrize("name", ["photos/0.png", "photos/hard.png", "boxes.jsonl", "own/config.json", "own/link.json"])
def test_an_output_is_never_an_input(command: Command, here: Path, name: str) -> None:
    shutil.copytree("evidence", "own")
    os.link("photos/0.png", "photos/hard.png")
    Path("own/link.json").symlink_to("config.json")
    before = Path(name).read_bytes()
    for option in ("--overwrite", "--resume"):
        words = ("predict", "own", "photos/0.png", "photos/1.png", *BOXES, "--out", name, option)
        assert f"--out: {name} is one of the inputs" in command(*words).message
        assert Path(name).read_bytes() == before
    words = ("predict", "own", "photos/0.png", *BOXES, "--draw", "new", "--out", "new/0.png")
    Path("new").mkdir()
    assert "--out: new/0.png is one of the inputs" in command(*words).message, "or another output"


@pytest.mark.parametrize(
    "content", ["x\n", "{}", '{"image": "x", "boxes": []}', '[{"made": 1}]', "{" * 5000, "\x89PNG"]
)
def test_only_our_own_files_are_overwritten(command: Command, here: Path, content: str) -> None:
    for name, option in (("notes.txt", "--out"), ("d/0.png", "--draw"), ("d/0.svg", "--draw")):
        Path("d").mkdir(exist_ok=True)
        Path(name).write_text(content)
        words = ("predict", "evidence", "photos/0.png", *BOXES, "--draw-as", name[-3:] if option == "--draw" else "png")
        message = command(*words, option, "d" if option == "--draw" else name, "--overwrite").message
        assert f"{option}: {name} was not written by polyadic" in message
        assert Path(name).read_text() == content
        Path(name).unlink()
        for overwrite in ((), ("--overwrite",)):  # ours is
            assert command(*words, option, "d" if option == "--draw" else name, *overwrite).code == 0
    photo(0).save("d/0.png")
    assert "d/0.png was not written by polyadic" in command(*words[:-1], "png", "--draw", "d", "--overwrite").message


def test_two_processes_cannot_write_one_output(command: Command, here: Path) -> None:
    words = ("predict", "evidence", "photos", *BOXES, "--out", "r.jsonl")
    assert command(*words).code == 0
    content = Path("r.jsonl").read_bytes()
    with PhotoLog.open(Path("r.jsonl"), records("r.jsonl")[0]["made"], resume=True, overwrite=False) as log:
        assert len(log.done) == 5
        for option in ("--resume", "--overwrite"):
            assert "another process is writing r.jsonl" in command(*words, option).message
    assert Path("r.jsonl").read_bytes() == content
    assert command(*words, "--resume").code == 0


def test_a_file_with_repeated_images_is_not_resumed(command: Command, here: Path) -> None:
    words = ("predict", "evidence", "photos", *BOXES, "--out", "r.jsonl")
    assert command(*words).code == 0
    content = Path("r.jsonl").read_bytes()
    Path("r.jsonl").write_bytes(content + content)
    message = command(*words, "--resume").message
    assert "r.jsonl, line 6: 'photos/0.png' is repeated" in message
    line = json.loads(content.splitlines()[0])
    Path("r.jsonl").write_text(json.dumps({**line, "image": ["a"]}) + "\n")
    assert "line 1: not a record" in command(*words, "--resume").message


def test_a_drawing_appears_when_it_is_complete(command: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("predict", "evidence", "photos/0.png", *BOXES, "--draw", "d")

    def full(self: Any, file: Any, *rest: Any, **more: Any) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", full)
    assert "d/0.png cannot be written (No space left on device)" in command(*words).err
    assert list(Path("d").iterdir()) == []
