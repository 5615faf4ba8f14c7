"""Detections in a safetensors file: the boxes of all images one after another, `offsets[i]:offsets[i + 1]` is image i.

Image names, sizes and the vocabulary are JSON texts in the header. Images are read one at a time by slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.files import parse_json
from polyadic.io.published import located
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN, LabelMap, LabelReader
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

FORMAT = "polyadic detections 1"
# `told` (a name of the file format): whether an image has class distributions, whose rows are in `distribution`
_COLUMNS = {"boxes": "f8", "scores": "f8", "offsets": "i8", "labels": "i4", "distribution": "f2", "told": "u1"}
_WHOLE = frozenset(("I8", "I16", "I32", "I64", "U8", "U16", "U32"))  # safetensors' names of types
_REAL = frozenset(("F16", "F32", "F64"))
_SOURCE = "source"  # a column of files with boxes of several detectors: an index into the header's `sources`, or -1


def write_tensors(
    path: Path, detections: Iterable[Detections], vocabulary: Vocabulary, about: Mapping[str, str]
) -> None:
    """Write all images; class distributions in float16."""
    from safetensors.numpy import save_file

    classes = len(vocabulary.objects)
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    columns["offsets"].append([0])
    names, sizes, total = [], [], 0
    sources: dict[str, int] = {}
    seen_by: list[int] = []
    for image in detections:
        known = image.distribution is not None
        if image.distribution is not None:
            if image.distribution.shape[1] != classes:
                width = image.distribution.shape[1]
                raise PolyadicError(f"{image.image}: distribution has {width} columns for {classes} object classes")
            columns["distribution"].append(image.distribution.astype(np.float16))
        names.append(image.image)
        sizes.append(image.size)
        total += len(image)
        witnesses = [None] * len(image) if image.source is None else image.source.tolist()
        seen_by += [-1 if name is None else sources.setdefault(name, len(sources)) for name in witnesses]
        rows = {"boxes": image.boxes, "scores": image.scores, "labels": image.labels}
        for name, values in (rows | {"told": [known], "offsets": [total]}).items():
            columns[name].append(values)
    empty = {"boxes": np.zeros((0, 4)), "distribution": np.zeros((0, classes))}
    tensors = {
        name: np.concatenate([empty.get(name, np.zeros(0)), *columns[name]]).astype(dtype)
        for name, dtype in _COLUMNS.items()
    }
    texts = {"images": json.dumps(names), "sizes": json.dumps(sizes), "about": json.dumps(dict(about))}
    texts |= {"format": FORMAT, "vocabulary": vocabulary.to_json()}
    if sources:
        tensors[_SOURCE] = np.array(seen_by, np.int32)
        texts["sources"] = json.dumps(list(sources))
    save_file(tensors, path, {"polyadic": json.dumps(texts)})  # safetensors writes several keys in random order


def read_tensors(path: Path, reader: LabelReader) -> Iterator[Detections]:
    """Read one image after another; classes of another vocabulary are matched by name."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(path), framework="np")
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not a complete safetensors file ({reason:.100})") from error
    with file:
        names, sizes, vocabulary = _header(path, file.metadata() or {})
        offsets, has_distribution = _check(path, file, (names, sizes), vocabulary)
        columns = {name: file.get_slice(name) for name in _COLUMNS}
        label_map = LabelMap.match(vocabulary.objects, reader.vocabulary, reader.mapping)
        same = reader.mapping is None and vocabulary.objects == reader.vocabulary.objects
        targets = {**label_map.targets, "": UNKNOWN}
        objects = [*vocabulary.objects, ""]  # the label -1 is the last
        sources, seen_by = _sources(path, file, columns["labels"].get_shape()[0])
        row = 0
        for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
            start, end = int(offsets[at]), int(offsets[at + 1])
            labels = _rows(columns["labels"], start, end).tolist()
            mapped = reader.map([objects[label] for label in labels], targets.__getitem__)
            distribution = None
            if has_distribution[at]:
                distribution = _rows(columns["distribution"], row, row + end - start).astype(np.float32)[mapped.rows]
                distribution = distribution if same else label_map.spread(distribution)
                row += end - start
            boxes, scores = (_rows(columns[column], start, end)[mapped.rows] for column in ("boxes", "scores"))
            numbers = seen_by[start:end][mapped.rows]
            source = sources[numbers] if len(numbers) and (numbers >= 0).all() else None
            with located(path.name):
                image = Detections(name, boxes, mapped.labels, scores, size, distribution=distribution, source=source)
            yield image


