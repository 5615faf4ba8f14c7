"""The paper's two qualitative figures on test photos: the best triplets, hits in green, with and without the prior."""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from PIL.Image import Image

from polyadic import progress
from polyadic.draw import contact_sheet, plan_column, side_by_side
from polyadic.draw.panels import Drawn, relations_to_draw
from polyadic.draw.render import render_png
from polyadic.draw.shapes import Drawing
from polyadic.evaluation.protocol import get_protocol
from polyadic.experiments.hits import as_predictions, matches
from polyadic.experiments.runs import Run
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, Parts
from polyadic.ranking.relations import Ranking, named_boxes
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SHOWN, ARROWS = 10, 4  # triplets in a list, and those of them that get an arrow
WIDTH, SIDE = 480, 2  # of a photo in pixels; pictures in a row of the sheet
TRUTHS = range(4, 13)  # different annotated triplets of a photo that is shown: some to hit, not a crowd
SHEET = "all.png"
LU = get_protocol("lu2016")


@dataclass(frozen=True)
class Pictures:
    """What was drawn: files, and how many of the shown triplets are annotated."""

    files: tuple[Path, ...]
    sheet: Path
    shown: int  # triplets with the prior
    hits: int
    shown_without: int
    hits_without: int


def choose_scenes(scenes: Sequence[Scene], number: int) -> list[Scene]:
    """Photos by a rule that looks at no prediction: in the order of the SHA-256 of their names.

    Of those with 4 to 12 different annotated triplets it takes each of whose classes at least half have not been seen
    on the photos before it, so that they vary; if these are too few, the first of the others.
    """
    ordered = sorted(scenes, key=lambda scene: hashlib.sha256(scene.name.encode()).digest())
    suited = [scene for scene in ordered if len(np.unique(scene.triplets, axis=0)) in TRUTHS and scene.has_picture()]
    known: set[int] = set()
    new: list[Scene] = []
    for scene in suited:
        classes = set(scene.labels.tolist())
        if 2 * len(classes - known) >= len(classes):
            new.append(scene)
            known |= classes
    taken = {scene.name for scene in new}
    return [*new, *(scene for scene in suited if scene.name not in taken)][:number]


def draw_pictures(
    run: Run,
    detections: Mapping[str, Detections],
    out: Path,
    number: int = 12,
    prior: float | None = None,
) -> Pictures:
    """One PNG per photo, three columns: proposals and truths, the best triplets with the prior, and without it.

    `prior` is its exponent, by default the run's, or the paper's 1 where the run leaves it out.
    """
    scenes = choose_scenes(run.data.scenes, number)
    if not scenes:
        raise PolyadicError(
            f"none of the {len(run.data):,} {run.data.split} photos is there and has {TRUTHS[0]} to {TRUTHS[-1]} "
            f"annotated triplets; looked in {run.data.root}"
        )
    model, words = _with_prior(run.model, prior)
    out.mkdir(parents=True, exist_ok=True)
    files, panels, totals = [], [], np.zeros(4, np.int64)
    for scene in progress.track(scenes, "pictures"):
        panel, counts = _picture(model, words, scene, _proposals(scene, detections))
        files.append(out / f"{Path(scene.name).stem}.png")
        panel.save(files[-1])
        panels.append(panel)
        totals += counts
    contact_sheet(panels, SIDE, gap=32).save(out / SHEET)
    return Pictures(tuple(files), out / SHEET, *totals.tolist())


def _with_prior(model: RelationModel, prior: float | None) -> tuple[RelationModel, str]:
    """The model with the prior in use, and that in words."""
    if model.prior is None:
        raise PolyadicError("this model has no triplet prior, so there is nothing to leave out; train one that has")
    own = model.config.ranking.prior
    chosen = prior or own or 1.0
    model = copy.copy(model)
    model.config = model.config.change(**{"ranking.prior": chosen})
    whose = "" if chosen == own else f" (the model's own: {own:g})"
    return model, f"with the prior, exponent {chosen:g}{whose}"


def _proposals(scene: Scene, detections: Mapping[str, Detections]) -> Detections:
    """In the annotated frame where the file names no other: the photo may have another size."""
    none = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    return detections.get(scene.name, none).in_frame(scene.frame)


def _picture(model: RelationModel, words: str, scene: Scene, given: Detections) -> tuple[Image, list[int]]:
    """The columns side by side; triplets and hits with the prior, and without."""
    photo = scene.open()
    both = [model.predict(photo, given, k=None, top=SHOWN, parts=parts) for parts in (ALL, Parts(prior=False))]
    fits = [matches(scene, as_predictions(scene, each), LU) for each in both]  # [M, T] each
    hits = [np.asarray(fit.any(1)) for fit in fits]
    columns = [_given(model.vocabulary, scene, photo, given, np.asarray(np.concatenate(fits).any(0)))]
    for each, hit, told in zip(both, hits, (words, "without the prior"), strict=True):
        columns.append(_column(each, photo, hit, told))
    counts = [n for hit in hits for n in (len(hit), int(hit.sum()))]
    return side_by_side([render_png(column) for column in columns]), counts


def _given(words: Vocabulary, scene: Scene, photo: Image, given: Detections, hit: Bool[np.ndarray, " T"]) -> Drawing:
    """All proposals, and below them what is annotated, each triplet once: ticked where one of the columns has it."""
    found: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for triplet, is_hit in zip(scene.triplets.tolist(), hit.tolist(), strict=True):
        found[words.decode(triplet)].append(is_hit)
    lines = [
        Drawn(0, 0, " ".join(names) + (f" ({len(hits)} times)" if len(hits) > 1 else ""), names[1], hit=any(hits))
        for names, hits in found.items()
    ]
    names = [words.objects[label] if label != UNKNOWN else "unknown" for label in given.labels.tolist()]
    title = f"{len(given)} proposals; {len(hit)} annotated triplets, {int(hit.sum())} of them found"
    return plan_column(photo, given.boxes, names, [], title=title, width=WIDTH, frame=given.size, listed=lines)


def _column(found: Ranking, photo: Image, hits: Bool[np.ndarray, " M"], words: str) -> Drawing:
    rows, names, pairs = named_boxes(found)
    origin, scores = found.known_origin(), found.log_score.exp().cpu().double().numpy()
    vocabulary = found.vocabulary
    assert vocabulary is not None, "an origin comes with names"
    drawn = relations_to_draw(vocabulary, pairs, found.triplet.cpu().numpy(), scores, hits)
    title = f"{words}: {int(hits.sum())} of {len(hits)} are annotated"
    boxes = origin.detections.boxes[rows]
    return plan_column(photo, boxes, names, drawn, title=title, arrows=ARROWS, width=WIDTH, frame=origin.size)
