"""Stored proposals: a detector's boxes of many images, in one file, read one image at a time.

    .safetensors  ours, with class distributions; what `polyadic detect run` writes
    .jsonl        ours, one image per line; .json: one such image, or a list of them
                  {"image": "a.jpg", "size": [800, 600], "boxes": [[x1, y1, x2, y2], ...],
                   "labels": ["person", ...], "scores": [0.9, ...]}
    .json         COCO's results, or a whole COCO file
    .mat          Lu's `objectDetRCNN.mat`

`size` is the frame of the boxes, by default the annotated one; scores are 1 by default; a label of null is unknown.
A predictions file will do as well, if its boxes have labels and confidences.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyadic.predictions.jsonl import numbers_of, size_of
from polyadic.predictions.lu_mat import read_lu_detections
from polyadic.predictions.tensors import read_tensors, write_tensors
from polyadic.scenes import UNKNOWN, Detections
from polyadic.scenes.coco_results import coco_images
from polyadic.scenes.detections import Choice, Own
from polyadic.scenes.foreign import assemble
from polyadic.scenes.naming import Matcher, read_mapping, sort_out, warn_of_dropped
from polyadic.strict_json import parse_json
from polyadic.vocabulary import PolyadicError, Vocabulary

_KEYS = ("image", "boxes", "labels", "scores", "size")
_OF_PREDICTIONS = ("pairs", "triplets", "confidences")


def read_detections(
    path: str | Path,
    vocabulary: Vocabulary,
    mapping: Own = None,
    unknown: Choice = "drop",
    sizes: Mapping[str, tuple[float, float]] | None = None,
    categories: Any = None,
) -> Iterator[Detections]:
    """Detections of a `.safetensors`, `.jsonl`, `.json` or `.mat` file; its class names are matched with ours.

    `mapping` (names to names, or a JSON or TOML file of them) is for names that do not match by themselves. Boxes of
    other classes are dropped, with one warning at the end, or kept as UNKNOWN. `sizes` are the frames of images whose
    size the file does not tell. `categories`, of COCO's results, is COCO's list or a file that has it; by default the
    results' own, or `categories.json` beside them.
    """
    path = existing(path)
    dropped: Counter[str] = Counter()
    seen = set()
    for each in _images(path, vocabulary, mapping, unknown, categories, dropped):
        if each.image in seen:
            raise PolyadicError(f"{path.name}: image {each.image!r} occurs twice; each needs one record")
        seen.add(each.image)
        yield each if each.size or not sizes else replace(each, size=sizes.get(each.image))
    warn_of_dropped(path.name, dropped, unknown)


def write_detections(
    path: str | Path,
    detections: Iterable[Detections],
    vocabulary: Vocabulary,
    overwrite: bool = False,
    **about: str,
) -> Path:
    """A `.safetensors` file, with class distributions (in float16) and `about` in its header, or a `.jsonl` without.

    The file gets its name when it is complete, and replaces another only when told to.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".safetensors", ".jsonl"):
        raise PolyadicError(
            f"{path}: detections are written as .safetensors or .jsonl, got {path.suffix or 'no suffix'!r}"
        )
    if path.exists() and not overwrite:
        raise PolyadicError(f"{path} exists; choose another name, or overwrite=True")
    if not path.parent.is_dir():
        raise PolyadicError(f"no folder {path.parent} to write {path.name} in")
    part = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        if path.suffix == ".safetensors":
            write_tensors(part, _once(detections), vocabulary, about)
        else:
            with part.open("w", encoding="utf-8") as file:
                for each in _once(detections):
                    file.write(json.dumps(_to_record(each, vocabulary), ensure_ascii=False) + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected a file")
    if not path.exists():
        raise PolyadicError(f"no file {path}")
    return path


def _once(detections: Iterable[Detections]) -> Iterator[Detections]:
    seen = set()
    for each in detections:
        if each.image in seen:
            raise PolyadicError(f"detections: image {each.image!r} occurs twice; each needs one record")
        seen.add(each.image)
        yield each


def _images(
    path: Path, vocabulary: Vocabulary, mapping: Own, unknown: Choice, categories: Any, dropped: Counter[str]
) -> Iterator[Detections]:
    if path.suffix == ".mat":
        if mapping is not None:
            raise PolyadicError(f"{path.name}: Lu's files number their classes, so no mapping of names applies")
        yield from read_lu_detections(path, vocabulary)
    elif path.suffix == ".safetensors":
        yield from read_tensors(path, vocabulary, mapping, unknown, dropped)
    elif path.suffix == ".json":
        content = parse_json(path.read_bytes(), path.name)
        records = content if isinstance(content, list) else [content]
        if _is_coco(content):
            yield from _coco(path, content, categories, vocabulary, mapping, unknown, dropped)
        else:
            find = Matcher(vocabulary, read_mapping(mapping))
            for at, record in enumerate(records):
                where = path.name if records is not content else f"{path.name}, record {at}"
                yield _from_record(record, find, unknown, dropped, where)
    else:
        find = Matcher(vocabulary, read_mapping(mapping))
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path.name}, line {number}"
                    yield _from_record(parse_json(line, where), find, unknown, dropped, where)


