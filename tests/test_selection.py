from __future__ import annotations

import math

import torch
from torch import nn

from polyadic.model.heads import SelectionHead


def test_the_logit_equals_one_hidden_layer_by_hand() -> None:
    torch.manual_seed(0)
    head = SelectionHead(5, hidden=7).double().eval()
    first, last = (entry for entry in head.layers if isinstance(entry, nn.Linear))
    x = torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        result, logs = head(x).tolist(), head.log_selected(x).tolist()
        hidden = [(first.weight @ row + first.bias).clamp_min(0) for row in x]
        logits = [float(last.weight[0] @ h + last.bias) for h in hidden]
    for logit, log, expected in zip(result, logs, logits, strict=True):
        assert math.isclose(logit, expected, abs_tol=1e-6)
        assert math.isclose(log, -math.log1p(math.exp(-expected)), abs_tol=1e-6)


def test_the_hidden_layer_has_the_papers_size() -> None:
    assert SelectionHead(3).layers[0].out_features == 4096


def test_a_very_unlikely_pair_has_a_finite_log() -> None:
    head = SelectionHead(1, 1)
    with torch.no_grad():
        for weight in head.parameters():
            weight.fill_(-1e4)
    assert head.log_selected(torch.zeros(1, 1)).item() == -1e4
    assert head.log_selected(torch.zeros(0, 1)).shape == (0,)


def test_it_learns_which_pairs_are_picked() -> None:
    torch.manual_seed(1)
    x = torch.rand(400, 3)
    picked = (x[:, 1] > x[:, 2]).float()
    head = SelectionHead(3, 16, 0.0)
    optimiser = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(150):
        loss = nn.functional.binary_cross_entropy_with_logits(head(x), picked)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    right = (head.log_selected(x).exp() > 0.5) == (picked > 0.5)
    assert right.float().mean() > 0.97
