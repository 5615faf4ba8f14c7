"""Images, boxes and detector evidence -> features of subject, object and pair (Network Architecture).

Two sources, alone or together: pixels (frozen backbone, RoIAlign, pair mask) and detector evidence (labels, scores,
geometry), which needs no image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from polyadic.boxes import GEOMETRY, PLACE, box_place, mirror_boxes, pair_geometry, pair_masks, union_boxes
from polyadic.config.schema import Config
from polyadic.model.backbone import Backbone
from polyadic.model.evidence import PAIR, EvidenceFeature, Nearness, box_evidence, name_evidence, witness_evidence


class SpatialFeature(nn.Module):
    """Pair mask 2 x 64 x 64 -> two convolutions -> fully connected -> 512; kernels and channels are ours."""

    def __init__(self, side: int = 64, width: int = 512) -> None:
        super().__init__()
        border = (-side % 8 + 1) // 2
        # the first convolution cuts the mask into patches: much cheaper on a CPU than small strides
        self.convolutions = nn.Sequential(
            nn.Conv2d(2, 32, 8, stride=8, padding=border),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        cells = ((side + 2 * border) // 8 + 1) // 2
        self.out = nn.Sequential(nn.Linear(64 * cells**2, width), nn.ReLU())

    def forward(self, masks: Float[Tensor, "B 2 H W"]) -> Float[Tensor, "B E"]:
        spatial: Tensor = self.out(self.convolutions(masks).flatten(1))
        return spatial


class Reduction(nn.Module):
    """Project region features on principal components of unit average variance (ours); fitted once, then frozen."""

    mean: Tensor
    basis: Tensor

    def __init__(self, width: int, components: int) -> None:
        super().__init__()
        self.width = components or width
        self.register_buffer("mean", torch.zeros(width) if components else torch.zeros(0))
        self.register_buffer("basis", torch.zeros(width, components) if components else torch.zeros(0, 0))

    @torch.no_grad()
    def fit(self, sample: Float[Tensor, "M D"]) -> None:
        if not len(self.mean):
            return
        self.mean.copy_(sample.mean(0))
        _, values, basis = torch.svd_lowrank(sample - self.mean, q=min(self.width, *sample.shape), niter=4)
        scale = (values.square().sum() / len(sample) / self.width).sqrt().clamp_min(1e-6)
        self.basis.zero_()
        self.basis[:, : basis.shape[1]] = basis / scale

    def forward(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M K"]:
        return (x - self.mean) @ self.basis if len(self.mean) else x


class Numbers(nn.Module):
    """Concatenate a few numbers with one layer on them (ours), so that dropout does not erase them all."""

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(count, hidden)
        self.width = count + hidden

    def forward(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "M D"]:
        return torch.cat([x, self.layer(x).relu().to(x)], -1)


@dataclass(frozen=True, eq=False)
class PairInputs:
    """The network's input for some pairs of one image or, joined, of several."""

    pairs: Int[Tensor, "B 2"]  # (subject, object), rows of boxes
    boxes: Float[Tensor, "N 4"]
    frames: Float[Tensor, "N 2"]  # width and height of each box's image
    regions: Float[Tensor, "N D"] | None = None  # of the boxes and of their crops; then the mirror image's
    unions: Float[Tensor, "B E"] | None = None  # pooled features of the union box
    labels: Int[Tensor, "N 2"] | None = None  # evidence: the label and its rival, -1 for none
    box_evidence: Float[Tensor, "N F"] | None = None
    pair_evidence: Float[Tensor, "B 30"] | None = None
    names: Float[Tensor, "N C"] | None = None  # evidence of `name_evidence`
    context: Float[Tensor, "B 39"] | None = None  # geometry of the pair among all boxes of its image
    log_labels: Float[Tensor, "N X"] | None = None  # label distributions refined by the other boxes of the image
    seen: Bool[Tensor, " N"] | None = None  # whether the box's image has pixels, where some have not

    def to(self, device: torch.device | str) -> PairInputs:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: x if x is None else x.to(device) for name, x in columns.items()}
        return PairInputs(**moved)

    def mirrored(self) -> PairInputs:
        """Describe the boxes in the mirror image, whose features are the second half of `regions`."""
        assert self.regions is not None, "for pixels alone"
        own = self.regions.shape[1] // 2
        return replace(self, boxes=mirror_boxes(self.boxes, self.frames), regions=self.regions[:, own:])

    def take(self, rows: slice | Int[Tensor, " M"]) -> PairInputs:
        """Select some of the pairs, with all boxes."""
        columns = {name: getattr(self, name) for name in ("pairs", "unions", "pair_evidence", "context")}
        chosen: dict[str, Any] = {name: x if x is None else x[rows] for name, x in columns.items()}
        return replace(self, **chosen)

    @classmethod
    def join(cls, parts: Sequence[PairInputs]) -> PairInputs:
        """Join several images: the pairs point into the joined boxes. Features of images without pixels are zeros."""
        offsets, total = [], 0
        for part in parts:
            offsets.append(total)
            total += len(part.boxes)
        columns: dict[str, Any] = {
            "pairs": torch.cat([x.pairs + start for x, start in zip(parts, offsets, strict=True)])
        }
        for field in fields(cls)[1:]:
            per_pair = field.name in ("unions", "pair_evidence", "context")
            rows = [len(part.pairs if per_pair else part.boxes) for part in parts]
            columns[field.name] = _stack([getattr(part, field.name) for part in parts], rows)
        shown = [part.regions is not None for part in parts]
        if any(shown) and not (all(shown) and all(part.seen is None for part in parts)):
            each = zip(parts, shown, strict=True)
            seen = [
                part.boxes.new_full((len(part.boxes),), one) if part.seen is None else part.seen for part, one in each
            ]
            columns["seen"] = torch.cat([x.bool() for x in seen])
        return cls(**columns)


