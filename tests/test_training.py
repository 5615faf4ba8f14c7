"""What each stage trains on and optimises: against loops over scenes, and bit for bit between runs."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from model_cases import prepared, rows_of, true_detections
from torch import Tensor
from training_cases import ALL_STAGES, STAGES, Ended, Spy, a_setup, detect, finish, log_of, same, tiny, write_detections

from polyadic.datasets.toy.world import World
from polyadic.model.backbone import Backbone
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicWarning
from polyadic.training import loop, stages
from polyadic.training.examples import load_training
from polyadic.training.region_cache import FeatureCache

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later, of threads


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def first(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A cold run of two stages."""
    return finish(tiny(**{"cache.folder": str(features)}), tmp_path_factory.mktemp("first") / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run of all stages on true boxes, with batch statistics in the backbone and in the evidence."""
    return finish(tiny(sources=("pixels", "evidence"), **ALL_STAGES), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images passed through the backbone."""
    seen: list[int] = []
    maps = Backbone.feature_maps

    def count(self: Backbone, pictures: Tensor) -> list[Tensor]:
        seen.append(len(pictures))
        return maps(self, pictures)

    monkeypatch.setattr(Backbone, "feature_maps", count)
    return seen


def test_one_seed_gives_one_model_and_a_warm_cache_computes_nothing(
    first: Ended, features: Path, tmp_path: Path, looks: list[int]
) -> None:
    again = finish(tiny(**{"cache.folder": str(features)}), tmp_path / "run")
    assert same(again.result, first.result)
    assert not looks
    loaded = RelationModel.load(again.folder)
    assert same(loaded.state_dict(), first.model.state_dict())
    assert loaded.stages == first.model.stages == ("triplets", "selection")


@forks
def test_workers_change_nothing(first: Ended, tmp_path: Path) -> None:
    assert same(finish(tiny(workers=2), tmp_path / "run").result, first.result)


def test_without_a_cache_the_weights_are_the_same(first: Ended, tmp_path: Path, looks: list[int]) -> None:
    assert same(finish(tiny(**{"cache.gigabytes": 0.0}), tmp_path / "run").result, first.result)
    assert sum(looks) == 4 * 24  # each picture in each epoch
    assert not (tmp_path / "features").exists()


def test_a_full_cache_warns_once_and_the_weights_are_the_same(first: Ended, tmp_path: Path, looks: list[int]) -> None:
    with pytest.warns(PolyadicWarning, match="cache is full") as caught:
        got = finish(tiny(**{"cache.gigabytes": 1e-4}), tmp_path / "run")
    assert len(caught) == 1
    assert same(got.result, first.result)
    assert 24 < sum(looks) < 4 * 24
    assert 50_000 < FeatureCache(tmp_path / "features", 10**9).used() <= 100_000


def test_entries_that_break_during_a_run_change_nothing(first: Ended, tmp_path: Path) -> None:
    def damage() -> None:
        for path in sorted((tmp_path / "features").rglob("*.safetensors"))[::3]:
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            path.write_bytes(data)

    at = next(i for i, seen in enumerate(first.spy.seen) if seen == "begin triplets 1/2")
    with pytest.warns(PolyadicWarning, match="checksum"):
        got = finish(tiny(), tmp_path / "run", spy=Spy(at, damage))
    assert same(got.result, first.result)
    sound = FeatureCache(tmp_path / "features", 10**9)
    keys = [path.stem for path in (tmp_path / "features").rglob("*.safetensors")]
    assert len(keys) == 24, "the next stage has recomputed them"
    assert all(sound.load(key) is not None for key in keys)


def test_a_stage_changes_only_its_own_modules(whole: Ended) -> None:
    modules = {"backbone": ("backbone.",), "boxes": ("geometry.",), "triplets": ("features.", "head.")}
    modules["selection"] = ("selector.",)
    for n, stage in enumerate(STAGES):
        before, after = whole.kept.models[STAGES[:n]], whole.kept.models[STAGES[: n + 1]]
        moved = {name for name in after if not torch.equal(before[name], after[name])}
        assert moved
        assert all(name.startswith(modules[stage]) for name in moved), stage
        learned = {name for name, _ in whole.model.named_parameters() if name.startswith(modules[stage])}
        assert not any(before[name].any() for name in learned - moved), stage  # zeros may stay what they are
    assert not any(p.requires_grad for p in whole.model.backbone.parameters())


def test_the_best_epoch_is_kept_and_later_stages_start_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: Iterator[float] = iter([3.0, 1.0, 2.0, 1.0, 1.0])
    selected: Iterator[float] = iter([0.5, 0.6])

    def scripted(*_: Any, selection: bool, **__: Any) -> dict[str, float]:
        """Recall is saturated, and best where the loss is not."""
        loss = next(losses)
        own = {"selection loss": next(selected)} if selection else {}
        return {"loss": loss, **own, "R@50": 90 + loss, "R@100": 99.0}

    monkeypatch.setattr(stages, "held_out_metrics", scripted)
    run = finish(tiny(**{"triplets.epochs": 3}), tmp_path / "run")
    best = run.kept.epochs["triplets", 2]["modules"]
    for after in (run.kept.models["triplets",], run.model.state_dict()):
        assert same({name: after[f"head.{name}"] for name in best["head"]}, best["head"])
        assert same({name: after[f"features.{name}"] for name in best["features"]}, best["features"])
    selector = run.kept.epochs["selection", 1]["modules"]["selector"]
    assert same({name: run.model.state_dict()[f"selector.{name}"] for name in selector}, selector)
    assert not same(best["head"], run.kept.epochs["triplets", 3]["modules"]["head"])
    epochs = [entry for entry in log_of(run.folder) if entry["event"] == "epoch"]
    assert [entry["best"] for entry in epochs] == [3, 1, 1, 0.5, 0.5]
    assert [entry["chosen_by"] for entry in epochs] == 3 * ["loss"] + 2 * ["selection loss"]
    assert "say triplets 2/3: held-out loss 1.0000 (best so far), R@50 91.00, R@100 99.00" in run.spy.seen
    assert "say triplets 3/3: held-out loss 2.0000, R@50 92.00, R@100 99.00" in run.spy.seen


def test_the_loss_of_triplets_is_the_mean_over_annotated_pairs(tmp_path: Path) -> None:
    setup = a_setup(tiny(sources=("evidence",)), tmp_path)
    task, model = stages.TripletStage(setup, True), setup.model.eval()
    examples = task.examples(0)
    result = task.loss([examples[at] for at in (0, 3, 4, 9)])
    assert result is not None
    logs = []
    for at in (0, 3, 4, 9):
        scene = setup.data.fit[at]
        example = examples[at]
        cp = model(example.inputs)
        for row, (s, p, o) in enumerate(scene.relations.tolist()):
            assert example.inputs.pairs[row].tolist() == [s, o]
            factors = [x[row].detach().double().exp() for x in (cp.subject, cp.predicate, cp.object)]
            dense = torch.einsum("ri,rj,rk->ijk", *factors)
            logs.append(-math.log(dense[scene.labels[s], p, scene.labels[o]] / dense.sum()))
    assert result[1] == len(logs)
    assert float(result[0].detach()) == pytest.approx(sum(logs) / len(logs), abs=1e-5)


def test_the_loss_of_selection_is_that_of_equally_many_annotated_and_null_pairs(tmp_path: Path) -> None:
    setup = a_setup(tiny(sources=("evidence",)), tmp_path)
    task, model = stages.SelectionStage(setup, True), setup.model.eval()
    examples = task.examples(0)
    batch = [examples[at] for at in (1, 2, 7)]
    losses, chosen = [], []
    for example in batch:
        annotated = {(s, o) for s, _, o in example.scene.relations.tolist()}
        logits = model.selection_logit(example.inputs).double().tolist()
        for pair, logit in zip(example.inputs.pairs.tolist(), logits, strict=True):
            chosen.append(tuple(pair) in annotated)
            losses.append(math.log1p(math.exp(-logit if chosen[-1] else logit)))
        assert sum(map(tuple(annotated).__contains__, map(tuple, example.inputs.pairs.tolist()))) == len(annotated)
    result = task.loss(batch)
    assert result is not None
    assert result[1] == len(losses) == 2 * sum(chosen)
    assert float(result[0].detach()) == pytest.approx(sum(losses) / len(losses), abs=1e-6)


def test_the_rate_of_the_schedule_reaches_the_log_and_the_optimiser(first: Ended) -> None:
    stage = tiny().triplets
    rates = [entry["rate"] for entry in log_of(first.folder) if entry["event"] == "step"]
    assert rates == 2 * [stage.rate * loop.factor(stage, step, 6) for step in range(6)]
    (group,) = first.kept.states["triplets"]["optimiser"]["param_groups"]
    assert group["lr"] == rates[-1]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_with_finite_losses_of_its_own(first: Ended, tmp_path: Path, precision: str) -> None:
    run = finish(tiny(precision=precision, **ALL_STAGES), tmp_path / "run")
    entries = log_of(run.folder)
    assert all(math.isfinite(entry["loss"]) for entry in entries if "loss" in entry)
    assert len([entry for entry in entries if entry["event"] == "step"]) == 18
    assert all(x.isfinite().all() for x in run.model.state_dict().values())
    assert not same(run.model.state_dict(), first.model.state_dict())
    scaler = run.kept.states["triplets"]["scaler"]
    assert bool(scaler) == (precision == "float16")


def test_the_log_has_each_step_once_and_the_recall_of_each_epoch(whole: Ended) -> None:
    entries = log_of(whole.folder)
    steps = [entry for entry in entries if entry["event"] == "step"]
    assert [entry["total"] for entry in steps] == list(range(1, 19))
    assert [entry["step"] for entry in steps] == 6 * [1, 2, 3]
    epochs = [entry for entry in entries if entry["event"] == "epoch"]
    order = [(entry["stage"], entry["epoch"]) for entry in epochs]
    assert order == [("backbone", 1), ("boxes", 1), *((s, e) for s in ("triplets", "selection") for e in (1, 2))]
    for entry in epochs[2:]:
        assert 0 <= entry["R@50"] <= entry["R@100"] <= 100
    for stage in STAGES:
        mine = [entry for entry in epochs if entry["stage"] == stage]
        assert mine[-1]["best"] == min(entry[entry["chosen_by"]] for entry in mine), "a loss chooses the epoch"


def test_tensorboard_has_losses_and_held_out_recalls(whole: Ended) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(whole.folder / "tensorboard"))
    board.Reload()
    entries = [entry for entry in log_of(whole.folder) if entry["stage"] == "triplets"]
    for tag, event, name in (
        ("triplets/loss", "step", "loss"),
        ("triplets/held_out/loss", "epoch", "loss"),
        ("triplets/held_out/R@50", "epoch", "R@50"),
    ):
        scalars = [(x.step, x.value) for x in board.Scalars(tag)]
        expected = [(entry["total"], entry[name]) for entry in entries if entry["event"] == event]
        assert scalars == [(total, pytest.approx(value)) for total, value in expected]


