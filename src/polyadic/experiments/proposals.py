"""A split's proposals: what a trained detector finds, written once, for training (stage 1b) and evaluation.

While it runs, parts of the file stand in a folder beside it, so that an interruption costs little.
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
from polyadic.datasets import format_of
from polyadic.detectors.faster_rcnn import Detector
from polyadic.evaluation.average_precision import average_precision
from polyadic.evaluation.baselines import Ceiling
from polyadic.evaluation.protocol import get_protocol
from polyadic.files import WEIGHTS, find_model, write_text
from polyadic.io.records import read_detections, write_detections
from polyadic.progress import Interrupted
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.detector import detector_run_config
from polyadic.training.examples import load_split
from polyadic.training.proposals import detect_scenes
from polyadic.training.trainer import pick_device

PART = 200  # images per part
MOST = 5000  # images that count for mAP: beyond them it changes little, and takes much memory


@dataclass(frozen=True)
class Proposals:
    """A file of proposals, and how good they are."""

    path: Path
    images: int
    boxes: int
    precision: dict[str, float]  # mAP and AP50, in percent; empty where nothing is annotated
    ceiling: float  # percent of relations whose two boxes are found: what no ranking can exceed; nan without relations
    labelled: float  # and whose labels are right as well


def detect_split(
    run: str | Path,
    split: str,
    out: str | Path,
    dataset: str | None = None,
    root: str | Path | None = None,
    batch: int = 8,
    resume: bool = False,
    overwrite: bool = False,
) -> Proposals:
    """The boxes of all images of a split, into a `.safetensors` or `.jsonl` file."""
    out = Path(out).expanduser()
    parts = out.with_name(f"{out.name}.parts")
    _check_out(out, parts, resume, overwrite)
    config, folder = _opened(Path(run).expanduser(), dataset, root)
    data = load_split(config, split, config.data.pictures)
    about = {"detector": _digest(folder / WEIGHTS), "dataset": data.name, "split": split, "images": str(len(data))}
    if overwrite or not out.exists():
        device = pick_device("cpu" if config.device == "cpu" else "auto")  # maybe another machine's
        detector = Detector.load(folder, device, data.vocabulary)
        if config.threads:
            torch.set_num_threads(config.threads)
        if overwrite and parts.exists():
            shutil.rmtree(parts)
        done = _begin(parts, about, data)
        found = detect_scenes(detector, data.scenes[done:], batch, config.workers)
        _store(parts, (each for _, each in found), data)
        whole = chain.from_iterable(read_detections(part, data.vocabulary) for part in _stored(parts))
        write_detections(out, whole, data.vocabulary, overwrite=overwrite, **about)
        shutil.rmtree(parts)
    return _judge(out, data)


def _check_out(out: Path, parts: Path, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise PolyadicError("--resume goes on with a file and --overwrite makes it anew: give one of them")
    if out.suffix not in (".safetensors", ".jsonl"):
        raise PolyadicError(f"proposals are written as .safetensors (with class distributions) or .jsonl, got {out}")
    if not out.parent.is_dir():
        raise PolyadicError(f"no folder {out.parent} to write {out.name} in")
    if not (resume or overwrite):
        if parts.exists():
            raise PolyadicError(f"{out} was begun before: --resume goes on with it, --overwrite begins anew")
        if out.exists():
            raise PolyadicError(f"{out} exists already: choose another name (--overwrite makes it anew)")


def _opened(run: Path, dataset: str | None, root: str | Path | None) -> tuple[DetectorConfig, Path]:
    """The config, with the data that is asked for, and the folder of the detector itself."""
    folder = find_model(run, "`polyadic detect train` and Detector.save")
    known = folder.parent if folder.name == "model" and (folder.parent / "config.json").is_file() else folder
    config = detector_run_config(known)  # the run knows more: where the data is
    if dataset is not None and dataset != config.data.dataset:
        format_of(dataset)
        config = config.change(**{"data.dataset": dataset, "data.root": ""})
    if root is not None:
        if config.data.dataset == "toy":
            raise PolyadicError(f"toy is drawn and takes no root, got {root}")
        config = config.change(**{"data.root": str(root)})
    return config, folder


def _begin(parts: Path, about: dict[str, str], data: Dataset) -> int:
    """The folder of parts; how many images are in it already."""
    told = parts / "about.json"
    if not told.exists():
        parts.mkdir(exist_ok=True)
        write_text(told, json.dumps(about))
    before = json.loads(told.read_text(encoding="utf-8"))
    for key, value in about.items():
        if before.get(key) != value:
            raise PolyadicError(f"{parts} was begun with another {key}: finish it as it was, or use --overwrite")
    return sum(len(list(read_detections(part, data.vocabulary))) for part in _stored(parts))


def _stored(parts: Path) -> list[Path]:
    return sorted(parts.glob("*.safetensors"))


def _store(parts: Path, found: Iterator[Detections], data: Dataset) -> None:
    """In parts; what has been found stays, whenever this is interrupted."""
    number = len(_stored(parts))
    while True:
        some: list[Detections] = []
        try:
            some.extend(islice(found, PART))
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


def _judge(out: Path, data: Dataset) -> Proposals:
    protocol = get_protocol("lu2016").change(task="relationship")
    ceiling, labelled = Ceiling(protocol, relabel=True), Ceiling(protocol)
    counts = []
    counted: list[tuple[Scene, Detections]] = []
    scenes = {scene.name: scene for scene in data}
    for found in read_detections(out, data.vocabulary):
        if found.image not in scenes:
            raise PolyadicError(f"{out} has {found.image!r}, which is no image of {data.name} {data.split}")
        scene = scenes[found.image]
        inside = found.inside(scene.frame)
        for each in (ceiling, labelled):
            each.update(scene, inside.boxes, inside.labels)
        counts.append(len(found))
        if len(counted) < MOST:
            counted.append((scene, found))
    precision = average_precision(counted, len(data.vocabulary.objects))
    return Proposals(out, len(counts), sum(counts), precision, ceiling.result(), labelled.result())


def _digest(path: Path) -> str:
    value = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value.update(block)
    return value.hexdigest()
