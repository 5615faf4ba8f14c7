"""Recall of anybody's predictions under the field's named protocols. Plain NumPy and numba: no network, no torch.

    result = evaluate(scenes, predictions, [get_protocol("lu2016")])

Images stream through: a few are held at a time, and only sums are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.evaluation.ceiling import Ceiling
from polyadic.evaluation.protocol import FREE_K, PRESETS, TASKS, Protocol, get_protocol
from polyadic.evaluation.table import Recall, Recalls
from polyadic.kernels import matching
from polyadic.scenes import Predictions, Scene
from polyadic.vocabulary import PolyadicError

__all__ = [
    "FREE_K",
    "PRESETS",
    "TASKS",
    "Ceiling",
    "Evaluator",
    "Protocol",
    "Recall",
    "Recalls",
    "choose_k",
    "evaluate",
    "get_protocol",
    "paired",
]

_CHUNK = 512  # images held before they are matched together


@dataclass
class _Sums:
    """Numerators and denominators of one protocol: for all truths and per predicate, for each bootstrap replicate.

    Pooled recall gives each truth the weight 1; the mean over images, one over the number of its image's truths.
    """

    hit: Float[np.ndarray, "W N"]
    all: Float[np.ndarray, " W"]
    hit_by: Float[np.ndarray, "W P N"]
    all_by: Float[np.ndarray, "W P"]
    truths: int = 0
    images: int = 0


@dataclass
class Evaluator:
    """Takes images one by one, in any order, and sums hits under several protocols in one pass.

    `seen` are the training triplets (any number of rows, repeats allowed), needed for zero-shot recall. With
    `bootstrap` = B the result has 95% intervals over images, by B Poisson bootstrap replicates; an image's weights
    depend on its name and `seed` alone, so order does not matter.
    """

    protocols: Sequence[Protocol]
    predicates: int
    seen: Int[np.ndarray, "M 3"] | None = None
    bootstrap: int = 0
    seed: int = 0
    _sums: list[_Sums] = field(init=False, repr=False)
    _held: list[tuple[Scene, Predictions | None]] = field(init=False, repr=False)
    _seen: Int[np.ndarray, " K"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.protocols:
            raise PolyadicError("Evaluator: give at least one protocol")
        if self.seen is None and any(protocol.subset == "zero-shot" for protocol in self.protocols):
            raise PolyadicError("Evaluator: zero-shot recall needs the training triplets (seen=...)")
        self._seen = np.sort(triplet_keys(_NO_TRIPLETS if self.seen is None else np.asarray(self.seen, np.int64)))
        self._held = []
        w, p = 1 + self.bootstrap, self.predicates
        self._sums = [
            _Sums(np.zeros((w, len(x.tops))), np.zeros(w), np.zeros((w, p, len(x.tops))), np.zeros((w, p)))
            for x in self.protocols
        ]

    def update(self, scene: Scene, predictions: Predictions | None) -> None:
        """One image: its truths, and what was predicted for it, if anything."""
        self._held.append((scene, predictions))
        if len(self._held) >= _CHUNK:
            self._flush()

    def result(self) -> Recalls:
        """The recalls of all images so far."""
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
        if not self._held:
            return
        batch = _Batch.of(self._held)
        if len(batch.truths) and not 0 <= batch.truths[:, 1].min() <= batch.truths[:, 1].max() < self.predicates:
            raise PolyadicError(f"Evaluator: truths have predicate {batch.truths[:, 1].max()} of {self.predicates}")
        for protocol in self.protocols:
            if protocol.task.endswith("classification"):
                batch.check_true_boxes(labels=protocol.task == "predicate-classification")
        weights = None
        if self.bootstrap:
            weights = np.ones((1 + self.bootstrap, len(self._held)))
            for i, (scene, _) in enumerate(self._held):
                draw = np.random.default_rng([self.seed, zlib.crc32(scene.name.encode())])
                weights[1:, i] = draw.poisson(1.0, self.bootstrap)
        zero_shot = ~_among(batch.truth_keys, self._seen)
        for protocol, sums in zip(self.protocols, self._sums, strict=True):
            counted = np.ones(len(batch.truths), bool) if protocol.subset == "all" else zero_shot
            _add(sums, protocol, batch, counted, weights)
        self._held = []


@dataclass
class _Batch:
    """Some images, flat; what several protocols share is computed once."""

    scenes: list[Scene]
    off: Int[np.ndarray, " I1"]
    boxes: Float[np.ndarray, "N 4"]
    pairs: Int[np.ndarray, "M 2"]  # rows of `boxes`
    triplets: Int[np.ndarray, "M 3"]
    keys: Int[np.ndarray, " M"]
    scores: Float[np.ndarray, " M"]
    truth_off: Int[np.ndarray, " I1"]
    truth_boxes: Float[np.ndarray, "T 2 4"]
    truths: Int[np.ndarray, "T 3"]
    truth_keys: Int[np.ndarray, " T"]
    _kept: dict[tuple[int, bool, int], np.ndarray] = field(default_factory=dict)
    _ranks: dict[tuple[object, ...], np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, images: Sequence[tuple[Scene, Predictions | None]]) -> _Batch:
        scenes = [scene for scene, _ in images]
        empty = Predictions("", _NO_BOXES, _NO_PAIRS, _NO_TRIPLETS, _NO_SCORES)
        answers = [empty if p is None else p if p.size is None else p.in_frame(scene.size) for scene, p in images]
        n_boxes = _offsets([len(p.boxes) for p in answers])
        off = _offsets([len(p.scores) for p in answers])
        truth_off = _offsets([len(scene.relations) for scene in scenes])
        pairs = np.concatenate([p.pairs for p in answers]) + np.repeat(n_boxes[:-1], np.diff(off))[:, None]
        relations = np.concatenate([scene.relations for scene in scenes])
        true_boxes = np.concatenate([scene.boxes for scene in scenes])
        labels = np.concatenate([scene.labels for scene in scenes])
        first = _offsets([len(scene.boxes) for scene in scenes])[:-1]
        ends = relations[:, ::2] + np.repeat(first, np.diff(truth_off))[:, None]
        truths = np.stack([labels[ends[:, 0]], relations[:, 1], labels[ends[:, 1]]], axis=1)
        triplets = np.concatenate([p.triplets for p in answers])
        return cls(
            scenes,
            off,
            np.concatenate([p.boxes for p in answers]),
            pairs,
            triplets,
            triplet_keys(triplets),
            np.concatenate([p.scores for p in answers]),
            truth_off,
            true_boxes[ends],
            truths,
            triplet_keys(truths),
        )

    def ranks(self, protocol: Protocol, top: int) -> Int[np.ndarray, " T"]:
        """For each truth the place of the prediction that hits it."""
        by_label = protocol.k_unit == "predicate"
        phrase, many = protocol.task == "phrase", protocol.match == "many-to-one"
        last = protocol.tie == "last"
        cut = (protocol.k or 0, by_label and protocol.k is not None, top)
        how = (phrase, many, last and not many, protocol.iou, protocol.iou_offset)
        if cut not in self._kept:
            self._kept[cut] = matching.keep_best(self.off, self.scores, self.pairs, self.triplets, *cut)
        if (cut, how) not in self._ranks:
            mine, theirs = (self._kept[cut], self.boxes, self.pairs, self.keys), (self.truth_boxes, self.truth_keys)
            self._ranks[cut, how] = matching.hit_ranks(*mine, self.truth_off, *theirs, *how)
        return self._ranks[cut, how]

    def check_true_boxes(self, labels: bool) -> None:
        """Classification starts from the annotated boxes (and labels): others would be another task's number."""
        for i, scene in enumerate(self.scenes):
            rows = slice(self.off[i], self.off[i + 1])
            true = np.column_stack([scene.boxes, scene.labels if labels else np.zeros(len(scene.boxes))])
            for at in (0, 1):
                own = self.triplets[rows, 2 * at] if labels else np.zeros(self.off[i + 1] - self.off[i])
                given = np.column_stack([self.boxes[self.pairs[rows, at]], own])
                fits = (np.abs(given[:, None] - true[None]) <= 1e-3).all(2).any(1)
                if not fits.all():
                    task, what = (TASKS[3], "boxes and labels") if labels else (TASKS[2], "boxes")
                    raise PolyadicError(
                        f"{scene.name}: {task} starts from the {len(true)} true {what}, but the "
                        f"{('subject', 'object')[at]} of prediction {int((~fits).argmax())} is none of them"
                    )


