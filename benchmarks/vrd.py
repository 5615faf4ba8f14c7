"""What a trained run costs on real images: learning, inference with true boxes, ranking; exact ranking against dense.

    python benchmarks/vrd.py runs/vrd-pixels runs/vrd-lu/plain-seed-0 --data data/vrd --csv results/vrd-speed.csv

Beside the paper's 0.21 s for backpropagation on an image and 0.57 s for inference with gold proposals, on its GPU.
Of each run, on the same images of VRD, in this process:

- learning: an image's annotated pairs, forward, loss, backward and the optimiser's step, 8 images at once as in
  training, features from memory; and how long an epoch of the training images would take so.
- features: opening the picture, backbone, RoIAlign (nothing for a run that sees no pixels).
- heads and ranking: all ordered pairs of the true boxes, the best 100 triplets with prior and P(X_sel), k = 1.
- exact against dense: the trained tensors of these images, top 100, with ψ_u (exponent 1); the dense way is the
  faster of the two compiled ones of benchmarks/ranking.py. `same` is the share of entries both found.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ranking import TOP, Case, compare

from polyadic import Detections, TripletPrior
from polyadic.config.schema import StageConfig
from polyadic.experiments.runs import OpenRun, open_run
from polyadic.model.features import PairInputs
from polyadic.model.scoring import ScoredBlock, ScoredPairs
from polyadic.training.examples import BoxSource, Example, Examples
from polyadic.training.loop import make_optimiser
from polyadic.training.region_cache import FeatureCache

PAPER = {"learning": 0.21, "inference": 0.57}
BATCH = 8


def clock() -> float:
    return time.perf_counter()


def learning(run: OpenRun, examples: list[Example], inputs: list[PairInputs]) -> float:
    """Seconds per image: the median over batches."""
    model = run.model.train()
    parameters = [*model.features.parameters(), *model.head.parameters()]
    still = StageConfig(optimiser="adamw", rate=1e-9)  # the model stays as it is
    optimiser = make_optimiser(still, [{"params": parameters, "factor": 1.0}])
    times = []
    for at in range(0, len(inputs) - BATCH + 1, BATCH):
        start = clock()
        together = PairInputs.join(inputs[at : at + BATCH])
        target = torch.cat([example.target for example in examples[at : at + BATCH]])
        optimiser.zero_grad(set_to_none=True)
        if run.config.head.labels:
            labels = torch.cat([torch.from_numpy(example.boxes.labels) for example in examples[at : at + BATCH]])
            model.label_nll(together, labels).backward()
        else:
            model(together).nll(target).mean().backward()
        optimiser.step()
        times.append((clock() - start) / BATCH)
    model.eval()
    return statistics.median(times)


def inference(run: OpenRun, count: int) -> tuple[dict[str, float], list[ScoredBlock]]:
    """Median seconds per image of each part, and the scores of all pairs."""
    parts: dict[str, list[float]] = {"features": [], "heads": [], "ranking": []}
    kept = []
    scenes = run.data.scenes[:count]
    examples = Examples(
        scenes, "everything", BoxSource(), sources=run.config.sources, regions=run.regions, seed=(0, "benchmark", 0)
    )
    for at in range(len(scenes)):
        start = clock()
        inputs = examples[at].complete(run.regions, run.model.backbone)
        parts["features"].append(clock() - start)
        start = clock()
        block = run.model.score_block(inputs)
        parts["heads"].append(clock() - start)
        if len(block.pairs):
            scene = scenes[at]
            ones = np.ones(len(scene.boxes))
            detections = Detections(scene.name, scene.boxes, scene.labels, ones, scene.frame)
            scores = ScoredPairs(run.model, detections, inputs, kept=(block,))
            start = clock()
            scores.rank(1, TOP)
            parts["ranking"].append(clock() - start)
            kept.append(block)
    return {name: statistics.median(times) for name, times in parts.items()}, kept


def against_dense(kept: list[ScoredBlock], prior: TripletPrior) -> tuple[list[float], float]:
    """dense / exact of each image, and the share of entries that both found."""
    cases = [Case("trained", "VRD", None, 0, [x.float() for x in scores.joint().factors], prior) for scores in kept]
    rows = [compare(case) for case in cases]
    return [row["ratio"] for row in rows], statistics.mean(row["same"] / TOP for row in rows)


def opened(folder: Path, split: str, root: Path) -> OpenRun:
    """Whose features are computed, never read from a cache."""
    run = open_run(folder, split, root=root)
    if run.regions is None:
        return run
    return replace(run, regions=replace(run.regions, cache=FeatureCache(run.regions.cache.folder, 0)))


def measure(folder: Path, root: Path, count: int) -> dict[str, object]:
    run = opened(folder, "train", root)
    scenes = [scene for scene in run.data if len(scene.relations)]
    few = scenes[: 5 * BATCH]
    examples = Examples(
        few, "triplets", BoxSource(), sources=run.config.sources, regions=run.regions, seed=(0, "benchmark", 0)
    )
    made = [example for example in (examples[at] for at in range(len(few))) if len(example.target)]
    inputs = [example.complete(run.regions, run.model.backbone) for example in made]
    per_image = learning(run, made, inputs)
    tested = opened(folder, "test", root)
    inference(tested, 4)  # compiles
    parts, kept = inference(tested, count)
    assert isinstance(tested.model.prior, TripletPrior)
    ratios, same = against_dense(kept[: count // 4], tested.model.prior)
    whole = sum(parts.values())
    return {
        "run": folder.name,
        "sources": "+".join(run.config.sources),
        "rank": kept[0].joint().rank,
        "pairs": statistics.median(len(each.pairs) for each in kept),
        "learning_ms": 1e3 * per_image,
        "epoch_s": per_image * len(scenes),
        **{f"{name}_ms": 1e3 * value for name, value in parts.items()},
        "inference_ms": 1e3 * whole,
        "ranking_share": parts["ranking"] / whole,
        "dense_ratio_median": statistics.median(ratios),
        "dense_ratio_least": min(ratios),
        "dense_ratio_most": max(ratios),
        "same": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=80)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = [measure(folder, args.data, args.images) for folder in args.runs]
    for row in rows:
        print(
            ", ".join(
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    print(f"the paper, on its GPU: learning {PAPER['learning']} s, inference {PAPER['inference']} s per image")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
