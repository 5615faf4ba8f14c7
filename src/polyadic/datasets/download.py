"""Download one file from the first mirror that serves it intact, and unpack archives.

Bytes go to `<file>.part`, and their source to `<file>.part.json`, so that an interrupted download continues where it
stopped. The final name appears by one rename, after the size and the SHA-256 (or else the format) have been checked.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http.client import HTTPException, HTTPResponse
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, runtime_checkable
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from polyadic import progress
from polyadic.files import write_text
from polyadic.structures.vocabulary import PolyadicError

_CHUNK = 1 << 18
_ADVANCE = 1 << 20  # an attempt that brings this many bytes does not count as failed
_PAUSE = 1.0  # seconds before the second attempt; doubles, up to 30


class UnavailableError(PolyadicError):
    """No mirror served the file; the message gives the reason for each mirror."""


class _AttemptError(Exception):
    """Why an attempt failed; `again`: the same mirror may succeed next time."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True)
class _Expected:
    """What is known of a file before it is downloaded."""

    size: int | None
    sha256: str | None
    check: Callable[[Path], str | None] | None

    def problem(self, path: Path) -> str | None:
        """Return what is wrong with a complete download, or None."""
        length = path.stat().st_size
        if self.size is not None and length != self.size:
            return f"{length} bytes instead of {self.size}"
        if self.sha256 is None:
            return self.check(path) if self.check is not None else None
        hasher = hashlib.sha256()
        with path.open("rb") as stream:
            while piece := stream.read(_CHUNK):
                hasher.update(piece)
        digest = hasher.hexdigest()
        return None if digest == self.sha256.lower() else f"SHA-256 is {digest:.12}..., not {self.sha256:.12}..."


