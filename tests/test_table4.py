"""`polyadic ablate`: Table 4 of a tiny world."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import PIXELS, Command, call, write_tiny
from training_cases import tiny
from vrd_files import pictured_vrd

from polyadic.config import PRESETS, load_config
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.results import Row, read_rows, select
from polyadic.experiments.runs import OpenRun, mean_scores, open_run, predict_split
from polyadic.experiments.table4 import ALL, OURS, PAPER, TEMPERED, TOGETHER
from polyadic.model.scoring import ScoreTerms
from polyadic.training.examples import BoxSource, load_training
from polyadic.training.validation import score_scenes

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


def test_the_command_trains_a_rank_again_on_all_images(command: Command, out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "runs", tmp_path / "runs")
    words = ("--out", tmp_path / "runs", *WORDS, "--refit", "3", "--csv", tmp_path / "again.csv")
    assert command("ablate", out / "tiny.toml", *words).code == 0
    again = [row for row in read_rows(tmp_path / "again.csv") if row.what == f"model{ALL}"]
    assert {(row.rank, row.seed) for row in again} == {(row.rank, row.seed) for row in select(rows(out), rank=3)}
    runs = [open_run(tmp_path / "runs" / f"rank-3-seed-{seed}-all") for seed in (4, 5)]
    together = select(read_rows(tmp_path / "again.csv"), what=f"model{TOGETHER}{ALL}", parts="psi_c + selected + prior")
    assert len(together) == 4
    for row in together:
        protocol = get_protocol("lu2016").change(task=row.task, k=row.used, tops=(row.N,))
        evaluator = Evaluator([protocol], len(runs[0].data.vocabulary.predicates))
        passes = [score_scenes(run.model, run.data.scenes, BoxSource()) for run in runs]
        for scored in zip(*passes, strict=True):
            mean = mean_scores([scores for _, scores in scored])
            evaluator.update(scored[0][0].scene, mean.rank(row.used, 100, terms=ScoreTerms(True, True, False)))
        assert (row.rank, row.seed) == (3, None)
        assert row.recall == pytest.approx(next(iter(evaluator.result())).recall)


@pytest.mark.parametrize(("train_from", "entries"), [("0", 30), ("8", 30 + 24)])  # maps of the training images too
def test_a_backbone_is_trained_once_per_seed_and_shared(
    command: Command, tmp_path: Path, train_from: str, entries: int
) -> None:
    words = (
        *PIXELS,
        "--backbone.train_from",
        train_from,
        "--backbone.epochs",
        "1",
        "--triplets.epochs",
        "1",
        "--selection.epochs",
        "0",
    )
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
    assert len(list((tmp_path / "runs" / "features").rglob("*.safetensors"))) == entries  # once each, for both ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--head.rank", "3"), "--head.rank is what an ablation varies: give --ranks"),
        (("--rank", "3"), "no option --rank; did you mean --ranks?"),
        (("--csv", "notes.txt"), "--csv: expected a name that ends in .csv"),
        (("--csv", "NOTES"), "notes.csv was not written by polyadic"),
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
    "pixels.mirror": True,
    "pixels.place": True,
    "head.rank": 1,
    "head.labels": True,
    "ranking.prior": 0.0,
    "boxes.epochs": 2,
    "boxes.optimiser": "adamw",
    "boxes.rate": 0.01,
    "selection.epochs": 0,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The dataset, two of whose training images have no picture; the weights."""
    return pictured_vrd(tmp_path_factory.mktemp("vrd"))


@pytest.fixture(scope="module", autouse=True)
def _presets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "vrd-pixels", tiny(**SMALL))
        patch.setitem(PRESETS, "vrd-pixels-grown", tiny(**{**SMALL, **GROWN}))
        yield


@pytest.fixture(scope="module")
def vrd(files: tuple[Path, Path]) -> tuple[tuple[str | Path, ...], Path]:
    """The words of a command that was run once, and its folder."""
    out = files[0].parent / "out"
    words = ("--data", files[0], "--weights", files[1], "--out", out, "--seeds", "2", "--ranks", "3", "1", "2")
    assert call("reproduce", "vrd-ablation", *words) == 0
    return ("reproduce", "vrd-ablation", *words), out


