"""The stages of training (Modeling missing annotations; Implementation details): data, loss and validation of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.config.schema import Config, PixelsConfig, StageConfig
from polyadic.model.backbone import prepare_picture
from polyadic.model.features import PairInputs
from polyadic.model.heads import TripletHead
from polyadic.model.relation_model import PRECISION, RelationModel
from polyadic.model.split import SplitBackbone
from polyadic.model.storage import pick_device
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import ranks
from polyadic.training.examples import BoxSource, Example, Examples, Task, load_training
from polyadic.training.frozen_maps import FrozenMaps, fill_maps
from polyadic.training.pairs import AllPairs, AnnotatedImages
from polyadic.training.region_cache import FeatureCache, Regions, fill
from polyadic.training.span import SpanLayer, span_layers
from polyadic.training.validation import held_out_metrics

_SAMPLE = 8192  # regions from which principal components are computed
PICTURE = "picture"

_Picture = tuple[Scene, dict[str, Tensor]]  # what the backbone still has to see: the picture, or maps of frozen layers


class Stage(ABC):
    """A stage of training: modules, examples, loss and validation."""

    name: str
    best_metric: str  # of `validate`: the epoch of its best value is kept; where it is missing, the last epoch
    lower_is_better = False
    settings: StageConfig
    modules: dict[str, nn.Module]  # what is trained
    device: torch.device
    precision: torch.dtype
    reads_files = True  # worker processes help
    spans: Sequence[SpanLayer] = ()  # layers that are trained through the inner products of their inputs

    @abstractmethod
    def examples(self, epoch: int) -> Dataset[Any]:
        """List the examples of an epoch, one per image."""

    @abstractmethod
    def loss(self, batch: list[Any]) -> tuple[Tensor, int] | None:
        """Compute the mean loss over rows, and their number; None for a batch without rows."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Compute metrics on held-out images; none where nothing is held out."""

    @abstractmethod
    def save(self, folder: Path, **about: Any) -> None:
        """Save the model that is trained."""

    @abstractmethod
    def names(self, batch: list[Any]) -> list[str]:
        """Name the images of a batch."""

    def train_mode(self) -> None:
        """Prepare the modules for training steps."""
        for module in self.modules.values():
            module.train()

    def rate_groups(self, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Group the parameters by a factor of the learning rate."""
        return [{"params": parameters, "factor": 1.0}]


class Setup:
    """What the stages of a relation model share: data, model, and region features."""

    model: RelationModel

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        if not planned(config):
            raise PolyadicError("nothing to train: no stage has epochs (triplets.epochs, selection.epochs, ...)")
        self.device = pick_device(config.device)
        self.regions: Regions | None = None
        self.data = load_training(config)
        for line in self.data.notes:
            progress.say(line)

    def fill_cache(self, source: BoxSource) -> None:
        """Open the cache once the backbone is final, and compute the features that it lacks."""
        backbone, config = self.model.backbone, self.config
        if backbone is None:
            return
        if self.regions is None:
            precision = PRECISION[config.precision]
            self.regions = Regions(config.pixels, self.open_cache(), backbone.fingerprint(), precision)
        rng, tested = np.random.default_rng(0), replace(source, nms=config.ranking.nms)
        blind = config.data.pictures == "optional"
        chosen = [
            (scene, seen_by.boxes(scene, rng).boxes)
            for scenes, seen_by in ((self.data.fit, source), (self.data.validation, tested))
            for scene in scenes
            if source.fixed(scene) and not (blind and not scene.has_picture())
        ]
        fill(self.regions, backbone, [scene for scene, _ in chosen], [boxes for _, boxes in chosen], config.workers)

    def open_cache(self) -> FeatureCache:
        """Open the folder of cached features."""
        cache = self.config.cache
        folder = Path(cache.folder).expanduser() if cache.folder else self.folder.parent / "features"
        return FeatureCache(folder, int(cache.gigabytes * 1e9))

    def split_backbone(self) -> SplitBackbone | None:
        """Split the backbone if only its last layers are trained."""
        net, start = self.model.backbone, self.config.backbone.train_from
        return SplitBackbone(net, start) if net is not None and start and self.config.backbone.epochs else None

    def region_sample(self, source: BoxSource) -> tuple[Tensor, Tensor]:
        """Collect features of some boxes, [M, D], and of boxes around pairs, [L, E]."""
        examples = Examples(
            self.data.fit,
            "triplets",
            source,
            sources=self.config.sources,
            regions=self.regions,
            seed=(0, "sample", 0),
            classes=self.model.named_classes,
            witnesses=self.config.evidence.witnesses,
            optional=self.config.data.pictures == "optional",
        )
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(self.config.seed)).tolist()
        boxes, unions = list[Tensor](), list[Tensor]()
        for at in order:
            inputs = examples[at].complete(self.regions, self.model.backbone).to(self.device)
            if inputs.regions is None or inputs.unions is None:
                continue  # no picture
            boxes.append(inputs.regions)
            unions.append(inputs.unions)
            if sum(map(len, (*boxes, *unions))) >= _SAMPLE:
                break
        return torch.cat(boxes), torch.cat(unions)


class RelationStage(Stage):
    """A stage of a relation model. A held-out loss chooses the epoch: unlike recall it cannot saturate."""

    best_metric = "loss"
    lower_is_better = True

    def __init__(self, setup: Setup, fresh: bool) -> None:
        """Prepare the stage; `fresh` if it starts rather than resumes."""
        self.setup, self.config, self.data, self.model = setup, setup.config, setup.data, setup.model
        self.device, self.precision = setup.device, PRECISION[setup.config.precision]
        self.settings = getattr(setup.config, self.name)

    def save(self, folder: Path, **about: Any) -> None:
        """Save the relation model."""
        self.model.save(folder, **about)

    def finish(self) -> None:
        """Leave the model as the next stage expects it."""
        self.model.eval()


class BackboneStage(RelationStage):
    """Ours: train the backbone on the labels of true boxes with a linear classifier, which is then dropped.

    With `train_from`, only its last layers are trained, from cached maps of those before.
    """

    name = "backbone"

    def __init__(self, setup: Setup, fresh: bool) -> None:
        super().__init__(setup, fresh)
        assert self.model.backbone is not None, "planned only where there is one"
        self.net = self.model.backbone
        self.probe = nn.Linear(self.net.width, self.data.vocabulary.sizes[0]).to(self.device)
        self.modules = {"backbone": self.net, "probe": self.probe}
        self.split = setup.split_backbone()
        self.frozen: FrozenMaps | None = None
        if self.split is not None:
            fingerprint = self.split.fingerprint()
            self.frozen = FrozenMaps(self.config.pixels, setup.open_cache(), fingerprint, self.precision)
            fill_maps(self.frozen, self.split, (*self.data.fit, *self.data.validation), self.config.workers)

    def examples(self, epoch: int) -> Dataset[Any]:
        """List the training images."""
        return _Pictures(self.data.fit, self.net.pixels, self.frozen)

    def loss(self, batch: list[_Picture]) -> tuple[Tensor, int]:
        """Compute the cross-entropy of the labels."""
        scores, labels = self._logits(batch)
        return cross_entropy(scores, labels), len(labels)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Compute the cross-entropy of labels and their accuracy in percent."""
        self.net.eval()
        loss, right, total = 0.0, 0, 0
        pictures = _Pictures(ranks.share(self.data.validation), self.net.pixels, self.frozen)
        for at in progress.track(range(len(pictures)), "validation"):
            scores, labels = self._logits([pictures[at]])
            loss += float(cross_entropy(scores, labels, reduction="sum"))
            right, total = right + int((scores.argmax(-1) == labels).sum()), total + len(labels)
        sums = ranks.total([loss, right, total])
        return {"loss": sums[0] / sums[2], "accuracy": 100 * sums[1] / sums[2]} if sums[2] else {}

    def names(self, batch: list[_Picture]) -> list[str]:
        return [scene.name for scene, _ in batch]

    def train_mode(self) -> None:
        if self.split is None:
            self.net.learn(True)
        else:
            self.split.learn()

    def finish(self) -> None:
        self.net.learn(False)

    def _logits(self, batch: list[_Picture]) -> tuple[Tensor, Tensor]:
        scores, labels = [], []
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            for scene, maps in self._maps(batch):
                boxes = torch.from_numpy(scene.boxes).float().to(self.device)
                scores.append(self.probe(self.net.pool(maps, boxes, scene.frame)).float())
                labels.append(torch.from_numpy(scene.labels).to(self.device))
        return torch.cat(scores), torch.cat(labels)

    def _maps(self, batch: list[_Picture]) -> list[tuple[Scene, list[Tensor]]]:
        """Compute the feature maps of images, batched by size."""
        groups: dict[tuple[torch.Size, ...], list[_Picture]] = {}
        for scene, given in batch:
            found = self.split.before(given[PICTURE], self.precision) if self.split and PICTURE in given else given
            groups.setdefault(tuple(x.shape for x in found.values()), []).append((scene, found))
        scene_maps: list[tuple[Scene, list[Tensor]]] = []
        for members in groups.values():
            if self.split is None:
                maps = self.net.feature_maps(torch.stack([found[PICTURE] for _, found in members]))
            else:
                maps = self.split.after([found for _, found in members])
            scene_maps += [(scene, [fmap[i : i + 1] for fmap in maps]) for i, (scene, _) in enumerate(members)]
        return scene_maps


class BoxPriorStage(RelationStage):
    """Ours: the box-conditioned prior λ and, for a head of labels, the label context; from annotations, no pixels."""

    name = "boxes"
    reads_files = False

    def __init__(self, setup: Setup, fresh: bool) -> None:
        super().__init__(setup, fresh)
        assert self.model.geometry is not None, "planned only where there is one"
        self.prior, self.context = self.model.geometry, self.model.neighbours
        self.fit, self.held_out = AnnotatedImages(self.data.annotations.scenes), AnnotatedImages(self.data.validation)
        self.modules = {"geometry": self.prior}
        if self.context is not None:
            self.modules["neighbours"] = self.context
        if fresh:
            pairs = AllPairs.join(self.fit.rows).to(self.device)
            self.prior.fit_scale(pairs.numbers, pairs.predicates)
            if self.context is not None:
                self.context.fit_scale(pairs.numbers, pairs.labels)

    def examples(self, epoch: int) -> Dataset[Any]:
        """List the training images with an annotated pair."""
        return self.fit

    def loss(self, batch: list[AllPairs]) -> tuple[Tensor, int] | None:
        """Compute the negative log-likelihood per annotation."""
        if not batch:
            return None
        x = AllPairs.join(batch).to(self.device)
        value = self.prior.nll(x.numbers, x.labels[x.pairs], x.at, x.predicates) / len(x.at)
        if self.context is not None:
            value = value + self.context.nll(x.places, x.numbers, x.pairs, x.labels)
        return value, len(x.at)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Compute the negative log-likelihood per held-out annotation."""
        for module in self.modules.values():
            module.eval()
        result = self.loss(list(ranks.share(self.held_out.rows)))
        if ranks.world() == 1:
            return {} if result is None else {"loss": float(result[0])}
        loss, rows = ranks.total([0, 0] if result is None else [float(result[0]) * result[1], result[1]])
        return {"loss": loss / rows} if rows else {}

    def names(self, batch: list[AllPairs]) -> list[str]:
        return [pairs.name for pairs in batch]


class PairStage(RelationStage):
    """A stage on pairs of boxes."""

    task: Task

    def __init__(self, setup: Setup, fresh: bool) -> None:
        super().__init__(setup, fresh)
        self.source = self.box_source()
        setup.fill_cache(self.source)
        model, pixels = self.model, self.config.pixels
        unfitted = fresh and not {"triplets", "proposals"} & set(model.stages)
        if unfitted and model.features.reduction is not None and (pixels.reduce or pixels.crops):
            sample = setup.region_sample(self.source)
            torch.manual_seed(self.config.seed)  # whatever was drawn before, with a cache or without
            model.features.fit(*sample)

    @abstractmethod
    def box_source(self) -> BoxSource:
        """Choose the boxes that the stage is trained on."""

    def examples(self, epoch: int) -> Dataset[Any]:
        """List the examples of an epoch."""
        data = self.config.data
        return Examples(
            self.data.fit,
            self.task,
            replace(self.source, one_predicate=data.one_predicate, overlapping=data.overlapping),
            sources=self.config.sources,
            regions=self.setup.regions,
            seed=(self.config.seed, self.name, epoch),
            nulls=self.config.selector.nulls,
            classes=self.model.named_classes,
            witnesses=self.config.evidence.witnesses,
            optional=data.pictures == "optional",
        )

    def join(self, used: list[Example]) -> tuple[PairInputs, Tensor]:
        """Join the inputs and the targets of several images."""
        parts = [example.complete(self.setup.regions, self.model.backbone).to(self.device) for example in used]
        target = torch.cat([example.target for example in used]).to(self.device)
        return PairInputs.join(parts), target

    def validate(self) -> dict[str, float]:
        """Compute losses and recall on the held-out images."""
        config = self.config
        return held_out_metrics(
            self.model,
            self.data.validation,
            self.source,
            regions=self.setup.regions,
            workers=config.workers,
            seed=config.seed,
            k=config.validation.k or None,
            selection=self.task == "selection",
        )

    def names(self, batch: list[Example]) -> list[str]:
        return [example.scene.name for example in batch]

    def train_mode(self) -> None:
        self.model.eval()
        super().train_mode()


class TripletStage(PairStage):
    """Stage 1: ψ_c on annotated pairs of true boxes."""

    name = "triplets"
    task = "triplets"

    def __init__(self, setup: Setup, fresh: bool) -> None:
        super().__init__(setup, fresh)
        self.modules = {"features": self.model.features, "head": self.model.head}
        if self.config.head.span and self.source.true:
            self.spans = self._span()
            self.modules["span"] = nn.ModuleList(self.spans)

    def _span(self) -> list[SpanLayer]:
        """Let inner products of the cached features stand in for the first layers of the branches."""
        regions, backbone, head = self.setup.regions, self.model.backbone, self.model.head
        assert isinstance(head, TripletHead), "checked with the config"
        assert backbone is not None, "checked with the config"
        boxes: tuple[list[Tensor], list[Tensor]] = ([], [])  # of training, of held-out images
        unions: tuple[list[Tensor], list[Tensor]] = ([], [])
        tasks: tuple[tuple[Sequence[Scene], Task], ...] = (
            (self.data.fit, "triplets"),
            (self.data.validation, "everything"),
        )
        for part, (scenes, task) in enumerate(tasks):
            seed = (0, "span", 0)
            examples = Examples(scenes, task, self.source, sources=("pixels",), regions=regions, seed=seed)
            for at in progress.track(range(len(scenes)), "inner products"):
                inputs = examples[at].complete(regions, backbone)
                assert inputs.regions is not None, "there are pixels"
                assert inputs.unions is not None, "there are pixels"
                boxes[part].append(inputs.regions[:, : backbone.width].half())
                unions[part].append(inputs.unions.half())
        return span_layers(
            ((head.subject, head.object), boxes),
            ((head.predicate,), unions),
            device=self.device,
            settings=self.settings,
            precision=self.precision,
        )

    def save(self, folder: Path, **about: Any) -> None:
        """Save the relation model, with the weights of layers that inner products stand in for."""
        with ExitStack() as applied:
            for span in self.spans:
                applied.enter_context(span.applied())
            super().save(folder, **about)

    def finish(self) -> None:
        super().finish()
        for span in self.spans:
            span.remove()

    def box_source(self) -> BoxSource:
        return BoxSource()

    def loss(self, batch: list[Example]) -> tuple[Tensor, int] | None:
        """Compute -log ψ_c; for a head of labels, the cross-entropy of the labels."""
        used = [example for example in batch if len(example.target)]
        if not used:
            return None
        inputs, target = self.join(used)
        if self.config.head.labels:
            labels = torch.cat([torch.from_numpy(example.boxes.labels) for example in used]).to(self.device)
            return self.model.label_nll(inputs, labels), len(labels)
        return self.model(inputs).nll(target).mean(), len(target)


class ProposalStage(TripletStage):
    """Stage 1b: ψ_c on pairs of a detector's boxes, real or simulated."""

    name = "proposals"

    def box_source(self) -> BoxSource:
        return self.setup.data.proposals


class SelectionStage(PairStage):
    """Stage 2: P(X_sel), on the boxes that ψ_c was last trained on; everything else is frozen."""

    name = "selection"
    best_metric = "selection loss"
    task = "selection"

    def __init__(self, setup: Setup, fresh: bool) -> None:
        super().__init__(setup, fresh)
        self.modules = {"selector": self.model.selector}

    def box_source(self) -> BoxSource:
        return self.setup.data.proposals if self.config.proposals.epochs else BoxSource()

    def loss(self, batch: list[Example]) -> tuple[Tensor, int] | None:
        """Compute the binary cross-entropy of whether a pair is annotated."""
        used = [example for example in batch if len(example.target)]
        if not used:
            return None
        inputs, target = self.join(used)
        logit = self.model.selection_logit(inputs)
        return binary_cross_entropy_with_logits(logit, target.to(logit)), len(target)


STAGES: dict[str, type[RelationStage]] = {
    kind.name: kind for kind in (BackboneStage, BoxPriorStage, TripletStage, ProposalStage, SelectionStage)
}


def planned(config: Config) -> list[str]:
    """List the stages of a run, in order."""
    names = [name for name in STAGES if getattr(config, name).epochs]
    return [name for name in names if name != "backbone" or "pixels" in config.sources]


class _Pictures(Dataset[_Picture]):
    """List whole images, or cached maps of them, for the stage that trains the backbone."""

    def __init__(self, scenes: Sequence[Scene], pixels: PixelsConfig, frozen: FrozenMaps | None) -> None:
        self.scenes, self.pixels, self.frozen = scenes, pixels, frozen

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> _Picture:
        scene = self.scenes[at]
        found = None if self.frozen is None else self.frozen.find(scene)
        return scene, found or {PICTURE: prepare_picture(scene.open(), self.pixels)}
