"""The synthetic world's own numbers: what its true distribution reaches, and the best possible rank 1.

    python benchmarks/toy.py --csv results/toy-truth.csv   # a minute

Recall on the 200 test scenes (`lu2016`, phrase classification) of the true joint distribution times the true P(X_sel);
at N = 20 also of the product of the true marginals, which is the best rank 1 for each pair, and without P(X_sel).
The loss, -log P(annotated triplet | boxes) in nats, of the true distribution and of that product: on the test scenes,
and on the held-out ones of `polyadic ablate toy`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from polyadic import load_config
from polyadic.datasets.toy.annotator import selected, truth
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.demo import TRUTH, best_triplets, truth_rows
from polyadic.experiments.results import FREE, Results, Row, recall_row
from polyadic.experiments.runs import validation_scenes
from polyadic.structures.scenes import Scene
from polyadic.training.examples import load_split
from polyadic.training.pairs import true_boxes

RANK_1 = "the best possible rank 1"
ALIKE = "the exact truth, every pair alike"


def product_of_marginals(tensors: np.ndarray) -> np.ndarray:
    """[M, S, P, O] of the same shape."""
    product: np.ndarray = np.einsum("ms,mp,mo->mspo", tensors.sum((2, 3)), tensors.sum((1, 3)), tensors.sum((1, 2)))
    return product


def losses(scenes: Iterable[Scene]) -> dict[str, float]:
    joint, product = [], []
    for scene in scenes:
        known = true_boxes(scene)
        if not len(known.pairs):
            continue
        tensors = truth(scene, known.pairs)
        at = (np.arange(len(tensors)), *known.triplets.T)
        joint.append(tensors[at])
        product.append(product_of_marginals(tensors)[at])
    return {name: float(-np.log(np.concatenate(some)).mean()) for name, some in ((TRUTH, joint), (RANK_1, product))}


def short_lists(scenes: Sequence[Scene]) -> list[Row]:
    """Recall at 20 and loss of the three rankings on the test scenes."""
    protocol = get_protocol("lu2016").change(task="phrase-classification", tops=(20,))
    evaluators = {name: Evaluator([protocol], 12) for name in (TRUTH, RANK_1, ALIKE)}
    for scene in scenes:
        pairs = np.argwhere(~np.eye(len(scene.boxes), dtype=bool))
        joint, chosen = truth(scene, pairs), selected(scene, pairs)[:, None, None, None]
        scores = {TRUTH: joint * chosen, RANK_1: product_of_marginals(joint) * chosen, ALIKE: joint}
        for name, score in scores.items():
            evaluators[name].update(scene, best_triplets(scene, pairs, score, protocol))
    loss = losses(scenes)
    loss[ALIKE] = loss[TRUTH]
    return [
        recall_row(name, row, dataset="toy", split="test", k=FREE, loss=loss[name])
        for name, evaluator in evaluators.items()
        for row in evaluator.result()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    config = load_config("toy")
    test = load_split(config, "test").scenes
    held_out = losses(validation_scenes(config))
    rows = [*truth_rows(test), *short_lists(test)]
    rows += [Row(what=name, dataset="toy", split="validation", loss=loss) for name, loss in held_out.items()]
    for row in rows:
        recall = "" if row.recall is None else f" R@{row.N} {row.recall:.2f} (k = {row.k})"
        print(f"{row.what}:{recall}{'' if row.loss is None else f' {row.loss:.3f} nats ({row.split})'}")
    if options.csv:
        Results(tuple(rows)).write(options.csv)


if __name__ == "__main__":
    main()
