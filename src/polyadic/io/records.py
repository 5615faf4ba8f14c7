"""Detections and relations on disk: JSON Lines, one image per line, names instead of numbers.

    {"image": "a.jpg", "size": [800, 600],
     "boxes": [{"box": [x1, y1, x2, y2], "label": "person", "score": 0.9}, ...],
     "relations": [{"subject": {"box": 0, "name": "person"}, "predicate": "ride", "object": {"box": 1, "name": "horse"},
                    "score": 0.42}, ...]}

is the record of relations: what `polyadic predict` and `write_relations` write. `box` of a subject or object counts the
boxes from 0; `label`, `score` and `source` (the name) of a box are the detector's, optional. `size` is the frame of the
boxes (see `Detections.size`). The same in columns is read too, and detections alone are written so:

    {"image": "a.jpg", "size": [800, 600], "boxes": [[x1, y1, x2, y2], ...], "labels": ["person", ...],
     "scores": [0.9, ...], "source": ["yolox_nano.onnx", ...]}
    {"image": ..., "boxes": ..., "labels": ..., "confidences": [0.9, ...],
     "pairs": [[0, 1], ...], "triplets": [["person", "ride", "horse"], ...], "scores": [0.42, ...]}

Numbers are written with all their digits, so what is read is what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from polyadic.files import atomic_write, check_output, parse_json
from polyadic.io.published import coco_images, located, read_lu_detections, read_lu_relations, read_motifs
from polyadic.io.store import read_tensors, write_tensors
from polyadic.structures.detections import Detections, assemble
from polyadic.structures.images import path_ends
from polyadic.structures.inputs import existing_file
from polyadic.structures.labels import (
    UNKNOWN,
    LabelReader,
    NameMapping,
    Synonyms,
    UnknownPolicy,
    read_file,
    warn_dropped,
)
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

_Corners = tuple[float, float, float, float]
_Side = Annotated[float, msgspec.Meta(gt=0)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class BoxRecord(msgspec.Struct):
    """A box with the detector's label and score, where known."""

    box: _Corners
    label: str | None = None
    score: float | None = None
    source: str | None = None


class EndRecord(msgspec.Struct):
    """The subject or object of a relation: a box by its index, and the name that the relation gives it."""

    box: _Index
    name: str


class RelationRecord(msgspec.Struct):
    """A scored triplet. `probability` and the terms of the score, which `polyadic predict` writes, are not read."""

    subject: EndRecord
    predicate: str
    object: EndRecord
    score: float


class ImageRecord(msgspec.Struct, forbid_unknown_fields=True):
    """One image: boxes and relations as objects or in columns."""

    image: str
    boxes: list[_Corners | BoxRecord]
    size: tuple[_Side, _Side] | None = None
    labels: list[str | None] | None = None
    scores: list[float] | None = None  # of the triplets, where there are any, else of the boxes
    confidences: list[float] | None = None
    source: list[str] | None = None  # of the boxes: the detector's name, where several looked
    pairs: list[tuple[_Index, _Index]] | None = None
    triplets: list[tuple[str, str, str]] | None = None
    relations: list[RelationRecord] | None = None
    made: str | None = None  # by `polyadic predict`: a fingerprint of the model and its options
    given: dict[str, str] | None = None  # by `polyadic predict`: the names asked for
    note: str | None = None  # by `polyadic predict`: why there are no relations

    def corners(self) -> list[_Corners]:
        """Return the boxes as numbers."""
        return [box.box if isinstance(box, BoxRecord) else box for box in self.boxes]

    def box_labels(self) -> tuple[list[str | None], list[float] | None] | None:
        """Return the detector's labels and scores of the boxes; None where it gave no labels."""
        if self.labels is not None:
            is_relations = self.pairs is not None or self.triplets is not None
            return self.labels, self.confidences if is_relations else self.scores
        boxes = [box for box in self.boxes if isinstance(box, BoxRecord)]
        scores = [box.score for box in boxes if box.score is not None]
        if len(scores) < len(self.boxes) or (not self.boxes and self.relations is None):
            return None
        return [box.label for box in boxes], scores

    def box_sources(self) -> np.ndarray | None:
        """Return the detector's name of each box; None where any has none."""
        if self.source is not None and len(self.source) != len(self.boxes):
            raise PolyadicError(f"source and boxes need one length, got {len(self.source)} and {len(self.boxes)}")
        given = self.source or [box.source for box in self.boxes if isinstance(box, BoxRecord) and box.source]
        return np.array(given, np.str_) if given and len(given) == len(self.boxes) else None


