"""An image and boxes -> region features: frozen backbone, feature maps, RoIAlign (Network Architecture).

Any timm model with feature maps; weights from timm's hub, from a local file, or random. Maps of several strides are
pooled alike and concatenated.
"""

from __future__ import annotations

import hashlib
import logging
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from polyadic.config.schema import PixelsConfig
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from PIL.Image import Image


VERSION = "3"  # of the numbers that this file computes; part of a cache's key
_REGIONS = 512  # pooled at once
_CROPS = 16  # per pass of the network
_LISTED = 30  # layers in a message
_MARGIN = 1.15  # a crop shows a little more than its box
_PIXELS = 1 << 18  # per pass on a CPU: ten images of the toy world, or half a photo

# the normalisation of training, where timm's own numbers differ: (x - 127) / 128
_INPUT = {"tf_efficientnet_lite": ((127 / 255,) * 3, (128 / 255,) * 3)}


def laid_out(x: Float[Tensor, "I C H W"]) -> Float[Tensor, "I C H W"]:
    """Order the numbers as convolutions in a lower precision want them: the channels of a pixel together."""
    return x.contiguous(memory_format=torch.channels_last) if torch.is_autocast_enabled(x.device.type) else x


class Backbone(nn.Module):
    """Region features of an image. Always in evaluation mode; only the stage [backbone] changes its weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, pixels: PixelsConfig, fetch: bool = True) -> None:
        """`fetch` = False leaves the weights random, to be loaded later."""
        super().__init__()
        self.pixels = pixels
        self.maps: Any
        self.maps, mean, std = _create(pixels, fetch)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1) * 255)
        channels = sum(self.maps.feature_info.channels())
        self.width = channels * pixels.pool**2  # D
        self.crop_width = channels if pixels.crops else 0
        self.detector: Any = _detector(pixels, fetch) if pixels.detector else None
        self.detector_width = 3 * 64 * pixels.pool**2 if pixels.detector else 0
        both = 2 if pixels.mirror else 1
        self.box_width = (self.width + self.crop_width + self.detector_width) * both  # all features of a box
        if fetch and (Path(pixels.weights).expanduser()).is_dir():
            self.load_state_dict(_from_model(Path(pixels.weights).expanduser(), pixels.backbone, self))
        self.learning = False
        self.learn(False)

    def learn(self, mode: bool) -> None:
        """Unfreeze or freeze the weights."""
        self.learning = mode
        self.requires_grad_(mode)
        self.train(mode)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode; batch statistics are frozen with the weights."""
        return super().train(mode and self.learning)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def forward(
        self, image: UInt8[Tensor, "3 H W"], boxes: Float[Tensor, "K 4"], frame: tuple[float, float]
    ) -> Float[Tensor, "K D"]:
        """Pool features of boxes given in a frame of size (width, height) that the image fills."""
        return self.pool(self.feature_maps(image[None]), boxes.to(self.device), frame)

    def feature_maps(self, images: UInt8[Tensor, "I 3 H W"]) -> list[Tensor]:
        maps: list[Tensor] = self.maps(self.normalise(images))
        return maps

    def normalise(self, images: UInt8[Tensor, "I 3 H W"]) -> Float[Tensor, "I 3 H W"]:
        return laid_out((images.to(self.device).float() - self.mean) / self.std)

    def pool_detector(
        self, image: UInt8[Tensor, "3 H W"], boxes: Float[Tensor, "K 4"], frame: tuple[float, float]
    ) -> Float[Tensor, "K E"]:
        """Pool the detector's features of boxes (ours)."""
        maps: list[Tensor] = self.detector.class_maps(image.to(self.device).float()[None] / 255)
        return self.pool(maps, boxes.to(self.device), frame)

    def pool(self, maps: list[Tensor], boxes: Float[Tensor, "K 4"], frame: tuple[float, float]) -> Float[Tensor, "K D"]:
        from torchvision.ops import roi_align

        size = torch.tensor([*frame, *frame], device=boxes.device, dtype=boxes.dtype)
        pooled = []
        for part in boxes.split(_REGIONS):
            by_map = []
            for full in maps:
                fmap = full.float().contiguous()
                extent = torch.tensor([fmap.shape[-1], fmap.shape[-2]] * 2, device=boxes.device, dtype=boxes.dtype)
                where = [(part / size * extent).float()]
                by_map.append(roi_align(fmap, where, self.pixels.pool, sampling_ratio=2, aligned=True).flatten(1))
            pooled.append(torch.cat(by_map, 1))
        return torch.cat(pooled) if pooled else torch.zeros(0, self.width, device=boxes.device)

    def cut(
        self, image: UInt8[Tensor, "3 H W"], boxes: Float[Tensor, "K 4"], frame: tuple[float, float]
    ) -> Float[Tensor, "K C"]:
        """Pass each box as an image of its own, larger than in RoIAlign (ours); return the mean of each feature map."""
        from torchvision.ops import roi_align

        side = self.pixels.crops
        height, width = image.shape[1:]
        scale = torch.tensor([width / frame[0], height / frame[1]] * 2, device=boxes.device)
        corners = boxes * scale
        middle = (corners[:, :2] + corners[:, 2:]) / 2
        half = ((corners[:, 2:] - corners[:, :2]) * _MARGIN).clamp_min(side / 16) / 2
        limit = torch.tensor([width, height], device=boxes.device).float()
        where = torch.cat([(middle - half).clamp_min(0), torch.minimum(middle + half, limit)], 1)
        whole = image.to(self.device).float()[None]
        features = []
        for part in where.to(self.device).split(_CROPS):
            crops = roi_align(whole, [part], side, sampling_ratio=2, aligned=True)
            features.append(torch.cat([x.float().mean((2, 3)) for x in self.maps((crops - self.mean) / self.std)], 1))
        return torch.cat(features) if features else torch.zeros(0, self.crop_width, device=self.device)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that the features depend on, except image and boxes."""
        shape: tuple[Any, ...] = (
            VERSION,
            self.pixels.backbone,
            self.pixels.strides,
            self.pixels.side,
            self.pixels.longest,
            self.pixels.pool,
            self.pixels.crops,
        )
        shape += ("mirror",) if self.pixels.mirror else ()  # features from before this setting keep their keys
        return hash_weights(shape, self.state_dict())


def hash_weights(shape: tuple[object, ...], weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of weights and of what else their network's output depends on."""
    value = hashlib.sha256(repr(shape).encode())
    for name, tensor in sorted(weights.items()):
        value.update(name.encode())
        value.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return value.hexdigest()


