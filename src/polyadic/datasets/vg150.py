"""VG150 (Xu et al. 2017): `VG-SGG.h5`, `VG-SGG-dicts.json`, `image_data.json` and pictures in `images/<image_id>.jpg`.

Boxes live in a frame whose longer side is 1024, whatever the size of the picture; so does the field's evaluation.
`read` gives every image of a split. `tidy` is the field's use: images without boxes or without relations are dropped,
and in training each (subject, object, predicate) counts once. The first 5,000 training images that remain validate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from polyadic.datasets.hdf5 import as_dtype
from polyadic.datasets.reading import ImageFolder, Report, read_json
from polyadic.datasets.vg150_h5 import SPLITS, Contents, Tables, columns, other_column
from polyadic.scenes import Dataset, Scene
from polyadic.strict_json import is_positive
from polyadic.vocabulary import PolyadicError, Vocabulary

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
