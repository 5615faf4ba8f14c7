"""CPTensor and bad input: one clear line each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cp_cases import random_cp

from polyadic.cp import CPTensor
from polyadic.structures.vocabulary import PolyadicError

Z = torch.zeros


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: CPTensor(Z(2, 3, 4), Z(2, 1, 3), Z(2, 3, 5)),
            r"agree on \[\*B, R\].*\[2, 3, 4\], \[2, 1, 3\].*view the network",
        ),
        (lambda: CPTensor(Z(4), Z(3), Z(5)), r"agree on \[\*B, R\]"),
        (lambda: CPTensor(Z(2, 0, 4), Z(2, 0, 3), Z(2, 0, 5)), "at least 1"),
        (lambda: CPTensor(Z(1, 4).long(), Z(1, 3), Z(1, 5)), "floating-point"),
        (lambda: CPTensor([[0.0]], Z(1, 3), Z(1, 5)), "floating-point tensors of log-scores, got .*list"),  # type: ignore[arg-type]
        (lambda: CPTensor(Z(1, 4), Z(1, 3, device="meta"), Z(1, 5)), "one device"),
        (
            lambda: CPTensor(Z(2, 1, 4), Z(2, 1, 3) + math.nan, Z(2, 1, 5)),
            r"predicate scores.*not NaN.*\[0, 0\]",
        ),
        (
            lambda: CPTensor(Z(2, 1, 4), Z(2, 1, 3), Z(2, 1, 5) - math.inf),
            r"pair \[0\] has total probability 0",
        ),
        (
            lambda: random_cp(2).log_prob(torch.tensor([[0, 0, 0], [0, 3, 0]])),
            r"below \(S, P, O\).*\[0, 3, 0\] \(1 such",
        ),
        (lambda: random_cp(2).log_prob(torch.tensor([[0, 0, 0], [-1, 0, 0]])), "not be negative"),
        (
            lambda: random_cp(2).nll(torch.tensor([0, 0, 0])),
            r"\[\*B, 3\] or \[\*B, T, 3\] with B = \[2\], got \[3\]",
        ),
        (lambda: random_cp(2).nll(torch.zeros(2, 3)), "integers, got torch.float32"),
        (lambda: random_cp(2).nll(torch.zeros(2, 3).long(), torch.tensor([1.0, -1.0])), "not negative"),
        (lambda: random_cp(2).log_marginal("verb"), "different names out of"),  # type: ignore[arg-type]
        (lambda: random_cp(2).log_conditional("subject"), "other variables to condition on"),
        (
            lambda: random_cp(2).log_conditional("subject", predicate=3),
            r"predicate labels must lie in 0\.\.2",
        ),
        (lambda: random_cp(2).given(subject=torch.tensor([0.0, 1.0])), "subject must be a label or integers"),
        (lambda: random_cp(2).sample(0), "n must be a whole number from 1 up, got 0"),
        (lambda: random_cp(2).nll(torch.zeros(2, 4, 3).long(), torch.ones(4, 2)), r"\[2, 4\], got \[4, 2\]"),
        (lambda: random_cp(2).nll([[0, 0, 0]] * 2), "torch tensor, got list; convert with torch.as_tensor"),  # type: ignore[arg-type]
        (lambda: random_cp(2).given(subject="person"), "subject must be a label"),  # type: ignore[arg-type]
        (lambda: random_cp(2)[..., :2], "index pairs by"),  # type: ignore[index]
        (lambda: random_cp(2)[torch.ones(2, 3, dtype=torch.bool)], "index pairs by"),
        (
            lambda: random_cp(2).product(CPTensor(Z(2, 1, 4), Z(2, 1, 3), Z(2, 1, 6))),
            "class counts must agree",
        ),
        (lambda: random_cp(2).product(random_cp(3)), "batch shapes must broadcast"),
        (lambda: random_cp()[0], "no batch axis"),
    ],
)
def test_invalid_input_is_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises(PolyadicError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_conditioning_on_the_impossible_is_refused() -> None:
    subject = torch.tensor([[0.0, -math.inf, 0.0, 0.0]])
    cp = CPTensor(subject, torch.zeros(1, 3), torch.zeros(1, 5))
    with pytest.raises(PolyadicError, match="probability 0"):
        cp.log_conditional("object", subject=1)
    with pytest.raises(PolyadicError, match="probability 0"):
        cp.given(subject=1)
