"""Box arithmetic: IoU, pairs, unions, masks, geometry, NMS. Boxes are float xyxy pixels."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def box_iou(a: Float[Tensor, "*#N 4"], b: Float[Tensor, "*#N 4"], offset: float = 0.0) -> Float[Tensor, "*#N"]:
    """Compute intersection over union, element by element (broadcasting); 0 where both boxes are empty.

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


def ordered_pairs(n: int, device: torch.device | str | None = None) -> Int[Tensor, "B 2"]:
    """List all (subject, object) of two different boxes, B = n(n-1)."""
    index = torch.arange(n, device=device)
    both = torch.cartesian_prod(index, index).view(-1, 2)
    return both[both[:, 0] != both[:, 1]]


def union_boxes(a: Float[Tensor, "*N 4"], b: Float[Tensor, "*N 4"]) -> Float[Tensor, "*N 4"]:
    """Compute the smallest box around both."""
    return torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], -1)


def mirror_boxes(boxes: Float[Tensor, "N 4"], frames: Float[Tensor, "N 2"]) -> Float[Tensor, "N 4"]:
    """Reflect boxes left to right in their images.

    >>> mirror_boxes(torch.tensor([[1.0, 0, 4, 2]]), torch.tensor([[10.0, 5]]))
    tensor([[6., 0., 9., 2.]])
    """
    (x1, y1, x2, y2), width = boxes.unbind(-1), frames[:, 0]
    return torch.stack([width - x2, y1, width - x1, y2], -1)


def pair_masks(
    subject: Float[Tensor, "B 4"], object: Float[Tensor, "B 4"], frame: Float[Tensor, "B 2"], side: int
) -> Float[Tensor, "B 2 side side"]:
    """Draw two channels per pair, 1 in the box and 0 elsewhere, scaled to side x side (Network Architecture).

    A cell belongs to a box that covers its centre; a box too thin for any gets the cell at its own centre.
    """
    scaled = torch.stack([subject, object], 1) / frame.repeat(1, 2)[:, None] * side  # [B, 2, 4]
    low, high = scaled[..., :2], scaled[..., 2:]
    middle = ((low + high) / 2).clamp(0, side - 0.5).floor() + 0.5  # centre of the cell of the box's centre
    centre = torch.arange(side, device=scaled.device, dtype=scaled.dtype) + 0.5
    inside = (centre >= torch.minimum(low, middle)[..., None]) & (centre <= torch.maximum(high, middle)[..., None])
    return (inside[:, :, 1, :, None] & inside[:, :, 0, None, :]).to(scaled.dtype)  # rows are y


PLACE = 7


def box_place(boxes: Float[Tensor, "N 4"], frame: Float[Tensor, "N 2"]) -> Float[Tensor, "N 7"]:
    """Describe size and place of a box in its image (ours), about 1: log width, height and aspect; centre, ends."""
    size = _extent(boxes)
    share = (size / frame).log()
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 / frame
    ends = boxes[:, 1::2] / frame[:, 1:]  # top and bottom
    return torch.cat([share + 1, share[:, :1] - share[:, 1:], 4 * centre - 2, 4 * ends - 2], -1)


GEOMETRY = 24


def pair_geometry(
    subject: Float[Tensor, "B 4"], object: Float[Tensor, "B 4"], frame: Float[Tensor, "B 2"]
) -> Float[Tensor, "B 24"]:
    """Describe the geometry of a pair (ours), independent of the image's scale, of the order of 1.

    Both boxes in the frame of their union (8), log ratios of width and height (2), the offset in units of either box
    (4), overlap as a share of each and of the union (3), log areas and the union's share of the image (3), centres in
    the image (4).
    """
    around = union_boxes(subject, object)
    corner, extent = around[:, :2].repeat(1, 2), _extent(around).repeat(1, 2)
    size_s, size_o = _extent(subject), _extent(object)
    centre_s, centre_o = ((x[:, :2] + x[:, 2:]) / 2 for x in (subject, object))
    area_s, area_o, area_u, area = (x.prod(-1, keepdim=True) for x in (size_s, size_o, _extent(around), frame))
    shared = (torch.minimum(subject[:, 2:], object[:, 2:]) - torch.maximum(subject[:, :2], object[:, :2])).clamp_min(0)
    overlap = shared.prod(-1, keepdim=True)
    offset = centre_s - centre_o
    parts = [
        (subject - corner) / extent,
        (object - corner) / extent,
        (size_s / size_o).log(),
        (offset / size_o).asinh(),
        (-offset / size_s).asinh(),
        overlap / area_s,
        overlap / area_o,
        overlap / (area_s + area_o - overlap),
        (area_s / area).log(),
        (area_o / area).log(),
        area_u / area,
        centre_s / frame,
        centre_o / frame,
    ]
    return torch.cat(parts, -1)


