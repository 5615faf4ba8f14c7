"""`polyadic predict [RUN] PATHS...`: relations of photos, as text, JSON Lines or pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyadic.cli.boxes import BoxOptions, load_model, model_files
from polyadic.cli.options import check_resume, echo, parse_k
from polyadic.cli.scaled import Scaled, check_engine
from polyadic.config.settings import MOST_THREADS
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.experiments.photos import Item, PhotoLog, Question, Result
    from polyadic.model.relation_model import RelationModel

_BOXES, _ANSWERS, _OUTPUT, _SPEED, _SCALE = "Boxes", "Relations", "Output", "Speed", "Photos by the million"


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] PATHS",
            help="RUN: a training run or a saved model; default: the pretrained VRD model. "
            "PATHS: photos, folders or patterns; optional for a model without pixels, given --detections. "
            "With --engine also lists (.txt, .parquet), archives (.tar), and URLs (s3://, gs://, https://).",
        ),
    ] = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            help="vrd-detector (pretrained; default without RUN), a run of `polyadic detect train`, an .onnx file, "
            "torchvision's resnet50-fpn or mobilenetv3-fpn, or hf:NAME, a model or folder of the Hugging Face hub. "
            "Repeat it to join the boxes of several.",
            rich_help_panel=_BOXES,
        ),
    ] = None,
    detections: Annotated[
        Path | None,
        typer.Option(
            "--detections",
            help="Boxes from a file: .json, .jsonl, .safetensors, or Lu's .mat; joined with those of --detector.",
            rich_help_panel=_BOXES,
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option("--names", help="Class names of an .onnx detector, one per line.", rich_help_panel=_BOXES),
    ] = None,
    categories: Annotated[
        Path | None,
        typer.Option(
            "--categories", help="A COCO file that names the categories of --detections.", rich_help_panel=_BOXES
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            help='Map the detector\'s class names to the model\'s, JSON or TOML: {"tv": "monitor"}. '
            "Default: COCO's to VRD's.",
            rich_help_panel=_BOXES,
        ),
    ] = None,
    unknown: Annotated[
        Literal["drop", "keep"],
        typer.Option("--unknown", help="Drop or keep boxes of classes unknown to the model.", rich_help_panel=_BOXES),
    ] = "drop",
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Relations per photo.", rich_help_panel=_ANSWERS)
    ] = 10,
    k: Annotated[
        str,
        typer.Option("--k", help="Relations per ordered pair of boxes: a number, or any.", rich_help_panel=_ANSWERS),
    ] = "1",
    least: Annotated[
        float,
        typer.Option(
            "--min-probability",
            metavar="X",
            min=0.0,
            max=1.0,
            help="Leave out relations that an annotator would state with a lower probability.",
            rich_help_panel=_ANSWERS,
        ),
    ] = 0.01,
    order: Annotated[
        Literal["informative", "likely"],
        typer.Option(
            "--order",
            help="informative: relations that tell more first (ride before next to, horse before shirt), few repeats; "
            "likely: by probability.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "informative",
    labels: Annotated[
        Literal["keep", "refine"],
        typer.Option(
            "--labels",
            help="Keep the detector's names, or give each box its most probable name over all its pairs.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "keep",
    mirror: Annotated[
        Literal["drop", "keep"],
        typer.Option(
            "--mirror",
            help='drop: of "A behind B" and "B behind A" the likelier alone, "next to" and the like once per pair, '
            "boxes that see one object twice as one, and of two names for one place the surer.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "drop",
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only relations with this subject.", rich_help_panel=_ANSWERS)
    ] = None,
    predicate: Annotated[
        str | None, typer.Option("--predicate", help="Only relations with this predicate.", rich_help_panel=_ANSWERS)
    ] = None,
    object: Annotated[
        str | None, typer.Option("--object", help="Only relations with this object.", rich_help_panel=_ANSWERS)
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="A .jsonl file for the relations; with --engine a folder of Parquet files, here or in a bucket.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    drawn: Annotated[
        Path | None, typer.Option("--draw", help="Folder for pictures of the relations.", rich_help_panel=_OUTPUT)
    ] = None,
    draw_as: Annotated[
        Literal["png", "svg"], typer.Option("--draw-as", help="Format of the pictures.", rich_help_panel=_OUTPUT)
    ] = "png",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON Lines instead of text.", rich_help_panel=_OUTPUT)
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List how class names are mapped.", rich_help_panel=_OUTPUT)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue --out: photos in it are skipped.", rich_help_panel=_OUTPUT)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --out and existing pictures.", rich_help_panel=_OUTPUT)
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Photos per batch.", rich_help_panel=_SPEED)
    ] = 8,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.", rich_help_panel=_SPEED)] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            min=0,
            max=MOST_THREADS,
            help="CPU threads; 0: torch decides.",
            rich_help_panel=_SPEED,
        ),
    ] = 0,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="For many photos: local (processes of this machine), ray, or the ray://HOST:PORT of a cluster.",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            metavar="N",
            min=0,
            max=MOST_THREADS,
            help="Processes of --engine; 0: one per core or GPU.",
            rich_help_panel=_SCALE,
        ),
    ] = 0,
    shard: Annotated[
        int,
        typer.Option("--shard", metavar="N", min=1, help="Photos per file of --engine.", rich_help_panel=_SCALE),
    ] = 1000,
) -> None:
    """Find relations in photos: who does what to whom.

    Boxes come from the run's detector, or from others (--detector) and a file (--detections), joined if several.
    """
    from polyadic.experiments.photos import PhotoLog, Question, draw, drawing_paths, predict_photos
    from polyadic.model.answers import AnswerOptions
    from polyadic.pretrained import model_folder, model_for, synonyms, table_file
    from polyadic.progress import Interrupted, interruptible, say, showing

    check_resume(resume, overwrite)
    check_engine(engine, workers)
    if resume and out is None:
        raise PolyadicError("--resume needs --out, the file to continue")
    run, paths = _split(words or [])
    found_by = tuple(detector or _default_detectors(run, detections))
    boxes = BoxOptions(found_by, detections, names, categories, mapping, unknown)
    _check_paths(paths, boxes, drawn)
    options = AnswerOptions(parse_k(k), top, order, labels, mirror, least)
    question = Question(options, _given(subject, predicate, object))
    photos = _photos(run, paths, drawn) if engine is None else []
    source = run or model_folder(model_for(found_by))
    model = load_model(source, device, threads or int(engine is not None))
    table = synonyms(model.vocabulary) if mapping is None else None
    for name, word in question.given:
        if name != "predicate" and word not in model.vocabulary.objects and table is not None and word in table:
            raise PolyadicError(f"--{name}: the model's name for {word!r} is {table[word]!r}")
        model.vocabulary.index(name, word)
    items = boxes.prepare(model, photos)
    files = (detections, names, categories, mapping if table is None else table_file())
    weights = [*model_files(source), *boxes.files(model)]
    asked = (question, unknown, *(boxes.sources if boxes.joined else ()), *boxes.class_names(model), bool(paths))
    if engine is not None:
        unused = {"--detections": detections, "--draw": drawn, "--json": as_json or None}
        made = _fingerprint(weights, files, (*asked, batch, threads, shard))
        scaled = Scaled(source, device, threads, boxes, question, batch, engine, workers, shard)
        scaled.run(paths, out, made, unused, resume=resume, overwrite=overwrite)
        return
    target = None if out is None else Path(out).expanduser()
    inputs = [*photos, *files, *weights]
    targets = {}
    if drawn is not None:
        replace = overwrite or resume
        targets = drawing_paths(
            photos, paths, drawn.expanduser(), suffix=draw_as, overwrite=replace, inputs=[*files, target]
        )
    opened: AbstractContextManager[PhotoLog | None] = nullcontext()
    if target is not None:
        if target.is_dir():
            raise PolyadicError(
                f"--out: {target} is a folder, expected a file; Parquet files need --engine local or ray"
            )
        fingerprint = _fingerprint(weights, files, asked)
        inputs += targets.values()
        opened = PhotoLog.open(target, fingerprint, resume=resume, overwrite=overwrite, inputs=inputs)
    failed = written = relations = 0
    with opened as log, showing(), interruptible():
        done = _done(log, items)
        if verbose or (log is None and not as_json):
            _print_context(str(run or f"{source.name} (pretrained)"), model, boxes, verbose)
        try:
            for result in predict_photos(model, items, question, batch=batch, done=done):
                if result.problem is not None:
                    failed += 1
                    say(f"polyadic: skipped: {result.problem}")
                    continue
                if result.name in targets:
                    draw(result, targets[result.name])
                if log is not None:
                    log.write(result)
                else:
                    if not written and not as_json:
                        echo(f"# {_meaning(question)}")
                    _print(result, as_json)
                written, relations = written + 1, relations + len(result.relations)
        except Interrupted:
            how = "continue with --resume" if log is not None else "with --out FILE, --resume could continue"
            echo(f"polyadic: stopped after {written:,} photo{'s' * (written != 1)}; {how}", err=True)
            raise typer.Exit(130) from None
    boxes.report_dropped(model)
    where = _joined(target, drawn)
    if where:
        echo(f"{written:,} photo{'s' * (written != 1)}, {relations:,} relations: {where}", err=as_json)
    if failed:
        total = written + failed
        echo(f"polyadic: {failed:,} of {total:,} photo{'s' * (total != 1)} failed", err=True)
        raise typer.Exit(1)


def _split(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split into RUN, if the first word is a folder with a model, and PATHS."""
    from polyadic.files import is_model

    if words and is_model(Path(words[0]).expanduser()):
        return Path(words[0]), list(words[1:])
    return None, list(words)


