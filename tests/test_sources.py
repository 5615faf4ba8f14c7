"""Archives and whole datasets from a server that fails, and files put there by hand."""

from __future__ import annotations

import ast
import errno
import gzip
import io
import os
import random
import re
import socket
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bad_server import H5, PAGE, Server, answer, error_of, leftovers, one, serve, transfers

from polyadic.datasets.download import Members
from polyadic.datasets.fetch import FILES, RemoteFile, fetch
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning


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
        (zipped(NOISE)[:30_000], "damaged (File is not a zip file)"),
        (damaged(zipped(NOISE)), "damaged (Bad CRC-32 for file"),
        (tarred(NOISE)[:30_000], "damaged (Compressed file ended before"),
        (damaged(tarred(NOISE)), "damaged ("),
        (tarred(NOISE)[:-8] + bytes(8), "damaged (CRC check failed"),
        (gzip.compress(b"no tar"), "damaged ("),
        (zipped({"names.json": b"[]"}), "an archive without train/*.jpg"),
    ],
    ids=["page", "text", "cut zip", "bad zip", "cut tar", "bad tar", "bad end", "no tar", "too little"],  # not the time
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

    with pytest.raises(KeyboardInterrupt), transfers(stop):
        fetch("vrd", tmp_path, files=files)
    assert leftovers(tmp_path) == {"pictures", "pictures/train", "set.zip"}
    server.asked.clear()
    fetch("vrd", tmp_path, files=files)
    assert server.asked == []
    assert leftovers(tmp_path) >= UNPACKED


def test_two_fetches_into_one_root_do_not_meet(server: Server, tmp_path: Path) -> None:
    files, texts = one(server.url("/a", serve(H5))), []
    with transfers(lambda *_: texts.append(error_of(tmp_path, files))):
        fetch("vg150", tmp_path, files=files)
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


@pytest.mark.parametrize("module", ["download", "fetch"])
def test_it_imports_the_standard_library_and_nothing_heavy(module: str) -> None:
    tree = ast.parse(Path(sys.modules[f"polyadic.datasets.{module}"].__file__ or "").read_text())
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in plain | named if name.split(".")[0] not in sys.stdlib_module_names}
    assert ours <= {"polyadic", "polyadic.files", "polyadic.structures.vocabulary", "polyadic.datasets.download"}
