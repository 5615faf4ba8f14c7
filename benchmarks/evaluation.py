"""Evaluation: images per second and memory, against a plain Python loop of the same protocol.

    python benchmarks/evaluation.py --root data/vrd --csv results/evaluation.csv   # the VRD test set
    python benchmarks/evaluation.py --images 100000   # streaming, generated images

Both sides get the same images in memory, in the values that suit them (arrays here, lists of dictionaries there), and
give R@20/50/100, mR and zero-shot recall of relationship and phrase detection under `lu2016`; their numbers must agree.
`loop` runs once per task, subset and N, as the official scripts do; `tuned loop` matches once per task. Creating
the values is not timed. Times are CPU seconds of one thread; all sides take turns in each of several rounds, and ratios
are those of a round: their median, least and most.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import evaluation_oracle as plain

from polyadic import (
    Dataset,
    Detections,
    Protocol,
    Relations,
    Scene,
    evaluate,
    get_protocol,
    load_dataset,
    read_detections,
)
from polyadic.evaluation import Evaluator
from polyadic.evaluation.baselines import CountTable

LU = get_protocol("lu2016")
PROTOCOLS = [
    LU.change(task=task, subset=subset) for task in ("relationship", "phrase") for subset in ("all", "zero-shot")
]


def best_hundred(found: Relations) -> Relations:
    order = np.argsort(-found.scores, kind="stable")[:100]
    return Relations(found.image, found.boxes, found.pairs[order], found.triplets[order], found.scores[order])


def vrd(root: Path) -> tuple[Dataset, np.ndarray, list[Relations]]:
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


def as_plain(scene: Scene, found: Relations) -> plain.Image:
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


def match(image: plain.Image, seen: set[tuple[int, int, int]], protocol: Protocol, top: int) -> list[tuple[int, int]]:
    """Predicate and place of the hit of each counted truth, prediction by prediction."""
    predictions, truths = image
    counted = truths if protocol.subset == "all" else [t for t in truths if t["triplet"] not in seen]
    ranks = [10**9] * len(counted)
    for place, prediction in enumerate(sorted(predictions, key=lambda p: -p["score"])[:top]):
        best, chosen = -1.0, -1
        for at, truth in enumerate(counted):
            if truth["triplet"] != prediction["triplet"] or ranks[at] < 10**9:
                continue
            value = plain.overlap(prediction, truth, protocol.task, protocol.iou_offset)
            if value >= 0.5 and value > best:
                best, chosen = value, at
        if chosen >= 0:
            ranks[chosen] = place
    return [(truth["triplet"][1], rank) for truth, rank in zip(counted, ranks, strict=True)]


def recalls(results: list[list[tuple[int, int]]], top: int) -> tuple[float, float]:
    by: dict[int, list[int]] = {}
    for result in results:
        for predicate, rank in result:
            by.setdefault(predicate, []).append(rank < top)
    every = [hit for hits in by.values() for hit in hits]
    return 100 * sum(every) / len(every), 100 * sum(sum(h) / len(h) for h in by.values()) / len(by)


Answer = dict[tuple[str, str, int], tuple[float, float]]  # by task, subset and N


def loop(images: list[plain.Image], seen: set[tuple[int, int, int]], protocols: list[Protocol]) -> Answer:
    """As the official scripts do it: each task, subset and N is a run of its own."""
    return {
        (p.task, p.subset, top): recalls([match(image, seen, p, top) for image in images], top)
        for p in protocols
        for top in p.tops
    }


def tuned_loop(images: list[plain.Image], seen: set[tuple[int, int, int]], protocols: list[Protocol]) -> Answer:
    """The best that the loop can do: one matching per task gives every N, and zero-shot truths are picked from it."""
    answer: Answer = {}
    for task in dict.fromkeys(p.task for p in protocols):
        whole = LU.change(task=task)
        results = [match(image, seen, whole, 100) for image in images]
        new = [
            [row for row, truth in zip(result, image[1], strict=True) if truth["triplet"] not in seen]
            for result, image in zip(results, images, strict=True)
        ]
        for top in whole.tops:
            answer[task, "all", top] = recalls(results, top)
            answer[task, "zero-shot", top] = recalls(new, top)
    return answer


ROUNDS, CALLS = 11, 20  # calls of ours per round; one of each loop


def cpu_seconds(run: Any, calls: int = 1) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def against_the_loop(root: Path) -> Iterator[dict[str, Any]]:
    test, seen, found = vrd(root)
    n = len(test.vocabulary.predicates)
    images = [as_plain(scene, each) for scene, each in zip(test, found, strict=True)]
    known = {(int(s), int(p), int(o)) for s, p, o in seen}
    gc.collect()
    gc.freeze()  # or the collector walks through the other side's data
    for case, protocols in (("the table of 12", PROTOCOLS), ("relationship at three N", [LU])):
        ours = partial(evaluate, test, found, protocols, n, seen=seen)
        loops = {
            name: partial(run, images, known, protocols) for name, run in (("loop", loop), ("tuned loop", tuned_loop))
        }
        result = ours()  # compiled
        for theirs in (run() for run in loops.values()):
            for protocol in protocols:
                for top in protocol.tops:
                    mine, (recall, mean) = result.at(protocol, top), theirs[protocol.task, protocol.subset, top]
                    assert abs(mine.recall - recall) < 1e-9 > abs(mine.mean_recall - mean), protocol.label
        rounds = [(cpu_seconds(ours, CALLS), *map(cpu_seconds, loops.values())) for _ in range(ROUNDS)]
        fast, *slow = (statistics.median(times) for times in zip(*rounds, strict=True))
        row: dict[str, Any] = {"case": case, "images": len(test), "predictions": sum(map(len, found))}
        row |= {"seconds": fast, "images per second": len(test) / fast}
        print(f"VRD test, {sum(map(len, found)):,} predictions, {case}: ours {fast * 1e3:.1f} ms, the same numbers")
        for at, (name, seconds) in enumerate(zip(loops, slow, strict=True), 1):
            ratios = [times[at] / times[0] for times in rounds]
            least, median, most = min(ratios), statistics.median(ratios), max(ratios)
            row |= {f"{name} seconds": seconds, f"{name} ratio": median}
            row |= {f"{name} ratio least": least, f"{name} ratio most": most}
            print(f"  {name}: {seconds * 1e3:.1f} ms, {median:.1f}x ({least:.1f}x to {most:.1f}x)")
        yield row


def stream(n: int) -> Iterator[tuple[Scene, Relations]]:
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
            Relations(name, boxes, pairs, triplets, rng.random(100)),
        )


def streaming(images: int) -> dict[str, Any]:
    """One pass over images that are made and forgotten; the growth of memory after the first thousand."""
    warm = Evaluator([LU, get_protocol("motifs")], 50)
    for scene, found in stream(10):
        warm.update(scene, found)
    warm.result()  # compiled
    evaluator = Evaluator([LU, get_protocol("motifs")], 50)
    start, base = time.process_time(), 0
    making = 0.0
    source = stream(images)
    for i in range(images):
        before = time.process_time()
        scene, found = next(source)
        making += time.process_time() - before
        evaluator.update(scene, found)
        if i == 1000:
            base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    recall = evaluator.result()[0].recall
    seconds = time.process_time() - start - making
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
    parser.add_argument("--csv", type=Path, help="write the numbers there, too")
    arguments = parser.parse_args()
    rows = [streaming(arguments.images)]
    if arguments.root:
        rows += against_the_loop(arguments.root)
    if arguments.csv:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
