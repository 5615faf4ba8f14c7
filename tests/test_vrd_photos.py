"""From photos alone: the table of `reproduce vrd-photos`, on the synthetic world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from boxes_cases import close, numbers_of, propose, scenes, slow_numbers, small
from onnx_files import detr
from tiny_runs import Command, call

from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.evaluation.compare import PREDICTIONS
from polyadic.evaluation.protocol import FREE_K, get_protocol
from polyadic.experiments.results import FREE, Results, select
from polyadic.experiments.runs import evaluate_run, open_run
from polyadic.experiments.table1 import FULL, TASKS, half_of
from polyadic.experiments.vrd_photos import UNTOUCHED, BoxSet, photos_table
from polyadic.io.records import read_detections, write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.structures.detections import Detections
from polyadic.training import run_config
from polyadic.training.examples import load_split

CONFIG = small(**{"data.borrow": True, "evidence.names": 4})


def named(found: Detections) -> Detections:
    rows = np.eye(len(VOCABULARY.objects), dtype=np.float32)[found.labels] * 0.9
    return replace(found, distribution=rows)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the test images; of the training images, every second one in a file; a witness of the test images alone."""
    folder = tmp_path_factory.mktemp("boxes")
    train = [named(found) for found in propose(scenes("train"))][::2]
    files = {"ours": [named(found) for found in propose(scenes("test"))], "a": train[::2], "b": train[1::2]}
    files["other"] = propose(scenes("test"), seed=5)
    return {name: write_detections(folder / f"{name}.safetensors", some, VOCABULARY) for name, some in files.items()}


