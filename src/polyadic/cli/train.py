"""`polyadic train CONFIG --out RUN`: train, go on, or begin anew."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.flags import split_words, with_fields
from polyadic.structures.vocabulary import PolyadicError

OWN = ("data", "out", "resume", "overwrite", "help")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG [--SECTION.FIELD VALUE]...",
        help="A preset (`polyadic config` lists them) or a .toml or .json file; then any of its fields.",
    ),
]
DataRoot = Annotated[Path | None, typer.Option("--data", help="The folder that holds the dataset (field data.root).")]


def command(
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")],
    words: Words = None,
    data: DataRoot = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in a run that was stopped; its own config is the default.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the run that is there, and begin anew.")
    ] = False,
) -> None:
    """Train a model in stages. Ctrl-C loses nothing. Any field: --head.rank 3 --triplets.rate=1e-3 --seed 1."""
    from polyadic.config import load_config

    name, fields = split_words(words or [])
    if resume and overwrite:
        raise PolyadicError("--resume goes on in a run and --overwrite removes it: give one of them")
    if name is None and not resume:
        raise PolyadicError("which CONFIG? A preset (`polyadic config` lists them), or a .toml or .json file")
    before = None
    if resume:
        from polyadic.training import run_config

        before = run_config(out.expanduser())
    config = before if name is None and before is not None else load_config(str(name))
    config = with_fields(config, fields, OWN)
    if data is not None:
        config = config.change(**{"data.root": str(data.expanduser().resolve())})
    elif before is not None and not config.data.root:
        config = config.change(**{"data.root": before.data.root})
    elif config.data.root:
        config = config.change(**{"data.root": str(Path(config.data.root).expanduser().resolve())})

    from polyadic.experiments.runs import best_of
    from polyadic.training import train

    start = time.monotonic()
    with aside(out.expanduser(), overwrite), long_job(f"polyadic train --resume --out {out}"):
        train(config, out, resume=resume)
    best = best_of(out.expanduser())
    numbers = ", ".join(f"{name} {value:.2f}" for name, value in best["held_out"].items())
    typer.echo(f"model: {out / 'model'}, the best of stage {best['stage']}, epoch {best['epoch']}: held-out {numbers}")
    typer.echo(f"{time.monotonic() - start:,.0f} seconds; curves: tensorboard --logdir {out}")
    typer.echo(f"next: polyadic evaluate {out}")


@contextmanager
def long_job(resume: str) -> Iterator[None]:
    """Show progress; at Ctrl-C finish the step, print how to continue, and exit with 130."""
    from polyadic import progress

    try:
        with progress.showing(), progress.interruptible():
            yield
    except progress.Interrupted:
        typer.echo(f"polyadic: stopped, nothing is lost; continue with: {resume}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def aside(folder: Path, overwrite: bool) -> Iterator[None]:
    """With `overwrite`, the run that is there goes once a new one has begun in its place, and not before."""
    from polyadic.experiments.runs import WRITTEN, is_run

    if not overwrite or not folder.exists():
        yield
        return
    folder = folder.resolve()
    if not is_run(folder):
        if folder.is_dir() and not any(folder.iterdir()):
            yield
            return
        raise PolyadicError(f"--overwrite removes runs alone, and {folder} is none: it lacks config.json or last.pt")
    others = sorted({path.name for path in folder.iterdir()} - WRITTEN)
    if others:
        raise PolyadicError(f"--overwrite would remove {others[0]}, which is no part of the run {folder}: move it away")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    folder.rename(old)
    try:
        yield
    finally:
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
