"""Bad inputs through the command: each ends with a clear line and no traceback. A new reader adds rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_cases import ROWS, Row
from model_cases import model_of
from tiny_runs import Command
from vrd_files import write_vrd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    model_of("evidence").save(folder / "evidence")
    write_vrd(folder / "vrd")
    return folder


def test_the_table_is_long_and_its_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 200


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bad_input_is_one_clear_line(
    row: Row, shared: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("evidence", "vrd"):
        (tmp_path / name).symlink_to(shared / name)
    for name, content in row.files.items():
        (tmp_path / name).write_bytes(content)
    result = command(*row.command)
    assert result.code in (1, 2), result.out
    assert row.fragment in result.out + result.err
    if row.command[0] != "data":  # which prints a report
        assert sum(line.startswith("polyadic: ") for line in result.err.splitlines()) >= 1
        assert len(result.err) < 1000
