"""VRD (Lu et al. 2016): `annotations_{train,test}.json`, `objects.json`, `predicates.json`, `sg_dataset/`.

VRD lists no objects: boxes are those that occur in relations, and the same box with the same class is one object.
Everything is kept: scenes without relations, a box related to itself, repeated relations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from polyadic.datasets.reading import FrameRecord, ImageFolders, RelatedBoxes, Report, plain_numbers, read_json
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = ("train", "test")
FIELDS = ("subject.category", "subject.bbox", "predicate", "object.category", "object.bbox")


class ObjectRecord(msgspec.Struct):
    """An end of a relation; the box is [ymin, ymax, xmin, xmax]."""

    category: int
    bbox: tuple[float, float, float, float]

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """The box as xyxy."""
        y1, y2, x1, x2 = self.bbox
        return x1, y1, x2, y2


class VrdRelation(msgspec.Struct):
    """A relation of an image."""

    subject: ObjectRecord
    predicate: int
    object: ObjectRecord


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every scene of a split."""
    file, frames = root / f"annotations_{split}.json", root / f"{split}_image_metadata.json"
    advice = f"Get it with: polyadic data fetch vrd --root {root}"
    annotations = read_json(file, advice, dict[str, Any])
    vocabulary = Vocabulary(_names(root / "objects.json", advice), _names(root / "predicates.json", advice))
    pictures = ImageFolders(root / "sg_dataset" / f"sg_{split}_images")
    metadata = read_json(frames, "", dict[str, Any]) if frames.exists() else {}
    stems = {Path(name).stem: name for name in metadata}  # one name ends in .gif here, in .jpg in the annotations
    scenes = []
    for name, relations in annotations.items():
        if not isinstance(relations, list):
            report.at(file, name).add("not a list", "", f"expected a list of relations, got {relations!r:.60}")
            continue
        image = pictures.path(name)
        key = name if name in metadata else stems.get(Path(name).stem)
        if key is None:
            size = report.at(image, name).picture_size(image)
        else:
            frame = report.at(frames, key).parse(metadata[key], FrameRecord)
            size = None if frame is None else frame.size
        boxes = RelatedBoxes(vocabulary, size, FIELDS)
        for number, relation in enumerate(relations):
            at = report.at(file, f"{name}, relation {number}")
            r = at.parse(relation, VrdRelation)
            if r is not None:
                boxes.add(at, r.subject.category, r.subject.corners, r.predicate, r.object.category, r.object.corners)
        scenes.append(boxes.scene(name, image, **({} if key in (name, None) else {"metadata_name": key})))
    return Dataset("vrd", split, vocabulary, tuple(scenes), root)


def _names(path: Path, advice: str) -> tuple[str, ...]:
    names: list[str] = read_json(path, advice, list[str])
    duplicate = next((name for name, times in Counter(names).items() if times > 1), None)
    if duplicate is not None:
        raise PolyadicError(f"{path}: {duplicate!r} occurs twice; class names must be unique")
    return tuple(names)


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """Write splits as VRD's files; refuse what they cannot hold."""
    names = datasets[0].vocabulary
    contents: dict[str, Any] = {"objects.json": list(names.objects), "predicates.json": list(names.predicates)}
    for dataset in datasets:
        if dataset.split not in SPLITS:
            raise PolyadicError(f"vrd: its files hold {' and '.join(SPLITS)}, not {dataset.split!r}")
        contents[f"annotations_{dataset.split}.json"] = {scene.name: _relations(dataset, scene) for scene in dataset}
        contents[f"{dataset.split}_image_metadata.json"] = {
            scene.extra.get("metadata_name", scene.name): dict(
                zip(("width", "height"), plain_numbers(scene.size), strict=True)
            )
            for scene in dataset
            if scene.size is not None
        }
    for name, value in contents.items():
        (root / name).write_text(json.dumps(value))
    return [root / name for name in contents]


def _relations(dataset: Dataset, scene: Scene) -> list[Any]:
    unused = len(scene.boxes) - len(set(scene.relations[:, ::2].ravel().tolist()))
    if unused:
        problem = f"{scene.name} has {unused} boxes outside relations"
        raise PolyadicError(f"{dataset.name}: {problem}, which VRD's format cannot hold")
    ends = [
        {"category": label, "bbox": plain_numbers([y1, y2, x1, x2])}
        for label, (x1, y1, x2, y2) in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True)
    ]
    return [{"subject": ends[s], "predicate": p, "object": ends[o]} for s, p, o in scene.relations.tolist()]
