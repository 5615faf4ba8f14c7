"""Where the truths go: each is a hit, or a miss with the first cause that explains it.

From the boxes up: no two different boxes lie on the truth; an answer has both names there, but another predicate, or it
was spent on another truth; no answer has both names there, although the detector does, or as the detector hasn't.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from polyadic.evaluation import kernel as matching
from polyadic.evaluation.matching import Batch, among, paired, seen_keys, triplet_keys
from polyadic.evaluation.protocol import Protocol
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene, scale_boxes
from polyadic.structures.vocabulary import PolyadicError

Fate = Literal["hit", "box missing", "wrong label", "wrong predicate", "pair unselected", "duplicate"]
FATES: tuple[Fate, ...] = get_args(Fate)
_HIT, _BOX, _LABEL, _PREDICATE, _PAIR, _DUPLICATE = range(len(FATES))


@dataclass(frozen=True)
class Fates:
    """What became of the truths among the best N answers of each image, under one protocol."""

    protocol: Protocol
    top: int  # N
    counts: tuple[int, ...]  # truths, in the order of FATES
    shares: tuple[float, ...]  # percent, aggregated as the protocol does; that of hits is R@N

    @property
    def truths(self) -> int:
        return sum(self.counts)

    def count(self, fate: Fate) -> int:
        return self.counts[FATES.index(fate)]

    def share(self, fate: Fate) -> float:
        return self.shares[FATES.index(fate)]


@dataclass(frozen=True)
class Misses(Sequence[Fates]):
    """A row per protocol and N."""

    rows: tuple[Fates, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Fates]:
        return iter(self.rows)

    def at(self, protocol: Protocol, top: int) -> Fates:
        """The row of one protocol and N."""
        for row in self.rows:
            if row.protocol == protocol and row.top == top:
                return row
        raise PolyadicError(f"no row for {protocol.label} at N = {top}")

    def to_json(self) -> list[dict[str, Any]]:
        """One record per protocol, N and fate; a share of no truths is null."""
        return [
            {"protocol": row.protocol.label, "task": row.protocol.task, "k": row.protocol.k or "any"}
            | {"k_unit": row.protocol.k_unit, "subset": row.protocol.subset, "N": row.top, "fate": fate}
            | {"truths": count, "share": None if np.isnan(share) else share}
            for row in self.rows
            for fate, count, share in zip(FATES, row.counts, row.shares, strict=True)
        ]

    def to_csv(self, **where: str) -> str:
        """One line per number; `where`, say the dataset, goes in front of each."""
        columns = (*where, "protocol", "task", "k", "k_unit", "subset", "N", "fate", "truths", "share")
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**where, **record} for record in self.to_json())
        return text.getvalue()


@dataclass
class MissCounter:
    """Takes images one by one and counts the fates of their truths. Hits are those of `Evaluator`."""

    protocol: Protocol
    seen: Int[np.ndarray, "M 3"] | None = None  # training triplets, for zero-shot
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)
    _counts: Int[np.ndarray, "N F"] = field(init=False, repr=False)
    _weights: Float[np.ndarray, "N F"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.seen is None and self.protocol.subset == "zero-shot":
            raise PolyadicError("MissCounter: zero-shot recall needs the training triplets (seen=...)")
        self._seen = seen_keys(self.seen)
        shape = len(self.protocol.tops), len(FATES)
        self._counts, self._weights = np.zeros(shape, np.int64), np.zeros(shape)

    def update(
        self,
        scene: Scene,
        predictions: Relations | None,
        boxes: Float[np.ndarray, "N 4"] | None,
        labels: Int[np.ndarray, " N"] | None,
        absent: bool | None = None,
    ) -> None:
        """One image: what was predicted, and the detector's boxes and labels (UNKNOWN fits none), None for no boxes.

        The boxes are in the annotated frame. `absent`: whether it counts as an image without predictions
        (`no_prediction`), by default whether it is one.
        """
        if predictions is not None and predictions.image != scene.name:
            raise PolyadicError(f"predictions of {predictions.image!r} were given for the image {scene.name!r}")
        absent = predictions is None or not len(predictions) if absent is None else absent
        if not len(scene.relations) or (absent and self.protocol.no_prediction == "drop"):
            return
        if boxes is not None and len(boxes) and labels is None:
            raise PolyadicError(
                f"where misses go: the boxes of {scene.name} have no labels; give the detector's boxes and labels "
                "(--detections FILE)"
            )
        none = np.zeros((0, 4)), np.zeros(0, np.int64)
        boxes, labels = none if boxes is None or labels is None else (boxes, labels)
        given = Detections(scene.name, boxes, labels, np.ones(len(boxes)))  # checks them
        fates = self._fates(Batch.of([(scene, predictions, absent)]), given)  # [N, T]
        if self.protocol.subset == "zero-shot":
            fates = fates[:, ~among(triplet_keys(scene.triplets), self._seen)]
        if not fates.shape[1]:
            return
        counts = (fates[:, :, None] == np.arange(len(FATES))).sum(1)
        self._counts += counts
        self._weights += counts if self.protocol.aggregate == "pooled" else counts / fates.shape[1]

    def _fates(self, batch: Batch, given: Detections) -> Int[np.ndarray, "N T"]:
        protocol, most = self.protocol, max(self.protocol.tops)
        tops, any_time = np.array(protocol.tops)[:, None], protocol.change(match="many-to-one")
        names = replace(batch, keys=_names(batch.triplets), truth_keys=_names(batch.truths), _ranks={})
        hit = batch.ranks(protocol, most) < tops
        told = batch.ranks(any_time, most) < tops  # the whole triplet is there, whoever took it
        named = names.ranks(any_time, most) < tops  # both names are there
        how = protocol.task == "phrase", protocol.iou, protocol.iou_offset
        located, fits = (
            matching.reachable(given.boxes, given.labels, relabel, batch.truth_boxes, batch.truths, *how)
            for relabel in (True, False)
        )
        # the first test that holds decides
        tests = [(hit, _HIT), (~located, _BOX), (told, _DUPLICATE), (named, _PREDICATE), (fits, _PAIR)]
        conditions = [np.broadcast_to(test, hit.shape) for test, _ in tests]
        return np.select(conditions, [fate for _, fate in tests], _LABEL)

    def result(self) -> Misses:
        """The fates of all truths so far, one row per N."""
        rows = []
        for top, counts, weights in zip(self.protocol.tops, self._counts, self._weights, strict=True):
            with np.errstate(invalid="ignore"):
                shares = 100 * weights / weights.sum()
            rows.append(Fates(self.protocol, top, tuple(counts.tolist()), tuple(shares.tolist())))
        return Misses(tuple(rows))


def count_misses(
    scenes: Iterable[Scene],
    predictions: Iterable[Relations],
    detections: Mapping[str, Detections],
    protocols: Sequence[Protocol],
    seen: Int[np.ndarray, "M 3"] | None = None,
) -> Misses:
    """What becomes of every truth of `scenes`: `predictions`, in any order, were made from `detections`, by image."""
    counters = [MissCounter(protocol, seen) for protocol in protocols]
    for scene, each in paired(scenes, predictions):
        given = detections.get(scene.name)
        boxes, labels = (None, None) if given is None else (given.boxes, given.labels)
        if given is not None and given.size is not None:
            boxes = scale_boxes(given.boxes, given.size, scene.frame)
        for counter in counters:
            counter.update(scene, each, boxes, labels)
    return Misses(tuple(row for counter in counters for row in counter.result()))


def _names(triplets: Int[np.ndarray, "M 3"]) -> Int[np.ndarray, " M"]:
    """Keys of subject and object alone."""
    return triplet_keys(triplets * (1, 0, 1))
