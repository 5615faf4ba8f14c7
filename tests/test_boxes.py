from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import plain_iou
from torch import Tensor

from polyadic.boxes import (
    GEOMETRY,
    RANKS,
    Closeness,
    box_iou,
    box_place,
    ordered_pairs,
    pair_geometry,
    pair_masks,
    suppress,
    union_boxes,
)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_iou_equals_the_plain_formula(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(2, 200, 4, dtype=torch.float64, generator=generator)
    boxes[..., 2:] = boxes[..., :2] + 0.7 * boxes[..., 2:]
    a, b = (boxes * 20).round()
    expected = [plain_iou(x, y, offset) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(box_iou(a, b, offset), torch.tensor(expected, dtype=torch.float64))


def test_empty_boxes_overlap_nothing_and_large_boxes_fit_half_precision() -> None:
    point = torch.tensor([1.0, 1, 1, 1])
    assert box_iou(point, point).item() == 0
    assert box_iou(point, point, 1.0).item() == 1
    large = torch.tensor([0, 0, 600, 800], dtype=torch.float16)
    assert box_iou(large, large).item() == 1


def random_boxes(n: int, width: float, height: float, seed: int = 0) -> Tensor:
    """Corners within the frame and a little beyond it."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 2, 2, dtype=torch.float64, generator=generator) * 1.2 - 0.1
    points = points.sort(1).values * torch.tensor([width, height])
    return points.flatten(1)


def test_ordered_pairs_are_all_of_two_different_boxes_in_order() -> None:
    for n in range(5):
        assert ordered_pairs(n).tolist() == [[s, o] for s in range(n) for o in range(n) if s != o]
        assert ordered_pairs(n).dtype == torch.long


def test_a_union_is_the_smallest_box_around_both() -> None:
    a, b = random_boxes(30, 90, 50), random_boxes(30, 90, 50, seed=1)
    for x, y, u in zip(a.tolist(), b.tolist(), union_boxes(a, b).tolist(), strict=True):
        assert u == [min(x[0], y[0]), min(x[1], y[1]), max(x[2], y[2]), max(x[3], y[3])]


def plain_mask(box: list[float], width: float, height: float, side: int) -> list[list[int]]:
    """1 where the centre of the cell (column i, row j), back in the picture, lies in the box."""
    x1, y1, x2, y2 = box
    return [
        [int(x1 <= (i + 0.5) * width / side <= x2 and y1 <= (j + 0.5) * height / side <= y2) for i in range(side)]
        for j in range(side)
    ]


@pytest.mark.parametrize("side", [8, 13])
def test_masks_equal_a_loop_over_cell_centres(side: int) -> None:
    width, height = 90.0, 50.0
    a, b = random_boxes(60, width, height), random_boxes(60, width, height, seed=1)
    masks = pair_masks(a, b, torch.tensor([[width, height]], dtype=torch.float64).expand(60, 2), side)
    assert masks.shape == (60, 2, side, side)
    compared = 0
    for at in range(60):
        for channel, box in enumerate((a[at].tolist(), b[at].tolist())):  # the subject comes first
            expected = torch.tensor(plain_mask(box, width, height, side), dtype=torch.float64)
            if expected.any():  # else thin: below
                torch.testing.assert_close(masks[at, channel], expected, rtol=0, atol=0)
                compared += 1
    assert compared > 80


@pytest.mark.parametrize(
    ("box", "column", "row"),
    [
        ([30.0, 20, 30, 20], 2, 3),  # a point
        ([89.9, 0, 89.95, 0.01], 7, 0),
        ([90.0, 50, 90, 50], 7, 7),  # on the frame's corner
        ([300.0, 90, 400, 95], 7, 7),  # outside
        ([-300.0, 10, -200, 11], 0, 1),
    ],
)
def test_a_box_thinner_than_a_cell_still_covers_one(box: list[float], column: int, row: int) -> None:
    mask = pair_masks(torch.tensor([box]), torch.tensor([[0.0, 0, 90, 50]]), torch.tensor([[90.0, 50]]), 8)[0]
    assert mask[0].nonzero().tolist() == [[row, column]]
    assert mask[1].all()


def test_a_thin_box_keeps_its_length() -> None:
    mask = pair_masks(
        torch.tensor([[0.0, 20, 45, 20]]), torch.tensor([[40.0, 0, 40, 50]]), torch.tensor([[90.0, 50]]), 8
    )[0]
    assert mask[0].nonzero().tolist() == [[3, i] for i in range(4)]
    assert mask[1].nonzero().tolist() == [[j, 3] for j in range(8)]


def test_geometry_by_hand() -> None:
    """Subject 20 x 10 at (10, 30), object 40 x 20 at (20, 20), in a picture of 100 x 50."""
    result = pair_geometry(
        torch.tensor([[10.0, 30, 30, 40]]), torch.tensor([[20.0, 20, 60, 40]]), torch.tensor([[100.0, 50]])
    )[0]
    asinh, log = math.asinh, math.log
    expected = [
        *(0, 0.5, 0.4, 1),  # union (10, 20, 60, 40)
        *(0.2, 0, 1, 1),
        *(log(0.5), log(0.5)),
        *(asinh(-20 / 40), asinh(5 / 20)),  # centres (20, 35) and (40, 30)
        *(asinh(20 / 20), asinh(-5 / 10)),
        *(100 / 200, 100 / 800, 100 / 900),
        *(log(200 / 5000), log(800 / 5000), 1000 / 5000),
        *(0.2, 0.7, 0.4, 0.6),
    ]
    torch.testing.assert_close(result, torch.tensor(expected))
    assert len(expected) == GEOMETRY


def test_geometry_is_scale_invariant() -> None:
    a, b = random_boxes(40, 900, 500), random_boxes(40, 900, 500, seed=1)
    wide = ((a[:, 2:] - a[:, :2]).amin(1) > 3) & ((b[:, 2:] - b[:, :2]).amin(1) > 3)  # a pixel is the least
    frame = torch.tensor([[900.0, 500]], dtype=torch.float64).expand(40, 2)
    first, second = pair_geometry(a, b, frame), pair_geometry(a * 2.5, b * 2.5, frame * 2.5)
    torch.testing.assert_close(first[wide], second[wide])
    assert int(wide.sum()) > 30


def test_swapping_the_boxes_swaps_their_numbers() -> None:
    a, b = random_boxes(40, 90, 50), random_boxes(40, 90, 50, seed=1)
    frame = torch.tensor([[90.0, 50]], dtype=torch.float64).expand(40, 2)
    one, two = pair_geometry(a, b, frame), pair_geometry(b, a, frame)
    swapped = [*range(4, 8), *range(4), 8, 9, *range(12, 14), *range(10, 12), 15, 14, 16, 18, 17, 19, 22, 23, 20, 21]
    sign = torch.ones(GEOMETRY, dtype=torch.float64)
    sign[8:10] = -1  # log ratios
    torch.testing.assert_close(two, one[:, swapped] * sign)


def test_geometry_of_boxes_without_area_is_finite() -> None:
    boxes = torch.tensor([[5.0, 5, 5, 5], [5, 5, 5, 9], [0, 0, 90, 0], [90, 50, 90, 50]])
    s, o = ordered_pairs(4).unbind(-1)
    result = pair_geometry(boxes[s], boxes[o], torch.tensor([[90.0, 50]]).expand(12, 2))
    assert result.isfinite().all()
    assert result.abs().max() < 20


@pytest.mark.parametrize("overlap", [0.3, 0.7, 1.0])
def test_suppression_equals_a_slow_loop(overlap: float) -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 30):
        boxes = np.sort(rng.integers(0, 9, (n, 2, 2)), 1).reshape(n, 4).astype(float)
        scores = rng.integers(0, 4, n) / 4  # with ties
        kept: list[int] = []
        for at in sorted(range(n), key=lambda i: (-scores[i], i)):
            alike = box_iou(torch.from_numpy(boxes[at]), torch.from_numpy(boxes[kept]).view(-1, 4))
            if overlap == 1 or not bool((alike > overlap).any()):
                kept.append(at)
        assert suppress(boxes, scores, overlap).tolist() == sorted(kept)


def test_size_and_place_of_a_box_do_not_depend_on_the_scale_of_its_picture() -> None:
    boxes, frame = torch.tensor([[10.0, 20, 50, 40], [0, 0, 80, 60], [5, 5, 5, 5]]), torch.tensor([[80.0, 60]])
    result = box_place(boxes, frame.expand(3, 2))
    large = box_place(boxes[:2] * 7, frame.expand(2, 2) * 7)
    torch.testing.assert_close(result[:2], large)
    expected = [math.log(40 / 80) + 1, math.log(20 / 60) + 1, math.log(40 / 80) - math.log(20 / 60), -0.5, 0.0]
    torch.testing.assert_close(result[0], torch.tensor([*expected, 4 * 20 / 60 - 2, 4 * 40 / 60 - 2]))
    torch.testing.assert_close(result[1], torch.tensor([1.0, 1, 0, 0, 0, -2, 2]))
    assert result.isfinite().all()


def share_inside(a: list[float], b: list[float]) -> float:
    """Of b, inside a."""
    width, height = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    return width * height / ((b[2] - b[0]) * (b[3] - b[1]))


def apart(a: list[float], b: list[float]) -> float:
    x, y = ((a[i] + a[i + 2] - b[i] - b[i + 2]) / 2 for i in (0, 1))
    area = (a[2] - a[0]) * (a[3] - a[1]) * (b[2] - b[0]) * (b[3] - b[1])
    return math.hypot(x, y) / math.sqrt(math.sqrt(area))


@pytest.mark.parametrize("n", [2, 3, 9])
def test_closeness_ranks_count_the_closer_boxes(n: int) -> None:
    boxes = random_boxes(n, 900, 500)
    rows, pairs = boxes.tolist(), ordered_pairs(n)
    result = Closeness(boxes).ranks(pairs)
    assert result.shape == (n * (n - 1), RANKS)

    def overlap(a: list[float], b: list[float]) -> float:
        return float(box_iou(torch.tensor(a), torch.tensor(b)))

    kinds = (
        (overlap, overlap),
        (share_inside, lambda o, s: share_inside(s, o)),  # from the object's side: of it, inside the subject
        (lambda a, b: -apart(a, b), lambda a, b: -apart(a, b)),
    )
    for at, (s, o) in enumerate(pairs.tolist()):
        expected = []
        for pair in kinds:
            for close, (me, you) in zip(pair, ((s, o), (o, s)), strict=True):
                mine = close(rows[me], rows[you])
                others = [i for i in range(n) if i not in (s, o)]
                closer = sum(close(rows[me], rows[i]) > mine + 1e-9 for i in others)
                expected += [closer / max(n - 2, 1), float(closer == 0)]
        area = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in rows]
        larger = [sum(other > area[i] for other in area) / (n - 1) for i in (s, o)]
        torch.testing.assert_close(result[at], torch.tensor([*expected, math.log(n), *larger], dtype=torch.float64))


def test_closeness_ranks_of_few_boxes_and_boxes_without_area() -> None:
    assert Closeness(torch.zeros(0, 4)).ranks(ordered_pairs(0)).shape == (0, RANKS)
    assert Closeness(torch.rand(1, 4)).ranks(ordered_pairs(1)).shape == (0, RANKS)
    same = torch.tensor([[5.0, 5, 5, 5]]).expand(4, 4)
    result = Closeness(same).ranks(ordered_pairs(4))
    assert result.isfinite().all()
    assert torch.equal(result[:, 1:12:2], torch.ones(12, 6)), "nobody is closer than one of equals"