def test_one_command_gives_the_papers_rows_and_ours(vrd: tuple[Any, Path], tmp_path: Path) -> None:
    rows = read_rows(vrd[1] / "table4.csv")
    kinds = {(row.what, row.rank, row.seed, row.parts) for row in rows if row.seed is not None}
    parts = ("psi_c", "psi_c + selected", "psi_c + selected + prior", TEMPERED)
    ends = {("model", rank, seed, name) for rank in (1, 3) for seed in (0, 1) for name in parts}
    ends |= {(OURS, 1, seed, "psi_c + geometry") for seed in (0, 1)}
    middle = {("model", 2, seed, name) for seed in (0, 1) for name in parts}
    assert kinds == ends | middle | {(what + ALL, *others) for what, *others in ends}, "the first and last rank twice"
    for what in ("model", OURS, "model" + ALL, OURS + ALL, "count table"):
        places = {(row.task, row.k, row.N) for row in select(rows, what=what)}
        assert places == {(task, k, n) for task in TASKS for k in ("free", "1") for n in (50, 100)}
    about = json.loads((vrd[1] / "table4.json").read_text())
    assert about["configs"][OURS]["pixels"]["crops"] == 32
    assert about["configs"]["all images"] == {"validation.images": 0}
    assert str(vrd[1].parent) not in json.dumps(about)
    assert (about["ranks"], about["seeds"]) == ([1, 2, 3], [0, 1])


def test_a_repeated_command_reuses_runs_and_scores_and_loses_none(
    vrd: tuple[Any, Path], command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    words, out = vrd
    rows, models = read_rows(out / "table4.csv"), list(out.rglob("model.safetensors"))
    (out / "paper" / "rank-3-seed-1-all" / "scores.json").write_text('{"key": ')  # damaged: measured again
    made = [path.stat().st_mtime_ns for path in models]
    shown = command(*words)
    assert shown.code == 0, shown.err
    assert [path.stat().st_mtime_ns for path in models] == made
    assert read_rows(out / "table4.csv") == rows
    assert shown.out.count("Rank-3 w/ X_sel & prior  ") == shown.out.count("Rank-3 w/ X_sel & prior^0.5  ") == 2
    assert shown.out.count(f"Rank-3 w/ X_sel{ALL}") == 2
    assert shown.out.count("39.01") == 1, "the paper's numbers stand beside one task"
    assert shown.out.count(OURS) == len(TASKS) * 4, "each seed's and their mean, then both with all images"
    assert shown.out.count(f"{OURS}{TOGETHER}") == len(TASKS) * 2
    plain = ("ablate", "vrd-pixels", "--data", files[0], "--out", tmp_path / "x", "--pixels.weights", files[1])
    refused = command(*plain, "--seeds", "2", "--ranks", "1", "2", "3", "--csv", out / "table4.csv")
    assert f"model{ALL}, rank 1, seed 0 that would be lost" in refused.message
    for fewer, lost in ((("--seeds", "1"), "seed 1"), (("--ranks", "4"), f"model{ALL}, rank 3, seed 0")):
        assert f"{lost} that would be lost" in command(*words, *fewer).message


def test_our_model_is_scored_with_labels_and_the_box_conditioned_prior(vrd: tuple[Any, Path]) -> None:
    run = open_run(vrd[1] / "ours" / "rank-1-seed-0")
    for task in TASKS:
        rows = select(read_rows(vrd[1] / "table4.csv"), what=OURS, seed=0, task=task, k="1")
        parts = ScoreTerms(selected=False, prior=False, labels=task == TASKS[1])
        assert [row.recall for row in rows] == recalls(run, task, 1, parts)


def test_a_refit_trains_on_all_images_with_the_k_of_the_first_run(vrd: tuple[Any, Path]) -> None:
    folder = vrd[1] / "paper" / "rank-3-seed-0"
    first, second = (open_run(each) for each in (folder, folder.with_name(f"{folder.name}-all")))
    held_out = {scene.name for scene in first.validation()}
    learned = [{scene.name for scene in load_training(run.config).fit} for run in (first, second)]
    assert held_out
    assert learned[1] == learned[0] | held_out
    assert not learned[0] & held_out
    rows = select(read_rows(vrd[1] / "table4.csv"), rank=3, seed=0)
    chosen, again = ([(row.protocol, row.parts, row.k, row.used, row.N) for row in select(rows, what=x)] for x in KINDS)
    assert chosen == again
    (row,) = select(rows, what=KINDS[1], parts="psi_c + selected", k="free", N=50, task=TASKS[0])
    assert [row.recall] == recalls(second, TASKS[0], row.used, ScoreTerms(prior=False, geometry=False), (50,))


def test_a_label_head_allows_rank_1_only(command: Command, files: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("ablate", "vrd-pixels-grown", "--data", files[0], "--out", tmp_path / "out", "--seeds", "1")
    given = ("--pixels.weights", files[1])
    assert "got head.rank 2" in command(*words, *given).message
    assert not (tmp_path / "out").exists()
    shown = command(*words, "--ranks", "1", *given)
    assert shown.code == 0, shown.err
    assert "Rank-1 w/ box-conditioned prior" in shown.out
