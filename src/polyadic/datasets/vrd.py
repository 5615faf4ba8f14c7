"""VRD (Lu et al. 2016): `annotations_{train,test}.json`, `objects.json`, `predicates.json`, `sg_dataset/`.

There is no list of objects: boxes are those that occur in relations, and the same box with the same class is one
object; a box with two classes is two objects. Everything is kept: scenes without relations, a box related to itself,
repeated relations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.datasets.reading import ImageFolder, Report, read_json, whole_if_can
from polyadic.files import is_positive
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = ("train", "test")


def read(root: Path, split: str, report: Report) -> Dataset:
    """Every scene of a split, as it is on disk."""
    file = root / f"annotations_{split}.json"
    cure = f"Get it with: polyadic data fetch vrd --root {root}"
    annotations = read_json(file, cure)
    if not isinstance(annotations, dict):
        raise PolyadicError(f"{file}: expected {{image name: [relations]}}, got a {type(annotations).__name__}")
    vocabulary = Vocabulary(_names(root / "objects.json", cure), _names(root / "predicates.json", cure))
    images = ImageFolder(root / "sg_dataset" / f"sg_{split}_images")
    sizes = _Sizes(root / f"{split}_image_metadata.json", images, report)
    scenes = []
    for name, relations in annotations.items():
        if not isinstance(relations, list):
            report.add("not a list", file, name, "", f"expected a list of relations, got {relations!r:.60}")
            continue
        scene = _scene(name, relations, sizes.of(name), images.path(name), file, vocabulary, report)
        key = sizes.key(name)
        scenes.append(scene if key in (name, None) else replace(scene, extra={"metadata_name": key}))
    return Dataset("vrd", split, vocabulary, tuple(scenes), root)


def _names(path: Path, cure: str) -> tuple[str, ...]:
    names = read_json(path, cure)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PolyadicError(f"{path}: expected a list of class names, got {names!r:.60}")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise PolyadicError(f"{path}: {twice!r} occurs twice; each class needs a name of its own")
    return tuple(names)


def _scene(
    name: str,
    relations: list[Any],
    size: tuple[float, float] | None,
    image: Path,
    file: Path,
    vocabulary: Vocabulary,
    report: Report,
) -> Scene:
    objects: dict[tuple[float, ...], int] = {}  # (class, x1, y1, x2, y2) -> index
    rows = []
    for number, relation in enumerate(relations):
        record = f"{name}, relation {number}"
        ends = []
        for role in ("subject", "object"):
            try:
                label, (y1, y2, x1, x2) = relation[role]["category"], relation[role]["bbox"]
            except (KeyError, TypeError, ValueError) as error:
                what = f"no {error}" if isinstance(error, KeyError) else "not a box"
                got = f"{_at(relation, role)!r:.60}"
                message = f"expected {{category, bbox: [ymin, ymax, xmin, xmax]}}, got {got}"
                report.add(what, file, record, role, message)
                continue
            box = (x1, y1, x2, y2)
            known = report.class_ok(label, len(vocabulary.objects), file, record, f"{role}.category")
            if report.box_ok(box, size, file, record, f"{role}.bbox") and known:
                ends.append(objects.setdefault((label, *box), len(objects)))
        predicate = relation.get("predicate") if isinstance(relation, dict) else None
        known = report.class_ok(predicate, len(vocabulary.predicates), file, record, "predicate")
        if len(ends) == 2 and known:
            rows.append((ends[0], predicate, ends[1]))
    boxes = np.asarray([key[1:] for key in objects], np.float64).reshape(-1, 4)
    labels = np.asarray([key[0] for key in objects], np.int64)
    return Scene(name, image, size, boxes, labels, np.asarray(rows, np.int64).reshape(-1, 3))


def _at(relation: Any, key: str) -> Any:
    return relation.get(key) if isinstance(relation, dict) else relation


class _Sizes:
    """Frames from the metadata, else from the pictures themselves."""

    def __init__(self, file: Path, images: ImageFolder, report: Report) -> None:
        self.file, self.images, self.report = file, images, report
        self.known = read_json(file, "") if file.exists() else {}
        if not isinstance(self.known, dict):
            raise PolyadicError(f"{file}: expected {{image name: {{width, height}}}}, got {self.known!r:.60}")
        self.stems = {Path(name).stem: name for name in self.known}  # one name ends in .gif here, in .jpg there

    def key(self, name: str) -> str | None:
        """The image's name in the metadata, which may have another suffix."""
        return name if name in self.known else self.stems.get(Path(name).stem)

    def of(self, name: str) -> tuple[float, float] | None:
        key = self.key(name)
        if key is None:
            return self._of_picture(name)
        try:
            width, height = self.known[key]["width"], self.known[key]["height"]
        except (KeyError, TypeError):
            width = height = 0
        if not (is_positive(width) and is_positive(height)):
            self.report.add("no frame size", self.file, key, "width, height", f"got {self.known[key]!r:.60}")
            return None
        return float(width), float(height)

    def _of_picture(self, name: str) -> tuple[float, float] | None:
        path = self.images.path(name)
        if not path.exists():
            return None
        from polyadic.structures.images import picture_size

        size = picture_size(path)
        if size is None:
            self.report.add(
                "unreadable picture", path, name, "", "the frame is the picture's size, but it can't be read"
            )
        return size


def files(splits: Sequence[str]) -> list[str]:
    """Names of the files that `write` makes."""
    return [
        *(name for split in splits for name in (f"annotations_{split}.json", f"{split}_image_metadata.json")),
        "objects.json",
        "predicates.json",
    ]


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """Splits in VRD's files; what they cannot hold is refused."""
    names = datasets[0].vocabulary
    contents: dict[str, Any] = {}
    for dataset in datasets:
        if dataset.split not in SPLITS:
            raise PolyadicError(f"vrd: its files hold {' and '.join(SPLITS)}, not {dataset.split!r}")
        if difference := dataset.vocabulary.difference(names):
            raise PolyadicError(f"{dataset.name}: class names of {dataset.split} differ: {difference}")
        known = [scene for scene in dataset if scene.size is not None]
        sizes = {str(scene.extra.get("metadata_name", scene.name)): whole_if_can(scene.frame) for scene in known}
        contents[f"annotations_{dataset.split}.json"] = {scene.name: _relations(dataset, scene) for scene in dataset}
        contents[f"{dataset.split}_image_metadata.json"] = {
            name: {"width": width, "height": height} for name, (width, height) in sizes.items()
        }
    contents |= {"objects.json": list(names.objects), "predicates.json": list(names.predicates)}
    for name, value in contents.items():
        (root / name).write_text(json.dumps(value))
    return [root / name for name in contents]


def _relations(dataset: Dataset, scene: Scene) -> list[Any]:
    unused = len(scene.boxes) - len(set(scene.relations[:, ::2].ravel().tolist()))
    if unused:
        what = f"{scene.name} has {unused} boxes outside relations"
        raise PolyadicError(f"{dataset.name}: {what}, which VRD's format cannot hold")
    ends = [
        {"category": int(label), "bbox": whole_if_can([y1, y2, x1, x2])} for label, (x1, y1, x2, y2) in _rows(scene)
    ]
    return [{"subject": ends[s], "predicate": p, "object": ends[o]} for s, p, o in scene.relations.tolist()]


def _rows(scene: Scene) -> list[tuple[int, list[float]]]:
    return list(zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True))
