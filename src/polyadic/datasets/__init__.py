"""VRD, VG150, VG200, own data (COCO + `rel_annotations`) and a drawn world (toy) as `Dataset`s of `Scene`s.

Splits: `train` and `test` are the published ones; `validation` is held out of `train`, the same on every machine, and
`fit` is the rest of `train`. Which scenes and relations are kept is said at the top of each reader.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from polyadic.datasets import coco as coco_relations
from polyadic.datasets import toy, vg150, vg200, vrd
from polyadic.datasets.reading import Report, first
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

SPLITS = ("train", "fit", "validation", "test")
VALIDATION_SHARE = 0.1  # ours: VRD and VG200 publish no validation split


def held_out(scenes: tuple[Scene, ...]) -> set[str]:
    """Names of a tenth of the scenes, those of smallest SHA-256: no seed, no order, and stable when data grows."""
    ranked = sorted((hashlib.sha256(scene.name.encode()).hexdigest(), scene.name) for scene in scenes)
    return {name for _, name in ranked[: round(VALIDATION_SHARE * len(ranked))]}


@dataclass(frozen=True)
class Format:
    """A dataset on disk: all scenes of a split as they are, which of them the field uses, and which validate."""

    read: Callable[[Path, str, Report], Dataset]
    write: Callable[[Sequence[Dataset], Path], list[Path]]
    files: Callable[[Sequence[str]], list[str]]  # names of what `write` makes, by splits
    read_whole: Callable[[Path, str, Report], Dataset] | None = None  # with more `extra`, where `write` needs it
    tidy: Callable[[Dataset], Dataset] = lambda dataset: dataset
    held_out: Callable[[tuple[Scene, ...]], set[str]] = held_out
    has_validation: Callable[[Path], bool] = lambda root: False  # a validation split of its own, beside train
    on_disk: bool = True  # else it has no root


DATASETS = {
    "vrd": Format(vrd.read, vrd.write, vrd.files),
    "vg150": Format(vg150.read, vg150.write, vg150.files, vg150.read_whole, vg150.tidy, vg150.held_out),
    "vg200": Format(vg200.read, vg200.write, vg200.files, vg200.read_whole),
    "coco": Format(
        coco_relations.read, coco_relations.write, coco_relations.files, has_validation=coco_relations.has_validation
    ),
    "toy": Format(toy.world.read, toy.world.no_files, toy.world.no_files, read_whole=toy.world.no_files, on_disk=False),
}


def format_of(name: str) -> Format:
    if name not in DATASETS:
        raise PolyadicError(f"no dataset is called {name!r}; known: {', '.join(DATASETS)} (own data: coco)")
    return DATASETS[name]


def folder_of(name: str, root: str | Path | None) -> Path:
    """The folder of a dataset, which must be there; what is drawn has none."""
    if not format_of(name).on_disk:
        if root is not None:
            raise PolyadicError(f"{name} is drawn and takes no root, got {root}. A written copy is the dataset coco")
        return Path()
    folder = None if root is None else Path(root).expanduser()
    if folder is None or not folder.is_dir():
        raise PolyadicError(
            f"{name}: no folder {folder or 'was given'}. Give the folder that holds the dataset as root"
        )
    return folder


def load_dataset(
    name: str,
    root: str | Path | None = None,
    split: str = "train",
    images: Literal["unchecked", "required", "present"] = "unchecked",
) -> Dataset:
    """The scenes of a split.

    A record that cannot be used is an error that names it, never a silently smaller dataset. Pictures are not needed:
    `images="required"` refuses when one is missing, `images="present"` is the explicit word for going on with the rest.
    """
    kind = format_of(name)
    if split not in SPLITS:
        raise PolyadicError(f"no split is called {split!r}; known: {', '.join(SPLITS)}")
    if images not in ("unchecked", "required", "present"):
        raise PolyadicError(f"images must be unchecked, required or present, got {images!r}")
    root = folder_of(name, root)
    report = Report()
    dataset = read_split(kind, root, split, report)
    report.raise_errors(name, root)
    for problem in report.warnings[:1]:
        more = f" ({len(report.warnings) - 1} more)" if len(report.warnings) > 1 else ""
        warnings.warn(f"{problem}{more}", PolyadicWarning, stacklevel=2)
    if images == "unchecked":
        return dataset
    missing = [scene.name for scene in dataset if not scene.has_picture()]
    if missing and images == "required":
        raise PolyadicError(
            f"{name} {split}: {len(missing):,} of {len(dataset):,} pictures are missing ({first(missing)}). "
            'Get them, or go on with the rest by images="present" (in training: --data.pictures present)'
        )
    absent = set(missing)
    return dataset.keep(lambda scene: scene.name not in absent)


def read_split(kind: Format, root: Path, split: str, report: Report) -> Dataset:
    """A split under the rules of its dataset; problems go to `report`."""
    if split in ("fit", "validation") and kind.has_validation(root):
        own = "train" if split == "fit" else "validation"
        return replace(kind.tidy(kind.read(root, own, report)), split=split)
    whole = kind.tidy(kind.read(root, "test" if split == "test" else "train", report))
    if split in ("train", "test"):
        return whole
    validation = kind.held_out(whole.scenes)
    return whole.keep(lambda scene: (scene.name in validation) == (split == "validation"), split)
