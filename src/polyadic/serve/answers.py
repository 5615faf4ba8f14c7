"""Answers for the page: the values of the Python API (`RelationModel.score`, `answer`, `query`) as JSON."""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from polyadic.cp import VARIABLES, CPTensor
from polyadic.detectors.candidates import distinct
from polyadic.experiments.table1 import with_config
from polyadic.model.answers import AnswerOptions, answer, name_boxes
from polyadic.model.relation_model import FindsBoxes, RelationModel
from polyadic.model.scoring import ScoredBlock, ScoredPairs
from polyadic.serve.guard import RefusedError
from polyadic.serve.messages import (
    AskRequest,
    DetectRequest,
    FixedLabel,
    PageBox,
    PageOptions,
    RelationsRequest,
)
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

DETECTED = 30  # boxes of a photo, the most confident ones
NAMES = 3  # most probable names of a box, of a component
TRIPLETS = 6  # of a pair
PHOTOS = 4  # kept in memory, 50 MB each at most
POOL = 1000  # triplets whose probability before fixing a label is known


@dataclass(frozen=True)
class Shelf:
    """The photos of the last requests, by the digest of their content."""

    photos: OrderedDict[str, Photo] = field(default_factory=OrderedDict)

    def put(self, photo: Photo) -> str:
        """Keep a photo, drop the oldest; return its id."""
        pixels = photo.image.tobytes()
        key = sha256(repr((photo.image.size, photo.name)).encode() + pixels).hexdigest()[:32]
        self.photos[key] = photo
        self.photos.move_to_end(key)
        while len(self.photos) > PHOTOS:
            self.photos.popitem(last=False)
        return key

    def get(self, key: str) -> Photo:
        """Return a photo; one that was dropped must be sent again."""
        if key not in self.photos:
            raise RefusedError(410, "this photo is no longer in memory: send it again")
        self.photos.move_to_end(key)
        return self.photos[key]

    def jpeg(self, key: str) -> bytes:
        """Encode a photo for the browser, upright and whatever the format of its file."""
        buffer = io.BytesIO()
        self.get(key).image.save(buffer, "JPEG", quality=88)
        return buffer.getvalue()


