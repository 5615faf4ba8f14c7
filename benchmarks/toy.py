"""The synthetic world's own numbers: what its true distribution reaches, and the best possible rank 1.

    python benchmarks/toy.py --csv results/toy-truth.csv   # 20 seconds

Recall of the true joint distribution times the true P(X_sel) on the 200 test scenes (`lu2016`, phrase classification).
The loss, -log P(annotated triplet | boxes) in nats, on the held-out scenes of `polyadic ablate toy`: of the true
distribution, and of the product of its three marginals, which is the best rank 1 for each pair.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from polyadic import load_config
from polyadic.datasets.toy.annotator import truth
from polyadic.experiments.demo import TRUTH, truth_rows
from polyadic.experiments.results import Results, Row
from polyadic.experiments.runs import validation_scenes
from polyadic.training.examples import load_split
from polyadic.training.pairs import true_boxes

RANK_1 = "the best possible rank 1"


def losses() -> dict[str, float]:
    joint, product = [], []
    for scene in validation_scenes(load_config("toy")):
        known = true_boxes(scene)
        if not len(known.pairs):
            continue
        tensors = truth(scene, known.pairs)  # [M, S, P, O]
        rows = np.arange(len(tensors))
        s, p, o = known.triplets.T
        joint.append(tensors[rows, s, p, o])
        marginals = tensors.sum((2, 3))[rows, s], tensors.sum((1, 3))[rows, p], tensors.sum((1, 2))[rows, o]
        product.append(np.prod(marginals, axis=0))
    return {name: float(-np.log(np.concatenate(some)).mean()) for name, some in ((TRUTH, joint), (RANK_1, product))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = truth_rows(load_split(load_config("toy"), "test").scenes)
    rows += [Row(what=name, dataset="toy", split="validation", loss=loss) for name, loss in losses().items()]
    for row in rows:
        value = f"{row.recall:.2f} (k = {row.k}, R@{row.N})" if row.recall is not None else f"{row.loss:.3f} nats"
        print(f"{row.what}: {value}")
    if options.csv:
        Results(tuple(rows)).write(options.csv)


if __name__ == "__main__":
    main()
