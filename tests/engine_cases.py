"""A job on a few small photos with a tiny model; importable by worker processes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from model_cases import detections, model_of, photo

from polyadic.engines.job import Plan, prepared
from polyadic.engines.shards import Job, relate_shard
from polyadic.experiments.photos import Question
from polyadic.model.answers import AnswerOptions
from polyadic.model.relation_model import RelationModel
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo

QUESTION = Question(AnswerOptions(k=2, top=8, least=0.0))


def make_model(fatal: str = "", marker: str = "") -> RelationModel:
    """A model whose detector finds boxes by the photo's name; it kills its process at `fatal`, once if a marker."""
    model = model_of("evidence")

    def detect(seen: Photo) -> Detections:
        if fatal and seen.name.endswith(fatal) and not (marker and os.path.exists(marker)):
            if marker:
                Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        number = sum(Path(seen.name).name.encode())
        return replace(detections(2 + number % 3, seed=number, size=seen.size), image=seen.name)

    model.set_detector(detect)
    return model


def job_of(out: str | Path, fatal: str = "", marker: str | Path = "") -> Job:
    return Job(str(out), "made", partial(make_model, fatal, str(marker)), QUESTION, batch=2)


def write_photos(folder: Path, n: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(n):
        photo(at).save(folder / f"{at:02}.png")
    return folder


def plan_of(job: Job, *words: str | Path, size: int = 3, resume: bool = False) -> Plan:
    with prepared(job, [str(word) for word in words], size, resume=resume, overwrite=False) as plan:
        return plan


def run_here(job: Job, *words: str | Path, size: int = 3) -> dict[str, bytes]:
    """Do the job in this process; return the content of its files."""
    model = job.make_model()
    for shard in plan_of(job, *words, size=size).left:
        report = relate_shard(model, job, shard)
        assert report.problem is None
    return files_of(job.out)


def files_of(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("relations-*"))}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    """The files of seven photos in shards of two, by one process."""
    return run_here(job_of(tmp_path / "whole"), write_photos(tmp_path / "photos", 7), size=2)
