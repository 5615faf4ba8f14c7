"""`polyadic reproduce WHAT`: from data to table in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Tables that make themselves: from data to numbers in one command.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command("toy-two-stages")
def toy_two_stages(
    out: Annotated[Path, typer.Option("--out", help="A folder for runs, numbers and pictures.")] = Path("two-stages"),
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    csv: Annotated[Path | None, typer.Option("--csv", help="Where the rows go. Default: table1.csv in --out.")] = None,
) -> None:
    """A detector and a relation model from scratch on drawn scenes, in the columns of the paper's Table 1; minutes."""
    from polyadic.cli.train import long_job
    from polyadic.experiments.two_stages import PICTURES, RELATIONS, two_stages, write
    from polyadic.report import table1_table

    with long_job("the same command again"):
        found = two_stages(out, seed)
    files = write(found, (csv or out / "table1.csv").expanduser(), seed)
    typer.echo("")
    table1_table(RELATIONS, found.scores.result, found.scores.free, found.scores.notes)
    held_out = ", ".join(f"{name} {value:.2f}" for name, value in found.precision.items())
    typer.echo(f"the detector on held-out scenes: {held_out}")
    typer.echo(f"numbers: {files[0]}; configs and versions: {files[1]}; pictures: {out / PICTURES / 'all.png'}")
    typer.echo(f"{found.seconds:,.0f} seconds. Next: polyadic predict {out / RELATIONS} YOUR_PICTURES")


@app.command("vrd-pictures")
def vrd_pictures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A trained run, or its model.")],
    detections: Annotated[Path, typer.Option("--detections", help="Proposals of the test photos: Lu's .mat, ours.")],
    data: Annotated[Path | None, typer.Option("--data", help="The folder that holds VRD. Default: the run's.")] = None,
    out: Annotated[Path, typer.Option("--out", help="A folder for the pictures.")] = Path("runs/vrd-pictures"),
    images: Annotated[int, typer.Option("--images", min=1)] = 12,
    prior: Annotated[
        float | None, typer.Option("--prior", min=0.01, help="Its exponent. Default: the run's, or 1 if that is 0.")
    ] = None,
) -> None:
    """Test photos with proposals and the best triplets, hits green and ticked, with and without the prior."""
    from polyadic.cli.train import long_job
    from polyadic.experiments.evaluating import detections_of
    from polyadic.experiments.runs import open_run
    from polyadic.experiments.vrd_pictures import draw_pictures

    opened = open_run(run, root=data)
    boxes = detections_of(detections, opened)
    with long_job("the same command again"):
        made = draw_pictures(opened, boxes, out.expanduser(), images, prior)
    typer.echo(
        f"{len(made.files)} photos; annotated are {made.hits} of {made.shown} triplets with the prior, "
        f"{made.hits_without} of {made.shown_without} without it: {made.sheet}"
    )


_Data = Annotated[Path, typer.Option("--data", help="The folder that holds the dataset.")]
_Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each kind, with seeds 0, 1, ...")]
_Apart = Annotated[
    int, typer.Option("--ingredients", min=0, help="Seeds with which each ingredient is changed in turn; 0: none.")
]
_Weights = Annotated[
    Path, typer.Option("--weights", help="The backbone's: tf_efficientnet_lite0 of timm, .safetensors.")
]
_Rows = Annotated[Path | None, typer.Option("--csv", help="Where the rows go. Default: table1.csv in --out.")]


