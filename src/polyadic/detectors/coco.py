"""torchvision's Faster R-CNN with the weights that it was trained to on COCO: boxes where one has no detector.

torchvision fetches the weights at first use and keeps them. Its 91 outputs are numbered as COCO's categories, with
holes; what has no object in the vocabulary is dropped, as from any other people's detector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch

from polyadic.config import DETECTOR_PRESETS
from polyadic.detectors.faster_rcnn import Detector
from polyadic.detectors.weights import pretrained
from polyadic.pretrained import synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.labels import LabelMap, NameMapping, UnknownPolicy
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

NETWORKS = ("resnet50-fpn", "mobilenetv3-fpn")


@final
class CocoDetector:
    """Photos in, detections out, in the photo's frame; best first, one per location (`DetectorConfig.nms`).

    `label_map.report()` tells which of COCO's classes are objects of the vocabulary: by `mapping`, else for VRD's
    objects by the table that comes with the package, else by name. `dropped` counts the boxes of the others.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        network: str = "resnet50-fpn",
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
        device: str | torch.device = "cpu",
        score: float = 0.3,  # ours: as of `OnnxDetector`; the network was trained to find far more
    ) -> None:
        if network not in NETWORKS:
            raise PolyadicError(f"CocoDetector: expected {' or '.join(NETWORKS)}, got {network!r}")
        if not 0 <= score <= 1:
            raise PolyadicError(f"CocoDetector: expected a score from 0 to 1, got {score}")
        self.unknown = unknown
        names: list[str] = pretrained(network).meta["categories"][1:]  # 0 is the background
        own = synonyms(vocabulary) if mapping is None else mapping
        self.label_map = LabelMap.match(names, vocabulary, own)
        self.dropped: Counter[str] = Counter()
        self._detector = _load(network, names, score).to(device).eval()

    def __call__(self, photo: Any) -> Detections:
        """A path, a PIL image, an array, a tensor or a `Photo`."""
        return self.detect([photo])[0]

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """The boxes of each photo, in its pixels."""
        return [self._renamed(found) for found in self._detector.detect(photos)]

    def _renamed(self, found: Detections) -> Detections:
        assert found.distribution is not None, "our detectors tell it"
        mapped = self.label_map.apply(found.labels, self.unknown)
        self.dropped.update(mapped.unknown)
        rows = mapped.rows
        spread = self.label_map.spread(found.distribution[rows])
        return Detections(
            found.image, found.boxes[rows], mapped.labels, found.scores[rows], found.size, distribution=spread
        )


def weights_file(network: str) -> Path:
    """Where torchvision keeps the weights; they need not be there yet."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(pretrained(network).url).name)


def _load(network: str, names: Sequence[str], score: float) -> Detector:
    """Outputs that COCO left empty get a name each, since a vocabulary has no name twice."""
    objects = [f"{name} {at}" if name == "N/A" else name for at, name in enumerate(names, 1)]
    config = DETECTOR_PRESETS[network].change(score=score)
    try:
        return Detector(config, Vocabulary(objects, ("none",)))
    except PolyadicError as error:
        if error.__cause__ is None:
            raise
        file = weights_file(network)
        reason = " ".join(str(error.__cause__).split())
        raise PolyadicError(
            f"cannot get torchvision's weights of {network} ({reason:.120}): put {pretrained(network).url} into "
            f"{file.parent}"
        ) from error
