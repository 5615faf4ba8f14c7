"""Ranked triplets of many images: one pass of the network each, then a ranking for each setting asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import FREE_K, Protocol, Recall, Recalls
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import PairScores, Parts
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.training.examples import BoxSource, Example
from polyadic.training.region_cache import Regions
from polyadic.training.stages import score_scenes

Setting = tuple[int | None, Parts]  # k triplets per pair (None: any number), and the parts of f_spo that count


def predict_scenes(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    settings: Sequence[Setting],
    top: int = 100,
    workers: int = 0,
    text: str = "predicting",
) -> Iterator[tuple[Scene, list[Relations]]]:
    """Each scene with its predictions, one per setting. A detector's labels and confidences go along."""
    seed = model.config.seed  # of simulated boxes: those that training validated on
    for example, scores in score_scenes(model, scenes, source, regions, workers, seed, text):
        found = _rank_each(model, example, scores, settings, top, told=not source.true)
        yield example.scene, [found[setting] for setting in settings]


def predict_split(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    settings: Sequence[Setting],
    top: int = 100,
    workers: int = 0,
) -> list[list[Relations]]:
    """All predictions of each setting, in the order of the scenes."""
    lists: list[list[Relations]] = [[] for _ in settings]
    for _, found in predict_scenes(model, scenes, source, regions, settings, top, workers):
        for held, each in zip(lists, found, strict=True):
            held.append(each)
    return lists


def recalls_of(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    asked: Sequence[tuple[Protocol, Parts]],
    workers: int = 0,
    text: str = "predicting",
) -> list[Recalls]:
    """Recall under each protocol, ranked for its k; predictions are forgotten as soon as they are counted."""
    evaluators = [Evaluator([protocol], len(model.vocabulary.predicates)) for protocol, _ in asked]
    settings = [(protocol.k, parts) for protocol, parts in asked]
    top = max(max(protocol.tops) for protocol, _ in asked)
    for scene, found in predict_scenes(model, scenes, source, regions, settings, top, workers, text=text):
        for evaluator, each in zip(evaluators, found, strict=True):
            evaluator.update(scene, each)
    return [evaluator.result() for evaluator in evaluators]


def free_ks(
    model: RelationModel,
    scenes: Sequence[Scene],
    source: BoxSource,
    regions: Regions | None,
    asked: Sequence[tuple[Protocol, Parts]],
    workers: int = 0,
) -> list[int | None]:
    """Free k for each protocol and parts, chosen on held-out scenes; unlike `choose_k` it ranks anew for each k."""
    swept = [(sweep(protocol, k), parts) for protocol, parts in asked for k in FREE_K]
    text = "choosing k"
    tables = recalls_of(model, scenes, source, regions, swept, workers, text)
    return [best_k(tables[at : at + len(FREE_K)]) for at in range(0, len(tables), len(FREE_K))]


def sweep(protocol: Protocol, k: int | None) -> Protocol:
    return protocol.change(k=k, subset="all", tops=(50, 100))


def best_k(tables: Sequence[Iterable[Recall]]) -> int | None:
    """The k of FREE_K of largest summed recall, the smallest of equals; `tables` are theirs."""
    score = {k: sum(row.recall for row in table) for k, table in zip(FREE_K, tables, strict=True)}
    return max(FREE_K, key=lambda k: (score[k], k is not None, -(k or 0)))


def _rank_each(
    model: RelationModel, example: Example, scores: PairScores, settings: Sequence[Setting], top: int, told: bool
) -> dict[Setting, Relations]:
    """From the largest k down: a k that no pair of the list before exceeds changes nothing."""
    found: dict[Setting, Relations] = {}
    for parts in dict.fromkeys(parts for _, parts in settings):
        ks = {k for k, other in settings if other == parts}
        last: Relations | None = None
        for k in sorted(ks, key=lambda k: -(k or math.inf)):
            if last is None or (k or math.inf) < _most(last):
                last = model.predictions(example.scene, scores, k, top, parts, example.boxes.labels)
                if told:
                    last = replace(last, labels=example.boxes.labels, confidences=example.boxes.scores)
            found[k, parts] = last
    return found


def _most(found: Relations) -> int:
    """The largest number of predictions of one pair."""
    keys = found.pairs[:, 0] * len(found.boxes) + found.pairs[:, 1]
    return int(np.unique(keys, return_counts=True)[1].max(initial=0))