@dataclass(frozen=True)
class Answerer:
    """A model with its detector, and the photos that it was shown."""

    model: RelationModel
    detector: FindsBoxes | None
    shelf: Shelf = field(default_factory=Shelf)

    def warm_up(self) -> None:
        """Compile the kernels before the first request needs them."""
        scene = examples()[0]
        boxes = [PageBox(box=tuple(box["box"]), label=self.model.vocabulary.objects[0]) for box in scene["boxes"]]
        if self.model.backbone is None:
            size, options = tuple(scene["size"]), PageOptions(prior=0.1)
            self.relations(RelationsRequest(size=size, boxes=boxes, options=options))
            self.ask(AskRequest(size=size, boxes=boxes, options=options, pair=(0, 1)))

    def detect(self, request: DetectRequest) -> dict[str, Any]:
        """Find the boxes of a photo, and keep it for later requests; or open an example with its own boxes."""
        if request.example is None and request.photo is not None:
            return self.detect_photo(open_photo(request.photo, request.name))
        example = next((scene for scene in examples() if scene["name"] == request.example), None)
        if example is None:
            raise PolyadicError(f"detect: give a photo, or an example, not {request.example!r}")
        record = {"image": example["name"], "size": example["size"], "boxes": example["boxes"], "photo": None}
        if "photo" in example:
            record["image"] = example["photo"]
            record["photo"] = self.shelf.put(open_photo(read_static(example["photo"]), example["photo"]))
        return record

    def detect_photo(self, photo: Photo) -> dict[str, Any]:
        found = None
        if self.detector is not None:
            found = distinct(self.detector(photo))
            found = found.on_photo(photo).inside(photo.size)
            found = found.take(np.argsort(-found.scores, kind="stable")[:DETECTED])
        return {
            "photo": self.shelf.put(photo),
            "image": photo.name,
            "size": list(photo.size),
            "boxes": [] if found is None else _box_records(found, self.model.vocabulary),
        }

    def score(self, request: RelationsRequest) -> ScoredPairs:
        """Score all pairs under the request's options."""
        options = request.options
        changes = {"ranking.nms": 1.0} | ({} if options.prior is None else {"ranking.prior": options.prior})
        model = with_config(self.model, changes)
        photo = None if request.photo is None or self.model.backbone is None else self.shelf.get(request.photo)
        if photo is None and self.model.backbone is not None:
            raise RefusedError(422, "this model sees pixels: open a photo first")
        scored = model.score(photo, self._detections(request))
        if options.rank is None or not len(scored):
            return scored
        rank = options.rank
        blocks = tuple(replace(block, cp=block.cp.heaviest(rank)) for block in scored.blocks())
        return replace(scored, kept=blocks)

    def _detections(self, request: RelationsRequest) -> Detections:
        objects = self.model.vocabulary.objects
        labels = [objects.index(box.label) if box.label in objects else UNKNOWN for box in request.boxes]
        corners = clipped([box.box for box in request.boxes], request.size)
        scores = np.array([box.score for box in request.boxes], np.float64)
        return Detections(request.image, corners, np.array(labels, np.int64), scores, request.size)

    def relations(self, request: RelationsRequest) -> dict[str, Any]:
        """Answer who does what to whom, with the most probable names of each box."""
        scored = self.score(request)
        relations = answer(scored, answer_options(request.options))
        record = relations.to_dict() | {"image": request.image}
        for box, names in zip(record["boxes"], self._names(scored), strict=True):
            box["names"] = names
        return record

    def _names(self, scored: ScoredPairs) -> list[list[dict[str, Any]]]:
        if not len(scored):
            return [[] for _ in range(len(scored.detections))]
        return [self._best(row, "object") for row in scored.label_probability()]

    def _best(self, probability: Float[np.ndarray, " X"], variable: str, most: int = NAMES) -> list[dict[str, Any]]:
        names = self.model.vocabulary.predicates if variable == "predicate" else self.model.vocabulary.objects
        best = np.argsort(-probability, kind="stable")[:most]
        return [{"name": names[at], "probability": float(probability[at])} for at in best.tolist()]

    def ask(self, request: AskRequest) -> dict[str, Any]:
        """Answer one question; see `AskRequest`."""
        if request.pair is None and request.given is None and request.fix is None:
            raise PolyadicError("ask: give a pair of boxes, names, or a label to fix")
        scored = self.score(request)
        if len(request.boxes) < 2:
            raise PolyadicError("ask: there are fewer than two boxes")
        if request.fix is not None:
            return self._ask_fixed(scored, request.fix, request.options)
        if request.given is not None:
            given = {name: word for name in VARIABLES if (word := getattr(request.given, name)) is not None}
            return scored.query(**given, pair=request.pair, top=request.options.top).to_dict()
        assert request.pair is not None, "checked above"
        return self._ask_pair(scored, request.pair)

    def _ask_pair(self, scored: ScoredPairs, pair: tuple[int, int]) -> dict[str, Any]:
        """Return P(predicate | both names and boxes), the pair's best triplets, and the components of ψ_c."""
        objects = self.model.vocabulary.objects
        subject, object = (objects[label] for label in _ends(scored, pair))
        predicates = scored.query(subject=subject, object=object, pair=pair)
        row = (scored.pairs == torch.tensor(pair)).all(-1).nonzero()[0]
        triplets = scored.select(row).rank(None, TRIPLETS, probability=True)
        return {
            "pair": list(pair),
            "subject": subject,
            "object": object,
            "predicates": [{"name": relation.names[1], "probability": relation.probability} for relation in predicates],
            "triplets": [{"names": list(x.names), "probability": x.probability} for x in triplets],
            "components": self._components(scored.take(row).cp[0]),
            "rank": self.model.config.head.rank,
        }

    def _components(self, cp: CPTensor) -> list[dict[str, Any]]:
        """List the components of one pair's ψ_c, the heaviest first: P(r) and the best names of each factor."""
        mixture = cp.mixture()
        weights = mixture.log_weight.exp()
        return [
            {"weight": float(weights[at])}
            | {name: self._best(getattr(mixture, name)[at].exp().numpy(), name) for name in VARIABLES}
            for at in weights.argsort(descending=True).tolist()
        ]

    def _ask_fixed(self, scored: ScoredPairs, fix: FixedLabel, options: PageOptions) -> dict[str, Any]:
        """Rank with all labels free, before and after one of them is certain: P(the rest | that label)."""
        label = self.model.vocabulary.index("object", fix.label)
        if fix.box >= len(scored.detections):
            raise PolyadicError(f"ask: there is no box {fix.box}, only {len(scored.detections)} boxes from 0")
        after = replace(scored, kept=tuple(_fixed(block, fix.box, label) for block in scored.blocks()))
        asked = options.k, options.top
        known = {
            (relation.pair, relation.triplet): relation.probability
            for relation in scored.rank(None, POOL, probability=True)
        }
        relations = after.rank(*asked, probability=True)
        record = relations.to_dict()
        for relation, values in zip(record["relations"], relations, strict=True):
            relation["before"] = known.get((values.pair, values.triplet))
        record["fixed"] = {"box": fix.box, "label": fix.label}
        names = zip(record["boxes"], self._names(scored), self._names(after), strict=True)
        for box, old, new in names:
            box |= {"before": old, "names": new}
        return record


