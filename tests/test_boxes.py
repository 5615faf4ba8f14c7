from __future__ import annotations

import pytest
import torch
from oracles import plain_iou

from polyadic import box_iou


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_iou_equals_the_plain_formula(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(2, 200, 4, dtype=torch.float64, generator=generator)
    boxes[..., 2:] = boxes[..., :2] + 0.7 * boxes[..., 2:]
    a, b = (boxes * 20).round()
    expected = [plain_iou(x, y, offset) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(box_iou(a, b, offset), torch.tensor(expected, dtype=torch.float64))


def test_large_boxes_in_half_precision() -> None:
    box = torch.tensor([0, 0, 600, 800], dtype=torch.float16)
    assert box_iou(box, box).item() == 1


def test_empty_boxes_overlap_nothing() -> None:
    point = torch.tensor([1.0, 1, 1, 1])
    assert box_iou(point, point).item() == 0
    assert box_iou(point, point, 1.0).item() == 1
