"""Table 1 on given proposals: the runs, what is scored with which of them, what is kept, and the table."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import boxes_cases
import numpy as np
import pytest
import torch
from boxes_cases import SMALL, close, make, numbers_of, proposal_file, propose, scenes, slow_numbers, small
from model_cases import dense, prepared
from scipy.io import savemat
from tiny_runs import Command
from training_cases import Spy, SpyAt, tiny
from vg_files import many_vg150, many_vg200
from vrd_files import many_vrd, pictured_vrd

from polyadic.boxes import suppress
from polyadic.config import PRESETS
from polyadic.datasets import load_dataset
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments import paper
from polyadic.experiments import table1 as experiment
from polyadic.experiments.results import Results, Row, read_rows, select
from polyadic.experiments.runs import evaluate_run, mean_scores, open_run
from polyadic.experiments.table1 import (
    FIXED,
    FULL,
    MEAN,
    PAPER,
    half_of,
    headline,
    ingredients,
    shares,
    variants,
)
from polyadic.experiments.table4 import PAPER as TABLE4
from polyadic.io.records import read_detections, write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredPairs
from polyadic.progress import Interrupted
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run_config
from polyadic.training.examples import load_training

CONFIG = small()
BOXES = {each.image: each for each in propose(scenes("test"))}
CEILINGS = ("ceiling, labels kept", "ceiling, relabelled")


@dataclass(frozen=True)
class Made:
    folder: Path
    proposals: Path
    table: Results  # of two seeds
    apart: Results  # of the first one, taken apart

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.out, to))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("boxes")
    file, out = proposal_file(folder / "proposals.jsonl"), folder / "out"
    return Made(folder, file, make(CONFIG, file, out, (0, 1)), make(CONFIG, file, out, (0,), taken_apart=(0,)))


def same(a: Any, b: Any) -> bool:
    """To the bit; NaN, which says that there are no truths, is NaN."""
    return repr(a) == repr(b)


def load(made: Made, run: str) -> RelationModel:
    return RelationModel.load(made.out / run)


def test_every_fit_and_seed_has_all_its_rows(made: Made) -> None:
    whats = {(row.fit, row.what, row.split, row.seed) for row in made.table.rows}
    baselines = {("baseline", what, "test", None) for what in ("count table", *CEILINGS)}
    fits = ("plain", "cross-fitted")
    each = {(fit, FULL, "test", seed) for fit in fits for seed in (0, 1)}
    assert whats == baselines | each | {(fit, MEAN, "test", None) for fit in fits}
    for fit, what, _, seed in whats:
        numbers = numbers_of(made.table, fit=fit, what=what, seed=seed)
        assert all(0 <= recall <= 100 for recall, _ in numbers.values())
        assert {top for *_, top in numbers} == {50, 100}
    assert numbers_of(made.table, what=CEILINGS[1])["relationship", 1, "all", 50][0] > 30
    assert any(recall > 0 for recall, _ in numbers_of(made.table, fit="plain", seed=1).values())
    assert not any(row.loss for row in made.table.rows)
    assert made.table.about["seeds"] == (0, 1)


def test_the_halves_are_disjoint_and_cover_all_images(made: Made) -> None:
    names = [scene.name for scene in scenes("test")]
    assert [half_of(name) for name in names] == [
        int(hashlib.sha256(name.encode()).hexdigest()[:2], 16) % 2 for name in names
    ]
    assert {half_of(name) for name in names} == {0, 1}
    for half in (0, 1):
        stored = {each.image: each for each in read_detections(made.out / f"proposals-{half}.jsonl", VOCABULARY)}
        assert stored.keys() == {name for name in BOXES if half_of(name) == half}
        assert all(abs(each.boxes - BOXES[name].boxes).max() < 1e-3 for name, each in stored.items())


def test_every_run_has_the_config_of_its_fit(made: Made) -> None:
    for seed in (0, 1):
        runs = {f"plain-seed-{seed}": made.proposals}
        runs |= {f"from-half-{half}-seed-{seed}": made.out / f"proposals-{half}.jsonl" for half in (0, 1)}
        for name, noise in runs.items():
            config = run_config(made.out / name)
            expected = CONFIG.change(**{"seed": seed, "validation.images": 0, "data.simulate": str(noise.resolve())})
            assert config == expected, name
    assert run_config(made.out / "held-out-full-seed-0").validation.images == CONFIG.validation.images


@pytest.mark.parametrize("seed", [0, 1])
def test_cross_fitted_rows_score_each_half_with_the_run_of_the_other(made: Made, seed: int) -> None:
    runs = [load(made, f"from-half-{half}-seed-{seed}") for half in (0, 1)]
    judged = [(scene, runs[1 - half_of(scene.name)]) for scene in scenes("test")]
    expected = slow_numbers(judged, BOXES)
    assert close(numbers_of(made.table, fit="cross-fitted", seed=seed), expected)
    swapped = slow_numbers([(scene, runs[half_of(scene.name)]) for scene in scenes("test")], BOXES)
    assert not close(swapped, expected), "or this shows nothing"


@pytest.mark.parametrize("seed", [0, 1])
def test_plain_rows_score_all_images_with_one_run(made: Made, seed: int) -> None:
    model = load(made, f"plain-seed-{seed}")
    expected = slow_numbers([(scene, model) for scene in scenes("test")], BOXES)
    assert close(numbers_of(made.table, fit="plain", seed=seed), expected)


def test_averaged_models_are_the_mean_of_their_dense_distributions(made: Made) -> None:
    models = [load(made, f"plain-seed-{seed}") for seed in (0, 1)]
    given = next(iter(BOXES.values()))
    scored = [prepared(model, given.take(np.arange(3))) for model in models]
    each = [block for pairs in scored for block in pairs.blocks()]
    (found,) = mean_scores(scored).blocks()
    torch.testing.assert_close(dense(found.cp), torch.stack([dense(x.cp) for x in each]).mean(0))
    selected = [x.log_selected for x in each if x.log_selected is not None]
    assert found.log_selected is not None
    torch.testing.assert_close(found.log_selected.exp(), torch.stack(selected).exp().mean(0))
    assert mean_scores(scored[:1]) is scored[0]
    untrained = [replace(x, kept=(replace(block, log_selected=None),)) for x, block in zip(scored, each, strict=True)]
    assert next(mean_scores(untrained).blocks()).log_selected is None


def test_rows_of_the_mean_rank_the_mean(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {half: [load(made, f"from-half-{half}-seed-{seed}") for seed in (0, 1)] for half in (0, 1)}
    first = {half: models[0] for half, models in runs.items()}

    def together(_: RelationModel, detections: Detections) -> ScoredPairs:
        return mean_scores([prepared(model, detections) for model in runs[1 - half_of(detections.image)]])

    monkeypatch.setattr(boxes_cases, "prepared", together)
    expected = slow_numbers([(scene, first[1 - half_of(scene.name)]) for scene in scenes("test")], BOXES)
    assert close(numbers_of(made.table, fit="cross-fitted", what=MEAN), expected)


def test_a_repeated_experiment_trains_and_scores_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(experiment, "score_groups", never)
    spy = Spy()
    again = make(CONFIG, made.proposals, made.out, (0, 1), spy=spy)
    assert same(again.rows, made.table.rows)
    assert [seen for seen in spy.seen if not seen.startswith("say ")] == []
    assert f"say {made.proposals.name} has no boxes of 1 of 7 test images" in spy.seen


def test_a_changed_run_is_scored_again(made: Made, tmp_path: Path) -> None:
    out = made.copy(tmp_path / "out")
    shutil.rmtree(out / "plain-seed-0")
    shutil.copytree(out / "plain-seed-1", out / "plain-seed-0")
    config = out / "plain-seed-0" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "seed": 0}))
    found = make(CONFIG, made.proposals, out, (0,))
    expected = numbers_of(made.table, fit="plain", seed=1)
    assert same(numbers_of(found, fit="plain", seed=0), expected)
    assert not same(numbers_of(made.table, fit="plain", seed=0), expected)


def test_the_variant_trained_on_true_boxes_has_the_same_stage_there() -> None:
    config = small(**{"proposals.epochs": 3, "proposals.rate": 0.3})
    true = config.change(**variants(config)[-1].training)
    assert true.triplets == config.proposals
    assert true.proposals == replace(config.proposals, epochs=0)


def test_variants_are_scored_on_test_and_held_out_images(made: Made) -> None:
    rows = [row for row in made.apart.rows if row.fit == "held-out"]
    names = [variant.name for variant in variants(CONFIG)]
    for split in ("test", "validation"):
        assert list(dict.fromkeys(row.what for row in rows if row.split == split)) == names
        for name in names:
            numbers_of(made.apart, fit="held-out", split=split, what=name)
    losses = {row.what: row.loss for row in rows if row.loss is not None}
    assert list(losses) == [FULL, "rank 1", "rank 2", "rank 5", "trained on true boxes"]
    assert all(0 < loss < 20 for loss in losses.values())
    assert len(set(losses.values())) == 5
    assert all(row.seconds is not None for row in rows if row.loss is not None)
    assert {row.fit for row in made.apart.rows if row.outcome} == {"plain", "cross-fitted"}
    log = (made.out / "held-out-full-seed-0" / "log.jsonl").read_text()
    assert '"R@50"' in log, "it validates on the images that it does not learn from"


@pytest.mark.parametrize("variant", [x for x in variants(CONFIG) if not x.training], ids=lambda x: x.name)
def test_a_ranking_variant_equals_the_full_run_ranked_with_its_config(made: Made, variant: Any) -> None:
    model = load(made, "held-out-full-seed-0")
    model.config = model.config.change(**variant.ranking)
    overlap = model.config.ranking.nms
    boxes = {name: x.take(suppress(x.boxes, x.scores, overlap)) for name, x in BOXES.items()}
    expected = slow_numbers([(scene, model) for scene in scenes("test")], boxes, variant.parts, ks=(10,))
    found = numbers_of(made.apart, fit="held-out", split="test", what=variant.name)
    ten = {key: value for key, value in found.items() if key[1] == 10}
    assert close(ten, expected)
    if variant.name == "NMS at 0.7":
        assert sum(map(len, boxes.values())) < sum(map(len, BOXES.values()))


def test_outcomes_sum_to_100_percent_and_hits_equal_recall(made: Made) -> None:
    truths = sum(len({tuple(x) for x in scene.relations}) for scene in scenes("test"))
    for fit, seed in (("plain", 0), ("cross-fitted", 1), ("plain", None)):
        mine = [row for row in select(made.table.rows, fit=fit, seed=seed) if row.outcome]
        recall = numbers_of(made.table, fit=fit, seed=seed)
        for k in (1, 10):
            for top in (50, 100):
                rows = select(mine, k=str(k), N=top)
                assert sum(row.ground_truths or 0 for row in rows) <= truths
                assert sum(row.share or 0 for row in rows) == pytest.approx(100)
                (hit,) = select(rows, outcome="hit")
                assert hit.share == pytest.approx(recall["relationship", k, "all", top][0])


def test_an_interrupted_experiment_continues_to_the_same_numbers(made: Made, tmp_path: Path) -> None:
    out = made.copy(tmp_path / "out")
    shutil.rmtree(out / "from-half-1-seed-1")
    for name in ("cross-fitted-seed-1", "cross-fitted-mean"):
        (out / "scores" / f"{name}.json").unlink()
    for place in ("selection 1/1, step 1", "scores, step 3"):
        spy = SpyAt(place)
        with pytest.raises(Interrupted):
            make(CONFIG, made.proposals, out, (0, 1), spy=spy)
        assert place.partition(",")[0] in spy.seen[-1]
        assert not (out / "scores" / "cross-fitted-seed-1.json").exists()
    last = Spy()
    found = make(CONFIG, made.proposals, out, (0, 1), spy=last)
    assert same(found.rows, made.table.rows)
    assert not any(seen.startswith("begin proposals") for seen in last.seen), "what was trained stays"


def test_a_folder_with_other_content_is_not_touched(made: Made, tmp_path: Path) -> None:
    for name, file in (("folder", "plain-seed-0/letter.txt"), ("file", "plain-seed-0")):
        letter = tmp_path / name / file
        letter.parent.mkdir(parents=True)
        letter.write_text("dear")
        with pytest.raises(PolyadicError, match="plain-seed-0 exists and is not a run"):
            make(CONFIG, made.proposals, tmp_path / name, (0,))
        assert letter.read_text() == "dear"
    with pytest.raises(PolyadicError, match=r"was started with head\.rank = 3, not 4"):
        make(small(**{"head.rank": 4}), made.proposals, made.out, (0,))


def test_written_rows_read_back_equal(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.one.csv"
    rows, about = made.apart.write(path)
    assert (rows.name, about.name) == ("table.one.csv", "table.one.json")
    assert same(read_rows(path), made.apart.rows)
    record = json.loads(about.read_text())
    assert (record["dataset"], record["seeds"], record["config"]["head"]["rank"]) == ("toy", [0], 3)
    assert {"polyadic", "torch"} <= set(record["versions"])
    made.table.write(path)
    assert same(read_rows(path), made.table.rows)


def numbered(what: str, fit: str, seed: int | None, first: float, step: float, split: str = "test") -> list[Row]:
    """Recalls first, first + step, ... in the order of the columns; half of them as mean recalls; NaN zero-shot."""
    rows = []
    for at, (task, k, top) in enumerate(FIXED):
        value = first + step * at
        place: dict[str, Any] = {"what": what, "fit": fit, "split": split, "seed": seed, "task": task, "k": k, "N": top}
        rows.append(Row(**place, subset="all", recall=value, mean_recall=value / 2))
        rows.append(Row(**place, subset="zero-shot", recall=math.nan, mean_recall=math.nan))
    return rows


def test_table_lines_are_means_and_deviations_over_seeds() -> None:
    rows = numbered("count table", "baseline", None, 5, 1)
    rows += numbered(FULL, "plain", 0, 10, 1) + numbered(FULL, "plain", 1, 14, 2) + numbered(MEAN, "plain", None, 30, 0)
    rows += numbered(FULL, "held-out", 0, 77, 0) + numbered(FULL, "held-out", 0, 66, 0, "validation")
    lines = {line.label: line.cells for line in headline(rows, "vrd")}
    assert list(lines) == ["count table", "plain", f"plain, {MEAN}", *PAPER["vrd"]]
    assert [cell.mean for cell in lines["plain"]] == pytest.approx([12 + 1.5 * at for at in range(8)])
    assert [cell.deviation for cell in lines["plain"]] == pytest.approx([(4 + at) / math.sqrt(2) for at in range(8)])
    assert all(math.isnan(cell.deviation) for name in ("count table", f"plain, {MEAN}") for cell in lines[name])
    paper = [cell.mean for cell in lines["the paper, Lu's proposals"]]
    assert paper == [17.67, 18.64, 24.08, 28.29, 20.80, 22.13, 29.17, 34.33]
    halved = headline(rows, "vrd", metric="mean_recall")
    assert [line.label for line in halved] == ["count table", "plain", f"plain, {MEAN}"]
    assert halved[1].cells[0].mean == pytest.approx(6)
    none = headline(rows, "vrd", subset="zero-shot")  # no truths: no numbers, and no failure
    assert all(math.isnan(cell.mean) and math.isnan(cell.deviation) for line in none for cell in line.cells)
    for split, value in (("test", 77), ("validation", 66)):
        (line,) = ingredients(rows, split)
        assert (line.label, line.cells[3].mean) == (FULL, value)


def test_losses_and_outcomes_are_means_over_seeds() -> None:
    rows = numbered(FULL, "held-out", 0, 1, 0, "validation") + numbered("rank 1", "held-out", 0, 1, 0, "validation")
    losses = ((FULL, 0, 2.0), (FULL, 1, 3.0), ("rank 1", 0, 7.0))
    rows += [Row(what=what, fit="held-out", seed=seed, loss=loss) for what, seed, loss in losses]
    full, rank1 = ingredients(rows, "validation")
    assert full.loss is not None
    assert rank1.loss is not None
    assert (full.loss.mean, rank1.loss.mean) == (2.5, 7.0)
    assert full.loss.deviation == pytest.approx(math.sqrt(0.5))
    cases = ((0, "10", 20.0), (1, "10", 30.0), (None, "10", 99.0), (0, "1", 98.0))
    rows = [Row(what=FULL, fit="plain", seed=seed, k=k, N=100, outcome="hit", share=share) for seed, k, share in cases]
    assert shares(rows, "plain", 10, 100)["hit"].mean == 25
    assert shares(rows, "cross-fitted", 10, 100) == {}


# --- the commands


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    few = {key: value for key, value in SMALL.items() if not key.startswith("world.")}
    monkeypatch.setitem(PRESETS, "vrd-boxes", tiny(sources=("evidence",), **few, **{"data.dataset": "vrd"}))
    monkeypatch.setitem(PRESETS, "vrd-pixels", tiny(**{"pixels.reduce": 6, "data.dataset": "vrd"}))
    return Command(capsys)


WRITERS: dict[str, Callable[[Path], Path]] = {"vrd": many_vrd, "vg150": many_vg150, "vg200": many_vg200}


def found_in(root: Path, dataset: str, split: str) -> list[Detections]:
    """A detector that is nearly right."""
    rng = np.random.default_rng(1)
    return [
        Detections(x.name, x.boxes + rng.uniform(0, 1, x.boxes.shape), x.labels, rng.random(len(x.boxes)), x.frame)
        for x in load_dataset(dataset, root, split)
    ]


def write_found(path: Path, root: Path, dataset: str, split: str = "test") -> Path:
    names = load_dataset(dataset, root, split).vocabulary
    return write_detections(path, found_in(root, dataset, split), names)


TABLES = {1: "vrd", 2: "vg200", 3: "vg150"}


@pytest.fixture
def networks(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The paper's presets, so small that they train in a blink, on evidence: the files have no pictures."""
    for dataset in TABLES.values():
        data = {f"data.{name}": value for name, value in asdict(PRESETS[dataset].data).items()}
        monkeypatch.setitem(PRESETS, dataset, tiny(sources=("evidence",), **data))
    return command