def read_relations(path: str | Path, vocabulary: Vocabulary, images: Sequence[str] = ()) -> Iterator[Relations]:
    """Read the relations of a `.jsonl`, `.mat` (Lu's) or `.pkl` (neural-motifs') file, one image after another.

    `images` are the dataset's, in order. neural-motifs' files do not name theirs; a photo of `polyadic predict` gets
    the name that is the longest end of its path, if need be without suffix.
    """
    path = existing_file(path)
    if path.suffix == ".mat":
        return read_lu_relations(path, vocabulary)
    if path.suffix in (".pkl", ".pickle"):
        return read_motifs(path, vocabulary, images)
    return _read_lines(path, vocabulary, frozenset(images))


def write_relations(
    path: str | Path, relations: Iterable[Relations], vocabulary: Vocabulary, *, overwrite: bool = False
) -> Path:
    """Write one line per image. The file appears when it is complete, and replaces another only with `overwrite`."""
    path = _writable(path, overwrite)
    with atomic_write(path) as part, part.open("wb") as file:
        for image in relations:
            file.write(_line(replace(image, vocabulary=vocabulary).to_dict()))
    return path


def read_detections(
    path: str | Path,
    vocabulary: Vocabulary,
    mapping: NameMapping = None,
    *,
    unknown: UnknownPolicy = "drop",
    sizes: Mapping[str, tuple[float, float]] | None = None,
    categories: Any = None,
) -> Iterator[Detections]:
    """Read a `.safetensors`, `.jsonl`, `.json` or `.mat` file, one image after another.

    Class names are matched with the vocabulary's; `mapping` (names to names, or a JSON or TOML file of them) is for
    those that do not match. Boxes of other classes are dropped, with one warning at the end, or kept as UNKNOWN.
    `sizes` are the frames of images whose size the file does not give. `categories`, of COCO's results, is COCO's list
    or a file that has it; by default the results' own, or `categories.json` beside them.
    """
    path = existing_file(path)
    if isinstance(categories, str | Path):
        categories = read_file(existing_file(categories), "COCO categories")
    reader = LabelReader(vocabulary, mapping, unknown)
    seen = set()
    for image in _read_images(path, reader, categories):
        if image.image in seen:
            raise PolyadicError(f"{path.name}: image {image.image!r} occurs twice; an image has one record")
        seen.add(image.image)
        yield image if image.size or not sizes else replace(image, size=sizes.get(image.image))
    reader.check_mapping(path.name)
    warn_dropped(path.name, reader.dropped, unknown)


def write_detections(
    path: str | Path,
    detections: Iterable[Detections],
    vocabulary: Vocabulary,
    *,
    overwrite: bool = False,
    **about: str,
) -> Path:
    """Write a `.safetensors` file, with class distributions and `about` in its header, or a `.jsonl` file without.

    The file appears when it is complete, and replaces another only with `overwrite`.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".safetensors", ".jsonl"):
        raise PolyadicError(f"{path}: detections are written as .safetensors or .jsonl")
    path = _writable(path, overwrite)
    with atomic_write(path) as part:
        if path.suffix == ".safetensors":
            write_tensors(part, _checked(detections, vocabulary), vocabulary, about)
        else:
            with part.open("wb") as file:
                for image in _checked(detections, vocabulary):
                    file.write(_line(_detections_record(image, vocabulary)))
    return path


def _writable(path: str | Path, overwrite: bool) -> Path:
    return check_output(Path(path).expanduser(), "records", replace=overwrite)


def _line(record: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:  # file names need not be Unicode
        return json.dumps(record).encode() + b"\n"


def _read_lines(path: Path, vocabulary: Vocabulary, images: frozenset[str]) -> Iterator[Relations]:
    seen: dict[str, int] = {}
    for number, record in _records(path):
        with located(f"{path.name}, line {number}"):
            name = next((end for end in path_ends(record.image) if end in images), record.image)
            if name in seen:
                raise PolyadicError(f"image {name!r} is on line {seen[name]} too")
            seen[name] = number
            relations = to_relations(record, name, vocabulary)
        yield relations


def _records(path: Path) -> Iterator[tuple[int, ImageRecord]]:
    """Read the lines of a file, numbered from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, parse_json(line, f"{path.name}, line {number}", ImageRecord)