def _stack(values: Sequence[Tensor | None], rows: Sequence[int]) -> Tensor | None:
    """Concatenate; one that is missing beside others is zeros."""
    given = next((value for value in values if value is not None), None)
    if given is None:
        return None
    empty = given.new_zeros
    return torch.cat([empty(n, *given.shape[1:]) if x is None else x for x, n in zip(values, rows, strict=True)])


class PairFeatures(nn.Module):
    """`PairInputs` -> features of each box as subject and as object, and of each pair."""

    def __init__(self, config: Config, classes: int, region: int, crop: int = 0, detector: int = 0) -> None:
        """`region`, `crop` and `detector` are the widths of a box's features; unused without pixels."""
        super().__init__()
        self.mask, self.region = config.pixels.mask, region
        self.widths = [region, crop, detector]
        self.box = self.pair = 0
        self.reduction: Reduction | None = None
        self.crops: Reduction | None = None
        self.detector: Reduction | None = None
        self.place: Numbers | None = None
        self.places: Numbers | None = None  # of pairs
        self.spatial: SpatialFeature | None = None
        self.evidence: EvidenceFeature | None = None
        self.may_be_blind = config.data.pictures == "optional"  # a number more per box and pair: whether it is seen
        if "pixels" in config.sources:
            self.reduction = Reduction(region, config.pixels.reduce)
            self.spatial = SpatialFeature(config.pixels.mask, config.pixels.spatial)
            self.crops = Reduction(crop, min(crop, config.pixels.reduce or crop)) if crop else None
            self.detector = Reduction(detector, min(detector, config.pixels.reduce)) if detector else None
            self.box += sum(part.width for part in (self.reduction, self.crops, self.detector) if part is not None)
            self.pair += self.reduction.width + config.pixels.spatial
            if config.pixels.place:
                self.place, self.places = (Numbers(count, config.pixels.spatial) for count in (PLACE, GEOMETRY))
                self.box += self.place.width
                self.pair += self.places.width
            self.box, self.pair = self.box + self.may_be_blind, self.pair + self.may_be_blind
        if "evidence" in config.sources:
            self.evidence = EvidenceFeature(config.evidence, classes)
            self.box += self.evidence.box
            self.pair += self.evidence.pair

    def fit(self, regions: Float[Tensor, "M D"], unions: Float[Tensor, "L E"]) -> None:
        """Fit the principal components to a sample."""
        pooled, *views = self._split(regions)
        for part, sample in zip(self._parts(), (torch.cat([pooled, unions]), *views), strict=True):
            part.fit(sample)

    def _parts(self) -> list[Reduction]:
        """List what reduces a box's features: pooled, of crops, of the detector."""
        return [part for part in (self.reduction, self.crops, self.detector) if part is not None]

    def _split(self, regions: Float[Tensor, "M D"]) -> tuple[Tensor, ...]:
        """Split the features of boxes by part. Those of the mirror image are left out."""
        widths = [width for width in self.widths if width]
        parts: tuple[Tensor, ...] = regions[:, : sum(widths)].split(widths, -1)
        return parts

    def _pixels(self, x: PairInputs) -> tuple[list[Tensor], list[Tensor]]:
        """Reduce the features of boxes and unions; for images that may be unseen, also say which are: zeros if not."""
        assert self.reduction is not None, "for pixels alone"
        if x.regions is None or x.unions is None:
            assert self.may_be_blind, "pixels need pooled features"
            widths = [*(part.width for part in self._parts()), 1]
            boxes, pairs = x.boxes.new_zeros(len(x.boxes), sum(widths)), x.boxes.new_zeros(len(x.pairs), widths[0] + 1)
            return [boxes], [pairs]
        own = [part(view) for part, view in zip(self._parts(), self._split(x.regions), strict=True)]
        around = [self.reduction(x.unions)]
        if not self.may_be_blind:
            return own, around
        seen = (x.boxes.new_ones(len(x.boxes)) if x.seen is None else x.seen.to(x.boxes))[:, None]
        both = seen[x.pairs[:, 0]]
        return [*(view * seen for view in own), seen], [around[0] * both, both]

    def boxes(self, x: PairInputs) -> Float[Tensor, "N D"]:
        """Compute features of the boxes alone, as subjects; nothing of their pairs is needed."""
        unions = None if x.regions is None else x.regions.new_zeros(0, self.region)
        evidence = None if x.labels is None else x.boxes.new_zeros(0, PAIR)
        subject: Tensor = self(replace(x.take(slice(0)), unions=unions, pair_evidence=evidence))[0]
        return subject

    def forward(self, x: PairInputs) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Float[Tensor, "B E"]]:
        subject, object, pair = [], [], []
        if self.reduction is not None and self.spatial is not None:
            s, o = x.pairs.unbind(-1)
            parts, around = self._pixels(x)
            if self.place is not None:
                parts.append(self.place(box_place(x.boxes, x.frames)))
            region = torch.cat(parts, -1)
            masks = pair_masks(x.boxes[s], x.boxes[o], x.frames[s], self.mask)
            subject.append(region)
            object.append(region)
            pair += [*around, self.spatial(masks).to(region.dtype)]
            if self.places is not None:
                pair.append(self.places(pair_geometry(x.boxes[s], x.boxes[o], x.frames[s])))
        if self.evidence is not None:
            described = self.evidence(x.labels, x.box_evidence, x.pair_evidence, x.pairs, x.names)
            for columns, feature in zip((subject, object, pair), described, strict=True):
                columns.append(feature)
        return torch.cat(subject, -1), torch.cat(object, -1), torch.cat(pair, -1)


