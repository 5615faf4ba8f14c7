"""Faster R-CNN: boxes of a photo, each with P(class | box) (Implementation details)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import interpolate

from polyadic.config import DetectorConfig
from polyadic.detectors.vision import detection, models, ops
from polyadic.detectors.weights import load_weights

_LEAST_SIDE = 1e-2  # pixels; torchvision's


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """The boxes of one image, best first, in its pixels."""

    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    scores: Float[Tensor, " N"]
    distribution: Float[Tensor, "N C"]  # the background is left out: a row's sum is below 1


def find_boxes(
    network: detection.FasterRCNN, pictures: list[Float[Tensor, "3 _ _"]], overlap: float, least: float, most: int
) -> list[ImageBoxes]:
    """Run a network in evaluation mode on images with pixels from 0 to 1."""
    sizes = [(int(picture.shape[1]), int(picture.shape[2])) for picture in pictures]
    images, _ = network.transform(pictures)
    maps = network.backbone(images.tensors)
    maps = {"0": maps} if isinstance(maps, Tensor) else maps
    proposals, _ = network.rpn(images, maps)
    heads = network.roi_heads
    regions = heads.box_head(heads.box_roi_pool(maps, proposals, images.image_sizes))
    logits, shifts = heads.box_predictor(regions)
    probabilities = logits.float().softmax(-1)  # [P, 1 + C], the background first
    corners = heads.box_coder.decode(shifts.float(), proposals)  # [P, 1 + C, 4]
    counts = [len(boxes) for boxes in proposals]
    results = []
    for inside, distribution, size, scaled in zip(
        corners.split(counts), probabilities.split(counts), sizes, images.image_sizes, strict=True
    ):
        scores, labels = distribution[:, 1:].max(1)
        best = inside[torch.arange(len(labels), device=labels.device), labels + 1]
        best = network.transform.postprocess([{"boxes": best}], [scaled], [size])[0]["boxes"]
        boxes = ops.clip_boxes_to_image(best, size)
        kept = choose(boxes, scores, overlap, least, most)
        results.append(ImageBoxes(boxes[kept], labels[kept], scores[kept], distribution[kept, 1:]))
    return results


def choose(
    boxes: Float[Tensor, "P 4"], scores: Float[Tensor, " P"], overlap: float, least: float, most: int
) -> Int[Tensor, " N"]:
    """Choose boxes, best first: score threshold, least side, then NMS across classes."""
    sure = torch.where(scores >= least)[0]
    sure = sure[ops.remove_small_boxes(boxes[sure], _LEAST_SIDE)]
    kept: Tensor = sure[ops.nms(boxes[sure], scores[sure], overlap)]
    return kept[:most]


_GROUPS = 8
_CONTRAST = 5.0  # prevailing colours differ by about a fifth of the pixels' deviation


class SmallBackbone(nn.Module):
    """Compute one feature map of stride 8, to which the map of stride 16 is added."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.out_channels = 2 * width
        self.early = nn.Sequential(_conv(3, 16, 2), _conv(16, width, 2), _conv(width, width))
        self.middle = nn.Sequential(_conv(width, 2 * width, 2), *(_conv(2 * width, 2 * width) for _ in range(2)))
        self.late = nn.Sequential(_conv(2 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.narrow = nn.Conv2d(4 * width, 2 * width, 1)
        self.joined = _conv(2 * width, 2 * width)
        self.colour = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2 * width))

    def forward(self, pictures: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I C h w"]:
        fine = self.middle(self.early(pictures))
        coarse = interpolate(self.narrow(self.late(fine)), size=fine.shape[-2:])
        joined: Tensor = self.joined(fine + coarse)
        colour: Tensor = self.colour(prevailing_colour(pictures))
        return joined + colour[..., None, None]


def prevailing_colour(pictures: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I 2"]:
    """Compute the median pixel per channel, as red and blue relative to green."""
    middle = pictures.flatten(2).median(-1).values  # [I, 3]
    return _CONTRAST * (middle[:, ::2] - middle[:, 1:2])


def _conv(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.GroupNorm(_GROUPS, outer), nn.ReLU(inplace=True)
    )


_RATIOS = (0.5, 1.0, 2.0)  # height / width of anchors
_VGG16_FROZEN = 10  # layers up to conv2_2 and its pooling


def build_network(config: DetectorConfig, classes: int, fetch: bool = True) -> detection.FasterRCNN:
    """Build a network; `fetch`: with the weights that the config names, False where they will be loaded."""
    network: detection.FasterRCNN = _BUILD[config.network](config, classes + 1)
    if fetch and config.weights != "random":
        load_weights(network, config.network, config.weights)
    return network


def _vgg16(config: DetectorConfig, outputs: int) -> detection.FasterRCNN:
    """Use VGG16 up to conv5_3; 7 x 7 regions pass through its fully connected layers."""
    whole = models.vgg16(weights=None)
    maps = whole.features[:-1]  # without the last pooling: stride 16
    maps.out_channels = 512
    if config.weights != "random":
        maps[:_VGG16_FROZEN].requires_grad_(False)
    return detection.FasterRCNN(
        maps,
        rpn_anchor_generator=detection.anchor_utils.AnchorGenerator(((32, 64, 128, 256, 512),), (_RATIOS,)),
        box_roi_pool=ops.MultiScaleRoIAlign(["0"], 7, 2),
        box_head=nn.Sequential(nn.Flatten(), *whole.classifier[:-1]),
        box_predictor=detection.faster_rcnn.FastRCNNPredictor(4096, outputs),
        **_sizes(config),
    )


def _resnet50(config: DetectorConfig, outputs: int) -> detection.FasterRCNN:
    maps = detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet50", weights=None, **_trainable(config, 5))
    return detection.FasterRCNN(maps, outputs, **_sizes(config))


def _mobilenetv3(config: DetectorConfig, outputs: int) -> detection.FasterRCNN:
    maps = detection.backbone_utils.mobilenet_backbone(
        backbone_name="mobilenet_v3_large", weights=None, fpn=True, **_trainable(config, 6)
    )
    anchors = detection.anchor_utils.AnchorGenerator(((32, 64, 128, 256, 512),) * 3, (_RATIOS,) * 3)
    return detection.FasterRCNN(maps, outputs, rpn_anchor_generator=anchors, rpn_score_thresh=0.05, **_sizes(config))


def _small(config: DetectorConfig, outputs: int) -> detection.FasterRCNN:
    """Use anchors that fit the drawn objects: 15 to 64 pixels, up to twice as high as wide."""
    maps, pool, hidden = SmallBackbone(), 5, 256
    return detection.FasterRCNN(
        maps,
        rpn_anchor_generator=detection.anchor_utils.AnchorGenerator(((20, 28, 40, 52),), ((0.7, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_train=64,
        rpn_post_nms_top_n_test=64,
        rpn_batch_size_per_image=128,
        box_roi_pool=ops.MultiScaleRoIAlign(["0"], pool, 2),
        box_head=detection.faster_rcnn.TwoMLPHead(maps.out_channels * pool**2, hidden),
        box_predictor=detection.faster_rcnn.FastRCNNPredictor(hidden, outputs),
        box_batch_size_per_image=64,
        box_positive_fraction=0.5,
        **_sizes(config),
    )


_BUILD: dict[str, Callable[[DetectorConfig, int], detection.FasterRCNN]] = {
    "vgg16": _vgg16,
    "resnet50-fpn": _resnet50,
    "mobilenetv3-fpn": _mobilenetv3,
    "small": _small,
}


def _sizes(config: DetectorConfig) -> dict[str, int]:
    return {"min_size": config.side, "max_size": config.longest}


def _trainable(config: DetectorConfig, layers: int) -> dict[str, Any]:
    """Train all layers from random weights; else three, as torchvision does, with frozen batch statistics."""
    if config.weights == "random":
        return {"norm_layer": nn.BatchNorm2d, "trainable_layers": layers}
    return {"norm_layer": ops.FrozenBatchNorm2d, "trainable_layers": 3}
