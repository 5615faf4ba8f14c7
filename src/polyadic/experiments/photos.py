"""Relations of many photos: find files, match detections, predict in batches, write JSON Lines and pictures.

`relate` is the one way to relate photos, a batch at a time. An unreadable photo is reported and skipped.
"""

from __future__ import annotations

import glob
import json
import os
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from polyadic.files import check_output, check_place, identify, lock
from polyadic.model.answers import AnswerOptions, answer, ask
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredPairs
from polyadic.progress import check, track
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo, path_ends
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning, is_out_of_memory

T = TypeVar("T")

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
PAIRS = 50_000  # of boxes per batch; one photo may have more
PATIENCE = 0.2  # seconds of waiting for photos after which a stop request is looked for


@dataclass(frozen=True)
class Question:
    """The query for each photo: its relations, or those with given names."""

    options: AnswerOptions = field(default_factory=AnswerOptions)
    given: tuple[tuple[str, str], ...] = ()  # ("subject", "person"), ...

    def __call__(self, scored: ScoredPairs) -> Relations:
        return ask(scored, dict(self.given), self.options) if self.given else answer(scored, self.options)


@dataclass(frozen=True, eq=False)
class Item:
    """One photo to predict, or boxes alone."""

    name: str
    path: Path | None = None  # None: no image is opened
    detections: Detections | None = None  # None: the model's detector finds them
    problem: str | None = None  # why it cannot be predicted, if known in advance


