"""Own data: COCO with `rel_categories` and `rel_annotations`, one JSON per split: train, test, validation (or val).

Classes are numbered in the order in which `train.json` lists them; the other splits are matched by name, so ids may
differ between files. A width and height of null mean that the frame is unknown. Pictures are looked up in `images/`,
the root and `<split>/`. Everything is kept: images without boxes, repeated relations, unknown keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from polyadic.datasets.reading import ImageFolders, Location, Report, Side, Size, plain_numbers, read_json
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val")}
Id = int | str
Name = Annotated[str, msgspec.Meta(min_length=1)]
Corners = tuple[float, float, float, float]


class CocoPhoto(msgspec.Struct):
    """An image; both sides are null where the frame is unknown."""

    id: Id
    file_name: Name
    width: Side | None
    height: Side | None

    @property
    def size(self) -> Size | None:
        return None if self.width is None or self.height is None else (self.width, self.height)


class CocoBox(msgspec.Struct):
    """A box, [x, y, width, height]."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: Corners
    iscrowd: int | bool = 0

    @property
    def corners(self) -> Corners:
        x, y, w, h = self.bbox
        return x, y, x + w, y + h


class ClassRecord(msgspec.Struct):
    """An object class or a predicate."""

    id: Id
    name: Name


class CocoRelation(msgspec.Struct):
    """A relation; subject and object are boxes."""

    id: Id
    image_id: Id
    subject_id: Id
    predicate_id: Id
    object_id: Id


LISTS: dict[str, Any] = {
    "images": CocoPhoto,
    "annotations": CocoBox,
    "categories": ClassRecord,
    "rel_categories": ClassRecord,
    "rel_annotations": CocoRelation,
}


def has_split(root: Path, split: str) -> bool:
    """Return whether the folder has a file of this split."""
    return bool(_candidates(root, split))


