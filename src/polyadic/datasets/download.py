"""One remote file, from the first mirror that serves it whole.

Bytes go to `<file>.part`, and whose they are to `<file>.part.json`, so an interrupted download goes on where it
stopped. The final name appears by one rename, after the size and the SHA-256 (or else the form) have been checked.
"""

from __future__ import annotations

import filecmp
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
_ADVANCE = 1 << 20  # an attempt that brought so many bytes does not count as failed
_PAUSE = 1.0  # seconds before the second attempt; doubles, up to 30


class UnavailableError(PolyadicError):
    """No mirror served the file; the message says why, mirror by mirror."""


class _AttemptError(Exception):
    """Why an attempt failed; `again`: the same mirror may do better next time."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


class _NoAnswerError(_AttemptError):
    """The mirror could not be reached: tried again only where it has answered before."""


@dataclass(frozen=True)
class _Part:
    """The bytes so far, and the note about whose they are."""

    path: Path

    @property
    def note_path(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def note(self) -> dict[str, Any]:
        try:
            note = json.loads(self.note_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        kinds = {"url": str, "validator": str | None, "length": int | None}
        return note if isinstance(note, dict) and all(isinstance(note.get(k), kinds[k]) for k in kinds) else {}

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
    """Bring one file to `path` from the first of `urls` whose bytes are right.

    Args:
        urls: mirrors, in order.
        path: the final name; it appears at the end, and only then.
        size: bytes of the file, where known: a mirror that offers another number is left at once.
        sha256: hex digest, where known. A part may then go on at another mirror.
        check: says what is wrong with a complete file, or None; asked where no SHA-256 is known.
        timeout: seconds without a byte that count as a stall.
        retries: further attempts at a mirror that answered and failed.
    """
    part, reasons = _Part(path.with_name(path.name + ".part")), []
    path.parent.mkdir(parents=True, exist_ok=True)
    started = part.note().get("url")
    for url in sorted(urls, key=lambda url: url != started):  # the mirror of the part first
        why = _from_mirror(url, part, size=size, sha256=sha256, check=check, timeout=timeout, retries=retries)
        if why is None:
            os.replace(part.path, path)
            part.clear()
            return
        reasons.append((f"{urlsplit(url).hostname}", why))
    many = "1 mirror" if len(reasons) == 1 else f"{len(reasons)} mirrors"
    hosts = {why: list(dict.fromkeys(host for host, other in reasons if other == why)) for _, why in reasons}
    summary = "; ".join(f"{', '.join(names)}: {why}" for why, names in hosts.items())
    raise UnavailableError(f"{many}: {summary}" if reasons else "no mirror")


def _from_mirror(
    url: str,
    part: _Part,
    *,
    size: int | None,
    sha256: str | None,
    check: Callable[[Path], str | None] | None,
    timeout: float,
    retries: int,
) -> str | None:
    """Fill the part and check it; the reason if this mirror cannot."""
    answered, failures, most = False, 0, part.length()
    while True:
        try:
            resumed = _transfer(url, part, size, sha256, timeout)
            wrong = _wrong(part.path, size, sha256, check)
            if wrong is None:
                return None
            part.clear()
            raise _AttemptError(wrong, again=resumed)  # the older bytes may be to blame: once more, from the start
        except _AttemptError as error:
            why = str(error)
            answered = answered or not isinstance(error, _NoAnswerError)
            if not (error.again and answered):
                return why
        if part.length() >= most + _ADVANCE:
            most, failures = part.length(), 0
        failures += 1
        if failures > retries:
            return why
        time.sleep(min(_PAUSE * 2 ** (failures - 1), 30))


def _transfer(url: str, part: _Part, size: int | None, sha256: str | None, timeout: float) -> bool:
    """Bring the bytes that are missing; True if some were there before."""
    note, have = part.note(), part.length()
    same = bool(have and note.get("url") == url and note.get("validator"))
    total = size if size is not None else note.get("length") if same else None
    if (not same and sha256 is None) or (total is not None and have > total):
        same, have, total = False, 0, size  # nobody vouches for these bytes: they go when better ones come
    if have and have == total:
        return True
    headers = {"User-Agent": "polyadic"}
    if have:
        headers["Range"] = f"bytes={have}-"
    if same:
        headers["If-Range"] = note["validator"]
    with _ask(url, headers, timeout) as answer:
        status, validator = answer.status or 0, _validator(answer)
        if status == 206:
            first, end, whole = _content_range(answer)
            changed = same and validator is not None and validator != note["validator"]
            if first != have or changed or (total is not None and whole is not None and whole != total):
                part.clear()
                raise _AttemptError("does not go on where it stopped")
            total = whole or total or end
        elif status == 416 and have:
            if answer.headers.get("Content-Range", "").strip() == f"bytes */{have}":
                return True  # nothing is missing
            part.clear()
            raise _AttemptError("HTTP 416")
        elif status == 200:
            have, offered = 0, answer.headers.get("Content-Length", "")
            total = int(offered) if offered.isdecimal() else size
            if size is not None and total != size:
                raise _AttemptError(f"offers {offered} bytes instead of {size}", again=False)
        else:
            raise _AttemptError(f"HTTP {status}", again=status >= 500 or status in (408, 425, 429))
        resumed = have > 0
        with part.path.open("ab" if resumed else "wb") as out:
            # the note after the old bytes are gone, and before the new ones come
            part.note_path.write_text(json.dumps({"url": url, "validator": validator, "length": total}), "utf-8")
            for piece in _pieces(answer, None if total is None else total - have, timeout):
                out.write(piece)
                have += len(piece)
                progress.transfer(part.path.name.removesuffix(".part"), have, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and have < total:
        raise _AttemptError(f"cut after {have} of {total} bytes")
    return resumed


def _ask(url: str, headers: dict[str, str], timeout: float) -> HTTPResponse | HTTPError:
    """The answer, whatever its status; redirects are followed, and the environment's proxies used."""
    try:
        answer: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        return error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _NoAnswerError(f"no answer within {timeout:g} s") from None
        raise _NoAnswerError(f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__!s:.100}") from None
    return answer


