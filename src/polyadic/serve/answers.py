"""Answers for the page: the values of the Python API (`RelationModel.score`, `answer`, `query`) as JSON.

A photo that nobody has changed is answered as by `polyadic predict`: all boxes of the detector are read, also those
too weak to show. From the first change on, the boxes on the page are all there are.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from jaxtyping import Float

from polyadic.boxes import suppress
from polyadic.cp import VARIABLES, CPTensor
from polyadic.detectors import load_detector
from polyadic.detectors.candidates import distinct
from polyadic.experiments.table1 import with_config
from polyadic.model.answers import AnswerOptions, answer, name_boxes
from polyadic.model.relation_model import FindsBoxes, RelationModel
from polyadic.model.scoring import ScoredBlock, ScoredPairs
from polyadic.pretrained import DETECTOR, model_for, synonyms
from polyadic.serve.guard import RefusedError
from polyadic.serve.messages import (
    MOST_BOXES,
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

NAMES = 3  # most probable names of a box, of a component
TRIPLETS = 6  # of a pair
PHOTOS = 4  # kept in memory, 50 MB each at most
POOL = 1000  # triplets whose probability before fixing a label is known


@dataclass(frozen=True)
class Opened:
    """A photo, with the boxes that the detector found in it and those of them that the page shows."""

    photo: Photo
    found: Detections | None = None  # None: nobody looked
    rows: list[int] = field(default_factory=list)  # of `found`
    shown: list[PageBox] = field(default_factory=list)  # likewise, as the page has them


@dataclass(frozen=True)
class Shelf:
    """The photos of the last requests, by the digest of their content."""

    photos: OrderedDict[str, Opened] = field(default_factory=OrderedDict)

    def put(self, opened: Opened) -> str:
        """Keep a photo, drop the oldest; return its id."""
        photo = opened.photo
        pixels = photo.image.tobytes()
        key = sha256(repr((photo.image.size, photo.name)).encode() + pixels).hexdigest()[:32]
        if opened.found is not None or key not in self.photos:
            self.photos[key] = opened
        self.photos.move_to_end(key)
        while len(self.photos) > PHOTOS:
            self.photos.popitem(last=False)
        return key

    def get(self, key: str) -> Opened:
        """Return a photo; one that was dropped must be sent again."""
        if key not in self.photos:
            raise RefusedError(410, "this photo is no longer in memory: send it again")
        self.photos.move_to_end(key)
        return self.photos[key]

    def jpeg(self, key: str) -> bytes:
        """Encode a photo for the browser, upright and whatever the format of its file."""
        buffer = io.BytesIO()
        self.get(key).photo.image.save(buffer, "JPEG", quality=88)
        return buffer.getvalue()


@dataclass(frozen=True)
class Scored:
    """The pairs of a request: which model scored them, and the place of the page's boxes among the scored ones."""

    model: str
    pairs: ScoredPairs
    rows: Sequence[int]

    def on_page(self, record: dict[str, Any]) -> dict[str, Any]:
        """Number the boxes of an answer as the page does; relations of boxes that it does not show are left out."""
        place = {row: at for at, row in enumerate(self.rows)}
        record["boxes"] = [record["boxes"][row] for row in self.rows]
        kept = []
        for relation in record["relations"]:
            ends = relation["subject"], relation["object"]
            if all(end["box"] in place for end in ends):
                kept.append(relation)
                for end in ends:
                    end["box"] = place[end["box"]]
        return {**record, "relations": kept, "model": self.model}


