"""VG150 (Xu et al. 2017): `VG-SGG.h5`, `VG-SGG-dicts.json`, `image_data.json` and pictures in `images/<image_id>.jpg`.

Boxes are in a frame whose longer side is 1024, whatever the size of the picture; so is the field's evaluation.
`boxes_1024` has centres and sizes; the field (neural-motifs and its successors) converts them in place in an integer
array, so odd sizes lose half a pixel: x1 = trunc(xc - w / 2), x2 = x1 + w. So does `read`, unless `exact`. It returns
every image of a split; `tidy` drops images without boxes or without relations, as the field does. The first 5,000
remaining training images are the validation split.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from polyadic.datasets.reading import ImageData, ImageFolders, Location, Report, open_h5, read_array, read_json
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

H5, DICTS, IMAGE_DATA = "VG-SGG.h5", "VG-SGG-dicts.json", "image_data.json"
CORRUPTED = (1592, 1722, 4616, 4617)  # pictures that image_data.json may list and the h5 leaves out
LONGER_SIDE = 1024
SPLITS = {"train": 0, "test": 2}
PER_IMAGE = ("split", "img_to_first_box", "img_to_last_box", "img_to_first_rel", "img_to_last_rel")
PER_BOX = {"labels": 1, "boxes_1024": 4}
PER_RELATION = {"predicates": 1, "relationships": 2}


def read(root: Path, split: str, report: Report, *, exact: bool = False) -> Dataset:
    """Read every image of a split; 108,073 images take seconds. `exact` keeps half pixels."""
    advice = f"Get it with: polyadic data fetch vg150 --root {root}"
    dicts = read_json(root / DICTS, advice, dict[str, Any])
    names = [_class_names(dicts, key, root / DICTS) for key in ("label_to_idx", "predicate_to_idx")]
    vocabulary = Vocabulary(*names)
    fields = _fields(root / H5, advice)
    corners = _exact_corners if exact else _field_corners
    fields["corners"] = corners(fields["boxes_1024"].astype(np.int64))  # [boxes, 4]
    records = _image_data(root / IMAGE_DATA, advice, len(fields["split"]))
    for row in np.flatnonzero(~np.isin(fields["split"], list(SPLITS.values()))).tolist():
        report.at(H5, f"record {row}").add("unknown split", "split", f"expected 0 or 2, got {fields['split'][row]}")
    pictures = ImageFolders(*(root / folder for folder in ("images", "VG_100K", "VG_100K_2")))
    scenes: dict[int, Scene] = {}
    for row in np.flatnonzero(fields["split"] == SPLITS[split]).tolist():
        at = report.at(IMAGE_DATA, f"record {row}")
        record = at.parse(records[row], ImageData)
        if record is None:
            continue
        if record.image_id in scenes:
            at.add("duplicate image", "image_id", f"image {record.image_id} has another record")
            continue
        name = str(record.image_id)
        longer = max(record.size)
        frame = record.width * LONGER_SIDE / longer, record.height * LONGER_SIDE / longer
        annotations = _annotations(fields, row, frame, vocabulary, report.at(H5, f"image {name}"))
        scenes[record.image_id] = Scene(name, pictures.path(f"{name}.jpg"), frame, *annotations)
    return Dataset("vg150", split, vocabulary, tuple(scenes.values()), root)


def tidy(dataset: Dataset) -> Dataset:
    """Drop images without boxes or relations."""
    return dataset.keep(lambda scene: len(scene.boxes) > 0 and len(scene.relations) > 0)


def held_out(scenes: tuple[Scene, ...]) -> set[str]:
    """Name the first 5,000 training scenes; of fewer than 50,000 scenes, the first tenth."""
    n = 5_000 if len(scenes) >= 50_000 else round(0.1 * len(scenes))
    return {scene.name for scene in scenes[:n]}


def _class_names(dicts: Mapping[str, Any], key: str, file: Path) -> tuple[str, ...]:
    """Return names in the order of their numbers, which must be 1 to n."""
    numbers = dicts.get(key)
    if not isinstance(numbers, dict) or sorted(map(repr, numbers.values())) != sorted(
        map(repr, range(1, len(numbers) + 1))
    ):
        got = "no such key" if numbers is None else f"{numbers!r:.60}"
        raise PolyadicError(f"{file}, {key}: expected {{name: number}} with each number from 1 once, got {got}")
    return tuple(sorted(numbers, key=numbers.__getitem__))


def _field_corners(boxes: Int[np.ndarray, "N 4"]) -> Float[np.ndarray, "N 4"]:
    """Convert centres and sizes to corners in integers, as the field does."""
    low = np.trunc(boxes[:, :2] - boxes[:, 2:] / 2)
    return np.concatenate([low, low + boxes[:, 2:]], axis=1)


def _exact_corners(boxes: Int[np.ndarray, "N 4"]) -> Float[np.ndarray, "N 4"]:
    low = boxes[:, :2] - boxes[:, 2:] / 2  # exact: halves
    return np.concatenate([low, low + boxes[:, 2:]], axis=1)


def _fields(file: Path, advice: str) -> dict[str, np.ndarray]:
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
    records = read_json(file, advice, list[Any])
    kept = [record for record in records if not (isinstance(record, dict) and record.get("image_id") in CORRUPTED)]
    if len(kept) != n:
        raise PolyadicError(
            f"{file}: {len(kept):,} images (without {len(records) - len(kept)} corrupted ones), but {H5} has {n:,}; "
            "are they of one version?"
        )
    return kept


def _annotations(
    fields: Mapping[str, np.ndarray], row: int, frame: tuple[float, float], vocabulary: Vocabulary, at: Location
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes, labels and relations of one image, without those that are reported as unusable."""
    boxes, relations = _rows(fields, "box", row, at), _rows(fields, "rel", row, at)
    xyxy = fields["corners"][boxes]
    labels = fields["labels"][boxes, 0].astype(np.int64) - 1
    ends = fields["relationships"][relations].astype(np.int64) - boxes.start
    predicates = fields["predicates"][relations, 0].astype(np.int64) - 1
    objects, verbs = len(vocabulary.objects), len(vocabulary.predicates)
    suspect = (
        (xyxy[:, 2:] < xyxy[:, :2]).any(1) | (xyxy[:, :2] < -1).any(1) | (xyxy[:, 2:] > np.asarray(frame) + 1).any(1)
    )
    for i in np.flatnonzero(suspect | (labels < 0) | (labels >= objects)).tolist():
        box = at.report.at(H5, f"{at.record}, box {i}")
        if not box.box_ok(xyxy[i].tolist(), frame, "boxes_1024"):
            xyxy[i] = 0
        box.class_ok(int(labels[i]) + 1, 1, objects, "labels")
    dangling = ((ends < 0) | (ends >= len(xyxy))).any(1)
    wrong = dangling | (predicates < 0) | (predicates >= verbs)
    for i in np.flatnonzero(wrong).tolist():
        relation = at.report.at(H5, f"{at.record}, relation {i}")
        relation.class_ok(int(predicates[i]) + 1, 1, verbs, "predicates")
        if dangling[i]:
            message = (
                f"must be two of the boxes {boxes.start} to {boxes.stop - 1}, got {(ends[i] + boxes.start).tolist()}"
            )
            relation.add("dangling relation", "relationships", message)
    return xyxy, labels, np.stack([ends[:, 0], predicates, ends[:, 1]], axis=1)[~wrong]


def _rows(fields: Mapping[str, np.ndarray], kind: str, row: int, at: Location) -> slice:
    """Return the rows of an image in the table of boxes or relations; first and last are -1 if it has none."""
    first, last = (int(fields[f"img_to_{end}_{kind}"][row]) for end in ("first", "last"))
    if first == last == -1:
        return slice(0, 0)
    if not 0 <= first <= last < len(fields["labels" if kind == "box" else "predicates"]):
        message = f"expected a first and a last row (or -1, -1), got {[first, last]}"
        at.add("invalid rows", f"img_to_first_{kind}", message)
        return slice(0, 0)
    return slice(first, last + 1)
