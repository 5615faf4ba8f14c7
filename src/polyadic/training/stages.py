"""What each stage learns, from what, and how its result is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import Dataset

from polyadic import progress
from polyadic.boxes import box_place, ordered_pairs, pair_numbers
from polyadic.config.schema import Config, PixelsConfig
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.model.backbone import Backbone, prepare_picture
from polyadic.model.features import PairInputs
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, PairScores, Parts
from polyadic.structures.scenes import Scene
from polyadic.training.examples import BoxSource, Example, Examples
from polyadic.training.loading import load_batches
from polyadic.training.loop import Task
from polyadic.training.pairs import true_boxes
from polyadic.training.region_cache import Regions

if TYPE_CHECKING:
    from polyadic.training.trainer import Trainer


def score_scenes(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    workers: int = 0,
    seed: int = 0,
    text: str = "scores",
) -> Iterator[tuple[Example, PairScores]]:
    """All ordered pairs of each image, in order, as at test time: overlapping detections are left out."""
    source = replace(source, nms=model.config.ranking.nms)
    examples = Examples(scenes, "everything", source, model.config.sources, regions, (seed, "validation", 0))
    model.eval()
    batches = load_batches(examples, [[at] for at in range(len(scenes))], workers)
    for (example,) in progress.track(batches, text, len(scenes)):
        inputs = example.complete(regions, model.backbone).to(model.device)
        confidences = None if source.true else torch.from_numpy(example.boxes.scores)
        yield example, model.score(inputs, confidences)


@torch.no_grad()
def recall(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    workers: int,
    seed: int,
    k: int | None,
    parts: Parts = ALL,
) -> dict[str, float]:
    """R@50 and R@100 (lu2016): phrase classification on true boxes, else relationship detection; and the held-out loss.

    The loss is that of annotated pairs: -log ψ_c of their triplets. Without relations there are no numbers.
    """
    task = "phrase-classification" if source.true else "relationship"
    protocol = get_protocol("lu2016").change(task=task, k=k, tops=(50, 100))
    evaluator = Evaluator([protocol], len(model.vocabulary.predicates))
    loss, rows = 0.0, 0
    for example, scores in score_scenes(model, scenes, source, regions, workers, seed, "validation"):
        evaluator.update(example.scene, model.predictions(example.scene, scores, k, 100, parts))
        loss, rows = loss + annotated_loss(example, scores), rows + len(example.boxes.pairs)
    found = {f"R@{row.top}": row.recall for row in evaluator.result() if row.truths}
    return {**found, "loss": loss / rows} if rows else found


def annotated_loss(example: Example, scores: PairScores) -> float:
    """-log ψ_c of an image's annotated pairs, summed."""
    if not len(example.boxes.pairs):
        return 0.0
    place = {tuple(pair): at for at, pair in enumerate(scores.pairs.tolist())}
    at = torch.tensor([place[tuple(pair)] for pair in example.boxes.pairs.tolist()], device=scores.pairs.device)
    triplets = torch.from_numpy(example.boxes.triplets).to(at.device)
    return float(scores.cp[at].nll(triplets).cpu().double().sum())  # MPS has no float64


def planned(config: Config) -> list[str]:
    """The stages of a run, in order."""
    names = [name for name in STAGES if getattr(config, name).epochs]
    return [name for name in names if name != "backbone" or "pixels" in config.sources]


def backbone(trainer: Trainer, fresh: bool) -> Task:
    """Ours: the backbone learns to tell the labels of true boxes by a linear classifier, which is then dropped."""
    net, data, device = trainer.model.backbone, trainer.data, trainer.device
    assert net is not None, "planned only where there is one"
    probe = nn.Linear(net.width, data.vocabulary.sizes[0]).to(device)

    def logits(batch: list[tuple[Scene, Tensor]]) -> tuple[Tensor, Tensor]:
        found, labels = [], []
        with torch.autocast(device.type, trainer.precision, enabled=trainer.precision != torch.float32):
            for scene, maps in _maps(net, batch):
                boxes = torch.from_numpy(scene.boxes).float().to(device)
                found.append(probe(net.pool(maps, boxes, scene.frame)).float())
                labels.append(torch.from_numpy(scene.labels).to(device))
        return torch.cat(found), torch.cat(labels)

    def loss(batch: list[tuple[Scene, Tensor]]) -> tuple[Tensor, int]:
        scores, labels = logits(batch)
        return cross_entropy(scores, labels), len(labels)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        net.eval()
        right = total = 0
        for scene in progress.track(data.validation, "validation"):
            scores, labels = logits([(scene, prepare_picture(scene.open(), net.pixels))])
            right, total = right + int((scores.argmax(-1) == labels).sum()), total + len(labels)
        return {"accuracy": 100 * right / total} if total else {}

    return Task(
        "backbone",
        trainer.config.backbone,
        {"backbone": net, "probe": probe},
        lambda epoch: _Pictures(data.fit, net.pixels),
        loss,
        lambda batch: [scene.name for scene, _ in batch],
        lambda: net.learn(True),
        validate,
        "accuracy",
        lambda: net.learn(False),
    )


