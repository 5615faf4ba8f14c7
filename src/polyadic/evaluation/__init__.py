"""Recall of any model's predictions under the field's named protocols. Plain NumPy and numba: no network, no torch.

    result = evaluate(test, predictions, "lu2016")

Images stream: a batch is in memory at a time, and only sums are kept. Sums of parts merge exactly, in any grouping, so
that several processes may share the images.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.evaluation.matching import LARGEST_CLASS, Batch, among, check_image, image_share, paired, seen_keys
from polyadic.evaluation.protocol import FREE_K, Protocol, Recall, Recalls, as_protocols, get_protocol
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError

__all__ = ["FREE_K", "Evaluator", "Protocol", "Recall", "Recalls", "choose_k", "evaluate", "get_protocol"]

_IMAGES, _ROWS = 512, 1 << 18  # images and predictions matched together


@dataclass
class _Sums:
    """Numerators and denominators of one protocol: in total and per predicate, for each bootstrap replicate.

    Pooled recall gives each ground truth the weight 1; the mean over images, one over the number in its image, in the
    whole units of `image_share`. So the order of images, and of merging, changes no bit.
    """

    hit: Int[np.ndarray, "W N"]
    all: Int[np.ndarray, " W"]
    hit_by: Int[np.ndarray, "W P N"]
    all_by: Int[np.ndarray, "W P"]
    truths: int = 0
    images: int = 0


@dataclass
class Evaluator:
    """Sum hits under several protocols in one pass; images come one by one, in any order.

    `seen` are the training triplets (any number of rows, repeats allowed), needed for zero-shot recall. With
    `bootstrap` = B the result has 95% intervals over images, by B Poisson bootstrap replicates; an image's weights
    depend on its name and `seed` alone, so order does not matter.
    """

    protocols: Sequence[Protocol]
    predicates: int  # number of classes
    seen: Int[np.ndarray, "M 3"] | None = None
    bootstrap: int = 0
    seed: int = 0
    _sums: list[_Sums] = field(init=False, repr=False)
    _waiting: list[tuple[Scene, Relations | None, bool]] = field(default_factory=list, init=False, repr=False)
    _rows: int = field(default=0, init=False, repr=False)
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bootstrap, int) or self.bootstrap < 0:
            raise PolyadicError(f"bootstrap must be a number of replicates, 0 for none, got {self.bootstrap!r}")
        self.protocols = as_protocols(self.protocols)
        self._seen = seen_keys(self.seen, self.protocols)
        w, p = 1 + self.bootstrap, self.predicates
        self._sums = [
            _Sums(
                np.zeros((w, n), np.int64),
                np.zeros(w, np.int64),
                np.zeros((w, p, n), np.int64),
                np.zeros((w, p), np.int64),
            )
            for n in (len(protocol.tops) for protocol in self.protocols)
        ]

    def update(self, scene: Scene, predictions: Relations | None, absent: bool | None = None) -> None:
        """Add one image: its ground truths and its predictions, if any.

        `absent`: whether it counts as an image without predictions (`no_prediction`), by default whether it is one.
        """
        check_image(scene, predictions)
        n = 0 if predictions is None else len(predictions.scores)
        self._waiting.append((scene, predictions, n == 0 if absent is None else absent))
        self._rows += n
        if len(self._waiting) >= _IMAGES or self._rows >= _ROWS:
            self._flush()

    def merge(self, other: Evaluator) -> None:
        """Add the images of another evaluator of the same protocols; the order of merging changes no bit."""
        mine, theirs = ((x.protocols, x.predicates, x.bootstrap, x.seed) for x in (self, other))
        if mine != theirs or not np.array_equal(self._seen, other._seen):
            raise PolyadicError("Evaluator.merge: protocols, predicates, seen, bootstrap and seed must be the same")
        self._flush()
        other._flush()
        for sums, more in zip(self._sums, other._sums, strict=True):
            for name in vars(sums):
                setattr(sums, name, getattr(sums, name) + getattr(more, name))

    def flushed(self) -> Evaluator:
        """Reduce all images to sums, which are small to send; return itself."""
        self._flush()
        return self

    def result(self) -> Recalls:
        """Return the recalls of all images so far."""
        self._flush()
        rows = []
        for protocol, sums in zip(self.protocols, self._sums, strict=True):
            with np.errstate(invalid="ignore", divide="ignore"):
                recall = 100 * sums.hit / sums.all[:, None]  # [W, N]
                by = 100 * sums.hit_by / sums.all_by[..., None]  # [W, P, N]
            occurs = (sums.all_by > 0).sum(1)[:, None]
            mean = np.where(occurs > 0, np.nansum(by, axis=1) / np.maximum(occurs, 1), np.nan)
            for at, top in enumerate(protocol.tops):
                row = Recall(protocol, top, float(recall[0, at]), float(mean[0, at]), sums.truths, sums.images)
                if self.bootstrap:
                    row = replace(
                        row, recall_interval=_middle(recall[1:, at]), mean_recall_interval=_middle(mean[1:, at])
                    )
                rows.append(row)
        return Recalls(tuple(rows))

    def _flush(self) -> None:
        if not self._waiting:
            return
        batch = Batch.of(self._waiting)
        for what, rows, off in (
            ("ground truths", batch.truths, batch.truth_off),
            ("predictions", batch.triplets, batch.off),
        ):
            inside = rows.min(initial=0) >= 0 and rows.max(initial=0) <= LARGEST_CLASS
            if not inside or rows[:, 1].max(initial=0) >= self.predicates:
                wrong = (rows < 0).any(1) | (rows[:, 1] >= self.predicates) | (rows > LARGEST_CLASS).any(1)
                at = int(wrong.argmax())
                image = batch.scenes[int(np.searchsorted(off, at, side="right")) - 1].name
                given = f"got {tuple(rows[at].tolist())} among {self.predicates} predicates"
                raise PolyadicError(f"{what} of {image}: classes count from 0, {given}")
        for protocol in self.protocols:
            if protocol.task.endswith("classification"):
                batch.check_true_boxes(labels=protocol.task == "predicate-classification")
        weights = None
        if self.bootstrap:
            weights = np.ones((1 + self.bootstrap, len(self._waiting)))
            for i, scene in enumerate(batch.scenes):
                draw = np.random.default_rng([self.seed, zlib.crc32(scene.name.encode())])
                weights[1:, i] = draw.poisson(1.0, self.bootstrap)
        counted = {"all": np.ones(len(batch.truths), bool)}
        if any(protocol.subset == "zero-shot" for protocol in self.protocols):
            counted["zero-shot"] = ~among(batch.truth_keys, self._seen)
        for protocol, sums in zip(self.protocols, self._sums, strict=True):
            _add(sums, protocol, batch, counted[protocol.subset], weights)
        self._waiting, self._rows = [], 0


def _add(
    sums: _Sums,
    protocol: Protocol,
    batch: Batch,
    counted: Bool[np.ndarray, " T"],
    weights: Float[np.ndarray, "W I"] | None,
) -> None:
    images, p = len(batch.scenes), sums.all_by.shape[1]
    ranks = batch.ranks(protocol, max(protocol.tops))
    image = np.repeat(np.arange(images), np.diff(batch.truth_off))  # of each ground truth
    if protocol.no_prediction == "drop":
        counted = counted & ~batch.absent[image]
    ranks, image, predicate = ranks[counted], image[counted], batch.truths[counted, 1]
    cell = image * p + predicate  # the predicates of each image
    per_image = np.bincount(image, minlength=images)
    one, one_by = np.ones(len(image), np.int64), np.ones(len(image), np.int64)
    if protocol.aggregate == "image-mean":
        one, one_by = image_share(per_image[image]), image_share(np.bincount(cell, minlength=images * p)[cell])
    sums.truths += len(image)
    sums.images += int((per_image > 0).sum())
    if weights is None:  # no replicates: all images may be summed as one
        weights, images, image, cell = np.ones((1, 1)), 1, np.zeros_like(image), predicate
    n = len(protocol.tops)
    first = np.searchsorted(protocol.tops, ranks, side="right")  # the first N that reaches the hit; n for none
    counts = np.bincount(image * (n + 1) + first, one, images * (n + 1)).reshape(images, n + 1).cumsum(1)
    counts_by = np.bincount(cell * (n + 1) + first, one_by, images * p * (n + 1)).reshape(images, p, n + 1).cumsum(2)
    total, total_by = weights @ counts, np.tensordot(weights, counts_by, 1)  # whole numbers below 2^53: exact
    sums.hit += total[:, :n].astype(np.int64)
    sums.all += total[:, n].astype(np.int64)
    sums.hit_by += total_by[:, :, :n].astype(np.int64)
    sums.all_by += total_by[:, :, n].astype(np.int64)


def evaluate(
    scenes: Iterable[Scene],
    predictions: Iterable[Relations],
    protocols: str | Protocol | Sequence[str | Protocol],
    predicates: int | None = None,
    *,
    seen: Int[np.ndarray, "M 3"] | None = None,
    bootstrap: int = 0,
) -> Recalls:
    """Compute the recall of `predictions`, in any order, over all `scenes`.

    Predictions may stream; the scenes stay in memory, to be found by name. `Evaluator` streams both.

    Args:
        scenes: the ground truth, e.g. a `Dataset`.
        predictions: at most one per image; they may stream from a file.
        protocols: names or values, e.g. `"lu2016"` or `[get_protocol("lu2016").change(task="phrase", k=10)]`.
        predicates: how many predicate classes there are; by default as many as in the vocabulary of `scenes`, if they
            are a `Dataset`, or of the predictions.
        seen: training triplets, `train.triplets()`, for zero-shot recall.
        bootstrap: replicates for 95% intervals over images.

    Returns:
        A row per protocol and N, in percent.
    """
    if predicates is None:
        predictions = iter(predictions)
        first = list(islice(predictions, 1))
        predictions = chain(first, predictions)
        known = (getattr(value, "vocabulary", None) for value in (scenes, *first))
        vocabulary = next((names for names in known if names is not None), None)
        if vocabulary is None:
            raise PolyadicError("evaluate: neither scenes nor predictions have a vocabulary: give predicates=...")
        predicates = len(vocabulary.predicates)
    evaluator = Evaluator(as_protocols(protocols), predicates, seen, bootstrap)
    for scene, answer in paired(scenes, predictions):
        evaluator.update(scene, answer)
    return evaluator.result()


def choose_k(
    scenes: Iterable[Scene],
    predictions: Iterable[Relations],
    protocol: Protocol,
    predicates: int,
    candidates: Sequence[int | None] = FREE_K,
) -> int | None:
    """Choose k (free k): the largest summed recall at 50 and 100 on these images, which must not be the test images.

    The smallest of equally good ones; None is "any k".
    """
    swept = [protocol.change(k=k, subset="all", tops=(50, 100)) for k in candidates]
    table = evaluate(scenes, predictions, swept, predicates)
    if table[0].truths == 0:
        raise PolyadicError("free k: there are no ground truths to choose k on")
    score = {k: sum(table.at(cut, top).recall for top in (50, 100)) for k, cut in zip(candidates, swept, strict=True)}
    return max(candidates, key=lambda k: (score[k], k is not None, -(k or 0)))


def _middle(values: Float[np.ndarray, " B"]) -> tuple[float, float]:
    """Return the middle 95% of bootstrap replicates."""
    low, high = np.nanpercentile(values, [2.5, 97.5]) if np.isfinite(values).any() else (np.nan, np.nan)
    return float(low), float(high)
