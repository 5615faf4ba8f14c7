"""Own data: COCO with `rel_categories` and `rel_annotations`, one JSON per split: train, test, validation (or val).

Classes are numbered in the order in which `train.json` lists them; the other splits are matched by name, so that ids
may differ from file to file. A width and height of null say that nobody knows the frame. Pictures are looked for in
`images/`, in the root and in `<split>/`. Everything is kept: images without boxes, repeated relations, unknown keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.datasets.reading import ImageFolder, Report, read_json, whole_if_can
from polyadic.files import is_number, is_positive
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val")}
IMAGE_KEYS = ("id", "file_name", "width", "height")
LISTS = {  # the keys of each record
    "images": ("id", "file_name"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
    "rel_categories": ("id", "name"),
    "rel_annotations": ("id", "image_id", "subject_id", "predicate_id", "object_id"),
}


def has_validation(root: Path) -> bool:
    """Whether the folder has a validation split of its own."""
    return bool(_candidates(root, "validation"))


def read(root: Path, split: str, report: Report) -> Dataset:
    """Every image of a split, as it is on disk; what is wrong goes to `report`, record by record."""
    file = _file(root, split)
    data = _open(file)
    listed = file if split == "train" or not _candidates(root, "train") else _file(root, "train")
    train = data if listed == file else _open(listed)
    names = [list(_names(train, key, listed).values()) for key in ("categories", "rel_categories")]
    vocabulary = Vocabulary(*names)
    classes = _numbers(data, "categories", vocabulary.objects, file, listed, report)
    predicates = _numbers(data, "rel_categories", vocabulary.predicates, file, listed, report)
    drafts = _images(data, file, report)
    boxes = _boxes(data, drafts, classes, file, report)
    _relations(data, drafts, boxes, predicates, file, report)
    find = _Pictures(root, split)
    extra = {key: value for key, value in data.items() if key not in LISTS}
    return Dataset("coco", split, vocabulary, tuple(draft.scene(find) for draft in drafts.values()), root, extra)


def _candidates(root: Path, split: str) -> list[Path]:
    names = [f"{folder}{name}.json" for folder in ("", "annotations/") for name in SPLITS[split]]
    return [root / name for name in names if (root / name).exists()]


def _file(root: Path, split: str) -> Path:
    if split not in SPLITS:
        raise PolyadicError(f"coco: no split {split!r} on disk; known: {', '.join(SPLITS)}")
    found = _candidates(root, split)
    if len(found) > 1:
        raise PolyadicError(f"coco: {found[0]} and {found[1]} are both there; which one is {split}? Remove the other")
    if not found:
        what = "Own data is train.json, test.json and perhaps validation.json, each COCO with rel_annotations"
        raise PolyadicError(f"no {root / f'{split}.json'}. {what}")
    return found[0]


def _open(file: Path) -> dict[str, Any]:
    data = read_json(file, "")
    for key, keys in LISTS.items():
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            got = f"a {type(data).__name__}"
            if isinstance(data, dict):
                got = f"{data[key]!r:.40}" if key in data else "no such key"
            raise PolyadicError(f"{file}, {key}: expected a list of {{{', '.join(keys)}}}, got {got}")
    return data  # type: ignore[no-any-return]


def _records(data: Mapping[str, Any], key: str, file: Path, report: Report) -> Iterator[tuple[Any, str, Any]]:
    """Id, name for messages and content of each record that has its keys and an id of its own."""
    seen = set()
    for number, record in enumerate(data[key]):
        where = f"{key}[{number}]"
        if not isinstance(record, dict):
            report.add("not a record", file, where, "", f"expected {{{', '.join(LISTS[key])}}}, got {record!r:.60}")
        elif missing := [name for name in LISTS[key] if name not in record]:
            report.add("missing key", file, where, missing[0], f"no {missing[0]!r} in {record!r:.60}")
        elif type(record["id"]) not in (int, str):
            report.add("not an id", file, where, "id", f"expected a whole number or a string, got {record['id']!r:.40}")
        elif record["id"] in seen:
            report.add("id twice", file, where, "id", f"each record needs an id of its own, got {record['id']!r} again")
        else:
            seen.add(record["id"])
            yield record["id"], f"{where} (id {record['id']})", record


def _names(data: Mapping[str, Any], key: str, file: Path) -> dict[Any, str]:
    """Names by id. Without sound names nothing else can be read, so the first fault ends it."""
    report = Report()
    names: dict[Any, str] = {}
    for id, where, record in _records(data, key, file, report):
        if not isinstance(record["name"], str) or not record["name"] or record["name"] in names.values():
            report.add("not a name", file, where, "name", f"each class needs a name of its own, got {record['name']!r}")
        names[id] = record["name"]
    if report.problems or not names:
        raise PolyadicError(f"{report.problems[0]}" if names or report.problems else f"{file}, {key}: has no classes")
    return names


def _numbers(
    data: Mapping[str, Any], key: str, names: Sequence[str], file: Path, listed: Path, report: Report
) -> dict[Any, int | None]:
    """Class numbers by id; None for a class that training does not know."""
    order = {name: number for number, name in enumerate(names)}
    numbers = {}
    for id, name in _names(data, key, file).items():
        numbers[id] = order.get(name)
        if name not in order:
            report.add("unknown class", file, f"{key} (id {id})", "name", f"{name!r} is not in {listed.name}")
    return numbers


@dataclass
class _Draft:
    """A scene in the making."""

    name: str
    size: tuple[float, float] | None
    extra: dict[str, Any]
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    relations: list[tuple[int, int, int]] = field(default_factory=list)

    def scene(self, find: _Pictures) -> Scene:
        boxes = np.asarray(self.boxes, np.float64).reshape(-1, 4)
        relations = np.asarray(self.relations, np.int64).reshape(-1, 3)
        image = find.path(self.name)
        return Scene(self.name, image, self.size, boxes, np.asarray(self.labels, np.int64), relations, self.extra)


def _images(data: Mapping[str, Any], file: Path, report: Report) -> dict[Any, _Draft]:
    drafts: dict[Any, _Draft] = {}
    names = set()
    for id, where, record in _records(data, "images", file, report):
        name = record["file_name"]
        if not isinstance(name, str) or not name:
            report.add("not a name", file, where, "file_name", f"expected the name of a picture, got {name!r:.40}")
            continue
        if name in names:
            report.add("image twice", file, where, "file_name", f"{name!r} occurs twice; each needs one record")
            continue
        names.add(name)
        size = _size(record, file, where, report)
        drafts[id] = _Draft(name, size, {key: value for key, value in record.items() if key not in IMAGE_KEYS})
    return drafts


def _size(record: Mapping[str, Any], file: Path, where: str, report: Report) -> tuple[float, float] | None:
    sides = [record.get(key, f"no {key!r}") for key in ("width", "height")]
    if sides == [None, None]:
        return None
    if all(map(is_positive, sides)):
        return float(sides[0]), float(sides[1])
    message = f"expected a width and a height above 0 (null: unknown), got {sides[0]!r:.40} and {sides[1]!r:.40}"
    report.add("no frame size", file, where, "width, height", message)
    return None


def _boxes(
    data: Mapping[str, Any], drafts: Mapping[Any, _Draft], classes: Mapping[Any, int | None], file: Path, report: Report
) -> dict[Any, tuple[Any, int] | None]:
    """Puts boxes into their drafts; gives image and index by annotation id, None for those that cannot be used."""
    places: dict[Any, tuple[Any, int] | None] = {}
    for id, where, record in _records(data, "annotations", file, report):
        places[id] = None
        image = _points("image_id", record, drafts, "images", file, where, report)
        known = _points("category_id", record, classes, "categories", file, where, report)
        box = _xyxy(record, file, where, report)
        if record.get("iscrowd"):
            message = "marks a crowd, not one object; kept as a box"
            report.add("crowd", file, where, "iscrowd", message, "warning")
        if not (image and known) or box is None:
            continue
        draft, label = drafts[record["image_id"]], classes[record["category_id"]]
        if report.box_ok(box, draft.size, file, where, "bbox") and label is not None:
            places[id] = (record["image_id"], len(draft.boxes))
            draft.boxes.append(box)
            draft.labels.append(label)
    return places


def _xyxy(record: Mapping[str, Any], file: Path, where: str, report: Report) -> list[float] | None:
    bbox = record["bbox"]
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(is_number, bbox)):
        report.add("not a box", file, where, "bbox", f"a box is four numbers [x, y, w, h], got {bbox!r:.80}")
        return None
    x, y, w, h = bbox
    exact = record.get("xyxy")  # written where x + w is not to the last bit the x2 that it came from
    if isinstance(exact, list) and len(exact) == 4 and all(map(is_number, exact)) and [x, y, w, h] == _xywh(exact):
        return exact
    return [x, y, x + w, y + h]


def _xywh(box: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = box
    return [x1, y1, x2 - x1, y2 - y1]


def _relations(
    data: Mapping[str, Any],
    drafts: Mapping[Any, _Draft],
    boxes: Mapping[Any, tuple[Any, int] | None],
    predicates: Mapping[Any, int | None],
    file: Path,
    report: Report,
) -> None:
    for _, where, record in _records(data, "rel_annotations", file, report):
        sound = True
        for key, table, name in (
            ("image_id", drafts, "images"),
            ("predicate_id", predicates, "rel_categories"),
            ("subject_id", boxes, "annotations"),
            ("object_id", boxes, "annotations"),
        ):
            sound &= _points(key, record, table, name, file, where, report)
        if not sound:
            continue
        image, predicate = record["image_id"], predicates[record["predicate_id"]]
        subject, object = boxes[record["subject_id"]], boxes[record["object_id"]]
        if subject is None or object is None or predicate is None:
            continue  # its box or class has been reported
        if not subject[0] == object[0] == image:
            message = f"subject, object and relation must be of one image, got {subject[0]!r}, {object[0]!r}, {image!r}"
            report.add("relation across images", file, where, "image_id", message)
            continue
        drafts[image].relations.append((subject[1], predicate, object[1]))


def _points(
    key: str, record: Mapping[str, Any], table: Mapping[Any, Any], name: str, file: Path, where: str, report: Report
) -> bool:
    id = record[key]
    if type(id) in (int, str) and id in table:
        return True
    report.add("id points nowhere", file, where, key, f"no id {id!r:.40} in {name}")
    return False


class _Pictures:
    """Where pictures are: the first folder that has one of the name; each folder is listed once."""

    def __init__(self, root: Path, split: str) -> None:
        self.folders = [root / "images", root, *(root / name for name in SPLITS[split])]
        self.listed: dict[Path, ImageFolder] = {}

    def path(self, name: str) -> Path:
        """The picture, or where it would be; in `images/` another suffix will do (a GIF called .jpg)."""
        paths = [folder / name for folder in self.folders]
        for path in paths:
            if path.name in self._list(path.parent).files:
                return path
        for path in (paths[0], *paths[2:]):  # not in the root, where train.json lies
            found = self._list(path.parent).path(path.name)
            if found != path:
                return found
        return paths[0]

    def _list(self, folder: Path) -> ImageFolder:
        if folder not in self.listed:
            self.listed[folder] = ImageFolder(folder)
        return self.listed[folder]


def files(splits: Sequence[str]) -> list[str]:
    """Names of the files that `write` makes."""
    return [f"{split}.json" for split in splits]


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """One JSON per split, with ids from 1 on."""
    for dataset in datasets:
        (root / f"{dataset.split}.json").write_text(json.dumps(_content(dataset)))
    return [root / name for name in files([dataset.split for dataset in datasets])]


def _content(dataset: Dataset) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    for number, scene in enumerate(dataset, 1):
        # a name without a suffix is an id: other tools need the name of the picture
        name = scene.name if Path(scene.name).suffix else scene.image.name
        width, height = whole_if_can(scene.size) if scene.size else (None, None)
        images.append({**scene.extra, "id": number, "file_name": name, "width": width, "height": height})
        offset = len(annotations) + 1
        for label, box in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True):
            one = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": label + 1,
                "bbox": whole_if_can(_xywh(box)),
            }
            if [x + w for x, w in zip(one["bbox"][:2], one["bbox"][2:], strict=True)] != box[2:]:
                one["xyxy"] = box
            annotations.append(one)
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
