"""`fetch` against a server on this machine that fails, stalls, lies and hangs up."""

from __future__ import annotations

import ast
import errno
import gzip
import hashlib
import io
import json
import os
import random
import re
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from polyadic import PolyadicError
from polyadic.datasets import download as download_module
from polyadic.datasets.archives import Members
from polyadic.datasets.sources import FILES, RemoteFile, fetch
from polyadic.vocabulary import PolyadicWarning

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
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def error_of(root: Path, files: list[RemoteFile], **options: float) -> str:
    """The error's text, which must be one line."""
    with pytest.raises(PolyadicError) as caught:
        fetch("vg150", root, files=files, timeout=options.get("timeout", 5), retries=int(options.get("retries", 1)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_arrives_whole_and_the_second_fetch_asks_nobody(server: Server, tmp_path: Path) -> None:
    files = one(server.url("/a.h5", serve(H5)), size=len(H5), sha256=DIGEST)
    steps: list[tuple[str, int, int | None]] = []
    root = tmp_path / "new" / "root"
    assert fetch("vg150", root, files=files, progress=lambda *step: steps.append(step)) == [root / "a.h5"]
    assert (root / "a.h5").read_bytes() == H5
    assert steps[-1] == ("a.h5", len(H5), len(H5))
    assert [done for _, done, _ in steps] == sorted({done for _, done, _ in steps})
    assert leftovers(root) == {"a.h5"}
    server.asked.clear()
    assert fetch("vg150", root, files=files) == []
    assert server.asked == []


@pytest.mark.parametrize("code", [403, 404, 410])
def test_a_dead_link_is_left_at_once_for_the_next_mirror(server: Server, tmp_path: Path, code: int) -> None:
    dead, alive = server.url("/dead", answer(code, PAGE)), server.url("/alive", serve(H5))
    fetch("vg150", tmp_path, files=one(dead, alive), retries=5)
    assert [path for path, *_ in server.asked] == ["/dead", "/alive"]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_server_error_is_tried_again_and_not_for_ever(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", answer(500), answer(503), serve(H5))
    fetch("vg150", tmp_path, files=one(url), retries=2)
    assert len(server.asked) == 3
    url = server.url("/b", answer(500))
    assert "127.0.0.1: HTTP 500" in error_of(tmp_path, one(url, path="b.h5"), retries=2)
    assert len(server.asked) == 6


def test_a_refused_connection_and_an_unknown_host_are_left_at_once(server: Server, tmp_path: Path) -> None:
    unknown = "http://nowhere.invalid/a.h5"
    fetch("vg150", tmp_path, files=one(nobody(), unknown, server.url("/a", serve(H5))), retries=5)
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_dead_link_ends_in_one_line_with_the_file_and_its_place(server: Server, tmp_path: Path) -> None:
    gone, refused = server.url("/gone", answer(404)), nobody()
    text = error_of(tmp_path, one(gone, refused))
    assert text == (
        "VG150: a.h5 could not be fetched (2 mirrors: 127.0.0.1: HTTP 404; 127.0.0.1: Connection refused): get it by "
        f"hand, e.g. from https://example.org/data, and put it at {tmp_path / 'a.h5'}; then run the command again"
    )
    (tmp_path / "a.h5").write_bytes(H5)  # as told
    assert fetch("vg150", tmp_path, files=one(gone, refused)) == []


def test_one_dead_file_does_not_keep_the_others_away(server: Server, tmp_path: Path) -> None:
    files = one(server.url("/gone", answer(404)), path="b.h5") + one(server.url("/a", serve(H5)))
    text = error_of(tmp_path, files)
    assert "b.h5 could not be fetched" in text
    assert str(tmp_path / "a.h5") not in text
    assert leftovers(tmp_path) == {"a.h5"}


def test_a_file_without_mirrors_is_one_line_too(tmp_path: Path) -> None:
    assert "could not be fetched (no mirror): get it by hand, e.g. from https://ex" in error_of(tmp_path, one())


def test_a_stall_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5, cut=100_000, stall=True), serve(H5))
    fetch("vg150", tmp_path, files=one(url), timeout=0.5)
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert server.asked[1] == ("/a", "bytes=100000-", '"1"')
    assert server.sent == len(H5)


def test_a_mirror_that_only_stalls_is_left(server: Server, tmp_path: Path) -> None:
    silent = server.url("/silent", never)
    stuck = server.url("/stuck", serve(H5, cut=1000, stall=True))
    text = error_of(tmp_path, one(silent, stuck), timeout=0.4, retries=1)
    assert "127.0.0.1: no answer within 0.4 s; 127.0.0.1: no byte for 0.4 s" in text
    assert [path for path, *_ in server.asked] == ["/silent", "/stuck", "/stuck"]
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("tag", ['"1"', 'W/"1"'])
def test_a_cut_connection_resumes_without_sending_a_byte_twice(server: Server, tmp_path: Path, tag: str) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"  # a weak tag does not name bytes; the date does

    def dated(cut: int | None) -> Plan:
        def plan(handler: Handler) -> None:
            first = int((handler.headers["Range"] or "bytes=0-")[6:-1])
            headers = {"ETag": tag, "Last_Modified": date, "Content_Length": len(H5) - first}
            if first:
                handler.start(206, Content_Range=f"bytes {first}-{len(H5) - 1}/{len(H5)}", **headers)
            else:
                handler.start(200, **headers)
            handler.body(H5[first:cut])

        return plan

    url = server.url("/a", dated(70_000), dated(200_000), dated(None))
    final = tmp_path / "a.h5"
    early: list[bool] = []
    fetch("vg150", tmp_path, files=one(url), retries=2, progress=lambda *_: early.append(final.exists()))
    assert not any(early)
    assert final.read_bytes() == H5
    condition = '"1"' if tag == '"1"' else date
    assert server.asked[1:] == [("/a", "bytes=70000-", condition), ("/a", "bytes=200000-", condition)]
    assert server.sent == len(H5)


def test_attempts_that_bring_something_do_not_count_as_failed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_ADVANCE", 30_000)
    plans = [serve(H5, cut=40_000 * i) for i in range(1, 7)]
    fetch("vg150", tmp_path, files=one(server.url("/a", *plans, serve(H5))), retries=1)
    assert server.sent == len(H5)
    server.asked.clear()
    drip = server.url("/b", *[serve(H5, cut=100 * i) for i in range(1, 9)])
    assert "cut after 200 of 300008 bytes" in error_of(tmp_path, one(drip, path="b.h5"), retries=1)
    assert len(server.asked) == 2


def test_ctrl_c_leaves_the_part_and_no_final_file_and_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    files = one(server.url("/a", serve(H5)))

    def stop(name: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("vg150", tmp_path, files=files, progress=stop)
    assert leftovers(tmp_path) == {"a.h5.part", "a.h5.part.json"}
    have = (tmp_path / "a.h5.part").stat().st_size
    assert 0 < have < len(H5)
    fetch("vg150", tmp_path, files=files)
    assert server.asked[-1] == ("/a", f"bytes={have}-", '"1"')
    assert (tmp_path / "a.h5").read_bytes() == H5


def part(root: Path, data: bytes, url: str, validator: str | None = '"1"', length: int | None = len(H5)) -> None:
    (root / "a.h5.part").write_bytes(data)
    (root / "a.h5.part.json").write_text(json.dumps({"url": url, "validator": validator, "length": length}))


def test_a_file_that_changed_in_between_starts_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5, tag='"2"'))
    part(tmp_path, b"\x89HDF old", url)
    fetch("vg150", tmp_path, files=one(url))
    assert server.asked == [("/a", "bytes=8-", '"1"')]
    assert (tmp_path / "a.h5").read_bytes() == H5


