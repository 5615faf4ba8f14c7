"""VRD (Lu et al. 2016): `annotations_{train,test}.json`, `objects.json`, `predicates.json`, `sg_dataset/`.

VRD lists no objects: boxes are those that occur in relations, and the same box with the same class is one object.
Everything is kept: scenes without relations, a box related to itself, repeated relations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyadic.datasets.reading import ImageFolders, RelatedBoxes, Report, Size, plain_numbers, read_json
from polyadic.structures.images import picture_size
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SPLITS = ("train", "test")


def read(root: Path, split: str, report: Report) -> Dataset:
    """Read every scene of a split."""
    file = root / f"annotations_{split}.json"
    advice = f"Get it with: polyadic data fetch vrd --root {root}"
    annotations = read_json(file, advice)
    if not isinstance(annotations, dict):
        raise PolyadicError(f"{file}: expected {{image name: [relations]}}, got a {type(annotations).__name__}")
    vocabulary = Vocabulary(_names(root / "objects.json", advice), _names(root / "predicates.json", advice))
    pictures = ImageFolders(root / "sg_dataset" / f"sg_{split}_images")
    metadata = _metadata(root / f"{split}_image_metadata.json")
    stems = {Path(name).stem: name for name in metadata}  # one name ends in .gif here, in .jpg in the annotations
    scenes = []
    for name, relations in annotations.items():
        if not isinstance(relations, list):
            report.at(file, name).add("not a list", "", f"expected a list of relations, got {relations!r:.60}")
            continue
        image = pictures.path(name)
        key = name if name in metadata else stems.get(Path(name).stem)
        if key is not None:
            size = report.at(f"{split}_image_metadata.json", key).size(metadata[key])
        else:
            size = _picture_size(image, name, report)
        boxes = _related_boxes(relations, size, vocabulary, report=report, file=file, name=name)
        scenes.append(Scene(name, image, size, *boxes.arrays(), {} if key in (name, None) else {"metadata_name": key}))
    return Dataset("vrd", split, vocabulary, tuple(scenes), root)


def _names(path: Path, advice: str) -> tuple[str, ...]:
    names = read_json(path, advice)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PolyadicError(f"{path}: expected a list of class names, got {names!r:.60}")
    duplicate = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if duplicate is not None:
        raise PolyadicError(f"{path}: {duplicate!r} occurs twice; class names must be unique")
    return tuple(names)


def _metadata(path: Path) -> Mapping[str, Any]:
    metadata = read_json(path, "") if path.exists() else {}
    if not isinstance(metadata, dict):
        raise PolyadicError(f"{path}: expected {{image name: {{width, height}}}}, got {metadata!r:.60}")
    return metadata


def _picture_size(image: Path, name: str, report: Report) -> Size | None:
    if not image.exists():
        return None
    size = picture_size(image)
    if size is None:
        report.at(image, name).add("unreadable picture", "", "its size is the frame, but it cannot be read")
    return size


def _related_boxes(
    relations: list[Any], size: Size | None, vocabulary: Vocabulary, *, report: Report, file: Path, name: str
) -> RelatedBoxes:
    boxes = RelatedBoxes()
    for number, relation in enumerate(relations):
        at = report.at(file, f"{name}, relation {number}")
        ends = []
        for role in ("subject", "object"):
            end: Any = relation.get(role) if isinstance(relation, dict) else relation
            try:
                label, (y1, y2, x1, x2) = end["category"], end["bbox"]
            except (KeyError, TypeError, ValueError):
                message = f"expected {{category, bbox: [ymin, ymax, xmin, xmax]}}, got {end!r:.60}"
                at.add("not an object", role, message)
                continue
            known = at.class_ok(label, 0, len(vocabulary.objects), f"{role}.category")
            if at.box_ok((x1, y1, x2, y2), size, f"{role}.bbox") and known:
                ends.append(boxes.index(label, (x1, y1, x2, y2)))
        predicate: Any = relation.get("predicate") if isinstance(relation, dict) else None
        if at.class_ok(predicate, 0, len(vocabulary.predicates), "predicate") and len(ends) == 2:
            boxes.relations.append((ends[0], predicate, ends[1]))
    return boxes


def write(datasets: Sequence[Dataset], root: Path) -> list[Path]:
    """Write splits as VRD's files; refuse what they cannot hold."""
    names = datasets[0].vocabulary
    contents: dict[str, Any] = {"objects.json": list(names.objects), "predicates.json": list(names.predicates)}
    for dataset in datasets:
        if dataset.split not in SPLITS:
            raise PolyadicError(f"vrd: its files hold {' and '.join(SPLITS)}, not {dataset.split!r}")
        if difference := dataset.vocabulary.difference(names):
            raise PolyadicError(f"{dataset.name}: class names of {dataset.split} differ: {difference}")
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
