"""`polyadic evaluate PREDICTIONS|RUN`: predictions, the baseline and the ceiling under the field's protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from polyadic.evaluation.compare import Comparison
    from polyadic.evaluation.protocol import Protocol
    from polyadic.structures.detections import Detections
    from polyadic.structures.relations import Relations
    from polyadic.structures.scenes import Dataset
    from polyadic.structures.vocabulary import Vocabulary


def command(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|RUN", help="Ours (.jsonl), Lu's (.mat), neural-motifs' (.pkl); or a run, or its model."
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="vrd, vg150, vg200, toy, or coco for own data. Default: the run's.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", "--data", help="The folder that holds the dataset. Default: the run's.")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="The split that was predicted, or that a run predicts.")
    ] = "test",
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", help="lu2016 (default), reldn, motifs, vtranse, dsr.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            help="relationship (default), phrase, phrase-classification (a run's default), predicate-classification.",
        ),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option("--k", help="Relations per pair: numbers, any, free. Default: the protocol's; a run's: free."),
    ] = None,
    top: Annotated[list[int] | None, typer.Option("--top", help="N of R@N. Default: 20 50 100.")] = None,
    validation: Annotated[
        Path | None,
        typer.Option("--validation", help="Relations of the validation split, on which free k is chosen."),
    ] = None,
    detections: Annotated[
        Path | None,
        typer.Option(
            "--detections",
            help="The detector's boxes: for baseline and ceiling, if not in PREDICTIONS; for a RUN to relate.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Parts that a run leaves out: prior, selected, geometry, relabel, dedup."),
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="A new .jsonl file for a run's predictions.")] = None,
    match: Annotated[str | None, typer.Option("--match", help="one-to-one or many-to-one.")] = None,
    aggregate: Annotated[str | None, typer.Option("--aggregate", help="pooled or image-mean.")] = None,
    k_unit: Annotated[str | None, typer.Option("--k-unit", help="triplet or predicate.")] = None,
    no_prediction: Annotated[str | None, typer.Option("--no-prediction", help="count or drop.")] = None,
    tie: Annotated[str | None, typer.Option("--tie", help="first or last.")] = None,
    iou_offset: Annotated[int | None, typer.Option("--iou-offset", help="1 or 0.")] = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=0, help="Replicates for 95% intervals over images.")] = 0,
    table1: Annotated[
        bool,
        typer.Option(
            "--table1", help="A run in the columns of the paper's Table 1: --task relationship phrase --k 1 10 free."
        ),
    ] = False,
    misses: Annotated[
        bool,
        typer.Option("--misses", help="Where the truths go: hit, box missing, wrong label, ... With --csv that alone."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table for people.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One line per number, for a results file.")] = False,
) -> None:
    """Score predictions, or a run, under named protocols. Some options take several values: --k 1 10 free."""
    from polyadic.evaluation.protocol import get_protocol
    from polyadic.structures.vocabulary import PolyadicError

    switches: dict[str, Any] = {"match": match, "aggregate": aggregate, "k_unit": k_unit, "tie": tie}
    switches |= {"no_prediction": no_prediction, "iou_offset": iou_offset}
    switches["tops"] = tuple(sorted(set(top))) if top else None
    changes = {name: value for name, value in switches.items() if value is not None}
    for word in k or ():
        _number("any" if word == "free" else word)
    bases = [get_protocol(name).change(**changes) for name in dict.fromkeys(protocol or ["lu2016"])]
    if table1:
        if not predictions.expanduser().is_dir() or task or k or top or len(bases) > 1:
            raise PolyadicError("--table1 is for a run under one protocol, and sets --task, --k and --top itself")
        task, k = ["relationship", "phrase"], ["1", "10", "free"]
        bases = [base.change(tops=(50, 100)) for base in bases]
    if predictions.expanduser().is_dir():
        from polyadic.cli.evaluate_run import scores_of

        if validation is not None:
            raise PolyadicError("--validation is for files: a run predicts the validation split itself")
        bases = [base if k_unit else base.change(k_unit="triplet") for base in bases]
        tasks = task or ["relationship" if detections else "phrase-classification"]
        asked = [base.change(task=each) for base in bases for each in dict.fromkeys(tasks)]
        words = list(dict.fromkeys(k or ["free" if split == "test" else "any"]))
        ks: list[int | Literal["free"] | None] = ["free" if word == "free" else _number(word) for word in words]
        scored = scores_of(
            predictions, asked, ks, split, dataset, root, detections, without or [], save, bootstrap, misses
        )
        if table1 and not as_json and not as_csv:
            from polyadic.report import misses_table, table1_table

            table1_table(predictions.name, scored.result, scored.free, scored.notes)
            misses_table(scored.result.misses)
        else:
            _show(predictions.name, scored.result, list(scored.notes), scored.free, as_json, as_csv)
        return
    for value, option in ((without, "--without"), (save, "--save")):
        if value is not None:
            raise PolyadicError(f"{option} is for a run, and {predictions} is no folder")
    if dataset is None:
        raise PolyadicError(f"--dataset: which one was predicted in {predictions}? vrd, vg150, vg200, toy or coco")
    if validation is not None and "free" not in (k or ()):
        raise PolyadicError("--validation is for choosing k: give --k free as well")
    asked = [base.change(task=each) for base in bases for each in dict.fromkeys(task or ["relationship"])]
    _evaluate_file(
        predictions, dataset, root, split, asked, k, validation, detections, bootstrap, misses, as_json, as_csv
    )


def _evaluate_file(
    predictions: Path,
    dataset: str,
    root: Path | None,
    split: str,
    asked: list[Protocol],
    k: list[str] | None,
    validation: Path | None,
    detections: Path | None,
    bootstrap: int,
    misses: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    from polyadic.datasets import load_dataset
    from polyadic.evaluation.compare import compare
    from polyadic.structures.vocabulary import PolyadicError

    data = load_dataset(dataset, root, split)
    notes: list[str] = []
    free: dict[Protocol, int | None] = {}
    train: Dataset | None = None
    try:
        train = load_dataset(dataset, root, "fit" if split == "validation" else "train")
    except PolyadicError as error:
        notes.append(f"no count table and no zero-shot recall: the training split cannot be read ({error})")
    protocols: list[Protocol] = []
    for base in asked:
        for word in dict.fromkeys(k or [str(base.k or "any")]):
            if word == "free" and validation is None:
                notes.append(
                    f"{base.name} {base.task}: no row for free k, which is chosen on the validation split, never on "
                    f"{split}: give the predictions of that split (--validation FILE)"
                )
            elif word == "free":
                chosen, images = _free_k(base, dataset, root, split, validation)
                found = f"free k = {chosen or 'any'}, chosen on {images:,} validation images"
                notes.append(f"{base.name} {base.task}: {found}")
                free[base.change(k=chosen)] = chosen
                protocols.append(base.change(k=chosen))
            else:
                protocols.append(base.change(k=_number(word)))
    if not protocols:
        raise PolyadicError(notes[-1])
    protocols = list(dict.fromkeys(protocols))
    if train is not None:
        protocols = [each.change(subset=subset) for each in protocols for subset in ("all", "zero-shot")]
    boxes = _detections(predictions.expanduser(), detections, data.vocabulary)
    result = compare(data, _stream(predictions, data), protocols, train, boxes, bootstrap, misses)
    _show(predictions.name, result, notes, free, as_json, as_csv)


def _show(
    name: str,
    result: Comparison,
    notes: list[str],
    free: dict[Protocol, int | None],
    as_json: bool,
    as_csv: bool,
) -> None:
    from polyadic.report import comparison_table, misses_table

    if as_json:
        value = {"predictions": name, **result.to_json(), "notes": [*notes, *result.notes]}
        value["free_k"] = {f"{each.name} {each.task}": k or "any" for each, k in free.items()}
        typer.echo(json.dumps(value))
    elif as_csv:
        where = {"dataset": result.dataset, "split": result.split}
        typer.echo(result.to_csv() if result.misses is None else result.misses.to_csv(**where), nl=False)
        for note in (*notes, *result.notes):
            typer.echo(f"note: {note}", err=True)
    else:
        comparison_table(name, result, notes, free)
        misses_table(result.misses)


def _number(word: str) -> int | None:
    from polyadic.structures.vocabulary import PolyadicError

    if word == "any":
        return None
    if word.isascii() and word.isdecimal() and int(word) > 0:
        return int(word)
    raise PolyadicError(f"--k: expected whole numbers from 1, any or free, got {word!r}")


def _free_k(base: Protocol, dataset: str, root: Path | None, split: str, file: Path | None) -> tuple[int | None, int]:
    from polyadic.datasets import load_dataset
    from polyadic.evaluation import choose_k
    from polyadic.structures.vocabulary import PolyadicError

    if split in ("validation", "train") or file is None:
        raise PolyadicError(f"--k free: k is chosen on the validation split, so it cannot be scored on {split}")
    held_out = load_dataset(dataset, root, "validation")
    if not len(held_out):
        raise PolyadicError(f"--k free: {dataset} has no validation images (own data may bring a validation.json)")
    return choose_k(held_out, _stream(file, held_out), base, len(held_out.vocabulary.predicates)), len(held_out)


def _stream(path: Path, data: Dataset) -> Iterator[Relations]:
    """A file's predictions with a progress bar; an image outside the split is named with its file."""
    from polyadic import progress
    from polyadic.io.records import read_relations
    from polyadic.structures.vocabulary import PolyadicError

    names = [scene.name for scene in data]
    known = set(names)
    number = 0
    records = read_relations(path, data.vocabulary, names)
    with progress.showing():
        for number, each in enumerate(progress.track(records, path.name, len(known)), 1):
            if each.image not in known:
                split = f"the {len(known):,} of {data.name} {data.split}"
                hint = _alike(each.image, names)
                raise PolyadicError(f"{path.name}, record {number}: image {each.image!r} is none of {split}{hint}")
            yield each
    if number == 0:
        raise PolyadicError(f"{path.name}: no predictions in the file")


def _alike(name: str, names: list[str]) -> str:
    """A name of the split that is probably meant: without its folder or suffix the same, or nearly."""
    same = next((other for other in names if Path(other).stem == Path(name).stem), None)
    near = [same] if same else get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _detections(predictions: Path, path: Path | None, vocabulary: Vocabulary) -> dict[str, Detections] | None:
    """The detector's boxes, if a file says them; Lu's predictions have theirs beside them."""
    from polyadic.io.records import read_detections

    if path is None and predictions.suffix == ".mat":
        beside = predictions.with_name("objectDetRCNN.mat")
        path = beside if beside.exists() else None
    return None if path is None else {each.image: each for each in read_detections(path, vocabulary)}
