"""The relation model: features, heads and priors in one module that scores, ranks, saves and loads itself.

P(B_s, B_o | I) · ψ_c(s, p, o | B_s, B_o, I) · ψ_u(s, p, o) · P(X_sel | B_s, B_o, I)
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from polyadic.boxes import Closeness, context_features, ordered_pairs, suppress
from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.model import scoring
from polyadic.model.answers import AnswerOptions, Labels, Mirror, Order, answer
from polyadic.model.backbone import Backbone, images_per_pass, prepare_picture
from polyadic.model.box_prior import GeometryPrior, LabelContext
from polyadic.model.features import (
    PairFeatures,
    PairInputs,
    add_views,
    box_inputs,
    feature_maps,
    nearness_of,
    pool_boxes,
)
from polyadic.model.heads import LabelHead, SelectionHead, TripletHead
from polyadic.model.scoring import ScoredBlock, ScoredPairs
from polyadic.prior import TripletPrior
from polyadic.structures.detections import Detections, check_number
from polyadic.structures.images import UNNAMED, Photo, open_photo
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, Vocabulary, is_out_of_memory

FindsBoxes = Callable[[Photo], Detections]  # a detector; one with `detect`, photos -> list, gets several at once

PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(eq=False)
class DetectorSlot:
    """The detector beside a model, none of the model's own weights; a saved one is loaded on first use."""

    detector: FindsBoxes | None = None
    folder: Path | None = None


