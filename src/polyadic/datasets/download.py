"""Download one file of a dataset from the first mirror that serves it intact, and unpack archives.

Bytes go to `<file>.part`, and their source to `<file>.part.json`, so that an interrupted download continues where it
stopped. A file, or what an archive holds, gets its final name after the size, the SHA-256 (where known) and the format
have been checked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http.client import HTTPException, HTTPResponse
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec

from polyadic import progress
from polyadic.files import write_text
from polyadic.structures.vocabulary import PolyadicError

_CHUNK = 1 << 18
_ADVANCE = 1 << 20  # an attempt that brings this many bytes does not count as failed
_TEXT, _PICTURES = 1 << 28, 4  # an archive unpacks to 256 MB, or this many times its size
_PAUSE = 1.0  # seconds before the second attempt; doubles, up to 30


@dataclass(frozen=True)
class Members:
    """Members of an archive that are unpacked into one folder, without their own folders."""

    patterns: tuple[str, ...]  # each matches the end of a member's path: "sg_train_images/*"
    folder: str  # under the root
    count: int = 1  # with this many files in the folder the archive is not needed

    @property
    def names(self) -> str:
        """The pattern of the file names."""
        return PurePosixPath(self.patterns[0]).name

    @property
    def place(self) -> str:
        """The file, or the folder of many, that unpacking creates."""
        return self.folder if "*" in self.names else str(PurePosixPath(self.folder) / self.names)

    def have(self, root: Path) -> int:
        """Count the files that are in their folder."""
        folder = root / self.folder
        names = os.listdir(folder) if folder.is_dir() else []
        return sum(fnmatchcase(name, self.names) and not name.startswith(".") for name in names)

    def match(self, member: PurePosixPath) -> bool:
        """Return whether a member is one of these; hidden files and macOS metadata never are."""
        if member.name.startswith(".") or "__MACOSX" in member.parts:
            return False
        return any(member.match(pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a dataset. Size and SHA-256 are given where published and where all mirrors serve the same bytes."""

    path: str  # under the root
    urls: tuple[str, ...]  # mirrors, in order
    size: int | None = None
    sha256: str | None = None
    unpack: tuple[Members, ...] = ()  # an archive (zip or tar.gz, by its first bytes) if not empty
    by_hand: str = ""  # page for a download by hand; the first mirror if empty


def is_there(file: RemoteFile, root: Path, title: str) -> bool:
    """Return whether the file, or what it holds, exists, fetched or put there by hand; refuse a wrong format."""
    path = root / file.path
    if file.unpack:
        marker = _marker(path)
        places = marker.read_text("utf-8").splitlines() if marker.exists() else []
        unpacked = bool(places) and all((root / place).exists() for place in places)
        return unpacked or all(group.have(root) >= group.count for group in file.unpack)
    if not path.exists():
        return False
    problem = _wrong_format(path, file.path)
    if problem:
        raise PolyadicError(f"{title}: {path} is {problem}; remove it and run the command again")
    return True


def _wrong_format(path: Path, name: str) -> str | None:
    """Return what the file at `path` is instead of what its final name says."""
    with path.open("rb") as stream:
        head = stream.read(64)
    if head.lstrip().startswith(b"<"):
        return "a web page"
    if name.endswith(".h5") and not head.startswith(b"\x89HDF\r\n\x1a\n"):
        return "not an HDF5 file"
    if name.endswith(".json"):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            return "not a JSON file"
    return None


