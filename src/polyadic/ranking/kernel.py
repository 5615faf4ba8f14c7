"""The exact search on the CPU: branch and bound over pairs, subjects and (subject, predicate) cells, compiled by numba.

Every entry is `value = (Σ_r (a_ri · b_rj) · c_rk) · u_ijk`, in float64, summed in the order of r. Pairs are bounded in
float32 with a margin for its rounding; those that may count are expanded to float64, in the order of their bounds.
There a bound is the expression above with some operands replaced by their largest value, in the same order of
operations. Rounding is monotone, so a bound is never below a value that it covers, not even in the last bit: nothing
is pruned wrongly, and no slack is needed, which is what lets exactly equal entries be pruned by the tie rule. So: no
fused multiply-add but in the exponentials, and no reassociation but in their sums.

What keeps it fast: loops that LLVM vectorises, which index whole arrays from 0 (a slice counts references, an offset
may be negative), and appends without branches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.compiled import compiled as _compiled

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]

MARGIN = 1 + 1e-3  # above the error of float32: 1e-5 for each exponential, less than 1e-4 for each sum of a row
TINY = 1e-30  # above what float32 loses to underflow, of a pair whose entries sum to 1
HIDDEN = np.float32(1e-36)  # above the sum of squares that float32 loses to underflow
LAST = np.int64(2**62)  # behind every flat index
SEEDS = 512  # of the heaviest triplets, at most, for the first bar


# exp(x) = 2^n · exp(f), |f| <= log(2) / 2, by Taylor's series: plain operations, which are vectorised. Adding
# 1.5 · 2^52 (float32: 2^23) rounds to a whole number and leaves n in the lowest bits. exp(0) is exactly 1.
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_WHOLE = 1.5 * 2.0**52
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12 = (1 / math.factorial(n) for n in range(2, 13))
_F = np.float32
_LOG2E_32, _LN2_HIGH_32, _LN2_LOW_32, _WHOLE_32 = _F(_LOG2E), _F(0.693359375), _F(-2.12194440e-4), _F(1.5 * 2.0**23)
_ONE_32, _C2_32, _C3_32, _C4_32, _C5_32 = _F(1), _F(_C2), _F(_C3), _F(_C4), _F(_C5)
_LEAST_32 = _F(-87.0)


@_compiled(fastmath={"contract"})
def _exp(x):  # type: ignore[no-untyped-def]
    """Compute exp(x) of x <= 0 in float64, to two units in the last place; 0 where it would be denormal."""
    y = x * _LOG2E + _WHOLE
    n = y - _WHOLE
    f = (x - n * _LN2_HIGH) - n * _LN2_LOW
    e = _C7 + f * (_C8 + f * (_C9 + f * (_C10 + f * (_C11 + f * _C12))))
    e = 1.0 + f * (1.0 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * (_C6 + f * e))))))
    e *= np.int64((np.float64(y).view(np.int64) << 52) + (1023 << 52)).view(np.float64)
    return e if x > -708.0 else 0.0


@_compiled(fastmath={"contract"})
def _exp_32(x):  # type: ignore[no-untyped-def]
    """Compute exp(x) of x <= 0 in float32, to 5e-6, and at least exp(-87)."""
    x = max(x, _LEAST_32)
    y = x * _LOG2E_32 + _WHOLE_32
    n = y - _WHOLE_32
    f = (x - n * _LN2_HIGH_32) - n * _LN2_LOW_32
    e = _ONE_32 + f * (_ONE_32 + f * (_C2_32 + f * (_C3_32 + f * (_C4_32 + f * _C5_32))))
    return e * np.int32((np.float32(y).view(np.int32) << 23) + (127 << 23)).view(np.float32)


@_compiled
def _flip(bits):  # type: ignore[no-untyped-def]
    """Map the bits of a float32 to a whole number in the same order, and back."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@_compiled
def _find_peaks(x, pair, axis, peaks):  # type: ignore[no-untyped-def]
    """Find the largest score of each row, and at least the lowest finite number."""
    lowest = np.finfo(x.dtype).min
    for r in range(x.shape[1]):
        if x.itemsize == 4:  # by whole numbers, whose maximum is vectorised
            best = np.int32(-(2**31))
            for i in range(x.shape[2]):
                best = max(best, _flip(np.float32(x[pair, r, i]).view(np.int32)))
            peaks[pair, axis, r] = max(np.int32(_flip(best)).view(np.float32), lowest)
        else:
            peaks[pair, axis, r] = max(x[pair, r].max(), lowest)


