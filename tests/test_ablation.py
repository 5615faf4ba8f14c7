"""`polyadic ablate`: Table 4 of a tiny world."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from pathlib import Path

import pytest
from tiny_runs import PIXELS, Command, call, write_tiny

from polyadic.config import load_config
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.ablation import ablate
from polyadic.experiments.predicting import predict_split
from polyadic.experiments.runs import open_run
from polyadic.experiments.table4 import PAPER
from polyadic.model.scoring import Parts
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import BoxSource

WORDS = ("--ranks", "1", "3", "--seeds", "2", "--seed", "4", "--boxes.epochs", "1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablation")
    tiny = write_tiny(folder)
    assert call("ablate", tiny, "--out", folder / "runs", *WORDS, "--csv", folder / "results" / "tiny.csv") == 0
    return folder


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "results" / "tiny.csv").open() as file:
        return list(csv.DictReader(file))


def test_there_is_one_row_per_rank_seed_parts_k_and_n(out: Path) -> None:
    mine = [row for row in rows(out) if row["what"] == "model"]
    keys = {(row["rank"], row["seed"], row["parts"], row["k"], row["N"]) for row in mine}
    assert len(keys) == len(mine) == 2 * 2 * 4 * 2 * 2
    assert {row["seed"] for row in mine} == {"4", "5"}
    assert all(float(row["loss"]) > 0 and float(row["seconds"]) > 0 for row in mine)
    assert {row["protocol"] for row in mine if row["k"] == "1"} == {"lu2016 phrase-classification, k = 1 triplet"}
    losses = {(row["rank"], row["seed"]): row["loss"] for row in mine}
    assert len(set(losses.values())) == 4
    others = [(row["what"], row["k"], row["N"]) for row in rows(out) if row["what"] != "model"]
    assert others == [
        *(("count table", k, n) for k in ("free", "1") for n in ("50", "100")),
        ("ceiling, relabelled", "any", "any"),
    ]


def test_a_row_is_the_recall_of_its_run_with_its_parts_and_k(out: Path) -> None:
    run = open_run(out / "runs" / "rank-3-seed-5")
    assert (run.config.head.rank, run.config.seed) == (3, 5)
    wanted = {"psi_c": Parts(False, False, False), "psi_c + selected + prior": Parts(True, True, False)}
    for name, parts in wanted.items():
        for word in ("free", "1"):
            held = [r for r in rows(out) if (r["rank"], r["seed"], r["parts"], r["k"]) == ("3", "5", name, word)]
            k = None if held[0]["used"] == "any" else int(held[0]["used"])
            protocol = get_protocol("lu2016").change(task="phrase-classification", k=k, tops=(50, 100))
            evaluator = Evaluator([protocol], len(run.data.vocabulary.predicates))
            (found,) = predict_split(run.model, run.data.scenes, BoxSource(), None, [(k, parts)])
            for scene, each in zip(run.data, found, strict=True):
                evaluator.update(scene, each)
            assert [float(row["recall"]) for row in held] == [row.recall for row in evaluator.result()]
            assert word == "free" or k == 1


def test_started_again_it_trains_nothing_and_shows_the_means_of_the_file(command: Command, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.safetensors")}
    scores = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("scores.json")}
    assert (len(before), len(scores)) == (8, 4)  # a model and its prior each
    text = (out / "results" / "tiny.csv").read_text()
    result = command("ablate", out / "tiny.toml", "--out", out / "runs", *WORDS, "--csv", out / "results" / "tiny.csv")
    assert result.code == 0
    assert "triplets" not in result.err
    assert {path: path.stat().st_mtime_ns for path in (*before, *scores)} == before | scores
    assert (out / "results" / "tiny.csv").read_text() == text
    for label, rank, parts in (("Rank-1", "1", "psi_c"), ("Rank-3 w/ X_sel & prior", "3", "psi_c + selected + prior")):
        cells = []
        for k, n in (("free", "50"), ("free", "100"), ("1", "50"), ("1", "100")):
            key = (rank, parts, k, n)
            held = [float(r["recall"]) for r in rows(out) if (r["rank"], r["parts"], r["k"], r["N"]) == key]
            assert len(held) == 2
            cells.append(f"{statistics.fmean(held):.2f} ± {statistics.stdev(held):.2f}")
        line = next(line for line in result.out.splitlines() if re.match(rf"\s*{label}\s\s", line))
        assert [each.strip() for each in re.findall(r"\d+\.\d+ ± \d+\.\d+", line)][:4] == cells
    assert re.search(r"ceiling, relabelled +100\.00 +100\.00 +100\.00 +100\.00", result.out)


def test_config_and_versions_stand_beside_the_rows(out: Path) -> None:
    value = json.loads((out / "results" / "tiny.json").read_text())
    assert (value["ranks"], value["seeds"]) == ([1, 3], [4, 5])
    assert value["config"]["triplets"]["epochs"] == 4
    assert {"polyadic", "torch", "python"} <= set(value["versions"])


def test_a_backbone_is_trained_once_per_seed_and_shared(command: Command, tmp_path: Path) -> None:
    words = (*PIXELS, "--backbone.epochs", "1", "--triplets.epochs", "1", "--selection.epochs", "0")
    result = command(
        "ablate", write_tiny(tmp_path), "--out", tmp_path / "runs", "--ranks", "1", "2", "--seeds", "1", *words
    )
    assert result.code == 0
    assert result.err.count("backbone 1/1: held-out accuracy") == 1
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
        (("--csv", "NOTES"), "exists and is not an ablation's; choose another name"),
        (("--triplets.epochs", "0"), "there is nothing to compare"),
        (("--world.train", "2"), "toy has no validation images with relations"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_one_line_and_leave_nothing_behind(
    command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    notes = tmp_path / "notes.csv"
    notes.write_text("mine\n")
    words = tuple(str(notes) if word == "NOTES" else word for word in words)
    assert message in command("ablate", write_tiny(tmp_path), "--out", tmp_path / "runs", *words).message
    assert not (tmp_path / "runs").exists()
    assert notes.read_text() == "mine\n"


def test_a_rank_to_be_fitted_again_is_one_of_the_ranks(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match=r"refit has ranks \[2\], which are not among the ranks"):
        ablate(load_config(write_tiny(tmp_path)), tmp_path / "runs", ranks=(1, 3), refit=(1, 2))
    assert not (tmp_path / "runs").exists()


def test_the_paper_s_numbers_grow_with_n_and_with_k() -> None:
    for dataset in PAPER.values():
        assert len(dataset) == 7
        for free50, free100, one50, one100 in dataset.values():
            assert free50 < free100
            assert one50 < one100
            assert one50 < free50
            assert not math.isnan(one100)