def test_the_box_conditioned_prior_learns_and_counts_in_ranking(whole: Ended, tmp_path: Path) -> None:
    config = tiny(**{"boxes.epochs": 12, "boxes.rate": 0.03, "triplets.epochs": 0, "selection.epochs": 0})
    run = finish(config.change(sources=("evidence",)), tmp_path / "run")
    losses = [entry["loss"] for entry in log_of(run.folder) if entry["event"] == "step" and entry["step"] == 3]
    assert losses[-1] < losses[0] - 0.5
    scene = World(0, 1).dataset("test")[0]
    scores = prepared(whole.model, true_detections(scene), scene.open())
    (block,) = scores.blocks()
    assert block.geometry is not None
    assert block.log_selected is not None
    with_it, without = (scores.rank(terms=ScoreTerms(geometry=use)) for use in (True, False))
    product, limit = block.cp.product(block.geometry), torch.tensor(0.0)
    pair, triplet = rows_of(with_it)[0], torch.from_numpy(with_it.triplets[0])
    assert not np.array_equal(with_it.scores, without.scores)
    expected = product.log_prob(triplet.expand(len(scores), 3))[pair] + block.log_selected[pair]
    expected = expected + torch.minimum(product.log_z() - block.cp.log_z(), limit)[pair]
    prior = whole.model.prior.log_prob(triplet[None])[0]
    assert float(with_it.scores[0]) == pytest.approx(float(expected + prior), abs=1e-3)


