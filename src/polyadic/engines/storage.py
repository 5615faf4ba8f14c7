"""Files on this machine, in buckets (`s3://`, `gs://`) and on the web, through fsspec, which is an optional extra."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from polyadic.structures.vocabulary import PolyadicError

LARGEST = 1 << 28  # bytes of a photo
PATIENCE = 60  # seconds for a photo on the web
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_WEB = ("http", "https")


class UnreachableError(PolyadicError):
    """Storage that does not answer or denies access: no fault of a photo, so its shard is tried again later."""


def is_url(word: str) -> bool:
    return "://" in word


def absolute(word: str) -> str:
    """Return a URL as it is, and a path, also one with `file://`, in full."""
    if is_url(word) and not word.startswith("file://"):
        return word
    return os.path.abspath(os.path.expanduser(word.removeprefix("file://")))


def open_storage(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a path or URL, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise PolyadicError("photos by the million need fsspec: pip install 'polyadic[scale]'") from error
    scheme = url.split("://", maxsplit=1)[0] if is_url(url) else "file"
    options: dict[str, Any] = {}
    if scheme in _WEB:
        import aiohttp

        options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(total=PATIENCE)}
    try:
        if "::" in url:
            raise ValueError("chained URLs (::) are not read")
        found: tuple[Any, str] = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = _PACKAGES.get(scheme, f"fsspec's package for {scheme}")
        raise PolyadicError(f"{scheme}:// needs {package}: pip install {package}") from error
    except Exception as error:  # each file system has its own
        raise PolyadicError(f"{url}: {reason(error)}") from error
    return found


def reason(error: BaseException) -> str:
    """Say in a few words why storage failed."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{' '.join(text.split()) or type(error).__name__:.160}"


def fetch(url: str) -> bytes:
    """Read a photo that is not on this machine."""
    fs, path = open_storage(url)
    try:
        size = fs.size(path)
        if size is not None and size > LARGEST:
            raise PolyadicError(f"{url} has {size:,} bytes, more than {LARGEST:,}: no photo is that large")
        content: bytes = fs.cat_file(path)
    except PolyadicError:
        raise
    except FileNotFoundError as error:
        raise PolyadicError(f"no image {url}") from error
    except Exception as error:
        kind = PolyadicError if url.split("://", maxsplit=1)[0] in _WEB else UnreachableError
        raise kind(f"{url} cannot be read ({reason(error)})") from error
    return content


@contextmanager
def opened(url: str) -> Iterator[IO[bytes]]:
    """Open a list or an archive for reading."""
    fs, path = open_storage(url)
    try:
        file = fs.open(path, "rb")
    except FileNotFoundError as error:
        raise PolyadicError(f"no file {url}") from error
    except Exception as error:
        raise UnreachableError(f"{url} cannot be read ({reason(error)})") from error
    with file:
        yield file


class Folder:
    """The folder of a job, here or in a bucket."""

    def __init__(self, url: str) -> None:
        self.url = absolute(url)
        self.fs, self.path = open_storage(self.url)

    @property
    def here(self) -> Path | None:
        """The folder on this machine, if it is."""
        return None if is_url(self.url) else Path(self.url)

    def names(self) -> list[str]:
        """List the files in it; none if it does not exist yet."""
        if self.here is not None and self.here.exists() and not self.here.is_dir():
            raise PolyadicError(f"--out: {self.url} is a file, expected a folder")
        try:
            self.fs.invalidate_cache()
            return sorted(os.path.basename(path.rstrip("/")) for path in self.fs.ls(self.path, detail=False))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise UnreachableError(f"--out: {self.url} cannot be read ({reason(error)})") from error

    def place(self, name: str) -> str:
        return f"{self.path}/{name}"

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with opened(f"{self.url}/{name}") as file:
            yield file

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file under a temporary name, which starts with a dot; it gets its name at the end."""
        part = self.place(f".{name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        try:
            if self.here is not None:
                self.here.mkdir(parents=True, exist_ok=True)
            with self.fs.open(part, "wb") as file:
                yield file
                if self.here is not None:
                    file.flush()
                    os.fsync(file.fileno())
            if self.here is not None:
                os.replace(part, self.place(name))  # atomic
            else:
                self.fs.mv(part, self.place(name))
        except BaseException as error:
            with suppress(Exception):
                self.fs.rm(part)
            if not isinstance(error, OSError):
                raise
            raise UnreachableError(f"--out: {name} cannot be written to {self.url} ({reason(error)})") from error

    def remove(self, names: list[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self.fs.rm(self.place(name))
