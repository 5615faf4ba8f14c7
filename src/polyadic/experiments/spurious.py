"""What the prior pushes out of the list of a photo's best triplets: spurious ones, and hits (Qualitative Results).

Spurious here: never annotated in training, not annotated on these boxes of the test photo either, listed without the
prior, and no longer listed with it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from polyadic.boxes import box_iou
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.results import Row
from polyadic.prior import TripletPrior
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene

LU = get_protocol("lu2016")
WITHOUT, WITH = "without the prior", "with the prior"


def matches(scene: Scene, predictions: Relations, protocol: Protocol = LU) -> Bool[np.ndarray, "M T"]:
    """Match predictions with annotated triplets: the same names, and both boxes overlap as the protocol requires."""
    boxes = torch.from_numpy(predictions.in_frame(scene.frame).boxes[predictions.pairs])  # [M, 2, 4]
    truths = torch.from_numpy(scene.pair_boxes)  # [T, 2, 4]
    overlap = box_iou(boxes[:, None], truths[None], protocol.iou_offset)  # [M, T, 2]
    near = (overlap >= protocol.iou).all(-1).numpy()
    same = (predictions.triplets[:, None] == scene.triplets[None]).all(-1)
    return np.asarray(near & same)


@dataclass(frozen=True)
class Counts:
    """Triplets in the lists of some photos: the best of each without the prior, and with it."""

    photos: int = 0
    listed_without: int = 0
    unseen_without: int = 0  # never annotated in training: count 0 in the prior
    hits_without: int = 0  # annotated on these boxes
    listed: int = 0  # with the prior
    unseen: int = 0
    hits: int = 0
    spurious: int = 0  # unseen and no hit, listed without the prior and no longer with it
    lost_hits: int = 0  # hits listed without the prior and no longer with it
    lost_unseen_hits: int = 0  # of these, unseen

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.photos:,} photos; {WITHOUT} {self.unseen_without:,} of {self.listed_without:,} listed triplets "
            f"were never annotated in training and {self.hits_without:,} are hits, {WITH} {self.unseen:,} and "
            f"{self.hits:,} of {self.listed:,}; it pushed out {self.spurious:,} spurious triplets and "
            f"{self.lost_hits:,} hits ({self.lost_unseen_hits:,} never annotated in training)"
        )


@dataclass(frozen=True, eq=False)
class Lists:
    """The best triplets of a photo without and with the prior, and what is marked in each."""

    without: Relations
    ranked: Relations  # with the prior
    hits_without: Bool[np.ndarray, " L"]
    hits: Bool[np.ndarray, " M"]
    found: Bool[np.ndarray, " T"]  # annotated triplets that are in one of the lists
    spurious: Bool[np.ndarray, " L"]  # without the prior
    counts: Counts

    @classmethod
    def compare(cls, scene: Scene, without: Relations, ranked: Relations, prior: TripletPrior) -> Lists:
        """Mark hits, and what the prior pushed out of the list: the same triplet on the same boxes is not in it."""
        fits, fits_with = matches(scene, without), matches(scene, ranked)  # [M, T] each
        hits_without, hits = np.asarray(fits.any(1)), np.asarray(fits_with.any(1))
        kept = (_rows(without)[:, None] == _rows(ranked)[None]).all(-1).any(1)
        unseen_without, unseen = _unseen(prior, without), _unseen(prior, ranked)
        spurious, lost_hits = unseen_without & ~hits_without & ~kept, hits_without & ~kept
        counts = Counts(
            photos=1,
            listed_without=len(without),
            unseen_without=int(unseen_without.sum()),
            hits_without=int(hits_without.sum()),
            listed=len(ranked),
            unseen=int(unseen.sum()),
            hits=int(hits.sum()),
            spurious=int(spurious.sum()),
            lost_hits=int(lost_hits.sum()),
            lost_unseen_hits=int((lost_hits & unseen_without).sum()),
        )
        found = np.concatenate([fits, fits_with]).any(0)
        return cls(without, ranked, hits_without, hits, np.asarray(found), spurious, counts)


def _rows(relations: Relations) -> Int[np.ndarray, "M 5"]:
    return np.concatenate([relations.pairs, relations.triplets], 1)


def _unseen(prior: TripletPrior, relations: Relations) -> Bool[np.ndarray, " M"]:
    """Mark the triplets that were never annotated in training."""
    seen = prior.triplets[prior.counts > 0].cpu().numpy()
    known: np.ndarray = (relations.triplets[:, None] == seen[None]).all(-1).any(1)
    return ~known


def count_rows(counts: Counts, **common: Any) -> list[Row]:
    """List the counts as rows, with the share of the list in percent; `common` are other fields."""
    without = {
        "listed": counts.listed_without,
        "never annotated in training": counts.unseen_without,
        "hit": counts.hits_without,
        "spurious": counts.spurious,
        "hit pushed out": counts.lost_hits,
        "hit never annotated in training, pushed out": counts.lost_unseen_hits,
    }
    ranked = {"listed": counts.listed, "never annotated in training": counts.unseen, "hit": counts.hits}
    return [
        Row(parts=parts, outcome=outcome, triplets=n, share=100 * n / max(numbers["listed"], 1), **common)
        for parts, numbers in ((WITHOUT, without), (WITH, ranked))
        for outcome, n in numbers.items()
    ]
