"""Annotated scenes, and a dataset of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.images import Photo, open_image
from polyadic.structures.inputs import regular_file
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image


def scale_boxes(
    boxes: Float[np.ndarray, "N 4"], old: tuple[float, float], new: tuple[float, float]
) -> Float[np.ndarray, "N 4"]:
    """Scale boxes from a frame of size `old` to one of size `new`."""
    factors: np.ndarray = np.asarray([*new, *new]) / np.asarray([*old, *old])
    scaled: np.ndarray = boxes * factors
    return scaled


def freeze(value: object, where: str, **columns: tuple[type, int]) -> None:
    """Set fields to arrays of their dtype and width (0 for a vector); an empty list has every width."""
    for name, (dtype, width) in columns.items():
        try:
            array = np.asarray(getattr(value, name))
        except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on a GPU
            reason = str(error).splitlines()[0]
            raise PolyadicError(f"{where}: {name} must be numbers that NumPy can hold ({reason})") from error
        if array.size == 0:
            array = np.zeros((0, width) if width else 0, dtype)
        if array.dtype.kind not in ("iu" if dtype is np.int64 else "iuf") or array.ndim != (2 if width else 1):
            shape = f"[n, {width}]" if width else "[n]"
            raise PolyadicError(f"{where}: {name} must be numbers {shape}, got {array.dtype} {list(array.shape)}")
        if width and array.shape[1] != width:
            raise PolyadicError(f"{where}: {name} must be [n, {width}], got {list(array.shape)}")
        object.__setattr__(value, name, np.ascontiguousarray(array, dtype))


def check_lengths(where: str, **columns: np.ndarray) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise PolyadicError(f"{where}: {', '.join(lengths)} need one length, got {list(lengths.values())}")


def check_indices(indices: np.ndarray, n: int, what: str) -> None:
    wrong = (indices < 0) | (indices >= n)
    if wrong.any():
        raise PolyadicError(f"{what} {indices[wrong][0]}, but there are {n} boxes (counted from 0)")


def check_boxes(boxes: Float[np.ndarray, "N 4"], where: str) -> None:
    wrong = ~(np.isfinite(boxes).all(1) & (boxes[:, 2:] >= boxes[:, :2]).all(1))
    if wrong.any():
        at = int(wrong.argmax())
        raise PolyadicError(
            f"{where}: box {at} must be finite [x1, y1, x2, y2] with x1 <= x2, y1 <= y2, got {boxes[at].tolist()}"
        )


def equal(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    for column in fields(a):  # type: ignore[arg-type]
        if not column.compare:
            continue
        x, y = getattr(a, column.name), getattr(b, column.name)
        if not (np.array_equal(x, y) if isinstance(x, np.ndarray) or isinstance(y, np.ndarray) else x == y):
            return False
    return True


@dataclass(frozen=True, eq=False)
class Scene:
    """One annotated image. `relations` are (subject box, predicate, object box): the boxes by index."""

    name: str  # the image's key in its dataset
    image: Path  # where the picture is, or would be
    size: tuple[float, float] | None  # (width, height) of the annotated frame; None when nobody says
    boxes: Float[np.ndarray, "N 4"]
    labels: Int[np.ndarray, " N"]
    relations: Int[np.ndarray, "M 3"]
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the file says beyond this, in JSON values
    source: Callable[[], Image] | None = field(default=None, compare=False, repr=False)  # draws it where no file is

    def __post_init__(self) -> None:
        where = f"Scene {self.name}"
        freeze(self, where, boxes=(np.float64, 4), labels=(np.int64, 0), relations=(np.int64, 3))
        if len(self.labels) != len(self.boxes):
            raise PolyadicError(f"{where}: {len(self.boxes)} boxes need as many labels, got {len(self.labels)}")
        check_indices(self.relations[:, ::2], len(self.boxes), f"{where}: relations point to box")
        check_boxes(self.boxes, where)
        if self.size is not None and not (self.size[0] > 0 and self.size[1] > 0):
            raise PolyadicError(f"{where}: the frame must have a width and a height, got {self.size}")

    @cached_property
    def triplets(self) -> Int[np.ndarray, "M 3"]:
        """Classes (subject, predicate, object) of each relation."""
        subject, predicate, object = self.relations.T
        return np.stack([self.labels[subject], predicate, self.labels[object]], axis=1)

    @cached_property
    def pair_boxes(self) -> Float[np.ndarray, "M 2 4"]:
        """The boxes (subject, object) of each relation."""
        boxes: np.ndarray = self.boxes[self.relations[:, ::2]]
        return boxes

    def boxes_in(self, width: float, height: float) -> Float[np.ndarray, "N 4"]:
        """Scale the boxes to a picture of another size than the annotated frame."""
        return scale_boxes(self.boxes, self.frame, (width, height))

    @property
    def frame(self) -> tuple[float, float]:
        """`size`, where it must be known."""
        if self.size is None:
            raise PolyadicError(
                f"Scene {self.name}: the size of the annotated frame is unknown and {self.image} is absent"
            )
        return self.size

    def open(self) -> Image:
        """Open the picture in RGB, whatever its format and suffix; of an animation the first frame."""
        return open_image(self.image) if self.source is None else self.source()

    def photo(self) -> Photo:
        """Open the picture with the annotated frame as its size, whatever size it is stored at."""
        return Photo(self.name, self.open(), self.frame)

    def has_picture(self) -> bool:
        return self.source is not None or self.image.exists()

    def digest(self) -> str:
        """Return the SHA-256 of the picture: of the file's bytes, or of size and RGB pixels if it is drawn."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        if self.source is None:
            try:
                return hashlib.sha256(regular_file(self.image).read_bytes()).hexdigest()
            except OSError as error:
                raise PolyadicError(f"no image {self.image} that can be read ({error.strerror})") from error
        picture = self.source().convert("RGB")
        return hashlib.sha256(f"{picture.width} x {picture.height} ".encode() + picture.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return equal(self, other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Problem:
    """Something wrong in a dataset: which file, which record, which field. Errors stop loading; warnings don't."""

    kind: str  # a few words, the same for all problems of the kind
    file: str
    record: str
    field: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.file, self.record, self.field)))
        return f"{where}: {self.message}" if where else self.message


