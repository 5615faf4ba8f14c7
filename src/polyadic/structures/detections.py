"""A detector's boxes of one image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from polyadic.structures.images import Photo
from polyadic.structures.labels import (
    UNKNOWN,
    LabelMap,
    MappedLabels,
    NameMapping,
    NameMatcher,
    UnknownPolicy,
    map_names,
    read_mapping,
    warn_dropped,
)
from polyadic.structures.scenes import check_boxes, check_lengths, equal, freeze, scale_boxes
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

Size: TypeAlias = tuple[float, float] | None  # (width, height)
ABOVE_ONE = 1e-5  # a softmax in float32 may round up to this
SAME_SHAPE = 0.03  # the largest difference of log(width / height), of copies with rounded sides
MOST_BOXES = 3000  # of one image: nine million ordered pairs
OVERSHOOT = 1.05  # boxes may reach this far beyond a photo before they count as those of another frame


@dataclass(frozen=True, eq=False)
class Detections:
    """A detector's boxes of one image.

    The `from_...` constructors take the output of other detectors. They match its class names with the vocabulary's
    objects; `mapping` (names to names, or a JSON or TOML file of them) covers the rest. Boxes of other classes are
    dropped with a warning, or kept as UNKNOWN.

    `size` is the frame of the boxes, (width, height). None means the frame of whatever the boxes are matched with:
    the annotated frame of a dataset's scene (`in_frame(scene.frame)`, `predict(scene.photo(), ...)`), or the upright
    pixels of a bare photo (`on_photo`). A photo may be stored at another size than it was annotated at: to predict on
    such photos, set `size`.
    """

    image: str
    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]  # of the vocabulary's objects, or UNKNOWN
    scores: Float[np.ndarray, " N"]  # P(label | box), in [0, 1]
    size: tuple[float, float] | None = None  # None: see above
    _: KW_ONLY
    distribution: Float[np.ndarray, "N C"] | None = None  # P(class | box) of all classes, where the detector gives it
    source: Shaped[np.ndarray, " N"] | None = None  # the name of the detector that saw the box, where several looked

    def __post_init__(self) -> None:
        where = f"Detections of {self.image}"
        freeze(self, where, boxes=(np.float64, 4), labels=(np.int64, 0), scores=(np.float64, 0))
        check_lengths(where, boxes=self.boxes, labels=self.labels, scores=self.scores)
        check_boxes(self.boxes, where)
        wrong = ~((self.scores >= 0) & (self.scores <= 1))
        if wrong.any():
            at = int(wrong.argmax())
            raise PolyadicError(f"{where}: score {at} must lie in [0, 1], got {self.scores[at]}")
        object.__setattr__(self, "size", check_frame(self.size, where))
        if (self.labels < UNKNOWN).any():
            raise PolyadicError(f"{where}: labels count from 0, or are {UNKNOWN} (unknown), got {self.labels.min()}")
        if self.distribution is not None:
            self._check_distribution(where)
        if self.source is not None:
            self._check_source(where)

    def _check_distribution(self, where: str) -> None:
        array = np.asarray(self.distribution)
        if array.ndim != 2 or len(array) != len(self) or array.dtype.kind != "f":
            raise PolyadicError(
                f"{where}: distribution must be numbers [{len(self)}, classes], got {array.dtype} {list(array.shape)}"
            )
        if not ((array >= 0) & (array <= 1 + 1e-3)).all() or (array.sum(1) > 1 + 1e-2).any():
            raise PolyadicError(f"{where}: each row of distribution must be probabilities with a sum of at most 1")
        object.__setattr__(self, "distribution", np.ascontiguousarray(array, np.float32))

    def _check_source(self, where: str) -> None:
        array = np.asarray(self.source)
        if array.shape != (len(self),) or (array.size and array.dtype.kind != "U"):
            raise PolyadicError(f"{where}: source must be names [{len(self)}], got {array.dtype} {list(array.shape)}")
        object.__setattr__(self, "source", array.astype(np.str_))

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, rows: Bool[np.ndarray, " N"] | Int[np.ndarray, " M"]) -> Detections:
        """Select boxes by index or by mask."""
        return replace(
            self,
            boxes=self.boxes[rows],
            labels=self.labels[rows],
            scores=self.scores[rows],
            distribution=None if self.distribution is None else self.distribution[rows],
            source=None if self.source is None else self.source[rows],
        )

    @classmethod
    def join(cls, *witnesses: Detections, names: Sequence[str] = ()) -> Detections:
        """Put together the boxes that several detectors found in one image, in the order given.

        `source` is the detector's of `names` (default: 0, 1, ...); boxes that have a source keep it. If only some
        detectors give class distributions, those of the other boxes are all zeros: unknown.

        >>> names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
        >>> a = Detections.from_arrays([[0, 0, 9, 9]], ["person"], vocabulary=names)
        >>> b = Detections.from_arrays([[1, 0, 9, 9], [5, 5, 20, 20]], ["person", "horse"], vocabulary=names)
        >>> Detections.join(a, b, names=["yolox", "deim"]).source.tolist()
        ['yolox', 'deim', 'deim']
        """
        if not witnesses or len(names) not in (0, len(witnesses)):
            raise PolyadicError(f"Detections.join: got {len(witnesses)} detections and {len(names)} names")
        first = witnesses[0]
        for other in witnesses[1:]:
            if (other.image, other.size) != (first.image, first.size):
                raise PolyadicError(
                    f"Detections.join: expected one image in one frame, got {first.image!r} of size {first.size} and "
                    f"{other.image!r} of size {other.size}; see Detections.in_frame"
                )
        sources: list[np.ndarray] = []
        known = 0  # detectors so far
        for at, one in enumerate(witnesses):
            name = names[at] if names else str(known)
            sources.append(np.full(len(one), name) if one.source is None else one.source)
            known += 1 if one.source is None else len(np.unique(one.source))
        return cls(
            first.image,
            np.concatenate([one.boxes for one in witnesses]),
            np.concatenate([one.labels for one in witnesses]),
            np.concatenate([one.scores for one in witnesses]),
            first.size,
            distribution=_join_distributions(witnesses),
            source=np.concatenate(sources),
        )

    def in_frame(self, size: tuple[float, float]) -> Detections:
        """Scale the boxes to a frame of this size; boxes without `size` are in it already."""
        boxes = self.boxes if self.size is None else scale_boxes(self.boxes, self.size, size)
        return replace(self, boxes=boxes, size=(float(size[0]), float(size[1])))

    def on_photo(self, photo: Photo) -> Detections:
        """Scale the boxes to a photo's upright frame.

        Boxes in the frame of the stored rows and columns (of a detector that ignores EXIF) are turned with the photo.
        Boxes without `size` must fit into the photo: others were found on a copy of another size. A `size` whose width
        and height are swapped is refused.
        """
        if self.size is None and len(self):
            right, bottom = self.boxes[:, 2:].max(0)
            if right > photo.size[0] * OVERSHOOT or bottom > photo.size[1] * OVERSHOOT:
                raise PolyadicError(
                    f"{self.image}: boxes reach {right:.0f} x {bottom:.0f} pixels, but the photo has "
                    f"{photo.size[0]:.0f} x {photo.size[1]:.0f}; give the frame of the boxes as size (width, height)"
                )
        if self.size == photo.stored != photo.size:
            return replace(self, boxes=photo.upright(self.boxes), size=photo.size)
        if self.size is not None and _is_swapped(self.size, photo.size):
            raise PolyadicError(
                f"{self.image}: the size of its boxes is {self.size[0]:g} x {self.size[1]:g}, but the photo has "
                f"{photo.size[0]:g} x {photo.size[1]:g}; give size as (width, height) of the upright photo"
            )
        return self.in_frame(photo.size)

    def inside(self, size: tuple[float, float]) -> Detections:
        """Scale the boxes to a frame of this size and clip them to it; boxes left without area are dropped."""
        scaled = self.in_frame(size)
        boxes = scaled.boxes.clip(0, np.asarray([*size, *size]))
        return replace(scaled, boxes=boxes).take(np.asarray((boxes[:, 2:] > boxes[:, :2]).all(1)))

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
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
    ) -> Detections:
        """Take lists, arrays or tensors: boxes [N, 4]; N labels, names or indices of the vocabulary; N scores, or 1.

        >>> names = Vocabulary(objects=("person", "horse"), predicates=("ride",))
        >>> Detections.from_arrays([[10, 20, 50, 90], [5, 40, 80, 99]], ["Person", "horses"], vocabulary=names).labels
        array([0, 1])
        """
        given = _array(labels, f"{image}: labels")
        if given.size and given.dtype.kind not in "UO":
            if mapping is not None:
                raise PolyadicError(f"{image}: a mapping is for names, but labels are numbers ({given.dtype})")
            numbers = _integers(given, image)
            wrong = (numbers < UNKNOWN) | (numbers >= len(vocabulary.objects))
            if wrong.any():
                last = len(vocabulary.objects) - 1
                raise PolyadicError(f"{image}: labels are names, or indices from 0 to {last}, got {numbers[wrong][0]}")
            names = ["" if label == UNKNOWN else vocabulary.objects[label] for label in numbers]
        else:
            names = _strings(given, image)
        mapped = map_names(names, NameMatcher(vocabulary, read_mapping(mapping)), unknown)
        warn_dropped(image, mapped.unknown, unknown)
        return assemble(image, boxes, scores, mapped=mapped, count=len(names), size=size)

    @classmethod
    def from_torchvision(
        cls,
        output: Any,
        names: Sequence[str] | Mapping[int, str],
        vocabulary: Vocabulary,
        *,
        image: str = "image",
        size: Size = None,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
    ) -> Detections:
        """Take one image's dict of boxes, labels, scores; `names` are `weights.meta["categories"]`."""
        label_map = LabelMap.match(names, vocabulary, mapping)
        return _from_dict(output, label_map, unknown, image=image, size=size)

    @classmethod
    def from_transformers(
        cls,
        output: Any,
        id2label: Mapping[int, str] | None,
        vocabulary: Vocabulary,
        *,
        image: str = "image",
        size: Size = None,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
    ) -> Detections:
        """Take one image's dict of `post_process_object_detection`; `id2label` is the model's, `model.config.id2label`.

        Boxes are in pixels of the `target_sizes` given there, (height, width) each. The output of
        `post_process_grounded_object_detection` needs no `id2label`: it names the boxes itself, in `text_labels`.
        """
        texts = output.get("text_labels") if isinstance(output, Mapping) else None
        if texts is not None and {"boxes", "scores"} <= output.keys():
            options: Any = {"vocabulary": vocabulary, "mapping": mapping, "unknown": unknown}
            return cls.from_arrays(output["boxes"], list(texts), output["scores"], image=image, size=size, **options)
        if id2label is None:
            raise PolyadicError(f"{image}: the output has no text_labels, so id2label is needed")
        names = {int(label): name for label, name in id2label.items()}
        label_map = LabelMap.match(names, vocabulary, mapping)
        return _from_dict(output, label_map, unknown, image=image, size=size)

    @classmethod
    def from_supervision(
        cls,
        detections: Any,
        vocabulary: Vocabulary,
        names: Sequence[str] | Mapping[int, str] | None = None,
        *,
        image: str = "image",
        size: Size = None,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
    ) -> Detections:
        """Take a `supervision.Detections`; `names` of its class_id where it has no data["class_name"]."""
        boxes = _attribute(detections, "xyxy", image, "supervision.Detections")
        class_names = (getattr(detections, "data", None) or {}).get("class_name")
        if class_names is not None:
            strings = _strings(_array(class_names, f"{image}: class_name"), image)
            mapped, count = map_names(strings, NameMatcher(vocabulary, read_mapping(mapping)), unknown), len(strings)
        elif detections.class_id is not None and (names is not None or len(detections.class_id) == 0):
            label_map = LabelMap.match(vocabulary.objects if names is None else names, vocabulary, mapping)
            mapped, count = apply(label_map, detections.class_id, unknown, image), len(detections.class_id)
        else:
            raise PolyadicError(f'{image}: expected data["class_name"], or class_id with names=[...]')
        warn_dropped(image, mapped.unknown, unknown)
        return assemble(image, boxes, detections.confidence, mapped=mapped, count=count, size=size)

    @classmethod
    def from_ultralytics(
        cls,
        result: Any,
        vocabulary: Vocabulary,
        *,
        image: str | None = None,
        size: Size = None,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
    ) -> Detections:
        """Take one image's `Results`, which has its class names, its size and the name of its file."""
        boxes = _attribute(result, "boxes", image or "image", "ultralytics' Results: one image's, result[0],")
        name = image or Path(str(getattr(result, "path", "") or "image")).name
        if boxes is None:
            raise PolyadicError(f"{name}: the result has no boxes; use a detection model")
        height, width = result.orig_shape
        mapped = apply(LabelMap.match(result.names, vocabulary, mapping), boxes.cls, unknown, name)
        warn_dropped(name, mapped.unknown, unknown)
        return assemble(name, boxes.xyxy, boxes.conf, mapped=mapped, count=len(boxes.cls), size=size or (width, height))

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    __hash__ = None  # type: ignore[assignment]


