"""Presets: named configs. A field that is not set has the schema's default, which is the paper's where it gives one."""

from __future__ import annotations

from dataclasses import replace

from polyadic.config.schema import (
    BackboneStageConfig,
    CacheConfig,
    Config,
    DataConfig,
    DetectorConfig,
    DetectorDataConfig,
    DetectorStageConfig,
    DetectorValidationConfig,
    EvidenceConfig,
    HeadConfig,
    PixelsConfig,
    RankingConfig,
    SelectionConfig,
    StageConfig,
    ValidationConfig,
    WorldConfig,
)

_PAPER = StageConfig(epochs=7, reduction="sum")
_BOXES = StageConfig(images=16, optimiser="adamw", rate=2e-3, decay=0.02, schedule="one-cycle")
_PIXELS = StageConfig(images=16, optimiser="adamw", rate=1e-3, decay=0.05, schedule="one-cycle")
_SMALL = StageConfig(images=8, optimiser="adamw", rate=1e-3, decay=0.01, schedule="one-cycle")

_RECIPE = Config(triplets=_PAPER, selection=_PAPER)  # the paper's

# the paper's recipe for few and small images: light backbone, principal components, more dropout
_VRD_PIXELS = Config(
    workers=1,
    data=DataConfig(pictures="present"),
    pixels=PixelsConfig(
        backbone="tf_efficientnet_lite0",
        strides=(16, 32),
        side=512,
        longest=512,
        pool=3,
        reduce=512,
        spatial=128,
        place=True,
    ),
    head=HeadConfig(hidden=512, input_dropout=0.2),
    selector=SelectionConfig(hidden=512, nulls=3.0),
    ranking=RankingConfig(prior=0.5),
    triplets=replace(_PIXELS, epochs=15),
    selection=replace(_PIXELS, epochs=4),
    cache=CacheConfig(gigabytes=4.0),
)

OWN = ("own", "own-pixels")  # for data of any layout; `fit_size` adapts them to its size


def fit_size(name: str, images: int) -> Config:
    """Return a preset of `OWN` for this many training images; values were chosen by the loss of held-out images.

    Few images need more dropout and smaller steps; many afford a larger head and fewer epochs.
    """
    few, many = images < 600, images >= 6000
    hidden = 384 if many else 256
    dropout, epochs = (0.5, 20) if few else (0.3, 12) if many else (0.3, 16)
    stage = StageConfig(images=8 if few else 16, optimiser="adamw", rate=2e-3, decay=0.1, schedule="one-cycle")
    config = Config(
        sources=("evidence",),
        workers=0,
        threads=1,  # small layers: more threads wait for one another
        data=DataConfig(dataset="coco"),
        head=HeadConfig(hidden=hidden, dropout=dropout, context=True),
        selector=SelectionConfig(hidden=hidden, dropout=0.3, nulls=0.0),
        ranking=RankingConfig(prior=0.25),
        triplets=replace(stage, epochs=epochs),
        selection=replace(stage, epochs=4, decay=0.02),
        validation=ValidationConfig(k=1),
    )
    if name == "own":
        return config
    return replace(
        config,
        sources=("pixels", "evidence"),
        workers=1,
        pixels=replace(_VRD_PIXELS.pixels, reduce=256, place=False),
        head=replace(config.head, input_dropout=0.2),
        triplets=replace(config.triplets, rate=1e-3),
        cache=CacheConfig(gigabytes=4.0),
    )


_VRD_BOXES = Config(  # no pixels, detector output only; needs data.simulate or data.detections
    sources=("evidence",),
    workers=1,
    head=HeadConfig(rank=10, hidden=384, dropout=0.4, context=True),
    selector=SelectionConfig(hidden=384, dropout=0.3, nulls=0.0),
    ranking=RankingConfig(nms=1.0, prior=0.15, boxes=0.0, repeat=0.1),
    triplets=StageConfig(epochs=0),
    proposals=replace(_BOXES, epochs=12),
    selection=replace(_BOXES, epochs=4),
    validation=ValidationConfig(images=200, k=10),
)

