"""What the other boxes of a picture say of a box's label (ours): a person beside a skateboard, a wheel below a bus.

A small network, from annotations alone: P(label | labels of the others, all boxes), and P(label | own box), which it is
divided by. Pixels know the box's own place already; the ratio is what the others add, and multiplies what pixels say.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from polyadic.boxes import NUMBERS, PLACE, box_place, ordered_pairs, pair_numbers

_AT_ONCE = 1 << 15  # messages


class Neighbours(nn.Module):
    """Labels of the others, each with how the two boxes lie -> label. Mean and maximum over the others are taken."""

    mean: Tensor
    scale: Tensor
    frequency: Tensor

    def __init__(
        self, classes: int, hidden: int = 256, dropout: float = 0.3, embedding: int = 48, noise: float = 0.3
    ) -> None:
        """`noise`: the share of labels that are replaced by chance in training, as pixels will be wrong as well."""
        super().__init__()
        self.classes, self.noise = classes, noise
        self.embedding = nn.Linear(classes, embedding, bias=False)
        self.message = nn.Sequential(
            nn.Linear(embedding + NUMBERS, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.place = nn.Sequential(nn.Linear(PLACE, hidden), nn.ReLU())
        self.told = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(3 * hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.alone = nn.Sequential(
            nn.Linear(PLACE, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.register_buffer("mean", torch.zeros(NUMBERS))
        self.register_buffer("scale", torch.ones(NUMBERS))
        self.register_buffer("frequency", torch.ones(classes))

    @torch.no_grad()
    def fit_scale(self, numbers: Float[Tensor, "B 39"], labels: Int[Tensor, " N"]) -> None:
        """Standardise by all pairs; the labels that noise draws from."""
        self.mean.copy_(numbers.mean(0))
        self.scale.copy_(numbers.std(0, correction=0).clamp_min(1e-3))
        counts = torch.bincount(labels, minlength=self.classes)
        self.frequency.copy_(counts / counts.max().clamp_min(1))  # small numbers, for float16

    def forward(
        self,
        places: Float[Tensor, "N 7"],
        numbers: Float[Tensor, "B 39"],
        pairs: Int[Tensor, "B 2"],
        labels: Float[Tensor, "N X"],
    ) -> tuple[Float[Tensor, "N X"], Float[Tensor, "N X"]]:
        """Scores told by the others, and of the box alone. `labels` are probabilities, `pairs` all of a picture."""
        to, other = pairs.unbind(-1)
        h = self.message(torch.cat([self.embedding(labels)[other], (numbers - self.mean) / self.scale], -1))
        zero = h.new_zeros(len(places), h.shape[1])
        mean = zero.index_add(0, to, h) / zero[:, 0].index_add(0, to, h.new_ones(len(h))).clamp_min(1)[:, None]
        most = zero.scatter_reduce(0, to[:, None].expand_as(h), h, "amax")  # no message is below 0
        return self.told(torch.cat([mean, most, self.place(places)], -1)), self.alone(places)

    def nll(
        self,
        places: Float[Tensor, "N 7"],
        numbers: Float[Tensor, "B 39"],
        pairs: Int[Tensor, "B 2"],
        labels: Int[Tensor, " N"],
    ) -> Float[Tensor, ""]:
        """Of both, the mean over boxes."""
        seen = labels
        if self.training and self.noise:
            wrong = torch.rand(len(labels), device=labels.device) < self.noise
            seen = torch.where(wrong, torch.multinomial(self.frequency, len(labels), replacement=True), labels)
        told, alone = self(places, numbers, pairs, one_hot(seen, self.classes).to(places))
        return cross_entropy(told, labels) + cross_entropy(alone, labels)

    def refine(
        self,
        log_labels: Float[Tensor, "N X"],
        boxes: Float[Tensor, "N 4"],
        frames: Float[Tensor, "N 2"],
        exponent: float,
    ) -> Float[Tensor, "N X"]:
        """Log P(label) of the boxes of one picture from pixels -> the same with what the others say."""
        n, places, labels = len(boxes), box_place(boxes, frames), log_labels.exp()
        if n < 2:
            return log_labels
        ratios, some = [], max(_AT_ONCE // (n - 1), 1)
        for start in range(0, n, some):
            pairs = ordered_pairs(n, boxes.device)[start * (n - 1) : (start + some) * (n - 1)]  # by who is told
            told, alone = self(places, pair_numbers(boxes, frames, pairs), pairs, labels)
            ratio = told.to(log_labels).log_softmax(-1) - alone.to(log_labels).log_softmax(-1)
            ratios.append(ratio[start : start + some])
        ratio = torch.cat(ratios)
        found: Tensor = (log_labels + exponent * ratio).log_softmax(-1)
        return found
