"""`polyadic serve [FOLDER]`: the page in the browser."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.options import echo
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning

LOCAL = ("127.0.0.1", "localhost", "::1")


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="Photos to annotate; what is done is kept in train.json beside them (COCO)."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Look at a training run: its table, curves, errors and test photos.")
    ] = None,
    detections: Annotated[
        Path | None, typer.Option("--detections", help="Boxes of the test photos of --run; default: its detector's.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="A training run or a saved model; default: the pretrained VRD model.")
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            help="As for predict. Default: the model's own, or the pretrained detector for the pretrained model.",
        ),
    ] = None,
    prefill: Annotated[
        float | None,
        typer.Option(
            "--prefill",
            metavar="X",
            min=0.0,
            max=1.0,
            help="Start the photos of FOLDER with the model's relations of at least this probability.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free one.")] = 8765,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Allow a --host that other machines reach. They need the token; nothing is encrypted."
        ),
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Open a page to see, change, ask and annotate the relations of photos."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise PolyadicError("serve needs the extra `serve`: pip install 'polyadic[serve]'")
    if host not in LOCAL and not public:
        raise PolyadicError(f"--host {host} lets other machines connect: add --public if that is meant")
    from polyadic.serve.answers import Answerer
    from polyadic.serve.app import Page, build_server, listen, new_token
    from polyadic.serve.folder import Project
    from polyadic.serve.run import RunView

    if folder is not None and run is not None:
        raise PolyadicError("FOLDER and --run are mutually exclusive")
    for value, option, needs, given in (
        (detections, "--detections", "--run", run),
        (prefill, "--prefill", "FOLDER", folder),
    ):
        if value is not None and given is None:
            raise PolyadicError(f"{option} needs {needs}")
    token, listening = new_token(), listen(host, port)
    with ExitStack() as stack:
        stack.callback(listening.close)
        view = None if run is None else RunView.open(run, detections)
        if view is None:
            answerer = Answerer.open(model, detector)
        else:
            answerer = Answerer(view.run.model.eval(), view.run.model.detector, view.name)
        project = None
        if folder is not None:
            project = stack.enter_context(Project.open(folder, answerer.model.vocabulary, prefill))
        page = Page(answerer, project, view)
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/?token={token}"
        echo(f"polyadic serve: {address}")
        echo("Ctrl-C ends it; every saved annotation is on disk.")
        if browser:
            import webbrowser

            webbrowser.open(address)
        page.worker.start(page.answerer.warm_up)
        if view is not None:
            threading.Thread(target=view.evaluate, daemon=True).start()
        warnings.simplefilter("ignore", PolyadicWarning)  # of boxes that clients draw
        try:
            build_server(page, listening.getsockname()[1], token, public=public).run(sockets=[listening])
        except KeyboardInterrupt:
            echo("polyadic: stopped", err=True)
            sys.stderr.flush()
            os._exit(130)  # at once: nothing is unsaved, and no computation is waited for
