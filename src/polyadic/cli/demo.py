"""`polyadic demo`: the main job on drawn scenes, without any download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option("--out", help="A folder for runs and pictures.")] = Path("demo"),
) -> None:
    """Draw a world, train on it, score it as in the paper's Table 4, and draw what was found: some minutes."""
    from polyadic.cli.train import long_job
    from polyadic.experiments import demo
    from polyadic.experiments.table4 import write
    from polyadic.report import ablation_table

    start = time.monotonic()
    typer.echo(
        "A drawn world: 1,200 pictures to learn from, 200 to be tested on; 20 kinds of objects, 12 predicates.\n"
        "The round thing is a pumpkin, a wheel or a buoy, after a theme that only the tint of the background\n"
        "hints at: so subject, predicate and object go together, and a pair needs a joint distribution.\n"
    )
    if (out / "ablation.csv").exists():
        typer.echo(f"{out} is there already: what is trained in it is kept. Remove the folder to begin anew.\n")
    with long_job("the same command again"):
        found = demo.demo(out)
        pictures = demo.draw_pictures(out / f"rank-{demo.RANKS[-1]}-seed-0", out / "pictures")
    files = write(found, out / "ablation.csv")
    typer.echo("")
    ablation_table(found)
    typer.echo(
        "\nRank-1: subject, predicate and object as if independent. X_sel: would an annotator have picked the\n"
        "pair? prior: how often each triplet was annotated. count table: frequencies alone, no pixels. the exact\n"
        "truth: what a network that knew the world's probabilities would reach; the annotator is random.\n"
        "\nWhat to see: the loss falls as the rank grows; P(X_sel) and the prior each add much. The prior mends\n"
        "what rank 1 cannot say, so that with it rank 1 may lead in recall; see README and tests/test_claims.py.\n"
    )
    run = out / f"rank-{demo.RANKS[-1]}-seed-0"
    for what, where in (
        ("pictures", f"{pictures[0]} and {len(pictures) - 1} more: true names on the boxes, hits in green"),
        ("numbers", files[0]),
        ("runs", f"{out}/rank-*; curves: tensorboard --logdir {out}"),
    ):
        typer.echo(f"{what + ':':9} {where}")
    typer.echo(f"{time.monotonic() - start:,.0f} seconds. Next:")
    for line in (
        f"  polyadic evaluate {run} --k 1 10 free",
        "      # this model, in detail",
        "  polyadic data draw --out world",
        "      # the same pictures as files, in the format of own data: polyadic train then takes yours",
        "  polyadic data fetch vrd --root data/vrd && polyadic train vrd --data data/vrd --out runs/vrd",
        "      # the paper's model on VRD; a GPU helps",
    ):
        typer.echo(line)
