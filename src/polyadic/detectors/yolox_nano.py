"""YOLOX-Nano: a small one-stage detector for a CPU, fine-tuned from COCO weights to a vocabulary's names.

Three grids of cells; each cell outputs a box, an objectness and class scores. Batch norms are folded into the
convolutions, as in the exported `.onnx` files that training starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    interpolate,
    max_pool2d,
    one_hot,
    pad,
    silu,
)

from polyadic.detectors.regions import PartHead, RegionHead
from polyadic.detectors.vision import ops
from polyadic.detectors.weights import class_names
from polyadic.structures.inputs import existing_file
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

STRIDES = (8, 16, 32)  # pixels per cell of each grid
GREY = 114 / 255  # of the padding
SAME_CLASS = 0.6  # ours: IoU from which two boxes of one class are one
_RADIUS = 2.5  # YOLOX: cells this far from the centre of a box may be assigned to it
_MOST_CELLS = 10  # YOLOX: cells per box
_LONGEST = 8.0  # log of a side in cells
_CANDIDATES, _LEAST, _MOST = 400, 0.01, 100  # ours: (cell, class) combinations before NMS, least score, most after NMS
_WHOLES, _SURE_WHOLE = 8, 0.15  # ours: how many boxes, of at least this score, are searched for parts


class Convolution(nn.Module):
    """Convolve, then apply SiLU."""

    def __init__(self, inner: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups)

    def forward(self, x: Float[Tensor, "I C H W"]) -> Float[Tensor, "I D h w"]:
        return silu(self.conv(x))


def _depthwise(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(Convolution(inner, inner, 3, stride, inner), Convolution(inner, outer))


class _Bottleneck(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = Convolution(width, width), _depthwise(width, width), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.shortcut else y


class _SplitStage(nn.Module):
    """Cross-stage partial: half of the channels pass through bottlenecks."""

    def __init__(self, inner: int, outer: int, depth: int, shortcut: bool = False) -> None:
        super().__init__()
        half = outer // 2
        self.deep, self.flat = Convolution(inner, half), Convolution(inner, half)
        self.inside = nn.Sequential(*(_Bottleneck(half, shortcut) for _ in range(depth)))
        self.joined = Convolution(outer, outer)

    def forward(self, x: Tensor) -> Tensor:
        deep, flat = self.deep(x), self.flat(x)
        joined: Tensor = self.joined(torch.cat([self.inside(deep), flat], 1))
        return joined


class _Pyramid(nn.Module):
    """Pool at several sizes and join."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = Convolution(width, width // 2), Convolution(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        pooled: Tensor = self.after(torch.cat([x, *(max_pool2d(x, size, 1, size // 2) for size in (5, 9, 13))], 1))
        return pooled


