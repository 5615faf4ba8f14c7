"""Who may ask, and how much: checked before any handler runs.

A page of another site can send requests to this server from the user's browser, so a request needs our Host (a foreign
name that resolves to 127.0.0.1 has another one), our Origin if it has any, the random token, and for JSON the content
type that browsers send to other origins only after asking.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SLOW = 20.0  # seconds that a client has for its body
SMALL = 1 << 20  # bytes of a body without a photo
LARGE = 45 << 20  # with one, in base64
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_CLOSED = "<!doctype html><title>polyadic</title><p>Open the address that <code>polyadic serve</code> printed."


def hide_folders(text: str) -> str:
    """Leave only the names of files in a message, not the folders of this machine.

    >>> hide_folders("no image /home/ann/photos/a.jpg")
    'no image a.jpg'
    """
    return re.sub(r"(?<![\w.])/(?:[^\s/:]+/)+", "", text)


class RefusedError(Exception):
    """A request that is not answered, with its status and a line for people."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text

    def response(self) -> Response:
        headers = {"retry-after": "1"} if self.status == 503 else {}
        return JSONResponse({"error": self.text}, self.status, headers=headers)


@dataclass(frozen=True)
class Guard:
    """Check every request, and add the headers that protect the page to every response."""

    app: App
    token: str
    port: int
    public: bool = False  # other machines may connect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are refused
            await send({"type": "websocket.close", "code": 1008})
            return

        async def protect(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                fixed = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                kept = [pair for pair in message.get("headers", ()) if pair[0].decode().lower() not in _HEADERS]
                message["headers"] = [*kept, *fixed]
            await send(message)

        try:
            self._check(scope)
            body = await self._body(scope, receive)
        except RefusedError as refusal:
            response = refusal.response()
            if refusal.status == 401 and not scope["path"].startswith("/api/"):
                response = Response(_CLOSED, 401, media_type="text/html")
            response.headers["connection"] = "close"  # the rest of its body is not read
            await response(scope, receive, protect)
            return
        await self.app(scope, _replayed(body, receive), protect)

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise RefusedError(403, "this server answers to its own address only")
        origin = headers.get("origin")
        if (origin is not None and origin != f"http://{host}") or headers.get("sec-fetch-site") == "cross-site":
            raise RefusedError(403, "requests from other sites are refused")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise RefusedError(405, "only GET and POST are known")
        path = scope["path"]
        if (path == "/" or path.startswith("/api/")) and not self._is_allowed(headers, scope):
            raise RefusedError(401, "the token is missing or wrong: open the address that polyadic serve printed")
        if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0].strip() != (
            "application/json"
        ):
            raise RefusedError(415, "expected the content type application/json")

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        if name in ("127.0.0.1", "localhost", "[::1]"):
            return True
        if not self.public:
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))  # an address cannot be rebound to another machine
        except ValueError:
            return name == socket.gethostname()
        return True

    def _is_allowed(self, headers: Mapping[str, str], scope: Scope) -> bool:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if scope["path"] == "/":  # a link has no headers
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), self.token.encode())

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body, bounded in size and time."""
        most = LARGE if scope["path"] == "/api/detect" else SMALL
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            raise RefusedError(413, f"the request has more than {most >> 20} MB")
        try:
            return await asyncio.wait_for(_read(receive, most), SLOW)
        except asyncio.TimeoutError:
            raise RefusedError(408, f"the request took longer than {SLOW:g} seconds") from None


async def _read(receive: Receive, most: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the client has gone")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise RefusedError(413, f"the request has more than {most >> 20} MB")
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then what comes after it: that the client has gone."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> MutableMapping[str, Any]:
        return parts.pop() if parts else await receive()

    return replay
