"""Every number of a run, each marked as the paper's or ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from polyadic.config.settings import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Seed,
    Settings,
    Share,
    Threads,
    UnitInterval,
)
from polyadic.config.settings import ours as _ours
from polyadic.config.settings import paper as _paper
from polyadic.structures.vocabulary import PolyadicError


@dataclass(frozen=True)
class DataConfig:
    """[data] The dataset."""

    dataset: Literal["vrd", "vg150", "vg200", "coco", "toy"] = _ours("vrd", "coco is own data, toy the drawn world")
    root: str = _ours("", "the folder that holds it; toy needs none")
    pictures: Literal["required", "present", "optional"] = _ours(
        "required",
        "present: skip training images without a file; optional: learn from them without pixels, beside evidence",
    )
    detections: tuple[str, ...] = _ours((), "files of proposals of the training images, for the stage [proposals]")
    detector: str = _ours("", "a run of `polyadic detect train`: computes those proposals and is saved with the model")
    simulate: tuple[str, ...] = _ours(
        (),
        "files of detectors' boxes on any images: train on simulated detections with the same statistics, beside those "
        "of data.detections",
    )
    borrow: bool = _ours(
        False, "images that data.detections lacks borrow the detections of similar objects in other images"
    )
    one_predicate: bool = _ours(False, "draw one predicate per ordered pair in each epoch; the field's VG150 training")
    overlapping: bool = _ours(False, "skip training relations of boxes that do not overlap; the field's VG150 training")
    exact_boxes: bool = _ours(False, "keep the half pixels of VG150's boxes, which the field truncates")


@dataclass(frozen=True)
class WorldConfig:
    """[world] The drawn world, where data.dataset is toy."""

    train: Count = _ours(800, "training pictures")
    test: Count = _ours(200, "test pictures")
    seed: Seed = _ours(0, "another seed draws other scenes")


@dataclass(frozen=True)
class PixelsConfig:
    """[pixels] Frozen backbone, RoIAlign and pair mask (Network Architecture)."""

    backbone: str = _paper("vgg16", "VGG16; any timm name")
    weights: str = _ours("timm", "timm: pretrained; random; a .safetensors or .pth file; a run, for its backbone")
    strides: tuple[int, ...] = _paper((16,), "conv5_3; several are pooled and joined")
    side: Annotated[int, Meta(ge=8)] = _ours(600, "shorter side of the network input, pixels")
    longest: Annotated[int, Meta(ge=8)] = _ours(1000, "at most, for the longer side")
    pool: Count = _paper(7, "RoIAlign to 7 x 7")
    reduce: CountOrZero = _ours(0, "principal components kept of a region's feature; 0 keeps it whole")
    crops: CountOrZero = _ours(0, "side of a crop of each box, which adds its own features, pixels; 0: no crops")
    detector: str = _ours(
        "", "an exported YOLOX-Nano (.onnx), frozen: adds its features of each box; such weights have seen COCO"
    )
    mirror: bool = _ours(False, "head.labels: average the labels of a box and of its mirror image, trained on both")
    place: bool = _ours(False, "add size and position of boxes and pairs to pixels and mask")
    mask: Annotated[int, Meta(ge=8)] = _paper(64, "the pair mask is 2 x 64 x 64")
    spatial: Count = _paper(512, "the spatial feature")


@dataclass(frozen=True)
class EvidenceConfig:
    """[evidence] The detector's labels, scores and box geometry as features."""

    embedding: Count = _ours(96, "size of a label embedding")
    geometry: Count = _ours(128, "size of the pair's geometry feature")
    names: CountOrZero = _ours(0, "size of the feature of P(class | box) by a detector that gives it; 0: unused")
    witnesses: tuple[str, ...] = _ours(
        (), "detectors to distinguish: patterns of their names, `a*|b` for one of several names"
    )


@dataclass(frozen=True)
class HeadConfig:
    """[head] The three branches (Network Architecture)."""

    rank: Count = _paper(5, "R, Table 4")
    hidden: Count = _paper(4096, "two fully connected layers each")
    layers: Count = _paper(2, "of that size")
    dropout: Share = _ours(0.5, "as in VGG16; the paper does not say")
    input_dropout: Share = _ours(0.0, "on the input features")
    context: bool = _ours(False, "subject and object branches see the pair too, and run once per pair")
    span: bool = _ours(False, "train first layers by inner products of cached features: faster SGD for few images")
    compile: bool = _ours(False, "train with torch.compile; pays off on a GPU, and for many epochs")
    labels: bool = _ours(False, "ψ_c is P(s | box) P(o | box), one classifier for both; the prior gives predicates")


