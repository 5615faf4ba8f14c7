"""Annotations of the page as a `Scene`, as `Relations`, and in the formats of its export."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from polyadic.datasets.coco import content
from polyadic.draw.render import render_png, render_svg
from polyadic.serve.answers import Shelf, clipped
from polyadic.serve.messages import ExportRequest, PageRelation, RelationsRequest
from polyadic.structures.images import Photo
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

UNNAMED = "object"  # the class of a box that nobody named
LONGEST = 20  # times the shorter side, of a picture to draw
_WHITE = 640  # px of an empty canvas


def extended(vocabulary: Vocabulary, objects: Iterable[str], predicates: Iterable[str]) -> Vocabulary:
    """Add names that an annotator invented, in their order."""
    return Vocabulary(
        tuple(dict.fromkeys((*vocabulary.objects, *objects))),
        tuple(dict.fromkeys((*vocabulary.predicates, *predicates))),
    )


def vocabulary_of(known: Vocabulary, request: RelationsRequest, relations: Iterable[PageRelation]) -> Vocabulary:
    """Add the names of one photo."""
    return extended(known, (box.label or UNNAMED for box in request.boxes), (x.predicate for x in relations))


def scene_of(
    request: RelationsRequest, relations: Sequence[PageRelation], vocabulary: Vocabulary, stored: Photo | None = None
) -> Scene:
    """Convert boxes and relations of the page; all names are in the vocabulary.

    `stored` is the photo in whose rows and columns, as its file has them, a dataset's boxes are.
    """
    labels = [vocabulary.objects.index(box.label or UNNAMED) for box in request.boxes]
    rows = [(x.subject, vocabulary.predicates.index(x.predicate), x.object) for x in relations]
    own = next((row for row in rows if row[0] == row[2]), None)
    if own is not None:
        raise PolyadicError(f"a relation needs two different boxes, got box {own[0]} twice")
    boxes = clipped([box.box for box in request.boxes], request.size)
    size = request.size
    if stored is not None:
        boxes, size = stored.as_stored(boxes), stored.stored
    return Scene(
        request.image,
        Path(request.image),
        size,
        boxes,
        np.array(labels, np.int64),
        np.array(rows, np.int64).reshape(-1, 3),
    )


def export(request: ExportRequest, known: Vocabulary, shelf: Shelf) -> tuple[bytes, str]:
    """Write boxes and relations in a format; return the content and its media type."""
    vocabulary = vocabulary_of(known, request, request.relations)
    if request.format == "coco":
        photo = None if request.photo is None else shelf.get(request.photo).photo
        dataset = Dataset(
            "coco", "train", vocabulary, (scene_of(request, request.relations, vocabulary, photo),), Path()
        )
        return msgspec.json.encode(content(dataset)), "application/json"
    scene = scene_of(request, request.relations, vocabulary)
    stated = np.array([1.0 if x.probability is None else x.probability for x in request.relations], np.float64)
    relations = Relations(
        request.image,
        scene.boxes,
        scene.relations[:, ::2],
        scene.triplets,
        stated,
        labels=scene.labels,
        confidences=np.array([box.score for box in request.boxes], np.float64),
        size=request.size,
        probability=stated,
        named=scene.labels,
        vocabulary=vocabulary,
    )
    if request.format == "json":
        return relations.to_json(indent=1).encode(), "application/json"
    return _picture(request, relations, shelf)


def _picture(request: ExportRequest, relations: Relations, shelf: Shelf) -> tuple[bytes, str]:
    from PIL.Image import new

    width, height = request.size
    if max(width, height) > LONGEST * min(width, height):
        raise PolyadicError(f"a photo of {width:g} x {height:g} pixels is too narrow to draw")
    if request.photo is None:
        image = new("RGB", (_WHITE, max(1, round(_WHITE * height / width))), "white")
    else:
        image = shelf.get(request.photo).photo.image
    drawing = relations.drawing(image, arrows=len(relations))
    if request.format == "svg":
        return render_svg(drawing).encode(), "image/svg+xml"
    buffer = io.BytesIO()
    render_png(drawing).save(buffer, "PNG", optimize=True)
    return buffer.getvalue(), "image/png"
