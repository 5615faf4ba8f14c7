"""A job in its folder: the list of photos, what identifies it, and one file per finished shard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from polyadic.engines.local import Lost, run_tasks
from polyadic.engines.shards import Job, ShardReport, file_name, start
from polyadic.engines.sources import write_list
from polyadic.engines.storage import Folder, absolute
from polyadic.files import lock, parse_json
from polyadic.structures.vocabulary import PolyadicError

ABOUT = "_job.json"
_MOST = 100_000_000  # shards; a larger number is damage
_OURS = re.compile(r"relations-\d{6,}\.parquet|_photos\.list|_job\.json")
_PART = re.compile(r"\.(relations-\d{6,}\.parquet|_photos\.list|_job\.json)\.\d+\.[0-9a-f]+\.part")


@dataclass(frozen=True)
class Plan:
    """Which shards a job has, and which of them are left to do."""

    shards: int
    photos: int
    repeated: int
    left: list[int]


class _About(msgspec.Struct):
    """What identifies a job: the file `ABOUT` of its folder."""

    made: str
    source: list[str]
    shards: Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]
    photos: int
    repeated: int


@contextmanager
def prepared(job: Job, words: Sequence[str], size: int, *, resume: bool, overwrite: bool) -> Iterator[Plan]:
    """Create the folder of a job with its list of photos, or continue it; keep other processes out of it."""
    folder = Folder(job.out)
    before = folder.names()
    ours = [name for name in before if _OURS.fullmatch(name)]
    others = [name for name in before if not (_OURS.fullmatch(name) or _PART.fullmatch(name) or name == ".lock")]
    if others:
        raise PolyadicError(
            f"--out: {folder.url} holds {others[0]}, which is not of `polyadic predict`: choose another"
        )
    if ours and not (resume or overwrite):
        raise PolyadicError(f"--out: {folder.url} exists: continue it with --resume, or replace it with --overwrite")
    with _only_one(folder):
        folder.remove([name for name in before if _PART.fullmatch(name)])
        if overwrite:
            folder.remove(sorted(ours, key=lambda name: name != ABOUT))  # first what says that it is complete
        if overwrite or ABOUT not in before:
            _begin(folder, job, words, size)
        with folder.open(ABOUT) as file:
            about: _About = parse_json(file.read(), f"{folder.url}/{ABOUT}", _About)
        _check_same(folder, about, job, words)
        done = set(folder.names())
        left = [shard for shard in range(about.shards) if file_name(shard) not in done]
        yield Plan(about.shards, about.photos, about.repeated, left)


def _begin(folder: Folder, job: Job, words: Sequence[str], size: int) -> None:
    listing = write_list(words, folder, size)
    if not listing.photos:
        raise PolyadicError(f"{', '.join(words)}: the list is empty")
    source = [absolute(word) for word in words]
    about = _About(job.made, source, listing.shards, listing.photos, listing.repeated)
    with folder.writing(ABOUT) as file:
        file.write(json.dumps(msgspec.structs.asdict(about), indent=1).encode())


def _check_same(folder: Folder, about: _About, job: Job, words: Sequence[str]) -> None:
    if about.made != job.made:
        raise PolyadicError(
            f"--out: {folder.url} was begun with another model or other options: resume it with the same ones, or "
            "choose another folder"
        )
    if about.source != [absolute(word) for word in words]:
        raise PolyadicError(f"--out: {folder.url} was begun with other photos: choose another folder for these")


@contextmanager
def _only_one(folder: Folder) -> Iterator[None]:
    if folder.here is None:  # a bucket has no locks
        yield
        return
    try:
        folder.here.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolyadicError(f"--out: {folder.url} cannot be a folder ({error.strerror})") from error
    busy = f"--out: another process is working in {folder.url}; wait for it, or choose another folder"
    with lock(Path(folder.url) / ".lock", busy):
        yield


def run_local(job: Job, shards: Sequence[int], workers: int) -> Iterator[ShardReport]:
    """Relate shards in processes of this machine."""
    for shard, report in run_tasks(partial(start, job), shards, workers):
        yield ShardReport(shard, problem=report.problem) if isinstance(report, Lost) else report