def assemble(image: str, boxes: Any, scores: Any, *, mapped: MappedLabels, count: int, size: Any) -> Detections:
    """Check all `count` boxes and select those that stay."""
    corners = _floats(boxes, f"{image}: boxes")
    confidences = np.ones(count) if scores is None else _floats(scores, f"{image}: scores")
    if corners.shape[:1] != (count,) or confidences.shape != (count,):
        shapes = f"boxes {list(corners.shape)}, labels [{count}], scores {list(confidences.shape)}"
        raise PolyadicError(f"{image}: expected boxes [n, 4], labels [n] and scores [n], got {shapes}")
    everything = Detections(
        image,
        corners if corners.size else np.zeros((0, 4)),
        np.zeros(count, np.int64),
        np.where((confidences > 1) & (confidences <= 1 + ABOVE_ONE), 1.0, confidences),
        check_frame(size, image),
    )
    return replace(everything.take(mapped.rows), labels=mapped.labels)


def _join_distributions(witnesses: Sequence[Detections]) -> Float[np.ndarray, "N C"] | None:
    widths = {one.distribution.shape[1] for one in witnesses if one.distribution is not None}
    if not widths:
        return None
    classes, highest = max(widths), max(int(one.labels.max(initial=0)) for one in witnesses)
    if len(widths) > 1 or highest >= classes:
        raise PolyadicError(
            f"{witnesses[0].image}: detections to join need one vocabulary, got distributions over "
            f"{' and '.join(map(str, sorted(widths)))} classes and labels up to {highest}"
        )
    rows = [
        np.zeros((len(one), classes), np.float32) if one.distribution is None else one.distribution for one in witnesses
    ]
    return np.concatenate(rows)


