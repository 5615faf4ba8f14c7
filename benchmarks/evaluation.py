"""Evaluation: images per second and memory, against a plain Python loop of the same protocol.

    python benchmarks/evaluation.py --root <VRD>       # the VRD test set, 100 predictions per image
    python benchmarks/evaluation.py --images 100000    # streaming, made-up images

Both sides get the same images in memory, in the values that suit them (arrays here, lists of dictionaries there), and
give R@20/50/100, mR and zero-shot recall of relationship and phrase detection under `lu2016`; their numbers must agree.
Writes results/evaluation.csv and prints what it wrote.
"""

from __future__ import annotations

import argparse
import csv
import gc
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import evaluation_oracle as plain

from polyadic.counting import CountTable
from polyadic.datasets import load_dataset
from polyadic.evaluation import Evaluator, Protocol, evaluate, get_protocol
from polyadic.predictions import read_detections
from polyadic.scenes import Dataset, Detections, Predictions, Scene

OUT = Path(__file__).parents[1] / "results" / "evaluation.csv"
LU = get_protocol("lu2016")
PROTOCOLS = [
    LU.change(task=task, subset=subset) for task in ("relationship", "phrase") for subset in ("all", "zero-shot")
]


def best_hundred(found: Predictions) -> Predictions:
    order = np.argsort(-found.scores, kind="stable")[:100]
    return Predictions(found.image, found.boxes, found.pairs[order], found.triplets[order], found.scores[order])