def read_static(name: str) -> bytes:
    """Read a file of the page."""
    return files("polyadic.serve").joinpath("static", name).read_bytes()


def examples() -> list[dict[str, Any]]:
    """Read the example scenes: photos with boxes drawn by hand, and boxes alone."""
    scenes: list[dict[str, Any]] = json.loads(read_static("examples.json"))
    return scenes


def answer_options(options: PageOptions) -> AnswerOptions:
    """Select what `answer` takes."""
    return AnswerOptions(options.k, options.top, options.order, options.labels, options.mirror, options.least)


def clipped(boxes: Sequence[tuple[float, ...]], size: tuple[float, float]) -> Float[np.ndarray, "N 4"]:
    """Clip boxes to the photo, each at least one pixel wide and high: the page decides which boxes there are."""
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)
    width, height = size
    low = np.minimum(corners[:, :2], corners[:, 2:]).clip(0, [max(width - 1, 0), max(height - 1, 0)])
    high = np.maximum(corners[:, :2], corners[:, 2:])
    high = np.maximum(high, low + 1).clip(None, [width, height])
    return np.concatenate([low, high], 1)


def _box_records(boxes: Detections, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    names = [None if label == UNKNOWN else vocabulary.objects[label] for label in boxes.labels.tolist()]
    rows = zip(boxes.boxes.tolist(), names, boxes.scores.tolist(), strict=True)
    return [{"box": [round(x, 1) for x in box], "label": name, "score": round(score, 4)} for box, name, score in rows]


def _ends(scored: ScoredPairs, pair: tuple[int, int]) -> list[int]:
    named = name_boxes(scored, "keep")
    if pair[0] == pair[1] or max(pair) >= len(named):
        raise PolyadicError(f"ask: pair must be two different boxes of the {len(named)}, counted from 0, got {pair}")
    return [int(named[at]) for at in pair]


def _fixed(block: ScoredBlock, box: int, label: int) -> ScoredBlock:
    """Condition the pairs of a box on its label, in either role."""
    cp = block.cp
    others = torch.arange(cp.sizes[0], device=cp.device) != label
    subject, object = (
        x.masked_fill((block.pairs[:, column] == box).to(cp.device)[:, None, None] & others, -torch.inf)
        for x, column in ((cp.subject, 0), (cp.object, 1))
    )
    return replace(block, cp=CPTensor(subject, cp.predicate, object))