def _is_swapped(size: tuple[float, float], frame: tuple[float, float]) -> bool:
    """Return whether width : height of one is height : width of the other, and neither is nearly a square."""
    shape, other = np.log(size[0] / size[1]), np.log(frame[0] / frame[1])
    return bool(abs(shape + other) < SAME_SHAPE < abs(shape - other) / 2)


def check_number(image: str, boxes: int) -> None:
    """Refuse an image with too many boxes, before anything is computed for each pair of them."""
    if boxes > MOST_BOXES:
        raise PolyadicError(
            f"{image}: {boxes:,} boxes, more than the {MOST_BOXES:,} whose pairs fit into memory; keep those of the "
            "highest scores"
        )


def check_frame(size: Any, where: str) -> Size:
    """Convert (width, height) to floats above 0."""
    if size is None:
        return None
    try:
        width, height = map(float, size)
    except (TypeError, ValueError):
        width = height = 0.0
    if not (0 < width < np.inf and 0 < height < np.inf):
        raise PolyadicError(f"{where}: size must be (width, height) in pixels, got {size!r:.40}")
    return width, height


def apply(label_map: LabelMap, labels: Any, unknown: UnknownPolicy, image: str) -> MappedLabels:
    """Apply a label map with the image's name in errors; `labels` may be a tensor, or floats."""
    try:
        return label_map.apply(_integers(_array(labels, "labels"), image), unknown)
    except PolyadicError as error:
        text = str(error)
        raise PolyadicError(text if text.startswith(image) else f"{image}: {text}") from error


