"""Visual relationship detection with low-rank non-negative tensor decomposition (AAAI 2020).

    image ─ load_detector ─► Detections ─ RelationModel.score ─► ScoredPairs ─ .rank ─► Relations
                 P(B|I)                    ψ_c, ψ_u, P(X_sel)                  f_spo

    Relations ─► evaluate (recall under a named Protocol), .draw, .to_json, write_relations
    files ─ load_dataset ─► Dataset of Scenes ─ train(Config) ─► RelationModel
    your own network's scores ─► CPTensor, TripletPrior ─► rank_relations

Names are loaded on first use: `import polyadic` itself imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.config import load_config
    from polyadic.config.schema import Config
    from polyadic.cp import CPTensor
    from polyadic.datasets import load_dataset
    from polyadic.detectors import load_detector
    from polyadic.evaluation import evaluate
    from polyadic.evaluation.protocol import Protocol, get_protocol
    from polyadic.io.records import read_detections, read_relations, write_relations
    from polyadic.model.relation_model import RelationModel
    from polyadic.prior import TripletPrior
    from polyadic.ranking import rank_relations
    from polyadic.structures.detections import Detections
    from polyadic.structures.relations import Relations
    from polyadic.structures.scenes import Dataset, Scene
    from polyadic.structures.vocabulary import PolyadicError, Vocabulary
    from polyadic.training import train

__version__ = "0.1.0"

_HOME = {
    "CPTensor": "cp",
    "Config": "config.schema",
    "Dataset": "structures.scenes",
    "Detections": "structures.detections",
    "PolyadicError": "structures.vocabulary",
    "Protocol": "evaluation.protocol",
    "RelationModel": "model.relation_model",
    "Relations": "structures.relations",
    "Scene": "structures.scenes",
    "TripletPrior": "prior",
    "Vocabulary": "structures.vocabulary",
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
    "Detections",
    "PolyadicError",
    "Protocol",
    "RelationModel",
    "Relations",
    "Scene",
    "TripletPrior",
    "Vocabulary",
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
