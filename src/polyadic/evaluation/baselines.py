"""The count table, a baseline which predicts relations from labels and training counts alone.

    f = conf_s · conf_o · P(p | s, o) · P(annotated | s, o)

P(p | s, o) backs off from (s, o) to the mean of P(p | s) and P(p | o), and these to P(p). P(annotated | s, o) is the
share of ordered pairs of such objects, in training images, that have a relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


@dataclass(frozen=True)
class CountTable:
    """Training counts, which predict relations of labelled boxes."""

    given_subject: Float[np.ndarray, "S P"]  # P(p | s)
    given_object: Float[np.ndarray, "O P"]  # P(p | o)
    triplets: dict[tuple[int, int], Counter[int]]  # (s, o) -> predicate -> count
    annotated: Counter[tuple[int, int]]  # ordered pairs of classes with a relation
    pairs: Counter[tuple[int, int]]  # all ordered pairs of two objects
    labels: Float[np.ndarray, " O"]  # P(class) of a box
    _rows: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)
    _best: dict[tuple[int | None, bool, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    @classmethod
    def fit(cls, scenes: Iterable[Scene], vocabulary: Vocabulary) -> CountTable:
        """Count training scenes; several annotations of one predicate on one pair count once."""
        S, P, O = vocabulary.sizes
        by_subject, by_object, by_predicate = np.zeros((S, P)), np.zeros((O, P)), np.zeros(P)
        triplets: dict[tuple[int, int], Counter[int]] = {}
        annotated: Counter[tuple[int, int]] = Counter()
        pairs: Counter[tuple[int, int]] = Counter()
        boxes = np.ones(O)
        for scene in scenes:
            labels = scene.labels.tolist()
            np.add.at(boxes, scene.labels, 1)
            distinct = set(map(tuple, scene.relations.tolist()))
            for s, p, o in distinct:
                ends = labels[s], labels[o]
                triplets.setdefault(ends, Counter())[p] += 1
                by_subject[ends[0], p] += 1
                by_object[ends[1], p] += 1
                by_predicate[p] += 1
            annotated.update((labels[s], labels[o]) for s, o in {(s, o) for s, _, o in distinct})
            classes = Counter(labels)
            for a, n in classes.items():
                for b, m in classes.items():
                    pairs[a, b] += n * m - (n if a == b else 0)
        everything = (by_predicate + 1) / (by_predicate.sum() + P)  # P(p)
        given_subject = (by_subject + 5 * everything) / (by_subject.sum(1, keepdims=True) + 5)
        given_object = (by_object + 5 * everything) / (by_object.sum(1, keepdims=True) + 5)
        return cls(given_subject, given_object, triplets, annotated, pairs, boxes / boxes.sum())

    def row(self, subject: int, object: int) -> Float[np.ndarray, " P"]:
        """Return P(p | s, o) · P(annotated | s, o) of all predicates."""
        key = subject, object
        if key not in self._rows:
            seen = self.triplets.get(key, Counter())
            counts = self.given_subject[subject] + self.given_object[object]  # 2 · the mean of both
            for predicate, n in seen.items():
                counts[predicate] += n
            share = (self.annotated[key] + 0.5) / (self.pairs[key] + 3.5)
            self._rows[key] = counts / (seen.total() + 2) * share
        return self._rows[key]

    def predict(self, detections: Detections, k: int | None = None) -> Relations:
        """Predict relations of every ordered pair of two boxes, the best k predicates each."""
        labels, n = detections.labels, len(detections)
        O = len(self.given_object)
        if n and not 0 <= labels.min() <= labels.max() < O:
            raise PolyadicError(f"CountTable: {detections.image} has label {labels.max()} of {O} classes")
        subject, object = np.nonzero(~np.eye(n, dtype=bool))
        P = self.given_subject.shape[1]
        table = np.zeros((len(subject), P))
        for at, key in enumerate(zip(labels[subject].tolist(), labels[object].tolist(), strict=True)):
            table[at] = self.row(*key)
        table *= (detections.scores[subject] * detections.scores[object])[:, None]
        k = min(k or P, P)
        best = np.argsort(-table, axis=1, kind="stable")[:, :k]  # [B, k]
        pair = np.repeat(np.arange(len(subject)), k)
        triplets = np.stack([labels[subject][pair], best.ravel(), labels[object][pair]], axis=1)
        scores = np.take_along_axis(table, best, 1).ravel()
        ends = np.stack([subject, object], axis=1)[pair]
        about: dict[str, Any] = {"labels": labels, "confidences": detections.scores}
        return Relations(detections.image, detections.boxes, ends, triplets, scores, **about, size=detections.size)

    def predict_unlabelled(
        self,
        image: str,
        boxes: Float[np.ndarray, "N 4"],
        k: int | None = None,
        per_labels: bool = False,
        top: int = 100,
    ) -> Relations:
        """Predict for boxes of unknown labels: each pair gets the triplets likeliest for any pair.

        P(s) P(o) replace the confidences; class pairs that never share a training image are left out. With
        `per_labels`, k counts per pair of labels. At most the best `top` of an image are returned.
        """
        pairs = np.argwhere(~np.eye(len(boxes), dtype=bool))
        triplets, scores = self._likeliest(k, per_labels, top)
        n = min(len(triplets), -(-top // max(len(pairs), 1)))  # all pairs share one list
        rows = np.tile(np.arange(n), len(pairs))
        return Relations(image, boxes, np.repeat(pairs, n, axis=0), triplets[rows], scores[rows])

    def _likeliest(self, k: int | None, per_labels: bool, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Return triplets of any pair by descending score, at most k in all, or per pair of labels."""
        if (k, per_labels, top) not in self._best:
            P = self.given_subject.shape[1]
            limit = min(k or P, P) if per_labels else P
            ranked: list[tuple[float, int, int, int]] = []
            for s, o in sorted(self.pairs):
                row = self.labels[s] * self.labels[o] * self.row(s, o)
                ranked += [(-float(row[p]), s, int(p), o) for p in np.argsort(-row, kind="stable")[:limit]]
            ranked.sort()
            keep = top if per_labels or k is None else min(k, top)
            rows = np.array([row[1:] for row in ranked[:keep]], np.int64).reshape(-1, 3)
            self._best[k, per_labels, top] = rows, -np.array([row[0] for row in ranked[:keep]])
        return self._best[k, per_labels, top]