@pytest.fixture(scope="module")
def proposals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Detections]:
    return {image.image: image for image in detect(World(24, 0).dataset("train"))}


@pytest.fixture(scope="module")
def proposal_file(proposals: dict[str, Detections], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_detections(tmp_path_factory.mktemp("detections") / "all.jsonl", proposals.values()))


def test_stages_after_triplets_train_on_the_proposals_of_a_file(
    proposals: dict[str, Detections], proposal_file: str, tmp_path: Path
) -> None:
    config = tiny(**{"data.detections": proposal_file, "proposals.epochs": 1, "triplets.epochs": 1})
    run = finish(config, tmp_path / "run")
    assert run.model.stages == ("triplets", "proposals", "selection")
    head = "head.subject.scores.weight"
    before, after, last = (run.kept.models[run.model.stages[:n]][head] for n in (1, 2, 3))
    assert not torch.equal(before, after)
    assert torch.equal(after, last)
    epochs = [entry for entry in log_of(run.folder) if entry["event"] == "epoch"]
    assert all(0 <= entry["R@50"] <= 100 for entry in epochs)

    setup = a_setup(config, tmp_path)
    for name, kind in (("proposals", "triplets"), ("selection", "selection")):
        examples = stages.STAGES[name](setup, True).examples(0)
        for at, scene in enumerate(setup.data.fit):
            example = examples[at]
            given = proposals.get(scene.name)
            assert np.array_equal(example.boxes.boxes, given.boxes if given else np.zeros((0, 4)))
            assert example.target.ndim == (2 if kind == "triplets" else 1)
        assert sum(len(examples[at].target) for at in range(len(setup.data.fit))) > 50


