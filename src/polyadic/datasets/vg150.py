"""VG150 (Xu et al. 2017): `VG-SGG.h5`, `VG-SGG-dicts.json`, `image_data.json` and pictures in `images/<image_id>.jpg`.

Boxes are in a frame whose longer side is 1024, whatever the size of the picture; so is the field's evaluation.
`read` returns every image of a split. `tidy` follows the field's practice: images without boxes or without relations
are dropped, and in training each (subject, object, predicate) counts once. The first 5,000 remaining training images
are the validation split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.datasets.reading import ImageFolders, Report, open_h5, read_array, read_json
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

H5, DICTS, IMAGE_DATA = "VG-SGG.h5", "VG-SGG-dicts.json", "image_data.json"
CORRUPTED = (1592, 1722, 4616, 4617)  # pictures that image_data.json may list and the h5 leaves out
LONGER_SIDE = 1024
SPLITS = {"train": 0, "test": 2}
PER_IMAGE = ("split", "img_to_first_box", "img_to_last_box", "img_to_first_rel", "img_to_last_rel")
PER_BOX = {"labels": 1, "boxes_1024": 4}
PER_RELATION = {"predicates": 1, "relationships": 2}


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every image of a split; 108,073 images take seconds."""
    if split not in SPLITS:
        raise PolyadicError(f"vg150: no split {split!r} on disk; known: {', '.join(SPLITS)}")
    advice = f"Get it with: polyadic data fetch vg150 --root {root}"
    dicts = read_json(root / DICTS, advice)
    names = [_class_names(dicts, key, root / DICTS) for key in ("label_to_idx", "predicate_to_idx")]
    vocabulary = Vocabulary(*names)
    fields = _fields(root / H5, advice)
    records = _image_data(root / IMAGE_DATA, advice, len(fields["split"]))
    for row in np.flatnonzero(~np.isin(fields["split"], list(SPLITS.values()))).tolist():
        report.at(H5, f"record {row}").add("unknown split", "split", f"expected 0 or 2, got {fields['split'][row]}")
    rows = np.flatnonzero(fields["split"] == SPLITS[split])
    images, frames = _frames(records, rows, report)
    where = [f"record {row}" if name is None else f"image {name}" for name, row in zip(images, rows, strict=True)]
    boxes = _Rows.read("box", fields, rows, where, report)
    relations = _Rows.read("rel", fields, rows, where, report)
    xyxy, labels = _boxes(fields, boxes, frames, len(vocabulary.objects), report)
    triples, kept = _relations(fields, boxes, relations, len(vocabulary.predicates), report)
    box_ends, relation_ends = _ends(boxes.owner, len(rows)), _ends(relations.owner[kept], len(rows))
    pictures = ImageFolders(*(root / folder for folder in ("images", "VG_100K", "VG_100K_2")))
    scenes = []
    for i, name in enumerate(images):
        if name is None:
            continue
        frame = (float(frames[i, 0]), float(frames[i, 1])) if frames[i, 0] > 0 else None
        b, r = slice(box_ends[i], box_ends[i + 1]), slice(relation_ends[i], relation_ends[i + 1])
        scenes.append(Scene(name, pictures.path(f"{name}.jpg"), frame, xyxy[b], labels[b], triples[r]))
    return Dataset("vg150", split, vocabulary, tuple(scenes), root)


def tidy(dataset: Dataset) -> Dataset:
    """Drop images without boxes or relations; count a training relation once, where it first occurs."""
    kept = dataset.keep(lambda scene: len(scene.boxes) > 0 and len(scene.relations) > 0)
    if dataset.split == "test":
        return kept
    return replace(kept, scenes=tuple(map(_each_relation_once, kept)))


def _each_relation_once(scene: Scene) -> Scene:
    rows = list(map(tuple, scene.relations.tolist()))
    once = list(dict.fromkeys(rows))
    return scene if len(once) == len(rows) else replace(scene, relations=np.asarray(once))


def held_out(scenes: tuple[Scene, ...]) -> set[str]:
    """Name the first 5,000 training scenes; of fewer than 50,000 scenes, the first tenth."""
    n = 5_000 if len(scenes) >= 50_000 else round(0.1 * len(scenes))
    return {scene.name for scene in scenes[:n]}