def _default_detectors(run: Path | None, detections: Path | None) -> list[str]:
    """Use the pretrained detector with the pretrained model; a run has its own."""
    from polyadic.pretrained import DETECTOR

    return [DETECTOR] if run is None and detections is None else []


def _check_paths(paths: Sequence[str], boxes: BoxOptions, drawn: Path | None) -> None:
    if not paths and drawn is not None:
        raise PolyadicError("--draw needs photos: name files, folders or patterns")
    if not paths and boxes.needs_photos():
        raise PolyadicError("PATHS are missing: name photos, folders or patterns")


def _given(subject: str | None, predicate: str | None, object: str | None) -> tuple[tuple[str, str], ...]:
    """Collect the names that are asked for."""
    asked = {"subject": subject, "predicate": predicate, "object": object}
    given = tuple((name, word) for name, word in asked.items() if word is not None)
    if len(given) == 3:
        raise PolyadicError("--subject, --predicate and --object: give at most two, the third is the answer")
    return given


def _photos(run: Path | None, paths: Sequence[str], drawn: Path | None) -> list[Path]:
    """List the files that PATHS name; at least one must exist. Without a RUN, the first may be a mistyped one."""
    from glob import has_magic

    from polyadic.experiments.photos import SUFFIXES, find_photos

    if run is None and paths:
        first = Path(paths[0]).expanduser()
        if not os.path.lexists(first) and not has_magic(paths[0]) and first.suffix.lower() not in SUFFIXES:
            raise PolyadicError(f"{paths[0]}: no such run, photo or folder")
        if first.is_dir():
            try:
                find_photos(paths[:1])
            except PolyadicError as error:
                kinds = ", ".join(sorted(SUFFIXES))
                raise PolyadicError(
                    f"{paths[0]} holds neither a saved model (model.safetensors) nor an image ({kinds})"
                ) from error
    photos = find_photos(paths, drawn)
    if photos and not any(os.path.lexists(path) for path in photos):
        others = f", nor any of the {len(photos) - 1:,} others" if len(photos) > 1 else ""
        raise PolyadicError(f"no image {photos[0]}{others}")
    return photos


