"""The command `polyadic`. Heavy modules are imported by the commands that use them, so `--help` is quick."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

import polyadic
from polyadic.cli import ablate, config, data, demo, detect, evaluate, predict, reproduce, train
from polyadic.cli.flags import ANY
from polyadic.structures.vocabulary import PolyadicError

app = typer.Typer(
    name="polyadic",
    help="Who does what to whom in a photo: datasets, training, evaluation, prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(detect.app, name="detect")
app.command(name="train", context_settings=ANY)(train.command)
app.command(name="evaluate")(evaluate.command)
app.command(name="predict")(predict.command)
app.command(name="ablate", context_settings=ANY)(ablate.command)
app.command(name="config")(config.command)
app.command(name="demo")(demo.command)


def _version(asked: bool | None) -> None:
    if asked:
        typer.echo(f"polyadic {polyadic.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = None,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what a person can mend is one line, without a traceback."""
    warnings.showwarning = _note
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names may have letters that the terminal has not
    try:
        app(args=spread(sys.argv[1:] if arguments is None else arguments), prog_name="polyadic")
    except PolyadicError as error:
        print(f"polyadic: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("polyadic: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone
        sys.exit(141)
    except OSError as error:
        print(f"polyadic: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


_SPREAD = {"--k", "--task", "--top", "--protocol", "--split", "--without", "--ranks"}


def spread(arguments: Sequence[str]) -> list[str]:
    """`--k 1 10 free` as `--k 1 --k 10 --k free`: an option of many values takes all words up to the next option.

    A word that is a file stays an argument.
    """
    if arguments[:1] == ["predict"]:
        return list(arguments)  # its options take one value each, and its arguments may be patterns
    words: list[str] = []
    option, fresh = "", False
    for word in arguments:
        if word in _SPREAD:
            option, fresh = word, True
            words.append(word)
        elif option and not word.startswith("-") and (fresh or not os.path.exists(word)):
            words += [word] if fresh else [option, word]
            fresh = False
        else:
            option = ""
            words.append(word)
    return words


_told: set[str] = set()  # a dataset may be read more than once


def _note(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
    if str(message) not in _told:
        _told.add(str(message))
        print(f"note: {message}", file=sys.stderr)
