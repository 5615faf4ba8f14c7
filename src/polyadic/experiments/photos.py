"""Relations of many photos: found, read ahead, predicted in batches; an unreadable one is told and passed over."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyadic.model import RelationModel
from polyadic.ranking import Relations
from polyadic.ranking.query import Answers
from polyadic.scenes import Detections, Photo, open_photo
from polyadic.training import Silent, Stop, Watcher
from polyadic.vocabulary import PolyadicError

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}


@dataclass(frozen=True)
class Question:
    """What is asked of each photo: its best relations, or what fits some names."""

    k: int | None = 1
    top: int = 20
    least: float = 0.0  # the least score, f_spo
    given: tuple[tuple[str, str], ...] = ()  # ("subject", "person"), ...

    def __call__(self, relations: Relations) -> Relations | Answers:
        if not self.given:
            return relations.above(self.least)
        answers = relations.query(**dict(self.given), top=self.top)  # type: ignore[arg-type]
        kept = answers.relations.log_score.exp() >= self.least
        return Answers(answers.given, answers.relations[kept], answers.probability[kept])


@dataclass(frozen=True, eq=False)
class Result:
    """One photo: what was found, or why nothing could be."""

    name: str
    photo: Photo | None = None
    found: Relations | Answers | None = None
    problem: str | None = None

    @property
    def relations(self) -> Relations:
        assert self.found is not None, "a photo without a problem"
        return self.found.relations if isinstance(self.found, Answers) else self.found


def find_photos(words: Sequence[str]) -> list[Path]:
    """Files as they are named, the pictures of folders and of what is in them, and patterns; each once, in order."""
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix.lower() in PICTURES and each.is_file())
            if not inside:
                raise PolyadicError(f"{word}: no picture in this folder ({', '.join(sorted(PICTURES))})")
            found |= dict.fromkeys(inside)
        elif glob.has_magic(word) and not path.exists():
            fitting = sorted(Path(each) for each in glob.glob(str(path), recursive=True) if Path(each).is_file())
            if not fitting:
                raise PolyadicError(f"{word}: no file fits this pattern")
            found |= dict.fromkeys(fitting)
        else:
            found[path] = None
    return list(found)


def match_detections(photos: Sequence[Path], given: Mapping[str, Detections]) -> dict[Path, Detections]:
    """Each photo with its detections: by its path, else by its name, else by its name without suffix.

    One photo and the detections of one image belong together, whatever their names.
    """
    if len(photos) == len(given) == 1:
        return {photos[0]: next(iter(given.values()))}
    keys: tuple[Callable[[Path], str], ...] = (str, lambda path: path.name, lambda path: path.stem)
    tables: list[dict[str, Detections]] = []
    for key in keys:
        names = Counter(key(Path(name)) for name in given)
        tables.append({key(Path(name)): each for name, each in given.items() if names[key(Path(name))] == 1})
    found = {}
    for path in photos:
        each = next((table[key(path)] for table, key in zip(tables, keys, strict=True) if key(path) in table), None)
        if each is not None:
            found[path] = each
    return found


def predict_photos(
    model: RelationModel,
    photos: Sequence[Path],
    question: Question,
    detections: Mapping[Path, Detections] | None = None,
    batch: int = 8,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
) -> Iterator[Result]:
    """In order; without `detections` the model's own detector looks. The next batch is read meanwhile."""
    watcher, stop = watcher or Silent(), stop or Stop()
    batches = [list(photos[at : at + batch]) for at in range(0, len(photos), batch)]
    watcher.begin("predicting", len(photos))
    done = 0
    with ThreadPoolExecutor(1) as reader:
        ahead: Future[list[Photo | str]] | None = None
        for number, paths in enumerate(batches):
            stop.check()
            opened = _open_all(paths) if ahead is None else ahead.result()
            ahead = reader.submit(_open_all, batches[number + 1]) if number + 1 < len(batches) else None
            for result in _predict(model, paths, opened, question, detections):
                yield result
                done += 1
                watcher.move(done)
    watcher.end()


def _open_all(paths: Sequence[Path]) -> list[Photo | str]:
    return [_opened(path) for path in paths]


def _opened(path: Path) -> Photo | str:
    try:
        return open_photo(path)
    except PolyadicError as error:
        return str(error)


def _predict(
    model: RelationModel,
    paths: Sequence[Path],
    opened: Sequence[Photo | str],
    question: Question,
    detections: Mapping[Path, Detections] | None,
) -> Iterator[Result]:
    """The readable ones together; if that fails for one of them, each alone."""
    problems = {path: each for path, each in zip(paths, opened, strict=True) if isinstance(each, str)}
    if detections is not None:
        for path in paths:
            if path not in detections:
                problems.setdefault(path, f"{path}: there are no detections of it")
    good = [(path, each) for path, each in zip(paths, opened, strict=True) if path not in problems]
    how: dict[str, Any] = {"k": question.k, "top": question.top}
    found: dict[Path, Relations | Answers] = {}

    def relate(some: list[tuple[Path, Photo | str]]) -> None:
        boxes = None if detections is None else [detections[path] for path, _ in some]
        try:
            for (path, _), each in zip(some, model.predict_many([x for _, x in some], boxes, **how), strict=True):
                found[path] = question(each)
        except PolyadicError as error:
            if len(some) == 1:
                problems[some[0][0]] = str(error)
            for one in some if len(some) > 1 else ():
                relate([one])

    relate(good)
    for path, each in zip(paths, opened, strict=True):
        if path in problems:
            yield Result(str(path), problem=problems[path])
        else:
            assert isinstance(each, Photo), "else there is a problem"
            yield Result(str(path), each, found[path])
