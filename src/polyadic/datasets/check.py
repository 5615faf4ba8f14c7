"""What is wrong in a dataset: bad records with file, record and field, missing pictures, pictures that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyadic.datasets.pictures import picture_size
from polyadic.datasets.reading import Report
from polyadic.scenes import Dataset, Problem
from polyadic.vocabulary import PolyadicError

_ASPECT = 0.02  # ours: sizes are whole pixels, so the aspect of a small copy is off by a little


@dataclass
class Check:
    """What was found in one split."""

    split: str
    images: int = 0
    relations: int = 0
    problems: list[Problem] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # names of images without a picture
    first_missing: Path | None = None  # where the first of them was looked for
    names: set[str] = field(default_factory=set, repr=False)

    @property
    def kinds(self) -> dict[str, list[Problem]]:
        """Problems by kind, errors first."""
        found: dict[str, list[Problem]] = {}
        for problem in sorted(self.problems, key=lambda problem: problem.severity):
            found.setdefault(problem.kind, []).append(problem)
        return found

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
    progress: Callable[[int, int], None] | None = None,
) -> Check:
    """Read a split to its end, look at every picture's header, and list what is wrong."""
    check, report = Check(split), Report()
    try:
        dataset = read(root, split, report)
    except PolyadicError as error:
        check.problems = [*report.problems, Problem("unreadable", "", "", "", str(error))]
        return check
    check.problems, check.images = report.problems, len(dataset)
    check.names = {scene.name for scene in dataset}
    if not len(dataset):
        report.add("no images", "", "", "", f"the split {split} has no images")
    for number, scene in enumerate(dataset):
        check.relations += len(scene.relations)
        if progress:
            progress(number + 1, len(dataset))
        if not scene.has_picture():
            check.missing.append(scene.name)
            check.first_missing = check.first_missing or scene.image
            continue
        size = picture_size(scene.image) if scene.source is None else scene.open().size
        if size is None:
            report.add("unreadable picture", scene.image, "", "", "not a picture, or damaged")
        elif scene.size and abs(size[0] / size[1] / (scene.size[0] / scene.size[1]) - 1) > _ASPECT + 1 / min(size):
            text = f"the picture is {size[0]:g} x {size[1]:g}, its frame {scene.size[0]:g} x {scene.size[1]:g}"
            report.add("picture does not fit its frame", scene.image, "", "", text, "warning")
    return check


def report_shared_images(checks: Sequence[Check]) -> None:
    """Images that stand in two splits, as problems of the second: what is tested must not have been trained on."""
    for number, check in enumerate(checks):
        for other in checks[:number]:
            for name in sorted(check.names & other.names):
                message = f"stands in {other.split} as well as in {check.split}"
                check.problems.append(Problem("image in two splits", "", name, "", message))
