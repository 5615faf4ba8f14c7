"""`polyadic ablate`: Table 4 of a tiny world."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_runs import PIXELS, Command, call, write_tiny
from training_cases import tiny
from vrd_files import many_vrd, pictured_vrd

from polyadic.config import PRESETS, load_config
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.results import Row, read_rows, select
from polyadic.experiments.runs import OpenRun, open_run, predict_split
from polyadic.experiments.table4 import ALL, OURS, PAPER, TEMPERED
from polyadic.model.scoring import ScoreTerms
from polyadic.training.examples import load_training

WORDS = ("--ranks", "1", "3", "--seeds", "2", "--seed", "4", "--boxes.epochs", "1")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablation")
    tiny = write_tiny(folder)
    assert call("ablate", tiny, "--out", folder / "runs", *WORDS, "--csv", folder / "results" / "tiny.csv") == 0
    return folder


def rows(out: Path) -> list[Row]:
    return list(read_rows(out / "results" / "tiny.csv"))


def recalls(
    run: OpenRun, task: str, k: int | None, parts: ScoreTerms, tops: tuple[int, ...] = (50, 100)
) -> list[float]:
    """Predict the run's split and evaluate it, setting by setting."""
    protocol = get_protocol("lu2016").change(task=task, k=k, tops=tops)
    evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
    (predictions,) = predict_split(run.model, run.images(), [(k, parts)])
    for scene, relations in zip(run.data, predictions, strict=True):
        evaluator.update(scene, relations)
    return [row.recall for row in evaluator.result()]


def test_there_is_one_row_per_rank_seed_parts_k_and_n(out: Path) -> None:
    mine = select(rows(out), what="model")
    keys = {(row.rank, row.seed, row.parts, row.k, row.N) for row in mine}
    assert len(keys) == len(mine) == 2 * 2 * 4 * 2 * 2
    assert {row.seed for row in mine} == {4, 5}
    assert all((row.loss or 0) > 0 and (row.seconds or 0) > 0 for row in mine)
    assert {row.protocol for row in mine if row.k == "1"} == {"lu2016 phrase-classification, k = 1 triplet"}
    assert len({row.loss for row in mine}) == 4
    others = [(row.what, row.k, row.N) for row in rows(out) if row.what != "model"]
    assert others == [
        (what, k, n)
        for k in ("free", "1")
        for what in ("count table, labels given", "ceiling, relabelled")
        for n in (50, 100)
    ]


def test_a_row_is_the_recall_of_its_run_with_its_parts_and_k(out: Path) -> None:
    run = open_run(out / "runs" / "rank-3-seed-5")
    assert (run.config.head.rank, run.config.seed) == (3, 5)
    wanted = {"psi_c": ScoreTerms(False, False, False), "psi_c + selected + prior": ScoreTerms(True, True, False)}
    for name, parts in wanted.items():
        for word in ("free", "1"):
            mine = select(rows(out), rank=3, seed=5, parts=name, k=word)
            k = mine[0].used
            assert [row.recall for row in mine] == recalls(run, "phrase-classification", k, parts)
            assert word == "free" or k == 1


def test_a_repeated_ablation_trains_nothing_and_prints_means_over_seeds(command: Command, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.safetensors")}
    scores = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("scores.json")}
    assert (len(before), len(scores)) == (8, 4)  # a model and its prior each
    text = (out / "results" / "tiny.csv").read_text()
    result = command("ablate", out / "tiny.toml", "--out", out / "runs", *WORDS, "--csv", out / "results" / "tiny.csv")
    assert result.code == 0
    assert "triplets" not in result.err
    assert {path: path.stat().st_mtime_ns for path in (*before, *scores)} == before | scores
    assert (out / "results" / "tiny.csv").read_text() == text
    for label, rank, parts in (("Rank-1", 1, "psi_c"), ("Rank-3 w/ X_sel & prior", 3, "psi_c + selected + prior")):
        cells = []
        for k, n in (("free", 50), ("free", 100), ("1", 50), ("1", 100)):
            numbers = [row.recall or 0.0 for row in select(rows(out), rank=rank, parts=parts, k=k, N=n)]
            assert len(numbers) == 2
            cells.append(f"{statistics.fmean(numbers):.2f} ± {statistics.stdev(numbers):.2f}")
        line = next(line for line in result.out.splitlines() if re.match(rf"\s*{label}\s\s", line))
        assert [each.strip() for each in re.findall(r"\d+\.\d+ ± \d+\.\d+", line)][:4] == cells
    assert re.search(r"ceiling, relabelled +100\.00 +100\.00 +\d\d\.\d\d +\d\d\.\d\d\b", result.out), "less at k = 1"


