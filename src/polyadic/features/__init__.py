"""Pictures, boxes and a detector's word -> features of subject, object and pair (Network Architecture).

Two sources, alone or together: pixels (frozen backbone, RoIAlign, pair mask) and detector evidence (labels, scores,
geometry), which needs no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyadic.boxes import GEOMETRY, PLACE, box_place, pair_geometry, pair_masks
from polyadic.config import Config
from polyadic.features.backbone import Backbone, prepare_picture
from polyadic.features.evidence import EvidenceFeature, box_evidence, pair_evidence
from polyadic.features.spatial import Numbers, Reduction, SpatialFeature

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
    regions: Float[Tensor, "N D"] | None = None  # pooled features of the boxes, and of their crops
    unions: Float[Tensor, "B E"] | None = None  # of the box around both
    labels: Int[Tensor, "N 2"] | None = None  # evidence: the label and its rival, -1 for none
    box_numbers: Float[Tensor, "N 11"] | None = None
    pair_numbers: Float[Tensor, "B 30"] | None = None
    around: Float[Tensor, "B 39"] | None = None  # how a pair stands among all boxes of its picture
    log_labels: Float[Tensor, "N X"] | None = None  # of the boxes, where the others of the picture have been heard

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

    def __init__(self, config: Config, classes: int, region: int, crop: int = 0) -> None:
        """`region` is the width of pooled features, `crop` that of crops; unused without pixels."""
        super().__init__()
        self.mask, self.region = config.pixels.mask, region
        self.box = self.pair = 0
        self.reduction: Reduction | None = None
        self.crops: Reduction | None = None
        self.place: Numbers | None = None
        self.places: Numbers | None = None  # of pairs
        self.spatial: SpatialFeature | None = None
        self.evidence: EvidenceFeature | None = None
        if "pixels" in config.sources:
            self.reduction = Reduction(region, config.pixels.reduce)
            self.spatial = SpatialFeature(config.pixels.mask, config.pixels.spatial)
            self.crops = Reduction(crop, min(crop, config.pixels.reduce or crop)) if crop else None
            self.box += self.reduction.width + (self.crops.width if self.crops else 0)
            self.pair += self.reduction.width + config.pixels.spatial
            if config.pixels.place:
                self.place, self.places = (Numbers(count, config.pixels.spatial) for count in (PLACE, GEOMETRY))
                self.box += self.place.width
                self.pair += self.places.width
        if "evidence" in config.sources:
            self.evidence = EvidenceFeature(config.evidence, classes)
            self.box += self.evidence.box
            self.pair += self.evidence.pair

    def fit(self, regions: Float[Tensor, "M D"], unions: Float[Tensor, "L E"]) -> None:
        """Principal components, from a sample."""
        assert self.reduction is not None, "pixels alone have them"
        self.reduction.fit(torch.cat([regions[:, : self.region], unions]))
        if self.crops is not None:
            self.crops.fit(regions[:, self.region :])

    def boxes(self, x: PairInputs) -> Float[Tensor, "N D"]:
        """Features of the boxes alone, as subjects; the boxes around pairs need not be there."""
        unions = None if x.regions is None else x.regions.new_zeros(0, self.region)
        numbers = None if x.pair_numbers is None else x.pair_numbers[:0]
        subject: Tensor = self(replace(x, pairs=x.pairs[:0], unions=unions, pair_numbers=numbers, around=None))[0]
        return subject

    def forward(self, x: PairInputs) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Float[Tensor, "B E"]]:
        subject, object, pair = [], [], []
        if self.reduction is not None and self.spatial is not None:
            assert x.regions is not None, "pixels need pooled features"
            assert x.unions is not None, "pixels need pooled features"
            s, o = x.pairs.unbind(-1)
            pooled, crops = x.regions.split([self.region, x.regions.shape[1] - self.region], -1)
            parts = [self.reduction(pooled)]
            if self.crops is not None:
                parts.append(self.crops(crops))
            if self.place is not None:
                parts.append(self.place(box_place(x.boxes, x.frames)))
            region = torch.cat(parts, -1)
            masks = pair_masks(x.boxes[s], x.boxes[o], x.frames[s], self.mask)
            subject.append(region)
            object.append(region)
            pair += [self.reduction(x.unions), self.spatial(masks).to(region.dtype)]
            if self.places is not None:
                pair.append(self.places(pair_geometry(x.boxes[s], x.boxes[o], x.frames[s])))
        if self.evidence is not None:
            assert x.labels is not None, "evidence needs labels"
            assert x.box_numbers is not None, "evidence needs numbers"
            assert x.pair_numbers is not None, "evidence needs numbers"
            found = self.evidence(x.labels, x.box_numbers, x.pair_numbers, x.pairs)
            for held, each in zip((subject, object, pair), found, strict=True):
                held.append(each)
        return torch.cat(subject, -1), torch.cat(object, -1), torch.cat(pair, -1)
