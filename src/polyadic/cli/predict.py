"""`polyadic predict [RUN] PATHS...`: relations of photos, as text, JSON Lines or pictures."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.experiments.photos import Item, Question, Result
    from polyadic.model.relation_model import RelationModel
    from polyadic.structures.labels import NameMapping, UnknownPolicy


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] PATHS",
            help="RUN: a training run, or a saved model; without, the model that comes with polyadic (VRD's names). "
            "PATHS: photos, folders, patterns; without, all images of --detections, by a model that sees no pixels.",
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            help="A run of `polyadic detect train`, an .onnx file, or one of torchvision's, trained on COCO: "
            "resnet50-fpn (without RUN the default), mobilenetv3-fpn.",
        ),
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
        typer.Option(
            "--mapping",
            help='The detector\'s names to the model\'s, JSON or TOML: {"tv": "monitor"}. By default COCO\'s '
            "to VRD's, if it has those.",
        ),
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
    drawn: Annotated[Path | None, typer.Option("--draw", help="A folder for pictures of what was found.")] = None,
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
    from polyadic import progress
    from polyadic.cli.choosing import choose_photos, fingerprint, load_model, part, set_detector
    from polyadic.experiments.photo_log import PhotoLog, draw, picture_targets
    from polyadic.experiments.photos import Question, predict_photos
    from polyadic.pretrained import synonyms, table_file

    if detector is not None and detections is not None:
        raise PolyadicError("--detector finds boxes and --detections has them: give one of them")
    if resume and overwrite:
        raise PolyadicError("--resume goes on in a file and --overwrite replaces it: give one of them")
    if resume and out is None:
        raise PolyadicError("--resume goes on in the file --out: give it")
    if not math.isfinite(least):
        raise PolyadicError(f"--min-score: expected a number from 0, got {least}")
    run, paths = part(words or [])
    if not paths and drawn is not None:
        raise PolyadicError("--draw draws on photos: name them, or folders, or patterns")
    if not paths and detections is None:
        raise PolyadicError("no PATHS: name photos, folders or patterns")
    _one_of("--unknown", unknown, ("drop", "keep"))
    choice: UnknownPolicy = "keep" if unknown == "keep" else "drop"
    _one_of("--draw-as", draw_as, ("png", "svg"))
    asked = {"subject": subject, "predicate": predicate, "object": object}
    given = tuple((name, word) for name, word in asked.items() if word is not None)
    if len(given) == 3:
        raise PolyadicError("--subject, --predicate, --object: give one or two of them; what is left is what you ask")
    question = Question(_number(k), top, least, given)
    photos = choose_photos(run, paths)
    model = load_model(run, device, threads)
    for name, word in given:
        model.vocabulary.index(name, word)
    table = synonyms(model.vocabulary) if mapping is None else None
    if run is None and detector is None and detections is None:
        detector = "resnet50-fpn"
    if detector is not None:
        set_detector(model, detector, names, table or mapping, choice)
    if detections is None and model.detector is None:
        raise PolyadicError(
            f"{run} has no detector of its own: give one (--detector, a run of `polyadic detect train`, an .onnx file, "
            "or torchvision's resnet50-fpn) or boxes found before (--detections)"
        )
    items = _items(model, photos, detections, categories, table or mapping, choice)
    targets = {}
    if drawn is not None:
        targets = picture_targets(photos, paths, drawn.expanduser(), draw_as, overwrite or resume)
    others = (detections, names, categories, mapping if table is None else table_file())
    made = fingerprint(run, detector, others, (question, unknown))
    log = None if out is None else PhotoLog(out.expanduser(), made, resume, overwrite)
    ready = set() if log is None else log.done.intersection(item.name for item in items)
    if ready:
        typer.echo(f"{len(ready):,} photos are in {out} already", err=True)
    failed = done = found = 0
    with progress.showing(), progress.interruptible():
        try:
            for result in predict_photos(model, items, question, batch, ready):
                if result.problem is not None:
                    failed += 1
                    progress.say(f"polyadic: passed over: {_plain(result.problem)}")
                    continue
                if result.name in targets:
                    draw(result, targets[result.name])
                if log is not None:
                    log.write(result)
                else:
                    if not done and not as_json:
                        _print_heading(question)
                    _print(result, as_json)
                done, found = done + 1, found + len(result.relations)
        except progress.Interrupted:
            again = "with --resume" if log is not None else "the same command"
            typer.echo(f"polyadic: stopped after {done:,} photos; go on {again}", err=True)
            raise typer.Exit(130) from None
    _tell_dropped(model, detections)
    if log is not None or drawn is not None:
        where = " and ".join(str(each) for each in (out, drawn) if each is not None)
        typer.echo(f"{done:,} photo{'s' * (done != 1)}, {found:,} relations: {where}", err=as_json)
    if failed:
        typer.echo(f"polyadic: {failed:,} of {done + failed:,} photos could not be done", err=True)
        raise typer.Exit(1)


def _tell_dropped(model: RelationModel, detections: Path | None) -> None:
    """Boxes that an .onnx detector found, of classes that the model has no name for."""
    if detections is not None:
        return
    dropped: Any = getattr(model.detector, "dropped", None)
    if dropped:
        most = ", ".join(f"{name} ({n:,})" for name, n in dropped.most_common(5))
        more = f" and {len(dropped) - 5} more classes" if len(dropped) > 5 else ""
        typer.echo(f"note: dropped {dropped.total():,} boxes of classes that the model lacks: {most}{more}", err=True)


def _items(
    model: RelationModel,
    photos: Sequence[Path],
    detections: Path | None,
    categories: Path | None,
    mapping: NameMapping,
    unknown: UnknownPolicy,
) -> list[Item]:
    """What is to be done: photos, with their boxes where those are given, or all images that boxes are given of."""
    from polyadic.experiments.photos import Item, match_detections
    from polyadic.io.records import read_detections
    from polyadic.structures.labels import Synonyms

    if detections is None:
        return [Item(str(path), path) for path in photos]
    if not photos and "pixels" in model.config.sources:
        raise PolyadicError("no PATHS: this model looks at pixels, so name the photos that --detections are of")
    if isinstance(mapping, Synonyms) and detections.suffix == ".mat":
        mapping = None  # Lu's files number VRD's classes
    found = list(read_detections(detections, model.vocabulary, mapping, unknown=unknown, categories=categories))
    if photos:
        return match_detections(photos, {each.image: each for each in found})
    if not found:
        raise PolyadicError(f"{detections}: no image in this file")
    lacking = [each.image for each in found if each.size is None]
    if lacking:
        raise PolyadicError(
            f"no PATHS, and {detections} does not tell the size of {len(lacking):,} of {len(found):,} images (the "
            f"first is {lacking[0]!r}): name the photos, or give each record a size"
        )
    return [Item(each.image, detections=each) for each in found]


def _print_heading(question: Question) -> None:
    """What the columns are; an answer's probability is given the names that were asked for."""
    known = ", ".join(word for _, word in question.given)
    share = f"P(rest | {known}, boxes)" if known else "P(triplet | boxes)"
    typer.echo(f"# score, {share}, relation, box of the subject, box of the object")


def _print(result: Result, as_json: bool) -> None:
    from polyadic.experiments.photo_log import to_line, to_record

    record = to_record(result)
    if as_json:
        typer.echo(to_line(record))
        return
    typer.echo(_plain(result.name))
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


def _plain(text: str) -> str:
    """In one line, whatever letters a file's name has."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _number(word: str) -> int | None:
    if word == "any":
        return None
    if word.isascii() and word.isdecimal() and int(word) > 0:
        return int(word)
    raise PolyadicError(f"--k: expected a whole number from 1, or any, got {word!r}")


def _one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise PolyadicError(f"{option}: expected {' or '.join(known)}, got {word!r}")