class RelationModel(nn.Module):
    """Score and rank the relations between boxes.

    `stages` lists what has been trained; P(X_sel) and the box-conditioned prior are used from then on.
    """

    def __init__(
        self, config: Config, vocabulary: Vocabulary, prior: TripletPrior | None = None, *, fetch: bool = True
    ) -> None:
        """`fetch`: get the backbone's weights as the config says; False where they will be loaded."""
        super().__init__()
        try:
            self._build(config, vocabulary, prior, fetch=fetch)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise PolyadicError(
                f"the config asks for a network that memory cannot hold ({' '.join(str(error).split()):.100}); choose "
                "smaller sizes, such as head.hidden"
            ) from error

    def _build(self, config: Config, vocabulary: Vocabulary, prior: TripletPrior | None, *, fetch: bool) -> None:
        self.config, self.vocabulary, self.prior = config, vocabulary, prior
        self.stages: tuple[str, ...] = ()
        self.detector_slot = DetectorSlot()
        if prior is not None and prior.sizes != vocabulary.sizes:
            raise PolyadicError(f"RelationModel: the prior has sizes {prior.sizes}, the vocabulary {vocabulary.sizes}")
        self.backbone = Backbone(config.pixels, fetch) if "pixels" in config.sources else None
        sizes, head = vocabulary.sizes, config.head
        pixels = self.backbone
        widths = (0, 0, 0) if pixels is None else (pixels.width, pixels.crop_width, pixels.detector_width)
        self.features = PairFeatures(config, sizes[0], *widths)
        box, pair = self.features.box, self.features.pair
        layers: dict[str, Any] = {
            "hidden": head.hidden,
            "dropout": head.dropout,
            "input_dropout": head.input_dropout,
            "layers": head.layers,
        }
        self.head: TripletHead | LabelHead
        if head.labels:
            self.head = LabelHead(box, sizes, **layers)
        else:
            copies = 2 if "evidence" in config.sources else 0
            layers |= {"copies": copies, "names": bool(copies and config.evidence.names)}
            self.head = TripletHead(box, pair, sizes, rank=head.rank, context=head.context, **layers)
        self.selector = SelectionHead(pair, config.selector.hidden, config.selector.dropout)
        self.geometry: GeometryPrior | None = None
        if config.boxes.epochs:
            part = config.geometry
            self.geometry = GeometryPrior(
                sizes, rank=part.rank, hidden=part.hidden, dropout=part.dropout, embedding=part.embedding
            )
        self.neighbours: LabelContext | None = None
        if head.labels:
            around = config.neighbours
            self.neighbours = LabelContext(
                sizes[0],
                hidden=around.hidden,
                dropout=around.dropout,
                embedding=around.embedding,
                noise=around.noise,
            )

    @property
    def device(self) -> torch.device:
        return next(self.head.parameters()).device

    @property
    def detector(self) -> FindsBoxes | None:
        """Photo -> `Detections`: what `predict` uses where no boxes are given; see `set_detector`."""
        slot = self.detector_slot
        if slot.detector is None and slot.folder is not None:
            from polyadic.detectors.detector import Detector

            slot.detector = Detector.load(slot.folder, self.device, self.vocabulary)
        return slot.detector

    def set_detector(self, detector: FindsBoxes | None) -> None:
        """Use any function from a photo to `Detections`, for instance a `Detector`; None for none."""
        self.detector_slot = DetectorSlot(detector)

    @property
    def needs_photo(self) -> bool:
        """Whether boxes alone are not enough."""
        return self.backbone is not None and self.config.data.pictures != "optional"

    @property
    def precision(self) -> torch.dtype:
        return PRECISION[self.config.precision]

    @property
    def numbers_per_pair(self) -> int:
        """The numbers in the factors of one pair."""
        rank = self.config.head.rank * (1 if self.geometry is None else self.geometry.rank)
        return rank * sum(self.vocabulary.sizes)

    @property
    def named_classes(self) -> int:
        """The number of classes whose P(class | box) is read as evidence; 0 if none is."""
        read = "evidence" in self.config.sources and self.config.evidence.names
        return len(self.vocabulary.objects) if read else 0

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)

    def sharing_casts(self) -> AbstractContextManager[Any]:
        """Keep the weights' copies in a lower precision from one pass to the next; the weights must not change."""
        return torch.autocast(self.device.type, enabled=False)  # the outermost context owns the copies of inner ones

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Switch dropout off, and afterwards back to what it was."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def forward(self, inputs: PairInputs) -> CPTensor:
        """Compute ψ_c of each pair."""
        with self._autocast():
            subject, object, pair = self.features(inputs)
            cp: CPTensor = self.head(subject, object, pair, inputs.pairs, labels=inputs.labels, names=inputs.names)
        return cp

    def selection_logit(self, inputs: PairInputs) -> Float[Tensor, " B"]:
        """Compute the logit of P(X_sel); gradients reach its own head alone."""
        with self._autocast():
            with torch.no_grad():
                pair = self.features(inputs)[2]
            logit: Tensor = self.selector(pair)
        return logit

    def label_nll(self, inputs: PairInputs, labels: Int[Tensor, " N"]) -> Float[Tensor, ""]:
        """Compute the loss of a label head: the mean over boxes."""
        views = self._label_views(inputs)
        return nll_loss(torch.cat(views), labels.repeat(len(views)))

    def _label_views(self, inputs: PairInputs) -> list[Float[Tensor, "N X"]]:
        """Compute log P(label | box), with `pixels.mirror` also in the mirror image."""
        assert isinstance(self.head, LabelHead), "needs a label head"
        views = [inputs, inputs.mirrored()] if self.config.pixels.mirror else [inputs]
        with self._autocast():
            return [self.head.labels(self.features.boxes(view)) for view in views]

    @torch.no_grad()
    def add_context(self, inputs: PairInputs) -> PairInputs:
        """Add scene context to one image's inputs, where the model uses it."""
        closeness = self._closeness(inputs)
        if closeness is None:
            return inputs
        context = context_features(inputs.boxes, inputs.frames, inputs.pairs, closeness)
        return replace(inputs, context=context, log_labels=self._log_labels(inputs, closeness))

    def _closeness(self, inputs: PairInputs) -> Closeness | None:
        """Compare all boxes of one image, where the model uses scene context."""
        return None if self.geometry is None or "boxes" not in self.stages else Closeness(inputs.boxes)

    def _log_labels(self, inputs: PairInputs, closeness: Closeness) -> Float[Tensor, "N X"] | None:
        """Compute the labels of one image's boxes, refined by each other, where the head predicts labels alone."""
        if self.neighbours is None or not isinstance(self.head, LabelHead):
            return None
        exponent, views = self.config.neighbours.exponent, self._label_views(inputs)
        labels = views[0] if len(views) == 1 else torch.stack(views).mean(0).log_softmax(-1)
        if exponent:
            with self._autocast():
                labels = self.neighbours.refine(labels, inputs.boxes, inputs.frames, exponent, closeness=closeness)
        return labels

    @torch.no_grad()
    def score_block(self, inputs: PairInputs, confidences: Float[Tensor, " N"] | None = None) -> ScoredBlock:
        """Compute everything that ranking needs in one pass: for pairs of one image, or of several with context."""
        if inputs.context is None:
            inputs = self.add_context(inputs)
        selected = None
        if isinstance(self.head, LabelHead) and inputs.log_labels is not None:
            cp = self.head.pairs(inputs.log_labels, inputs.pairs)
        else:
            with self._autocast():
                subject, object, pair = self.features(inputs)
                cp = self.head(subject, object, pair, inputs.pairs, labels=inputs.labels, names=inputs.names)
                selected = self.selector.log_selected(pair) if "selection" in self.stages else None
        log_boxes = None
        if confidences is not None:
            log = confidences.cpu().double().clamp_min(1e-12).log()  # on the CPU: MPS has no float64
            log_boxes = log[inputs.pairs.cpu()].sum(-1)
        geometry = None if inputs.context is None or self.geometry is None else self.geometry(inputs.context)
        return ScoredBlock(inputs.pairs, cp, selected, log_boxes, geometry)

    def score(self, image: Any, detections: Detections | None = None) -> ScoredPairs:
        """Score all ordered pairs of boxes of one photo, to be ranked and queried; see `predict` for the arguments."""
        return self.score_many([image], None if detections is None else [detections])[0]

    @torch.no_grad()
    def score_many(self, images: Sequence[Any], detections: Sequence[Detections] | None = None) -> list[ScoredPairs]:
        """Score several photos: small ones share passes through the network."""
        photos = [None if image is None else open_photo(image) for image in images]
        with self.evaluation_mode():
            boxes = self._detect(photos) if detections is None else _checked(detections, len(photos))
            usable = [self._usable(given, photo) for photo, given in zip(photos, boxes, strict=True)]
            scored = self.prepare(photos, usable)
            for group in _groups(scored):
                together = PairInputs.join([scored[at].inputs_of(slice(None)) for at in group])
                scores = torch.cat([torch.from_numpy(scored[at].detections.scores) for at in group])
                block, start = self.score_block(together, scores), 0
                for at in group:
                    part = block.take(slice(start, start + len(scored[at])))
                    scored[at] = replace(scored[at], kept=(replace(part, pairs=scored[at].inputs.pairs),))
                    start += len(scored[at])
            return [self._by_selection(pairs) if pairs.kept is None and len(pairs) else pairs for pairs in scored]

    def predict(
        self,
        image: Any,
        detections: Detections | None = None,
        *,
        k: int | None = 1,
        top: int = 10,
        order: Order = "informative",
        labels: Labels = "keep",
        mirror: Mirror = "drop",
        least: float = 0.01,
    ) -> Relations:
        """Answer who does what to whom in a photo: a path, a PIL image, an array [H, W, 3] or a tensor [3, H, W].

        Without `detections`, the model's own detector finds the boxes. With them, a model that reads labels alone
        needs no image (None). Boxes are clipped to the photo; of two that overlap by more than `ranking.nms` the one
        of lower confidence is dropped. The paper's ranking is `score(image, detections).rank(k, top)`.

        Args:
            image: The photo.
            detections: Its boxes.
            k: Relations per ordered pair of boxes; None for any number.
            top: Relations per photo.
            order: "informative": probability times what the predicate tells of its pair; "likely": probability.
            labels: "keep" the detector's names, or "refine" them: the most probable class over all pairs of a box.
            mirror: "drop": of "A behind B" and "B behind A" the likelier, and one relation per unordered pair for
                predicates that hold both ways; "keep" both.
            least: The smallest probability that an annotator states the relation.
        """
        return self.predict_many(
            [image],
            None if detections is None else [detections],
            k=k,
            top=top,
            order=order,
            labels=labels,
            mirror=mirror,
            least=least,
        )[0]

    def predict_many(
        self, images: Sequence[Any], detections: Sequence[Detections] | None = None, **options: Any
    ) -> list[Relations]:
        """Predict for several photos at once, which is faster with small networks and on a GPU."""
        asked = AnswerOptions(**options)
        return [answer(scored, asked) for scored in self.score_many(images, detections)]

    @torch.no_grad()
    def prepare(self, photos: Sequence[Photo | None], detections: Sequence[Detections]) -> list[ScoredPairs]:
        """Pool the features of all boxes as they are given; scores of pairs are computed on demand."""
        pictures, maps = self._feature_maps(photos, detections)
        prepared = []
        for at, (photo, given) in enumerate(zip(photos, detections, strict=True)):
            frame = _frame(photo, given)
            corners, regions = torch.from_numpy(given.boxes).float(), None
            if self.backbone is not None and at in maps:
                pooled = pool_boxes(self.backbone, maps[at], corners, frame, self.precision)
                regions = add_views(
                    self.backbone, pooled, pictures[at], boxes=corners, frame=frame, precision=self.precision
                )
            inputs = box_inputs(
                given.boxes,
                ordered_pairs(len(corners)),
                frame,
                sources=self.config.sources,
                labels=given.labels,
                scores=given.scores,
                names=given.distribution,
                classes=self.named_classes,
                source=given.source,
                witnesses=self.config.evidence.witnesses,
                regions=regions,
            ).to(self.device)
            closeness = self._closeness(inputs)
            if closeness is not None:
                inputs = replace(inputs, log_labels=self._log_labels(inputs, closeness))
            own = replace(given, size=frame)
            prepared.append(
                ScoredPairs(self, own, inputs, maps.get(at), nearness=nearness_of(inputs), closeness=closeness)
            )
        return prepared

    def _by_selection(self, scored: ScoredPairs) -> ScoredPairs:
        """Put the pairs of a crowded image in the order of P(X_sel), so that ranking can leave the last ones out.

        Not where union boxes are pooled from pixels: that would cost more than the heads save.
        """
        if scored.maps is not None or "selection" not in self.stages or isinstance(self.head, LabelHead):
            return scored
        logs = []
        for start in range(0, len(scored), scoring.BLOCK):
            with self._autocast():
                pair = self.features(scored.inputs_of(slice(start, start + scoring.BLOCK)))[2]
                logs.append(self.selector.log_selected(pair))
        log_selected, order = torch.cat(logs).sort(descending=True, stable=True)
        return replace(scored, inputs=scored.inputs.take(order), log_selected=log_selected.cpu().double())

    def _feature_maps(
        self, photos: Sequence[Photo | None], detections: Sequence[Detections]
    ) -> tuple[dict[int, Tensor], dict[int, list[Tensor]]]:
        """Prepare photos for the backbone and compute feature maps; photos of one size pass together."""
        pictures: dict[int, Tensor] = {}
        maps: dict[int, list[Tensor]] = {}
        if self.backbone is None:
            return pictures, maps
        groups: dict[torch.Size, list[int]] = defaultdict(list)
        for at, (photo, given) in enumerate(zip(photos, detections, strict=True)):
            if photo is None:
                if self.needs_photo:
                    raise PolyadicError(f"{given.image}: this model needs pixels: give the image as well as its boxes")
                continue
            pictures[at] = prepare_picture(photo.image, self.config.pixels)
            groups[pictures[at].shape].append(at)
        for (_, height, width), members in groups.items():
            step = images_per_pass(self.device, height * width)
            for start in range(0, len(members), step):
                batch = members[start : start + step]
                stacked = torch.stack([pictures[at] for at in batch])
                together = feature_maps(self.backbone, stacked, self.precision)
                for row, at in enumerate(batch):
                    maps[at] = [fmap[row : row + 1] for fmap in together]
        return pictures, maps

    def _usable(self, detections: Detections, photo: Photo | None) -> Detections:
        """Clip boxes to the photo, suppress overlapping ones, and name them after the photo."""
        frame, classes = _frame(photo, detections), len(self.vocabulary.objects)
        outside = detections.labels >= classes
        if outside.any():
            raise PolyadicError(
                f"{detections.image}: label {detections.labels[outside][0]} is outside the {classes} object classes of "
                "this model (counted from 0); give the detector's labels in its vocabulary"
            )
        check_number(detections.image, len(detections))
        inside = (detections if photo is None else detections.on_photo(photo)).inside(frame)
        if len(inside) < len(detections):
            warnings.warn(
                f"{detections.image}: skipped {len(detections) - len(inside):,} of {len(detections):,} boxes that lie "
                "outside the image or have no area",
                PolyadicWarning,
                stacklevel=4,
            )
        kept = inside.take(suppress(inside.boxes, inside.scores, self.config.ranking.nms))
        return kept if photo is None or photo.name == UNNAMED else replace(kept, image=photo.name)

    def _detect(self, photos: Sequence[Photo | None]) -> Sequence[Detections]:
        detector = self.detector
        if detector is None:
            raise PolyadicError(
                "predict: this model has no detector: give detections, or choose one with model.set_detector(...)"
            )
        present = [photo for photo in photos if photo is not None]
        if len(present) < len(photos):
            raise PolyadicError("predict: without detections an image is needed to detect boxes in")
        if isinstance(detector, nn.Module):
            detector.to(self.device)
        many = getattr(detector, "detect", None)
        return [detector(photo) for photo in present] if many is None else list(many(present))

    def save(self, folder: str | Path, *, half: bool = False, **about: Any) -> None:
        """Save one self-contained folder: weights (`half`: in float16), config, vocabulary, prior, versions."""
        from polyadic.model.storage import save

        save(self, Path(folder), about, half)

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device = "cpu", vocabulary: Vocabulary | None = None
    ) -> RelationModel:
        """Load what `save` wrote, or a training run's best model. A `vocabulary` given here must be the saved one."""
        from polyadic.model.storage import load

        return load(Path(folder), torch.device(device), vocabulary)

    @classmethod
    def pretrained(cls, name: str = "vrd-boxes", device: str | torch.device = "cpu") -> RelationModel:
        """Load a model that comes with the package: no dataset, no training. Its CARD.md says how it was trained."""
        from polyadic.pretrained import model_folder

        return cls.load(model_folder(name), device)


