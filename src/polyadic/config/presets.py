"""The runs that have a name. What they do not say is the default of the schema: the paper's, where it says it."""

from __future__ import annotations

from dataclasses import replace

from polyadic.config.schema import Cache, Config, Data, Head, Pixels, Ranking, Selection, Stage, Validation, World

_BOXES = Stage(images=16, optimiser="adamw", rate=2e-3, decay=0.02, schedule="one-cycle")
_PIXELS = Stage(images=16, optimiser="adamw", rate=1e-3, decay=0.05, schedule="one-cycle")
_SMALL = Stage(images=8, optimiser="adamw", rate=1e-3, decay=0.01, schedule="one-cycle")

# the paper's recipe for few and small pictures: light backbone, principal components, much dropout
_VRD_PIXELS = Config(
    workers=1,
    data=Data(pictures="present"),
    pixels=Pixels(
        backbone="tf_efficientnet_lite0",
        strides=(16, 32),
        side=512,
        longest=512,
        pool=3,
        reduce=512,
        spatial=128,
        place=True,
    ),
    head=Head(hidden=512, input_dropout=0.2),
    selector=Selection(hidden=512, nulls=3.0),
    ranking=Ranking(prior=0.5),
    triplets=replace(_PIXELS, epochs=15),
    selection=replace(_PIXELS, epochs=4),
    cache=Cache(gigabytes=4.0),
)

PRESETS: dict[str, Config] = {
    "vrd": Config(),
    "vg150": Config(data=Data(dataset="vg150")),
    "vg200": Config(data=Data(dataset="vg200")),
    "vrd-boxes": Config(  # no pixels: what a detector says; needs data.simulate or data.detections
        sources=("evidence",),
        workers=1,
        head=Head(rank=10, hidden=384, dropout=0.4, context=True),
        selector=Selection(hidden=384, dropout=0.3, nulls=0.0),
        ranking=Ranking(nms=1.0, prior=0.15, boxes=0.0, repeat=0.1),
        triplets=Stage(epochs=0),
        proposals=replace(_BOXES, epochs=12),
        selection=replace(_BOXES, epochs=4),
        validation=Validation(images=200, k=10),
    ),
    "vrd-pixels": _VRD_PIXELS,
    "vrd-pixels-grown": replace(  # ours: labels from pixels, all else from a prior that knows the boxes
        _VRD_PIXELS,
        pixels=replace(_VRD_PIXELS.pixels, crops=160),
        head=replace(_VRD_PIXELS.head, rank=1, layers=1, input_dropout=0.5, labels=True),
        ranking=Ranking(prior=0.0),
        boxes=Stage(epochs=15, images=16, optimiser="adamw", rate=3e-3, decay=0.05, schedule="one-cycle"),
        selection=Stage(epochs=0),
    ),
    "toy": Config(
        workers=0,
        data=Data(dataset="toy"),
        world=World(train=1200),
        pixels=Pixels(
            backbone="test_byobnet",
            weights="random",
            strides=(4, 8),
            side=160,
            longest=160,
            pool=4,
            spatial=128,
        ),
        head=Head(hidden=256, dropout=0.3),
        selector=Selection(hidden=128, dropout=0.2),
        backbone=replace(_SMALL, epochs=2, rate=5e-3),
        triplets=replace(_SMALL, epochs=8, images=16, rate=4e-3, decay=0.05),
        selection=replace(_SMALL, epochs=4, images=16, rate=3e-3),
        validation=Validation(images=60),
        cache=Cache(gigabytes=4.0),
    ),
}