@pytest.mark.parametrize(("number", "dataset"), TABLES.items())
def test_one_command_gives_the_rows_and_columns_of_a_table(
    networks: Command, tmp_path: Path, number: int, dataset: str
) -> None:
    root = WRITERS[dataset](tmp_path / "data")
    boxes = {split: write_found(tmp_path / f"{split}.jsonl", root, dataset, split) for split in ("train", "test")}
    words: list[str | Path] = [f"table{number}", "--data", root, "--seeds", "2", "--out", tmp_path / "out"]
    if number < 3:
        words += ["--proposals", boxes["test"], "--training-proposals", boxes["train"]]
    shown = networks("reproduce", *words)
    assert shown.code == 0, shown.err
    table = paper.TABLES[number]
    assert f"Table {number}: {dataset} test, {table.protocol}, recall in percent, 2 seeds" in shown.out
    lines = {line.split("  ")[0].strip(): line for line in shown.out.splitlines()}
    for name, numbers in table.published.items():
        printed = "".join(line for line in shown.out.splitlines() if line.strip().startswith(name))
        assert all(("-" if math.isnan(x) else f"{x:.2f}") in printed for x in numbers), name
    rows = read_rows(tmp_path / "out" / f"table{number}.csv")
    assert {row.seed for row in rows if row.what == paper.MODEL} == {0, 1}
    config = run_config(tmp_path / "out" / "seed-1")
    assert (config.seed, config.data.dataset, bool(config.proposals.epochs)) == (1, dataset, number < 3)
    # each number of ours is the recall of the runs under the protocol, at that k
    runs = [open_run(tmp_path / "out" / f"seed-{seed}") for seed in (0, 1)]
    found = None if number == 3 else {each.image: each for each in found_in(root, dataset, "test")}
    for words_after, columns in table.columns.items():
        assert f"this model{words_after}" in lines
        line = next(line for line in table.lines(rows) if line.label == f"this model{words_after}")
        for (task, k, top), cell in zip(columns, line.cells, strict=True):
            protocol = get_protocol(table.protocol).change(task=task, k_unit="triplet", tops=(50, 100))
            asked = "free" if k == "free" else int(k)
            scored = [evaluate_run(run, [protocol], (asked,), detections=found).result.rows for run in runs]  # type: ignore[arg-type]
            recalls = [
                recall.recall
                for some in scored
                for what, recall in some
                if (what, recall.protocol.subset, recall.top) == ("predictions", "all", top)
            ]
            assert cell.mean == pytest.approx(np.mean(recalls))
            assert f"{cell.mean:.2f}" in shown.out
    assert "count table" in shown.out
    assert "simulated" not in shown.out, "the boxes of the training images are given"
    assert "…" not in shown.out, "no number is cut off"