def _add(
    sums: _Sums,
    protocol: Protocol,
    batch: _Batch,
    counted: Bool[np.ndarray, " T"],
    weights: Float[np.ndarray, "W I"] | None,
) -> None:
    images, p = len(batch.scenes), sums.all_by.shape[1]
    ranks = batch.ranks(protocol, max(protocol.tops))
    image = np.repeat(np.arange(images), np.diff(batch.truth_off))  # of each truth
    if protocol.no_prediction == "drop":
        counted = counted & (np.diff(batch.off) > 0)[image]
    ranks, image, predicate = ranks[counted], image[counted], batch.truths[counted, 1]
    cell = image * p + predicate  # the predicates of each image
    per_image = np.bincount(image, minlength=images)
    one, one_by = np.ones(len(image)), np.ones(len(image))
    if protocol.aggregate == "image-mean":
        one, one_by = 1 / per_image[image], 1 / np.bincount(cell, minlength=images * p)[cell]
    sums.truths += len(image)
    sums.images += int((per_image > 0).sum())
    if weights is None:  # no replicates: all images may be summed as one
        weights, images, image, cell = np.ones((1, 1)), 1, np.zeros_like(image), predicate
    n = len(protocol.tops)
    first = np.searchsorted(protocol.tops, ranks, side="right")  # the first N that reaches the hit; n for none
    counts = np.bincount(image * (n + 1) + first, one, images * (n + 1)).reshape(images, n + 1).cumsum(1)
    counts_by = np.bincount(cell * (n + 1) + first, one_by, images * p * (n + 1)).reshape(images, p, n + 1).cumsum(2)
    sums.hit += weights @ counts[:, :n]
    sums.all += weights @ counts[:, n]
    sums.hit_by += np.tensordot(weights, counts_by[:, :, :n], 1)
    sums.all_by += weights @ counts_by[:, :, n]


