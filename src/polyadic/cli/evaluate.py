"""`polyadic evaluate PREDICTIONS|RUN`: recall under the field's protocols, beside a baseline and the ceiling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyadic.cli.options import DATASETS, AsJson, echo, long_job, parse_k
from polyadic.config.settings import MOST_THREADS
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.evaluation.compare import Comparison
    from polyadic.evaluation.protocol import Protocol
    from polyadic.experiments.results import RunScores
    from polyadic.structures.detections import Detections
    from polyadic.structures.relations import Relations
    from polyadic.structures.scenes import Dataset

PARTS = ("prior", "selected", "geometry", "relabel", "dedup")
_PROTOCOL, _RUN, _OUTPUT = "Protocol", "For a RUN", "Output"


def command(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|RUN",
            help="Predictions: ours (.jsonl, or a folder of .parquet), Lu's (.mat) or neural-motifs' (.pkl). "
            "Or a training run, or its model.",
        ),
    ],
    dataset: Annotated[str | None, typer.Option("--dataset", help=f"{DATASETS}. Default: the run's.")] = None,
    root: Annotated[
        Path | None, typer.Option("--root", "--data", help="Folder of the dataset. Default: the run's.")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="The split that was predicted, or that a run predicts.")
    ] = "test",
    detections: Annotated[
        Path | None,
        typer.Option("--detections", help="The detector's boxes: for a RUN, or for the baseline and the ceiling."),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option("--validation", help="Predictions of the validation split, to choose free k on.")
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
            metavar="NAME...",
            help="lu2016 (default), reldn, motifs, vtranse or dsr.",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASK...",
            help="relationship (default), phrase, phrase-classification (default of a run), predicate-classification.",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            "--k",
            metavar="K...",
            help="Predictions per pair of boxes: a number, any, or free (chosen on the validation split).",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    top: Annotated[
        list[int] | None,
        typer.Option(
            "--top",
            metavar="N...",
            help="N of R@N. Default: 20 50 100; smaller ones where images have few boxes.",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    match: Annotated[
        Literal["one-to-one", "many-to-one"] | None,
        typer.Option(
            "--match", help="Whether several predictions may hit one ground truth.", rich_help_panel=_PROTOCOL
        ),
    ] = None,
    aggregate: Annotated[
        Literal["pooled", "image-mean"] | None,
        typer.Option(
            "--aggregate", help="Average over all ground truths, or per image first.", rich_help_panel=_PROTOCOL
        ),
    ] = None,
    k_unit: Annotated[
        Literal["triplet", "predicate"] | None,
        typer.Option("--k-unit", help="What k counts for each pair of boxes.", rich_help_panel=_PROTOCOL),
    ] = None,
    no_prediction: Annotated[
        Literal["count", "drop"] | None,
        typer.Option("--no-prediction", help="Count or drop images without predictions.", rich_help_panel=_PROTOCOL),
    ] = None,
    tie: Annotated[
        Literal["first", "last"] | None,
        typer.Option(
            "--tie", help="Which of equally overlapping ground truths a prediction takes.", rich_help_panel=_PROTOCOL
        ),
    ] = None,
    iou_offset: Annotated[
        int | None,
        typer.Option(
            "--iou-offset", help="1: the last pixel belongs to a box; 0: it does not.", rich_help_panel=_PROTOCOL
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="PART...",
            help="Leave out parts of the score: prior, selected, geometry, relabel, dedup.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="A new .jsonl file for the predictions.", rich_help_panel=_RUN)
    ] = None,
    table1: Annotated[
        bool,
        typer.Option(
            "--table1",
            help="The columns of the paper's Table 1: --task relationship phrase --k 1 10 free.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    bootstrap: Annotated[
        int,
        typer.Option(
            "--bootstrap", metavar="N", min=0, help="Replicates for 95% intervals over images.", rich_help_panel=_OUTPUT
        ),
    ] = 0,
    misses: Annotated[
        bool,
        typer.Option(
            "--misses",
            help="Error breakdown per ground truth: hit, box missing, wrong label, ...",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            max=MOST_THREADS,
            help="Processes that score a folder of .parquet.",
            rich_help_panel=_OUTPUT,
        ),
    ] = 1,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print one line per number.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Score predictions, or a run, under named protocols.

    A count-table baseline and the ceiling of the boxes are shown too. Some options take several values: --k 1 10 free.
    """
    from polyadic.evaluation.protocol import get_protocol

    if not predictions.expanduser().exists():
        raise PolyadicError(f"no file or run is called {predictions}")
    files = _parquet(predictions.expanduser())
    is_run = predictions.expanduser().is_dir() and not files
    if workers > 1 and not files:
        raise PolyadicError("--workers is for a folder of .parquet files")
    switches = {"match": match, "aggregate": aggregate, "k_unit": k_unit, "tie": tie, "no_prediction": no_prediction}
    changes: dict[str, Any] = {
        name: value for name, value in {**switches, "iou_offset": iou_offset}.items() if value is not None
    }
    if top:
        changes["tops"] = tuple(sorted(set(top)))
    words = list(dict.fromkeys(k or ()))
    for word in words:
        parse_k("any" if word == "free" else word)
    bases = [get_protocol(name).change(**changes) for name in dict.fromkeys(protocol or ["lu2016"])]
    tasks: list[str] = list(dict.fromkeys(task or ()))
    if table1:
        if not is_run or tasks or words or top or len(bases) > 1:
            raise PolyadicError("--table1 is for a run under one protocol, and sets --task, --k and --top itself")
        tasks, words = ["relationship", "phrase"], ["1", "10", "free"]
        bases = [base.change(tops=(50, 100)) for base in bases]
    if is_run:
        if validation is not None:
            raise PolyadicError("--validation is for files: a run predicts the validation split itself")
        bases = [base if k_unit else base.change(k_unit="triplet") for base in bases]
        tasks = tasks or ["relationship" if detections else "phrase-classification"]
        asked = [base.change(task=name) for base in bases for name in tasks]
        words = words or ["free" if split == "test" else "any"]
        scores = _run_scores(
            predictions,
            asked,
            words,
            place=(split, dataset, root),
            detections=detections,
            any_top=not top and not table1,
            without=without or [],
            bootstrap=bootstrap,
            save=save,
            misses=misses,
        )
    else:
        for value, option in ((without, "--without"), (save, "--save")):
            if value is not None:
                raise PolyadicError(f"{option} is for a run, and {predictions} is not a folder")
        if dataset is None:
            raise PolyadicError(f"--dataset is missing: what was predicted in {predictions}? {DATASETS}")
        if validation is not None and "free" not in words:
            raise PolyadicError("--validation is for choosing k: give --k free as well")
        asked = [base.change(task=name) for base in bases for name in tasks or ["relationship"]]
        scores = _file_scores(
            predictions,
            asked,
            words,
            place=(split, dataset, root),
            detections=detections,
            any_top=not top,
            validation=validation,
            bootstrap=bootstrap,
            misses=misses,
            workers=workers,
        )
    _show(predictions.name, scores, as_json, as_csv, table1)


