"""What lies on disk, as values: annotated scenes, a dataset of them, detections and predictions of one image.

Plain NumPy, so that data and evaluation work without loading torch. Boxes are float64 xyxy pixels of the frame in which
they were annotated; a picture may be stored smaller or larger than that frame.
"""

from __future__ import annotations

from polyadic.scenes.detections import UNKNOWN, Detections, Predictions
from polyadic.scenes.pictures import Photo, open_image, open_photo
from polyadic.scenes.scene import Dataset, Problem, Scene
from polyadic.scenes.values import scale_boxes

__all__ = [
    "UNKNOWN",
    "Dataset",
    "Detections",
    "Photo",
    "Predictions",
    "Problem",
    "Scene",
    "open_image",
    "open_photo",
    "scale_boxes",
]
