"""What the network says of an image's pairs, and which parts of it count."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.boxes import ordered_pairs, suppress, union_boxes
from polyadic.cp import CPTensor, at_once
from polyadic.model.backbone import prepare_picture
from polyadic.model.features import PairInputs, feature_maps, make_inputs, pool_boxes, with_crops
from polyadic.ranking.relations import Block, Ranking
from polyadic.structures.detections import Detections
from polyadic.structures.images import UNNAMED, Photo
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

if TYPE_CHECKING:
    from polyadic.model.relation_model import RelationModel


@dataclass(frozen=True)
class Parts:
    """Which parts of f_spo count, beside ψ_c: the rows of the paper's Table 4 are values of this."""

    selected: bool = True
    prior: bool = True
    geometry: bool = True  # ours: the prior that knows the boxes, λ
    labels: bool = False  # the true labels are given, and only predicates compete
    relabel: bool = True  # ours: False lets a detector's labels stand, and only predicates compete
    dedup: bool = True  # ours: repetitions count for less, where the config says so
    prior_exponent: float | None = None  # of ψ_u; None: the config's


ALL = Parts()


@dataclass(frozen=True, eq=False)
class PairScores:
    """What the network says of an image's ordered pairs; ranking is all that is left to do."""

    boxes: Float[Tensor, "N 4"]
    pairs: Int[Tensor, "B 2"]
    cp: CPTensor  # ψ_c
    log_selected: Float[Tensor, " B"] | None
    log_boxes: Float[Tensor, " B"] | None
    geometry: CPTensor | None = None  # λ, which is no distribution

    def joint(self, parts: Parts = ALL) -> CPTensor:
        """ψ_c, times the prior that knows the boxes; as a distribution."""
        return self._product if parts.geometry else self.cp

    @cached_property
    def _product(self) -> CPTensor:
        return self.cp if self.geometry is None else self.cp.product(self.geometry)

    @cached_property
    def _expected(self) -> Float[Tensor, " B"]:
        """How many annotations a pair may expect, Σ ψ_c λ, at most 1; its logarithm."""
        return (self._product.log_z() - self.cp.log_z()).clamp_max(0).cpu().double()  # on the CPU: MPS has no float64

    def log_pair(self, parts: Parts, exponent: float) -> Float[Tensor, " B"] | None:
        """Log P(X_sel) times its exponent; and what is left of Σ ψ_c λ, at most 1, beside `joint`, a distribution."""
        found = None
        if parts.selected and exponent and self.log_selected is not None:
            found = self.log_selected.cpu().double() * exponent  # on the CPU: MPS has no float64
        if self.geometry is None or not parts.geometry:
            return found
        return self._expected if found is None else self._expected + found

    def given(self, labels: Int[Tensor, "B 2"]) -> PairScores:
        """With the labels of subject and object known: ψ_c is P(predicate | labels)."""
        return replace(self, cp=self.cp.given(subject=labels[:, 0], object=labels[:, 1]))

    def take(self, rows: slice | Int[Tensor, " M"]) -> PairScores:
        """Some of the pairs."""
        rows = rows if isinstance(rows, slice) else rows.to(self.pairs.device)
        return PairScores(
            self.boxes,
            self.pairs[rows],
            self.cp[rows],
            None if self.log_selected is None else self.log_selected[rows],
            None if self.log_boxes is None else self.log_boxes[rows],
            None if self.geometry is None else self.geometry[rows],
        )


BLOCK = 1024  # pairs that pass through the network at once: 32 boxes of one image, or several images with fewer
KEPT = 1 << 26  # numbers of an image's factors that are kept to be asked; a larger image is computed anew


@dataclass(frozen=True, eq=False)
class Seen:
    """An image whose boxes have been looked at. The boxes around pairs are pooled when their pairs' turn comes."""

    detections: Detections
    frame: tuple[float, float]
    inputs: PairInputs  # of all ordered pairs, without `unions`
    maps: list[Tensor] | None  # of the picture, [1, C, H, W] each

    @property
    def pairs(self) -> int:
        return len(self.inputs.pairs)


