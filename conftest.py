"""Shapes are checked in every test (jaxtyping + beartype), with few threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import jaxtyping
import pytest
import torch


class UncheckedKernels(MetaPathFinder):
    """Import modules called kernel as they are: numba compiles their functions and cannot take a decorated one."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = name.startswith("polyadic.") and "kernel" in name.split(".")
        return PathFinder.find_spec(name, path, target) if ours else None


jaxtyping.install_import_hook("polyadic", "typecheck.check")
sys.meta_path.insert(0, UncheckedKernels())

torch.set_num_threads(1)

pytest_plugins = ["bad_server", "tiny_runs"]  # their fixtures `server` and `command`

LONGEST = (  # files that start first: one of these at the end would leave the other worker idle for minutes
    "test_serve_modes",
    "test_killed",
    "test_engines",
    "test_serve_page",
    "test_ranks",
    "test_readme",
    "test_hostile",
    "test_hostile_values",
    "test_docs",
    "test_claims",
    "test_table1",
    "test_two_stages",
    "test_demo",
    "test_vrd_photos",
    "test_pool",
    "test_hub",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; `make test` tells xdist to keep this order, not to start with the most tests."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line how to run the tests of the page, if they were skipped."""
    from serve_cases import HOW

    if any(HOW in str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(HOW)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    import polyadic

    doctest_namespace["torch"] = torch
    doctest_namespace.update({name: getattr(polyadic, name) for name in polyadic.__all__})


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: without shape checks, so that our own errors speak."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