class _AttemptError(Exception):
    """Why an attempt failed; `again`: the same mirror may succeed next time."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


class ArchiveError(Exception):
    """What a file is instead of an intact archive with the members that we need: "a web page"."""


class _Source(msgspec.Struct):
    """Where the bytes of a part are from: its URL, and the ETag or date of the version, if there is one."""

    url: str = ""
    validator: str | None = None


@dataclass(frozen=True)
class _Part:
    """The bytes so far, and a note of their source beside them."""

    path: Path

    @property
    def note(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def source(self) -> _Source:
        try:
            return msgspec.json.decode(self.note.read_bytes(), type=_Source)
        except (FileNotFoundError, msgspec.MsgspecError):
            return _Source()

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def get(
    file: RemoteFile, root: Path, title: str, *, timeout: float, retries: int, unpacked: float | None = None
) -> str | None:
    """Download a file from the first mirror that serves the right bytes; return why if none does."""
    path = root / file.path
    if path.exists():  # an archive, put there by hand
        try:
            _unpack(path, file, root, unpacked)
        except ArchiveError as error:
            raise PolyadicError(f"{title}: {path} is {error}; remove it and run the command again") from error
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(path.with_name(path.name + ".part"))
    started, reasons = part.source().url, []
    for url in sorted(file.urls, key=lambda url: url != started):  # the mirror of the part first
        why = _from_mirror(url, file, part, root=root, timeout=timeout, retries=retries, unpacked=unpacked)
        if why is None:
            part.clear()
            return None
        reasons.append(f"{urlsplit(url).hostname}: {why}")
    return "; ".join(dict.fromkeys(reasons)) or "no mirror"


def _from_mirror(
    url: str,
    file: RemoteFile,
    part: _Part,
    *,
    root: Path,
    timeout: float,
    retries: int,
    unpacked: float | None,
) -> str | None:
    """Complete the part, check it and put it in its place; return the reason if this mirror cannot."""
    failures, most = 0, part.length()
    while True:
        try:
            resumed = _transfer(url, file, part, timeout)
            problem = _finish(file, part.path, root, unpacked)
            if problem is None:
                return None
            part.clear()
            raise _AttemptError(problem, again=resumed)  # the older bytes may be at fault: try from the start
        except _AttemptError as error:
            why = str(error)
            if not error.again:
                return why
        if part.length() >= most + _ADVANCE:
            most, failures = part.length(), 0
        failures += 1
        if failures > retries:
            return why
        time.sleep(min(_PAUSE * 2 ** (failures - 1), 30))


def _finish(file: RemoteFile, part: Path, root: Path, unpacked: float | None) -> str | None:
    """Check a complete download and put it, or what it holds, in its place; return what is wrong with it."""
    length = part.stat().st_size
    if file.size is not None and length != file.size:
        return f"{length} bytes instead of {file.size}"
    if file.sha256 is not None:
        hasher = hashlib.sha256()
        with part.open("rb") as stream:
            while piece := stream.read(_CHUNK):
                hasher.update(piece)
        if hasher.hexdigest() != file.sha256:
            return f"SHA-256 is {hasher.hexdigest():.12}..., not {file.sha256:.12}..."
    if file.unpack:
        try:
            _unpack(part, file, root, unpacked)
        except ArchiveError as error:
            return str(error)
        return None
    problem = _wrong_format(part, file.path)
    if problem is None:
        os.replace(part, root / file.path)
    return problem


def _transfer(url: str, file: RemoteFile, part: _Part, timeout: float) -> bool:
    """Download the missing bytes; return whether some existed before."""
    source, have = part.source(), part.length()
    same = source.url == url and source.validator is not None
    if not (same or file.sha256) or have > (file.size or have):
        have = 0  # of unknown origin
    if have and have == file.size:
        return True
    headers = {"User-Agent": "polyadic"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if same:
            headers["If-Range"] = str(source.validator)
    with _open(url, headers, timeout=timeout, again=same and have > 0) as answer:
        place = answer.headers.get("Content-Range", "").strip()
        if have and answer.status == 416 and place == f"bytes */{have}":
            return True  # nothing is missing
        if answer.status == 416 or (answer.status == 206 and not place.startswith(f"bytes {have}-")):
            part.clear()
            raise _AttemptError("cannot resume at the byte asked for")
        if answer.status not in (200, 206):
            status = answer.status or 0
            raise _AttemptError(f"HTTP {status}", again=status >= 500 or status in (408, 425, 429))
        resumed = answer.status == 206
        have = have if resumed else 0
        offered = answer.headers.get("Content-Length", "")
        total = have + int(offered) if offered.isdecimal() else file.size
        if file.size is not None and total != file.size:
            raise _AttemptError(f"offers {total} bytes instead of {file.size}", again=False)
        tag = answer.headers.get("ETag", "W/")
        version = answer.headers.get("Last-Modified") if tag.startswith("W/") else tag  # a weak tag names no bytes
        with part.path.open("ab" if resumed else "wb") as out:
            # the note after the old bytes are gone, and before the new ones arrive
            part.note.write_bytes(msgspec.json.encode(_Source(url, version)))
            for piece in _pieces(answer, None if total is None else total - have, timeout):
                out.write(piece)
                have += len(piece)
                progress.transfer(Path(file.path).name, have, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and have < total:
        raise _AttemptError(f"cut off after {have} of {total} bytes")
    return resumed


def _open(url: str, headers: dict[str, str], *, timeout: float, again: bool) -> HTTPResponse | HTTPError:
    """Return the answer, whatever its status; follow redirects and use the environment's proxies."""
    try:
        answer: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        return error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        why = f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__!s:.100}"
        if isinstance(cause, TimeoutError):
            why = f"no answer within {timeout:g} s"
        raise _AttemptError(why, again) from None
    return answer


