"""Three branches of fully connected layers: features of a pair -> R vectors each for subject, predicate, object.

Paper: Network Architecture ("two fully connected layers of size 4096 with final layer output size of R x |X_a|").
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from polyadic.cp import CPTensor
from polyadic.structures.vocabulary import PolyadicError


class Branch(nn.Module):
    """Hidden layers and R·classes outputs; `copies` more outputs per component raise the scores of given classes."""

    def __init__(
        self,
        width: int,
        rank: int,
        classes: int,
        *,
        hidden: int,
        dropout: float,
        copies: int = 0,
        names: bool = False,
        input_dropout: float = 0.0,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.rank, self.classes = rank, classes
        self.input = nn.Dropout(input_dropout)
        widths = [width, *[hidden] * layers]
        stack = [(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in pairwise(widths)]
        self.hidden = nn.Sequential(*(module for modules in stack for module in modules))
        self.scores = nn.Linear(hidden, rank * classes)
        self.lift = nn.Linear(hidden, rank * copies) if copies else None
        if self.lift is not None:
            nn.init.zeros_(self.lift.weight)
            nn.init.constant_(self.lift.bias, 2.0)  # ours: a detected label is worth e^2 before anything is learned
        self.trust = nn.Linear(hidden, rank) if names else None
        if self.trust is not None:
            nn.init.zeros_(self.trust.weight)
            nn.init.constant_(self.trust.bias, 0.5)  # ours: the exponent of P(class | box) before anything is learned

    @property
    def first(self) -> nn.Linear:
        """The first layer."""
        layer = self.hidden[0]
        assert isinstance(layer, nn.Linear), "as built above"
        return layer

    def forward(
        self,
        x: Float[Tensor, "M D"],
        labels: Int[Tensor, "M A"] | None = None,
        names: Float[Tensor, "M X"] | None = None,
    ) -> Float[Tensor, "M R X"]:
        """Compute log-scores; `labels` are the classes to raise, -1 for none, `names` is log P(class | box)."""
        h = self.hidden(self.input(x))
        scores: Tensor = self.scores(h).view(len(h), self.rank, self.classes)
        if self.lift is not None and labels is not None:
            lift = self.lift(h).view(len(h), self.rank, labels.shape[1])  # [M, R, A]
            lift = lift * (labels >= 0).to(lift)[:, None]
            at = labels.clamp_min(0)[:, None].expand(-1, self.rank, -1)
            scores = scores.scatter_add(-1, at, lift.to(scores.dtype))
        if self.trust is not None and names is not None:
            scores = scores + self.trust(h)[..., None] * names[:, None]
        return scores


class TripletHead(nn.Module):
    """ψ_c of each pair as a `CPTensor`.

    Subject and object branches see the box alone, so they run once per box and are gathered per pair: N instead of
    N(N-1) rows with the same result. With `context` (ours) they see the pair as well, and run once per pair.
    """

    def __init__(
        self,
        box: int,
        pair: int,
        sizes: tuple[int, int, int],
        *,
        rank: int = 5,  # paper
        hidden: int = 4096,  # paper
        dropout: float = 0.5,  # ours
        context: bool = False,  # ours
        copies: int = 0,  # ours: labels of evidence per box
        names: bool = False,  # ours: P(class | box) as evidence
        input_dropout: float = 0.0,  # ours
        layers: int = 2,  # paper
    ) -> None:
        super().__init__()
        self.context = context
        width = box + pair if context else box
        common: dict[str, Any] = {
            "hidden": hidden,
            "dropout": dropout,
            "input_dropout": input_dropout,
            "layers": layers,
        }
        self.subject = Branch(width, rank, sizes[0], copies=copies, names=names, **common)
        self.predicate = Branch(pair, rank, sizes[1], **common)
        self.object = Branch(width, rank, sizes[2], copies=copies, names=names, **common)

    def forward(
        self,
        subject: Float[Tensor, "N D"],
        object: Float[Tensor, "N D"],
        predicate: Float[Tensor, "B E"],
        pairs: Int[Tensor, "B 2"],
        *,
        labels: Int[Tensor, "N A"] | None = None,
        names: Float[Tensor, "N X"] | None = None,
    ) -> CPTensor:
        s, o = pairs.unbind(-1)
        if self.context:
            given = [[None if x is None else x[rows] for x in (labels, names)] for rows in (s, o)]
            left = self.subject(torch.cat([subject[s], predicate], -1), *given[0])
            right = self.object(torch.cat([object[o], predicate], -1), *given[1])
        else:
            left, right = self.subject(subject, labels, names)[s], self.object(object, labels, names)[o]
        return CPTensor(left, self.predicate(predicate), right)


class LabelHead(nn.Module):
    """ψ_c = P(s | B_s) P(o | B_o) P(p), of rank 1 (ours): one classifier for both boxes, a uniform P(p).

    For use with the box-conditioned prior, which predicts predicates better than pixels do.
    """

    def __init__(
        self,
        box: int,
        sizes: tuple[int, int, int],
        *,
        hidden: int,
        dropout: float,
        input_dropout: float,
        layers: int,
    ) -> None:
        super().__init__()
        self.predicates = sizes[1]
        common: dict[str, Any] = {"hidden": hidden, "dropout": dropout, "input_dropout": input_dropout}
        self.label = Branch(box, 1, sizes[0], layers=layers, **common)

    def forward(
        self,
        subject: Float[Tensor, "N D"],
        object: Float[Tensor, "N D"],
        predicate: Float[Tensor, "B E"],
        pairs: Int[Tensor, "B 2"],
        *,
        labels: Int[Tensor, "N A"] | None = None,
        names: Float[Tensor, "N X"] | None = None,
    ) -> CPTensor:
        """Compute ψ_c as `TripletHead` does, from the features of the boxes alone."""
        return self.pairs(self.labels(subject), pairs)

    def labels(self, boxes: Float[Tensor, "N D"]) -> Float[Tensor, "N X"]:
        """Compute log P(label | box)."""
        scores: Tensor = self.label(boxes)[:, 0]
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)

    def pairs(self, log_labels: Float[Tensor, "N X"], pairs: Int[Tensor, "B 2"]) -> CPTensor:
        """Build ψ_c of pairs of boxes with these labels."""
        s, o = pairs.unbind(-1)
        uniform = log_labels.new_zeros(len(pairs), 1, self.predicates)
        return CPTensor(log_labels[s][:, None], uniform, log_labels[o][:, None])


class SelectionHead(nn.Module):
    """P(X_sel): a binary classifier with one hidden layer on the predicate feature, which includes the mask's."""

    def __init__(self, pair: int, hidden: int = 4096, dropout: float = 0.5) -> None:  # paper: 4096
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(pair, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1))

    def forward(self, predicate: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """Compute the logit of P(X_sel)."""
        logit: Tensor = self.layers(predicate)[:, 0].float()
        return logit

    def log_selected(self, predicate: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """Compute log P(X_sel)."""
        return logsigmoid(self(predicate))


def compile_heads(*heads: nn.Module) -> None:
    """Compile branches and P(X_sel) for any number of rows, with the random numbers of plain training.

    Weights keep their names, so a checkpoint does not depend on it. A short trial shows whether there is a compiler.
    """
    try:
        torch.compile(torch.exp)(torch.zeros(2, device=next(heads[0].parameters()).device))
    except Exception as error:  # torch's have no common base class
        reason = " ".join(str(error).split())
        raise PolyadicError(
            f"head.compile: torch.compile does not work here ({reason:.120}); set it to false"
        ) from error
    for head in heads:
        for module in head.modules():
            if isinstance(module, Branch | SelectionHead):
                module.compile(dynamic=True, options={"fallback_random": True})