@_compiled
def _exps_32(x, pair, axis, peaks, exps):  # type: ignore[no-untyped-def]
    """Compute the exponentials of one pair's rows below their peaks, in float32."""
    for r in range(x.shape[1]):
        peak = peaks[pair, axis, r]
        for i in range(x.shape[2]):
            exps[r, i] = _exp_32(np.float32(x[pair, r, i] - peak))


@_compiled
def _exps(x, pair, axis, peaks, exps):  # type: ignore[no-untyped-def]
    """Compute the same in float64."""
    for r in range(x.shape[1]):
        peak = np.float64(peaks[pair, axis, r])
        for i in range(x.shape[2]):
            exps[r, i] = _exp(np.float64(x[pair, r, i]) - peak)


@_compiled(fastmath={"reassoc"})
def _total(x, r):  # type: ignore[no-untyped-def]
    total = x[r, 0] * 0
    for i in range(x.shape[1]):
        total += x[r, i]
    return np.float64(total)


@_compiled
def _gains(pair, peaks, a, b, c, gain):  # type: ignore[no-untyped-def]
    """Compute the peak of each component in ψ_c."""
    highest = -np.inf
    for r in range(len(gain)):
        gain[r] = np.float64(peaks[pair, 0, r]) + np.float64(peaks[pair, 1, r]) + np.float64(peaks[pair, 2, r])
        highest = max(highest, gain[r])
    z = 0.0
    for r in range(len(gain)):
        gain[r] = math.exp(gain[r] - highest)
        z += gain[r] * (_total(a, r) * _total(b, r) * _total(c, r))
    for r in range(len(gain)):
        gain[r] /= z


@_compiled
def _scale(gain, a):  # type: ignore[no-untyped-def]
    for r in range(a.shape[0]):
        peak = gain[r]
        for i in range(a.shape[1]):
            a[r, i] *= peak


@_compiled
def expand_pair(s, p, o, pair, weight, peaks, a, b, c, gain):  # type: ignore[no-untyped-def]
    """Compute one pair in float64: a [R, S] with its weight and 1/Z and peaks `gain`, b and c with peaks of 1."""
    _exps(s, pair, 0, peaks, a)
    _exps(p, pair, 1, peaks, b)
    _exps(o, pair, 2, peaks, c)
    _gains(pair, peaks, a, b, c, gain)
    for r in range(len(gain)):
        gain[r] *= weight
    _scale(gain, a)


@_compiled
def _mix(weight, factor, out):  # type: ignore[no-untyped-def]
    """Compute Σ_r weight_r · factor_r, in the order of r; four at a time, to keep the sum in registers."""
    R, n = factor.shape
    w0 = weight[0]
    for x in range(n):
        out[x] = w0 * factor[0, x]
    r = 1
    while r + 4 <= R:
        w0, w1, w2, w3 = weight[r], weight[r + 1], weight[r + 2], weight[r + 3]
        for x in range(n):
            out[x] = out[x] + w0 * factor[r, x] + w1 * factor[r + 1, x] + w2 * factor[r + 2, x] + w3 * factor[r + 3, x]
        r += 4
    while r < R:
        w0 = weight[r]
        for x in range(n):
            out[x] += w0 * factor[r, x]
        r += 1


@_compiled
def _peak(x, weight):  # type: ignore[no-untyped-def]
    """Find the largest product; none is negative, so their bits are in the same order."""
    best = np.int32(0)
    for i in range(len(x)):
        best = max(best, np.float32(x[i] * weight[i]).view(np.int32))
    return np.int32(best).view(np.float32)


@_compiled
def _value(a, b, c, i, j, k):  # type: ignore[no-untyped-def]
    total = a[0, i] * b[0, j] * c[0, k]
    for r in range(1, len(a)):
        total += a[r, i] * b[r, j] * c[r, k]
    return total


