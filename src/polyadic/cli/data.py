"""`polyadic data check | stats | convert | fetch | draw`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyadic import progress
from polyadic.structures.vocabulary import PolyadicError

app = typer.Typer(help="Get, check, count and convert datasets.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="vrd, vg150, vg200, coco for own data, or toy, which is drawn.")
]
Root = Annotated[Path, typer.Option("--root", help="The folder that holds the dataset.")]
AnyRoot = Annotated[Path | None, typer.Option("--root", help="The folder that holds the dataset; toy has none.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table for people.")]


@app.command()
def check(
    name: Name,
    root: AnyRoot = None,
    split: Annotated[list[str] | None, typer.Option("--split", help="Default: train and test.")] = None,
    allow_missing_images: Annotated[
        bool, typer.Option("--allow-missing-images", help="Missing pictures are told, but are no failure.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every problem and missing picture, not the first few.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong in a dataset, where, and how many; exit code 1 if anything is."""
    from polyadic.datasets import folder_of, format_of
    from polyadic.datasets.check import check_split, report_shared_images
    from polyadic.report import check_table

    kind, folder = format_of(name), folder_of(name, root)
    on_disk = ["train", "test", *(["validation"] if kind.has_validation(folder) else [])]
    splits = split or on_disk
    for part in splits:
        if part not in on_disk:
            raise PolyadicError(f"no split is called {part!r} on disk; known: {', '.join(on_disk)}")
    found = []
    for part in splits:
        with progress.showing():
            found.append(check_split(kind.read, folder, part))
    report_shared_images(found)
    if as_json:
        typer.echo(json.dumps({"dataset": name, "splits": [each.to_json() for each in found]}))
    else:
        for each in found:
            check_table(name, each, everything)
    if any(each.problems or (each.missing and not allow_missing_images) for each in found):
        raise typer.Exit(1)


@app.command()
def stats(
    name: Name,
    root: AnyRoot = None,
    split: Annotated[list[str] | None, typer.Option("--split", help="Default: train and test.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count a dataset: sizes, class balance, pairs with several predicates, zero-shot share, boxes per image."""
    from polyadic.datasets import load_dataset
    from polyadic.datasets.check import statistics, zero_shot
    from polyadic.report import stats_table

    loaded = {each: load_dataset(name, root, each) for each in split or ["train", "test"]}
    value: dict[str, Any] = {"dataset": name, "splits": [statistics(each) for each in loaded.values()]}
    if "test" in loaded:
        train = loaded["train"] if "train" in loaded else load_dataset(name, root, "train")
        value["zero-shot"] = zero_shot(train, loaded["test"])
    if as_json:
        typer.echo(json.dumps(value))
    else:
        stats_table(value)


@app.command()
def convert(
    name: Name,
    root: Root,
    to: Annotated[str, typer.Option("--to", help="coco, or vrd for data in coco.")],
    out: Annotated[Path, typer.Option("--out", help="A folder for the new files; nothing in it is overwritten.")],
    link_images: Annotated[
        bool, typer.Option("--link-images", help="Link the folders of pictures into the new folder.")
    ] = False,
) -> None:
    """Convert VRD, VG150 or VG200 to COCO + rel_annotations, or these to VRD. Pictures stay where they are."""
    from polyadic.datasets import folder_of
    from polyadic.datasets.check import convert as run

    for path in run(name, folder_of(name, root), to, out, link_images=link_images):
        typer.echo(str(path))
    if name == "vg150":
        typer.echo("note: loaded as coco every scene counts; the field's rules apply to vg150 alone", err=True)


@app.command()
def fetch(
    name: Name,
    root: Annotated[Path, typer.Option("--root", help="The folder to fill.")],
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds without a byte before the next try.")] = 30.0,
) -> None:
    """Download a dataset: mirrors in turn, resumed after an interruption, checked before it gets its name."""
    from polyadic.datasets.fetch import fetch as run

    with progress.showing():
        paths = run(name, root, timeout=timeout)
    for path in paths:
        typer.echo(str(path))
    if not paths:
        typer.echo(f"everything of {name} is in {root} already")


@app.command()
def draw(
    out: Annotated[Path, typer.Option("--out", help="An empty folder for the pictures and the annotations.")],
    train: Annotated[int, typer.Option("--train", help="Scenes to train on.")] = 800,
    test: Annotated[int, typer.Option("--test", help="Scenes to test on.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Another seed draws other scenes of the same world.")] = 0,
) -> None:
    """Write the drawn world (toy) to disk as own data: PNG pictures, COCO + rel_annotations."""
    from polyadic.datasets.toy.world import World, write

    world = World(train, test, seed)
    with progress.showing():
        paths = write(world, out)
    for path in paths:
        typer.echo(str(path))
    typer.echo(f"{train + test:,} pictures in {out / 'images'}; read them as the dataset coco", err=True)
