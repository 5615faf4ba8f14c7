"""Pictures of relations, as in the paper's qualitative figures: boxes, arrows and the ranked triplets, hits in green.

    relations_to_draw ─► draw_relations ─► side_by_side ─► contact_sheet

Pillow only, and no torch; which triplets are hits is told from outside.
"""

from __future__ import annotations

from polyadic.draw.picture import Drawn, draw_relations, relations_to_draw
from polyadic.draw.sheet import contact_sheet, side_by_side

__all__ = ["Drawn", "contact_sheet", "draw_relations", "relations_to_draw", "side_by_side"]