Place = tuple[str, str | None, Path | None]  # split, dataset, root


def _run_scores(
    folder: Path,
    protocols: Sequence[Protocol],
    words: Sequence[str],
    *,
    place: Place,
    detections: Path | None,
    any_top: bool,
    without: Sequence[str],
    bootstrap: int,
    save: Path | None,
    misses: bool,
) -> RunScores:
    """Open the run, predict its split and score it."""
    from polyadic.evaluation.compare import PREDICTIONS
    from polyadic.experiments.runs import K, evaluate_run, open_run, read_detections_of
    from polyadic.model.scoring import ScoreTerms

    for word in without:
        if word not in PARTS:
            raise PolyadicError(f"--without: expected {', '.join(PARTS)}, got {word!r}")
    split, dataset, root = place
    ks: list[K] = ["free" if word == "free" else parse_k(word) for word in words]
    run = open_run(folder, split, dataset, root=root)
    boxes = None if detections is None else read_detections_of(detections, run)
    parts = ScoreTerms(**{name: name not in without for name in PARTS})
    protocols, why = _fit_tops(protocols, run.data, boxes) if any_top else (protocols, [])
    with long_job():
        scores = evaluate_run(
            run, protocols, ks, detections=boxes, parts=parts, bootstrap=bootstrap, save=save, misses=misses
        )
    scores = replace(scores, notes=(*why, *scores.notes))
    if not without:
        return scores
    name = f"{PREDICTIONS} without {', '.join(name for name in PARTS if name in without)}"
    rows = tuple((name if what == PREDICTIONS else what, row) for what, row in scores.result.rows)
    return replace(scores, result=replace(scores.result, rows=rows))


