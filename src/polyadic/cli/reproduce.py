"""`polyadic demo`, `polyadic ablate` and `polyadic reproduce`: experiments from data to table in one command."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyadic.cli import predict
from polyadic.cli.options import ANY, DataRoot, curves, echo, examples, long_job, split_words, with_fields
from polyadic.cli.train import Words, chosen_config
from polyadic.config.settings import MOST_SEED
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:  # it loads torch
    from polyadic.experiments.results import Results, Row

OPTIONS = ("data", "out", "ranks", "seeds", "csv", "help")  # of `ablate`
TABLE_OPTIONS = ("data", "proposals", "training-proposals", "out", "seeds", "csv", "help")
LU = Path("lu2016", "objectDetRCNN.mat")

app = typer.Typer(help="Reproduce the paper's tables and figures.", no_args_is_help=True, rich_markup_mode="rich")

_Data = Annotated[Path, typer.Option("--data", help="Folder of the dataset.")]
_Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Number of training runs of each kind, with seeds 0, 1, ...")
]
_Ingredients = Annotated[
    int,
    typer.Option(
        "--ingredients", metavar="N", min=0, help="Number of seeds for the study that changes one ingredient at a time."
    ),
]
_Weights = Annotated[
    Path, typer.Option("--weights", help="Weights of the backbone, tf_efficientnet_lite0 of timm (.safetensors).")
]
_Ranks = Annotated[
    list[int] | None, typer.Option("--ranks", metavar="R...", min=1, help="Ranks of the CP tensor. Default: 1 2 3 4 5.")
]
_LuProposals = Annotated[
    Path | None,
    typer.Option("--proposals", help="Boxes of the test images. Default: lu2016/objectDetRCNN.mat in --data."),
]
_TrainingProposals = Annotated[
    Path | None,
    typer.Option("--training-proposals", help="The detector's boxes of the training images. Default: simulate them."),
]
_Runs = typer.Option("--out", help="Folder for runs and scores; existing ones are reused.")
_Csv = Annotated[Path | None, typer.Option("--csv", help="File for the rows. Default: a file in --out.")]


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder for runs and pictures.")] = Path("demo"),
) -> None:
    """Find relations in two photographs; then train, score and draw on generated scenes. Takes some minutes.

    No download: the photographs come with scikit-image, the scenes have 20 object classes and 12 predicates. Scores are
    printed as in the paper's Table 4.
    """
    from polyadic.cli.tables import ablation_table
    from polyadic.experiments import demo
    from polyadic.experiments.pictures import draw_toy
    from polyadic.experiments.results import check_target
    from polyadic.experiments.runs import open_run

    start = time.monotonic()
    check_target(out / "ablation.csv")
    photographs = demo.photographs()
    if photographs:
        echo(f"$ polyadic predict {' '.join(map(str, photographs))} --draw {out / 'photographs'}")
        predict.command([str(path) for path in photographs], drawn=out / "photographs", overwrite=True)
    else:
        echo("No photographs: they come with scikit-image (pip install scikit-image).")
    echo(
        "\nGenerated scenes: 1,200 for training and 200 for testing, 20 object classes, 12 predicates.\n"
        "The round object is a pumpkin, a wheel or a buoy, depending on a theme that only the tint of the\n"
        "background shows: subject, predicate and object depend on each other, so a pair needs a joint distribution.\n",
        lines=True,
    )
    if (out / "ablation.csv").exists():
        echo(f"{out} exists: trained runs in it are kept. Remove the folder to start over.\n", lines=True)
    run = out / f"rank-{demo.RANKS[-1]}-seed-0"
    with long_job():
        results = demo.demo(out)
        pictures = draw_toy(open_run(run), out / "pictures")
    rows, _ = results.write(out / "ablation.csv")
    echo("")
    ablation_table(results.rows, exponent=results.about["config"]["ranking"]["prior"])
    echo(
        "\nRank-1: subject, predicate and object as if independent. X_sel: would an annotator have selected the\n"
        "pair? prior: how often each triplet was annotated. count table: frequencies alone, no pixels. the exact\n"
        "truth: the probabilities that generated the scenes; the annotator is random.\n"
        "\nWhat to see: the loss falls as the rank grows; P(X_sel) and the prior each add much. The prior corrects\n"
        "what rank 1 cannot express, so that with it rank 1 may lead in recall; see docs/toy.md.\n"
        f"\nphotos:   {out / 'photographs'}"
        f"\npictures: {pictures[0]} and {len(pictures) - 1} more: ground-truth boxes, hits in green"
        f"\nnumbers:  {rows}"
        f"\nruns:     {out}/rank-*{curves(out)}"
        f"\n{time.monotonic() - start:,.0f} seconds. Next:"
        f"\n  polyadic evaluate {run} --k 1 10 free"
        "\n      # this model in detail"
        "\n  polyadic data draw --out world"
        "\n      # the same pictures as files, in the format of your own data: polyadic train then takes yours"
        "\n  polyadic data fetch vrd --root data/vrd && polyadic train vrd --data data/vrd --out runs/vrd"
        "\n      # the paper's model on VRD; a GPU helps",
        lines=True,
    )


def ablate_command(
    words: Words = None,
    data: DataRoot = None,
    out: Annotated[Path, _Runs] = Path("runs/table4"),
    ranks: _Ranks = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Number of seeds, from the field seed up.")
    ] = 3,
    refit: Annotated[
        list[int] | None,
        typer.Option("--refit", metavar="R", help="Train this rank again, on the held-out images too; k is kept."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="File for the rows. Default: ablation.csv in --out.")
    ] = None,
) -> None:
    """Table 4: train several ranks and seeds.

    Each rank is scored alone, with P(X_sel) and with the prior, on any dataset; the paper's rows are of VRD and VG150.
    """
    name, fields = split_words(words or [])
    if "head.rank" in fields:
        raise PolyadicError("--head.rank is what an ablation varies: give --ranks")
    config = with_fields(chosen_config(name, data, fields.get("data.dataset")), fields, OPTIONS)

    from polyadic.cli.tables import ablation_table
    from polyadic.experiments.table4 import ALL, MODEL, RANKS, ablate

    ranks, numbers = ranks or list(RANKS), range(config.seed, config.seed + seeds)
    kinds = {MODEL: ranks, MODEL + ALL: refit or []}
    _experiment(
        csv or out / "ablation.csv",
        lambda: ablate(config, out, ranks, seeds=seeds, refit=refit or ()),
        lambda rows: ablation_table(rows, exponent=config.ranking.prior),
        planned={(what, rank, seed) for what, some in kinds.items() for rank in some for seed in numbers},
        more=f"; runs: {out}",
    )


def _experiment(
    path: Path,
    work: Callable[[], Results],
    show: Callable[[Sequence[Row]], None],
    *,
    planned: set[tuple[str, int | None, int | None]] | None = None,
    more: str = "",
) -> None:
    """Run an experiment from data to table: check the CSV file, do the work, write the rows and print them."""
    from polyadic.experiments.results import check_target

    start, path = time.monotonic(), path.expanduser()
    check_target(path, planned)
    with long_job():
        results = work()
    rows, about = results.write(path)
    show(results.rows)
    echo(f"rows: {rows}; config and versions: {about}; {time.monotonic() - start:,.0f} seconds{more}")


@app.command("toy-two-stages", epilog=examples("polyadic reproduce toy-two-stages --csv results/two-stages.csv"))
def toy_two_stages(
    out: Annotated[Path, _Runs] = Path("two-stages"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=MOST_SEED)] = 0,
    csv: _Csv = None,
) -> None:
    """Train a detector and a relation model on generated scenes.

    Scores are printed in the columns of the paper's Table 1, and some scenes are drawn; takes minutes.
    """
    from polyadic.cli.tables import table1_table
    from polyadic.experiments.demo import RELATIONS, two_stages
    from polyadic.experiments.pictures import draw_detected
    from polyadic.experiments.results import check_target

    start, path = time.monotonic(), (csv or out / "table1.csv").expanduser()
    check_target(path)
    with long_job():
        run, scores, results = two_stages(out, seed)
        pictures = draw_detected(run, out / "pictures")
    rows, about = results.write(path)
    echo("")
    table1_table(RELATIONS, scores.result, scores.free, scores.notes)
    precision = ", ".join(f"{name} {value:.2f}" for name, value in results.about["held_out"].items())
    echo(f"detector on held-out scenes: {precision}")
    echo(f"rows: {rows}; configs and versions: {about}; pictures: {pictures[0]}")
    echo(f"{time.monotonic() - start:,.0f} seconds. Next: polyadic predict {out / RELATIONS} YOUR_PICTURES")


@app.command("vrd-lu", epilog=examples("polyadic reproduce vrd-lu --data data/vrd --csv results/vrd-boxes.csv"))
def vrd_lu(
    data: _Data,
    proposals: _LuProposals = None,
    out: Annotated[Path, _Runs] = Path("runs/vrd-lu"),
    seeds: _Seeds = 3,
    ingredients: _Ingredients = 3,
    csv: _Csv = None,
) -> None:
    """Table 1 on VRD with Lu's proposals, without pixels.

    Beside the upper block of the paper's Table 1; takes an hour or two on a CPU.
    """
    from polyadic.cli.tables import boxes_tables
    from polyadic.config import PRESETS
    from polyadic.experiments.table1 import boxes_table

    boxes = proposals or data.expanduser() / LU
    config = PRESETS["vrd-boxes"].change(**{"data.root": str(data.expanduser().resolve())})
    _experiment(
        csv or out / "table1.csv",
        lambda: boxes_table(config, boxes, out, seeds=range(seeds), ingredients=range(ingredients)),
        boxes_tables,
        more=f". Next: polyadic predict {out / 'plain-seed-0'} YOUR_PHOTOS --detections FILE",
    )


@app.command(
    "vrd-photos",
    context_settings=ANY,
    epilog=examples(
        "polyadic reproduce vrd-photos --data data/vrd --proposals test.safetensors "
        "--training-proposals fold0.safetensors,fold1.safetensors"
    ),
)
def vrd_photos(
    data: _Data,
    proposals: Annotated[
        list[Path], typer.Option("--proposals", help="A detector's boxes of the test photos; repeat it for other sets.")
    ],
    training: Annotated[
        list[str],
        typer.Option(
            "--training-proposals",
            metavar="FILE,...",
            help="Its boxes of the training photos, seen by detectors of other folds; as often as --proposals.",
        ),
    ],
    words: Words = None,
    witness: Annotated[
        Path | None,
        typer.Option(
            "--witness", help="Other boxes of the test photos, joined with each set; training simulates them."
        ),
    ] = None,
    out: Annotated[Path, _Runs] = Path("runs/vrd-photos"),
    seeds: _Seeds = 3,
    csv: _Csv = None,
) -> None:
    """Table 1 on VRD from photos alone, with a detector's own boxes.

    Beside the lower block of the paper's Table 1; default: the preset vrd-photos, ten minutes per training on a CPU.
    """
    if len(proposals) != len(training):
        raise PolyadicError(
            f"--proposals and --training-proposals belong together, got {len(proposals)} and {len(training)}"
        )
    name, fields = split_words(words or [])
    options = (*TABLE_OPTIONS, "witness")
    config = with_fields(chosen_config(name or "vrd-photos", data, fields.get("data.dataset")), fields, options)

    from polyadic.cli.tables import boxes_tables
    from polyadic.experiments.vrd_photos import BoxSet, photos_table
    from polyadic.model.relation_model import RelationModel

    sets = [
        BoxSet(test.stem, test, tuple(map(Path, files.split(","))))
        for test, files in zip(proposals, training, strict=True)
    ]
    model = RelationModel.pretrained("vrd-boxes")
    _experiment(
        csv or out / "table1.csv",
        lambda: photos_table(config, sets, out, seeds=range(seeds), untouched=model, witness=witness),
        boxes_tables,
        more=f"; runs: {out}",
    )


@app.command(
    "table1",
    context_settings=ANY,
    epilog=examples(
        "polyadic reproduce table1 --data data/vrd",
        "polyadic reproduce table1 vrd-boxes --data data/vrd --proposals test.jsonl --training-proposals train.jsonl",
    ),
)
def table_1(
    data: _Data,
    words: Words = None,
    proposals: _LuProposals = None,
    training: _TrainingProposals = None,
    out: Annotated[Path, _Runs] = Path("runs/table1"),
    seeds: _Seeds = 3,
    csv: _Csv = None,
) -> None:
    """Table 1: relationship and phrase detection on VRD.

    Any model on any detector's boxes (default: the preset vrd on Lu's), beside the published rows.
    """
    _paper_table(1, data, words, out, seeds=seeds, csv=csv, proposals=proposals, training=training)


@app.command(
    "table2",
    context_settings=ANY,
    epilog=examples("polyadic reproduce table2 --data data/vg200 --proposals test.jsonl"),
)
def table_2(
    data: _Data,
    words: Words = None,
    proposals: Annotated[
        Path | None,
        typer.Option("--proposals", help="A detector's boxes of the test images. Default: data.detector's."),
    ] = None,
    training: _TrainingProposals = None,
    out: Annotated[Path, _Runs] = Path("runs/table2"),
    seeds: _Seeds = 3,
    csv: _Csv = None,
) -> None:
    """Table 2: relationship and phrase detection on VG200, k = 1 and free k.

    Any model on any detector's boxes (default: the preset vg200), beside the published rows.
    """
    _paper_table(2, data, words, out, seeds=seeds, csv=csv, proposals=proposals, training=training)


@app.command("table3", context_settings=ANY, epilog=examples("polyadic reproduce table3 --data data/vg"))
def table_3(
    data: _Data,
    words: Words = None,
    out: Annotated[Path, _Runs] = Path("runs/table3"),
    seeds: _Seeds = 3,
    csv: _Csv = None,
) -> None:
    """Table 3: phrase classification on VG150, free k and k = 1.

    Any model (default: the preset vg150), beside the published rows.
    """
    _paper_table(3, data, words, out, seeds=seeds, csv=csv)


def _paper_table(
    number: int,
    data: Path,
    words: list[str] | None,
    out: Path,
    *,
    seeds: int,
    csv: Path | None,
    proposals: Path | None = None,
    training: Path | None = None,
) -> None:
    name, fields = split_words(words or [])
    config = with_fields(chosen_config(name, data, fields.get("data.dataset")), fields, TABLE_OPTIONS)

    from polyadic.cli.tables import paper_table as show
    from polyadic.experiments.paper import MODEL, TABLES, paper_table, simulated_note, with_boxes

    table = TABLES[number]
    if config.data.dataset != table.dataset:
        raise PolyadicError(f"Table {number} is of {table.dataset}, but {data} has the layout of {config.data.dataset}")
    if table.detects and not config.data.detector:
        if number == 1 and proposals is None:
            proposals = data.expanduser() / LU
        if proposals is None:
            raise PolyadicError(
                "--proposals is missing: a detector's boxes of the test images (or --data.detector RUN)"
            )
    config = with_boxes(config, proposals, training)
    numbers = range(config.seed, config.seed + seeds)
    _experiment(
        csv or out / f"table{number}.csv",
        lambda: paper_table(table, config, out, seeds=numbers, proposals=proposals),
        lambda rows: show(number, rows, simulated_note(config, proposals)),
        planned={(MODEL, None, seed) for seed in numbers},
        more=f"; runs: {out}",
    )


app.command(
    "table4",
    context_settings=ANY,
    epilog=examples("polyadic reproduce table4 --data data/vg", "polyadic reproduce table4 vrd-pixels --data data/vrd"),
)(ablate_command)


@app.command(
    "vrd-lu-pixels",
    epilog=examples("polyadic reproduce vrd-lu-pixels --data data/vrd --weights lite0.safetensors"),
)
def vrd_lu_pixels(
    data: _Data,
    weights: _Weights,
    proposals: _LuProposals = None,
    out: Annotated[Path, _Runs] = Path("runs/vrd-lu-pixels"),
    seeds: _Seeds = 3,
    csv: _Csv = None,
) -> None:
    """Pixels and detector evidence beside evidence alone, on Lu's proposals.

    Both are trained on the images that have a picture; takes an hour or two on a CPU.
    """
    from polyadic.cli.tables import by_task
    from polyadic.experiments.table1 import BOTH, EVIDENCE, FIXED, headline, vrd_both

    boxes = proposals or data / LU
    _experiment(
        csv or out / "table1.csv",
        lambda: vrd_both(data, weights, boxes, out=out, seeds=range(seeds)),
        lambda rows: by_task(headline(rows), FIXED),
        planned={(what, None, seed) for what in (EVIDENCE, BOTH) for seed in range(seeds)},
    )


@app.command(
    "vrd-ablation",
    epilog=examples("polyadic reproduce vrd-ablation --data data/vrd --weights lite0.safetensors"),
)
def vrd_ablation_command(
    data: _Data,
    weights: _Weights,
    out: Annotated[Path, _Runs] = Path("runs/vrd-ablation"),
    seeds: _Seeds = 3,
    ranks: _Ranks = None,
    csv: _Csv = None,
) -> None:
    """The VRD half of Table 4: ground-truth boxes and pixels.

    Our variant is listed apart from the paper's recipe; takes hours on a CPU.
    """
    from polyadic.cli.tables import ablation_table
    from polyadic.config import PRESETS
    from polyadic.experiments.table4 import PHRASES, PREDICATES, RANKS, vrd_ablation, vrd_planned

    ranks, exponent = ranks or list(RANKS), PRESETS["vrd-pixels"].ranking.prior

    def show(rows: Sequence[Row]) -> None:
        for task in (PHRASES, PREDICATES):
            ablation_table(rows, task, exponent=exponent)

    planned = vrd_planned(ranks, range(seeds))
    work = partial(vrd_ablation, data, weights, out, seeds=seeds, ranks=ranks)
    _experiment(csv or out / "table4.csv", work, show, planned=planned)


@app.command(
    "vrd-pictures",
    epilog=examples(
        "polyadic reproduce vrd-pictures runs/vrd --data data/vrd",
        "polyadic reproduce vrd-pictures runs/vrd-lu/plain-seed-0 --detections data/vrd/lu2016/objectDetRCNN.mat",
    ),
)
def vrd_pictures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A training run, or its model.")],
    detections: Annotated[
        Path | None,
        typer.Option("--detections", help="Proposals of the test photos (.mat, .jsonl, ...). Default: the true boxes."),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of VRD. Default: the run's.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("runs/vrd-pictures"),
    images: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Number of photos.")] = 12,
    prior: Annotated[
        float | None,
        typer.Option("--prior", metavar="N", min=0.01, help="Exponent of the prior. Default: the run's, or 1."),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Count on all test photos, too; file for the rows.")] = None,
) -> None:
    """The paper's qualitative figures: test photos with the best triplets.

    Boxes and annotations beside the best triplets with and without the prior. Hits are green and ticked; without the
    prior, spurious triplets are red and crossed: never annotated in training, no hit, and no longer listed with it.
    """
    from polyadic.experiments.pictures import draw_figures, figure_results
    from polyadic.experiments.results import check_target
    from polyadic.experiments.runs import open_run, read_detections_of

    if csv is not None:
        csv = csv.expanduser()
        check_target(csv)
    opened = open_run(run, root=data)
    boxes = None if detections is None else read_detections_of(detections, opened)
    with long_job():
        figures = draw_figures(opened, boxes, out.expanduser(), number=images, prior=prior, everywhere=csv is not None)
    echo(f"drawn: {figures.drawn}\npictures: {figures.files[0]}", lines=True)
    if csv is not None:
        boxes_from = "true boxes" if detections is None else detections.name
        rows, about = figure_results(figures, opened, boxes_from).write(csv)
        echo(f"all: {figures.everywhere}\nrows: {rows}; config and versions: {about}", lines=True)
