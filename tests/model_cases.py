"""A tiny model, and boxes and a picture for it; shared by the tests of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles import Entry, probability_tensor
from PIL import Image
from torch import Tensor

from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredBlock, ScoredPairs
from polyadic.prior import TripletPrior
from polyadic.structures.detections import Detections
from polyadic.structures.images import open_photo
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import Vocabulary

NAMES = Vocabulary(objects=("dog", "cat", "cup", "bed"), predicates=("on", "by", "under"))
TINY: dict[str, Any] = {
    "pixels.backbone": "test_byobnet",
    "pixels.weights": "random",
    "pixels.side": 64,
    "pixels.longest": 80,
    "pixels.pool": 2,
    "pixels.mask": 16,
    "pixels.spatial": 6,
    "head.hidden": 10,
    "head.rank": 2,
    "selector.hidden": 9,
    "evidence.embedding": 5,
    "evidence.geometry": 7,
    "geometry.hidden": 8,
    "geometry.rank": 3,
    "boxes.epochs": 1,
    "data.root": "/somewhere",
}
EXPONENTS: dict[str, Any] = {"ranking.prior": 0.7, "ranking.selected": 1.3, "ranking.boxes": 0.4}
ALL_BOXES: dict[str, Any] = {"ranking.nms": 1.0}
STAGES = ("boxes", "triplets", "selection")


def model_of(*sources: str, stages: tuple[str, ...] = STAGES, **values: Any) -> RelationModel:
    torch.manual_seed(0)
    triplets = torch.tensor([[0, 1, 2], [0, 1, 2], [3, 0, 1], [2, 2, 2]])
    prior = TripletPrior.from_triplets(triplets, NAMES.sizes)
    model = RelationModel(Config().change(sources=sources, **{**TINY, **values}), NAMES, prior).eval()
    if model.geometry is not None:
        torch.nn.init.normal_(model.geometry.weights.weight)  # λ expects less than one annotation of some pairs
        torch.nn.init.constant_(model.geometry.weights.bias, -0.5)
    model.stages = stages
    return model


def detections(n: int, seed: int = 0, size: tuple[float, float] | None = (100.0, 60.0)) -> Detections:
    rng = np.random.default_rng(seed)
    boxes = np.sort(rng.uniform(0, 1, (n, 2, 2)), 1).reshape(n, 4) * [100, 60, 100, 60]
    return Detections("a.jpg", boxes, rng.integers(0, 4, n), rng.uniform(0.2, 1, n), size)


def photo(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 100, 3), dtype=np.uint8))


def rank(
    model: RelationModel, image: Any, given: Detections | None = None, *, k: int | None = 1, top: int = 20, **terms: Any
) -> Relations:
    """The paper's ranking of one photo, with probabilities."""
    return model.score(image, given).rank(k, top, probability=True, **terms)


def prepared(model: RelationModel, given: Detections, image: Any = None) -> ScoredPairs:
    """All boxes as they are given, in their frame."""
    photo = None if image is None else open_photo(image)
    if photo is not None and given.size is not None:
        photo = replace(photo, size=given.size)
    return model.prepare([photo], [given])[0]


def pairs_of(model: RelationModel, given: Detections, image: Any = None) -> Any:
    """The scores of all ordered pairs, a ScoredBlock; any of its parts may be missing."""
    (block,) = prepared(model, given, image).blocks()
    return block


def rows_of(result: Relations) -> list[int]:
    """The number of each relation's pair among all ordered pairs."""
    n = len(result.boxes)
    return [s * (n - 1) + o - (o > s) for s, o in result.pairs.tolist()]


def entries(result: Relations) -> list[Entry]:
    return [
        (score, row, *r.triplet) for score, row, r in zip(result.scores.tolist(), rows_of(result), result, strict=True)
    ]


def agree(result: Relations, expected: list[Entry]) -> None:
    assert [entry[1:] for entry in entries(result)] == [entry[1:] for entry in expected]
    assert [entry[0] for entry in entries(result)] == pytest.approx([entry[0] for entry in expected], abs=1e-6)


def same(a: Relations, b: Relations) -> bool:
    return entries(a) == entries(b)


def dense(cp: CPTensor) -> Tensor:
    return torch.stack([probability_tensor(*(x[at] for x in cp.factors)) for at in range(len(cp.subject))])


def with_geometry(scores: ScoredBlock) -> Tensor:
    """ψ_c · λ, [B, S, P, O]; each pair sums to the annotations that λ expects of it, at most 1."""
    assert scores.geometry is not None
    s, p, o = (x.double().exp() for x in scores.geometry.factors)
    f = dense(scores.cp) * torch.einsum("bri,brj,brk->bijk", s, p, o)
    return f / f.sum((1, 2, 3), keepdim=True).clamp_min(1)


SOURCES = [("pixels",), ("evidence",), ("evidence", "pixels")]


def true_detections(scene: Scene) -> Detections:
    """The true boxes as a detector that is always right."""
    return Detections(scene.name, scene.boxes, scene.labels, np.ones(len(scene.boxes)), scene.frame)