def _class_names(dicts: Any, key: str, file: Path) -> tuple[str, ...]:
    """Return names in the order of their numbers, which must be 1 to n."""
    numbers = dicts.get(key) if isinstance(dicts, dict) else None
    if not isinstance(numbers, dict) or not numbers:
        got = "no such key" if numbers is None else f"{numbers!r:.60}"
        raise PolyadicError(f"{file}, {key}: expected {{name: number from 1}}, got {got}")
    inverse = {number: name for name, number in numbers.items() if type(number) is int}
    for name, number in numbers.items():
        if type(number) is not int or not 1 <= number <= len(numbers) or inverse[number] != name or not name:
            rule = f"each name needs a unique number from 1 to {len(numbers)}"
            raise PolyadicError(f"{file}, {key}, {name!r}: {rule}, got {number!r:.40}")
    return tuple(inverse[number] for number in range(1, len(numbers) + 1))


def _fields(file: Path, advice: str) -> Mapping[str, np.ndarray]:
    with open_h5(file, advice) as h5:
        widths = {**dict.fromkeys(PER_IMAGE, 0), **PER_BOX, **PER_RELATION}
        fields = {name: read_array(h5, name, width, file) for name, width in widths.items()}
    for names in (PER_IMAGE, PER_BOX, PER_RELATION):
        lengths = [len(fields[name]) for name in names]
        if len(set(lengths)) > 1:
            raise PolyadicError(f"{file}: {', '.join(names)} need one length, got {lengths}")
    return fields


def _image_data(file: Path, advice: str, n: int) -> list[Any]:
    """Read the records in the h5's order, without the corrupted pictures."""
    records = read_json(file, advice)
    if not isinstance(records, list):
        raise PolyadicError(f"{file}: expected a list of {{image_id, width, height}}, got {records!r:.60}")
    kept = [record for record in records if not (isinstance(record, dict) and record.get("image_id") in CORRUPTED)]
    if len(kept) != n:
        raise PolyadicError(
            f"{file}: {len(kept):,} images (without {len(records) - len(kept)} corrupted ones), but {H5} has {n:,}; "
            "are they of one version?"
        )
    return kept


def _frames(
    records: list[Any], rows: Int[np.ndarray, " I"], report: Report
) -> tuple[list[str | None], Float[np.ndarray, "I 2"]]:
    """Return the names of the images (None: unusable) and their frames (0: unknown)."""
    first: dict[Any, int] = {}
    for row, record in enumerate(records):
        if isinstance(record, dict) and type(record.get("image_id")) is int:
            first.setdefault(record["image_id"], row)
    names: list[str | None] = []
    sizes = np.zeros((len(rows), 2))
    for number, row in enumerate(rows.tolist()):
        record, name = records[row], None
        at = report.at(IMAGE_DATA, f"record {row}")
        if not isinstance(record, dict):
            at.add("not a record", "", f"expected {{image_id, width, height}}, got {record!r:.60}")
        elif type(id := record.get("image_id")) is not int:
            at.add("no image id", "image_id", f"expected a whole number, got {id!r:.40}")
        elif first[id] != row:
            at.add("duplicate image", "image_id", f"image {id} is already record {first[id]}")
        else:
            name = str(id)
            sizes[number] = report.at(IMAGE_DATA, f"image {id}").size(record) or 0
        names.append(name)
    longer = sizes.max(1, keepdims=True)
    return names, np.divide(sizes * LONGER_SIDE, longer, out=np.zeros_like(sizes), where=longer > 0)


