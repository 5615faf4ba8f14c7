"""Bad lists of photos and damaged jobs of `predict --engine`: further rows of the table."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hostile_cases import DEEP, DETECTIONS, Row, drop, text
from hostile_models import NAMES, YOLOX


def parquet(**columns: list[Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def engines() -> Iterator[Row]:
    """Lists of photos, and folders of jobs; nothing here comes as far as a worker."""
    good = NAMES | {"m.onnx": YOLOX, "l.txt": b"p.png\n", "d.jsonl": text({**DETECTIONS, "image": "p.png"})}
    command = ("predict", "evidence", "--names", "c.names", "--detector", "m.onnx", "--engine")
    table = parquet(url=["p.png"])
    lists: list[tuple[str, bytes, str]] = [
        ("l.txt", b"", "the list is empty"),
        ("l.txt", b"\n\n", "the list is empty"),
        ("l.txt", b"\xff\xd8\xff\0", "line 1: not a path or URL"),
        ("l.txt", b"p.png\n" + b"x" * 9000, "line 2: not a path or URL"),
        ("l.parquet", b"", "not a readable Parquet file"),
        ("l.parquet", b"PAR1" * 9, "not a readable Parquet file"),
        ("l.parquet", table[:-20], "not a readable Parquet file"),
        ("l.parquet", table[:4] + bytes(30) + table[34:], "not a readable Parquet file"),
        ("l.parquet", parquet(a=[1]), "expected a text column"),
        ("l.parquet", parquet(a=["x"], b=["y"]), "expected a text column"),
        ("l.parquet", parquet(url=["x", None]), "row 2: url is not a path"),
        ("l.parquet", parquet(url=["x\0y"]), "row 1: url is not a path"),
    ]
    for at, (name, content, fragment) in enumerate(lists):
        call = (*command, "local", name, "--out", "o")
        yield Row(f"engine, list {at} {name}", good | {name: content}, call, fragment)
    for what, words, fragment in [
        ("no list", ("local", "none.txt", "--out", "o"), "no file"),
        ("no source", ("local", "none", "--out", "o"), "no such photo, folder, list or archive"),
        ("no match", ("local", "*.gif", "--out", "o"), "no file matches this pattern"),
        ("no photos", ("local", "evidence", "--out", "o"), "no image and no archive"),
        ("protocol", ("local", "what://a/b.txt", "--out", "o"), "Protocol not known"),
        ("chained", ("local", "zip://a::b.txt", "--out", "o"), "chained URLs"),
        ("engine", ("spark", "l.txt", "--out", "o"), "expected local, ray or"),
        ("no out", ("local", "l.txt"), "--out must be a folder"),
        ("a file as out", ("local", "l.txt", "--out", "p.png"), "is a file, expected a folder"),
        ("records as out", ("local", "l.txt", "--out", "o.jsonl"), "--out must be a folder"),
        ("somebody's folder", ("local", "l.txt", "--out", "mine"), "holds note.txt"),
        ("out in a file", ("local", "l.txt", "--out", "p.png/o"), "cannot be"),
        ("drawings", ("local", "l.txt", "--out", "o", "--draw", "d"), "--draw is for predictions without"),
        (
            "boxes",
            ("local", "l.txt", "--out", "o", "--detections", "d.jsonl"),
            "--detections is for predictions without",
        ),
        ("shard", ("local", "l.txt", "--out", "o", "--shard", "0"), "Invalid value"),
        ("workers", ("local", "l.txt", "--out", "o", "--workers", "-1"), "Invalid value"),
        ("a job begun", ("local", "l.txt", "--out", "job"), "continue it with --resume"),
    ]:
        yield Row(
            f"engine, {what}", good | {"mine/note.txt": b"", "job/_job.json": b"{}"}, (*command, *words), fragment
        )
    about = {"made": "x", "source": [], "shards": 1, "photos": 1, "repeated": 0}
    jobs: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "_job.json"),
        "cut off": (b'{"made": "x', "not complete JSON"),
        "a list": (b"[]", "_job.json"),
        "deep": (DEEP, "_job.json"),
        "without shards": (text(drop(about, ("shards",))), "`shards`"),
        "shards x": (text({**about, "shards": "x"}), "$.shards"),
        "shards -1": (text({**about, "shards": -1}), "$.shards"),
        "1e15 shards": (text({**about, "shards": 10**15}), "$.shards"),
        "photos null": (text({**about, "photos": None}), "$.photos"),
        "another model": (text(about), "another model or other options"),
    }
    for what, (content, fragment) in jobs.items():
        resumed = (*command, "local", "l.txt", "--out", "job", "--resume")
        yield Row(f"engine, job {what}", good | {"job/_job.json": content}, resumed, fragment)


ROWS = list(engines())
