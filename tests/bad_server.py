"""A server on this machine that fails, stalls, lies and hangs up, as its plan says."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from polyadic.datasets import download as download_module
from polyadic.datasets.download import RemoteFile
from polyadic.datasets.fetch import fetch
from polyadic.progress import Reporter, reporting
from polyadic.structures.vocabulary import PolyadicError

Plan = Callable[["Handler"], None]

H5 = b"\x89HDF\r\n\x1a\n" + random.Random(0).randbytes(300_000)
DIGEST = hashlib.sha256(H5).hexdigest()
PAGE = b"<!DOCTYPE html><html>Quota exceeded</html>"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"], self.headers["If-Range"]))
        plans = self.server.plans[self.path]
        (plans.pop(0) if len(plans) > 1 else plans[0])(self)

    def start(self, code: int, **headers: object) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def body(self, data: bytes) -> None:
        self.server.sent += len(data)
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Each path has a list of plans: one per request, the last for all that follow."""

    daemon_threads = False  # so that closing waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plans: dict[str, list[Plan]] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.sent = 0
        self.over = threading.Event()

    def url(self, path: str, *plans: Plan) -> str:
        self.plans[path] = list(plans)
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client hung up, as it may


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download_module, "_PAUSE", 0.0)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def serve(data: bytes, *, tag: str | None = '"1"', cut: int | None = None, stall: bool = False) -> Plan:
    """An honest server with ranges; `cut`: it hangs up (or stalls) after so many bytes."""

    def plan(handler: Handler) -> None:
        asked, condition = handler.headers["Range"], handler.headers["If-Range"]
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and condition in (None, tag) else 0
        tags = {} if tag is None else {"ETag": tag}
        if first >= len(data):
            handler.start(416, Content_Range=f"bytes */{len(data)}")
            return
        if first:
            where = f"bytes {first}-{len(data) - 1}/{len(data)}"
            handler.start(206, Content_Length=len(data) - first, Content_Range=where, **tags)
        else:
            handler.start(200, Content_Length=len(data), **tags)
        handler.body(data[first:cut])
        if stall:
            handler.server.over.wait(5)

    return plan


def answer(code: int, data: bytes = b"", **headers: object) -> Plan:
    """Always the same, whatever was asked for."""

    def plan(handler: Handler) -> None:
        handler.start(code, **headers)
        handler.body(data)

    return plan


def never(handler: Handler) -> None:
    handler.server.over.wait(5)


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/a.h5"


def one(*urls: str, path: str = "a.h5", size: int | None = None, sha256: str | None = None) -> list[RemoteFile]:
    return [RemoteFile(path, urls, size, sha256, by_hand="https://example.org/data")]


def leftovers(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")} - {".fetch.lock", "a/root/.fetch.lock"}


def error_of(root: Path, files: list[RemoteFile], **options: float) -> str:
    """The error's text, which must be one line."""
    with pytest.raises(PolyadicError) as caught:
        fetch("vg150", root, files=files, timeout=options.get("timeout", 5), retries=int(options.get("retries", 1)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class _Transfers(Reporter):
    def __init__(self, call: Callable[[str, int, int | None], object]) -> None:
        self.call = call

    def transfer(self, name: str, done: int, total: int | None) -> None:
        self.call(name, done, total)


@contextmanager
def transfers(call: Callable[[str, int, int | None], object]) -> Iterator[None]:
    """Call back for each piece of a download."""
    with reporting(_Transfers(call)):
        yield
