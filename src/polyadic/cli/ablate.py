"""`polyadic ablate CONFIG --out DIR`: the paper's Table 4."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.flags import split_words, with_fields
from polyadic.cli.train import DataRoot, Words, long_job
from polyadic.structures.vocabulary import PolyadicError

OWN = ("data", "out", "ranks", "seeds", "csv", "help")


def command(
    out: Annotated[Path, typer.Option("--out", help="A folder for the runs; those that are there are gone on with.")],
    words: Words = None,
    data: DataRoot = None,
    ranks: Annotated[list[int] | None, typer.Option("--ranks", min=1, help="Default: 1 2 3 4 5.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from the field seed up.")] = 3,
    csv: Annotated[Path | None, typer.Option("--csv", help="Where the rows go. Default: ablation.csv in DIR.")] = None,
) -> None:
    """The paper's Table 4 on any dataset. Ranks are trained with several seeds, P(X_sel) and prior added."""
    from polyadic.config import load_config

    name, fields = split_words(words or [])
    if name is None:
        raise PolyadicError("which CONFIG? A preset (`polyadic config` lists them), or a .toml or .json file")
    if "head.rank" in fields:
        raise PolyadicError("--head.rank is what an ablation varies: give --ranks")
    config = with_fields(load_config(name), fields, OWN)
    if data is not None:
        config = config.change(**{"data.root": str(data.expanduser().resolve())})

    from polyadic.experiments.ablation import RANKS, ablate
    from polyadic.experiments.ablation_scores import MODEL
    from polyadic.experiments.table4 import check_file, write
    from polyadic.report import ablation_table

    path = (csv or out / "ablation.csv").expanduser()
    numbers = range(config.seed, config.seed + seeds)
    check_file(path, {(MODEL, str(rank), str(seed)) for rank in ranks or RANKS for seed in numbers})
    with long_job("the same command again"):
        found = ablate(config, out, ranks or RANKS, seeds)
    files = write(found, path)
    ablation_table(found)
    typer.echo(f"rows: {files[0]}; config and versions: {files[1]}; runs: {out}")
