"""Own data: docs/own-data.md as a reader types it, and `polyadic train --data` with folders of every layout."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_runs import Command
from vg_files import write_vg150
from vrd_files import write_vrd

from polyadic.config import OWN, PRESETS, fit_size, load_config
from polyadic.datasets import find_layout

DOCS = Path(__file__).parent.parent / "docs"
SHORT = ("--triplets.epochs", "1", "--selection.epochs", "1", "--head.hidden", "8", "--selector.hidden", "8")

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_runs import call

    root = tmp_path_factory.mktemp("own") / "mine"
    assert call("data", "draw", "--out", root, "--train", "24", "--test", "6") == 0
    return root


def test_five_commands_lead_from_a_folder_to_a_picture(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "own-data.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in text.splitlines() if line.startswith("    polyadic ")]
    assert len(commands) == 5
    results = [command(*shlex.split(line, comments=True)[1:]) for line in commands]
    assert [result.code for result in results] == [0] * 5, [result.err for result in results]
    _, checked, trained, evaluated, _ = results
    assert checked.out.count("no problems") == 2
    assert "mine: coco, 80 training images; preset own" in trained.err
    assert "chosen by held-out selection loss" in trained.out
    for row in ("predictions", "count table", "ceiling, labels kept"):
        assert row in evaluated.out
    with Image.open(tmp_path / "pictures" / "test_000000.png") as picture:
        assert min(picture.size) > 200


def test_training_on_own_data_needs_no_config_and_no_test_split(command: Command, drawn: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    shutil.copytree(drawn, root)
    (root / "test.json").unlink()
    result = command("train", "--data", root, "--out", tmp_path / "run", *SHORT)
    assert result.code == 0, result.err
    config = load_config(tmp_path / "run" / "config.json")
    assert (config.data.dataset, config.data.root, config.sources) == ("coco", str(root), ("evidence",))
    assert config.triplets.images == fit_size("own", 24).triplets.images
    assert result.out.endswith(f"next: polyadic evaluate {tmp_path / 'run'} --split validation\n")
    scored = command("evaluate", tmp_path / "run", "--split", "validation", "--k", "1")
    assert "count table, labels given" in scored.out


def test_the_preset_with_pixels_trains_from_weights_in_a_file(command: Command, drawn: Path, tmp_path: Path) -> None:
    words = ("--pixels.side", "64", "--pixels.longest", "64", "--pixels.reduce", "4", "--pixels.mask", "8")
    common = ("--data", drawn, *SHORT, *words, "--workers", "0", "--cache.folder", tmp_path / "features")
    missing = command("train", "own-pixels", *common, "--out", tmp_path / "none", "--pixels.weights", "none.pth")
    assert "pixels.weights: no file none.pth" in missing.err.splitlines()[-1]
    result = command("train", "own-pixels", *common, "--out", tmp_path / "run", "--pixels.weights", "random")
    assert result.code == 0, result.err
    assert load_config(tmp_path / "run" / "config.json").sources == ("pixels", "evidence")


def test_each_layout_is_recognised(drawn: Path, tmp_path: Path) -> None:
    (tmp_path / "inside" / "annotations").mkdir(parents=True)
    shutil.copy(drawn / "train.json", tmp_path / "inside" / "annotations")
    (tmp_path / "vg200").mkdir()
    (tmp_path / "vg200" / "vg1_2_meta.h5").touch()
    folders = {
        "coco": drawn,
        "vrd": write_vrd(tmp_path / "vrd"),
        "vg150": write_vg150(tmp_path / "vg150"),
        "vg200": tmp_path / "vg200",
    }
    assert {name: find_layout(root) for name, root in folders.items()} == {name: name for name in folders}
    assert find_layout(tmp_path / "inside") == "coco"
    assert find_layout(tmp_path) is None
    assert set(folders) <= {*PRESETS, "coco"}


def test_a_preset_for_another_layout_is_refused_with_the_one_to_use(
    command: Command, drawn: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "run")
    message = command("train", "vrd-boxes", "--data", drawn, *out).message
    assert f"{drawn} has the layout of coco, but vrd-boxes is for vrd: use own" in message
    vrd = write_vrd(tmp_path / "vrd")
    assert (
        "has the layout of vrd, but vg150 is for vg150: use vrd"
        in command("train", "vg150", "--data", vrd, *out).message
    )
    assert "train.json (coco)" in command("train", "--data", tmp_path, *out).message
    assert "no folder" in command("train", "--data", tmp_path / "none", *out).message
    assert "--data" in command("train", *out).message
    assert not (tmp_path / "run").exists()


def test_presets_for_own_data_take_other_layouts_too(command: Command, tmp_path: Path) -> None:
    root = write_vrd(tmp_path / "vrd")
    assert command("train", "own", "--data", root, "--out", tmp_path / "run", *SHORT).code == 0
    assert load_config(tmp_path / "run" / "config.json").data.dataset == "vrd"


def test_few_images_get_more_dropout_and_smaller_steps() -> None:
    for name in OWN:
        few, some, many = (fit_size(name, images) for images in (100, 1500, 20000))
        assert few.head.dropout > some.head.dropout == many.head.dropout
        assert few.triplets.images < some.triplets.images
        assert some.head.hidden < many.head.hidden
        assert some == PRESETS[name]


def test_without_held_out_images_the_last_line_says_so(command: Command, drawn: Path, tmp_path: Path) -> None:
    words = ("--data", drawn, "--out", tmp_path / "run", "--validation.images", "0", *SHORT)
    result = command("train", *words)
    assert "the last, as nothing is held out" in result.out
    assert "held-out \n" not in result.out + result.err


def _two_boxes(path: Path) -> None:
    """Keep the first two boxes of each image, and relations between them."""
    file: dict[str, Any] = json.loads(path.read_text())
    kept: dict[int, list[int]] = {}
    for box in file["annotations"]:
        kept.setdefault(box["image_id"], []).append(box["id"])
    ids = {box for boxes in kept.values() for box in boxes[:2]}
    file["annotations"] = [box for box in file["annotations"] if box["id"] in ids]
    pairs = [boxes[:2] for boxes in kept.values() if len(boxes) > 1]
    file["rel_annotations"] = [
        {"id": 2 * at + p, "image_id": image, "subject_id": a, "predicate_id": 1 + p, "object_id": b}
        for at, (image, (a, b)) in enumerate(zip(kept, pairs, strict=False))
        for p in (0, 1)
    ]
    path.write_text(json.dumps(file))


def test_where_images_have_two_boxes_small_n_are_shown_and_the_ceiling_counts_k(
    command: Command, drawn: Path, tmp_path: Path
) -> None:
    root = tmp_path / "mine"
    shutil.copytree(drawn, root)
    for split in ("train", "test"):
        _two_boxes(root / f"{split}.json")
    assert command("train", "--data", root, "--out", tmp_path / "run", *SHORT).code == 0
    words = ("evaluate", tmp_path / "run", "--task", "predicate-classification", "--k", "1")
    shown = command(*words)
    assert "R@50 says nothing about their order: see R@1\n" in shown.out
    value = json.loads(command(*words, "--json").out)
    ceilings = {row["N"]: row["recall"] for row in value["ceilings"] if row["subset"] == "all"}
    assert ceilings == {1: 50, 50: 50}, "each pair has two predicates"
    asked = json.loads(command(*words, "--top", "20", "--json").out)
    assert {row["N"] for row in asked["recalls"]} == {20}