def _print_context(name: str, model: RelationModel, boxes: BoxOptions, verbose: bool) -> None:
    """Print in one line which model and which boxes are used; `verbose`: also how class names are mapped."""
    sources, reports = boxes.describe(model, verbose)
    echo(f"model: {name}; boxes: {sources}", err=True)
    for report in reports:
        echo(report, err=True, lines=True)


def _fingerprint(files: Sequence[Path | None], others: Sequence[Path | None], options: Sequence[object]) -> str:
    """Hash everything that a record depends on except its photo: files and options."""
    import hashlib

    value = hashlib.sha256(repr(tuple(options)).encode())
    value.update(b"|")
    for path in files:
        value.update(b"|" if path is None else hashlib.sha256(path.read_bytes()).digest())
    for path in others:
        value.update(b"|")
        if path is not None:
            value.update(hashlib.sha256(path.expanduser().read_bytes()).digest())
    return value.hexdigest()[:16]


def _done(log: PhotoLog | None, items: Sequence[Item]) -> set[str]:
    """Collect the photos that a resumed file already has."""
    if log is None:
        return set()
    done = log.done.intersection(item.name for item in items)
    if done:
        many = len(done) != 1
        echo(f"skipping {len(done):,} photo{'s' * many} that {'are' if many else 'is'} already in {log.path}", err=True)
    return done


def _joined(*paths: Path | None) -> str:
    return " and ".join(str(path) for path in paths if path is not None)


def _meaning(question: Question) -> str:
    """Say what the number beside a relation means."""
    given = dict(question.given)
    if {"subject", "object"} <= set(given):
        return f"%: P(predicate | {given['subject']}, {given['object']}, these two boxes)"
    order = "" if given or question.options.order == "likely" else "; informative ones first"
    return f"%: probability that an annotator states this relation of these two boxes{order}"


def _print(result: Result, as_json: bool) -> None:
    from polyadic.experiments.photos import to_line

    relations = result.relations
    if as_json:
        echo(to_line(result.to_record()))
        return
    echo(result.name, bold=True)
    rows = [(row.box_names[0], row.names[1], row.box_names[1]) for row in relations]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row, number in zip(rows, relations.percentages(), strict=True):
        words = "  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True))
        echo(f"  {words}  {number:>5}")
    if not rows:
        echo(f"  no relations: {relations.note}")
    sys.stdout.flush()
