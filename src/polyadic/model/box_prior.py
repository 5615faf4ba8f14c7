"""A prior that knows the boxes (ours): how many annotations of (s, p, o) a pair of boxes may expect, from annotations.

ψ_u and P(X_sel) grown up into one: λ(s, p, o | geometry), a CP tensor that is not normalised. Its sum over predicates
says whether a pair of these labels at these boxes is annotated at all. The product of two CP tensors is a CP tensor of
rank R·R', so ψ_c times it is ranked exactly, as everything else.
"""

from __future__ import annotations

import heapq

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from polyadic.boxes import NUMBERS, PLACE, box_place, ordered_pairs, pair_numbers
from polyadic.cp import CPTensor


class GeometryPrior(nn.Module):
    """Numbers of a pair -> λ. A component has one predicate and fixed classes, made of embeddings; its weight moves.

    Each predicate has a component of its own, the frequent ones have several.
    """

    mean: Tensor
    scale: Tensor
    predicates: Tensor

    def __init__(
        self,
        sizes: tuple[int, int, int],
        rank: int = 120,
        hidden: int = 256,
        dropout: float = 0.2,
        embedding: int = 32,
    ) -> None:
        """`rank` is raised to one component per predicate."""
        super().__init__()
        S, P, O = sizes
        self.sizes, self.rank = sizes, max(rank, P)
        self.trunk = nn.Sequential(
            nn.Linear(NUMBERS, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.weights = nn.Linear(hidden, self.rank)
        self.subject, self.object = (_Classes(n, self.rank, embedding, dropout) for n in (S, O))
        self.register_buffer("mean", torch.zeros(NUMBERS))
        self.register_buffer("scale", torch.ones(NUMBERS))
        self.register_buffer("predicates", torch.arange(self.rank) % P)

    @torch.no_grad()
    def fit_scale(self, numbers: Float[Tensor, "B 39"], predicates: Int[Tensor, " M"]) -> None:
        """Standardise by all pairs; share out the components by the annotated predicates, and start at their rates."""
        self.mean.copy_(numbers.mean(0))
        self.scale.copy_(numbers.std(0, correction=0).clamp_min(1e-3))
        counts = torch.bincount(predicates.cpu(), minlength=self.sizes[1]).double() + 1  # MPS has no float64
        owners = torch.tensor(_shared_out(counts.tolist(), self.rank))
        own = torch.bincount(owners, minlength=self.sizes[1])
        self.predicates.copy_(owners)
        self.weights.bias.copy_((counts / own / max(len(numbers), 1)).log()[owners])

    def forward(self, numbers: Float[Tensor, "B 39"]) -> CPTensor:
        """λ of each pair; of its own scale, so `log_z` says how many annotations there may be over all classes."""
        weight = self._weights(numbers)[..., None]
        B, P = len(weight), self.sizes[1]
        own = self.predicates[:, None] == torch.arange(P, device=weight.device)
        predicate = torch.zeros(self.rank, P, device=weight.device, dtype=weight.dtype).masked_fill(~own, -torch.inf)
        return CPTensor(weight + self.subject().T, predicate.expand(B, -1, -1), self.object().T.expand(B, -1, -1))

    def nll(
        self,
        numbers: Float[Tensor, "B 39"],
        labels: Int[Tensor, "B 2"],
        rows: Int[Tensor, " M"],
        predicates: Int[Tensor, " M"],
    ) -> Float[Tensor, ""]:
        """Of pairs with known labels, and their M annotations: a predicate, and the row of its pair.

        Counts are Poisson: Σ_pairs Σ_p λ - Σ_annotations log λ. A pair without annotations counts as well.
        """
        s, o = labels.unbind(-1)
        parts = self._weights(numbers) + self.subject()[s] + self.object()[o]  # [B, R]
        other = self.predicates != predicates[:, None]  # [M, R]
        found: Tensor = parts.exp().sum() - parts[rows].masked_fill(other, -torch.inf).logsumexp(-1).sum()
        return found

    def _weights(self, numbers: Tensor) -> Tensor:
        weights: Tensor = self.weights(self.trunk((numbers - self.mean) / self.scale)).float()
        return weights


class _Classes(nn.Module):
    """Log factors of all classes: what an embedding says, which alike classes share, and a number of their own."""

    def __init__(self, classes: int, rank: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(classes, embedding) * embedding**-0.5)
        self.map = nn.Linear(embedding, rank, bias=False)
        nn.init.normal_(self.map.weight, std=0.5)  # components must differ from the start
        self.own = nn.Parameter(torch.zeros(classes, rank))
        self.dropout = nn.Dropout(dropout)

    def forward(self) -> Float[Tensor, "X R"]:
        log: Tensor = self.own + self.map(self.dropout(self.embedding)).float()
        return log


def _shared_out(votes: list[float], seats: int) -> list[int]:
    """Who has each seat: one for everybody, each further one to whoever has the most votes per seat (d'Hondt)."""
    owners = list(range(len(votes)))
    waiting = [(-count / 2, who, 2) for who, count in enumerate(votes)]
    heapq.heapify(waiting)
    while len(owners) < seats:
        _, who, next_seat = heapq.heappop(waiting)
        owners.append(who)
        heapq.heappush(waiting, (-votes[who] / (next_seat + 1), who, next_seat + 1))
    return sorted(owners)


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
