"""What a person would want to be told about predictions that are scored as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyadic.scenes import Predictions, Scene


class Look:
    """Looks at each image as it passes; keeps counts and the first example."""

    def __init__(self) -> None:
        self.images = self.without = self.without_boxes = self.most = self.outside = self.squeezed = 0
        self.largest = 0.0
        self.first_outside = self.first_squeezed = ""

    def at(self, scene: Scene, found: Predictions | None) -> None:
        self.images += 1
        if found is None:
            self.without += 1
            return
        if len(found):
            keys = found.pairs[:, 0] * len(found.boxes) + found.pairs[:, 1]
            self.most = max(self.most, int(np.unique(keys, return_counts=True)[1].max()))
        size = found.size or scene.size
        if size is None or not len(found.boxes):
            return
        self.largest = max(self.largest, float(found.boxes.max()))
        slack = 1 + 0.02 * max(size)  # detectors overshoot a little
        far = ((found.boxes < -slack) | (found.boxes > np.array([*size, *size]) + slack)).any(1)
        if far.any():
            self.outside += 1
            example = f"{scene.name}: {found.boxes[far][0].tolist()} in {size[0]:g} x {size[1]:g}"
            self.first_outside = self.first_outside or example
        if found.size and scene.size and abs(size[0] * scene.size[1] / size[1] / scene.size[0] - 1) > 0.05:
            self.squeezed += 1
            example = f"{scene.name}: {size[0]:g} x {size[1]:g} for {scene.size[0]:g} x {scene.size[1]:g}"
            self.first_squeezed = self.first_squeezed or example

    def notes(self, ks: Sequence[int | None]) -> list[str]:
        """One line for each thing that looks wrong; `ks` are those asked for."""
        notes = []
        if self.without:
            notes.append(f"{self.without:,} of {self.images:,} images have no record in the predictions")
        if self.without_boxes:
            notes.append(f"{self.without_boxes:,} of {self.images:,} images have no detections")
        if self.outside:
            where = f"boxes leave the frame in {self.outside:,} images ({self.first_outside})"
            notes.append(f'{where}; they count in annotated pixels unless the record has a "size"')
        if 0 < self.largest <= 2:
            notes.append("all boxes lie within 2 pixels: are they shares of the picture? Pixels are expected")
        if self.squeezed:
            many = f"{self.squeezed:,} images ({self.first_squeezed})"
            notes.append(f"the size is of another shape than the annotated frame in {many}")
        if self.most and any(k is not None and k > self.most for k in ks):
            notes.append(
                f"the predictions have at most {self.most} per pair of boxes: a larger k changes nothing for them"
            )
        return notes
