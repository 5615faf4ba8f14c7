"""Downloads and archives from a server that fails, stalls, lies and hangs up, and files put there by hand."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
from refusals import refused

from polyadic.datasets import download as download_module
from polyadic.datasets.download import Members, RemoteFile
from polyadic.datasets.fetch import FILES, fetch
from polyadic.structures.vocabulary import PolyadicWarning


def test_a_file_is_downloaded_once_and_a_second_fetch_sends_no_request(server: Server, tmp_path: Path) -> None:
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


def test_a_server_error_is_retried_a_limited_number_of_times(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", answer(500), answer(503), serve(H5))
    fetch("vg150", tmp_path, files=one(url), retries=2)
    assert len(server.asked) == 3
    url = server.url("/b", answer(500))
    assert "127.0.0.1: HTTP 500" in error_of(tmp_path, one(url, path="b.h5"), retries=2)
    assert len(server.asked) == 6


def test_dead_and_unreachable_mirrors_are_skipped_at_once(server: Server, tmp_path: Path) -> None:
    dead = server.url("/dead", answer(404, PAGE)), nobody(), "http://nowhere.invalid/a.h5"
    fetch("vg150", tmp_path, files=one(*dead, server.url("/a", serve(H5))), retries=5)
    assert [path for path, *_ in server.asked] == ["/dead", "/a"]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_dead_link_ends_in_one_line_with_the_file_and_its_place_and_stops_no_other(
    server: Server, tmp_path: Path
) -> None:
    gone = one(server.url("/gone", answer(404)), nobody(), path="b.h5")
    text = error_of(tmp_path, gone + one(server.url("/a", serve(H5))))
    for fragment in ("b.h5 could not", "HTTP 404", "Connection refused", "https://example.org", str(tmp_path / "b.h5")):
        assert fragment in text
    assert leftovers(tmp_path) == {"a.h5"}
    (tmp_path / "b.h5").write_bytes(H5)
    assert fetch("vg150", tmp_path, files=gone) == []


def test_a_stalled_download_resumes_where_it_stopped(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", serve(H5, cut=100_000, stall=True), serve(H5))
    fetch("vg150", tmp_path, files=one(url), timeout=0.5)
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert server.asked[1] == ("/a", "bytes=100000-", '"1"')
    assert server.sent == len(H5)


def test_a_mirror_that_only_stalls_is_given_up(server: Server, tmp_path: Path) -> None:
    silent = server.url("/silent", never)
    stuck = server.url("/stuck", serve(H5, cut=1000, stall=True))
    text = error_of(tmp_path, one(silent, stuck), timeout=0.4, retries=1)
    assert "no answer within 0.4 s" in text
    assert "no byte for 0.4 s" in text
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


def test_attempts_that_make_progress_do_not_count_as_failed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_ADVANCE", 30_000)
    plans = [serve(H5, cut=40_000 * i) for i in range(1, 7)]
    fetch("vg150", tmp_path, files=one(server.url("/a", *plans, serve(H5))), retries=1)
    assert server.sent == len(H5)
    server.asked.clear()
    drip = server.url("/b", *[serve(H5, cut=100 * i) for i in range(1, 9)])
    assert "cut off after 200 of 300008 bytes" in error_of(tmp_path, one(drip, path="b.h5"), retries=1)
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


def part(root: Path, data: bytes, url: str) -> None:
    (root / "a.h5.part").write_bytes(data)
    (root / "a.h5.part.json").write_text(json.dumps({"url": url, "validator": '"1"'}))


def lying_range(where: str) -> Plan:
    return answer(206, H5[100:], Content_Range=where, ETag='"1"', Content_Length=len(H5) - 100)


RESUME, AGAIN = "bytes=100-", None
# bytes of an earlier attempt, how the server answers, what of the file is known, the ranges asked for
PARTS: dict[str, tuple[bytes, list[Plan], dict[str, Any], list[str | None]]] = {
    "intact": (H5[:100], [serve(H5)], {}, [RESUME]),
    "the file changed": (b"\x89HDF" + bytes(96), [serve(H5, tag='"2"')], {}, [RESUME]),
    "another range": (H5[:100], [lying_range("bytes 101-300007/300008"), serve(H5)], {}, [RESUME, AGAIN]),
    "no range": (H5[:100], [answer(206, H5[100:]), serve(H5)], {}, [RESUME, AGAIN]),
    "out of range": (H5[:100], [answer(416, Content_Range="bytes */50"), serve(H5)], {}, [RESUME, AGAIN]),
    "ranges ignored": (H5[:100], [answer(200, H5, Content_Length=len(H5))], {}, [RESUME]),
    "complete": (H5, [serve(H5)], {}, ["bytes=300008-"]),
    "complete, size known": (H5, [serve(H5)], {"size": len(H5)}, []),
    "bad bytes": (bytes(100), [serve(H5)], {"sha256": DIGEST}, [RESUME, AGAIN]),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_part_is_continued_only_where_the_server_agrees(server: Server, tmp_path: Path, case: str) -> None:
    data, plans, known, ranges = PARTS[case]
    url = server.url("/a", *plans)
    part(tmp_path, data, url)
    fetch("vg150", tmp_path, files=one(url, **known), retries=1)
    assert [asked for _, asked, _ in server.asked] == ranges
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert leftovers(tmp_path) == {"a.h5"}
    if case.startswith("complete"):
        assert server.sent == 0


@pytest.mark.parametrize("note", ["", "[]", '{"url": 3', json.dumps({"url": "http://another/", "validator": "x"})])
def test_a_part_of_unknown_origin_is_not_trusted(server: Server, tmp_path: Path, note: str) -> None:
    (tmp_path / "a.h5.part").write_bytes(b"\x89HDF\r\n\x1a\n of somebody")
    (tmp_path / "a.h5.part.json").write_text(note)
    fetch("vg150", tmp_path, files=one(server.url("/a", serve(H5))))
    assert server.asked == [("/a", None, None)]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_a_part_resumes_at_its_own_mirror_and_survives_dead_ones(server: Server, tmp_path: Path) -> None:
    first, third = server.url("/1", serve(H5)), server.url("/3", answer(404))
    second = server.url("/2", answer(503), serve(H5))
    part(tmp_path, H5[:100], second)
    error_of(tmp_path, one(third, second), retries=0)
    assert (tmp_path / "a.h5.part").read_bytes() == H5[:100]
    server.asked.clear()
    fetch("vg150", tmp_path, files=one(first, second, third))
    assert server.asked == [("/2", "bytes=100-", '"1"')]
    assert (tmp_path / "a.h5").read_bytes() == H5


def test_with_a_checksum_another_mirror_continues_the_part(server: Server, tmp_path: Path) -> None:
    first, second = server.url("/1", serve(H5, cut=200_000), answer(404)), server.url("/2", serve(H5, tag='"other"'))
    fetch("vg150", tmp_path, files=one(first, second, sha256=DIGEST), retries=1)
    assert server.asked[-1] == ("/2", "bytes=200000-", None)
    assert server.sent == len(H5)
    assert (tmp_path / "a.h5").read_bytes() == H5


@pytest.mark.parametrize(
    ("data", "size", "sha256", "why"),
    [
        (H5[:-1] + b"?", len(H5), DIGEST, "SHA-256 is"),
        (H5[:-1], len(H5), None, "cut off after 300007 of 300008 bytes"),
        (PAGE, None, None, "a web page"),
        (b"some text", None, None, "not an HDF5 file"),
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


def test_a_length_that_is_not_the_known_size_is_refused_before_the_body(server: Server, tmp_path: Path) -> None:
    text = error_of(tmp_path, one(server.url("/a", serve(H5 + b"!")), size=len(H5)), retries=3)
    assert "offers 300009 bytes instead of 300008" in text
    assert (len(server.asked), leftovers(tmp_path)) == (1, set())


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
    assert "cut off (IncompleteRead)" in error_of(tmp_path, one(server.url("/c", chunked(b"")), path="c.h5"))


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
    with transfers(lambda *step: steps.append(step)):
        got = fetch("vrd", tmp_path, files=files)
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
        (damaged(zipped(NOISE)), "damaged ("),
        (damaged(tarred(NOISE)), "damaged ("),
        (tarred(NOISE)[:-8] + bytes(8), "damaged ("),
        (gzip.compress(b"no tar"), "damaged ("),
        (zipped({"names.json": b"[]"}), "an archive without train/*.jpg"),
    ],
    ids=["page", "text", "bad zip", "bad tar", "bad end", "no tar", "too little"],  # not the time
)
def test_after_a_bad_archive_the_next_mirror_is_tried(server: Server, tmp_path: Path, data: bytes, why: str) -> None:
    lie, truth = server.url("/lie", serve(data)), server.url("/truth", serve(zipped(OFFICIAL)))
    assert f"127.0.0.1: {why}" in error_of(tmp_path, archive_at(lie))
    assert leftovers(tmp_path) == set()
    fetch("vrd", tmp_path, files=archive_at(lie, truth))
    assert leftovers(tmp_path) >= UNPACKED


def tar_link(target: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("sg_train/1.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, target
        archive.addfile(info)
    return out.getvalue()


def zip_link(target: str) -> bytes:
    info = zipfile.ZipInfo("sg_train/1.jpg")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, target)
    return out.getvalue()


UNSAFE = [zipped(OFFICIAL | {"sg_train/C:a.jpg": b""}), tarred(OFFICIAL | {"sg_train/a\\b.jpg": b""})]
UNSAFE += [tar_link("/etc/passwd"), zip_link("/etc/passwd")]
UNSAFE += [zipped(OFFICIAL | {name: b"3"}) for name in ("sg_train/../../sg_train/3.jpg", "/tmp/sg_train/4.jpg")]


@pytest.mark.parametrize("data", UNSAFE, ids=["drive", "backslash", "tar link", "zip link", "parent", "absolute"])
def test_an_unsafe_archive_is_refused_as_a_whole(server: Server, tmp_path: Path, data: bytes) -> None:
    why = "an archive with a link or an unsafe name"
    assert f"127.0.0.1: {why}" in error_of(tmp_path, archive_at(server.url("/set.zip", serve(data))))
    (tmp_path / "set.zip").write_bytes(data)  # by hand it is refused as well
    assert f"set.zip is {why}" in error_of(tmp_path, archive_at())
    assert leftovers(tmp_path) == {"set.zip"}


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_that_unpacks_to_too_much_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    monkeypatch.setattr(download_module, "_TEXT", 1000)
    (tmp_path / "set.zip").write_bytes(pack(OFFICIAL | {"sg_train/3.jpg": bytes(1_000_000)}))
    assert "unpacks to more than" in error_of(tmp_path, archive_at())
    assert leftovers(tmp_path) == {"set.zip"}
    fetch("vrd", tmp_path, files=archive_at(), unpacked=0.01)
    assert (tmp_path / "pictures/train/3.jpg").stat().st_size == 1_000_000


def test_an_archive_put_there_by_hand_is_unpacked_and_stays(server: Server, tmp_path: Path) -> None:
    files = archive_at(server.url("/gone", answer(404)))
    assert f"to {tmp_path / 'set.zip'}; then" in error_of(tmp_path, files)
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


def test_a_plain_file_that_is_something_else_is_refused_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(PAGE)
    assert "a.h5 is a web page; remove it" in error_of(tmp_path, one(server.url("/a", serve(H5))))
    assert (tmp_path / "a.h5").read_bytes() == PAGE


def test_two_archives_may_share_a_folder_and_even_a_name(server: Server, tmp_path: Path) -> None:
    needed = (Members(("VG_100K/*.jpg", "VG_100K_2/*.jpg"), "images", 4),)
    first = zipped({"VG_100K/1.jpg": b"1", "VG_100K/2.jpg": b"2"})
    second = zipped({"VG_100K_2/2.jpg": b"another 2", "VG_100K_2/3.jpg": b"3"})  # the first 2.jpg is kept
    files = [
        RemoteFile("images.zip", (server.url("/1", serve(first)),), unpack=needed),
        RemoteFile("images2.zip", (server.url("/2", answer(404), serve(second)),), unpack=needed),
    ]
    error_of(tmp_path, files)
    server.asked.clear()
    with pytest.warns(PolyadicWarning, match="has 3 files"):
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

    with pytest.raises(KeyboardInterrupt), transfers(stop):
        fetch("vrd", tmp_path, files=files)
    assert leftovers(tmp_path) == {"set.zip.part", "set.zip.part.json"}
    sent = server.sent
    fetch("vrd", tmp_path, files=files)
    assert server.sent == sent
    assert leftovers(tmp_path) >= UNPACKED


def test_a_second_fetch_into_one_root_is_refused(server: Server, tmp_path: Path) -> None:
    files, texts = one(server.url("/a", serve(H5))), []
    with transfers(lambda *_: texts.append(error_of(tmp_path, files))):
        fetch("vg150", tmp_path, files=files)
    assert "another fetch is filling" in texts[0]
    assert (tmp_path / "a.h5").read_bytes() == H5
    assert len(server.asked) == 1


def test_a_full_disk_is_one_line_and_the_next_call_resumes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = one(server.url("/a", serve(H5)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        text = error_of(tmp_path, files)
    assert "No space left on device" in text
    assert not (tmp_path / "a.h5").exists()
    fetch("vg150", tmp_path, files=files)
    assert server.sent == len(H5)


def test_a_root_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot write to " in error_of(root, one("http://127.0.0.1:1/a"))


def test_unknown_names_and_numbers_are_refused(tmp_path: Path) -> None:
    refused("known: vrd, vg150, vg200", fetch, "vg80k", tmp_path)
    refused("timeout must be positive", fetch, "vrd", tmp_path, timeout=0)


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