PRESETS: dict[str, Config] = {
    "vrd": _RECIPE,
    "vg150": replace(_RECIPE, data=DataConfig(dataset="vg150", one_predicate=True, overlapping=True)),
    "vg200": replace(_RECIPE, data=DataConfig(dataset="vg200")),
    "vrd-boxes": _VRD_BOXES,
    "vrd-photos": replace(  # the detector's pixels as P(class | box); needs data.detections of the images with a photo
        _VRD_BOXES,
        workers=0,
        threads=1,
        data=DataConfig(borrow=True),
        evidence=EvidenceConfig(names=64),
        ranking=RankingConfig(nms=1.0, prior=0.15, boxes=0.3, repeat=0.1, repeat_iou=0.3),
    ),
    "vrd-pixels": _VRD_PIXELS,
    "vrd-pixels-grown": replace(  # ours: labels from pixels, everything else from the box-conditioned prior
        _VRD_PIXELS,
        pixels=replace(_VRD_PIXELS.pixels, crops=160),
        head=replace(_VRD_PIXELS.head, rank=1, layers=1, input_dropout=0.5, labels=True),
        ranking=RankingConfig(prior=0.0),
        boxes=StageConfig(epochs=15, images=16, optimiser="adamw", rate=3e-3, decay=0.05, schedule="one-cycle"),
        selection=StageConfig(epochs=0),
    ),
    "toy": Config(
        workers=0,
        data=DataConfig(dataset="toy"),
        world=WorldConfig(train=1200),
        pixels=PixelsConfig(
            backbone="test_byobnet",
            weights="random",
            strides=(4, 8),
            side=160,
            longest=160,
            pool=4,
            spatial=128,
        ),
        head=HeadConfig(hidden=256, dropout=0.3),
        selector=SelectionConfig(hidden=128, dropout=0.2),
        backbone=BackboneStageConfig(
            epochs=2, images=8, optimiser="adamw", rate=5e-3, decay=0.01, schedule="one-cycle"
        ),
        triplets=replace(_SMALL, epochs=8, images=16, rate=4e-3, decay=0.05),
        selection=replace(_SMALL, epochs=4, images=16, rate=3e-3),
        validation=ValidationConfig(images=60),
        cache=CacheConfig(gigabytes=4.0),
    ),
    **{name: fit_size(name, 1500) for name in OWN},
}

_FPN = DetectorConfig(
    network="resnet50-fpn", side=800, longest=1333, training=DetectorStageConfig(rate=2.5e-3, decay=1e-4)
)

_CLOTHES = (
    *("shirt", "pants", "jacket", "jeans", "coat", "shorts", "hat", "helmet", "shoes", "shoe"),
    *("glasses", "sunglasses", "tie", "watch", "face", "hand", "bag"),
)

DETECTOR_PRESETS: dict[str, DetectorConfig] = {
    "vgg16": DetectorConfig(),
    "resnet50-fpn": _FPN,
    "mobilenetv3-fpn": replace(_FPN, network="mobilenetv3-fpn", training=replace(_FPN.training, images=4, rate=5e-3)),
    "yolox-nano": DetectorConfig(  # ours: chosen on held-out photos
        network="yolox-nano",
        weights="yolox_nano.onnx",
        side=416,
        longest=416,
        zoom=1.6,
        whole="person",
        parts=_CLOTHES,
        nms=1.0,
        score=0.01,
        most=30,
        precision="bfloat16",
        data=DetectorDataConfig(pictures="present"),
        training=DetectorStageConfig(epochs=30, images=16, optimiser="adamw", rate=1e-3, decay=0.02, clip=10.0),
    ),
    "toy": DetectorConfig(
        network="small",
        weights="random",
        side=160,
        longest=160,
        most=40,
        workers=0,
        data=DetectorDataConfig(dataset="toy"),
        world=WorldConfig(train=1200),
        training=DetectorStageConfig(epochs=12, images=8, optimiser="adamw", rate=2e-3, decay=0.05),
        validation=DetectorValidationConfig(images=120),
    ),
}