@dataclass(frozen=True)
class SelectionConfig:
    """[selector] P(X_sel) (Modeling missing annotations)."""

    hidden: Count = _paper(4096, "a single hidden layer")
    dropout: Share = _ours(0.5, "the paper does not say")
    nulls: NonNegative = _paper(1.0, "null pairs per annotated pair; 0 takes them all")


@dataclass(frozen=True)
class BoxPriorConfig:
    """[geometry] Box-conditioned prior λ(triplet | geometry), trained in the stage [boxes]."""

    rank: Count = _ours(120, "components; at least one per predicate")
    hidden: Count = _ours(256, "two fully connected layers")
    dropout: Share = _ours(0.2, "after each of them")
    embedding: Count = _ours(32, "size of a label embedding")


@dataclass(frozen=True)
class LabelContextConfig:
    """[neighbours] Label context: labels given the other boxes; trained with that prior, for head.labels."""

    hidden: Count = _ours(256, "of every layer")
    dropout: Share = _ours(0.3, "after each of them")
    embedding: Count = _ours(48, "size of a label embedding")
    noise: Share = _ours(0.3, "share of labels replaced at random in training")
    exponent: NonNegative = _ours(0.6, "exponent of the context in a label; 0 ignores it")


@dataclass(frozen=True)
class RankingConfig:
    """[ranking] f_spo at test time."""

    nms: UnitInterval = _paper(0.7, "IoU above which the lower-scoring of two detections is dropped; 1: none")
    prior: NonNegative = _paper(1.0, "exponent of ψ_u; 0 leaves it out")
    selected: NonNegative = _paper(1.0, "exponent of P(X_sel)")
    boxes: NonNegative = _paper(1.0, "exponent of the detector's confidences")
    smoothing: NonNegative = _paper(1.0, "added to each count of ψ_u")
    repeat: UnitInterval = _ours(1.0, "factor for a repeated triplet on nearly the same boxes; 1: none")
    repeat_iou: UnitInterval = _ours(0.45, "IoU from which boxes are nearly the same")


@dataclass(frozen=True)
class StageConfig:
    """A stage of training: which optimiser, for how long."""

    epochs: CountOrZero = _ours(0, "0 skips the stage; the paper trains for 7")
    images: Count = _ours(8, "images per step")
    optimiser: Literal["sgd", "adam", "adamw"] = _paper("sgd", "SGD")
    rate: Positive = _paper(1e-4, "learning rate")
    momentum: NonNegative = _ours(0.9, "of SGD; the paper does not say")
    decay: NonNegative = _ours(0.0, "weight decay; the paper does not say")
    schedule: Literal["constant", "cosine", "one-cycle"] = _ours("constant", "the paper does not say")
    clip: Positive = _paper(20.0, "total norm of the gradient")
    reduction: Literal["mean", "sum"] = _ours("mean", "of the loss over a step's rows; the paper's presets sum")
    slices: Count = _ours(1, "parts of a step that pass one after another, or in several processes")


@dataclass(frozen=True)
class BackboneStageConfig(StageConfig):
    """[backbone] The stage that trains the backbone."""

    train_from: CountOrZero = _ours(
        0, "train only layers of this stride or more (16: conv5 of VGG16), from cached maps of those before; 0: all"
    )


def _stage(epochs: int, title: str, kind: type[StageConfig] = StageConfig) -> Any:
    """Declare the section of a stage, with its own title."""
    return field(default_factory=lambda: kind(epochs=epochs), metadata={"about": title})


@dataclass(frozen=True)
class ValidationConfig:
    """[validation] Validation on held-out images after each epoch."""

    images: CountOrZero = _ours(400, "at most this many; 0: train on them too, and keep the last epoch")
    k: CountOrZero = _ours(0, "predictions per pair; 0: any number")


@dataclass(frozen=True)
class CacheConfig:
    """[cache] Region features on disk."""

    folder: str = _ours("", "empty: `features` beside the runs")
    gigabytes: NonNegative = _ours(20.0, "at most; 0 recomputes features in every epoch")


