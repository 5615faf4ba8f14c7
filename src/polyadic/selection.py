"""P(X_sel | B_s, B_o, I): would an annotator have picked the pair?

Paper: Modeling missing annotations.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid


class SelectionHead(nn.Module):
    """A binary classifier with one hidden layer on the predicate feature, which has the spatial feature in it."""

    def __init__(self, pair: int, hidden: int = 4096, dropout: float = 0.5) -> None:  # paper: 4096
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(pair, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1))

    def forward(self, predicate: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """The logit."""
        logit: Tensor = self.layers(predicate)[:, 0].float()
        return logit

    def log_selected(self, predicate: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """Log P(X_sel)."""
        return logsigmoid(self(predicate))
