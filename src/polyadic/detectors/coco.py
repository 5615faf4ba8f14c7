"""torchvision's Faster R-CNN with COCO weights, for photos without boxes.

torchvision downloads the weights at first use and keeps them. Its 91 outputs are numbered as COCO's categories, with
gaps; boxes of classes without an object in the vocabulary are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch

from polyadic.config import DETECTOR_PRESETS
from polyadic.detectors import COCO_NETWORKS
from polyadic.detectors.detector import Detector
from polyadic.detectors.weights import pretrained
from polyadic.pretrained import synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.labels import LabelMap, NameMapping, UnknownPolicy
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


@final
class CocoDetector:
    """Detect boxes in the photo's frame; best first, one per location (`DetectorConfig.nms`).

    `label_map.report()` lists which of COCO's classes are objects of the vocabulary: by `mapping`, else for VRD's
    objects by the table of this package, else by name. `dropped` counts the boxes of the others.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        network: str = "resnet50-fpn",
        *,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
        device: str | torch.device = "cpu",
        score: float = 0.3,  # ours: as in `OnnxDetector`; the network reports far more
    ) -> None:
        if network not in COCO_NETWORKS:
            raise PolyadicError(f"CocoDetector: expected {' or '.join(COCO_NETWORKS)}, got {network!r}")
        if not 0 <= score <= 1:
            raise PolyadicError(f"CocoDetector: expected a score from 0 to 1, got {score}")
        self.unknown = unknown
        names: list[str] = pretrained(network).meta["categories"][1:]  # 0 is the background
        table = synonyms(vocabulary) if mapping is None else mapping
        self.label_map = LabelMap.match(names, vocabulary, table)
        self.dropped: Counter[str] = Counter()
        # a vocabulary needs distinct names, and COCO's unused outputs have none
        objects = [f"{name} {at}" if name == "N/A" else name for at, name in enumerate(names, 1)]
        config = DETECTOR_PRESETS[network].change(score=score)
        self._detector = Detector(config, Vocabulary(objects, ("none",))).to(device).eval()

    def __call__(self, photo: Any) -> Detections:
        """Detect in a path, a PIL image, an array, a tensor or a `Photo`."""
        return self.detect([photo])[0]

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """Detect in each photo, in its pixels."""
        return [self._rename(detections) for detections in self._detector.detect(photos)]

    def _rename(self, coco: Detections) -> Detections:
        assert coco.distribution is not None, "our detectors have it"
        mapped = self.label_map.apply(coco.labels, self.unknown)
        self.dropped.update(mapped.unknown)
        rows = mapped.rows
        spread = self.label_map.spread(coco.distribution[rows])
        return Detections(
            coco.image, coco.boxes[rows], mapped.labels, coco.scores[rows], coco.size, distribution=spread
        )


def weights_file(network: str) -> Path:
    """Locate torchvision's copy of the weights, which may not be downloaded yet."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(pretrained(network).url).name)