@dataclass(frozen=True)
class Config(Settings):
    """Settings of a run of a relation model."""

    sources: tuple[Literal["pixels", "evidence"], ...] = _paper(
        ("pixels",), "pixels; evidence: labels and scores of a detector"
    )
    seed: Seed = _ours(0, "seed of everything random in a run")
    device: str = _ours("auto", "auto picks cuda, mps or cpu")
    precision: Literal["float32", "bfloat16", "float16"] = _ours("float32", "of the networks; the loss is float32")
    workers: Threads = _ours(2, "processes that read pictures and features")
    threads: Threads = _ours(0, "CPU threads; 0: torch decides")
    data: DataConfig = field(default_factory=DataConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    pixels: PixelsConfig = field(default_factory=PixelsConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    selector: SelectionConfig = field(default_factory=SelectionConfig)
    geometry: BoxPriorConfig = field(default_factory=BoxPriorConfig)
    neighbours: LabelContextConfig = field(default_factory=LabelContextConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    backbone: BackboneStageConfig = _stage(
        0,
        "Stage 0 (ours): train the backbone on the labels of true boxes, then freeze it. 0 epochs: as given.",
        BackboneStageConfig,
    )
    boxes: StageConfig = _stage(
        0, "Ours: the box-conditioned prior and the label context, from annotations only. 0 epochs: none."
    )
    triplets: StageConfig = _stage(7, "Stage 1: annotated pairs of true boxes.")
    proposals: StageConfig = _stage(0, "Stage 1b: pairs of proposals, at most 4 per true box at IoU 0.5 or more.")
    selection: StageConfig = _stage(7, "Stage 2: P(X_sel), everything else frozen.")
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    def check(self) -> None:
        """Check values that depend on one another."""
        if not self.sources or len(set(self.sources)) < len(self.sources):
            raise PolyadicError(f"sources must be pixels, evidence or both, got {list(self.sources)}")
        if self.data.pictures == "optional" and (len(self.sources) < 2 or self.head.labels):
            raise PolyadicError(
                "data.pictures = optional needs sources = pixels,evidence and head.labels = false: a model that can do "
                "without pixels"
            )
        if not self.pixels.strides:
            raise PolyadicError("pixels.strides must name at least one stride")
        if len(set(self.pixels.strides)) < len(self.pixels.strides):
            raise PolyadicError(f"pixels.strides must be different, got {list(self.pixels.strides)}")
        if self.pixels.detector and max(self.pixels.strides) % 32:
            raise PolyadicError(
                f"pixels.detector needs pictures of whole cells of 32 pixels: add stride 32 to pixels.strides "
                f"{list(self.pixels.strides)}"
            )
        if self.pixels.mirror and not (self.head.labels and "pixels" in self.sources):
            raise PolyadicError("pixels.mirror is for labels from pixels: set head.labels, and sources to pixels")
        if self.head.span:
            self._check_span()
        if not self.head.labels:
            return
        if not self.boxes.epochs:
            raise PolyadicError("head.labels leaves predicates to the box-conditioned prior: set boxes.epochs")
        if self.head.rank != 1:
            raise PolyadicError(f"head.labels has rank 1, got head.rank {self.head.rank}")
        if self.head.context:
            raise PolyadicError("head.labels classifies single boxes: head.context must be false")
        if self.proposals.epochs:
            raise PolyadicError("head.labels is trained on true boxes: proposals.epochs must be 0")
        if self.selection.epochs:
            raise PolyadicError("head.labels leaves selection to the box-conditioned prior: selection.epochs must be 0")

    def _check_span(self) -> None:
        """Check that the first layers see frozen features, and that their steps are combinations of these."""
        needs = {
            "pixels among sources": "pixels" in self.sources,
            "pixels.reduce = 0": not self.pixels.reduce,
            "head.input_dropout = 0": not self.head.input_dropout,
            "head.labels = false": not self.head.labels,
            "head.compile = false": not self.head.compile,
            "data.pictures other than optional": self.data.pictures != "optional",
            "triplets.optimiser = sgd": self.triplets.optimiser == "sgd",
            "triplets.decay = 0": not self.triplets.decay,
            "triplets.schedule = constant": self.triplets.schedule == "constant",
            "triplets.momentum below 1": self.triplets.momentum < 1,
            "precision other than float16": self.precision != "float16",
        }
        for need, met in needs.items():
            if not met:
                raise PolyadicError(f"head.span needs {need}: otherwise its steps are not those of plain training")


@dataclass(frozen=True)
class DetectorDataConfig:
    """[data] The dataset; its boxes and labels are used."""

    dataset: Literal["vrd", "vg150", "vg200", "coco", "toy"] = _ours("vrd", "coco is own data, toy the drawn world")
    root: str = _ours("", "the folder that holds it; toy needs none")
    pictures: Literal["required", "present"] = _ours("required", "present: skip images without a file")
    teachers: str = _ours("", "a file of other detectors' boxes on the training images, learned beside the annotations")
    teacher_score: UnitInterval = _ours(0.3, "least score of such a box")
    teacher_weight: UnitInterval = _ours(0.6, "its weight in the loss; an annotator's box has 1")
    folds: CountOrZero = _ours(0, "leave out every n-th training image, for detections of unseen ones; 0: none")
    fold: CountOrZero = _ours(0, "which of the folds is left out")


@dataclass(frozen=True)
class DetectorValidationConfig:
    """[validation] Validation on held-out images after each epoch."""

    images: CountOrZero = _ours(400, "at most this many")


@dataclass(frozen=True)
class DetectorStageConfig(StageConfig):
    """[training] The detector's only stage; the paper gives no details."""

    epochs: CountOrZero = _ours(10, "over all training images")
    images: Count = _ours(2, "images per step")
    optimiser: Literal["sgd", "adam", "adamw"] = _ours("sgd", "SGD is usual for Faster R-CNN")
    rate: Positive = _ours(1e-3, "learning rate, for 2 images per step")
    momentum: NonNegative = _ours(0.9, "of SGD")
    decay: NonNegative = _ours(5e-4, "weight decay")
    schedule: Literal["constant", "cosine", "one-cycle"] = _ours("one-cycle", "a short rise, then a cosine")
    clip: Positive = _ours(20.0, "total norm of the gradient")


@dataclass(frozen=True)
class DetectorConfig(Settings):
    """Settings of a run of a detector."""

    network: Literal["vgg16", "resnet50-fpn", "mobilenetv3-fpn", "yolox-nano", "small"] = _paper("vgg16", "VGG16")
    weights: str = _ours(
        "torchvision", "torchvision: pretrained; random; a file (.safetensors, .pth; yolox-nano: .onnx)"
    )
    whole: str = _ours("", "yolox-nano: an object inside whose boxes parts are looked for; empty: none")
    parts: tuple[str, ...] = _ours((), "yolox-nano: the objects that are parts of it")
    pretrained_rate: UnitInterval = _ours(0.15, "yolox-nano: factor of the learning rate of layers from COCO's weights")
    zoom: Annotated[float, Meta(ge=1)] = _ours(1.0, "yolox-nano: largest random enlargement or reduction in training")
    side: Annotated[int, Meta(ge=32)] = _ours(600, "shorter side of the network input, pixels")
    longest: Annotated[int, Meta(ge=32)] = _ours(1000, "at most, for the longer side")
    nms: UnitInterval = _paper(0.7, "IoU above which the lower-scoring of two boxes of any label is dropped")
    score: UnitInterval = _ours(0.05, "least label probability of a kept box")
    most: Count = _ours(100, "boxes kept per image")
    seed: Seed = _ours(0, "seed of everything random in a run")
    device: str = _ours("auto", "auto picks cuda, mps or cpu")
    precision: Literal["float32", "bfloat16", "float16"] = _ours("float32", "of the network")
    workers: Threads = _ours(2, "processes that read pictures")
    threads: Threads = _ours(0, "CPU threads; 0: torch decides")
    data: DetectorDataConfig = field(default_factory=DetectorDataConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    training: DetectorStageConfig = field(default_factory=DetectorStageConfig)
    validation: DetectorValidationConfig = field(default_factory=DetectorValidationConfig)

    def check(self) -> None:
        """Check values that depend on one another."""
        if self.data.fold >= max(self.data.folds, 1):
            raise PolyadicError(
                f"data.fold is one of data.folds, counted from 0: got fold {self.data.fold} of {self.data.folds}"
            )
        if self.data.folds == 1:
            raise PolyadicError("data.folds: a single fold would leave out every training image; 0 leaves out none")
        if self.network == "yolox-nano" and (self.longest % 32 or self.side != self.longest):
            raise PolyadicError(
                f"yolox-nano has square inputs: side and longest must be one multiple of 32, got {self.side} and "
                f"{self.longest}"
            )
