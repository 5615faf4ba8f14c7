"""Shapes are checked in every test (jaxtyping + beartype), with few threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

SOURCE = Path(__file__).parent / "src" / "polyadic"
# numba compiles the functions of kernel.py files itself: they take no decorator
CHECKED = sorted(
    "polyadic." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "kernel.py" and path != SOURCE / "__init__.py"
)
jaxtyping.install_import_hook(CHECKED, "typecheck.check")

torch.set_num_threads(1)

pytest_plugins = ["bad_server", "cache_cases"]  # their fixtures `server` and `cache`


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
