"""Pictures of predictions beside the annotations: the paper's qualitative figures on photos, and generated scenes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from PIL.Image import Image

from polyadic.detectors.detector import Detector
from polyadic.draw import contact_sheet, plan_column, plan_drawing, save_picture, side_by_side
from polyadic.draw.panels import Drawn
from polyadic.draw.render import render_png
from polyadic.draw.shapes import Drawing
from polyadic.experiments.results import Results, config_record
from polyadic.experiments.runs import OpenRun, predict_scenes, predict_split
from polyadic.experiments.spurious import LU, WITH, WITHOUT, Counts, Lists, count_rows, matches
from polyadic.experiments.table1 import with_config
from polyadic.files import check_output
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.examples import BoxSource
from polyadic.training.proposals import FOUND, detected

TRIPLETS, ARROWS = 10, 4  # triplets in a list, and those of them with an arrow
WIDTH, COLUMNS = 480, 2  # of a photo in pixels; photos per row of the sheet
TRUTHS = range(4, 13)  # different annotated triplets of a chosen photo
SCENES = 6  # toy scenes
SHEET = "all.png"


def draw_toy(run: OpenRun, folder: Path) -> list[Path]:
    """Draw some test scenes on ground-truth boxes, hits in green, without and with the prior; then all on one sheet."""
    scenes = run.data.scenes[:SCENES]
    settings = [(None, ScoreTerms(prior=False)), (None, ScoreTerms())]
    lists = predict_split(run.model, run.images(scenes), settings, top=TRIPLETS)
    panels = []
    for scene, *both in zip(scenes, *lists, strict=True):
        columns = [_toy_panel(scene, predictions, run.data.vocabulary) for predictions in both]
        panels.append(side_by_side(columns, [WITHOUT, WITH]))
    return _save(folder, scenes, panels)


def _toy_panel(scene: Scene, predictions: Relations, names: Vocabulary) -> Image:
    truths = set(map(tuple, np.concatenate([scene.relations[:, ::2], scene.triplets], 1).tolist()))
    rows = np.concatenate([predictions.pairs, predictions.triplets], 1).tolist()
    hits = np.array([tuple(row) in truths for row in rows], bool)
    drawn = predictions.drawn(hits)
    labels = [names.objects[label] for label in scene.labels]
    return render_png(plan_drawing(scene.open(), scene.boxes, labels, drawn, arrows=ARROWS, width=WIDTH))


def draw_detected(run: OpenRun, folder: Path) -> list[Path]:
    """Draw some test scenes on the boxes of the run's detector, hits in green; then all on one sheet."""
    scenes, detector = run.data.scenes[:SCENES], run.model.detector
    assert isinstance(detector, Detector), "trained with one"
    boxes = detected(detector, run.data.scenes, run.folder / FOUND)
    panels = []
    for scene in scenes:
        picture = scene.open()
        relations = run.model.score(picture, boxes[scene.name]).rank(1, TRIPLETS)
        hits = np.asarray(matches(scene, relations).any(1))
        panels.append(render_png(relations.drawing(picture, arrows=ARROWS, width=WIDTH, hits=hits)))
    return _save(folder, scenes, panels, columns=1)


