"""Arrays of the values that lie on disk: their dtypes, lengths and ranges, checked once."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from jaxtyping import Float

from polyadic.vocabulary import PolyadicError


def scale_boxes(
    boxes: Float[np.ndarray, "N 4"], old: tuple[float, float], new: tuple[float, float]
) -> Float[np.ndarray, "N 4"]:
    """From a frame of size `old` to one of size `new`."""
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
            raise PolyadicError(f"{where}: {name} must be numbers, in NumPy's reach ({reason})") from error
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
    for each in fields(a):  # type: ignore[arg-type]
        if not each.compare:
            continue
        x, y = getattr(a, each.name), getattr(b, each.name)
        if not (np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y):
            return False
    return True