def images_per_pass(device: torch.device, pixels: float) -> int:
    """Return how many images of this many pixels to pass together: on a CPU large ones are faster one by one."""
    return max(1, int(_PIXELS / max(pixels, 1))) if device.type == "cpu" else 1 << 30


def picture_size(width: float, height: float, pixels: PixelsConfig) -> tuple[int, int]:
    """Scale a size so that the shorter side is about `side` and the longer one at most about `longest`.

    Sides are multiples of the largest stride, so that feature maps cover the image exactly.
    """
    scale = min(pixels.side / min(width, height), pixels.longest / max(width, height))
    cell = max(pixels.strides)
    return max(1, round(width * scale / cell)) * cell, max(1, round(height * scale / cell)) * cell


def prepare_picture(image: Image, pixels: PixelsConfig) -> UInt8[Tensor, "3 H W"]:
    """Scale an image to its `picture_size`."""
    from PIL.Image import Resampling

    size = picture_size(*image.size, pixels)
    if size != image.size:
        image = image.resize(size, Resampling.BILINEAR)
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def _create(pixels: PixelsConfig, fetch: bool) -> tuple[Any, tuple[float, ...], tuple[float, ...]]:
    import timm

    logging.getLogger("timm.models._builder").setLevel(logging.ERROR)  # the classifier's weights are unused
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each try to reach it; our error says it once
    name, weights = pixels.backbone, pixels.weights
    if not timm.is_model(name.split(".")[0]):
        near = timm.list_models(f"*{name.split('.')[0][:6]}*")[:3]
        hint = f"; similar names: {', '.join(near)}" if near else ""
        raise PolyadicError(f"pixels.backbone: timm has no model {name!r}{hint}")
    path = Path(weights).expanduser()
    local = fetch and weights not in ("timm", "random") and not path.is_dir()
    if local and not path.is_file():
        raise PolyadicError(f"pixels.weights: no file {weights} (timm: pretrained ones from its hub; random: none)")
    more: dict[str, Any] = {"pretrained_cfg_overlay": {"file": str(path)}} if local else {}
    indices = _indices(name, pixels.strides)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of timm and its hub
            if local:
                _check_complete(name, indices, path)
            maps: Any = timm.create_model(
                name, pretrained=local or (fetch and weights == "timm"), features_only=True, out_indices=indices, **more
            )
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if local:
            raise PolyadicError(
                f"pixels.weights: {path.name} is not a file of {name}'s weights ({reason:.2000})"
            ) from error
        if fetch and weights == "timm":
            raise PolyadicError(
                f"pixels.weights: cannot get timm's weights of {name} ({reason:.120}); give a local file instead "
                "(--pixels.weights FILE), or train without pixels (--sources evidence)"
            ) from error
        raise PolyadicError(f"pixels.backbone: {name} gives no feature maps ({reason:.200})") from error
    known = next((value for start, value in _INPUT.items() if name.startswith(start)), None)
    config = maps.pretrained_cfg if hasattr(maps, "pretrained_cfg") else maps.default_cfg
    mean, std = known or (tuple(config["mean"]), tuple(config["std"]))
    return maps, mean, std