@dataclass(frozen=True, eq=False)
class Dataset(Sequence[Scene]):
    """The scenes of one split, with the names of their classes."""

    name: str
    split: str
    vocabulary: Vocabulary
    scenes: tuple[Scene, ...]
    root: Path
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = Counter(scene.name for scene in self.scenes)
        twice = next((name for name, n in names.items() if n > 1), None)
        if twice is not None:
            raise PolyadicError(f"{self.name} {self.split}: image {twice!r} occurs twice; an image has one record")

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: Any) -> Any:
        """Return one scene by number, or several by slice."""
        return self.scenes[index]

    def __iter__(self) -> Iterator[Scene]:
        return iter(self.scenes)

    def __repr__(self) -> str:
        relations = sum(len(scene.relations) for scene in self.scenes)
        return f"Dataset({self.name} {self.split}: {len(self):,} scenes, {relations:,} relations)"

    def keep(self, wanted: Callable[[Scene], bool], split: str | None = None) -> Dataset:
        """Select the scenes for which `wanted` is true."""
        return replace(self, scenes=tuple(filter(wanted, self.scenes)), split=split or self.split)

    @property
    def sizes(self) -> dict[str, tuple[float, float]]:
        """Return the annotated frame of each scene that has one, by its name."""
        return {scene.name: scene.size for scene in self.scenes if scene.size is not None}

    def triplets(self) -> Int[np.ndarray, "M 3"]:
        """Return the classes of all relations, one row each, repeats included: for `TripletPrior` and zero-shot."""
        return np.concatenate([np.zeros((0, 3), np.int64), *(scene.triplets for scene in self.scenes)])

    def reversals(self) -> Int[np.ndarray, "P P"]:
        """Count how often (A, B) has the predicate of the row and (B, A) that of the column.

        "next to" goes with "next to", "behind" with "in front of": `TripletPrior.restates`.
        """
        counts = np.zeros((len(self.vocabulary.predicates),) * 2, np.int64)
        for scene in self.scenes:
            predicates: dict[tuple[int, int], set[int]] = {}
            for subject, predicate, object in scene.relations.tolist():
                predicates.setdefault((subject, object), set()).add(predicate)
            for (subject, object), some in predicates.items():
                if subject != object:
                    back = list(predicates.get((object, subject), ()))
                    for predicate in some:
                        counts[predicate, back] += 1
        return counts
