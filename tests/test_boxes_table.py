"""Table 1 on given proposals: the runs, what is scored with which of them, what is kept, and the table."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxes_cases import close, make, numbers_of, proposal_file, propose, scenes, slow_numbers, small
from model_cases import dense
from training_cases import Spy

from polyadic.boxes import suppress
from polyadic.config import difference
from polyadic.datasets import held_out
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.experiments import boxes_rows
from polyadic.experiments.boxes_scores import FULL, MEAN, FateRow, Row, Scorer, mean_scores, variants
from polyadic.experiments.boxes_table import BoxesTable, LossRow, half_of
from polyadic.experiments.table1 import PAPER
from polyadic.io.records import read_detections
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, PairScores
from polyadic.progress import Interrupted, request_stop
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run_config

CONFIG = small()
BOXES = {each.image: each for each in propose(scenes("test"))}
CEILINGS = ("ceiling, labels kept", "ceiling, relabelled")


@dataclass(frozen=True)
class Made:
    folder: Path
    proposals: Path
    table: BoxesTable  # of two seeds
    apart: BoxesTable  # of the first one, taken apart

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
    assert not made.table.losses
    assert made.table.seeds == (0, 1)


def test_the_halves_are_told_by_names_are_disjoint_and_cover_all(made: Made) -> None:
    names = [scene.name for scene in scenes("test")]
    assert [half_of(name) for name in names] == [
        int(hashlib.sha256(name.encode()).hexdigest()[:2], 16) % 2 for name in names
    ]
    assert {half_of(name) for name in names} == {0, 1}
    found: dict[str, Detections] = {}
    for half in (0, 1):
        mine = list(read_detections(made.out / f"proposals-{half}.jsonl", VOCABULARY))
        assert all(half_of(each.image) == half for each in mine)
        assert not found.keys() & {each.image for each in mine}
        found |= {each.image: each for each in mine}
    assert found.keys() == BOXES.keys()
    for name, each in found.items():
        assert each.size == BOXES[name].size
        assert abs(each.boxes - BOXES[name].boxes).max() < 1e-3
        assert each.labels.tolist() == BOXES[name].labels.tolist()


def test_every_run_has_the_noise_and_the_images_of_its_fit(made: Made) -> None:
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


def test_seeds_together_are_the_mean_of_their_dense_distributions(made: Made) -> None:
    models = [load(made, f"plain-seed-{seed}") for seed in (0, 1)]
    given = next(iter(BOXES.values()))
    each = [model.pairs_of(given.take(np.arange(3))) for model in models]
    found = mean_scores(each)
    torch.testing.assert_close(dense(found.cp), torch.stack([dense(x.cp) for x in each]).mean(0))
    selected = [x.log_selected for x in each if x.log_selected is not None]
    assert found.log_selected is not None
    torch.testing.assert_close(found.log_selected.exp(), torch.stack(selected).exp().mean(0))
    assert mean_scores(each[:1]) is each[0]
    assert mean_scores([replace(x, log_selected=None) for x in each]).log_selected is None


def test_rows_of_the_mean_rank_the_mean(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {half: [load(made, f"from-half-{half}-seed-{seed}") for seed in (0, 1)] for half in (0, 1)}
    first = {half: models[0] for half, models in runs.items()}
    alone = RelationModel.pairs_of

    def together(self: RelationModel, detections: Detections, image: Any = None) -> PairScores:
        return mean_scores([alone(model, detections) for model in runs[1 - half_of(detections.image)]])

    monkeypatch.setattr(RelationModel, "pairs_of", together)
    expected = slow_numbers([(scene, first[1 - half_of(scene.name)]) for scene in scenes("test")], BOXES)
    assert close(numbers_of(made.table, fit="cross-fitted", what=MEAN), expected)


def test_a_second_time_nothing_is_trained_or_scored(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(Scorer, "score", never)
    spy = Spy()
    again = make(CONFIG, made.proposals, made.out, (0, 1), spy=spy)
    assert same(again.rows, made.table.rows)
    assert same(again.fates, made.table.fates)
    assert [seen for seen in spy.seen if not seen.startswith("say ")] == []
    assert f"say {made.proposals.name} has no boxes of 1 of 7 test images" in spy.seen


def test_a_changed_run_is_scored_anew(made: Made, tmp_path: Path) -> None:
    out = made.copy(tmp_path / "out")
    shutil.rmtree(out / "plain-seed-0")
    shutil.copytree(out / "plain-seed-1", out / "plain-seed-0")
    config = out / "plain-seed-0" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "seed": 0}))
    found = make(CONFIG, made.proposals, out, (0,))
    expected = numbers_of(made.table, fit="plain", seed=1)
    assert same(numbers_of(found, fit="plain", seed=0), expected)
    assert not same(numbers_of(made.table, fit="plain", seed=0), expected)


def test_real_boxes_of_the_training_images_need_no_second_fit(tmp_path: Path) -> None:
    training = proposal_file(tmp_path / "training.jsonl", "train")
    config = small(**{"data.detections": str(training), "data.simulate": ""})
    first, other = (proposal_file(tmp_path / f"{seed}.jsonl", seed=seed) for seed in (0, 5))
    found = make(config, first, tmp_path / "out", (0,))
    assert {row.fit for row in found.rows} == {"baseline", "plain"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plain-seed-0", "scores"}
    run = run_config(tmp_path / "out" / "plain-seed-0")
    assert (run.data.detections, run.data.simulate, run.validation.images) == (str(training), "", 0)
    # other proposals of the same images: the run stays, its scores do not
    shutil.copytree(tmp_path / "out" / "plain-seed-0", tmp_path / "fresh" / "plain-seed-0")
    later, fresh = (make(config, other, tmp_path / name, (0,)) for name in ("out", "fresh"))
    assert same(later.rows, fresh.rows)
    assert not same(later.rows, found.rows)


def test_each_variant_differs_in_what_its_name_says() -> None:
    config = small(**{"head.rank": 10, "proposals.epochs": 3, "proposals.rate": 0.3})
    found = {}
    for variant in variants(config):
        trained, ranked = config.change(**variant.training), config.change(**variant.ranking)
        parts = [name for name, value in asdict(variant.parts).items() if value != asdict(ALL)[name]]
        found[variant.name] = (difference(trained, config), difference(ranked, config), parts)
    assert next(iter(found)) == FULL
    assert found == {
        FULL: ([], [], []),
        "labels as detected": ([], [], ["relabel"]),
        "no dedup": ([], [], ["dedup"]),
        "no P(X_sel)": ([], [], ["selected"]),
        "no prior": ([], [], ["prior"]),
        "prior^0.5": ([], ["ranking.prior"], []),
        "prior^1": ([], ["ranking.prior"], []),
        "confidences^1": ([], ["ranking.boxes"], []),
        "NMS at 0.7": ([], ["ranking.nms"], []),
        **{f"rank {rank}": (["head.rank"], [], []) for rank in (1, 2, 5)},
        "trained on true boxes": (
            found["trained on true boxes"][0],
            ["ranking.prior", "ranking.boxes"],
            [],
        ),
    }
    true = config.change(**variants(config)[-1].training)
    assert true.triplets == config.proposals
    assert true.proposals == replace(config.proposals, epochs=0)
    assert [config.change(**x.ranking).ranking.prior for x in variants(config)[5:7]] == [0.5, 1]


def test_ingredients_are_scored_on_test_and_on_held_out_images(made: Made) -> None:
    rows = [row for row in made.apart.rows if row.fit == "held-out"]
    names = [variant.name for variant in variants(CONFIG)]
    for split in ("test", "validation"):
        assert list(dict.fromkeys(row.what for row in rows if row.split == split)) == names
        for name in names:
            numbers_of(made.apart, fit="held-out", split=split, what=name)
    assert [row.what for row in made.apart.losses] == [FULL, "rank 1", "rank 2", "rank 5", "trained on true boxes"]
    assert all(0 < row.loss < 20 and row.seconds >= 0 for row in made.apart.losses)
    assert len({row.loss for row in made.apart.losses}) == 5
    assert {row.fit for row in made.apart.fates} == {"plain", "cross-fitted"}
    kept = {row.fit for row in made.apart.rows} - {"held-out"}
    assert kept == {row.fit for row in made.table.rows}
    log = (made.out / "held-out-full-seed-0" / "log.jsonl").read_text()
    assert '"recall"' in log, "it validates on the images that it does not learn from"
    assert len(held_out(scenes("train"))) == 2


@pytest.mark.parametrize("variant", [x for x in variants(CONFIG) if not x.training], ids=lambda x: x.name)
def test_a_variant_of_ranking_is_the_full_run_ranked_so(made: Made, variant: Any) -> None:
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


def test_the_truths_go_where_they_go_and_hits_are_the_recall(made: Made) -> None:
    truths = sum(len({tuple(x) for x in scene.relations}) for scene in scenes("test"))
    for fit, seed in (("plain", 0), ("cross-fitted", 1), ("plain", None)):
        mine = [row for row in made.table.fates if (row.fit, row.seed) == (fit, seed)]
        recall = numbers_of(made.table, fit=fit, seed=seed)
        for k in (1, 10):
            for top in (50, 100):
                fates = {row.fate: row for row in mine if (row.k, row.N) == (k, top)}
                assert sum(row.truths for row in fates.values()) <= truths
                assert sum(row.share for row in fates.values()) == pytest.approx(100)
                assert fates["hit"].share == pytest.approx(recall["relationship", k, "all", top][0])


def test_stopped_in_a_run_and_in_a_score_it_goes_on_to_the_same_numbers(made: Made, tmp_path: Path) -> None:
    out = made.copy(tmp_path / "out")
    shutil.rmtree(out / "from-half-1-seed-1")
    for name in ("cross-fitted-seed-1", "cross-fitted-mean"):
        (out / "scores" / f"{name}.json").unlink()
    for place in ("selection 1/1, step 1", "scores, step 3"):
        spy = _At(place)
        with pytest.raises(Interrupted):
            make(CONFIG, made.proposals, out, (0, 1), spy=spy)
        assert place.partition(",")[0] in spy.seen[-1]
        assert not (out / "scores" / "cross-fitted-seed-1.json").exists()
    last = Spy()
    found = make(CONFIG, made.proposals, out, (0, 1), spy=last)
    assert same(found.rows, made.table.rows)
    assert same(found.fates, made.table.fates)
    assert not any(seen.startswith("begin proposals") for seen in last.seen), "what was trained stays"


class _At(Spy):
    """Asks to stop where it sees this."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def _see(self, what: str) -> None:
        super()._see(what)
        if what == self.place:
            request_stop()


