"""Match predictions with ground truths: images as flat arrays, so that compiled loops process many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.evaluation import kernel
from polyadic.evaluation.protocol import TASKS, Protocol
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError

LARGEST_CLASS = (1 << 20) - 1  # three of them fit in one number of 64 bits
_UNIT = 2.0**40
_SAME_BOX = 0.501  # pixels: neural-motifs truncates halves, and scales to 592 pixels and back in float32


@dataclass
class Batch:
    """Images as flat arrays; what several protocols share is computed once."""

    scenes: list[Scene]
    absent: Bool[np.ndarray, " I"]  # images that count as without predictions
    off: Int[np.ndarray, " I1"]
    boxes: Float[np.ndarray, "N 4"]
    box_off: Int[np.ndarray, " I1"]
    pairs: Int[np.ndarray, "M 2"]  # boxes of their image
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
    def of(cls, images: Sequence[tuple[Scene, Relations | None, bool]]) -> Batch:
        """Concatenate images: (scene, predictions, whether these count as none)."""
        scenes = [scene for scene, _, _ in images]
        answers = [_EMPTY if p is None else p if p.size is None else p.in_frame(scene.frame) for scene, p, _ in images]
        off = _offsets([len(p.scores) for p in answers])
        truths = [scene.triplets for scene in scenes]
        every = np.concatenate(truths)
        triplets = np.concatenate([p.triplets for p in answers])
        return cls(
            scenes,
            np.array([none for _, _, none in images]),
            off,
            np.concatenate([p.boxes for p in answers]),
            _offsets([len(p.boxes) for p in answers]),
            np.concatenate([p.pairs for p in answers]),
            triplets,
            triplet_keys(triplets),
            np.concatenate([p.scores for p in answers]),
            _offsets([len(rows) for rows in truths]),
            np.concatenate([scene.pair_boxes for scene in scenes]),
            every,
            triplet_keys(every),
        )

    def ranks(self, protocol: Protocol, top: int) -> Int[np.ndarray, " T"]:
        """Return for each ground truth the rank of the prediction that hits it, or `kernel.NONE`."""
        by_label = protocol.k_unit == "predicate"
        phrase, many = protocol.task == "phrase", protocol.match == "many-to-one"
        last = protocol.tie == "last"
        top = min(top, max(1, int(np.diff(self.off).max())))
        cut = (protocol.k or 0, by_label and protocol.k is not None, top)
        how = (phrase, many, last and not many, protocol.iou, protocol.iou_offset)
        if cut not in self._kept:
            self._kept[cut] = kernel.keep_best(self.off, self.scores, self.pairs, self.triplets, *cut)
        if (cut, how) not in self._ranks:
            predicted = self._kept[cut], self.box_off, self.boxes, self.pairs, self.keys
            annotated = self.truth_off, self.truth_boxes, self.truth_keys
            self._ranks[cut, how] = kernel.hit_ranks(*predicted, *annotated, *how)
        return self._ranks[cut, how]

    def check_true_boxes(self, labels: bool) -> None:
        """Refuse predictions on other boxes (or labels) than the annotated ones, which classification starts from."""
        for i, scene in enumerate(self.scenes):
            rows = slice(self.off[i], self.off[i + 1])
            used, index = np.unique(self.pairs[rows], return_inverse=True)
            distance = np.abs(self.boxes[self.box_off[i] + used][:, None] - scene.boxes)
            same = (distance <= _SAME_BOX).all(2)  # [boxes used, true boxes]
            if labels:
                known = np.zeros((len(used), 1 + max(self._largest_label(rows), *scene.labels.tolist(), 0)), bool)
                at, true = np.nonzero(same)
                known[at, scene.labels[true]] = True
                fits = known[index.reshape(-1, 2), self.triplets[rows][:, ::2]]  # [M, 2]
            else:
                fits = same.any(1)[index.reshape(-1, 2)]
            if not fits.all():
                row, end = np.argwhere(~fits)[0]
                task, what = (TASKS[3], "boxes and labels") if labels else (TASKS[2], "boxes")
                raise PolyadicError(
                    f"{scene.name}: {task} starts from the {len(scene.boxes)} true {what}, but the "
                    f"{('subject', 'object')[end]} of prediction {row} is none of them"
                )

    def _largest_label(self, rows: slice) -> int:
        return int(self.triplets[rows][:, ::2].max(initial=0))


def triplet_keys(triplets: Int[np.ndarray, "M 3"]) -> Int[np.ndarray, " M"]:
    """Return one number per triplet, equal for equal triplets; classes stay below a million."""
    keys: np.ndarray = (triplets[:, 0] << 40) + (triplets[:, 1] << 20) + triplets[:, 2]
    return keys


def seen_keys(seen: Int[np.ndarray, "M 3"] | None, protocols: Sequence[Protocol]) -> Int[np.ndarray, " K"]:
    """Return the training triplets as sorted keys; zero-shot protocols need them."""
    if seen is None and any(protocol.subset == "zero-shot" for protocol in protocols):
        raise PolyadicError("zero-shot recall needs the training triplets (seen=...)")
    rows = np.asarray([] if seen is None else seen)
    rows = np.zeros((0, 3), np.int64) if rows.size == 0 else rows
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu":
        raise PolyadicError(f"seen must be whole numbers [n, 3], got {rows.dtype} {list(rows.shape)}")
    return np.sort(triplet_keys(rows.astype(np.int64)))


def among(keys: Int[np.ndarray, " M"], ascending: Int[np.ndarray, " K"]) -> Bool[np.ndarray, " M"]:
    """Return whether each key is one of `ascending`."""
    at = np.searchsorted(ascending, keys)
    known: np.ndarray = np.append(ascending, -1)[at] == keys
    return known


def image_share(n: Int[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """Return 1/n in units of 2^-40: sums over millions of images are exact, in any order.

    >>> image_share(np.array([1, 4])) == (2**40, 2**38)
    array([ True,  True])
    """
    share: np.ndarray = np.rint(_UNIT / n).astype(np.int64)
    return share


def check_image(scene: Scene, predictions: Relations | None) -> None:
    """Refuse predictions of another image."""
    if predictions is not None and predictions.image != scene.name:
        raise PolyadicError(f"predictions of {predictions.image!r} were given for the image {scene.name!r}")


def _offsets(lengths: Sequence[int]) -> Int[np.ndarray, " I1"]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


_EMPTY = Relations("", np.zeros((0, 4)), np.zeros((0, 2), np.int64), np.zeros((0, 3), np.int64), np.zeros(0))


def paired(scenes: Iterable[Scene], predictions: Iterable[Relations]) -> Iterator[tuple[Scene, Relations | None]]:
    """Yield each scene with its predictions, in the order of the predictions; scenes without any come last.

    A prediction for an unknown image, or a second one for the same image, is an error.
    """
    waiting: dict[str, Scene] = {}
    for scene in scenes:
        if scene.name in waiting:
            raise PolyadicError(f"scenes: image {scene.name!r} occurs twice")
        waiting[scene.name] = scene
    names = set(waiting)
    for answer in predictions:
        if not isinstance(answer, Relations):
            raise PolyadicError(f"predictions must be Relations, one per image, got a {type(answer).__name__}")
        scene_of_answer = waiting.pop(answer.image, None)
        if scene_of_answer is None:
            why = "occurs twice" if answer.image in names else f"is none of the {len(names):,} images evaluated"
            raise PolyadicError(f"predictions: image {answer.image!r} {why}")
        yield scene_of_answer, answer
    yield from ((scene, None) for scene in waiting.values())
