"""From boxes, a detector's word and pooled features to what the network sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from polyadic.boxes import union_boxes
from polyadic.features import Backbone, PairInputs, box_evidence, pair_evidence

LARGEST = torch.finfo(torch.float16).max


def union_rows(pairs: Int[Tensor, "B 2"], n: int) -> Int[Tensor, " B"]:
    """Where the box around a pair stands among the n(n-1)/2 of unordered pairs (0,1), (0,2), ..., (1,2), ..."""
    low, high = pairs.amin(1), pairs.amax(1)
    return low * n - low * (low + 1) // 2 + high - low - 1


@torch.no_grad()
def pool_regions(
    backbone: Backbone,
    picture: UInt8[Tensor, "3 H W"],
    boxes: Float[Tensor, "N 4"],
    frame: tuple[float, float],
    precision: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "N D"], Float[Tensor, "U E"]]:
    """Features of the boxes and of the boxes around all unordered pairs, in float16 as the cache keeps them."""
    low, high = torch.triu_indices(len(boxes), len(boxes), 1)
    everything = torch.cat([boxes, union_boxes(boxes[low], boxes[high])])
    half = pool_boxes(backbone, feature_maps(backbone, picture[None], precision), everything, frame, precision)
    return with_crops(backbone, half[: len(boxes)], picture, boxes, frame, precision), half[len(boxes) :]


@torch.no_grad()
def with_crops(
    backbone: Backbone,
    pooled: Float[Tensor, "N D"],
    picture: UInt8[Tensor, "3 H W"],
    boxes: Float[Tensor, "N 4"],
    frame: tuple[float, float],
    precision: torch.dtype,
) -> Float[Tensor, "N E"]:
    """Pooled features of boxes, and those of their crops where the config asks for them."""
    if not backbone.crop_width:
        return pooled
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        crops = backbone.cut(picture, boxes, frame)
    return torch.cat([pooled, crops.clamp(-LARGEST, LARGEST).half()], 1)


@torch.no_grad()
def feature_maps(backbone: Backbone, pictures: UInt8[Tensor, "I 3 H W"], precision: torch.dtype) -> list[Tensor]:
    """Of several pictures of one size."""
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        return backbone.feature_maps(pictures)


@torch.no_grad()
def pool_boxes(
    backbone: Backbone,
    maps: list[Tensor],
    boxes: Float[Tensor, "K 4"],
    frame: tuple[float, float],
    precision: torch.dtype,
) -> Float[Tensor, "K D"]:
    """In float16, with and without a cache, so that both give the same numbers. `maps` are those of one picture."""
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        pooled = backbone.pool(maps, boxes.to(backbone.device), frame)
    return pooled.float().clamp(-LARGEST, LARGEST).half()


def make_inputs(
    boxes: Float[np.ndarray, "N 4"],
    labels: Int[np.ndarray, " N"] | None,
    scores: Float[np.ndarray, " N"] | None,
    frame: tuple[float, float],
    pairs: Int[Tensor, "B 2"],
    sources: Sequence[str],
    regions: Float[Tensor, "N D"] | None = None,
    unions: Float[Tensor, "B E"] | None = None,
) -> PairInputs:
    """`unions` are those of the given pairs, in their order. Labels and scores are for evidence."""
    corners = torch.from_numpy(boxes).float()
    size = torch.tensor(frame, dtype=torch.float32)
    evidence = {}
    if "evidence" in sources:
        assert labels is not None, "evidence needs labels"
        assert scores is not None, "evidence needs scores"
        names = torch.from_numpy(labels)
        own, numbers = box_evidence(corners, names, torch.from_numpy(scores).float(), size)
        evidence = {"labels": own, "box_numbers": numbers, "pair_numbers": pair_evidence(corners, names, pairs, size)}
    return PairInputs(
        pairs,
        corners,
        size.expand(len(corners), 2),
        None if regions is None else regions.float(),
        None if unions is None else unions.float(),
        **evidence,
    )
