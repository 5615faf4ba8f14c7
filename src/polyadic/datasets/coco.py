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
from typing import Any

import numpy as np

from polyadic.datasets.reading import ImageFolders, Location, Report, Size, plain_numbers, read_json
from polyadic.files import is_number
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val")}
IMAGE_KEYS = ("id", "file_name", "width", "height")
LISTS = {  # required keys of the records
    "images": ("id", "file_name"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
    "rel_categories": ("id", "name"),
    "rel_annotations": ("id", "image_id", "subject_id", "predicate_id", "object_id"),
}


def has_split(root: Path, split: str) -> bool:
    """Return whether the folder has a file of this split."""
    return bool(_candidates(root, split))


def has_validation(root: Path) -> bool:
    """Return whether the folder has a separate validation split."""
    return has_split(root, "validation")


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every image of a split."""
    if split not in SPLITS:
        raise PolyadicError(f"coco: no split {split!r} on disk; known: {', '.join(SPLITS)}")
    file = _file(root, split)
    data = _load(file)
    listed = file if split == "train" or not _candidates(root, "train") else _file(root, "train")
    train = data if listed == file else _load(listed)
    names = [list(_names(train, key, listed).values()) for key in ("categories", "rel_categories")]
    vocabulary = Vocabulary(*names)
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
    data = read_json(file, "")
    for key, keys in LISTS.items():
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            got = f"a {type(data).__name__}"
            if isinstance(data, dict):
                got = f"{data[key]!r:.40}" if key in data else "no such key"
            raise PolyadicError(f"{file}, {key}: expected a list of {{{', '.join(keys)}}}, got {got}")
    return data  # type: ignore[no-any-return]


def _records(data: Mapping[str, Any], key: str, file: Path, report: Report) -> Iterator[tuple[Any, Location, Any]]:
    """Yield id, location and content of each record that has its keys and a unique id."""
    seen = set()
    for number, record in enumerate(data[key]):
        at = report.at(file, f"{key}[{number}]")
        if not isinstance(record, dict):
            at.add("not a record", "", f"expected {{{', '.join(LISTS[key])}}}, got {record!r:.60}")
        elif missing := [name for name in LISTS[key] if name not in record]:
            at.add("missing key", missing[0], f"no {missing[0]!r} in {record!r:.60}")
        elif type(record["id"]) not in (int, str):
            at.add("not an id", "id", f"expected a whole number or a string, got {record['id']!r:.40}")
        elif record["id"] in seen:
            at.add("duplicate id", "id", f"ids must be unique, got {record['id']!r} again")
        else:
            seen.add(record["id"])
            yield record["id"], report.at(file, f"{key}[{number}] (id {record['id']})"), record


def _names(data: Mapping[str, Any], key: str, file: Path) -> dict[Any, str]:
    """Return class names by id. Nothing can be read without valid names, so the first problem is raised."""
    report = Report()
    names: dict[Any, str] = {}
    for id, at, record in _records(data, key, file, report):
        if not isinstance(record["name"], str) or not record["name"] or record["name"] in names.values():
            at.add("not a name", "name", f"class names must be unique and not empty, got {record['name']!r}")
        names[id] = record["name"]
    if report.problems or not names:
        raise PolyadicError(str(report.problems[0]) if report.problems else f"{file}, {key}: has no classes")
    return names


@dataclass
class _Draft:
    """A scene under construction."""

    name: str
    size: Size | None
    extra: dict[str, Any]
    boxes: list[list[float]] = field(default_factory=list)
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
    classes: dict[str, dict[Any, int | None]] = field(default_factory=dict)  # by list and id
    drafts: dict[Any, _Draft] = field(default_factory=dict)
    boxes: dict[Any, tuple[Any, int] | None] = field(default_factory=dict)  # image and index by annotation id

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
        names = set()
        for id, at, record in _records(self.data, "images", self.file, self.report):
            name = record["file_name"]
            if not isinstance(name, str) or not name:
                at.add("not a name", "file_name", f"expected the name of a picture, got {name!r:.40}")
                continue
            if name in names:
                at.add("duplicate image", "file_name", f"{name!r} occurs twice; each image needs one record")
                continue
            names.add(name)
            unknown = record.get("width", 0) is None and record.get("height", 0) is None
            extra = {key: value for key, value in record.items() if key not in IMAGE_KEYS}
            self.drafts[id] = _Draft(name, None if unknown else at.size(record), extra)

    def read_boxes(self) -> None:
        for id, at, record in _records(self.data, "annotations", self.file, self.report):
            self.boxes[id] = None
            valid = _refers(record, "image_id", self.drafts, "images", at)
            valid &= _refers(record, "category_id", self.classes["categories"], "categories", at)
            box = _xyxy(record, at)
            if record.get("iscrowd"):
                at.add("crowd", "iscrowd", "marks a crowd, not one object; kept as a box", "warning")
            if not valid or box is None:
                continue
            draft, label = self.drafts[record["image_id"]], self.classes["categories"][record["category_id"]]
            if at.box_ok(box, draft.size, "bbox") and label is not None:
                self.boxes[id] = (record["image_id"], len(draft.boxes))
                draft.boxes.append(box)
                draft.labels.append(label)

    def read_relations(self) -> None:
        predicates = self.classes["rel_categories"]
        for _, at, record in _records(self.data, "rel_annotations", self.file, self.report):
            valid = _refers(record, "image_id", self.drafts, "images", at)
            valid &= _refers(record, "predicate_id", predicates, "rel_categories", at)
            valid &= _refers(record, "subject_id", self.boxes, "annotations", at)
            valid &= _refers(record, "object_id", self.boxes, "annotations", at)
            if not valid:
                continue
            image, predicate = record["image_id"], predicates[record["predicate_id"]]
            subject, object = self.boxes[record["subject_id"]], self.boxes[record["object_id"]]
            if subject is None or object is None or predicate is None:
                continue  # its box or class has been reported
            if not subject[0] == object[0] == image:
                got = f"{subject[0]!r}, {object[0]!r}, {image!r}"
                message = f"subject, object and relation must be of one image, got {got}"
                at.add("relation across images", "image_id", message)
                continue
            self.drafts[image].relations.append((subject[1], predicate, object[1]))


def _refers(record: Mapping[str, Any], key: str, table: Mapping[Any, Any], name: str, at: Location) -> bool:
    id = record[key]
    if type(id) in (int, str) and id in table:
        return True
    at.add("dangling id", key, f"no id {id!r:.40} in {name}")
    return False


def _xyxy(record: Mapping[str, Any], at: Location) -> list[float] | None:
    if not _is_box(record["bbox"]):
        at.add("not a box", "bbox", f"a box is four numbers [x, y, w, h], got {record['bbox']!r:.80}")
        return None
    x, y, w, h = record["bbox"]
    exact: Any = record.get("xyxy")  # written where x + w differs in the last bit from the x2 that it came from
    if _is_box(exact) and [x, y, w, h] == _xywh(exact):
        return exact  # type: ignore[no-any-return]
    return [x, y, x + w, y + h]


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def _xywh(box: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = box
    return [x1, y1, x2 - x1, y2 - y1]


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """Write one JSON per split, with ids from 1."""
    files = [root / f"{dataset.split}.json" for dataset in datasets]
    for file, dataset in zip(files, datasets, strict=True):
        file.write_text(json.dumps(_content(dataset)))
    return files


def _content(dataset: Dataset) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    for number, scene in enumerate(dataset, 1):
        # a name without a suffix is an id, but other tools need the name of the picture
        name = scene.name if Path(scene.name).suffix else scene.image.name
        width, height = plain_numbers(scene.size) if scene.size else (None, None)
        images.append({**scene.extra, "id": number, "file_name": name, "width": width, "height": height})
        offset = len(annotations) + 1
        for label, box in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True):
            bbox = plain_numbers(_xywh(box))
            record = {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1, "bbox": bbox}
            exact = [bbox[0] + bbox[2], bbox[1] + bbox[3]] == box[2:]
            annotations.append(record if exact else {**record, "xyxy": box})
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
