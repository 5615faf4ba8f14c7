"""Detections in a safetensors file: the boxes of all images one after another, `offsets[i]:offsets[i + 1]` is image i.

Written through temporary files and read by slices, so that neither side holds all class distributions at once.
Names of images, their sizes and the vocabulary are JSON texts in the header.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN, Choice, LabelMap, Own, sort_out
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

FORMAT = "polyadic detections 1"
# from wide to narrow, so that each stands where its numbers may; `told`: whether an image has distributions
_COLUMNS = {"boxes": "<f8", "scores": "<f8", "offsets": "<i8", "labels": "<i4", "distribution": "<f2", "told": "|u1"}
_WORDS = {"<f8": "F64", "<i8": "I64", "<i4": "I32", "<f2": "F16", "|u1": "U8"}


def write_tensors(
    path: Path, detections: Iterable[Detections], vocabulary: Vocabulary, about: Mapping[str, str]
) -> None:
    classes = len(vocabulary.objects)
    names, sizes, total, told = [], [], 0, 0
    with ExitStack() as stack:
        parts = {name: stack.enter_context(TemporaryFile(dir=path.parent)) for name in _COLUMNS}

        def put(name: str, values: Any) -> None:
            parts[name].write(np.asarray(values, _COLUMNS[name]).tobytes())

        put("offsets", [0])
        for each in detections:
            if (each.labels >= classes).any():
                wrong = int(each.labels.max())
                raise PolyadicError(f"{each.image}: label {wrong} is outside the {classes} object classes")
            known = each.distribution is not None
            if each.distribution is not None:
                if each.distribution.shape[1] != classes:
                    columns = each.distribution.shape[1]
                    raise PolyadicError(
                        f"{each.image}: distribution has {columns} columns for {classes} object classes"
                    )
                put("distribution", each.distribution)
            names.append(each.image)
            sizes.append(each.size)
            total, told = total + len(each), told + len(each) * known
            put("boxes", each.boxes)
            put("scores", each.scores)
            put("labels", each.labels)
            put("told", [known])
            put("offsets", [total])
        texts = {"images": json.dumps(names), "sizes": json.dumps(sizes), "about": json.dumps(about)}
        shapes = {"boxes": [total, 4], "distribution": [told, classes], "offsets": [len(names) + 1]}
        shapes |= {"scores": [total], "labels": [total], "told": [len(names)]}
        header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "vocabulary": vocabulary.to_json(), **texts}}
        start = 0
        for name, dtype in _COLUMNS.items():
            end = start + parts[name].tell()
            header[name] = {"dtype": _WORDS[dtype], "shape": shapes[name], "data_offsets": [start, end]}
            start = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for part in parts.values():
                part.seek(0)
                shutil.copyfileobj(part, file, 1 << 20)


def read_tensors(
    path: Path, vocabulary: Vocabulary, mapping: Own, unknown: Choice, dropped: Counter[str]
) -> Iterator[Detections]:
    """The images of a file; if it has another vocabulary, its classes are matched by name."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(path), framework="np")
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not a complete safetensors file ({reason:.100})") from error
    with file:
        names, sizes, theirs = _header(path, file.metadata() or {})
        offsets, told = _check(path, file, names, sizes, theirs)
        columns = {name: file.get_slice(name) for name in _COLUMNS}
        label_map = LabelMap.match(theirs.objects, vocabulary, mapping)
        same = mapping is None and theirs.objects == vocabulary.objects
        known = {**label_map.targets, "": UNKNOWN}
        objects = [*theirs.objects, ""]  # -1 is the last
        row = 0
        for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
            start, end = int(offsets[at]), int(offsets[at + 1])
            labels = _rows(columns["labels"], start, end).tolist()
            mapped = sort_out([objects[label] for label in labels], known.__getitem__, unknown)
            dropped.update(mapped.unknown)
            distribution = None
            if told[at]:
                distribution = _rows(columns["distribution"], row, row + end - start).astype(np.float32)[mapped.rows]
                distribution = distribution if same else label_map.spread(distribution)
                row += end - start
            boxes, scores = (_rows(columns[each], start, end)[mapped.rows] for each in ("boxes", "scores"))
            try:
                found = Detections(name, boxes, mapped.labels, scores, size, distribution)
            except PolyadicError as error:
                raise PolyadicError(f"{path.name}: {error}") from error
            yield found


def _rows(column: Any, start: int, end: int) -> np.ndarray:
    """Of a column; an empty slice at its end is refused by safetensors."""
    return np.asarray(column[start:end]) if end > start else np.zeros((0, *column.get_shape()[1:]))


def _header(path: Path, texts: Mapping[str, str]) -> tuple[list[str], list[tuple[float, float] | None], Vocabulary]:
    if texts.get("format") != FORMAT:
        raise PolyadicError(f"{path.name}: no file of detections; its header says {texts.get('format')!r:.40}")
    try:
        names, sizes = [str(name) for name in json.loads(texts["images"])], json.loads(texts["sizes"])
        frames = [None if size is None else (float(size[0]), float(size[1])) for size in sizes]
        vocabulary = Vocabulary.from_json(texts["vocabulary"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PolyadicError(f"{path.name}: damaged header ({error})") from error
    return names, frames, vocabulary


def _check(
    path: Path, file: Any, names: list[str], sizes: list[Any], vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and flags, if all columns go together."""
    missing = next((name for name in _COLUMNS if name not in file.keys()), None)  # noqa: SIM118, it is no dict
    if missing:
        raise PolyadicError(f"{path.name}: no {missing!r} in the file of detections")
    offsets, told, labels = (file.get_tensor(name) for name in ("offsets", "told", "labels"))
    total = len(labels)
    rows = int(np.diff(offsets)[told.astype(bool)].sum()) if len(offsets) == len(told) + 1 else -1
    shapes = {name: file.get_slice(name).get_shape() for name in _COLUMNS}
    wanted = {"boxes": [total, 4], "scores": [total], "distribution": [rows, len(vocabulary.objects)]}
    whole = all(shapes[name] == shape for name, shape in wanted.items()) and len(names) == len(sizes) == len(told)
    if not whole or offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise PolyadicError(f"{path.name}: columns of different lengths; is it cut, or written by another program?")
    if total and not UNKNOWN <= labels.min() <= labels.max() < len(vocabulary.objects):
        raise PolyadicError(f"{path.name}: labels outside the {len(vocabulary.objects)} classes of its vocabulary")
    return offsets, told
