"""The command on a world so small that it trains in a second; on detector evidence, so that it learns something."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from polyadic.cli import main

TINY = """
preset = "toy"
sources = ["evidence"]
threads = 1
world = { train = 24, test = 6 }
pixels = { backbone = "test_byobnet", weights = "random", strides = [8], side = 96, longest = 96, pool = 2, mask = 16 }
evidence = { embedding = 16, geometry = 16 }
head = { rank = 2, hidden = 32 }
selector = { hidden = 16 }
backbone = { epochs = 0 }
triplets = { epochs = 4, images = 3, rate = 3e-3 }
selection = { epochs = 1 }
"""
PIXELS = ("--sources", "pixels,evidence")


def write_tiny(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.toml"
    path.write_text(TINY)
    return path


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def message(self) -> str:
        """The one line of a mistake."""
        assert (self.code, self.out) == (1, ""), self.err
        assert self.err.startswith("polyadic: ")
        assert self.err.count("\n") == 1
        return self.err.strip()


def call(*arguments: str | Path) -> int:
    """The command in this process; its exit code."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main replaces it
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


class Command:
    """Calls, and what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Result:
        self.capsys.readouterr()
        code = call(*arguments)
        out, err = self.capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(code, out, err)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
