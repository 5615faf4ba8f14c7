"""`polyadic predict RUN PATHS...`: relations of photos, as text, JSON Lines or pictures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyadic.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.experiments.photos import Question, Result
    from polyadic.model import RelationModel
    from polyadic.scenes import Detections
    from polyadic.scenes.detections import Choice


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A training run, or a saved model.")],
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Photos, folders of photos, patterns.")],
    detector: Annotated[
        Path | None,
        typer.Option("--detector", help="A detector: a run of `polyadic detect train`, or an .onnx file."),
    ] = None,
    detections: Annotated[
        Path | None, typer.Option("--detections", help="Boxes found before: .json, .jsonl, .safetensors, Lu's .mat.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option("--names", help="Class names of an .onnx detector, one per line.")
    ] = None,
    categories: Annotated[
        Path | None, typer.Option("--categories", help="A COCO file that names the categories of --detections.")
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--mapping", help='Detector\'s names to the model\'s, JSON or TOML: {"tv": "monitor"}.'),
    ] = None,
    unknown: Annotated[
        str, typer.Option("--unknown", help="drop or keep: boxes of classes that the model has no name for.")
    ] = "drop",
    top: Annotated[int, typer.Option("--top", min=1, help="Relations per photo.")] = 20,
    k: Annotated[str, typer.Option("--k", help="Relations per ordered pair of boxes: a number, or any.")] = "1",
    least: Annotated[float, typer.Option("--min-score", min=0.0, help="Leave out those of a lower score.")] = 0.0,
    subject: Annotated[str | None, typer.Option("--subject", help="Ask: relations with this subject.")] = None,
    predicate: Annotated[str | None, typer.Option("--predicate", help="Ask: with this predicate.")] = None,
    object: Annotated[str | None, typer.Option("--object", help="Ask: with this object.")] = None,
    draw: Annotated[Path | None, typer.Option("--draw", help="A folder for pictures of what was found.")] = None,
    draw_as: Annotated[str, typer.Option("--draw-as", help="png or svg.")] = "png",
    out: Annotated[Path | None, typer.Option("--out", help="A .jsonl file for the relations.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in --out: what is in it is done.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out and pictures that are there.")] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Photos at once.")] = 8,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps.")] = "auto",
    threads: Annotated[int, typer.Option("--threads", min=0, help="Of the CPU; 0: as torch decides.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines on standard output instead of text.")] = False,
) -> None:
    """Who does what to whom in photos. Boxes come from the run's own detector, another one, or a file."""
    from polyadic.experiments.photo_log import PhotoLog
    from polyadic.experiments.photos import Question, find_photos, predict_photos
    from polyadic.report import watching
    from polyadic.training import Interrupted, Stop

    if detector is not None and detections is not None:
        raise PolyadicError("--detector finds boxes and --detections has them: give one of them")
    if resume and overwrite:
        raise PolyadicError("--resume goes on in a file and --overwrite replaces it: give one of them")
    if resume and out is None:
        raise PolyadicError("--resume goes on in the file --out: give it")
    _one_of("--unknown", unknown, ("drop", "keep"))
    choice: Choice = "keep" if unknown == "keep" else "drop"
    _one_of("--draw-as", draw_as, ("png", "svg"))
    asked = {"subject": subject, "predicate": predicate, "object": object}
    given = tuple((name, word) for name, word in asked.items() if word is not None)
    question = Question(_number(k), top, least, given)
    photos = find_photos(paths)
    model = _load(run, device, threads)
    for name, word in given:
        model.vocabulary.index(name, word)
    _set_detector(model, detector, names, mapping, choice)
    boxes = None if detections is None else _boxes(model, detections, categories, mapping, choice, photos)
    made = _fingerprint(run, detector, detections, question, unknown, mapping)
    log = None if out is None else PhotoLog(out.expanduser(), made, resume, overwrite)
    if log is not None and log.done:
        typer.echo(f"{len(log.done):,} photos are in {out} already", err=True)
        photos = log.left(photos)
    targets = {} if draw is None else _targets(photos, paths, draw.expanduser(), draw_as, overwrite or resume)
    failed: list[str] = []
    done = found = 0
    with watching() as watcher, Stop().on_interrupt() as stop:
        try:
            for result in predict_photos(model, photos, question, boxes, batch, watcher, stop):
                if result.problem is not None:
                    failed.append(result.name)
                    watcher.say(f"polyadic: passed over: {result.problem}")
                    continue
                if result.name in targets:
                    _draw(result, targets[result.name])
                if log is not None:
                    log.write(result)
                else:
                    _print(result, as_json)
                done, found = done + 1, found + len(result.relations)
        except Interrupted:
            again = "with --resume" if log is not None else "the same command"
            typer.echo(f"polyadic: stopped after {done:,} photos; go on {again}", err=True)
            raise typer.Exit(130) from None
    if log is not None or draw is not None:
        where = " and ".join(str(each) for each in (out, draw) if each is not None)
        typer.echo(f"{done:,} photos, {found:,} relations: {where}", err=as_json)
    if failed:
        typer.echo(f"polyadic: {len(failed):,} of {len(photos):,} photos could not be done", err=True)
        raise typer.Exit(1)


