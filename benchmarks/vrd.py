"""What a trained run costs on real images: learning, inference with true boxes, ranking; exact ranking against dense.

    python benchmarks/vrd.py runs/vrd-pixels runs/vrd-lu/plain-seed-0 --data data/vrd --csv results/vrd-speed.csv

Beside the paper's 0.21 s for backpropagation on an image and 0.57 s for inference with gold proposals, on its GPU.
Of each run, on the same images of VRD, in this process:

- learning: an image's annotated pairs, forward, loss, backward, clipping and a step of the run's optimiser, 8 images at
  once, features from memory; how long an epoch of the training images would take so; and the share of the loss alone,
  forward and backward of `nll` from the scores on.
- features: opening the picture, backbone, RoIAlign (nothing for a run that sees no pixels).
- heads and ranking: all ordered pairs of the true boxes, the best 100 triplets with prior and P(X_sel), k = 1.
- exact and dense: the best 100 with any k, by `ScoredPairs.rank` and as the paper does, which forms the tensor of every
  pair and multiplies it by the prior (in torch, from the same scores). `inference_exact` and `inference_dense` are
  features, heads and this. `dense_same` is the least share of entries that both found.
- dense_ratio: the trained tensors of a quarter of these images, CPU time of one thread, top 100, with ψ_u (exponent 1);
  the dense way is the faster of the two compiled ones of benchmarks/ranking.py. `same` is the share of entries both
  found.
- memory: the peak in MB of 2^20 bytes beyond scores and prior, each in a process of its own, of random scores N(0, 1)
  of the run's rank for 20, 50 and 100 boxes (380, 2,450, 9,900 pairs): the paper's way, the compiled dense one, which
  stores no tensor, and exact ranking. `whole` is computed: the tensors of all pairs at once in float32.

Rows of other runs in the CSV file stay; columns that they lack are empty.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ranking import SIZES, TOP, Case, Dense, compare, factors, sparse_prior

from polyadic import CPTensor, Detections, TripletPrior, rank_relations
from polyadic.experiments.runs import OpenRun, open_run
from polyadic.model.features import PairInputs
from polyadic.model.scoring import ALL, ScoredBlock, ScoredPairs, ScoreTerms
from polyadic.training.examples import BoxSource, Example, Examples
from polyadic.training.loop import make_optimiser
from polyadic.training.region_cache import FeatureCache

PAPER = {"learning": 0.21, "inference": 0.57}
BATCH = 8
BOXES = (20, 50, 100)
WAYS = ("pairwise", "compiled", "exact")
ANY_K = ScoreTerms(dedup=False)  # as the dense way


def clock() -> float:
    return time.perf_counter()


def learning(run: OpenRun, examples: list[Example], inputs: list[PairInputs]) -> tuple[float, float]:
    """Seconds per image, and those of the loss alone (NaN for a head of labels): medians over batches."""
    model = run.model.train()
    parameters = [*model.features.parameters(), *model.head.parameters()]
    stage = replace(run.config.triplets, rate=1e-9)  # the model stays as it is
    optimiser = make_optimiser(stage, [{"params": parameters, "factor": 1.0}])
    steps, losses = [], []
    for at in range(0, len(inputs) - BATCH + 1, BATCH):
        start = clock()
        together = PairInputs.join(inputs[at : at + BATCH])
        target = torch.cat([example.target for example in examples[at : at + BATCH]])
        optimiser.zero_grad(set_to_none=True)
        if run.config.head.labels:
            labels = torch.cat([torch.from_numpy(example.boxes.labels) for example in examples[at : at + BATCH]])
            model.label_nll(together, labels).backward()
        else:
            cp = model(together)
            cp.nll(target).mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, stage.clip)
        optimiser.step()
        steps.append((clock() - start) / BATCH)
        if not run.config.head.labels:
            scores = CPTensor(*(factor.detach().requires_grad_() for factor in cp.factors))
            start = clock()
            scores.nll(target).mean().backward()
            losses.append((clock() - start) / BATCH)
    return statistics.median(steps), statistics.median(losses or [math.nan])


def learning_costs(folder: Path, root: Path) -> dict[str, object]:
    """Open the run for training, and drop it again: weights, gradients and momenta may take gigabytes."""
    run = opened(folder, "train", root)
    scenes = [scene for scene in run.data if len(scene.relations)]
    few = scenes[: 5 * BATCH]
    examples = Examples(
        few, "triplets", BoxSource(), sources=run.config.sources, regions=run.regions, seed=(0, "benchmark", 0)
    )
    made = [example for example in (examples[at] for at in range(len(few))) if len(example.target)]
    inputs = [example.complete(run.regions, run.model.backbone) for example in made]
    step, loss = learning(run, made, inputs)
    return {
        "learning_ms": 1e3 * step,
        "epoch_s": step * len(scenes),
        "loss_ms": "" if math.isnan(loss) else 1e3 * loss,
        "loss_share": "" if math.isnan(loss) else loss / step,
    }


def inference(run: OpenRun, count: int) -> tuple[dict[str, float], list[ScoredBlock], float]:
    """Median seconds per image of each part, the scores of all pairs, and how much exact and dense agree."""
    parts: dict[str, list[float]] = {"features": [], "heads": [], "ranking": [], "exact": [], "dense": []}
    kept, same = [], [1.0]
    scenes = run.data.scenes[:count]
    examples = Examples(
        scenes, "everything", BoxSource(), sources=run.config.sources, regions=run.regions, seed=(0, "benchmark", 0)
    )
    for at, scene in enumerate(scenes):
        start = clock()
        inputs = examples[at].complete(run.regions, run.model.backbone)
        parts["features"].append(clock() - start)
        start = clock()
        block = run.model.score_block(inputs)
        parts["heads"].append(clock() - start)
        if not len(block.pairs):
            continue
        ones = np.ones(len(scene.boxes))
        detections = Detections(scene.name, scene.boxes, scene.labels, ones, scene.frame)
        scores = ScoredPairs(run.model, detections, inputs, kept=(block,))
        start = clock()
        scores.rank(1, TOP)
        parts["ranking"].append(clock() - start)
        start = clock()
        exact = scores.rank(None, TOP, terms=ANY_K)
        parts["exact"].append(clock() - start)
        dense = Dense(case_of(run, block))
        start = clock()
        found = dense.pairwise()
        parts["dense"].append(clock() - start)
        numbers = {pair: at for at, pair in enumerate(map(tuple, block.pairs.tolist()))}
        rows = [numbers[tuple(pair)] for pair in exact.pairs.tolist()]
        places = np.ravel_multi_index((rows, *exact.triplets.T), (len(block.pairs), *run.model.vocabulary.sizes))
        same.append(len(np.intersect1d(places, found)) / len(found))
        kept.append(block)
    return {name: statistics.median(times) for name, times in parts.items()}, kept, min(same)


def case_of(run: OpenRun, block: ScoredBlock) -> Case:
    """What `rank` hands to the ranking."""
    config = run.model.config.ranking
    scores = [x.float() for x in block.joint().factors]
    selected = block.log_pair(ALL, config.selected)
    return Case("trained", "VRD", None, 0, scores, run.model.prior, config.prior, selected)


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


def peak_mb(way: str, rank: int, boxes: int) -> float:
    """Peak memory of one ranking, beyond the scores, the prior and what a ranking of two pairs leaves behind."""
    case = Case("random", "VRD", 1.0, 0, factors(boxes * (boxes - 1), rank, SIZES["VRD"], 1.0), sparse_prior("VRD"))
    few = replace(case, factors=[x[:2] for x in case.factors])
    rankings = [ranking_of(way, each) for each in (few, case)]
    rankings[0]()  # compiles
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status_kb("VmRSS")
    rankings[1]()
    return (status_kb("VmHWM") - before) / 1024


def ranking_of(way: str, case: Case) -> Callable[[], object]:
    cp, dense = CPTensor(*case.factors), Dense(case)
    if way == "exact":
        return lambda: rank_relations(cp, case.prior, top=TOP)
    return dense.pairwise if way == "pairwise" else lambda: dense.run(True)


def status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def memory(rank: int) -> dict[str, float]:
    """Peak memory of each way in MB, each in a process of its own, and of all tensors at once."""
    cells = 4 * math.prod(SIZES["VRD"]) / 2**20
    row = {}
    for boxes in BOXES:
        for way in WAYS:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                row[f"{way}_mb_{boxes}"] = alone.submit(peak_mb, way, rank, boxes).result()
        row[f"whole_mb_{boxes}"] = boxes * (boxes - 1) * cells
    return row


def measure(folder: Path, root: Path, count: int) -> dict[str, object]:
    learned = learning_costs(folder, root)
    run = opened(folder, "test", root)
    inference(run, 4)  # compiles
    with run.model.sharing_casts():
        parts, kept, agree = inference(run, count)
    assert isinstance(run.model.prior, TripletPrior)
    ratios, same = against_dense(kept[: count // 4], run.model.prior)
    before = parts["features"] + parts["heads"]
    rank = kept[0].joint().rank
    return {
        "run": folder.name,
        "backbone": "" if run.model.backbone is None else run.config.pixels.backbone,
        "sources": "+".join(run.config.sources),
        "rank": rank,
        "pairs": statistics.median(len(each.pairs) for each in kept),
        **learned,
        **{f"{name}_ms": 1e3 * value for name, value in parts.items()},
        "inference_ms": 1e3 * (before + parts["ranking"]),
        "inference_exact_ms": 1e3 * (before + parts["exact"]),
        "inference_dense_ms": 1e3 * (before + parts["dense"]),
        "ranking_share": parts["ranking"] / (before + parts["ranking"]),
        "dense_ratio_median": statistics.median(ratios),
        "dense_ratio_least": min(ratios),
        "dense_ratio_most": max(ratios),
        "same": same,
        "dense_same": agree,
        **memory(rank),
    }


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write the rows after those of other runs in the file."""
    names, measured = list(rows[0]), {(row["run"], row["backbone"]) for row in rows}
    kept: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [dict(row) for row in csv.DictReader(file) if (row["run"], row.get("backbone", "")) not in measured]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


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
        write(args.csv, rows)


if __name__ == "__main__":
    main()
