"""`polyadic evaluate RUN`: a run predicts, and is then scored like a file."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_cases import prepared, true_detections
from tiny_runs import PIXELS, Command, call, write_tiny

from polyadic import RelationModel
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import FREE_K, get_protocol
from polyadic.experiments.runs import open_run, predict_split
from polyadic.io.records import read_relations, write_relations
from polyadic.model.scoring import ALL, ScoreTerms
from polyadic.structures.relations import Relations

NONE = ScoreTerms(selected=False, prior=False, geometry=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn world on disk, a run on it that sees pixels as well, and one on the toy world."""
    folder = tmp_path_factory.mktemp("evaluate")
    tiny = write_tiny(folder)
    assert call("data", "draw", "--out", folder / "drawn", "--train", "24", "--test", "6") == 0
    own = ("--data.dataset", "coco", "--data", folder / "drawn")
    assert call("train", tiny, "--out", folder / "run", *PIXELS, *own) == 0
    assert call("train", tiny, "--out", folder / "toy") == 0
    return folder


def rows(text: str) -> dict[tuple[str, str, str, str], float]:
    found = csv.DictReader(io.StringIO(text))
    return {(r["what"], r["k"], r["subset"], r["N"]): float(r["recall"] or "nan") for r in found}


@pytest.mark.parametrize("k", ["1", "3", "any"])
def test_a_run_scores_like_the_file_of_its_predictions(command: Command, folder: Path, tmp_path: Path, k: str) -> None:
    file = tmp_path / "saved.jsonl"
    options = ("--k", k, "--csv", "--top", "10", "40")
    run = command("evaluate", folder / "run", *options, "--save", file)
    assert run.code == 0
    task = ("--task", "phrase-classification", "--dataset", "coco", "--root", folder / "drawn")
    saved = command("evaluate", file, *options, *task)
    both = rows(run.out), rows(saved.out)
    mine, theirs = ({key: x for key, x in table.items() if not key[0].startswith("count")} for table in both)
    assert mine == theirs
    assert mine["predictions", k, "all", "40"] > 0
    assert {what for what, *_ in mine} == {"predictions", "ceiling, relabelled"}
    given = {key[0]: table[key] for table in both for key in table if key[0].startswith("count") and key[2] == "all"}
    assert given["count table, labels given"] > given["count table"], "a file does not say what its model was given"
    opened = open_run(folder / "run")
    found = list(read_relations(file, opened.data.vocabulary, []))
    most = max(np.unique(each.pairs, axis=0, return_counts=True)[1].max() for each in found)
    assert most == int(k) if k != "any" else most > 3  # ranked for this k, not cut to it afterwards


def test_each_k_is_ranked_separately(folder: Path) -> None:
    run = open_run(folder / "run")
    settings = [(k, parts) for parts in (ALL, NONE) for k in (3, None, 1, 70)]
    lists = predict_split(run.model, run.images(), settings, top=60)
    for (k, parts), found in zip(settings, lists, strict=True):
        for scene, each in zip(run.data, found, strict=True):
            alone = prepared(run.model, true_detections(scene), scene.open()).rank(k, 60, terms=parts)
            assert np.array_equal(each.pairs, alone.pairs)
            assert np.array_equal(each.triplets, alone.triplets)
            np.testing.assert_allclose(each.scores, alone.scores, rtol=0, atol=1e-5)
            assert len(each) == 60 or k == 1
    assert not np.array_equal(lists[0][0].triplets, lists[4][0].triplets)


def test_free_k_is_the_best_k_of_the_validation_images(command: Command, folder: Path) -> None:
    value = json.loads(command("evaluate", folder / "toy", "--json").out)
    run = open_run(folder / "toy")
    scenes = run.validation()
    assert len(scenes) == 2
    score: dict[int | None, float] = {}
    for k in FREE_K:
        protocol = get_protocol("lu2016").change(task="phrase-classification", k=k, tops=(50, 100))
        evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
        (found,) = predict_split(run.model, run.images(scenes), [(k, ALL)])
        for scene, each in zip(scenes, found, strict=True):
            evaluator.update(scene, each)
        score[k] = sum(row.recall for row in evaluator.result())
    best = next(k for k in FREE_K if score[k] == max(score.values()))
    assert max(score.values()) > min(score.values())
    assert value["free_k"] == {"lu2016 phrase-classification": best or "any"}
    assert "this model is given the labels" in value["notes"][0]
    assert f"free k = {best or 'any'}, chosen on 2 validation images" in value["notes"][1]
    assert {row["k"] for row in value["recalls"] if row["what"] == "predictions"} == {best}