def _is_coco(content: Any) -> bool:
    if isinstance(content, list):
        return bool(content) and isinstance(content[0], dict) and "image_id" in content[0]
    return isinstance(content, dict) and "annotations" in content


def _coco(
    path: Path,
    content: Any,
    categories: Any,
    vocabulary: Vocabulary,
    mapping: Own,
    unknown: Choice,
    dropped: Counter[str],
) -> Iterator[Detections]:
    if categories is None and not (isinstance(content, dict) and "categories" in content):
        categories = path.with_name("categories.json")
        if not categories.exists():
            raise PolyadicError(
                f"{path.name}: COCO results name no classes; give a COCO file with categories, or put a "
                "categories.json beside it"
            )
    try:
        yield from coco_images(content, categories, vocabulary, None, mapping, unknown, dropped)
    except PolyadicError as error:
        raise PolyadicError(f"{path.name}: {error}") from error


def _from_record(record: Any, find: Matcher, unknown: Choice, dropped: Counter[str], where: str) -> Detections:
    if not isinstance(record, dict):
        raise PolyadicError(f"{where}: expected an object with {', '.join(_KEYS)}, got {record!r:.40}")
    foreign = next((key for key in record if key not in (*_KEYS, *_OF_PREDICTIONS)), None)
    if foreign is not None:
        raise PolyadicError(f"{where}: unknown key {foreign!r}; a record has {', '.join(_KEYS)}")
    predictions = "pairs" in record
    if predictions and not {"labels", "confidences"} <= record.keys():
        raise PolyadicError(f"{where}: image {record.get('image')!r} has no labels and confidences of its boxes")
    missing = next((key for key in ("image", "boxes", "labels") if key not in record), None)
    if missing:
        raise PolyadicError(f"{where}: no {missing!r}; a record has {', '.join(_KEYS)}")
    image, labels, scores = record["image"], record["labels"], record.get("confidences" if predictions else "scores")
    if not isinstance(image, str):
        raise PolyadicError(f"{where}, image: expected a name, got {image!r:.40}")
    if not isinstance(labels, list):
        raise PolyadicError(f"{where}, labels: expected a list of names, got {labels!r:.40}")
    for at, label in enumerate(labels):
        if not (label is None or isinstance(label, str)):
            raise PolyadicError(f"{where}, labels[{at}]: expected a name, got {label!r:.40}")
    boxes = numbers_of(record["boxes"], 4, f"{where}, boxes")
    scores = None if scores is None else numbers_of(scores, 0, f"{where}, scores")
    size = size_of(record, where)
    mapped = sort_out([label or "" for label in labels], find, unknown)
    dropped.update(mapped.unknown)
    try:
        return assemble(image, boxes, scores, mapped, len(labels), size)
    except PolyadicError as error:
        raise PolyadicError(f"{where}: {error}") from error


def _to_record(detections: Detections, vocabulary: Vocabulary) -> dict[str, Any]:
    record: dict[str, Any] = {"image": detections.image}
    if detections.size is not None:
        record["size"] = list(detections.size)
    outside = detections.labels >= len(vocabulary.objects)
    if outside.any():
        at = int(detections.labels[outside][0])
        raise PolyadicError(f"{detections.image}: label {at} is outside the {len(vocabulary.objects)} object classes")
    record["boxes"] = detections.boxes.tolist()
    labels = detections.labels.tolist()
    record["labels"] = [None if label == UNKNOWN else vocabulary.objects[label] for label in labels]
    record["scores"] = detections.scores.tolist()
    return record
