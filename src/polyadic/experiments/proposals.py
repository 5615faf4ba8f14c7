"""A split's proposals: write a trained detector's boxes, for training (stage 1b) and evaluation.

While it runs, finished parts are stored in a folder beside the file, so that an interruption costs little.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch

from polyadic.config import DetectorConfig
from polyadic.detectors.faster_rcnn import Detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.runs import change_data
from polyadic.files import WEIGHTS, find_model, write_text
from polyadic.io.records import read_detections, write_detections
from polyadic.model.storage import pick_device
from polyadic.progress import Interrupted
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.detector import detector_run_config
from polyadic.training.examples import load_split
from polyadic.training.proposals import detect_scenes

PART = 200  # images per part
MOST = 5000  # images used for mAP: more change it little and take much memory


@dataclass(frozen=True)
class Proposals:
    """A file of proposals and their quality."""

    path: Path
    images: int
    boxes: int
    precision: dict[str, float]  # mAP and AP50 in percent; empty where nothing is annotated
    ceiling: float  # percent of relations with both boxes found: the limit of any ranking; NaN without relations
    labelled: float  # and with the right labels


def detect_split(
    run: str | Path,
    split: str,
    out: str | Path,
    *,
    dataset: str | None = None,
    root: str | Path | None = None,
    batch: int = 8,
    resume: bool = False,
    overwrite: bool = False,
) -> Proposals:
    """Write the boxes of all images of a split to a `.safetensors` or `.jsonl` file."""
    out = Path(out).expanduser()
    parts = out.with_name(f"{out.name}.parts")
    _check_out(out, parts, resume, overwrite)
    config, folder = _open_detector(Path(run).expanduser(), dataset, root)
    data = load_split(config, split, config.data.pictures)
    about = {"detector": _digest(folder / WEIGHTS), "dataset": data.name, "split": split, "images": str(len(data))}
    if overwrite or not out.exists():
        device = pick_device("cpu" if config.device == "cpu" else "auto")  # the run may be from another machine
        detector = Detector.load(folder, device, data.vocabulary)
        if config.threads:
            torch.set_num_threads(config.threads)
        if overwrite and parts.exists():
            shutil.rmtree(parts)
        done = _begin(parts, about, data)
        detected = detect_scenes(detector, data.scenes[done:], batch, config.workers)
        _store(parts, (detections for _, detections in detected), data)
        whole = chain.from_iterable(read_detections(part, data.vocabulary) for part in _stored(parts))
        write_detections(out, whole, data.vocabulary, overwrite=overwrite, **about)
        shutil.rmtree(parts)
    return _measure(out, data)


def _check_out(out: Path, parts: Path, resume: bool, overwrite: bool) -> None:
    if out.suffix not in (".safetensors", ".jsonl"):
        raise PolyadicError(f"proposals are written as .safetensors (with class distributions) or .jsonl, got {out}")
    if not out.parent.is_dir():
        raise PolyadicError(f"no folder {out.parent} to write {out.name} in")
    if not (resume or overwrite):
        if parts.exists():
            raise PolyadicError(f"{out} is incomplete: continue it with --resume, or replace it with --overwrite")
        if out.exists():
            raise PolyadicError(f"{out} exists: choose another name, or replace it with --overwrite")


def _open_detector(run: Path, dataset: str | None, root: str | Path | None) -> tuple[DetectorConfig, Path]:
    """Find the config, with the requested data, and the folder of the detector itself."""
    folder = find_model(run, "`polyadic detect train` and Detector.save")
    is_run = folder.name == "model" and (folder.parent / "config.json").is_file()
    config = detector_run_config(folder.parent if is_run else folder)  # a run's config has the path of the data
    return change_data(config, dataset, root), folder


def _begin(parts: Path, about: dict[str, str], data: Dataset) -> int:
    """Prepare the folder of parts; return how many images are in it already."""
    record = parts / "about.json"
    if not record.exists():
        parts.mkdir(exist_ok=True)
        write_text(record, json.dumps(about))
    before = json.loads(record.read_text(encoding="utf-8"))
    for key, value in about.items():
        if before.get(key) != value:
            raise PolyadicError(
                f"{parts} was started with another {key}: continue with the same one, or use --overwrite"
            )
    return sum(len(list(read_detections(part, data.vocabulary))) for part in _stored(parts))


def _stored(parts: Path) -> list[Path]:
    return sorted(parts.glob("*.safetensors"))


def _store(parts: Path, detected: Iterator[Detections], data: Dataset) -> None:
    """Write in parts; an interruption keeps what has been detected."""
    number = len(_stored(parts))
    while True:
        some: list[Detections] = []
        try:
            some.extend(islice(detected, PART))
        except (Interrupted, PolyadicError):
            _write(parts, number, some, data)
            raise
        if not some:
            return
        _write(parts, number, some, data)
        number += 1


def _write(parts: Path, number: int, some: Sequence[Detections], data: Dataset) -> None:
    if some:
        write_detections(parts / f"{number:06}.safetensors", some, data.vocabulary)


def _measure(out: Path, data: Dataset) -> Proposals:
    """Measure precision and ceilings of a file of proposals."""
    protocol = get_protocol("lu2016").change(task="relationship")
    ceilings = Ceiling(protocol, relabel=True), Ceiling(protocol)
    counts = []
    counted: list[tuple[Scene, Detections]] = []
    scenes = {scene.name: scene for scene in data}
    for detections in read_detections(out, data.vocabulary):
        if detections.image not in scenes:
            raise PolyadicError(f"{out} has {detections.image!r}, which is not an image of {data.name} {data.split}")
        scene = scenes[detections.image]
        inside = detections.inside(scene.frame)
        for ceiling in ceilings:
            ceiling.update(scene, inside.boxes, inside.labels)
        counts.append(len(detections))
        if len(counted) < MOST:
            counted.append((scene, detections))
    precision = average_precision(counted, len(data.vocabulary.objects))
    return Proposals(out, len(counts), sum(counts), precision, *(ceiling.result() for ceiling in ceilings))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
