"""Check, count and convert datasets: bad records with file, record and field, missing or mismatched pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from polyadic import progress
from polyadic.datasets import coco, format_of, vrd
from polyadic.datasets.reading import Report
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


def check_split(
    read: Callable[[Path, str, Report], Dataset],
    root: Path,
    split: str,
) -> Check:
    """Read a whole split and every picture's header, and list what is wrong."""
    check, report = Check(split), Report()
    try:
        dataset = read(root, split, report)
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
    relations = [scene.relations for scene in dataset]
    boxes = np.array([len(scene.boxes) for scene in dataset] or [0])
    per_image = np.array([len(rows) for rows in relations] or [0])
    triplets = dataset.triplets()
    pairs = 0
    several = 0
    repeated = 0
    two_classes = 0
    for scene, rows in zip(dataset, relations, strict=True):
        distinct = set(map(tuple, rows.tolist()))
        repeated += len(rows) - len(distinct)
        predicates = Counter((s, o) for s, _, o in distinct)
        pairs += len(predicates)
        several += sum(n > 1 for n in predicates.values())
        classes = Counter(
            box for box, _ in {(tuple(b), c) for b, c in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True)}
        )
        two_classes += sum(n > 1 for n in classes.values())
    ends = [(scene, scene.relations[:, [0, 2]]) for scene in dataset]
    return {
        "split": dataset.split,
        "images": len(dataset),
        "images without relations": int((per_image[: len(dataset)] == 0).sum()),
        "relations": len(triplets),
        "relations repeated exactly": repeated,
        "relations of a box with itself": sum(
            int((scene.boxes[rows[:, 0]] == scene.boxes[rows[:, 1]]).all(1).sum()) for scene, rows in ends
        ),
        "distinct triplets": len(np.unique(triplets, axis=0)),
        "annotated pairs": pairs,
        "pairs with several predicates": several,
        "pairs with several predicates, share": several / pairs if pairs else None,
        "boxes": int(boxes.sum()),
        "boxes with two classes": two_classes,
        "boxes per image": _spread(boxes),
        "relations per image": _spread(per_image),
        "object classes": _balance(
            np.concatenate([np.zeros(0, np.int64), *(s.labels for s in dataset)]), dataset.vocabulary.objects
        ),
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
    source: str,
    source_root: str | Path,
    target: str,
    target_root: str | Path,
    *,
    splits: Sequence[str] | None = None,
    link_images: bool = False,
) -> list[Path]:
    """Write a dataset in another format: any to coco, and coco to vrd. Return the new files.

    Nothing is overwritten, and no file gets its final name before all are complete. With `link_images` the new root
    gets symbolic links to the folders that hold the pictures.
    """
    reader = format_of(source)
    if not reader.on_disk:
        raise PolyadicError(f"convert: {source} is generated; write it as coco with: polyadic data draw --out FOLDER")
    if target != ("vrd" if source == "coco" else "coco"):
        raise PolyadicError(f"convert: vrd, vg150 or vg200 to coco, or coco to vrd, got {source} to {target}")
    old, new = Path(source_root).expanduser(), Path(target_root).expanduser()
    if splits is None:
        splits = ("train", "test", "validation") if reader.has_validation(old) else ("train", "test")
    if target == "coco":  # before minutes of reading
        _refuse_existing(new / f"{split}.json" for split in splits)
    datasets = []
    for split in splits:
        report = Report()
        datasets.append(reader.read(old, split, report))
        report.raise_errors(source, old)
    links = _links(datasets, target) if link_images else {}
    _refuse_existing(new / name for name in links)
    created = not new.exists()
    try:
        new.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".convert-", dir=new) as folder:
            files = (coco if target == "coco" else vrd).write(datasets, Path(folder))
            _refuse_existing(new / file.name for file in files)
            files = [file.rename(new / file.name) for file in files]
        for name, pictures in links.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).symlink_to(pictures, target_is_directory=True)
    except OSError as error:
        raise PolyadicError(f"convert: cannot write to {new} ({error})") from error
    finally:
        if created and new.is_dir() and not any(new.iterdir()):
            new.rmdir()
    return files


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise PolyadicError(f"convert: {path} exists and is not overwritten; choose another folder")


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
