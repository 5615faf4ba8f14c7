"""The first stage: boxes of a photo, each with P(class | box), by Faster R-CNN (Implementation details)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from polyadic.config import DetectorConfig
from polyadic.detector.average_precision import average_precision
from polyadic.detector.decode import Found, find_boxes
from polyadic.detector.network import build_network
from polyadic.scenes import Detections, Photo, open_photo, scale_boxes
from polyadic.structures import at_once
from polyadic.vocabulary import PolyadicError, Vocabulary

__all__ = ["Detector", "average_precision", "to_pixels"]


class Detector(nn.Module):
    """Photos to `Detections`, whose labels are of the vocabulary's objects."""

    def __init__(self, config: DetectorConfig, vocabulary: Vocabulary, *, fetch: bool = True) -> None:
        """`fetch`: get the weights as the config says; False where they will be loaded."""
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.network = build_network(config, len(vocabulary.objects), fetch)

    @property
    def device(self) -> torch.device:
        first: Tensor = next(self.network.parameters())
        return first.device

    @contextmanager
    def _precision(self) -> Iterator[None]:
        kind: torch.dtype = getattr(torch, self.config.precision)
        with torch.autocast(self.device.type, kind, enabled=kind != torch.float32):
            yield

    def forward(self, photo: Any) -> Detections:
        """The boxes of one photo: a path, a PIL image, an array, a tensor or a `Photo`."""
        return self.detect([photo])[0]

    @torch.no_grad()
    def detect(self, photos: Sequence[Any], batch: int = 8) -> list[Detections]:
        """The boxes of each photo, in pixels of the photo.

        `batch` photos at most pass at once, and only those of one size: none is padded, and each gets what it would
        get alone. On a CPU large ones pass one by one, which is faster.
        """
        if batch < 1:
            raise PolyadicError(f"Detector: batch must be at least 1, got {batch}")
        batch = min(batch, at_once(self.device, self.config.side * self.config.longest))
        was = self.training
        self.eval()
        try:
            found: list[Detections] = []
            for at in range(0, len(photos), batch):
                found += self._detect([open_photo(each) for each in photos[at : at + batch]])
            return found
        finally:
            self.train(was)

    def _detect(self, photos: list[Photo]) -> list[Detections]:
        groups: dict[tuple[int, int], list[int]] = {}
        for at, photo in enumerate(photos):
            groups.setdefault(photo.image.size, []).append(at)
        found: dict[int, Detections] = {}
        config = self.config
        for members in groups.values():
            pictures = [to_pixels(photos[at]).to(self.device).float() / 255 for at in members]
            with self._precision():
                boxes = find_boxes(self.network, pictures, config.nms, config.score, config.most)
            found |= {at: _detections(photos[at], each) for at, each in zip(members, boxes, strict=True)}
        return [found[at] for at in range(len(photos))]

    def losses(
        self,
        pictures: list[UInt8[Tensor, "3 _ _"]],
        boxes: list[Float[Tensor, "_ 4"]],
        labels: list[Int[Tensor, " _"]],
    ) -> dict[str, Tensor]:
        """Of proposals (objectness, corners) and of regions (class, corners); boxes in pixels of their picture."""
        targets = [
            {"boxes": corners.to(self.device), "labels": each.to(self.device) + 1}  # 0 is the background
            for corners, each in zip(boxes, labels, strict=True)
        ]
        with self._precision():
            found: dict[str, Tensor] = self.network([x.to(self.device).float() / 255 for x in pictures], targets)
        return found

    def save(self, folder: str | Path, **about: Any) -> None:
        """One folder that needs nothing else: weights, config, vocabulary, versions."""
        from polyadic.detector.storage import save

        save(self, Path(folder), about)

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device = "cpu", vocabulary: Vocabulary | None = None
    ) -> Detector:
        """What `save` wrote, or a training run's best one. A `vocabulary` given here must be the saved one."""
        from polyadic.detector.storage import load

        return load(Path(folder), torch.device(device), vocabulary)


def to_pixels(photo: Photo) -> UInt8[Tensor, "3 H W"]:
    return torch.from_numpy(np.array(photo.image)).permute(2, 0, 1).contiguous()


def _detections(photo: Photo, found: Found) -> Detections:
    boxes = scale_boxes(found.boxes.cpu().double().numpy(), photo.image.size, photo.size)
    return Detections(
        photo.name,
        boxes,
        found.labels.cpu().numpy(),
        found.scores.cpu().double().numpy(),
        photo.size,
        found.distribution.cpu().numpy(),
    )