def _from_dict(output: Any, label_map: LabelMap, unknown: UnknownPolicy, *, image: str, size: Size) -> Detections:
    """Take a dict of boxes, labels, scores."""
    if not isinstance(output, Mapping):
        hint = "; give one image's, output[0]" if isinstance(output, list | tuple) else ""
        raise PolyadicError(f"{image}: expected a dict of boxes, labels, scores, got a {type(output).__name__}{hint}")
    missing = next((key for key in ("boxes", "labels", "scores") if key not in output), None)
    if missing:
        raise PolyadicError(f"{image}: no {missing!r} in the output, which has {', '.join(map(str, output)) or 'none'}")
    mapped = apply(label_map, output["labels"], unknown, image)
    warn_dropped(image, mapped.unknown, unknown, stacklevel=3)
    return assemble(image, output["boxes"], output["scores"], mapped=mapped, count=len(output["labels"]), size=size)


def _array(value: Any, where: str) -> np.ndarray:
    """Convert a list, an array, or a tensor on any device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PolyadicError(f"{where} must be one array ({reason:.80})") from error


def _floats(value: Any, where: str) -> Float[np.ndarray, "*X"]:
    array = _array(value, where)
    if array.dtype.kind not in "iuf":
        raise PolyadicError(f"{where} must be numbers, got {array.dtype} {list(array.shape)}")
    return array.astype(np.float64)


def _integers(array: np.ndarray, image: str) -> np.ndarray:
    """Convert labels to integers; some detectors give them as floats."""
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iuf" or array.ndim != 1 or (array.dtype.kind == "f" and not (array % 1 == 0).all()):
        raise PolyadicError(f"{image}: labels must be whole numbers [n], got {array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def _strings(array: np.ndarray, image: str) -> list[str]:
    if array.size and (array.ndim != 1 or not all(isinstance(name, str) for name in array.tolist())):
        raise PolyadicError(f"{image}: expected one class name per box, got {array.tolist()!r:.60}")
    return [str(name) for name in array.ravel()]


def _attribute(value: Any, name: str, image: str, expected: str) -> Any:
    if not hasattr(value, name):
        raise PolyadicError(f"{image}: expected {expected} with .{name}, got a {type(value).__name__}")
    return getattr(value, name)
