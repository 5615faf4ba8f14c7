"""Shared by all readers: opening files, finding pictures, and a report of what is wrong with file, record and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from polyadic.files import parse_json
from polyadic.structures.images import picture_size
from polyadic.structures.inputs import regular_file
from polyadic.structures.scenes import Problem, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

Size = tuple[float, float]
Side = Annotated[float, msgspec.Meta(gt=0)]
Kind = TypeVar("Kind")
_LARGEST = 1e18  # no pixel is beyond this


class FrameRecord(msgspec.Struct):
    """The size of an image, in pixels."""

    width: Side
    height: Side

    @property
    def size(self) -> Size:
        return self.width, self.height


class ImageData(FrameRecord):
    """A record of Visual Genome's `image_data.json`."""

    image_id: int


@dataclass
class Report:
    """Collect the problems of a dataset, so that one bad record does not hide the next."""

    problems: list[Problem] = field(default_factory=list)

    def at(self, file: Path | str, record: str = "") -> Location:
        """Name the place that the following problems are about."""
        return Location(self, Path(file).name, record)

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "warning"]

    def raise_errors(self, name: str, root: Path) -> None:
        """Raise the first error, with the number of the others."""
        if self.errors:
            more = f" ({len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise PolyadicError(f"{self.errors[0]}{more}. List all: polyadic data check {name} --root {root}")


class Location(NamedTuple):
    """A record of a file under inspection; `add` and the checks put problems into the report."""

    report: Report
    file: str
    record: str

    def add(self, kind: str, field: str, message: str, severity: Literal["error", "warning"] = "error") -> None:
        self.report.problems.append(Problem(kind, self.file, self.record, field, message, severity))

    def parse(self, record: Any, kind: type[Kind]) -> Kind | None:
        """Convert a JSON value to a type that msgspec knows, or report what is wrong with it."""
        try:
            return msgspec.convert(record, kind)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at ")
            missing = re.search("required field `(.*)`", text)
            field = f"{place.strip('`$.')}.{missing[1] if missing else ''}".strip(".")
            self.add("bad record", field, f"{text} in {record!r:.80}")
            return None

    def box_ok(self, box: Sequence[float], size: Size | None, field: str) -> bool:
        """Return whether xyxy numbers are a box: an inverted box is an error, one that leaves the frame a warning."""
        if not all(abs(side) < _LARGEST for side in box):  # nor NaN
            self.add("not a box", field, f"a box is four finite numbers, got {box!r:.80}")
            return False
        x1, y1, x2, y2 = box
        if x2 < x1 or y2 < y1:
            self.add("inverted box", field, f"expected x1 <= x2 and y1 <= y2, got xyxy {list(box)}")
            return False
        width, height = size or (float("inf"), float("inf"))
        if min(x1, y1) < -1 or x2 > width + 1 or y2 > height + 1:
            frame = f"the frame {width:g} x {height:g}" if size else "the frame"
            self.add("box outside the frame", field, f"xyxy {list(box)} leaves {frame}; kept unchanged", "warning")
        return True

    def class_ok(self, index: float, start: int, n: int, field: str) -> bool:
        """Return whether a class number is one of `n` that count from `start`."""
        if start <= index < start + n and index == int(index):
            return True
        self.add("unknown class", field, f"expected a class from {start} to {start + n - 1}, got {index!r:.40}")
        return False

    def picture_size(self, image: Path) -> Size | None:
        """Read the size of a picture, if it exists."""
        size = picture_size(image) if image.exists() else None
        if size is None and image.exists():
            self.add("unreadable picture", "", "its size is the frame, but it cannot be read")
        return size


@dataclass
class RelatedBoxes:
    """Collect the objects of an image whose file lists boxes only inside relations.

    The same box with the same class is one object; a box with two classes is two objects.
    """

    vocabulary: Vocabulary
    size: Size | None
    fields: tuple[str, str, str, str, str]  # names in reports: subject's class and box, predicate, object's class, box
    start: int = 0  # number of the first object class
    objects: dict[tuple[float, ...], int] = field(default_factory=dict)  # (class, x1, y1, x2, y2) -> index
    relations: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, at: Location, *values: Any) -> None:
        """Add a relation, given in the order of `fields`, or report what is wrong with it."""
        subject, subject_box, predicate, object, object_box = values
        names, known = self.fields, len(self.vocabulary.objects)
        good = [
            at.class_ok(subject, self.start, known, names[0]),
            at.box_ok(subject_box, self.size, names[1]),
            at.class_ok(predicate, 0, len(self.vocabulary.predicates), names[2]),
            at.class_ok(object, self.start, known, names[3]),
            at.box_ok(object_box, self.size, names[4]),
        ]
        if all(good):
            ends = [(subject - self.start, *subject_box), (object - self.start, *object_box)]
            first, second = (self.objects.setdefault(end, len(self.objects)) for end in ends)
            self.relations.append((first, int(predicate), second))

    def scene(self, name: str, image: Path, **extra: Any) -> Scene:
        rows = np.asarray(list(self.objects), np.float64).reshape(-1, 5)
        relations = np.asarray(self.relations, np.int64).reshape(-1, 3)
        return Scene(name, image, self.size, rows[:, 1:], rows[:, 0].astype(np.int64), relations, extra)


