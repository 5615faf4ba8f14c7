"""Training, prediction and downloads that are killed at random moments, again and again, end as if they had not been.

A process that has imported everything forks one child per attempt, so that time goes into work and not into imports.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest
from bad_server import Handler, Server, serve
from predict_cases import BOXES, lay_out, save_models
from safetensors.torch import load_file
from tiny_runs import write_tiny
from training_cases import log_of, same

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
KILLS = 5  # of each command
PATIENCE = 40  # seconds for each: on a busy machine two kills may do

SCRIPT = """
    import json, os, random, shutil, signal, sys, time
    from pathlib import Path

    import polyadic.datasets.fetch as fetching
    import polyadic.experiments.photos, polyadic.model.relation_model, polyadic.training, polyadic.experiments.runs
    from polyadic.cli import main
    from polyadic.datasets.download import Members, RemoteFile

    url, kills, patience, jobs = json.loads(sys.argv[1])
    fetching.FILES["vrd"] = (RemoteFile("a.zip", (url,), unpack=(Members(("*.jpg",), "images", 20),)),)

    def attempt(words, delay, how):
        "Run the command, and end it after some time; return whether that was before its end, and the exit code."
        child = os.fork()
        if child == 0:
            code = 1
            try:
                log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1), os.dup2(log, 2)
                main(words)
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
            except KeyboardInterrupt:
                pass
            finally:
                os._exit(code)
        end = time.monotonic() + delay
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return False, os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, how)
        return True, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def words(job, place):
        again = Path(job["marker"].replace("OUT", place)).exists()
        if not again:
            shutil.rmtree(place, ignore_errors=True)  # killed before there was anything to continue
        return [word.replace("OUT", place) for word in job["again" if again else "first"]]

    def finish(job, place):
        start = time.monotonic()
        assert attempt(words(job, place), 100, signal.SIGKILL) == (False, 0), Path("log").read_text()
        return time.monotonic() - start

    for seed, (folder, job) in enumerate(jobs.items()):
        os.chdir(folder)
        finish(job, "warm")  # kernels are compiled
        length, chance = finish(job, "whole"), random.Random(seed)
        hits, ends, end = 0, 0, time.monotonic() + patience
        while hits < kills and (hits < 2 or time.monotonic() < end):
            how = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            killed, code = attempt(words(job, f"killed-{ends}"), chance.uniform(0, 0.8 * length), how)
            assert killed or code == 0, Path("log").read_text()
            hits, ends = hits + killed, ends + (not killed)
        finish(job, f"killed-{ends}")
        os.chdir("..")
"""


class Slow(Handler):
    def body(self, data: bytes) -> None:
        for start in range(0, len(data), 20_000):
            super().body(data[start : start + 20_000])
            time.sleep(0.02)


def archive() -> bytes:
    buffer, chance = io.BytesIO(), random.Random(0)
    with zipfile.ZipFile(buffer, "w") as file:
        for at in range(20):
            file.writestr(f"in/{at}.jpg", chance.randbytes(20_000))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run each command to its end in `whole`, and with interruptions in `killed-0`, `killed-1`, ..."""
    root = tmp_path_factory.mktemp("killed")
    for name in ("train", "predict", "fetch"):
        (root / name).mkdir()
    write_tiny(root / "train")
    lay_out(root / "predict", save_models(root / "models"))
    predict = ["predict", "pixels", "photos", *BOXES, "--batch", "1", "--out", "OUT.jsonl", "--draw", "OUT", "--resume"]
    fetch = ["data", "fetch", "vrd", "--root", "OUT"]
    train = {"first": ["train", "tiny.toml", "--out", "OUT"], "again": ["train", "--resume", "--out", "OUT"]}
    jobs = {
        "train": {"marker": "OUT/config.json", **train},
        "predict": {"marker": ".", "again": predict},
        "fetch": {"marker": ".", "again": fetch},
    }
    environment = {**os.environ, "no_proxy": "*", "OMP_NUM_THREADS": "1"}
    with Server() as server:
        server.RequestHandlerClass = Slow
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        job = json.dumps([server.url("/a.zip", serve(archive())), KILLS, PATIENCE, jobs])
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), job]
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, env=environment, check=False, timeout=900
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    for log in root.glob("*/log"):
        assert "Traceback" not in log.read_text()
    return root


def killed(folder: Path) -> list[Path]:
    places = sorted(path for path in folder.glob("killed-*") if path.is_dir())
    assert places
    return places


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder; temporary ones of killed processes may stay."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith((".part", ".lock"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_killed_training_ends_in_the_same_weights(ended: Path) -> None:
    whole = ended / "train" / "whole"
    for run in killed(ended / "train"):
        assert same(load_file(run / "model/model.safetensors"), load_file(whole / "model/model.safetensors"))
        assert log_of(run) == log_of(whole)
        assert (run / "config.json").read_bytes() == (whole / "config.json").read_bytes()


def test_a_killed_prediction_ends_in_the_same_bytes(ended: Path) -> None:
    whole = ended / "predict" / "whole"
    assert len(content(whole)) == 5
    for drawn in killed(ended / "predict"):
        assert drawn.with_suffix(".jsonl").read_bytes() == whole.with_suffix(".jsonl").read_bytes()
        assert content(drawn) == content(whole)


def test_a_killed_download_ends_in_the_same_files(ended: Path) -> None:
    whole = ended / "fetch" / "whole"
    assert len(content(whole / "images")) == 20
    for root in killed(ended / "fetch"):
        assert content(root) == content(whole)