def lying_range(where: str, tag: str = '"1"') -> Plan:
    return answer(206, H5[100:], Content_Range=where, ETag=tag, Content_Length=len(H5) - 100)


@pytest.mark.parametrize(
    "lie",
    [
        lying_range("bytes 0-300007/300008"),
        lying_range("bytes 101-300007/300008"),
        lying_range("bytes 100-300007/300009"),
        lying_range("bytes 100-300007/300008", tag='"2"'),
        lying_range("nonsense"),
        answer(206, H5[100:]),
        answer(416, Content_Range="bytes */50"),
    ],
)
def test_a_range_that_is_not_the_one_asked_for_is_refused(server: Server, tmp_path: Path, lie: Plan) -> None:
    url = server.url("/a", lie, serve(H5))
    part(tmp_path, H5[:100], url)
    fetch("vg150", tmp_path, files=one(url), retries=1)
    assert [asked for _, asked, _ in server.asked] == ["bytes=100-", None]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_server_that_ignores_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", answer(200, H5, Content_Length=len(H5)))
    part(tmp_path, H5[:100], url)
    fetch("vg150", tmp_path, files=one(url))
    assert len(server.asked) == 1
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_complete_part_is_checked_and_not_sent_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5))
    part(tmp_path, H5, url)
    fetch("vg150", tmp_path, files=one(url))
    assert server.asked == []
    (tmp_path / "a.h5").unlink()
    part(tmp_path, H5, url, length=None)  # the server never said how long: now it answers 416
    fetch("vg150", tmp_path, files=one(url))
    assert server.sent == 0
    assert leftovers(tmp_path) == {"a.h5"}


