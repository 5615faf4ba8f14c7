"""The command `polyadic`. Commands import heavy modules when they run, so `--help` is quick."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

import polyadic
from polyadic.cli import data, detect, evaluate, predict, reproduce, serve, train
from polyadic.cli.options import ANY, echo, examples
from polyadic.structures.vocabulary import PolyadicError, is_out_of_memory

app = typer.Typer(
    name="polyadic",
    help="Find who does what to whom in photos: predict, train, and evaluate relation models.",
    epilog=examples(
        "polyadic predict photo.jpg",
        "polyadic demo",
        "polyadic train vrd --data data/vrd --out runs/vrd",
        "polyadic evaluate predictions.jsonl --dataset vrd --root data/vrd",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command(
    "predict",
    epilog=examples(
        "polyadic predict photo.jpg --draw drawn",
        "polyadic predict photos/ --subject person --top 5",
        "polyadic predict runs/vrd photos/ --detections boxes.jsonl --out out.jsonl",
    ),
)(predict.command)
app.command("serve", epilog=examples("polyadic serve", "polyadic serve photos/", "polyadic serve --run runs/vrd"))(
    serve.command
)
app.command(
    "evaluate",
    epilog=examples(
        "polyadic evaluate out.jsonl --dataset vrd --root data/vrd --k 1 10",
        "polyadic evaluate runs/vrd --k 1 free",
    ),
)(evaluate.command)
app.command(
    "train",
    context_settings=ANY,
    epilog=examples(
        "polyadic train toy --out runs/toy",
        "polyadic train vrd --data data/vrd --out runs/vrd --head.rank 3 --seed 1",
        "polyadic train --resume --out runs/vrd",
    ),
)(train.command)
app.command("config", epilog=examples("polyadic config toy > my.toml", "polyadic train my.toml --out runs/my"))(
    train.config_command
)
app.add_typer(detect.app, name="detect")
app.add_typer(data.app, name="data")
app.command("demo", epilog=examples("polyadic demo --out demo"))(reproduce.demo_command)
app.command(
    "ablate",
    context_settings=ANY,
    epilog=examples("polyadic ablate vrd --data data/vrd --out runs/ablation --ranks 1 5 --seeds 3"),
)(reproduce.ablate_command)
app.add_typer(reproduce.app, name="reproduce")


def _version(asked: bool | None) -> None:
    if asked:
        echo(f"polyadic {polyadic.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = None,
) -> None:
    pass


_UsageError: Any = typer.BadParameter.__base__  # of a bad option or argument; typer exports the class below it


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. User errors print one line, no traceback."""
    warnings.showwarning = _note
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large pages for large tensors, faster to allocate
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names may have letters that the terminal lacks
    try:
        try:
            words = spread(sys.argv[1:] if arguments is None else arguments)
            code = app(args=words, prog_name="polyadic", standalone_mode=False)  # typer's own messages are not escaped
        finally:
            sys.stdout.flush()  # here, where a failure is reported
        sys.exit(code or 0)
    except _UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # which has printed the help
            message = " ".join(error.format_message().split()).removesuffix(".")
            echo(f"polyadic: {message}; see: {getattr(error.ctx, 'command_path', 'polyadic')} --help", err=True)
        sys.exit(2)
    except PolyadicError as error:
        echo(f"polyadic: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        echo("polyadic: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        _discard_output()  # its reader has gone
        sys.exit(141)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        echo(f"polyadic: not enough memory{f' ({reason:.160})' * bool(reason)}; choose smaller sizes", err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _discard_output()  # it cannot be written, e.g. to a full disk
        echo(f"polyadic: {error.filename or 'output'}: {error.strerror or error}", err=True)
        sys.exit(1)


def _open_closed_streams() -> None:
    """Replace closed standard streams (`>&-`), so that no file that we open takes their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (takes the lowest free number: its own)


def _discard_output() -> None:
    """Discard what is left of the output: the interpreter would try to write it at exit."""
    with suppress(OSError):  # no file, in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_SPREAD = {"--k", "--task", "--top", "--protocol", "--split", "--without", "--ranks"}


def spread(arguments: Sequence[str]) -> list[str]:
    """Repeat options of several values: `--k 1 10 free` becomes `--k 1 --k 10 --k free`.

    A word that is a file stays an argument.
    """
    if arguments[:1] == ["predict"]:
        return list(arguments)  # its options take one value each, and its arguments may be patterns
    words: list[str] = []
    option, is_first = "", False
    for word in arguments:
        if word in _SPREAD:
            option, is_first = word, True
            words.append(word)
        elif option and not word.startswith("-") and (is_first or not os.path.exists(word)):
            words += [word] if is_first else [option, word]
            is_first = False
        else:
            option = ""
            words.append(word)
    return words


_noted: set[str] = set()  # a dataset may be read more than once


def _note(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
    """Print a warning as one line, once."""
    if str(message) not in _noted:
        _noted.add(str(message))
        echo(f"note: {message}", err=True)
