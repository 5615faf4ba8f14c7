"""Visual relationship detection with low-rank non-negative tensor decomposition (AAAI 2020).

    factors of ψ_c ─► CPTensor     ┐
    triplet counts ─► TripletPrior ├─ rank_relations ──► Relations
    P(X_sel), P(B|I) ──────────────┘   f_spo, exact top-N without the dense tensor

Names are loaded on first use: `import polyadic` itself imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyadic.boxes import box_iou
    from polyadic.cp import CPTensor, Mixture
    from polyadic.prior import TripletPrior
    from polyadic.ranking import Dedup, rank_relations
    from polyadic.structures import Relation, Relations, SparsePrior
    from polyadic.vocabulary import PolyadicError, Vocabulary

__version__ = "0.1.0"

_HOME = {
    "CPTensor": "cp",
    "Dedup": "ranking",
    "Mixture": "cp",
    "PolyadicError": "vocabulary",
    "Relation": "structures",
    "Relations": "structures",
    "SparsePrior": "structures",
    "TripletPrior": "prior",
    "Vocabulary": "vocabulary",
    "box_iou": "boxes",
    "rank_relations": "ranking",
}

__all__ = [
    "CPTensor",
    "Dedup",
    "Mixture",
    "PolyadicError",
    "Relation",
    "Relations",
    "SparsePrior",
    "TripletPrior",
    "Vocabulary",
    "box_iou",
    "rank_relations",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'polyadic' has no attribute {name!r}")
    value = getattr(import_module(f"polyadic.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
