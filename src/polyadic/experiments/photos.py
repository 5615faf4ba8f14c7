"""Ranking of many photos: found, read ahead, predicted in batches; an unreadable one is told and passed over."""

from __future__ import annotations

import glob
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from polyadic import progress
from polyadic.model.relation_model import RelationModel
from polyadic.ranking.relations import Answers, Ranking
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo, path_ends
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
PAIRS = 50_000  # of boxes, in photos that are predicted at once; one photo may have more


@dataclass(frozen=True)
class Question:
    """What is asked of each photo: its best relations, or what fits some names."""

    k: int | None = 1
    top: int = 20
    least: float = 0.0  # the least score, f_spo
    given: tuple[tuple[str, str], ...] = ()  # ("subject", "person"), ...

    def __call__(self, relations: Ranking) -> Ranking | Answers:
        if not self.given:
            return relations.above(self.least)
        answers = relations.query(**dict(self.given), top=self.top)  # type: ignore[arg-type]
        kept = answers.relations.log_score.exp() >= self.least
        return Answers(answers.given, answers.relations[kept], answers.probability[kept])


@dataclass(frozen=True, eq=False)
class Item:
    """One photo that is to be done, or boxes alone."""

    name: str
    path: Path | None = None  # None: no picture is opened
    detections: Detections | None = None  # None: the model's detector looks
    problem: str | None = None  # why it cannot be done, where that is known before


@dataclass(frozen=True, eq=False)
class Result:
    """One photo: what was found, or why nothing could be."""

    name: str
    photo: Photo | None = None
    found: Ranking | Answers | None = None
    problem: str | None = None

    @property
    def relations(self) -> Ranking:
        assert self.found is not None, "a photo without a problem"
        return self.found.relations if isinstance(self.found, Answers) else self.found


def find_photos(words: Sequence[str]) -> list[Path]:
    """Files as they are named, the pictures of folders and of what is in them, and patterns; each once, in order.

    In folders, what is hidden is left out; a link that leads nowhere is not, so that it is told.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if _is_picture(each, path))
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


def _is_picture(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    there = path.is_file() or (path.is_symlink() and not path.exists())
    return path.suffix.lower() in PICTURES and there and not hidden


def match_detections(photos: Sequence[Path], given: Mapping[str, Detections]) -> list[Item]:
    """Each photo with its detections: of the image whose name is the longest end of the photo's path.

    Where no name is, those without suffix and leading zeros are compared: COCO's results call 000000000139.jpg 139.
    Detections that fit several photos are given to none of them. One photo and the detections of one image belong
    together, whatever their names.
    """
    if len(photos) == len(given) == 1:
        ((path,), (name,)) = photos, given
        if Path(name).stem != path.stem:
            warnings.warn(f"the boxes of {name!r} are taken for {path}, the only photo", PolyadicWarning, stacklevel=2)
        return [Item(str(path), path, given[name])]
    bare: dict[str, list[str]] = {}
    for name in given:
        bare.setdefault(_bare(name), []).append(name)
    fitting = {path: _fitting(path, given, bare) for path in photos}
    times = Counter(names[0] for names in fitting.values() if len(names) == 1)
    items = []
    for path, names in fitting.items():
        problem = None
        if not names:
            problem = f"{path}: there are no detections of it"
        elif len(names) > 1:
            problem = (
                f"{path}: detections of {len(names)} images fit it, {names[0]!r} and {names[1]!r}: name it by path"
            )
        elif times[names[0]] > 1:
            problem = f"{path}: the detections of {names[0]!r} fit {times[names[0]]} photos: name them by path"
        items.append(Item(str(path), path, None if problem else given[names[0]], problem))
    if photos and all(item.problem for item in items):
        one = next(iter(given), None)
        raise PolyadicError(
            f"none of the {len(photos):,} photos (the first is {photos[0]}) has detections of its own among those of "
            f"{len(given):,} images" + ("" if one is None else f" (the first is {one!r})")
        )
    return items


def _fitting(path: Path, given: Mapping[str, Detections], bare: Mapping[str, list[str]]) -> list[str]:
    end = next((end for end in path_ends(path) if end in given), None)
    return [end] if end is not None else bare.get(_bare(str(path)), [])


def _bare(name: str) -> str:
    return Path(name).stem.lstrip("0")


def predict_photos(
    model: RelationModel,
    items: Sequence[Item],
    question: Question,
    batch: int = 8,
    done: Collection[str] = (),
) -> Iterator[Result]:
    """In order; the next batch is read meanwhile.

    What is `done` by name is left out, but shapes no batches: how photos are put together moves the last digits of
    their scores, and a run that was stopped and gone on with gives those of one that was not.
    """
    batches = [each for each in _batches(items, batch) if any(item.name not in done for item in each)]
    number, total = 0, sum(item.name not in done for item in items)
    with ThreadPoolExecutor(1) as reader, progress.task("predicting", total) as move:
        ahead: Future[list[Photo | str | None]] | None = None
        for at, some in enumerate(batches):
            progress.check()
            opened = _open_all(some) if ahead is None else ahead.result()
            ahead = reader.submit(_open_all, batches[at + 1]) if at + 1 < len(batches) else None
            for result in _predict(model, some, opened, question):
                if result.name not in done:
                    yield result
                    number += 1
                    move(number)


def _batches(items: Sequence[Item], most: int) -> Iterator[list[Item]]:
    """In order; crowded photos, whose factors are kept to be asked, are fewer at once."""
    some: list[Item] = []
    pairs = 0
    for item in items:
        own = 0 if item.detections is None else len(item.detections) * (len(item.detections) - 1)
        if some and (len(some) == most or pairs + own > PAIRS):
            yield some
            some, pairs = [], 0
        some.append(item)
        pairs += own
    if some:
        yield some


def _open_all(items: Sequence[Item]) -> list[Photo | str | None]:
    """Photos, and words where one cannot be had; None where none is needed."""
    return [item.problem or (None if item.path is None else _opened(item.path)) for item in items]


def _opened(path: Path) -> Photo | str:
    try:
        return open_photo(path)
    except PolyadicError as error:
        return str(error)


def _predict(
    model: RelationModel, items: Sequence[Item], opened: Sequence[Photo | str | None], question: Question
) -> Iterator[Result]:
    """The readable ones together; if that fails for one of them, each alone."""
    results: dict[int, Result] = {}
    for at, each in enumerate(opened):
        if isinstance(each, str):
            results[at] = Result(items[at].name, problem=each)

    def relate(some: list[int]) -> None:
        photos = [opened[at] for at in some]
        boxes = [items[at].detections for at in some]
        given = [each for each in boxes if each is not None] or None
        try:
            found = [question(each) for each in model.predict_many(photos, given, k=question.k, top=question.top)]
        except (PolyadicError, MemoryError, torch.OutOfMemoryError) as error:
            reason = str(error) if isinstance(error, PolyadicError) else "there is not enough memory for it"
            if len(some) == 1:
                results[some[0]] = Result(items[some[0]].name, problem=_with_name(reason, items[some[0]].name))
            for at in some if len(some) > 1 else ():
                relate([at])
            return
        for at, photo, each in zip(some, photos, found, strict=True):
            assert not isinstance(photo, str), "else there is a problem"
            results[at] = Result(items[at].name, photo, each)

    readable = [at for at in range(len(items)) if at not in results]
    if readable:
        relate(readable)
    for at in range(len(items)):
        yield results.pop(at)


def _with_name(reason: str, name: str) -> str:
    return reason if name in reason else f"{name}: {reason}"