@pytest.mark.parametrize(
    "note", ["", "[]", '{"url": 3', '{"url": "x", "length": "y"}', json.dumps({"url": "http://another/"})]
)
def test_a_part_of_unknown_origin_is_not_trusted(server: Server, tmp_path: Path, note: str) -> None:
    (tmp_path / "a.h5.part").write_bytes(b"\x89HDF\r\n\x1a\n of somebody")
    (tmp_path / "a.h5.part.json").write_text(note)
    fetch("vg150", tmp_path, files=one(server.url("/a", serve(H5))))
    assert server.asked == [("/a", None, None)]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_part_goes_on_at_its_own_mirror_and_outlives_dead_ones(server: Server, tmp_path: Path) -> None:
    first, third = server.url("/1", serve(H5)), server.url("/3", answer(404))
    second = server.url("/2", answer(503), serve(H5))
    part(tmp_path, H5[:100], second)
    error_of(tmp_path, one(third, second), retries=0)
    assert (tmp_path / "a.h5.part").read_bytes() == H5[:100]
    server.asked.clear()
    fetch("vg150", tmp_path, files=one(first, second, third))
    assert server.asked == [("/2", "bytes=100-", '"1"')]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_part_that_is_longer_than_the_file_starts_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5))
    part(tmp_path, H5 + b"more", url)
    fetch("vg150", tmp_path, files=one(url, size=len(H5)))
    assert server.asked == [("/a", None, None)]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_with_a_checksum_another_mirror_goes_on_with_the_part(server: Server, tmp_path: Path) -> None:
    first, second = server.url("/1", serve(H5, cut=200_000), answer(404)), server.url("/2", serve(H5, tag='"other"'))
    fetch("vg150", tmp_path, files=one(first, second, sha256=DIGEST), retries=1)
    assert server.asked[-1] == ("/2", "bytes=200000-", None)
    assert server.sent == len(H5)
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_bad_bytes_in_an_old_part_cost_one_more_attempt(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5))
    part(tmp_path, bytes(100), url)
    fetch("vg150", tmp_path, files=one(url, sha256=DIGEST), retries=1)
    assert [asked for _, asked, _ in server.asked] == ["bytes=100-", None]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_length_that_is_not_the_known_size_is_refused_before_the_body(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5 + b"!"))
    text = error_of(tmp_path, one(url, size=len(H5)), retries=3)
    assert "offers 300009 bytes instead of 300008" in text
    assert len(server.asked) == 1
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize(
    ("data", "size", "sha256", "why"),
    [
        (H5[:-1] + b"?", len(H5), DIGEST, "SHA-256 is"),
        (H5[:-1] + b"?", None, DIGEST, "SHA-256 is"),
        (H5[:-1], len(H5), None, "cut after 300007 of 300008 bytes"),
        (PAGE, None, None, "a web page"),
        (b"  \n" + PAGE, None, None, "a web page"),
        (b"some text", None, None, "not an HDF5 file"),
        (b"", None, None, "not an HDF5 file"),
    ],
)
def test_wrong_bytes_never_reach_the_final_name(
    server: Server, tmp_path: Path, data: bytes, size: int | None, sha256: str | None, why: str
) -> None:
    lie, truth = server.url("/lie", answer(200, data)), server.url("/truth", serve(H5))  # no Content-Length
    assert why in error_of(tmp_path, one(lie, size=size, sha256=sha256), retries=1)
    assert len(server.asked) == (2 if why.startswith("cut") else 1)
    assert not (tmp_path / "a.h5").exists()
    fetch("vg150", tmp_path, files=one(lie, truth, size=size, sha256=sha256))
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert leftovers(tmp_path) == {"a.h5"}


