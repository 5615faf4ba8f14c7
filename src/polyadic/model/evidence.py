"""What a detector says of boxes -> features: labels, scores, geometry, P(class | box), witnesses (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from polyadic.boxes import GEOMETRY, box_iou, count_larger, pair_geometry, without_self
from polyadic.config.schema import EvidenceConfig

BOX, PAIR = 11, GEOMETRY + 6  # columns of evidence per box and per pair
WITNESS = 4  # more columns per box for each distinguished detector


def box_evidence(
    boxes: Float[Tensor, "N 4"], labels: Int[Tensor, " N"], scores: Float[Tensor, " N"], frame: Float[Tensor, " 2"]
) -> tuple[Int[Tensor, "N 2"], Float[Tensor, "N 11"]]:
    """Describe each box: its label, the label of its best rival (-1: none), and 11 numbers.

    The rival is the best box in the same place with another label. The numbers: score and its logit, the rival's
    overlap and score, overlap with a higher-scored box of the same label, log number of boxes and of those of the same
    label, log area, log aspect, centre.
    """
    n = len(boxes)
    if n == 0:
        return labels.new_zeros(0, 2), boxes.new_zeros(0, BOX)
    overlap = box_iou(boxes[:, None], boxes[None]).fill_diagonal_(0)
    same = labels[:, None] == labels[None]
    rival = (overlap * ~same * (overlap > 0.5)) * (0.5 + scores[None])  # by overlap and score
    best, at = rival.max(1)
    other = torch.where(best > 0, labels[at], -1)
    higher = scores[None] > scores[:, None]
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 / frame
    columns = [
        scores,
        scores.clamp(1e-3, 1 - 1e-3).logit() / 3,
        overlap.gather(1, at[:, None])[:, 0] * (best > 0),
        scores[at] * (best > 0),
        (overlap * same * higher).amax(1),
        torch.full_like(scores, n).log(),
        same.sum(1).to(scores).log(),
        (size.prod(-1) / frame.prod()).log(),
        (size[:, 0] / size[:, 1]).log(),
        centre[:, 0],
        centre[:, 1],
    ]
    return torch.stack([labels, other], 1), torch.stack(columns, 1)


def witness_evidence(
    boxes: Float[Tensor, "N 4"],
    labels: Int[Tensor, " N"],
    scores: Float[Tensor, " N"],
    *,
    source: Shaped[np.ndarray, " N"] | None,
    witnesses: Sequence[str],
) -> Float[Tensor, "N F"]:
    """Describe what each detector saw in the place of each box: 4 numbers per witness, 0 where it saw nothing.

    Whether the box is its own; the overlap with its best other box there, that box's score, and the overlap with its
    best other box of the same label. Boxes without a source, or of another detector, belong to no witness.
    """
    if not witnesses or not len(boxes):
        return boxes.new_zeros(len(boxes), WITNESS * len(witnesses))
    overlap = box_iou(boxes[:, None], boxes[None]).fill_diagonal_(0)
    same = labels[:, None] == labels[None]
    columns = []
    for pattern in witnesses:
        own = torch.from_numpy(_is_of(source, pattern, len(boxes)))
        theirs = overlap * own
        best, at = theirs.max(1)
        columns += [own.to(boxes), best, scores[at] * (best > 0.5), (theirs * same).amax(1)]
    return torch.stack(columns, 1)


def _is_of(source: Shaped[np.ndarray, " N"] | None, pattern: str, n: int) -> np.ndarray:
    if source is None:
        return np.zeros(n, bool)
    known = {name: is_witness(name, pattern) for name in set(source.tolist())}
    return np.array([known[name] for name in source.tolist()], bool)


def is_witness(name: str, pattern: str) -> bool:
    """Match the name of a detector with a pattern of `evidence.witnesses`."""
    return any(fnmatchcase(name.lower(), one.lower()) for one in pattern.split("|"))


class Nearness:
    """Distances between the boxes of one image and how many boxes are nearer, in O(N² log N)."""

    def __init__(self, boxes: Float[Tensor, "N 4"], labels: Int[Tensor, " N"], frame: Float[Tensor, " 2"]) -> None:
        self.boxes, self.frame = boxes, frame
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2
        exact = "donot_use_mm_for_euclid_dist"
        self.distance = torch.cdist(centre, centre, compute_mode=exact) / frame.norm()
        near = without_self(-self.distance)
        self.place = count_larger(near)  # [i, j]: boxes nearer to i than j is
        self.rivals = torch.zeros_like(near)  # and of the label of j
        for label in labels.unique():
            same = (labels == label).nonzero()[:, 0]
            self.rivals[:, same] = count_larger(near[:, same])

    def evidence(self, pairs: Int[Tensor, "B 2"]) -> Float[Tensor, "B 30"]:
        """Describe pairs: geometry, distance, and how many other boxes are nearer, of any and of the same label."""
        s, o = pairs.unbind(-1)
        geometry = pair_geometry(self.boxes[s], self.boxes[o], self.frame.expand(len(pairs), 2))
        apart = self.distance[s, o]
        columns = [apart, apart.clamp_min(0.01).log()]
        columns += [count[at].log1p() for count in (self.place, self.rivals) for at in ((s, o), (o, s))]
        return torch.cat([geometry, torch.stack(columns, 1)], 1)


# Typical value and spread of each number. Fixed, not fitted: true boxes all have the score 1, which says nothing about
# the spread of a detector's scores.
_BOX_COLUMNS = [
    *[(0.8, 0.3), (0.5, 0.8)],  # score, logit
    *[(0.2, 0.3), (0.2, 0.3), (0.1, 0.3)],  # rival's overlap and score, overlap with a higher-scored one
    *[(2.0, 0.7), (0.5, 0.7)],  # log numbers of boxes
    *[(-3.0, 1.5), (0.0, 0.7), (0.5, 0.3), (0.5, 0.3)],  # log area, log aspect, centre
]
_WITNESS_COLUMNS = [(0.5, 0.5), (0.4, 0.4), (0.3, 0.3), (0.4, 0.4)]
_PAIR_COLUMNS = [
    *[(0.2, 0.3), (0.2, 0.3), (0.8, 0.3), (0.8, 0.3)] * 2,  # both boxes in their union
    *[(0.0, 1.0)] * 6,  # log ratios, offsets
    *[(0.3, 0.3), (0.3, 0.3), (0.1, 0.2)],  # overlaps
    *[(-3.0, 1.5), (-3.0, 1.5), (0.4, 0.3)],  # areas
    *[(0.5, 0.3)] * 4,  # centres
    *[(0.3, 0.2), (-1.5, 0.8)],  # distance, its log
    *[(1.0, 0.7)] * 2,  # boxes that are nearer
    *[(0.5, 0.7)] * 2,  # and of the same label
]


class EvidenceFeature(nn.Module):
    """Embed labels and evidence: features of boxes and of pairs."""

    box_scale: Tensor
    pair_scale: Tensor

    def __init__(self, evidence: EvidenceConfig, classes: int) -> None:
        super().__init__()
        self.subject = nn.Embedding(classes + 1, evidence.embedding)
        self.object = nn.Embedding(classes + 1, evidence.embedding)
        self.rival = nn.Embedding(classes + 1, 24)
        box_columns = _BOX_COLUMNS + _WITNESS_COLUMNS * len(evidence.witnesses)
        for name, columns in (("box_scale", box_columns), ("pair_scale", _PAIR_COLUMNS)):
            self.register_buffer(name, torch.tensor(columns).T.contiguous(), persistent=False)  # [2, columns]
        self.geometry = nn.Sequential(nn.Linear(PAIR, evidence.geometry), nn.ReLU())
        self.names = nn.Sequential(nn.Linear(classes, evidence.names), nn.ReLU()) if evidence.names else None
        self.box = evidence.embedding + 24 + len(box_columns) + evidence.names
        self.pair = 2 * self.box + evidence.geometry

    def forward(
        self,
        labels: Int[Tensor, "N 2"],
        box_evidence: Float[Tensor, "N F"],
        pair_evidence: Float[Tensor, "B 30"],
        pairs: Int[Tensor, "B 2"],
        names: Float[Tensor, "N C"] | None = None,
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Float[Tensor, "B E"]]:
        label, rival = labels.unbind(-1)  # -1: unknown, none
        parts = [self.rival(rival + 1), (box_evidence - self.box_scale[0]) / self.box_scale[1]]
        if self.names is not None:
            assert names is not None, "`box_inputs` fills them in"
            parts.append(self.names(names / _NAMES_SCALE))
        rest = torch.cat(parts, -1)
        subject, object = (torch.cat([_embed(table, label), rest], -1) for table in (self.subject, self.object))
        s, o = pairs.unbind(-1)
        geometry = self.geometry((pair_evidence - self.pair_scale[0]) / self.pair_scale[1])
        pair = torch.cat([subject[s], object[o], geometry], -1)
        return subject, object, pair


_LEAST_NAME = 1e-3  # a smaller P(class | box) counts as this
_NAMES_SCALE = 3.0


def name_evidence(names: Float[np.ndarray, "N C"] | None, n: int, classes: int) -> Float[Tensor, "N C"]:
    """Compute log P(class | box), at least log 0.001, minus that floor: an unknown distribution is all zeros."""
    if names is None:
        return torch.zeros(n, classes)
    return (torch.from_numpy(names).float() / _LEAST_NAME + 1).log()


def _embed(table: nn.Embedding, labels: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
    """Look up each label; an unknown one is the mean of all, because training never shows one."""
    known: Tensor = table(labels + 1)
    return torch.where(labels[:, None] >= 0, known, table.weight[1:].mean(0)) if (labels < 0).any() else known
