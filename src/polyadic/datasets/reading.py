"""What all readers share: opening files with one clear line on failure, and a list of what is wrong in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyadic.files import is_number, parse_json
from polyadic.structures.scenes import Problem
from polyadic.structures.vocabulary import PolyadicError


@dataclass
class Report:
    """Collects the problems of a dataset, so that one bad record does not hide the next."""

    problems: list[Problem] = field(default_factory=list)

    def add(
        self,
        kind: str,
        file: Path | str,
        record: str,
        field: str,
        message: str,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        self.problems.append(Problem(kind, Path(file).name, record, field, message, severity))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "warning"]

    def raise_errors(self, name: str, root: Path) -> None:
        """One line for the first error, with the number of the others."""
        if self.errors:
            more = f" ({len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise PolyadicError(f"{self.errors[0]}{more}. All of them: polyadic data check {name} --root {root}")

    def box_ok(self, box: Any, size: tuple[float, float] | None, file: Path, record: str, field: str) -> bool:
        """Whether xyxy numbers are a box; an inside-out box is an error, one that leaves the frame a warning."""
        if not (isinstance(box, (list, tuple)) and len(box) == 4 and all(map(is_number, box))):
            self.add("not a box", file, record, field, f"a box is four finite numbers, got {box!r:.80}")
            return False
        x1, y1, x2, y2 = box
        if x2 < x1 or y2 < y1:
            self.add("box inside out", file, record, field, f"x1 <= x2 and y1 <= y2 must hold, got xyxy {list(box)}")
            return False
        width, height = size or (float("inf"), float("inf"))
        if min(x1, y1) < -1 or x2 > width + 1 or y2 > height + 1:
            text = (
                f"xyxy {list(box)} leaves the frame" + (f" {width:g} x {height:g}" if size else "") + "; kept as it is"
            )
            self.add("box outside the frame", file, record, field, text, "warning")
        return True

    def class_ok(self, index: Any, n: int, file: Path, record: str, field: str) -> bool:
        """Whether a 0-based class index is one of `n`."""
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < n:
            return True
        self.add("unknown class", file, record, field, f"expected a class from 0 to {n - 1}, got {index!r:.40}")
        return False


def read_json(path: Path, cure: str) -> Any:
    """The JSON value of a file; a missing, cut or foreign file is one line. `cure` is for a missing one."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PolyadicError(f"no {path}. {cure}") from error
    except IsADirectoryError as error:
        raise PolyadicError(f"{path} is a folder, expected a JSON file") from error
    return parse_json(text, str(path))


