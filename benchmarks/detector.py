"""How good is the detector that comes with the package? AP50, recall, speed, and the relations found with its boxes.

python benchmarks/detector.py --data data/vrd
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

from polyadic import RelationModel, evaluate, get_protocol, load_dataset, load_detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.training.pairs import iou


def recall(pairs: list[tuple[Scene, Detections]], most: int) -> tuple[float, float]:
    """Percent of annotated boxes found at IoU 0.5 among the best `most`: with any name, with the right one."""
    total = found = named = 0
    for scene, boxes in pairs:
        best = boxes.take(np.argsort(-boxes.scores, kind="stable")[:most])
        near = iou(scene.boxes, best.boxes) >= 0.5
        total += len(scene.boxes)
        found += int(near.any(1).sum())
        named += int((near & (best.labels == scene.labels[:, None])).any(1).sum())
    return 100 * found / total, 100 * named / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data/vrd")
    parser.add_argument("--split", default="test")
    parser.add_argument("--detector", default="vrd-detector")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = RelationModel.pretrained()
    detector = load_detector(given.detector, model.vocabulary)
    scenes = list(load_dataset("vrd", given.data, given.split, images="present"))
    start = time.perf_counter()
    boxes = [detector(scene.photo()).in_frame(scene.frame) for scene in scenes]
    seconds = (time.perf_counter() - start) / len(scenes)
    pairs = [(scene, replace(found, distribution=None)) for scene, found in zip(scenes, boxes, strict=True)]
    mean = np.mean([len(found) for found in boxes])
    print(f"{len(scenes):,} photos, {1000 * seconds:.0f} ms each on {given.threads} thread, {mean:.1f} boxes per photo")
    print(f"AP50 {average_precision(pairs, len(model.vocabulary.objects))['AP50']:.2f}")
    for most in (10, 20, 50):
        print("recall at {}: any name {:.1f}, right name {:.1f}".format(most, *recall(pairs, most)))
    scored = [model.score(None, found) for found in boxes]
    for task in ("relationship", "phrase"):
        for k in (1, 10):
            lists = [one.rank(k, 100) for one in scored]
            protocol = get_protocol("lu2016").change(task=task, k=k, tops=(50, 100))
            rows = evaluate(scenes, lists, [protocol], predicates=len(model.vocabulary.predicates))
            print(f"{task}, k = {k}: " + " / ".join(f"{row.recall:.2f}" for row in rows))


if __name__ == "__main__":
    main()
