"""Pictures, boxes and a detector's word -> features of subject, object and pair (Network Architecture).

Two sources, alone or together: pixels (frozen backbone, RoIAlign, pair mask) and detector evidence (labels, scores,
geometry), which needs no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyadic.boxes import pair_masks
from polyadic.config import Config
from polyadic.features.backbone import Backbone, prepare_picture
from polyadic.features.evidence import EvidenceFeature, box_evidence, pair_evidence
from polyadic.features.spatial import Reduction, SpatialFeature

__all__ = [
    "Backbone",
    "PairFeatures",
    "PairInputs",
    "box_evidence",
    "pair_evidence",
    "prepare_picture",
]


@dataclass(frozen=True, eq=False)
class PairInputs:
    """What the network sees of some pairs of one image or, joined, of several."""

    pairs: Int[Tensor, "B 2"]  # (subject, object), rows of boxes
    boxes: Float[Tensor, "N 4"]
    frames: Float[Tensor, "N 2"]  # width and height of each box's picture
    regions: Float[Tensor, "N D"] | None = None  # pooled features of the boxes
    unions: Float[Tensor, "B D"] | None = None  # of the box around both
    labels: Int[Tensor, "N 2"] | None = None  # evidence: the label and its rival, -1 for none
    box_numbers: Float[Tensor, "N 11"] | None = None
    pair_numbers: Float[Tensor, "B 30"] | None = None

    def to(self, device: torch.device | str) -> PairInputs:
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        moved: dict[str, Any] = {name: x if x is None else x.to(device) for name, x in columns.items()}
        return PairInputs(**moved)

    @classmethod
    def join(cls, parts: Sequence[PairInputs]) -> PairInputs:
        """Several images as one: the pairs point into the joined boxes."""
        offsets, total = [], 0
        for part in parts:
            offsets.append(total)
            total += len(part.boxes)
        columns: dict[str, Any] = {
            "pairs": torch.cat([x.pairs + start for x, start in zip(parts, offsets, strict=True)])
        }
        for each in fields(cls)[1:]:
            values = [getattr(part, each.name) for part in parts]
            columns[each.name] = None if values[0] is None else torch.cat(values)
        return cls(**columns)


class PairFeatures(nn.Module):
    """`PairInputs` -> features of each box as subject and as object, and of each pair."""

    def __init__(self, config: Config, classes: int, region: int) -> None:
        """`region` is the width D of pooled features; unused without pixels."""
        super().__init__()
        self.mask = config.pixels.mask
        self.box = self.pair = 0
        self.reduction: Reduction | None = None
        self.spatial: SpatialFeature | None = None
        self.evidence: EvidenceFeature | None = None
        if "pixels" in config.sources:
            self.reduction = Reduction(region, config.pixels.reduce)
            self.spatial = SpatialFeature(config.pixels.mask, config.pixels.spatial)
            self.box += self.reduction.width
            self.pair += self.reduction.width + config.pixels.spatial
        if "evidence" in config.sources:
            self.evidence = EvidenceFeature(config.evidence, classes)
            self.box += self.evidence.box
            self.pair += self.evidence.pair

    def forward(self, x: PairInputs) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Float[Tensor, "B E"]]:
        subject, object, pair = [], [], []
        if self.reduction is not None and self.spatial is not None:
            assert x.regions is not None, "pixels need pooled features"
            assert x.unions is not None, "pixels need pooled features"
            s, o = x.pairs.unbind(-1)
            region = self.reduction(x.regions)
            masks = pair_masks(x.boxes[s], x.boxes[o], x.frames[s], self.mask)
            subject.append(region)
            object.append(region)
            pair += [self.reduction(x.unions), self.spatial(masks).to(region.dtype)]
        if self.evidence is not None:
            assert x.labels is not None, "evidence needs labels"
            assert x.box_numbers is not None, "evidence needs numbers"
            assert x.pair_numbers is not None, "evidence needs numbers"
            found = self.evidence(x.labels, x.box_numbers, x.pair_numbers, x.pairs)
            for parts, each in zip((subject, object, pair), found, strict=True):
                parts.append(each)
        return torch.cat(subject, -1), torch.cat(object, -1), torch.cat(pair, -1)
