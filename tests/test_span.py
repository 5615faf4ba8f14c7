"""First layers trained through inner products: against the same layers trained plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from training_cases import StopAfterStep, a_setup, finish, log_of, same, tiny, watched

from polyadic.config.schema import StageConfig
from polyadic.progress import Interrupted
from polyadic.training import train
from polyadic.training.span import FrozenRows, SpanLayer, clip_gradients
from polyadic.training.stages import TripletStage

SGD: dict[str, Any] = {
    "triplets.optimiser": "sgd",
    "triplets.decay": 0.0,
    "triplets.schedule": "constant",
    "triplets.rate": 3e-3,
    "triplets.reduction": "sum",
    "triplets.clip": 2.0,
}
SPAN = {**SGD, "head.span": True}


@pytest.mark.parametrize(
    "change",
    [
        {"sources": ("pixels",)},
        {"sources": ("pixels", "evidence")},
        {"triplets.slices": 2, "triplets.reduction": "mean", "triplets.rate": 0.1, "triplets.clip": 0.1},
    ],
)
def test_a_run_with_spans_has_the_weights_and_norms_of_a_plain_one(tmp_path: Path, change: dict[str, Any]) -> None:
    plain = finish(tiny(**{**SGD, **change}), tmp_path / "plain")
    span = finish(tiny(**{**SPAN, **change}), tmp_path / "span")
    norms = [[entry["norm"] for entry in log_of(run.folder) if entry["event"] == "step"] for run in (plain, span)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert max(norms[0]) > float(tiny(**{**SGD, **change}).triplets.clip)  # some steps were clipped
    start = plain.kept.models[()]
    assert list(span.model.state_dict()) == list(plain.model.state_dict())
    for name, weights in plain.model.state_dict().items():
        moved, expected = span.model.state_dict()[name] - start[name], weights - start[name]
        torch.testing.assert_close(moved, expected, rtol=1e-2, atol=1e-5, msg=name)
        if name.endswith("hidden.0.weight"):
            assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_run_with_spans_continues_bit_for_bit(tmp_path: Path, precision: str) -> None:
    config = tiny(**SPAN, precision=precision)
    whole = finish(config, tmp_path / "whole")
    with pytest.raises(Interrupted), watched(StopAfterStep()):
        train(config, tmp_path / "run")
    assert [entry["stage"] for entry in log_of(tmp_path / "run")] == ["triplets"]
    again = finish(config, tmp_path / "run", resume=True)
    assert same(again.model.state_dict(), whole.model.state_dict())


def test_a_step_by_hand() -> None:
    """Steps with momentum on repeated rows and on others, beside columns that are not frozen."""
    torch.manual_seed(0)
    frozen, other = torch.randn(9, 7).half().float(), torch.randn(6, 2)
    plain = nn.Linear(9, 5)
    layer = nn.Linear(9, 5)
    layer.load_state_dict(plain.state_dict())
    rows = FrozenRows([frozen[:4], frozen[2:6]], [frozen[6:]], torch.device("cpu"))
    assert (rows.fitted, len(rows.x)) == (6, 9)
    span = SpanLayer(layer, rows, rows.products(), StageConfig(rate=0.1, momentum=0.9))
    sides: Any = (plain, list(plain.parameters()), []), (layer, [layer.bias, *span.parameters()], [span])
    norms, outputs = [], []
    for module, parameters, spans in sides:
        optimiser = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        for at in ([3, 0, 3, 5, 1, 0], [3, 0, 3, 5, 1, 0], [2, 4], [5], [0, 4, 4]):
            optimiser.zero_grad()
            module(torch.cat([frozen[at], other[: len(at)]], 1)).square().sum().backward()
            norms.append(float(clip_gradients(parameters, spans, 3.0)))
            optimiser.step()
            for layer_of in spans:
                layer_of.step()
        outputs.append(module(torch.cat([frozen[6:], other[:3]], 1)))
    assert norms[5:] == pytest.approx(norms[:5], rel=1e-5)
    torch.testing.assert_close(outputs[1], outputs[0])
    with span.applied():
        torch.testing.assert_close(layer.weight, plain.weight)
    refused("neither of training nor of held-out", layer, torch.zeros(1, 9))
    span.remove()
    assert layer.weight.requires_grad
    assert layer(torch.zeros(1, 9)).shape == (1, 5)


def test_spans_are_of_the_first_layers_alone(tmp_path: Path) -> None:
    stage = TripletStage(a_setup(tiny(**SPAN), tmp_path), True)
    frozen = [name for name, weight in stage.model.head.named_parameters() if not weight.requires_grad]
    assert frozen == [f"{branch}.hidden.0.weight" for branch in ("subject", "predicate", "object")]


@pytest.mark.parametrize(
    "change",
    [
        *({"triplets.optimiser": "adamw"}, {"triplets.decay": 0.1}, {"triplets.schedule": "cosine"}),
        *({"precision": "float16"}, {"pixels.reduce": 4}, {"head.input_dropout": 0.1}),
    ],
)
def test_spans_of_other_steps_are_refused(change: dict[str, Any]) -> None:
    refused("head.span needs", lambda: tiny(**{**SPAN, **change}))