def test_the_cache_does_not_change_results_and_a_bare_model_needs_a_root(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    options = ("--k", "2", "--csv")
    with_cache = command("evaluate", folder / "run", *options).out
    shutil.copytree(folder / "run" / "model", tmp_path / "alone")
    alone = command("evaluate", tmp_path / "alone", *options)
    assert "coco: where is it?" in alone.message
    again = command("evaluate", tmp_path / "alone", *options, "--root", folder / "drawn")
    assert again.out == with_cache
    assert command("evaluate", folder / "run" / "model", *options).out == with_cache
    assert not (tmp_path / "features").exists()


def test_without_leaves_out_the_named_parts(command: Command, folder: Path) -> None:
    options = ("--k", "2", "--csv", "--top", "5", "20", "100")
    whole = rows(command("evaluate", folder / "run", *options).out)
    less = rows(command("evaluate", folder / "run", *options, "--without", "prior", "selected").out)
    run = open_run(folder / "run")
    protocol = get_protocol("lu2016").change(task="phrase-classification", k=2, tops=(5, 20, 100))
    (found,) = predict_split(run.model, run.images(), [(2, NONE)])
    evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
    for scene, each in zip(run.data, found, strict=True):
        evaluator.update(scene, each)
    for row in evaluator.result():
        assert less["predictions without prior, selected", "2", "all", str(row.top)] == pytest.approx(
            row.recall, abs=1e-9
        )
    assert less != whole
    table = ("count table, labels given", "2", "all", "20")
    assert less[table] == whole[table]


@pytest.fixture(scope="module")
def boxes(folder: Path) -> Path:
    """Detections of the test images: the true boxes moved by a little, in a frame of half the size."""
    run = open_run(folder / "toy")
    found = []
    for scene in run.data:
        n = len(scene.boxes)
        empty = np.zeros((0, 2), np.int64), np.zeros((0, 3), np.int64), np.zeros(0)
        size = (scene.frame[0] / 2, scene.frame[1] / 2)
        moved = (scene.boxes + 1) / 2
        found.append(Relations(scene.name, moved, *empty, labels=scene.labels, confidences=np.full(n, 0.5), size=size))
    return write_relations(folder / "boxes.jsonl", found, run.data.vocabulary)


def test_with_detections_the_task_is_relationship_detection(
    command: Command, folder: Path, boxes: Path, tmp_path: Path
) -> None:
    file = tmp_path / "saved.jsonl"
    options = ("--k", "4", "--csv", "--detections", boxes, "--save", file)
    result = command("evaluate", folder / "toy", *options)
    table = rows(result.out)
    assert "lu2016 relationship, k = 4 triplets" in result.out
    assert table["predictions", "4", "all", "100"] > 0
    assert table["ceiling, labels kept", "4", "all", "100"] > 90
    assert ("count table", "4", "all", "100") in table
    run = open_run(folder / "toy")
    saved = list(read_relations(file, run.data.vocabulary, []))
    assert len(saved) == 6
    np.testing.assert_allclose(saved[0].boxes, run.data[0].boxes + 1, atol=1e-3)
    assert [each.size for each in saved] == [scene.size for scene in run.data]
    assert saved[0].confidences is not None
    free = command("evaluate", folder / "toy", "--detections", boxes)
    assert "no detections of validation images" in free.message


def test_without_relabel_every_relation_has_the_detectors_labels(
    command: Command, folder: Path, boxes: Path, tmp_path: Path
) -> None:
    names = open_run(folder / "toy").data.vocabulary
    kept = []
    for name, words in (("all", ()), ("less", ("--without", "relabel"))):
        file = tmp_path / f"{name}.jsonl"
        message = command(
            "evaluate", folder / "toy", "--k", "2", "--csv", "--detections", boxes, "--save", file, *words
        )
        assert ("predictions without relabel" in message.out) == bool(words)
        saved = list(read_relations(file, names, []))
        assert all(len(each) and each.labels is not None for each in saved)
        kept.append(all(np.array_equal(x.labels[x.pairs], x.triplets[:, ::2]) for x in saved if x.labels is not None))
    assert kept == [False, True]


def test_without_dedup_repeats_are_not_penalised(command: Command, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "toy", tmp_path / "dear")
    model = RelationModel.load(tmp_path / "dear")
    model.config = model.config.change(**{"ranking.repeat": 0.01, "ranking.repeat_iou": 0.001})
    model.save(tmp_path / "dear" / "model")
    (tmp_path / "dear" / "config.json").write_text(json.dumps(model.config.to_json()))
    saved: list[str] = []
    for run, words in ((folder / "toy", ()), (tmp_path / "dear", ("--without", "dedup")), (tmp_path / "dear", ())):
        file = tmp_path / f"{len(saved)}.jsonl"
        assert command("evaluate", run, "--k", "any", "--csv", "--save", file, *words).code == 0
        saved.append(file.read_text())
    assert saved[0] == saved[1] != saved[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "relationship"), "--task relationship needs a detector's boxes"),
        (("--task", "phrase-classification", "--detections", "BOXES"), "leave out --detections"),
        (("--k-unit", "predicate"), "counts triplets per pair of boxes"),
        (("--without", "prio"), "--without: expected prior, selected, geometry, relabel, dedup, got 'prio'"),
        (("--k", "1", "2", "--save", "new.jsonl"), "--save keeps the predictions of one k"),
        (("--k", "1", "--save", "BOXES"), "already exists"),
        (("--k", "free", "--split", "validation"), "validation cannot be scored"),
        (("--validation", "BOXES"), "--validation is for files"),
        (("--root", "."), "takes no folder, got ."),
        (("--dataset", "vrt"), "no dataset is called 'vrt'"),
        (("--dataset", "vrd"), "vrd: where is it?"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_user_errors_print_one_line(
    command: Command, folder: Path, boxes: Path, options: tuple[str, ...], message: str
) -> None:
    words = [str(boxes) if word == "BOXES" else word for word in options]
    assert message in command("evaluate", folder / "toy", *words).message


@pytest.mark.usefixtures("unchecked")
def test_a_model_with_another_vocabulary_is_an_error(command: Command, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder / "drawn", other)
    for split in ("train", "test"):
        file = other / f"{split}.json"
        value = json.loads(file.read_text())
        value["categories"][0]["name"] = "unicorn"
        file.write_text(json.dumps(value))
    message = command("evaluate", folder / "run", "--root", other).message
    assert "was trained with another vocabulary" in message
    assert "unicorn" in message


@pytest.mark.usefixtures("unchecked")
def test_a_folder_without_a_run_is_an_error(command: Command, tmp_path: Path) -> None:
    assert "is not a run: it has no config.json" in command("evaluate", tmp_path).message
    file = tmp_path / "p.jsonl"
    file.touch()
    assert "--dataset is missing" in command("evaluate", file).message
    assert "--without is for a run" in command("evaluate", file, "--dataset", "toy", "--without", "prior").message


def test_predicate_classification_uses_ground_truth_labels(command: Command, folder: Path) -> None:
    tasks = ("--task", "phrase-classification", "predicate-classification", "--k", "2", "--top", "20", "--json")
    value = json.loads(command("evaluate", folder / "toy", *tasks).out)
    mine = [row for row in value["recalls"] if (row["what"], row["subset"]) == ("predictions", "all")]
    run = open_run(folder / "toy")
    for row in mine:
        protocol = get_protocol("lu2016").change(task=row["task"], k=2, tops=(20,))
        parts = replace(ALL, labels=row["task"] == "predicate-classification")
        (found,) = predict_split(run.model, run.images(), [(2, parts)])
        evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
        for scene, each in zip(run.data, found, strict=True):
            evaluator.update(scene, each)
        assert row["recall"] == pytest.approx(evaluator.result()[0].recall)
    assert len({row["recall"] for row in mine}) == 2
