"""Files that version 0.1.0 wrote can be read, and give the answers that they gave then.

old_files/ was written by these commands. detections.* hold the boxes of 24 training and 6 test scenes of the toy world,
each edge moved by a few percent and a fifth of the labels replaced; the .safetensors file has only the test scenes, and
class distributions of four of them.

    polyadic config tiny.toml > config.toml           # all keys; tiny.toml is the preset toy, shrunk
    polyadic detect config tiny-detector.toml > detector.toml
    polyadic train config.toml --out run              # scores.json is from `polyadic ablate --ranks 2`
    polyadic train config.toml --out stopped          # Ctrl-C in the first epoch of [proposals]
    polyadic predict run --detections detections.safetensors --k 2 --top 6 --out relations.jsonl
    polyadic evaluate run --detections detections.safetensors --k 5 --top 20 60 --save predictions.jsonl

pixels/ and detector/ are models whose weights are too large to keep: tensors.json has the names, shapes and header of
their model.safetensors, and `fill_weights` makes up the numbers. The answers are in golden/old-*.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import (
    GOLDEN,
    assert_golden,
    assert_weights,
    differences,
    draw_photo,
    fill_weights,
    read_lines,
    read_log,
    read_recalls,
)
from tiny_runs import Command

from polyadic import RelationModel, Vocabulary, load_config, load_detector, read_detections

OLD = Path(__file__).parent / "old_files"
BOXES = ("--detections", "detections.safetensors")
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files, as the current folder."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    monkeypatch.chdir(folder)
    return folder


def printed(result: Any) -> str:
    assert result.code == 0, result.err
    return str(result.out)


def vocabulary() -> Vocabulary:
    return RelationModel.load("run").vocabulary


# configs


def test_a_config_file_is_read_with_every_key_it_has(command: Command) -> None:
    config = load_config("config.toml")
    assert config == load_config("run/config.json") == load_config("stopped/config.json")
    assert config == load_config("run/model/config.json")
    assert (config.sources, config.data.dataset, config.data.simulate) == (("evidence",), "toy", ("detections.jsonl",))
    assert (config.world.train, config.head.rank, config.head.context, config.selector.nulls) == (24, 2, True, 2.0)
    assert (config.proposals.optimiser, config.proposals.rate, config.ranking.repeat) == ("adamw", 1e-2, 0.5)
    assert load_config("pixels/config.json").pixels.crops == 32


def test_a_detector_s_config_file_is_read_with_every_key_it_has(command: Command) -> None:
    printed(command("detect", "train", "detector.toml", "--out", "new", "--training.epochs", "1"))
    assert not differences(
        json.loads(Path("detector/config.json").read_text()), json.loads(Path("new/config.json").read_text())
    )


# runs


def test_a_run_is_evaluated_to_the_same_recalls(command: Command) -> None:
    rows = read_recalls(printed(command("evaluate", "run", "--k", "1", "any", "--csv")))
    rows += read_recalls(printed(command("evaluate", "run", "--k", "free", "--csv", *BOXES)))
    assert_golden("old-recalls.json", rows)


def test_a_stopped_run_is_resumed_to_the_weights_of_the_run_that_was_not_stopped(command: Command) -> None:
    assert len(read_log(Path("stopped"))) < len(read_log(Path("run")))
    printed(command("train", "--resume", "--out", "stopped"))
    old, new = (read_log(Path(name)) for name in ("run", "stopped"))
    chosen = ("recall", "best")  # the epoch was chosen by recall then, by the loss now
    old = [{name: value for name, value in row.items() if name not in chosen} for row in old]
    assert not differences(old, new, rel=1e-4)
    for name in ("run", "stopped"):
        assert_weights("old-weights.json", Path(name, "model", "model.safetensors"))


def test_a_finished_run_is_resumed_without_doing_anything_and_may_be_overwritten(command: Command) -> None:
    before = Path("run/model/model.safetensors").read_bytes()
    printed(command("train", "--resume", "--out", "run"))
    assert Path("run/model/model.safetensors").read_bytes() == before
    assert Path("run/scores.json").exists()
    printed(command("train", "config.toml", "--overwrite", "--out", "run", "--proposals.epochs", "0"))
    assert not Path("run/scores.json").exists()


# models


@pytest.mark.parametrize("model", ["run", "run/model"])
def test_a_model_finds_the_same_relations(model: str) -> None:
    old = read_lines(Path("relations.jsonl").read_text())
    for record in old:
        del record["made"]  # a fingerprint of model and options
    assert not differences(without_probability(old), ranked(RelationModel.load(model), BOXES[1], k=2, top=6))


def ranked(model: RelationModel, file: str, *, k: int, top: int, images: Any = None) -> list[dict[str, Any]]:
    """The paper's ranking, which `polyadic predict` of version 0.1.0 gave."""
    boxes = {each.image: each for each in read_detections(file, model.vocabulary)}
    chosen = [(None, each) for each in boxes.values()] if images is None else [(name, boxes[name]) for name in images]
    return [model.score(*both).rank(k, top).to_dict() for both in chosen]


