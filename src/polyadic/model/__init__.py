"""The relation model: features, head, P(X_sel), priors and ranking in one value that saves and loads itself.

P(B_s, B_o | I) · ψ_c(s, p, o | B_s, B_o, I) · ψ_u(s, p, o) · P(X_sel | B_s, B_o, I)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyadic.boxes import ordered_pairs, pair_geometry
from polyadic.config import Config
from polyadic.cp import CPTensor
from polyadic.features import Backbone, PairFeatures, PairInputs, prepare_picture
from polyadic.geometry import GeometryPrior
from polyadic.head import TripletHead
from polyadic.model.inputs import make_inputs, pool_regions, union_rows
from polyadic.prior import TripletPrior
from polyadic.ranking import Dedup, rank_relations
from polyadic.scenes import Detections, Predictions, Scene, open_image
from polyadic.selection import SelectionHead
from polyadic.structures import Relations
from polyadic.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ALL", "PairScores", "Parts", "RelationModel", "make_inputs", "pool_regions", "union_rows"]

PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """Which parts of f_spo count, beside ψ_c: the rows of the paper's Table 4 are values of this."""

    selected: bool = True
    prior: bool = True
    geometry: bool = True  # ours: the prior that knows the boxes
    labels: bool = False  # the labels are given, and only predicates compete


ALL = Parts()