def test_what_is_in_the_way_is_left_alone(made: Made, tmp_path: Path) -> None:
    for name, file in (("folder", "plain-seed-0/letter.txt"), ("file", "plain-seed-0")):
        letter = tmp_path / name / file
        letter.parent.mkdir(parents=True)
        letter.write_text("dear")
        with pytest.raises(PolyadicError, match="plain-seed-0 is no run, and in the way: move it, or give another"):
            make(CONFIG, made.proposals, tmp_path / name, (0,))
        assert letter.read_text() == "dear"
    with pytest.raises(PolyadicError, match=r"was started with head\.rank = 3, not 4"):
        make(small(**{"head.rank": 4}), made.proposals, made.out, (0,))


def test_boxes_of_none_of_the_test_images_are_refused(tmp_path: Path) -> None:
    file = proposal_file(tmp_path / "other.jsonl", "train")
    with pytest.raises(PolyadicError, match=r"other\.jsonl has boxes of none of the 7 test images"):
        make(CONFIG, file, tmp_path / "out", (0,))
    assert not (tmp_path / "out").exists()


def test_files_come_back_as_they_were(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.one.csv"
    files = boxes_rows.write(made.apart, path)
    names = ["table.one.csv", "table.one-misses.csv", "table.one-losses.csv", "table.one.json"]
    assert [file.name for file in files] == names
    rows, fates, losses = boxes_rows.read(path)
    assert same(tuple(rows), made.apart.rows)
    assert same(tuple(fates), made.apart.fates)
    assert same(tuple(losses), made.apart.losses)
    about = json.loads(files[-1].read_text())
    assert about["dataset"] == "toy"
    assert about["seeds"] == [0]
    assert about["config"]["head"]["rank"] == 3
    assert {"polyadic", "torch"} <= set(about["versions"])
    boxes_rows.write(made.table, path)  # in its place, with no losses
    assert same(tuple(boxes_rows.read(path)[0]), made.table.rows)
    assert {file.name for file in path.parent.iterdir()} == {*names} - {"table.one-losses.csv"}


def test_paths_of_this_machine_are_not_written(made: Made, tmp_path: Path) -> None:
    config = CONFIG.change(**{"data.root": str(tmp_path / "home"), "data.detections": str(made.proposals)})
    *_, about = boxes_rows.write(replace(made.table, config=config), tmp_path / "table.csv")
    assert str(tmp_path) not in about.read_text()
    assert str(made.folder) not in about.read_text()


@pytest.mark.parametrize("name", ["t.csv", "t-misses.csv", "t-losses.csv"])
@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe", None], ids=["csv", "bytes", "folder"])
def test_what_is_no_such_table_stays(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PolyadicError, match=f"{name} exists and is not a table of this command; choose another name"):
        boxes_rows.check_file(tmp_path / "t.csv")
    with pytest.raises(PolyadicError, match=r"expected a name that ends in \.csv, got t\.txt"):
        boxes_rows.check_file(Path("t.txt"))


def numbered(what: str, fit: Any, seed: int | None, first: float, step: float, split: str = "test") -> list[Row]:
    """Recalls first, first + step, ... in the order of the columns; half of them as mean recalls; NaN zero-shot."""
    rows = []
    for at, (task, k, top) in enumerate(boxes_rows.COLUMNS):
        value = first + step * at
        rows.append(Row(what, fit, split, seed, task, k, "all", top, value, value / 2))
        rows.append(Row(what, fit, split, seed, task, k, "zero-shot", top, math.nan, math.nan))
    return rows


def test_lines_are_means_and_deviations_over_seeds_beside_the_paper() -> None:
    rows = numbered("count table", "baseline", None, 5, 1)
    rows += numbered(FULL, "plain", 0, 10, 1) + numbered(FULL, "plain", 1, 14, 2) + numbered(MEAN, "plain", None, 30, 0)
    rows += numbered(FULL, "held-out", 0, 77, 0) + numbered(FULL, "held-out", 0, 66, 0, "validation")
    lines = {line.label: line.cells for line in boxes_rows.headline(rows, "vrd")}
    assert list(lines) == ["count table", "plain", f"plain, {MEAN}", *PAPER["vrd"]]
    assert [cell.mean for cell in lines["plain"]] == pytest.approx([12 + 1.5 * at for at in range(8)])
    assert [cell.deviation for cell in lines["plain"]] == pytest.approx([(4 + at) / math.sqrt(2) for at in range(8)])
    assert all(math.isnan(cell.deviation) for name in ("count table", f"plain, {MEAN}") for cell in lines[name])
    paper = [cell.mean for cell in lines["the paper, Lu's proposals"]]
    assert paper == [17.67, 18.64, 24.08, 28.29, 20.80, 22.13, 29.17, 34.33]
    halved = boxes_rows.headline(rows, "vrd", mean_recall=True)
    assert [line.label for line in halved] == ["count table", "plain", f"plain, {MEAN}"]
    assert halved[1].cells[0].mean == pytest.approx(6)
    none = boxes_rows.headline(rows, "vrd", "zero-shot")  # no truths: no numbers, and no failure
    assert all(math.isnan(cell.mean) and math.isnan(cell.deviation) for line in none for cell in line.cells)
    for split, value in (("test", 77), ("validation", 66)):
        (line,) = boxes_rows.ingredients(rows, split)
        assert (line.label, line.cells[3].mean) == (FULL, value)


def test_losses_and_fates_are_means_over_seeds_too() -> None:
    losses = [LossRow(FULL, 0, 2.0, 1.0), LossRow(FULL, 1, 3.0, 1.0), LossRow("rank 1", 0, 7.0, 1.0)]
    found = boxes_rows.held_out_losses(losses)
    assert (found[FULL].mean, found["rank 1"].mean) == (2.5, 7.0)
    assert found[FULL].deviation == pytest.approx(math.sqrt(0.5))
    fates = [FateRow("plain", seed, 10, 100, "hit", 1, 20.0 + 10 * seed) for seed in (0, 1)]
    fates += [FateRow("plain", None, 10, 100, "hit", 1, 99.0), FateRow("plain", 0, 1, 100, "hit", 1, 98.0)]
    assert boxes_rows.shares(fates, "plain", 10, 100)["hit"].mean == 25
    assert boxes_rows.shares(fates, "cross-fitted", 10, 100) == {}
