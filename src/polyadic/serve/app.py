"""The routes, and the server that runs them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

import polyadic
from polyadic.serve.answers import Answerer, examples, read_static
from polyadic.serve.export import export
from polyadic.serve.folder import Project
from polyadic.serve.guard import SLOW, Guard, RefusedError, hide_folders
from polyadic.serve.messages import (
    MOST_BOXES,
    MOST_BYTES,
    AskRequest,
    DetectRequest,
    ExportRequest,
    Message,
    OpenRequest,
    RelationsRequest,
    SaveRequest,
)
from polyadic.serve.openapi import document
from polyadic.serve.run import RunView
from polyadic.serve.worker import BusyError, Worker
from polyadic.structures.vocabulary import PolyadicError

M = TypeVar("M", bound=Message)
TOKEN = "POLYADIC_TOKEN"  # a variable: with a token of the user's, the page survives a restart
CONNECTIONS = 200
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@dataclass(frozen=True)
class Page:
    """The state behind the routes."""

    answerer: Answerer
    project: Project | None = None  # a folder to annotate
    view: RunView | None = None  # a run to look at
    worker: Worker = field(default_factory=Worker)

    def app(self) -> Starlette:
        """Build the routes."""
        routes = [
            Route("/", partial(_static, read_static("index.html"), "text/html")),
            *(Route(f"/static/{name}", partial(_static, *file)) for name, file in _static_files().items()),
            self._get("/api/openapi.json", document),
            self._get("/api/about", self.describe),
            self._post("/api/detect", DetectRequest, self.answerer.detect),
            Route("/api/photo/{photo}", self.photo),
            self._post("/api/relations", RelationsRequest, self.answerer.relations),
            self._post("/api/ask", AskRequest, self.answerer.ask),
            self._post("/api/export", ExportRequest, self._export),
        ]
        if (project := self.project) is not None:
            routes += [
                self._get("/api/folder", project.describe),
                self._post("/api/folder/open", OpenRequest, lambda x: project.show(x, self.answerer)),
                self._post("/api/folder/save", SaveRequest, project.save),
            ]
        if (view := self.view) is not None:
            routes += [
                self._get("/api/run", view.describe),
                self._post("/api/run/open", OpenRequest, lambda x: view.show(x, self.answerer)),
            ]
        return Starlette(routes=routes)

    def _post(self, path: str, kind: type[M], answer: Callable[[M], Any]) -> Route:
        """Decode the message, compute in the worker, encode the answer."""

        async def handle(request: Request) -> Response:
            try:
                message = msgspec.json.decode(await request.body(), type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return RefusedError(400, f"{path}: {str(error) or 'nested too deeply':.200}").response()
            return await self.compute(request, lambda: answer(message))

        return Route(path, handle, methods=["POST"])

    def _get(self, path: str, answer: Callable[[], Any]) -> Route:
        async def handle(request: Request) -> Response:
            return JSONResponse(answer())

        return Route(path, handle)

    async def compute(self, request: Request, job: Callable[[], Any]) -> Response:
        """Run a job in the worker; leave it out if its client goes before it starts."""

        def timed() -> tuple[Any, float, float]:
            start, busy = time.perf_counter(), time.thread_time()
            return job(), time.perf_counter() - start, time.thread_time() - busy

        work, gone = asyncio.ensure_future(self.worker.run(timed)), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                return Response(status_code=499)
            result, seconds, busy = work.result()
        except BusyError:
            return RefusedError(503, "the server is busy: try again").response()
        except RefusedError as refusal:
            return refusal.response()
        except PolyadicError as error:
            return RefusedError(422, hide_folders(str(error)[:500])).response()
        except MemoryError:
            return RefusedError(422, "this needs more memory than there is").response()
        finally:
            gone.cancel()
        headers = {"server-timing": f"model;dur={1000 * seconds:.1f}, cpu;dur={1000 * busy:.1f}"}
        if isinstance(result, tuple):  # a file
            content, media = result
            return Response(content, media_type=media, headers={**headers, "content-disposition": "attachment"})
        return Response(msgspec.json.encode(result), media_type="application/json", headers=headers)

    def describe(self) -> dict[str, Any]:
        """Say what is served: names, model, limits."""
        model = self.answerer.model
        vocabulary = model.vocabulary
        return {
            "version": polyadic.__version__,
            "model": self.answerer.name,
            "rank": model.config.head.rank,
            "prior": model.config.ranking.prior if model.prior is not None else None,
            "pixels": model.needs_photo,
            "folder": self.project is not None,
            "run": self.view is not None,
            "detects": self.answerer.detector is not None,
            "objects": list(vocabulary.objects),
            "predicates": list(vocabulary.predicates),
            "examples": [
                {"name": x["name"], "title": x["title"]} for x in examples() if "photo" in x or not model.needs_photo
            ],
            "limits": {"boxes": MOST_BOXES, "bytes": MOST_BYTES},
        }

    async def photo(self, request: Request) -> Response:
        """Return a photo as JPEG."""
        shelf, key = self.answerer.shelf, request.path_params["photo"]
        return await self.compute(request, lambda: (shelf.jpeg(key), "image/jpeg"))

    def _export(self, request: ExportRequest) -> tuple[bytes, str]:
        return export(request, self.answerer.model.vocabulary, self.answerer.shelf)


async def _static(content: bytes, media: str, request: Request) -> Response:
    return Response(content, media_type=media)


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Read all files of the page at the start: no request names a path."""
    folder = files("polyadic.serve").joinpath("static")
    names = [entry.name for entry in folder.iterdir() if entry.name.rpartition(".")[2] in _TYPES]
    return {name: (read_static(name), _TYPES[name.rpartition(".")[2]]) for name in names}


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PatientProtocol(H11Protocol):
    """Close connections that send no complete request head within `SLOW` seconds, at first and after each response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        self.loop.call_later(SLOW, self._close_if_silent, self.cycle)

    def _close_if_silent(self, last: Any) -> None:
        if self.cycle is last:
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """Bind the server's address; 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # said, so that asyncio sets no delay
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise PolyadicError(f"cannot listen on {host}:{port} ({reason}); choose another --port, or 0 for any") from None
    return listening


def new_token() -> str:
    """Return the variable POLYADIC_TOKEN, if set, or a random token."""
    given = os.environ.get(TOKEN, "")
    if given and (len(given) < 16 or not given.isascii() or not given.replace("-", "").replace("_", "").isalnum()):
        raise PolyadicError(f"{TOKEN} must have at least 16 letters, digits, - or _")
    return given or secrets.token_urlsafe(24)


def build_server(page: Page, port: int, token: str, *, public: bool = False) -> uvicorn.Server:
    """Prepare the server; `run(sockets=[...])` serves until Ctrl-C.

    Annotations are on disk before they are acknowledged, so nothing is lost then.
    """
    config = uvicorn.Config(
        Guard(page.app(), token, port, public),
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
