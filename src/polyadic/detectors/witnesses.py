"""Several detectors as one: what one misses, another may see, and where both look, they corroborate or compete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from polyadic.structures.detections import Detections
from polyadic.structures.images import open_photo
from polyadic.structures.vocabulary import PolyadicError


@final
class Witnesses:
    """Join the boxes of several detectors (`Detections.join`); `source` of a box is its detector's name here.

    No box is dropped: the pretrained model reads boxes in the same place as evidence, and a model that needs NMS runs
    it itself (`ranking.nms`). A detector that can name any box by its pixels, as `vrd-detector` can, names the others'.
    """

    def __init__(self, detectors: Mapping[str, Callable[[Any], Detections]]) -> None:
        """`detectors` are functions from a photo to `Detections` of one vocabulary."""
        if not detectors:
            raise PolyadicError("Witnesses: expected at least one detector")
        self.detectors = dict(detectors)

    def __call__(self, photo: Any) -> Detections:
        """Detect in a path, a PIL image, an array, a tensor or a `Photo`."""
        return self.detect([photo])[0]

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """Detect in each photo, in its pixels."""
        opened = [open_photo(photo) for photo in photos]
        found = []
        for detector in self.detectors.values():
            many = getattr(detector, "detect", None)
            boxes = [detector(photo) for photo in opened] if many is None else many(opened)
            found.append(
                [replace(some.on_photo(photo), image=photo.name) for photo, some in zip(opened, boxes, strict=True)]
            )
        namer = next((one for one in self.detectors.values() if getattr(one, "names_any_box", False)), None)
        for some in found:
            for at, (photo, boxes) in enumerate(zip(opened, some, strict=True)):
                if boxes.distribution is None:
                    some[at] = name_boxes(namer, photo, boxes)
        return [Detections.join(*of_one, names=list(self.detectors)) for of_one in zip(*found, strict=True)]


def name_boxes(detector: Any, photo: Any, boxes: Detections) -> Detections:
    """Fill in P(class | box) of boxes from anywhere, if the detector can."""
    can = getattr(detector, "names_any_box", False)
    named: Detections = detector.name_boxes(photo, boxes) if can else boxes
    return named
