"""Initial weights: torchvision's, or a file of a whole Faster R-CNN or of its backbone's classifier."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from polyadic.pretrained import synonyms
from polyadic.structures.labels import LabelMap
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from torchvision.models.detection import FasterRCNN


_PREDICTOR = "roi_heads.box_predictor."


def load_weights(network: FasterRCNN, name: str, source: str) -> None:
    """Load weights into a new network; a predictor for other classes is skipped."""
    state = _fetch(name) if source == "torchvision" else _read(Path(source).expanduser())
    if source == "torchvision" and name == "resnet50-fpn":
        state = _without_epsilon(state, network)
    shapes = {key: x.shape for key, x in network.state_dict().items()}
    if any(key.startswith("roi_heads.") for key in state):
        same = all(state[key].shape == shapes.get(key) for key in state if key.startswith(_PREDICTOR))
        usable = state if same else {key: x for key, x in state.items() if not key.startswith(_PREDICTOR)}
        lacking = [key for key in shapes if key not in usable and not key.startswith(_PREDICTOR)]
    else:
        usable = {_PLACE[name](key): x for key, x in state.items()} if name in _PLACE else {}
        usable = {key: x for key, x in usable.items() if key in shapes}
        lacking = [key for key in shapes if key not in usable and key.startswith(_FROM_CLASSIFIER.get(name, ""))]
    lacking = [key for key in lacking if not key.endswith("num_batches_tracked")]
    wrong = next((key for key, x in usable.items() if shapes.get(key, x.shape) != x.shape), None)
    if lacking or wrong:
        reason = f"{wrong} is {list(usable[wrong].shape)}" if wrong else f"it lacks {lacking[0]}"
        raise PolyadicError(
            f"weights: {Path(source).name} does not hold weights of {name} ({reason}): expected torchvision's "
            "Faster R-CNN, or the classifier of its backbone"
        )
    network.load_state_dict(usable, strict=False)


def class_names(path: Path, classes: int, vocabulary: Vocabulary) -> list[int]:
    """Map the classes of an `.onnx` file, named in a `.names` file beside it, to the vocabulary's objects; -1: none."""
    from polyadic.detectors.onnx import read_names

    label_map = LabelMap.match(read_names(None, path, classes), vocabulary, synonyms(vocabulary))
    return [max(label_map.targets[name], -1) for name in label_map.names.values()]


def _vgg16_place(key: str) -> str:
    """Map a key of torchvision's classifier to our network."""
    kind, _, rest = key.partition(".")
    if kind == "features":
        return f"backbone.{rest}"
    number, _, rest = rest.partition(".")
    return f"roi_heads.box_head.{int(number) + 1}.{rest}" if number.isdigit() else key  # a Flatten comes first


_PLACE = {
    "vgg16": _vgg16_place,
    "resnet50-fpn": lambda key: f"backbone.body.{key}",
    "mobilenetv3-fpn": lambda key: f"backbone.body.{key.removeprefix('features.')}",
}
# what such a classifier must fill
_FROM_CLASSIFIER = {
    "vgg16": ("backbone.", "roi_heads.box_head."),
    "resnet50-fpn": "backbone.body.",
    "mobilenetv3-fpn": "backbone.body.",
}


def pretrained(name: str) -> Any:
    """Look up torchvision's weights (url, meta): trained on COCO, or for VGG16 on ImageNet."""
    from torchvision.models import VGG16_Weights
    from torchvision.models.detection import FasterRCNN_MobileNet_V3_Large_FPN_Weights, FasterRCNN_ResNet50_FPN_Weights

    known: dict[str, Any] = {
        "vgg16": VGG16_Weights.IMAGENET1K_V1,
        "resnet50-fpn": FasterRCNN_ResNet50_FPN_Weights.COCO_V1,
        "mobilenetv3-fpn": FasterRCNN_MobileNet_V3_Large_FPN_Weights.COCO_V1,
    }
    if name not in known:
        raise PolyadicError(f"weights: torchvision has none for the network {name}; train it from random weights")
    return known[name]


def _fetch(name: str) -> dict[str, Tensor]:
    wanted = pretrained(name)
    try:
        with redirect_stdout(sys.stderr):  # torch reports downloads on stdout, where results go
            state: dict[str, Tensor] = wanted.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:  # no network, or a damaged file
        reason, folder = " ".join(str(error).split()), Path(torch.hub.get_dir(), "checkpoints")
        raise PolyadicError(
            f"cannot get torchvision's weights of {name} ({reason:.120}): put {wanted.url} into {folder}"
        ) from error
    return state


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise PolyadicError(
            f"weights: no file {path} (torchvision: its pretrained ones; random: none; or a .safetensors or .pth file)"
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch fails in many ways on a file that is not its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolyadicError(f"weights: {path} cannot be read as weights ({reason:.120})") from error
    for key in ("model", "state_dict"):  # as many training scripts save it
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(isinstance(x, Tensor) for x in state.values()):
        raise PolyadicError(f"weights: {path} holds no state dict: expected names and tensors")
    return {str(key).removeprefix("module."): x for key, x in state.items()}


def _without_epsilon(state: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Subtract the ε of frozen batch norm from variances: torchvision's ResNet was trained without it."""
    from torchvision.ops import FrozenBatchNorm2d

    state = dict(state)
    for name, module in network.named_modules():
        if isinstance(module, FrozenBatchNorm2d):
            state[f"{name}.running_var"] = state[f"{name}.running_var"] - module.eps
    return state
