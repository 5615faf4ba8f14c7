"""What the pretrained model reaches from photos alone, beside Lu's published boxes, and how these boxes differ.

    python benchmarks/photos.py --root data/vrd --detector yolox_nano.onnx --csv results/photos.csv   # 3 minutes

VRD's 1,000 test photos, protocol `lu2016`: recall with the boxes of a detector of COCO's classes (mapped to VRD's) and
with Lu's. Then, of both: boxes per image; the share of boxes that lie on an annotated object, whatever its name (IoU at
least 0.5; VRD annotates only objects that take part in a relation); AP50.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch

from polyadic import Dataset, Detections, RelationModel, get_protocol, load_dataset, load_detector, read_detections
from polyadic.boxes import box_iou
from polyadic.evaluation import Evaluator
from polyadic.evaluation.average_precision import average_precision
from polyadic.pretrained import coco_to_vrd

KS = (1, 10)


def measure(model: RelationModel, data: Dataset, boxes: dict[str, Detections]) -> dict[str, float]:
    base = get_protocol("lu2016").change(k_unit="triplet", tops=(50, 100))
    evaluators = {
        k: Evaluator(
            [base.change(task=task, k=k) for task in ("relationship", "phrase")], len(data.vocabulary.predicates)
        )
        for k in KS
    }
    total = near = 0
    for scene in data:
        found = boxes[scene.name].in_frame(scene.frame)
        scored = model.score(scene.photo(), found)
        for k, evaluator in evaluators.items():
            evaluator.update(scene, scored.rank(k, 100))
        a, b = torch.from_numpy(found.boxes), torch.from_numpy(scene.boxes)
        total += len(a)
        if len(b):
            near += int((box_iou(a[:, None], b[None], offset=1.0) >= 0.5).any(1).sum())
    values = {
        "boxes per image": total / len(data),
        "on annotated objects": 100 * near / total,
        "AP50": average_precision(((scene, boxes[scene.name]) for scene in data), len(data.vocabulary.objects))["AP50"],
    }
    for k, evaluator in evaluators.items():
        for row in evaluator.result():
            values[f"{row.protocol.task} k = {k} R@{row.top}"] = row.recall
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--detector", required=True)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = RelationModel.pretrained()
    data = load_dataset("vrd", options.root, "test", images="required")
    detector = load_detector(options.detector, model.vocabulary, mapping=coco_to_vrd())
    lu = read_detections(options.root / "lu2016" / "objectDetRCNN.mat", model.vocabulary, sizes=data.sizes)
    kinds = {
        "photos alone": {scene.name: detector(scene.photo()) for scene in data},
        "Lu's boxes": {image.image: image for image in lu},
    }
    rows = [
        {
            "boxes": kind,
            "detector": Path(options.detector).name if kind == "photos alone" else "",
            "measure": name,
            "value": value,
        }
        for kind, boxes in kinds.items()
        for name, value in measure(model, data, boxes).items()
    ]
    for row in rows:
        print(f"{row['boxes']:14} {row['measure']:28} {row['value']:7.2f}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
