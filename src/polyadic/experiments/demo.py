"""Experiments without any download: the demo, and both stages from scratch on generated scenes.

The demo's photographs come with scikit-image. On generated scenes it trains some ranks, scores them as in the paper's
Table 4 and draws predictions. The recall of the exact probabilities, which only generated scenes have, is listed beside
the trained ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float

from polyadic.config import DETECTOR_PRESETS, PRESETS
from polyadic.config.schema import Config
from polyadic.datasets.toy.annotator import selected, truth
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.results import FREE, Results, Row, RunScores, comparison_rows, recall_row
from polyadic.experiments.runs import (
    OpenRun,
    best_of,
    check_run_folder,
    evaluate_run,
    open_run,
    train_run,
)
from polyadic.experiments.table1 import KS, TASKS
from polyadic.experiments.table4 import TOPS, ablate
from polyadic.progress import say
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.training.detector import train_detector
from polyadic.training.examples import load_split

PHOTOGRAPHS = ("coffee.png", "astronaut.png")  # in the public domain
RANKS = (1, 3, 5)
TRUTH = "the exact truth"
DETECTOR, RELATIONS = "detector", "relations"  # folders of both stages


def photographs() -> list[Path]:
    """Find the photographs that come with scikit-image, if it is installed; it need not be imported."""
    spec = find_spec("skimage")
    folders = (spec and spec.submodule_search_locations) or ()
    places = [Path(folder, "data", name) for name in PHOTOGRAPHS for folder in folders]
    return [path for path in places if path.is_file()]


def demo(out: Path) -> Results:
    """Train and score with one seed; existing runs are reused."""
    results = ablate(PRESETS["toy"], out, RANKS, seeds=1)
    return replace(results, rows=(*results.rows, *truth_rows(load_split(PRESETS["toy"], "test").scenes)))


def truth_rows(scenes: Sequence[Scene]) -> list[Row]:
    """Compute the recall of a perfect network: the true joint distribution times the true P(X_sel)."""
    base = get_protocol("lu2016").change(task="phrase-classification", tops=TOPS)
    cuts = {FREE: base, "1": base.change(k=1)}
    evaluators = {word: Evaluator([protocol], 12) for word, protocol in cuts.items()}
    for scene in scenes:
        pairs = np.argwhere(~np.eye(len(scene.boxes), dtype=bool))
        score = truth(scene, pairs) * selected(scene, pairs)[:, None, None, None]  # [B, S, P, O]
        for word, protocol in cuts.items():
            evaluators[word].update(scene, best_triplets(scene, pairs, score, protocol))
    return [
        recall_row(TRUTH, row, dataset="toy", k=word)
        for word, evaluator in evaluators.items()
        for row in evaluator.result()
    ]


def best_triplets(
    scene: Scene, pairs: np.ndarray, score: Float[np.ndarray, "B S P O"], protocol: Protocol
) -> Relations:
    """Rank by sorting, at most k per pair."""
    flat, top = score.reshape(len(score), -1), max(protocol.tops)
    kept = min(protocol.k or top, flat.shape[1])
    cells = np.argpartition(-flat, kept - 1, axis=1)[:, :kept]
    values = np.take_along_axis(flat, cells, 1).ravel()
    order = np.argsort(-values, kind="stable")[:top]
    triplets = np.stack(np.unravel_index(cells.ravel()[order], score.shape[1:]), 1)
    return Relations(scene.name, scene.boxes, pairs[order // kept], triplets, values[order])


def two_stages(out: Path, seed: int = 0) -> tuple[OpenRun, RunScores, Results]:
    """Train a detector and a relation model on its boxes, and score them as in Table 1; existing runs are reused."""
    out = out.expanduser().resolve()
    detector, relations = out / DETECTOR, out / RELATIONS
    begun = check_run_folder(detector)
    say(DETECTOR)
    detector_config = DETECTOR_PRESETS["toy"].change(seed=seed)
    train_detector(detector_config, detector, resume=begun)
    train_run(relation_config(detector, seed), relations)
    run = open_run(relations)
    protocols = [get_protocol("lu2016").change(task=task, k=None, k_unit="triplet", tops=TOPS) for task in TASKS]
    scores = evaluate_run(run, protocols, (*KS, FREE))
    about = {
        "detector": detector_config.to_json(),
        "relations": relation_config(Path(DETECTOR), seed).to_json(),
        "held_out": {name: float(value) for name, value in best_of(detector)["held_out"].items()},
        "free_k": {protocol.task: k for protocol, k in scores.free.items()},
        "seed": seed,
    }
    return run, scores, Results(tuple(comparison_rows(scores.result)), about)


def relation_config(detector: Path, seed: int = 0) -> Config:
    """Change the toy preset to pixels and detector evidence, trained on the detector's boxes at the end."""
    stage = {"optimiser": "adamw", "decay": 0.01, "schedule": "one-cycle", "images": 16, "rate": 3e-3, "epochs": 5}
    return PRESETS["toy"].change(
        sources=("pixels", "evidence"),
        seed=seed,
        **{"data.detector": str(detector), "triplets.epochs": 5},
        **{f"proposals.{name}": value for name, value in stage.items()},
    )
