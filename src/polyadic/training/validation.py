"""Score held-out images as at test time: the losses and recalls that choose an epoch (Implementation details)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from polyadic import progress
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.model.features import PairInputs
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredPairs, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.training import ranks
from polyadic.training.examples import BoxSource, Example, Examples, number_of
from polyadic.training.loading import load_batches
from polyadic.training.pairs import selection_pairs
from polyadic.training.region_cache import Regions

_TOGETHER = 256  # pairs of several images that share a pass


def score_scenes(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    *,
    regions: Regions | None = None,
    workers: int = 0,
    seed: int = 0,
    text: str = "scores",
) -> Iterator[tuple[Example, ScoredPairs]]:
    """Score all ordered pairs of each image, in order, as at test time: overlapping detections are suppressed.

    Images of few pairs share passes through the network, whose weights are read once for all of them.
    """
    source = replace(source, nms=model.config.ranking.nms)
    examples = Examples(
        scenes,
        "everything",
        source,
        sources=model.config.sources,
        regions=regions,
        seed=(seed, "validation", 0),
        classes=model.named_classes,
        witnesses=model.config.evidence.witnesses,
        optional=model.config.data.pictures == "optional",
    )
    model.eval()
    batches = load_batches(examples, [[at] for at in range(len(scenes))], workers)
    with model.sharing_casts():
        group: list[tuple[Example, PairInputs]] = []
        for (example,) in progress.track(batches, text, len(scenes)):
            inputs = model.add_context(example.complete(regions, model.backbone).to(model.device))
            if group and sum(len(each.pairs) for _, each in group) + len(inputs.pairs) > _TOGETHER:
                yield from _score(model, group, source)
                group = []
            group.append((example, inputs))
        yield from _score(model, group, source)


def _score(
    model: RelationModel, group: Sequence[tuple[Example, PairInputs]], source: BoxSource
) -> Iterator[tuple[Example, ScoredPairs]]:
    """Score the pairs of several images in one pass."""
    if not group:
        return
    scores = None if source.true else torch.from_numpy(np.concatenate([example.boxes.scores for example, _ in group]))
    block, start = model.score_block(PairInputs.join([inputs for _, inputs in group]), scores), 0
    for example, inputs in group:
        boxes, scene = example.boxes, example.scene
        detections = Detections(scene.name, boxes.boxes, boxes.labels, boxes.scores, scene.frame)
        part = replace(block.take(slice(start, start + len(inputs.pairs))), pairs=inputs.pairs)
        start += len(inputs.pairs)
        yield example, ScoredPairs(model, detections, inputs, kept=(part,))


@torch.no_grad()
def held_out_metrics(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    *,
    regions: Regions | None,
    workers: int,
    seed: int,
    k: int | None,
    selection: bool,
) -> dict[str, float]:
    """Compute the loss, with `selection` also that of P(X_sel), and R@50 and R@100 (lu2016).

    The loss is -log ψ_c per annotated triplet. Recall is of phrase classification on true boxes, else of relationship
    detection. Without annotated relations the result is empty.
    """
    task = "phrase-classification" if source.true else "relationship"
    protocol = get_protocol("lu2016").change(task=task, k=k, tops=(50, 100))
    evaluator, terms = Evaluator([protocol], len(model.vocabulary.predicates)), ScoreTerms(selected=selection)
    losses = {"loss": _Mean(), "selection loss": _Mean()}
    mine = ranks.share(scenes)
    scored = score_scenes(model, mine, source, regions=regions, workers=workers, seed=seed, text="validation")
    for example, scores in scored:
        evaluator.update(example.scene, scores.rank(k, 100, terms=terms))
        losses["loss"].add(annotated_loss(example, scores), len(example.boxes.pairs))
        if selection:
            rng = np.random.default_rng(number_of(seed, "selection", "validation", example.scene.name))
            losses["selection loss"].add(*selection_loss(example, scores, rng))
    (evaluator, losses), *others = ranks.gather((evaluator.flushed(), losses))
    for theirs, more in others:
        evaluator.merge(theirs)
        for name, loss in losses.items():
            loss.add(more[name].total, more[name].rows)
    means = {name: loss.total / loss.rows for name, loss in losses.items() if loss.rows}
    return {**means, **{f"R@{row.top}": row.recall for row in evaluator.result() if row.truths}}


@dataclass
class _Mean:
    """A running mean."""

    total: float = 0.0
    rows: int = 0

    def add(self, total: float, rows: int) -> None:
        self.total, self.rows = self.total + total, self.rows + rows


def annotated_loss(example: Example, scores: ScoredPairs) -> float:
    """Sum -log ψ_c over an image's annotated pairs."""
    if not len(example.boxes.pairs):
        return 0.0
    (block,) = scores.blocks()
    at = _rows_of(example.boxes.pairs, scores).to(block.pairs.device)
    triplets = torch.from_numpy(example.boxes.triplets).to(at.device)
    return float(block.cp[at].nll(triplets).cpu().double().sum())  # MPS has no float64


def selection_loss(example: Example, scores: ScoredPairs, rng: np.random.Generator) -> tuple[float, int]:
    """Sum the binary cross-entropy of P(X_sel) over pairs that are drawn as in training; also return their number."""
    pairs, annotated = selection_pairs(example.boxes, rng, scores.model.config.selector.nulls)
    (block,) = scores.blocks()
    if not len(pairs) or block.log_selected is None:
        return 0.0, 0
    log = block.log_selected.cpu().double()[_rows_of(pairs, scores)]
    log_other = torch.log(-torch.expm1(log.clamp_max(-1e-12)))
    return -float(torch.where(torch.from_numpy(annotated), log, log_other).sum()), len(pairs)


def _rows_of(pairs: Int[np.ndarray, "M 2"], scores: ScoredPairs) -> Int[Tensor, " M"]:
    """Find each pair among the scored ones."""
    place = {tuple(pair): at for at, pair in enumerate(scores.pairs.tolist())}
    return torch.tensor([place[tuple(pair)] for pair in pairs.tolist()], dtype=torch.long)
