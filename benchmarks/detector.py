"""How good is the detector that comes with the package? AP50, recall and speed.

python benchmarks/detector.py --data data/vrd --csv results/detector.csv
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from polyadic import RelationModel, load_dataset, load_detector
from polyadic.detectors.detector import Detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.training.pairs import iou

MOST = 50  # boxes per photo; the tables have the shipped number beside it


def best(boxes: Detections, most: int) -> Detections:
    return boxes.take(np.argsort(-boxes.scores, kind="stable")[:most])


def recall(pairs: list[tuple[Scene, Detections]], most: int) -> tuple[float, float]:
    """Percent of annotated boxes found at IoU 0.5 among the best `most`: with any name, with the right one."""
    total = found = named = 0
    for scene, boxes in pairs:
        chosen = best(boxes, most)
        near = iou(scene.boxes, chosen.boxes) >= 0.5
        total += len(scene.boxes)
        found += int(near.any(1).sum())
        named += int((near & (chosen.labels == scene.labels[:, None])).any(1).sum())
    return 100 * found / total, 100 * named / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data/vrd")
    parser.add_argument("--split", default="test")
    parser.add_argument("--detector", default="vrd-detector")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = RelationModel.pretrained()
    detector = load_detector(given.detector, model.vocabulary)
    scenes = list(load_dataset("vrd", given.data, given.split, images="present"))
    shipped = MOST
    if isinstance(detector, Detector):  # its limit only cuts the list, whose best boxes come first
        shipped, detector.config = detector.config.most, detector.config.change(most=MOST)
    start = time.process_time()
    boxes = [detector(scene.photo()).in_frame(scene.frame) for scene in scenes]
    seconds = (time.process_time() - start) / len(scenes)
    more = list(zip(scenes, boxes, strict=True))
    pairs = [(scene, best(found, shipped)) for scene, found in more]
    number = float(np.mean([len(found) for _, found in pairs]))
    values = {"photos": float(len(scenes)), "ms": 1000 * seconds, "boxes": number}
    values["AP50"] = average_precision(pairs, len(model.vocabulary.objects))["AP50"]
    for most in (10, 20, 30, MOST):
        values[f"any name at {most}"], values[f"right name at {most}"] = recall(more, most)
    for name, value in values.items():
        print(f"{name}: {value:,.2f}")
    if given.csv is not None:
        lines = ["measure,value", *(f"{name},{value:.4f}" for name, value in values.items())]
        given.csv.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