@dataclass(frozen=True)
class _Part:
    """The bytes so far, and the URL and version that they are from."""

    path: Path

    @property
    def note_path(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def source(self) -> tuple[str, str | None]:
        """Return the URL, and the ETag or date that identifies the version; empty if unknown."""
        try:
            note: Any = json.loads(self.note_path.read_text(encoding="utf-8"))
            url, validator = note["url"], note["validator"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return "", None
        return str(url), None if validator is None else str(validator)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note_path.unlink(missing_ok=True)


def download(
    urls: Sequence[str],
    path: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    check: Callable[[Path], str | None] | None = None,
    timeout: float = 30.0,
    retries: int = 3,
) -> None:
    """Download one file to `path` from the first of `urls` that serves the right bytes.

    Args:
        urls: mirrors, in order.
        path: the final name; it appears at the end, and only then.
        size: bytes of the file, if known.
        sha256: hex digest, if known. A part may then be continued at another mirror.
        check: returns what is wrong with a complete file, or None; used where no SHA-256 is known.
        timeout: seconds without a byte that count as a stall.
        retries: further attempts at a mirror that answered and failed.
    """
    part, expected = _Part(path.with_name(path.name + ".part")), _Expected(size, sha256, check)
    path.parent.mkdir(parents=True, exist_ok=True)
    started, _ = part.source()
    reasons = []
    for url in sorted(urls, key=lambda url: url != started):  # the mirror of the part first
        why = _from_mirror(url, part, expected, timeout=timeout, retries=retries)
        if why is None:
            os.replace(part.path, path)
            part.clear()
            return
        reasons.append(f"{urlsplit(url).hostname}: {why}")
    raise UnavailableError("; ".join(dict.fromkeys(reasons)) or "no mirror")


def _from_mirror(url: str, part: _Part, expected: _Expected, *, timeout: float, retries: int) -> str | None:
    """Complete the part and check it; return the reason if this mirror cannot."""
    failures, most = 0, part.length()
    while True:
        try:
            resumed = _transfer(url, part, expected, timeout)
            problem = expected.problem(part.path)
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


def _transfer(url: str, part: _Part, expected: _Expected, timeout: float) -> bool:
    """Download the missing bytes; return whether some existed before."""
    (source, validator), have = part.source(), part.length()
    same = source == url and validator is not None
    if not (same or expected.sha256) or have > (expected.size or have):
        have = 0  # of unknown origin
    if have and have == expected.size:
        return True
    headers = {"User-Agent": "polyadic"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if same:
            headers["If-Range"] = str(validator)
    with _open(url, headers, timeout=timeout, again=same and have > 0) as answer:
        if have and answer.status == 416 and answer.headers.get("Content-Range", "").strip() == f"bytes */{have}":
            return True  # nothing is missing
        if answer.status == 416 or (answer.status == 206 and _first_byte(answer) != have):
            part.clear()
            raise _AttemptError("cannot resume at the byte asked for")
        if answer.status not in (200, 206):
            status = answer.status or 0
            raise _AttemptError(f"HTTP {status}", again=status >= 500 or status in (408, 425, 429))
        resumed = answer.status == 206
        have = have if resumed else 0
        offered = answer.headers.get("Content-Length", "")
        total = have + int(offered) if offered.isdecimal() else expected.size
        if expected.size is not None and total != expected.size:
            raise _AttemptError(f"offers {total} bytes instead of {expected.size}", again=False)
        with part.path.open("ab" if resumed else "wb") as out:
            # the note after the old bytes are gone, and before the new ones arrive
            part.note_path.write_text(json.dumps({"url": url, "validator": _validator(answer)}), "utf-8")
            for piece in _pieces(answer, None if total is None else total - have, timeout):
                out.write(piece)
                have += len(piece)
                progress.transfer(part.path.name.removesuffix(".part"), have, total)
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


def _validator(answer: HTTPResponse | HTTPError) -> str | None:
    """Return what identifies this version of the file: a strong ETag, else the date."""
    tag: str | None = answer.headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return tag
    date: str | None = answer.headers.get("Last-Modified")
    return date


def _first_byte(answer: HTTPResponse | HTTPError) -> int:
    """Return where a partial answer starts; -1 if it does not say."""
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


@runtime_checkable
class Stream(Protocol):
    """The bytes of one member."""

    def read(self, length: int = ..., /) -> bytes: ...


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


class ArchiveError(Exception):
    """What a file is instead of an intact archive with the members that we need: "a web page"."""


def is_unpacked(archive: Path, wanted: Sequence[Members], root: Path) -> bool:
    """Return whether everything from the archive is still there, or else as many files as there should be."""
    marker = _marker(archive)
    listed = marker.read_text("utf-8").splitlines() if marker.exists() else []
    if listed and all((root / place).exists() for place in listed):
        return True
    return all(group.have(root) >= group.count for group in wanted)


def read_through(archive: Path, wanted: Sequence[Members]) -> None:
    """Read every needed member to its end, which verifies its checksum."""
    _walk(archive, wanted, _drain)


def unpack(archive: Path, wanted: Sequence[Members], root: Path) -> None:
    """Unpack all needed members, or none; files that exist already are left as they are."""
    waiting: dict[str, Path] = {}  # place under the root: temporary file on the same disk
    hidden = {group.folder: root / group.folder / f".{archive.name}.unpacking" for group in wanted}

    def save(place: PurePosixPath, stream: Stream) -> None:
        path = hidden[str(place.parent)] / place.name
        waiting[str(place)] = path
        with path.open("wb") as out:
            shutil.copyfileobj(stream, out)

    try:
        for folder in hidden.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        _walk(archive, wanted, save, text=f"unpack {archive.name}")
        for place, path in waiting.items():
            if not (root / place).exists():
                os.replace(path, root / place)
        write_text(_marker(archive), "".join(f"{place}\n" for place in waiting))
    finally:
        for folder in hidden.values():
            shutil.rmtree(folder, ignore_errors=True)


def _walk(
    archive: Path, wanted: Sequence[Members], use: Callable[[PurePosixPath, Stream], None], text: str = ""
) -> None:
    """Call `use` with the place under the root and the bytes of each needed member."""
    seen: set[Members] = set()
    length = archive.stat().st_size
    try:
        with archive.open("rb") as raw, closing(_members(raw)) as members:
            for name, stream in members:
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                    raise ArchiveError(f"an archive that reaches outside its folder ({name!r:.80})")
                group = next((group for group in wanted if group.match(path)), None)
                if group is not None:
                    if stream is None:
                        raise ArchiveError(f"an archive with a link in place of a file ({name!r:.80})")
                    use(PurePosixPath(group.folder) / path.name, stream)
                    seen.add(group)
                if text:
                    progress.transfer(text, raw.tell(), length)
    except _DAMAGED as error:
        raise ArchiveError(f"damaged ({str(error) or type(error).__name__:.80})") from error
    absent = [group.patterns[0] for group in wanted if group not in seen]
    if absent:
        raise ArchiveError(f"an archive without {', '.join(absent)}")


def _members(raw: BufferedReader) -> Generator[tuple[str, Stream | None], None, None]:
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
            while plain.read(1 << 20):  # the checksum is at the end
                pass
    else:
        raise ArchiveError("a web page" if head.lstrip().startswith(b"<") else "neither a zip nor a tar.gz archive")


def _drain(place: PurePosixPath, stream: Stream) -> None:
    while stream.read(1 << 20):
        pass


def _marker(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.unpacked")
