"""A small feature map for small pictures, learned from nothing: the drawn world's detector (ours).

Group norm, because steps have few images. Where a name depends on the scene and not on the thing, as in the drawn
world, a region alone cannot tell it: the picture's prevailing colour is added to each place.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

_GROUPS = 8
_CONTRAST = 5.0  # prevailing colours differ by about a fifth of the pixels' deviation


class SmallBackbone(nn.Module):
    """Pictures to one map of stride 8, whose places also see the map of stride 16."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.out_channels = 2 * width
        self.early = nn.Sequential(_conv(3, 16, 2), _conv(16, width, 2), _conv(width, width))
        self.middle = nn.Sequential(_conv(width, 2 * width, 2), *(_conv(2 * width, 2 * width) for _ in range(2)))
        self.late = nn.Sequential(_conv(2 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.narrow = nn.Conv2d(4 * width, 2 * width, 1)
        self.joined = _conv(2 * width, 2 * width)
        self.colour = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2 * width))

    def forward(self, pictures: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I C h w"]:
        fine = self.middle(self.early(pictures))
        coarse = interpolate(self.narrow(self.late(fine)), size=fine.shape[-2:])
        found: Tensor = self.joined(fine + coarse)
        colour: Tensor = self.colour(prevailing_colour(pictures))
        return found + colour[..., None, None]


def prevailing_colour(pictures: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I 2"]:
    """The median pixel, channel by channel, as red and blue against green."""
    middle = pictures.flatten(2).median(-1).values  # [I, 3]
    return _CONTRAST * (middle[:, ::2] - middle[:, 1:2])


def _conv(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.GroupNorm(_GROUPS, outer), nn.ReLU(inplace=True)
    )
