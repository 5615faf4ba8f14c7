"""Detector evidence (ours): what labels, scores and boxes say of a pair, without any picture."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyadic.boxes import GEOMETRY, box_iou, pair_geometry
from polyadic.config import Evidence

BOX, PAIR = 11, GEOMETRY + 6  # numbers per box and per pair


def box_evidence(
    boxes: Float[Tensor, "N 4"], labels: Int[Tensor, " N"], scores: Float[Tensor, " N"], frame: Float[Tensor, " 2"]
) -> tuple[Int[Tensor, "N 2"], Float[Tensor, "N 11"]]:
    """Per box: its label and the label of the best box in the same place that says otherwise (-1: none); numbers.

    The numbers: score and its logit, that other label's overlap and score, overlap with a surer box of the same label,
    how many boxes there are, and of the same label, log area, log aspect, centre.
    """
    n = len(boxes)
    if n == 0:
        return labels.new_zeros(0, 2), boxes.new_zeros(0, BOX)
    overlap = box_iou(boxes[:, None], boxes[None]).fill_diagonal_(0)
    same = labels[:, None] == labels[None]
    rival = (overlap * ~same * (overlap > 0.5)) * (0.5 + scores[None])  # the more it overlaps, and the surer
    best, at = rival.max(1)
    other = torch.where(best > 0, labels[at], -1)
    surer = scores[None] > scores[:, None]
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 / frame
    columns = [
        scores,
        scores.clamp(1e-3, 1 - 1e-3).logit() / 3,
        overlap.gather(1, at[:, None])[:, 0] * (best > 0),
        scores[at] * (best > 0),
        (overlap * same * surer).amax(1),
        torch.full_like(scores, n).log(),
        same.sum(1).to(scores).log(),
        (size.prod(-1) / frame.prod()).log(),
        (size[:, 0] / size[:, 1]).log(),
        centre[:, 0],
        centre[:, 1],
    ]
    return torch.stack([labels, other], 1), torch.stack(columns, 1)


def pair_evidence(
    boxes: Float[Tensor, "N 4"], labels: Int[Tensor, " N"], pairs: Int[Tensor, "B 2"], frame: Float[Tensor, " 2"]
) -> Float[Tensor, "B 30"]:
    """Geometry, and how the two stand among the other boxes: distance, neighbourhood, nearer ones of the same label."""
    s, o = pairs.unbind(-1)
    geometry = pair_geometry(boxes[s], boxes[o], frame.expand(len(pairs), 2))
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    distance = torch.cdist(centre, centre, compute_mode="donot_use_mm_for_euclid_dist") / frame.norm()  # exact
    nearer = distance[:, :, None] > distance[:, None, :]  # [i, j, k]: k is nearer to i than j is
    nearer = nearer & ~torch.eye(len(boxes), dtype=torch.bool, device=boxes.device)[:, None, :]
    place = nearer.sum(-1).to(distance)
    rivals = (nearer & (labels[:, None] == labels[None])[None]).sum(-1).to(distance)
    apart = distance[s, o]
    columns = [apart, apart.clamp_min(0.01).log(), place[s, o].log1p(), place[o, s].log1p()]
    columns += [rivals[s, o].log1p(), rivals[o, s].log1p()]
    return torch.cat([geometry, torch.stack(columns, 1)], 1)


# Usual value and spread of each number. Fixed, not learned: true boxes all have the score 1, from which the spread of a
# detector's scores cannot be told.
_BOX_COLUMNS = [
    *[(0.8, 0.3), (0.5, 0.8)],  # score, logit
    *[(0.2, 0.3), (0.2, 0.3), (0.1, 0.3)],  # rival's overlap and score, overlap with a surer one
    *[(2.0, 0.7), (0.5, 0.7)],  # log numbers of boxes
    *[(-3.0, 1.5), (0.0, 0.7), (0.5, 0.3), (0.5, 0.3)],  # log area, log aspect, centre
]
_PAIR_COLUMNS = [
    *[(0.2, 0.3), (0.2, 0.3), (0.8, 0.3), (0.8, 0.3)] * 2,  # both boxes in their union
    *[(0.0, 1.0)] * 6,  # log ratios, offsets
    *[(0.3, 0.3), (0.3, 0.3), (0.1, 0.2)],  # overlaps
    *[(-3.0, 1.5), (-3.0, 1.5), (0.4, 0.3)],  # areas
    *[(0.5, 0.3)] * 4,  # centres
    *[(0.3, 0.2), (-1.5, 0.8)],  # distance, its log
    *[(1.0, 0.7)] * 2,  # neighbourhood
    *[(0.5, 0.7)] * 2,  # nearer ones of the label
]


class EvidenceFeature(nn.Module):
    """Embedded labels and numbers: features of boxes and of pairs."""

    box_scale: Tensor
    pair_scale: Tensor

    def __init__(self, evidence: Evidence, classes: int) -> None:
        super().__init__()
        self.subject = nn.Embedding(classes + 1, evidence.embedding)
        self.object = nn.Embedding(classes + 1, evidence.embedding)
        self.rival = nn.Embedding(classes + 1, 24)
        for name, columns in (("box_scale", _BOX_COLUMNS), ("pair_scale", _PAIR_COLUMNS)):
            self.register_buffer(name, torch.tensor(columns).T.contiguous(), persistent=False)  # [2, columns]
        self.geometry = nn.Sequential(nn.Linear(PAIR, evidence.geometry), nn.ReLU())
        self.box = evidence.embedding + 24 + BOX
        self.pair = 2 * self.box + evidence.geometry

    def forward(
        self,
        labels: Int[Tensor, "N 2"],
        box_numbers: Float[Tensor, "N 11"],
        pair_numbers: Float[Tensor, "B 30"],
        pairs: Int[Tensor, "B 2"],
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Float[Tensor, "B E"]]:
        own, rival = labels.unbind(-1)  # -1: unknown, none
        rest = torch.cat([self.rival(rival + 1), (box_numbers - self.box_scale[0]) / self.box_scale[1]], -1)
        subject, object = (torch.cat([_named(table, own), rest], -1) for table in (self.subject, self.object))
        s, o = pairs.unbind(-1)
        pair = torch.cat(
            [subject[s], object[o], self.geometry((pair_numbers - self.pair_scale[0]) / self.pair_scale[1])], -1
        )
        return subject, object, pair


def _named(table: nn.Embedding, labels: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
    """The row of each label; an unknown one is the mean of all, as training never shows one."""
    known: Tensor = table(labels + 1)
    return torch.where(labels[:, None] >= 0, known, table.weight[1:].mean(0)) if (labels < 0).any() else known
