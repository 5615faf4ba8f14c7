"""A detector's boxes of one image, and scored triplets over such boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.scenes.values import check_boxes, check_indices, check_lengths, equal, freeze, scale_boxes
from polyadic.vocabulary import PolyadicError, Vocabulary

UNKNOWN = -1  # the label of a box whose class the vocabulary has no name for
Choice: TypeAlias = Literal["drop", "keep"]  # what becomes of such boxes
Own: TypeAlias = Mapping[str, str | None] | str | Path | None  # a user's mapping of names, or the file that holds it
Size: TypeAlias = tuple[float, float] | None  # (width, height)


@dataclass(frozen=True, eq=False)
class Detections:
    """A detector's boxes of one image.

    `from_...` take the output of other people's detectors. There, classes are matched with the vocabulary's objects by
    name; `mapping` (names to names, or a JSON or TOML file of them) tells what names do not. Boxes of other classes are
    dropped with a warning, or kept as UNKNOWN.
    """

    image: str
    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]  # of the vocabulary's objects, or UNKNOWN
    scores: Float[np.ndarray, " N"]  # P(label | box), in [0, 1]
    size: tuple[float, float] | None = None  # the frame of the boxes; None: the annotated one
    distribution: Float[np.ndarray, "N C"] | None = None  # P(class | box) of all classes, where the detector tells it

    def __post_init__(self) -> None:
        where = f"Detections of {self.image}"
        freeze(self, where, boxes=(np.float64, 4), labels=(np.int64, 0), scores=(np.float64, 0))
        check_lengths(where, boxes=self.boxes, labels=self.labels, scores=self.scores)
        check_boxes(self.boxes, where)
        wrong = ~((self.scores >= 0) & (self.scores <= 1))
        if wrong.any():
            at = int(wrong.argmax())
            raise PolyadicError(f"{where}: score {at} must lie in [0, 1], got {self.scores[at]}")
        if self.size is not None:
            object.__setattr__(self, "size", (float(self.size[0]), float(self.size[1])))
        if (self.labels < UNKNOWN).any():
            raise PolyadicError(f"{where}: labels count from 0, or are {UNKNOWN} (unknown), got {self.labels.min()}")
        if self.distribution is not None:
            self._check_distribution(where)

    def _check_distribution(self, where: str) -> None:
        array = np.asarray(self.distribution)
        if array.ndim != 2 or len(array) != len(self) or array.dtype.kind != "f":
            raise PolyadicError(
                f"{where}: distribution must be numbers [{len(self)}, classes], got {array.dtype} {list(array.shape)}"
            )
        if not ((array >= 0) & (array <= 1 + 1e-3)).all() or (array.sum(1) > 1 + 1e-2).any():
            raise PolyadicError(f"{where}: each row of distribution must be probabilities with a sum of at most 1")
        object.__setattr__(self, "distribution", np.ascontiguousarray(array, np.float32))

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, rows: Bool[np.ndarray, " N"] | Int[np.ndarray, " M"]) -> Detections:
        """Some of the boxes, by index or by mask."""
        distribution = None if self.distribution is None else self.distribution[rows]
        return replace(
            self,
            boxes=self.boxes[rows],
            labels=self.labels[rows],
            scores=self.scores[rows],
            distribution=distribution,
        )

    def inside(self, size: tuple[float, float]) -> Detections:
        """In a frame of this size, cut off at its edges; boxes of which nothing is left, or that have no area, go."""
        boxes = self.boxes if self.size is None else scale_boxes(self.boxes, self.size, size)
        boxes = boxes.clip(0, np.asarray([*size, *size]))
        kept = np.asarray((boxes[:, 2:] > boxes[:, :2]).all(1))
        return replace(self, boxes=boxes, size=(float(size[0]), float(size[1]))).take(kept)

    @classmethod
    def from_arrays(
        cls,
        boxes: Any,
        labels: Any,
        scores: Any = None,
        *,
        vocabulary: Vocabulary,
        image: str = "image",
        size: Size = None,
        mapping: Own = None,
        unknown: Choice = "drop",
    ) -> Detections:
        """Lists, arrays or tensors: boxes [N, 4]; N labels, names or indices of the vocabulary; N scores, by default 1.

        >>> names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
        >>> Detections.from_arrays([[10, 20, 50, 90], [5, 40, 80, 99]], ["Person", "horses"], vocabulary=names).labels
        array([0, 1])
        """
        from polyadic.scenes import foreign

        return foreign.from_arrays(boxes, labels, scores, vocabulary, image, size, mapping, unknown)

    @classmethod
    def from_torchvision(
        cls,
        output: Any,
        names: Sequence[str] | Mapping[int, str],
        vocabulary: Vocabulary,
        *,
        image: str = "image",
        size: Size = None,
        mapping: Own = None,
        unknown: Choice = "drop",
    ) -> Detections:
        """One image's dict of boxes, labels, scores; `names` are `weights.meta["categories"]`."""
        from polyadic.scenes import foreign

        return foreign.from_torchvision(output, names, vocabulary, image, size, mapping, unknown)

    @classmethod
    def from_coco_results(
        cls,
        records: Any,
        categories: Any,
        vocabulary: Vocabulary,
        *,
        images: Any = None,
        mapping: Own = None,
        unknown: Choice = "drop",
    ) -> dict[str, Detections]:
        """COCO's results, a list or a file of {image_id, category_id, bbox [x, y, width, height], score}, by image.

        `categories` and `images` are COCO's lists, or a COCO file (or its content) that has them. With images, keys
        are their file names, and those without results are there, empty; without, keys are ids.
        """
        from polyadic.scenes import coco_results

        return coco_results.from_coco_results(records, categories, vocabulary, images, mapping, unknown)

    @classmethod
    def from_supervision(
        cls,
        detections: Any,
        vocabulary: Vocabulary,
        names: Sequence[str] | Mapping[int, str] | None = None,
        *,
        image: str = "image",
        size: Size = None,
        mapping: Own = None,
        unknown: Choice = "drop",
    ) -> Detections:
        """A `supervision.Detections`; `names` of its class_id where it has no data["class_name"]."""
        from polyadic.scenes import foreign

        return foreign.from_supervision(detections, vocabulary, names, image, size, mapping, unknown)

    @classmethod
    def from_ultralytics(
        cls,
        result: Any,
        vocabulary: Vocabulary,
        *,
        image: str | None = None,
        size: Size = None,
        mapping: Own = None,
        unknown: Choice = "drop",
    ) -> Detections:
        """One image's `Results`; it knows its names, its size and the name of its file."""
        from polyadic.scenes import foreign

        return foreign.from_ultralytics(result, vocabulary, image, size, mapping, unknown)

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scored triplets of one image, in any order; `pairs` are (subject box, object box), indices into `boxes`.

    `labels` and `confidences` of the boxes are the detector's, where it has told them.
    """

    image: str
    boxes: Float[np.ndarray, "N 4"]
    pairs: Int[np.ndarray, "M 2"]
    triplets: Int[np.ndarray, "M 3"]
    scores: Float[np.ndarray, " M"]
    labels: Int[np.ndarray, " N"] | None = None
    confidences: Float[np.ndarray, " N"] | None = None
    size: tuple[float, float] | None = None  # the frame of the boxes; None: the annotated one

    def __post_init__(self) -> None:
        where = f"Predictions of {self.image}"
        freeze(self, where, boxes=(np.float64, 4), pairs=(np.int64, 2), triplets=(np.int64, 3), scores=(np.float64, 0))
        check_lengths(where, pairs=self.pairs, triplets=self.triplets, scores=self.scores)
        if not np.isfinite(self.scores).all():
            at = int((~np.isfinite(self.scores)).argmax())
            raise PolyadicError(f"{where}: score {at} must be a finite number, got {self.scores[at]}")
        check_indices(self.pairs, len(self.boxes), f"{where}: pairs point to box")
        check_boxes(self.boxes, where)
        if (self.labels is None) != (self.confidences is None):
            raise PolyadicError(f"{where}: labels and confidences of the boxes come together or not at all")
        if self.labels is not None:
            freeze(self, where, labels=(np.int64, 0), confidences=(np.float64, 0))
            Detections(self.image, self.boxes, self.labels, np.asarray(self.confidences))  # checks them

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def detections(self) -> Detections | None:
        """The boxes with the detector's labels and confidences, if known."""
        if self.labels is None or self.confidences is None:
            return None
        return Detections(self.image, self.boxes, self.labels, self.confidences, self.size)

    def in_frame(self, size: tuple[float, float]) -> Predictions:
        """With boxes in a frame of this size, the annotated one."""
        if self.size is None or tuple(self.size) == tuple(size):
            return self
        return replace(self, boxes=scale_boxes(self.boxes, self.size, size), size=size)

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    __hash__ = None  # type: ignore[assignment]
