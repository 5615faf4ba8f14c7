"""VRD, VG150 or VG200 to COCO + `rel_annotations` and back, without loss.

What a scene does not hold (VG150's `boxes_512` and `image_data.json`, VG200's `meta`) travels in keys of the COCO file
that other tools may ignore. Pictures are not copied: COCO's are looked for in `images/` and `<split>/` of the new root,
VRD's in `sg_dataset/sg_<split>_images/`, those of VG150 and VG200 in `images/`, under the names that they have now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from polyadic.datasets import format_of
from polyadic.datasets.reading import Report
from polyadic.scenes import Dataset
from polyadic.vocabulary import PolyadicError


def convert(
    source: str,
    source_root: str | Path,
    target: str,
    target_root: str | Path,
    splits: Sequence[str] | None = None,
    link_images: bool = False,
) -> list[Path]:
    """Writes the splits (all, unless told) in another format and gives the new files.

    Nothing is overwritten, and nothing bears its final name before all is written. With `link_images` the new root gets
    symbolic links to the folders that hold the pictures.
    """
    reader, writer = format_of(source), format_of(target)
    if (source == "coco") == (target == "coco"):
        raise PolyadicError(f"convert: from vrd, vg150 or vg200 to coco or back, got {source} to {target}")
    old, new = Path(source_root).expanduser(), Path(target_root).expanduser()
    if splits is None:
        splits = ("train", "test", "validation") if reader.has_validation(old) else ("train", "test")
    if not splits or isinstance(splits, str):
        raise PolyadicError(f"convert: splits must be a list such as ['train', 'test'], got {splits!r}")
    names = writer.files(splits)
    _refuse_existing(new / name for name in names)
    datasets = []
    for split in splits:
        report = Report()
        datasets.append((reader.read_whole or reader.read)(old, split, report))
        report.raise_errors(source, old)
    links = _links(datasets, target) if link_images else {}
    _refuse_existing(new / name for name in links)
    made = not new.exists()
    try:
        new.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".convert-", dir=new) as folder:
            writer.write(datasets, Path(folder))
            _refuse_existing(new / name for name in names)  # it may have taken minutes
            for name in names:
                (Path(folder) / name).rename(new / name)
        for name, pictures in links.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).symlink_to(pictures, target_is_directory=True)
    except OSError as error:
        raise PolyadicError(f"convert: cannot write to {new} ({error})") from error
    finally:
        if made and new.is_dir() and not any(new.iterdir()):
            new.rmdir()
    return [new / name for name in names]


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise PolyadicError(f"convert: {path} exists and is not overwritten; choose another folder")


def _links(datasets: Sequence[Dataset], target: str) -> dict[str, Path]:
    """Where the new format looks for pictures, and the folder that holds them."""
    links: dict[str, Path] = {}
    for dataset in datasets:
        name = {"vrd": f"sg_dataset/sg_{dataset.split}_images", "coco": dataset.split}.get(target, "images")
        for folder in sorted({scene.image.parent.resolve() for scene in dataset}):
            if links.setdefault(name, folder) != folder:
                where = f"pictures lie in {links[name]} and in {folder}"
                raise PolyadicError(f"convert: {where}: these cannot be linked as one folder {name!r}")
    return links