class ImageFolders:
    """Find pictures by name in several folders, each listed once."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.names: dict[Path, set[str]] = {}
        self.stems: dict[Path, dict[str, str]] = {}

    def path(self, *names: str) -> Path:
        """Return the first of `names` that exists, perhaps with another suffix (a GIF called .jpg).

        A missing picture gets its first name in the first folder.
        """
        for name in names:
            if _leaves(name):
                raise PolyadicError(
                    f"image {name!r:.100}: file names are relative to the dataset's folder and stay inside (no '..'); "
                    "link pictures from elsewhere into images/"
                )
        paths = [folder / name for name in names for folder in self.folders]
        for path in paths:
            if path.name in self._list(path.parent):
                return path
        for path in paths:
            other = self.stems[path.parent].get(path.stem)
            if other is not None:
                return path.with_name(other)
        return paths[0]

    def _list(self, folder: Path) -> set[str]:
        if folder not in self.names:
            files = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
            self.names[folder] = set(files)
            pictures = [name for name in files if not name.endswith(".json")]
            self.stems[folder] = {Path(name).stem: name for name in reversed(pictures)}
        return self.names[folder]


def _leaves(name: str) -> bool:
    """Return whether a file name may lead out of a folder, on any system."""
    paths = PurePosixPath(name), PureWindowsPath(name)
    return "\0" in name or any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)


def read_json(path: Path, advice: str, kind: Any = Any) -> Any:
    """Read the JSON value of a file as a type that msgspec knows; `advice` says what to do if it is missing."""
    try:
        text = regular_file(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PolyadicError(f"no {path}. {advice}") from error
    except IsADirectoryError as error:
        raise PolyadicError(f"{path} is a folder, expected a JSON file") from error
    return parse_json(text, str(path), kind)


def first(names: Iterable[str | bytes], n: int = 3) -> str:
    """List the first few names, and how many more there are; those in HDF5 that are no text are bytes."""
    texts = list(map(str, names))
    return ", ".join(texts[:n]) + (f" and {len(texts) - n:,} more" if len(texts) > n else "")


def plain_numbers(values: Iterable[float]) -> list[float]:
    """Write whole numbers without a decimal point: 3, not 3.0."""
    return [int(value) if float(value).is_integer() else float(value) for value in values]


@contextmanager
def open_h5(path: Path, advice: str) -> Iterator[Any]:
    """Open an HDF5 file; `advice` says what to do if it is missing."""
    import h5py

    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected an HDF5 file")
    if not path.exists():
        raise PolyadicError(f"no {path}. {advice}")
    try:
        with h5py.File(regular_file(path), "r") as file:
            yield file
    except PolyadicError:
        raise
    except (OSError, RuntimeError) as error:  # h5py raises either, when opening and when reading a damaged block
        line = " ".join(str(error).split())
        raise PolyadicError(f"{path} is not complete HDF5 ({line}); is it truncated, or not HDF5?") from error


def read_group(parent: Any, name: str, path: Path) -> Any:
    """Return a group of an HDF5 file, which must exist."""
    import h5py

    group = parent.get(name)
    if not isinstance(group, h5py.Group):
        raise PolyadicError(f"{path}: no group {_join(parent, name)!r}; it has {first(parent, 12) or 'nothing'}")
    return group


def read_array(parent: Any, name: str, width: int, path: Path, kinds: str = "iu") -> np.ndarray:
    """Read numbers [n, width], or [n] if the width is 0; integers unless `kinds` (of dtype) says otherwise."""
    import h5py

    try:
        item = h5py.h5o.open(parent.id, name.encode())  # several times as fast as parent[name]: VG200 has 300,000
    except KeyError as error:
        raise PolyadicError(f"{path}: no array {_join(parent, name)!r}; it has {first(parent, 12)}") from error
    if not isinstance(item, h5py.h5d.DatasetID):
        raise PolyadicError(f"{path}: {_join(parent, name)!r} must be an array, got a group")
    shape, dtype = item.shape, item.dtype
    if shape == (0,) and dtype.kind in kinds:  # an empty list fits every width
        return np.zeros((0, width) if width else 0, dtype)
    if dtype.kind not in kinds or len(shape) != (2 if width else 1) or (width and shape[1] != width):
        numbers = "whole numbers" if kinds == "iu" else "numbers"
        expected = f"{numbers} [n, {width}]" if width else f"{numbers} [n]"
        raise PolyadicError(f"{path}: {_join(parent, name)!r} must be {expected}, got {dtype} {list(shape)}")
    values = np.empty(shape, dtype)
    if values.size:
        item.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _join(parent: Any, name: str) -> str:
    return f"{parent.name}/{name}".strip("/")