def test_boxes_of_the_training_images_are_simulated_where_they_are_not_given(networks: Command, tmp_path: Path) -> None:
    root = many_vrd(tmp_path / "data")
    write_lu(root)
    shown = networks("reproduce", "table1", "vrd-boxes", "--data", root, "--seeds", "1", "--out", tmp_path / "out")
    assert shown.code == 0, shown.err
    config = run_config(tmp_path / "out" / "seed-0")
    assert Path(config.data.simulate[0]) == (root / "lu2016" / "objectDetRCNN.mat").resolve()
    assert config.proposals.epochs == 1
    assert "free k = " in shown.err
    assert "simulated, by a noise model fitted to objectDetRCNN.mat, the test images' own: transductive" in shown.out


@pytest.mark.parametrize("dataset", ["vrd", "vg150"])
def test_table_4_takes_the_preset_of_the_datas_layout(networks: Command, tmp_path: Path, dataset: str) -> None:
    root = WRITERS[dataset](tmp_path / "data")
    words = ("--data", root, "--seeds", "1", "--ranks", "1", "5", "--out", tmp_path / "out")
    shown = networks("reproduce", "table4", *words)
    assert shown.code == 0, shown.err
    assert f"{dataset} test, {'motifs' if dataset == 'vg150' else 'lu2016'}" in shown.out
    assert f"{TABLE4[dataset]['Rank-5 w/ X_sel & prior'][0]:.2f}" in shown.out