def test_json_is_parsed_and_a_page_in_its_place_is_refused(server: Server, tmp_path: Path) -> None:
    urls = [server.url(f"/{i}", serve(data)) for i, data in enumerate((PAGE, b'{"cut": [', b'{"whole": []}'))]
    fetch("vg150", tmp_path, files=one(*urls, path="a.json"))
    assert (tmp_path / "a.json").read_bytes() == b'{"whole": []}'
    assert "a web page" in error_of(tmp_path, one(urls[0], path="b.json"))
    assert "not a JSON file" in error_of(tmp_path, one(urls[1], path="b.json"))


def test_redirects_chunks_and_servers_that_do_not_hang_up_are_followed(server: Server, tmp_path: Path) -> None:
    def chunked(end: bytes) -> Plan:
        def plan(handler: Handler) -> None:
            handler.protocol_version = "HTTP/1.1"
            handler.start(200, Transfer_Encoding="chunked")
            handler.body(b"%x\r\n%s\r\n" % (len(H5), H5) + end)
            handler.close_connection = True

        return plan

    def open_ended(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.start(200, Content_Length=len(H5))
        handler.body(H5)
        handler.server.over.wait(5)

    server.url("/open", open_ended)
    moved = server.url("/moved", answer(302, Location="/open"))
    fetch("vg150", tmp_path, files=one(moved), timeout=2, retries=0)
    fetch("vg150", tmp_path, files=one(server.url("/b", chunked(b"0\r\n\r\n")), path="b.h5"))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes() == H5
    assert len(server.asked) == 3
    assert "cut (IncompleteRead)" in error_of(tmp_path, one(server.url("/c", chunked(b"")), path="c.h5"))


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


NEEDED = (Members(("train/*.jpg", "sg_train/*.jpg"), "pictures/train", 2), Members(("names.json",), "."))
OFFICIAL = {
    "set/sg_train/1.jpg": b"one",
    "set/sg_train/2.jpg": b"two" * 50_000,
    "set/names.json": b"[]",
    "set/readme.txt": b"not needed",
    "__MACOSX/set/sg_train/._1.jpg": b"not needed",
    "set/sg_train/.hidden.jpg": b"not needed",
}
COPY = {"./train/1.jpg": b"one", "./train/2.jpg": b"two" * 50_000, "./raw/names.json": b"[]"}
UNPACKED = {"pictures", "pictures/train", "pictures/train/1.jpg", "pictures/train/2.jpg", "names.json"}


def archive_at(*urls: str) -> list[RemoteFile]:
    return [RemoteFile("set.zip", urls, unpack=NEEDED, by_hand="https://example.org/data")]


@pytest.mark.parametrize("data", [zipped(OFFICIAL), tarred(OFFICIAL), tarred(COPY)], ids=["zip", "tar", "other layout"])
def test_an_archive_is_unpacked_to_its_places_and_removed(server: Server, tmp_path: Path, data: bytes) -> None:
    files = archive_at(server.url("/set.zip", serve(data)))
    steps: list[tuple[str, int, int | None]] = []
    got = fetch("vrd", tmp_path, files=files, progress=lambda *step: steps.append(step))
    assert got == [tmp_path / "pictures/train", tmp_path / "names.json"]
    assert leftovers(tmp_path) == UNPACKED | {".set.zip.unpacked"}
    assert (tmp_path / "pictures/train/2.jpg").read_bytes() == b"two" * 50_000
    assert {name for name, *_ in steps} == {"set.zip", "unpack set.zip"}
    server.asked.clear()
    assert fetch("vrd", tmp_path, files=files) == []
    assert server.asked == []
    (tmp_path / "pictures/train/1.jpg").unlink()
    fetch("vrd", tmp_path, files=files)
    assert (tmp_path / "pictures/train/1.jpg").read_bytes() == b"one"


def damaged(data: bytes) -> bytes:
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


NOISE = {"sg_train/1.jpg": random.Random(1).randbytes(50_000), "names.json": b"[]"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (PAGE, "a web page"),
        (b"text", "neither a zip nor a tar.gz archive"),
        (zipped(NOISE)[:30_000], "damaged (File is not a zip file)"),
        (damaged(zipped(NOISE)), "damaged (Bad CRC-32 for file"),
        (tarred(NOISE)[:30_000], "damaged (Compressed file ended before"),
        (damaged(tarred(NOISE)), "damaged ("),
        (tarred(NOISE)[:-8] + bytes(8), "damaged (CRC check failed"),
        (gzip.compress(b"no tar"), "damaged ("),
        (zipped({"names.json": b"[]"}), "an archive without train/*.jpg"),
    ],
)
def test_a_mirror_with_a_bad_archive_is_left_for_the_next(
    server: Server, tmp_path: Path, data: bytes, why: str
) -> None:
    lie, truth = server.url("/lie", serve(data)), server.url("/truth", serve(zipped(OFFICIAL)))
    assert f"127.0.0.1: {why}" in error_of(tmp_path, archive_at(lie))
    assert leftovers(tmp_path) == set()
    fetch("vrd", tmp_path, files=archive_at(lie, truth))
    assert leftovers(tmp_path) >= UNPACKED


