"""`polyadic detect`: train a detector, and write what it finds in a split."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.flags import ANY, split_words, with_fields
from polyadic.cli.train import DataRoot, aside, long_job
from polyadic.structures.vocabulary import PolyadicError

app = typer.Typer(
    help="The first stage: a detector's boxes. Train one, and write a split's proposals.", no_args_is_help=True
)
OWN = ("data", "dataset", "preset", "out", "resume", "overwrite", "help")

DatasetName = Annotated[
    str | None, typer.Option("--dataset", help="vrd, vg150, vg200, coco (own data) or toy (field data.dataset).")
]


@app.command(context_settings=ANY)
def train(
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [--SECTION.FIELD VALUE]...",
            help="A preset (`polyadic detect config` lists them) or a .toml or .json file; then any of its fields.",
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="The CONFIG, as an option.")] = None,
    dataset: DatasetName = None,
    data: DataRoot = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in a run that was stopped; its own config is the default.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the run that is there, and begin anew.")
    ] = False,
) -> None:
    """Train a Faster R-CNN. Ctrl-C loses nothing. Any field: --training.rate 1e-3 --weights random --seed 1."""
    from polyadic.config import load_detector_config

    given, fields = split_words(words or [])
    if given is not None and preset is not None:
        raise PolyadicError(f"expected one CONFIG, got {given} and --preset {preset}")
    name = given or preset
    if resume and overwrite:
        raise PolyadicError("--resume goes on in a run and --overwrite removes it: give one of them")
    if name is None and not resume:
        raise PolyadicError("which CONFIG? A preset (`polyadic detect config` lists them), or a .toml or .json file")
    before = None
    if resume:
        from polyadic.training.detector import detector_run_config

        before = detector_run_config(out.expanduser())
    config = before if name is None and before is not None else load_detector_config(str(name))
    config = with_fields(config, fields, OWN)
    if dataset is not None:
        config = config.change(**{"data.dataset": dataset})
    root = str(data) if data is not None else config.data.root or (before.data.root if before else "")
    if root:
        config = config.change(**{"data.root": str(Path(root).expanduser().resolve())})

    from polyadic.experiments.runs import best_of
    from polyadic.training.detector import train_detector

    start = time.monotonic()
    with aside(out.expanduser(), overwrite), long_job(f"polyadic detect train --resume --out {out}"):
        train_detector(config, out, resume=resume)
    best = best_of(out.expanduser())
    numbers = ", ".join(f"{name} {value:.2f}" for name, value in best["held_out"].items())
    typer.echo(f"detector: {out / 'model'}, the best of epoch {best['epoch']}: held-out {numbers or 'nothing'}")
    typer.echo(f"{time.monotonic() - start:,.0f} seconds; curves: tensorboard --logdir {out}")
    typer.echo(f"next: polyadic detect run {out} --split train --out proposals.safetensors")


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `polyadic detect train`.")],
    out: Annotated[Path, typer.Option("--out", help="A .safetensors file (with class distributions) or .jsonl.")],
    split: Annotated[str, typer.Option("--split", help="train, fit, validation or test.")] = "train",
    dataset: Annotated[str | None, typer.Option("--dataset", help="Another one of the same names.")] = None,
    data: DataRoot = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at once.")] = 8,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make the file anew.")] = False,
) -> None:
    """Write the boxes of all images of a split, and tell how good they are."""
    from polyadic.experiments.proposals import MOST, detect_split

    with long_job(f"polyadic detect run {folder} --split {split} --out {out} --resume"):
        found = detect_split(folder, split, out, dataset, data, batch, resume, overwrite)
    typer.echo(f"{found.path}: {found.images:,} images, {found.boxes / max(found.images, 1):.1f} boxes per image")
    if found.precision:
        where = f" of the first {MOST:,} images" if found.images > MOST else ""
        typer.echo(", ".join(f"{name} {value:.1f}" for name, value in found.precision.items()) + where)
    if not math.isnan(found.ceiling):
        typer.echo(
            f"relations whose boxes are both found: {found.ceiling:.1f}%, with their labels: {found.labelled:.1f}%"
        )


@app.command()
def config(
    source: Annotated[str | None, typer.Argument(metavar="[PRESET|FILE]", help="Default: list the presets.")] = None,
) -> None:
    """Print a config as TOML with comments. Kept as a file and changed, it is a CONFIG of one's own."""
    from polyadic.config import DETECTOR_PRESETS, load_detector_config

    if source is not None:
        typer.echo(load_detector_config(source).to_toml())
        return
    width = max(map(len, DETECTOR_PRESETS))
    for name, each in DETECTOR_PRESETS.items():
        where = f"dataset {each.data.dataset}, pictures of {each.side} to {each.longest} pixels"
        typer.echo(f"{name:{width}}  {each.network}, {each.weights} weights, {where}; {each.training.epochs} epochs")
