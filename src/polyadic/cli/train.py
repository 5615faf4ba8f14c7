"""`polyadic train` and `polyadic config`: train, resume or replace a run; print configs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyadic.cli.options import DataRoot, Overwrite, Resume, check_resume, long_job, split_words, with_fields
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.config.schema import Config

OPTIONS = ("data", "out", "resume", "overwrite", "help")
PRESETS = "vrd, vg150, vg200, vrd-boxes, vrd-pixels, vrd-pixels-grown, toy"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG [--SECTION.FIELD VALUE]...",
        help=f"A preset ({PRESETS}), or a .toml or .json file; then any of its fields.",
    ),
]


def command(
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")],
    words: Words = None,
    data: DataRoot = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a relation model.

    Ctrl-C loses no work, and --resume continues to the same weights. Any config field can be set as an option.
    """
    from polyadic.config import load_config

    name, fields = split_words(words or [])
    check_resume(resume, overwrite)
    if name is None and not resume:
        raise PolyadicError("CONFIG is missing: a preset (`polyadic config` lists them), or a .toml or .json file")
    before = None
    if resume:
        from polyadic.training import run_config

        before = run_config(out.expanduser())
    config = before if name is None and before is not None else load_config(str(name))
    config = with_fields(config, fields, OPTIONS)
    root = str(data) if data is not None else config.data.root or (before.data.root if before else "")
    if root:
        config = config.change(**{"data.root": str(Path(root).expanduser().resolve())})

    from polyadic.experiments.runs import best_of
    from polyadic.training import train

    start = time.monotonic()
    with replacing(out.expanduser(), overwrite), long_job(f"polyadic train --resume --out {out}"):
        train(config, out, resume=resume)
    best = best_of(out.expanduser())
    numbers = ", ".join(f"{name} {value:.2f}" for name, value in best["held_out"].items())
    typer.echo(f"model: {out / 'model'}, best at stage {best['stage']}, epoch {best['epoch']}: held-out {numbers}")
    typer.echo(f"{time.monotonic() - start:,.0f} seconds; curves: tensorboard --logdir {out}")
    typer.echo(f"next: polyadic evaluate {out}")


@contextmanager
def replacing(folder: Path, overwrite: bool) -> Iterator[None]:
    """With `overwrite`, remove the run in the folder, but only once a new one has begun in its place."""
    from polyadic.experiments.runs import RUN_FILES, is_run

    if not overwrite or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        yield
        return
    folder = folder.resolve()
    if not is_run(folder):
        raise PolyadicError(f"--overwrite replaces runs only, and {folder} is not one: it lacks config.json or last.pt")
    others = sorted({path.name for path in folder.iterdir()} - RUN_FILES)
    if others:
        raise PolyadicError(f"--overwrite would delete {others[0]}, which is not part of the run {folder}: move it")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    folder.rename(old)
    try:
        yield
    finally:
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)


def config_command(
    source: Annotated[str | None, typer.Argument(metavar="[PRESET|FILE]", help="Default: list the presets.")] = None,
) -> None:
    """List the presets, or print one as TOML.

    Comments say what each number is, and whether it is the paper's or ours. Edit a copy to make your own CONFIG.
    """
    from polyadic.config import PRESETS as CONFIGS
    from polyadic.config import load_config

    if source is not None:
        typer.echo(load_config(source).to_toml())
        return
    width = max(map(len, CONFIGS))
    for name, config in CONFIGS.items():
        typer.echo(f"{name:{width}}  {_summary(config)}")


def _summary(config: Config) -> str:
    kinds = {"pixels": config.pixels.backbone, "evidence": "detector evidence"}
    names = ("backbone", "boxes", "triplets", "proposals", "selection")
    stages = {name: getattr(config, name).epochs for name in names}
    epochs = ", ".join(f"{name} {n}" for name, n in stages.items() if n)
    sources = " + ".join(kinds[source] for source in config.sources)
    return f"dataset {config.data.dataset}, {sources}, rank {config.head.rank}; epochs: {epochs}"