def _pieces(answer: HTTPResponse | HTTPError, missing: int | None, timeout: float) -> Iterator[bytes]:
    """The body as it comes: `read1` hands on what has arrived, so a stall loses nothing. It ends where the file does,
    whether or not the server hangs up.
    """
    try:
        while piece := answer.read1(_CHUNK if missing is None else min(_CHUNK, missing)):
            yield piece
            missing = None if missing is None else missing - len(piece)
    except TimeoutError:
        raise _AttemptError(f"no byte for {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        raise _AttemptError(f"cut ({type(error).__name__})") from None


def _validator(answer: HTTPResponse | HTTPError) -> str | None:
    """What tells this version of the file from the next one: a strong ETag, else the date."""
    tag: str | None = answer.headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return tag
    date: str | None = answer.headers.get("Last-Modified")
    return date


def _content_range(answer: HTTPResponse | HTTPError) -> tuple[int, int, int | None]:
    """First byte, end, and length of the whole, as the server states them; first is -1 where it does not."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    if match is None:
        return -1, 0, None
    return int(match[1]), int(match[2]) + 1, None if match[3] == "*" else int(match[3])


def _wrong(path: Path, size: int | None, sha256: str | None, check: Callable[[Path], str | None] | None) -> str | None:
    """What is wrong with a complete download, or None."""
    if not path.exists():
        return "empty"
    length = path.stat().st_size
    if size is not None and length != size:
        return f"{length} bytes instead of {size}"
    if sha256 is None:
        return check(path) if check is not None else None
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    same = digest.hexdigest() == sha256.lower()
    return None if same else f"SHA-256 is {digest.hexdigest():.12}..., not {sha256:.12}..."


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
    return all(members.have(root) >= members.count for members in wanted)


def read_through(archive: Path, wanted: Sequence[Members]) -> None:
    """Read every needed member to its end, checksums and all."""
    _walk(archive, wanted, _drain)


def unpack(archive: Path, wanted: Sequence[Members], root: Path) -> None:
    """All needed members to their places, or none."""
    waiting: dict[str, Path] = {}  # place under the root: where the file waits, on the same disk
    hidden = {members.folder: root / members.folder / f".{archive.name}.unpacking" for members in wanted}

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
        _walk(archive, wanted, save, text=f"unpack {archive.name}")
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
        write_text(_marker(archive), "".join(f"{place}\n" for place in waiting))
    finally:
        for folder in hidden.values():
            shutil.rmtree(folder, ignore_errors=True)


def _walk(
    archive: Path,
    wanted: Sequence[Members],
    use: Callable[[PurePosixPath, Stream], None],
    text: str = "",
) -> None:
    """Call `use` with the place under the root and the bytes of each needed member."""
    unpacked: set[Members] = set()
    length = archive.stat().st_size
    try:
        with archive.open("rb") as raw, closing(_members(raw)) as members:
            for name, stream in members:
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                    raise ArchiveError(f"an archive that reaches outside its folder ({name!r:.80})")
                for group in [group for group in wanted if group.match(path)][:1]:
                    if stream is None:
                        raise ArchiveError(f"an archive with a link in place of a file ({name!r:.80})")
                    use(PurePosixPath(group.folder) / path.name, stream)
                    unpacked.add(group)
                if text:
                    progress.transfer(text, raw.tell(), length)
    except _DAMAGED as error:
        raise ArchiveError(f"damaged ({str(error) or type(error).__name__:.80})") from error
    absent = [group.patterns[0] for group in wanted if group not in unpacked]
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
