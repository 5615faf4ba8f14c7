"""One remote file, from the first mirror that serves it whole.

Bytes go to `<file>.part`, and whose they are to `<file>.part.json`, so an interrupted download goes on where it
stopped. The final name appears by one rename, after the size and the SHA-256 (or else the form) have been checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from polyadic.vocabulary import PolyadicError

Progress = Callable[[str, int, int | None], object]  # file name, bytes so far, bytes in all where known

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
    progress: Progress | None = None,
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
        progress: called after each piece.
    """
    part, reasons = _Part(path.with_name(path.name + ".part")), []
    path.parent.mkdir(parents=True, exist_ok=True)
    started = part.note().get("url")
    for url in sorted(urls, key=lambda url: url != started):  # the mirror of the part first
        why = _from_mirror(url, part, size, sha256, check, timeout, retries, progress)
        if why is None:
            os.replace(part.path, path)
            part.clear()
            return
        reasons.append((f"{urlsplit(url).hostname}", why))
    many = "1 mirror" if len(reasons) == 1 else f"{len(reasons)} mirrors"
    hosts = {why: list(dict.fromkeys(host for host, other in reasons if other == why)) for _, why in reasons}
    each = "; ".join(f"{', '.join(names)}: {why}" for why, names in hosts.items())
    raise UnavailableError(f"{many}: {each}" if reasons else "no mirror")


def _from_mirror(
    url: str,
    part: _Part,
    size: int | None,
    sha256: str | None,
    check: Callable[[Path], str | None] | None,
    timeout: float,
    retries: int,
    progress: Progress | None,
) -> str | None:
    """Fill the part and check it; the reason if this mirror cannot."""
    answered, failures, most = False, 0, part.length()
    while True:
        try:
            resumed = _transfer(url, part, size, sha256, timeout, progress)
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


def _transfer(
    url: str, part: _Part, size: int | None, sha256: str | None, timeout: float, progress: Progress | None
) -> bool:
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
                if progress is not None:
                    progress(part.path.name.removesuffix(".part"), have, total)
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
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    if found is None:
        return -1, 0, None
    return int(found[1]), int(found[2]) + 1, None if found[3] == "*" else int(found[3])


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
