"""Run the shards of a job on Ray Data, here or on a cluster; actors hold the model. Ray is an optional extra."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from polyadic.engines.local import TRIES
from polyadic.engines.shards import Job, ShardReport, relate_shard
from polyadic.progress import check
from polyadic.structures.vocabulary import PolyadicError

CPUS = 0.5  # per actor: actors that hold every CPU leave none for Ray Data's own tasks, and it stalls
MEMORY = 200 << 20  # of the object store on this machine: rows of numbers pass through it, photos do not


class _Actor:
    def __init__(self, job: Job) -> None:
        self.job, self.model = job, job.make_model()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        report = relate_shard(self.model, self.job, int(row["shard"]))
        return {**asdict(report), "problem": report.problem or ""}


def run_ray(
    job: Job, shards: Sequence[int], *, workers: int, address: str = "", gpus: float = 0
) -> Iterator[ShardReport]:
    """Yield the report of each shard; one that an actor died on is repeated by another.

    `address` is of a cluster, `ray://host:10001` or `host:6379`; else that of RAY_ADDRESS; else Ray starts here.
    """
    try:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # the default starves them on a busy machine
        import ray
        import ray.data
    except ImportError as error:
        raise PolyadicError("--engine ray needs Ray: pip install 'polyadic[ray]'") from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    here: dict[str, Any] = {"num_cpus": max(workers, 1), "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = address or os.environ.get("RAY_ADDRESS", "")
    try:
        if cluster:
            ray.init(cluster, **quiet)
        else:
            ray.init(**here, **quiet)
    except Exception as error:  # Ray's errors have no common base class
        text = " ".join(str(error).split())
        raise PolyadicError(f"--engine: no Ray cluster at {cluster or 'this machine'} ({text:.160})") from error
    try:
        yield from _run(job, shards, workers, gpus)
    finally:
        ray.shutdown()


def _run(job: Job, shards: Sequence[int], workers: int, gpus: float) -> Iterator[ShardReport]:
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # a shard that kills its actors does not end the others
    rows = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards))
    warnings.simplefilter("ignore")  # its versions rename options
    reports = rows.map(
        _Actor,  # type: ignore[arg-type]
        fn_constructor_args=(job,),
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
        num_cpus=CPUS,
        num_gpus=gpus or None,
        max_restarts=-1,
        max_task_retries=TRIES - 1,
    )
    missing = set(shards)
    for row in reports.iter_rows():
        check()
        report = ShardReport(**{**row, "problem": row["problem"] or None})
        missing.discard(report.shard)
        yield report
    for shard in sorted(missing):
        yield ShardReport(shard, problem=f"{TRIES} workers died on it")