@_compiled
def find_peaks(s, p, o):  # type: ignore[no-untyped-def]
    """Find the largest score of each row, [B, 3, R]."""
    peaks = np.empty((s.shape[0], 3, s.shape[1]), s.dtype)
    for pair in range(len(s)):
        _find_peaks(s, pair, 0, peaks)
        _find_peaks(p, pair, 1, peaks)
        _find_peaks(o, pair, 2, peaks)
    return peaks


@_compiled
def _outline(s, p, o, pair, peaks, gains, gain, a, b, c, by_s, by_p, by_o):  # type: ignore[no-untyped-def]
    """Compute one pair in float32, without its weight, and bound its entries by class: Σ_r gain_r · factor_r."""
    _exps_32(s, pair, 0, peaks, a)
    _exps_32(p, pair, 1, peaks, b)
    _exps_32(o, pair, 2, peaks, c)
    for r in range(len(gain)):
        gain[r] = gains[pair, r]
    _mix(gain, a, by_s)
    _mix(gain, b, by_p)
    _mix(gain, c, by_o)
    _scale(gain, a)


@_compiled
def _bounds(s, p, o, pair_weight, peaks, most_s, most_p, most_o, gains):  # type: ignore[no-untyped-def]
    """Bound all entries of each pair [B], from one pass over the factors in float32; keeps the gains."""
    n_pairs, R, S = s.shape
    P, O, f = p.shape[2], o.shape[2], np.float32
    bound, gain, gain_32 = np.empty(n_pairs), np.empty(R), np.empty(R, f)
    a, b, c = np.empty((R, S), f), np.empty((R, P), f), np.empty((R, O), f)
    by_s, by_p, by_o = np.empty(S, f), np.empty(P, f), np.empty(O, f)
    for pair in range(n_pairs):
        _exps_32(s, pair, 0, peaks, a)
        _exps_32(p, pair, 1, peaks, b)
        _exps_32(o, pair, 2, peaks, c)
        _gains(pair, peaks, a, b, c, gain)
        for r in range(R):
            gain_32[r] = gain[r]
            gains[pair, r] = gain_32[r]
        _mix(gain_32, a, by_s)
        _mix(gain_32, b, by_p)
        _mix(gain_32, c, by_o)
        best = min(_peak(by_s, most_s), _peak(by_p, most_p), _peak(by_o, most_o))
        bound[pair] = pair_weight[pair] * (best * MARGIN + TINY)
    return bound


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
def _place(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """Return the place of a key among sorted ones, or -1."""
    end = stop
    while start < stop:
        middle = (start + stop) // 2
        if keys[middle] < key:
            start = middle + 1
        else:
            stop = middle
    return start if start < end and keys[start] == key else -1


@_compiled
def _largest(bounds, weight, count):  # type: ignore[no-untyped-def]
    """Return the classes with the largest bounds times weights."""
    best, label, size = np.empty(count + 1, np.float32), np.empty(count + 1, np.int64), 0
    for x in range(len(bounds)):
        value = bounds[x] * weight[x]
        if size == count and value <= best[size - 1]:
            continue
        at = size
        while at > 0 and best[at - 1] < value:
            best[at], label[at] = best[at - 1], label[at - 1]
            at -= 1
        best[at], label[at] = value, x
        size = min(size + 1, count)
    return label[:size]


@_compiled
def _collect(values, count, cap, pool, size):  # type: ignore[no-untyped-def]
    """Append the best `cap` values to a pool; returns its new size."""
    if count > cap:
        values[:count].sort()
    for at in range(max(0, count - cap), count):
        pool[size] = values[at]
        size += 1
    return size


@_compiled
def _reached(pool, top):  # type: ignore[no-untyped-def]
    """Return the value that `top` of a pool reach, or 0 if it has fewer."""
    return np.partition(pool, len(pool) - top)[len(pool) - top] if len(pool) >= top else 0.0


@_compiled
def _floor(s, p, o, pair_weight, peaks, gains, order, seen, caps, top):  # type: ignore[no-untyped-def]
    """Find a value that at least `top` entries reach, at most `caps` per pair: a first one to prune by, or 0.

    Considers, in the pairs with the largest bounds, combinations of the classes with the largest bounds, and the
    triplets with the largest prior weights: about six times `top` of each.
    """
    n_pairs, R, S = s.shape
    P, O, f = p.shape[2], o.shape[2], np.float32
    keys, key_weight, weights, heaviest, first = seen.keys, seen.key_weight, seen.weight_32, seen.heaviest, seen.first
    seen_s, seen_p, seen_o, rest = seen.s, seen.p, seen.o, seen.rest_32
    gain, a, b, c = np.empty(R, f), np.empty((R, S), f), np.empty((R, P), f), np.empty((R, O), f)
    by_s, by_p, by_o = np.empty(S, f), np.empty(P, f), np.empty(O, f)
    pairs = min(n_pairs, max(1, 6 * top // min(27, caps.min())))
    side = int((6 * top / pairs) ** (1 / 3) + 0.5)
    own, n_classes, n_heavy = np.empty(side**3), 0, 0
    classes, heavy = np.empty(pairs * side**3), np.empty(pairs * side**3)
    for pair in order[:pairs]:
        weight = pair_weight[pair] / MARGIN
        _outline(s, p, o, pair, peaks, gains, gain, a, b, c, by_s, by_p, by_o)
        best_p, best_o = _largest(by_p, seen.most_p, side), _largest(by_o, seen.most_o, side)
        n = 0
        for i in _largest(by_s, seen.most_s, side):
            for j in best_p:
                for k in best_o:
                    m = _place(keys, first[i], first[i + 1], (i * P + j) * O + k)
                    value = _value(a, b, c, i, j, k) * (key_weight[m] if m >= 0 else rest)
                    own[n] = (value - TINY) * weight
                    n += 1
        n_classes = _collect(own, n, caps[pair], classes, n_classes)
        n = min(len(own), len(heaviest))
        for at in range(n):
            m = heaviest[at]
            own[at] = (_value(a, b, c, seen_s[m], seen_p[m], seen_o[m]) * weights[m] - TINY) * weight
        n_heavy = _collect(own, n, caps[pair], heavy, n_heavy)
    return max(0.0, _reached(classes[:n_classes], top), _reached(heavy[:n_heavy], top))


@_compiled
def _norms(gain, factor, squares, norms):  # type: ignore[no-untyped-def]
    """Compute sqrt(Σ_r gain_r · factor_r²) of each class, not below what underflow may hide."""
    for r in range(factor.shape[0]):
        for x in range(factor.shape[1]):
            squares[r, x] = factor[r, x] * factor[r, x]
    _mix(gain, squares, norms)
    for x in range(len(norms)):
        norms[x] = np.sqrt(norms[x] + HIDDEN)


@_compiled
def _candidates(a, b, c, by_s, norm_p, norm_o, seen, cut, opened, candidates):  # type: ignore[no-untyped-def]
    """List the seen triplets of a pair whose value in float32 is `cut` or more.

    A value is at most by_s, and by Cauchy and Schwarz at most norm_p · norm_o. Appends first and decides afterwards: a
    branch would be mispredicted.
    """
    first, weights, most = seen.first, seen.weight_32, seen.most_s
    subjects, predicates, objects = seen.s, seen.p, seen.o
    n, last, size = 0, 0, 0
    for i in range(len(by_s)):
        opened[n] = i
        n += by_s[i] * most[i] >= cut
    for at in range(n):
        i = opened[at]
        bound = by_s[i]
        for m in range(first[i], first[i + 1]):
            weight = weights[m]
            if bound * weight < cut:
                break
            candidates[last] = m
            last += norm_p[predicates[m]] * norm_o[objects[m]] * weight >= cut
    for at in range(last):
        m = candidates[at]
        candidates[size] = m
        size += _value(a, b, c, subjects[m], predicates[m], objects[m]) * weights[m] >= cut
    return size


@_compiled
def search(s, p, o, pair_weight, seen, caps, top):  # type: ignore[no-untyped-def]
    """Find the best `top` entries, at most `caps` [B] of each pair: values and flat indices, best first.

    Factors are [B, R, ·], `pair_weight` [B] is at most 1. Of each pair, first the seen triplets that are candidates in
    float32, then the rest, by row and cell.
    """
    n_pairs, R, S = s.shape
    P, O, M, f = p.shape[2], o.shape[2], len(seen.keys), np.float32
    keys, first, seen_key, seen_weight, rest = seen.keys, seen.first, seen.key, seen.weight, seen.rest
    seen_s, seen_p, seen_o = seen.s, seen.p, seen.o
    peaks, gains = find_peaks(s, p, o), np.empty((n_pairs, R), f)
    bound = _bounds(s, p, o, pair_weight, peaks, seen.most_s, seen.most_p, seen.most_o, gains)
    order = np.argsort(-bound)
    floor = _floor(s, p, o, pair_weight, peaks, gains, order, seen, caps, top)
    gain_32, a, b, c = np.empty(R, f), np.empty((R, S), f), np.empty((R, P), f), np.empty((R, O), f)
    by_s, by_p, by_o, ones_32 = np.empty(S, f), np.empty(P, f), np.empty(O, f), np.ones(max(S, P, O), f)
    norm_p, norm_o, squares_p, squares_o = np.empty(P, f), np.empty(O, f), np.empty((R, P), f), np.empty((R, O), f)
    gain, A, B, C = np.empty(R), np.empty((R, S)), np.empty((R, P)), np.empty((R, O))
    ones, mix, row_bound, cell, row = np.ones(R), np.empty(R), np.empty(S), np.empty(P), np.empty(O)
    opened, opened_bound, candidates = np.empty(S + 1, np.int64), np.empty(S), np.empty(M + 1, np.int64)
    values, indices, size = np.empty(top), np.empty(top, np.int64), 0
    own_values, own_indices = np.empty(top), np.empty(top, np.int64)  # of one pair with a cap
    for pair in order:
        # An entry counts if it is not worse than (low, low_index): the worst kept of a full answer or of a full pair.
        low, low_index = (values[0], indices[0]) if size == top else (floor, LAST if floor > 0 else np.int64(-1))
        if bound[pair] == 0 or bound[pair] < low:
            break
        base, cap, n_candidates, n = pair * S * P * O, min(caps[pair], top), 0, 0
        rest_open = True
        if M:
            _outline(s, p, o, pair, peaks, gains, gain_32, a, b, c, by_s, by_p, by_o)
            cut = f((low / pair_weight[pair] - TINY) / MARGIN)
            _norms(gain_32, b, squares_p, norm_p)
            _norms(gain_32, c, squares_o, norm_o)
            n_candidates = _candidates(a, b, c, by_s, norm_p, norm_o, seen, cut, opened, candidates)
            rest_open = min(_peak(by_s, ones_32), _peak(by_p, ones_32), _peak(by_o, ones_32)) * seen.rest_32 >= cut
            if not n_candidates and not rest_open:
                continue
        expand_pair(s, p, o, pair, pair_weight[pair], peaks, A, B, C, gain)
        if cap < top:
            kept, kept_indices, kept_size = own_values, own_indices, 0
        else:
            kept, kept_indices, kept_size = values, indices, size
        for at in range(n_candidates):
            m = candidates[at]
            value, index = _value(A, B, C, seen_s[m], seen_p[m], seen_o[m]) * seen_weight[m], base + seen_key[m]
            if value > 0 and not _worse(value, index, low, low_index):
                kept_size = _push(kept, kept_indices, kept_size, cap, value, index)
                if kept_size == cap and _worse(low, low_index, kept[0], kept_indices[0]):
                    low, low_index = kept[0], kept_indices[0]
        if rest_open:
            _mix(ones, A, row_bound)
            for i in range(S):
                if not _worse(row_bound[i] * rest, base + i * P * O, low, low_index):
                    opened[n], opened_bound[n] = i, row_bound[i] * rest
                    n += 1
        for at in np.argsort(-opened_bound[:n], kind="mergesort"):
            i = opened[at]
            if _worse(opened_bound[at], base + i * P * O, low, low_index):
                continue
            for r in range(R):
                mix[r] = A[r, i]
            _mix(mix, B, cell)
            for j in range(P):
                start = base + (i * P + j) * O
                if _worse(cell[j] * rest, start, low, low_index):
                    continue
                for r in range(R):
                    mix[r] = A[r, i] * B[r, j]
                _mix(mix, C, row)
                near = 0
                for k in range(O):
                    row[k] *= rest
                    near += row[k] >= low
                for k in range(O if near else 0):
                    value, index = row[k], start + k
                    if value <= 0 or _worse(value, index, low, low_index):
                        continue
                    if M and _place(keys, first[i], first[i + 1], index - base) >= 0:
                        continue  # seen: considered above
                    kept_size = _push(kept, kept_indices, kept_size, cap, value, index)
                    if kept_size == cap and _worse(low, low_index, kept[0], kept_indices[0]):
                        low, low_index = kept[0], kept_indices[0]
        if cap == top:
            size = kept_size
            continue
        for at in range(kept_size):
            if size < top or _worse(values[0], indices[0], kept[at], kept_indices[at]):
                size = _push(values, indices, size, top, kept[at], kept_indices[at])
    for last in range(size - 1, -1, -1):  # sort: the worst of the heap goes last, again and again
        value, index = values[0], indices[0]
        _replace(values, indices, last, values[last], indices[last])
        values[last], indices[last] = value, index
    return values[:size], indices[:size]


@_compiled
def describe(flat, score, repeat, selected, boxes, sizes, keys, log_seen, log_rest):  # type: ignore[no-untyped-def]
    """Return the pair, the triplet and the terms (log ψ_c, prior, selected, boxes) of each entry, and the least of the
    terms without ψ_c.
    """
    S, P, O = sizes
    pair, triplet = np.empty(len(flat), np.int64), np.empty((len(flat), 3), np.int64)
    terms, least = np.empty((4, len(flat))), 0.0
    for n in range(len(flat)):
        pair[n] = flat[n] // (S * P * O)
        key = flat[n] - pair[n] * (S * P * O)
        triplet[n, 0], triplet[n, 1], triplet[n, 2] = key // (P * O), key // O % P, key % O
        m = _place(keys, 0, len(keys), key)
        terms[1, n] = log_seen[m] if m >= 0 else log_rest
        terms[2, n], terms[3, n] = selected[pair[n]], boxes[pair[n]]
        others = terms[1, n] + terms[2, n] + terms[3, n] + repeat[n]
        terms[0, n], least = score[n] - others, min(least, others)
    return pair, triplet, terms, least


class SeenIndex(NamedTuple):
    """The weights of all triplets, the largest 1; the seen ones by subject, then by falling weight."""

    keys: Ints  # [M], sorted
    key_weight: Singles  # [M], in this order
    key: Ints  # [M], by subject and weight, as all below up to `o`
    weight: Floats  # [M]
    weight_32: Singles  # [M]
    s: NDArray[np.int32]  # [M], subject, predicate and object
    p: NDArray[np.int32]
    o: NDArray[np.int32]
    first: Ints  # [S + 1], of each subject, in both orders
    heaviest: Ints  # the first of all by weight
    most_s: Singles  # [S], the largest weight of any triplet with this subject
    most_p: Singles  # [P]
    most_o: Singles  # [O]
    rest: float  # the weight of all other triplets
    rest_32: np.float32


def index_seen(keys: Ints, log_seen: Floats, log_rest: float, sizes: tuple[int, int, int]) -> SeenIndex:
    """Sort the seen triplets, in O(S + P + O + M log M)."""
    S, P, O = sizes
    best = max(log_rest, float(log_seen.max(initial=-math.inf)))
    best = best if best > -math.inf else 0.0
    key_weight, rest = np.exp(log_seen - best), math.exp(log_rest - best)
    subject = keys // (P * O)
    place = np.lexsort((-log_seen, subject))
    key, weight = keys[place], key_weight[place]
    s, p, o = (x.astype(np.int32) for x in (key // (P * O), key // O % P, key % O))
    most = [np.full(size, rest) for size in sizes]
    for largest, label in zip(most, (s, p, o), strict=True):
        np.maximum.at(largest, label, weight)
    most_s, most_p, most_o = (x.astype(np.float32) for x in most)
    single = np.float32
    return SeenIndex(
        keys,
        key_weight.astype(single),
        key,
        weight,
        weight.astype(single),
        s,
        p,
        o,
        np.searchsorted(subject, np.arange(S + 1)),
        np.argsort(-weight, kind="stable")[:SEEDS],
        most_s,
        most_p,
        most_o,
        rest,
        single(rest),
    )
