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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from polyadic.files import atomic_write, parse_json
from polyadic.io.published import read_lu_detections, read_lu_predictions, read_motifs
from polyadic.io.store import read_tensors, write_tensors
from polyadic.structures.coco_results import coco_images
from polyadic.structures.detections import Detections, assemble
from polyadic.structures.images import path_ends
from polyadic.structures.labels import UNKNOWN, Choice, Matcher, Own, read_mapping, sort_out, warn_of_dropped
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

_KEYS = ("image", "boxes", "pairs", "triplets", "scores")
_OPTIONAL = ("size", "labels", "confidences")
_OF_PHOTOS = ("image", "size", "boxes", "relations", "made", "given")  # of `polyadic predict`
T = TypeVar("T")


def write_jsonl(
    path: str | Path, predictions: Iterable[Relations], vocabulary: Vocabulary, overwrite: bool = False
) -> Path:
    """One line per image. The file gets its name when it is complete, and replaces another only when told to."""
    path = Path(path).expanduser()
    if path.exists() and not overwrite:
        raise PolyadicError(f"{path} exists; choose another name, or overwrite=True")
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as file:
        for each in predictions:
            file.write(json.dumps(to_record(each, vocabulary), ensure_ascii=False) + "\n")
    return path


def to_record(predictions: Relations, vocabulary: Vocabulary) -> dict[str, Any]:
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


def read_jsonl(path: str | Path, vocabulary: Vocabulary, images: Sequence[str] = ()) -> Iterator[Relations]:
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


def _from_record(record: Any, names: _Names, where: str) -> Relations:
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


def _from_photo(record: dict[str, Any], names: _Names, where: str) -> Relations:
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
) -> Relations:
    confidences = numbers_of(record["confidences"], 0, f"{where}, confidences") if "confidences" in record else None
    columns: dict[str, Any] = {
        "boxes": numbers_of(record["boxes"], 4, f"{where}, boxes"),
        "pairs": _whole(numbers_of(record["pairs"], 2, f"{where}, pairs"), f"{where}, pairs"),
        "triplets": names.triplets(record["triplets"], where),
        "scores": numbers_of(record["scores"], 0, f"{where}, scores"),
    }
    size = size_of(record, where)
    try:
        return Relations(image, **columns, labels=labels, confidences=confidences, size=size)
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


_DETECTIONS_KEYS = ("image", "boxes", "labels", "scores", "size")
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
    with atomic_write(path) as part:
        if path.suffix == ".safetensors":
            write_tensors(part, _once(detections), vocabulary, about)
        else:
            with part.open("w", encoding="utf-8") as file:
                for each in _once(detections):
                    file.write(json.dumps(_to_record(each, vocabulary), ensure_ascii=False) + "\n")
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
                yield _detections_from_record(record, find, unknown, dropped, where)
    else:
        find = Matcher(vocabulary, read_mapping(mapping))
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path.name}, line {number}"
                    yield _detections_from_record(parse_json(line, where), find, unknown, dropped, where)


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


def _detections_from_record(
    record: Any, find: Matcher, unknown: Choice, dropped: Counter[str], where: str
) -> Detections:
    if not isinstance(record, dict):
        raise PolyadicError(f"{where}: expected an object with {', '.join(_DETECTIONS_KEYS)}, got {record!r:.40}")
    foreign = next((key for key in record if key not in (*_DETECTIONS_KEYS, *_OF_PREDICTIONS)), None)
    if foreign is not None:
        raise PolyadicError(f"{where}: unknown key {foreign!r}; a record has {', '.join(_DETECTIONS_KEYS)}")
    predictions = "pairs" in record
    if predictions and not {"labels", "confidences"} <= record.keys():
        raise PolyadicError(f"{where}: image {record.get('image')!r} has no labels and confidences of its boxes")
    missing = next((key for key in ("image", "boxes", "labels") if key not in record), None)
    if missing:
        raise PolyadicError(f"{where}: no {missing!r}; a record has {', '.join(_DETECTIONS_KEYS)}")
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


def read_predictions(path: str | Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Relations]:
    """Relations of a `.jsonl`, `.mat` or `.pkl` file. `images` are the dataset's, in order: motifs names none."""
    path = existing(path)
    if path.suffix == ".mat":
        return read_lu_predictions(path, vocabulary)
    if path.suffix in (".pkl", ".pickle"):
        return read_motifs(path, vocabulary, images)
    return read_jsonl(path, vocabulary, images)
