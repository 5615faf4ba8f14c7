"""Photos of a job: folders, lists, WebDataset archives and buckets, as one list whose row groups are the shards.

The list is written once, beside the results, so the content of a shard is fixed whatever happens to the source, and a
worker needs nothing but its number.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt64

from polyadic.engines.storage import LARGEST, Folder, absolute, is_url, open_storage, opened, reason
from polyadic.experiments.photos import SUFFIXES
from polyadic.io.parquet import arrow, complete, plain_text
from polyadic.progress import check
from polyadic.structures.vocabulary import PolyadicError

LIST = "_photos.list"
LISTS, ARCHIVES = (".txt", ".lst", ".parquet"), (".tar", ".tar.gz", ".tgz")
_COLUMNS = ("url", "uri", "path", "image", "file_name", "key")
_LONGEST = 8192  # bytes of a line
_CHUNK = 1 << 16  # names checked for repeats together
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class Entry(NamedTuple):
    """A photo, or an archive of photos: its name as the user knows it, and where it is."""

    image: str
    url: str


@dataclass(frozen=True)
class Listing:
    """What a job has to do."""

    shards: int
    photos: int  # an archive counts as one
    repeated: int  # entries left out because they occur twice


def write_list(words: Sequence[str], folder: Folder, size: int) -> Listing:
    """List the sources in shards of `size` photos; an archive is a shard of its own. Repeats are left out."""
    pa, schema = arrow(), _schema()
    shards = photos = 0
    unique = _Unique()
    with folder.writing(LIST) as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        entries = unique.of(entry for word in words for entry in find_entries(word))
        for archive, some in groupby(entries, lambda entry: entry.url.lower().endswith(ARCHIVES)):
            while shard := list(islice(some, 1 if archive else size)):
                check()
                rows = [{"image": plain_text(image), "url": os.fsencode(url)} for image, url in shard]
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema), row_group_size=size)
                shards, photos = shards + 1, photos + len(shard)
    return Listing(shards, photos, unique.repeated)


def _schema() -> Any:
    pa = arrow()
    return pa.schema([pa.field("image", pa.string(), nullable=False), pa.field("url", pa.binary(), nullable=False)])


def read_list(folder: Folder, shard: int) -> list[Entry]:
    """Read the entries of one shard."""
    pa = arrow()
    with complete(f"{folder.url}/{LIST} is damaged, start again with --overwrite"), folder.open(LIST) as file:
        rows = pa.parquet.ParquetFile(file).read_row_group(shard).cast(_schema()).to_pylist()
        return [Entry(row["image"], os.fsdecode(row["url"])) for row in rows]


class _Unique:
    """Leave out entries whose URL came before; 8 bytes of memory per URL."""

    def __init__(self) -> None:
        self.seen: UInt64[np.ndarray, " n"] = np.zeros(0, np.uint64)
        self.repeated = 0

    def of(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        source = iter(entries)
        while chunk := list(islice(source, _CHUNK)):
            new = self._new([entry.url for entry in chunk])
            self.repeated += int((~new).sum())
            yield from (entry for entry, is_new in zip(chunk, new.tolist(), strict=True) if is_new)

    def _new(self, urls: list[str]) -> Bool[np.ndarray, " m"]:
        digests = (hashlib.blake2b(os.fsencode(url), digest_size=8).digest() for url in urls)
        keys = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        new: np.ndarray = first & ~np.isin(keys, self.seen)
        self.seen = np.union1d(self.seen, keys)
        return new


def find_entries(word: str) -> Iterator[Entry]:
    """List the photos and archives that a word of the command names, in a fixed order."""
    ranged = _RANGE.search(word)
    if ranged and not os.path.exists(word):  # shard-{000000..000099}.tar
        first, last = ranged.groups()
        for number in range(int(first), int(last) + 1):
            yield from find_entries(f"{word[: ranged.start()]}{number:0{len(first)}}{word[ranged.end() :]}")
        return
    url = absolute(word)
    suffix = os.path.splitext(url)[1].lower()
    if glob.has_magic(word) and not os.path.lexists(url):
        yield from _matching(word, url)
    elif suffix in LISTS:
        lines = _read_parquet(url) if suffix == ".parquet" else _read_lines(url)
        base = url.rsplit("/", 1)[0]
        for line in lines:
            alone = is_url(line) or is_url(base) or os.path.isabs(os.path.expanduser(line))
            place = f"{base}/{line}" if is_url(base) and not is_url(line) else line
            yield Entry(line, absolute(place if alone else f"{base}/{line}"))
    elif suffix in SUFFIXES or url.lower().endswith(ARCHIVES):
        yield Entry(word, url)
    else:
        yield from _in_folder(word, url)


def _matching(word: str, url: str) -> Iterator[Entry]:
    if is_url(url):
        fs, path = open_storage(url)
        try:
            matches = [fs.unstrip_protocol(match) for match in sorted(fs.glob(path))]
        except Exception as error:
            raise PolyadicError(f"{word} cannot be listed ({reason(error)})") from error
    else:
        matches = sorted(glob.glob(os.path.expanduser(word), recursive=True))
    if not matches:
        raise PolyadicError(f"{word}: no file matches this pattern")
    for match in matches:
        yield from find_entries(match)


def _in_folder(word: str, url: str) -> Iterator[Entry]:
    """List the photos and archives in a folder, recursively, without hidden ones."""
    fs, path = open_storage(url)
    empty = True
    try:
        if not is_url(url) and not os.path.isdir(url):
            raise FileNotFoundError
        for folder, folders, files in fs.walk(path, on_error="raise"):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = os.path.relpath(folder, path) if folder.rstrip("/") != path.rstrip("/") else ""
            for name in sorted(files):
                if not name.startswith(".") and name.lower().endswith((*SUFFIXES, *ARCHIVES)):
                    empty = False
                    end = f"{inside}/{name}" if inside else name
                    yield Entry(f"{word.rstrip('/')}/{end}", f"{url.rstrip('/')}/{end}")
    except FileNotFoundError as error:
        raise PolyadicError(f"{word}: no such photo, folder, list or archive") from error
    except PolyadicError:
        raise
    except Exception as error:
        raise PolyadicError(f"{word} cannot be listed ({reason(error)})") from error
    if empty:
        raise PolyadicError(f"{word}: no image and no archive in this folder ({', '.join(sorted(SUFFIXES))}, .tar)")


def _read_lines(url: str) -> Iterator[str]:
    """Read a text list: one path or URL per line; relative paths start at the list's folder."""
    with opened(url) as raw, io.BufferedReader(raw) as file:  # type: ignore[type-var]
        number = 0
        while line := file.readline(_LONGEST + 1):
            number += 1
            if len(line) > _LONGEST or b"\0" in line:
                raise PolyadicError(f"{url}, line {number}: not a path or URL; expected one per line")
            name = line.rstrip(b"\r\n")
            if name.strip():
                yield os.fsdecode(name)
    if not number:
        raise PolyadicError(f"{url}: the list is empty")


