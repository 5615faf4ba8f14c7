"""How good the model is on held-out images, after each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from polyadic.evaluation import Evaluator, get_protocol
from polyadic.model import ALL, PairScores, Parts, RelationModel
from polyadic.scenes import Scene
from polyadic.training.examples import BoxSource, Example, Examples
from polyadic.training.loading import load_batches
from polyadic.training.regions import Regions
from polyadic.training.watch import Silent, Stop, Watcher


def score_scenes(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    workers: int = 0,
    seed: int = 0,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    text: str = "scores",
) -> Iterator[tuple[Example, PairScores]]:
    """All ordered pairs of each image, in order, as at test time: overlapping detections are left out."""
    source = replace(source, nms=model.config.ranking.nms)
    examples = Examples(scenes, "everything", source, model.config.sources, regions, (seed, "validation", 0))
    watcher = watcher or Silent()
    model.eval()
    watcher.begin(text, len(scenes))
    for done, (example,) in enumerate(load_batches(examples, [[at] for at in range(len(scenes))], workers), 1):
        if stop is not None:
            stop.check()
        inputs = example.complete(regions, model.backbone).to(model.device)
        confidences = None if source.true else torch.from_numpy(example.boxes.scores)
        yield example, model.score(inputs, confidences)
        watcher.move(done)
    watcher.end()


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
    watcher: Watcher | None = None,
    stop: Stop | None = None,
) -> dict[str, float]:
    """R@50 and R@100 (lu2016): phrase classification on true boxes, else relationship detection; and the held-out loss.

    The loss is that of annotated pairs: -log ψ_c of their triplets. Without relations there are no numbers.
    """
    task = "phrase-classification" if source.true else "relationship"
    protocol = get_protocol("lu2016").change(task=task, k=k, tops=(50, 100))
    evaluator = Evaluator([protocol], len(model.vocabulary.predicates))
    loss, rows = 0.0, 0
    for example, scores in score_scenes(model, scenes, source, regions, workers, seed, watcher, stop, "validation"):
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
