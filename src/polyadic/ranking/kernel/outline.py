"""All pairs of an image in float32: bounds that say which pairs to search, and a first value to prune by.

With measure g_r, the weight of a component's peak, Hölder's inequality bounds every entry by three norms,

    Σ_r g_r · a_ri · b_rj · c_rk  <=  |a_i| · |b_j| · |c_k|,    |a_i|³ = Σ_r g_r · a_ri³,

which is exact for one component, and close to it for several.

Everything here is off by rounding, never by more than `margin` times, and `TINY`, which are added where a bound must
hold: float64 decides.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic.compiled import compiled as _compiled
from polyadic.ranking.kernel.vectors import (
    cube_root_32,
    exp_32,
    exponentials_32,
    find_peaks,
    larger,
    largest,
    mix,
    place_of_largest,
    places,
    reached,
    total,
)

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]

TINY = 1e-30  # above what float32 loses to underflow, of a pair whose entries sum to 1
HIDDEN = np.float32(1e-36)  # above the sum of cubes that float32 loses to underflow
HEAVY = 64  # of the heaviest triplets, for the first bar
FLAT = 1 / 16  # with a `rest` above this, they do not stand out


class SeenIndex(NamedTuple):
    """The weights of all triplets, the largest 1.

    The seen ones by subject, then by falling weight, in lists of whole blocks of four, filled up with weights of 0: a
    block is a line of the cache. Predicates and objects are given by their places in a pair's exponentials.
    """

    keys: Ints  # [M], sorted
    key_weight: Singles  # [M], in this order
    first: NDArray[np.uint64]  # [S + 1], the first block of each subject
    blocks: NDArray[np.uint32]  # [N / 4, 4, 4]: predicate, object, bits of the float32 weight, subject of four triplets
    weight: Floats  # [N]
    heaviest: NDArray[np.uint32]  # [4, H], of the triplets with the largest weights the same
    most: Singles  # [W], the largest weight of any triplet with this class
    rest: float  # the weight of all other triplets
    least: float  # the smallest weight of any triplet


def index_seen(keys: Ints, log_seen: Floats, log_rest: float, sizes: tuple[int, int, int]) -> SeenIndex:
    """Sort the seen triplets, in O(S + P + O + M log M)."""
    S, P, O = sizes
    to_p, to_o, W = places(S, P, O)
    best = max(log_rest, float(log_seen.max(initial=-math.inf)))
    best = best if best > -math.inf else 0.0
    key_weight, rest = np.exp(log_seen - best), math.exp(log_rest - best)
    labels = np.stack([keys // O % P + to_p, keys % O + to_o, np.zeros_like(keys), keys // (P * O)]).astype(np.uint32)
    labels[2] = key_weight.astype(np.float32).view(np.uint32)
    most = np.zeros(W)
    for start, size in ((0, S), (to_p, P), (to_o, O)):
        most[start : start + size] = rest
    for label in labels[[0, 1, 3]]:
        np.maximum.at(most, label, key_weight)
    count = np.bincount(labels[3], minlength=S)
    first = np.concatenate([[0], ((count + 3) // 4).cumsum()])
    order = np.lexsort((-log_seen, labels[3]))
    place = np.arange(len(keys)) + np.repeat(4 * first[:-1] - (count.cumsum() - count), count)
    lists, weight = np.zeros((4, 4 * first[-1]), np.uint32), np.zeros(4 * first[-1])
    lists[:, place], weight[place] = labels[:, order], key_weight[order]
    heavy = np.argsort(-key_weight, kind="stable")[: HEAVY if rest < FLAT else 0]
    return SeenIndex(
        keys,
        key_weight.astype(np.float32),
        first.astype(np.uint64),
        np.ascontiguousarray(lists.reshape(4, -1, 4).swapaxes(0, 1)),
        weight,
        np.ascontiguousarray(labels[:, heavy]),
        most.astype(np.float32),
        rest,
        min(rest, float(key_weight.min(initial=math.inf))),
    )


class Outline(NamedTuple):
    """All pairs in float32, without their weights."""

    peaks: NDArray[Any]  # [B, 3, R], of the factors, in their own type
    gain: Singles  # [B, R], the peak of each component in ψ_c
    norms: Singles  # [B, W]
    heights: Singles  # [B, 3], the largest of each variable
    bound: Floats  # [B], of all entries, with the weights of pair and triplets
    bar: float  # a value that enough entries reach


@_compiled
def margin(R, classes):  # type: ignore[no-untyped-def]
    """Return the factor that float32 may be off by: eight exponentials, three roots and the sums, and as much again."""
    return 1 + 1e-3 + (classes + 4 * R) * 2.0**-22


@_compiled
def expand_32(s, p, o, pair, peaks, e):  # type: ignore[no-untyped-def]
    """Compute the exponentials of one pair, [R, W]."""
    to_p, to_o, _ = places(s.shape[2], p.shape[2], o.shape[2])
    exponentials_32(s, pair, 0, peaks, e, np.uintp(0))
    exponentials_32(p, pair, 1, peaks, e, np.uintp(to_p))
    exponentials_32(o, pair, 2, peaks, e, np.uintp(to_o))


@_compiled
def _norms(gain, pair, e, norms):  # type: ignore[no-untyped-def]
    """Compute the norm of each class, not below what underflow may hide."""
    R, W = e.shape
    if R == 1:
        root = cube_root_32(gain[pair, 0])
        for x in range(W):
            norms[pair, x] = root * e[0, x]
        return
    for x in range(W):
        norms[pair, x] = HIDDEN
    r = 0
    while r + 4 <= R:
        g0, g1, g2, g3 = gain[pair, r], gain[pair, r + 1], gain[pair, r + 2], gain[pair, r + 3]
        for x in range(W):
            e0, e1, e2, e3 = e[r, x], e[r + 1, x], e[r + 2, x], e[r + 3, x]
            first = norms[pair, x] + g0 * e0 * e0 * e0 + g1 * e1 * e1 * e1
            norms[pair, x] = first + g2 * e2 * e2 * e2 + g3 * e3 * e3 * e3
        r += 4
    while r < R:
        g0 = gain[pair, r]
        for x in range(W):
            e0 = e[r, x]
            norms[pair, x] += g0 * e0 * e0 * e0
        r += 1
    for x in range(W):
        norms[pair, x] = cube_root_32(norms[pair, x])


@_compiled
def _peak(norms, pair, most, start, stop):  # type: ignore[no-untyped-def]
    """Find the largest product of a class's norm and the largest weight of its triplets."""
    best = np.float32(0)
    for x in range(np.uintp(start), np.uintp(stop)):
        best = larger(best, np.float32(norms[pair, x] * most[x]))
    return best


