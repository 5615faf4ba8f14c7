"""YOLOX's layout of an `.onnx` file.

Input: the raw image, BGR from 0 to 255, resized to fit and padded with grey at the right and the bottom. Output:
[1, A, 5 + K], for each cell of three grids its box, objectness and K class scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float32

from polyadic.detectors.candidates import MOST_SIDE, Candidates, input_size, run_session
from polyadic.structures.images import Photo
from polyadic.structures.scenes import scale_boxes
from polyadic.structures.vocabulary import PolyadicError

STRIDES = (8, 16, 32)  # YOLOX: pixels per cell of each grid
GREY = 114  # YOLOX: of the padding
_LONGEST = 12.0  # log of a side in cells: a wider box would leave any picture, and floats soon after


@final
class YoloxLayout:
    """Run a session of this layout. Boxes may be raw or decoded; whichever puts them near their cells is used."""

    same_class = 0.45  # YOLOX's demo: one object lights several cells, whose boxes overlap less than 0.7

    def __init__(self, session: Any, file: str) -> None:
        self._session, self._file = session, file
        given = session.get_inputs()
        sides = input_size(given[0]) if len(given) == 1 else None
        if sides is None or any(side % STRIDES[-1] for side in sides):
            raise PolyadicError(
                f"{file}: expected one float input [1, 3, H, W], H and W fixed multiples of {STRIDES[-1]} up to "
                f"{MOST_SIDE} (YOLOX), or images and orig_target_sizes in, labels, boxes and scores out (RT-DETR, "
                f"D-FINE, DEIM), got {_listed(given)}"
            )
        self._input, self.size = given[0].name, sides
        grey = self._run(np.full((1, 3, *self.size), GREY, np.float32))
        self._decoded = is_decoded(grey, self.size)
        self.classes: int | None = grey.shape[1] - 5

    def __call__(self, photo: Photo) -> Candidates:
        """Score every cell; boxes are in the photo's frame."""
        pixels, shrunk = letterbox(photo, self.size)
        boxes, classes = decode(self._run(pixels), self.size, self._decoded)
        inside = boxes.clip(0, np.asarray([*shrunk, *shrunk]))
        return Candidates(scale_boxes(inside, shrunk, photo.size), classes.argmax(1), classes.max(1), classes)

    def _run(self, pixels: Float32[np.ndarray, "1 3 H W"]) -> Float[np.ndarray, "A D"]:
        output, *_ = run_session(self._session, self._file, None, {self._input: pixels})
        height, width = self.size
        cells = sum((height // stride) * (width // stride) for stride in STRIDES)
        if output.ndim != 3 or output.shape[:2] != (1, cells) or output.shape[2] < 6:
            raise PolyadicError(
                f"{self._file}: expected YOLOX's output [1, {cells}, 5 + classes] for a picture of {width} x "
                f"{height}, got {list(output.shape)}"
            )
        raw: np.ndarray = output[0].astype(np.float64)
        if not (np.isfinite(raw).all() and (raw[:, 4:] >= 0).all() and (raw[:, 4:] <= 1 + 1e-4).all()):
            raise PolyadicError(f"{self._file}: expected objectness and class scores in [0, 1], as YOLOX exports them")
        return raw


def _listed(given: Sequence[Any]) -> str:
    return f"{' and '.join(f'{x.name} {x.type} {list(x.shape)}' for x in given) or 'no input':.200}"


def letterbox(photo: Photo, size: tuple[int, int]) -> tuple[Float32[np.ndarray, "1 3 H W"], tuple[float, float]]:
    """Resize and pad an image to (height, width); also return the (width, height) that the image itself covers."""
    from PIL.Image import Resampling

    height, width = size
    ratio = min(height / photo.image.height, width / photo.image.width)
    shrunk = max(1, round(photo.image.width * ratio)), max(1, round(photo.image.height * ratio))
    pixels = np.full((1, 3, height, width), GREY, np.float32)
    picture = np.asarray(photo.image.resize(shrunk, Resampling.BILINEAR), np.float32)
    pixels[0, :, : shrunk[1], : shrunk[0]] = picture[..., ::-1].transpose(2, 0, 1)
    return pixels, (float(shrunk[0]), float(shrunk[1]))


def decode(
    raw: Float[np.ndarray, "A D"], size: tuple[int, int], decoded: bool
) -> tuple[Float[np.ndarray, "A 4"], Float[np.ndarray, "A K"]]:
    """Compute boxes in pixels of the network's (height, width), and objectness times class scores."""
    centre, extent = raw[:, :2], raw[:, 2:4]
    if not decoded:
        corner, stride = _cells(size)
        centre, extent = (centre + corner) * stride, np.exp(np.minimum(extent, _LONGEST)) * stride
    return np.concatenate([centre - extent / 2, centre + extent / 2], 1), raw[:, 4:5] * raw[:, 5:]


def is_decoded(raw: Float[np.ndarray, "A D"], size: tuple[int, int]) -> bool:
    """Tell whether boxes are in pixels already: the reading that puts boxes nearer to their cells is right."""
    corner, stride = _cells(size)
    as_pixels, as_offsets = raw[:, :2] / stride - corner, raw[:, :2]
    return bool(np.median(np.abs(as_pixels)) < np.median(np.abs(as_offsets)) and (raw[:, 2:4] >= 0).all())


def _cells(size: tuple[int, int]) -> tuple[Float[np.ndarray, "A 2"], Float[np.ndarray, "A 1"]]:
    """List column and row of each cell, grid by grid and row by row, and its stride."""
    corners, strides = [], []
    for stride in STRIDES:
        rows, columns = np.mgrid[: size[0] // stride, : size[1] // stride]
        corners.append(np.stack([columns.ravel(), rows.ravel()], 1))
        strides.append(np.full((rows.size, 1), float(stride)))
    return np.concatenate(corners).astype(np.float64), np.concatenate(strides)