@app.command("vrd-lu")
def vrd_lu(
    data: _Data,
    proposals: Annotated[
        Path | None, typer.Option("--proposals", help="Boxes of the test images. Default: Lu's, lu2016/ in --data.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="A folder for runs and scores.")] = Path("runs/vrd-lu"),
    seeds: _Seeds = 3,
    ingredients: _Apart = 3,
    csv: _Rows = None,
) -> None:
    """VRD on Lu's proposals without pixels, beside the upper block of the paper's Table 1; an hour or two on a CPU."""
    _boxes(
        "vrd", data, proposals or data.expanduser() / "lu2016" / "objectDetRCNN.mat", None, out, seeds, ingredients, csv
    )


@app.command("table1")
def table_1(
    data: _Data,
    proposals: Annotated[Path, typer.Option("--proposals", help="A detector's boxes of the test images.")],
    training: Annotated[
        Path | None,
        typer.Option("--training-proposals", help="Its boxes of the training images. Without: simulated ones."),
    ] = None,
    dataset: Annotated[str, typer.Option("--dataset", help="vrd, vg150, vg200 or coco (own data).")] = "vrd",
    out: Annotated[Path, typer.Option("--out", help="A folder for runs and scores.")] = Path("runs/table1"),
    seeds: _Seeds = 3,
    ingredients: _Apart = 0,
    csv: _Rows = None,
) -> None:
    """The same on any dataset and any detector's proposals: VG150, VG200, better proposals of VRD, own data."""
    _boxes(dataset, data, proposals, training, out, seeds, ingredients, csv)


def _boxes(
    dataset: str,
    data: Path,
    proposals: Path,
    training: Path | None,
    out: Path,
    seeds: int,
    ingredients: int,
    csv: Path | None,
) -> None:
    from polyadic.cli.train import long_job
    from polyadic.config import PRESETS
    from polyadic.experiments.boxes_rows import check_file, write
    from polyadic.experiments.boxes_table import boxes_table
    from polyadic.report import boxes_tables

    keys = {"data.dataset": dataset, "data.root": str(data.expanduser().resolve())}
    if training is not None:
        keys["data.detections"] = str(training.expanduser().resolve())
    config = PRESETS["vrd-boxes"].change(**keys)
    target = (csv or out / "table1.csv").expanduser()
    check_file(target)
    with long_job("the same command again"):
        found = boxes_table(config, proposals, out, range(seeds), range(ingredients))
    files = write(found, target)
    boxes_tables(found)
    typer.echo(f"numbers: {', '.join(map(str, files))}")
    typer.echo(
        f"{found.seconds:,.0f} seconds. Next: polyadic predict {out / 'plain-seed-0'} YOUR_PHOTOS --detections FILE"
    )


@app.command("vrd-ablation")
def vrd_ablation_command(
    data: _Data,
    weights: _Weights,
    out: Annotated[Path, typer.Option("--out", help="A folder for features, runs, scores.")] = Path(
        "runs/vrd-ablation"
    ),
    seeds: _Seeds = 3,
    ranks: Annotated[list[int] | None, typer.Option("--ranks", min=1, help="Default: 1 2 3 4 5.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Where the rows go. Default: table4.csv in --out.")] = None,
) -> None:
    """VRD with true boxes and pixels, beside the VRD half of the paper's Table 4; ours apart. Hours on a CPU."""
    from polyadic.cli.train import long_job
    from polyadic.experiments.ablation import RANKS
    from polyadic.experiments.ablation_scores import PHRASES, PREDICATES
    from polyadic.experiments.vrd_ablation import check, vrd_ablation, write
    from polyadic.report import ablation_table

    path = (csv or out / "table4.csv").expanduser()
    check(path, ranks or RANKS, range(seeds))
    with long_job("the same command again"):
        found = vrd_ablation(data, weights, out, seeds, ranks or RANKS)
    files = write(found, path)
    for task in (PHRASES, PREDICATES):
        ablation_table(found.table, task)
    typer.echo(f"rows: {files[0]}; configs and versions: {files[1]}; {found.seconds:,.0f} seconds")


@app.command("vrd-lu-pixels")
def vrd_lu_pixels(
    data: _Data,
    weights: _Weights,
    proposals: Annotated[
        Path | None, typer.Option("--proposals", help="Boxes of the test images. Default: Lu's, lu2016/ in --data.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="A folder for runs.")] = Path("runs/vrd-lu-pixels"),
    seeds: _Seeds = 3,
    csv: _Rows = None,
) -> None:
    """Pixels and evidence on Lu's proposals beside evidence alone, from pictured images; an hour or two on a CPU."""
    from polyadic.cli.train import long_job
    from polyadic.experiments.vrd_both import check_file, vrd_both, write

    boxes, path = proposals or data / "lu2016" / "objectDetRCNN.mat", (csv or out / "table1.csv").expanduser()
    check_file(path, range(seeds))
    with long_job("the same command again"):
        rows, made = vrd_both(data, weights, boxes, out, range(seeds))
    files = write(rows, made, path)
    for row in rows:
        typer.echo(f"{row.what}, seed {row.seed}: {row.task} k = {row.k} R@{row.N} {row.recall:.2f}")
    typer.echo(f"rows: {files[0]}; configs and versions: {files[1]}")
