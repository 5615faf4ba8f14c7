"""`polyadic config [PRESET|FILE]`: each number of a run, what it is and whose. Loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyadic.config.schema import Config


def command(
    source: Annotated[str | None, typer.Argument(metavar="[PRESET|FILE]", help="Default: list the presets.")] = None,
) -> None:
    """Print a config as TOML with comments. Kept as a file and changed, it is a CONFIG of one's own."""
    from polyadic.config import PRESETS, load_config

    if source is not None:
        typer.echo(load_config(source).to_toml())
        return
    width = max(map(len, PRESETS))
    for name, config in PRESETS.items():
        typer.echo(f"{name:{width}}  {_line(config)}")


def _line(config: Config) -> str:
    seen = {"pixels": config.pixels.backbone, "evidence": "detector evidence"}
    names = ("backbone", "boxes", "triplets", "proposals", "selection")
    stages = {name: getattr(config, name).epochs for name in names}
    epochs = ", ".join(f"{name} {n}" for name, n in stages.items() if n)
    sources = " + ".join(seen[each] for each in config.sources)
    return f"dataset {config.data.dataset}, {sources}, rank {config.head.rank}; epochs: {epochs}"