def boxes(trainer: Trainer, fresh: bool) -> Task:
    """Ours: what boxes and labels tell without pixels, from all pairs of the annotations.

    The prior that knows the boxes, λ; and for a head of labels, what neighbours say of a label.
    """
    prior, neighbours, device = trainer.model.geometry, trainer.model.neighbours, trainer.device
    assert prior is not None, "planned only where there is one"
    fit, held_out = _Annotations(trainer.data.annotations.scenes), _Annotations(trainer.data.validation)
    modules: dict[str, nn.Module] = {"geometry": prior}
    if neighbours is not None:
        modules["neighbours"] = neighbours
    if fresh:
        every = _Pairs.join(fit.rows)
        prior.fit_scale(every.numbers.to(device), every.predicates.to(device))
        if neighbours is not None:
            neighbours.fit_scale(every.numbers.to(device), every.labels.to(device))

    def loss(batch: list[_Pairs]) -> tuple[Tensor, int] | None:
        if not batch:
            return None
        x = _Pairs.join(batch).to(device)
        found = prior.nll(x.numbers, x.labels[x.pairs], x.at, x.predicates) / len(x.at)
        if neighbours is not None:
            found = found + neighbours.nll(x.places, x.numbers, x.pairs, x.labels)
        return found, len(x.at)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        for module in modules.values():
            module.eval()
        found = loss(held_out.rows)
        return {} if found is None else {"log-likelihood": -float(found[0])}

    def train_mode() -> None:
        for module in modules.values():
            module.train()

    return Task(
        "boxes",
        trainer.config.boxes,
        modules,
        lambda epoch: fit,
        loss,
        lambda batch: [each.name for each in batch],
        train_mode,
        validate,
        "log-likelihood",
        read=False,
    )


def triplets(trainer: Trainer, fresh: bool) -> Task:
    """Stage 1: ψ_c on annotated pairs of true boxes."""
    return _pairs(trainer, "triplets", BoxSource(), fresh)


def proposals(trainer: Trainer, fresh: bool) -> Task:
    """Stage 1b: ψ_c on pairs of a detector's boxes, real or simulated."""
    return _pairs(trainer, "proposals", _proposal_source(trainer), fresh)


def selection(trainer: Trainer, fresh: bool) -> Task:
    """Stage 2: P(X_sel), on the boxes that ψ_c was last trained on."""
    source = _proposal_source(trainer) if trainer.config.proposals.epochs else BoxSource()
    return _pairs(trainer, "selection", source, fresh)


STAGES: dict[str, Callable[[Trainer, bool], Task]] = {
    "backbone": backbone,
    "boxes": boxes,
    "triplets": triplets,
    "proposals": proposals,
    "selection": selection,
}


def _proposal_source(trainer: Trainer) -> BoxSource:
    data = trainer.data
    return BoxSource(data.detections, None if data.detections is not None else data.noise)


def _pairs(trainer: Trainer, name: str, source: BoxSource, fresh: bool) -> Task:
    model, config, data, device = trainer.model, trainer.config, trainer.data, trainer.device
    trainer.fill(source)
    selecting = name == "selection"
    unfitted = fresh and not {"triplets", "proposals"} & set(model.stages)
    if unfitted and model.features.reduction is not None and (config.pixels.reduce or config.pixels.crops):
        sample = trainer.region_sample(source)
        torch.manual_seed(config.seed)  # whatever was drawn before, with a cache or without
        model.features.fit(*sample)
    modules: dict[str, nn.Module] = {"features": model.features, "head": model.head}
    if selecting:
        modules = {"selector": model.selector}

    def loss(batch: list[Example]) -> tuple[Tensor, int] | None:
        used = [example for example in batch if len(example.target)]
        if not used:
            return None
        parts = [example.complete(trainer.regions, model.backbone).to(device) for example in used]
        inputs, target = PairInputs.join(parts), torch.cat([example.target for example in used]).to(device)
        if config.head.labels and not selecting:
            labels = torch.cat([torch.from_numpy(example.boxes.labels) for example in used]).to(device)
            return model.label_nll(inputs, labels), len(labels)
        if selecting:
            logit = model.selection_logit(inputs)
            return binary_cross_entropy_with_logits(logit, target.to(logit)), len(target)
        return model(inputs).nll(target).mean(), len(target)

    def train_mode() -> None:
        model.eval()
        for module in modules.values():
            module.train()

    def validate() -> dict[str, float]:
        found = recall(
            model,
            data.validation,
            source,
            trainer.regions,
            config.workers,
            config.seed,
            config.validation.k or None,
            Parts(selected=selecting),
        )
        return {"recall": (found["R@50"] + found["R@100"]) / 2, **found} if found else {}

    def examples(epoch: int) -> Examples:
        seed = (config.seed, name, epoch)
        return Examples(
            data.fit,
            "selection" if selecting else "triplets",
            source,
            config.sources,
            trainer.regions,
            seed,
            config.selector.nulls,
        )

    def names(batch: list[Example]) -> list[str]:
        return [example.scene.name for example in batch]

    return Task(name, getattr(config, name), modules, examples, loss, names, train_mode, validate, "recall")


