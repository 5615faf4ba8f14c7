"""From a Faster R-CNN's outputs to boxes that keep P(class | box).

torchvision gives a box once per class. A relation model names the boxes itself, so here a place occurs once: its best
class gives label, score and regressed box, and NMS does not ask for labels (Implementation details: at 0.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchvision.models.detection import FasterRCNN
from torchvision.ops import clip_boxes_to_image, nms, remove_small_boxes

_LEAST_SIDE = 1e-2  # pixels; torchvision's


@dataclass(frozen=True, eq=False)
class Found:
    """The boxes of one picture, best first, in its pixels."""

    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    scores: Float[Tensor, " N"]
    distribution: Float[Tensor, "N C"]  # the background is left out: a row's sum is below 1


def find_boxes(
    network: FasterRCNN, pictures: list[Float[Tensor, "3 _ _"]], overlap: float, least: float, most: int
) -> list[Found]:
    """The boxes of pictures with pixels from 0 to 1, by a network in evaluation mode."""
    sizes = [(int(each.shape[1]), int(each.shape[2])) for each in pictures]
    images, _ = network.transform(pictures)
    maps = network.backbone(images.tensors)
    maps = {"0": maps} if isinstance(maps, Tensor) else maps
    proposals, _ = network.rpn(images, maps)
    heads = network.roi_heads
    regions = heads.box_head(heads.box_roi_pool(maps, proposals, images.image_sizes))
    logits, shifts = heads.box_predictor(regions)
    probabilities = logits.float().softmax(-1)  # [P, 1 + C], the background first
    corners = heads.box_coder.decode(shifts.float(), proposals)  # [P, 1 + C, 4]
    counts = [len(each) for each in proposals]
    found = []
    for inside, distribution, size, scaled in zip(
        corners.split(counts), probabilities.split(counts), sizes, images.image_sizes, strict=True
    ):
        scores, labels = distribution[:, 1:].max(1)
        best = inside[torch.arange(len(labels), device=labels.device), labels + 1]
        best = network.transform.postprocess([{"boxes": best}], [scaled], [size])[0]["boxes"]
        boxes = clip_boxes_to_image(best, size)
        kept = choose(boxes, scores, overlap, least, most)
        found.append(Found(boxes[kept], labels[kept], scores[kept], distribution[kept, 1:]))
    return found


def choose(
    boxes: Float[Tensor, "P 4"], scores: Float[Tensor, " P"], overlap: float, least: float, most: int
) -> Int[Tensor, " N"]:
    """Which boxes stay, best first: sure enough, with an area, and none that overlaps a better one by more."""
    sure = torch.where(scores >= least)[0]
    sure = sure[remove_small_boxes(boxes[sure], _LEAST_SIDE)]
    kept: Tensor = sure[nms(boxes[sure], scores[sure], overlap)]
    return kept[:most]