def test_simulated_proposals_are_new_in_each_epoch_and_the_same_in_each_run(proposal_file: str, tmp_path: Path) -> None:
    config = tiny(**{"data.simulate": proposal_file, "proposals.epochs": 2, "triplets.epochs": 0})
    a, b = (finish(config, tmp_path / name) for name in "ab")
    assert same(a.result, b.result)
    assert a.model.stages == ("proposals", "selection")
    task = stages.ProposalStage(a_setup(config, tmp_path), True)
    (one, again), other = (task.examples(0)[5].boxes.boxes for _ in range(2)), task.examples(1)[5].boxes.boxes
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_evidence_alone_never_opens_a_picture(
    proposal_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> NoReturn:
        raise AssertionError("there is no picture")

    for name in ("open", "digest", "has_picture"):
        monkeypatch.setattr(Scene, name, never)
    more = {"data.simulate": proposal_file, "proposals.epochs": 1, "boxes.epochs": 1, "backbone.epochs": 1}
    run = finish(tiny(sources=("evidence",), **more), tmp_path / "run")
    assert run.model.stages == ("boxes", "triplets", "proposals", "selection")
    assert run.model.backbone is None
    assert not (tmp_path / "features").exists()


def test_examples_can_be_pickled_for_workers(features: Path, tmp_path: Path) -> None:
    setup = a_setup(tiny(**{"cache.folder": str(features)}), tmp_path)
    examples = stages.SelectionStage(setup, True).examples(0)
    copied = pickle.loads(pickle.dumps(examples))
    assert same(vars(copied[2].inputs), vars(examples[2].inputs))
    assert copied[2].pooled.picture is None


def test_with_nothing_held_out_all_training_images_are_learned_from() -> None:
    config = tiny(sources=("evidence",), **{"validation.images": 0})
    whole, less = load_training(config), load_training(config.change(**{"validation.images": 400}))
    train = World(24, 0).dataset("train")
    assert [scene.name for scene in whole.fit] == [scene.name for scene in train]
    assert np.array_equal(whole.annotations.triplets(), train.triplets())  # the prior's
    assert (whole.validation, len(less.fit), len(less.validation)) == ((), 22, 2)
    assert {scene.name for scene in (*less.fit, *less.validation)} == {scene.name for scene in train}
