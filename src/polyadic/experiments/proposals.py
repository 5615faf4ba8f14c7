"""A split's proposals: write a trained detector's boxes, for training (stage 1b) and evaluation.

While it runs, finished parts are stored in a folder beside the file, so that an interruption costs little.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from polyadic.config import DetectorConfig
from polyadic.detectors import load_detector
from polyadic.detectors.detector import Detector
from polyadic.detectors.witnesses import name_boxes
from polyadic.evaluation.average_precision import average_precision
from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.runs import change_data
from polyadic.files import LOCK_FILE, check_output, check_place, find_model, identify, lock_folder
from polyadic.io.records import read_detections, write_detections
from polyadic.model.storage import pick_device
from polyadic.pretrained import DETECTOR, detector_folder, synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.detector import detector_run_config
from polyadic.training.examples import load_split
from polyadic.training.proposals import detect_stored, fingerprint, in_fold, parts_folder

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
    beside: str | Path | None = None,
    batch: int = 8,
    resume: bool = False,
    overwrite: bool = False,
) -> Proposals:
    """Write the boxes of all images of a split to a `.safetensors` or `.jsonl` file.

    A detector of one fold (`data.folds`) looks at the training images that it has not seen. `beside` is a file of other
    detectors' boxes to join, or an .onnx detector; the detector's second look, if it has one, names them.
    """
    out = Path(out).expanduser()
    parts = out.with_name(f"{out.name}.parts")
    check_place(out, option="--out", inputs=identify([None if beside is None else Path(beside)]))
    _check_out(out, parts, resume, overwrite)
    config, folder = _open_detector(Path(run).expanduser(), dataset, root)
    data = load_split(config, split, config.data.pictures)
    if config.data.folds and split != "test":
        left_out = in_fold(data.scenes, config.data.folds, config.data.fold)
        data = data.keep(lambda scene: scene.name in left_out, split)
    others = None if beside is None else _others(Path(beside), data)
    if overwrite or not out.exists():
        device = pick_device("cpu" if config.device == "cpu" else "auto")  # the run may be from another machine
        detector = Detector.load(folder, device, data.vocabulary)
        if config.threads:
            torch.set_num_threads(config.threads)
        with _only_one(out, parts):
            if out.exists() and not overwrite:
                raise PolyadicError(f"{out} was written by another process in the meantime")
            stored = parts_folder(parts, detector, data.scenes)
            started = [path for path in parts.iterdir() if path.name not in (LOCK_FILE, stored.name)]
            if started and not overwrite:
                raise PolyadicError(
                    f"{parts} was started with another detector or split: continue with the same one, or use "
                    "--overwrite"
                )
            for path in [*started, stored] if overwrite else ():
                shutil.rmtree(path, ignore_errors=True)
            boxes: Iterable[Detections] = detect_stored(
                detector, data.scenes, stored, batch=batch, workers=config.workers
            )
            if others is not None:
                boxes = _joined(detector, boxes, data, others, names=(folder_name(run), Path(str(beside)).stem))
            about = {"detector": fingerprint(detector), "dataset": data.name, "split": split, "images": str(len(data))}
            write_detections(out, boxes, data.vocabulary, overwrite=overwrite, **about)
            shutil.rmtree(parts, ignore_errors=True)
    return _measure(out, data)


def _others(beside: Path, data: Dataset) -> Callable[[Scene], Detections | None]:
    """Find another detector's boxes of an image: with an .onnx file, or in a file of boxes."""
    if beside.suffix.lower() == ".onnx":
        detector = load_detector(beside, data.vocabulary, mapping=synonyms(data.vocabulary))
        return lambda scene: replace(detector(scene.photo()), image=scene.name)
    found = {boxes.image: boxes for boxes in read_detections(beside, data.vocabulary)}
    return lambda scene: found.get(scene.name)


def _joined(
    detector: Detector,
    detected: Iterable[Detections],
    data: Dataset,
    others: Callable[[Scene], Detections | None],
    *,
    names: tuple[str, str],
) -> Iterator[Detections]:
    """Join the boxes of other detectors, named by this one."""
    scenes = {scene.name: scene for scene in data}
    for own in detected:
        scene = scenes[own.image]
        more = (others(scene) or own.take(np.zeros(0, np.int64))).inside(scene.frame)
        named = name_boxes(detector, scene.photo(), more).in_frame(scene.frame)
        yield Detections.join(own.in_frame(scene.frame), named, names=names)


def folder_name(run: str | Path) -> str:
    """Return the name of a detector: that of its run."""
    path = Path(run).expanduser().resolve()
    return path.parent.name if path.name == "model" else path.name


def _check_out(out: Path, parts: Path, resume: bool, overwrite: bool) -> None:
    if out.suffix not in (".safetensors", ".jsonl"):
        raise PolyadicError(f"proposals are written as .safetensors (with class distributions) or .jsonl, got {out}")
    if overwrite:
        check_output(out, "records", option="--out", replace=True)
        others = [path.name for path in parts.glob("*") if not re.fullmatch(rf"[0-9a-f]{{16}}|\{LOCK_FILE}", path.name)]
        if others:
            raise PolyadicError(f"--overwrite would delete {parts / others[0]}, which is not part of {out}: move it")
    if not (resume or overwrite):
        if parts.exists():
            with _only_one(out, parts):
                pass
            raise PolyadicError(f"{out} is incomplete: continue it with --resume, or replace it with --overwrite")
        if out.exists():
            raise PolyadicError(f"{out} exists: choose another name, or replace it with --overwrite")


def _only_one(out: Path, parts: Path) -> AbstractContextManager[None]:
    return lock_folder(parts, f"--out: another process is writing {out}; wait for it, or choose another file")


def _open_detector(run: Path, dataset: str | None, root: str | Path | None) -> tuple[DetectorConfig, Path]:
    """Find the config, with the requested data, and the folder of the detector itself."""
    folder = detector_folder() if str(run) == DETECTOR else find_model(run, "`polyadic detect train` and Detector.save")
    is_run = folder.name == "model" and (folder.parent / "config.json").is_file()
    config = detector_run_config(folder.parent if is_run else folder)  # a run's config has the path of the data
    return change_data(config, dataset, root), folder


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
