"""Compiled matching: images are concatenated in flat arrays, and `off[i]:off[i + 1]` is image i."""

from __future__ import annotations

import numpy as np

from polyadic.compiled import compiled

NONE = 1 << 62  # the rank of a ground truth that is not hit


@compiled
def overlap(ax1, ay1, ax2, ay2, bx1, by1, bx2, by2, offset):  # type: ignore[no-untyped-def]
    """Return the intersection over union of two boxes."""
    width = min(ax2, bx2) - max(ax1, bx1) + offset
    height = min(ay2, by2) - max(ay1, by1) + offset
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    a = (ax2 - ax1 + offset) * (ay2 - ay1 + offset)
    b = (bx2 - bx1 + offset) * (by2 - by1 + offset)
    return both / (a + b - both)


@compiled
def union_overlap(s, o, t, u, offset):  # type: ignore[no-untyped-def]
    """Return the IoU of the box around s and o with the box around t and u."""
    return overlap(
        min(s[0], o[0]), min(s[1], o[1]), max(s[2], o[2]), max(s[3], o[3]),
        min(t[0], u[0]), min(t[1], u[1]), max(t[2], u[2]), max(t[3], u[3]),
        offset,
    )  # fmt: skip


@compiled
def pair_overlap(s, o, t, u, phrase, offset):  # type: ignore[no-untyped-def]
    """Compare a predicted pair (s, o) with a true pair (t, u): the smaller of both IoUs, or that of the unions."""
    if phrase:
        return union_overlap(s, o, t, u, offset)
    return min(
        overlap(s[0], s[1], s[2], s[3], t[0], t[1], t[2], t[3], offset),
        overlap(o[0], o[1], o[2], o[3], u[0], u[1], u[2], u[3], offset),
    )


@compiled
def keep_best(off, scores, pairs, triplets, k, by_label, top):  # type: ignore[no-untyped-def]
    """Return rows of each image's best `top` predictions, at most k per pair: stable, descending scores; -1 = no more.

    Pairs are counted in a hash table with open addressing; k = 0 means any number.
    """
    images = len(off) - 1
    kept = np.full((images, top), -1, np.int64)
    for i in range(images):
        start, end = off[i], off[i + 1]
        ordered = True  # as most files are
        for row in range(start + 1, end):
            ordered &= scores[row] <= scores[row - 1]
        if ordered and k == 0:
            for n in range(min(top, end - start)):
                kept[i, n] = start + n
            continue
        order = np.arange(end - start) if ordered else np.argsort(-scores[start:end], kind="mergesort")
        size = 1
        while k > 0 and size < 2 * (end - start):
            size *= 2
        owner = np.full(size, -1, np.int64)  # the first row in a slot
        count = np.zeros(size, np.int64)
        n = 0
        for rank in range(end - start):
            if n == top:
                break
            row = start + order[rank]
            if k > 0:
                h = pairs[row, 0] * 1000003 + pairs[row, 1]
                if by_label:
                    h = (h * 1000003 + triplets[row, 0]) * 1000003 + triplets[row, 2]
                slot = (h ^ (h >> 17)) & (size - 1)
                while owner[slot] >= 0:
                    other = owner[slot]
                    same = pairs[other, 0] == pairs[row, 0] and pairs[other, 1] == pairs[row, 1]
                    if by_label and same:
                        same = triplets[other, 0] == triplets[row, 0] and triplets[other, 2] == triplets[row, 2]
                    if same:
                        break
                    slot = (slot + 1) & (size - 1)
                owner[slot] = row if owner[slot] < 0 else owner[slot]
                if count[slot] == k:
                    continue
                count[slot] += 1
            kept[i, n] = row
            n += 1
    return kept


@compiled
def hit_ranks(kept, box_off, boxes, pairs, keys, truth_off, truth_boxes, truth_keys, phrase, many, last, iou, offset):  # type: ignore[no-untyped-def]
    """Return for each ground truth the rank (from 0) of the prediction that hits it, or `NONE`.

    One-to-one: in order of scores each prediction hits, of the equal triplets not yet hit, the one of largest overlap.
    Many-to-one: a ground truth is hit by the first prediction that matches.
    """
    top = kept.shape[1]
    ranks = np.full(len(truth_keys), NONE, np.int64)
    for i in range(len(kept)):
        first, end = truth_off[i], truth_off[i + 1]
        for place in range(top):
            row = kept[i, place]
            if row < 0:
                break
            key, best, taken = keys[row], -1.0, -1
            for t in range(first, end):
                if truth_keys[t] != key or ranks[t] < NONE:
                    continue
                s, o = boxes[box_off[i] + pairs[row, 0]], boxes[box_off[i] + pairs[row, 1]]
                value = pair_overlap(s, o, truth_boxes[t, 0], truth_boxes[t, 1], phrase, offset)
                if not value >= iou:
                    continue
                if many:
                    ranks[t] = place
                elif value > best or (last and value == best):
                    best, taken = value, t
            if taken >= 0:
                ranks[taken] = place
    return ranks