def test_a_backbone_is_trained_once_per_seed_and_shared(command: Command, tmp_path: Path) -> None:
    words = (*PIXELS, "--backbone.epochs", "1", "--triplets.epochs", "1", "--selection.epochs", "0")
    result = command(
        "ablate", write_tiny(tmp_path), "--out", tmp_path / "runs", "--ranks", "1", "2", "--seeds", "1", *words
    )
    assert result.code == 0
    assert result.err.count("backbone 1/1: held-out loss") == 1
    assert "w/ X_sel" not in result.out
    assert "±" not in result.out
    configs = [load_config(tmp_path / "runs" / f"rank-{rank}-seed-0" / "config.json") for rank in (1, 2)]
    folder = (tmp_path / "runs" / "backbone-seed-0").resolve()
    assert [(c.backbone.epochs, c.pixels.weights) for c in configs] == [(0, str(folder))] * 2
    prints = set()
    for name in ("rank-1-seed-0", "rank-2-seed-0", "backbone-seed-0"):
        backbone = open_run(tmp_path / "runs" / name).model.backbone
        assert backbone is not None
        prints.add(backbone.fingerprint())
    assert len(prints) == 1
    assert len(list((tmp_path / "runs" / "features").rglob("*.safetensors"))) == 30  # once each, for both ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--head.rank", "3"), "--head.rank is what an ablation varies: give --ranks"),
        (("--rank", "3"), "no option --rank; did you mean --ranks?"),
        (("--csv", "notes.txt"), "--csv: expected a name that ends in .csv"),
        (("--csv", "NOTES"), "notes.csv is not a table of results"),
        (("--triplets.epochs", "0"), "there is nothing to compare"),
        (("--world.train", "2"), "toy has no validation images with relations"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_user_errors_print_one_line_and_create_nothing(
    command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    notes = tmp_path / "notes.csv"
    notes.write_text("mine\n")
    words = tuple(str(notes) if word == "NOTES" else word for word in words)
    assert message in command("ablate", write_tiny(tmp_path), "--out", tmp_path / "runs", *words).message
    assert not (tmp_path / "runs").exists()
    assert notes.read_text() == "mine\n"


def test_the_paper_s_numbers_grow_with_n_and_with_k() -> None:
    for dataset in PAPER.values():
        assert len(dataset) == 7
        for free50, free100, one50, one100 in dataset.values():
            assert free50 < free100
            assert one50 < one100
            assert one50 < free50
            assert not math.isnan(one100)


# --- on VRD

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
def vrd(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setitem(PRESETS, "vrd-pixels", tiny(**SMALL))
    monkeypatch.setitem(PRESETS, "vrd-pixels-grown", tiny(**{**SMALL, **GROWN}))
    return Command(capsys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The dataset, two of whose training images have no picture; the weights."""
    return pictured_vrd(tmp_path_factory.mktemp("vrd"))


def times(out: Path) -> dict[Path, int]:
    """Of models and scores."""
    return {path: path.stat().st_mtime_ns for kind in ("model.safetensors", "scores.json") for path in out.rglob(kind)}


def test_one_command_gives_the_papers_rows_and_ours_and_reuses_runs(
    vrd: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    root, weights = files
    words = ("--data", root, "--weights", weights, "--out", tmp_path / "out", "--seeds", "2", "--ranks", "1", "3")
    shown = vrd("reproduce", "vrd-ablation", *words)
    assert shown.code == 0, shown.err
    rows = read_rows(tmp_path / "out" / "table4.csv")
    kinds = {(row.what, row.rank, row.seed, row.parts) for row in rows if row.seed is not None}
    parts = ("psi_c", "psi_c + selected", "psi_c + selected + prior", TEMPERED)
    wanted = {("model", rank, seed, name) for rank in (1, 3) for seed in (0, 1) for name in parts}
    wanted |= {(OURS, 1, seed, "psi_c + geometry") for seed in (0, 1)}
    assert kinds == wanted | {(what + ALL, *others) for what, *others in wanted}
    for what in ("model", OURS, "model" + ALL, OURS + ALL, "count table"):
        places = {(row.task, row.k, row.N) for row in select(rows, what=what)}
        assert places == {(task, k, n) for task in TASKS for k in ("free", "1") for n in (50, 100)}
    assert shown.out.count("Rank-3 w/ X_sel & prior  ") == shown.out.count("Rank-3 w/ X_sel & prior^0.5  ") == 2
    assert shown.out.count(f"Rank-3 w/ X_sel{ALL}") == 2
    assert shown.out.count("39.01") == 1, "the paper's numbers stand beside one task"
    assert shown.out.count(OURS) == 4
    about = json.loads((tmp_path / "out" / "table4.json").read_text())
    plain = ("ablate", "vrd-pixels", "--data", root, "--out", tmp_path / "x", "--csv", tmp_path / "out" / "table4.csv")
    refused = vrd(*plain, "--seeds", "2", "--ranks", "1", "3", "--pixels.weights", weights)
    assert f"model{ALL}, rank 1, seed 0 that would be lost" in refused.message
    fewer = vrd("reproduce", "vrd-ablation", *words[:6], "--seeds", "1", "--ranks", "1", "3")
    assert "model, rank 1, seed 1 that would be lost" in fewer.message
    assert about["configs"][OURS]["pixels"]["crops"] == 32
    assert about["configs"]["all images"] == {"validation.images": 0}
    assert str(tmp_path) not in json.dumps(about)
    assert (about["ranks"], about["seeds"]) == ([1, 3], [0, 1])
    made = times(tmp_path / "out")
    again = vrd("reproduce", "vrd-ablation", *words)
    assert again.code == 0
    assert times(tmp_path / "out") == made
    assert read_rows(tmp_path / "out" / "table4.csv") == rows
    (tmp_path / "out" / "paper" / "rank-3-seed-1-all" / "scores.json").write_text('{"key": ')
    assert vrd("reproduce", "vrd-ablation", *words).code == 0, "damaged scores are measured again"
    assert read_rows(tmp_path / "out" / "table4.csv") == rows


def test_our_model_is_scored_with_labels_and_the_box_conditioned_prior(
    vrd: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("--data", files[0], "--weights", files[1], "--out", tmp_path / "out", "--seeds", "1", "--ranks", "1")
    assert vrd("reproduce", "vrd-ablation", *words).code == 0
    run = open_run(tmp_path / "out" / "ours" / "rank-1-seed-0")
    for task in TASKS:
        rows = select(read_rows(tmp_path / "out" / "table4.csv"), what=OURS, task=task, k="1")
        parts = ScoreTerms(selected=False, prior=False, labels=task == TASKS[1])
        assert [row.recall for row in rows] == recalls(run, task, 1, parts)


def test_a_refit_trains_on_all_images_with_the_k_of_the_first_run(
    vrd: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("--data", files[0], "--weights", files[1], "--out", tmp_path / "out", "--seeds", "1", "--ranks")
    assert vrd("reproduce", "vrd-ablation", *words, "3", "1", "2").code == 0
    folder = tmp_path / "out" / "paper" / "rank-3-seed-0"
    first, second = (open_run(each) for each in (folder, folder.with_name(f"{folder.name}-all")))
    held_out = {scene.name for scene in first.validation()}
    learned = [{scene.name for scene in load_training(run.config).fit} for run in (first, second)]
    assert held_out
    assert learned[1] == learned[0] | held_out
    assert not learned[0] & held_out
    whole = read_rows(tmp_path / "out" / "table4.csv")
    assert {row.rank for row in select(whole, what=KINDS[1])} == {1, 3}, "the first and the last rank"
    assert (
        f"{KINDS[1]}, rank 3, seed 0 that would be lost"
        in vrd("reproduce", "vrd-ablation", *words, "1", "2", "3", "4").message
    )
    rows = select(whole, rank=3)
    chosen, again = ([(row.protocol, row.parts, row.k, row.used, row.N) for row in select(rows, what=x)] for x in KINDS)
    assert chosen == again
    (row,) = select(rows, what=KINDS[1], parts="psi_c + selected", k="free", N=50, task=TASKS[0])
    assert [row.recall] == recalls(second, TASKS[0], row.used, ScoreTerms(prior=False, geometry=False), (50,))


def test_a_label_head_allows_rank_1_only(vrd: Command, files: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("ablate", "vrd-pixels-grown", "--data", files[0], "--out", tmp_path / "out", "--seeds", "1")
    given = ("--pixels.weights", files[1])
    refused = vrd(*words, *given)
    assert "got head.rank 2" in refused.message
    assert not (tmp_path / "out").exists()
    shown = vrd(*words, "--ranks", "1", *given)
    assert shown.code == 0, shown.err
    assert "Rank-1 w/ box-conditioned prior" in shown.out


@pytest.mark.usefixtures("unchecked")
def test_user_errors_on_vrd_print_one_line(vrd: Command, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "letter.csv").write_text("dear\n")
    (tmp_path / "cut.csv").write_text("what,dataset,protocol,rank\nmodel,vrd,lu2016 phr")
    bare = many_vrd(tmp_path / "bare")
    for name in json.loads((bare / "annotations_train.json").read_text()):
        Image.new("RGB", (50, 50)).save(bare / "sg_dataset" / "sg_train_images" / name)
    base = {"--data": files[0], "--weights": files[1], "--out": tmp_path / "out"}
    bad: list[tuple[dict[str, Path], str]] = [
        ({"--weights": tmp_path / "none.safetensors"}, "--weights: no file"),
        ({"--data": tmp_path / "nowhere"}, "nowhere"),
        ({"--data": bare}, "no test image of vrd has a picture"),
        ({"--csv": tmp_path / "letter.csv"}, "letter.csv is not a table of results"),
        ({"--csv": tmp_path / "cut.csv"}, "cut.csv is not a table of results, or is damaged"),
    ]
    for change, message in bad:
        words = [word for pair in {**base, **change}.items() for word in pair]
        assert message in vrd("reproduce", "vrd-ablation", *words).message
    assert (tmp_path / "letter.csv").read_text() == "dear\n"