def write_lu(root: Path) -> None:
    """Lu's proposals of the test images, beside the dataset."""

    def cells(rows: list[Any]) -> np.ndarray:
        cell = np.empty((1, len(rows)), object)
        for at, row in enumerate(rows):
            cell[0, at] = np.asarray(row)
        return cell

    found, folder = found_in(root, "vrd", "test"), root / "lu2016"
    folder.mkdir()
    savemat(folder / "imagePath.mat", {"imagePath": cells([[each.image] for each in found])})
    content = {
        "detection_bboxes": cells([each.boxes.round().astype(np.uint8) for each in found]),
        "detection_labels": cells([(each.labels[:, None] + 1).astype(np.uint8) for each in found]),
        "detection_confs": cells([each.scores[:, None] for each in found]),
    }
    savemat(folder / "objectDetRCNN.mat", content)


def test_lus_proposals_default_to_the_datasets_folder(command: Command, tmp_path: Path) -> None:
    root = many_vrd(tmp_path / "data")
    write_lu(root)
    words = ("reproduce", "vrd-lu", "--data", root, "--out", tmp_path / "out", "--seeds", "1")
    shown = command(*words, "--ingredients", "1")
    assert shown.code == 0, shown.err
    for part in (
        "labels as detected",
        "trained on true boxes",
        "ingredients, validation, ",
        "the paper, Lu's proposals",
    ):
        assert part in shown.out
    assert "…" not in shown.out
    assert {row.fit for row in read_rows(tmp_path / "out" / "table1.csv")} >= {"held-out", "cross-fitted"}
    again = command(*words, "--ingredients", "0")
    assert again.code == 0
    assert "labels as detected" not in again.out
    assert not any(row.loss for row in read_rows(tmp_path / "out" / "table1.csv"))


