"""The relation model: features, head, P(X_sel), priors and ranking in one value that saves and loads itself.

P(B_s, B_o | I) · ψ_c(s, p, o | B_s, B_o, I) · ψ_u(s, p, o) · P(X_sel | B_s, B_o, I)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from polyadic.boxes import pair_numbers
from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.model.backbone import Backbone
from polyadic.model.box_prior import GeometryPrior, Neighbours
from polyadic.model.features import PairFeatures, PairInputs
from polyadic.model.heads import LabelHead, SelectionHead, TripletHead
from polyadic.model.scoring import ALL, PairScores, Parts
from polyadic.prior import TripletPrior
from polyadic.ranking import rank_relations
from polyadic.ranking.dedup import Dedup
from polyadic.ranking.relations import Block, Origin, Ranking
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from polyadic.model.scoring import Seen


FindsBoxes = Callable[[Photo], Detections]  # a detector; one with `detect`, photos -> list, is given several at once

PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RelationModel(nn.Module):
    """Who does what to whom, given boxes.

    `stages` says what has been trained; P(X_sel) and the prior that knows the boxes are used from then on.
    """

    def __init__(
        self, config: Config, vocabulary: Vocabulary, prior: TripletPrior | None = None, *, fetch: bool = True
    ) -> None:
        """`fetch`: get the backbone's weights as the config says; False where they will be loaded."""
        super().__init__()
        self.config, self.vocabulary, self.prior = config, vocabulary, prior
        self.stages: tuple[str, ...] = ()
        self.saved_detector: Path | None = None
        self._detector: list[FindsBoxes] = []  # a list: not one of this module's networks
        if prior is not None and prior.sizes != vocabulary.sizes:
            raise PolyadicError(f"RelationModel: the prior has sizes {prior.sizes}, the vocabulary {vocabulary.sizes}")
        self.backbone = Backbone(config.pixels, fetch) if "pixels" in config.sources else None
        sizes, head = vocabulary.sizes, config.head
        widths = (0, 0) if self.backbone is None else (self.backbone.width, self.backbone.crop_width)
        self.features = PairFeatures(config, sizes[0], *widths)
        box, pair = self.features.box, self.features.pair
        copies, last = 2 if "evidence" in config.sources else 0, (head.input_dropout, head.layers)
        self.head: TripletHead | LabelHead
        if head.labels:
            self.head = LabelHead(box, sizes, head.hidden, head.dropout, *last)
        else:
            own = (head.rank, head.hidden, head.dropout, head.context)
            self.head = TripletHead(box, pair, sizes, *own, copies, *last)
        self.selector = SelectionHead(pair, config.selector.hidden, config.selector.dropout)
        self.geometry: GeometryPrior | None = None
        if config.boxes.epochs:
            grown = config.geometry
            self.geometry = GeometryPrior(sizes, grown.rank, grown.hidden, grown.dropout, grown.embedding)
        self.neighbours: Neighbours | None = None
        if head.labels:
            others = config.neighbours
            self.neighbours = Neighbours(sizes[0], others.hidden, others.dropout, others.embedding, others.noise)

    @property
    def device(self) -> torch.device:
        return next(self.head.parameters()).device

    @property
    def detector(self) -> FindsBoxes | None:
        """Photo -> `Detections`: what `predict` uses where no boxes are given. A saved one is loaded when asked for."""
        if not self._detector and self.saved_detector is not None:
            from polyadic.detectors.faster_rcnn import Detector

            self._detector.append(Detector.load(self.saved_detector, self.device, self.vocabulary))
        return self._detector[0] if self._detector else None

    @detector.setter
    def detector(self, value: FindsBoxes | None) -> None:
        self.saved_detector = None
        self._detector[:] = [] if value is None else [value]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "detector":  # the property, even for a network, which torch would take for one of this module's
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> RelationModel:
        """The detector goes to another device as well."""
        for each in self._detector:
            if isinstance(each, nn.Module):
                each._apply(fn)
        super()._apply(fn, recurse)
        return self

    @property
    def precision(self) -> torch.dtype:
        return PRECISION[self.config.precision]

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            yield

    def forward(self, inputs: PairInputs) -> CPTensor:
        """ψ_c of each pair."""
        with self._autocast():
            subject, object, pair = self.features(inputs)
            cp: CPTensor = self.head(subject, object, pair, inputs.pairs, inputs.labels)
        return cp

    def selection_logit(self, inputs: PairInputs) -> Float[Tensor, " B"]:
        """Of P(X_sel); gradients reach its own head alone."""
        with self._autocast():
            with torch.no_grad():
                pair = self.features(inputs)[2]
            logit: Tensor = self.selector(pair)
        return logit

    def label_nll(self, inputs: PairInputs, labels: Int[Tensor, " N"]) -> Float[Tensor, ""]:
        """Of a head of labels: the mean over boxes."""
        assert isinstance(self.head, LabelHead), "asked of such a head"
        with self._autocast():
            found = self.head.labels(self.features.boxes(inputs))
        return nll_loss(found, labels)

    @torch.no_grad()
    def look_around(self, inputs: PairInputs) -> PairInputs:
        """With what all boxes of a picture tell of each box and pair, where the model makes use of it. Of one image."""
        if self.geometry is None or "boxes" not in self.stages:
            return inputs
        found = replace(inputs, around=pair_numbers(inputs.boxes, inputs.frames, inputs.pairs))
        if self.neighbours is None or not isinstance(self.head, LabelHead):
            return found
        with self._autocast():
            labels = self.head.labels(self.features.boxes(inputs))
            if self.config.neighbours.exponent:
                labels = self.neighbours.refine(labels, inputs.boxes, inputs.frames, self.config.neighbours.exponent)
        return replace(found, log_labels=labels)

    @torch.no_grad()
    def score(self, inputs: PairInputs, confidences: Float[Tensor, " N"] | None = None) -> PairScores:
        """All that ranking needs, from one pass: of one image, or of several that have been looked around in."""
        if inputs.around is None:
            inputs = self.look_around(inputs)
        chosen = None
        if isinstance(self.head, LabelHead) and inputs.log_labels is not None:
            cp = self.head.pairs(inputs.log_labels, inputs.pairs)
        else:
            with self._autocast():
                subject, object, pair = self.features(inputs)
                cp = self.head(subject, object, pair, inputs.pairs, inputs.labels)
                chosen = self.selector.log_selected(pair) if "selection" in self.stages else None
        log_boxes = None
        if confidences is not None:
            log = confidences.cpu().double().clamp_min(1e-12).log()  # on the CPU: MPS has no float64
            log_boxes = log[inputs.pairs.cpu()].sum(-1)
        grown = None if inputs.around is None or self.geometry is None else self.geometry(inputs.around)
        return PairScores(inputs.boxes, inputs.pairs, cp, chosen, log_boxes, grown)

    def _prior_exponent(self, parts: Parts) -> float:
        exponent = self.config.ranking.prior if parts.prior_exponent is None else parts.prior_exponent
        if self.config.head.labels and not parts.geometry and not (parts.prior and exponent):
            raise PolyadicError(
                "this model's head tells labels alone: without the prior that knows the boxes (geometry), and without "
                "the triplet prior, every predicate is as good as another"
            )
        return exponent

    def rank(
        self,
        scores: PairScores,
        k: int | None = None,
        top: int = 100,
        parts: Parts = ALL,
        labels: Int[Tensor, "B 2"] | None = None,
    ) -> Ranking:
        """The image's best triplets under the config's exponents.

        With `labels` of subject and object only predicates compete: by P(predicate | labels) where the labels are true
        (`parts.labels`), else by ψ_c, which knows that a detector's labels may be wrong.
        """
        weights, exponent = self.config.ranking, self._prior_exponent(parts)
        if labels is not None and len(labels) and parts.labels:
            scores = scores.given(labels)
        dedup = None
        if weights.repeat < 1 and parts.dedup:
            dedup = Dedup(scores.boxes[scores.pairs], weights.repeat_iou, weights.repeat)
        return rank_relations(
            scores.joint(parts),
            self.prior if parts.prior and exponent else None,
            scores.log_pair(parts, weights.selected),
            scores.log_boxes,
            k,
            top,
            prior_exponent=exponent,
            boxes_exponent=weights.boxes,
            labels=labels,
            dedup=dedup,
            vocabulary=self.vocabulary,
        )

    @torch.no_grad()
    def pairs_of(self, detections: Detections, image: Any = None) -> PairScores:
        """The scores of all ordered pairs of an image's boxes, as they are given."""
        from polyadic.model.scoring import inputs_of, look

        photo = None if image is None else open_photo(image)
        if photo is not None and detections.size is not None:
            photo = replace(photo, size=detections.size)  # the boxes stay in their frame
        (seen,) = look(self, [photo], [detections])
        return self.score(inputs_of(self, seen, slice(None)), torch.from_numpy(detections.scores))

    def predict(
        self, image: Any, detections: Detections | None = None, *, k: int | None = 1, top: int = 20, parts: Parts = ALL
    ) -> Ranking:
        """The best triplets of one photo: a path, a PIL image, an array [H, W, 3] or a tensor [3, H, W].

        Without `detections`, the model's own detector finds the boxes. With them, a model that reads labels alone
        needs no image (None). Boxes are cut off at the edges of the photo; of two that overlap by more than
        `ranking.nms` the surer one stays. At most `k` triplets per ordered pair (None: any number).
        """
        return self.predict_many([image], None if detections is None else [detections], k=k, top=top, parts=parts)[0]

    def predict_many(
        self,
        images: Sequence[Any],
        detections: Sequence[Detections] | None = None,
        *,
        k: int | None = 1,
        top: int = 20,
        parts: Parts = ALL,
    ) -> list[Ranking]:
        """`predict` for several photos at once: small networks and GPUs are faster so."""
        from polyadic.model.scoring import predict_images

        if parts.labels or not parts.relabel:
            raise PolyadicError(
                "predict: fixed labels (Parts(labels=True), Parts(relabel=False)) are for evaluation; ask with query"
            )
        photos = [None if image is None else open_photo(image) for image in images]
        was = self.training
        self.eval()
        try:
            found = self._detect(photos) if detections is None else detections
            strange = next((each for each in found if not isinstance(each, Detections)), None)
            if strange is not None:
                raise PolyadicError(
                    f"predict: expected Detections, got {type(strange).__name__}; Detections.from_arrays makes them of "
                    "lists and arrays, read_detections of files"
                )
            if len(found) != len(photos):
                raise PolyadicError(f"predict_many: {len(photos)} images need as many detections, got {len(found)}")
            return predict_images(self, photos, found, k, top, parts)
        finally:
            self.train(was)

    def _detect(self, photos: Sequence[Photo | None]) -> Sequence[Detections]:
        if self.detector is None:
            raise PolyadicError(
                "predict: this model has no detector of its own: give detections, or set model.detector to one"
            )
        given = [photo for photo in photos if photo is not None]
        if len(given) < len(photos):
            raise PolyadicError("predict: without detections an image is needed to find some in")
        many = getattr(self.detector, "detect", None)
        return [self.detector(photo) for photo in given] if many is None else list(many(given))

    def origin(
        self,
        seen: Seen,
        blocks: Callable[[], Iterable[Block]],
        some: Callable[[Int[Tensor, " M"]], CPTensor],
        parts: Parts = ALL,
    ) -> Origin:
        """An image as ranking takes it, under the config's exponents."""
        weights, exponent = self.config.ranking, self._prior_exponent(parts)
        return Origin(
            seen.detections,
            seen.frame,
            seen.inputs.pairs.cpu(),
            blocks,
            some,
            self.vocabulary,
            self.prior if parts.prior and exponent else None,
            exponent,
            1.0,  # that of P(X_sel) is in the blocks
            weights.boxes,
            (weights.repeat_iou, weights.repeat) if weights.repeat < 1 and parts.dedup else None,
        )

    def predictions(
        self,
        scene: Scene,
        scores: PairScores,
        k: int | None = None,
        top: int = 100,
        parts: Parts = ALL,
        labels: Int[np.ndarray, " N"] | None = None,
    ) -> Relations:
        """Ranked, as the evaluation takes them. `labels` of the boxes (None: the scene's) count if `parts` says so."""
        known = None
        if parts.labels or not parts.relabel:
            known = torch.from_numpy(scene.labels if labels is None else labels).to(scores.pairs.device)[scores.pairs]
        found = self.rank(scores, k, top, parts, known).to("cpu")
        pairs = scores.pairs.cpu()[found.pair]
        return Relations(
            scene.name,
            scores.boxes.cpu().double().numpy(),
            pairs.numpy(),
            found.triplet.numpy(),
            found.log_score.numpy(),
            size=scene.size,
        )

    def save(self, folder: str | Path, *, half: bool = False, **about: Any) -> None:
        """One folder that needs nothing else: weights (`half`: in float16), config, vocabulary, prior, versions."""
        from polyadic.model.storage import save

        save(self, Path(folder), about, half)

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device = "cpu", vocabulary: Vocabulary | None = None
    ) -> RelationModel:
        """What `save` wrote, or a training run's best model. A `vocabulary` given here must be the saved one."""
        from polyadic.model.storage import load

        return load(Path(folder), torch.device(device), vocabulary)

    @classmethod
    def shipped(cls, name: str = "vrd-boxes", device: str | torch.device = "cpu") -> RelationModel:
        """A model that comes with the package: no dataset, no training. Its CARD.md says what it knows."""
        from polyadic.pretrained import model_folder

        return cls.load(model_folder(name), device)
