"""Optional: the same triplet again on nearly the same boxes counts for less. Ours, not the paper's.

A detector fires twice on one object, and the image's answer fills with copies. Here the answer is built greedily:
the best entry is taken, and each remaining entry of the same triplet whose subject box and object box both overlap
the taken pair's is multiplied once by `weight`; the cap k counts what is taken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyadic.boxes import box_iou
from polyadic.structures import require_tensor
from polyadic.vocabulary import PolyadicError

Search = Callable[[int, int], tuple[Tensor, Tensor]]  # (k, top) -> log-scores and flat indices, best first


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


def deduplicate(
    search: Search, dedup: Dedup, triplets_per_pair: int, k: int, top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-scores with the loss applied, flat indices and the loss, exactly as if every entry had been looked at.

    The pool holds each pair's best `wide` entries among the image's best `deep`. What is outside it is bounded by
    the last ones inside, so a greedy answer that never falls to such a bound is the true one; otherwise the pool is
    doubled.
    """
    pairs = len(dedup.boxes)
    wide, deep = 2 * k, 2 * top
    while True:
        wide, deep = min(wide, triplets_per_pair), min(deep, pairs * min(wide, triplets_per_pair))
        scores, flat = search(wide, deep)
        answer = _greedy(scores, flat, dedup, triplets_per_pair, k, top, wide, deep)
        if answer is not None:
            return answer
        wide, deep = 4 * wide, 4 * deep


def _greedy(
    scores: Tensor, flat: Tensor, dedup: Dedup, triplets_per_pair: int, k: int, top: int, wide: int, deep: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The greedy answer from a pool, or None if an entry outside the pool might belong to it."""
    raw, index = scores.tolist(), flat.tolist()
    pair = [x // triplets_per_pair for x in index]
    boxes = dedup.boxes.cpu().double()
    loss = math.log(dedup.weight) if dedup.weight else -math.inf
    same: dict[int, list[int]] = {}  # triplet -> places in the pool
    held: dict[int, int] = {}  # pair -> entries in the pool
    for at, x in enumerate(index):
        same.setdefault(x % triplets_per_pair, []).append(at)
        held[pair[at]] = held.get(pair[at], 0) + 1
    # What is outside the pool comes behind its last entry, and behind the last of its pair if that was cut at `wide`.
    order = [(-score, x) for score, x in zip(raw, index, strict=True)]
    whole = len(raw) < deep or deep == len(dedup.boxes) * triplets_per_pair
    outside = (math.inf, -1) if whole else order[-1]
    cut = {p: order[at] for at, p in enumerate(pair) if held[p] == wide < triplets_per_pair}  # ends at the pair's last
    heap = [(*place, at) for at, place in enumerate(order)]
    lost, taken = [0.0] * len(raw), [False] * len(raw)
    room = dict.fromkeys(held, k)
    near: dict[int, list[bool]] = {}  # pair -> which pairs lie on nearly the same boxes
    answer: list[int] = []
    while heap and len(answer) < top:
        negative, x, at = heapq.heappop(heap)
        p = pair[at]
        if -negative != raw[at] + lost[at] or taken[at] or not room[p]:  # a stale or capped entry
            continue
        if negative == math.inf:
            break
        if (negative, x) > outside or any((negative, x) > bar for other, bar in cut.items() if room[other]):
            return None
        answer.append(at)
        taken[at] = True
        room[p] -= 1
        if p not in near:
            near[p] = (box_iou(boxes[p].expand_as(boxes), boxes) > dedup.iou).all(-1).tolist()
        for other in same[x % triplets_per_pair]:
            if not taken[other] and lost[other] == 0 and near[p][pair[other]]:
                lost[other] = loss
                heapq.heappush(heap, (-(raw[other] + loss), index[other], other))
    if len(answer) < top and (not whole or any(room[p] for p in cut)):
        return None
    chosen = torch.tensor(answer, dtype=torch.long, device=flat.device)
    losses = torch.tensor([lost[at] for at in answer], dtype=torch.float64, device=flat.device)
    return scores[chosen] + losses, flat[chosen], losses
