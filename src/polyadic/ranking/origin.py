"""What an image's relations are ranked from, in blocks of pairs: memory is bounded however many boxes there are.

The best of an image are among the best of its blocks, so ranking block by block and merging is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.ranking.dedup import Dedup, deduplicate
from polyadic.ranking.relations import Relations
from polyadic.scenes import Detections
from polyadic.structures import SparsePrior
from polyadic.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Block:
    """Some of an image's pairs, in order, from number `first` on."""

    first: int
    cp: CPTensor  # ψ_c, times the prior that knows the boxes
    log_selected: Float[Tensor, " B"] | None
    log_boxes: Float[Tensor, " B"] | None

    def log_pair(self, origin: Origin) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Weighted log P(X_sel) and log P(B_s, B_o | I), in float64 on the CPU; 0 where there is none."""
        none = torch.zeros(self.cp.batch_shape[0], dtype=torch.float64)
        selected = none if self.log_selected is None else self.log_selected.cpu().double() * origin.selected_exponent
        boxes = none if self.log_boxes is None else self.log_boxes.cpu().double() * origin.boxes_exponent
        return selected, boxes


@dataclass(frozen=True, eq=False)
class Origin:
    """An image, its boxes, and on request what the network says of their ordered pairs."""

    detections: Detections
    size: tuple[float, float]  # (width, height), the frame of the boxes
    pairs: Int[Tensor, "B 2"]
    blocks: Callable[[], Iterable[Block]]  # all pairs in order; may compute them anew
    some: Callable[[Int[Tensor, " M"]], CPTensor]  # the blocks' distribution of a few pairs
    vocabulary: Vocabulary
    prior: SparsePrior | None = None
    prior_exponent: float = 1.0
    selected_exponent: float = 1.0
    boxes_exponent: float = 1.0
    repeat: tuple[float, float] | None = None  # overlap and weight of `Dedup`

    def rank(self, k: int | None, top: int) -> Relations:
        """As `rank_relations` on all pairs at once."""
        if self.repeat is None:
            return self._plain(k, top)
        sizes, held = self.vocabulary.sizes, dict[str, Relations]()
        boxes = torch.from_numpy(self.detections.boxes)[self.pairs.cpu()]  # [B, 2, 4]
        cells = math.prod(sizes)

        def search(wide: Tensor, deep: int) -> tuple[Tensor, Tensor]:
            held["pool"] = pool = self._plain(wide, max(deep, 1))
            return pool.log_score, _flat(pool, sizes)

        dedup = Dedup(boxes, *self.repeat)
        caps = torch.full((len(boxes),), min(k or cells, cells))
        score, flat, lost = deduplicate(search, dedup, cells, caps, top)
        pool = held["pool"]
        place = {key: at for at, key in enumerate(_flat(pool, sizes).tolist())}
        chosen = pool[torch.tensor([place[key] for key in flat.tolist()], dtype=torch.long)]
        return replace(chosen, log_score=score, log_repeat=lost)

    def _plain(self, k: int | Int[Tensor, " B"] | None, top: int) -> Relations:
        from polyadic.ranking import rank_relations

        found = []
        for block in self.blocks():
            best = rank_relations(
                block.cp,
                self.prior,
                block.log_selected,
                block.log_boxes,
                k[block.first : block.first + block.cp.batch_shape[0]] if isinstance(k, Tensor) else k,
                top,
                prior_exponent=self.prior_exponent,
                selected_exponent=self.selected_exponent,
                boxes_exponent=self.boxes_exponent,
                vocabulary=self.vocabulary,
            )
            best = best if best.pair.is_cpu else best.to("cpu")
            found.append(replace(best, pair=best.pair + block.first) if block.first else best)
        whole = found[0] if len(found) == 1 else merge(found, top, self.vocabulary)
        return replace(whole, origin=self)


def merge(parts: list[Relations], top: int, vocabulary: Vocabulary) -> Relations:
    """The best of several lists with different pairs; equal scores by (pair, subject, predicate, object)."""
    joined = Relations.join(parts, vocabulary)
    order = _flat(joined, vocabulary.sizes).argsort()
    order = order[joined.log_score[order].argsort(descending=True, stable=True)]
    return joined[order[:top]]


def _flat(found: Relations, sizes: tuple[int, int, int]) -> Int[Tensor, " N"]:
    S, P, O = sizes
    s, p, o = found.triplet.unbind(-1)
    return ((found.pair * S + s) * P + p) * O + o
