"""Small VG150 and VG200 files of the published layout: dtypes, shapes, inclusive ranges, -1 for none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

OBJECTS = {"wheel": 3, "car": 1, "man": 2}  # numbers need not follow the file's order
PREDICATES = {"on": 2, "has": 1, "near": 4, "of": 3}
CORRUPTED = (1592, 1722, 4616, 4617)

# image 10: three boxes, three relations, two of them the same; 11: boxes only; 12: nothing; 13 and 14: test
SIZES = {10: (800, 600), 11: (300, 512), 12: (640, 640), 13: (2048, 1024), 14: (500, 400)}
SPLIT = [0, 0, 0, 2, 2]
FIELDS: dict[str, np.ndarray] = {
    "split": np.asarray(SPLIT, np.int32),
    "img_to_first_box": np.asarray([0, 3, -1, 5, 7], np.int32),
    "img_to_last_box": np.asarray([2, 4, -1, 6, 8], np.int32),
    "img_to_first_rel": np.asarray([0, -1, -1, 3, -1], np.int32),
    "img_to_last_rel": np.asarray([2, -1, -1, 4, -1], np.int32),
    "labels": np.asarray([[1], [2], [3], [2], [2], [1], [3], [1], [2]], np.int64),
    "boxes_1024": np.asarray(
        [
            [100, 200, 50, 60],
            [300, 300, 101, 33],
            [512, 384, 1024, 768],
            [10, 10, 20, 20],
            [30, 30, 20, 20],
            [500, 250, 40, 40],
            [600, 300, 41, 43],
            [50, 50, 10, 10],
            [60, 60, 11, 10],
        ],
        np.int32,
    ),
    "boxes_512": np.arange(36, dtype=np.int32).reshape(9, 4),
    "relationships": np.asarray([[0, 1], [1, 2], [0, 1], [6, 5], [6, 5]], np.int32),
    "predicates": np.asarray([[2], [4], [2], [1], [1]], np.int64),
    "active_object_mask": np.asarray([[True], [False], [True]] * 3),
}


def image_data(corrupted: bool = True) -> list[Any]:
    """The records, with the four corrupted ones among them, as the published file has them."""
    records = [{"image_id": id, "width": w, "height": h, "coco_id": None, "url": "u"} for id, (w, h) in SIZES.items()]
    if corrupted:
        for place, id in zip((1, 2, 4, 8), CORRUPTED, strict=True):
            records.insert(place, {"image_id": id, "width": 5, "height": 6, "coco_id": 7, "url": "broken"})
    return records


def write_vg150(root: Path, records: Any = None, dicts: Any = None, **fields: np.ndarray | None) -> Path:
    """The three files; a field of None is left out."""
    root.mkdir(parents=True, exist_ok=True)
    with h5py.File(root / "VG-SGG.h5", "w") as file:
        for name, values in {**FIELDS, **fields}.items():
            if values is not None:
                file[name] = values
    counts = {"object_count": dict.fromkeys(OBJECTS, 7), "predicate_count": dict.fromkeys(PREDICATES, 8)}
    dicts = dicts or {"label_to_idx": OBJECTS, "predicate_to_idx": PREDICATES, **counts}
    (root / "VG-SGG-dicts.json").write_text(json.dumps(dicts))
    (root / "image_data.json").write_text(json.dumps(image_data() if records is None else records))
    return root


# image 7 of train: the man's box occurs twice with his class and once as a car
VG200 = {
    "train": {
        "7": (
            [[1, 2, 30, 40], [1, 2, 30, 40], [5, 6, 7, 8]],
            [[5, 6, 7, 8], [1, 2, 30, 40], [1, 2, 30, 40]],
            [[2, 3, 1], [2, 0, 1], [1, 0, 2]],
        ),
        "123": ([[0, 0, 9, 9]], [[0, 0, 9, 9]], [[3, 1, 3]]),
    },
    "test": {"20": ([[3, 3, 4, 5]], [[0, 0, 1, 1]], [[1, 2, 2]])},
}
CLASSES = ("__background__", "car", "man", "wheel")
VERBS = ("has", "near", "of", "on")


def write_vg200(
    root: Path,
    gt: Mapping[str, Any] = VG200,
    classes: tuple[str, ...] = CLASSES,
    verbs: tuple[str, ...] = VERBS,
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with h5py.File(root / "vg1_2_meta.h5", "w") as file:
        for kind, names in (("cls", classes), ("pre", verbs)):
            for number, name in enumerate(names):
                file[f"meta/{kind}/idx2name/{number}"] = name if kind == "cls" else np.bytes_(name)
        for split, images in gt.items():
            file.create_group(f"gt/{split}")
            for id, tables in images.items():
                for name, table, width in zip(("sub_boxes", "obj_boxes", "rlp_labels"), tables, (4, 4, 3), strict=True):
                    if table is not None:
                        dtype = np.int16 if name == "rlp_labels" else np.int32
                        file[f"gt/{split}/{id}/{name}"] = np.asarray(table, dtype).reshape(-1, width)
    return root


def many_vg150(root: Path, train: int = 24, test: int = 8, **changes: Any) -> Path:
    """Enough images to train on, each with a car, a man and a wheel in another place, and two relations."""
    n = train + test
    place = np.arange(n, dtype=np.int32)
    first = 3 * place
    centres = np.asarray([[300, 300, 200, 150], [420, 330, 101, 201], [250, 380, 60, 61]], np.int32)
    moves = np.stack([place * 7 % 90, place * 5 % 70, place % 9, place % 8], -1)
    fields: dict[str, Any] = {
        "split": np.where(place < train, 0, 2).astype(np.int32),
        "img_to_first_box": first,
        "img_to_last_box": first + 2,
        "img_to_first_rel": 2 * place,
        "img_to_last_rel": 2 * place + 1,
        "labels": np.tile([[1], [2], [3]], (n, 1)).astype(np.int64),
        "boxes_1024": (centres + moves[:, None]).reshape(-1, 4).astype(np.int32),
        "boxes_512": np.zeros((3 * n, 4), np.int32),
        "relationships": np.stack([[[at, at + 2], [at + 1, at]] for at in first]).reshape(-1, 2).astype(np.int32),
        "predicates": np.tile([[1], [2]], (n, 1)).astype(np.int64),
        "active_object_mask": np.ones((3 * n, 1), bool),
    }
    records = [{"image_id": int(at) + 1, "width": 800, "height": 600, "coco_id": None, "url": "u"} for at in place]
    return write_vg150(root, records, **{**fields, **changes})


def many_vg200(root: Path, train: int = 24, test: int = 8) -> Path:
    """The same for VG200: numbers from 7000 on."""

    def tables(at: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        x, y = at * 7 % 90, at * 5 % 70
        car, man, wheel = [x, y, x + 200, y + 150], [x + 90, y, x + 190, y + 200], [x, y + 90, x + 60, y + 150]
        return [car, man], [wheel, car], [[1, 0, 3], [2, 3, 1]]

    gt = {
        "train": {str(7000 + at): tables(at) for at in range(train)},
        "test": {str(8000 + at): tables(at) for at in range(test)},
    }
    ids = (*gt["train"], *gt["test"])
    write_vg200(root, gt)
    records = [{"image_id": int(id), "width": 320, "height": 300} for id in ids]
    (root / "image_data.json").write_text(json.dumps(records))
    return root
