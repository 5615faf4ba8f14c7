"""The exact search on the CPU: branch and bound over pairs, subjects and (subject, predicate) cells, compiled by numba.

Every entry is `value = (Σ_r (a_ri · b_rj) · c_rk) · u_ijk`, in float64, summed in the order of r. `outline` bounds
pairs and seen triplets in float32 with a margin for its rounding; the pairs that may count are expanded to float64, in
the order of their bounds. There a bound is the expression above with some operands replaced by their largest value, in
the same order of operations. Rounding is monotone, so a bound is never below a value that it covers, not even in the
last bit: nothing is pruned wrongly, and no slack is needed, which is what lets exactly equal entries be pruned by the
tie rule. So: no fused multiply-add but in the exponentials, and no reassociation but in their sums.
"""

from __future__ import annotations

import numpy as np

from polyadic.compiled import compiled as _compiled
from polyadic.ranking.kernel.outline import (
    TINY,
    close_triplets,
    expand_32,
    good_triplets,
    index_seen,
    lower_bound,
    margin,
    outline,
)
from polyadic.ranking.kernel.vectors import (
    differences,
    exp,
    exponentiate,
    mix,
    places,
    places_reaching,
    total,
)

__all__ = ["describe", "expand", "index_seen", "search", "weigh"]

LAST = np.int64(2**62)  # behind every flat index
FEW = 16  # triplets that are not worth a look in float32, if the pair is expanded to float64 anyway


@_compiled
def expand(s, p, o, pair, weight, peaks, scores, e, gain):  # type: ignore[no-untyped-def]
    """Compute one pair in float64: e [R, W] with peaks of 1, and `gain` [R] with the pair's weight and 1/Z.

    `scores` [R, W] is for the logs; between the classes it must be -inf.
    """
    to_p, to_o, W = places(s.shape[2], p.shape[2], o.shape[2])
    differences(s, pair, 0, peaks, scores, np.uintp(0))
    differences(p, pair, 1, peaks, scores, np.uintp(to_p))
    differences(o, pair, 2, peaks, scores, np.uintp(to_o))
    exponentiate(scores.reshape(-1), e.reshape(-1))
    R, highest, z = len(gain), -np.inf, 0.0
    for r in range(R):
        gain[r] = np.float64(peaks[pair, 0, r]) + np.float64(peaks[pair, 1, r]) + np.float64(peaks[pair, 2, r])
        highest = max(highest, gain[r])
    for r in range(R):
        gain[r] = exp(gain[r] - highest)
        z += gain[r] * (total(e, r, 0, to_p) * total(e, r, to_p, to_o) * total(e, r, to_o, W))
    for r in range(R):
        gain[r] = gain[r] / z * weight


@_compiled
def _value(gain, e, i, j, k):  # type: ignore[no-untyped-def]
    """Compute one entry of ψ_c, by the places of its classes."""
    result = gain[0] * e[0, i] * e[0, j] * e[0, k]
    for r in range(1, len(e)):
        result += gain[r] * e[r, i] * e[r, j] * e[r, k]
    return result


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
    _replace(values, indices, capacity, value, index)
    return size