def usable(model: RelationModel, detections: Detections, photo: Photo | None) -> Detections:
    """Inside the picture, and without those that overlap a surer one too much."""
    frame = frame_of(photo, detections)
    known = len(model.vocabulary.objects)
    strange = detections.labels >= known
    if strange.any():
        raise PolyadicError(
            f"{detections.image}: label {detections.labels[strange][0]} is none of the {known} objects of this "
            "model (counted from 0); give the detector's labels in its vocabulary"
        )
    placed = detections if photo is None else detections.on_photo(photo)
    found = placed.inside(frame)
    if len(found) < len(detections):
        lost = f"{len(detections) - len(found):,} of {len(detections):,} boxes"
        warnings.warn(
            f"{detections.image}: {lost} lie outside the picture or have no area, and are left out",
            PolyadicWarning,
            stacklevel=4,
        )
    return found.take(suppress(found.boxes, found.scores, model.config.ranking.nms))


def frame_of(photo: Photo | None, detections: Detections) -> tuple[float, float]:
    """Of the boxes that come out: the photo's, where there is one."""
    if photo is not None:
        return photo.size
    if detections.size is None:
        raise PolyadicError(f"{detections.image}: the size of the picture is needed: Detections(..., size=(w, h))")
    return detections.size


@torch.no_grad()
def look(model: RelationModel, photos: Sequence[Photo | None], found: Sequence[Detections]) -> list[Seen]:
    """Boxes and, where the model sees pixels, their features; pictures of one size pass the backbone together."""
    frames = [frame_of(photo, each) for photo, each in zip(photos, found, strict=True)]
    pictures = _pictures(model, photos, found)
    maps = _maps(model, pictures)
    seen = []
    for each, frame, picture, own in zip(found, frames, pictures, maps, strict=True):
        corners, regions = torch.from_numpy(each.boxes).float(), None
        if own is not None and picture is not None:
            assert model.backbone is not None, "maps are a backbone's"
            pooled = pool_boxes(model.backbone, own, corners, frame, model.precision)
            regions = with_crops(model.backbone, pooled, picture, corners, frame, model.precision)
        pairs = ordered_pairs(len(corners))
        inputs = make_inputs(each.boxes, each.labels, each.scores, frame, pairs, model.config.sources, regions)
        seen.append(Seen(each, frame, model.look_around(inputs.to(model.device)), own))
    return seen


def _pictures(model: RelationModel, photos: Sequence[Photo | None], found: Sequence[Detections]) -> list[Tensor | None]:
    """As the backbone takes them; none where there is no backbone."""
    pictures: list[Tensor | None] = [None] * len(photos)
    if model.backbone is None:
        return pictures
    for at, (photo, each) in enumerate(zip(photos, found, strict=True)):
        if photo is None:
            raise PolyadicError(f"{each.image}: this model looks at pixels: give the image as well as its boxes")
        pictures[at] = prepare_picture(photo.image, model.config.pixels)
    return pictures


def _maps(model: RelationModel, pictures: Sequence[Tensor | None]) -> list[list[Tensor] | None]:
    maps: list[list[Tensor] | None] = [None] * len(pictures)
    if model.backbone is None:
        return maps
    groups: dict[torch.Size, list[tuple[int, Tensor]]] = defaultdict(list)
    for at, picture in enumerate(pictures):
        if picture is not None:
            groups[picture.shape].append((at, picture))
    for shape, members in groups.items():
        step = at_once(model.device, shape[1] * shape[2])
        for start in range(0, len(members), step):
            some = members[start : start + step]
            together = feature_maps(model.backbone, torch.stack([picture for _, picture in some]), model.precision)
            for row, (at, _) in enumerate(some):
                maps[at] = [fmap[row : row + 1] for fmap in together]
    return maps


@torch.no_grad()
def inputs_of(model: RelationModel, seen: Seen, rows: slice | Int[Tensor, " M"]) -> PairInputs:
    """What the network sees of some pairs."""
    whole = seen.inputs
    rows = rows if isinstance(rows, slice) else rows.to(whole.pairs.device)
    pairs, unions = whole.pairs[rows], None
    if seen.maps is not None and model.backbone is not None and whole.log_labels is None:
        wider = union_boxes(whole.boxes[pairs[:, 0]], whole.boxes[pairs[:, 1]])
        unions = pool_boxes(model.backbone, seen.maps, wider, seen.frame, model.precision).float()
    numbers = None if whole.pair_numbers is None else whole.pair_numbers[rows]
    around = None if whole.around is None else whole.around[rows]
    return replace(whole, pairs=pairs, unions=unions, pair_numbers=numbers, around=around)


