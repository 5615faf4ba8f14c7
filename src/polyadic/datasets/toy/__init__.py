"""A toy world: small pictures, their relations, an annotator who picks some, and the exact distribution.

    theme (hidden) ──► tint of the background ─┐
          │            layout of things ───────┴─► picture
          └─► names ──► what the annotator writes  (which pairs: layout alone)

It is drawn on the fly and needs no download. `truth` and `selected` are what a perfect network would predict.
"""

from __future__ import annotations

from polyadic.datasets.toy.annotator import selected, truth
from polyadic.datasets.toy.layout import VOCABULARY
from polyadic.datasets.toy.world import World, write

__all__ = ["VOCABULARY", "World", "selected", "truth", "write"]
