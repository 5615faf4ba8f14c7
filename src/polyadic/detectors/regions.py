"""A second look at regions of a detector's feature maps: names for any box, and parts inside a whole (ours).

`RegionHead` gives P(name | box) of boxes from anywhere. `PartHead` looks inside the boxes of one class, such as person,
for what belongs to it, such as shirt and hat: where each would be, and whether it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from polyadic.boxes import PLACE, box_place
from polyadic.detectors.vision import ops

_CELLS = 3  # of a region, for its name
_PART_CELLS = 7  # for its parts
_JITTER = 0.1  # true boxes move by this share of their sides, as detected ones do
_OTHERS = 8  # boxes without an object per image
_OTHERS_WEIGHT = 0.3  # VRD leaves objects unannotated: such a box may have one
_ABSENT_WEIGHT = 0.3  # likewise parts


def pool(maps: Sequence[Tensor], strides: Sequence[int], boxes: list[Tensor], cells: int) -> Float[Tensor, "N D"]:
    """Pool regions of several images from all maps; boxes in pixels of the network's input."""
    pooled = [
        ops.roi_align(fmap.float(), boxes, cells, 1 / stride, 2, True).flatten(1)
        for fmap, stride in zip(maps, strides, strict=True)
    ]
    return torch.cat(pooled, 1)


class RegionHead(nn.Module):
    """Compute logits of the names of boxes; the last is for none of them."""

    def __init__(self, widths: Sequence[int], strides: Sequence[int], classes: int, hidden: int = 384) -> None:
        super().__init__()
        self.strides, self.classes = tuple(strides), classes
        self.layers = nn.Sequential(
            nn.LayerNorm(sum(widths) * _CELLS**2 + PLACE),
            nn.Dropout(0.2),
            nn.Linear(sum(widths) * _CELLS**2 + PLACE, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes + 1),
        )

    def forward(
        self, maps: Sequence[Tensor], boxes: list[Float[Tensor, "_ 4"]], sizes: list[tuple[int, int]]
    ) -> Float[Tensor, "N C"]:
        """`sizes` are the (height, width) that each image covers of the network's input."""
        frames = [corners.new_tensor([[width, height]]) for corners, (height, width) in zip(boxes, sizes, strict=True)]
        places = [box_place(c, f.expand(len(c), 2)) for c, f in zip(boxes, frames, strict=True)]
        with torch.autocast(maps[0].device.type, enabled=False):
            logits: Tensor = self.layers(torch.cat([pool(maps, self.strides, boxes, _CELLS), torch.cat(places)], 1))
        return logits

    def loss(
        self,
        maps: Sequence[Tensor],
        boxes: list[Float[Tensor, "_ 4"]],
        labels: list[Int[Tensor, " _"]],
        weights: list[Float[Tensor, " _"]],
    ) -> Float[Tensor, ""]:
        """Compute the cross-entropy of the names of true boxes, slightly moved, and of boxes without an object."""
        side = maps[0].shape[-1] * self.strides[0]
        shown, names, shares = [], [], []
        for corners, classes, weight in zip(boxes, labels, weights, strict=True):
            empty = _away_from(corners, side)
            shown.append(torch.cat([_moved(corners), empty]))
            names.append(torch.cat([classes, classes.new_full((len(empty),), self.classes)]))
            shares.append(torch.cat([weight, weight.new_full((len(empty),), _OTHERS_WEIGHT)]))
        share = torch.cat(shares)
        logits = self(maps, shown, [(side, side)] * len(shown))
        wrong = cross_entropy(logits, torch.cat(names), reduction="none", label_smoothing=0.05)
        mean: Tensor = (wrong * share).sum() / share.sum().clamp(min=1)
        return mean


def _moved(boxes: Float[Tensor, "N 4"]) -> Float[Tensor, "N 4"]:
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + (2 * torch.rand_like(boxes) - 1) * _JITTER * sides


