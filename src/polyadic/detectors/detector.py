"""A trained detector: boxes of a photo, each with P(class | box) (Implementation details).

The network is a Faster R-CNN, as in the paper, or a YOLOX-Nano, which is small and fast on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from polyadic.config import DetectorConfig, load_detector_config
from polyadic.detectors import yolox_nano as yolox
from polyadic.detectors.faster_rcnn import ImageBoxes, build_network, choose, find_boxes
from polyadic.files import fill_model, find_model, move_model, read_vocabulary, read_weights, write_about, write_weights
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.scenes import scale_boxes
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

FORMAT = "polyadic.Detector/1"


def _per_pass(device: torch.device, pixels: float) -> int:
    """How many images of so many pixels to pass together: on a CPU large ones are faster one by one."""
    return max(1, int(2**18 / max(pixels, 1))) if device.type == "cpu" else 1 << 30


class Detector(nn.Module):
    """A network whose labels are the vocabulary's objects."""

    network: nn.Module  # a Faster R-CNN, or a YoloxNano

    def __init__(self, config: DetectorConfig, vocabulary: Vocabulary, *, fetch: bool = True) -> None:
        """`fetch`: get the weights that the config names; False where they will be loaded."""
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        if config.network == "yolox-nano":
            self.network = yolox.YoloxNano(len(vocabulary.objects), *part_labels(config, vocabulary))
            if fetch and config.weights != "random":
                yolox.load_exported(self.network, Path(config.weights).expanduser(), vocabulary)
        else:
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
        """Detect in one photo: a path, a PIL image, an array, a tensor or a `Photo`."""
        return self.detect([photo])[0]

    @torch.no_grad()
    def detect(self, photos: Sequence[Any], batch: int = 8) -> list[Detections]:
        """Detect in each photo, in its pixels.

        At most `batch` photos of one size run together: none is padded, so each gets the result that it would get
        alone. On a CPU large photos run one by one, which is faster.
        """
        if batch < 1:
            raise PolyadicError(f"Detector: batch must be at least 1, got {batch}")
        batch = min(batch, _per_pass(self.device, self.config.side * self.config.longest))
        was = self.training
        self.eval()
        try:
            detections: list[Detections] = []
            for at in range(0, len(photos), batch):
                detections += self._detect([open_photo(photo) for photo in photos[at : at + batch]])
            return detections
        finally:
            self.train(was)

    def _detect(self, photos: list[Photo]) -> list[Detections]:
        groups: dict[tuple[int, int], list[int]] = {}
        for at, photo in enumerate(photos):
            groups.setdefault(photo.image.size, []).append(at)
        detections: dict[int, Detections] = {}
        config = self.config
        for members in groups.values():
            pictures = [to_pixels(photos[at]).to(self.device).float() / 255 for at in members]
            with self._precision():
                if isinstance(self.network, yolox.YoloxNano):
                    boxes = self._one_stage(self.network, pictures)
                else:
                    boxes = find_boxes(self.network, pictures, config.nms, config.score, config.most)
            detections |= {at: _detections(photos[at], result) for at, result in zip(members, boxes, strict=True)}
        return [detections[at] for at in range(len(photos))]

    def _one_stage(self, network: yolox.YoloxNano, pictures: list[Tensor]) -> list[ImageBoxes]:
        config, results = self.config, list[ImageBoxes]()
        inputs = [yolox.fit_input(picture, config.longest) for picture in pictures]
        maps = network.maps(torch.stack([picture for picture, _ in inputs]))
        raw = network.read(maps)
        for at, (picture, (_, covered)) in enumerate(zip(pictures, inputs, strict=True)):
            own = [fmap[at : at + 1] for fmap in maps]
            seen = yolox.find_candidates(raw[at], config.longest, covered)
            both = yolox.NamedBoxes.join(seen, yolox.find_parts(network, own, seen, covered))
            both = both.take(choose(both.boxes, both.scores, config.nms, 0.0, len(both.boxes)))
            names = network.regions(own, [both.boxes], [covered]).softmax(-1)[:, :-1]
            scores = (both.scores * names[torch.arange(len(names)), both.labels]).sqrt()  # both looks must agree
            best = scores.argsort(descending=True, stable=True)[: config.most]
            best = best[scores[best] >= config.score]
            scale = both.boxes.new_tensor([picture.shape[2] / covered[1], picture.shape[1] / covered[0]] * 2)
            results.append(ImageBoxes((both.boxes * scale)[best], both.labels[best], scores[best], names[best]))
        return results

    @property
    def names_any_box(self) -> bool:
        """Whether `name_boxes` works: YOLOX-Nano has a second look, a Faster R-CNN names its own boxes alone."""
        return isinstance(self.network, yolox.YoloxNano)

    @torch.no_grad()
    def name_boxes(self, photo: Any, detections: Detections) -> Detections:
        """Fill in P(class | box) by the pixels inside boxes from anywhere; YOLOX-Nano's second look."""
        network, shown = self.network, open_photo(photo)
        assert isinstance(network, yolox.YoloxNano), "the other networks name their own boxes alone"
        picture, covered = yolox.fit_input(to_pixels(shown).to(self.device).float() / 255, self.config.longest)
        boxes = scale_boxes(detections.on_photo(shown).boxes, shown.size, (covered[1], covered[0]))
        with self._precision():
            maps = network.maps(picture[None])
            names = network.regions(maps, [torch.from_numpy(boxes).float().to(self.device)], [covered])
        return replace(detections, distribution=names.softmax(-1)[:, :-1].cpu().numpy())

    def losses(
        self,
        pictures: list[UInt8[Tensor, "3 _ _"]],
        boxes: list[Float[Tensor, "_ 4"]],
        labels: list[Int[Tensor, " _"]],
        weights: list[Float[Tensor, " _"]],
        parts: list[Int[Tensor, "_ 2"]],
    ) -> dict[str, Tensor]:
        """Compute the network's losses; boxes in pixels of their image.

        YOLOX-Nano takes images of the size of its input; weights of boxes, and rows of wholes and parts, are for it.
        """
        if isinstance(self.network, yolox.YoloxNano):
            given = zip(boxes, labels, weights, parts, strict=True)
            truths = [yolox.Truth(*(x.to(self.device) for x in columns)) for columns in given]
            together = torch.stack([picture.to(self.device) for picture in pictures]).float() / 255
            with self._precision():
                return yolox.losses(self.network, together.contiguous(memory_format=torch.channels_last), truths)
        targets = [
            {"boxes": corners.to(self.device), "labels": classes.to(self.device) + 1}  # 0 is the background
            for corners, classes in zip(boxes, labels, strict=True)
        ]
        with self._precision():
            losses: dict[str, Tensor] = self.network([x.to(self.device).float() / 255 for x in pictures], targets)
        return losses

    def save(self, folder: str | Path, *, half: bool = False, **about: Any) -> None:
        """Save weights (`half`: in float16), config, vocabulary and versions in one folder."""
        from safetensors import SafetensorError

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_about(folder, self.config.to_json(), self.vocabulary)
            weights = self.network.state_dict()
            if half:
                weights = {name: x.half() if x.is_floating_point() else x for name, x in weights.items()}
            write_weights(folder, weights, {"format": FORMAT, "about": json.dumps(about)})
        except (OSError, SafetensorError) as error:
            raise PolyadicError(f"cannot write the detector to {folder}: {error}") from error

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device = "cpu", vocabulary: Vocabulary | None = None
    ) -> Detector:
        """Load a saved detector, or the best one of a run. A `vocabulary` given here must be the saved one."""
        folder = find_model(Path(folder), "`polyadic detect train` and Detector.save")
        weights, _, _ = read_weights(folder, FORMAT)
        names = read_vocabulary(folder, vocabulary)
        detector = cls(load_detector_config(folder / "config.json"), names, fetch=False)
        fill_model(detector.network, weights, folder)
        move_model(detector, torch.device(device), folder)
        return detector.eval()


def part_labels(config: DetectorConfig, vocabulary: Vocabulary) -> tuple[int, list[int]]:
    """Return the labels of the whole and of its parts that the vocabulary has; (-1, []) without any."""
    index = {name: at for at, name in enumerate(vocabulary.objects)}
    parts = [index[name] for name in config.parts if name in index]
    return (index[config.whole], parts) if config.whole in index and parts else (-1, [])


def to_pixels(photo: Photo) -> UInt8[Tensor, "3 H W"]:
    return torch.from_numpy(np.array(photo.image)).permute(2, 0, 1).contiguous()


def _detections(photo: Photo, result: ImageBoxes) -> Detections:
    boxes = scale_boxes(result.boxes.cpu().double().numpy(), photo.image.size, photo.size)
    return Detections(
        photo.name,
        boxes,
        result.labels.cpu().numpy(),
        result.scores.cpu().double().numpy(),
        photo.size,
        distribution=result.distribution.cpu().numpy(),
    )
