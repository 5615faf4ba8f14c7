"""The layout of the DETR family's `.onnx` files: RT-DETR, D-FINE, DEIM.

Inputs: `images`, RGB from 0 to 1, resized to the network's size without padding, and `orig_target_sizes`, the photo's
(width, height). Outputs: `labels`, `boxes` in the photo's pixels and `scores` of the best pairs of box and class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np
from jaxtyping import Float32

from polyadic.detectors.candidates import MOST_SIDE, Candidates, input_size, run_session
from polyadic.structures.images import Photo
from polyadic.structures.vocabulary import PolyadicError

INPUTS = ("images", "orig_target_sizes")
OUTPUTS = ("labels", "boxes", "scores")


def is_detr(session: Any) -> bool:
    """Recognise the layout by the names of inputs and outputs."""
    has_inputs = {entry.name for entry in session.get_inputs()} == set(INPUTS)
    return has_inputs and {entry.name for entry in session.get_outputs()} >= set(OUTPUTS)


@final
class DetrLayout:
    """Run a session of this layout. It needs no NMS per class, but one box may come with several labels."""

    same_class = 1.0
    classes: int | None = None  # the file does not say how many

    def __init__(self, session: Any, file: str) -> None:
        self._session, self._file = session, file
        images, sizes = (next(x for x in session.get_inputs() if x.name == name) for name in INPUTS)
        size = input_size(images)
        if size is None:
            raise PolyadicError(
                f"{file}: expected float images [1, 3, H, W] with H and W fixed, at most {MOST_SIDE}, got "
                f"{images.type} {list(images.shape)}"
            )
        if sizes.type != "tensor(int64)":
            raise PolyadicError(f"{file}: expected orig_target_sizes of type tensor(int64), got {sizes.type}")
        self.size = size
        self._run(np.full((1, 3, *size), 0.5, np.float32), (size[1], size[0]))  # is it a detector?

    def __call__(self, photo: Photo) -> Candidates:
        """Detect; boxes are clipped to the photo."""
        from PIL.Image import Resampling

        height, width = self.size
        picture = np.asarray(photo.image.resize((width, height), Resampling.BILINEAR), np.float32) / 255
        found = self._run(np.ascontiguousarray(picture.transpose(2, 0, 1)[None]), photo.size)
        return replace(found, boxes=found.boxes.clip(0, np.asarray([*photo.size, *photo.size])))

    def _run(self, picture: Float32[np.ndarray, "1 3 H W"], size: tuple[float, float]) -> Candidates:
        frame = np.array([[round(side) for side in size]], np.int64)
        feed = dict(zip(INPUTS, (picture, frame), strict=True))
        labels, boxes, scores = run_session(self._session, self._file, OUTPUTS, feed)
        count = labels.shape[-1] if labels.ndim else 0
        shapes = labels.shape, boxes.shape, scores.shape
        if shapes != ((1, count), (1, count, 4), (1, count)) or labels.dtype.kind not in "iu":
            raise PolyadicError(
                f"{self._file}: expected whole numbers labels [1, n], boxes [1, n, 4] and scores [1, n], got "
                f"{labels.dtype} {list(labels.shape)}, {list(boxes.shape)} and {list(scores.shape)}"
            )
        if not (np.isfinite(boxes).all() and (scores >= 0).all() and (scores <= 1).all()):
            raise PolyadicError(
                f"{self._file}: expected finite boxes and scores in [0, 1], as the DETR family has them"
            )
        return Candidates(boxes[0].astype(np.float64), labels[0].astype(np.int64), scores[0].astype(np.float64))
