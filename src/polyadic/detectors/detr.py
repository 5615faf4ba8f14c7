"""The layout of the DETR family's `.onnx` files: RT-DETR, D-FINE, DEIM.

Inputs: `images`, RGB from 0 to 1, resized to the network's size without padding, and `orig_target_sizes`, the photo's
(width, height). Outputs: `labels`, `boxes` in the photo's pixels and `scores` of the best pairs of box and class.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from polyadic.detectors.candidates import Candidates, input_size
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
        batch = images.shape[0]  # 1, or the name of a dynamic axis
        if size is None or (isinstance(batch, int) and batch != 1):
            raise PolyadicError(
                f"{file}: expected float images [1, 3, H, W] with fixed H and W, got {images.type} {list(images.shape)}"
            )
        if sizes.type != "tensor(int64)":
            raise PolyadicError(f"{file}: expected orig_target_sizes of type tensor(int64), got {sizes.type}")
        self.size = size

    def __call__(self, photo: Photo) -> Candidates:
        """Detect; boxes are clipped to the photo."""
        from PIL.Image import Resampling

        height, width = self.size
        picture = np.asarray(photo.image.resize((width, height), Resampling.BILINEAR), np.float32) / 255
        frame = np.array([[round(side) for side in photo.size]], np.int64)
        feed = {"images": np.ascontiguousarray(picture.transpose(2, 0, 1)[None]), "orig_target_sizes": frame}
        labels, boxes, scores = (np.asarray(output) for output in self._session.run(list(OUTPUTS), feed))
        count = labels.shape[-1] if labels.ndim else 0
        if (labels.shape, boxes.shape, scores.shape) != ((1, count), (1, count, 4), (1, count)):
            raise PolyadicError(
                f"{self._file}: expected labels [1, n], boxes [1, n, 4] and scores [1, n], got {list(labels.shape)}, "
                f"{list(boxes.shape)} and {list(scores.shape)}"
            )
        if not (np.isfinite(boxes).all() and (scores >= 0).all() and (scores <= 1).all()):
            raise PolyadicError(
                f"{self._file}: expected finite boxes and scores in [0, 1], as the DETR family has them"
            )
        corners = boxes[0].astype(np.float64).clip(0, np.asarray([*photo.size, *photo.size]))
        return Candidates(corners, labels[0].astype(np.int64), scores[0].astype(np.float64))
