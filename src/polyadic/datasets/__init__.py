"""VRD, VG150, VG200, own data (COCO + `rel_annotations`) and a synthetic world (toy) as `Dataset`s of `Scene`s.

Splits: `train` and `test` are the published ones; `validation` is held out of `train`, the same on every machine, and
`fit` is the rest of `train`. The docstring of each reader says which scenes and relations are kept.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from polyadic.datasets import coco, toy, vg150, vg200, vrd
from polyadic.datasets.reading import Report, first
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

SPLITS = ("train", "fit", "validation", "test")
VALIDATION_SHARE = 0.1  # ours: VRD and VG200 publish no validation split


def held_out(scenes: tuple[Scene, ...]) -> set[str]:
    """Name a tenth of the scenes, those of smallest SHA-256: no seed, no order, and stable when data grows."""
    ranked = sorted((hashlib.sha256(scene.name.encode()).hexdigest(), scene.name) for scene in scenes)
    return {name for _, name in ranked[: round(VALIDATION_SHARE * len(ranked))]}


@dataclass(frozen=True)
class Format:
    """A dataset on disk: how to read a split, which scenes the field uses, and which are held out for validation."""

    read: Callable[[Path, str, Report], Dataset]
    tidy: Callable[[Dataset], Dataset] = lambda dataset: dataset
    held_out: Callable[[tuple[Scene, ...]], set[str]] = held_out
    has_validation: Callable[[Path], bool] = lambda root: False  # a separate validation split, beside train
    on_disk: bool = True  # else it has no root

    def splits(self, root: Path) -> list[str]:
        """List the splits on disk."""
        return ["train", "test", *(["validation"] if self.has_validation(root) else [])]


DATASETS = {
    "vrd": Format(vrd.read),
    "vg150": Format(vg150.read, vg150.tidy, vg150.held_out),
    "vg200": Format(vg200.read),
    "coco": Format(coco.read, has_validation=coco.has_validation),
    "toy": Format(toy.world.read, on_disk=False),
}


def format_of(name: str) -> Format:
    if name not in DATASETS:
        raise PolyadicError(f"no dataset is called {name!r}; known: {', '.join(DATASETS)} (own data: coco)")
    return DATASETS[name]


LAYOUTS = {  # a file by which a dataset's folder is known
    "vrd": ("annotations_train.json",),
    "vg150": (vg150.H5,),
    "vg200": (vg200.H5,),
    "coco": ("train.json", "annotations/train.json"),
}


def find_layout(root: str | Path) -> str | None:
    """Name the dataset whose layout a folder has; None if it has none."""
    folder = Path(root).expanduser()
    return next((name for name, files in LAYOUTS.items() if any((folder / file).is_file() for file in files)), None)


def folder_of(name: str, root: str | Path | None) -> Path:
    """Return the folder of a dataset, which must exist; toy has none."""
    if not format_of(name).on_disk:
        if root is not None:
            raise PolyadicError(f"{name} is generated and takes no root, got {root}. Load a written copy as coco")
        return Path()
    folder = None if root is None else Path(root).expanduser()
    if folder is None or not folder.is_dir():
        missing = "no root was given" if folder is None else f"no folder {folder}"
        raise PolyadicError(f"{name}: {missing}. Give the folder that holds the dataset as root")
    return folder


def load_dataset(
    name: str,
    root: str | Path | None = None,
    split: str = "train",
    images: Literal["unchecked", "required", "present"] = "unchecked",
    *,
    exact_boxes: bool = False,
) -> Dataset:
    """Load the scenes of a split.

    A record that cannot be used is an error that names it, never a silently smaller dataset. Pictures may be missing:
    `images="required"` refuses that, and `images="present"` drops the scenes without a picture. VG150's boxes are
    truncated to whole pixels, as in the field's evaluation; `exact_boxes` keeps the file's half pixels.
    """
    kind = format_of(name)
    if split not in SPLITS:
        raise PolyadicError(f"no split is called {split!r}; known: {', '.join(SPLITS)}")
    if images not in ("unchecked", "required", "present"):
        raise PolyadicError(f"images must be unchecked, required or present, got {images!r}")
    if exact_boxes:
        if name != "vg150":
            raise PolyadicError(f"exact_boxes is for vg150, whose boxes the field truncates; {name}'s are always exact")
        kind = replace(kind, read=partial(vg150.read, exact=True))
    root = folder_of(name, root)
    report = Report()
    dataset = _read_split(kind, root, split, report)
    report.raise_errors(name, root)
    if report.warnings:
        more = f" ({len(report.warnings) - 1} more)" if len(report.warnings) > 1 else ""
        warnings.warn(f"{report.warnings[0]}{more}", PolyadicWarning, stacklevel=2)
    if images == "unchecked":
        return dataset
    missing = {scene.name: None for scene in dataset if not scene.has_picture()}
    if missing and images == "required":
        raise PolyadicError(
            f"{name} {split}: {len(missing):,} of {len(dataset):,} pictures are missing ({first(missing)}). "
            'Get them, or skip these scenes with images="present" (in training: --data.pictures present, or optional)'
        )
    return dataset.keep(lambda scene: scene.name not in missing)


def _read_split(kind: Format, root: Path, split: str, report: Report) -> Dataset:
    """Read a split as its dataset's field uses it."""
    if split in ("fit", "validation") and kind.has_validation(root):
        on_disk = "train" if split == "fit" else "validation"
        return replace(kind.tidy(kind.read(root, on_disk, report)), split=split)
    whole = kind.tidy(kind.read(root, "test" if split == "test" else "train", report))
    if split in ("train", "test"):
        return whole
    validation = kind.held_out(whole.scenes)
    return whole.keep(lambda scene: (scene.name in validation) == (split == "validation"), split)