def vrd(root: Path) -> tuple[Dataset, np.ndarray, list[Predictions]]:
    """The count table's best hundred triplets of each test image, on Lu's proposals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train, test = load_dataset("vrd", root, "train"), load_dataset("vrd", root, "test")
    table = CountTable.fit(train, train.vocabulary)
    boxes = {d.image: d for d in read_detections(root / "lu2016" / "objectDetRCNN.mat", test.vocabulary)}
    found = []
    for scene in test:
        each = boxes[scene.name]
        if len(each) < 2:  # too few boxes for a hundred triplets: the true ones
            each = Detections(scene.name, scene.boxes, scene.labels, np.ones(len(scene.boxes)))
        found.append(best_hundred(table.predict(each)))
    return test, train.triplets(), found


def as_plain(scene: Scene, found: Predictions) -> plain.Image:
    boxes, mine = [tuple(b) for b in scene.boxes.tolist()], [tuple(b) for b in found.boxes.tolist()]
    labels = scene.labels.tolist()
    truths = [
        {"subject": boxes[s], "object": boxes[o], "triplet": (labels[s], p, labels[o])}
        for s, p, o in scene.relations.tolist()
    ]
    rows = zip(found.pairs.tolist(), found.triplets.tolist(), found.scores.tolist(), strict=True)
    return [
        {"pair": (s, o), "subject": mine[s], "object": mine[o], "triplet": tuple(t), "score": score}
        for (s, o), t, score in rows
    ], truths


def loop(images: list[plain.Image], seen: set[tuple[int, int, int]], protocol: Protocol) -> list[tuple[float, float]]:
    """A plain evaluator as one would write it: match the best hundred once, then count for each N."""
    results: list[list[tuple[int, int]]] = []
    for predictions, truths in images:
        counted = truths if protocol.subset == "all" else [t for t in truths if t["triplet"] not in seen]
        ranks = [10**9] * len(counted)
        for place, prediction in enumerate(sorted(predictions, key=lambda p: -p["score"])[: max(protocol.tops)]):
            best, chosen = -1.0, -1
            for at, truth in enumerate(counted):
                if truth["triplet"] != prediction["triplet"] or ranks[at] < 10**9:
                    continue
                value = plain.overlap(prediction, truth, protocol.task, protocol.iou_offset)
                if value >= 0.5 and value > best:
                    best, chosen = value, at
            if chosen >= 0:
                ranks[chosen] = place
        results.append([(truth["triplet"][1], rank) for truth, rank in zip(counted, ranks, strict=True)])
    answer = []
    for top in protocol.tops:
        by: dict[int, list[int]] = {}
        for result in results:
            for predicate, rank in result:
                by.setdefault(predicate, []).append(rank < top)
        every = [hit for hits in by.values() for hit in hits]
        answer.append((100 * sum(every) / len(every), 100 * sum(sum(h) / len(h) for h in by.values()) / len(by)))
    return answer


def timed(run: Any, repeats: int) -> tuple[Any, list[float]]:
    value, times = run(), []
    for _ in range(repeats):
        start = time.perf_counter()
        value = run()
        times.append(time.perf_counter() - start)
    return value, times


def quartiles(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"


def against_the_loop(root: Path) -> dict[str, Any]:
    test, seen, found = vrd(root)
    n = len(test.vocabulary.predicates)
    images = [as_plain(scene, each) for scene, each in zip(test, found, strict=True)]
    known = {(int(s), int(p), int(o)) for s, p, o in seen}
    gc.collect()
    gc.freeze()  # or the collector walks through the other side's data
    ours, our_times = timed(lambda: evaluate(test, found, PROTOCOLS, n, seen), 15)
    theirs, their_times = timed(lambda: [loop(images, known, protocol) for protocol in PROTOCOLS], 5)
    for protocol, rows in zip(PROTOCOLS, theirs, strict=True):
        for top, (recall, mean) in zip(protocol.tops, rows, strict=True):
            row = ours.at(protocol, top)
            assert abs(row.recall - recall) < 1e-9 > abs(row.mean_recall - mean), protocol.label
    fast, slow = statistics.median(our_times), statistics.median(their_times)
    print(f"VRD test, {sum(map(len, found)):,} predictions: ours {quartiles(our_times)}, loop {quartiles(their_times)}")
    print(f"{slow / fast:.0f}x, {len(test) / fast:,.0f} images per second, the same numbers")
    row = {"case": "VRD test, 100 per image", "images": len(test), "predictions": sum(map(len, found))}
    return row | {"seconds": fast, "loop seconds": slow, "ratio": slow / fast, "images per second": len(test) / fast}


def stream(n: int) -> Iterator[tuple[Scene, Predictions]]:
    rng = np.random.default_rng(0)
    for i in range(n):
        corner = rng.integers(0, 800, (20, 2)).astype(float)
        boxes = np.concatenate([corner, corner + rng.integers(20, 200, (20, 2))], axis=1)
        labels = rng.integers(0, 150, 20)
        relations = np.stack([rng.integers(0, 20, 8), rng.integers(0, 50, 8), rng.integers(0, 20, 8)], axis=1)
        pairs, predicate = rng.integers(0, 20, (100, 2)), rng.integers(0, 50, 100)
        triplets = np.stack([labels[pairs[:, 0]], predicate, labels[pairs[:, 1]]], axis=1)
        name = f"{i}.jpg"
        yield (
            Scene(name, Path(name), (1024.0, 1024.0), boxes, labels, relations),
            Predictions(name, boxes, pairs, triplets, rng.random(100)),
        )


def streaming(images: int) -> dict[str, Any]:
    """One pass over images that are made and forgotten; the growth of memory after the first thousand."""
    warm = Evaluator([LU, get_protocol("motifs")], 50)
    for scene, found in stream(10):
        warm.update(scene, found)
    warm.result()  # compiled
    evaluator = Evaluator([LU, get_protocol("motifs")], 50)
    start, base = time.perf_counter(), 0
    making = 0.0
    source = stream(images)
    for i in range(images):
        before = time.perf_counter()
        scene, found = next(source)
        making += time.perf_counter() - before
        evaluator.update(scene, found)
        if i == 1000:
            base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    recall = evaluator.result()[0].recall
    seconds = time.perf_counter() - start - making
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    print(f"streaming {images:,} images: {images / seconds:,.0f} images per second, R@20 {recall:.4f}")
    print(f"memory after the first thousand images grew by {grown:.1f} MB")
    return {"case": "streaming", "images": images, "predictions": 100 * images, "seconds": seconds} | {
        "images per second": images / seconds,
        "memory growth MB": grown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="VRD, with lu2016/ in it")
    parser.add_argument("--images", type=int, default=100_000)
    arguments = parser.parse_args()
    rows = [streaming(arguments.images)]
    if arguments.root:
        rows.append(against_the_loop(arguments.root))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {OUT.relative_to(Path(__file__).parents[1])}")


if __name__ == "__main__":
    main()