class _Pictures(Dataset[tuple[Scene, Tensor]]):
    """Whole pictures, for the stage that trains the backbone."""

    def __init__(self, scenes: tuple[Scene, ...], pixels: PixelsConfig) -> None:
        self.scenes, self.pixels = scenes, pixels

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, at: int) -> tuple[Scene, Tensor]:
        return self.scenes[at], prepare_picture(self.scenes[at].open(), self.pixels)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """All ordered pairs of the true boxes of an image or, joined, of several; and the annotations among them."""

    name: str
    places: Float[Tensor, "N 7"]  # of the boxes
    labels: Int[Tensor, " N"]
    pairs: Int[Tensor, "B 2"]
    numbers: Float[Tensor, "B 39"]
    at: Int[Tensor, " M"]  # the pair of an annotation
    predicates: Int[Tensor, " M"]

    @classmethod
    def of(cls, scene: Scene) -> _Pairs:
        known = true_boxes(scene)
        n, pairs = len(known.boxes), ordered_pairs(len(known.boxes))
        boxes, labels = torch.from_numpy(known.boxes).float(), torch.from_numpy(known.labels)
        frames = torch.tensor(scene.frame, dtype=torch.float32).expand(n, 2)
        row = torch.zeros(n, n, dtype=torch.long)
        row[pairs[:, 0], pairs[:, 1]] = torch.arange(len(pairs))
        first, second = torch.from_numpy(known.pairs).unbind(-1)
        numbers, predicates = pair_numbers(boxes, frames, pairs), torch.from_numpy(known.triplets)[:, 1]
        return cls(scene.name, box_place(boxes, frames), labels, pairs, numbers, row[first, second], predicates)

    @classmethod
    def join(cls, parts: Sequence[_Pairs]) -> _Pairs:
        boxes = [0, *accumulate(len(each.labels) for each in parts)]
        pairs = [0, *accumulate(len(each.pairs) for each in parts)]
        return cls(
            "",
            torch.cat([each.places for each in parts]),
            torch.cat([each.labels for each in parts]),
            torch.cat([each.pairs + start for each, start in zip(parts, boxes, strict=False)]),
            torch.cat([each.numbers for each in parts]),
            torch.cat([each.at + start for each, start in zip(parts, pairs, strict=False)]),
            torch.cat([each.predicates for each in parts]),
        )

    def to(self, device: torch.device) -> _Pairs:
        columns = (self.places, self.labels, self.pairs, self.numbers, self.at, self.predicates)
        return _Pairs(self.name, *(x.to(device) for x in columns))


class _Annotations(Dataset[_Pairs]):
    """Images with an annotated pair."""

    def __init__(self, scenes: tuple[Scene, ...]) -> None:
        self.rows = [each for each in map(_Pairs.of, scenes) if len(each.at)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> _Pairs:
        return self.rows[at]


def _maps(net: Backbone, batch: list[tuple[Scene, Tensor]]) -> list[tuple[Scene, list[Tensor]]]:
    """Feature maps of pictures, those of one size together."""
    groups: dict[Any, list[int]] = {}
    for at, (_, picture) in enumerate(batch):
        groups.setdefault(picture.shape, []).append(at)
    found: list[tuple[Scene, list[Tensor]]] = []
    for members in groups.values():
        maps = net.feature_maps(torch.stack([batch[at][1] for at in members]))
        found += [(batch[at][0], [fmap[i : i + 1] for fmap in maps]) for i, at in enumerate(members)]
    return found
