"""The exact search on the CPU: branch and bound over pairs, subjects and (subject, predicate) cells, compiled by numba.

Every entry is `value = (Σ_r (a_ri · b_rj) · c_rk) · u_ijk`, summed in the order of r. A bound is the same
expression with some operands replaced by their largest value, in the same order of operations. Rounding is
monotone, so a bound is never below a value that it covers, not even in the last bit: nothing is pruned wrongly, and
no slack is needed, which is what lets exactly equal entries be pruned by the tie rule. So: no fastmath here, and no
fused multiply-add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.compiled import compiled as _compiled

LAST = np.int64(2**62)  # behind every flat index
SEEDS = 16  # of the heaviest triplets, for the first bar
LOOSE = 1 + 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@_compiled
def _worse(value, index, than_value, than_index):  # type: ignore[no-untyped-def]
    """Compare in the order of the answer: by value down, then by flat index (pair, subject, predicate, object) up."""
    return value < than_value or (value == than_value and index > than_index)


@_compiled
def _push(values, indices, size, capacity, value, index):  # type: ignore[no-untyped-def]
    """Insert into a heap whose root is the worst entry kept; returns the new size."""
    if size < capacity:
        at = size
        while at > 0:
            parent = (at - 1) // 2
            if not _worse(value, index, values[parent], indices[parent]):
                break
            values[at], indices[at] = values[parent], indices[parent]
            at = parent
        values[at], indices[at] = value, index
        return size + 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= capacity:
            break
        right = child + 1
        if right < capacity and _worse(values[right], indices[right], values[child], indices[child]):
            child = right
        if not _worse(values[child], indices[child], value, index):
            break
        values[at], indices[at] = values[child], indices[child]
        at = child
    values[at], indices[at] = value, index
    return size


@_compiled
def subject_bounds(a):  # type: ignore[no-untyped-def]
    """Bound all triplets of a pair and subject [B, S], and of a pair [B]: one pass over the subject factors."""
    B, R, S = a.shape
    bounds, best = np.empty((B, S)), np.empty(B)
    for pair in range(B):
        row = bounds[pair]
        row[:] = a[pair, 0]
        for r in range(1, R):
            row += a[pair, r]
        best[pair] = row.max()
    return bounds, best


@_compiled
def _class_bounds(gain, factor, bounds):  # type: ignore[no-untyped-def]
    """Bound all triplets of a pair by predicate, or by object: Σ_r max(a_r) · factor_r."""
    for x in range(len(bounds)):
        bounds[x] = gain[0] * factor[0, x]
    for r in range(1, len(gain)):
        for x in range(len(bounds)):
            bounds[x] += gain[r] * factor[r, x]


@_compiled
def _floor(a, b, c, gain, rest, seen_weight, seen_triplet, heaviest, k, top):  # type: ignore[no-untyped-def]
    """Find a value that at least `top` entries reach, at most `k` per pair: a first bound to prune by, or 0.

    Considers, in every pair, the peak of the largest component and the triplets with the largest prior weights.
    """
    B, R, _ = a.shape
    T = len(heaviest)
    per_pair = T if k >= T else 1
    reached, peaks, total = np.zeros(B * per_pair), np.empty(B), np.empty(T)
    lightest = min(rest, seen_weight.min()) if T else rest
    for pair in range(B):
        peaks[pair] = gain[pair].max() * lightest
        total[:] = 0.0
        for r in range(R):
            for n in range(T):
                i, j, o = seen_triplet[heaviest[n]]
                total[n] += a[pair, r, i] * b[pair, r, j] * c[pair, r, o]
        for n in range(T):
            at = pair * per_pair + n % per_pair
            reached[at] = max(reached[at], total[n] * seen_weight[heaviest[n]])
    floor = 0.0
    for pool in (peaks, reached):
        if len(pool) >= top:
            floor = max(floor, np.partition(pool, len(pool) - top)[len(pool) - top])
    return floor


@_compiled
def search(  # type: ignore[no-untyped-def]
    a,
    b,
    c,
    gain,
    bounds,
    best,
    order,
    floor,
    rest,
    keys,
    seen_weight,
    seen_key,
    seen_triplet,
    seen_start,
    k,
    top,
):
    """Find the best `top` entries, at most `k` [B] of each pair, `floor` or better: values and flat indices, unordered.

    Of each pair, first the seen triplets, subject by subject, each by falling weight until no later one can count;
    then the rest, by row and cell.
    """
    _, R, S = a.shape
    P, O, M = b.shape[2], c.shape[2], len(keys)
    heaviest = max(rest, seen_weight.max()) if M else rest
    values, indices, size = np.empty(top), np.empty(top, np.int64), 0
    pair_values, pair_indices = np.empty(k.max()), np.empty(k.max(), np.int64)  # this pair's best
    opened, opened_bound = np.empty(S, np.int64), np.empty(S)
    by_predicate, by_object = np.empty(P), np.empty(O)
    cell, row, mix = np.empty(P), np.empty(O), np.empty(R)
    for pair in order:
        # An entry counts if it is not worse than (low, low_index): the worst kept of a full answer or of a full pair.
        low, low_index = (values[0], indices[0]) if size == top else (floor, LAST if floor > 0 else np.int64(-1))
        peak, base = best[pair], pair * S * P * O
        if _worse(peak * heaviest, base, low, low_index):
            if peak * heaviest < low:
                break
            continue
        pair_size, cap = 0, k[pair]
        by_subject, A, B, C = bounds[pair], a[pair], b[pair], c[pair]
        if M:
            _class_bounds(gain[pair], B, by_predicate)
            _class_bounds(gain[pair], C, by_object)
            peak = min(peak, by_predicate.max(), by_object.max())
        for i in range(S if M else 0):
            for m in range(seen_start[i], seen_start[i + 1]):
                weight = seen_weight[m]
                if by_subject[i] * weight * LOOSE < low:  # the order holds up to the last bits of exp
                    break
                _, j, o = seen_triplet[m]
                index = base + seen_key[m]
                if _worse(min(by_predicate[j], by_object[o]) * weight, index, low, low_index):
                    continue
                total = A[0, i] * B[0, j] * C[0, o]
                for r in range(1, R):
                    total += A[r, i] * B[r, j] * C[r, o]
                value = total * weight
                if value > 0 and not _worse(value, index, low, low_index):
                    pair_size = _push(pair_values, pair_indices, pair_size, cap, value, index)
                    if pair_size == cap and _worse(low, low_index, pair_values[0], pair_indices[0]):
                        low, low_index = pair_values[0], pair_indices[0]
        n = 0
        if not _worse(peak * rest, base, low, low_index):
            for i in range(S):
                bound = by_subject[i] * rest
                if not _worse(bound, base + i * P * O, low, low_index):
                    opened[n], opened_bound[n] = i, bound
                    n += 1
        for at in np.argsort(-opened_bound[:n], kind="mergesort"):
            i = opened[at]
            if _worse(opened_bound[at], base + i * P * O, low, low_index):
                continue
            for j in range(P):
                cell[j] = A[0, i] * B[0, j]
            for r in range(1, R):
                for j in range(P):
                    cell[j] += A[r, i] * B[r, j]
            for j in range(P):
                first = (i * P + j) * O
                if _worse(cell[j] * rest, base + first, low, low_index):
                    continue
                for r in range(R):
                    mix[r] = A[r, i] * B[r, j]
                for o in range(O):
                    row[o] = mix[0] * C[0, o]
                for r in range(1, R):
                    for o in range(O):
                        row[o] += mix[r] * C[r, o]
                for m in range(np.searchsorted(keys, first), np.searchsorted(keys, first + O)):
                    row[keys[m] - first] = 0.0  # seen: counted above
                for o in range(O):
                    value = row[o] * rest
                    if value > 0 and not _worse(value, base + first + o, low, low_index):
                        pair_size = _push(pair_values, pair_indices, pair_size, cap, value, base + first + o)
                        if pair_size == cap and _worse(low, low_index, pair_values[0], pair_indices[0]):
                            low, low_index = pair_values[0], pair_indices[0]
        for at in range(pair_size):
            if size < top or _worse(values[0], indices[0], pair_values[at], pair_indices[at]):
                size = _push(values, indices, size, top, pair_values[at], pair_indices[at])
    return values[:size], indices[:size]


class SubjectIndex(NamedTuple):
    """The seen triplets by subject, then by falling weight; built once per prior."""

    place: Ints  # [M], into the sorted keys
    key: Ints  # [M]
    triplet: NDArray[np.int32]  # [M, 3]
    start: Ints  # [S + 1], each subject's first
    heaviest: Ints  # the first few by weight


def index_by_subject(keys: Ints, weight: Floats, sizes: tuple[int, int, int]) -> SubjectIndex:
    """Sort the seen triplets, in O(S + M log M)."""
    S, P, O = sizes
    subject = keys // (P * O)
    place = np.lexsort((-weight, subject))
    key = keys[place]
    triplet = np.stack([key // (P * O), key // O % P, key % O], -1).astype(np.int32)
    heaviest = np.argsort(-weight[place], kind="stable")[:SEEDS]
    return SubjectIndex(place, key, triplet, np.searchsorted(subject, np.arange(S + 1)), heaviest)


def best_entries(
    a: Floats,
    b: Floats,
    c: Floats,
    gain: Floats,
    rest: float,
    keys: Ints,
    weight: Floats,
    seen: SubjectIndex,
    k: int | Ints,
    top: int,
) -> tuple[Floats, Ints]:
    """Return values and flat indices, best first; `gain` is the peak of each row of `a`, `weight` goes with `keys`.

    `k` is one cap for all pairs, or one for each [B].
    """
    bounds, best = subject_bounds(a)
    caps = np.full(len(a), k)
    order = np.argsort(-best, kind="stable")
    weight = weight[seen.place]
    floor = _floor(a, b, c, gain, rest, weight, seen.triplet, seen.heaviest, caps.min(), top)
    values, indices = search(
        a,
        b,
        c,
        gain,
        bounds,
        best,
        order,
        floor,
        rest,
        keys,
        weight,
        seen.key,
        seen.triplet,
        seen.start,
        caps,
        top,
    )
    answer = np.lexsort((indices, -values))
    return values[answer], indices[answer]
