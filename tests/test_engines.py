"""Photos by the million: the answer depends on neither engine, number of workers, deaths nor interruptions."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_cases import QUESTION, expected, files_of, job_of, make_model, plan_of, run_here, write_photos
from model_cases import NAMES
from tiny_runs import Command

from polyadic.engines import sources
from polyadic.engines.job import prepared, run_local
from polyadic.engines.ray_data import run_ray
from polyadic.engines.shards import relate_shard
from polyadic.engines.sources import Entry, find_entries, read_list, write_list
from polyadic.engines.storage import Folder
from polyadic.experiments.photos import Item, predict_photos
from polyadic.io.parquet import parquet_files, read_parquet
from polyadic.structures.vocabulary import PolyadicError

__all__ = ["expected"]


def rows(folder: Path) -> list[dict[str, object]]:
    return [row for path in parquet_files(folder) for row in pq.read_table(path).to_pylist()]


def images(*words: str | Path) -> list[str]:
    return [entry.image for word in words for entry in find_entries(str(word))]


def test_folders_lists_patterns_and_ranges_name_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("p/b.jpg", "p/a.PNG", "p/.hidden.jpg", "p/note.txt", "p/.t/c.jpg", "p/z/1.jpg", "p/d/2.jpg"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert images("p") == ["p/a.PNG", "p/b.jpg", "p/d/2.jpg", "p/z/1.jpg"]
    assert images("p/*.jpg", "s-{08..10}.tar") == ["p/b.jpg", "s-08.tar", "s-09.tar", "s-10.tar"]
    Path("p/list.txt").write_bytes(b"b.jpg\r\n\n s 1.jpg\ncaf\xe9.jpg\nhttps://x.org/a?b=1\n/abs.jpg\n")
    entries = list(find_entries("p/list.txt"))
    assert [entry.image for entry in entries] == [
        "b.jpg",
        " s 1.jpg",
        "caf\udce9.jpg",
        "https://x.org/a?b=1",
        "/abs.jpg",
    ]
    assert [entry.url for entry in entries][:2] == [f"{tmp_path}/p/b.jpg", f"{tmp_path}/p/ s 1.jpg"]
    assert [entry.url for entry in entries][3:] == ["https://x.org/a?b=1", "/abs.jpg"]
    pq.write_table(pa.table({"id": [1, 2], "path": ["b.jpg", "s3://b/k.jpg"]}), "p/list.parquet")
    assert [entry.url for entry in find_entries("p/list.parquet")] == [f"{tmp_path}/p/b.jpg", "s3://b/k.jpg"]


def test_a_list_has_shards_of_fixed_content_and_each_photo_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_CHUNK", 4)  # repeats are found within a chunk and across chunks
    (tmp_path / "a.txt").write_text("1.jpg\n2.jpg\n1.jpg\n3.jpg\n./2.jpg\nx.tar\n4.jpg\n5.jpg\n3.jpg\ny.tar\nx.tar\n")
    folder = Folder(str(tmp_path / "out"))
    assert write_list([str(tmp_path / "a.txt")], folder, 2) == sources.Listing(5, 7, 4)
    names = [[entry.image for entry in read_list(folder, shard)] for shard in range(5)]
    assert names == [["1.jpg", "2.jpg"], ["3.jpg"], ["x.tar"], ["4.jpg", "5.jpg"], ["y.tar"]]


BAD_LISTS: list[tuple[str, Callable[[Path], object], str]] = [
    ("a.txt", lambda p: p.write_bytes(b"\xff\xd8\xff\0\0JFIF"), "line 1: not a path or URL"),
    ("a.txt", lambda p: p.write_bytes(b"a.jpg\n" + b"x" * 10_000), "line 2: not a path or URL"),
    ("a.txt", lambda p: p.write_bytes(b""), "the list is empty"),
    ("a.txt", lambda p: p.mkdir(), "cannot be read"),
    ("a.parquet", lambda p: p.write_bytes(b"PAR1nonsense"), "not a readable Parquet file"),
    ("a.parquet", lambda p: pq.write_table(pa.table({"a": [1]}), p), "expected a text column"),
    ("a.parquet", lambda p: pq.write_table(pa.table({"a": ["x"], "b": ["y"]}), p), "it has ['a', 'b']"),
    ("a.parquet", lambda p: pq.write_table(pa.table({"url": ["x", None]}), p), "row 2: url is not a path"),
    ("none.txt", lambda p: None, "no file"),
    ("none", lambda p: None, "no such photo, folder, list or archive"),
    ("empty", lambda p: p.mkdir(), "no image and no archive in this folder"),
    ("*.jpg", lambda p: None, "no file matches this pattern"),
    ("what://a/b", lambda p: None, "Protocol not known"),
    ("abfs://a/b", lambda p: None, "pip install adlfs"),
]


@pytest.mark.parametrize(("name", "write", "fragment"), BAD_LISTS)
def test_a_bad_source_is_one_line(name: str, write: Callable[[Path], object], fragment: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    word = name if "://" in name else str(tmp_path / name)
    with pytest.raises(PolyadicError, match=r"^[^\n]+$") as caught:
        list(find_entries(word))
    assert fragment in str(caught.value)


def test_a_file_of_a_shard_says_what_predict_says(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 5)
    job = job_of(tmp_path / "out")
    run_here(job, photos, size=9)
    items = [Item(str(path), path) for path in sorted(photos.iterdir())]
    direct = [result.relations for result in predict_photos(make_model(), items, QUESTION, batch=2)]
    (path,) = parquet_files(tmp_path / "out")
    stored = list(read_parquet(path, NAMES))
    assert [one.image for one in stored] == [one.image for one in direct]
    for one, other in zip(stored, direct, strict=True):
        assert len(one) == len(other) > 0
        assert np.array_equal(one.pairs, other.pairs)
        assert np.array_equal(one.triplets, other.triplets)
        assert one.scores.tolist() == other.f_spo.tolist()  # to the bit
        assert np.array_equal(one.boxes, other.boxes)
    record = direct[0].to_dict()
    row = pq.read_table(path).to_pylist()[0]
    assert row["relations"] == record["relations"]
    assert [box["name"] for box in row["boxes"]] == [box["name"] for box in record["boxes"]]
    assert row["error"] is None


def test_bad_photos_are_rows_with_an_error(tmp_path: Path) -> None:
    write_photos(tmp_path, 3)
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "00.png").read_bytes()[:60])
    (tmp_path / "folder.jpg").mkdir()
    names = [
        "00.png",
        "broken.jpg",
        "none.jpg",
        "folder.jpg",
        "01.png",
        "e\x1b[2Jvil.jpg",
        "caf\udce9.jpg",
        "../../etc",
    ]
    (tmp_path / "list.txt").write_bytes(b"\n".join(map(os.fsencode, names)))
    run_here(job_of(tmp_path / "out"), tmp_path / "list.txt", size=4)
    found = rows(tmp_path / "out")
    assert [row["image"] for row in found] == [*names[:6], "caf\\udce9.jpg", "../../etc"]
    assert [row["error"] is None for row in found] == [True, False, False, False, True, False, False, False]
    assert all(row["relations"] == [] for row in found if row["error"])
    assert "no image" in str(found[2]["error"])


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.removesuffix("#"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


def test_archives_are_read_in_order_and_their_damage_is_a_row(tmp_path: Path) -> None:
    one, two = (path.read_bytes() for path in sorted(write_photos(tmp_path / "p", 2).iterdir()))
    whole = tar_of(tmp_path / "a.tar", {"0.png": one, "0.json": b"{}", "../1.png": two, "0.png#": one})
    cut = tmp_path / "b.tar"
    cut.write_bytes(tar_of(tmp_path / "c.tar", {"0.png": one, "1.png": two}).read_bytes()[: 1024 + len(one) + 2000])
    packed = tar_of(tmp_path / "d.tar.gz", {"0.png": one})
    job = job_of(tmp_path / "out")
    run_here(job, whole, cut, packed)
    found = [
        (str(row["image"]).split("/", str(row["image"]).count(".tar"))[-1], row["error"])
        for row in rows(tmp_path / "out")
    ]
    errors = [str(error) for _, error in found if error]
    assert sum(error is None for _, error in found) == 4
    assert "occurs twice in the archive" in errors[0]
    assert "not a regular file" in errors[1]
    assert any("is cut off or damaged after 1 photos" in error for error in errors)
    (tmp_path / "bad.tar").write_bytes(b"no archive" * 100)
    job = job_of(tmp_path / "other")
    plan = plan_of(job, tmp_path / "bad.tar", tmp_path / "none.tar", whole)
    reports = [relate_shard(make_model(), job, shard) for shard in plan.left]
    assert "not a readable archive" in str(reports[0].problem)
    assert "no file" in str(reports[1].problem)
    assert reports[2].problem is None  # the others go on
    assert list(files_of(tmp_path / "other")) == ["relations-000002.parquet"]


def test_two_processes_write_the_same_bytes_though_one_is_killed(tmp_path: Path, expected: dict[str, bytes]) -> None:
    job = job_of(tmp_path / "out", "03.png", tmp_path / "marker")
    plan = plan_of(job, tmp_path / "photos", size=2)
    reports = list(run_local(job, plan.left, 2))
    assert (tmp_path / "marker").exists()  # a process was ended by SIGKILL in the middle of a shard
    assert sorted(report.shard for report in reports) == [0, 1, 2, 3]  # none is lost or doubled
    assert sum(report.photos for report in reports) == 7
    assert files_of(tmp_path / "out") == expected


def test_a_job_is_resumed_only_as_it_was(tmp_path: Path, expected: dict[str, bytes]) -> None:
    job, photos, whole = job_of(tmp_path / "whole"), tmp_path / "photos", tmp_path / "whole"
    (whole / "relations-000002.parquet").unlink()
    (whole / ".relations-000002.parquet.17.0a.part").write_bytes(b"half")
    (photos / "99.png").write_bytes(b"new")  # no part of a job that has begun
    with pytest.raises(PolyadicError, match="continue it with --resume"):
        plan_of(job, photos)
    with pytest.raises(PolyadicError, match="was begun with other photos"):
        plan_of(job, tmp_path, resume=True)
    with pytest.raises(PolyadicError, match="was begun with another model"):
        plan_of(replace(job, made="other"), photos, resume=True)
    with prepared(job, [str(photos)], 2, resume=True, overwrite=False) as plan:
        assert plan.left == [2]
        with pytest.raises(PolyadicError, match="another process is working"):
            plan_of(job, photos, resume=True)
        assert relate_shard(make_model(), job, 2).photos == 2
    assert files_of(whole) == expected
    (whole / "mine.txt").touch()
    with pytest.raises(PolyadicError, match=r"holds mine\.txt"):
        plan_of(job, photos, resume=True)


def test_a_full_disk_fails_the_shard_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path / "out")
    shards = plan_of(job, write_photos(tmp_path / "photos", 4), size=2).left
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "cannot be written" in str((report := relate_shard(make_model(), job, 0)).problem)
        assert "No space left on device" in str(report.problem)
    assert relate_shard(make_model(), job, 1).problem is None
    assert [path.name for path in (tmp_path / "out").glob("*relations*")] == ["relations-000001.parquet"]
    assert shards == [0, 1]


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_writes_the_same_bytes_though_an_actor_is_killed(tmp_path: Path, expected: dict[str, bytes]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    job = job_of(tmp_path / "out", "03.png", tmp_path / "marker")
    plan = plan_of(job, tmp_path / "photos", size=2)
    reports = list(run_ray(job, plan.left, workers=2))
    assert (tmp_path / "marker").exists()
    assert sorted(report.shard for report in reports) == [0, 1, 2, 3]
    assert [report.problem for report in reports] == [None] * 4
    assert files_of(tmp_path / "out") == expected


def test_the_command_writes_parquet_and_resumes(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(Path("photos"), 3)
    Path("photos/bad.jpg").write_bytes(b"nonsense")
    base = ("predict", "photos", "--out", "out", "--engine", "local", "--workers", "1", "--shard", "2")
    result = command(*base)
    assert result.code == 0, result.err
    assert result.out.startswith("4 photos, 1 with an error, ")
    assert "photos/bad.jpg is not a readable image" in result.err
    before = files_of("out")
    assert "continue it with --resume" in command(*base).message
    assert "skipping 2 of 2 shards" in command(*base, "--resume").err
    assert files_of("out") == before
    assert "was begun with another model" in command(*base, "--resume", "--top", "3").message


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (("--engine", "spark"), "expected local, ray or the ray://HOST:PORT"),
        (("--workers", "2"), "--workers is for --engine"),
        (("--engine", "local", "--out", "a.jsonl"), "--out must be a folder"),
        (("--engine", "local", "--out", "o", "--draw", "d"), "--draw is for predictions without --engine"),
        (("--out", "p"), "Parquet files need --engine local or ray"),
        (("--engine", "local", "--out", "p"), "holds 00.png, which is not of"),
        (("--engine", "local", "--out", "p/00.png"), "is a file, expected a folder"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    options: tuple[str, ...], fragment: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(Path("p"), 1)
    assert fragment in command("predict", "p", *options).message


def test_entries_of_a_range_keep_their_zeros() -> None:
    assert list(find_entries("s3://b/{000..001}.tar")) == [
        Entry("s3://b/000.tar", "s3://b/000.tar"),
        Entry("s3://b/001.tar", "s3://b/001.tar"),
    ]