def to_relations(record: ImageRecord, name: str, vocabulary: Vocabulary) -> Relations:
    if record.relations is not None:
        pairs = [(row.subject.box, row.object.box) for row in record.relations]
        triplets = [(row.subject.name, row.predicate, row.object.name) for row in record.relations]
        scores = [row.score for row in record.relations]
    elif record.pairs is not None and record.triplets is not None and record.scores is not None:
        pairs, triplets, scores = record.pairs, record.triplets, record.scores
    else:
        raise PolyadicError("expected relations, or pairs, triplets and scores")
    known = record.box_labels()
    labels = confidences = None
    if known is not None:
        objects = {word: at for at, word in enumerate(vocabulary.objects)}
        for word in known[0]:
            if word is not None and word not in objects:
                vocabulary.index("object", word)  # raises, with a hint
        labels = np.array([UNKNOWN if word is None else objects[word] for word in known[0]], np.int64)
        confidences = None if known[1] is None else np.array(known[1])
    return Relations(
        name,
        np.array(record.corners()).reshape(-1, 4),
        np.array(pairs, np.int64).reshape(-1, 2),
        _encode(triplets, vocabulary),
        np.array(scores, np.float64),
        labels=labels,
        confidences=confidences,
        source=None if confidences is None else record.box_sources(),
        size=record.size,
    )


def _encode(triplets: Sequence[tuple[str, str, str]], vocabulary: Vocabulary) -> np.ndarray:
    indices = {words: vocabulary.encode(words) for words in dict.fromkeys(triplets)}
    return np.array([indices[words] for words in triplets], np.int64).reshape(-1, 3)


def _read_images(path: Path, reader: LabelReader, categories: Any) -> Iterator[Detections]:
    if path.suffix == ".mat":
        if reader.mapping is not None and not isinstance(reader.mapping, Synonyms):
            raise PolyadicError(f"{path.name}: Lu's files number their classes, so no mapping of names applies")
        yield from read_lu_detections(path, reader.vocabulary)
    elif path.suffix == ".safetensors":
        yield from read_tensors(path, reader)
    elif path.suffix == ".json":
        content = parse_json(path.read_bytes(), path.name)
        if _is_coco(content):
            with located(path.name):
                yield from coco_images(content, _categories(path, content, categories), reader)
            return
        for at, value in enumerate(content if isinstance(content, list) else [content]):
            with located(f"{path.name}, record {at}" if isinstance(content, list) else path.name):
                try:
                    record = msgspec.convert(value, ImageRecord)
                except msgspec.ValidationError as error:
                    raise PolyadicError(str(error)) from error
                image = _to_detections(record, reader)
            yield image
    else:
        for number, record in _records(path):
            with located(f"{path.name}, line {number}"):
                image = _to_detections(record, reader)
            yield image


def _is_coco(content: Any) -> bool:
    if isinstance(content, list):
        return bool(content) and isinstance(content[0], dict) and "image_id" in content[0]
    return isinstance(content, dict) and "annotations" in content


def _categories(path: Path, content: Any, categories: Any) -> Any:
    if categories is None and isinstance(content, dict) and "categories" in content:
        return None
    if categories is None:
        categories = path.with_name("categories.json")
        if not categories.exists():
            raise PolyadicError(
                "COCO results name no classes; give a COCO file with categories, or put a categories.json beside it"
            )
        categories = read_file(categories, "COCO categories")
    return categories


def _to_detections(record: ImageRecord, reader: LabelReader) -> Detections:
    known = record.box_labels()
    if known is None or (record.pairs is not None and known[1] is None):
        raise PolyadicError(f"image {record.image!r} has no labels of its boxes, or relations without confidences")
    labels, scores = known
    mapped = reader.map([label or "" for label in labels])
    boxes = np.array(record.corners()).reshape(-1, 4)
    found = assemble(record.image, boxes, scores, mapped=mapped, count=len(labels), size=record.size)
    source = record.box_sources()
    return found if source is None else replace(found, source=source[mapped.rows])


def _checked(detections: Iterable[Detections], vocabulary: Vocabulary) -> Iterator[Detections]:
    seen = set()
    for image in detections:
        if image.image in seen:
            raise PolyadicError(f"detections: image {image.image!r} occurs twice; an image has one record")
        seen.add(image.image)
        if (image.labels >= len(vocabulary.objects)).any():
            wrong = int(image.labels.max())
            raise PolyadicError(f"{image.image}: label {wrong} is outside the {len(vocabulary.objects)} object classes")
        yield image


def _detections_record(image: Detections, vocabulary: Vocabulary) -> dict[str, Any]:
    labels = [None if label == UNKNOWN else vocabulary.objects[label] for label in image.labels.tolist()]
    columns = {"boxes": image.boxes.tolist(), "labels": labels, "scores": image.scores.tolist()}
    size = {} if image.size is None else {"size": list(image.size)}
    source = {} if image.source is None else {"source": image.source.tolist()}
    return {"image": image.image, **size, **columns, **source}
