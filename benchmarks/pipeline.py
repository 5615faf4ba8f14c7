"""Where does an image's time go, from the file to the ranked relations, and what do batches save?

    python benchmarks/pipeline.py --csv results/pipeline.csv

`RelationModel.predict` on JPEG files of 800 x 600 with 20 boxes each, clocks around its parts: decode, detector,
features (what is left: backbone, RoIAlign, masks), heads, ranking (k = 1, top 20, with the prior). The relation
networks are the paper's (4,096 wide, rank 5) with VRD's classes on each backbone, beside the toy preset's. Weights are
random: but for ranking, times do not depend on them. There the last layers are scaled until log-factors spread as in
a trained network (`SPREAD`); nearly uniform factors, as they come, take longest and have a row of their own. Batches:
the same files by `predict_many`, 4 at once, against one after the other; same answers.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import polyadic.model.relation_model
from polyadic import Config, RelationModel, TripletPrior, Vocabulary
from polyadic.config import DETECTOR_PRESETS, PRESETS
from polyadic.datasets.toy.world import World
from polyadic.detectors.detector import Detector
from polyadic.model.heads import TripletHead
from polyadic.model.scoring import ScoredPairs
from polyadic.structures.images import open_photo

SPREAD = (1.0, 3.0, 1.0)  # deviations of a trained network's log-factors: subject, predicate, object
BOXES, SEEN = 20, 6672  # per image; different training triplets of VRD
VRD = Vocabulary([f"object {i}" for i in range(100)], [f"predicate {i}" for i in range(70)])

# relation network's changes to the paper's preset, and the detector
NETWORKS: dict[str, tuple[dict[str, Any], str]] = {
    "toy": ({}, "toy"),
    "tf_efficientnet_lite0": (
        {"pixels.backbone": "tf_efficientnet_lite0", "pixels.strides": (16,), "pixels.side": 384},
        "mobilenetv3-fpn",
    ),
    "vgg16": ({}, "vgg16"),
}
PARTS = ("decode", "detector", "features", "heads", "ranking")


def model_of(name: str, spread: tuple[float, ...] | None) -> RelationModel:
    changes, network = NETWORKS[name]
    torch.manual_seed(0)
    base = PRESETS["toy"] if name == "toy" else Config()
    names = World(1, 1).dataset("test").vocabulary if name == "toy" else VRD
    config = base.change(**{"pixels.weights": "random", "ranking.nms": 0.95}, **changes)
    S, P, O = names.sizes
    cells = torch.randperm(S * P * O)[: SEEN if name != "toy" else 400].sort().values
    triplets = torch.stack([cells // (P * O), cells // O % P, cells % O], -1)
    counts = torch.rand(len(triplets)).pow(-1.0).clamp_max(500).round()
    model = RelationModel(config, names, TripletPrior.from_triplets(triplets, names, counts=counts)).eval()
    model.stages = ("triplets", "selection")
    settings = DETECTOR_PRESETS[network].change(weights="random", score=0.0, most=BOXES, nms=0.95)
    model.set_detector(Detector(settings, names).eval())
    if spread is not None:
        _scale(model, spread)
    return model


@torch.no_grad()
def _scale(model: RelationModel, spread: tuple[float, ...]) -> None:
    """Until the log-factors of a picture's pairs have these deviations."""
    photo = World(1, 1).dataset("test")[0].open().resize((800, 600))
    assert model.detector is not None
    (scores,) = model.score(photo, model.detector(open_photo(photo))).blocks()
    assert isinstance(model.head, TripletHead)
    branches = model.head.subject, model.head.predicate, model.head.object
    for branch, factor, wanted in zip(branches, scores.cp.factors, spread, strict=True):
        ratio = wanted / float((factor - factor.mean(-1, keepdim=True)).std())
        branch.scores.weight.mul_(ratio)
        branch.scores.bias.mul_(ratio)


@contextmanager
def clocks() -> Iterator[dict[str, float]]:
    """Seconds of each part, while this holds."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent[name] += time.perf_counter() - start

        return run

    places: list[tuple[Any, str, str]] = [
        (polyadic.model.relation_model, "open_photo", "decode"),
        (Detector, "detect", "detector"),
        (RelationModel, "score_block", "heads"),
        (ScoredPairs, "rank", "ranking"),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, part in places:
        setattr(owner, name, timed(part, getattr(owner, name)))
    try:
        yield spent
    finally:
        for (owner, name, _), call in zip(places, before, strict=True):
            setattr(owner, name, call)


def split(model: RelationModel, files: list[Path], repeats: int) -> dict[str, float]:
    """Median seconds per image of each part."""
    rows: dict[str, list[float]] = defaultdict(list)
    model.predict(files[0])
    for path in files * repeats:
        with clocks() as spent:
            start = time.perf_counter()
            found = model.predict(path)
            total = time.perf_counter() - start
        assert len(found.boxes) == BOXES, f"{len(found.boxes)} boxes"
        spent["features"] = total - sum(spent.values())
        for part in PARTS:
            rows[part].append(spent[part])
        rows["total"].append(total)
    return {part: statistics.median(values) for part, values in rows.items()}


def batches(model: RelationModel, files: list[Path], repeats: int) -> tuple[float, float]:
    """Median seconds per image, one after the other and 4 at once."""
    alone, together = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        one = [model.predict(path) for path in files]
        alone.append((time.perf_counter() - start) / len(files))
        start = time.perf_counter()
        many = [each for at in range(0, len(files), 4) for each in model.predict_many(files[at : at + 4])]
        together.append((time.perf_counter() - start) / len(files))
        assert [each.names()[0] for each in one] == [each.names()[0] for each in many]
    return statistics.median(alone[1:]), statistics.median(together[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for at, scene in enumerate(World(1, asked.images).dataset("test")):
            files.append(Path(folder) / f"{at}.jpg")
            scene.open().resize((800, 600)).save(files[-1], quality=90)
        print(f"{'ms per image, 20 boxes':34}" + "".join(f"{part:>10}" for part in (*PARTS, "total")) + "   ranking")
        for name in asked.networks:
            cases = [("", SPREAD), (", nearly uniform", None)] if name == "toy" else [("", SPREAD)]
            for words, spread in cases:
                model = model_of(name, spread)
                found = split(model, files, asked.repeats)
                share = found["ranking"] / found["total"]
                cells = "".join(f"{1e3 * found[part]:10.1f}" for part in (*PARTS, "total"))
                print(f"{name + words:34}{cells}   {share:6.2%}", flush=True)
                times = {f"{part}_ms": round(1e3 * found[part], 3) for part in (*PARTS, "total")}
                rows.append({"what": name + words, **times, "ranking_share": round(share, 5)})
        print(f"\n{'s per image':34}{'alone':>10}{'4 at once':>10}   ratio")
        for name, row in zip(asked.networks, [x for x in rows if "nearly" not in str(x["what"])], strict=True):
            one, many = batches(model_of(name, SPREAD), files, asked.repeats)
            print(f"{name:34}{one:10.3f}{many:10.3f}   {one / many:.2f}x", flush=True)
            row |= {"alone_s": round(one, 4), "batch_s": round(many, 4), "ratio": round(one / many, 3)}
    if asked.csv:
        with asked.csv.open("w", newline="") as file:
            header = list(dict.fromkeys(key for row in rows for key in row))
            writer = csv.DictWriter(file, header, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
