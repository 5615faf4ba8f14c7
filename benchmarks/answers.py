"""What a person reads: how much of it is filler, mirrored or repeated, and is its probability calibrated?

    python benchmarks/answers.py --root data/vrd --csv results/answers.csv   # 4 minutes

100 training photos, every n-th by name, with the boxes of a detector: the paper's ranking (k = 1, best 20) beside the
default answers and those in the likely order. Filler: next to, near, beside. Mirrored: the same predicate also the
other way round. Repeats: triplets that the photo has already. Rivals: photos whose answers have two boxes of different
names in one place (IoU of at least 0.7). In most photos: of the first five answers, the mean share
of photos that have the same triplet among their first five. Commonest: the share of photos with the commonest triplet
of all first three. Annotated: of the first five, the share that annotators wrote, the same names and both boxes with an
IoU of at least 0.5. Renamed: boxes with several names or another one than the detector's. Then, on all test photos,
which neither model nor detector has seen, the mean probability of answers (k = 1, no threshold) beside the share that
is annotated, for relations of clothes and the other parts of a person, and for all others.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyadic import RelationModel, Relations, Scene, get_protocol, load_dataset, load_detector
from polyadic.boxes import box_iou
from polyadic.config import DETECTOR_PRESETS
from polyadic.experiments.spurious import matches
from polyadic.model.answers import RIVALS, AnswerOptions, answer
from polyadic.model.scoring import ScoredPairs
from polyadic.pretrained import DETECTOR, coco_to_vrd, model_for

FILLER = {"next to", "near", "beside"}
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
CLOTHES = {*DETECTOR_PRESETS["yolox-nano"].parts}
EVERY = AnswerOptions(top=10_000, order="likely", mirror="keep", least=0.0)
KINDS: dict[str, Callable[[ScoredPairs], Relations]] = {
    "ranking, k = 1, best 20": lambda scored: scored.rank(1, 20),
    "answers, likely": lambda scored: answer(scored, AnswerOptions(order="likely")),
    "answers, informative (default)": lambda scored: answer(scored, AnswerOptions()),
}


def count(results: Sequence[tuple[Scene, Relations]]) -> dict[str, Any]:
    total, photos, empty, renamed, boxes, rivals = Counter[str](), 0, 0, 0, 0, 0
    predicates: set[str] = set()
    for scene, relations in results:
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
        rivals += has_rivals(relations)
        annotated = is_annotated(scene, relations)[:5]
        total["first five"] += len(annotated)
        total["annotated"] += int(annotated.sum())
        detected = relations.labels
        assert detected is not None
        assert relations.vocabulary is not None
        objects = relations.vocabulary.objects
        boxes += len(names)
        renamed += sum(some != {objects[detected[at]]} for at, some in names.items())
    shares = {name: 100 * total[name] / total["answers"] for name in ("filler", "behind", "mirrored", "repeats")}
    shares["annotated"] = 100 * total["annotated"] / total["first five"]
    first = {n: Counter(name for _, x in results for name in set(x[:n].names())) for n in (3, 5)}
    shares["in most photos"] = 100 * sum(n * n for n in first[5].values()) / first[5].total() / photos
    shares["rivals"] = 100 * rivals / photos
    shares["commonest"] = 100 * max(first[3].values()) / photos
    return {
        "photos": photos,
        "answers": total["answers"],
        **shares,
        "predicates": len(predicates),
        "photos without": empty,
        "boxes": boxes,
        "renamed": renamed,
    }


def has_rivals(relations: Relations) -> bool:
    """Whether two boxes of the answers are one place with two names."""
    named = {at: name for row in relations for at, name in zip(row.pair, row.names[::2], strict=True)}
    boxes = torch.from_numpy(relations.boxes)
    return any(named[a] != named[b] and float(box_iou(boxes[a], boxes[b])) >= RIVALS for a, b in combinations(named, 2))


def is_annotated(scene: Scene, relations: Relations) -> np.ndarray:
    """Mark the answers that annotators wrote."""
    return np.asarray(matches(scene, relations, get_protocol("lu2016")).any(1))


def calibrate(scored: Iterator[tuple[Scene, ScoredPairs]]) -> Iterator[dict[str, Any]]:
    """Compare the probability of all answers with the share that is annotated."""
    probability, hit, clothes = [], [], []
    for scene, pairs in scored:
        everything = answer(pairs, EVERY)
        assert everything.probability is not None
        probability.append(everything.probability)
        hit.append(is_annotated(scene, everything))
        clothes += [not CLOTHES.isdisjoint(names) for names in everything.names()]
    said, annotated, worn = np.concatenate(probability), np.concatenate(hit), np.array(clothes)
    for low, high in pairwise(EDGES):
        for kind, some in (("clothes", worn), ("others", ~worn)):
            inside = (said >= low) & (said < high) & some
            name = f"probability {low:g} to {high:g}"
            yield {"what": name, "measure": f"{kind}: answers", "value": int(inside.sum())}
            if inside.any():
                yield {"what": name, "measure": f"{kind}: mean probability", "value": 100 * said[inside].mean()}
                yield {"what": name, "measure": f"{kind}: annotated", "value": 100 * annotated[inside].mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--detector", default=DETECTOR)
    parser.add_argument("--photos", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    model = RelationModel.pretrained(model_for([options.detector]))
    detector = load_detector(options.detector, model.vocabulary, mapping=coco_to_vrd())

    def scenes(split: str) -> list[Scene]:
        return sorted(load_dataset("vrd", options.root, split, images="present"), key=lambda scene: scene.name)

    def score(some: Iterable[Scene]) -> Iterator[tuple[Scene, ScoredPairs]]:
        for scene in some:
            yield scene, model.score(scene.photo(), detector(scene.photo()))

    rows: list[dict[str, Any]] = []
    train = scenes("train")
    looked = list(score(train[:: max(1, len(train) // options.photos)][: options.photos]))
    for kind, make in KINDS.items():
        counts = count([(scene, make(scored)) for scene, scored in looked])
        rows += [{"split": "train", "what": kind, "measure": name, "value": value} for name, value in counts.items()]
    rows += [{"split": "test", **row} for row in calibrate(score(scenes("test")))]
    for row in rows:
        print(f"{row['what']:32} {row['measure']:18} {row['value']:8.4g}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["split", "detector", "what", "measure", "value"], lineterminator="\n")
            writer.writeheader()
            writer.writerows({"detector": Path(options.detector).name, **row} for row in rows)


if __name__ == "__main__":
    main()
