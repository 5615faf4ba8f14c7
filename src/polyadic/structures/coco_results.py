"""COCO's results: one record per box, whose category and image are told by COCO's lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.structures.detections import ABOVE_ONE, Detections, Size, apply, check_frame
from polyadic.structures.labels import Choice, LabelMap, Own, read_file, warn_of_dropped
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


def from_coco_results(
    records: Any, categories: Any, vocabulary: Vocabulary, images: Any, mapping: Own, unknown: Choice
) -> dict[str, Detections]:
    dropped: Counter[str] = Counter()
    found = {
        each.image: each for each in coco_images(records, categories, vocabulary, images, mapping, unknown, dropped)
    }
    warn_of_dropped("COCO results", dropped, unknown, 3)
    return found


def coco_images(
    records: Any,
    categories: Any,
    vocabulary: Vocabulary,
    images: Any,
    mapping: Own,
    unknown: Choice,
    dropped: Counter[str],
) -> Iterator[Detections]:
    """The images of COCO results in the order of the list of images, else of their records; counts what it drops."""
    records, categories, images = (_content(each) for each in (records, categories, images))
    if isinstance(records, Mapping):  # a whole COCO file has all three
        categories = records if categories is None else categories
        images = records if images is None else images
        records = records.get("annotations")
    if not isinstance(records, list | tuple):
        raise PolyadicError(f"COCO results: expected a list of records, got {type(records).__name__}")
    label_map = LabelMap.match(_categories(categories), vocabulary, mapping)
    frames = _frames(categories if images is None else images)
    rows: dict[Any, list[int]] = {key: [] for key in frames or ()}
    for at, record in enumerate(records):
        if not isinstance(record, Mapping) or type(record.get("image_id")) not in (int, str):
            raise PolyadicError(f"COCO results[{at}]: no image_id, a whole number or a name, in {record!r:.60}")
        if frames is not None and record["image_id"] not in frames:
            raise PolyadicError(f"COCO results[{at}]: image_id {record['image_id']!r} is not in the list of images")
        rows.setdefault(record["image_id"], []).append(at)
    for key, each in rows.items():
        name, size = (str(key), None) if frames is None else frames[key]
        boxes = np.array([_corners(records[at], at) for at in each]).reshape(-1, 4)
        scores = np.array([_score(records[at], at) for at in each])
        mapped = apply(label_map, [_category(records[at], at) for at in each], unknown, f"COCO results, image {name}")
        dropped.update(mapped.unknown)
        yield Detections(name, boxes[mapped.rows], mapped.labels, scores[mapped.rows], size)


def _corners(record: Mapping[str, Any], at: int) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = map(float, record["bbox"])
    except (KeyError, TypeError, ValueError):
        x, y, width, height = 0.0, 0.0, -1.0, -1.0
    if not (width >= 0 and height >= 0):
        got = record.get("bbox")
        raise PolyadicError(f"COCO results[{at}]: bbox must be [x, y, width, height] in pixels, got {got!r:.60}")
    return x, y, x + width, y + height


def _score(record: Mapping[str, Any], at: int) -> float:
    score = record.get("score", 1.0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1 + ABOVE_ONE:
        raise PolyadicError(f"COCO results[{at}]: score must lie in [0, 1], got {score!r:.40}")
    return min(float(score), 1.0)


def _category(record: Mapping[str, Any], at: int) -> int:
    number = record.get("category_id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise PolyadicError(f"COCO results[{at}]: category_id must be a whole number, got {number!r:.40}")
    return number


def _content(source: Any) -> Any:
    return read_file(source, "COCO") if isinstance(source, str | Path) else source


def _categories(source: Any) -> Mapping[int, str]:
    """Names by id, of a COCO file's content, its list of categories, or such a mapping itself."""
    listed = source.get("categories", source) if isinstance(source, Mapping) else source
    try:
        if isinstance(listed, Mapping):
            return {int(key): str(name) for key, name in listed.items()}
        return {int(each["id"]): str(each["name"]) for each in listed}
    except (KeyError, TypeError, ValueError) as error:
        what = '[{"id": 1, "name": "person"}, ...], or a COCO file that has them'
        raise PolyadicError(f"COCO results: expected categories {what}, got {listed!r:.60}") from error


def _frames(source: Any) -> dict[Any, tuple[str, Size]] | None:
    """File name and size by id, if there is a list of images."""
    listed = source.get("images") if isinstance(source, Mapping) else source
    if not isinstance(listed, list | tuple) or (listed and "file_name" not in listed[0]):
        return None
    frames: dict[Any, tuple[str, Size]] = {}
    seen = set()
    for at, each in enumerate(listed):
        try:
            key, name, width, height = each["id"], str(each["file_name"]), each.get("width"), each.get("height")
            size = None if width is None or height is None else check_frame((width, height), f"COCO images[{at}]")
        except (KeyError, TypeError, AttributeError) as error:
            raise PolyadicError(
                f"COCO images[{at}]: expected id, file_name, width, height, got {each!r:.60}"
            ) from error
        if key in frames or name in seen:
            raise PolyadicError(f"COCO images[{at}]: id {key!r} or file_name {name!r} occurs twice")
        seen.add(name)
        frames[key] = name, size
    return frames