# --- pixels beside evidence


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The dataset, weights, and proposals: true boxes of the test images, moved a little, some with a wrong label."""
    root, weights = pictured_vrd(tmp_path_factory.mktemp("both"))
    data, rng, found = load_dataset("vrd", root, "test"), np.random.default_rng(1), []
    for scene in data:
        labels = np.where(
            rng.uniform(size=len(scene.labels)) < 0.3, rng.integers(0, 3, len(scene.labels)), scene.labels
        )
        boxes = scene.boxes + rng.uniform(-1, 1, scene.boxes.shape)
        found.append(Detections(scene.name, boxes, labels, rng.uniform(0.3, 1, len(labels)), scene.frame))
    return root, weights, write_detections(root.parent / "found.jsonl", found, data.vocabulary)


def test_both_kinds_use_the_same_images_and_boxes(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, weights, proposals = files
    words = ("--data", root, "--weights", weights, "--proposals", proposals, "--out", tmp_path / "out", "--seeds", "2")
    shown = command("reproduce", "vrd-lu-pixels", *words)
    assert shown.code == 0, shown.err
    rows = read_rows(tmp_path / "out" / "table1.csv")
    kinds = {"evidence": ("evidence",), "pixels and evidence": ("pixels", "evidence")}
    assert {(row.what, row.seed) for row in rows} == {(what, seed) for what in kinds for seed in (0, 1)}
    for what, sources in kinds.items():
        run = open_run(tmp_path / "out" / f"{what.replace(' ', '-')}-seed-1")
        assert (run.config.sources, run.config.validation.images) == (sources, 0)
        assert len(load_training(run.config).fit) == 22, "two training images have no picture"
        assert len(run.data) == 7, "one test image has none"
        mine = {(row.task, row.k, row.N): row.recall for row in select(rows, what=what, seed=1)}
        assert set(mine) == set(FIXED)
        boxes = {each.image: each for each in read_detections(proposals, run.data.vocabulary)}
        protocol = get_protocol("lu2016").change(task="phrase", tops=(50, 100))
        scored = evaluate_run(run, [protocol], (10,), detections=boxes).result.rows
        expected = [r.recall for name, r in scored if name == "predictions" and r.protocol.subset == "all"]
        assert [mine["phrase", "10", n] for n in (50, 100)] == expected
    about = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert about["configs"]["pixels and evidence"]["head"]["input_dropout"] == 0.3
    assert str(tmp_path) not in json.dumps(about)
    assert str(root) not in json.dumps(about)
    fewer = command("reproduce", "vrd-lu-pixels", *words[:-1], "1")
    assert "seed 1 that would be lost" in fewer.message
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    assert command("reproduce", "vrd-lu-pixels", *words).code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")} == made


BAD: tuple[tuple[str, dict[str, str], str], ...] = (  # the command, what is changed, what is said
    ("table1", {"--proposals": "none.jsonl"}, "none.jsonl"),
    ("table1", {"--proposals": "train.jsonl"}, "train.jsonl has boxes of none of the 8 test images"),
    ("table2", {}, "Table 2 is of vg200, but "),
    ("table2", {"--data": "vg200"}, "--proposals is missing"),
    ("table3", {}, "Table 3 is of vg150, but "),
    ("table4", {"--data": "nowhere"}, "nowhere"),
    ("table1", {"--proposal": "a"}, "no option --proposal; did you mean --proposals?"),
    ("table1", {"--data": "nowhere"}, "nowhere"),
    ("table1", {"--csv": "letter.csv"}, "letter.csv was not written by polyadic"),
    ("table1", {"--csv": "letter.txt"}, "expected a name that ends in .csv"),
    ("table1", {"--training-proposals": "none.jsonl"}, "none.jsonl"),
    ("vrd-lu", {}, "objectDetRCNN.mat"),
    ("vrd-lu-pixels", {"--weights": "none.safetensors"}, "--weights: no file"),
    ("vrd-lu-pixels", {"--proposals": "none.mat"}, "--proposals: no file"),
    ("vrd-lu-pixels", {"--data": "data"}, "no test image of vrd has a picture"),
    ("vrd-lu-pixels", {"--csv": "noise.csv"}, "noise.csv was not written by polyadic"),
    ("vrd-ablation", {"--weights": "none.safetensors"}, "--weights: no file"),
    ("vrd-ablation", {"--data": "nowhere"}, "nowhere"),
    ("vrd-ablation", {"--csv": "cut.csv"}, "cut.csv is not a table of results, or is damaged"),
)


@pytest.mark.usefixtures("unchecked")
def test_user_errors_print_one_line(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, _ = many_vrd(tmp_path / "data"), many_vg200(tmp_path / "vg200")
    proposals, _ = (write_found(tmp_path / f"{split}.jsonl", root, "vrd", split) for split in ("test", "train"))
    Path("letter.csv").write_text("dear\n")
    Path("noise.csv").write_bytes(b"\xff\xfe\x00")
    Path("cut.csv").write_text("what,dataset,protocol,rank\nmodel,vrd,lu2016 phr")
    pictured = {"--data": files[0], "--weights": files[1]}
    base: dict[str, dict[str, Any]] = {
        "table1": {"--data": root, "--proposals": proposals, "--seeds": "1"},
        **{name: {"--data": root} for name in ("table2", "table3", "table4")},
        "vrd-lu": {"--data": root},
        "vrd-lu-pixels": {**pictured, "--proposals": files[2]},
        "vrd-ablation": pictured,
    }
    for name, change, message in BAD:
        words = [word for pair in {**base[name], **change, "--out": "out"}.items() for word in pair]
        assert message in command("reproduce", name, *words).message
    assert not Path("out").exists()
