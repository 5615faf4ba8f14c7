"""What all readers share: opening files with one clear line on failure, and a list of what is wrong in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyadic.scenes import Problem
from polyadic.vocabulary import PolyadicError


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
        if not _numbers(box, 4):
            self.add("not a box", file, record, field, f"a box is four finite numbers, got {box!r:.80}")
            return False
        x1, y1, x2, y2 = box
        if x2 < x1 or y2 < y1:
            self.add("box inside out", file, record, field, f"x1 <= x2 and y1 <= y2 must hold, got xyxy {list(box)}")
            return False
        if size is not None and (min(x1, y1) < -1 or x2 > size[0] + 1 or y2 > size[1] + 1):
            text = f"xyxy {list(box)} leaves the frame {size[0]:g} x {size[1]:g}; kept as it is"
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
        return json.loads(path.read_bytes(), object_pairs_hook=_no_key_twice)
    except FileNotFoundError as error:
        raise PolyadicError(f"no {path}. {cure}") from error
    except IsADirectoryError as error:
        raise PolyadicError(f"{path} is a folder, expected a JSON file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PolyadicError(
            f"{path} is not complete JSON ({error}); is it cut off, or a file of another kind?"
        ) from error
    except _TwiceError as error:
        raise PolyadicError(f"{path}: {error.key!r} occurs twice in one object; each needs one record") from error


class _TwiceError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return value


def _numbers(values: Any, n: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == n
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        and all(abs(value) < float("inf") for value in values)  # also false for NaN
    )


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
