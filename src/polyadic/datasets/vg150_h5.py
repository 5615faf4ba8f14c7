"""The h5 of VG150 as tables: one row per image, per box or per relation, checked all at once and not one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.datasets.hdf5 import array, open_h5, rows_of
from polyadic.datasets.reading import Report
from polyadic.scenes import Scene
from polyadic.vocabulary import PolyadicError, Vocabulary

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
