"""`polyadic data check | stats | convert | fetch | draw`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic.cli.options import DATASETS, AsJson, echo, examples, long_job
from polyadic.config.settings import MOST_SEED
from polyadic.structures.vocabulary import PolyadicError

app = typer.Typer(help="Download, check, count and convert datasets.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="DATASET", help=f"{DATASETS}.")]
Root = Annotated[Path, typer.Option("--root", help="Folder of the dataset.")]
AnyRoot = Annotated[Path | None, typer.Option("--root", help="Folder of the dataset; toy has none.")]
Splits = Annotated[list[str] | None, typer.Option("--split", metavar="SPLIT...", help="Default: train and test.")]


@app.command(epilog=examples("polyadic data check vrd --root data/vrd --allow-missing-images"))
def check(
    name: Name,
    root: AnyRoot = None,
    split: Splits = None,
    allow_missing_images: Annotated[
        bool, typer.Option("--allow-missing-images", help="Report missing images without failing.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List every problem and missing image, not the first few.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find errors in a dataset: file, record, field. Exit code 1 if there are any."""
    from polyadic.cli.tables import check_table
    from polyadic.datasets import folder_of, format_of
    from polyadic.datasets.check import check_split, report_shared_images

    kind, folder = format_of(name), folder_of(name, root)
    splits = split or kind.splits(folder)
    for part in splits:
        if part not in kind.splits(folder):
            raise PolyadicError(f"no split {part!r} on disk; known: {', '.join(kind.splits(folder))}")
    with long_job():
        checks = [check_split(kind, folder, part) for part in splits]
    report_shared_images(checks)
    if as_json:
        echo(json.dumps({"dataset": name, "splits": [result.to_json() for result in checks]}))
    else:
        for result in checks:
            check_table(name, result, everything)
    if any(result.problems or (result.missing and not allow_missing_images) for result in checks):
        raise typer.Exit(1)


@app.command(epilog=examples("polyadic data stats vrd --root data/vrd"))
def stats(name: Name, root: AnyRoot = None, split: Splits = None, as_json: AsJson = False) -> None:
    """Count images, boxes, relations and classes of a dataset."""
    from polyadic.cli.tables import stats_table
    from polyadic.datasets import load_dataset
    from polyadic.datasets.check import statistics, zero_shot

    loaded = {part: load_dataset(name, root, part) for part in split or ["train", "test"]}
    value: dict[str, Any] = {"dataset": name, "splits": [statistics(data) for data in loaded.values()]}
    if "test" in loaded:
        train = loaded["train"] if "train" in loaded else load_dataset(name, root, "train")
        value["zero-shot"] = zero_shot(train, loaded["test"])
    if as_json:
        echo(json.dumps(value))
    else:
        stats_table(value)


@app.command(epilog=examples("polyadic data convert vrd --root data/vrd --to coco --out data/vrd-coco"))
def convert(
    name: Name,
    root: Root,
    to: Annotated[str, typer.Option("--to", help="coco, or the format that the data came from.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
    link_images: Annotated[
        bool, typer.Option("--link-images", help="Link the image folders into the new folder.")
    ] = False,
) -> None:
    """Convert a dataset to COCO with rel_annotations. Images stay where they are."""
    from polyadic.datasets import folder_of
    from polyadic.datasets.check import convert as run

    for path in run(name, folder_of(name, root), to, out, link_images=link_images):
        echo(str(path))
    if name == "vg150":
        echo("note: loaded as coco every image counts; VG150's own rules apply to vg150 only", err=True)


@app.command(epilog=examples("polyadic data fetch vrd --root data/vrd"))
def fetch(
    name: Name,
    root: Annotated[Path, typer.Option("--root", help="Folder to fill.")],
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds without data before the next try.")] = 30.0,
    unpacked: Annotated[
        float | None,
        typer.Option("--unpacked", help="Gigabytes that an archive may unpack to."),
    ] = None,
) -> None:
    """Download a dataset. An interrupted download continues, and files are verified."""
    from polyadic.datasets.fetch import fetch as run

    with long_job():
        paths = run(name, root, timeout=timeout, unpacked=unpacked)
    for path in paths:
        echo(str(path))
    if not paths:
        echo(f"{root} already has all files of {name}")


@app.command(epilog=examples("polyadic data draw --out world --train 100 --test 20"))
def draw(
    out: Annotated[Path, typer.Option("--out", help="An empty folder for images and annotations.")],
    train: Annotated[int, typer.Option("--train", help="Number of training scenes.")] = 800,
    test: Annotated[int, typer.Option("--test", help="Number of test scenes.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of the generated scenes.")] = 0,
) -> None:
    """Write the toy dataset to disk in the format of your own data: PNG images, COCO with rel_annotations."""
    from polyadic.datasets.toy.world import World, write

    with long_job():
        paths = write(World(train, test, seed), out)
    for path in paths:
        echo(str(path))
    echo(f"{train + test:,} images in {out / 'images'}; read them as the dataset coco", err=True)