def has_validation(root: Path) -> bool:
    """Return whether the folder has a separate validation split."""
    return has_split(root, "validation")


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every image of a split."""
    file = _file(root, split)
    data = _load(file)
    listed = file if split == "train" or not _candidates(root, "train") else _file(root, "train")
    train = data if listed == file else _load(listed)
    vocabulary = Vocabulary(*(tuple(_names(train, key, listed).values()) for key in ("categories", "rel_categories")))
    reader = _Reader(data, file, report)
    reader.read_classes(vocabulary, listed)
    reader.read_images()
    reader.read_boxes()
    reader.read_relations()
    pictures = ImageFolders(root / "images", root, *(root / name for name in SPLITS[split]))
    scenes = tuple(draft.scene(pictures) for draft in reader.drafts.values())
    extra = {key: value for key, value in data.items() if key not in LISTS}
    return Dataset("coco", split, vocabulary, scenes, root, extra)


def _candidates(root: Path, split: str) -> list[Path]:
    names = [f"{folder}{name}.json" for folder in ("", "annotations/") for name in SPLITS[split]]
    return [root / name for name in names if (root / name).exists()]


def _file(root: Path, split: str) -> Path:
    files = _candidates(root, split)
    if len(files) > 1:
        raise PolyadicError(f"coco: {files[0]} and {files[1]} both exist, and only one can be {split}; remove one")
    if not files:
        layout = "Own data is train.json, test.json and optionally validation.json, each COCO with rel_annotations"
        raise PolyadicError(f"no {root / f'{split}.json'}. {layout}")
    return files[0]


def _load(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = read_json(file, "", dict[str, Any])
    for key, kind in LISTS.items():
        if not isinstance(data.get(key), list):
            keys, got = ", ".join(kind.__struct_fields__), f"{data[key]!r:.40}" if key in data else "no such key"
            raise PolyadicError(f"{file}, {key}: expected a list of {{{keys}}}, got {got}")
    return data


def _records(data: Mapping[str, Any], key: str, file: Path, report: Report) -> Iterator[tuple[Location, Any, Any]]:
    """Yield location, content and JSON value of each record that has its keys and a unique id."""
    seen: set[Id] = set()
    for number, value in enumerate(data[key]):
        at = report.at(file, f"{key}[{number}]")
        record = at.parse(value, LISTS[key])
        if record is not None and record.id in seen:
            at.add("duplicate id", "id", f"ids must be unique, got {record.id!r} again")
        elif record is not None:
            seen.add(record.id)
            yield report.at(file, f"{key}[{number}] (id {record.id})"), record, value


def _names(data: Mapping[str, Any], key: str, file: Path) -> dict[Id, str]:
    """Return class names by id. Nothing can be read without valid names, so the first problem is raised."""
    report = Report()
    names: dict[Id, str] = {}
    for at, record, _ in _records(data, key, file, report):
        if record.name in names.values():
            at.add("not a name", "name", f"class names must be unique, got {record.name!r}")
        names[record.id] = record.name
    if report.problems or not names:
        raise PolyadicError(str(report.problems[0]) if report.problems else f"{file}, {key}: has no classes")
    return names


@dataclass
class _Draft:
    """A scene under construction."""

    name: str
    size: Size | None
    extra: dict[str, Any]
    boxes: list[Corners] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    relations: list[tuple[int, int, int]] = field(default_factory=list)

    def scene(self, pictures: ImageFolders) -> Scene:
        boxes = np.asarray(self.boxes, np.float64).reshape(-1, 4)
        relations = np.asarray(self.relations, np.int64).reshape(-1, 3)
        image = pictures.path(self.name)
        return Scene(self.name, image, self.size, boxes, np.asarray(self.labels, np.int64), relations, self.extra)


@dataclass
class _Reader:
    """Read the lists of one file in turn; each refers to the ids of the previous ones. None: reported as unusable."""

    data: Mapping[str, Any]
    file: Path
    report: Report
    classes: dict[str, dict[Id, int | None]] = field(default_factory=dict)  # by list and id
    drafts: dict[Id, _Draft] = field(default_factory=dict)
    boxes: dict[Id, tuple[Id, int] | None] = field(default_factory=dict)  # image and index by annotation id

    def read_classes(self, vocabulary: Vocabulary, listed: Path) -> None:
        """Number the classes as `listed`, the training file, does."""
        for key, names in (("categories", vocabulary.objects), ("rel_categories", vocabulary.predicates)):
            order = {name: number for number, name in enumerate(names)}
            self.classes[key] = {}
            for id, name in _names(self.data, key, self.file).items():
                self.classes[key][id] = order.get(name)
                if name not in order:
                    at = self.report.at(self.file, f"{key} (id {id})")
                    at.add("unknown class", "name", f"{name!r} is not in {listed.name}")

    def read_images(self) -> None:
        for at, record, value in _records(self.data, "images", self.file, self.report):
            if (record.width is None) != (record.height is None):
                at.add("no frame size", "width, height", f"one is missing: {record.width} and {record.height}")
            extra = {key: value[key] for key in value if key not in CocoPhoto.__struct_fields__}
            self.drafts[record.id] = _Draft(record.file_name, record.size, extra)

    def read_boxes(self) -> None:
        for at, record, _ in _records(self.data, "annotations", self.file, self.report):
            self.boxes[record.id] = None
            valid = _refers(record, "image_id", self.drafts, "images", at)
            valid &= _refers(record, "category_id", self.classes["categories"], "categories", at)
            if record.iscrowd:
                at.add("crowd", "iscrowd", "marks a crowd, not one object; kept as a box", "warning")
            if not valid:
                continue
            draft, label = self.drafts[record.image_id], self.classes["categories"][record.category_id]
            if at.box_ok(record.corners, draft.size, "bbox") and label is not None:
                self.boxes[record.id] = (record.image_id, len(draft.boxes))
                draft.boxes.append(record.corners)
                draft.labels.append(label)

    def read_relations(self) -> None:
        predicates = self.classes["rel_categories"]
        for at, record, _ in _records(self.data, "rel_annotations", self.file, self.report):
            valid = _refers(record, "image_id", self.drafts, "images", at)
            valid &= _refers(record, "predicate_id", predicates, "rel_categories", at)
            valid &= _refers(record, "subject_id", self.boxes, "annotations", at)
            valid &= _refers(record, "object_id", self.boxes, "annotations", at)
            if not valid:
                continue
            predicate = predicates[record.predicate_id]
            subject, object = self.boxes[record.subject_id], self.boxes[record.object_id]
            if subject is None or object is None or predicate is None:
                continue  # its box or class has been reported
            if not subject[0] == object[0] == record.image_id:
                got = f"{subject[0]!r}, {object[0]!r}, {record.image_id!r}"
                message = f"subject, object and relation must be of one image, got {got}"
                at.add("relation across images", "image_id", message)
                continue
            self.drafts[record.image_id].relations.append((subject[1], predicate, object[1]))


def _refers(record: Any, key: str, table: Mapping[Id, Any], name: str, at: Location) -> bool:
    id = getattr(record, key)
    if id in table:
        return True
    at.add("dangling id", key, f"no id {id!r:.40} in {name}")
    return False


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """Write one JSON per split, with ids from 1."""
    files = [root / f"{dataset.split}.json" for dataset in datasets]
    for file, dataset in zip(files, datasets, strict=True):
        file.write_text(json.dumps(content(dataset)))
    return files


def content(dataset: Dataset) -> dict[str, Any]:
    """Convert to the JSON values of a file, with ids from 1."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    for number, scene in enumerate(dataset, 1):
        # a name without a suffix is an id, but other tools need the name of the picture
        name = scene.name if Path(scene.name).suffix else scene.image.name
        width, height = plain_numbers(scene.size) if scene.size else (None, None)
        images.append({**scene.extra, "id": number, "file_name": name, "width": width, "height": height})
        offset = len(annotations) + 1
        for label, (x1, y1, x2, y2) in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True):
            bbox = plain_numbers([x1, y1, x2 - x1, y2 - y1])
            ids = {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1}
            annotations.append({**ids, "bbox": bbox})
        for subject, predicate, object in scene.relations.tolist():
            ends = {"subject_id": offset + subject, "predicate_id": predicate + 1, "object_id": offset + object}
            relations.append({"id": len(relations) + 1, "image_id": number, **ends})
    names = dataset.vocabulary
    return {
        **dataset.extra,
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(names.objects, 1)],
        "rel_categories": [{"id": i, "name": name} for i, name in enumerate(names.predicates, 1)],
        "rel_annotations": relations,
    }
