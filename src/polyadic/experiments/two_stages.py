"""Both stages on the drawn world: a detector from scratch, a relation model on its proposals, the paper's Table 1."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from polyadic import progress
from polyadic.config import DETECTOR_PRESETS, PRESETS
from polyadic.config.schema import Config
from polyadic.detectors.faster_rcnn import Detector
from polyadic.draw import contact_sheet
from polyadic.draw.render import render_png
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.evaluating import FREE, RunScores, evaluate_run
from polyadic.experiments.hits import as_predictions, hits_of
from polyadic.experiments.runs import Run, best_of, open_run
from polyadic.experiments.table1 import TASKS, TOPS
from polyadic.files import versions, write_text
from polyadic.ranking.relations import drawing
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train
from polyadic.training.detector import train_detector
from polyadic.training.proposals import FOUND, detected

DETECTOR, RELATIONS, PICTURES = "detector", "relations", "pictures"
SHOWN, SCENES = 10, 6  # triplets beside a picture, pictures


def relation_config(detector: Path, seed: int = 0) -> Config:
    """The toy preset, on what the detector says as well as on pixels, and trained on its boxes at the end."""
    stage = {"optimiser": "adamw", "decay": 0.01, "schedule": "one-cycle", "images": 16, "rate": 3e-3, "epochs": 5}
    stages = {f"proposals.{name}": value for name, value in stage.items()}
    return PRESETS["toy"].change(
        sources=("pixels", "evidence"), seed=seed, **{"data.detector": str(detector), "triplets.epochs": 5}, **stages
    )


@dataclass(frozen=True, eq=False)
class TwoStages:
    """What came of it."""

    scores: RunScores
    precision: dict[str, float]  # of the detector, on held-out scenes
    seconds: float  # of what was done this time


def two_stages(out: Path, seed: int) -> TwoStages:
    """Train both, score, draw; what is there already is kept, so that it goes on after an interruption."""
    out, start = out.expanduser().resolve(), time.monotonic()
    progress.say("the detector")
    first = out / DETECTOR
    config = DETECTOR_PRESETS["toy"].change(seed=seed)
    train_detector(config, first, resume=_begun(first))
    progress.say("relations")
    second = out / RELATIONS
    train(relation_config(first, seed), second, resume=_begun(second))
    run = open_run(second)
    protocols = [get_protocol("lu2016").change(task=task, k=None, k_unit="triplet", tops=TOPS) for task in TASKS]
    scores = evaluate_run(run, protocols, (1, 10, FREE))
    _draw(run, out / PICTURES)
    precision = {name: float(value) for name, value in best_of(first)["held_out"].items()}
    return TwoStages(scores, precision, time.monotonic() - start)


def write(found: TwoStages, path: Path, seed: int) -> tuple[Path, Path]:
    """The rows, and beside them as JSON what they were made with."""
    beside = path.with_suffix(".json")
    config = relation_config(Path(DETECTOR), seed).to_json()
    about = {"detector": DETECTOR_PRESETS["toy"].change(seed=seed).to_json(), "relations": config}
    more = {"held_out": found.precision, "free_k": {p.task: k for p, k in found.scores.free.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, found.scores.result.to_csv())
    write_text(beside, json.dumps({**about, **more, "seed": seed, "versions": versions()}, indent=1) + "\n")
    return path, beside


def _begun(folder: Path) -> bool:
    if folder.exists() and not (folder / "config.json").is_file() and any(folder.iterdir()):
        raise PolyadicError(f"{folder} is no run, and in the way: move it, or give another --out")
    return (folder / "config.json").is_file()


def _draw(run: Run, folder: Path) -> None:
    scenes, detector = run.data.scenes[:SCENES], run.model.detector
    assert isinstance(detector, Detector), "trained with one"
    boxes = detected(detector, run.data.scenes, run.folder / FOUND)
    folder.mkdir(parents=True, exist_ok=True)
    sheet = []
    for scene in scenes:
        picture = scene.open()
        relations = run.model.predict(picture, boxes[scene.name], top=SHOWN)
        hits = hits_of(scene, as_predictions(scene, relations), get_protocol("lu2016"))
        panel = render_png(drawing(relations, picture, 4, 480, True, hits))
        panel.save(folder / f"{Path(scene.name).stem}.png")
        sheet.append(panel)
    contact_sheet(sheet, columns=1).save(folder / "all.png")
