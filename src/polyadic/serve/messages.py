"""What a client sends, with all bounds: msgspec refuses the rest with the place of the mistake."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_BOXES = 100  # of a photo on the page
MOST_BYTES = 32 << 20  # of a photo's file
_LARGEST = 100_000.0  # px of a side

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Coordinate = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Side = Annotated[float, Meta(ge=1, le=_LARGEST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Index = Annotated[int, Meta(ge=0, lt=MOST_BOXES)]
Corners = tuple[Coordinate, Coordinate, Coordinate, Coordinate]


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object without unknown keys."""


class PageBox(Message, kw_only=True):
    """A box [x1, y1, x2, y2] in pixels of the photo, with its name and the detector's confidence."""

    box: Corners
    label: Name | None = None
    score: Share = 1.0


class PageOptions(Message, kw_only=True):
    """What is answered; `rank` keeps the heaviest components of each pair, `prior` is the exponent of ψ_u."""

    k: Annotated[int, Meta(ge=1, le=100)] | None = 1
    top: Annotated[int, Meta(ge=1, le=200)] = 10
    rank: Annotated[int, Meta(ge=1, le=1000)] | None = None
    prior: Annotated[float, Meta(ge=0, le=4)] | None = None
    least: Share = 0.01
    order: Literal["informative", "likely"] = "informative"
    labels: Literal["keep", "refine"] = "keep"
    mirror: Literal["drop", "keep"] = "drop"


class DetectRequest(Message, kw_only=True):
    """A photo's file in base64, or the name of an example."""

    name: Annotated[str, Meta(max_length=200)] = "photo"
    photo: Annotated[bytes, Meta(max_length=MOST_BYTES)] | None = None
    example: Name | None = None


class RelationsRequest(Message, kw_only=True):
    """Boxes of a photo. `photo` is the id that `/api/detect` returned; only a model that sees pixels needs it."""

    image: Annotated[str, Meta(max_length=200)] = "photo"
    size: tuple[Side, Side]
    boxes: Annotated[list[PageBox], Meta(max_length=MOST_BOXES)]
    photo: Annotated[str, Meta(max_length=64)] | None = None
    options: PageOptions = msgspec.field(default_factory=PageOptions)


class GivenNames(Message, kw_only=True):
    """One or two names of a triplet."""

    subject: Name | None = None
    predicate: Name | None = None
    object: Name | None = None


class FixedLabel(Message, kw_only=True):
    """A box whose label is certain."""

    box: Index
    label: Name


class AskRequest(RelationsRequest, kw_only=True):
    """One question: about a pair of boxes, about names, or what changes if a label is certain."""

    pair: tuple[Index, Index] | None = None
    given: GivenNames | None = None
    fix: FixedLabel | None = None


class PageRelation(Message, kw_only=True):
    """A relation as an annotator states it; the boxes by index."""

    subject: Index
    predicate: Name
    object: Index
    probability: Share | None = None


class ExportRequest(RelationsRequest, kw_only=True):
    """A photo's boxes and relations, in one of the formats."""

    format: Literal["coco", "json", "svg", "png"]
    relations: Annotated[list[PageRelation], Meta(max_length=1000)] = msgspec.field(default_factory=list)


class OpenRequest(Message, kw_only=True):
    """A photo of the folder or of the run, by number."""

    number: Annotated[int, Meta(ge=0, lt=10_000_000)]


class SaveRequest(RelationsRequest, kw_only=True):
    """The annotations of a photo of the folder; `done` when nothing is left to do."""

    number: Annotated[int, Meta(ge=0, lt=10_000_000)] = 0
    relations: Annotated[list[PageRelation], Meta(max_length=1000)] = msgspec.field(default_factory=list)
    done: bool = False