@pytest.fixture(scope="module")
def made(boxes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    out = tmp_path_factory.mktemp("runs")
    sets = [BoxSet("ours", boxes["ours"], (boxes["a"], boxes["b"]))]
    untouched = RelationModel(small(), VOCABULARY)
    tables = [
        photos_table(CONFIG, sets, out, seeds=[3], untouched=untouched, witness=other)
        for other in (None, boxes["other"])
    ]
    assert [{row.fit for row in table.rows} for table in tables] == [{"ours"}, {"ours and other"}]
    return out, replace(tables[0], rows=tables[0].rows + tables[1].rows)


def test_rows_are_those_of_the_trained_run_on_its_boxes(made: tuple[Path, Results], boxes: dict[str, Path]) -> None:
    out, table = made
    model = RelationModel.load(out / "ours-seed-3")
    given = {found.image: found for found in read_detections(boxes["ours"], VOCABULARY)}
    expected = slow_numbers([(scene, model) for scene in scenes("test")], given)
    assert close(numbers_of(table, fit="ours", what=FULL), expected)
    config = run_config(out / "ours-seed-3")
    assert (config.data.detections, config.data.simulate) == ((str(boxes["a"]), str(boxes["b"])), ())
    assert (config.data.borrow, config.validation.images, config.seed) == (True, 0, 3)


def test_free_k_is_chosen_by_a_model_that_has_not_seen_the_held_out_photos(
    made: tuple[Path, Results], boxes: dict[str, Path]
) -> None:
    out, table = made
    config = run_config(out / "ours-held-out-seed-3")
    assert config.validation.images == CONFIG.validation.images
    held_out = {found.image: found for key in ("a", "b") for found in read_detections(boxes[key], VOCABULARY)}
    photos = [scene for scene in load_split(config, "validation") if scene.name in held_out][: CONFIG.validation.images]
    assert photos
    unseen = RelationModel.load(out / "ours-held-out-seed-3")
    tried = {k: slow_numbers([(scene, unseen) for scene in photos], held_out, ks=[k]) for k in FREE_K}
    given = {found.image: found for found in read_detections(boxes["ours"], VOCABULARY)}
    tested = [(scene, RelationModel.load(out / "ours-seed-3")) for scene in scenes("test")]
    for task in TASKS:
        rows = select(table.rows, fit="ours", what=FULL, task=task, k=FREE, subset="all")
        assert [row.N for row in rows] == [50, 100]
        best = {k: sum(tried[k][task, k or 0, "all", top][0] for top in (50, 100)) for k in FREE_K}
        (k,) = {row.used for row in rows}
        assert best[k] == max(best.values())
        expected = slow_numbers(tested, given, ks=[k])
        assert [row.recall for row in rows] == pytest.approx([expected[task, k or 0, "all", n][0] for n in (50, 100)])


def test_a_witness_is_joined_at_test_and_simulated_from_the_other_half_in_training(
    made: tuple[Path, Results], boxes: dict[str, Path]
) -> None:
    out, table = made
    name = "ours and other"
    both = [{found.image: found for found in read_detections(boxes[key], VOCABULARY)} for key in ("ours", "other")]
    joined = {image: Detections.join(*(some[image] for some in both)) for image in both[0]}
    runs = [RelationModel.load(out / f"{name}-from-half-{half}-seed-3") for half in (0, 1)]
    judged = [(scene, runs[1 - half_of(scene.name)]) for scene in scenes("test")]
    assert close(numbers_of(table, fit=name, what=FULL), slow_numbers(judged, joined))
    for half in (0, 1):
        config = run_config(out / f"{name}-from-half-{half}-seed-3")
        assert len(config.data.detections) == 2
        (noise,) = (read_detections(path, VOCABULARY) for path in config.data.simulate)
        assert {half_of(found.image) for found in noise} == {half}


def test_each_set_has_its_baselines_and_the_untouched_model(made: tuple[Path, Results]) -> None:
    for fit in ("ours", "ours and other"):
        what = {row.what for row in select(made[1].rows, fit=fit)}
        assert {"count table", "ceiling, labels kept", "ceiling, relabelled", UNTOUCHED, FULL} <= what
        shares = [row.share for row in select(made[1].rows, fit=fit, what=FULL, k="10", N=100) if row.outcome]
        assert sum(share or 0 for share in shares) == pytest.approx(100)


def test_rows_of_a_model_that_sees_pixels_are_those_of_its_run(boxes: dict[str, Path], tmp_path: Path) -> None:
    config = CONFIG.change(**{"sources": ("pixels", "evidence"), "data.pictures": "optional"})
    sets = [BoxSet("ours", boxes["ours"], (boxes["a"], boxes["b"]))]
    table = photos_table(config, sets, tmp_path, seeds=[3], untouched=RelationModel(small(), VOCABULARY))
    run = open_run(tmp_path / "ours-seed-3")
    protocols = [get_protocol("lu2016").change(task=task, k_unit="triplet", tops=(50, 100)) for task in TASKS]
    given = {found.image: found for found in read_detections(boxes["ours"], VOCABULARY)}
    scored = evaluate_run(run, protocols, (10,), detections=given).result
    for task in TASKS:
        expected = [row.recall for what, row in scored.rows if what == PREDICTIONS and row.protocol.task == task]
        rows = select(table.rows, fit="ours", what=FULL, task=task, k="10")
        assert [row.recall for row in rows if row.outcome == ""] == pytest.approx(expected, nan_ok=True)


def test_as_many_training_files_as_sets(command: Command, tmp_path: Path, boxes: dict[str, Path]) -> None:
    words = ("--proposals", boxes["ours"], "--proposals", boxes["other"], "--training-proposals", boxes["a"])
    assert "got 2 and 1" in command("reproduce", "vrd-photos", "--data", tmp_path, *words).message


def test_any_config_and_any_field_of_it(command: Command, tmp_path: Path, boxes: dict[str, Path]) -> None:
    (tmp_path / "annotations_train.json").write_text("{}")
    words = ("--data", tmp_path, "--proposals", boxes["ours"], "--training-proposals", boxes["a"])
    assert "no option --witnes" in command("reproduce", "vrd-photos", *words, "--witnes", boxes["other"]).message
    assert "head.rank" in command("reproduce", "vrd-photos", *words, "--head.rank", "none").message
    assert "nowhere.toml" in command("reproduce", "vrd-photos", "nowhere.toml", *words).message


def test_a_detector_of_one_fold_looks_at_the_images_that_it_has_not_seen(command: Command, tmp_path: Path) -> None:
    words = ("--training.epochs=1", "--world.train=6", "--world.test=2", "--score=0", "--validation.images=0")
    folds = ("--data.folds=2", "--data.fold=1", "--threads=1")
    assert call("detect", "train", "toy", *words, *folds, "--out", tmp_path / "run") == 0
    seen = tmp_path / "boxes.safetensors"
    assert command("detect", "run", tmp_path / "run", "--split", "train", "--out", seen).code == 0
    first = list(read_detections(seen, VOCABULARY))
    assert len(first) == 3
    other = write_detections(tmp_path / "other.jsonl", first[:2], VOCABULARY)
    joined = tmp_path / "joined.safetensors"
    assert command("detect", "run", tmp_path / "run", "--out", joined, "--with", other).code == 0
    for before, after in zip(first, read_detections(joined, VOCABULARY), strict=True):
        assert len(after) == len(before) * (2 if before.image in {found.image for found in first[:2]} else 1)
        assert after.source is not None
        assert set(after.source) <= {"run", "other"}
    (tmp_path / "two.onnx").write_bytes(
        detr(np.array([[0, 1]]), np.array([[[4, 4, 30, 30], [8, 8, 60, 60]]], np.float32), np.array([[0.9, 0.1]], "f"))
    )
    (tmp_path / "two.names").write_text("\n".join(VOCABULARY.objects[:2]))
    looked = tmp_path / "looked.safetensors"
    assert command("detect", "run", tmp_path / "run", "--out", looked, "--with", tmp_path / "two.onnx").code == 0
    for before, after in zip(first, read_detections(looked, VOCABULARY), strict=True):
        assert after.source is not None
        mine = np.flatnonzero(after.source == "two")
        np.testing.assert_allclose(after.boxes[mine], [[4, 4, 30, 30]])
        assert (len(after), after.labels[mine].tolist()) == (len(before) + 1, [0])
