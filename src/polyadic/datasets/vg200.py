"""VG200 (VTransE, Zhang et al. 2017): `vg1_2_meta.h5` and pictures in `images/`, `VG_100K/` or `VG_100K_2/`.

There is no list of objects: boxes are those that occur in relations, and the same box with the same class is one
object, as in VRD. Everything is kept. Boxes live in the picture's own pixels; without the picture an `image_data.json`
beside the h5 may tell the size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.datasets.reading import (
    ImageFolder,
    Report,
    array,
    as_dtype,
    group,
    open_h5,
    read_json,
    read_tree,
    write_tree,
)
from polyadic.files import is_positive
from polyadic.structures.images import picture_size
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

H5 = "vg1_2_meta.h5"
SPLITS = ("train", "test")
FIELDS = {"sub_boxes": 4, "obj_boxes": 4, "rlp_labels": 3}
BACKGROUND = "__background__"


def read(root: Path, split: str, report: Report) -> Dataset:
    """Every image of a split, as it is on disk."""
    return _read(root, split, report, whole=False)


def read_whole(root: Path, split: str, report: Report) -> Dataset:
    """As `read`, with all that the file says beyond scenes in `extra`, for `write`; what cannot be kept is refused."""
    return _read(root, split, report, whole=True)


def _read(root: Path, split: str, report: Report, whole: bool) -> Dataset:
    file = root / H5
    sizes = _Sizes(root, report)
    scenes = []
    with open_h5(file, f"Get it with: polyadic data fetch vg200 --root {root}") as h5:
        meta = read_tree(group(h5, "meta", file))
        vocabulary = _vocabulary(meta, file)
        splits = group(h5, "gt", file)
        images = group(splits, split, file)
        if whole:
            _refuse(file, "", h5, ("meta", "gt"))
            _refuse(file, "gt/", splits, SPLITS)
        for name in images:
            try:
                tables = [array(images, f"{name}/{field}", width, file, "iuf") for field, width in FIELDS.items()]
            except PolyadicError as error:
                report.add("no relations", file, f"image {name}", "", str(error).removeprefix(f"{file}: "))
                continue
            extra: dict[str, Any] = {}
            if whole:
                _refuse(file, f"gt/{split}/{name}/", images[name], FIELDS)
                extra = {"vg200": {"image_id": name, "dtypes": [table.dtype.str for table in tables]}}
            picture = sizes.picture(name, _stored(meta, name))
            scenes.append(_scene(name, picture, sizes.of(name, picture), tables, file, vocabulary, report, extra))
    return Dataset("vg200", split, vocabulary, tuple(scenes), root, {"vg200": {"meta": meta}} if whole else {})


def _refuse(file: Path, where: str, found: Iterable[str], known: Iterable[str]) -> None:
    beyond = [name for name in found if name not in known]
    if beyond:
        raise PolyadicError(f"{file}: {where}{beyond[0]} is not of VG200's layout and cannot be converted")


def _stored(meta: Mapping[str, Any], name: str) -> str:
    paths = meta.get("imid2path")
    leaf = paths.get(name) if isinstance(paths, dict) else None
    return str(leaf[1]) if isinstance(leaf, list) else f"{name}.jpg"


def _vocabulary(meta: Mapping[str, Any], file: Path) -> Vocabulary:
    objects, predicates = _names(meta, "cls", file), _names(meta, "pre", file)
    return Vocabulary(_dense(objects, 1, f"{file}, meta/cls"), _dense(predicates, 0, f"{file}, meta/pre"))


def _names(meta: Mapping[str, Any], kind: str, file: Path) -> dict[int, str]:
    """Names by number, from `idx2name`, else from `name2idx`."""
    found = meta.get(kind)
    tables = found if isinstance(found, dict) else {}
    names: dict[int, str] = {}
    try:
        if tables.get("idx2name"):
            names = {int(number): str(leaf[1]) for number, leaf in tables["idx2name"].items()}
        elif tables.get("name2idx"):
            names = {int(leaf[1]): name for name, leaf in tables["name2idx"].items()}
    except (TypeError, ValueError, KeyError) as error:
        raise PolyadicError(f"{file}, meta/{kind}: expected numbers and names ({error})") from error
    if not names:
        raise PolyadicError(f"{file}: no names in meta/{kind}/idx2name nor in meta/{kind}/name2idx")
    return names


def _dense(names: Mapping[int, str], start: int, where: str) -> tuple[str, ...]:
    numbers = sorted(number for number in names if number != 0 or start == 0)  # 0 is the background of classes
    if numbers != list(range(start, start + len(numbers))) or len(set(names.values())) < len(names):
        raise PolyadicError(f"{where}: expected one name for each number from {start} on, got {numbers!r:.60}")
    return tuple(names[number] for number in numbers)


def _scene(
    name: str,
    picture: Path,
    size: tuple[float, float] | None,
    tables: Sequence[np.ndarray],
    file: Path,
    vocabulary: Vocabulary,
    report: Report,
    extra: Mapping[str, Any],
) -> Scene:
    subjects, object_boxes, labels = (table.tolist() for table in tables)
    if not len(subjects) == len(object_boxes) == len(labels):
        lengths = [len(table) for table in tables]
        report.add("lengths differ", file, f"image {name}", ", ".join(FIELDS), f"need one length, got {lengths}")
        subjects = object_boxes = labels = []
    objects: dict[tuple[float, ...], int] = {}  # (class, x1, y1, x2, y2) -> index
    rows = []
    for number, (s_box, o_box, (s, p, o)) in enumerate(zip(subjects, object_boxes, labels, strict=True)):
        record = f"image {name}, relation {number}"
        ends = []
        for box, label, field, column in ((s_box, s, "sub_boxes", 0), (o_box, o, "obj_boxes", 2)):
            known = _class_ok(label, 1, len(vocabulary.objects), file, record, column, report)
            if report.box_ok(box, size, file, record, field) and known:
                ends.append(objects.setdefault((label - 1, *box), len(objects)))
        known = _class_ok(p, 0, len(vocabulary.predicates), file, record, 1, report)
        if len(ends) == 2 and known:
            rows.append((ends[0], p, ends[1]))
    keys = np.asarray(list(objects), np.float64).reshape(-1, 5)
    relations = np.asarray(rows, np.int64).reshape(-1, 3)
    return Scene(name, picture, size, keys[:, 1:], keys[:, 0].astype(np.int64), relations, extra)


def _class_ok(label: float, start: int, n: int, file: Path, record: str, column: int, report: Report) -> bool:
    if start <= label < start + n and label == int(label):
        return True
    message = f"expected a class from {start} to {start + n - 1} in column {column}, got {label}"
    report.add("unknown class", file, record, "rlp_labels", message)
    return False


class _Sizes:
    """Where pictures are, and frames: from the picture, else from image_data.json."""

    def __init__(self, root: Path, report: Report) -> None:
        self.report = report
        self.folders = [ImageFolder(root / folder) for folder in ("images", "VG_100K", "VG_100K_2")]
        self.file = root / "image_data.json"
        records = read_json(self.file, "") if self.file.exists() else []
        if not isinstance(records, list):
            raise PolyadicError(f"{self.file}: expected a list of {{image_id, width, height}}, got {records!r:.60}")
        self.known = {str(record.get("image_id")): record for record in records if isinstance(record, dict)}

    def picture(self, name: str, stored: str) -> Path:
        for file in (Path(stored).name, f"{name}.jpg"):
            for folder in self.folders:
                if file in folder.files:
                    return folder.folder / file
        return self.folders[0].folder / f"{name}.jpg"

    def of(self, name: str, picture: Path) -> tuple[float, float] | None:
        if any(picture.parent == folder.folder and picture.name in folder.files for folder in self.folders):
            size = picture_size(picture)
            if size is None:
                self.report.add("unreadable picture", picture, name, "", "the frame is its size, but it can't be read")
            return size
        if name not in self.known:
            return None
        record = self.known[name]
        sides = record.get("width"), record.get("height")
        if not all(map(is_positive, sides)):
            self.report.add("no frame size", self.file, f"image {name}", "width, height", f"got {record!r:.60}")
            return None
        return float(sides[0]), float(sides[1])  # type: ignore[arg-type]


def files(splits: Sequence[str]) -> list[str]:
    """Names of the files that `write` makes; one h5 holds all splits."""
    return [H5]


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """All splits in VG200's file. Only scenes that came from there have what it says about each image."""
    import h5py

    meta = datasets[0].extra.get("vg200", {}).get("meta")
    if meta is None or any("vg200" not in scene.extra for dataset in datasets for scene in dataset):
        raise PolyadicError(f"{datasets[0].name}: only a dataset that came from VG200 can become VG200's file again")
    for dataset in datasets:
        if dataset.split not in SPLITS:
            raise PolyadicError(f"vg200: its file holds {' and '.join(SPLITS)}, not {dataset.split!r}")
        if difference := dataset.vocabulary.difference(_vocabulary(meta, Path(H5))):
            raise PolyadicError(f"{dataset.name} {dataset.split}: class names differ from VG200's: {difference}")
    with h5py.File(root / H5, "w") as file:
        write_tree(file.create_group("meta"), meta)
        for dataset in datasets:
            images = file.create_group(f"gt/{dataset.split}")
            for scene in dataset:
                name = _id(scene)
                if name in images:
                    raise PolyadicError(f"vg200: two images of {dataset.split} would be called {name!r}")
                image = images.create_group(name)
                for field, table in _tables(scene).items():
                    image[field] = table
    return [root / H5]


def _id(scene: Scene) -> str:
    return str(scene.extra.get("vg200", {}).get("image_id", Path(scene.name).stem))


def _tables(scene: Scene) -> dict[str, np.ndarray]:
    subject, predicate, object = scene.relations.T
    unused = len(scene.boxes) - len(np.union1d(subject, object))
    if unused:
        raise PolyadicError(f"vg200: {scene.name} has {unused} boxes outside relations, which its file cannot hold")
    labels = np.stack([scene.labels[subject] + 1, predicate, scene.labels[object] + 1], axis=1)
    dtypes = scene.extra.get("vg200", {}).get("dtypes", ["<i4"] * 3)
    tables = (scene.boxes[subject], scene.boxes[object], labels)
    columns = zip(FIELDS, tables, dtypes, strict=True)
    return {field: as_dtype(table, dtype, f"vg200: {field} of {scene.name}") for field, table, dtype in columns}
