"""Tasks in processes: each is done once, whatever dies."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pool_cases import dying, failing, squares

from polyadic.engines.local import Lost, run_tasks
from polyadic.structures.vocabulary import PolyadicError


def test_each_task_is_done_once() -> None:
    assert sorted(run_tasks(squares, range(20), 2)) == [(n, n * n) for n in range(20)]
    assert list(run_tasks(squares, [], 2)) == []


def test_a_killed_process_costs_only_its_task(tmp_path: Path) -> None:
    start = partial(dying, 3, str(tmp_path / "marker"))
    assert sorted(run_tasks(start, range(9), 2)) == [(n, n * n) for n in range(9)]
    assert (tmp_path / "marker").exists()


def test_a_task_that_kills_every_process_is_given_up_alone() -> None:
    results = dict(run_tasks(partial(dying, 2, ""), range(5), 1))
    assert results[2] == Lost("3 worker processes died on it; the last was ended by SIGKILL")
    assert {n: x for n, x in results.items() if n != 2} == {n: n * n for n in (0, 1, 3, 4)}


def test_an_error_while_workers_start_ends_the_job() -> None:
    with pytest.raises(PolyadicError, match="no such model"):
        list(run_tasks(failing, range(3), 1))
