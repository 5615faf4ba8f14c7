"""How do photos, processes and images scale: throughput, efficiency, memory and growth?

    python benchmarks/scale.py --csv results/scale.csv [photos] [memory] [train] [vg]

photos: `polyadic predict --engine` on resized copies of the example, 1 and 2 workers, local and ray. memory: the same
function with a detector that costs nothing, on up to 20,000 photos. train: an epoch of stage 1 at the paper's sizes
(VGG16's features, 4,096 wide, rank 5) in 1 and 2 processes under torchrun. vg: files of Visual Genome's layout with
its number of images, boxes and relations, drawn at random, no pictures: load, prior, an epoch of evidence training and
evaluation, on 1,000, 10,000 and 108,073 images. Every measurement is a process of its own. CPU seconds stand beside
seconds: on a busy machine only they mean something.
"""
# ruff: noqa: PLC0415  (a step imports what it measures)

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
IMAGES, BOXES, RELATIONS = 108_073, 1_145_398, 622_705  # as in VG150; boxes and relations approximately
COLUMNS = (
    "what",
    "engine",
    "workers",
    "items",
    "seconds",
    "cpu_seconds",
    "items_per_second",
    "peak_mb",
    "bytes",
    "load",
    "note",
)


def measure(command: Sequence[object], note: str = "", **row: Any) -> dict[str, Any]:
    """Run a command; seconds, CPU seconds of it and its children, and the largest of these processes."""
    load = os.getloadavg()[0]  # of other work, if any: our own process before may count for a minute
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    script = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    script += "print('PEAK', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, command)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    peak = int(next(line for line in done.stderr.splitlines() if line.startswith("PEAK")).split()[1]) / 1024
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    inside = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = {**row, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak, "load": load, "note": note}
    if inside:
        result |= json.loads(inside[-1])
    result["items_per_second"] = result["items"] / result["seconds"]
    print({name: round(x, 2) if isinstance(x, float) else x for name, x in result.items()}, flush=True)
    return result


