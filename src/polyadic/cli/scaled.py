"""`polyadic predict --engine`: photos by the million, into Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from polyadic.cli.boxes import BoxOptions, load_model
from polyadic.cli.options import echo
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.engines.shards import Job, ShardReport
    from polyadic.experiments.photos import Question
    from polyadic.model.relation_model import RelationModel

_SHOWN = 10  # shards and photos that failed, in full


def check_engine(engine: str | None, workers: int) -> None:
    """Check --engine, and that --workers is not given without it."""
    if engine is None and workers:
        raise PolyadicError("--workers is for --engine local or ray")
    if engine is not None and engine not in ("local", "ray") and not engine.startswith("ray://"):
        raise PolyadicError(f"--engine: expected local, ray or the ray://HOST:PORT of a cluster, got {engine!r}")


@dataclass(frozen=True)
class Scaled:
    """The options of a job."""

    folder: Path  # of the model
    device: str
    threads: int
    boxes: BoxOptions
    question: Question
    batch: int
    engine: str
    workers: int
    shard: int

    def run(
        self,
        words: Sequence[str],
        out: str | None,
        made: str,
        unused: Mapping[str, object],
        *,
        resume: bool,
        overwrite: bool,
    ) -> None:
        """Relate the photos that `words` name, and print what became of them."""
        from polyadic.engines.job import prepared
        from polyadic.engines.shards import Job
        from polyadic.progress import Interrupted, interruptible, say, showing, track

        for option, value in unused.items():
            if value is not None:
                raise PolyadicError(f"{option} is for predictions without --engine")
        if out is None or out.endswith((".jsonl", ".json", ".parquet")):
            raise PolyadicError(f"--engine writes Parquet files: --out must be a folder or a URL, got {out}")
        job = Job(out, made, self.maker(), self.question, self.batch)
        photos = relations = errors = failed = shown = 0
        with showing(), interruptible(), prepared(job, words, self.shard, resume=resume, overwrite=overwrite) as plan:
            if plan.repeated:
                say(f"note: {plan.repeated:,} repeated names are left out: each photo is related once")
            if len(plan.left) < plan.shards:
                say(f"skipping {plan.shards - len(plan.left):,} of {plan.shards:,} shards that are already in {out}")
            reports = self.reports(job, plan.left)
            try:
                for report in track(reports, "shards", len(plan.left)):
                    photos, relations = photos + report.photos, relations + report.relations
                    errors, failed = errors + report.errors, failed + (report.problem is not None)
                    if report.problem is not None:
                        say(f"polyadic: shard {report.shard} failed: {report.problem}")
                    elif report.errors and shown < _SHOWN:
                        shown += 1
                        some = f"{report.errors:,} of {report.photos:,} photos"
                        say(f"polyadic: {some} of shard {report.shard} failed: {report.first}")
            except Interrupted:
                echo(f"polyadic: stopped after {photos:,} photos; continue with --resume", err=True)
                raise typer.Exit(130) from None
        bad = f", {errors:,} with an error" if errors else ""
        echo(f"{photos:,} photo{'s' * (photos != 1)}{bad}, {relations:,} relations: {out}")
        if failed:
            echo(f"polyadic: {failed:,} of {len(plan.left):,} shards failed; --resume tries them again", err=True)
        if failed or (photos and errors == photos):
            raise typer.Exit(1)

    def maker(self) -> partial[RelationModel]:
        """Describe how a worker, maybe on another machine, loads the model; paths are in full."""
        files = {name: getattr(self.boxes, name) for name in ("names", "categories", "mapping")}
        words = tuple(
            str(Path(word).expanduser().resolve()) if Path(word).exists() else word for word in self.boxes.words
        )
        resolved = {name: path.expanduser().resolve() for name, path in files.items() if path is not None}
        boxes = replace(self.boxes, words=words, **resolved)
        folder = None if self.folder is None else self.folder.expanduser().resolve()
        return partial(worker_model, folder, self.device, self.threads or 1, boxes)

    def reports(self, job: Job, shards: Sequence[int]) -> Iterator[ShardReport]:
        """Run the engine."""
        from polyadic.engines.job import run_local
        from polyadic.model.storage import pick_device

        gpus = _gpus() if pick_device(self.device).type == "cuda" else 0
        workers = self.workers or gpus or _cores()
        if not shards:
            return iter(())
        if self.engine == "local":
            return run_local(job, shards, workers)
        from polyadic.engines.ray_data import run_ray

        address = "" if self.engine == "ray" else self.engine
        return run_ray(job, shards, workers=workers, address=address, gpus=min(1.0, gpus / workers))


def worker_model(folder: Path, device: str, threads: int, boxes: BoxOptions) -> RelationModel:
    """Load the model and its detectors in a worker."""
    model = load_model(folder, device, threads)
    boxes.prepare(model, [])
    return model


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
