"""What training learns from, and is judged by: against loops from the definitions, on pictures that are no squares."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evaluation_oracle
import numpy as np
import pytest
import torch
from evaluation_cases import LU, as_plain
from model_cases import pairs_of, true_detections
from oracles import log_probability_tensor, prior_tensor
from PIL import Image
from torch import Tensor, nn
from training_cases import ALL_STAGES, Ended, a_setup, detect, finish, same, tiny, write_detections

from polyadic.boxes import box_place, context_features, ordered_pairs
from polyadic.config import PRESETS
from polyadic.config.schema import Config, StageConfig
from polyadic.cp import CPTensor
from polyadic.datasets.toy.world import World, write
from polyadic.experiments import runs, table4
from polyadic.experiments.runs import open_run
from polyadic.model.backbone import Backbone, prepare_picture
from polyadic.model.features import Reduction
from polyadic.model.relation_model import RelationModel
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.training import stages
from polyadic.training.examples import BoxSource, Example, load_training
from polyadic.training.simulation import DetectionNoise

EVIDENCE: dict[str, Any] = {"sources": ("evidence",)}
LACKING = {"train_000002.png", "train_000007.png"}  # scenes without a picture


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The drawn world in files, its pictures stretched: every other one wide, the others tall."""
    folder = tmp_path_factory.mktemp("wide") / "data"
    write(World(20, 2), folder)
    path, size = folder / "train.json", {}
    file = json.loads(path.read_text(encoding="utf-8"))
    for at, image in enumerate(file["images"]):
        size[image["id"]] = image["width"], image["height"] = (240, 160) if at % 2 else (160, 200)
        picture = folder / "images" / image["file_name"]
        with Image.open(picture) as opened:
            opened.resize(size[image["id"]]).save(picture)
        if image["file_name"] in LACKING:
            picture.unlink()
    for box in file["annotations"]:
        box["bbox"] = [x * side / 160 for x, side in zip(box["bbox"], 2 * size[box["image_id"]], strict=True)]
    path.write_text(json.dumps(file), encoding="utf-8")
    data = {"data.dataset": "coco", "data.root": str(folder), "data.pictures": "present", "geometry.dropout": 0.9}
    return tiny(**data, **ALL_STAGES)


