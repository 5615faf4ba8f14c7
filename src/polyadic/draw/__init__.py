"""Pictures of relations, as in the paper's qualitative figures: boxes, arrows, the ranked triplets and the scene graph.

    relations_to_draw ─► plan_drawing ─► save_drawing            .svg, .png
                         draw_relations ─► side_by_side ─► contact_sheet
                         svg_relations
                         plan_column ─► one of several, the list below

One layout gives both formats. Hits are green and have a tick; which triplets are hits is told from outside. Pillow
only, and no torch.
"""

from __future__ import annotations

from polyadic.draw.column import plan_column, plan_list
from polyadic.draw.picture import draw_relations, plan_drawing, save_drawing, svg_relations
from polyadic.draw.png import render_png
from polyadic.draw.relations import Drawn, relations_to_draw
from polyadic.draw.shapes import Drawing
from polyadic.draw.sheet import contact_sheet, side_by_side

__all__ = [
    "Drawing",
    "Drawn",
    "contact_sheet",
    "draw_relations",
    "plan_column",
    "plan_drawing",
    "plan_list",
    "relations_to_draw",
    "render_png",
    "save_drawing",
    "side_by_side",
    "svg_relations",
]