def _pieces(answer: HTTPResponse | HTTPError, missing: int | None, timeout: float) -> Iterator[bytes]:
    """Yield the body as it arrives: `read1` does not wait for more, so a stall loses nothing."""
    try:
        while piece := answer.read1(_CHUNK if missing is None else min(_CHUNK, missing)):
            yield piece
            missing = None if missing is None else missing - len(piece)
    except TimeoutError:
        raise _AttemptError(f"no byte for {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        raise _AttemptError(f"cut off ({type(error).__name__})") from None


def _marker(archive: Path) -> Path:
    """Name the file that lists what was unpacked."""
    return archive.with_name(f".{archive.name}.unpacked")


def _unpack(archive: Path, file: RemoteFile, root: Path, unpacked: float | None) -> None:
    """Unpack all needed members, which verifies their checksums, or none; existing files are left as they are.

    `unpacked` limits their bytes, in gigabytes; None: what text and pictures may come to.
    """
    hidden = root / ".unpacking"
    waiting: dict[PurePosixPath, Path] = {}  # place under the root: temporary file on the same disk
    missing = set(file.unpack)
    length, name = archive.stat().st_size, Path(file.path).name
    room = most = _TEXT + _PICTURES * length if unpacked is None else int(unpacked * 1e9)
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    try:
        with archive.open("rb") as raw:
            for member, stream in _members(raw):
                path = PurePosixPath(member)
                group = next((group for group in file.unpack if group.match(path)), None)
                if group is not None:
                    if stream is None or path.is_absolute() or ".." in path.parts or re.search(r"[\\:]", member):
                        raise ArchiveError(f"an archive with a link or an unsafe name ({member!r:.80})")
                    place = PurePosixPath(group.folder) / path.name
                    waiting[place] = hidden / str(len(waiting))
                    with waiting[place].open("wb") as out:
                        while piece := stream.read(min(_CHUNK, room + 1)):
                            room -= len(piece)
                            if room < 0:
                                raise ArchiveError(
                                    f"an archive of {length:,} bytes that unpacks to more than {most:,}; allow it with "
                                    "--unpacked, in gigabytes"
                                )
                            out.write(piece)
                    missing.discard(group)
                progress.transfer(f"unpack {name}", raw.tell(), length)
        if missing:
            absent = [group.patterns[0] for group in file.unpack if group in missing]
            raise ArchiveError(f"an archive without {', '.join(absent)}")
        for place, temporary in waiting.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            if not (root / place).exists():
                os.replace(temporary, root / place)
        write_text(_marker(root / file.path), "".join(f"{place}\n" for place in waiting))
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ArchiveError(f"damaged ({str(error) or type(error).__name__:.80})") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _members(raw: BufferedReader) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield name and bytes of all members but folders, in the order of the archive; None for links and devices."""
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
            while plain.read(_CHUNK):  # the checksum is at the end
                pass
    else:
        raise ArchiveError("a web page" if head.lstrip().startswith(b"<") else "neither a zip nor a tar.gz archive")