@dataclass(frozen=True)
class _Rows:
    """The rows of the box or relation tables that belong to some images, image by image."""

    at: Int[np.ndarray, " N"]  # row in the table
    owner: Int[np.ndarray, " N"]  # image that it belongs to
    first: Int[np.ndarray, " I"]  # row of each image
    count: Int[np.ndarray, " I"]
    where: list[str]  # name of each image in the report

    @classmethod
    def read(
        cls,
        kind: Literal["box", "rel"],
        fields: Mapping[str, np.ndarray],
        rows: Int[np.ndarray, " I"],
        where: list[str],
        report: Report,
    ) -> _Rows:
        """Read first and last row of each image, inclusive; both are -1 for an image without any."""
        first, last = (fields[f"img_to_{end}_{kind}"].astype(np.int64) for end in ("first", "last"))
        n = len(fields["labels" if kind == "box" else "predicates"])
        some = (first >= 0) & (first <= last) & (last < n)
        valid = some | ((first == -1) & (last == -1))
        count = np.where(some, last - first + 1, 0)
        unused = n - int(count.sum())
        if unused > 0 and valid.all():
            message = f"{unused:,} of {n:,} rows are in no image and are left out"
            report.at(H5).add("unused rows", f"img_to_first_{kind}", message, "warning")
        for i in np.flatnonzero(~valid[rows]).tolist():
            message = f"expected a first and a last row (or -1, -1), got {[int(first[rows[i]]), int(last[rows[i]])]}"
            report.at(H5, where[i]).add("invalid rows", f"img_to_first_{kind}", message)
        first, count = np.where(some, first, 0)[rows], count[rows]
        owner = np.repeat(np.arange(len(rows)), count)
        at = np.arange(len(owner)) + (first - (np.cumsum(count) - count))[owner]
        return cls(at, owner, first, count, where)

    def name(self, row: int, item: str) -> str:
        """Name one row in the report."""
        i = int(self.owner[row])
        return f"{self.where[i]}, {item} {self.at[row] - self.first[i]}"


def _boxes(
    fields: Mapping[str, np.ndarray], rows: _Rows, frames: Float[np.ndarray, "I 2"], classes: int, report: Report
) -> tuple[Float[np.ndarray, "N 4"], Int[np.ndarray, " N"]]:
    """Return xyxy boxes and labels; only suspicious ones are checked one by one."""
    xc, yc, w, h = fields["boxes_1024"][rows.at].astype(np.float64).T
    boxes = np.stack([xc - w / 2, yc - h / 2, xc - w / 2 + w, yc - h / 2 + h], axis=1)  # exact: halves
    low, high, frame = boxes[:, :2], boxes[:, 2:], frames[rows.owner]
    suspect = (high < low).any(1) | (low < -1).any(1) | (high > frame + 1).any(1)
    for row in np.flatnonzero(suspect).tolist():
        size = (float(frame[row, 0]), float(frame[row, 1])) if frame[row, 0] > 0 else None
        if not report.at(H5, rows.name(row, "box")).box_ok(boxes[row].tolist(), size, "boxes_1024"):
            boxes[row] = 0  # reported; reading continues
    labels = fields["labels"][rows.at, 0].astype(np.int64) - 1
    _known(labels, classes, rows, field="labels", item="box", report=report)
    return boxes, labels


def _relations(
    fields: Mapping[str, np.ndarray], boxes: _Rows, rows: _Rows, classes: int, report: Report
) -> tuple[Int[np.ndarray, "M 3"], Bool[np.ndarray, " N"]]:
    """Return (subject box, predicate, object box) within each image, and which rows are valid."""
    first, count = boxes.first[rows.owner], boxes.count[rows.owner]
    ends = fields["relationships"][rows.at].astype(np.int64) - first[:, None]
    predicates = fields["predicates"][rows.at, 0].astype(np.int64) - 1
    known = _known(predicates, classes, rows, field="predicates", item="relation", report=report)
    inside = ((ends >= 0) & (ends < count[:, None])).all(1)
    for row in np.flatnonzero(~inside).tolist():
        allowed = f"{first[row]} to {first[row] + count[row] - 1}" if count[row] else "none"
        message = f"must be boxes of this image ({allowed}), got {fields['relationships'][rows.at[row]].tolist()}"
        report.at(H5, rows.name(row, "relation")).add("dangling relation", "relationships", message)
    valid = known & inside
    return np.stack([ends[:, 0], predicates, ends[:, 1]], axis=1)[valid], valid


def _known(
    classes: Int[np.ndarray, " N"], n: int, rows: _Rows, *, field: str, item: str, report: Report
) -> Bool[np.ndarray, " N"]:
    known = (classes >= 0) & (classes < n)
    for row in np.flatnonzero(~known).tolist():
        report.at(H5, rows.name(row, item)).class_ok(int(classes[row]) + 1, 1, n, field)
    return known


def _ends(owner: Int[np.ndarray, " N"], images: int) -> Int[np.ndarray, " I1"]:
    """Return where the rows of each image end, after a 0."""
    return np.cumsum(np.concatenate([[0], np.bincount(owner, minlength=images)]))
