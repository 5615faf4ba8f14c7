"""Penalise triplets that are repeated on nearly the same boxes: optional, ours, not the paper's.

A detector fires twice on one object, and the image's answer fills with copies. Here the answer is built greedily:
the best entry is taken, and each remaining entry of the same triplet whose subject box and object box both overlap
the taken pair's is multiplied once by `weight`; the cap k counts what is taken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from polyadic.boxes import box_iou
from polyadic.cp import require_tensor
from polyadic.structures.vocabulary import PolyadicError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Search = Callable[[Ints, int], tuple[Floats, Ints]]  # (k [B], top) -> log-scores and flat indices, best first


@dataclass(frozen=True, eq=False)
class Dedup:
    """The boxes of each pair (subject, object), and when and how much a repetition loses."""

    boxes: Float[Tensor, "B 2 4"]  # `boxes[pairs]`, xyxy
    iou: float = 0.45  # ours: both overlaps above this
    weight: float = 0.1  # ours: factor on the score, from 0 (drop) to 1 (keep)

    def __post_init__(self) -> None:
        require_tensor(self.boxes, "Dedup: boxes")
        if self.boxes.ndim != 3 or self.boxes.shape[1:] != (2, 4):
            raise PolyadicError(f"Dedup: boxes must be [B, 2, 4] (boxes[pairs]), got {list(self.boxes.shape)}")
        if not bool(self.boxes.isfinite().all()):
            raise PolyadicError("Dedup: boxes must be finite")
        if not (0 <= self.iou <= 1 and 0 <= self.weight <= 1):
            raise PolyadicError(f"Dedup: iou and weight must lie in 0..1, got {self.iou} and {self.weight}")


def deduplicate(search: Search, dedup: Dedup, triplets_per_pair: int, k: Ints, top: int) -> tuple[Floats, Ints, Floats]:
    """Return penalised log-scores, flat indices and penalties, exactly as if every entry had been considered.

    An entry of a pair is used up when it is taken, or loses when a pair on nearly the same boxes takes its triplet. So
    while a pair has room, fewer of its entries are used up than the caps of the pairs near it (itself included) add up
    to, and fewer than `top`: its best that many always hold one that is not, and no entry behind them can be next.
    The pool is the best `deep` of all those. What is behind it is bounded by its last entry, so a greedy answer that
    never falls below that one is the true one; otherwise the pool is made deeper.
    """
    near = _Near(dedup)
    wide = near.total(k.clip(max=min(top, triplets_per_pair))).clip(max=min(top, triplets_per_pair))
    most, deep = int(wide.sum()), 4 * top
    while True:
        deep = min(deep, most)
        scores, flat = search(wide, deep)
        complete = deep == most or len(scores) < deep
        pool = list(zip(scores.tolist(), flat.tolist(), strict=True))
        answer = _greedy(pool, near, triplets_per_pair, k=k.tolist(), top=top, complete=complete)
        if answer is not None:
            places, losses = answer
            chosen, lost = np.array(places, np.int64), np.array(losses, np.float64)
            return scores[chosen] + lost, flat[chosen], lost
        deep *= 4


class _Near:
    """Which pairs lie on nearly the same boxes: an image has few boxes, so those are compared, not the pairs."""

    def __init__(self, dedup: Dedup) -> None:
        boxes = dedup.boxes.cpu().double().view(-1, 4)
        unlike, box = boxes.unique(dim=0, return_inverse=True)  # [N, 4], [2B]
        self.loss = math.log(dedup.weight) if dedup.weight else -math.inf
        self._box = box.view(-1, 2)  # [B, 2]
        self._over = box_iou(unlike[:, None], unlike) > dedup.iou  # [N, N]
        self.subject, self.object = self._box.T.tolist()
        self.over = self._over.tolist()

    def total(self, number: Ints) -> Ints:
        """Sum numbers over each pair and the pairs near it, in O(N³ + B)."""
        over = self._over.double().fill_diagonal_(1)  # an empty box does not overlap itself
        at = tuple(self._box.T)
        per_boxes = torch.zeros_like(over).index_put_(at, torch.from_numpy(number).double(), accumulate=True)  # [N, N]
        return (over @ per_boxes @ over)[at].long().numpy()


def _greedy(
    pool: list[tuple[float, int]], near: _Near, triplets_per_pair: int, *, k: list[int], top: int, complete: bool
) -> tuple[list[int], list[float]] | None:
    """Return places in the pool and penalties of the greedy answer, or None if an entry outside might belong to it."""
    raw, index = [score for score, _ in pool], [x for _, x in pool]
    pair = [x // triplets_per_pair for x in index]
    same: dict[int, list[int]] = {}  # triplet -> places in the pool
    for at, x in enumerate(index):
        same.setdefault(x % triplets_per_pair, []).append(at)
    heap = [(-score, x, at) for at, (score, x) in enumerate(zip(raw, index, strict=True))]
    last = (math.inf, -1) if complete or not heap else heap[-1][:2]
    heapq.heapify(heap)  # the logs of unequal products may be equal
    lost, taken, room = [0.0] * len(raw), [False] * len(raw), k.copy()
    answer: list[int] = []
    while heap and len(answer) < top:
        negative, x, at = heapq.heappop(heap)
        p = pair[at]
        if -negative != raw[at] + lost[at] or taken[at] or not room[p]:  # a stale or capped entry
            continue
        if negative == math.inf:
            break
        if (negative, x) > last:
            return None
        answer.append(at)
        taken[at] = True
        room[p] -= 1
        subject, object = near.over[near.subject[p]], near.over[near.object[p]]
        for other in same[x % triplets_per_pair]:
            q = pair[other]
            if not taken[other] and lost[other] == 0 and subject[near.subject[q]] and object[near.object[q]]:
                lost[other] = near.loss
                heapq.heappush(heap, (-(raw[other] + near.loss), index[other], other))
    if len(answer) < top and not complete:
        return None
    return answer, [lost[at] for at in answer]