@pytest.fixture(scope="module")
def proposals(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("proposals") / "all.jsonl"
    return str(write_detections(path, detect(World(24, 6).dataset("train"))))


def names_of(scenes: Sequence[Scene]) -> list[str]:
    return [scene.name for scene in scenes]


def held_out(names: Sequence[str]) -> list[str]:
    """A tenth, those of smallest SHA-256."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return sorted(ranked[: round(len(names) / 10)])


def halves(train: int = 24) -> tuple[Dataset, Dataset]:
    """Fit and validation of the drawn world."""
    whole = World(train, 6).dataset("train")
    held = held_out(names_of(whole))
    return whole.keep(lambda scene: scene.name not in held), whole.keep(lambda scene: scene.name in held)


def prior_of(scenes: Dataset, smoothing: float) -> Tensor:
    triplets = [tuple(row) for scene in scenes for row in scene.triplets.tolist()]
    return prior_tensor(triplets, scenes.vocabulary.sizes, smoothing).log()


def frame_of(scene: Scene) -> tuple[float, float]:
    return (240.0, 160.0) if int(scene.name[6:12]) % 2 else (160.0, 200.0)


def test_annotations_are_those_of_fit_even_without_a_picture_and_nothing_held_out_is_among_them(wide: Config) -> None:
    data, names = load_training(wide), [f"train_{number:06}.png" for number in range(20)]
    fit, held = sorted(set(names) - set(held_out(names))), held_out(names)
    assert LACKING & set(fit)
    assert names_of(data.annotations) == fit
    assert names_of(data.fit) == [name for name in fit if name not in LACKING]
    assert names_of(data.validation) == [name for name in held if name not in LACKING]


def test_the_prior_counts_the_triplets_of_fit_alone_under_its_smoothing(tmp_path: Path) -> None:
    short = {"triplets.epochs": 1, "selection.epochs": 0, "ranking.smoothing": 0.25}
    found = finish(tiny(**EVIDENCE, **short), tmp_path / "run").model.prior
    expected = prior_of(halves()[0], 0.25)
    every = torch.tensor(list(itertools.product(*map(range, expected.shape))))
    torch.testing.assert_close(found.log_prob(every), expected.flatten(), rtol=0, atol=1e-9)


def test_the_noise_is_fitted_to_the_annotations_of_fit(proposals: str) -> None:
    noise: Any = load_training(tiny(**{"data.simulate": proposals})).noise[0]
    whole, found = World(24, 6).dataset("train"), noise.to_arrays()
    expected, other = (DetectionNoise.fit(detect(whole), each).to_arrays() for each in (halves()[0], whole))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)
    assert not same(other, expected)


@pytest.mark.parametrize("gigabytes", [0.5, 0.0])
def test_an_example_has_the_features_of_its_picture(wide: Config, tmp_path: Path, gigabytes: float) -> None:
    setup = a_setup(wide.change(**{"cache.gigabytes": gigabytes}), tmp_path)
    examples, net = stages.TripletStage(setup, True).examples(0), setup.model.backbone
    for at in (0, 1, 4):
        scene = setup.data.fit[at]
        found, frame = examples[at].complete(setup.regions, net), frame_of(scene)
        corners = torch.from_numpy(scene.boxes).float()
        picture = prepare_picture(scene.open(), wide.pixels)
        ends = [corners[[s, o]] for s, _, o in scene.relations.tolist()]
        around = torch.stack([torch.cat([both[:, :2].amin(0), both[:, 2:].amax(0)]) for both in ends])
        for features, boxes in ((found.regions, corners), (found.unions, around)):  # kept as float16
            torch.testing.assert_close(features, net(picture, boxes, frame).detach(), rtol=2e-3, atol=2e-3)
        assert found.frames.tolist() == [list(frame)] * len(corners)


def test_the_field_s_choice_of_relations_is_trained_on_and_not_validated_on(tmp_path: Path) -> None:
    assert [name for name, preset in PRESETS.items() if preset.data.one_predicate and preset.data.overlapping] == [
        "vg150"
    ]
    plain = stages.TripletStage(a_setup(tiny(sources=("evidence",)), tmp_path / "a"), True)
    options = {"data.one_predicate": True, "data.overlapping": True}
    field = stages.TripletStage(a_setup(tiny(sources=("evidence",), **options), tmp_path / "b"), True)
    fewer = 0
    for at, scene in enumerate(plain.data.fit):
        every, chosen = (stage.examples(0)[at].boxes for stage in (plain, field))
        pairs = list(map(tuple, chosen.pairs.tolist()))
        assert len(set(pairs)) == len(pairs)
        near = {
            (s, o)
            for s, o in map(tuple, every.pairs.tolist())
            if evaluation_oracle.iou(tuple(scene.boxes[s].tolist()), tuple(scene.boxes[o].tolist()), 1.0) > 0
        }
        assert set(pairs) == near
        fewer += len(every.pairs) - len(pairs)
    assert fewer > 0, "the case shows nothing"
    assert not field.source.one_predicate
    assert not field.source.overlapping


def test_features_of_another_frame_have_another_key(wide: Config, tmp_path: Path) -> None:
    setup = a_setup(wide, tmp_path)
    setup.fill_cache(BoxSource())
    scene, (w, h) = setup.data.fit[0], setup.data.fit[0].frame
    scenes = [replace(scene, size=frame) for frame in ((w, h), (h, w), (w + 1, h), (w, h + 1))]
    assert len({setup.regions.key(each, scene.boxes) for each in scenes}) == 4


def dense(cp: CPTensor, row: int) -> Tensor:
    return log_probability_tensor(*(x[row].detach() for x in cp.factors))


def expected(cp: CPTensor, row: int) -> Tensor:
    """Of a tensor that is no distribution."""
    return torch.einsum("ri,rj,rk->ijk", *(x[row].detach().double().exp() for x in cp.factors))


def all_pairs(scenes: Sequence[Scene]) -> list[tuple[Tensor, int, int, list[int]]]:
    """Geometry, the two labels and the annotated predicates of each ordered pair."""
    found = []
    for scene in scenes:
        corners = torch.from_numpy(scene.boxes).float()
        frames = torch.tensor([frame_of(scene)]).expand(len(corners), 2)
        for s, o in itertools.permutations(range(len(corners)), 2):
            predicates = [p for a, p, b in scene.relations.tolist() if (a, b) == (s, o)]
            geometry = context_features(corners, frames, torch.tensor([[s, o]]))
            found.append((geometry, int(scene.labels[s]), int(scene.labels[o]), predicates))
    return found


def test_the_prior_that_knows_the_boxes_is_judged_without_dropout(wide: Config, tmp_path: Path) -> None:
    setup = a_setup(wide, tmp_path)
    task: Any = stages.BoxPriorStage(setup, True)
    prior, known = setup.model.geometry, setup.data.annotations
    torch.testing.assert_close(prior.mean, torch.cat([x for x, *_ in all_pairs(known)]).mean(0))
    task.train_mode()
    judged = -task.validate()["loss"]
    prior.eval()
    rows, some = task.examples(0), (0, 3, 10)
    assert len(rows) == len(known)
    loss, count = task.loss([rows[at] for at in some])
    for value, scenes in ((-judged, setup.data.validation), (float(loss.detach()), [known[at] for at in some])):
        total, annotations = 0.0, 0
        for geometry, s, o, predicates in all_pairs(scenes):
            rates = expected(prior(geometry), 0)[s, :, o]
            total += float(rates.sum()) - sum(math.log(rates[p]) for p in predicates)
            annotations += len(predicates)
        assert value == pytest.approx(total / annotations, abs=1e-4)
    assert count == annotations


LABELS: dict[str, Any] = {"head.labels": True, "head.rank": 1, "boxes.epochs": 2, "selection.epochs": 0}


def test_a_head_of_labels_learns_each_box_once_and_neighbours_learn_from_annotations(
    wide: Config, tmp_path: Path
) -> None:
    setup = a_setup(wide.change(**LABELS, **{"neighbours.noise": 0.0}), tmp_path)
    model, net = setup.model, setup.model.neighbours
    task: Any = stages.BoxPriorStage(setup, True)
    rows, some = task.examples(0), (0, 3, 10)
    assert set(task.modules) == {"geometry", "neighbours"}
    for module in task.modules.values():
        module.eval()
    loss, _ = task.loss([rows[at] for at in some])
    told, boxes, prior, annotations = 0.0, 0, 0.0, 0
    for scene in (setup.data.annotations[at] for at in some):
        corners, labels = torch.from_numpy(scene.boxes).float(), torch.from_numpy(scene.labels)
        frames, pairs = torch.tensor([frame_of(scene)]).expand(len(corners), 2), ordered_pairs(len(corners))
        numbers = context_features(corners, frames, pairs)
        told += float(net.nll(box_place(corners, frames), numbers, pairs, labels).detach()) * len(labels)
        at = [pairs.tolist().index([s, o]) for s, _, o in scene.relations.tolist()]
        named = torch.from_numpy(scene.relations)[:, 1]
        prior += float(model.geometry.nll(numbers, labels[pairs], torch.tensor(at), named).detach())
        boxes, annotations = boxes + len(labels), annotations + len(at)
    assert float(loss.detach()) == pytest.approx(prior / annotations + told / boxes, abs=1e-4)
    task = stages.TripletStage(setup, True)
    model.eval()
    examples = task.examples(0)
    used = [example for example in (examples[at] for at in range(6)) if len(example.target)]
    loss, count = task.loss(used)
    nll, total = 0.0, 0
    for example in used:
        inputs = example.complete(setup.regions, model.backbone)
        logs = model.head.labels(model.features.boxes(inputs)).detach().double()
        nll -= float(logs[range(len(logs)), example.scene.labels].sum())
        total += len(logs)
    assert float(loss.detach()) == pytest.approx(nll / total, abs=1e-4)
    assert count == total


def region_labels(net: Backbone, scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    seen = [(prepare_picture(x.open(), net.pixels), torch.from_numpy(x.boxes).float(), frame_of(x)) for x in scenes]
    found = torch.cat([net(*each).detach() for each in seen])
    return found, torch.cat([torch.from_numpy(scene.labels) for scene in scenes])


def test_the_backbone_is_judged_with_its_statistics_at_rest(wide: Config, tmp_path: Path) -> None:
    setup = a_setup(wide, tmp_path)
    task, net = stages.BackboneStage(setup, True), setup.model.backbone
    probe: Any = task.modules["probe"]
    rows, some = task.examples(0), (0, 1, 2, 5)
    features, labels = region_labels(net, [setup.data.fit[at] for at in some])
    logs = probe(features).detach().double().log_softmax(-1)[range(len(labels)), labels]
    loss, count = task.loss([rows[at] for at in some])
    assert float(loss.detach()) == pytest.approx(-float(logs.mean()), abs=1e-4)
    assert count == len(labels)
    features, labels = region_labels(net, setup.data.validation)
    one_hot = nn.functional.one_hot(labels, probe.out_features).double()
    probe.weight.data = torch.linalg.lstsq(features.double(), one_hot, driver="gelsd").solution.T.float()
    probe.bias.data.zero_()  # right on each held-out box
    before = {name: x.clone() for name, x in net.state_dict().items()}
    task.train_mode()
    assert any(module.training for module in net.modules() if isinstance(module, nn.BatchNorm2d))
    assert task.validate()["accuracy"] == 100
    assert same(net.state_dict(), before)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    more = {"boxes.epochs": 2, "boxes.rate": 0.01, "boxes.optimiser": "adamw", "triplets.epochs": 8, "world.train": 60}
    return finish(tiny(**EVIDENCE, **more), tmp_path_factory.mktemp("learned") / "run")


def best(model: RelationModel, scene: Scene, prior: Tensor, selected: bool, k: int | None) -> Relations:
    """The best triplets of each pair, at most 100, by the dense f_spo."""
    scores: Any = pairs_of(model, true_detections(scene))
    each = []
    for row, chosen in enumerate(scores.log_selected.tolist()):
        joint = dense(scores.cp, row).exp() * expected(scores.geometry, row)
        joint = (joint / joint.sum().clamp_min(1)).log()
        each.append((joint + prior).flatten() + (chosen if selected else 0.0))
    values, cells = torch.stack(each).topk(k or 100)  # [B, k]
    pairs = scores.pairs.repeat_interleave(values.shape[1], 0).numpy()
    triplets = np.stack(np.unravel_index(cells.flatten().numpy(), prior.shape), 1)
    return Relations(scene.name, scene.boxes, pairs, triplets, values.flatten().numpy())


@pytest.mark.parametrize(("name", "k"), [("triplets", 0), ("selection", 0), ("selection", 7)])
def test_a_stage_is_judged_by_all_it_has_trained(learned: Ended, tmp_path: Path, name: str, k: int) -> None:
    setup = a_setup(learned.model.config.change(**{"validation.k": k}), tmp_path)
    setup.model = model = RelationModel.load(learned.folder)
    torch.manual_seed(0)
    for weight in model.selector.parameters():  # so that P(X_sel) and dropout matter
        nn.init.normal_(weight)
    for module in (each for each in model.modules() if isinstance(each, nn.Dropout)):
        module.p = 0.9
    task = stages.STAGES[name](setup, False)
    task.train_mode()
    judged = task.validate()
    (fit, held), model = halves(60), model.eval()
    switches = {key: getattr(LU, key) for key in evaluation_oracle.recall.__annotations__ if hasattr(LU, key)}
    switches |= {"k": k or None, "seen": set()}
    told, losses = {}, []
    for selected in (True, False):
        images = [as_plain(s, best(model, s, prior_of(fit, 1.0), selected, k or None)) for s in held]
        told[selected] = [evaluation_oracle.recall(images, **switches, top=top)[0] for top in (50, 100)]
    assert told[True] != told[False]
    assert [judged["R@50"], judged["R@100"]] == pytest.approx(told[name == "selection"])
    for scene in held:
        scores = pairs_of(model, true_detections(scene))
        for s, p, o in scene.relations.tolist():
            row = scores.pairs.tolist().index([s, o])
            losses.append(-float(dense(scores.cp, row)[scene.labels[s], p, scene.labels[o]]))
    assert judged["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert ("selection loss" in judged) == (name == "selection")


def test_the_selection_stage_is_judged_by_the_loss_that_it_is_trained_with(learned: Ended, tmp_path: Path) -> None:
    setup = a_setup(learned.model.config.change(**{"selector.nulls": 0.0}), tmp_path)
    setup.model = RelationModel.load(learned.folder)
    setup.model.config = setup.config
    stage = stages.SelectionStage(setup, False)
    judged = stage.validate()["selection loss"]
    held_out = replace(setup.data, fit=setup.data.validation)
    stage.data = held_out  # with all null pairs nothing is drawn: the training loss of the same images
    examples: Any = stage.examples(0)
    setup.model.eval()
    with torch.no_grad():
        expected = stage.loss([examples[at] for at in range(len(examples))])
    assert expected is not None
    assert judged == pytest.approx(float(expected[0]), rel=1e-5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], Any]]:
    """Who chose a k or scored with it, on which scenes, with which boxes or counts."""
    seen: list[tuple[str, list[str], Any]] = []

    def watched(name: str, call: Any) -> Any:
        def spy(first: Any, second: Any, *given: Any, **more: Any) -> Any:
            scenes, other = (first, more["train"]) if name == "compare" else (second.scenes, second.boxes)
            seen.append((name, names_of(scenes), other))
            return call(first, second, *given, **more)

        return spy

    for module, name in ((table4, "compare"), (table4, "recalls_of"), (table4, "free_ks"), (runs, "free_ks")):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return seen


def test_an_ablation_chooses_k_on_validation_for_the_model_and_for_the_counts(asked: Any, tmp_path: Path) -> None:
    table4.ablate(tiny(**EVIDENCE, **{"triplets.epochs": 1, "selection.epochs": 0}), tmp_path, ranks=[1], seeds=1)
    (fit, held), train, test = halves(), World(24, 6).dataset("train"), World(24, 6).dataset("test")
    told = [(name, scenes, names_of(x) if name == "compare" else x.true) for name, scenes, x in asked]
    counts = [("compare", names_of(held), names_of(fit)), ("compare", names_of(test), names_of(train))]
    assert told == [*counts, ("free_ks", names_of(held), True), ("recalls_of", names_of(test), True)]


def test_k_for_detections_is_chosen_on_held_out_detections(asked: Any, learned: Ended, proposals: str) -> None:
    run, held = open_run(learned.folder), halves(60)[1]
    of_test = {each.image: each for each in detect(run.data)}
    both = of_test | {each.image: each for each in detect(held)}
    simulating = replace(run, config=run.config.change(**{"data.simulate": proposals}))
    runs.evaluate_run(run, [LU], detections=both)
    runs.evaluate_run(simulating, [LU], detections=of_test)
    (_, *found), (_, *simulated) = asked
    assert found[0] == simulated[0] == names_of(held)
    assert (found[1].detections, found[1].noise) == (both, ())
    assert simulated[1].noise


def test_each_step_has_its_chance_and_each_epoch_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, complete, fit = [], Example.complete, names_of(halves()[0])

    def spy(self: Example, *given: Any) -> Any:
        if self.scene.name in fit:
            seen.append((self.scene.name, torch.get_rng_state().numpy().tobytes()))
        return complete(self, *given)

    monkeypatch.setattr(Example, "complete", spy)
    finish(tiny(**EVIDENCE), tmp_path / "run")
    orders = [tuple(name for name, _ in seen[at : at + 22]) for at in range(0, len(seen), 22)]
    assert [sorted(order) for order in orders] == 4 * [fit]
    assert len({*orders, tuple(fit)}) == 5
    assert len({state for _, state in seen}) == 4 * 3


def test_in_float16_the_gradient_is_clipped_at_its_own_scale(tmp_path: Path) -> None:
    step = StageConfig(epochs=1, images=100, optimiser="sgd", momentum=0.0, rate=0.5, clip=0.01)
    run = finish(
        replace(tiny(**EVIDENCE, precision="float16"), triplets=step, selection=StageConfig()), tmp_path / "run"
    )
    before, after = run.kept.models[()], run.kept.models["triplets",]
    squares = [(after[name] - before[name]).double().square().sum() for name, _ in run.model.named_parameters()]
    assert math.sqrt(sum(squares)) / 0.5 == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("nulls", [0.0, 0.4, 2.0])
def test_selection_sees_as_many_null_pairs_as_the_config_says(tmp_path: Path, nulls: float) -> None:
    setup = a_setup(tiny(**EVIDENCE, **{"selector.nulls": nulls}), tmp_path)
    examples = stages.SelectionStage(setup, True).examples(0)
    for at, scene in enumerate(setup.data.fit):
        target, annotated = examples[at].target, len({(s, o) for s, _, o in scene.relations.tolist()})
        most = len(scene.boxes) * (len(scene.boxes) - 1) - annotated
        expected = min(most, round(nulls * annotated)) if nulls else most
        assert [int(target.sum()), int((~target).sum())] == [annotated, expected]


def test_components_are_found_once(tmp_path: Path, proposals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, fit = [], Reduction.fit

    def spy(self: Reduction, sample: Tensor) -> None:
        samples.append(sample.double())
        fit(self, sample)

    monkeypatch.setattr(Reduction, "fit", spy)
    more = {"pixels.reduce": 5, "data.detections": proposals, "proposals.epochs": 1, "triplets.epochs": 1}
    run, other = (finish(tiny(**more, **{"cache.gigabytes": gb}), tmp_path / str(gb) / "run") for gb in (0.5, 0.0))
    assert same(run.result, other.result)
    assert len(samples) == 2
    first, last = run.kept.models["triplets",], run.model.state_dict()
    mean, basis = (first[f"features.reduction.{name}"] for name in ("mean", "basis"))
    assert same([last[f"features.reduction.{name}"] for name in ("mean", "basis")], [mean, basis])
    centred = samples[0] - mean.double()
    most = torch.linalg.svdvals(centred)[:5].square().sum()
    assert float((centred @ torch.linalg.qr(basis.double())[0]).square().sum() / most) == pytest.approx(1, abs=0.01)
