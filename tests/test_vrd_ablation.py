"""`polyadic reproduce vrd-ablation` on small files of VRD's layout, with a backbone of a few weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_runs import Command
from training_cases import tiny
from vrd_files import many_vrd, pictured_vrd

from polyadic.config import PRESETS
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.ablation import Ablation
from polyadic.experiments.ablation_scores import ALL, TEMPERED
from polyadic.experiments.predicting import predict_split
from polyadic.experiments.runs import open_run
from polyadic.experiments.table4 import read_rows, to_csv
from polyadic.experiments.vrd_ablation import OURS
from polyadic.model.scoring import Parts
from polyadic.training.examples import BoxSource, load_training

KINDS = ("model", "model" + ALL)
TASKS = ("phrase-classification", "predicate-classification")
SMALL: dict[str, Any] = {"data.dataset": "vrd", "data.pictures": "present", "triplets.epochs": 1, "selection.epochs": 1}
SMALL |= {"ranking.prior": 0.5}
GROWN: dict[str, Any] = {
    "pixels.crops": 32,
    "pixels.place": True,
    "head.rank": 1,
    "head.labels": True,
    "ranking.prior": 0.0,
    "boxes.epochs": 2,
    "boxes.optimiser": "adamw",
    "boxes.rate": 0.01,
    "selection.epochs": 0,
}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setitem(PRESETS, "vrd-pixels", tiny(**SMALL))
    monkeypatch.setitem(PRESETS, "vrd-pixels-grown", tiny(**{**SMALL, **GROWN}))
    return Command(capsys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The dataset, two of whose training images have no picture; the weights."""
    return pictured_vrd(tmp_path_factory.mktemp("vrd"))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def times(out: Path) -> dict[Path, int]:
    """Of models and scores."""
    return {path: path.stat().st_mtime_ns for kind in ("model.safetensors", "scores.json") for path in out.rglob(kind)}