def write_photos(folder: Path, n: int, side: int) -> Path:
    """Different copies of the example: shifted and resized, in folders of 1,000."""
    from PIL import Image

    picture = Image.open(ROOT / "examples" / "astronaut.jpg").convert("RGB")
    rng = np.random.default_rng(0)
    for at in range(n):
        place = folder / f"{at // 1000:04}"
        place.mkdir(parents=True, exist_ok=True)
        left, top = rng.integers(0, picture.width // 8, 2).tolist()
        cut = picture.crop((left, top, picture.width - left // 2, picture.height - top // 2))
        cut.resize((side, side * 3 // 4)).save(place / f"{at:06}.jpg", quality=85)
    return folder


def photos(place: Path, n: int) -> Iterator[dict[str, Any]]:
    """The pretrained model and detector; start-up is a job of one photo per worker."""
    folder = write_photos(place / "photos", n, 500)
    few = {workers: write_photos(place / f"few-{workers}", workers, 500) for workers in (1, 2)}
    predict = [sys.executable, "-m", "polyadic", "predict"]
    shard = str(max(1, n // 16))
    for engine in ("local", "ray"):
        for workers in (1, 2):
            rest = ["--engine", engine, "--workers", str(workers), "--shard", shard, "--overwrite"]
            row: dict[str, Any] = {"what": "photos", "engine": engine, "workers": workers}
            start = [*predict, few[workers], "--out", place / "o1", *rest, "--shard", "1"]
            yield measure(start, "start-up", items=workers, **row)
            many = measure([*predict, folder, "--out", place / "o", *rest], items=n, **row)
            yield many | {"bytes": sum(path.stat().st_size for path in (place / "o").glob("relations-*")) / n}


def _cheap_model() -> Any:
    from polyadic.model.relation_model import RelationModel
    from polyadic.structures.detections import Detections

    model = RelationModel.pretrained()
    boxes = np.array([[10.0, 5, 60, 90], [5, 40, 95, 95], [30, 30, 50, 60]])

    def detect(photo: Any) -> Detections:
        return Detections(
            photo.name, boxes / 100 * np.tile(photo.size, 2), np.array([0, 1, 2]), np.full(3, 0.9), photo.size
        )

    model.set_detector(detect)
    return model


def _memory(folder: str, out: str) -> None:
    """List and relate all photos of a folder in one worker process; the parent stays small, too."""
    import torch

    from polyadic.engines.job import prepared, run_local
    from polyadic.engines.shards import Job
    from polyadic.experiments.photos import Question

    torch.set_num_threads(1)
    job = Job(out, "benchmark", _cheap_model, Question())
    with prepared(job, [folder], 500, resume=False, overwrite=False) as plan:
        done = sum(report.photos for report in run_local(job, plan.left, 1))
    print(f"RESULT {json.dumps({'items': done})}")


def memory(place: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for n in sizes:
        folder = write_photos(place / f"small-{n}", n, 96)
        command = [sys.executable, __file__, "step", "memory", folder, place / f"out-{n}"]
        yield measure(command, "three given boxes", what="memory", engine="local", workers=1, items=n)
        shutil.rmtree(folder)


def train(place: Path, images: int) -> Iterator[dict[str, Any]]:
    """Stage 1 on generated scenes; the features are cached before."""
    fields = {
        "data.dataset": "toy",
        "pixels.weights": "random",
        "pixels.side": "256",
        "pixels.longest": "320",
        "world.train": str(images),
        "world.test": "2",
        "validation.images": "1",
        "selection.epochs": "0",
        "triplets.epochs": "1",
        "triplets.slices": "2",
        "threads": "1",
        "workers": "0",
    }
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]
    for run, workers in (("fill", 1), ("one", 1), ("two", 2)):
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(workers)]
        out = place / "runs" / run
        command = [sys.executable, *torchrun, "-m", "polyadic", "train", "vrd", "--out", out, *words]
        row = measure(command, "whole run", what="train", engine="gloo", workers=workers, items=round(images * 0.9))
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        row["seconds"] = max(line["seconds"] for line in lines if line["event"] == "step")
        row["items_per_second"] = row["items"] / row["seconds"]
        if run != "fill":
            yield row | {"note": "seconds: the steps; CPU and memory: the whole run"}


def write_vg(root: Path, n: int) -> Path:
    """Files of VG150's layout with its mean number of boxes and relations per image."""
    import h5py

    rng = np.random.default_rng(0)
    root.mkdir(parents=True)
    boxes = rng.multinomial(round(BOXES * n / IMAGES) - 2 * n, np.full(n, 1 / n)) + 2
    relations = rng.multinomial(round(RELATIONS * n / IMAGES), np.full(n, 1 / n))
    last_box, last_relation = boxes.cumsum(), relations.cumsum()
    image = np.repeat(np.arange(n), relations)
    first = (last_box - boxes)[image]
    subject = rng.integers(0, boxes[image])
    object = (subject + rng.integers(1, boxes[image])) % boxes[image]
    frequent = 1 / np.arange(1, 51)
    sizes = rng.integers(20, 400, (boxes.sum(), 2))
    none = relations == 0
    with h5py.File(root / "VG-SGG.h5", "w") as file:
        for name, value in {
            "split": np.where(np.arange(n) < 0.7 * n, 0, 2).astype(np.int32),
            "img_to_first_box": last_box - boxes,
            "img_to_last_box": last_box - 1,
            "img_to_first_rel": np.where(none, -1, last_relation - relations),
            "img_to_last_rel": np.where(none, -1, last_relation - 1),
            "labels": rng.integers(1, 151, (boxes.sum(), 1)),
            "boxes_1024": np.concatenate([rng.integers(201, 560, (boxes.sum(), 2)), sizes], 1).astype(np.int32),
            "relationships": np.stack([first + subject, first + object], 1).astype(np.int32),
            "predicates": rng.choice(np.arange(1, 51), (len(image), 1), p=frequent / frequent.sum()),
        }.items():
            file[name] = value
    numbers = {
        "label_to_idx": {f"object{i}": i for i in range(1, 151)},
        "predicate_to_idx": {f"predicate{i}": i for i in range(1, 51)},
    }
    (root / "VG-SGG-dicts.json").write_text(json.dumps(numbers))
    records = [{"image_id": 10_000 + at, "width": 1024, "height": 768} for at in range(n)]
    (root / "image_data.json").write_text(json.dumps(records))
    return root


def _vg(step: str, root: str) -> None:
    """One step on the files; reading them again is part of every step but not of its time."""
    import torch

    from polyadic.datasets import load_dataset
    from polyadic.prior import TripletPrior

    torch.set_num_threads(1)
    start, cpu = time.monotonic(), time.process_time()
    splits = {split: load_dataset("vg150", root, split) for split in ("train", "test")}
    if step == "load and prior":
        data = splits["train"]
        triplets, reversals = map(torch.from_numpy, (data.triplets(), data.reversals()))
        TripletPrior.from_triplets(triplets, data.vocabulary, reversals=reversals)
    elif step == "evidence epoch":
        from polyadic import load_config
        from polyadic import train as train_model

        config = load_config("vg150").change(
            sources=("evidence",),
            threads=1,
            workers=0,
            **{"data.root": root, "head.hidden": 256, "head.rank": 5, "selection.epochs": 0, "triplets.epochs": 1},
            **{"triplets.images": 64, "validation.images": 1000, "triplets.optimiser": "adamw", "triplets.rate": 1e-3},
        )
        start, cpu = time.monotonic(), time.process_time()
        train_model(config, Path(root) / "run")
    else:
        from polyadic.evaluation import evaluate
        from polyadic.evaluation.baselines import CountTable
        from polyadic.structures.detections import Detections

        data, table = splits["test"], CountTable.fit(splits["train"], splits["train"].vocabulary)
        start, cpu = time.monotonic(), time.process_time()
        known = (Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes)), s.frame) for s in data)
        answers = (table.predict(boxes, 10) for boxes in known)
        evaluate(data, answers, ["lu2016", "motifs"], seen=splits["train"].triplets())
    print(f"RESULT {json.dumps({'seconds': time.monotonic() - start, 'cpu_seconds': time.process_time() - cpu})}")


def vg(place: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for n in sizes:
        root = write_vg(place / f"vg-{n}", n)
        for step in ("load and prior", "evidence epoch", "evaluation"):
            command = [sys.executable, __file__, "step", step, root]
            yield measure(command, what=f"vg {step}", engine="", workers=1, items=n)
        shutil.rmtree(root)


def main() -> None:
    if sys.argv[1:2] == ["step"]:
        (_memory if sys.argv[2] == "memory" else partial(_vg, sys.argv[2]))(*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--photos", type=int, default=320)
    parser.add_argument("--memory", type=int, nargs="+", default=[1000, 5000, 20_000])
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--vg", type=int, nargs="+", default=[1000, 10_000, IMAGES])
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    parts = {
        "photos": partial(photos, n=given.photos),
        "memory": partial(memory, sizes=given.memory),
        "train": partial(train, images=given.images),
        "vg": partial(vg, sizes=given.vg),
    }
    chosen = given.parts or list(parts)
    rows: list[dict[str, Any]] = []
    if given.csv and given.csv.exists():  # parts that are not measured now are kept
        with given.csv.open() as file:
            rows = [row for row in csv.DictReader(file) if row["what"].split()[0] not in chosen]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            for row in parts[name](Path(folder) / name):
                numbers = {key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}
                rows.append(numbers)
                if given.csv:
                    with given.csv.open("w", newline="") as file:
                        writer = csv.DictWriter(file, COLUMNS)
                        writer.writeheader()
                        writer.writerows(rows)


if __name__ == "__main__":
    main()
