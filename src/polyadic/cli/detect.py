"""`polyadic detect`: train a detector and write its detections for a split."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.options import (
    ANY,
    DATASETS,
    DataRoot,
    Overwrite,
    Resume,
    check_resume,
    curves,
    echo,
    examples,
    long_job,
    split_words,
    with_fields,
)
from polyadic.cli.train import replacing
from polyadic.structures.vocabulary import PolyadicError

app = typer.Typer(
    help="Train an object detector and write its detections for a split.", no_args_is_help=True, rich_markup_mode="rich"
)
OPTIONS = ("data", "dataset", "preset", "out", "resume", "overwrite", "help")
PRESETS = "vgg16, resnet50-fpn, mobilenetv3-fpn, yolox-nano, toy"


@app.command(
    context_settings=ANY,
    epilog=examples(
        "polyadic detect train mobilenetv3-fpn --data data/vrd --out runs/detector",
        "polyadic detect train --resume --out runs/detector",
    ),
)
def train(
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [--SECTION.FIELD VALUE]...",
            help=f"A preset ({PRESETS}), or a .toml or .json file; then any of its fields.",
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="The CONFIG, as an option.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help=f"{DATASETS} (config field data.dataset).")] = None,
    data: DataRoot = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a Faster R-CNN or a YOLOX-Nano on the boxes of a dataset.

    Ctrl-C loses no work, and --resume continues to the same weights. Any config field can be set as an option.
    """
    from polyadic.config import load_detector_config

    given, fields = split_words(words or [])
    if given is not None and preset is not None:
        raise PolyadicError(f"expected one CONFIG, got {given} and --preset {preset}")
    name = given or preset
    check_resume(resume, overwrite)
    if name is None and not resume:
        raise PolyadicError(f"CONFIG is missing: a preset ({PRESETS}), or a .toml or .json file")
    before = None
    if resume:
        from polyadic.training.detector import detector_run_config

        before = detector_run_config(out.expanduser())
    config = before if name is None and before is not None else load_detector_config(str(name))
    config = with_fields(config, fields, OPTIONS)
    if dataset is not None:
        config = config.change(**{"data.dataset": dataset})
    root = str(data) if data is not None else config.data.root or (before.data.root if before else "")
    if root:
        config = config.change(**{"data.root": str(Path(root).expanduser().resolve())})

    from polyadic.experiments.runs import best_of
    from polyadic.training.detector import train_detector

    start = time.monotonic()
    inputs = (name, config.data.root, config.weights, config.data.teachers)
    with replacing(out.expanduser(), overwrite, inputs), long_job(f"polyadic detect train --resume --out {out}"):
        train_detector(config, out, resume=resume)
    best = best_of(out.expanduser())
    numbers = ", ".join(f"{name} {value:.2f}" for name, value in best["held_out"].items())
    echo(f"detector: {out / 'model'}, best at epoch {best['epoch']}: held-out {numbers or 'nothing'}")
    echo(f"{time.monotonic() - start:,.0f} seconds{curves(out)}")
    echo(f"next: polyadic detect run {out} --split train --out proposals.safetensors")


@app.command(epilog=examples("polyadic detect run runs/detector --split test --out test.safetensors"))
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `polyadic detect train`, or vrd-detector.")],
    out: Annotated[Path, typer.Option("--out", help="A .safetensors file (with class distributions) or .jsonl.")],
    split: Annotated[str, typer.Option("--split", help="train, fit, validation or test.")] = "train",
    dataset: Annotated[str | None, typer.Option("--dataset", help="Another dataset with the same classes.")] = None,
    data: DataRoot = None,
    beside: Annotated[
        Path | None,
        typer.Option("--with", help="Other boxes of the same images, to be joined: a file, or an .onnx detector."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Images per batch.")] = 8,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted file.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the detector's boxes for a split and print their quality.

    A detector of one fold (data.folds) looks at the training images that it has not seen.
    """
    from polyadic.experiments.proposals import MOST, detect_split

    check_resume(resume, overwrite)
    with long_job(f"polyadic detect run {folder} --split {split} --out {out} --resume"):
        proposals = detect_split(
            folder,
            split,
            out,
            dataset=dataset,
            root=data,
            beside=beside,
            batch=batch,
            resume=resume,
            overwrite=overwrite,
        )
    images = proposals.images
    echo(f"{proposals.path}: {images:,} images, {proposals.boxes / max(images, 1):.1f} boxes per image")
    if proposals.precision:
        where = f" of the first {MOST:,} images" if images > MOST else ""
        echo(", ".join(f"{name} {value:.1f}" for name, value in proposals.precision.items()) + where)
    if not math.isnan(proposals.ceiling):
        shares = f"{proposals.ceiling:.1f}%, with the right labels: {proposals.labelled:.1f}%"
        echo(f"relations with both boxes found: {shares}")


@app.command(epilog=examples("polyadic detect config vgg16 > my-detector.toml"))
def config(
    source: Annotated[str | None, typer.Argument(metavar="[PRESET|FILE]", help="Default: list the presets.")] = None,
) -> None:
    """List the detector presets, or print one as TOML."""
    from polyadic.config import DETECTOR_PRESETS, load_detector_config

    if source is not None:
        echo(load_detector_config(source).to_toml(), lines=True)
        return
    width = max(map(len, DETECTOR_PRESETS))
    for name, preset in DETECTOR_PRESETS.items():
        where = f"dataset {preset.data.dataset}, images of {preset.side} to {preset.longest} pixels"
        epochs = f"{preset.training.epochs} epochs"
        echo(f"{name:{width}}  {preset.network}, {preset.weights} weights, {where}; {epochs}")