def test_one_command_makes_the_papers_rows_and_ours_apart_and_does_nothing_twice(
    command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    root, weights = files
    words = ("--data", root, "--weights", weights, "--out", tmp_path / "out", "--seeds", "2", "--ranks", "1", "3")
    shown = command("reproduce", "vrd-ablation", *words)
    assert shown.code == 0, shown.err
    rows = rows_of(tmp_path / "out" / "table4.csv")
    kinds = {(r["what"], r["rank"], r["seed"], r["parts"]) for r in rows if r["seed"]}
    parts = ("psi_c", "psi_c + selected", "psi_c + selected + prior", TEMPERED)
    wanted = {("model", rank, seed, name) for rank in "13" for seed in "01" for name in parts}
    wanted |= {(OURS, "1", seed, "psi_c + geometry") for seed in "01"}
    assert kinds == wanted | {(what + ALL, *others) for what, *others in wanted}
    for what in ("model", OURS, "model" + ALL, OURS + ALL, "count table"):
        told = {(task, r["k"], r["N"]) for r in rows for task in TASKS if r["what"] == what and task in r["protocol"]}
        assert told == {(task, k, n) for task in TASKS for k in ("free", "1") for n in ("50", "100")}
    assert shown.out.count("Rank-3 w/ X_sel & prior  ") == shown.out.count("Rank-3 w/ X_sel & prior^0.5  ") == 2
    assert shown.out.count(f"Rank-3 w/ X_sel{ALL}") == 2
    assert shown.out.count("39.01") == 1, "the paper's numbers stand beside one task"
    assert shown.out.count(OURS) == 4
    text, held = (tmp_path / "out" / "table4.csv").read_text(), read_rows(tmp_path / "out" / "table4.csv")
    assert to_csv(Ablation(tiny(), (1, 3), (0, 1), held)) == text
    about = json.loads((tmp_path / "out" / "table4.json").read_text())
    plain = ("ablate", "vrd-pixels", "--data", root, "--out", tmp_path / "x", "--csv", tmp_path / "out" / "table4.csv")
    refused = command(*plain, "--seeds", "2", "--ranks", "1", "3", "--pixels.weights", weights)
    assert f"has model{ALL}, rank 1 with seed 0, which this ablation would drop" in refused.message
    fewer = command("reproduce", "vrd-ablation", *words[:6], "--seeds", "1", "--ranks", "1", "3")
    assert "has rank 1 with seed 1, which this ablation would drop" in fewer.message
    assert about["configs"][OURS]["pixels"]["crops"] == 32
    assert about["configs"]["all images"] == {"validation.images": 0}
    assert str(tmp_path) not in json.dumps(about)
    assert (about["ranks"], about["seeds"]) == ([1, 3], [0, 1])
    made = times(tmp_path / "out")
    again = command("reproduce", "vrd-ablation", *words)
    assert again.code == 0
    assert times(tmp_path / "out") == made
    assert rows_of(tmp_path / "out" / "table4.csv") == rows
    (tmp_path / "out" / "paper" / "rank-3-seed-1-all" / "scores.json").write_text('{"key": ')
    assert command("reproduce", "vrd-ablation", *words).code == 0, "damaged scores are made anew"
    assert rows_of(tmp_path / "out" / "table4.csv") == rows


def test_ours_is_scored_by_labels_and_the_prior_that_knows_the_boxes_alone(
    command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("--data", files[0], "--weights", files[1], "--out", tmp_path / "out", "--seeds", "1", "--ranks", "1")
    assert command("reproduce", "vrd-ablation", *words).code == 0
    run = open_run(tmp_path / "out" / "ours" / "rank-1-seed-0")
    rows = [row for row in rows_of(tmp_path / "out" / "table4.csv") if row["what"] == OURS]
    for task in TASKS:
        wanted = Parts(selected=False, prior=False, labels=task == TASKS[1])
        protocol = get_protocol("lu2016").change(task=task, k=1, tops=(50, 100))
        evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
        (found,) = predict_split(run.model, run.data.scenes, BoxSource(), run.regions, [(1, wanted)])
        for scene, each in zip(run.data, found, strict=True):
            evaluator.update(scene, each)
        held = [float(row["recall"]) for row in rows if row["k"] == "1" and task in row["protocol"]]
        assert held == [row.recall for row in evaluator.result()]


def test_all_images_teach_the_second_run_and_its_k_is_that_of_the_first(
    command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("--data", files[0], "--weights", files[1], "--out", tmp_path / "out", "--seeds", "1", "--ranks")
    assert command("reproduce", "vrd-ablation", *words, "3", "1", "2").code == 0
    folder = tmp_path / "out" / "paper" / "rank-3-seed-0"
    first, second = (open_run(each) for each in (folder, folder.with_name(f"{folder.name}-all")))
    held_out = {scene.name for scene in first.validation()}
    learned = [{scene.name for scene in load_training(run.config).fit} for run in (first, second)]
    assert held_out
    assert learned[1] == learned[0] | held_out
    assert not learned[0] & held_out
    whole = rows_of(tmp_path / "out" / "table4.csv")
    assert {row["rank"] for row in whole if row["what"] == KINDS[1]} == {"1", "3"}, "the first and the last rank"
    assert f"has {KINDS[1]}, rank 3" in command("reproduce", "vrd-ablation", *words, "1", "2", "3", "4").message
    rows = [row for row in whole if row["rank"] == "3"]
    same = ("protocol", "parts", "k", "used", "N")
    chosen, again = ([{name: row[name] for name in same} for row in rows if row["what"] == x] for x in KINDS)
    assert chosen == again
    (row,) = (
        row
        for row in rows
        if (row["what"], row["parts"], row["k"], row["N"]) == (KINDS[1], "psi_c + selected", "free", "50")
        and TASKS[0] in row["protocol"]
    )
    k = None if row["used"] == "any" else int(row["used"])
    evaluator = Evaluator(
        [get_protocol("lu2016").change(task=TASKS[0], k=k, tops=(50,))], len(second.data.vocabulary.predicates)
    )
    (found,) = predict_split(
        second.model, second.data.scenes, BoxSource(), second.regions, [(k, Parts(prior=False, geometry=False))]
    )
    for scene, each in zip(second.data, found, strict=True):
        evaluator.update(scene, each)
    assert float(row["recall"]) == evaluator.result()[0].recall


def test_a_head_of_labels_may_be_ablated_with_rank_1_alone(
    command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("ablate", "vrd-pixels-grown", "--data", files[0], "--out", tmp_path / "out", "--seeds", "1")
    given = ("--pixels.weights", files[1])
    refused = command(*words, *given)
    assert "head.labels is of rank 1, got head.rank 2" in refused.message
    assert not (tmp_path / "out").exists()
    shown = command(*words, "--ranks", "1", *given)
    assert shown.code == 0, shown.err
    assert "Rank-1 w/ prior that knows the boxes" in shown.out


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_one_line(command: Command, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "letter.csv").write_text("dear\n")
    (tmp_path / "cut.csv").write_text(to_csv(Ablation(tiny(), (), (), ())) + "model,vrd,lu2016 phr")
    bare = many_vrd(tmp_path / "bare")
    for name in json.loads((bare / "annotations_train.json").read_text()):
        Image.new("RGB", (50, 50)).save(bare / "sg_dataset" / "sg_train_images" / name)
    base = {"--data": files[0], "--weights": files[1], "--out": tmp_path / "out"}
    bad: list[tuple[dict[str, Path], str]] = [
        ({"--weights": tmp_path / "none.safetensors"}, "--weights: no file"),
        ({"--data": tmp_path / "nowhere"}, "nowhere"),
        ({"--data": bare}, "no test image of vrd has a picture"),
        ({"--csv": tmp_path / "letter.csv"}, "letter.csv exists and is not an ablation's"),
        ({"--csv": tmp_path / "cut.csv"}, "cut.csv is damaged or cut off"),
    ]
    for change, message in bad:
        words = [word for pair in {**base, **change}.items() for word in pair]
        assert message in command("reproduce", "vrd-ablation", *words).message
    assert (tmp_path / "letter.csv").read_text() == "dear\n"
