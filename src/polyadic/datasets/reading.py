"""What all readers share: opening files with one clear line on failure, and a list of what is wrong in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyadic.scenes import Problem
from polyadic.strict_json import is_number, parse_json
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
