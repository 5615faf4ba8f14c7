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
    from polyadic.cli.train import stopped
    from polyadic.experiments.two_stages import PICTURES, RELATIONS, two_stages, write
    from polyadic.report import table1_table, watching
    from polyadic.training import Interrupted, Stop

    with watching() as watcher, Stop().on_interrupt() as stop:
        try:
            found = two_stages(out, seed, watcher, stop)
        except Interrupted:
            stopped("the same command again")
    files = write(found, (csv or out / "table1.csv").expanduser(), seed)
    typer.echo("")
    table1_table(RELATIONS, found.scores.result, found.scores.free, found.scores.notes)
    held_out = ", ".join(f"{name} {value:.2f}" for name, value in found.precision.items())
    typer.echo(f"the detector on held-out scenes: {held_out}")
    typer.echo(f"numbers: {files[0]}; configs and versions: {files[1]}; pictures: {out / PICTURES / 'all.png'}")
    typer.echo(f"{found.seconds:,.0f} seconds. Next: polyadic predict {out / RELATIONS} YOUR_PICTURES")
