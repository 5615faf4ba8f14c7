"""What the network says of an image's pairs, and which parts of it count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from polyadic.cp import CPTensor


@dataclass(frozen=True)
class Parts:
    """Which parts of f_spo count, beside ψ_c: the rows of the paper's Table 4 are values of this."""

    selected: bool = True
    prior: bool = True
    geometry: bool = True  # ours: the prior that knows the boxes, λ
    labels: bool = False  # the true labels are given, and only predicates compete
    relabel: bool = True  # ours: False lets a detector's labels stand, and only predicates compete
    dedup: bool = True  # ours: repetitions count for less, where the config says so
    prior_exponent: float | None = None  # of ψ_u; None: the config's


ALL = Parts()


@dataclass(frozen=True, eq=False)
class PairScores:
    """What the network says of an image's ordered pairs; ranking is all that is left to do."""

    boxes: Float[Tensor, "N 4"]
    pairs: Int[Tensor, "B 2"]
    cp: CPTensor  # ψ_c
    log_selected: Float[Tensor, " B"] | None
    log_boxes: Float[Tensor, " B"] | None
    geometry: CPTensor | None = None  # λ, which is no distribution

    def joint(self, parts: Parts = ALL) -> CPTensor:
        """ψ_c, times the prior that knows the boxes; as a distribution."""
        return self._product if parts.geometry else self.cp

    @cached_property
    def _product(self) -> CPTensor:
        return self.cp if self.geometry is None else self.cp.product(self.geometry)

    @cached_property
    def _expected(self) -> Float[Tensor, " B"]:
        """How many annotations a pair may expect, Σ ψ_c λ, at most 1; its logarithm."""
        return (self._product.log_z() - self.cp.log_z()).clamp_max(0).cpu().double()  # on the CPU: MPS has no float64

    def log_pair(self, parts: Parts, exponent: float) -> Float[Tensor, " B"] | None:
        """Log P(X_sel) times its exponent; and what is left of Σ ψ_c λ, at most 1, beside `joint`, a distribution."""
        found = None
        if parts.selected and exponent and self.log_selected is not None:
            found = self.log_selected.cpu().double() * exponent  # on the CPU: MPS has no float64
        if self.geometry is None or not parts.geometry:
            return found
        return self._expected if found is None else self._expected + found

    def given(self, labels: Int[Tensor, "B 2"]) -> PairScores:
        """With the labels of subject and object known: ψ_c is P(predicate | labels)."""
        return replace(self, cp=self.cp.given(subject=labels[:, 0], object=labels[:, 1]))

    def take(self, rows: slice | Int[Tensor, " M"]) -> PairScores:
        """Some of the pairs."""
        rows = rows if isinstance(rows, slice) else rows.to(self.pairs.device)
        return PairScores(
            self.boxes,
            self.pairs[rows],
            self.cp[rows],
            None if self.log_selected is None else self.log_selected[rows],
            None if self.log_boxes is None else self.log_boxes[rows],
            None if self.geometry is None else self.geometry[rows],
        )
