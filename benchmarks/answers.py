"""What a person reads: how much of it is filler, mirrored or repeated, and is its probability calibrated?

    python benchmarks/answers.py --root data/vrd --detector yolox_nano.onnx --csv results/answers.csv   # 3 minutes

100 photos, every n-th by name, with the boxes of a detector: the paper's ranking (k = 1, best 20, as `polyadic predict`
printed before) beside the default answers and those in the likely order. Filler: next to, near, beside. Mirrored: the
same predicate also the other way round. Repeats: triplets that the photo has already. Renamed: boxes with several names
or another one than the detector's. Then, on all photos of the split, the mean probability of answers (k = 1, no
threshold) beside the share that annotators wrote: the same names, both boxes with an IoU of at least 0.5.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyadic import RelationModel, Relations, get_protocol, load_dataset, load_detector
from polyadic.experiments.pictures import matches
from polyadic.model.answers import AnswerOptions, answer
from polyadic.model.scoring import ScoredPairs
from polyadic.pretrained import coco_to_vrd

FILLER = {"next to", "near", "beside"}
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
EVERY = AnswerOptions(top=10_000, order="likely", mirror="keep", least=0.0)
KINDS: dict[str, Callable[[ScoredPairs], Relations]] = {
    "ranking, k = 1, best 20": lambda scored: scored.rank(1, 20),
    "answers, likely": lambda scored: answer(scored, AnswerOptions(order="likely")),
    "answers, informative (default)": lambda scored: answer(scored, AnswerOptions()),
}


def count(results: Iterable[Relations]) -> dict[str, Any]:
    total, photos, empty, renamed, boxes = Counter[str](), 0, 0, 0, 0
    predicates: set[str] = set()
    for relations in results:
        photos, empty = photos + 1, empty + (not len(relations))
        stated = {(*row.pair, row.names[1]) for row in relations}
        names: dict[int, set[str]] = defaultdict(set)
        seen: set[tuple[str, ...]] = set()
        for row in relations:
            predicates.add(row.names[1])
            total["answers"] += 1
            total["filler"] += row.names[1] in FILLER
            total["behind"] += row.names[1] == "behind"
            total["mirrored"] += (row.pair[1], row.pair[0], row.names[1]) in stated
            total["repeats"] += row.names in seen
            seen.add(row.names)
            for at, name in zip(row.pair, row.names[::2], strict=True):
                names[at].add(name)
        detected = relations.labels
        assert detected is not None
        assert relations.vocabulary is not None
        objects = relations.vocabulary.objects
        boxes += len(names)
        renamed += sum(some != {objects[detected[at]]} for at, some in names.items())
    shares = {name: 100 * total[name] / total["answers"] for name in ("filler", "behind", "mirrored", "repeats")}
    return {
        "photos": photos,
        "answers": total["answers"],
        **shares,
        "predicates": len(predicates),
        "photos without": empty,
        "boxes": boxes,
        "renamed": renamed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--detector", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--photos", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = RelationModel.pretrained()
    data = load_dataset("vrd", options.root, options.split, images="present")
    detector = load_detector(options.detector, model.vocabulary, mapping=coco_to_vrd())
    scenes = sorted(data, key=lambda scene: scene.name)
    chosen = {scene.name for scene in scenes[:: max(1, len(scenes) // options.photos)][: options.photos]}
    results: dict[str, list[Relations]] = {kind: [] for kind in KINDS}
    probability, hit = [], []
    for scene in scenes:
        scored = model.score(scene.photo(), detector(scene.photo()))
        if scene.name in chosen:
            for kind, make in KINDS.items():
                results[kind].append(make(scored))
        everything = answer(scored, EVERY)
        assert everything.probability is not None
        probability.append(everything.probability)
        hit.append(matches(scene, everything, get_protocol("lu2016")).any(1))
    rows: list[dict[str, Any]] = []
    for kind, relations in results.items():
        rows += [{"what": kind, "measure": name, "value": value} for name, value in count(relations).items()]
    said, annotated = np.concatenate(probability), np.concatenate(hit)
    for low, high in pairwise(EDGES):
        inside = (said >= low) & (said < high)
        if inside.any():
            name = f"probability {low:g} to {high:g}"
            rows.append({"what": name, "measure": "answers", "value": int(inside.sum())})
            rows.append({"what": name, "measure": "mean probability", "value": 100 * said[inside].mean()})
            rows.append({"what": name, "measure": "annotated", "value": 100 * annotated[inside].mean()})
    for row in rows:
        print(f"{row['what']:32} {row['measure']:18} {row['value']:8.4g}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["split", "detector", "what", "measure", "value"], lineterminator="\n")
            writer.writeheader()
            about = {"split": options.split, "detector": Path(options.detector).name}
            writer.writerows({**about, **row} for row in rows)


if __name__ == "__main__":
    main()