@dataclass(frozen=True, eq=False)
class PairScores:
    """What the network says of an image's ordered pairs; ranking is all that is left to do."""

    boxes: Float[Tensor, "N 4"]
    pairs: Int[Tensor, "B 2"]
    cp: CPTensor  # ψ_c
    log_selected: Float[Tensor, " B"] | None
    log_boxes: Float[Tensor, " B"] | None
    geometry: CPTensor | None = None


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
        if prior is not None and prior.sizes != vocabulary.sizes:
            raise PolyadicError(f"RelationModel: the prior has sizes {prior.sizes}, the vocabulary {vocabulary.sizes}")
        self.backbone = Backbone(config.pixels, fetch) if "pixels" in config.sources else None
        sizes, head = vocabulary.sizes, config.head
        self.features = PairFeatures(config, sizes[0], 0 if self.backbone is None else self.backbone.width)
        box, pair = self.features.box, self.features.pair
        copies = 2 if "evidence" in config.sources else 0
        self.head = TripletHead(box, pair, sizes, head.rank, head.hidden, head.dropout, head.context, copies)
        self.selector = SelectionHead(pair, config.selector.hidden, config.selector.dropout)
        self.geometry: GeometryPrior | None = None
        if config.boxes.epochs:
            grown = config.geometry
            self.geometry = GeometryPrior(sizes, grown.rank, grown.hidden, grown.dropout, grown.discount)

    @property
    def device(self) -> torch.device:
        return next(self.head.parameters()).device

    @contextmanager
    def _precision(self) -> Iterator[None]:
        kind = PRECISION[self.config.precision]
        with torch.autocast(self.device.type, kind, enabled=kind != torch.float32):
            yield

    def forward(self, inputs: PairInputs) -> CPTensor:
        """ψ_c of each pair."""
        with self._precision():
            subject, object, pair = self.features(inputs)
            cp: CPTensor = self.head(subject, object, pair, inputs.pairs, inputs.labels)
        return cp

    def selection_logit(self, inputs: PairInputs) -> Float[Tensor, " B"]:
        """Of P(X_sel); gradients reach its own head alone."""
        with self._precision():
            with torch.no_grad():
                pair = self.features(inputs)[2]
            logit: Tensor = self.selector(pair)
        return logit

    @torch.no_grad()
    def score(self, inputs: PairInputs, confidences: Float[Tensor, " N"] | None = None) -> PairScores:
        """All that ranking needs, from one pass; `inputs` are those of one image."""
        with self._precision():
            subject, object, pair = self.features(inputs)
            cp = self.head(subject, object, pair, inputs.pairs, inputs.labels)
            chosen = self.selector.log_selected(pair) if "selection" in self.stages else None
        s, o = inputs.pairs.unbind(-1)
        log_boxes = None
        if confidences is not None:
            log = confidences.cpu().double().clamp_min(1e-12).log()  # on the CPU: MPS has no float64
            log_boxes = log[inputs.pairs.cpu()].sum(-1)
        grown = None
        if self.geometry is not None and "boxes" in self.stages:
            grown = self.geometry.weight(pair_geometry(inputs.boxes[s], inputs.boxes[o], inputs.frames[s]))
        return PairScores(inputs.boxes, inputs.pairs, cp, chosen, log_boxes, grown)

    def rank(
        self,
        scores: PairScores,
        k: int | None = None,
        top: int = 100,
        parts: Parts = ALL,
        labels: Int[Tensor, "B 2"] | None = None,
    ) -> Relations:
        """The image's best triplets under the config's exponents.

        Where `labels` of subject and object are known, ψ_c becomes P(predicate | labels).
        """
        weights = self.config.ranking
        cp = scores.cp if scores.geometry is None or not parts.geometry else scores.cp.product(scores.geometry)
        if labels is not None and len(labels):
            cp = cp.given(subject=labels[:, 0], object=labels[:, 1])
        dedup = None
        if weights.repeat < 1:
            dedup = Dedup(scores.boxes[scores.pairs], weights.repeat_iou, weights.repeat)
        return rank_relations(
            cp,
            self.prior if parts.prior and weights.prior else None,
            scores.log_selected if parts.selected else None,
            scores.log_boxes,
            k,
            top,
            prior_exponent=weights.prior,
            selected_exponent=weights.selected,
            boxes_exponent=weights.boxes,
            labels=labels,
            dedup=dedup,
            vocabulary=self.vocabulary,
        )

    @torch.no_grad()
    def pairs_of(self, detections: Detections, image: str | Path | Image | None = None) -> PairScores:
        """The scores of all ordered pairs of an image's boxes."""
        boxes, picture, frame = detections.boxes, None, detections.size
        known = len(self.vocabulary.objects)
        strange = (detections.labels < 0) | (detections.labels >= known)
        if "evidence" in self.config.sources and strange.any():
            raise PolyadicError(
                f"{detections.image}: label {detections.labels[strange][0]} is none of the {known} objects of this "
                "model (counted from 0); give the detector's labels in its vocabulary"
            )
        if self.backbone is not None:
            if image is None:
                raise PolyadicError(
                    f"{detections.image}: this model looks at pixels: give the image as well as its boxes"
                )
            opened = open_image(Path(image)) if isinstance(image, str | Path) else image.convert("RGB")
            frame = frame or (float(opened.width), float(opened.height))
            picture = prepare_picture(opened, self.config.pixels)
        if frame is None:
            raise PolyadicError(f"{detections.image}: the size of the picture is needed: Detections(..., size=(w, h))")
        pairs = ordered_pairs(len(boxes))
        regions = unions = None
        if picture is not None and self.backbone is not None:
            corners = torch.from_numpy(boxes).float()
            regions, around = pool_regions(self.backbone, picture, corners, frame, PRECISION[self.config.precision])
            unions = around[union_rows(pairs, len(boxes)).to(around.device)]
        inputs = make_inputs(
            boxes, detections.labels, detections.scores, frame, pairs, self.config.sources, regions, unions
        )
        return self.score(inputs.to(self.device), torch.from_numpy(detections.scores))

    def predict(
        self,
        detections: Detections,
        image: str | Path | Image | None = None,
        *,
        k: int | None = None,
        top: int = 100,
        parts: Parts = ALL,
    ) -> Relations:
        """The best triplets of one image; `pair` counts its ordered pairs (0, 1), (0, 2), ..., (1, 0), ...

        Fewer than two boxes have no pairs, and no relations.
        """
        was = self.training
        self.eval()
        try:
            return self.rank(self.pairs_of(detections, image), k, top, parts)
        finally:
            self.train(was)

    def predictions(
        self, scene: Scene, scores: PairScores, k: int | None = None, top: int = 100, parts: Parts = ALL
    ) -> Predictions:
        """Ranked, as the evaluation takes them; the scene's labels are used where `parts` says so."""
        labels = torch.from_numpy(scene.labels).to(scores.pairs.device)[scores.pairs] if parts.labels else None
        found = self.rank(scores, k, top, parts, labels).to("cpu")
        pairs = scores.pairs.cpu()[found.pair]
        return Predictions(
            scene.name,
            scores.boxes.cpu().double().numpy(),
            pairs.numpy(),
            found.triplet.numpy(),
            found.log_score.numpy(),
        )

    def save(self, folder: str | Path, **about: Any) -> None:
        """One folder that needs nothing else: weights, config, vocabulary, prior, versions."""
        from polyadic.model.storage import save

        save(self, Path(folder), about)

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device = "cpu", vocabulary: Vocabulary | None = None
    ) -> RelationModel:
        """What `save` wrote, or a training run's best model. A `vocabulary` given here must be the saved one."""
        from polyadic.model.storage import load

        return load(Path(folder), torch.device(device), vocabulary)


def true_detections(scene: Scene) -> Detections:
    """The true boxes as a detector that is always right."""
    return Detections(scene.name, scene.boxes, scene.labels, np.ones(len(scene.boxes)), scene.frame)
