"""The numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from polyadic.config.checks import check, check_sources
from polyadic.config.settings import Settings
from polyadic.config.settings import ours as _ours
from polyadic.config.settings import paper as _paper


@dataclass(frozen=True)
class Data:
    """[data] The dataset."""

    dataset: Literal["vrd", "vg150", "vg200", "coco", "toy"] = _ours("vrd", "coco is own data, toy the drawn world")
    root: str = _ours("", "the folder that holds it; toy needs none")
    pictures: Literal["required", "present"] = _ours("required", "present: learn from scenes that have theirs alone")
    detections: str = _ours("", "a file of proposals of the training images, for the stage [proposals]")
    detector: str = _ours("", "a run of `polyadic detect train`: finds those proposals, and stays with the model")
    simulate: str = _ours("", "a file of a detector's boxes on any images: train on simulated detections like them")


@dataclass(frozen=True)
class World:
    """[world] The drawn world, where data.dataset is toy."""

    train: int = _ours(800, "training pictures")
    test: int = _ours(200, "test pictures")
    seed: int = _ours(0, "another one draws another world")


@dataclass(frozen=True)
class Pixels:
    """[pixels] Frozen backbone, RoIAlign and pair mask (Network Architecture)."""

    backbone: str = _paper("vgg16", "VGG16; any timm name")
    weights: str = _ours(
        "timm", "timm: its pretrained ones; random; a .safetensors or .pth file; a run, for its backbone"
    )
    strides: tuple[int, ...] = _paper((16,), "conv5_3; several are pooled and joined")
    side: int = _ours(600, "the shorter side of the picture in the network, pixels")
    longest: int = _ours(1000, "and the most for the longer side")
    pool: int = _paper(7, "RoIAlign to 7 x 7")
    reduce: int = _ours(0, "principal components kept of a region's feature; 0 keeps it whole")
    crops: int = _ours(0, "side to which each box is cut out, for features of its own, pixels; 0: no crops")
    place: bool = _ours(False, "size and place of boxes and pairs, as numbers beside pixels and mask")
    mask: int = _paper(64, "the pair mask is 2 x 64 x 64")
    spatial: int = _paper(512, "the spatial feature")


@dataclass(frozen=True)
class Evidence:
    """[evidence] What a detector says of the boxes, as features."""

    embedding: int = _ours(96, "numbers per label")
    geometry: int = _ours(128, "numbers of the pair's geometry")


@dataclass(frozen=True)
class Head:
    """[head] The three branches (Network Architecture)."""

    rank: int = _paper(5, "R, Table 4")
    hidden: int = _paper(4096, "two fully connected layers each")
    layers: int = _paper(2, "of that size")
    dropout: float = _ours(0.5, "as in VGG16; the paper does not say")
    input_dropout: float = _ours(0.0, "of the features themselves")
    context: bool = _ours(False, "subject and object branches see the pair as well, and run once per pair")
    labels: bool = _ours(False, "ψ_c is P(s | box) P(o | box), one classifier for both; predicates are the prior's")


@dataclass(frozen=True)
class Selection:
    """[selector] P(X_sel) (Modeling missing annotations)."""

    hidden: int = _paper(4096, "a single hidden layer")
    dropout: float = _ours(0.5, "the paper does not say")
    nulls: float = _paper(1.0, "null pairs per annotated pair; 0 takes them all")


@dataclass(frozen=True)
class Geometry:
    """[geometry] The prior that knows the boxes, λ(triplet | geometry); trained where its stage has epochs."""

    rank: int = _ours(120, "components; at least one per predicate")
    hidden: int = _ours(256, "two fully connected layers")
    dropout: float = _ours(0.2, "after each of them")
    embedding: int = _ours(32, "numbers per label")


@dataclass(frozen=True)
class Neighbours:
    """[neighbours] What the other boxes say of a label; trained with that prior, for a head of labels."""

    hidden: int = _ours(256, "of all its layers")
    dropout: float = _ours(0.3, "after each of them")
    embedding: int = _ours(48, "numbers per label")
    noise: float = _ours(0.3, "share of labels replaced by chance in training")
    exponent: float = _ours(0.6, "of what they say; 0 does not listen")


@dataclass(frozen=True)
class Ranking:
    """[ranking] f_spo at test time."""

    nms: float = _paper(0.7, "of two detections that overlap by more, the less sure one is left out; 1: none")
    prior: float = _paper(1.0, "exponent of ψ_u; 0 leaves it out")
    selected: float = _paper(1.0, "exponent of P(X_sel)")
    boxes: float = _paper(1.0, "exponent of the detector's confidences")
    smoothing: float = _paper(1.0, "added to each count of ψ_u")
    repeat: float = _ours(1.0, "factor for a triplet that repeats on nearly the same boxes; 1: none")
    repeat_iou: float = _ours(0.45, "overlap from which boxes are nearly the same")


@dataclass(frozen=True)
class Stage:
    """A stage of training: which optimiser, for how long."""

    epochs: int = _ours(0, "0 leaves a stage out; the paper trains for 7")
    images: int = _ours(8, "images per step")
    optimiser: Literal["sgd", "adam", "adamw"] = _paper("sgd", "SGD")
    rate: float = _paper(1e-4, "learning rate")
    momentum: float = _ours(0.9, "of SGD; the paper does not say")
    decay: float = _ours(0.0, "weight decay; the paper does not say")
    schedule: Literal["constant", "cosine", "one-cycle"] = _ours("constant", "the paper does not say")
    clip: float = _paper(20.0, "total norm of the gradient")


@dataclass(frozen=True)
class Validation:
    """[validation] The held-out images after each epoch."""

    images: int = _ours(400, "at most so many; 0: learn from them too, and keep the last epoch")
    k: int = _ours(0, "predictions per pair; 0: any number")


@dataclass(frozen=True)
class Cache:
    """[cache] Region features on disk."""

    folder: str = _ours("", "empty: `features` beside the runs")
    gigabytes: float = _ours(20.0, "at most; 0 computes features anew in each epoch")


@dataclass(frozen=True)
class Config(Settings):
    """A whole run."""

    sources: tuple[Literal["pixels", "evidence"], ...] = _paper(("pixels",), "pixels; evidence is what a detector says")
    seed: int = _ours(0, "of all that is random in a run")
    device: str = _ours("auto", "cuda, mps or cpu, whichever is there")
    precision: Literal["float32", "bfloat16", "float16"] = _ours("float32", "of the networks; the loss is float32")
    workers: int = _ours(2, "processes that read pictures and features")
    threads: int = _ours(0, "of the CPU; 0: as torch decides")
    data: Data = field(default_factory=Data)
    world: World = field(default_factory=World)
    pixels: Pixels = field(default_factory=Pixels)
    evidence: Evidence = field(default_factory=Evidence)
    head: Head = field(default_factory=Head)
    selector: Selection = field(default_factory=Selection)
    geometry: Geometry = field(default_factory=Geometry)
    neighbours: Neighbours = field(default_factory=Neighbours)
    ranking: Ranking = field(default_factory=Ranking)
    backbone: Stage = field(default_factory=Stage)  # ours: the backbone learns the labels of true boxes, then is frozen
    boxes: Stage = field(default_factory=Stage)  # ours: all that boxes and labels tell, from annotations
    triplets: Stage = field(default_factory=lambda: Stage(epochs=7))  # paper: stage 1, annotated pairs of true boxes
    proposals: Stage = field(default_factory=Stage)  # paper: "then train with proposals"
    selection: Stage = field(default_factory=lambda: Stage(epochs=7))  # paper: P(X_sel), everything else frozen
    validation: Validation = field(default_factory=Validation)
    cache: Cache = field(default_factory=Cache)

    def __post_init__(self) -> None:
        check(self)
        check_sources(self)
