"""A run under the evaluation of anybody's predictions: it predicts, and is then scored as a file would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from polyadic.detectors.faster_rcnn import Detector
from polyadic.evaluation.compare import Comparison, compare
from polyadic.evaluation.misses import Misses
from polyadic.evaluation.protocol import Protocol
from polyadic.experiments.predicting import free_ks, predict_split
from polyadic.experiments.runs import Run, is_run
from polyadic.io.records import read_detections, write_relations
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, Parts
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import BoxSource, load_split, load_training
from polyadic.training.proposals import FOUND, detected

FREE: Literal["free"] = "free"
K = int | Literal["free"] | None


@dataclass(frozen=True, eq=False)
class RunScores:
    """Recalls beside baseline and ceiling; which protocols have a free k; what there is to say."""

    result: Comparison
    free: dict[Protocol, int | None]
    notes: tuple[str, ...]


def evaluate_run(
    run: Run,
    protocols: Sequence[Protocol],
    ks: Sequence[K] = (FREE,),
    detections: Mapping[str, Detections] | None = None,
    parts: Parts = ALL,
    bootstrap: int = 0,
    save: Path | None = None,
    misses: bool = False,
) -> RunScores:
    """Predict the run's split, on true boxes or on `detections`, and score it under each protocol and k.

    k triplets per pair are ranked anew for each k. Free k is chosen on the validation split. `save` keeps the
    predictions, which are those of one k; `misses` tells where the truths go.
    """
    own = detections is None and not any(_true(each) for each in protocols)
    held_out: Mapping[str, Detections] | None = None  # a detector's boxes of the images on which k is chosen
    if own and isinstance(run.model.detector, Detector):
        place, workers = run.folder / FOUND if is_run(run.folder) else None, run.config.workers
        detections = detected(run.model.detector, run.data.scenes, place, workers)
        if FREE in ks:
            held_out = detected(run.model.detector, run.validation(), place, workers)
    for protocol in protocols:
        _check(protocol, detections is not None)
    if not parts.relabel and detections is None:
        raise PolyadicError(
            "--without relabel lets a detector's labels stand, and true boxes have true ones: leave it out"
        )
    if save is not None and save.expanduser().exists():
        raise PolyadicError(f"--save: {save} exists already; choose another name")
    notes = list(told_of(run.model, true=detections is None))
    if run.data.split == "validation" and not run.config.validation.images:
        notes.append("this run learned from the validation images too (validation.images = 0)")
    whole = len(load_split(run.config, run.data.split))
    if len(run.data) < whole:
        notes.append(
            f"only {len(run.data):,} of {whole:,} {run.data.split} images have a picture: the rest is left out"
        )
    chosen: dict[Protocol, int | None] = {}
    if FREE in ks:
        scenes, source = _held_out(run, detections, held_out)
        asked = [(protocol, _parts(protocol, parts)) for protocol in protocols]
        found = free_ks(run.model, scenes, source, run.regions, asked, run.config.workers)
        chosen = dict(zip(protocols, found, strict=True))
        told = f"chosen on {len(scenes):,} validation images"
        notes += [f"{each.name} {each.task}: free k = {k or 'any'}, {told}" for each, k in chosen.items()]
    free = {protocol.change(k=k): k for protocol, k in chosen.items()}
    wanted = [each.change(k=chosen[each] if k == FREE else k) for each in protocols for k in ks]
    full = list(dict.fromkeys(wanted))
    different = list(dict.fromkeys((protocol.k, _parts(protocol, parts)) for protocol in full))
    if save is not None and len(different) > 1:
        several = ", ".join(f"{k or 'any'}{' with labels' * own.labels}" for k, own in different)
        raise PolyadicError(f"--save keeps the predictions of one k, but here are k = {several}: give one with --k")
    train, why = _training_split(run)
    notes += why
    if train is not None:
        full = [each.change(subset=subset) for each in full for subset in ("all", "zero-shot")]
    lists = predict_split(
        run.model,
        run.data.scenes,
        BoxSource(detections),
        run.regions,
        different,
        max(max(protocol.tops) for protocol in full),
        run.config.workers,
    )
    if save is not None:
        write_relations(save, lists[0], run.data.vocabulary)
    results = [
        compare(
            run.data,
            found,
            [each for each in full if (each.k, _parts(each, parts)) == setting],
            train,
            detections,
            bootstrap,
            misses,
        )
        for setting, found in zip(different, lists, strict=True)
    ]
    return RunScores(_joined(results, full), free, tuple(notes))


def told_of(model: RelationModel, true: bool) -> Iterator[str]:
    """What must be said beside the numbers of a model that reads labels, on true boxes or on a detector's."""
    if "evidence" not in model.config.sources:
        return
    if true:
        yield (
            "on true boxes this model is told their labels (sources has evidence): not comparable with models that "
            "see pixels alone"
        )
    elif "proposals" not in model.stages:
        yield "this model learned from true boxes and labels; the stage [proposals] would teach it how detectors err"


