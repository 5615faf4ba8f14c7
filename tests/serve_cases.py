"""A server in this process, requests to it, and a real browser for the tests of the page."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOKEN = "a-token-for-the-tests"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOW = "the tests of the page in a browser were skipped; to run them: apt-get install chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DROP = """async (bytes) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], "dropped.jpg", { type: "image/jpeg" }));
  const how = { bubbles: true, cancelable: true, dataTransfer: transfer };
  for (const type of ["dragover", "drop"]) document.querySelector("#stage").dispatchEvent(new DragEvent(type, how));
}"""
PATIENCE = 90  # seconds for what a page should show at once: the machine may be busy
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=HOW)


@dataclass
class Served:
    """Where a server is, and simple requests to it."""

    port: int
    token: str = TOKEN

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request as the page does; headers replace the usual ones, an empty one drops it."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        usual = {"authorization": f"Bearer {self.token}", "host": f"127.0.0.1:{self.port}"}
        if body is not None:
            usual["content-type"] = "application/json"
        usual |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in usual.items():
                if value:
                    connection.putheader(name, value)
            if content is not None and "content-length" not in usual:
                connection.putheader("content-length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """Post JSON; the answer must be a success."""
        status, _, content = self.send("POST", path, body, **headers)
        assert status == 200, content
        return json.loads(content)

    def get(self, path: str) -> Any:
        status, _, content = self.send("GET", path)
        assert status == 200, content
        return json.loads(content)

    def error(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        status, _, content = self.send("POST", path, body, **headers)
        return status, json.loads(content)["error"]


@contextmanager
def served(page: Any) -> Iterator[Served]:
    """Serve a `Page` in a thread, with its kernels compiled, so that no request waits for that."""
    from polyadic.serve.app import build_server, listen

    page.answerer.warm_up()
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = build_server(page, port, TOKEN)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Served(port)
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@contextmanager
def process(
    *arguments: str | Path, port: int = 0, token: str = TOKEN
) -> Iterator[tuple[subprocess.Popen[str], Served]]:
    """Start the command itself; it is killed at the end, if it still runs."""
    code = "from polyadic.cli import main; main()"
    words = ["serve", "--no-browser", "--port", str(port), *map(str, arguments)]
    environment = {**os.environ, "POLYADIC_TOKEN": token, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert "http://127.0.0.1:" in line, line + running.stdout.read()
        yield running, Served(int(line.split("127.0.0.1:")[1].split("/")[0]), token)
    finally:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()


@contextmanager
def browser() -> Iterator[Any]:
    """Start the system's chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield running
        finally:
            running.close()


class Visitor:
    """A page in the browser that notes every request, error and console message."""

    def __init__(self, browser: Any, server: Served, *, expect_errors: bool = False, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1300, "height": 850}, **context})
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.server = server
        self.expect_errors = expect_errors
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(server.url)
        self.page.wait_for_selector("body[data-ready]")

    def _note(self, line: Any) -> None:
        if line.type in ("error", "warning"):
            self.problems.append(line.text)

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        ours = (f"http://127.0.0.1:{self.server.port}/", f"blob:http://127.0.0.1:{self.server.port}/")
        foreign = [url for url in self.requests if not url.startswith(ours)]
        self.context.close()
        if kind is None:
            assert foreign == []  # nothing leaves the machine
            assert self.expect_errors or self.problems == []

    def open_example(self, name: str = "astronaut") -> None:
        self.page.select_option("#examples", name)
        self.page.wait_for_selector("#list li")

    def drop(self, content: bytes) -> None:
        """Drop a photo on the page."""
        self.page.evaluate(DROP, list(content))

    def words(self) -> list[str]:
        """The relations in the list, with their numbers."""
        lines = "[...document.querySelectorAll('#list li')]"
        texts = self.page.evaluate(f"{lines}.map((x) => x.innerText)")  # all at one moment
        return [" ".join(text.split()) for text in texts]

    def wait_for_change(self, before: list[str]) -> None:
        """Wait until the list is another one."""
        self._wait(lambda: self.words() not in ([], before))

    def wait_for(self, expected: list[str]) -> None:
        self._wait(lambda: self.words() == expected)

    def until(self, expression: str) -> None:
        """Wait until JavaScript is true; the page's own policy forbids playwright's way."""
        self._wait(lambda: bool(self.page.evaluate(expression)))

    def frames(self) -> None:
        """Wait until the page has drawn what it knows."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def _wait(self, test: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not test():
            assert time.monotonic() < end, self.words()
            self.page.wait_for_timeout(20)

    def slide(self, name: str, value: float) -> None:
        """Move a slider."""
        code = "(x, v) => { x.value = v; x.dispatchEvent(new Event('input')); }"
        self.page.locator(f"#slider-{name}").evaluate(code, value)

    def center(self, selector: str) -> tuple[float, float]:
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