def _file_scores(
    file: Path,
    asked: Sequence[Protocol],
    words: Sequence[str],
    *,
    place: Place,
    detections: Path | None,
    any_top: bool,
    validation: Path | None,
    bootstrap: int,
    misses: bool,
    workers: int,
) -> RunScores:
    """Score a file or folder of predictions."""
    from functools import partial

    from polyadic.datasets import load_dataset
    from polyadic.engines.scoring import Scoring
    from polyadic.evaluation.compare import Comparer, compare
    from polyadic.experiments.results import RunScores

    split, dataset, root = place
    assert dataset is not None, "checked by the command"
    data = load_dataset(dataset, root, split)
    notes: list[str] = []
    train: Dataset | None = None
    try:
        train = load_dataset(dataset, root, "fit" if split == "validation" else "train")
    except PolyadicError as error:
        notes.append(f"no count table and no zero-shot recall: the training split cannot be read ({error})")
    free: dict[Protocol, int | None] = {}
    protocols: list[Protocol] = []
    boxes = _detections(file.expanduser(), detections, data)
    if any_top:
        asked, why = _fit_tops(asked, data, boxes)
        notes += why
    with long_job():
        for base in asked:
            name = f"{base.name} {base.task}"
            for word in words or [str(base.k or "any")]:
                if word != "free":
                    protocols.append(base.change(k=parse_k(word)))
                elif validation is None:
                    notes.append(
                        f"{name}: no row for free k, which is chosen on the validation split, never on {split}: give "
                        "the predictions of that split (--validation FILE)"
                    )
                else:
                    chosen, images = _free_k(base, (split, dataset, root), validation)
                    notes.append(f"{name}: free k = {chosen or 'any'}, chosen on {images:,} validation images")
                    free[base.change(k=chosen)] = chosen
                    protocols.append(base.change(k=chosen))
        if not protocols:
            raise PolyadicError(notes[-1])
        protocols = list(dict.fromkeys(protocols))
        if train is not None:
            protocols = [protocol.change(subset=subset) for protocol in protocols for subset in ("all", "zero-shot")]
        if workers > 1:
            make = partial(Comparer, data.vocabulary, protocols, train, bootstrap=bootstrap, misses=misses)
            result = Scoring(_parquet(file.expanduser()), data, make, boxes).run(workers)
        else:
            predictions = _stream(file, data)
            result = compare(
                data, predictions, protocols, train=train, detections=boxes, bootstrap=bootstrap, misses=misses
            )
    return RunScores(result, free, tuple(notes))


def _fit_tops(
    protocols: Sequence[Protocol], data: Dataset, detections: Mapping[str, Detections] | None
) -> tuple[list[Protocol], list[str]]:
    """Replace the default N where images have so few boxes that it says nothing; also return the reason, if any."""
    from polyadic.evaluation.protocol import small_tops

    fitted, reasons = [], []
    for protocol in protocols:
        scenes = [scene for scene in data if len(scene.relations)]
        counts: list[int] = []  # not known where a detector has yet to find the boxes
        if protocol.task.endswith("classification"):
            counts = [len(scene.boxes) for scene in scenes]
        elif detections is not None:
            counts = [len(detections[scene.name]) for scene in scenes if scene.name in detections]
        tops, reason = small_tops(counts, protocol.tops)
        fitted.append(protocol.change(tops=tops))
        reasons += [reason] if reason else []
    return fitted, list(dict.fromkeys(reasons))


