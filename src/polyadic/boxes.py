"""Box arithmetic. Boxes are float xyxy pixels."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def box_iou(a: Float[Tensor, "*N 4"], b: Float[Tensor, "*N 4"], offset: float = 0.0) -> Float[Tensor, "*N"]:
    """Intersection over union, element by element (broadcasting); 0 where both boxes are empty.

    `offset` = 1 counts pixels inclusively, the "+1" of the older evaluators.

    >>> box_iou(torch.tensor([0.0, 0, 2, 2]), torch.tensor([1.0, 0, 3, 2]))
    tensor(0.3333)
    """
    a, b = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (a, b))  # areas overflow half
    overlap = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2]) + offset).clamp_min(0)
    intersection = overlap.prod(-1)
    area_a, area_b = ((x[..., 2:] - x[..., :2] + offset).clamp_min(0).prod(-1) for x in (a, b))
    union = area_a + area_b - intersection
    return torch.where(union > 0, intersection / union.clamp_min(torch.finfo(union.dtype).tiny), 0.0)