class YoloxNano(nn.Module):
    """Compute [I, cells, 5 + classes] for images [I, 3, H, W]: box offsets, objectness logit, class logits.

    `regions` names any box by its pixels; `parts`, if there are any, looks inside the boxes of the class `whole`.
    """

    widths = (64, 128, 256)  # channels of the feature maps

    def __init__(self, classes: int, whole: int = -1, parts: Sequence[int] = ()) -> None:
        super().__init__()
        self.classes, self.whole = classes, whole
        self.regions = RegionHead(self.widths, STRIDES, classes)
        self.parts = PartHead(self.widths, STRIDES, len(parts)) if parts else None
        if self.parts is not None:
            self.parts.labels.copy_(torch.tensor(parts))
        self.stem = Convolution(12, 16, 3)
        self.dark2 = nn.Sequential(_depthwise(16, 32, 2), _SplitStage(32, 32, 1, True))
        self.dark3 = nn.Sequential(_depthwise(32, 64, 2), _SplitStage(64, 64, 3, True))
        self.dark4 = nn.Sequential(_depthwise(64, 128, 2), _SplitStage(128, 128, 3, True))
        self.dark5 = nn.Sequential(_depthwise(128, 256, 2), _Pyramid(256), _SplitStage(256, 256, 1))
        self.lateral5, self.down4 = Convolution(256, 128), _SplitStage(256, 128, 1)
        self.lateral4, self.down3 = Convolution(128, 64), _SplitStage(128, 64, 1)
        self.stride3, self.up4 = _depthwise(64, 64, 2), _SplitStage(128, 128, 1)
        self.stride4, self.up5 = _depthwise(128, 128, 2), _SplitStage(256, 256, 1)
        self.stems = nn.ModuleList(Convolution(width, 64) for width in self.widths)
        self.class_towers = nn.ModuleList(nn.Sequential(_depthwise(64, 64), _depthwise(64, 64)) for _ in STRIDES)
        self.box_towers = nn.ModuleList(nn.Sequential(_depthwise(64, 64), _depthwise(64, 64)) for _ in STRIDES)
        self.class_scores = nn.ModuleList(nn.Conv2d(64, classes, 1) for _ in STRIDES)
        self.offsets = nn.ModuleList(nn.Conv2d(64, 4, 1) for _ in STRIDES)
        self.objectness = nn.ModuleList(nn.Conv2d(64, 1, 1) for _ in STRIDES)
        for score in (*self.class_scores, *self.objectness):
            nn.init.normal_(score.weight, std=0.01)
            nn.init.constant_(score.bias, -4.0)  # rare before anything is learned

    def new_layers(self) -> list[nn.Module]:
        """List the layers that no COCO weights fill, or not all of them."""
        return [self.class_scores, self.regions, *([] if self.parts is None else [self.parts])]

    def maps(self, pictures: Float[Tensor, "I 3 H W"]) -> list[Tensor]:
        """Compute the feature maps of strides 8, 16 and 32 of RGB images from 0 to 1."""
        x = pictures.flip(1) * 255  # YOLOX: BGR from 0 to 255
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        third = self.dark3(self.dark2(self.stem(x)))
        fourth = self.dark4(third)
        fifth = self.lateral5(self.dark5(fourth))
        middle = self.lateral4(self.down4(torch.cat([_double(fifth), fourth], 1)))
        fine = self.down3(torch.cat([_double(middle), third], 1))
        medium = self.up4(torch.cat([self.stride3(fine), middle], 1))
        return [fine, medium, self.up5(torch.cat([self.stride4(medium), fifth], 1))]

    def forward(self, pictures: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I A D"]:
        return self.read(self.maps(pictures))

    def class_maps(self, pictures: Float[Tensor, "I 3 H W"]) -> list[Tensor]:
        """Compute the features from which classes are scored, of 64 channels and strides 8, 16 and 32."""
        parts = zip(self.class_towers, self.stems, self.maps(pictures), strict=True)
        return [tower(stem(fmap)) for tower, stem, fmap in parts]

    def read(self, maps: list[Tensor]) -> Float[Tensor, "I A D"]:
        """Compute the output of each cell from the feature maps."""
        grids = []
        for level, fmap in enumerate(maps):
            x = self.stems[level](fmap)
            named, placed = self.class_towers[level](x).float(), self.box_towers[level](x).float()
            with torch.autocast(x.device.type, enabled=False):  # bfloat16 has too few digits for boxes
                parts = [self.offsets[level](placed), self.objectness[level](placed), self.class_scores[level](named)]
            grids.append(torch.cat(parts, 1).flatten(2).transpose(1, 2))
        return torch.cat(grids, 1)


def _double(x: Tensor) -> Tensor:
    return interpolate(x, scale_factor=2.0)


def cells(height: int, width: int, device: torch.device) -> tuple[Float[Tensor, "A 2"], Float[Tensor, "A 1"]]:
    """List column and row of each cell, grid by grid and row by row, and its stride."""
    corners, strides = [], []
    for stride in STRIDES:
        rows, columns = torch.meshgrid(
            torch.arange(height // stride, device=device), torch.arange(width // stride, device=device), indexing="ij"
        )
        corners.append(torch.stack([columns, rows], -1).reshape(-1, 2).float())
        strides.append(torch.full((rows.numel(), 1), float(stride), device=device))
    return torch.cat(corners), torch.cat(strides)


def decode(raw: Float[Tensor, "*I A D"], height: int, width: int) -> Float[Tensor, "*I A 4"]:
    """Compute the boxes of all cells, in pixels of the network's input."""
    corner, stride = cells(height, width, raw.device)
    centre = (raw[..., :2] + corner) * stride
    half = raw[..., 2:4].clamp(max=_LONGEST).exp() * stride / 2
    return torch.cat([centre - half, centre + half], -1)


def fit_input(picture: Float[Tensor, "3 h w"], side: int) -> tuple[Float[Tensor, "3 side side"], tuple[int, int]]:
    """Resize an image to fit a square and pad it; also return the (height, width) that the image covers."""
    height, width = picture.shape[1:]
    ratio = side / max(height, width)
    size = max(1, round(height * ratio)), max(1, round(width * ratio))
    if size != (height, width):
        picture = interpolate(picture[None], size, mode="bilinear", antialias=True)[0]
    return pad(picture, (0, side - size[1], 0, side - size[0]), value=GREY), size


@dataclass(frozen=True, eq=False)
class Truth:
    """The boxes of one image to learn from, in pixels of the network's input."""

    boxes: Float[Tensor, "G 4"]
    labels: Int[Tensor, " G"]
    weights: Float[Tensor, " G"]  # 1 for an annotator's, less for a teacher's
    parts: Int[Tensor, "Q 2"]  # rows of a whole and its part


@torch.no_grad()
def assign(
    boxes: Float[Tensor, "A 4"], raw: Float[Tensor, "A D"], truth: Truth, grid: tuple[Tensor, Tensor]
) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"], Float[Tensor, " M"]]:
    """Assign cells to true boxes by YOLOX's SimOTA; return cells, true boxes and their IoU.

    Each true box takes the cells of least cost (class, objectness and overlap) near its centre and inside it; as many
    as the overlaps of the ten best add up to. A cell of two boxes goes to the cheaper one.
    """
    middle, stride = (grid[0] + 0.5) * grid[1], grid[1]
    low, high = truth.boxes[:, None, :2], truth.boxes[:, None, 2:]
    inside = ((middle > low) & (middle < high)).all(-1)  # [G, A]
    near = ((middle - (low + high) / 2).abs() < _RADIUS * stride).all(-1)
    candidates = (inside | near).any(0).nonzero()[:, 0]
    central: Bool[Tensor, "G C"] = (inside & near)[:, candidates]
    overlap = ops.box_iou(truth.boxes, boxes[candidates])
    chance = (raw[candidates, 4:5].sigmoid() * raw[candidates, 5:].sigmoid()).sqrt().clamp(1e-6, 1 - 1e-6)
    right = chance[:, truth.labels].T  # [G, C]
    named = -(1 - chance).log().sum(1) + (1 - right).log() - right.log()
    cost = named - 3 * (overlap + 1e-8).log() + 1e5 * ~central
    count = overlap.topk(min(_MOST_CELLS, overlap.shape[1]), 1).values.sum(1).int().clamp(min=1)
    place = cost.argsort(1).argsort(1)
    chosen = place < count[:, None]
    cheapest = torch.zeros_like(chosen).scatter_(0, cost.masked_fill(~chosen, torch.inf).argmin(0)[None], True)
    at, cell = (chosen & cheapest).nonzero(as_tuple=True)
    return candidates[cell], at, overlap[at, cell]


def losses(network: YoloxNano, pictures: Float[Tensor, "I 3 H W"], truths: list[Truth]) -> dict[str, Tensor]:
    """Compute YOLOX's losses of boxes, classes and objectness, per assigned cell; and those of regions and parts."""
    maps = network.maps(pictures)
    raw = network.read(maps)
    height, width = pictures.shape[2:]
    boxes, grid = decode(raw, height, width), cells(height, width, raw.device)
    parts = {name: raw.new_zeros(()) for name in ("box", "class", "objectness")}
    total = 0.0
    for image, truth in enumerate(truths):
        is_object, weight = raw.new_zeros(raw.shape[1]), raw.new_ones(raw.shape[1])
        if len(truth.boxes):
            at, row, overlap = assign(boxes[image].detach(), raw[image].detach(), truth, grid)
            share = truth.weights[row]
            target = one_hot(truth.labels[row], network.classes) * overlap[:, None]
            far = ops.generalized_box_iou_loss(boxes[image, at], truth.boxes[row], reduction="none")
            wrong = binary_cross_entropy_with_logits(raw[image, at, 5:], target, reduction="none").sum(1)
            parts["box"] = parts["box"] + 5 * (far * share).sum()  # YOLOX: times 5
            parts["class"] = parts["class"] + (wrong * share).sum()
            is_object[at], weight[at] = 1.0, share
            total += float(share.sum())
        missed = binary_cross_entropy_with_logits(raw[image, :, 4], is_object, weight, reduction="sum")
        parts["objectness"] = parts["objectness"] + missed
    result = {name: value / max(total, 1.0) for name, value in parts.items()}
    boxes_of, labels = [truth.boxes for truth in truths], [truth.labels for truth in truths]
    result["regions"] = network.regions.loss(maps, boxes_of, labels, [truth.weights for truth in truths])
    if network.parts is not None:
        result["parts"] = network.parts.loss(maps, boxes_of, labels, [truth.parts for truth in truths])
    return result


@dataclass(frozen=True, eq=False)
class NamedBoxes:
    """Boxes of one image in pixels of the network's input, under one name each; one place may have several names."""

    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    scores: Float[Tensor, " N"]

    def take(self, rows: Tensor | slice) -> NamedBoxes:
        return NamedBoxes(self.boxes[rows], self.labels[rows], self.scores[rows])

    @classmethod
    def join(cls, first: NamedBoxes, second: NamedBoxes) -> NamedBoxes:
        names = ("boxes", "labels", "scores")
        return cls(*(torch.cat([getattr(first, name), getattr(second, name)]) for name in names))


def find_candidates(raw: Float[Tensor, "A D"], side: int, covered: tuple[int, int]) -> NamedBoxes:
    """Choose the likeliest (cell, class) combinations of one image, best first, with NMS per class."""
    boxes = _clipped(decode(raw, side, side), covered)
    chance = raw[:, 4:5].sigmoid() * raw[:, 5:].sigmoid()
    flat = (chance * _has_area(boxes)[:, None]).flatten()
    scores, at = flat.topk(min(_CANDIDATES, len(flat)))
    at, scores = at[scores >= _LEAST], scores[scores >= _LEAST]
    cell, label = at // chance.shape[1], at % chance.shape[1]
    return NamedBoxes(boxes[cell], label, scores).take(ops.batched_nms(boxes[cell], scores, label, SAME_CLASS)[:_MOST])


def find_parts(network: YoloxNano, maps: list[Tensor], wholes: NamedBoxes, covered: tuple[int, int]) -> NamedBoxes:
    """Look for the parts inside the likeliest wholes of one image."""
    rows = (wholes.labels == network.whole).nonzero()[:, 0][:_WHOLES]
    wholes = wholes.take(rows[wholes.scores[rows] >= _SURE_WHOLE])
    if network.parts is None or not len(wholes.boxes):
        return wholes.take(rows[:0])
    logit, boxes = network.parts(maps, [wholes.boxes])
    scores = (logit.sigmoid() * wholes.scores[:, None]).flatten()  # [N M]
    labels = network.parts.labels.repeat(len(wholes.boxes))
    parts = NamedBoxes(_clipped(boxes.flatten(0, 1), covered), labels, scores)
    return parts.take((scores >= _LEAST) & _has_area(parts.boxes))


def _clipped(boxes: Float[Tensor, "N 4"], covered: tuple[int, int]) -> Float[Tensor, "N 4"]:
    height, width = covered
    return torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))