def _away_from(boxes: Float[Tensor, "N 4"], side: int) -> Float[Tensor, "M 4"]:
    """Draw boxes that overlap none of these much."""
    centre, half = torch.rand(2 * _OTHERS, 2) * side, torch.exp(torch.empty(2 * _OTHERS, 2).uniform_(2.5, 5)) / 2
    drawn = torch.cat([centre - half, centre + half], 1).clamp(0, side).to(boxes)
    free = ops.box_iou(drawn, boxes).amax(1) < 0.3 if len(boxes) else torch.ones(len(drawn), dtype=torch.bool)
    return drawn[free & ((drawn[:, 2:] - drawn[:, :2]) > 4).all(1)][:_OTHERS]


class PartHead(nn.Module):
    """Look inside boxes of the class `whole` for its parts: presence and box of each kind.

    A box is (x1, y1, x2, y2) in shares of the whole's, counted from its usual place among training annotations.
    """

    labels: Tensor
    places: Tensor

    def __init__(self, widths: Sequence[int], strides: Sequence[int], parts: int, hidden: int = 256) -> None:
        super().__init__()
        self.strides, self.parts = tuple(strides[:2]), parts  # the coarsest map has no detail
        self.register_buffer("labels", torch.zeros(parts, dtype=torch.long))
        self.register_buffer("places", torch.zeros(parts, 4))
        self.narrow = nn.ModuleList(nn.Conv2d(width, 32, 1) for width in widths[:2])
        self.layers = nn.Sequential(
            nn.Linear(2 * 32 * _PART_CELLS**2 + 1, hidden),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.3),
        )
        self.present, self.shift = nn.Linear(hidden, parts), nn.Linear(hidden, 4 * parts)
        nn.init.zeros_(self.shift.weight)
        nn.init.zeros_(self.shift.bias)

    def forward(
        self, maps: Sequence[Tensor], boxes: list[Float[Tensor, "_ 4"]]
    ) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N M 4"]]:
        """Compute the logit of each part's presence, and its box."""
        wholes = torch.cat(boxes)
        sides = wholes[:, 2:] - wholes[:, :2]
        aspect = (sides[:, :1] / sides[:, 1:].clamp(min=1)).clamp(min=1e-2).log()
        with torch.autocast(wholes.device.type, enabled=False):
            narrow = [layer(fmap.float()) for layer, fmap in zip(self.narrow, maps, strict=False)]
            x = self.layers(torch.cat([pool(narrow, self.strides, boxes, _PART_CELLS).relu(), aspect], 1))
            present, shift = self.present(x), self.shift(x).view(len(x), self.parts, 4)
        shares = self.places + 0.5 * torch.tanh(shift)
        low, high = torch.minimum(shares[..., :2], shares[..., 2:]), torch.maximum(shares[..., :2], shares[..., 2:])
        inside = torch.cat([low, high], -1)  # [N, M, 4]
        return present, wholes[:, None, :2].repeat(1, 1, 2) + inside * sides[:, None].repeat(1, 1, 2)

    def loss(
        self, maps: Sequence[Tensor], boxes: list[Float[Tensor, "_ 4"]], labels: list[Tensor], pairs: list[Tensor]
    ) -> Float[Tensor, ""]:
        """Compute the losses of presence and boxes over wholes with a part; `pairs` are (whole, part) rows of boxes."""
        wholes = [rows[:, 0].unique() for rows in pairs]
        if not sum(map(len, wholes)):
            return maps[0].new_zeros(())
        logit, found = self(maps, [corners[rows] for corners, rows in zip(boxes, wholes, strict=True)])
        target, weight = torch.zeros_like(logit), torch.full_like(logit, _ABSENT_WEIGHT)
        far, start = logit.new_zeros(()), 0
        for corners, names, rows, all_wholes in zip(boxes, labels, pairs, wholes, strict=True):
            at = start + torch.searchsorted(all_wholes, rows[:, 0].contiguous())
            kind = (names[rows[:, 1], None] == self.labels).int().argmax(1)
            target[at, kind], weight[at, kind] = 1.0, 1.0
            far = far + ops.generalized_box_iou_loss(found[at, kind], corners[rows[:, 1]], reduction="sum")
            start += len(all_wholes)
        count = sum(map(len, pairs))
        total: Tensor = binary_cross_entropy_with_logits(logit, target, weight, reduction="sum") + 2 * far
        return total / count
