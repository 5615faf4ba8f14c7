"""One shard of photos in, one Parquet file out: the pure function that every engine runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from polyadic.engines.sources import ARCHIVES, Entry, read_archive, read_list
from polyadic.engines.storage import Folder, UnreachableError, fetch, is_url
from polyadic.experiments.photos import Item, Question, read_ahead, relate
from polyadic.io.parquet import arrow, plain_text, relations_schema, to_batch
from polyadic.model.relation_model import RelationModel
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.vocabulary import PolyadicError

ROWS = 1024  # photos per row group of a file
READERS = 8  # photos of a bucket or the web that are read at the same time


@dataclass(frozen=True)
class Job:
    """What a worker needs to know. It is sent to other processes and machines."""

    out: str  # a folder or URL
    made: str  # fingerprint of the model and its options
    make_model: Callable[[], RelationModel]
    question: Question
    batch: int = 8  # photos that pass through the networks together


@dataclass(frozen=True)
class ShardReport:
    """What became of a shard."""

    shard: int
    photos: int = 0
    relations: int = 0
    errors: int = 0  # photos that could not be related
    first: str = ""  # error
    problem: str | None = None  # why the shard has no file


def file_name(shard: int) -> str:
    """Name the file of a shard.

    >>> file_name(12)
    'relations-000012.parquet'
    """
    return f"relations-{shard:06}.parquet"


def start(job: Job) -> Callable[[int], ShardReport]:
    """Load the model, once per worker; return the function that relates a shard by its number."""
    return partial(relate_shard, job.make_model(), job)


def relate_shard(model: RelationModel, job: Job, shard: int) -> ShardReport:
    """Relate the photos of a shard and write its file, which appears when it is complete.

    A photo that fails is a row with an error. A shard that cannot be read or written has no file, and is tried again
    when the job is resumed.
    """
    pa, folder = arrow(), Folder(job.out)
    photos = relations = errors = 0
    first = ""
    schema = relations_schema({"polyadic": json.dumps({"made": job.made, "shard": shard})})
    try:
        with (
            folder.writing(file_name(shard)) as file,
            pa.parquet.ParquetWriter(file, schema, compression="zstd") as out,
        ):
            rows = _rows(model, job, read_list(folder, shard))
            while some := list(islice(rows, ROWS)):
                out.write_batch(to_batch(some, schema))
                photos, relations = photos + len(some), relations + sum(len(row.get("relations", ())) for row in some)
                bad = [row["error"] for row in some if "error" in row]
                errors, first = errors + len(bad), first or next(iter(bad), "")
    except (PolyadicError, OSError, MemoryError) as error:
        return ShardReport(shard, problem=str(error) or "not enough memory")
    return ShardReport(shard, photos, relations, errors, first)


def _rows(model: RelationModel, job: Job, entries: list[Entry]) -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(READERS) as readers:
        for names, photos in read_ahead(_opened(entries, job.batch, readers)):
            for result in relate(model, [Item(name) for name in names], photos, job.question):
                if result.problem is None:
                    yield {**result.to_record(), "image": plain_text(result.name)}
                else:
                    yield {"image": plain_text(result.name), "error": plain_text(result.problem)}


def _opened(
    entries: list[Entry], size: int, readers: ThreadPoolExecutor
) -> Iterator[tuple[list[str], list[Photo | str | None]]]:
    """Open the photos of a shard, batch by batch."""
    if entries and entries[0].url.lower().endswith(ARCHIVES):
        members = read_archive(entries[0])
        while some := list(islice(members, size)):
            yield [name for name, _ in some], [x if isinstance(x, str) else _open(x, name) for name, x in some]
        return
    for at in range(0, len(entries), size):
        batch = entries[at : at + size]
        found = readers.map(_fetch, batch)
        yield (
            [entry.image for entry in batch],
            [x if isinstance(x, str) else _open(x, entry.image) for entry, x in zip(batch, found, strict=True)],
        )


def _fetch(entry: Entry) -> Path | bytes | str:
    """Return the file of a photo, its content if it is elsewhere, or the problem."""
    if not is_url(entry.url):
        return Path(entry.url)
    try:
        return fetch(entry.url)
    except UnreachableError:
        raise
    except PolyadicError as error:
        return str(error)


def _open(source: Path | bytes, name: str) -> Photo | str:
    try:
        return open_photo(source, name)
    except PolyadicError as error:
        return str(error)
