"""Where the relations of photos go: a file of JSON Lines that can be gone on with after a stop, and pictures."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyadic.experiments.photos import Result
from polyadic.structures.vocabulary import PolyadicError

_START = b'{"image": '  # of each record


class PhotoLog:
    """Records of photos. Each carries a fingerprint of how it was made, so that a file is of one kind throughout."""

    def __init__(self, path: Path, made: str, resume: bool, overwrite: bool) -> None:
        """`made`: of the model, the detector and what is asked. The file is there from now on."""
        self.path, self.made = path, made
        self.done: set[str] = set()
        if path.is_dir():
            raise PolyadicError(f"--out: {path} is a folder, expected a file")
        if path.exists() and not path.is_file():
            raise PolyadicError(f"--out: {path} is no ordinary file; --json prints the relations instead")
        if not path.parent.is_dir():
            raise PolyadicError(f"--out: no folder {path.parent} to write {path.name} in")
        full = path.exists() and path.stat().st_size > 0
        if full and not (resume or overwrite):
            raise PolyadicError(f"--out: {path} exists: go on in it with --resume, or replace it with --overwrite")
        if full and resume:
            self._read()
        try:
            with path.open("wb" if overwrite else "ab"):
                pass
        except OSError as error:
            raise PolyadicError(f"--out: {path} cannot be written ({error.strerror})") from error

    def _read(self) -> None:
        """What is done; a last line that was cut off is taken away."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                name, made = record["image"], record["made"]
            except (ValueError, KeyError, TypeError) as error:
                raise self._foreign(number) from error
            if made != self.made:
                raise PolyadicError(
                    f"--out: {self.path} was made by another model or with other options: resume it as it was, or give "
                    "another file"
                )
            self.done.add(name)
        rest = content[whole:]
        if rest[: len(_START)] != _START[: len(rest)]:
            raise self._foreign(len(lines) + 1)
        if rest:
            os.truncate(self.path, whole)

    def _foreign(self, number: int) -> PolyadicError:
        return PolyadicError(f"--out: {self.path}, line {number}, is no record of `polyadic predict`")

    def write(self, result: Result) -> None:
        """One line; what could not be read is not written, so that it is tried again."""
        line = to_line({**to_record(result), "made": self.made})
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, before)
            raise PolyadicError(
                f"--out: {self.path} cannot be written ({error.strerror}); what is in it is whole: make room and go on "
                "with --resume"
            ) from error


def to_record(result: Result) -> dict[str, Any]:
    """A photo's relations in JSON values, under the name by which it was asked for."""
    assert result.found is not None, "a photo without a problem"
    return {**result.found.to_dict(), "image": result.name}


def to_line(record: dict[str, Any]) -> str:
    """JSON in one line; letters stay letters, but for names of files that are no Unicode."""
    line = json.dumps(record, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(record)
    return line


def picture_targets(
    photos: Sequence[Path], words: Sequence[str], folder: Path, suffix: str, replace: bool
) -> dict[str, Path]:
    """Where each photo's picture goes: as it lies in the folder that was named; two of one name keep their suffixes."""
    roots = [path for path in (Path(word).expanduser() for word in words) if path.is_dir()]
    places = []
    for path in photos:
        root = next((root for root in roots if path.is_relative_to(root)), path.parent)
        places.append(path.relative_to(root))
    stems = Counter(_key(place.with_suffix("")) for place in places)
    names = [place.with_suffix("") if stems[_key(place.with_suffix(""))] == 1 else place for place in places]
    times = Counter(map(_key, names))
    targets: dict[str, Path] = {}
    for number, (path, place, name) in enumerate(zip(photos, places, names, strict=True), 1):
        end = name.name if times[_key(name)] == 1 else f"{place.name}-{number}"
        targets[str(path)] = folder / name.with_name(f"{end}.{suffix}")
    sources = set(map(os.path.realpath, photos))
    for target in targets.values():
        if os.path.realpath(target) in sources:
            raise PolyadicError(f"--draw: {target} is one of the photos: give another folder")
        if target.exists() and not replace:
            raise PolyadicError(f"--draw: {target} exists: give another folder, or --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolyadicError(f"--draw: {folder} cannot be a folder for pictures ({error.strerror})") from error
    return targets


def _key(place: Path) -> str:
    return str(place).casefold()  # some file systems know no capitals


def draw(result: Result, path: Path) -> None:
    """The photo with what was found, as .png or .svg."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        result.relations.save_drawing(path, result.photo)
    except OSError as error:
        raise PolyadicError(f"--draw: {path} cannot be written ({error.strerror or error})") from error