@dataclass(frozen=True)
class Answerer:
    """A model with its detector, and the photos that it was shown."""

    model: RelationModel
    detector: FindsBoxes | None
    name: str = "model"
    for_photos: tuple[str, RelationModel] | None = None  # the model for the detector's boxes, if it is another one
    shelf: Shelf = field(default_factory=Shelf)

    @classmethod
    def open(cls, folder: Path | None = None, detector: str | None = None) -> Answerer:
        """Load a run or saved model, else the pretrained ones: as in `predict`, one is for the detector's boxes.

        `detector` is as for `predict`; default: the model's own, or the pretrained one.
        """
        if folder is not None:
            model = RelationModel.load(folder).eval()  # once: two threads use it
            own = model.detector if detector is None else _load(detector, model)
            return cls(model, own, folder.resolve().name)
        word = detector or DETECTOR
        (name, model), *others = [
            (name, RelationModel.pretrained(name).eval()) for name in dict.fromkeys((model_for([]), model_for([word])))
        ]
        return cls(model, _load(word, model), name, others[0] if others else None)

    @property
    def _for_photos(self) -> tuple[str, RelationModel]:
        return self.for_photos or (self.name, self.model)

    def warm_up(self) -> None:
        """Compile the kernels before the first request needs them."""
        scene = examples()[0]
        boxes = [PageBox(box=tuple(box["box"]), label=self.model.vocabulary.objects[0]) for box in scene["boxes"]]
        if not self.model.needs_photo:
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
            record["photo"] = self.shelf.put(Opened(open_photo(read_static(example["photo"]), example["photo"])))
        return record

    def detect_photo(self, photo: Photo) -> dict[str, Any]:
        opened = Opened(photo) if self.detector is None else self._look(photo, self.detector(photo))
        return {
            "photo": self.shelf.put(opened),
            "image": photo.name,
            "size": list(photo.size),
            "boxes": msgspec.to_builtins(opened.shown),
        }

    def _look(self, photo: Photo, found: Detections) -> Opened:
        """Choose the boxes to show: the distinct ones, and those of the answers."""
        name, model = self._for_photos
        found = found.on_photo(photo).inside(photo.size)
        found = found.take(suppress(found.boxes, found.scores, model.config.ranking.nms))
        found = found.take(np.argsort(-found.scores, kind="stable")[:MOST_BOXES])
        shown = set(distinct(found).tolist())
        if len(found) > 1:
            scored = self._scored(name, photo, found, PageOptions())
            shown |= set(answer(scored.pairs, AnswerOptions()).pairs.ravel().tolist())
        rows = sorted(shown)
        return Opened(photo, found, rows, _page_boxes(found.take(np.array(rows, np.int64)), self.model.vocabulary))

    def score(self, request: RelationsRequest) -> Scored:
        """Score all pairs under the request's options; see the module for which boxes, and by which model."""
        opened = None if request.photo is None else self.shelf.get(request.photo)
        photo = None if opened is None else opened.photo
        if opened is None or opened.found is None:
            return self._scored(self.name, photo, self._detections(request), request.options)
        name = self._for_photos[0]
        if request.boxes == opened.shown:
            return replace(self._scored(name, photo, opened.found, request.options), rows=opened.rows)
        known, names = self._names_of(request, opened)
        boxes = replace(self._detections(request), distribution=names)
        return self._scored(name if known else self.name, photo, boxes, request.options)

    def _names_of(self, request: RelationsRequest, opened: Opened) -> tuple[bool, Float[np.ndarray, "N C"]]:
        """Return P(class | box): the detector's of its boxes, wherever they were moved, else the name given by hand.

        Also whether any is the detector's.
        """
        objects, found = self.model.vocabulary.objects, opened.found
        seen = {(box.label, box.score): row for box, row in zip(opened.shown, opened.rows, strict=True)}
        names = np.zeros((len(request.boxes), len(objects)), np.float32)  # zeros: unknown
        known = False
        for at, box in enumerate(request.boxes):
            row = seen.get((box.label, box.score)) if box.score < 1 else None
            known |= row is not None
            if row is not None and found is not None and found.distribution is not None:
                names[at] = found.distribution[row]
            elif box.label in objects:
                names[at, objects.index(box.label)] = box.score
        return known, names

    def _scored(self, name: str, photo: Photo | None, boxes: Detections, options: PageOptions) -> Scored:
        model = self._for_photos[1] if name == self._for_photos[0] else self.model
        if photo is None and model.needs_photo:
            raise RefusedError(422, "this model sees pixels: open a photo first")
        changes = {"ranking.nms": 1.0} | ({} if options.prior is None else {"ranking.prior": options.prior})
        scored = with_config(model, changes).score(photo if model.backbone is not None else None, boxes)
        rank = options.rank
        if rank is not None and rank < model.config.head.rank and len(scored):
            blocks = tuple(replace(block, cp=block.cp.heaviest(rank)) for block in scored.blocks())
            scored = replace(scored, kept=blocks)
        return Scored(name, scored, range(len(boxes)))

    def _detections(self, request: RelationsRequest) -> Detections:
        objects = self.model.vocabulary.objects
        labels = [objects.index(box.label) if box.label in objects else UNKNOWN for box in request.boxes]
        corners = clipped([box.box for box in request.boxes], request.size)
        scores = np.array([box.score for box in request.boxes], np.float64)
        return Detections(request.image, corners, np.array(labels, np.int64), scores, request.size)

    def relations(self, request: RelationsRequest) -> dict[str, Any]:
        """Answer who does what to whom, with the most probable names of each box."""
        scored = self.score(request)
        record = answer(scored.pairs, answer_options(request.options)).to_dict() | {"image": request.image}
        for box, names in zip(record["boxes"], self._names(scored.pairs), strict=True):
            box["names"] = names
        return scored.on_page(record)

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
        pair = None if request.pair is None else _checked(request.pair, scored)
        if request.given is not None:
            given = {name: word for name in VARIABLES if (word := getattr(request.given, name)) is not None}
            return scored.on_page(scored.pairs.query(**given, pair=pair, top=request.options.top).to_dict())
        assert pair is not None, "checked above"
        return {**self._ask_pair(scored.pairs, pair), "pair": request.pair, "model": scored.model}

    def _ask_pair(self, scored: ScoredPairs, pair: tuple[int, int]) -> dict[str, Any]:
        """Return P(predicate | both names and boxes), the pair's best triplets, and the components of ψ_c."""
        named = name_boxes(scored, "keep")
        subject, object = (self.model.vocabulary.objects[named[at]] for at in pair)
        predicates = scored.query(subject=subject, object=object, pair=pair)
        row = (scored.pairs == torch.tensor(pair)).all(-1).nonzero()[0]
        triplets = scored.select(row).rank(None, TRIPLETS, probability=True)
        return {
            "subject": subject,
            "object": object,
            "predicates": [{"name": relation.names[1], "probability": relation.probability} for relation in predicates],
            "triplets": [{"names": list(x.names), "probability": x.probability} for x in triplets],
            "components": self._components(scored.take(row).cp[0]),
            "rank": scored.model.config.head.rank,
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

    def _ask_fixed(self, scored: Scored, fix: FixedLabel, options: PageOptions) -> dict[str, Any]:
        """Rank with all labels free, before and after one of them is certain: P(the rest | that label)."""
        label = self.model.vocabulary.index("object", fix.label)
        if fix.box >= len(scored.rows):
            raise PolyadicError(f"ask: there is no box {fix.box}, only {len(scored.rows)} boxes from 0")
        box, before = scored.rows[fix.box], scored.pairs
        after = replace(before, kept=tuple(_fixed(block, box, label) for block in before.blocks()))
        known = {
            (relation.pair, relation.triplet): relation.probability
            for relation in before.rank(None, POOL, probability=True)
        }
        relations = after.rank(options.k, options.top, probability=True)
        record = relations.to_dict()
        for relation, values in zip(record["relations"], relations, strict=True):
            relation["before"] = known.get((values.pair, values.triplet))
        record["fixed"] = {"box": fix.box, "label": fix.label}
        for one, old, new in zip(record["boxes"], self._names(before), self._names(after), strict=True):
            one |= {"before": old, "names": new}
        return scored.on_page(record)


def _load(word: str, model: RelationModel) -> FindsBoxes:
    return load_detector(word, model.vocabulary, device=model.device, mapping=synonyms(model.vocabulary))


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


def _page_boxes(boxes: Detections, vocabulary: Vocabulary) -> list[PageBox]:
    names = [None if label == UNKNOWN else vocabulary.objects[label] for label in boxes.labels.tolist()]
    rows = zip(boxes.boxes.tolist(), names, boxes.scores.tolist(), strict=True)
    return [
        PageBox(box=tuple(round(x, 1) for x in box), label=name, score=round(score, 4)) for box, name, score in rows
    ]


def _checked(pair: tuple[int, int], scored: Scored) -> tuple[int, int]:
    """Return the pair among the scored boxes."""
    n = len(scored.rows)
    if pair[0] == pair[1] or max(pair) >= n:
        raise PolyadicError(f"ask: pair must be two different boxes of the {n}, counted from 0, got {pair}")
    return scored.rows[pair[0]], scored.rows[pair[1]]


def _fixed(block: ScoredBlock, box: int, label: int) -> ScoredBlock:
    """Condition the pairs of a box on its label, in either role."""
    cp = block.cp
    others = torch.arange(cp.sizes[0], device=cp.device) != label
    subject, object = (
        x.masked_fill((block.pairs[:, column] == box).to(cp.device)[:, None, None] & others, -torch.inf)
        for x, column in ((cp.subject, 0), (cp.object, 1))
    )
    return replace(block, cp=CPTensor(subject, cp.predicate, object))
