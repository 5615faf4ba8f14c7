"""The normaliser Σ ψ_c ψ_u of each pair, compiled: a sum over the seen triplets of a sparse prior."""

from __future__ import annotations

import numpy as np

from polyadic.compiled import compiled


@compiled
def sum_seen(subject, predicate, object, triplets, weights):  # type: ignore[no-untyped-def]
    """Return Σ ψ_c · weight and Σ ψ_c over the given triplets, per pair; O(B · M · R).

    `subject` [B, S, R] holds the component weights too; `predicate` and `object` are P(X | r).
    """
    B, R = len(subject), subject.shape[2]
    weighted, plain = np.zeros(B), np.zeros(B)
    for b in range(B):
        for m in range(len(triplets)):
            i, j, k = triplets[m]
            value = 0.0
            for r in range(R):
                value += subject[b, i, r] * predicate[b, j, r] * object[b, k, r]
            weighted[b] += value * weights[m]
            plain[b] += value
    return weighted, plain
