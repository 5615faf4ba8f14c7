"""Pictures of predictions beside the annotations: the paper's qualitative figures on photos, and generated scenes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from PIL.Image import Image

from polyadic.boxes import box_iou
from polyadic.detectors.detector import Detector
from polyadic.draw import contact_sheet, plan_column, plan_drawing, save_picture, side_by_side
from polyadic.draw.panels import Drawn
from polyadic.draw.render import render_png
from polyadic.draw.shapes import Drawing
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.runs import OpenRun, predict_split
from polyadic.experiments.table1 import with_config
from polyadic.files import check_output
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, ScoreTerms
from polyadic.progress import track
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary
from polyadic.training.proposals import FOUND, detected

TRIPLETS, ARROWS = 10, 4  # triplets in a list, and those of them with an arrow
WIDTH, COLUMNS = 480, 2  # of a photo in pixels; photos per row of the sheet
TRUTHS = range(4, 13)  # different annotated triplets of a chosen photo
SCENES = 6  # toy scenes
SHEET = "all.png"
LU = get_protocol("lu2016")


def matches(scene: Scene, predictions: Relations, protocol: Protocol) -> Bool[np.ndarray, "M T"]:
    """Match predictions with annotated triplets: the same names, and both boxes overlap as the protocol requires."""
    boxes = torch.from_numpy(predictions.in_frame(scene.frame).boxes[predictions.pairs])  # [M, 2, 4]
    truths = torch.from_numpy(scene.pair_boxes)  # [T, 2, 4]
    overlap = box_iou(boxes[:, None], truths[None], protocol.iou_offset)  # [M, T, 2]
    near = (overlap >= protocol.iou).all(-1).numpy()
    same = (predictions.triplets[:, None] == scene.triplets[None]).all(-1)
    return np.asarray(near & same)


def draw_toy(run: OpenRun, folder: Path) -> list[Path]:
    """Draw some test scenes on ground-truth boxes, hits in green, without and with the prior; then all on one sheet."""
    scenes = run.data.scenes[:SCENES]
    settings = [(None, ScoreTerms(prior=False)), (None, ScoreTerms())]
    lists = predict_split(run.model, run.images(scenes), settings, top=TRIPLETS)
    panels = []
    for scene, *both in zip(scenes, *lists, strict=True):
        columns = [_toy_panel(scene, predictions, run.data.vocabulary) for predictions in both]
        panels.append(side_by_side(columns, ["without the prior", "with the prior"]))
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
        hits = np.asarray(matches(scene, relations, LU).any(1))
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
    """What was drawn: the sheet and one file per photo, and how many of the listed triplets are annotated."""

    files: list[Path]  # the sheet first
    listed: int  # triplets with the prior
    hits: int
    listed_without: int
    hits_without: int


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
    run: OpenRun, detections: Mapping[str, Detections], out: Path, *, number: int = 12, prior: float | None = None
) -> Figures:
    """Draw one PNG per photo: proposals and annotations, the best triplets with the prior, and without it.

    `prior` is its exponent, by default the run's, or the paper's 1 where the run leaves it out.
    """
    scenes = choose_scenes(run.data.scenes, number)
    if not scenes:
        raise PolyadicError(
            f"none of the {len(run.data):,} {run.data.split} photos in {run.data.root} exists and has {TRUTHS[0]} to "
            f"{TRUTHS[-1]} annotated triplets"
        )
    model, title = _with_prior(run.model, prior)
    panels, totals = [], np.zeros(4, np.int64)
    for scene in track(scenes, "pictures"):
        panel, counts = _figure(model, title, scene, _proposals(scene, detections))
        panels.append(panel)
        totals += counts
    return Figures(_save(out, scenes, panels, COLUMNS, gap=32), *totals.tolist())


def _with_prior(model: RelationModel, prior: float | None) -> tuple[RelationModel, str]:
    """Enable the prior; return the model and a title."""
    if model.prior is None:
        raise PolyadicError("this model has no triplet prior to leave out; train one that has")
    configured = model.config.ranking.prior
    exponent = prior or configured or 1.0
    note = "" if exponent == configured else f" (the model's own: {configured:g})"
    return with_config(model, {"ranking.prior": exponent}), f"with the prior, exponent {exponent:g}{note}"


def _proposals(scene: Scene, detections: Mapping[str, Detections]) -> Detections:
    """Take the annotated frame where the file gives no size: the photo may be stored at another one."""
    none = Detections(scene.name, np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    return detections.get(scene.name, none).in_frame(scene.frame)


def _figure(model: RelationModel, title: str, scene: Scene, given: Detections) -> tuple[Image, list[int]]:
    """Draw the columns side by side; count triplets and hits with the prior, and without."""
    photo = scene.open()
    scored = model.score(photo, given)
    both = [scored.rank(None, TRIPLETS, terms=terms) for terms in (ALL, ScoreTerms(prior=False))]
    fits = [matches(scene, relations, LU) for relations in both]  # [M, T] each
    hits = [np.asarray(fit.any(1)) for fit in fits]
    columns = [_annotations(model.vocabulary, scene, photo, given, np.asarray(np.concatenate(fits).any(0)))]
    for relations, hit, words in zip(both, hits, (title, "without the prior"), strict=True):
        columns.append(_ranked(relations, photo, hit, words))
    counts = [n for hit in hits for n in (len(hit), int(hit.sum()))]
    return side_by_side([render_png(column) for column in columns]), counts


def _annotations(
    names: Vocabulary, scene: Scene, photo: Image, given: Detections, hit: Bool[np.ndarray, " T"]
) -> Drawing:
    """Draw all proposals and list the annotated triplets once each, ticked where one of the columns has it."""
    hits_of: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for triplet, is_hit in zip(scene.triplets.tolist(), hit.tolist(), strict=True):
        hits_of[names.decode(triplet)].append(is_hit)
    lines = [
        Drawn(0, 0, " ".join(words) + (f" ({len(hits)} times)" if len(hits) > 1 else ""), words[1], hit=any(hits))
        for words, hits in hits_of.items()
    ]
    labels = [names.objects[label] if label != UNKNOWN else "unknown" for label in given.labels.tolist()]
    title = f"{len(given)} proposals; {len(hit)} annotated triplets, {int(hit.sum())} of them found"
    return plan_column(photo, given.boxes, labels, [], title=title, width=WIDTH, frame=given.size, listed=lines)


def _ranked(relations: Relations, photo: Image, hits: Bool[np.ndarray, " M"], words: str) -> Drawing:
    title = f"{words}: {int(hits.sum())} of {len(hits)} are annotated"
    classes, drawn = relations.box_classes(), relations.drawn(hits)
    frame = relations.size
    return plan_column(photo, relations.boxes, classes, drawn, title=title, arrows=ARROWS, width=WIDTH, frame=frame)