def _has_area(boxes: Float[Tensor, "N 4"]) -> Bool[Tensor, " N"]:
    return ((boxes[:, 2:] - boxes[:, :2]) > 1).all(1)


def load_convolutions(network: YoloxNano, path: Path) -> None:
    """Load the convolutions of an exported YOLOX-Nano, without the layers that score cells."""
    _fill_convolutions(network, path, _read_onnx(path))


def load_exported(network: YoloxNano, path: Path, vocabulary: Vocabulary) -> None:
    """Load the convolutions of an exported YOLOX-Nano, and the scores of its classes that are objects here.

    An object with several classes of the file gets their mean; one with none keeps its random scores.
    """
    stored = _read_onnx(path)
    heads: dict[str, Any] = {"cls": network.class_scores, "reg": network.offsets, "obj": network.objectness}
    scored = [(f"head.{kind}_preds.{level}", kind, head) for kind in heads for level, head in enumerate(heads[kind])]
    lacking = [
        key for key, shape in _head_shapes(stored, scored).items() if getattr(stored.get(key), "shape", 0) != shape
    ]
    if lacking:
        raise PolyadicError(
            f"weights: {path.name} is not an exported YOLOX-Nano (it lacks {lacking[0]}, or has another size)"
        )
    _fill_convolutions(network, path, stored)
    names = class_names(path, len(stored["head.cls_preds.0.bias"]), vocabulary)
    with torch.no_grad():
        for name, kind, head in scored:
            weight, bias = stored[f"{name}.weight"], stored[f"{name}.bias"]
            if kind != "cls":
                _fill(head, weight, bias)
                continue
            for label in sorted(set(names) - {-1}):
                rows = [at for at, other in enumerate(names) if other == label]
                head.weight[label], head.bias[label] = weight[rows].mean(0), bias[rows].mean()