@dataclass(frozen=True, eq=False)
class Result:
    """The relations of one photo, or the problem that prevented them."""

    name: str
    photo: Photo | None = None
    ranked: Relations | None = None
    problem: str | None = None

    @property
    def relations(self) -> Relations:
        assert self.ranked is not None, "a photo without a problem"
        return self.ranked

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON values, under the name that the user gave the photo."""
        return {**self.relations.to_dict(), "image": self.name}


def find_photos(words: Sequence[str], drawn: Path | None = None) -> list[Path]:
    """List files by name, folder (searched recursively) or pattern; each once, in order.

    Hidden files in folders are left out, and so is the folder of drawings, which must not be one of the folders.
    Broken links are kept, so that they are reported.
    """
    drawings = None if drawn is None else drawn.expanduser().resolve()
    paths: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            if path.resolve() == drawings:
                raise PolyadicError(
                    f"--draw: {drawn} is a folder of photos; the next run would take drawings for photos"
                )
            inside = sorted(other for other in path.rglob("*") if _is_image(other, path))
            if drawings is not None and drawings.is_relative_to(path.resolve()):
                inside = [other for other in inside if not other.resolve().is_relative_to(drawings)]
            if not inside:
                raise PolyadicError(f"{word}: no image in this folder ({', '.join(sorted(SUFFIXES))})")
            paths |= dict.fromkeys(inside)
        elif glob.has_magic(word) and not path.exists():
            matching = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
            if not matching:
                raise PolyadicError(f"{word}: no file matches this pattern")
            paths |= dict.fromkeys(matching)
        else:
            paths[path] = None
    return list(paths)


def _is_image(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    is_file = path.is_file() or (path.is_symlink() and not path.exists())
    return path.suffix.lower() in SUFFIXES and is_file and not hidden


def match_detections(photos: Sequence[Path], given: Mapping[str, Detections]) -> list[Item]:
    """Match photos with detections: the image name that is the longest end of the photo's path.

    If there is none, names without suffix and leading zeros are compared: COCO's results call 000000000139.jpg 139.
    Detections that match several photos are used for none of them. A single photo and the detections of a single
    image are matched whatever their names.
    """
    if len(photos) == len(given) == 1:
        ((path,), (name,)) = photos, given
        if Path(name).stem != path.stem:
            warnings.warn(f"using the boxes of {name!r} for {path}, the only photo", PolyadicWarning, stacklevel=2)
        return [Item(str(path), path, given[name])]
    stems: dict[str, list[str]] = {}
    for name in given:
        stems.setdefault(_stem(name), []).append(name)
    matching = {path: _matching(path, given, stems) for path in photos}
    times = Counter(names[0] for names in matching.values() if len(names) == 1)
    items = []
    for path, names in matching.items():
        problem = None
        if not names:
            problem = f"{path}: no detections"
        elif len(names) > 1:
            problem = f"{path}: detections of {len(names)} images match, {names[0]!r} and {names[1]!r}: use full paths"
        elif times[names[0]] > 1:
            problem = f"{path}: the detections of {names[0]!r} match {times[names[0]]} photos: use full paths"
        items.append(Item(str(path), path, None if problem else given[names[0]], problem))
    if photos and all(item.problem for item in items):
        one = next(iter(given), None)
        raise PolyadicError(
            f"none of the {len(photos):,} photos (the first is {photos[0]}) matches the detections of {len(given):,} "
            "images" + ("" if one is None else f" (the first is {one!r})")
        )
    return items


def _matching(path: Path, given: Mapping[str, Detections], stems: Mapping[str, list[str]]) -> list[str]:
    end = next((end for end in path_ends(path) if end in given), None)
    return [end] if end is not None else stems.get(_stem(str(path)), [])


def _stem(name: str) -> str:
    return Path(name).stem.lstrip("0")


def predict_photos(
    model: RelationModel, items: Sequence[Item], question: Question, *, batch: int = 8, done: Collection[str] = ()
) -> Iterator[Result]:
    """Predict photos in order, reading the next batch in the background.

    Names in `done` are skipped but do not change the batches: grouping affects the last digits of the scores, and a
    resumed job must give the same output as an uninterrupted one.
    """
    batches = [some for some in _batches(items, batch) if any(item.name not in done for item in some)]
    opened = read_ahead((some, _open_all(some)) for some in batches)
    for some, photos in track(opened, "predicting", len(batches)):
        yield from (result for result in relate(model, some, photos, question) if result.name not in done)


def relate(
    model: RelationModel, items: Sequence[Item], photos: Sequence[Photo | str | None], question: Question
) -> list[Result]:
    """Relate one batch of photos; a string in place of a photo is the problem that prevents it."""
    results = {
        row: Result(items[row].name, problem=photo) for row, photo in enumerate(photos) if isinstance(photo, str)
    }
    groups = [[row for row in range(len(items)) if row not in results]]
    while groups:
        group = groups.pop()
        if not group:
            continue
        present = [photo for row in group if not isinstance(photo := photos[row], str)]
        boxes = [given for row in group if (given := items[row].detections) is not None]
        try:
            scored = model.score_many(present, boxes or None)
            for row, photo, pairs in zip(group, present, scored, strict=True):
                results[row] = Result(items[row].name, photo, question(pairs))
        except (PolyadicError, MemoryError, RuntimeError) as error:
            if not isinstance(error, PolyadicError) and not is_out_of_memory(error):
                raise
            if len(group) > 1:
                groups += [[row] for row in group]  # find the one that fails
            else:
                results[group[0]] = Result(items[group[0]].name, problem=_problem(error, items[group[0]].name))
    return [results[row] for row in range(len(items))]


def read_ahead(batches: Iterable[T]) -> Iterator[T]:
    """Compute the next batch, which opens its photos, while the one before is worked on.

    Daemon threads read: a disk that does not answer blocks neither a requested stop nor the exit.
    """
    source = iter(batches)
    ahead = _in_background(source)
    while True:
        while not wait([ahead], PATIENCE).done:
            check()
        batch = ahead.result()
        if not batch:
            return
        ahead = _in_background(source)
        yield batch[0]


def _in_background(source: Iterator[T]) -> Future[list[T]]:
    """Get the next item, in a list; an empty list at the end."""
    future: Future[list[T]] = Future()

    def read() -> None:
        try:
            future.set_result(list(islice(source, 1)))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return future


def _batches(items: Sequence[Item], most: int) -> Iterator[list[Item]]:
    """Split into batches, in order; smaller ones where photos have many pairs of boxes."""
    some: list[Item] = []
    total = 0
    for item in items:
        pairs = 0 if item.detections is None else len(item.detections) * (len(item.detections) - 1)
        if some and (len(some) == most or total + pairs > PAIRS):
            yield some
            some, total = [], 0
        some.append(item)
        total += pairs
    if some:
        yield some


def _open_all(items: Sequence[Item]) -> list[Photo | str | None]:
    """Open photos; return the problem where one cannot be opened, None where none is needed."""
    return [item.problem or (None if item.path is None else _open(item.path)) for item in items]


def _open(path: Path) -> Photo | str:
    try:
        return open_photo(path)
    except PolyadicError as error:
        return str(error)


def _problem(error: Exception, name: str) -> str:
    reason = str(error) if isinstance(error, PolyadicError) else "not enough memory"
    return reason if name in reason else f"{name}: {reason}"


_START = b'{"image": '  # of each record


class PhotoLog:
    """Write relations as JSON Lines. Each record carries a fingerprint of model and options, to resume safely."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Use `open` instead; `fingerprint` is of the model, the detector and the question."""
        self.path, self.fingerprint = path, fingerprint
        self.done: set[str] = set()

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, fingerprint: str, *, resume: bool, overwrite: bool, inputs: Iterable[Path | None] = ()
    ) -> Iterator[PhotoLog]:
        """Check, create and lock the file, and read what is done."""
        check_place(path, option="--out", inputs=identify(inputs))
        if not (resume or overwrite) and path.exists() and path.stat().st_size:
            raise PolyadicError(f"--out: {path} exists: continue it with --resume, or replace it with --overwrite")
        if overwrite:
            check_output(path, "predictions", option="--out", replace=True)
        log = cls(path, fingerprint)
        with lock(path, f"--out: another process is writing {path}; wait for it, or choose another file"):
            if overwrite:
                os.truncate(path, 0)
            log._read()
            yield log

    def _read(self) -> None:
        """Collect the names that are done; remove a truncated last line."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                name, made = record["image"], record["made"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise self._foreign(number) from error
            if not isinstance(name, str):
                raise self._foreign(number)
            if made != self.fingerprint:
                raise PolyadicError(
                    f"--out: {self.path} was written with another model or other options: resume it with the same "
                    "ones, or choose another file"
                )
            if name in self.done:
                raise PolyadicError(f"--out: {self.path}, line {number}: {name!r} is repeated; remove one of the lines")
            self.done.add(name)
        rest = content[whole:]
        if rest[: len(_START)] != _START[: len(rest)]:
            raise self._foreign(len(lines) + 1)
        if rest:
            os.truncate(self.path, whole)

    def _foreign(self, number: int) -> PolyadicError:
        return PolyadicError(f"--out: {self.path}, line {number}: not a record of `polyadic predict`")

    def write(self, result: Result) -> None:
        """Append one line. Photos with a problem are not written, so that they are retried."""
        line = to_line({**result.to_record(), "made": self.fingerprint})
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, before)
            raise PolyadicError(
                f"--out: {self.path} cannot be written ({error.strerror}); its records are complete: free some space "
                "and continue with --resume"
            ) from error


def to_line(record: dict[str, Any]) -> str:
    """Format JSON in one line; escape all letters if a name has some that cannot be printed, or are no Unicode."""
    line = json.dumps(record, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(record)


def drawing_paths(
    photos: Sequence[Path],
    words: Sequence[str],
    folder: Path,
    *,
    suffix: str,
    overwrite: bool,
    inputs: Sequence[Path | None] = (),
) -> dict[str, Path]:
    """Choose each photo's drawing path: the layout of the input folder; equal names keep their suffixes."""
    roots = [path for path in (Path(word).expanduser() for word in words) if path.is_dir()]
    places = []
    for path in photos:
        root = next((root for root in roots if path.is_relative_to(root)), path.parent)
        places.append(path.relative_to(root))
    stems = Counter(_key(place.with_suffix("")) for place in places)
    names = [place.with_suffix("") if stems[_key(place.with_suffix(""))] == 1 else place for place in places]
    times = Counter(map(_key, names))
    targets: dict[str, Path] = {}
    for number, (path, place, name) in enumerate(zip(photos, places, names, strict=True), 1):
        end = name.name if times[_key(name)] == 1 else f"{place.name}-{number}"
        targets[str(path)] = folder / name.with_name(f"{end}.{suffix}")
    sources = identify([*photos, *inputs])
    for target in targets.values():
        if target.exists():
            check_output(target, "drawing", option="--draw", inputs=sources, replace=overwrite)
    try:
        for parent in dict.fromkeys([folder, *(target.parent for target in targets.values())]):
            parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolyadicError(f"--draw: {folder} cannot be a folder for pictures ({error.strerror})") from error
    return targets


def _key(place: Path) -> str:
    return str(place).casefold()  # some file systems ignore case


def draw(result: Result, path: Path) -> None:
    """Draw the photo with its relations, as .png or .svg."""
    try:
        result.relations.save_drawing(path, result.photo)
    except OSError as error:
        raise PolyadicError(f"--draw: {path} cannot be written ({error.strerror or error})") from error
