"""Split a backbone where its training begins (ours): the layers before are frozen, so their output can be cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from polyadic.model.backbone import VERSION, Backbone, hash_weights, laid_out, picture_size
from polyadic.model.features import LARGEST
from polyadic.structures.vocabulary import PolyadicError

START = "start"  # the input of the first trained layer; left out where it is the last frozen map


@dataclass(frozen=True, eq=False)
class _Layer:
    module: nn.Module
    stride: int  # of its output where timm offers it as a feature map, else 0
    is_map: bool  # whether the backbone returns it


class SplitBackbone:
    """The layers of a backbone in order: frozen ones, and from the first of this stride on those that are trained."""

    def __init__(self, net: Backbone, stride: int) -> None:
        self.net = net
        layers = _layers(net)
        starts = _starts(layers)
        if stride not in starts:
            raise PolyadicError(
                f"backbone.train_from: {net.pixels.backbone} can be trained from the strides {sorted(starts)}, not "
                f"{stride}; 0 trains all of it"
            )
        self.frozen, self.trained = layers[: starts[stride]], layers[starts[stride] :]

    def learn(self) -> None:
        """Unfreeze the trained layers; the statistics of the frozen ones stay as well."""
        self.net.learn(False)
        for layer in self.trained:
            layer.module.requires_grad_(True).train()

    @torch.no_grad()
    def before(self, image: UInt8[Tensor, "3 H W"], precision: torch.dtype) -> dict[str, Tensor]:
        """Compute what the trained layers need of an image, in float16 as the cache keeps it."""
        maps: dict[str, Tensor] = {}
        with torch.autocast(self.net.device.type, precision, enabled=precision != torch.float32):
            x = self.net.normalise(image[None])
            for layer in self.frozen:
                x = layer.module(x)
                if layer.is_map:
                    maps[str(len(maps))] = x
        if not self.frozen[-1].is_map:
            maps[START] = x
        if not all(isinstance(each, Tensor) for each in maps.values()):
            raise PolyadicError(_refusal(self.net))
        return {name: each[0].float().clamp(-LARGEST, LARGEST).half() for name, each in maps.items()}

    def after(self, images: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """Compute the feature maps of images of one size from what `before` returned."""
        device = self.net.device
        given = {name: torch.stack([x[name].to(device, torch.float32) for x in images]) for name in images[0]}
        maps = [given[str(at)] for at in range(sum(layer.is_map for layer in self.frozen))]
        x = laid_out(given[START] if START in given else maps[-1])
        for layer in self.trained:
            x = layer.module(x)
            if layer.is_map:
                maps.append(x)
        return maps

    def bytes_per_pixel(self) -> float:
        """Compute how large the output of `before` is."""
        width, height = picture_size(1, 1, self.net.pixels)
        blank = torch.zeros(3, height, width, dtype=torch.uint8)
        maps = self.before(blank, torch.float32)
        return sum(x.numel() * x.element_size() for x in maps.values()) / (width * height)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that the output of `before` depends on, except the image."""
        pixels = self.net.pixels
        maps = tuple(layer.is_map for layer in self.frozen)
        shape = ("before", VERSION, pixels.backbone, maps, max(pixels.strides), pixels.side, pixels.longest)
        weights = {
            f"{at}.{name}": x for at, layer in enumerate(self.frozen) for name, x in layer.module.state_dict().items()
        }
        return hash_weights(shape, weights | {"mean": self.net.mean, "std": self.net.std})


def _layers(net: Backbone) -> list[_Layer]:
    """List the layers up to the last feature map, for networks of timm that run them one after another."""
    from timm.models import FeatureListNet
    from timm.models.efficientnet import EfficientNetFeatures
    from timm.models.mobilenetv3 import MobileNetV3Features

    maps, info, named = net.maps, net.maps.feature_info, list[tuple[Any, nn.Module]]()
    if isinstance(maps, FeatureListNet) and not maps.concat:
        known = [each | {"layer": each["module"].replace(".", "_")} for each in info.info]
        named = list(maps.items())
    elif isinstance(maps, (EfficientNetFeatures, MobileNetV3Features)) and maps.feature_hooks is None:
        known = [each | {"layer": each["stage"]} for each in info.info]
        stem = [module for name, module in maps.named_children() if name != "blocks"]
        named = list(enumerate([nn.Sequential(*stem), *maps.blocks]))
    else:
        raise PolyadicError(_refusal(net))
    strides = {each["layer"]: each["reduction"] for each in known}
    returned = {known[at]["layer"] for at in info.out_indices}
    layers = [_Layer(module, strides.get(name, 0), name in returned) for name, module in named]
    return layers[: max(at for at, layer in enumerate(layers) if layer.is_map) + 1]


def _starts(layers: Sequence[_Layer]) -> dict[int, int]:
    """Find for each stride the first layer with weights after the last map of a smaller stride."""
    starts = dict[int, int]()
    for stride in sorted({layer.stride for layer in layers} - {0})[1:]:
        after = max(at for at, layer in enumerate(layers) if 0 < layer.stride < stride) + 1
        weighted = [at for at in range(after, len(layers)) if any(True for _ in layers[at].module.parameters())]
        if weighted:  # not e.g. pooling, which comes first and makes the maps smaller
            starts[stride] = weighted[0]
    return starts


def _refusal(net: Backbone) -> str:
    return f"backbone.train_from: {net.pixels.backbone} does not run its layers one after another; 0 trains all of it"