def without_probability(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out P(triplet | its pair), which records have now times P(X_sel) and the boxes' confidences."""
    for record in records:
        for relation in record["relations"]:
            del relation["probability"]
    return records


def golden(name: str) -> list[dict[str, Any]]:
    return without_probability(json.loads((GOLDEN / name).read_text()))


def test_a_model_of_pixels_and_labels_finds_the_same_relations() -> None:
    fill_weights(Path("pixels"))
    for at in range(2):
        draw_photo(Path(f"test_00000{at}.png"), 160, 160)
    model, images = RelationModel.load("pixels"), ("test_000000.png", "test_000001.png")
    for k, name in ((1, "old-pixels.json"), (3, "old-pixels-k.json")):
        records = ranked(model, "detections.jsonl", k=k, top=8, images=images)
        assert not differences(golden(name), records)


def test_a_detector_finds_the_same_boxes_alone_and_as_part_of_a_model(command: Command) -> None:
    fill_weights(Path("detector"))
    draw_photo(Path("photo.png"), 120, 90)
    model = RelationModel.load("run")
    model.set_detector(load_detector("detector", model.vocabulary))
    record = {**model.score("photo.png").rank(1, 3).to_dict(), "image": "photo.png"}
    assert not differences(golden("old-detector.json"), [record], rel=1e-4)
    words = ("photo.png", "--json")
    records = read_lines(printed(command("predict", "run", *words, "--detector", "detector")))
    shutil.copytree("detector", "run/model/detector")
    assert read_lines(printed(command("predict", "run", *words))) == records
    for suffix in ("safetensors", "jsonl"):
        printed(command("detect", "run", "detector", "--split", "test", "--out", f"found.{suffix}"))
        boxes = [each.boxes.round(3).tolist() for each in read_detections(f"found.{suffix}", vocabulary())]
        assert_golden("old-detected.json", boxes, rel=1e-3, tiny=0.01)


# detections, predictions


def test_detections_are_read_in_both_forms() -> None:
    lines = {each.image: each for each in read_detections("detections.jsonl", vocabulary())}
    tensors = list(read_detections("detections.safetensors", vocabulary()))
    assert (len(lines), len(tensors)) == (30, 6)
    for each in tensors:
        same = lines[each.image]
        assert each.size == same.size == (160.0, 160.0)
        np.testing.assert_array_equal(each.boxes, same.boxes)
        np.testing.assert_array_equal(each.labels, same.labels)
        np.testing.assert_array_equal(each.scores, same.scores)
    known = [each.distribution for each in tensors if each.distribution is not None]
    assert [each.distribution is None for each in tensors] == [False, False, True] * 2
    summary: list[Any] = [
        [each.image, len(each), float(each.boxes.sum()), each.labels.tolist()] for each in lines.values()
    ]
    assert_golden(
        "old-detections.json", [*summary, [float((x * np.arange(x.size).reshape(x.shape)).sum()) for x in known]]
    )


def test_predictions_of_both_kinds_are_scored_as_before_and_saved_as_before(command: Command) -> None:
    words = ("--dataset", "toy", "--csv", "--top", "20", "60")
    rows = read_recalls(printed(command("evaluate", "predictions.jsonl", *words, "--k", "5")))
    assert any(row["what"] == "predictions" and row["recall"] > 0 for row in rows)
    assert_golden("old-predictions.json", rows)
    assert_golden(
        "old-relations.json", read_recalls(printed(command("evaluate", "relations.jsonl", *words, "--k", "2")))
    )
    printed(command("evaluate", "run", *BOXES, "--k", "5", "--top", "20", "60", "--csv", "--save", "new.jsonl"))
    assert_golden("old-predictions.json", read_recalls(printed(command("evaluate", "new.jsonl", *words, "--k", "5"))))


def test_a_file_of_predict_is_not_continued_with_answers_of_another_kind(command: Command) -> None:
    content = Path("relations.jsonl").read_bytes()
    message = command("predict", "run", *BOXES, "--out", "relations.jsonl", "--resume").message
    assert "written with another model or other options" in message
    assert Path("relations.jsonl").read_bytes() == content
