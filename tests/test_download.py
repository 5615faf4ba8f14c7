"""One file from a server that fails, stalls, lies and hangs up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bad_server import (
    DIGEST,
    H5,
    PAGE,
    Handler,
    Plan,
    Server,
    answer,
    error_of,
    leftovers,
    never,
    nobody,
    one,
    serve,
    transfers,
)

from polyadic.datasets import download as download_module
from polyadic.datasets.fetch import fetch


def test_a_file_arrives_whole_and_the_second_fetch_asks_nobody(server: Server, tmp_path: Path) -> None:
    files = one(server.url("/a.h5", serve(H5)), size=len(H5), sha256=DIGEST)
    steps: list[tuple[str, int, int | None]] = []
    root = tmp_path / "new" / "root"
    with transfers(lambda *step: steps.append(step)):
        assert fetch("vg150", root, files=files) == [root / "a.h5"]
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
    with transfers(lambda *_: early.append(final.exists())):
        fetch("vg150", tmp_path, files=one(url), retries=2)
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

    with pytest.raises(KeyboardInterrupt), transfers(stop):
        fetch("vg150", tmp_path, files=files)
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