def _load(run: Path, device: str, threads: int) -> RelationModel:
    import torch

    from polyadic.model import RelationModel
    from polyadic.training import pick_device

    if threads:
        torch.set_num_threads(threads)
    return RelationModel.load(run, pick_device(device))


def _set_detector(
    model: RelationModel, path: Path | None, names: Path | None, mapping: Path | None, unknown: Choice
) -> None:
    """By file or folder; without one, the model's own has to be there unless boxes are given."""
    if path is None:
        return
    path = path.expanduser()
    if path.suffix.lower() == ".onnx":
        from polyadic.detector.onnx import OnnxDetector

        found = OnnxDetector(path, model.vocabulary, names=names, mapping=mapping, unknown=unknown)
        typer.echo(found.label_map.report(), err=True)
        model.detector = found
        return
    from polyadic.detector import Detector

    model.detector = Detector.load(path, model.device, model.vocabulary)


def _boxes(
    model: RelationModel,
    path: Path,
    categories: Path | None,
    mapping: Path | None,
    unknown: Choice,
    photos: Sequence[Path],
) -> dict[Path, Detections]:
    from polyadic.experiments.photos import match_detections
    from polyadic.predictions import read_detections

    found = read_detections(path, model.vocabulary, mapping=mapping, unknown=unknown, categories=categories)
    return match_detections(photos, {each.image: each for each in found})


def _fingerprint(
    run: Path, detector: Path | None, detections: Path | None, question: Question, unknown: str, mapping: Path | None
) -> str:
    """Of all that a record depends on but its photo: SHA-256 of files' bytes, and of the options."""
    import hashlib

    value = hashlib.sha256(repr((question, unknown)).encode())
    for path in (run, detector, detections, mapping):
        value.update(b"|")
        for file in [] if path is None else _files(path.expanduser()):
            value.update(hashlib.sha256(file.read_bytes()).digest())
    return value.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    model = path / "model" if (path / "model").is_dir() else path
    return sorted(model.rglob("*.safetensors"))


def _targets(photos: Sequence[Path], words: Sequence[str], folder: Path, suffix: str, replace: bool) -> dict[str, Path]:
    """Where each photo's picture goes: as it lies in the folder that was named; two of one name keep their suffixes."""
    roots = [Path(word).expanduser() for word in words if Path(word).expanduser().is_dir()]
    places = {}
    for path in photos:
        root = next((root for root in roots if path.is_relative_to(root)), path.parent)
        places[path] = path.relative_to(root)
    stems = Counter(place.with_suffix("") for place in places.values())
    names = Counter(places.values())
    targets: dict[str, Path] = {}
    for number, (path, place) in enumerate(places.items(), 1):
        alone = place.with_suffix("") if stems[place.with_suffix("")] == 1 else place
        if names[place] > 1:
            alone = place.with_name(f"{place.name}-{number}")
        targets[str(path)] = folder / alone.with_name(f"{alone.name}.{suffix}")
    for target in targets.values():
        if target.exists() and not replace:
            raise PolyadicError(f"--draw: {target} exists: give another folder, or --overwrite")
    return targets


def _draw(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result.relations.save_drawing(path, result.photo)


def _print(result: Result, as_json: bool) -> None:
    assert result.found is not None, "a photo without a problem"
    record = {**result.found.to_dict(), "image": result.name}
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    typer.echo(result.name)
    for each in record["relations"]:
        ends = (record["boxes"][each[end]["box"]]["box"] for end in ("subject", "object"))
        where = "  ".join("[" + " ".join(f"{x:.0f}" for x in box) + "]" for box in ends)
        words = f"{each['subject']['name']} {each['predicate']} {each['object']['name']}"
        typer.echo(f"  {each['score']:.2e}  {each['probability']:6.1%}  {words:40}  {where}")
    if not record["relations"]:
        boxes = len(record["boxes"])
        why = "no boxes were found" if not boxes else "one box alone" if boxes == 1 else "none above --min-score"
        typer.echo(f"  no relations: {why}")
    sys.stdout.flush()


def _number(word: str) -> int | None:
    if word == "any":
        return None
    if word.isascii() and word.isdecimal() and int(word) > 0:
        return int(word)
    raise PolyadicError(f"--k: expected a whole number from 1, or any, got {word!r}")


def _one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise PolyadicError(f"{option}: expected {' or '.join(known)}, got {word!r}")
