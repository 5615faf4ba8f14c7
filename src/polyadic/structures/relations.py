"""Scored triplets over the boxes of one image: what ranking returns, evaluation scores, and files and pictures show."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.scenes import check_boxes, check_indices, check_lengths, equal, freeze, scale_boxes
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from networkx import MultiDiGraph
    from PIL.Image import Image

    from polyadic.draw.panels import Drawn
    from polyadic.draw.shapes import Drawing

Box = tuple[float, float, float, float]

# the terms of a score: their names in JSON and their columns
TERMS = {
    "detector": "log_boxes",
    "psi_c": "log_cp",
    "psi_u": "log_prior",
    "selected": "log_selected",
    "repeat": "log_repeat",
}
_COLUMNS = ("pairs", "triplets", "scores", *TERMS.values(), "probability")  # one row per relation


class Relation(NamedTuple):
    """One row of `Relations` in plain Python values."""

    pair: tuple[int, int]  # (subject box, object box)
    triplet: tuple[int, int, int]
    score: float  # f_spo, or another model's score
    boxes: tuple[Box, Box]  # of subject and object
    names: tuple[str, ...] = ()  # (subject, predicate, object), if known
    probability: float = nan  # that an annotator states this of these two boxes, if known
    box_names: tuple[str, ...] = ()  # ("person 2", "laptop") as in pictures, JSON and the terminal, if known


@dataclass(frozen=True, eq=False, repr=False)
class Relations:
    """Scored triplets of one image; `pairs` are (subject box, object box), indices into `boxes`.

    Rankings of our models are sorted, best first. Their `scores` are log f_spo, the sum of the terms `log_...`, which
    have their exponents applied. Predictions of other models have no terms, any order and scores of any scale: larger
    is better. `labels` and `confidences` of the boxes are the detector's, where known; `source` names it, where several
    looked.
    """

    image: str
    boxes: Float[np.ndarray, "N 4"]
    pairs: Int[np.ndarray, "M 2"]
    triplets: Int[np.ndarray, "M 3"]
    scores: Float[np.ndarray, " M"]
    _: KW_ONLY
    labels: Int[np.ndarray, " N"] | None = None
    confidences: Float[np.ndarray, " N"] | None = None
    source: Shaped[np.ndarray, " N"] | None = None
    size: tuple[float, float] | None = None  # the frame of the boxes; None: the annotated one
    log_cp: Float[np.ndarray, " M"] | None = field(default=None, compare=False)  # log ψ_c
    log_prior: Float[np.ndarray, " M"] | None = field(default=None, compare=False)  # a log ψ_u
    log_selected: Float[np.ndarray, " M"] | None = field(default=None, compare=False)  # b log P(X_sel)
    log_boxes: Float[np.ndarray, " M"] | None = field(default=None, compare=False)  # c log P(B_s, B_o | I)
    log_repeat: Float[np.ndarray, " M"] | None = field(
        default=None, compare=False
    )  # penalty for a triplet repeated on nearly the same boxes
    probability: Float[np.ndarray, " M"] | None = field(
        default=None, compare=False
    )  # that an annotator states this of these two boxes; for a query, P(the rest | the names asked for, the boxes)
    given: Mapping[str, str] | None = field(default=None, compare=False)  # the names asked for, of an answer to a query
    named: Int[np.ndarray, " N"] | None = field(default=None, compare=False)  # class of each box in all its relations
    note: str | None = field(default=None, compare=False)  # why there are no relations
    vocabulary: Vocabulary | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        where = f"Relations of {self.image}"
        freeze(self, where, boxes=(np.float64, 4), pairs=(np.int64, 2), triplets=(np.int64, 3), scores=(np.float64, 0))
        check_lengths(where, **{name: column for name, column in self._columns().items() if column is not None})
        if not np.isfinite(self.scores).all():
            at = int((~np.isfinite(self.scores)).argmax())
            raise PolyadicError(f"{where}: score {at} must be a finite number, got {self.scores[at]}")
        check_indices(self.pairs, len(self.boxes), f"{where}: pairs point to box")
        check_boxes(self.boxes, where)
        if (self.labels is None) != (self.confidences is None):
            raise PolyadicError(f"{where}: labels and confidences of the boxes come together or not at all")
        if self.labels is not None:
            freeze(self, where, labels=(np.int64, 0), confidences=(np.float64, 0))
            checked = Detections(self.image, self.boxes, self.labels, np.asarray(self.confidences), source=self.source)
            object.__setattr__(self, "source", checked.source)

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        first = [f"{' '.join(map(str, r.names or r.triplet))} {r.score:.3g}" for r in self[:3]]
        return f"Relations({self.image}, {len(self)}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    @overload
    def __getitem__(self, index: int) -> Relation: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> Relations: ...
    def __getitem__(self, index: int | slice | np.ndarray) -> Relation | Relations:
        """Return one `Relation` by number, or the `Relations` of a slice, an index array or a mask."""
        if isinstance(index, slice) or (isinstance(index, np.ndarray) and index.ndim > 0):
            rows: dict[str, Any] = {name: x if x is None else x[index] for name, x in self._columns().items()}
            return replace(self, **rows)
        at = operator.index(index)
        pair, triplet = tuple(self.pairs[at].tolist()), tuple(self.triplets[at].tolist())
        subject, object = (tuple(self.boxes[box].tolist()) for box in pair)
        names = () if self.vocabulary is None else self.vocabulary.decode(triplet)
        probability = nan if self.probability is None else float(self.probability[at])
        ends = () if self.vocabulary is None else tuple(self._numbered[box] for box in pair)
        return Relation(pair, triplet, float(self.f_spo[at]), (subject, object), names, probability, ends)

    def __iter__(self) -> Iterator[Relation]:
        return (self[at] for at in range(len(self)))

    @property
    def f_spo(self) -> Float[np.ndarray, " M"]:
        """The scores as shown: f_spo itself, or another model's scores as they are."""
        return self.scores if self.log_cp is None else np.exp(self.scores)

    @property
    def detections(self) -> Detections | None:
        """The boxes with the detector's labels and confidences, if known."""
        if self.labels is None or self.confidences is None:
            return None
        return Detections(self.image, self.boxes, self.labels, self.confidences, self.size, source=self.source)

    def names(self) -> list[tuple[str, str, str]]:
        """Return the triplets in words."""
        words = self._words()
        return [words.decode(triplet) for triplet in self.triplets.tolist()]

    def in_frame(self, size: tuple[float, float]) -> Relations:
        """Scale the boxes to a frame of this size, the annotated one."""
        if self.size is None or tuple(self.size) == tuple(size):
            return self
        return replace(self, boxes=scale_boxes(self.boxes, self.size, size), size=size)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values: the image, its boxes, and the relations, with the terms of their scores if known."""
        rows = zip(self.pairs.tolist(), self.names(), self.f_spo.tolist(), strict=True)
        relations: list[dict[str, Any]] = [
            {
                "subject": {"box": pair[0], "name": names[0]},
                "predicate": names[1],
                "object": {"box": pair[1], "name": names[2]},
                **({} if self.probability is None else {"probability": float(self.probability[at])}),
                "score": score,
            }
            for at, (pair, names, score) in enumerate(rows)
        ]
        if self.log_cp is not None:
            terms = {name: np.exp(getattr(self, column)).tolist() for name, column in TERMS.items()}
            for at, relation in enumerate(relations):
                relation["parts"] = {name: values[at] for name, values in terms.items()}
        boxes: list[dict[str, Any]] = [
            {"box": box, "name": name} for box, name in zip(self.boxes.tolist(), self._numbered, strict=True)
        ]
        if self.labels is not None and self.confidences is not None:
            for box, label, score in zip(boxes, self.labels.tolist(), self.confidences.tolist(), strict=True):
                box |= {"label": self._label(label), "score": score}
        if self.source is not None:
            for box, source in zip(boxes, self.source.tolist(), strict=True):
                box["source"] = source
        size = {} if self.size is None else {"size": list(self.size)}
        given = {} if self.given is None else {"given": dict(self.given)}
        note = {} if self.note is None else {"note": self.note}
        return {"image": self.image, **size, "boxes": boxes, "relations": relations, **given, **note}

    def to_json(self, indent: int | None = None) -> str:
        """Encode `to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    def to_networkx(self) -> MultiDiGraph:
        """Build the scene graph: a node for each box that takes part, an edge for each relation."""
        from networkx import MultiDiGraph

        record = self.to_dict()
        graph = MultiDiGraph(image=self.image, size=self.size)
        for relation in record["relations"]:
            ends = relation["subject"]["box"], relation["object"]["box"]
            for at in ends:
                box = record["boxes"][at]
                graph.add_node(
                    at,
                    name=box["name"],
                    box=tuple(box["box"]),
                    detected=box.get("label"),
                    detector_score=box.get("score"),
                )
            words = {"subject": relation["subject"]["name"], "object": relation["object"]["name"]}
            numbers = {key: relation[key] for key in ("predicate", "probability", "score", "parts") if key in relation}
            graph.add_edge(*ends, **numbers, **words)
        return graph

    def box_classes(self) -> list[str]:
        """Return one class per box: `named`, else the most probable one over its relations, else the detector's."""
        if self.named is not None:
            return [self._label(label) or "unknown" for label in self.named.tolist()]
        labels = [UNKNOWN] * len(self.boxes) if self.labels is None else self.labels.tolist()
        weights = np.exp(self.scores - self.scores.max(initial=0)) if self.probability is None else self.probability
        votes: list[Counter[int]] = [Counter() for _ in labels]
        for pair, triplet, weight in zip(self.pairs.tolist(), self.triplets.tolist(), weights.tolist(), strict=True):
            for box, label in zip(pair, triplet[::2], strict=True):
                votes[box][label] += weight
        best = [vote.most_common(1)[0][0] if vote else label for vote, label in zip(votes, labels, strict=True)]
        return [self._label(label) or "unknown" for label in best]

    def box_names(self) -> list[str]:
        """Name each box: its class, numbered from left to right where several boxes have the same."""
        return list(self._numbered)

    @cached_property
    def _numbered(self) -> list[str]:
        return number_names(self.boxes, self.box_classes())

    def drawing(
        self,
        image: Any,
        *,
        arrows: int = 5,
        width: int = 640,
        graph: bool = True,
        hits: Bool[np.ndarray, " M"] | None = None,
    ) -> Drawing:
        """Plan `draw`: shapes that can be rendered; `hits` mark relations that agree with the ground truth."""
        from polyadic.draw import plan_drawing
        from polyadic.structures.images import open_photo

        return plan_drawing(
            open_photo(image).image,
            self.boxes,
            self.box_classes(),
            self.drawn(hits),
            arrows=arrows,
            width=width,
            frame=self.size,
            graph=graph,
        )

    def drawn(self, hits: Bool[np.ndarray, " M"] | None = None) -> list[Drawn]:
        """List the relations for a picture: in their order if they are ours, else by score."""
        from polyadic.draw.panels import relations_to_draw

        order = np.arange(len(self)) if self.log_cp is not None else np.argsort(-self.scores, kind="stable")
        some = self[order]
        rows = relations_to_draw(
            self._words(), some.pairs, some.triplets, hits=None if hits is None else np.asarray(hits)[order]
        )
        return [replace(row, score=text) for row, text in zip(rows, some.percentages(), strict=True)]

    def draw(self, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True) -> Image:
        """Draw the photo (a path, a PIL image, an array or a tensor) with boxes, arrows, the list and the graph."""
        from polyadic.draw.render import render_png

        return render_png(self.drawing(image, arrows=arrows, width=width, graph=graph))

    def save_drawing(
        self, path: str | Path, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True
    ) -> None:
        """Save what `draw` draws: .svg, with the photo inside, or .png, .jpg and so on."""
        from polyadic.draw import save_drawing

        save_drawing(self.drawing(image, arrows=arrows, width=width, graph=graph), Path(path))

    def percentages(self) -> list[str]:
        """Format what is shown beside each relation: its probability, else the score."""
        if self.probability is None:
            return [f"{score:.3g}" for score in self.f_spo.tolist()]
        return [f"{x:.0%}" if x >= 0.095 else f"{x:.1%}" for x in self.probability.tolist()]

    def _words(self) -> Vocabulary:
        if self.vocabulary is None:
            raise PolyadicError(f"Relations of {self.image}: class names are unknown; set vocabulary=...")
        return self.vocabulary

    def _label(self, label: int) -> str | None:
        return None if label == UNKNOWN else self._words().objects[label]

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    __hash__ = None  # type: ignore[assignment]


def number_names(boxes: Float[np.ndarray, "N 4"], names: Sequence[str]) -> list[str]:
    """Number the boxes of a class that occurs several times, from left to right."""
    numbered = list(names)
    for name in set(names):
        same = [i for i, other in enumerate(names) if other == name]
        same.sort(key=lambda i: (boxes[i, 0] + boxes[i, 2], boxes[i, 1] + boxes[i, 3]))
        for number, i in enumerate(same if len(same) > 1 else (), start=1):
            numbered[i] = f"{name} {number}"
    return numbered
