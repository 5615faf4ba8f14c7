"""`polyadic train` and `polyadic config`: train, resume or replace a run; print configs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyadic.cli.options import (
    DataRoot,
    Overwrite,
    Resume,
    check_resume,
    curves,
    echo,
    is_first_process,
    long_job,
    split_words,
    with_fields,
)
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.config.schema import Config

OPTIONS = ("data", "out", "resume", "overwrite", "help")
PRESETS = "vrd, vg150, vg200, vrd-boxes, vrd-pixels, vrd-pixels-grown, toy, own, own-pixels"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG [--SECTION.FIELD VALUE]...",
        help=f"A preset ({PRESETS}), or a .toml or .json file; then any of its fields. Default: what fits --data.",
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
    name, fields = split_words(words or [])
    check_resume(resume, overwrite)
    config = _resumed(out, name, data) if resume else chosen_config(name, data, fields.get("data.dataset"))
    config = with_fields(config, fields, OPTIONS)

    from polyadic.experiments.runs import best_of
    from polyadic.training import train

    start = time.monotonic()
    sources = (name, config.data.root, config.data.detector, *config.data.detections, *config.data.simulate)
    inputs = (*sources, config.pixels.weights)
    with replacing(out.expanduser(), overwrite, inputs), long_job(f"polyadic train --resume --out {out}"):
        train(config, out, resume=resume)
    best = best_of(out.expanduser())
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in best["held_out"].items())
    why = (
        f"chosen by held-out {best.get('chosen_by', '')}: {numbers}" if numbers else "the last, as nothing is held out"
    )
    echo(f"model: {out / 'model'}, stage {best['stage']}, epoch {best['epoch']}, {why}")
    echo(f"{time.monotonic() - start:,.0f} seconds{curves(out)}")
    echo(f"next: polyadic evaluate {out}{_split_to_evaluate(config)}")


def _resumed(out: Path, name: str | None, data: Path | None) -> Config:
    """Load the config of a run, or the one that is named, with the folder of the run's data."""
    from polyadic.config import load_config
    from polyadic.training import run_config

    before = run_config(out.expanduser())
    config = before if name is None else load_config(name)
    return _at(config, data or config.data.root or before.data.root)


def chosen_config(name: str | None, data: Path | None, dataset: str | None) -> Config:
    """Load the config that is named, or a preset that fits the layout of the data, and check that they agree.

    Presets for own data take any layout and are adapted to the number of images. `dataset` is what the user says.
    """
    from polyadic.config import OWN, fit_size, load_config
    from polyadic.datasets import LAYOUTS, find_layout, load_dataset

    if name is None and data is None:
        raise PolyadicError(
            "CONFIG is missing: a preset (`polyadic config` lists them), a .toml or .json file, or your data (--data)"
        )
    layout = None if data is None else find_layout(data)
    if layout is None and (name is None or (name in OWN and data is not None)):
        assert data is not None, "checked above"
        if not data.expanduser().is_dir():
            raise PolyadicError(f"--data: no folder {data}")
        files = ", ".join(f"{files[0]} ({known})" for known, files in LAYOUTS.items())
        raise PolyadicError(f"--data: {data} has the layout of no dataset: expected one of {files}")
    name = name or ("own" if layout == "coco" else str(layout))
    config = load_config(name)
    if layout is not None and data is not None:
        if name in OWN:
            images = len(load_dataset(layout, data, "train"))
            config = fit_size(name, images).change(**{"data.dataset": layout})
            echo(f"{data}: {layout}, {images:,} training images; preset {name}", err=True)
        elif (dataset or config.data.dataset) != layout:
            raise PolyadicError(
                f"--data: {data} has the layout of {layout}, but {name} is for {dataset or config.data.dataset}: "
                f"use {'own or own-pixels' if layout == 'coco' else f'{layout}, own or own-pixels'}"
            )
    return _at(config, data or config.data.root)


def _at(config: Config, root: Path | str) -> Config:
    return config.change(**{"data.root": str(Path(root).expanduser().resolve())}) if str(root) else config


def _split_to_evaluate(config: Config) -> str:
    """Return the option that own data without a test split needs."""
    from polyadic.datasets.coco import has_split

    own = config.data.dataset == "coco" and not has_split(Path(config.data.root), "test")
    return " --split validation" if own and config.validation.images else " --split train" if own else ""


@contextmanager
def replacing(folder: Path, overwrite: bool, inputs: Iterable[str | Path | None]) -> Iterator[None]:
    """With `overwrite`, remove the run in the folder, but only once a new one has begun in its place.

    `inputs` are files and folders that training reads; what is not a path is harmless.
    """
    from polyadic.experiments.runs import RUN_FILES, is_run
    from polyadic.training.run import only_one

    if (
        not overwrite
        or not is_first_process()
        or not folder.exists()
        or (folder.is_dir() and not any(folder.iterdir()))
    ):
        yield
        return
    folder = folder.resolve()
    if not is_run(folder):
        raise PolyadicError(f"--overwrite replaces runs only, and {folder} is not one: it lacks config.json or last.pt")
    others = sorted({path.name for path in folder.iterdir()} - RUN_FILES)
    if others:
        raise PolyadicError(f"--overwrite would delete {others[0]}, which is not part of the run {folder}: move it")
    for source in inputs:
        if source and Path(source).expanduser().resolve().is_relative_to(folder):
            raise PolyadicError(f"--overwrite would delete {source}, which is an input: choose another --out")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    with only_one(folder):  # nobody trains in it
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
        echo(load_config(source).to_toml(), lines=True)
        return
    width = max(map(len, CONFIGS))
    for name, config in CONFIGS.items():
        echo(f"{name:{width}}  {_summary(config)}")


def _summary(config: Config) -> str:
    kinds = {"pixels": config.pixels.backbone, "evidence": "detector evidence"}
    names = ("backbone", "boxes", "triplets", "proposals", "selection")
    stages = {name: getattr(config, name).epochs for name in names}
    epochs = ", ".join(f"{name} {n}" for name, n in stages.items() if n)
    sources = " + ".join(kinds[source] for source in config.sources)
    return f"dataset {config.data.dataset}, {sources}, rank {config.head.rank}; epochs: {epochs}"
