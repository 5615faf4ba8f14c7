"""What does it save to keep a frozen backbone's features, to run branches once per box, and to train by inner products?

    python benchmarks/training.py --csv results/training.csv

Epoch: the steps of one epoch of stage 1 by `polyadic.training.train`, with features from the cache on disk (written in
a run before) against features computed again, the same heads; drawn pictures scaled to the size that the backbone gets.
Head: the paper's three branches (4,096 wide, rank 5, VRD's classes) on all ordered pairs of an image, forward, and
forward with backward; gathered is `TripletHead`, per pair runs the same branches on one row per pair.
Span: a step of SGD with momentum and clipping of the paper's first layer (25,088 to 4,096), on 60 of the boxes of 1,000
images; through inner products (`head.span`), which are computed once before, against plainly.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path

import torch
from ranking import SIZES, seconds
from torch import nn

from polyadic import Config, CPTensor, train
from polyadic.boxes import ordered_pairs
from polyadic.config import PRESETS
from polyadic.config.schema import StageConfig
from polyadic.model.heads import TripletHead
from polyadic.training.span import FrozenRows, SpanLayer, clip_gradients

BACKBONES = {
    "toy": {},
    "tf_efficientnet_lite0": {"pixels.strides": (16, 32), "pixels.side": 384, "pixels.longest": 512},
    "vgg16": {"pixels.strides": (16,), "pixels.side": 384, "pixels.longest": 512},
}


def config_of(backbone: str, images: int) -> Config:
    changes = {"backbone.epochs": 0, "selection.epochs": 0, "triplets.epochs": 3, "validation.images": 1}
    own = {} if backbone == "toy" else {"pixels.backbone": backbone}
    return PRESETS["toy"].change(**changes, **own, **BACKBONES[backbone], **{"world.train": images})


def epochs(config: Config, folder: Path) -> list[float]:
    """Seconds of each epoch's steps."""
    train(config, folder)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [max(x["seconds"] for x in lines if x["event"] == "step" and x["epoch"] == epoch) for epoch in (1, 2, 3)]


def compare_epochs(images: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(f"Epoch of stage 1, {round(0.9 * images)} pictures     cached, s   computed again, s   ratio")
    for backbone in BACKBONES:
        config = config_of(backbone, images)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            epochs(config, root / "first")  # fills the cache
            cached = sorted(epochs(config, root / "cached"))
            anew = sorted(epochs(config.change(**{"cache.gigabytes": 0.0}), root / "anew"))
        print(f"{backbone:32} {cached[1]:12.2f} {anew[1]:18.2f} {anew[1] / cached[1]:6.1f}x", flush=True)
        rows.append({"what": f"epoch {backbone}", "images": images, "fast_s": cached[1], "slow_s": anew[1]})
    return rows


def per_pair(head: TripletHead, box: torch.Tensor, pair: torch.Tensor, pairs: torch.Tensor) -> CPTensor:
    s, o = pairs.unbind(-1)
    return CPTensor(head.subject(box[s]), head.predicate(pair), head.object(box[o]))


def compare_heads(box_width: int, hidden: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    head = TripletHead(box_width, box_width + 512, SIZES["VRD"], rank=5, hidden=hidden, dropout=0.0)
    print(f"\nHead, features {box_width:,}, hidden {hidden:,}   gathered, s   per pair, s   ratio")
    for boxes in (7, 20):
        pairs = ordered_pairs(boxes)
        box, pair = torch.randn(boxes, box_width), torch.randn(len(pairs), box_width + 512)
        triplet = torch.zeros(len(pairs), 3, dtype=torch.long)
        torch.testing.assert_close(head(box, box, pair, pairs).log_z(), per_pair(head, box, pair, pairs).log_z())
        for what in ("forward", "forward + backward"):

            def run(fast: bool) -> None:
                cp = head(box, box, pair, pairs) if fast else per_pair(head, box, pair, pairs)  # noqa: B023
                if what != "forward":  # noqa: B023
                    torch.autograd.grad(cp.nll(triplet).mean(), list(head.parameters()))  # noqa: B023

            with torch.set_grad_enabled(what != "forward"):
                fast, slow = seconds(lambda: run(True), 5)[0], seconds(lambda: run(False), 5)[0]
            name = f"{boxes} boxes, {len(pairs)} pairs, {what}"
            print(f"{name:44} {fast:8.3f} {slow:13.3f} {slow / fast:7.2f}x", flush=True)
            rows.append({"what": f"head {name}", "images": 1, "fast_s": fast, "slow_s": slow})
    return rows


def compare_spans(width: int, hidden: int, boxes: int = 7500) -> list[dict[str, object]]:
    """Time a step of a first layer, and once the inner products."""
    rows, at = torch.rand(boxes, width).half(), torch.randperm(boxes)[:60]
    plain, layer = nn.Linear(width, hidden), nn.Linear(width, hidden)
    start = time.perf_counter()
    frozen = FrozenRows([rows], [], rows.device)
    span = SpanLayer(layer, frozen, frozen.products(), StageConfig(rate=1e-9))
    print(f"\nSpan of {boxes:,} rows, {width:,} wide: prepared in {time.perf_counter() - start:.0f} s")
    sides: dict[str, tuple[nn.Linear, list[nn.Parameter], list[SpanLayer]]] = {
        "span": (layer, [*span.parameters(), *(p for p in layer.parameters() if p.requires_grad)], [span]),
        "plain": (plain, list(plain.parameters()), []),
    }
    took = {}
    for name, (module, parameters, spans) in sides.items():
        optimiser = torch.optim.SGD(parameters, 1e-9, momentum=0.9)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)  # noqa: B023
            module(rows[at].float()).square().sum().backward()  # noqa: B023
            clip_gradients(parameters, spans, 20.0)  # noqa: B023
            optimiser.step()  # noqa: B023
            for each in spans:  # noqa: B023
                each.step()

        took[name] = seconds(step, 7)[0]
    print(
        f"a step, s: {took['span']:.3f}, plainly {took['plain']:.3f}, {took['plain'] / took['span']:.1f}x", flush=True
    )
    return [{"what": f"span of {boxes} rows", "images": 1, "fast_s": took["span"], "slow_s": took["plain"]}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60, help="drawn pictures of the epoch")
    parser.add_argument("--csv", type=Path, help="write the numbers there, too")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    rows = compare_epochs(arguments.images) + compare_heads(25_088, 4096) + compare_spans(25_088, 4096)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["what", "images", "fast_s", "slow_s", "ratio"])
            writer.writeheader()
            for row in rows:
                ratio = float(str(row["slow_s"])) / float(str(row["fast_s"]))
                writer.writerow(
                    {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in {**row, "ratio": ratio}.items()}
                )


if __name__ == "__main__":
    main()
