"""Shared by the commands: config fields as options, common options, long jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from polyadic.config.settings import C, leaves
from polyadic.progress import printable
from polyadic.structures.vocabulary import PolyadicError

ANY = {"allow_extra_args": True, "ignore_unknown_options": True}  # typer leaves config fields to us

DATASETS = "vrd, vg150, vg200, toy (generated scenes), or coco (your own data)"
DataRoot = Annotated[Path | None, typer.Option("--data", help="Folder of the dataset (config field data.root).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel="Output")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run with its stored config.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]


def echo(text: str, *, err: bool = False, bold: bool = False, lines: bool = False) -> None:
    """Print a line, or several, escaped: all text of the commands passes here, or a console of `safe_console`.

    Of several processes that train together, the first prints.
    """
    if not is_first_process():
        return
    text = printable(text, lines=lines)
    typer.echo(typer.style(text, bold=True) if bold else text, err=err)


def examples(*lines: str) -> str:
    """Format the examples at the end of a help page."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def split_words(words: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Split into the config's name, if given, and config fields; `--a.b c` and `--a.b=c` are the same."""
    names: list[str] = []
    fields: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            names.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        if not equals:
            after = next(rest, None)
            if after is None or after.startswith("--"):
                raise PolyadicError(f"--{key} needs a value")
            value = after
        fields[key] = value
    if len(names) > 1:
        raise PolyadicError(
            f"expected one CONFIG, got {' and '.join(names)}; join several values of a field by commas: "
            "--pixels.strides 8,16"
        )
    return (names[0] if names else None), fields


def with_fields(config: C, fields: dict[str, str], options: Sequence[str]) -> C:
    """Set config fields from text; for an unknown one, name the nearest field or option of the command."""
    known = dict(leaves(config))
    for key in fields:
        near = get_close_matches(key, [*known, *options], n=1)
        if key not in known and near and near[0] in options:
            raise PolyadicError(f"no option --{key}; did you mean --{near[0]}?")
    return config.change_text(fields)


def curves(folder: Path) -> str:
    """Say how to look at training curves, where TensorBoard is installed."""
    return f"; curves: tensorboard --logdir {folder}" if find_spec("tensorboard") else ""


def check_resume(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise PolyadicError("--resume and --overwrite are mutually exclusive")


def parse_k(word: str) -> int | None:
    """Parse --k: a number, or None for any."""
    if word == "any":
        return None
    if word.isascii() and word.isdecimal() and int(word) > 0:
        return int(word)
    raise PolyadicError(f"--k: expected a whole number from 1, or any, got {word!r}")


def is_first_process() -> bool:
    """Whether this is the only process, or the one of torchrun that prints."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def long_job(command: str = "the same command") -> Iterator[None]:
    """Show progress; at Ctrl-C, exit with one line that says how to continue."""
    from polyadic.progress import Interrupted, interruptible, showing

    with showing(), interruptible():
        try:
            yield
        except Interrupted:
            echo(f"polyadic: stopped, no work is lost; continue with: {command}", err=True)
            raise typer.Exit(130) from None