def tar_link(target: str, *, hard: bool = False) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("sg_train/1.jpg")
        info.type, info.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target
        archive.addfile(info)
    return out.getvalue()


def zip_link(target: str) -> bytes:
    info = zipfile.ZipInfo("sg_train/1.jpg")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, target)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        zipped(OFFICIAL | {"../evil.jpg": b""}),
        zipped(OFFICIAL | {"sg_train/../../evil.jpg": b""}),
        zipped(OFFICIAL | {"/tmp/sg_train/evil.jpg": b""}),
        zipped(OFFICIAL | {"sg_train/C:evil.jpg": b""}),
        tarred(OFFICIAL | {"../sg_train/evil.jpg": b""}),
        tarred(OFFICIAL | {"sg_train/..\\evil.jpg": b""}),
        tarred(OFFICIAL | {"/sg_train/evil.jpg": b""}),
        tar_link("/etc/passwd"),
        tar_link("../../outside"),
        tar_link("elsewhere", hard=True),
        zip_link("/etc/passwd"),
    ],
)
def test_an_archive_that_reaches_outside_is_refused_whole(server: Server, tmp_path: Path, data: bytes) -> None:
    root = tmp_path / "a" / "root"
    why = "an archive (that reaches outside its folder|with a link in place of a file)"
    assert re.search(f"127.0.0.1: {why}", error_of(root, archive_at(server.url("/set.zip", serve(data)))))
    (root / "set.zip").write_bytes(data)  # by hand it is refused as well
    assert re.search(f"set.zip is {why}", error_of(root, archive_at()))
    assert leftovers(tmp_path) <= {"a", "a/root", "a/root/set.zip", "a/root/pictures", "a/root/pictures/train"}