@_compiled
def outline(s, p, o, pair_weight, seen, caps, top):  # type: ignore[no-untyped-def]
    """Compute all pairs in float32, in one pass over the factors [B, R, ·].

    The bar is of entries that are likely to be good: those beside a good one of each pair, or, of many pairs, one of
    each; or some of the heaviest triplets.
    """
    n, R, S = s.shape
    P, O, M, H, f = p.shape[2], o.shape[2], len(seen.keys), seen.heaviest.shape[1], np.float32
    to_p, to_o, W = places(S, P, O)
    peaks, gain, norms = np.empty((n, 3, R), s.dtype), np.empty((n, R), f), np.empty((n, W), f)
    heights, bound, slack = np.empty((n, 3), f), np.empty(n), margin(R, S + P + O)
    e, totals, height, mixed = np.zeros((R, W), f), np.empty(R, f), np.empty(R), np.empty(R, f)
    keys, key_weight, most, flat = seen.keys, seen.key_weight, seen.most, norms.reshape(-1)
    heaviest, own, many, each = seen.heaviest, np.empty(max(W, H), f), n >= 2 * top, max(1, -(-2 * top // max(n, 1)))
    beside, heavy, n_heavy = np.empty(n if many else n * W, f), np.empty(n * min(each, H), f), 0
    for pair in range(n):
        at, weight, highest, z, best_gain = pair * W, pair_weight[pair], -np.inf, f(0), f(0)
        find_peaks(s, pair, 0, peaks)
        find_peaks(p, pair, 1, peaks)
        find_peaks(o, pair, 2, peaks)
        expand_32(s, p, o, pair, peaks, e)
        for r in range(R):
            totals[r] = total(e, r, 0, to_p) * total(e, r, to_p, to_o) * total(e, r, to_o, W)
        for r in range(R):
            height[r] = np.float64(peaks[pair, 0, r]) + np.float64(peaks[pair, 1, r]) + np.float64(peaks[pair, 2, r])
            highest = max(highest, height[r])
        for r in range(R):
            gain[pair, r] = exp_32(f(height[r] - highest))
            z += gain[pair, r] * totals[r]
        for r in range(R):
            gain[pair, r] = gain[pair, r] / z
            best_gain = max(best_gain, gain[pair, r])
        _norms(gain, pair, e, norms)
        h_s, h_p = largest(flat, at, at + to_p), largest(flat, at + to_p, at + to_o)
        h_o = largest(flat, at + to_o, at + W)
        heights[pair, 0], heights[pair, 1], heights[pair, 2] = h_s, h_p, h_o
        best = h_s * h_p * h_o * f(seen.rest)
        if M:
            by_s, by_p = _peak(norms, pair, most, 0, to_p) * h_p * h_o, _peak(norms, pair, most, to_p, to_o) * h_s * h_o
            best = min(by_s, by_p, _peak(norms, pair, most, to_o, W) * h_s * h_p)
        bound[pair] = weight * (best * slack + TINY)
        if many:
            beside[pair] = best_gain * f(weight * seen.least)
        else:
            i = place_of_largest(flat, at, at + S) - at
            _lines(gain, pair, e, i, (S, P, O), keys, key_weight, weight, seen.rest, seen.least, beside, at, mixed, own)
            if caps[pair] < W:
                _thin(beside, at, W, caps[pair], own)
        if H:
            n_heavy = _heavy(gain, norms, pair, e, heaviest, f(weight), min(each, H, caps[pair]), own, heavy, n_heavy)
    bar = max(reached(beside, len(beside), top), reached(heavy, n_heavy, top))
    return Outline(peaks, gain, norms, heights, bound, max(0.0, bar / slack - TINY))


@_compiled
def _heavy(gain, norms, pair, e, heaviest, weight, count, own, heavy, size):  # type: ignore[no-untyped-def]
    """Append the values of the `count` heaviest triplets that have the largest norms; returns the new size."""
    H, at = heaviest.shape[1], np.uintp(pair)
    for x in range(H):
        norm = norms[at, heaviest[0, x]] * norms[at, heaviest[1, x]] * norms[at, heaviest[3, x]]
        own[x] = norm * np.uint32(heaviest[2, x]).view(np.float32)
    cut = largest(own, 0, H) if count == 1 else reached(own, H, count)
    stop = size + count
    for x in range(H):
        if own[x] >= cut and size < stop:
            value = value_32(gain, at, e, heaviest[3, x], heaviest[0, x], heaviest[1, x])
            heavy[size] = value * np.uint32(heaviest[2, x]).view(np.float32) * weight
            size += 1
    return size


@_compiled
def value_32(gain, pair, e, i, j, k):  # type: ignore[no-untyped-def]
    """Compute one entry of ψ_c, by the places of its classes."""
    result = np.float32(0)
    for r in range(len(e)):
        result += gain[pair, r] * e[r, i] * e[r, j] * e[r, k]
    return result


@_compiled
def _lines(gain, pair, e, i, sizes, keys, key_weight, weight, rest, least, out, start, mixed, own):  # type: ignore[no-untyped-def]
    """Write the entries on three lines through a good one to out[start:]: its row of objects, predicates, subjects.

    Of the seen triplets, only those in the first line have their weights.
    """
    S, P, O = sizes
    to_p, to_o, W = places(S, P, O)
    R, f = len(e), np.float32
    for r in range(R):
        mixed[r] = gain[pair, r] * e[r, i]
    mix(mixed, e, to_p, to_o - to_p, out, start + to_p)
    j = place_of_largest(out, start + to_p, start + to_p + P) - start
    for r in range(R):
        mixed[r] *= e[r, j] * f(weight)
    mix(mixed, e, to_o, W - to_o, out, start + to_o)
    if len(keys):
        cell, line = (i * P + j - to_p) * O, start + to_o
        m, stop = lower_bound(keys, 0, len(keys), cell), lower_bound(keys, 0, len(keys), cell + O)
        for x in range(m, stop):
            own[x - m] = out[line + keys[x] - cell] * key_weight[x]
        for x in range(np.uintp(line), np.uintp(start + W)):
            out[x] *= f(rest)
        for x in range(m, stop):
            out[line + keys[x] - cell] = own[x - m]
    k = place_of_largest(out, start + to_o, start + to_o + O) - start
    for r in range(R):
        mixed[r] = gain[pair, r] * e[r, i] * e[r, k] * f(weight * least)
    mix(mixed, e, to_p, to_o - to_p, out, start + to_p)
    for r in range(R):
        mixed[r] = gain[pair, r] * e[r, j] * e[r, k] * f(weight * least)
    mix(mixed, e, 0, to_p, out, start)
    out[start + i] = 0  # the entry itself is in the first line
    out[start + j] = 0


@_compiled
def _thin(x, start, size, cap, own):  # type: ignore[no-untyped-def]
    """Set all but `cap` of the numbers x[start : start + size] to 0; the largest stay."""
    for at in range(size):
        own[at] = x[start + at]
    bar = reached(own, size, cap)
    for at in range(size):
        if own[at] >= bar and cap > 0:
            cap -= 1
        else:
            x[start + at] = 0


@_compiled
def close_triplets(norms, pair, others, first, blocks, most, cut, opened, found):  # type: ignore[no-untyped-def]
    """List the seen triplets of a pair whose norms allow `cut` or more; returns their number.

    Four at a time, and appends before it decides: a branch would be mispredicted. `others` is the largest product of
    the norms of a predicate and an object.
    """
    n, size, at = np.uintp(0), np.uintp(0), np.uintp(pair)
    for i in range(np.uintp(len(first) - 1)):
        opened[n] = i
        n += np.uintp(norms[at, i] * others * most[i] >= cut)
    for x in range(n):
        i = opened[x]
        norm = norms[at, i]
        for m in range(first[i], first[i + np.uintp(1)]):
            weight = np.float32(0)
            for y in range(np.uintp(4)):
                weight = np.uint32(blocks[m, 2, y]).view(np.float32)
                found[size] = m * np.uintp(4) + y
                size += np.uintp(norm * norms[at, blocks[m, 0, y]] * norms[at, blocks[m, 1, y]] * weight >= cut)
            if norm * others * weight < cut:  # asked here, not of the next block, which may not be in the cache
                break
    return np.int64(size)


@_compiled
def good_triplets(gain, pair, e, blocks, cut, found, size):  # type: ignore[no-untyped-def]
    """Keep the triplets whose value in float32 is `cut` or more; returns their number."""
    kept, four = 0, np.uintp(4)
    for x in range(size):
        m, y = found[x] // four, found[x] % four
        found[kept] = found[x]
        value = value_32(gain, pair, e, blocks[m, 3, y], blocks[m, 0, y], blocks[m, 1, y])
        kept += value * np.uint32(blocks[m, 2, y]).view(np.float32) >= cut
    return kept


@_compiled
def lower_bound(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """Return the place of the first of the sorted keys[start:stop] that is `key` or more."""
    while start < stop:
        middle = (start + stop) // 2
        if keys[middle] < key:
            start = middle + 1
        else:
            stop = middle
    return start