def _groups(scored: Sequence[ScoredPairs]) -> Iterator[list[int]]:
    """Group images with pairs, as many as fit into one block; larger ones are left out."""
    group: list[int] = []
    total = 0
    for at, pairs in enumerate(scored):
        if len(pairs) > scoring.BLOCK or not len(pairs):
            continue
        if total + len(pairs) > scoring.BLOCK:
            yield group
            group, total = [], 0
        group.append(at)
        total += len(pairs)
    if group:
        yield group


def _frame(photo: Photo | None, detections: Detections) -> tuple[float, float]:
    """Return the frame of the predicted boxes: the photo's, if there is one."""
    if photo is not None:
        return photo.size
    if detections.size is None:
        raise PolyadicError(f"{detections.image}: the size of the image is needed: Detections(..., size=(w, h))")
    return detections.size


def _checked(detections: Sequence[Detections], photos: int) -> Sequence[Detections]:
    wrong = next((given for given in detections if not isinstance(given, Detections)), None)
    if wrong is not None:
        raise PolyadicError(
            f"predict: expected Detections, got {type(wrong).__name__}; build them with Detections.from_arrays from "
            "lists and arrays, or with read_detections from files"
        )
    if len(detections) != photos:
        raise PolyadicError(f"predict_many: {photos} images need as many detections, got {len(detections)}")
    return detections