def test_an_archive_put_there_by_hand_is_unpacked_and_stays(server: Server, tmp_path: Path) -> None:
    files = archive_at(server.url("/gone", answer(404)))
    assert f"put it at {tmp_path / 'set.zip'}; then" in error_of(tmp_path, files)
    (tmp_path / "set.zip").write_bytes(tarred(COPY))
    server.asked.clear()
    assert fetch("vrd", tmp_path, files=files) == [tmp_path / "pictures/train", tmp_path / "names.json"]
    assert server.asked == []
    assert leftovers(tmp_path) == UNPACKED | {".set.zip.unpacked", "set.zip"}


def test_files_put_there_by_hand_need_no_archive(server: Server, tmp_path: Path) -> None:
    files = archive_at(server.url("/set.zip", answer(404)))
    (tmp_path / "pictures" / "train").mkdir(parents=True)
    for name in ("1.jpg", ".2.jpg", "names.json"):
        (tmp_path / "pictures" / "train" / name).write_bytes(b"")
    (tmp_path / "names.json").write_bytes(b"[]")
    error_of(tmp_path, files)  # one picture of two
    (tmp_path / "pictures" / "train" / "3.jpg").write_bytes(b"")
    assert fetch("vrd", tmp_path, files=files) == []


def test_an_existing_file_is_kept_if_equal_and_refused_if_not(server: Server, tmp_path: Path) -> None:
    files = archive_at(server.url("/set.zip", serve(zipped(OFFICIAL))))
    mine = tmp_path / "pictures" / "train" / "1.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"own")
    text = error_of(tmp_path, files)
    assert f"{mine} differs from the one in {tmp_path / 'set.zip'}; move one of them away" in text
    assert mine.read_bytes() == b"own"
    assert leftovers(tmp_path) == {"pictures", "pictures/train", "pictures/train/1.jpg", "set.zip"}
    mine.write_bytes(b"one")
    before = mine.stat().st_ino
    fetch("vrd", tmp_path, files=files)
    assert mine.stat().st_ino == before
    assert leftovers(tmp_path) >= UNPACKED


def test_a_plain_file_that_is_something_else_is_refused_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(PAGE)
    text = error_of(tmp_path, one(server.url("/a", serve(H5))))
    assert text == f"VG150: {tmp_path / 'a.h5'} is a web page; remove it and run the command again"
    assert (tmp_path / "a.h5").read_bytes() == PAGE


def test_two_archives_may_share_a_folder_and_even_a_name(server: Server, tmp_path: Path) -> None:
    needed = (Members(("VG_100K/*.jpg", "VG_100K_2/*.jpg"), "images", 4),)
    first = zipped({"VG_100K/1.jpg": b"1", "VG_100K/2.jpg": b"2"})
    second = zipped({"VG_100K_2/2.jpg": b"another 2", "VG_100K_2/3.jpg": b"3"})
    files = [
        RemoteFile("images.zip", (server.url("/1", serve(first)),), unpack=needed),
        RemoteFile("images2.zip", (server.url("/2", answer(404), serve(second)),), unpack=needed),
    ]
    error_of(tmp_path, files)
    server.asked.clear()
    with pytest.warns(PolyadicWarning, match="images has 3 files, the dataset has 4"):  # told, not hidden
        assert fetch("vg200", tmp_path, files=files) == [tmp_path / "images"]
    assert [path for path, *_ in server.asked] == ["/2"]  # the first is known to be unpacked
    assert {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()} == {
        "1.jpg": b"1",
        "2.jpg": b"2",
        "3.jpg": b"3",
    }


