"""Visual relationship detection with low-rank non-negative tensor decomposition (AAAI 2020).

    factors of ψ_c ─► CPTensor     ┐
    triplet counts ─► TripletPrior ├─ rank_relations ──► Relations
    P(X_sel), P(B|I) ──────────────┘   f_spo, exact top-N without the dense tensor

    files ─► load_dataset ─► Scenes ┐
    anybody's Predictions ──────────┴─ evaluate ──► recall under a named Protocol

    Scenes ─► train(Config) ─► RelationModel ┐
    photo ─► Detector, or anybody's boxes ───┴─ predict ──► Relations ──► query, JSON, graph, picture

Names are loaded on first use: `import polyadic` itself imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.boxes import box_iou
    from polyadic.config import Config, load_config
    from polyadic.cp import CPTensor, Mixture
    from polyadic.datasets import load_dataset
    from polyadic.detector import Detector
    from polyadic.detector.coco import CocoDetector
    from polyadic.detector.onnx import OnnxDetector
    from polyadic.evaluation import Protocol, evaluate, get_protocol
    from polyadic.model import RelationModel
    from polyadic.predictions import read_detections, read_predictions, write_detections, write_jsonl
    from polyadic.prior import TripletPrior
    from polyadic.ranking import Dedup, Relation, Relations, rank_relations
    from polyadic.scenes import Dataset, Detections, Predictions, Scene
    from polyadic.scenes.naming import LabelMap
    from polyadic.structures import SparsePrior
    from polyadic.training import train
    from polyadic.vocabulary import PolyadicError, Vocabulary

__version__ = "0.1.0"

_HOME = {
    "CPTensor": "cp",
    "CocoDetector": "detector.coco",
    "Config": "config",
    "Dataset": "scenes",
    "Dedup": "ranking",
    "Detections": "scenes",
    "Detector": "detector",
    "LabelMap": "scenes.naming",
    "Mixture": "cp",
    "OnnxDetector": "detector.onnx",
    "PolyadicError": "vocabulary",
    "Predictions": "scenes",
    "Protocol": "evaluation",
    "Relation": "ranking",
    "RelationModel": "model",
    "Relations": "ranking",
    "Scene": "scenes",
    "SparsePrior": "structures",
    "TripletPrior": "prior",
    "Vocabulary": "vocabulary",
    "box_iou": "boxes",
    "evaluate": "evaluation",
    "get_protocol": "evaluation",
    "load_config": "config",
    "load_dataset": "datasets",
    "rank_relations": "ranking",
    "read_detections": "predictions",
    "read_predictions": "predictions",
    "train": "training",
    "write_detections": "predictions",
    "write_jsonl": "predictions",
}

__all__ = [
    "CPTensor",
    "CocoDetector",
    "Config",
    "Dataset",
    "Dedup",
    "Detections",
    "Detector",
    "LabelMap",
    "Mixture",
    "OnnxDetector",
    "PolyadicError",
    "Predictions",
    "Protocol",
    "Relation",
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
    "rank_relations",
    "read_detections",
    "read_predictions",
    "train",
    "write_detections",
    "write_jsonl",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'polyadic' has no attribute {name!r}")
    value = getattr(import_module(f"polyadic.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
