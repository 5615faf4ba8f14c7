"""The main job on the drawn world: train, score as in the paper's Table 4, draw what was found.

Beside the trained ranks stands what only a drawn world can tell: the recall of the exact truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from polyadic.config import PRESETS
from polyadic.datasets.toy.annotator import selected, truth
from polyadic.draw import contact_sheet, plan_drawing, side_by_side
from polyadic.draw.panels import relations_to_draw
from polyadic.draw.render import render_png
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.ablation import TOPS, Ablation, ablate
from polyadic.experiments.ablation_scores import Row
from polyadic.experiments.predicting import predict_split
from polyadic.experiments.runs import open_run
from polyadic.model.scoring import Parts
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import Vocabulary
from polyadic.training.examples import BoxSource, load_split

if TYPE_CHECKING:
    from PIL.Image import Image

RANKS = (1, 3, 5)
TRUTH = "the exact truth"
SHOWN = 10  # triplets beside a picture
SCENES = 6  # pictures


def demo(out: Path) -> Ablation:
    """Train and score, one seed; runs that are there already are kept."""
    found = ablate(PRESETS["toy"], out, RANKS, 1)
    rows = truth_rows(load_split(PRESETS["toy"], "test").scenes)
    return replace(found, rows=(*found.rows, *rows))


def truth_rows(scenes: Sequence[Scene]) -> list[Row]:
    """What a network that had learned everything would reach: the true joint times the true P(X_sel)."""
    base = get_protocol("lu2016").change(task="phrase-classification", tops=TOPS)
    cuts = {"free": base, "1": base.change(k=1)}
    evaluators = {word: Evaluator([protocol], 12) for word, protocol in cuts.items()}
    for scene in scenes:
        n = len(scene.boxes)
        pairs = np.argwhere(~np.eye(n, dtype=bool))
        score = truth(scene, pairs) * selected(scene, pairs)[:, None, None, None]  # [B, S, P, O]
        for word, protocol in cuts.items():
            evaluators[word].update(scene, best_triplets(scene, pairs, score, protocol))
    return [
        Row(TRUTH, "toy", cuts[word].label, None, None, "", word, str(cuts[word].k or "any"), str(row.top), row.recall)
        for word, evaluator in evaluators.items()
        for row in evaluator.result()
    ]


def best_triplets(
    scene: Scene, pairs: np.ndarray, score: Float[np.ndarray, "B S P O"], protocol: Protocol
) -> Relations:
    """The list by sorting, at most k per pair."""
    flat, top = score.reshape(len(score), -1), max(protocol.tops)
    kept = min(protocol.k or top, flat.shape[1])
    cells = np.argpartition(-flat, kept - 1, axis=1)[:, :kept]
    values = np.take_along_axis(flat, cells, 1).ravel()
    order = np.argsort(-values, kind="stable")[:top]
    triplets = np.stack(np.unravel_index(cells.ravel()[order], score.shape[1:]), 1)
    return Relations(scene.name, scene.boxes, pairs[order // kept], triplets, values[order])


def draw_pictures(run: Path, folder: Path) -> list[Path]:
    """A few test scenes with their best triplets, hits in green, without and with the prior; then all on one sheet."""
    opened = open_run(run)
    scenes = opened.data.scenes[:SCENES]
    settings = [(None, Parts(prior=False)), (None, Parts())]
    lists = predict_split(opened.model, scenes, BoxSource(), opened.regions, settings, SHOWN)
    folder.mkdir(parents=True, exist_ok=True)
    paths, sheet = [], []
    for scene, *both in zip(scenes, *lists, strict=True):
        panels = [_panel(scene, each, opened.data.vocabulary) for each in both]
        sheet.append(side_by_side(panels, ["without the prior", "with the prior"]))
        paths.append(folder / f"{Path(scene.name).stem}.png")
        sheet[-1].save(paths[-1])
    contact_sheet(sheet).save(folder / "all.png")
    return [folder / "all.png", *paths]


def _panel(scene: Scene, found: Relations, names: Vocabulary) -> Image:
    truths = {
        (*relation[::2], *triplet)
        for relation, triplet in zip(scene.relations.tolist(), scene.triplets.tolist(), strict=True)
    }
    rows = np.concatenate([found.pairs, found.triplets], 1).tolist()
    hits = np.array([tuple(row) in truths for row in rows], bool)
    drawn = relations_to_draw(names, found.pairs, found.triplets, found.scores, hits)
    drawn = [replace(each, score=math.exp(each.score or 0.0)) for each in drawn]
    labels = [names.objects[label] for label in scene.labels]
    return render_png(plan_drawing(scene.open(), scene.boxes, labels, drawn, arrows=4, width=480))
