"""Models of boxes and labels scored on proposals: each ingredient changed in turn, several models as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.evaluation import Evaluator
from polyadic.evaluation.misses import FATES, MissCounter
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.table1 import TASKS, TOPS
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, PairScores, Parts
from polyadic.structures.scenes import Dataset, Scene
from polyadic.training.examples import BoxSource, Example
from polyadic.training.stages import annotated_loss, score_scenes

KS = (1, 10)
FULL, MEAN = "full", "mean of the seeds' models"
Fit = Literal["baseline", "plain", "cross-fitted", "held-out"]
Group = tuple[Sequence[RelationModel], Dataset]  # models, taken as one, and the images that they are scored on


@dataclass(frozen=True)
class Variant:
    """The model with one ingredient other than it should be."""

    name: str
    training: Mapping[str, Any] = field(default_factory=dict)  # config keys of another training
    ranking: Mapping[str, Any] = field(default_factory=dict)  # config keys of another ranking
    parts: Parts = ALL


def variants(config: Config) -> list[Variant]:
    """What each ingredient is worth: one is changed, the others stay."""
    true_boxes = {f"triplets.{each}": value for each, value in asdict(config.proposals).items()}
    return [
        Variant(FULL),
        Variant("labels as detected", parts=Parts(relabel=False)),
        Variant("no dedup", parts=Parts(dedup=False)),
        Variant("no P(X_sel)", parts=Parts(selected=False)),
        Variant("no prior", parts=Parts(prior=False)),
        Variant("prior^0.5", ranking={"ranking.prior": 0.5}),
        Variant("prior^1", ranking={"ranking.prior": 1.0}),
        Variant("confidences^1", ranking={"ranking.boxes": 1.0}),
        Variant("NMS at 0.7", ranking={"ranking.nms": 0.7}),
        *(Variant(f"rank {rank}", training={"head.rank": rank}) for rank in (1, 2, 5)),
        Variant(
            "trained on true boxes",
            training={**true_boxes, "proposals.epochs": 0},
            ranking={"ranking.boxes": 4.0, "ranking.prior": 0.25},
        ),
    ]


@dataclass(frozen=True)
class Row:
    """A recall."""

    what: str  # the variant
    fit: Fit
    split: str
    seed: int | None  # None: of several models
    task: str
    k: int
    subset: str
    N: int
    recall: float
    mean_recall: float


@dataclass(frozen=True)
class FateRow:
    """Where the truths go (relationship detection)."""

    fit: Fit
    seed: int | None
    k: int
    N: int
    fate: str
    truths: int
    share: float


@dataclass(frozen=True)
class Scores:
    """Of one or more models."""

    rows: tuple[Row, ...]
    fates: tuple[FateRow, ...] = ()
    loss: float | None = None  # -log ψ_c of annotated pairs, the mean, where there are some


@dataclass(frozen=True, eq=False)
class Scorer:
    """What all scores have in common."""

    seen: Any  # [M, 3], the training triplets, for zero-shot

    def score(
        self,
        groups: Sequence[Group],
        source: BoxSource,
        fit: Fit,
        seed: int | None,
        asked: Sequence[Variant] = (Variant(FULL),),
    ) -> Scores:
        """Each group on its own images, all counted together."""
        models, data = groups[0]
        n = len(data.vocabulary.predicates)
        counters = {(each.name, k): Evaluator(protocols_of(k), n, self.seen) for each in asked for k in KS}
        missed = {k: MissCounter(protocols_of(k)[0], self.seen) for k in KS}
        loss, pairs = 0.0, 0
        for models, data in groups:
            for variant, example, scores in self._scored(models, data.scenes, source, asked):
                for k in KS:
                    found = models[0].predictions(
                        example.scene, scores, k, max(TOPS), variant.parts, example.boxes.labels
                    )
                    counters[variant.name, k].update(example.scene, found)
                    if variant.name == FULL:
                        missed[k].update(example.scene, found, example.boxes.boxes, example.boxes.labels)
                if variant is asked[0]:
                    loss, pairs = loss + annotated_loss(example, scores), pairs + len(example.boxes.pairs)
        rows = [
            Row(
                name if len(models) == 1 else MEAN,
                fit,
                data.split,
                seed,
                *place_of(row.protocol),
                row.top,
                row.recall,
                row.mean_recall,
            )
            for (name, _), counter in counters.items()
            for row in counter.result()
        ]
        fates = [
            FateRow(fit, seed, k, row.top, fate, count, share)
            for k, counter in missed.items()
            for row in counter.result()
            for fate, count, share in zip(FATES, row.counts, row.shares, strict=True)
            if row.truths
        ]
        return Scores(tuple(rows), tuple(fates), loss / pairs if pairs else None)

    def _scored(
        self, models: Sequence[RelationModel], scenes: Sequence[Scene], source: BoxSource, asked: Sequence[Variant]
    ) -> Iterator[tuple[Variant, Example, PairScores]]:
        """One pass of the networks for all variants that keep the same boxes; the first model ranks."""
        before = [model.config for model in models]
        wanted = [(variant, before[0].change(**variant.ranking)) for variant in asked]
        try:
            for overlap in dict.fromkeys(config.ranking.nms for _, config in wanted):
                for model, config in zip(models, before, strict=True):
                    model.config = config.change(**{"ranking.nms": overlap})
                same = [(variant, config) for variant, config in wanted if config.ranking.nms == overlap]
                passes = [score_scenes(model, scenes, source, None) for model in models]
                for found in zip(*passes, strict=True):
                    together = mean_scores([scores for _, scores in found])
                    for variant, config in same:
                        models[0].config = config
                        yield variant, found[0][0], together
        finally:
            for model, config in zip(models, before, strict=True):
                model.config = config


def mean_scores(scores: Sequence[PairScores]) -> PairScores:
    """Several models as one: the mean of their ψ_c, which is a CP tensor of all their components, and of P(X_sel)."""
    if len(scores) == 1:
        return scores[0]
    selected = None
    if scores[0].log_selected is not None:
        parts = [each.log_selected for each in scores if each.log_selected is not None]
        selected = torch.stack(parts).logsumexp(0) - torch.tensor(float(len(parts))).log()
    return replace(scores[0], cp=CPTensor.mean([each.cp for each in scores]), log_selected=selected)


def protocols_of(k: int) -> list[Protocol]:
    """Relationship detection first."""
    base = get_protocol("lu2016").change(k=k, k_unit="triplet", tops=TOPS)
    return [base.change(task=task, subset=subset) for task in TASKS for subset in ("all", "zero-shot")]


def place_of(protocol: Protocol) -> tuple[str, int, str]:
    """Task, k and subset, as a row has them."""
    assert protocol.k is not None, "one of KS"
    return protocol.task, protocol.k, protocol.subset