def test_ctrl_c_while_unpacking_leaves_no_half_folder(server: Server, tmp_path: Path) -> None:
    files = archive_at(server.url("/set.zip", serve(zipped(OFFICIAL))))

    def stop(name: str, done: int, total: int | None) -> None:
        if name == "unpack set.zip":
            assert not (tmp_path / "pictures/train/1.jpg").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("vrd", tmp_path, files=files, progress=stop)
    assert leftovers(tmp_path) == {"pictures", "pictures/train", "set.zip"}
    server.asked.clear()
    fetch("vrd", tmp_path, files=files)
    assert server.asked == []
    assert leftovers(tmp_path) >= UNPACKED


def test_two_fetches_into_one_root_do_not_meet(server: Server, tmp_path: Path) -> None:
    files, texts = one(server.url("/a", serve(H5))), []
    fetch("vg150", tmp_path, files=files, progress=lambda *_: texts.append(error_of(tmp_path, files)))
    assert f"VG150: another fetch is filling {tmp_path}; wait for it" in texts[0]
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert len(server.asked) == 1


def test_the_lock_of_a_dead_process_is_taken_over_and_that_of_another_machine_is_not(
    server: Server, tmp_path: Path
) -> None:
    files, lock = one(server.url("/a", serve(H5))), tmp_path / ".fetch.lock"
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    pid = gone.stdout.decode().strip()
    for owner in (f"{pid} another-machine", f"{os.getpid()} {socket.gethostname()}", ""):
        lock.write_text(owner)
        assert f"remove {lock}" in error_of(tmp_path, files)
    lock.write_text(f"{pid} {socket.gethostname()}")
    fetch("vg150", tmp_path, files=files)
    assert leftovers(tmp_path) == {"a.h5"}


def test_a_full_disk_is_one_line_and_the_next_call_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = one(server.url("/a", serve(H5)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        text = error_of(tmp_path, files)
    assert f"VG150: cannot write to {tmp_path}: No space left on device; make room and run" in text
    assert not (tmp_path / "a.h5").exists()
    fetch("vg150", tmp_path, files=files)
    assert server.sent == len(H5)


def test_a_root_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot write to " in error_of(root, one("http://127.0.0.1:1/a"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied; choose another --root" in error_of(tmp_path, one("http://127.0.0.1:1/a"))


def test_unknown_names_and_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolyadicError, match="no dataset is called 'vg80k'; known: vrd, vg150, vg200"):
        fetch("vg80k", tmp_path)
    with pytest.raises(PolyadicError, match="timeout must be positive"):
        fetch("vrd", tmp_path, timeout=0)


def test_the_table_is_well_formed_and_fills_the_readers_places() -> None:
    places = {
        name: {place for file in files for place in [m.place for m in file.unpack] or [file.path]}
        for name, files in FILES.items()
    }
    annotations = {"annotations_train.json", "annotations_test.json", "objects.json", "predicates.json"}
    assert places == {
        "vrd": annotations | {"sg_dataset/sg_train_images", "sg_dataset/sg_test_images"},
        "vg150": {"VG-SGG.h5", "VG-SGG-dicts.json", "image_data.json", "images"},
        "vg200": {"vg1_2_meta.h5", "images"},
    }
    for file in (file for files in FILES.values() for file in files):
        assert file.urls
        assert file.by_hand.startswith("https://")
        assert all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in file.urls)
        assert file.sha256 is None or (len(file.sha256) == 64 and int(file.sha256, 16))


@pytest.mark.parametrize("module", ["download", "archives", "sources"])
def test_it_imports_the_standard_library_and_nothing_heavy(module: str) -> None:
    tree = ast.parse(Path(sys.modules[f"polyadic.datasets.{module}"].__file__ or "").read_text())
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in plain | named if name.split(".")[0] not in sys.stdlib_module_names}
    assert ours <= {"polyadic.vocabulary", "polyadic.datasets.download", "polyadic.datasets.archives"}
