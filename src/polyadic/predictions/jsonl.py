"""Our format of predictions: JSON Lines, one image per line, names instead of numbers.

    {"image": "a.jpg", "size": [800, 600], "boxes": [[x1, y1, x2, y2], ...],
     "labels": ["person", ...], "confidences": [0.9, ...],
     "pairs": [[0, 1], ...], "triplets": [["person", "ride", "horse"], ...], "scores": [0.42, ...]}

`pairs` point into `boxes` (subject, object). `size` is the frame of the boxes, by default the annotated one (for VG150
that is 1024 on the longer side, not the picture); `labels` and `confidences` are the detector's, optional. Numbers are
written with all their digits, so what is read is what was written. Text streams and compresses well enough that a
second, binary format does not earn its dependency.

What `polyadic predict --out` writes is read as well; its images are called by the paths of photos.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from polyadic.scenes import UNKNOWN, Predictions
from polyadic.scenes.pictures import path_ends
from polyadic.strict_json import parse_json
from polyadic.vocabulary import PolyadicError, Vocabulary

_KEYS = ("image", "boxes", "pairs", "triplets", "scores")
_OPTIONAL = ("size", "labels", "confidences")
_OF_PHOTOS = ("image", "size", "boxes", "relations", "made", "given")  # of `polyadic predict`
T = TypeVar("T")


def write_jsonl(
    path: str | Path, predictions: Iterable[Predictions], vocabulary: Vocabulary, overwrite: bool = False
) -> Path:
    """One line per image. The file gets its name when it is complete, and replaces another only when told to."""
    path = Path(path).expanduser()
    if path.exists() and not overwrite:
        raise PolyadicError(f"{path} exists; choose another name, or overwrite=True")
    part = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for each in predictions:
                file.write(json.dumps(to_record(each, vocabulary), ensure_ascii=False) + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def to_record(predictions: Predictions, vocabulary: Vocabulary) -> dict[str, Any]:
    """One image in JSON values."""
    record: dict[str, Any] = {"image": predictions.image}
    if predictions.size is not None:
        record["size"] = list(predictions.size)
    record["boxes"] = predictions.boxes.tolist()
    if predictions.labels is not None and predictions.confidences is not None:
        record["labels"] = [_name(vocabulary.objects, label) for label in predictions.labels.tolist()]
        record["confidences"] = predictions.confidences.tolist()
    record["pairs"] = predictions.pairs.tolist()
    record["triplets"] = [vocabulary.decode(triplet) for triplet in predictions.triplets.tolist()]
    record["scores"] = predictions.scores.tolist()
    return record


def read_jsonl(path: str | Path, vocabulary: Vocabulary, images: Sequence[str] = ()) -> Iterator[Predictions]:
    """The images of a file, one at a time.

    A photo of `polyadic predict` is called by the longest end of its path that is one of `images`, the dataset's, its
    suffix taken off where need be; else by the file's name.
    """
    path, seen = Path(path), dict[str, int]()
    names = _Names(vocabulary, frozenset(images))
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            predictions = _from_record(parse_json(line, where), names, where)
            if predictions.image in seen:
                raise PolyadicError(
                    f"{where}: image {predictions.image!r} was on line {seen[predictions.image]} already"
                )
            seen[predictions.image] = number
            yield predictions


class _Names:
    def __init__(self, vocabulary: Vocabulary, images: frozenset[str]) -> None:
        self.images = images
        self.objects = {name: i for i, name in enumerate(vocabulary.objects)}
        self.predicates = {name: i for i, name in enumerate(vocabulary.predicates)}

    def triplets(self, rows: Any, where: str) -> Int[np.ndarray, "M 3"]:
        objects, predicates = self.objects, self.predicates
        try:
            found = [(objects[s], predicates[p], objects[o]) for s, p, o in rows]
        except (KeyError, TypeError, ValueError):
            for at, row in enumerate(rows if isinstance(rows, list) else [rows]):
                if not isinstance(row, list) or len(row) != 3:
                    raise PolyadicError(f"{where}, triplets[{at}]: expected three names, got {row!r:.60}") from None
                for name, known, kind in zip(
                    row, (objects, predicates, objects), ("object", "predicate", "object"), strict=True
                ):
                    _index(known, name, kind, f"{where}, triplets[{at}]")
            raise
        return np.array(found, np.int64).reshape(-1, 3)

    def labels(self, names: Any, where: str) -> Int[np.ndarray, " N"]:
        rows = names if isinstance(names, list) else [names]
        found = [_index(self.objects, name, "object", f"{where}, labels[{at}]") for at, name in enumerate(rows)]
        return np.array(found, np.int64)

    def image(self, path: str) -> str:
        return next((end for end in path_ends(path) if end in self.images), Path(path).name)


def _from_record(record: Any, names: _Names, where: str) -> Predictions:
    if not isinstance(record, dict):
        raise PolyadicError(f"{where}: expected one object per line, with {', '.join(_KEYS)}, got {record!r:.40}")
    if "relations" in record:
        return _from_photo(record, names, where)
    missing = next((key for key in _KEYS if key not in record), None)
    if missing:
        raise PolyadicError(f"{where}: no {missing!r}; a record has {', '.join(_KEYS)}")
    foreign = next((key for key in record if key not in (*_KEYS, *_OPTIONAL)), None)
    if foreign:
        raise PolyadicError(f"{where}: unknown key {foreign!r}; a record has {', '.join((*_KEYS, *_OPTIONAL))}")
    if not isinstance(record["image"], str):
        raise PolyadicError(f"{where}, image: expected a name, got {record['image']!r:.40}")
    labels = names.labels(record["labels"], where) if "labels" in record else None
    return _assemble(record, record["image"], labels, names, where)


def _from_photo(record: dict[str, Any], names: _Names, where: str) -> Predictions:
    """A record of `polyadic predict`: boxes and relations are objects there."""
    missing = next((key for key in _OF_PHOTOS[:4] if key not in record), None)
    if missing:
        raise PolyadicError(f"{where}: no {missing!r}; a record of `polyadic predict` has {', '.join(_OF_PHOTOS[:4])}")
    foreign = next((key for key in record if key not in _OF_PHOTOS), None)
    if foreign:
        raise PolyadicError(f"{where}: unknown key {foreign!r}; `polyadic predict` writes {', '.join(_OF_PHOTOS)}")
    if not isinstance(record["image"], str):
        raise PolyadicError(f"{where}, image: expected a name, got {record['image']!r:.40}")
    boxes = _rows(record["boxes"], _box, "box, label and score", f"{where}, boxes")
    relations = _rows(record["relations"], _relation, "subject, predicate, object and score", f"{where}, relations")
    columns = {
        "size": record["size"],
        "boxes": [box for box, _, _ in boxes],
        "confidences": [score for _, _, score in boxes],
        "pairs": [pair for pair, _, _ in relations],
        "triplets": [triplet for _, triplet, _ in relations],
        "scores": [score for _, _, score in relations],
    }
    labels = [
        UNKNOWN if label is None else _index(names.objects, label, "object", f"{where}, boxes[{at}]")
        for at, (_, label, _) in enumerate(boxes)
    ]
    return _assemble(columns, names.image(record["image"]), np.array(labels, np.int64), names, where)


def _box(row: Any) -> tuple[Any, Any, Any]:
    return row["box"], row["label"], row["score"]


def _relation(row: Any) -> tuple[list[Any], list[Any], Any]:
    subject, object = row["subject"], row["object"]
    return [subject["box"], object["box"]], [subject["name"], row["predicate"], object["name"]], row["score"]


def _rows(values: Any, take: Callable[[Any], T], keys: str, where: str) -> list[T]:
    rows = values if isinstance(values, list) else [values]
    return [_taken(row, take, keys, f"{where}[{at}]") for at, row in enumerate(rows)]


def _taken(row: Any, take: Callable[[Any], T], keys: str, where: str) -> T:
    try:
        return take(row)
    except (KeyError, TypeError) as error:
        raise PolyadicError(f"{where}: expected an object with {keys}, got {row!r:.60}") from error


def _assemble(
    record: dict[str, Any], image: str, labels: Int[np.ndarray, " N"] | None, names: _Names, where: str
) -> Predictions:
    confidences = numbers_of(record["confidences"], 0, f"{where}, confidences") if "confidences" in record else None
    columns = {
        "boxes": numbers_of(record["boxes"], 4, f"{where}, boxes"),
        "pairs": _whole(numbers_of(record["pairs"], 2, f"{where}, pairs"), f"{where}, pairs"),
        "triplets": names.triplets(record["triplets"], where),
        "scores": numbers_of(record["scores"], 0, f"{where}, scores"),
    }
    size = size_of(record, where)
    try:
        return Predictions(image, **columns, labels=labels, confidences=confidences, size=size)
    except PolyadicError as error:
        raise PolyadicError(f"{where}: {error}") from error


def numbers_of(values: Any, width: int, where: str) -> Float[np.ndarray, "*X"]:
    try:
        array = np.array(values)
    except ValueError:  # rows of different lengths
        array = np.array("ragged")
    if array.size == 0:
        return np.zeros((0, width) if width else 0)
    # words, truth values, null and whole numbers beyond 64 bits have another kind
    if array.dtype.kind not in "iuf" or array.ndim == 0 or array.shape[1:] != ((width,) if width else ()):
        raise PolyadicError(
            f"{where}: expected {f'rows of {width} numbers' if width else 'a list of numbers'}, got {values!r:.60}"
        )
    return array.astype(np.float64)


def _whole(array: Float[np.ndarray, "M 2"], where: str) -> Int[np.ndarray, "M 2"]:
    if not ((array == np.floor(array)) & (np.abs(array) < 2**31)).all():
        raise PolyadicError(f"{where}: expected whole numbers, indices into boxes")
    return array.astype(np.int64)


def size_of(record: dict[str, Any], where: str) -> tuple[float, float] | None:
    if record.get("size") is None:
        return None
    size = numbers_of(record["size"], 0, f"{where}, size")
    if len(size) != 2 or not ((size > 0) & np.isfinite(size)).all():
        raise PolyadicError(f"{where}, size: expected [width, height], got {record['size']!r:.40}")
    return float(size[0]), float(size[1])


def _index(known: dict[str, int], name: Any, kind: str, where: str) -> int:
    if isinstance(name, str) and name in known:
        return known[name]
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise PolyadicError(f"{where}: no {kind} is called {name!r}{hint}")


def _name(names: Sequence[str], label: int) -> str:
    if not 0 <= label < len(names):
        raise PolyadicError(f"predictions: label {label} is outside the {len(names)} object classes")
    return names[label]
