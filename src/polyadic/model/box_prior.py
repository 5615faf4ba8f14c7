"""Priors conditioned on the boxes (ours), learned from annotations without pixels.

`GeometryPrior` generalises ψ_u and P(X_sel): λ(s, p, o | geometry), the expected number of annotations of a triplet on
a pair of boxes, a CP tensor that is not normalised. Its sum over predicates says how likely a pair of these labels at
these boxes is annotated at all. The product of two CP tensors is a CP tensor of rank R·R', so ψ_c times λ is ranked
exactly like any other. `LabelContext` refines the labels of boxes by those of the other boxes.
"""

from __future__ import annotations

import heapq

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from polyadic.boxes import CONTEXT, PLACE, Closeness, box_place, context_features, ordered_pairs
from polyadic.cp import CPTensor


class GeometryPrior(nn.Module):
    """Context features of a pair -> λ. Each component has one predicate and fixed class factors; its weight varies.

    Every predicate has a component of its own, frequent ones have several.
    """

    mean: Tensor
    scale: Tensor
    predicates: Tensor

    def __init__(
        self,
        sizes: tuple[int, int, int],
        *,
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
            nn.Linear(CONTEXT, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.weights = nn.Linear(hidden, self.rank)
        self.subject, self.object = (_Classes(n, self.rank, embedding, dropout) for n in (S, O))
        self.register_buffer("mean", torch.zeros(CONTEXT))
        self.register_buffer("scale", torch.ones(CONTEXT))
        self.register_buffer("predicates", torch.arange(self.rank) % P)

    @torch.no_grad()
    def fit_scale(self, numbers: Float[Tensor, "B 39"], predicates: Int[Tensor, " M"]) -> None:
        """Standardise by all pairs, assign components to the annotated predicates, and start at their rates."""
        self.mean.copy_(numbers.mean(0))
        self.scale.copy_(numbers.std(0, correction=0).clamp_min(1e-3))
        counts = torch.bincount(predicates.cpu(), minlength=self.sizes[1]).double() + 1  # MPS has no float64
        owners = torch.tensor(_assign_components(counts.tolist(), self.rank))
        components = torch.bincount(owners, minlength=self.sizes[1])
        self.predicates.copy_(owners)
        self.weights.bias.copy_((counts / components / max(len(numbers), 1)).log()[owners])

    def forward(self, numbers: Float[Tensor, "B 39"]) -> CPTensor:
        """Compute λ of each pair, unnormalised: `log_z` is the log of the expected number of annotations."""
        weight = self._weights(numbers)[..., None]
        B, P = len(weight), self.sizes[1]
        other = self.predicates[:, None] != torch.arange(P, device=weight.device)
        predicate = torch.zeros(self.rank, P, device=weight.device, dtype=weight.dtype).masked_fill(other, -torch.inf)
        return CPTensor(weight + self.subject().T, predicate.expand(B, -1, -1), self.object().T.expand(B, -1, -1))

    def nll(
        self,
        numbers: Float[Tensor, "B 39"],
        labels: Int[Tensor, "B 2"],
        rows: Int[Tensor, " M"],
        predicates: Int[Tensor, " M"],
    ) -> Float[Tensor, ""]:
        """Compute the loss of pairs with known labels and their M annotations: a predicate, and the row of its pair.

        Counts are Poisson: Σ_pairs Σ_p λ - Σ_annotations log λ. A pair without annotations counts as well.
        """
        s, o = labels.unbind(-1)
        parts = self._weights(numbers) + self.subject()[s] + self.object()[o]  # [B, R]
        other = self.predicates != predicates[:, None]  # [M, R]
        loss: Tensor = parts.exp().sum() - parts[rows].masked_fill(other, -torch.inf).logsumexp(-1).sum()
        return loss

    def _weights(self, numbers: Tensor) -> Tensor:
        weights: Tensor = self.weights(self.trunk((numbers - self.mean) / self.scale)).float()
        return weights


class _Classes(nn.Module):
    """Log factors of all classes: a linear map of an embedding, shared by similar classes, plus a free number."""

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


def _assign_components(counts: list[float], components: int) -> list[int]:
    """Assign a predicate to each component: one for each, the others by falling count per component (d'Hondt)."""
    owners = list(range(len(counts)))
    queue = [(-count / 2, predicate, 2) for predicate, count in enumerate(counts)]
    heapq.heapify(queue)
    while len(owners) < components:
        _, predicate, rank = heapq.heappop(queue)
        owners.append(predicate)
        heapq.heappush(queue, (-counts[predicate] / (rank + 1), predicate, rank + 1))
    return sorted(owners)


_MESSAGES = 1 << 15  # in memory at once


class LabelContext(nn.Module):
    """Labels of the other boxes and their geometry -> label of a box, by mean and maximum of one message each."""

    mean: Tensor
    scale: Tensor
    frequency: Tensor

    def __init__(
        self, classes: int, *, hidden: int = 256, dropout: float = 0.3, embedding: int = 48, noise: float = 0.3
    ) -> None:
        """`noise`: the share of labels replaced at random in training, because predicted labels will be wrong too."""
        super().__init__()
        self.classes, self.noise = classes, noise
        self.embedding = nn.Linear(classes, embedding, bias=False)
        self.message = nn.Sequential(
            nn.Linear(embedding + CONTEXT, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.place = nn.Sequential(nn.Linear(PLACE, hidden), nn.ReLU())
        self.told = nn.Sequential(  # named so in saved models: labels from the other boxes
            nn.Dropout(dropout),
            nn.Linear(3 * hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.alone = nn.Sequential(  # labels from the place of the box itself
            nn.Linear(PLACE, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.register_buffer("mean", torch.zeros(CONTEXT))
        self.register_buffer("scale", torch.ones(CONTEXT))
        self.register_buffer("frequency", torch.ones(classes))

    @torch.no_grad()
    def fit_scale(self, numbers: Float[Tensor, "B 39"], labels: Int[Tensor, " N"]) -> None:
        """Standardise by all pairs, and set the labels that noise draws from."""
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
        """Score labels by the other boxes, and by place. `labels` are probabilities, `pairs` all of an image."""
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
        """Compute the loss of both classifiers, the mean over boxes."""
        seen = labels
        if self.training and self.noise:
            wrong = torch.rand(len(labels), device=labels.device) < self.noise
            seen = torch.where(wrong, torch.multinomial(self.frequency, len(labels), replacement=True), labels)
        others, alone = self(places, numbers, pairs, one_hot(seen, self.classes).to(places))
        return cross_entropy(others, labels) + cross_entropy(alone, labels)

    def refine(
        self,
        log_labels: Float[Tensor, "N X"],
        boxes: Float[Tensor, "N 4"],
        frames: Float[Tensor, "N 2"],
        exponent: float,
        *,
        closeness: Closeness | None = None,
    ) -> Float[Tensor, "N X"]:
        """Refine log P(label) of the boxes of one image by the labels of the other boxes."""
        n, places, labels = len(boxes), box_place(boxes, frames), log_labels.exp()
        if n < 2:
            return log_labels
        ratios, step, everyone = [], max(_MESSAGES // (n - 1), 1), ordered_pairs(n, boxes.device)  # by receiver
        for start in range(0, n, step):
            pairs = everyone[start * (n - 1) : (start + step) * (n - 1)]
            others, alone = self(places, context_features(boxes, frames, pairs, closeness), pairs, labels)
            ratio = others.to(log_labels).log_softmax(-1) - alone.to(log_labels).log_softmax(-1)
            ratios.append(ratio[start : start + step])
        refined: Tensor = (log_labels + exponent * torch.cat(ratios)).log_softmax(-1)
        return refined