def _read_parquet(url: str) -> Iterator[str]:
    """Read a Parquet list: the column called url, uri, path, image, file_name or key, or the only one of text."""
    pa = arrow()
    with complete(f"{url} is not a readable Parquet file"), opened(url) as file:
        table = pa.parquet.ParquetFile(file)
        texts = [
            field.name
            for field in table.schema_arrow
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        ]
        named = [name for name in _COLUMNS if name in texts] or (texts if len(texts) == 1 else [])
        if not named:
            raise PolyadicError(f"{url}: expected a text column called {', '.join(_COLUMNS)}; it has {texts}")
        row = 0
        for batch in table.iter_batches(_CHUNK, columns=named[:1]):
            for name in batch.column(0).to_pylist():
                row += 1
                if not name or "\0" in name or len(name) > _LONGEST:
                    raise PolyadicError(f"{url}, row {row}: {named[0]} is not a path or URL: {str(name)[:40]!r}")
                yield name


def read_archive(entry: Entry) -> Iterator[tuple[str, bytes | str]]:
    """Read the photos of an archive in its order: name and content, or name and problem.

    A damaged archive gives the photos before the damage, then the problem under its own name.
    """
    names: set[str] = set()
    with opened(entry.url) as file:
        try:
            with tarfile.open(fileobj=file, mode="r|*") as archive:
                for member in archive:
                    if member.isdir() or not member.name.lower().endswith(tuple(SUFFIXES)):
                        continue
                    name = f"{entry.image}/{member.name}"
                    content = archive.extractfile(member) if member.isreg() else None
                    if member.name in names:
                        yield name, f"{name} occurs twice in the archive"
                    elif content is None:
                        yield name, f"{name} is not a regular file"
                    elif member.size > LARGEST:
                        yield name, f"{name} has {member.size:,} bytes, more than {LARGEST:,}"
                    else:
                        yield name, content.read()
                    names.add(member.name)
        except Exception as error:  # a damaged archive raises almost anything
            if isinstance(error, MemoryError):
                raise
            if not names:
                raise PolyadicError(f"{entry.image} is not a readable archive ({reason(error)})") from error
            yield entry.image, f"{entry.image} is cut off or damaged after {len(names):,} photos ({reason(error)})"