LARGEST = torch.finfo(torch.float16).max


def union_rows(pairs: Int[Tensor, "B 2"], n: int) -> Int[Tensor, " B"]:
    """Return the index of a pair's union box among the n(n-1)/2 unordered pairs (0,1), (0,2), ..., (1,2), ..."""
    low, high = pairs.amin(1), pairs.amax(1)
    return low * n - low * (low + 1) // 2 + high - low - 1


@torch.no_grad()
def pool_regions(
    backbone: Backbone,
    image: UInt8[Tensor, "3 H W"],
    boxes: Float[Tensor, "N 4"],
    frame: tuple[float, float],
    precision: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "N D"], Float[Tensor, "U E"]]:
    """Pool features of the boxes and of the union boxes of all unordered pairs, in float16 as the cache keeps them."""
    low, high = torch.triu_indices(len(boxes), len(boxes), 1)
    everything = torch.cat([boxes, union_boxes(boxes[low], boxes[high])])
    half = pool_boxes(backbone, feature_maps(backbone, image[None], precision), everything, frame, precision)
    regions = add_views(backbone, half[: len(boxes)], image, boxes=boxes, frame=frame, precision=precision)
    return regions, half[len(boxes) :]


@torch.no_grad()
def add_views(
    backbone: Backbone,
    pooled: Float[Tensor, "N D"],
    image: UInt8[Tensor, "3 H W"],
    *,
    boxes: Float[Tensor, "N 4"],
    frame: tuple[float, float],
    precision: torch.dtype,
) -> Float[Tensor, "N E"]:
    """Append the features of the crops, then those of boxes and crops in the mirror image, as the config asks."""
    own = add_crops(backbone, pooled, image, boxes=boxes, frame=frame, precision=precision)
    if not backbone.pixels.mirror:
        return own
    flipped, place = image.flip(-1), mirror_boxes(boxes, boxes.new_tensor(frame).expand(len(boxes), 2))
    again = pool_boxes(backbone, feature_maps(backbone, flipped[None], precision), place, frame, precision)
    other = add_crops(backbone, again, flipped, boxes=place, frame=frame, precision=precision)
    return torch.cat([own, other], 1)


