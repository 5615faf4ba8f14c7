"""Visual relationship detection with low-rank non-negative tensor decomposition (AAAI 2020).

    factors of ψ_c ─► CPTensor     ┐
    triplet counts ─► TripletPrior ├─ rank_relations ──► Relations
    P(X_sel), P(B|I) ──────────────┘   f_spo, exact top-N without the dense tensor

    files ─► load_dataset ─► Scenes ┐
    anybody's Relations ────────────┴─ evaluate ──► recall under a named Protocol

    Scenes ─► train(Config) ─► RelationModel ┐
    photo ─► Detector, or anybody's boxes ───┴─ predict ──► Relations ──► query, JSON, graph, picture

Names are loaded on first use: `import polyadic` itself imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.boxes import box_iou
    from polyadic.config import load_config
    from polyadic.config.schema import Config
    from polyadic.cp import CPTensor, Mixture
    from polyadic.datasets import load_dataset
    from polyadic.detectors import load_detector
    from polyadic.evaluation import evaluate
    from polyadic.evaluation.protocol import Protocol, get_protocol
    from polyadic.io.records import read_detections, read_relations, write_relations
    from polyadic.model.relation_model import RelationModel
    from polyadic.prior import SparsePrior, TripletPrior
    from polyadic.ranking import rank_relations
    from polyadic.ranking.dedup import Dedup
    from polyadic.structures.detections import Detections
    from polyadic.structures.labels import LabelMap
    from polyadic.structures.relations import Relations
    from polyadic.structures.scenes import Dataset, Scene
    from polyadic.structures.vocabulary import PolyadicError, Vocabulary
    from polyadic.training import train

__version__ = "0.1.0"

_HOME = {
    "CPTensor": "cp",
    "Config": "config.schema",
    "Dataset": "structures.scenes",
    "Dedup": "ranking.dedup",
    "Detections": "structures.detections",
    "LabelMap": "structures.labels",
    "Mixture": "cp",
    "PolyadicError": "structures.vocabulary",
    "Protocol": "evaluation.protocol",
    "RelationModel": "model.relation_model",
    "Relations": "structures.relations",
    "Scene": "structures.scenes",
    "SparsePrior": "prior",
    "TripletPrior": "prior",
    "Vocabulary": "structures.vocabulary",
    "box_iou": "boxes",
    "evaluate": "evaluation",
    "get_protocol": "evaluation.protocol",
    "load_config": "config",
    "load_dataset": "datasets",
    "load_detector": "detectors",
    "rank_relations": "ranking",
    "read_detections": "io.records",
    "read_relations": "io.records",
    "train": "training",
    "write_relations": "io.records",
}

__all__ = [
    "CPTensor",
    "Config",
    "Dataset",
    "Dedup",
    "Detections",
    "LabelMap",
    "Mixture",
    "PolyadicError",
    "Protocol",
    "RelationModel",
    "Relations",
    "Scene",
    "SparsePrior",
    "TripletPrior",
    "Vocabulary",
    "box_iou",
    "evaluate",
    "get_protocol",
    "load_config",
    "load_dataset",
    "load_detector",
    "rank_relations",
    "read_detections",
    "read_relations",
    "train",
    "write_relations",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'polyadic' has no attribute {name!r}")
    value = getattr(import_module(f"polyadic.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