@compiled
def reachable(boxes, labels, relabel, truth_boxes, truths, phrase, iou, offset):  # type: ignore[no-untyped-def]
    """Mark the ground truths that some ordered pair of two different boxes could hit."""
    within = np.zeros(len(truths), np.bool_)
    n = len(boxes)
    for t in range(len(truths)):
        for s in range(n):
            if within[t]:
                break
            if not relabel and labels[s] != truths[t, 0]:
                continue
            for o in range(n):
                if s == o or (not relabel and labels[o] != truths[t, 2]):
                    continue
                if pair_overlap(boxes[s], boxes[o], truth_boxes[t, 0], truth_boxes[t, 1], phrase, offset) >= iou:
                    within[t] = True
                    break
    return within


@compiled
def reaching(boxes, labels, relabel, truth_boxes, truths, phrase, iou, offset, most):  # type: ignore[no-untyped-def]
    """List (ground truth, subject, object): the pairs that could hit each ground truth, the first `most` of each."""
    n = len(boxes)
    rows = [(0, 0, 0) for _ in range(0)]
    for t in range(len(truths)):
        count = 0
        for s in range(n):
            if count == most:
                break
            if not relabel and labels[s] != truths[t, 0]:
                continue
            if not phrase:
                a, b = boxes[s], truth_boxes[t, 0]
                if not overlap(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], offset) >= iou:
                    continue
            for o in range(n):
                if s == o or (not relabel and labels[o] != truths[t, 2]):
                    continue
                if pair_overlap(boxes[s], boxes[o], truth_boxes[t, 0], truth_boxes[t, 1], phrase, offset) >= iou:
                    rows.append((t, s, o))
                    count += 1
                    if count == most:
                        break
    found = np.zeros((len(rows), 3), np.int64)
    for at in range(len(rows)):
        found[at, 0], found[at, 1], found[at, 2] = rows[at]
    return found


@compiled
def match(order, left, right, capacity):  # type: ignore[no-untyped-def]
    """Match left nodes, in `order`, with right nodes of a capacity, along edges (left, right); mark the matched.

    Each takes a free place if an augmenting path leads to one; what is matched stays matched. So the number is maximal,
    and so is the weight of the first n, for every n, where `order` is by falling weight.
    """
    n, m = len(order), 0
    for edge in range(len(right)):
        m = max(m, right[edge] + 1)
    start = np.zeros(n + 1, np.int64)
    for edge in range(len(left)):
        start[left[edge] + 1] += 1
    start = np.cumsum(start)
    target, filled = np.zeros(len(left), np.int64), start[:-1].copy()
    for edge in range(len(left)):
        target[filled[left[edge]]] = right[edge]
        filled[left[edge]] += 1
    size = min(capacity, n)
    place, used = np.full((m, max(size, 1)), -1, np.int64), np.zeros(m, np.int64)
    matched = np.zeros(n, np.bool_)
    queue, came, held = np.zeros(n, np.int64), np.zeros(m, np.int64), np.zeros(n, np.int64)
    for first in order:
        seen = np.zeros(m, np.bool_)
        queue[0], head, tail, end = first, 0, 1, -1
        while head < tail and end < 0:
            node = queue[head]
            head += 1
            for edge in range(start[node], start[node + 1]):
                other = target[edge]
                if seen[other]:
                    continue
                seen[other], came[other] = True, node
                if used[other] < size:
                    end = other
                    break
                for at in range(size):
                    queue[tail] = place[other, at]
                    tail += 1
        if end < 0:
            continue
        while True:  # along the path, each node moves on to the place where the search left it
            node = came[end]
            before = held[node]
            place[end, used[end]] = node
            used[end] += 1
            held[node] = end
            if node == first:
                break
            for at in range(used[before]):
                if place[before, at] == node:
                    used[before] -= 1
                    place[before, at] = place[before, used[before]]
                    break
            end = before
        matched[first] = True
    return matched
