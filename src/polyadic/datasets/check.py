"""Check, count and convert datasets: bad records with file, record and field, missing or mismatched pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyadic import progress
from polyadic.datasets import Format, coco, format_of, vrd
from polyadic.datasets.reading import Report
from polyadic.files import new_folder
from polyadic.structures.images import picture_size
from polyadic.structures.scenes import Dataset, Problem
from polyadic.structures.vocabulary import PolyadicError

_ASPECT = 0.02  # ours: sizes are whole pixels, so the aspect ratio of a small copy is off by a little


@dataclass
class Check:
    """Counts and problems of one split."""

    split: str
    images: int = 0
    relations: int = 0
    problems: list[Problem] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # names of images without a picture
    first_missing: Path | None = None  # expected path of the first of them
    names: set[str] = field(default_factory=set, repr=False)

    @property
    def kinds(self) -> dict[str, list[Problem]]:
        """Group problems by kind, errors first."""
        kinds: dict[str, list[Problem]] = {}
        for problem in sorted(self.problems, key=lambda problem: problem.severity):
            kinds.setdefault(problem.kind, []).append(problem)
        return kinds

    def to_json(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "images": self.images,
            "relations": self.relations,
            "missing images": self.missing,
            "problems": [vars(problem) for problem in self.problems],
        }


def check_split(kind: Format, root: Path, split: str) -> Check:
    """Read a whole split and every picture's header, and list what is wrong."""
    check, report = Check(split), Report()
    try:
        dataset = kind.read(root, split, report)
    except PolyadicError as error:
        check.problems = [*report.problems, Problem("unreadable", "", "", "", str(error))]
        return check
    check.problems, check.images = report.problems, len(dataset)
    check.names = {scene.name for scene in dataset}
    if not len(dataset):
        report.at("").add("no images", "", f"the split {split} has no images")
    for scene in progress.track(dataset, split, len(dataset)):
        check.relations += len(scene.relations)
        if not scene.has_picture():
            check.missing.append(scene.name)
            check.first_missing = check.first_missing or scene.image
            continue
        size = picture_size(scene.image) if scene.source is None else scene.open().size
        if size is None:
            report.at(scene.image).add("unreadable picture", "", "not a picture, or damaged")
        elif scene.size and abs(size[0] / size[1] / (scene.size[0] / scene.size[1]) - 1) > _ASPECT + 1 / min(size):
            text = f"the picture is {size[0]:g} x {size[1]:g}, its frame {scene.size[0]:g} x {scene.size[1]:g}"
            report.at(scene.image).add("picture does not fit its frame", "", text, "warning")
    return check


def report_shared_images(checks: Sequence[Check]) -> None:
    """Report images that are in two splits, as problems of the second: test images must not be trained on."""
    for number, check in enumerate(checks):
        for other in checks[:number]:
            for name in sorted(check.names & other.names):
                message = f"is in {other.split} and in {check.split}"
                check.problems.append(Problem("image in two splits", "", name, "", message))


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Count one split; the result is JSON values."""
    triplets = dataset.triplets()
    labels = np.concatenate([np.zeros(0, np.int64), *(scene.labels for scene in dataset)])
    per_image = np.array([len(scene.relations) for scene in dataset] or [0])
    boxes = np.array([len(scene.boxes) for scene in dataset] or [0])
    counts: Counter[str] = Counter()
    for scene in dataset:
        distinct = np.unique(scene.relations, axis=0)
        _, predicates = np.unique(distinct[:, ::2], axis=0, return_counts=True)
        _, classes = np.unique(np.unique(np.c_[scene.boxes, scene.labels], axis=0)[:, :4], axis=0, return_counts=True)
        counts["images without relations"] += not len(distinct)
        counts["repeated"] += len(scene.relations) - len(distinct)
        counts["itself"] += int((scene.pair_boxes[:, 0] == scene.pair_boxes[:, 1]).all(1).sum())
        counts["pairs"] += len(predicates)
        counts["several"] += int((predicates > 1).sum())
        counts["two classes"] += int((classes > 1).sum())
    return {
        "split": dataset.split,
        "images": len(dataset),
        "images without relations": counts["images without relations"],
        "relations": len(triplets),
        "relations repeated exactly": counts["repeated"],
        "relations of a box with itself": counts["itself"],
        "distinct triplets": len(np.unique(triplets, axis=0)),
        "annotated pairs": counts["pairs"],
        "pairs with several predicates": counts["several"],
        "pairs with several predicates, share": counts["several"] / counts["pairs"] if counts["pairs"] else None,
        "boxes": int(boxes.sum()),
        "boxes with two classes": counts["two classes"],
        "boxes per image": _spread(boxes),
        "relations per image": _spread(per_image),
        "object classes": _balance(labels, dataset.vocabulary.objects),
        "predicates": _balance(triplets[:, 1], dataset.vocabulary.predicates),
    }


def zero_shot(train: Dataset, test: Dataset) -> dict[str, Any]:
    """Count test relations whose triplet never occurs in training."""
    seen = set(map(tuple, train.triplets().tolist()))
    truths = [tuple(triplet) for triplet in test.triplets().tolist()]
    unseen = sum(triplet not in seen for triplet in truths)
    return {"truths": len(truths), "zero-shot truths": unseen, "share": unseen / len(truths) if truths else None}


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "min": int(values.min()),
        "max": int(values.max()),
    }


def _balance(classes: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Count classes; the perplexity is the number of equally frequent classes that would be as balanced."""
    counts = np.bincount(classes, minlength=len(names))
    share = counts[counts > 0] / max(int(counts.sum()), 1)
    order: list[int] = np.argsort(-counts, kind="stable").tolist()
    return {
        "known": len(names),
        "occurring": int((counts > 0).sum()),
        "perplexity": float(np.exp(-(share * np.log(share)).sum())),
        "counts": {names[i]: int(counts[i]) for i in order},
    }


def convert(
    source: str, source_root: str | Path, target: str, target_root: str | Path, *, link_images: bool = False
) -> list[Path]:
    """Write a dataset in another format, to a new folder: any to coco, and coco to vrd. Return the new files.

    The folder appears when it is complete. With `link_images` it gets symbolic links to the folders of the pictures.
    """
    reader = format_of(source)
    if not reader.on_disk:
        raise PolyadicError(f"convert: {source} is generated; write it as coco with: polyadic data draw --out FOLDER")
    if target != ("vrd" if source == "coco" else "coco"):
        raise PolyadicError(f"convert: vrd, vg150 or vg200 to coco, or coco to vrd, got {source} to {target}")
    old, new = Path(source_root).expanduser(), Path(target_root).expanduser()
    with new_folder(new) as folder:
        datasets = []
        for split in reader.splits(old):
            report = Report()
            datasets.append(reader.read(old, split, report))
            report.raise_errors(source, old)
        files = (coco if target == "coco" else vrd).write(datasets, folder)
        for name, pictures in (_links(datasets, target) if link_images else {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).symlink_to(pictures, target_is_directory=True)
    return [new / file.name for file in files]


def _links(datasets: Sequence[Dataset], target: str) -> dict[str, Path]:
    """Return where the new format looks for pictures, and the folder that holds them."""
    links: dict[str, Path] = {}
    for dataset in datasets:
        name = f"sg_dataset/sg_{dataset.split}_images" if target == "vrd" else dataset.split
        for folder in sorted({scene.image.parent.resolve() for scene in dataset}):
            if links.setdefault(name, folder) != folder:
                raise PolyadicError(
                    f"convert: pictures are in {links[name]} and in {folder}: cannot link both as {name!r}"
                )
    return links
