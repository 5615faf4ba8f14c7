"""The ceiling: the most that any ranking of given boxes can reach under a protocol's k and N.

A prediction puts one triplet on one ordered pair of two different boxes. A pair takes at most k of them (with `k_unit`
"predicate": per pair of labels), an image N. One-to-one, a prediction serves one ground truth, so the most hits are a
maximum matching with capacities. Many-to-one, it serves every ground truth of its triplet that its pair overlaps:
maximum coverage, which is such a matching unless overlapping ground truths share a triplet; these few images are
solved as integer programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.evaluation import kernel
from polyadic.evaluation.matching import among, image_share, seen_keys, triplet_keys
from polyadic.evaluation.protocol import Protocol, Recall, as_protocols
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError


@dataclass
class Ceiling:
    """Sum, image by image, the most ground truths that the boxes allow to hit, aggregated as each protocol does.

    `relabel`: predictions may change the labels of boxes. `seen` are the training triplets, for zero-shot protocols.
    """

    protocols: Protocol | Sequence[Protocol]
    relabel: bool = False
    seen: Int[np.ndarray, "M 3"] | None = None
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)
    _hits: dict[Protocol, Int[np.ndarray, " N1"]] = field(init=False, repr=False)  # by N, and for any N
    _all: dict[Protocol, tuple[int, int, int]] = field(init=False, repr=False)  # weight, ground truths, images

    def __post_init__(self) -> None:
        self.protocols = as_protocols(self.protocols)
        self._seen = seen_keys(self.seen, self.protocols)
        self._hits = {protocol: np.zeros(len(protocol.tops) + 1, np.int64) for protocol in self.protocols}
        self._all = dict.fromkeys(self.protocols, (0, 0, 0))

    def update(
        self,
        scene: Scene,
        boxes: Float[np.ndarray, "N 4"] | None,
        labels: Int[np.ndarray, " N"] | None = None,
        absent: bool | None = None,
    ) -> None:
        """Add one image and its boxes in the annotated frame, None for none.

        `absent`: whether it counts as an image without predictions (`no_prediction`), by default if it has no boxes.
        """
        absent = boxes is None if absent is None else absent
        boxes = np.zeros((0, 4)) if boxes is None else boxes
        if labels is None:
            if not self.relabel and len(boxes):
                raise PolyadicError(f"Ceiling: the boxes of {scene.name} have no labels to keep; use relabel=True")
            labels = np.zeros(len(boxes), np.int64)
        given = Detections(scene.name, boxes, labels, np.ones(len(boxes)))
        counted = {"all": np.ones(len(scene.relations), bool)}
        if any(protocol.subset == "zero-shot" for protocol in self._hits):
            counted["zero-shot"] = ~among(triplet_keys(scene.triplets), self._seen)
        served: dict[tuple[object, ...], list[int]] = {}  # protocols that differ in N alone, or not even there
        for protocol in self._hits:
            truths = counted[protocol.subset]
            n = int(truths.sum())
            if not n or (absent and protocol.no_prediction == "drop"):
                continue
            key = _problem(protocol)
            if key not in served:
                served[key] = _hits_by_size(protocol, scene, truths, given, self.relabel)
            reach = [served[key][min(top, len(served[key]) - 1)] for top in (*protocol.tops, n)]
            weight = 1 if protocol.aggregate == "pooled" else int(image_share(np.array([n]))[0])
            self._hits[protocol] += weight * np.array(reach)
            all, total, images = self._all[protocol]
            self._all[protocol] = all + weight * n, total + n, images + 1

    def merge(self, other: Ceiling) -> None:
        """Add the images of another ceiling of the same protocols."""
        for protocol in self._hits:
            self._hits[protocol] = self._hits[protocol] + other._hits[protocol]
            (all, total, images), more = self._all[protocol], other._all[protocol]
            self._all[protocol] = all + more[0], total + more[1], images + more[2]

    def result(self, protocol: Protocol | None = None, top: int | None = None) -> float:
        """Return the percentage over all images so far: of the first protocol by default, for any N by default."""
        protocol = next(iter(self._hits)) if protocol is None else protocol
        at = -1 if top is None else protocol.tops.index(top)
        all, _, _ = self._all[protocol]
        return 100 * float(self._hits[protocol][at]) / all if all else math.nan

    def rows(self) -> list[Recall]:
        """Return the ceiling of each protocol and N as a recall, without mean recall."""
        return [
            Recall(protocol, top, self.result(protocol, top), math.nan, *self._all[protocol][1:])
            for protocol in self._hits
            for top in protocol.tops
        ]


def _problem(protocol: Protocol) -> tuple[object, ...]:
    """Return the switches on which the most hits of an image depend."""
    unit = protocol.k_unit if protocol.k else ""
    phrase = protocol.task == "phrase"
    return phrase, protocol.match, protocol.k, unit, protocol.subset, protocol.iou, protocol.iou_offset


def _hits_by_size(
    protocol: Protocol, scene: Scene, counted: Bool[np.ndarray, " T"], given: Detections, relabel: bool
) -> list[int]:
    """Return the most ground truths that n predictions can hit, for n = 0, 1, ... until more would change nothing."""
    truths, pair_boxes = scene.triplets[counted], scene.pair_boxes[counted]
    where = given.boxes, given.labels, relabel, pair_boxes, truths
    how = protocol.task == "phrase", protocol.iou, protocol.iou_offset
    keys, group = np.unique(triplet_keys(truths), return_inverse=True)
    shared = protocol.match == "many-to-one" and len(keys) < len(truths)
    if not shared and (protocol.k is None or protocol.k >= len(truths)):
        return list(range(int(kernel.reachable(*where, *how).sum()) + 1))
    # a ground truth that as many pairs reach as there are ground truths always finds a free one
    reach = kernel.reaching(*where, *how, len(truths) if not shared else 1 << 62)  # rows: ground truth, subject, object
    truth, node = reach[:, 0], reach[:, 1] * len(given.boxes) + reach[:, 2]
    if protocol.k_unit == "predicate":
        _, ends = np.unique(truths[:, ::2], axis=0, return_inverse=True)
        node = node * (len(truths) + 1) + ends.reshape(-1)[truth]
    capacity = len(truths) if protocol.k is None else protocol.k
    if not shared:
        node = np.unique(node, return_inverse=True)[1]
        order = np.arange(len(truths))
        matched = kernel.match(order, truth, node, capacity)
        return list(range(int(matched.sum()) + 1))
    return _coverage(group, truth, node, capacity)


def _coverage(
    group: Int[np.ndarray, " T"], truth: Int[np.ndarray, " E"], node: Int[np.ndarray, " E"], capacity: int
) -> list[int]:
    """Solve `_hits_by_size` where one prediction hits all ground truths of its triplet (`group`) that its pair reaches.

    Predictions with the same triplet that hit the same ground truths are alike: of each kind as many pairs are enough
    as there are ground truths.
    """
    hits: dict[tuple[int, int], list[int]] = {}  # (triplet, pair) -> ground truths
    for t, q in zip(truth.tolist(), node.tolist(), strict=True):
        hits.setdefault((int(group[t]), q), []).append(t)
    pairs: dict[tuple[int, ...], list[int]] = {}  # ground truths -> pairs that hit just them
    for (_, q), some in hits.items():
        several = pairs.setdefault(tuple(some), [])
        if len(several) < len(group):
            several.append(q)
    kinds = sorted(pairs, key=lambda some: (-len(some), some))
    names = {q: at for at, q in enumerate(dict.fromkeys(q for some in kinds for q in pairs[some]))}
    if sum(map(len, kinds)) == len({t for some in kinds for t in some}):  # disjoint: a weighted matching, greedy
        edges = [(at, names[q]) for at, some in enumerate(kinds) for q in pairs[some]]
        left, right = np.array(edges, np.int64).reshape(-1, 2).T
        matched = kernel.match(np.arange(len(kinds)), left.copy(), right.copy(), capacity)
        return [0, *np.cumsum([len(some) for some, hit in zip(kinds, matched, strict=True) if hit]).tolist()]
    columns = [(some, names[q]) for some in kinds for q in pairs[some]]
    reached, best = _greedy(columns, capacity), [0]
    most = len({t for some in kinds for t in some})
    if reached[-1] < most:
        most = _integer_program(columns, len(names), capacity, len(group))
    while best[-1] < most:
        n = len(best)
        limit = min(most, best[-1] + len(kinds[0]))  # one more prediction hits at most so many more
        lower = reached[min(n, len(reached) - 1)]
        best.append(lower if lower == limit else _integer_program(columns, len(names), capacity, n))
    return best


def _greedy(columns: Sequence[tuple[tuple[int, ...], int]], capacity: int) -> list[int]:
    """Return how many ground truths are hit by 0, 1, ... predictions, each time the one that adds most."""
    used: dict[int, int] = {}
    hit: set[int] = set()
    reached = [0]
    while True:
        free = [(len(set(some) - hit), -at) for at, (some, pair) in enumerate(columns) if used.get(pair, 0) < capacity]
        gain, at = max(free, default=(0, 0))
        if not gain:
            return reached
        some, pair = columns[-at]
        hit |= set(some)
        used[pair] = used.get(pair, 0) + 1
        reached.append(len(hit))


def _integer_program(columns: Sequence[tuple[tuple[int, ...], int]], pairs: int, capacity: int, top: int) -> int:
    """Return the most ground truths hit by at most `top` of the predictions `columns`: (ground truths, pair)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    truths = sorted({t for some, _ in columns for t in some})
    at = {t: len(columns) + number for number, t in enumerate(truths)}
    rows = np.zeros((len(truths) + pairs + 1, len(columns) + len(truths)))
    for column, (some, pair) in enumerate(columns):
        rows[[at[t] - len(columns) for t in some], column] = -1  # a ground truth counts if a prediction hits it
        rows[len(truths) + pair, column] = 1
    rows[np.arange(len(truths)), len(columns) + np.arange(len(truths))] = 1
    rows[-1, : len(columns)] = 1
    limits = np.concatenate([np.zeros(len(truths)), np.full(pairs, capacity), [top]])
    cost = np.concatenate([np.zeros(len(columns)), -np.ones(len(truths))])
    solved = milp(
        cost, constraints=LinearConstraint(rows, -np.inf, limits), integrality=np.ones_like(cost), bounds=Bounds(0, 1)
    )
    return round(-float(solved.fun))
