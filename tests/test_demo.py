"""The demo: every promise that it makes, on a world so small that it takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import Command, write_tiny

from polyadic.config import load_config
from polyadic.datasets.toy.annotator import selected, truth
from polyadic.datasets.toy.world import World
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments import demo


def test_demo_trains_scores_and_draws(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = load_config(write_tiny(tmp_path))
    monkeypatch.setattr(demo, "PRESETS", {"toy": tiny})
    monkeypatch.setattr(demo, "RANKS", (1, 2))
    out = tmp_path / "demo"
    first = command("demo", "--out", out)
    assert first.code == 0
    before, _, after = first.out.partition("Generated scenes")
    for name in demo.PHOTOGRAPHS:
        assert re.search(rf"{name}\n( +\S.*%\n)+", before), name
        assert (out / "photographs" / name).is_file()
    assert "photographs" in after
    for row in (
        "Rank-1",
        "Rank-2 w/ X_sel & prior",
        "count table, labels given",
        "ceiling, relabelled",
        "the exact truth",
    ):
        assert re.search(rf"^ {row} +\d", first.out, re.MULTILINE), row
    assert (out / "ablation.csv").is_file()
    for path in ("pictures/all.png", "pictures/test_000000.png", "rank-2-seed-0/model/model.safetensors"):
        assert (out / path).is_file()
        assert path.partition("/")[0].split("-")[0] in first.out
    sheet = np.asarray(Image.open(out / "pictures" / "all.png"))
    assert min(sheet.shape[:2]) > 400
    again = command("demo", "--out", out)
    assert "trained runs in it are kept" in again.out
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert "pip install scikit-image" in command("demo", "--out", out).out
    table = re.compile(r"^ .+\d$", re.MULTILINE)
    assert table.findall(first.out)[:5] == table.findall(again.out)[:5]
    assert "epoch" not in again.err  # nothing was trained


@pytest.mark.parametrize("k", [None, 1, 3])
def test_best_triplets_equal_a_full_sort(k: int | None) -> None:
    scene = World(1, 1).dataset("test")[0]
    pairs = np.argwhere(~np.eye(len(scene.boxes), dtype=bool))
    score = truth(scene, pairs) * selected(scene, pairs)[:, None, None, None]
    protocol = get_protocol("lu2016").change(task="phrase-classification", k=k, tops=(50,))
    found = demo.best_triplets(scene, pairs, score, protocol)
    expected, taken = [], [0] * len(pairs)
    for at in np.argsort(-score, axis=None, kind="stable"):
        pair, *triplet = np.unravel_index(at, score.shape)
        if taken[pair] < (k or 50):
            taken[pair] += 1
            expected.append(score[(pair, *triplet)])
        if len(expected) == 50:
            break
    np.testing.assert_allclose(found.scores, expected)
    for pair, triplet, value in zip(found.pairs, found.triplets, found.scores, strict=True):
        at = int(np.flatnonzero((pairs == pair).all(1))[0])
        assert score[(at, *triplet)] == value


def test_the_exact_distribution_reaches_high_recall() -> None:
    rows = demo.truth_rows(World(1, 20).dataset("test").scenes)
    recall = {(row.k, row.N): row.recall or 0.0 for row in rows}
    assert set(recall) == {("free", 50), ("free", 100), ("1", 50), ("1", 100)}
    assert 50 < recall["free", 50] < recall["free", 100]
    assert recall["1", 100] < recall["free", 100]