def paired(scenes: Iterable[Scene], predictions: Iterable[Predictions]) -> Iterator[tuple[Scene, Predictions | None]]:
    """Each scene with its predictions, in the order of the predictions; at the end the scenes that have none.

    A prediction for an unknown image, or a second one for the same image, is an error.
    """
    waiting = {scene.name: scene for scene in scenes}
    known = set(waiting)
    for each in predictions:
        scene = waiting.pop(each.image, None)
        if scene is None:
            why = "is there twice" if each.image in known else f"is none of the {len(known):,} images evaluated"
            raise PolyadicError(f"predictions: image {each.image!r} {why}")
        yield scene, each
    yield from ((scene, None) for scene in waiting.values())


def evaluate(
    scenes: Iterable[Scene],
    predictions: Iterable[Predictions],
    protocols: Sequence[Protocol],
    predicates: int,
    seen: Int[np.ndarray, "M 3"] | None = None,
    bootstrap: int = 0,
) -> Recalls:
    """Recall of `predictions`, in any order, over all `scenes`; a scene without predictions has none."""
    evaluator = Evaluator(protocols, predicates, seen, bootstrap)
    for scene, each in paired(scenes, predictions):
        evaluator.update(scene, each)
    return evaluator.result()


def choose_k(
    scenes: Iterable[Scene],
    predictions: Iterable[Predictions],
    protocol: Protocol,
    predicates: int,
    candidates: Sequence[int | None] = FREE_K,
) -> int | None:
    """Free k: the k of largest summed recall at 50 and 100 on these images, which must not be the test images.

    Of equally good ones the smallest; None is "any k".
    """
    swept = [protocol.change(k=k, subset="all", tops=(50, 100)) for k in candidates]
    table = evaluate(scenes, predictions, swept, predicates)
    score = {k: sum(table.at(each, top).recall for top in (50, 100)) for k, each in zip(candidates, swept, strict=True)}
    return max(candidates, key=lambda k: (score[k], k is not None, -(k or 0)))


def triplet_keys(triplets: Int[np.ndarray, "M 3"]) -> Int[np.ndarray, " M"]:
    """One number per triplet, equal for equal triplets: classes stay below a million."""
    keys: np.ndarray = (triplets[:, 0] << 40) + (triplets[:, 1] << 20) + triplets[:, 2]
    return keys


_NO_BOXES, _NO_PAIRS = np.zeros((0, 4)), np.zeros((0, 2), np.int64)
_NO_TRIPLETS, _NO_SCORES = np.zeros((0, 3), np.int64), np.zeros(0)


def _among(keys: Int[np.ndarray, " M"], rising: Int[np.ndarray, " K"]) -> Bool[np.ndarray, " M"]:
    at = np.searchsorted(rising, keys)
    found: np.ndarray = np.append(rising, -1)[at] == keys
    return found


def _offsets(lengths: Sequence[int]) -> Int[np.ndarray, " I1"]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _middle(values: Float[np.ndarray, " B"]) -> tuple[float, float]:
    """The middle 95% of bootstrap replicates."""
    low, high = np.nanpercentile(values, [2.5, 97.5]) if np.isfinite(values).any() else (np.nan, np.nan)
    return float(low), float(high)