def _detector(pixels: PixelsConfig, fetch: bool) -> Any:
    """Build the layers of YOLOX-Nano that give features for classes."""
    from polyadic.detectors.yolox_nano import YoloxNano, load_convolutions

    network = YoloxNano(1)
    if fetch:
        try:
            load_convolutions(network, Path(pixels.detector).expanduser())
        except PolyadicError as error:
            raise PolyadicError(f"pixels.detector: {error}") from error
    for name in ("regions", "box_towers", "class_scores", "offsets", "objectness"):
        delattr(network, name)  # unused, and random: they would change the fingerprint
    return network


def _check_complete(name: str, indices: tuple[int, ...], path: Path) -> None:
    """Refuse weights of another network, which timm accepts silently; NaN marks the weights that a file reaches.

    What a file may have beyond the network are layers after the last feature map, such as a classifier.
    """
    import timm

    stored = timm.models.load_state_dict(str(path), weights_only=True)  # old versions of timm ran any pickle
    marks = {key: torch.full((), torch.nan).expand(x.shape) for key, x in stored.items() if x.is_floating_point()}
    if not marks:
        raise ValueError("no weights at all")
    net: Any = timm.create_model(
        name,
        pretrained=True,
        features_only=True,
        out_indices=indices,
        pretrained_cfg_overlay={"state_dict": marks},
    )
    left = [key for key, x in net.state_dict().items() if x.is_floating_point() and not bool(x.isnan().all())]
    with torch.device("meta"):
        known = timm.create_model(name).state_dict()
    rooms = {re.split(r"[._]", key)[0] for key in net.state_dict()}  # timm writes features.0 as features_0
    surplus = [key for key in marks if key not in known and re.split(r"[._]", key)[0] in rooms]
    if left or surplus:
        instead = surplus or [key for key in marks if key not in known]
        parts = [f"{word} {_some(keys)}" for word, keys in (("it lacks", left), ("it has", instead)) if keys]
        raise ValueError("; ".join(parts))
    broken = [key for key in marks if not bool(stored[key].isfinite().all())]
    if broken:
        raise ValueError(f"not all numbers are finite in {_some(broken)}")


def _some(names: list[str]) -> str:
    """List names; of very many the first."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _from_model(folder: Path, name: str, like: nn.Module) -> dict[str, Tensor]:
    """Read the backbone of a saved model or of a run."""
    from safetensors import SafetensorError, safe_open

    places = folder / "model.safetensors", folder / "model" / "model.safetensors"
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise PolyadicError(f"pixels.weights: {folder} has no saved model")
    try:
        with safe_open(path, framework="pt") as file:
            keys = [key for key in file.keys() if key.startswith("backbone.")]  # noqa: SIM118
            weights = {key.removeprefix("backbone."): file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        raise PolyadicError(f"pixels.weights: {path} is corrupt ({error})") from error
    shapes = {key: x.shape for key, x in like.state_dict().items()}
    if shapes != {key: x.shape for key, x in weights.items()}:
        raise PolyadicError(f"pixels.weights: the backbone of {folder} is not {name} with these strides")
    return weights


def _indices(name: str, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Find the indices of the feature maps with these strides: the last of each."""
    import timm

    try:
        with torch.device("meta"):
            model: Any = timm.create_model(name, pretrained=False, features_only=True)
            offered = model.feature_info.reduction()
    except Exception as error:
        raise PolyadicError(f"pixels.backbone: {name} gives no feature maps ({error!s:.120})") from error
    missing = [stride for stride in strides if stride not in offered]
    if missing:
        raise PolyadicError(f"pixels.strides: {name} has strides {offered}, not {missing[0]}")
    return tuple(len(offered) - 1 - offered[::-1].index(stride) for stride in sorted(strides))