class ImageFolder:
    """Which pictures of a folder are there, listed once; a picture may have another suffix than its name says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        self.stems: dict[str, str] = {}
        for name in sorted(self.files):
            self.stems.setdefault(Path(name).stem, name)

    def path(self, name: str) -> Path:
        """Where the picture is; the path as named when it is missing."""
        found = name if name in self.files else self.stems.get(Path(name).stem, name)
        return self.folder / found


def first(names: Iterable[str], n: int = 3) -> str:
    """The first few names, and how many more."""
    names = list(names)
    return ", ".join(names[:n]) + (f" and {len(names) - n:,} more" if len(names) > n else "")


def whole_if_can(values: Iterable[float]) -> list[float]:
    """Numbers as a person would write them: 3, not 3.0."""
    return [int(value) if float(value).is_integer() else float(value) for value in values]


@contextmanager
def open_h5(path: Path, cure: str) -> Iterator[Any]:
    """The open file; `cure` says what to do when it is missing."""
    import h5py

    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected an HDF5 file")
    if not path.exists():
        raise PolyadicError(f"no {path}. {cure}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except PolyadicError:
        raise
    except (OSError, RuntimeError) as error:  # h5py raises either, when opening and when reading a damaged block
        line = " ".join(str(error).split())
        raise PolyadicError(
            f"{path} is not complete HDF5 ({line}); is it cut off, or a file of another kind?"
        ) from error


def group(parent: Any, name: str, path: Path) -> Any:
    """A group of the file, which must be there."""
    import h5py

    found, where = parent.get(name), _join(parent, name)
    if found is None:
        raise PolyadicError(f"{path}: no group {where!r}; it has {_list(parent)}")
    if not isinstance(found, h5py.Group):
        raise PolyadicError(f"{path}: {where!r} must be a group, got a dataset")
    return found


def array(parent: Any, name: str, width: int, path: Path, kinds: str = "iu") -> np.ndarray:
    """A dataset of numbers [n, width], or [n] when the width is 0; of whole numbers unless `kinds` says otherwise."""
    import h5py

    try:
        found = h5py.h5o.open(parent.id, name.encode())  # several times as fast as parent[name]: VG200 has 300,000
    except KeyError as error:
        holder = parent.get(str(Path(name).parent), parent)
        what = f"it has {_list(holder)}" if isinstance(holder, h5py.Group) else f"{holder.name.strip('/')} is no group"
        raise PolyadicError(f"{path}: no field {_join(parent, name)!r}; {what}") from error
    if not isinstance(found, h5py.h5d.DatasetID):
        raise PolyadicError(f"{path}: {_join(parent, name)!r} must be an array, got a group")
    shape, dtype = found.shape, found.dtype
    if shape == (0,) and dtype.kind in kinds:  # an empty list has every width
        return np.zeros((0, width) if width else 0, dtype)
    if dtype.kind not in kinds or len(shape) != (2 if width else 1) or (width and shape[1] != width):
        numbers = "whole numbers" if kinds == "iu" else "numbers"
        wanted = f"{numbers} [n, {width}]" if width else f"{numbers} [n]"
        raise PolyadicError(f"{path}: {_join(parent, name)!r} must be {wanted}, got {dtype} {list(shape)}")
    return _values(found)


def _values(found: Any) -> np.ndarray:
    import h5py

    values = np.empty(found.shape, found.dtype)
    if values.size:
        found.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def rows_of(parent: Any, name: str, path: Path) -> np.ndarray:
    """A dataset of any numbers, in rows."""
    import h5py

    found = parent[name]
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "biuf" or not found.ndim:
        raise PolyadicError(f"{path}: {name!r} is not an array of numbers")
    return np.asarray(found[()])


def as_dtype(values: np.ndarray, dtype: str, what: str) -> np.ndarray:
    """The same numbers in another dtype, or an error where it cannot hold them."""
    cast = values.astype(dtype)
    if (cast != values).any():
        raise PolyadicError(f"{what} cannot be stored as {np.dtype(dtype)}, e.g. {values[cast != values][0]}")
    return cast


def _join(parent: Any, name: str) -> str:
    return f"{parent.name}/{name}".strip("/")


def _list(parent: Any) -> str:
    names = list(parent)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing"


def read_tree(parent: Any) -> dict[str, Any]:
    """A group of scalars as JSON values: a group is an object, a scalar a list [dtype, value]."""
    import h5py

    tree: dict[str, Any] = {}
    for name in parent:
        found = h5py.h5o.open(parent.id, name.encode())
        is_leaf = isinstance(found, h5py.h5d.DatasetID)
        tree[name] = _leaf(found, parent, name) if is_leaf else read_tree(parent[name])
    return tree


def _leaf(found: Any, parent: Any, name: str) -> list[Any]:
    import h5py

    dtype = found.dtype
    value, kind = _values(found).tolist(), h5py.check_string_dtype(dtype)
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise PolyadicError(f"{parent.file.filename}, {_join(parent, name)}: not text in UTF-8") from error
    if kind is None:
        return [dtype.str, text]
    return [f"S{kind.length}" if kind.length else ("str" if kind.encoding == "utf-8" else "ascii"), text]


def write_tree(parent: Any, tree: dict[str, Any]) -> None:
    """What `read_tree` has read."""
    import h5py

    for name, child in tree.items():
        if isinstance(child, dict):
            write_tree(parent.create_group(name), child)
            continue
        dtype, value = child
        if dtype in ("str", "ascii"):
            parent.create_dataset(name, data=value, dtype=h5py.string_dtype("utf-8" if dtype == "str" else "ascii"))
        else:
            parent[name] = np.asarray(value.encode() if isinstance(value, str) else value, dtype)