def detections_of(path: Path, run: Run) -> dict[str, Detections]:
    found = read_detections(path, run.data.vocabulary, sizes=run.data.sizes)
    return {each.image: each for each in found}


def _parts(protocol: Protocol, parts: Parts) -> Parts:
    """With true labels, where the task gives them."""
    return replace(parts, labels=protocol.task == "predicate-classification")


def _true(protocol: Protocol) -> bool:
    """Whether the task is on the true boxes."""
    return protocol.task.endswith("classification")


def _check(protocol: Protocol, boxes: bool) -> None:
    true = _true(protocol)
    if boxes and true:
        raise PolyadicError(f"--task {protocol.task} is on the true boxes: leave out --detections")
    if not boxes and not true:
        raise PolyadicError(
            f"--task {protocol.task} is on a detector's boxes: give them with --detections FILE (or train with a "
            "detector of its own, data.detector), and leave out tasks on true boxes"
        )
    if protocol.k_unit == "predicate":
        raise PolyadicError("--k-unit predicate: a run counts triplets per pair of boxes, whose labels are its own")


def _held_out(
    run: Run, detections: Mapping[str, Detections] | None, found: Mapping[str, Detections] | None
) -> tuple[tuple[Scene, ...], BoxSource]:
    """The images on which k is chosen, and their boxes: of the same kind as those it is chosen for."""
    if run.data.split != "test":
        raise PolyadicError(
            f"--k free: k is chosen on held-out training images, so it cannot be scored on {run.data.split}"
        )
    if not run.config.validation.images:
        raise PolyadicError("--k free: this run learned from the validation images too, so give --k a number")
    scenes = run.validation()
    if not any(len(scene.relations) for scene in scenes):
        raise PolyadicError(f"--k free: {run.data.name} has no validation images with relations: give --k a number")
    if detections is None:
        return scenes, BoxSource()
    if found is not None:
        return scenes, BoxSource(found)
    if any(scene.name in detections for scene in scenes):
        return scenes, BoxSource(detections)
    if run.config.data.detections or run.config.data.simulate:
        known = load_training(run.config)
        return scenes, BoxSource(known.detections, None if known.detections is not None else known.noise)
    raise PolyadicError("--k free: there are no detections of validation images to choose k on: give --k a number")


def _training_split(run: Run) -> tuple[Dataset | None, list[str]]:
    split = "fit" if run.data.split == "validation" else "train"
    try:
        return load_split(run.config, split), []
    except PolyadicError as error:
        return None, [f"no count table and no zero-shot recall: the training split cannot be read ({error})"]


def _joined(results: Sequence[Comparison], order: Sequence[Protocol]) -> Comparison:
    place = {protocol: number for number, protocol in enumerate(order)}
    rows = sorted((row for each in results for row in each.rows), key=lambda row: place[row[1].protocol])
    ceilings = {(what, protocol): value for each in results for what, protocol, value in each.ceilings}
    notes = dict.fromkeys(note for each in results for note in each.notes)
    fates = sorted((row for each in results for row in each.misses or ()), key=lambda row: place[row.protocol])
    return Comparison(
        results[0].dataset,
        results[0].split,
        tuple(rows),
        tuple((*key, value) for key, value in ceilings.items()),
        tuple(notes),
        None if results[0].misses is None else Misses(tuple(fates)),
    )