def _sources(path: Path, file: Any, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the names of the detectors and which of them saw each box; -1 where the file does not say."""
    if _SOURCE not in file.keys():  # noqa: SIM118, not a dict
        return np.zeros(0, np.str_), np.full(total, -1)
    column = file.get_slice(_SOURCE)
    names = parse_json(_text(path, read_header(file.metadata()), "sources"), f"{path.name}, sources", list[str])
    seen_by = file.get_tensor(_SOURCE) if column.get_dtype() in _WHOLE else np.zeros(0)
    if seen_by.shape != (total,) or (total and not -1 <= seen_by.min() <= seen_by.max() < len(names)):
        raise PolyadicError(f"{path.name}: source does not number the {len(names)} detectors of the header")
    return np.array(names, np.str_), seen_by


def _rows(column: Any, start: int, end: int) -> np.ndarray:
    """Slice a column; safetensors refuses an empty slice at its end."""
    return np.asarray(column[start:end]) if end > start else np.zeros((0, *column.get_shape()[1:]))


def read_header(metadata: Mapping[str, str]) -> dict[str, str]:
    """Get the header's texts: `format`, `vocabulary`, `images`, `sizes`, `about`; older files have them bare."""
    if "polyadic" not in metadata:
        return dict(metadata)
    texts: dict[str, str] = parse_json(metadata["polyadic"].encode(), "its header", dict[str, str])
    return texts


def _text(path: Path, texts: Mapping[str, str], name: str) -> bytes:
    if name not in texts:
        raise PolyadicError(f"{path.name}: damaged header, without {name!r}")
    return texts[name].encode("utf-8", "surrogatepass")


def _header(path: Path, metadata: Mapping[str, str]) -> tuple[list[str], list[tuple[float, float] | None], Vocabulary]:
    with located(path.name):
        texts = read_header(metadata)
    if texts.get("format") != FORMAT:
        raise PolyadicError(f"{path.name} does not hold detections; its header says {texts.get('format')!r:.40}")
    names = parse_json(_text(path, texts, "images"), f"{path.name}, images", list[str])
    frames = parse_json(_text(path, texts, "sizes"), f"{path.name}, sizes", list[tuple[float, float] | None])
    with located(path.name):
        vocabulary = Vocabulary.from_json(texts.get("vocabulary", ""))
    return names, frames, vocabulary


def _check(
    path: Path, file: Any, lists: tuple[list[Any], list[Any]], vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Read `offsets` and `told`, if the columns and the header's lists fit together."""
    missing = next((name for name in _COLUMNS if name not in file.keys()), None)  # noqa: SIM118, not a dict
    if missing:
        raise PolyadicError(f"{path.name}: no column {missing!r} of detections")
    for name, kind in _COLUMNS.items():
        column, axes = file.get_slice(name), 2 if name in ("boxes", "distribution") else 1
        if column.get_dtype() not in (_REAL if kind[0] == "f" else _WHOLE) or len(column.get_shape()) != axes:
            raise PolyadicError(f"{path.name}: {name} is {column.get_dtype()} {column.get_shape()}, not of detections")
    offsets, has_distribution, labels = (file.get_tensor(name) for name in ("offsets", "told", "labels"))
    offsets = offsets.astype(np.int64)
    images, total = len(has_distribution), len(labels)
    if len(offsets) != images + 1 or offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise PolyadicError(f"{path.name}: offsets do not divide {total} boxes among {images} images")
    rows = int(np.diff(offsets)[has_distribution.astype(bool)].sum())
    expected = {"boxes": [total, 4], "scores": [total], "distribution": [rows, len(vocabulary.objects)]}
    fits = all(file.get_slice(name).get_shape() == shape for name, shape in expected.items())
    if not fits or any(len(values) != images for values in lists):
        raise PolyadicError(f"{path.name}: columns of different lengths; is it cut off, or from another program?")
    if total and not UNKNOWN <= labels.min() <= labels.max() < len(vocabulary.objects):
        raise PolyadicError(f"{path.name}: labels outside the {len(vocabulary.objects)} classes of its vocabulary")
    return offsets, has_distribution