def _save(
    folder: Path, scenes: Sequence[Scene], panels: Sequence[Image], columns: int = 2, gap: int = 16
) -> list[Path]:
    """Save one PNG per scene; the sheet of all is the first path."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / SHEET, *(folder / f"{Path(scene.name).stem}.png" for scene in scenes)]
    for path in paths:
        check_output(path, "drawing", replace=True)
    for path, picture in zip(paths, [contact_sheet(panels, columns, gap=gap), *panels], strict=True):
        save_picture(picture, path)
    return paths


@dataclass(frozen=True)
class Figures:
    """What was drawn, the sheet and one file per photo, and what was counted."""

    files: list[Path]  # the sheet first
    drawn: Counts
    everywhere: Counts | None  # on all photos, if asked for
    exponent: float  # of the prior


def choose_scenes(scenes: Sequence[Scene], number: int) -> list[Scene]:
    """Choose photos by a rule that looks at no prediction: in the order of the SHA-256 of their names.

    Among photos with 4 to 12 different annotated triplets, those with at least half of their classes new come first,
    so that the photos vary; then the others.
    """
    ordered = sorted(scenes, key=lambda scene: hashlib.sha256(scene.name.encode()).digest())
    suited = [scene for scene in ordered if len(np.unique(scene.triplets, axis=0)) in TRUTHS and scene.has_picture()]
    known: set[int] = set()
    varied: list[Scene] = []
    for scene in suited:
        classes = set(scene.labels.tolist())
        if 2 * len(classes - known) >= len(classes):
            varied.append(scene)
            known |= classes
    taken = {scene.name for scene in varied}
    return [*varied, *(scene for scene in suited if scene.name not in taken)][:number]


def draw_figures(
    run: OpenRun,
    detections: Mapping[str, Detections] | None,
    out: Path,
    *,
    number: int = 12,
    prior: float | None = None,
    everywhere: bool = False,
) -> Figures:
    """Draw one PNG per photo: boxes and annotations, the best triplets with the prior, and without it.

    Args:
        run: Opened with the split to draw.
        detections: The boxes of each photo; None: the true ones, as in phrase classification.
        out: Folder for the pictures.
        number: Photos to draw.
        prior: Its exponent, by default the run's, or the paper's 1 where the run leaves it out.
        everywhere: Count on all photos of the split, too.
    """
    chosen = choose_scenes(run.data.scenes, number)
    if not chosen:
        raise PolyadicError(
            f"none of the {len(run.data):,} {run.data.split} photos in {run.data.root} exists and has {TRUTHS[0]} to "
            f"{TRUTHS[-1]} annotated triplets"
        )
    model, title = _with_prior(run.model, prior)
    names = {scene.name for scene in chosen}
    others = [scene for scene in run.data.scenes if scene.name not in names and scene.has_picture()]
    images = run.images([*chosen, *(others if everywhere else ())], BoxSource(detections))
    settings = [(None, ScoreTerms(prior=False)), (None, ALL)]
    assert model.prior is not None, "checked"
    panels, drawn, total = [], Counts(), Counts()
    for scene, (without, ranked) in predict_scenes(model, images, settings, top=TRIPLETS, text="pictures"):
        lists = Lists.compare(scene, without, ranked, model.prior)
        total += lists.counts
        if scene.name in names:
            panels.append(_figure(lists, scene, detections, model.vocabulary, title))
            drawn += lists.counts
    return Figures(
        _save(out, chosen, panels, COLUMNS, gap=32), drawn, total if everywhere else None, model.config.ranking.prior
    )


def figure_results(figures: Figures, run: OpenRun, boxes: str) -> Results:
    """List the counts on all photos as rows; `boxes` names where they come from."""
    assert figures.everywhere is not None, "counted"
    config = run.config
    common = {"dataset": run.data.name, "split": run.data.split, "protocol": LU.name, "N": TRIPLETS}
    rows = count_rows(figures.everywhere, what=run.folder.name, rank=config.head.rank, seed=config.seed, **common)
    about = {"config": config_record(config), "boxes": boxes, "exponent": figures.exponent}
    return Results(tuple(rows), {**about, "photos": figures.everywhere.photos})


def _with_prior(model: RelationModel, prior: float | None) -> tuple[RelationModel, str]:
    """Enable the prior; return the model and a title."""
    if model.prior is None:
        raise PolyadicError("this model has no triplet prior to leave out; train one that has")
    configured = model.config.ranking.prior
    exponent = prior or configured or 1.0
    note = "" if exponent == configured else f" (the model's own: {configured:g})"
    return with_config(model, {"ranking.prior": exponent}), f"{WITH}, exponent {exponent:g}{note}"


def _given(scene: Scene, detections: Mapping[str, Detections] | None) -> Detections:
    """Take the annotated frame where the file gives no size: the photo may be stored at another one."""
    if detections is None:
        return Detections(scene.name, scene.boxes, scene.labels, np.ones(len(scene.boxes)), scene.frame)
    none = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    return detections.get(scene.name, none).in_frame(scene.frame)


def _figure(
    lists: Lists, scene: Scene, detections: Mapping[str, Detections] | None, names: Vocabulary, title: str
) -> Image:
    """Draw the columns side by side: boxes and annotations, with the prior, without it."""
    photo, none = scene.open(), np.zeros(len(lists.ranked), bool)
    kind = "true boxes" if detections is None else "proposals"
    columns = [
        _annotations(names, scene, photo, _given(scene, detections), lists.found, kind=kind),
        _ranked(lists.ranked, photo, lists.hits, none, title),
        _ranked(lists.without, photo, lists.hits_without, lists.spurious, WITHOUT),
    ]
    return side_by_side([render_png(column) for column in columns])


def _annotations(
    names: Vocabulary, scene: Scene, photo: Image, given: Detections, hit: Bool[np.ndarray, " T"], *, kind: str
) -> Drawing:
    """Draw all boxes and list the annotated triplets once each, ticked where one of the columns has it."""
    hits_of: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for triplet, is_hit in zip(scene.triplets.tolist(), hit.tolist(), strict=True):
        hits_of[names.decode(triplet)].append(is_hit)
    lines = [
        Drawn(0, 0, " ".join(words) + (f" ({len(hits)} times)" if len(hits) > 1 else ""), words[1], hit=any(hits))
        for words, hits in hits_of.items()
    ]
    labels = [names.objects[label] if label != UNKNOWN else "unknown" for label in given.labels.tolist()]
    title = f"{len(given)} {kind}; {len(hit)} annotated triplets, {int(hit.sum())} of them found"
    return plan_column(photo, given.boxes, labels, [], title=title, width=WIDTH, frame=given.size, listed=lines)


def _ranked(
    relations: Relations, photo: Image, hits: Bool[np.ndarray, " M"], spurious: Bool[np.ndarray, " M"], words: str
) -> Drawing:
    title = f"{words}: {int(hits.sum())} of {len(hits)} are annotated"
    if spurious.any():
        title += f", {int(spurious.sum())} spurious"
    drawn = [replace(row, spurious=bool(x)) for row, x in zip(relations.drawn(hits), spurious, strict=True)]
    classes, frame = relations.box_classes(), relations.size
    return plan_column(photo, relations.boxes, classes, drawn, title=title, arrows=ARROWS, width=WIDTH, frame=frame)