def _fill_convolutions(network: YoloxNano, path: Path, stored: dict[str, Tensor]) -> None:
    folded = [value for name, value in stored.items() if name.startswith("onnx::Conv") and value.ndim in (1, 4)]
    layers = [layer.conv for layer in _in_order(network)]
    shapes = [x.shape for layer in layers for x in (layer.weight, layer.bias) if x is not None]
    if [value.shape for value in folded] != shapes:
        raise PolyadicError(f"weights: {path.name} is not an exported YOLOX-Nano (its convolutions have other sizes)")
    with torch.no_grad():
        for layer, weight, bias in zip(layers, folded[::2], folded[1::2], strict=True):
            _fill(layer, weight, bias)


def _head_shapes(stored: dict[str, Tensor], heads: Sequence[tuple[str, str, Any]]) -> dict[str, tuple[int, ...]]:
    """Compute the shapes of the last layers; a file may have any number of classes."""
    classes = stored.get("head.cls_preds.0.bias", torch.zeros(0)).numel()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, kind, head in heads:
        rows = classes if kind == "cls" else len(head.bias)
        shapes |= {f"{name}.weight": (rows, *head.weight.shape[1:]), f"{name}.bias": (rows,)}
    return shapes


def _fill(layer: Any, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def _in_order(network: YoloxNano) -> list[Convolution]:
    """List the convolutions in the order in which they run, which is that of an exported file."""
    order: list[Convolution] = []
    layers = [layer for layer in network.modules() if isinstance(layer, Convolution)]
    hooks = [layer.register_forward_hook(lambda layer, given, output: order.append(layer)) for layer in layers]
    with torch.no_grad():
        network(torch.zeros(1, 3, 64, 64))
    for hook in hooks:
        hook.remove()
    return order


def _read_onnx(path: Path) -> dict[str, Tensor]:
    existing_file(path, "weights: an .onnx file, or random")
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise PolyadicError("weights from an .onnx file need onnx: pip install 'polyadic[onnx]'") from error
    try:
        stored: Any = onnx.load(str(path)).graph.initializer
        return {value.name: torch.from_numpy(numpy_helper.to_array(value).copy()) for value in stored}
    except Exception as error:  # its errors have no common base class
        reason = " ".join(str(error).split())
        raise PolyadicError(f"weights: {path.name} is not an ONNX model ({reason:.120})") from error