def add_crops(
    backbone: Backbone,
    pooled: Float[Tensor, "N D"],
    image: UInt8[Tensor, "3 H W"],
    *,
    boxes: Float[Tensor, "N 4"],
    frame: tuple[float, float],
    precision: torch.dtype,
) -> Float[Tensor, "N E"]:
    """Append the features of the boxes' crops, and those of the detector, where the config asks for them."""
    parts = [pooled]
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        if backbone.crop_width:
            parts.append(backbone.cut(image, boxes, frame))
        if backbone.detector is not None:
            parts.append(backbone.pool_detector(image, boxes, frame))
    return torch.cat([part.clamp(-LARGEST, LARGEST).half() for part in parts], 1)


@torch.no_grad()
def feature_maps(backbone: Backbone, images: UInt8[Tensor, "I 3 H W"], precision: torch.dtype) -> list[Tensor]:
    """Compute feature maps of several images of one size."""
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        return backbone.feature_maps(images)


@torch.no_grad()
def pool_boxes(
    backbone: Backbone,
    maps: list[Tensor],
    boxes: Float[Tensor, "K 4"],
    frame: tuple[float, float],
    precision: torch.dtype,
) -> Float[Tensor, "K D"]:
    """Pool boxes from the maps of one image, in float16 with and without a cache, so that both agree exactly."""
    with torch.autocast(backbone.device.type, precision, enabled=precision != torch.float32):
        pooled = backbone.pool(maps, boxes.to(backbone.device), frame)
    return pooled.float().clamp(-LARGEST, LARGEST).half()


def box_inputs(
    boxes: Float[np.ndarray, "N 4"],
    pairs: Int[Tensor, "B 2"],
    frame: tuple[float, float],
    *,
    sources: Sequence[str],
    labels: Int[np.ndarray, " N"] | None = None,
    scores: Float[np.ndarray, " N"] | None = None,
    names: Float[np.ndarray, "N C"] | None = None,
    classes: int = 0,
    source: Shaped[np.ndarray, " N"] | None = None,
    witnesses: Sequence[str] = (),
    regions: Float[Tensor, "N D"] | None = None,
) -> PairInputs:
    """Build the input of one image's boxes; what describes pairs is left out.

    Labels and scores are for evidence; for a model that reads P(class | box) of so many `classes` also `names`, for one
    that distinguishes `witnesses` also `source`.
    """
    corners = torch.from_numpy(boxes).float()
    size = torch.tensor(frame, dtype=torch.float32)
    both = numbers = None
    if "evidence" in sources:
        assert labels is not None, "evidence needs labels"
        assert scores is not None, "evidence needs scores"
        given = torch.from_numpy(labels), torch.from_numpy(scores).float()
        both, numbers = box_evidence(corners, *given, size)
        numbers = torch.cat([numbers, witness_evidence(corners, *given, source=source, witnesses=witnesses)], 1)
    return PairInputs(
        pairs,
        corners,
        size.expand(len(corners), 2),
        None if regions is None else regions.float(),
        labels=both,
        box_evidence=numbers,
        names=name_evidence(names, len(corners), classes) if classes else None,
    )


def nearness_of(inputs: PairInputs) -> Nearness | None:
    """Compare the distances between the boxes of one image, where evidence describes its pairs."""
    if inputs.labels is None:
        return None
    frame = inputs.frames[0] if len(inputs.frames) else inputs.boxes.new_ones(2)
    return Nearness(inputs.boxes, inputs.labels[:, 0], frame)


def pair_inputs(
    boxes: Float[np.ndarray, "N 4"],
    pairs: Int[Tensor, "B 2"],
    frame: tuple[float, float],
    *,
    unions: Float[Tensor, "B E"] | None = None,
    **given: Any,
) -> PairInputs:
    """Build the input of some pairs of one image at once, for training; prediction describes them block by block.

    `unions` are those of the given pairs, in their order; the rest is as for `box_inputs`.
    """
    inputs = box_inputs(boxes, pairs, frame, **given)
    nearness = nearness_of(inputs)
    return replace(
        inputs,
        unions=None if unions is None else unions.float(),
        pair_evidence=None if nearness is None else nearness.evidence(pairs),
    )