RANKS = 15


class Closeness:
    """Which boxes of one image are closer than others, in O(N² log N): to be looked up for any of its pairs."""

    def __init__(self, boxes: Float[Tensor, "N 4"]) -> None:
        self.n, size = len(boxes), _extent(boxes)
        area, centre = size.prod(-1), (boxes[:, :2] + boxes[:, 2:]) / 2
        a, b = boxes[:, None], boxes[None]
        shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp_min(0).prod(-1)
        distance = (centre[:, None] - centre[None]).norm(dim=-1) / (area[:, None] * area[None]) ** 0.25
        kinds = (box_iou(a, b), shared / area[None], -distance)
        self.counts = [(count_larger(without_self(x)), count_larger(without_self(x.T))) for x in kinds]
        self.larger = count_larger(area[None])[0] / max(self.n - 1, 1)

    def ranks(self, pairs: Int[Tensor, "B 2"]) -> Float[Tensor, "B 15"]:
        """Rank pairs among all boxes (ours): which other boxes are closer, whatever the labels.

        For each of three kinds of closeness (overlap, share of the other inside, distance) the share of other boxes
        that are closer to the subject than the object is, and whether there is none; then the same from the object's
        side (12). The log number of boxes (1) and the share of them that are larger than subject and object (2).
        """
        s, o = pairs.unbind(-1)
        columns = []
        for of_subject, of_object in self.counts:
            for count in (of_subject[s, o], of_object[o, s]):
                columns += [count / max(self.n - 2, 1), (count == 0).to(count)]
        return torch.stack([*columns, torch.full_like(columns[0], self.n).log(), self.larger[s], self.larger[o]], -1)


CONTEXT = GEOMETRY + RANKS


def context_features(
    boxes: Float[Tensor, "N 4"],
    frames: Float[Tensor, "N 2"],
    pairs: Int[Tensor, "B 2"],
    closeness: Closeness | None = None,
) -> Float[Tensor, "B 39"]:
    """Describe some pairs among all boxes of one image: geometry and ranks of `closeness`, computed if not given."""
    s, o = pairs.unbind(-1)
    ranks = (closeness or Closeness(boxes)).ranks(pairs)
    return torch.cat([pair_geometry(boxes[s], boxes[o], frames[s]), ranks], -1)


def without_self(rows: Float[Tensor, "N N"]) -> Float[Tensor, "N N"]:
    """Set the diagonal to -inf: no box is close to itself."""
    return rows.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), -torch.inf)


def count_larger(rows: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:
    """Count the larger numbers of the same row."""
    ordered = rows.sort(-1).values
    return (rows.shape[-1] - torch.searchsorted(ordered, rows.contiguous(), right=True)).to(rows)


def _extent(boxes: Tensor) -> Tensor:
    """Compute width and height, at least one pixel."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp_min(1)


def suppress(boxes: Float[np.ndarray, "N 4"], scores: Float[np.ndarray, " N"], overlap: float) -> Int[np.ndarray, " M"]:
    """Class-agnostic non-maximum suppression: the rows that stay, in their order; an overlap of 1 keeps all.

    Of two boxes whose IoU exceeds `overlap`, the one of lower score is dropped; of equals the later one.
    """
    if overlap >= 1:
        return np.arange(len(boxes))
    from torchvision.ops import nms

    order = np.argsort(-scores, kind="stable")
    corners, ranks = torch.from_numpy(boxes[order]), -torch.arange(len(order), dtype=torch.float64)
    return np.sort(order[nms(corners, ranks, overlap).numpy()])
