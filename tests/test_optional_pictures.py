"""Pixels where there are pictures: `data.pictures = optional` learns from images without a file, and predicts both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_cases import tiny

from polyadic.datasets.toy.world import World
from polyadic.model.features import PairFeatures, PairInputs, pair_inputs
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredPairs
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train
from polyadic.training.examples import BoxSource, Examples, Task
from polyadic.training.region_cache import FeatureCache, Regions

BOTH: dict[str, Any] = {"sources": ("pixels", "evidence"), "data.pictures": "optional"}
WIDTH, CLASSES = 6, 5


def inputs(n: int, seen: bool) -> PairInputs:
    rng = np.random.default_rng(n)
    low = rng.uniform(0, 40, (n, 2))
    boxes, pairs = np.concatenate([low, low + rng.uniform(5, 40, (n, 2))], 1), torch.tensor([[0, 1], [1, 0]])
    generator = torch.Generator().manual_seed(n)
    return pair_inputs(
        boxes,
        pairs,
        (90.0, 80.0),
        sources=BOTH["sources"],
        labels=rng.integers(0, CLASSES, n),
        scores=rng.uniform(0.1, 1, n),
        regions=torch.randn(n, WIDTH, generator=generator) if seen else None,
        unions=torch.randn(2, WIDTH, generator=generator) if seen else None,
    )


@pytest.mark.parametrize("order", [(True, False), (False, True), (False, False), (True, True)])
def test_joined_images_have_the_features_that_each_has_alone(order: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    features = PairFeatures(tiny(**BOTH), CLASSES, WIDTH).eval()
    parts = [inputs(3, order[0]), inputs(4, order[1])]
    together = features(PairInputs.join(parts))
    twice = features(PairInputs.join([PairInputs.join(parts), parts[0]]))
    for at, columns in enumerate(zip(*(features(part) for part in parts), strict=True)):
        torch.testing.assert_close(together[at], torch.cat(columns))
        torch.testing.assert_close(twice[at], torch.cat([*columns, columns[0]]))


def test_an_unseen_box_differs_from_one_whose_features_are_zero() -> None:
    features = PairFeatures(tiny(**BOTH), CLASSES, WIDTH).eval()
    unseen, seen = inputs(3, False), inputs(3, True)
    assert seen.regions is not None
    assert seen.unions is not None
    dark = replace(seen, regions=torch.zeros_like(seen.regions), unions=torch.zeros_like(seen.unions))
    for black, missing in zip(features(dark), features(unseen), strict=True):
        assert ((black - missing).abs().sum(1) == 1).all()


@pytest.fixture
def half_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other picture of the toy world has no file, and must not be opened."""

    def has_picture(scene: Scene) -> bool:
        return hash_of(scene) % 2 == 0

    def open_only_present(scene: Scene) -> Any:
        assert has_picture(scene), scene.name
        assert scene.source is not None
        return scene.source()

    monkeypatch.setattr(Scene, "has_picture", has_picture)
    monkeypatch.setattr(Scene, "open", open_only_present)


def log_tensors(scored: ScoredPairs) -> Tensor:
    return torch.cat([block.cp.dense().log() for block in scored.blocks()])


def hash_of(scene: Scene) -> int:
    return sum(scene.name.encode())


@pytest.mark.usefixtures("half_gone")
@pytest.mark.parametrize("gigabytes", [0.5, 0.0])
def test_a_model_learns_from_all_images_and_predicts_with_and_without_a_photo(tmp_path: Path, gigabytes: float) -> None:
    config = tiny(**BOTH, **{"cache.gigabytes": gigabytes})
    train(config, tmp_path / "run")
    model = RelationModel.load(tmp_path / "run")
    assert not model.needs_photo
    scene = next(scene for scene in World(24, 6, 0).dataset("test") if len(scene.boxes) > 2)
    boxes = Detections(scene.name, scene.boxes, scene.labels, np.ones(len(scene.boxes)), scene.frame)
    assert scene.source is not None
    photo = scene.source()
    seen, unseen = model.score(photo, boxes), model.score(None, boxes)
    mixed = model.score_many([None, photo], [boxes, boxes])
    for alone, together in zip((unseen, seen), mixed, strict=True):
        torch.testing.assert_close(log_tensors(together), log_tensors(alone))
    assert not torch.allclose(log_tensors(seen), log_tensors(unseen), atol=1e-4)


def test_images_that_all_lack_a_picture_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "has_picture", lambda scene: False)
    with pytest.raises(PolyadicError, match="none of the 22 training images has a picture"):
        train(tiny(**BOTH), tmp_path / "run")


def test_a_run_is_not_resumed_without_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(**BOTH), tmp_path / "run")
    monkeypatch.setattr(Scene, "has_picture", lambda scene: "1" in scene.name)
    with pytest.raises(PolyadicError, match="data"):
        train(tiny(**BOTH), tmp_path / "run", resume=True)


@pytest.mark.usefixtures("half_gone")
def test_some_images_with_a_picture_go_without_in_training_but_never_in_validation(tmp_path: Path) -> None:
    config = tiny(**BOTH)
    scenes = [scene for scene in World(200, 6, 0).dataset("train").scenes if scene.has_picture()]
    regions = Regions(config.pixels, FeatureCache(tmp_path, 0), "", torch.float32)
    shares: dict[Task, tuple[float, float]] = {"triplets": (0.8, 0.97), "everything": (1.0, 1.0)}
    for task, (least, most) in shares.items():
        examples = Examples(
            scenes, task, BoxSource(), sources=config.sources, regions=regions, seed=(0, task, 0), optional=True
        )
        opened = sum(examples[at].pooled.picture is not None for at in range(len(scenes)))
        assert least * len(scenes) <= opened <= most * len(scenes)


@pytest.mark.parametrize("more", [{"sources": ("pixels",)}, {"sources": ("evidence",)}, {"head.labels": True}])
def test_only_a_model_of_both_sources_can_do_without_one(more: dict[str, Any]) -> None:
    labels = {"boxes.epochs": 1, "selection.epochs": 0, "head.rank": 1}  # what a label head needs
    with pytest.raises(PolyadicError, match=r"data\.pictures"):
        tiny(**BOTH | labels | more)
