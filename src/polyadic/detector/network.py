"""torchvision's Faster R-CNN for C classes and the background: the paper's VGG16, and smaller and newer ones.

Pretrained layers near the pixels stay as they are, and so do their batch statistics; from random weights all learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision.models import vgg16
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from polyadic.config import DetectorConfig
from polyadic.detector.small import SmallBackbone
from polyadic.detector.weights import load_weights

_RATIOS = (0.5, 1.0, 2.0)  # height / width of anchors
_VGG16_FROZEN = 10  # layers up to conv2_2 and its pooling


def build_network(config: DetectorConfig, classes: int, fetch: bool = True) -> FasterRCNN:
    """`fetch`: with the weights that the config names; False where they will be loaded."""
    network: FasterRCNN = _BUILD[config.network](config, classes + 1)
    if fetch and config.weights != "random":
        load_weights(network, config.network, config.weights)
    return network


def _vgg16(config: DetectorConfig, outputs: int) -> FasterRCNN:
    """To conv5_3; the regions are 7 x 7 and pass through VGG16's own fully connected layers."""
    whole = vgg16(weights=None)
    maps = whole.features[:-1]  # without the last pooling: stride 16
    maps.out_channels = 512
    if config.weights != "random":
        maps[:_VGG16_FROZEN].requires_grad_(False)
    return FasterRCNN(
        maps,
        rpn_anchor_generator=AnchorGenerator(((32, 64, 128, 256, 512),), (_RATIOS,)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 7, 2),
        box_head=nn.Sequential(nn.Flatten(), *whole.classifier[:-1]),
        box_predictor=FastRCNNPredictor(4096, outputs),
        **_sizes(config),
    )


def _resnet50(config: DetectorConfig, outputs: int) -> FasterRCNN:
    maps = resnet_fpn_backbone(backbone_name="resnet50", weights=None, **_thawed(config, 5))
    return FasterRCNN(maps, outputs, **_sizes(config))


def _mobilenetv3(config: DetectorConfig, outputs: int) -> FasterRCNN:
    maps = mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True, **_thawed(config, 6))
    anchors = AnchorGenerator(((32, 64, 128, 256, 512),) * 3, (_RATIOS,) * 3)
    return FasterRCNN(maps, outputs, rpn_anchor_generator=anchors, rpn_score_thresh=0.05, **_sizes(config))


def _small(config: DetectorConfig, outputs: int) -> FasterRCNN:
    """Anchors of the drawn things: 15 to 64 pixels, up to twice as high as wide."""
    maps, pool, hidden = SmallBackbone(), 5, 256
    return FasterRCNN(
        maps,
        rpn_anchor_generator=AnchorGenerator(((20, 28, 40, 52),), ((0.7, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_train=64,
        rpn_post_nms_top_n_test=64,
        rpn_batch_size_per_image=128,
        box_roi_pool=MultiScaleRoIAlign(["0"], pool, 2),
        box_head=TwoMLPHead(maps.out_channels * pool**2, hidden),
        box_predictor=FastRCNNPredictor(hidden, outputs),
        box_batch_size_per_image=64,
        box_positive_fraction=0.5,
        **_sizes(config),
    )


_BUILD: dict[str, Callable[[DetectorConfig, int], FasterRCNN]] = {
    "vgg16": _vgg16,
    "resnet50-fpn": _resnet50,
    "mobilenetv3-fpn": _mobilenetv3,
    "small": _small,
}


def _sizes(config: DetectorConfig) -> dict[str, int]:
    return {"min_size": config.side, "max_size": config.longest}


def _thawed(config: DetectorConfig, layers: int) -> dict[str, Any]:
    """From random weights all layers learn; else three, as torchvision has it, with frozen batch statistics."""
    if config.weights == "random":
        return {"norm_layer": nn.BatchNorm2d, "trainable_layers": layers}
    return {"norm_layer": FrozenBatchNorm2d, "trainable_layers": 3}