def predict_images(
    model: RelationModel,
    photos: Sequence[Photo | None],
    detections: Sequence[Detections],
    k: int | None,
    top: int,
    parts: Parts,
) -> list[Ranking]:
    """The best triplets of each image. Images of few pairs share passes through the heads."""
    found = [usable(model, each, photo) for photo, each in zip(photos, detections, strict=True)]
    named = [photo is not None and photo.name != UNNAMED for photo in photos]
    found = [
        replace(each, image=photo.name) if known and photo is not None else each
        for known, photo, each in zip(named, photos, found, strict=True)
    ]
    seen = look(model, photos, found)
    scored: dict[int, list[PairScores]] = {}
    for group in _together(seen):
        for at, scores in zip(group, _score(model, [seen[at] for at in group]), strict=True):
            scored[at] = [scores]
    return [_rank(model, each, scored.get(at), k, top, parts) for at, each in enumerate(seen)]


def _rank(
    model: RelationModel, seen: Seen, held: list[PairScores] | None, k: int | None, top: int, parts: Parts
) -> Ranking:
    """From scores that are there, or block by block; of an image that is not too large they are kept."""
    if held is None and seen.pairs * _numbers_per_pair(model) <= KEPT:
        held = list(_blocks(model, seen))
    blocks = partial(_anew, model, parts, seen) if held is None else partial(_kept, model, parts, held)
    some = partial(_some_anew, model, parts, seen) if held is None else partial(_some_kept, parts, held)
    return model.origin(seen, blocks, some, parts).rank(k, top)


def _together(seen: Sequence[Seen]) -> Iterator[list[int]]:
    """Images with pairs, as many as fit into one block; larger ones are left out."""
    group: list[int] = []
    total = 0
    for at, each in enumerate(seen):
        if each.pairs > BLOCK or not each.pairs:
            continue
        if total + each.pairs > BLOCK:
            yield group
            group, total = [], 0
        group.append(at)
        total += each.pairs
    if group:
        yield group


def _score(model: RelationModel, seen: Sequence[Seen]) -> list[PairScores]:
    """Several images in one pass, taken apart again."""
    parts = [inputs_of(model, each, slice(None)) for each in seen]
    confidences = torch.cat([torch.from_numpy(each.detections.scores) for each in seen])
    joint = model.score(PairInputs.join(parts), confidences)
    found, start = [], 0
    for each in seen:
        rows = slice(start, start + each.pairs)
        found.append(replace(joint.take(rows), boxes=each.inputs.boxes, pairs=each.inputs.pairs))
        start += each.pairs
    return found


def _blocks(model: RelationModel, seen: Seen) -> Iterator[PairScores]:
    confidences = torch.from_numpy(seen.detections.scores)
    for start in range(0, seen.pairs, BLOCK):
        yield model.score(inputs_of(model, seen, slice(start, start + BLOCK)), confidences)


def _anew(model: RelationModel, parts: Parts, seen: Seen) -> Iterator[Block]:
    return _kept(model, parts, _blocks(model, seen))


def _kept(model: RelationModel, parts: Parts, scores: Iterable[PairScores]) -> Iterator[Block]:
    first, exponent = 0, model.config.ranking.selected
    for each in scores:
        yield Block(first, each.joint(parts), each.log_pair(parts, exponent), each.log_boxes)
        first += len(each.pairs)


def _some_anew(model: RelationModel, parts: Parts, seen: Seen, rows: Int[Tensor, " M"]) -> CPTensor:
    return _joined([model.score(inputs_of(model, seen, part)).joint(parts) for part in rows.split(BLOCK)])


def _some_kept(parts: Parts, scores: Sequence[PairScores], rows: Int[Tensor, " M"]) -> CPTensor:
    """`rows` rise."""
    found, first = [], 0
    for each in scores:
        inside = rows[(rows >= first) & (rows < first + len(each.pairs))] - first
        if len(inside):
            found.append(each.take(inside).joint(parts))
        first += len(each.pairs)
    return _joined(found)


def _joined(parts: Sequence[CPTensor]) -> CPTensor:
    return CPTensor(*(torch.cat(factor) for factor in zip(*(part.factors for part in parts), strict=True)))


def _numbers_per_pair(model: RelationModel) -> int:
    rank = model.config.head.rank * (1 if model.geometry is None else model.geometry.rank)
    return rank * sum(model.vocabulary.sizes)