@_compiled
def _replace(values, indices, size, value, index):  # type: ignore[no-untyped-def]
    """Replace the root of a heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _worse(values[right], indices[right], values[child], indices[child]):
            child = right
        if not _worse(values[child], indices[child], value, index):
            break
        values[at], indices[at] = values[child], indices[child]
        at = child
    values[at], indices[at] = value, index


@_compiled
def search(s, p, o, pair_weight, seen, caps, top):  # type: ignore[no-untyped-def]
    """Find the best `top` entries, at most `caps` [B] of each pair: values and flat indices, best first.

    Factors are [B, R, ·], `pair_weight` [B] is at most 1.
    """
    R, S, P, O, M, f = s.shape[1], s.shape[2], p.shape[2], o.shape[2], len(seen.keys), np.float32
    to_p, to_o, W = places(S, P, O)
    slack, keys, rest, four = margin(R, S + P + O), seen.keys, seen.rest, np.uintp(4)
    first, blocks, weights, most = seen.first, seen.blocks, seen.weight, seen.most
    peaks, gain_32, norms, heights, bound, bar = outline(s, p, o, pair_weight, seen, caps, top)
    e_32, e, gain, mixed = np.zeros((R if M else 0, W), f), np.empty((R, W)), np.empty(R), np.empty(R)
    scores = np.full((R, W), -np.inf)
    rows, cells, line = np.empty(to_p), np.empty(to_o - to_p), np.empty(W - to_o)
    opened, near, hits = np.empty(S + 1, np.uint64), np.empty(P + 1, np.uint64), np.empty(O + 1, np.uint64)
    found = np.empty(len(seen.weight) + 1, np.uint64)
    values, indices, size = np.empty(top), np.empty(top, np.int64), 0
    own_values, own_indices = np.empty(top), np.empty(top, np.int64)  # of one pair with a cap
    for pair in np.argsort(-bound):
        # An entry counts if it is not worse than (low, low_index): the worst kept of a full answer or of a full pair.
        low, low_index = (values[0], indices[0]) if size == top else (bar, LAST if bar > 0 else np.int64(-1))
        if bound[pair] == 0 or bound[pair] < low:
            break
        base, cap, n_found, rest_open = pair * S * P * O, min(caps[pair], top), 0, True
        if M:
            cut = f((low / pair_weight[pair] - TINY) / slack)
            others = heights[pair, 1] * heights[pair, 2]
            n_found = close_triplets(norms, pair, others, first, blocks, most, cut, opened, found)
            rest_open = heights[pair, 0] * others * f(rest) >= cut
            if n_found > (FEW if rest_open else 0):
                expand_32(s, p, o, pair, peaks, e_32)
                n_found = good_triplets(gain_32, pair, e_32, blocks, cut, found, n_found)
            if not n_found and not rest_open:
                continue
        expand(s, p, o, pair, pair_weight[pair], peaks, scores, e, gain)
        if cap < top:
            kept, kept_indices, kept_size = own_values, own_indices, 0
        else:
            kept, kept_indices, kept_size = values, indices, size
        for x in range(n_found):
            m, y = found[x] // four, found[x] % four
            a, b, c = np.int64(blocks[m, 3, y]), np.int64(blocks[m, 0, y]), np.int64(blocks[m, 1, y])
            value, index = _value(gain, e, a, b, c) * weights[found[x]], base + (a * P + b - to_p) * O + c - to_o
            if value > 0 and not _worse(value, index, low, low_index):
                kept_size = _push(kept, kept_indices, kept_size, cap, value, index)
                if kept_size == cap and _worse(low, low_index, kept[0], kept_indices[0]):
                    low, low_index = kept[0], kept_indices[0]
        n = 0
        if rest_open:
            mix(gain, e, 0, to_p, rows, 0)
            n = places_reaching(rows, S, rest, low, opened)
            best = 0
            for x in range(n):
                best = x if rows[opened[x]] > rows[opened[best]] else best
            opened[0], opened[best] = opened[best], opened[0]
        for x in range(n):
            row = np.int64(opened[x])
            if _worse(rows[row] * rest, base + row * P * O, low, low_index):
                continue
            for r in range(R):
                mixed[r] = gain[r] * e[r, row]
            mix(mixed, e, to_p, to_o - to_p, cells, 0)
            for y in range(places_reaching(cells, P, rest, low, near)):
                place = np.int64(near[y])
                cell = base + (row * P + place) * O
                if _worse(cells[place] * rest, cell, low, low_index):
                    continue
                for r in range(R):
                    mixed[r] = gain[r] * e[r, row] * e[r, to_p + place]
                mix(mixed, e, to_o, W - to_o, line, 0)
                for z in range(places_reaching(line, O, rest, low, hits)):
                    value, index = line[hits[z]] * rest, cell + np.int64(hits[z])
                    if value <= 0 or _worse(value, index, low, low_index):
                        continue
                    if M and _is_seen(keys, index - base):
                        continue  # considered above
                    kept_size = _push(kept, kept_indices, kept_size, cap, value, index)
                    if kept_size == cap and _worse(low, low_index, kept[0], kept_indices[0]):
                        low, low_index = kept[0], kept_indices[0]
        if cap == top:
            size = kept_size
            continue
        for x in range(kept_size):
            if size < top or _worse(values[0], indices[0], kept[x], kept_indices[x]):
                size = _push(values, indices, size, top, kept[x], kept_indices[x])
    for last in range(size - 1, -1, -1):  # sort: the worst of the heap goes last, again and again
        value, index = values[0], indices[0]
        _replace(values, indices, last, values[last], indices[last])
        values[last], indices[last] = value, index
    return values[:size], indices[:size]


@_compiled
def _is_seen(keys, key):  # type: ignore[no-untyped-def]
    at = lower_bound(keys, 0, len(keys), key)
    return at < len(keys) and keys[at] == key


@_compiled
def weigh(selected, boxes, selected_exponent, boxes_exponent):  # type: ignore[no-untyped-def]
    """Return the weighted logs, their sums, the weights relative to the largest, its log, and the first bad place.

    That is B or more for `boxes`, -1 if there is none.
    """
    n, bad = len(selected), -1
    first, second, logs, weight = np.zeros(n), np.zeros(n), np.empty(n), np.empty(n)
    for logs_in, exponent, out, at in ((selected, selected_exponent, first, 0), (boxes, boxes_exponent, second, n)):
        for x in range(n):
            if exponent != 0:  # 0 · -inf is 0: the term is left out
                out[x] = logs_in[x] * exponent
            if bad < 0 and not (logs_in[x] <= 1e-6 and (exponent >= 0 or out[x] < np.inf)):  # NaN is not below
                bad = at + x
    scale = -np.inf
    for x in range(n):
        logs[x] = first[x] + second[x]
        scale = max(scale, logs[x])
    scale = scale if scale > -np.inf else 0.0
    for x in range(n):
        weight[x] = exp(logs[x] - scale)
    return first, second, logs, weight, scale, bad


@_compiled
def describe(flat, score, repeat, selected, boxes, sizes, keys, log_seen, log_rest):  # type: ignore[no-untyped-def]
    """Return the pairs, triplets and terms (log ψ_c, prior, selected, boxes) of entries, and the least of the terms
    without ψ_c.
    """
    S, P, O = sizes
    n = len(flat)
    pair, triplet, least = np.empty(n, np.int64), np.empty((n, 3), np.int64), 0.0
    log_cp, log_prior, log_selected, log_boxes = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for x in range(n):
        pair[x] = flat[x] // (S * P * O)
        key = flat[x] - pair[x] * (S * P * O)
        triplet[x, 0], triplet[x, 1], triplet[x, 2] = key // (P * O), key // O % P, key % O
        m = lower_bound(keys, 0, len(keys), key)
        log_prior[x] = log_seen[m] if m < len(keys) and keys[m] == key else log_rest
        log_selected[x], log_boxes[x] = selected[pair[x]], boxes[pair[x]]
        others = log_prior[x] + log_selected[x] + log_boxes[x] + repeat[x]
        log_cp[x], least = score[x] - others, min(least, others)
    return pair, triplet, log_cp, log_prior, log_selected, log_boxes, least
