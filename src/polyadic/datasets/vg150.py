"""VG150 (Xu et al. 2017): `VG-SGG.h5`, `VG-SGG-dicts.json`, `image_data.json` and pictures in `images/<image_id>.jpg`.

Boxes live in a frame whose longer side is 1024, whatever the size of the picture; so does the field's evaluation.
`read` gives every image of a split. `tidy` is the field's use: images without boxes or without relations are dropped,
and in training each (subject, object, predicate) counts once. The first 5,000 training images that remain validate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.datasets.reading import ImageFolder, Report, array, as_dtype, open_h5, read_json, rows_of
from polyadic.files import is_positive
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = {"train": 0, "test": 2}
WIDTHS = {  # of the h5's fields; 0 for a vector
    "split": 0,
    "img_to_first_box": 0,
    "img_to_last_box": 0,
    "img_to_first_rel": 0,
    "img_to_last_rel": 0,
    "labels": 1,
    "boxes_1024": 4,
    "relationships": 2,
    "predicates": 1,
}


@dataclass(frozen=True)
class Tables:
    """The h5, read whole. An image's rows go from its first to its last, inclusive; -1 and -1 when it has none."""

    file: Path
    fields: Mapping[str, np.ndarray]
    others: Mapping[str, np.ndarray]  # what scenes do not hold, boxes_512 above all

    def __post_init__(self) -> None:
        for names in (
            ("split", "img_to_first_box", "img_to_last_box", "img_to_first_rel", "img_to_last_rel"),
            ("labels", "boxes_1024"),
            ("predicates", "relationships"),
        ):
            lengths = [len(self.fields[name]) for name in names]
            if len(set(lengths)) > 1:
                raise PolyadicError(f"{self.file}: {', '.join(names)} need one length, got {lengths}")

    @classmethod
    def read(cls, file: Path, cure: str, whole: bool) -> Tables:
        with open_h5(file, cure) as h5:
            fields = {name: array(h5, name, width, file) for name, width in WIDTHS.items()}
            others = [name for name in h5 if name not in WIDTHS] if whole else []
            return cls(file, fields, {name: rows_of(h5, name, file) for name in others})

    def check(self, report: Report) -> None:
        """That each image is in a split, and each row in an image."""
        split = self.fields["split"]
        for row in np.flatnonzero(~np.isin(split, list(SPLITS.values()))).tolist():
            report.add("unknown split", self.file, f"record {row}", "split", f"expected 0 or 2, got {split[row]}")
        for kind, name in (("box", "labels"), ("rel", "predicates")):
            _, count, ok = self.span(kind)
            missing = len(self.fields[name]) - int(count.sum())
            if missing > 0 and ok.all():
                message = f"{missing:,} of {len(self.fields[name]):,} rows are in no image and are left out"
                report.add("rows of no image", self.file, "", f"img_to_first_{kind}", message, "warning")

    def span(self, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Per image: its first row, its number of rows, and whether the file says so in a way that makes sense."""
        first = self.fields[f"img_to_first_{kind}"].astype(np.int64)
        last = self.fields[f"img_to_last_{kind}"].astype(np.int64)
        rows = len(self.fields["labels" if kind == "box" else "predicates"])
        some = (first >= 0) & (first <= last) & (last < rows)
        none = (first == -1) & (last == -1)
        return np.where(some, first, 0), np.where(some, last - first + 1, 0), some | none

    def about(self) -> dict[str, Any]:
        """What `write` needs beyond scenes; refuses what it could not give back."""
        for kind, rows in (("box", len(self.fields["labels"])), ("rel", len(self.fields["predicates"]))):
            first, count, _ = self.span(kind)
            if count.sum() != rows or (first != np.cumsum(count) - count)[count > 0].any():
                what = f"{self.file}, img_to_first_{kind}: rows"
                raise PolyadicError(f"{what} lie in no image, in two or out of order; cannot be converted")
        return {
            "images": len(self.fields["split"]),
            "dtypes": {name: value.dtype.str for name, value in self.fields.items()},
            "others": {name: self._describe(name) for name in self.others},
        }

    def _describe(self, name: str) -> dict[str, Any]:
        value = self.others[name]
        if self._per(name) is None:
            raise PolyadicError(f"{self.file}: {name!r} has no row per image, box or relation; cannot be converted")
        return {"per": self._per(name), "dtype": value.dtype.str, "shape": list(value.shape[1:])}

    def _per(self, name: str) -> str | None:
        lengths = {"box": "labels", "rel": "predicates", "image": "split"}
        n = len(self.others[name])
        return next((per for per, field in lengths.items() if len(self.fields[field]) == n), None)

    def extra(self, row: int, record: Any) -> dict[str, Any]:
        """What the files say about an image beyond its scene."""
        span = {"image": slice(row, row + 1)}
        for kind in ("box", "rel"):
            first, last = (int(self.fields[f"img_to_{end}_{kind}"][row]) for end in ("first", "last"))
            span[kind] = slice(first, last + 1) if first >= 0 else slice(0, 0)
        others = {name: value[span[self._per(name) or "image"]].tolist() for name, value in self.others.items()}
        return {"row": row, "image_data": record, "others": others}


class Contents:
    """Boxes, labels and relations of some images, checked all at once."""

    def __init__(
        self,
        tables: Tables,
        rows: Int[np.ndarray, " I"],
        names: list[str | None],
        frames: Float[np.ndarray, "I 2"],
        vocabulary: Vocabulary,
        report: Report,
    ) -> None:
        self.tables, self.rows, self.names, self.report = tables, rows, names, report
        fields = tables.fields
        first_box, box_count, box_ok = (column[rows] for column in tables.span("box"))
        first_rel, rel_count, rel_ok = (column[rows] for column in tables.span("rel"))
        for kind, field, ok in (("boxes", "box", box_ok), ("relations", "rel", rel_ok)):
            for i in np.flatnonzero(~ok).tolist():
                ends = [int(fields[f"img_to_{end}_{field}"][rows[i]]) for end in ("first", "last")]
                message = f"first and last row of its {kind} (or -1, -1), got {ends}"
                self.report.add(
                    "rows that point nowhere", tables.file, self._image(i), f"img_to_first_{field}", message
                )

        at, owner = _ranges(first_box, box_count)
        xc, yc, w, h = fields["boxes_1024"][at].astype(np.float64).T
        self.boxes = np.stack([xc - w / 2, yc - h / 2, xc - w / 2 + w, yc - h / 2 + h], axis=1)  # exact: halves
        self.labels = fields["labels"][at, 0].astype(np.int64) - 1
        self.box_ends = np.cumsum(np.concatenate([[0], box_count]))
        self._check_boxes(owner, frames)
        self._check_classes(self.labels, len(vocabulary.objects), owner, self.box_ends, "labels", "box")

        at, owner = _ranges(first_rel, rel_count)
        ends = fields["relationships"][at].astype(np.int64) - first_box[owner, None]
        predicates = fields["predicates"][at, 0].astype(np.int64) - 1
        rel_ends = np.cumsum(np.concatenate([[0], rel_count]))
        known = self._check_classes(predicates, len(vocabulary.predicates), owner, rel_ends, "predicates", "relation")
        inside = ((ends >= 0) & (ends < box_count[owner, None])).all(1)
        for row in np.flatnonzero(~inside).tolist():
            i = int(owner[row])
            own = f"{first_box[i]} to {first_box[i] + box_count[i] - 1}" if box_count[i] else "none"
            got = fields["relationships"][at[row]].tolist()
            record = f"{self._image(i)}, relation {row - rel_ends[i]}"
            message = f"must be boxes of this image ({own}), got {got}"
            self.report.add("relation points nowhere", tables.file, record, "relationships", message)
        good = known & inside
        self.relations = np.stack([ends[:, 0], predicates, ends[:, 1]], axis=1)[good]
        counts = np.bincount(owner[good], minlength=len(rows))
        self.rel_ends = np.cumsum(np.concatenate([[0], counts]))

    def of(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes, labels and relations of one image."""
        boxes = slice(self.box_ends[number], self.box_ends[number + 1])
        relations = slice(self.rel_ends[number], self.rel_ends[number + 1])
        return self.boxes[boxes], self.labels[boxes], self.relations[relations]

    def _image(self, number: int) -> str:
        name = self.names[number]
        return f"record {self.rows[number]}" if name is None else f"image {name}"

    def _check_boxes(self, owner: Int[np.ndarray, " N"], frames: Float[np.ndarray, "I 2"]) -> None:
        """The rules of `Report.box_ok`, in one go; only suspects are looked at one by one."""
        low, high, frame = self.boxes[:, :2], self.boxes[:, 2:], frames[owner]
        suspect = (high < low).any(1) | (low < -1).any(1) | (high > frame + 1).any(1)
        for row in np.flatnonzero(suspect).tolist():
            i = int(owner[row])
            size = (float(frames[i, 0]), float(frames[i, 1])) if frames[i, 0] > 0 else None
            record = f"{self._image(i)}, box {row - self.box_ends[i]}"
            if not self.report.box_ok(self.boxes[row].tolist(), size, self.tables.file, record, "boxes_1024"):
                self.boxes[row] = 0  # reported; reading goes on

    def _check_classes(
        self,
        classes: Int[np.ndarray, " N"],
        n: int,
        owner: Int[np.ndarray, " N"],
        ends: Int[np.ndarray, " I1"],
        field: str,
        what: str,
    ) -> Bool[np.ndarray, " N"]:
        known = (classes >= 0) & (classes < n)
        for row in np.flatnonzero(~known).tolist():
            record = f"{self._image(int(owner[row]))}, {what} {row - ends[owner[row]]}"
            message = f"expected a class from 1 to {n}, got {classes[row] + 1}"
            self.report.add("unknown class", self.tables.file, record, field, message)
        return known


def _ranges(first: Int[np.ndarray, " I"], count: Int[np.ndarray, " I"]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all images, image by image, and the image that each belongs to."""
    owner = np.repeat(np.arange(len(count)), count)
    return np.arange(len(owner)) + (first - (np.cumsum(count) - count))[owner], owner


def columns(scenes: Sequence[Scene], splits: Sequence[int]) -> dict[str, np.ndarray]:
    """The fields of the h5 from its scenes, in its order."""
    coded = np.concatenate([np.zeros((0, 4)), *(_centred(scene) for scene in scenes)])
    found: dict[str, np.ndarray] = {"split": np.asarray(splits), "boxes_1024": coded}
    starts = {}
    for kind, counts in (("box", [len(s.boxes) for s in scenes]), ("rel", [len(s.relations) for s in scenes])):
        count = np.asarray(counts, np.int64)
        starts[kind] = np.cumsum(count) - count
        found[f"img_to_first_{kind}"] = np.where(count > 0, starts[kind], -1)
        found[f"img_to_last_{kind}"] = np.where(count > 0, starts[kind] + count - 1, -1)
    found["labels"] = np.concatenate([np.zeros(0, np.int64), *(scene.labels for scene in scenes)])[:, None] + 1
    at = zip(scenes, starts["box"].tolist(), strict=True)
    moved = [scene.relations + np.asarray([start, 1, start]) for scene, start in at]
    relations = np.concatenate([np.zeros((0, 3), np.int64), *moved])
    found["relationships"], found["predicates"] = relations[:, ::2], relations[:, 1:2]
    return found


def _centred(scene: Scene) -> Float[np.ndarray, "N 4"]:
    """(xc, yc, w, h), whole numbers."""
    size = scene.boxes[:, 2:] - scene.boxes[:, :2]
    coded = np.concatenate([scene.boxes[:, :2] + size / 2, size], axis=1)
    if (coded != np.rint(coded)).any():
        raise PolyadicError(f"vg150: image {scene.name} has boxes whose (xc, yc, w, h) are not whole numbers")
    return coded


def other_column(name: str, kind: Mapping[str, Any], scenes: Sequence[Scene]) -> np.ndarray:
    """A field that scenes do not hold, from what was kept of it with each."""
    parts = []
    for scene in scenes:
        part = np.asarray(scene.extra["vg150"]["others"][name], kind["dtype"]).reshape(-1, *kind["shape"])
        n = {"box": len(scene.boxes), "rel": len(scene.relations), "image": 1}[kind["per"]]
        if len(part) != n:
            raise PolyadicError(f"vg150: image {scene.name} has {n} rows for {name}, but {len(part)} were kept")
        parts.append(part)
    return np.concatenate(parts)


H5, DICTS, IMAGE_DATA = "VG-SGG.h5", "VG-SGG-dicts.json", "image_data.json"
CORRUPTED = (1592, 1722, 4616, 4617)  # pictures that image_data.json may list and the h5 leaves out
LONGER_SIDE = 1024


def read(root: Path, split: str, report: Report) -> Dataset:
    """Every image of a split, as it is on disk; 108,073 images in seconds."""
    return _read(root, split, report, whole=False)


def read_whole(root: Path, split: str, report: Report) -> Dataset:
    """As `read`, with all that the files say beyond scenes in `extra`, for `write`: more memory."""
    return _read(root, split, report, whole=True)


def tidy(dataset: Dataset) -> Dataset:
    """Without images that lack boxes or relations; a training relation counts once, where it first occurs."""
    kept = dataset.keep(lambda scene: len(scene.boxes) > 0 and len(scene.relations) > 0)
    if dataset.split == "test":
        return kept
    return replace(kept, scenes=tuple(map(_each_relation_once, kept)))


def _each_relation_once(scene: Scene) -> Scene:
    rows = list(map(tuple, scene.relations.tolist()))
    once = list(dict.fromkeys(rows))
    return scene if len(once) == len(rows) else replace(scene, relations=np.asarray(once))


def held_out(scenes: tuple[Scene, ...]) -> set[str]:
    """Names of the first 5,000 training scenes; of fewer than 50,000 scenes, the first tenth."""
    n = 5_000 if len(scenes) >= 50_000 else round(0.1 * len(scenes))
    return {scene.name for scene in scenes[:n]}


def _read(root: Path, split: str, report: Report, whole: bool) -> Dataset:
    if split not in SPLITS:
        raise PolyadicError(f"vg150: no split {split!r} on disk; known: {', '.join(SPLITS)}")
    cure = f"Get it with: polyadic data fetch vg150 --root {root}"
    dicts = read_json(root / DICTS, cure)
    vocabulary = _vocabulary(dicts, root / DICTS)
    tables = Tables.read(root / H5, cure, whole)
    records, dropped = _image_data(root / IMAGE_DATA, cure, tables)
    tables.check(report)
    rows = np.flatnonzero(tables.fields["split"] == SPLITS[split])
    names, frames = _frames(records, rows, root / IMAGE_DATA, report)
    contents = Contents(tables, rows, names, frames, vocabulary, report)
    whole = whole and not report.errors  # nobody converts a dataset with errors
    folders = [ImageFolder(root / folder) for folder in ("images", "VG_100K", "VG_100K_2")]
    scenes = []
    for number, (row, name) in enumerate(zip(rows.tolist(), names, strict=True)):
        if name is None:
            continue
        image = f"{name}.jpg"
        folder = next((folder for folder in folders if image in folder.files), folders[0])
        extra = {"vg150": tables.extra(row, records[row])} if whole else {}
        frame = (float(frames[number, 0]), float(frames[number, 1])) if frames[number, 0] > 0 else None
        scenes.append(Scene(name, folder.folder / image, frame, *contents.of(number), extra))
    about = {"vg150": {"dicts": dicts, "dropped": dropped, **tables.about()}} if whole else {}
    return Dataset("vg150", split, vocabulary, tuple(scenes), root, about)


def _vocabulary(dicts: Any, file: Path) -> Vocabulary:
    return Vocabulary(_names(dicts, "label_to_idx", file), _names(dicts, "predicate_to_idx", file))


def _names(dicts: Any, key: str, file: Path) -> tuple[str, ...]:
    """Names in the order of their numbers, which must be 1 to n."""
    numbers = dicts.get(key) if isinstance(dicts, dict) else None
    if not isinstance(numbers, dict) or not numbers:
        got = "no such key" if numbers is None else f"{numbers!r:.60}"
        raise PolyadicError(f"{file}, {key}: expected {{name: number from 1}}, got {got}")
    inverse = {number: name for name, number in numbers.items() if type(number) is int}
    wanted = range(1, len(numbers) + 1)
    for name, number in numbers.items():
        if type(number) is not int or number not in wanted or inverse[number] != name or not name:
            rule = f"each name needs a number of its own from 1 to {len(numbers)}"
            raise PolyadicError(f"{file}, {key}, {name!r}: {rule}, got {number!r:.40}")
    return tuple(inverse[number] for number in wanted)


def _image_data(file: Path, cure: str, tables: Tables) -> tuple[list[Any], list[Any]]:
    """The records in the h5's order, and the corrupted ones with their places in the list."""
    records = read_json(file, cure)
    if not isinstance(records, list):
        raise PolyadicError(f"{file}: expected a list of {{image_id, width, height}}, got {records!r:.60}")
    corrupted = [isinstance(record, dict) and record.get("image_id") in CORRUPTED for record in records]
    kept = [record for record, bad in zip(records, corrupted, strict=True) if not bad]
    if len(kept) != len(tables.fields["split"]):
        raise PolyadicError(
            f"{file}: {len(kept):,} images (without {sum(corrupted)} corrupted ones) must be as many as those of "
            f"{tables.file.name}, which has {len(tables.fields['split']):,}; are they of one version?"
        )
    return kept, [[place, record] for place, record in enumerate(records) if corrupted[place]]


def _frames(
    records: list[Any], rows: Int[np.ndarray, " I"], file: Path, report: Report
) -> tuple[list[str | None], Float[np.ndarray, "I 2"]]:
    """Names of the images (None: unusable) and their frames (0: unknown)."""
    first: dict[Any, int] = {}
    for row, record in enumerate(records):
        if isinstance(record, dict) and type(record.get("image_id")) is int:
            first.setdefault(record["image_id"], row)
    names: list[str | None] = []
    sizes = np.zeros((len(rows), 2))
    for number, row in enumerate(rows.tolist()):
        record, name = records[row], None
        where = f"record {row}"
        if not isinstance(record, dict):
            report.add("not a record", file, where, "", f"expected {{image_id, width, height}}, got {record!r:.60}")
        elif type(id := record.get("image_id")) is not int:
            report.add("no image id", file, where, "image_id", f"expected a whole number, got {id!r:.40}")
        elif first[id] != row:
            report.add("image twice", file, f"image {id}", "image_id", f"is record {first[id]} and record {row}")
        else:
            name = str(id)
            size = record.get("width"), record.get("height")
            if all(map(is_positive, size)):
                sizes[number] = size
            else:
                message = f"expected a width and a height above 0, got {size[0]!r:.40} and {size[1]!r:.40}"
                report.add("no frame size", file, f"image {id}", "width, height", message)
        names.append(name)
    longer = sizes.max(1, keepdims=True)
    return names, np.divide(sizes * LONGER_SIDE, longer, out=np.zeros_like(sizes), where=longer > 0)


def files(splits: Sequence[str]) -> list[str]:
    """Names of the files that `write` makes; one h5 holds all splits."""
    return [H5, DICTS, IMAGE_DATA]


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """All splits in VG150's files. Only scenes that came from there have what these files say about each image."""
    about = datasets[0].extra.get("vg150")
    if about is None or any("vg150" not in scene.extra for dataset in datasets for scene in dataset):
        raise PolyadicError(f"{datasets[0].name}: only a dataset that came from VG150 can become VG150's files again")
    try:
        _write(datasets, about, root)
    except (KeyError, TypeError, IndexError) as error:
        raise PolyadicError(f"{datasets[0].name}: what 'vg150' says is not as it was written ({error!r})") from error
    return [root / name for name in files(())]


def _write(datasets: Sequence[Dataset], about: Mapping[str, Any], root: Path) -> None:
    place = [(scene.extra["vg150"]["row"], _split_of(dataset), scene) for dataset in datasets for scene in dataset]
    place.sort(key=lambda one: one[0])
    scenes = [scene for _, _, scene in place]
    if [row for row, _, _ in place] != list(range(about["images"])):
        wanted = f"VG150's h5 holds all {about['images']:,} images of train and test"
        raise PolyadicError(f"{datasets[0].name}: {wanted}, got {len(place):,} of them")
    vocabulary = _vocabulary(about["dicts"], Path(DICTS))
    for dataset in datasets:
        if difference := dataset.vocabulary.difference(vocabulary):
            raise PolyadicError(f"{dataset.name} {dataset.split}: class names differ from VG150's: {difference}")
    fields = columns(scenes, [split for _, split, _ in place])
    import h5py

    with h5py.File(root / H5, "w") as file:
        for name, dtype in about["dtypes"].items():
            file[name] = as_dtype(fields[name], dtype, f"vg150: {name}")
        for name, kind in about["others"].items():
            file[name] = other_column(name, kind, scenes)
    records = [scene.extra["vg150"]["image_data"] for scene in scenes]
    for number, record in about["dropped"]:
        records.insert(number, record)
    (root / DICTS).write_text(json.dumps(about["dicts"]))
    (root / IMAGE_DATA).write_text(json.dumps(records))


def _split_of(dataset: Dataset) -> int:
    if dataset.split not in SPLITS:
        raise PolyadicError(f"vg150: its files hold {' and '.join(SPLITS)}, not {dataset.split!r}")
    return SPLITS[dataset.split]
