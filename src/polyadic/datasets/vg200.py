"""VG200 (VTransE, Zhang et al. 2017): `vg1_2_meta.h5` and pictures in `images/`, `VG_100K/` or `VG_100K_2/`.

VG200 lists no objects: boxes are those that occur in relations, and the same box with the same class is one object, as
in VRD. Everything is kept. Boxes are in the picture's own pixels; without the picture, an `image_data.json` beside the
h5 may give the size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.datasets.reading import (
    ImageFolders,
    RelatedBoxes,
    Report,
    Size,
    open_h5,
    read_array,
    read_group,
    read_json,
    read_scalars,
)
from polyadic.structures.images import picture_size
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

H5, IMAGE_DATA = "vg1_2_meta.h5", "image_data.json"
FIELDS = {"sub_boxes": 4, "obj_boxes": 4, "rlp_labels": 3}


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every image of a split."""
    file = root / H5
    pictures = ImageFolders(*(root / folder for folder in ("images", "VG_100K", "VG_100K_2")))
    records = _image_data(root / IMAGE_DATA)
    scenes = []
    with open_h5(file, f"Get it with: polyadic data fetch vg200 --root {root}") as h5:
        meta = read_group(h5, "meta", file)
        vocabulary = Vocabulary(_names(meta, "cls", 1, file), _names(meta, "pre", 0, file))
        stored = read_scalars(meta, "imid2path", file)
        images = read_group(read_group(h5, "gt", file), split, file)
        for name in images:
            try:
                tables = [read_array(images, f"{name}/{field}", width, file, "iuf") for field, width in FIELDS.items()]
            except PolyadicError as error:
                report.at(file, f"image {name}").add("no relations", "", str(error).removeprefix(f"{file}: "))
                continue
            picture = pictures.path(f"{name}.jpg", Path(str(stored.get(name, name))).name)
            size = _size(name, picture, records, report)
            boxes = _related_boxes(tables, size, vocabulary, report=report, file=file, name=name)
            scenes.append(Scene(name, picture, size, *boxes.arrays()))
    return Dataset("vg200", split, vocabulary, tuple(scenes), root)


def _names(meta: Any, kind: str, start: int, file: Path) -> tuple[str, ...]:
    """Read class names in the order of their numbers, from `idx2name`, else from `name2idx`; 0 may be background."""
    where = f"{file}, meta/{kind}"
    group = read_group(meta, kind, file)
    try:
        names = {int(number): str(name) for number, name in read_scalars(group, "idx2name", file).items()}
        names = names or {int(number): name for name, number in read_scalars(group, "name2idx", file).items()}
    except (TypeError, ValueError) as error:
        raise PolyadicError(f"{where}: expected numbers and names ({error})") from error
    if not names:
        raise PolyadicError(f"{where}: no names in idx2name nor in name2idx")
    numbers = sorted(number for number in names if number != 0 or start == 0)
    if numbers != list(range(start, start + len(numbers))) or len(set(names.values())) < len(names):
        raise PolyadicError(f"{where}: expected one name for each number from {start} on, got {numbers!r:.60}")
    return tuple(names[number] for number in numbers)


def _image_data(file: Path) -> Mapping[str, Any]:
    records = read_json(file, "") if file.exists() else []
    if not isinstance(records, list):
        raise PolyadicError(f"{file}: expected a list of {{image_id, width, height}}, got {records!r:.60}")
    return {str(record.get("image_id")): record for record in records if isinstance(record, dict)}


def _size(name: str, picture: Path, records: Mapping[str, Any], report: Report) -> Size | None:
    """Return the size of the picture, else the one in image_data.json."""
    if picture.exists():
        size = picture_size(picture)
        if size is None:
            report.at(picture, name).add("unreadable picture", "", "its size is the frame, but it cannot be read")
        return size
    return report.at(IMAGE_DATA, f"image {name}").size(records[name]) if name in records else None


def _related_boxes(
    tables: Sequence[np.ndarray], size: Size | None, vocabulary: Vocabulary, *, report: Report, file: Path, name: str
) -> RelatedBoxes:
    boxes = RelatedBoxes()
    if len({len(table) for table in tables}) > 1:
        message = f"need one length, got {[len(table) for table in tables]}"
        report.at(file, f"image {name}").add("lengths differ", ", ".join(FIELDS), message)
        return boxes
    rows = zip(*(table.tolist() for table in tables), strict=True)
    for number, (subject_box, object_box, (s, p, o)) in enumerate(rows):
        at = report.at(file, f"image {name}, relation {number}")
        ends = []
        for box, label, field, column in ((subject_box, s, "sub_boxes", 0), (object_box, o, "obj_boxes", 2)):
            known = at.class_ok(label, 1, len(vocabulary.objects), f"rlp_labels, column {column}")
            if at.box_ok(box, size, field) and known:
                ends.append(boxes.index(label - 1, box))
        if at.class_ok(p, 0, len(vocabulary.predicates), "rlp_labels, column 1") and len(ends) == 2:
            boxes.relations.append((ends[0], p, ends[1]))
    return boxes
