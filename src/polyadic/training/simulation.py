"""Simulated detections: true boxes as a given detector would have reported them, to train on without its pixels.

Training should see detections like those met at test time. `DetectionNoise.fit` reads a detector's *unlabelled* outputs
and the label counts of the training set, never labels of the images detected; `sample` makes detections of a scene:

1. Every true box is found with its class's recall, its edges moved a little; some are found twice.
2. False boxes are added. Some lie on a true box under another label; the others are boxes of the detector itself.
3. Confidences come from two histograms, of right and of wrong detections.

With t true boxes of a class per training image and h detections per image, r·t = p·h ties recall r to precision p, but
only their ratio shows in unlabelled outputs. `Assumptions` holds what has to be supposed.

Where only part of the objects is annotated (VRD has boxes in relations alone), t is too small: detections of objects
that nobody annotated count as false, so precision comes out low and recall high, and right detections get some of the
confidences of wrong ones. That is the noise against *annotations*, which is what training and recall see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int

from polyadic.boxes import box_iou
from polyadic.structures.detections import Detections, check_number
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError

_BINS, _LEVELS = 20, 9  # of the confidences, and inside a bin
_POOL = 20_000  # false boxes kept, so that the model stays below a megabyte
_OVERLAP = 0.5  # IoU above which two boxes are at one place
_PRIOR_COUNT = 1.0  # detections at the mean ratio of h to t, added to each class
_PRIOR_PAIRS = 3.0  # co-located pairs with labels as all false detections have them, added to each class
_TINY = 1e-6  # the least confidence


@dataclass(frozen=True)
class Assumptions:
    """What unlabelled outputs cannot tell; a detector that has been measured on labelled images has its own."""

    ceiling: float = 0.78  # ours: recall of a class reported too often, precision of one reported too seldom
    jitter: float = 0.08  # ours: standard deviation of each edge, as a share of the box's width or height
    duplicates: float = 0.1  # ours: chance that a box found is found once more
    co_located: float = 0.45  # ours: share of the false boxes that lie on a true one

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (0 <= value <= 1) or (name == "ceiling" and value == 0):
                raise PolyadicError(f"Assumptions: {name} must be a share from 0 to 1, got {value}")


_OURS = Assumptions()


@dataclass(frozen=True, eq=False, repr=False)
class DetectionNoise:
    """How a detector errs: C classes, K bins of confidence with L levels each, F false boxes."""

    assumed: Assumptions
    recall: Float[np.ndarray, " C"]  # P(found, under its label | true box)
    precision: Float[np.ndarray, " C"]  # P(on such a true box | detection), duplicates included
    frequency: Float[np.ndarray, " C"]  # true boxes per training image
    levels: Float[np.ndarray, "K L"]  # confidences at equal steps of rank inside each bin
    right: Float[np.ndarray, " K"]  # P(bin | right detection)
    wrong: Float[np.ndarray, " K"]
    confusion: Float[np.ndarray, "C C"]  # P(false label | label of the true box below it)
    boxes: Float[np.ndarray, "F 4"]  # the detector's own, in shares of the frame
    labels: Int[np.ndarray, " F"]
    weights: Float[np.ndarray, " F"]  # P(this one | false box on no true one)
    false_mean: float  # false boxes per image
    false_variance: float

    @classmethod
    def fit(
        cls,
        detections: Iterable[Detections],
        train: Dataset,
        sizes: Mapping[str, tuple[float, float]] | None = None,
        assumed: Assumptions = _OURS,
    ) -> DetectionNoise:
        """From a detector's outputs on any images like those of `train`.

        Args:
            detections: One per image; an image where nothing was found counts too.
            train: Its scenes give the expected labels; one without boxes counts too.
            sizes: (width, height) of the frame by image, for detections that do not say it.
            assumed: What neither of them tells.
        """
        C = len(train.vocabulary.objects)
        images = list(detections)
        if not sum(map(len, images)):
            raise PolyadicError(f"DetectionNoise: needs detections to learn from, got none in {len(images)} images")
        if not sum(len(scene.boxes) for scene in train):
            raise PolyadicError(f"DetectionNoise: needs training scenes with boxes, got none in {len(train)} scenes")
        boxes = np.concatenate([_in_shares(image, sizes or {}) for image in images if len(image)])
        labels, scores = (np.concatenate([getattr(image, name) for image in images]) for name in ("labels", "scores"))
        for image in images:
            check_number(image.image, len(image))
            _check_labels(image.labels, C, f"detections of {image.image}")
        for scene in train:
            _check_labels(scene.labels, C, f"scene {scene.name}")

        twice = 1 + assumed.duplicates
        frequency = np.bincount(np.concatenate([scene.labels for scene in train]), minlength=C) / len(train)
        count = np.bincount(labels, minlength=C).astype(float)  # h, of all images
        true = twice * frequency * len(images)  # t, of all images, as often as it would be found
        ratio = (count + _PRIOR_COUNT * count.sum() / true.sum()) / (true + _PRIOR_COUNT)
        recall, precision = assumed.ceiling * np.minimum(1, ratio), assumed.ceiling * np.minimum(1, 1 / ratio)

        edges = np.unique(np.quantile(scores, np.arange(_BINS) / _BINS, method="inverted_cdf"))  # each bin has its own
        bins = np.searchsorted(edges, scores, side="right") - 1
        steps = np.linspace(0, 1, _LEVELS)
        levels = np.stack([np.quantile(scores[bins == k], steps) for k in range(len(edges))])
        counts = np.bincount(labels * len(edges) + bins, minlength=C * len(edges)).reshape(C, -1).astype(float)
        right, wrong = _split(counts, precision)
        doubt = 1 - _posterior(precision, right, wrong)[labels, bins]  # P(false) of each detection

        false = (1 - precision) * count  # by class
        confusion = _confusion(images, doubt, false)
        # a true box is chosen in its scene; where there is none, no false box lies on one
        below = np.zeros(C)
        for scene in train:
            np.add.at(below, scene.labels, 1 / max(len(scene.labels), 1) / len(train))
        free = np.maximum(false - assumed.co_located * false.sum() * (below @ confusion), 0)  # by class
        kept = np.linspace(0, len(boxes) - 1, min(len(boxes), _POOL)).astype(np.int64)
        boxes, labels, weights = boxes[kept], labels[kept], doubt[kept]
        weights = weights * (free / np.maximum(np.bincount(labels, weights, minlength=C), 1e-12))[labels]
        if not weights.sum() > 0:
            weights = np.ones(len(weights))
        mean = float(false.sum() / len(images))
        spread = float(np.var([len(image) for image in images]) - _variance_of_right(train, recall, assumed.duplicates))
        chances = right, wrong, confusion, boxes, labels, weights / weights.sum()
        return cls(assumed, recall, precision, frequency, levels, *chances, mean, max(mean, spread))

    def sample(self, scene: Scene, rng: np.random.Generator) -> Detections:
        """Detections of one scene, in random order, inside its frame and nowhere thinner than a pixel."""
        width, height = scene.frame
        n = len(scene.labels)
        _check_labels(scene.labels, len(self.recall), f"scene {scene.name}")
        right = np.flatnonzero(rng.random(n) < self.recall[scene.labels])
        right = np.concatenate([right, right[rng.random(len(right)) < self.assumed.duplicates]])
        wrong = self._number_false(rng)
        chosen = rng.integers(0, n, rng.binomial(wrong, self.assumed.co_located)) if n else right
        free = np.searchsorted(self._free, rng.random(wrong - len(chosen)), side="right")
        mistaken = self._mistakes[scene.labels[chosen]] <= rng.random((len(chosen), 1))  # [n, C]

        on_true = np.concatenate([right, chosen])
        near = scene.boxes[on_true]
        sides = np.tile(near[:, 2:] - near[:, :2], 2)
        near = near + self.assumed.jitter * sides * rng.standard_normal(sides.shape)
        boxes = np.concatenate([near, self.boxes[free] * [width, height, width, height]])
        labels = np.concatenate([scene.labels[right], mistaken.sum(1), self.labels[free]])
        order = rng.permutation(len(labels))
        scores = self._confidences(len(right), wrong, rng)
        return Detections(scene.name, _inside(boxes, width, height)[order], labels[order], scores[order], scene.frame)

    def summary(self) -> dict[str, float]:
        """What was fitted: boxes per training image (duplicates are right ones), and means over boxes."""
        right = float(self.recall @ self.frequency) * (1 + self.assumed.duplicates)
        middles = self.levels.mean(1)
        return {
            "right_per_image": right,
            "false_per_image": self.false_mean,
            "recall": float(self.recall @ self.frequency / self.frequency.sum()),
            "precision": right / (right + self.false_mean),
            "confidence_right": float(self.right @ middles),
            "confidence_wrong": float(self.wrong @ middles),
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything by name, ready to be saved beside a model's weights."""
        fitted = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "assumed"}
        return {name: np.asarray(value) for name, value in (fitted | vars(self.assumed)).items()}

    def __repr__(self) -> str:
        return f"DetectionNoise({', '.join(f'{name} {value:.3g}' for name, value in self.summary().items())})"

    def _number_false(self, rng: np.random.Generator) -> int:
        """Poisson, or negative binomial where the detector's numbers vary more."""
        mean, excess = self.false_mean, self.false_variance - self.false_mean
        varies = min(mean, excess) > 0
        return int(rng.poisson(rng.gamma(mean**2 / excess, excess / mean) if varies else mean))

    def _confidences(self, right: int, wrong: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        u = rng.random(right + wrong)
        parts = zip(self._cumulated, (u[:right], u[right:]), strict=True)
        bins = np.concatenate([np.searchsorted(total, part, side="right") for total, part in parts])
        place, part = np.divmod(rng.random(len(u)) * (self.levels.shape[1] - 1), 1)
        place = place.astype(np.int64)
        low, high = self.levels[bins, place], self.levels[bins, place + 1]
        scores: np.ndarray = np.clip(low + part * (high - low), _TINY, 1)
        return scores

    @cached_property
    def _cumulated(self) -> tuple[np.ndarray, np.ndarray]:
        return _cumulate(self.right), _cumulate(self.wrong)

    @cached_property
    def _free(self) -> np.ndarray:
        return _cumulate(self.weights)

    @cached_property
    def _mistakes(self) -> np.ndarray:
        return _cumulate(self.confusion)


def _in_shares(image: Detections, sizes: Mapping[str, tuple[float, float]]) -> Float[np.ndarray, "N 4"]:
    """The boxes as shares of their frame."""
    size = image.size or sizes.get(image.image)
    if size is None or not (size[0] > 0 and size[1] > 0):
        raise PolyadicError(
            f"DetectionNoise: the frame of {image.image} must have a width and a height, got {size}; "
            "give Detections.size, or sizes={image: (width, height)}"
        )
    shares: np.ndarray = image.boxes / [*size, *size]
    return shares


def _check_labels(labels: Int[np.ndarray, " N"], C: int, where: str) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < C:
        wrong = labels[(labels < 0) | (labels >= C)][0]
        raise PolyadicError(f"DetectionNoise: label {wrong} of {where} is outside the {C} classes (counted from 0)")


def _posterior(
    precision: Float[np.ndarray, " C"], right: Float[np.ndarray, " K"], wrong: Float[np.ndarray, " K"]
) -> Float[np.ndarray, "C K"]:
    """P(right | class, bin of confidence)."""
    a, b = np.outer(precision, right), np.outer(1 - precision, wrong)
    posterior: np.ndarray = a / (a + b)
    return posterior


def _split(
    counts: Float[np.ndarray, "C K"], precision: Float[np.ndarray, " C"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Histograms of confidence of right and wrong detections, by EM: each class mixes them by its precision.

    Classes of unlike precision tell them apart; were all alike, the start decides: right ones lean to the top.
    """
    total = counts.sum(0) + 1
    rank = (total.cumsum() - total / 2) / total.sum()
    right, wrong = ((total * lean) / (total * lean).sum() for lean in (1 + 2 * rank, 3 - 2 * rank))
    for _ in range(500):
        expected = counts * _posterior(precision, right, wrong)
        right, wrong = (x.sum(0) + 0.01 * total / total.sum() for x in (expected, counts - expected))  # against 0 / 0
        right, wrong = right / right.sum(), wrong / wrong.sum()
    return right, wrong


def _confusion(
    images: list[Detections], doubt: Float[np.ndarray, " N"], false: Float[np.ndarray, " C"]
) -> Float[np.ndarray, "C C"]:
    """From pairs of detections at one place under two labels: how likely the first is right and the second wrong."""
    C = len(false)
    pairs, start = np.zeros((C, C)), 0
    for image in images:
        n = len(image)
        unsure, start = doubt[start : start + n], start + n
        boxes = torch.from_numpy(image.boxes)
        i, j = np.nonzero((box_iou(boxes[:, None], boxes) > _OVERLAP).numpy())
        np.add.at(pairs, (image.labels[i], image.labels[j]), (1 - unsure[i]) * unsure[j])
    pairs += _PRIOR_PAIRS * (false + 1) / (false + 1).sum()
    np.fill_diagonal(pairs, 1.0 if C == 1 else 0.0)  # same label: a duplicate; one class has no other
    confusion: np.ndarray = pairs / pairs.sum(1, keepdims=True)
    return confusion


def _variance_of_right(train: Dataset, recall: Float[np.ndarray, " C"], duplicates: float) -> float:
    """Of the number of right boxes in an image: of its mean between scenes, and of chance within one."""
    chances = [recall[scene.labels] for scene in train]
    means = np.array([p.sum() for p in chances]) * (1 + duplicates)
    p = np.concatenate(chances)
    return float(means.var() + (p * (1 + 3 * duplicates) - (p * (1 + duplicates)) ** 2).sum() / len(train))


def _cumulate(p: np.ndarray) -> np.ndarray:
    total = p.cumsum(-1)
    cumulated: np.ndarray = total / total[..., -1:]
    return cumulated


def _inside(boxes: Float[np.ndarray, "N 4"], width: float, height: float) -> Float[np.ndarray, "N 4"]:
    """Cut at the frame; a side thinner than a pixel, or than a frame of less, is widened."""
    frame = np.array([width, height])
    least = np.minimum(1.0, frame / 2)
    low = np.clip(boxes[:, :2], 0, frame - least)
    return np.concatenate([low, np.clip(boxes[:, 2:], low + least, frame)], axis=1)
