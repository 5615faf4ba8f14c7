"""VG200 (VTransE, Zhang et al. 2017): `vg1_2_meta.h5` and pictures in `images/`, `VG_100K/` or `VG_100K_2/`.

VG200 lists no objects: boxes are those that occur in relations, and the same box with the same class is one object, as
in VRD. Everything is kept. Boxes are in the picture's own pixels; without the picture, an `image_data.json` beside the
h5 may give the size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyadic.datasets.reading import (
    ImageData,
    ImageFolders,
    RelatedBoxes,
    Report,
    open_h5,
    read_array,
    read_group,
    read_json,
)
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

H5, IMAGE_DATA = "vg1_2_meta.h5", "image_data.json"
WIDTHS = {"sub_boxes": 4, "obj_boxes": 4, "rlp_labels": 3}
FIELDS = ("rlp_labels, column 0", "sub_boxes", "rlp_labels, column 1", "rlp_labels, column 2", "obj_boxes")


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every image of a split."""
    file = root / H5
    pictures = ImageFolders(*(root / folder for folder in ("images", "VG_100K", "VG_100K_2")))
    listed = read_json(root / IMAGE_DATA, "", list[dict[str, Any]]) if (root / IMAGE_DATA).exists() else []
    records = {str(record.get("image_id")): record for record in listed}
    scenes = []
    with open_h5(file, f"Get it with: polyadic data fetch vg200 --root {root}") as h5:
        vocabulary = Vocabulary(_names(h5, "cls", 1, file), _names(h5, "pre", 0, file))
        images = read_group(h5, f"gt/{split}", file)
        for name in images:
            at = report.at(file, f"image {name}")
            try:
                tables = [read_array(images, f"{name}/{field}", width, file, "iuf") for field, width in WIDTHS.items()]
            except PolyadicError as error:
                at.add("no relations", "", str(error).removeprefix(f"{file}: "))
                continue
            if len({len(table) for table in tables}) > 1:
                message = f"need one length, got {[len(table) for table in tables]}"
                at.add("lengths differ", ", ".join(WIDTHS), message)
                continue
            picture = pictures.path(f"{name}.jpg")
            size = report.at(picture, name).picture_size(picture)
            if not picture.exists() and name in records:
                record = report.at(IMAGE_DATA, f"image {name}").parse(records[name], ImageData)
                size = None if record is None else record.size
            boxes = RelatedBoxes(vocabulary, size, FIELDS, start=1)
            rows = zip(*(table.tolist() for table in tables), strict=True)
            for number, (subject_box, object_box, (s, p, o)) in enumerate(rows):
                boxes.add(report.at(file, f"image {name}, relation {number}"), s, subject_box, p, o, object_box)
            scenes.append(boxes.scene(name, picture))
    return Dataset("vg200", split, vocabulary, tuple(scenes), root)


def _names(h5: Any, kind: str, start: int, file: Path) -> tuple[str, ...]:
    """Read class names in the order of their numbers; 0 may be background."""
    group = read_group(h5, f"meta/{kind}/idx2name", file)
    try:
        names = {int(number): item.asstr("utf-8")[()] for number, item in group.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise PolyadicError(f"{file}, meta/{kind}: expected numbers and names ({error})") from error
    numbers = sorted(number for number in names if number != 0 or start == 0)
    if not names or numbers != list(range(start, start + len(numbers))) or len(set(names.values())) < len(names):
        raise PolyadicError(f"{file}, meta/{kind}: expected one name for each number from {start}, got {numbers!r:.60}")
    return tuple(names[number] for number in numbers)
