"""`head.compile`: compiled heads are the same heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_cases import tiny

from polyadic.model.heads import Branch, SelectionHead, compile_heads
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "cl"))), reason="torch.compile needs a C++ compiler, and there is none"
)


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of torch's own code
def test_a_compiled_head_agrees_in_values_gradients_and_random_numbers() -> None:
    torch.manual_seed(0)
    plain, compiled = SelectionHead(6, 5, 0.4), SelectionHead(6, 5, 0.4)
    compiled.load_state_dict(plain.state_dict())
    compile_heads(compiled)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for rows in (7, 4):  # any number
        x, results = torch.randn(rows, 6), list[list[Tensor]]()
        for head in (plain, compiled):
            torch.manual_seed(rows)  # of the dropout
            head.zero_grad()
            value = head(x)
            value.sum().backward()
            results.append([value.detach(), *(p.grad for p in head.parameters() if p.grad is not None)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_training_compiles_the_heads_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, plain = list[str](), nn.Module.compile

    def spy(module: nn.Module, **options: Any) -> None:
        compiled.append(type(module).__name__)
        assert options.pop("options") == {"fallback_random": True}
        plain(module, **options, backend="eager")  # traced, but without a minute of C++

    monkeypatch.setattr(nn.Module, "compile", spy)
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    curves = []
    for on in (False, True):
        config = tiny(sources=("evidence",), **{"triplets.epochs": 1, "selection.epochs": 1, "head.compile": on})
        model = train(config, tmp_path / str(on))
        rows = map(json.loads, (tmp_path / str(on) / "log.jsonl").read_text().splitlines())
        curves.append([row["loss"] for row in rows if row["event"] == "step"])
        assert any(isinstance(part, Branch) for part in model.modules())
    assert compiled == ["Branch", "Branch", "Branch", "SelectionHead"]
    assert len(curves[0]) > 3
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    states = [torch.load(tmp_path / str(on) / "last.pt", weights_only=True)["parts"]["model"] for on in (False, True)]
    assert list(states[0]) == list(states[1])


def test_a_machine_without_a_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any) -> Any:
        raise RuntimeError("No working C++ compiler\nfound in a long\nstack")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(PolyadicError, match=r"^head\.compile.*No working C\+\+ compiler found.*$"):
        compile_heads(SelectionHead(3, 2, 0.0))
