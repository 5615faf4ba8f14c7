"""Each number of a detector's run (Implementation details: Faster R-CNN; its boxes are filtered by NMS at 0.7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from polyadic.config.checks import check
from polyadic.config.schema import Stage, World
from polyadic.config.settings import Settings
from polyadic.config.settings import ours as _ours
from polyadic.config.settings import paper as _paper


@dataclass(frozen=True)
class Boxes:
    """[data] The dataset, of which boxes and labels count."""

    dataset: Literal["vrd", "vg150", "vg200", "coco", "toy"] = _ours("vrd", "coco is own data, toy the drawn world")
    root: str = _ours("", "the folder that holds it; toy needs none")
    pictures: Literal["required", "present"] = _ours("required", "present: go on without the scenes that lack theirs")


@dataclass(frozen=True)
class HeldOut:
    """[validation] The held-out images after each epoch."""

    images: int = _ours(400, "at most so many")


@dataclass(frozen=True)
class DetectorStage(Stage):
    """[training] The detector's only stage; the paper says nothing of it."""

    epochs: int = _ours(10, "over all training images")
    images: int = _ours(2, "images per step")
    optimiser: Literal["sgd", "adam", "adamw"] = _ours("sgd", "SGD is usual for Faster R-CNN")
    rate: float = _ours(1e-3, "learning rate, for 2 images per step")
    momentum: float = _ours(0.9, "of SGD")
    decay: float = _ours(5e-4, "weight decay")
    schedule: Literal["constant", "cosine", "one-cycle"] = _ours("one-cycle", "a short rise, then a cosine")
    clip: float = _ours(20.0, "total norm of the gradient")


@dataclass(frozen=True)
class DetectorConfig(Settings):
    """A whole run of a detector."""

    network: Literal["vgg16", "resnet50-fpn", "mobilenetv3-fpn", "small"] = _paper("vgg16", "VGG16")
    weights: str = _ours("torchvision", "torchvision: its pretrained ones; random; a .safetensors or .pth file")
    side: int = _ours(600, "the shorter side of the picture in the network, pixels")
    longest: int = _ours(1000, "and the most for the longer side")
    nms: float = _paper(0.7, "of two boxes that overlap more, whatever their labels, the better one is kept")
    score: float = _ours(0.05, "the least probability of a kept box's label")
    most: int = _ours(100, "boxes kept per image")
    seed: int = _ours(0, "of all that is random in a run")
    device: str = _ours("auto", "cuda, mps or cpu, whichever is there")
    precision: Literal["float32", "bfloat16", "float16"] = _ours("float32", "of the network")
    workers: int = _ours(2, "processes that read pictures")
    threads: int = _ours(0, "of the CPU; 0: as torch decides")
    data: Boxes = field(default_factory=Boxes)
    world: World = field(default_factory=World)
    training: DetectorStage = field(default_factory=DetectorStage)
    validation: HeldOut = field(default_factory=HeldOut)

    def __post_init__(self) -> None:
        check(self)


_FPN = DetectorConfig(network="resnet50-fpn", side=800, longest=1333, training=DetectorStage(rate=2.5e-3, decay=1e-4))

DETECTOR_PRESETS: dict[str, DetectorConfig] = {
    "vgg16": DetectorConfig(),
    "resnet50-fpn": _FPN,
    "mobilenetv3-fpn": replace(_FPN, network="mobilenetv3-fpn", training=replace(_FPN.training, images=4, rate=5e-3)),
    "toy": DetectorConfig(
        network="small",
        weights="random",
        side=160,
        longest=160,
        most=40,
        workers=0,
        data=Boxes(dataset="toy"),
        world=World(train=1200),
        training=DetectorStage(epochs=12, images=8, optimiser="adamw", rate=2e-3, decay=0.05),
        validation=HeldOut(images=120),
    ),
}
