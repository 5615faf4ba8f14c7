"""What `polyadic predict` works with: the model, the detector, whose names are whose, and the photos."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.model.relation_model import RelationModel
    from polyadic.structures.labels import NameMapping, UnknownPolicy


def part(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """RUN, if the first word is a folder that holds a model, and PATHS."""
    from polyadic.files import is_model

    if words and is_model(Path(words[0]).expanduser()):
        return Path(words[0]), list(words[1:])
    return None, list(words)


def choose_photos(run: Path | None, paths: Sequence[str]) -> list[Path]:
    """What PATHS name, some of which must be there. Without a RUN, the first of them may be meant for one."""
    from glob import has_magic

    from polyadic.experiments.photos import PICTURES, find_photos

    if run is None and paths:
        first = Path(paths[0]).expanduser()
        if not os.path.lexists(first) and not has_magic(paths[0]) and first.suffix.lower() not in PICTURES:
            raise PolyadicError(f"{paths[0]}: no such run, photo or folder")
        if first.is_dir():
            try:
                find_photos(paths[:1])
            except PolyadicError as error:
                kinds = ", ".join(sorted(PICTURES))
                raise PolyadicError(
                    f"{paths[0]} holds neither a saved model (model.safetensors) nor a picture ({kinds})"
                ) from error
    photos = find_photos(paths)
    if photos and not any(os.path.lexists(path) for path in photos):
        others = f", nor any of the {len(photos) - 1:,} others" if len(photos) > 1 else ""
        raise PolyadicError(f"no image {photos[0]}{others}")
    return photos


def load_model(run: Path | None, device: str, threads: int) -> RelationModel:
    """A run's, or the one that comes with the package."""
    import torch

    from polyadic.model.relation_model import RelationModel
    from polyadic.training.trainer import pick_device

    if threads:
        torch.set_num_threads(threads)
    if run is not None:
        return RelationModel.load(run, pick_device(device))
    from polyadic.pretrained import MODELS

    name = next(iter(MODELS))
    typer.echo(f"the model that comes with polyadic: {MODELS[name]} ({name})", err=True)
    return RelationModel.shipped(name, pick_device(device))


def set_detector(
    model: RelationModel, word: str, names: Path | None, mapping: NameMapping, unknown: UnknownPolicy
) -> None:
    """By the name of one of torchvision's, or by file or folder."""
    from polyadic.detectors.coco import NETWORKS

    if word in NETWORKS:
        _set_coco(model, word, mapping, unknown)
    elif Path(word).suffix.lower() == ".onnx":
        from polyadic.detectors.onnx import OnnxDetector

        found = OnnxDetector(word, model.vocabulary, names=names, mapping=mapping, unknown=unknown)
        typer.echo(found.label_map.report(), err=True)
        model.detector = found
    else:
        from polyadic.detectors.faster_rcnn import Detector

        model.detector = Detector.load(Path(word).expanduser(), model.device, model.vocabulary)


def _set_coco(model: RelationModel, network: str, mapping: NameMapping, unknown: UnknownPolicy) -> None:
    from polyadic.detectors.coco import CocoDetector, weights_file
    from polyadic.detectors.weights import pretrained

    typer.echo(f"the detector: torchvision's Faster R-CNN, trained on COCO ({network})", err=True)
    if not weights_file(network).exists():
        typer.echo(f"its weights, {pretrained(network).meta['_file_size']:.0f} MB, are fetched once", err=True)
    try:
        found = CocoDetector(model.vocabulary, network, mapping, unknown, model.device)
    except PolyadicError as error:
        raise PolyadicError(f"{error}, or give --detector FILE.onnx, or boxes with --detections FILE") from error
    typer.echo(found.label_map.report(), err=True)
    model.detector = found


def fingerprint(
    run: Path | None, detector: str | None, others: Sequence[Path | None], options: Sequence[object]
) -> str:
    """Of all that a record depends on but its photo: SHA-256 of files' bytes, and of the options."""
    import hashlib

    from polyadic.detectors.coco import NETWORKS, weights_file
    from polyadic.pretrained import model_folder

    found = None
    if detector is not None:
        found = weights_file(detector) if detector in NETWORKS else Path(detector)
    value = hashlib.sha256(repr(tuple(options)).encode())
    for path in (run or model_folder(), found, *others):
        value.update(b"|")
        for file in [] if path is None else _files(path.expanduser()):
            value.update(hashlib.sha256(file.read_bytes()).digest())
    return value.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    model = path / "model" if (path / "model").is_dir() else path
    return sorted(each for each in model.rglob("*") if each.suffix in (".safetensors", ".json"))
