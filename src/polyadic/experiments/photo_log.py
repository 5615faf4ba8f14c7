"""A file of photos' relations, JSON Lines, one photo each: written as they come, and gone on with after a stop."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyadic.experiments.photos import Result
from polyadic.vocabulary import PolyadicError


class PhotoLog:
    """Records of photos. Each carries a fingerprint of how it was made, so that a file is of one kind throughout."""

    def __init__(self, path: Path, made: str, resume: bool, overwrite: bool) -> None:
        """`made`: of the model, the detector and what is asked."""
        self.path, self.made = path, made
        self.done: set[str] = set()
        if path.is_dir():
            raise PolyadicError(f"--out: {path} is a folder, expected a file")
        if path.exists() and not (resume or overwrite):
            raise PolyadicError(f"--out: {path} exists: go on in it with --resume, or replace it with --overwrite")
        if path.exists() and resume:
            self._read()
        elif overwrite:
            path.unlink(missing_ok=True)

    def _read(self) -> None:
        """What is done; a last line that was cut off is taken away."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
                name, made = record["image"], record["made"]
            except (ValueError, KeyError, TypeError) as error:
                raise PolyadicError(f"{self.path}, line {number}: no record of `polyadic predict`") from error
            if made != self.made:
                raise PolyadicError(
                    f"{self.path} was made by another model or with other options: resume it as it was, or give "
                    "another --out"
                )
            self.done.add(name)
        if whole < len(content):
            os.truncate(self.path, whole)

    def left(self, photos: Sequence[Path]) -> list[Path]:
        return [path for path in photos if str(path) not in self.done]

    def write(self, result: Result) -> None:
        """One line; what could not be read is not written, so that it is tried again."""
        assert result.found is not None, "a photo without a problem"
        record: dict[str, Any] = {**result.found.to_dict(), "image": result.name, "made": self.made}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
