"""Archives, read member by member: only the needed files come out, each at its place or not at all.

They are unpacked into a hidden folder beside their place and renamed into it once the whole archive has been read
without a fault. No existing file is overwritten. A list of what came out stays at `.<archive>.unpacked`.
"""

from __future__ import annotations

import filecmp
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from polyadic.datasets.download import Progress
from polyadic.vocabulary import PolyadicError

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


@runtime_checkable
class Stream(Protocol):
    """The bytes of one member."""

    def read(self, length: int = ..., /) -> bytes: ...


@dataclass(frozen=True)
class Members:
    """Members of an archive that are unpacked into one folder, without the folders that they had."""

    patterns: tuple[str, ...]  # each matches the end of a member's path: "sg_train_images/*"
    folder: str  # under the root
    count: int = 1  # with so many files in the folder the archive is not needed

    @property
    def names(self) -> str:
        """The pattern of the file names."""
        return PurePosixPath(self.patterns[0]).name

    @property
    def place(self) -> str:
        """What appears: one file, or a folder of many."""
        return self.folder if "*" in self.names else str(PurePosixPath(self.folder) / self.names)

    def have(self, root: Path) -> int:
        """How many of them are in their folder."""
        return _count(root / self.folder, self.names)

    def match(self, member: PurePosixPath) -> bool:
        """Whether a member is one of these; the leavings of a Mac never are."""
        if member.name.startswith(".") or "__MACOSX" in member.parts:
            return False
        return any(member.match(pattern) for pattern in self.patterns)


class ArchiveError(Exception):
    """What a file is instead of a sound archive with the members that we need: "a web page"."""


def is_unpacked(archive: Path, wanted: Sequence[Members], root: Path) -> bool:
    """Whether all that came out of the archive is still there, or else as many files as there should be."""
    listed = _listed(_marker(archive))
    if listed and all((root / place).exists() for place in listed):
        return True
    return all(each.have(root) >= each.count for each in wanted)


def read_through(archive: Path, wanted: Sequence[Members]) -> None:
    """Read every needed member to its end, checksums and all."""
    _walk(archive, wanted, _drain)


def unpack(archive: Path, wanted: Sequence[Members], root: Path, progress: Progress | None = None) -> None:
    """All needed members to their places, or none."""
    waiting: dict[str, Path] = {}  # place under the root: where the file waits, on the same disk
    hidden = {each.folder: root / each.folder / f".{archive.name}.unpacking" for each in wanted}

    def save(place: PurePosixPath, stream: Stream) -> None:
        if str(place) not in waiting:
            path = hidden[str(place.parent)] / place.name
            waiting[str(place)] = path
            with path.open("wb") as out:
                shutil.copyfileobj(stream, out)

    try:
        for folder in hidden.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        _walk(archive, wanted, save, progress)
        others = [marker for marker in archive.parent.glob(".*.unpacked") if marker != _marker(archive)]
        ours = {place for marker in others for place in _listed(marker)}  # two archives may hold the same image
        for place, path in waiting.items():
            final = root / place
            if final.exists() and place not in ours and not filecmp.cmp(path, final, shallow=False):
                raise PolyadicError(
                    f"{final} differs from the one in {archive}; move one of them away and run the command again"
                )
        for place, path in waiting.items():
            if not (root / place).exists():
                os.replace(path, root / place)
        note = archive.with_name(f".{archive.name}.unpacked.part")
        note.write_text("".join(f"{place}\n" for place in waiting), "utf-8")
        os.replace(note, _marker(archive))
    finally:
        for folder in hidden.values():
            shutil.rmtree(folder, ignore_errors=True)


def _walk(
    archive: Path,
    wanted: Sequence[Members],
    use: Callable[[PurePosixPath, Stream], None],
    progress: Progress | None = None,
) -> None:
    """Call `use` with the place under the root and the bytes of each needed member."""
    found: set[Members] = set()
    length = archive.stat().st_size
    try:
        with archive.open("rb") as raw, closing(_members(raw)) as members:
            for name, stream in members:
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                    raise ArchiveError(f"an archive that reaches outside its folder ({name!r:.80})")
                for each in [each for each in wanted if each.match(path)][:1]:
                    if stream is None:
                        raise ArchiveError(f"an archive with a link in place of a file ({name!r:.80})")
                    use(PurePosixPath(each.folder) / path.name, stream)
                    found.add(each)
                if progress is not None:
                    progress(f"unpack {archive.name}", raw.tell(), length)
    except _DAMAGED as error:
        raise ArchiveError(f"damaged ({str(error) or type(error).__name__:.80})") from error
    absent = [each.patterns[0] for each in wanted if each not in found]
    if absent:
        raise ArchiveError(f"an archive without {', '.join(absent)}")


def _members(raw: BufferedReader) -> Generator[tuple[str, Stream | None], None, None]:
    """Name and bytes of all members but folders, in the order of the archive; None for links and devices."""
    head = raw.read(64)
    raw.seek(0)
    if head.startswith(b"PK"):
        with zipfile.ZipFile(raw) as archive:
            for info in archive.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    yield info.filename, None
                elif not info.is_dir():
                    with archive.open(info) as stream:
                        yield info.filename, stream
    elif head.startswith(b"\x1f\x8b"):
        with gzip.open(raw) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                if not member.isdir():
                    yield member.name, tar.extractfile(member) if member.isfile() else None
            while plain.read(1 << 20):  # the checksum stands at the end
                pass
    else:
        raise ArchiveError("a web page" if head.lstrip().startswith(b"<") else "neither a zip nor a tar.gz archive")


def _drain(place: PurePosixPath, stream: Stream) -> None:
    while stream.read(1 << 20):
        pass


def _marker(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.unpacked")


def _listed(marker: Path) -> list[str]:
    return marker.read_text("utf-8").splitlines() if marker.exists() else []


def _count(folder: Path, names: str) -> int:
    if not folder.is_dir():
        return 0
    return sum(fnmatchcase(name, names) and not name.startswith(".") for name in os.listdir(folder))
