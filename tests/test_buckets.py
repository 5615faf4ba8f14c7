"""Photos and results in a bucket: an S3-compatible server on this machine, and fsspec's memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from engine_cases import expected, job_of, make_model, plan_of
from moto.server import ThreadedMotoServer

from polyadic.engines.shards import file_name, relate_shard
from polyadic.engines.sources import find_entries
from polyadic.engines.storage import Folder, UnreachableError, fetch
from polyadic.structures.vocabulary import PolyadicError

__all__ = ["expected"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of moto and botocore


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    s3 = fsspec.filesystem("s3")
    s3.mkdir("bucket")
    yield s3
    s3.rm("bucket", recursive=True)


def test_a_bucket_in_and_a_bucket_out(
    bucket: fsspec.AbstractFileSystem, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    bucket.put(str(tmp_path / "photos"), "bucket/photos", recursive=True)
    bucket.pipe("bucket/list.txt", b"photos/00.png\ns3://bucket/photos/01.png\nphotos/none.png\n")
    job = job_of("s3://bucket/out")
    plan = plan_of(job, "s3://bucket/photos", size=2)
    model = make_model()
    for shard in plan.left:
        assert relate_shard(model, job, shard).problem is None
    assert plan_of(job, "s3://bucket/photos", size=2, resume=True).left == []
    assert sorted(Folder("s3://bucket/out").names()) == ["_job.json", "_photos.list", *map(file_name, range(4))]
    images: list[str] = []
    for name, content in expected.items():
        there, here = (pq.read_table(io.BytesIO(x)) for x in (bucket.cat(f"bucket/out/{name}"), content))
        assert there.drop_columns(["image"]) == here.drop_columns(["image"])
        images += there.column("image").to_pylist()
    assert images == [f"s3://bucket/photos/{at:02}.png" for at in range(7)]
    job = job_of(tmp_path / "listed")
    plan = plan_of(job, "s3://bucket/list.txt", size=9)
    report = relate_shard(model, job, 0)
    assert (report.photos, report.errors, report.first) == (3, 1, "no image s3://bucket/photos/none.png")


def test_a_bucket_that_refuses_is_one_line(
    bucket: fsspec.AbstractFileSystem, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(PolyadicError, match="s3://none/photos"):
        list(find_entries("s3://none/photos"))
    import s3fs

    async def refuse(*rest: object, **more: object) -> None:
        raise PermissionError("The AWS Access Key Id you provided does not exist in our records.")

    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    patch.setattr(s3fs.S3FileSystem, "_call_s3", refuse)
    bucket.invalidate_cache()
    with pytest.raises(PolyadicError, match="does not exist in our records"):
        list(find_entries("s3://bucket/other"))
    with pytest.raises(UnreachableError, match=r"s3://bucket/a\.jpg cannot be read"):
        fetch("s3://bucket/a.jpg")
    (tmp_path / "list.txt").write_text("s3://bucket/a.jpg\n")
    job = job_of(tmp_path / "out")
    plan_of(job, tmp_path / "list.txt")
    assert "Access Key" in str(relate_shard(make_model(), job, 0).problem)  # no file: tried again when resumed
    assert plan_of(job, tmp_path / "list.txt", resume=True).left == [0]


def test_memory_and_the_web(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/m/a.png", b"abc")
    memory.pipe("/m/d/b.png", b"abc")
    assert [entry.url for entry in find_entries("memory://m")] == ["memory://m/a.png", "memory://m/d/b.png"]
    assert fetch("memory://m/a.png") == b"abc"
    with pytest.raises(PolyadicError, match="chained URLs"):
        fetch("simplecache::memory://m/a.png")
    with pytest.raises(PolyadicError, match=r"no image|cannot be read") as caught:
        fetch("http://127.0.0.1:1/a.png")  # nobody listens: the photo's problem, not the shard's
    assert not isinstance(caught.value, UnreachableError)
