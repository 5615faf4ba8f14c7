"""The lower block of the paper's Table 1, from photos alone: a detector's boxes in, relations out.

Each set of boxes gets the count table and the ceilings on these boxes, the pretrained `vrd-boxes` as it is, and models
trained for the set: on the detector's boxes of training photos that it has not seen, borrowed where there is no photo.
Boxes that exist for the test images alone, as Lu's, can be joined with each set as one more witness: training simulates
them, with the noise of one half of the test images for the other half.

Free k is chosen on held-out photos, with one more model per set (with a witness, of its first half), that has not seen
them; the other rows of the set have the same k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyadic.config.schema import Config
from polyadic.experiments.results import Results, Row, config_record
from polyadic.experiments.table1 import Experiment, Group, read_proposals
from polyadic.model.relation_model import RelationModel
from polyadic.structures.detections import Detections

UNTOUCHED = "vrd-boxes, as it is"


@dataclass(frozen=True)
class BoxSet:
    """Detections of the test images, and those of the training photos by detectors that have not seen them."""

    name: str
    test: Path
    training: tuple[Path, ...]


def photos_table(
    config: Config,
    sets: Sequence[BoxSet],
    out: Path,
    *,
    seeds: Sequence[int],
    untouched: RelationModel,
    witness: Path | None = None,
) -> Results:
    """Score each set of boxes; with a `witness`, joined with its boxes of the test images.

    `untouched` is a model that was not trained for any of them; its rows are called UNTOUCHED.
    """
    rows: list[Row] = []
    out = out.expanduser().resolve()
    trained: dict[str, float] = {}
    about = {"config": config_record(config), "seeds": list(seeds), "sets": [boxes.name for boxes in sets]}
    for boxes in sets:
        files = [str(path.expanduser().resolve()) for path in boxes.training]
        config = config.change(**{"data.detections": files})
        experiment = Experiment(config, boxes.test.expanduser().resolve(), out, tuple(seeds))
        name, parts = boxes.name, [(boxes.name, config, experiment.test)]
        if witness is not None:
            name = f"{boxes.name} and {witness.stem}"
            alone = read_proposals(witness.expanduser(), experiment.test)
            experiment.boxes = _joined(experiment, alone, (boxes.name, witness.stem))
            parts = experiment.halves(config, alone, f"{name}-")
        experiment.choose_k(*parts[0][:2])
        rows += _untrained(experiment, name, untouched)
        rows += experiment.fitted(name, parts)
        trained |= experiment.trained
    return Results(tuple(rows), {**about, "training_seconds": trained})


def _untrained(experiment: Experiment, name: str, model: RelationModel) -> list[Row]:
    scored = experiment.score(f"{name}-untouched", [Group([model], experiment.test)], name)
    return [*experiment.baseline(name), *(replace(row, what=UNTOUCHED) for row in scored)]


def _joined(experiment: Experiment, others: dict[str, Detections], names: tuple[str, str]) -> dict[str, Detections]:
    """Join the boxes of each test image; an image that one of them lacks keeps the other's."""
    joined = {}
    for scene in experiment.test:
        here = [boxes[scene.name].in_frame(scene.frame) for boxes in (experiment.boxes, others) if scene.name in boxes]
        both = len(here) == len(names)
        if here:
            joined[scene.name] = Detections.join(*here, names=names) if both else here[0]
    return joined