def _free_k(base: Protocol, place: tuple[str, str, Path | None], file: Path) -> tuple[int | None, int]:
    """Choose k on the validation split; return it and the number of images."""
    from polyadic.datasets import load_dataset
    from polyadic.evaluation import choose_k

    split, dataset, root = place
    if split in ("validation", "train"):
        raise PolyadicError(f"--k free: k is chosen on the validation split, so {split} cannot be scored with it")
    held_out = load_dataset(dataset, root, "validation")
    if not len(held_out):
        raise PolyadicError(f"--k free: {dataset} has no validation images (your own data may have a validation.json)")
    return choose_k(held_out, _stream(file, held_out), base, len(held_out.vocabulary.predicates)), len(held_out)


def _stream(path: Path, data: Dataset) -> Iterator[Relations]:
    """Read a file's predictions; report an image that is not in the split."""
    from polyadic.engines.scoring import read_all
    from polyadic.io.records import read_relations
    from polyadic.progress import track

    names = [scene.name for scene in data]
    known = set(names)
    number, files = 0, _parquet(path.expanduser())
    records = read_all(files, data) if files else read_relations(path, data.vocabulary, names)
    for number, relations in enumerate(track(records, path.name, len(known)), 1):
        if relations.image not in known:
            split = f"the {len(known):,} images of {data.name} {data.split}"
            hint = _nearest(relations.image, names)
            raise PolyadicError(f"{path.name}, record {number}: image {relations.image!r} is not among {split}{hint}")
        yield relations
    if number == 0:
        raise PolyadicError(f"{path.name}: no predictions in the file")


def _parquet(path: Path) -> list[Path]:
    """List the files of a folder of Parquet files; none for anything else."""
    from polyadic.io.parquet import parquet_files

    return parquet_files(path) if path.is_dir() else []


def _nearest(name: str, names: list[str]) -> str:
    """Suggest a name of the split: the same without folder or suffix, or a similar one."""
    same = next((other for other in names if Path(other).stem == Path(name).stem), None)
    near = [same] if same else get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _detections(predictions: Path, path: Path | None, data: Dataset) -> dict[str, Detections] | None:
    """Read the detector's boxes, if any; those of Lu's predictions are in the same folder."""
    from polyadic.io.records import read_detections

    if path is None and predictions.suffix == ".mat":
        beside = predictions.with_name("objectDetRCNN.mat")
        path = beside if beside.exists() else None
    return None if path is None else {boxes.image: boxes for boxes in read_detections(path, data.vocabulary)}


def _show(name: str, scores: RunScores, as_json: bool, as_csv: bool, table1: bool) -> None:
    from polyadic.cli.tables import comparison_table, outcome_table, table1_table

    result, notes = scores.result, [*scores.notes, *scores.result.notes]
    if as_json:
        free = {f"{protocol.name} {protocol.task}": k or "any" for protocol, k in scores.free.items()}
        echo(json.dumps({"predictions": name, **result.to_json(), "notes": notes, "free_k": free}))
    elif as_csv:
        echo(_csv(result).removesuffix("\n"), lines=True)
        for note in notes:
            echo(f"note: {note}", err=True)
    else:
        if table1:
            table1_table(name, result, scores.free, scores.notes)
        else:
            comparison_table(name, result, scores.notes, scores.free)
        outcome_table(result.misses)


def _csv(result: Comparison) -> str:
    if result.misses is None:
        return result.to_csv()
    return result.misses.to_csv(dataset=result.dataset, split=result.split)
