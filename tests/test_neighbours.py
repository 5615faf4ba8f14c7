from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import ALL_BOXES, agree, detections, entries, model_of, pairs_of, photo, prepared, rank
from refusals import refused
from torch import Tensor

from polyadic.boxes import CONTEXT, box_place, context_features, ordered_pairs
from polyadic.config.schema import Config
from polyadic.model import box_prior as neighbours
from polyadic.model import scoring
from polyadic.model.box_prior import LabelContext
from polyadic.model.heads import LabelHead
from polyadic.model.scoring import ScoreTerms

LABELS: dict[str, Any] = {
    "head.labels": True,
    "head.rank": 1,
    "selection.epochs": 0,
    "neighbours.hidden": 6,
    "neighbours.embedding": 3,
    **ALL_BOXES,
}


def neighbours_of(classes: int = 5, noise: float = 0.3) -> LabelContext:
    torch.manual_seed(0)
    result = LabelContext(classes, hidden=8, embedding=3, noise=noise).double().eval()
    result.fit_scale(torch.randn(30, CONTEXT, dtype=torch.float64) * 2 + 1, torch.tensor([0, 0, 1, 4]))
    return result


def some_boxes(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(n, 2, 2, generator=generator, dtype=torch.float64).sort(1).values
    return corners.flatten(1) * torch.tensor([200.0, 100, 200, 100])


def slow_context(net: LabelContext, boxes: Tensor, frames: Tensor, labels: Tensor) -> list[Tensor]:
    """A box after the other, with the messages of all others in a list."""
    result = []
    for at in range(len(boxes)):
        messages = []
        for other in range(len(boxes)):
            if other != at:
                numbers = context_features(boxes, frames, torch.tensor([[at, other]]))[0]
                given = torch.cat([net.embedding.weight @ labels[other], (numbers - net.mean) / net.scale])
                messages.append(net.message(given))
        place = net.place(box_place(boxes[at : at + 1], frames[:1]))[0]
        every = torch.stack(messages)
        result.append(net.told(torch.cat([every.mean(0), every.max(0).values, place])))
    return result


@torch.no_grad()
def test_context_of_a_box_comes_from_all_others_and_not_itself() -> None:
    net, boxes = neighbours_of(), some_boxes(4)
    frames, labels = torch.tensor([[200.0, 100]]).double().expand(4, 2), torch.rand(4, 5).double().softmax(-1)
    pairs = ordered_pairs(4)
    told, alone = net(box_place(boxes, frames), context_features(boxes, frames, pairs), pairs, labels)
    for at, expected in enumerate(slow_context(net, boxes, frames, labels)):
        torch.testing.assert_close(told[at], expected)
        torch.testing.assert_close(alone[at], net.alone(box_place(boxes, frames))[at])
    other = labels.clone()
    other[2] = other[2].flip(0)
    changed, _ = net(box_place(boxes, frames), context_features(boxes, frames, pairs), pairs, other)
    assert torch.equal(changed[2], told[2])
    assert not torch.isclose(changed[[0, 1, 3]], told[[0, 1, 3]]).all(-1).any()


@torch.no_grad()
@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_context_multiplies_the_label_distribution(exponent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net, boxes = neighbours_of(), some_boxes(3)
    frames, logs = torch.tensor([[200.0, 100]]).double().expand(3, 2), torch.randn(3, 5).double().log_softmax(-1)
    result = net.refine(logs, boxes, frames, exponent)
    for at, told in enumerate(slow_context(net, boxes, frames, logs.exp())):
        alone = net.alone(box_place(boxes, frames))[at].softmax(-1)
        product = logs[at].exp() * (told.softmax(-1) / alone) ** exponent
        torch.testing.assert_close(result[at].exp(), product / product.sum())
    for few in (1, 2, 5):  # messages at once
        monkeypatch.setattr(neighbours, "_MESSAGES", few)
        torch.testing.assert_close(net.refine(logs, boxes, frames, exponent), result)
    assert torch.equal(net.refine(logs[:1], boxes[:1], frames[:1], exponent), logs[:1]), "there is nobody else"


@torch.no_grad()
def test_label_noise_is_active_in_training_only() -> None:
    net, boxes, pairs = neighbours_of(), some_boxes(4), ordered_pairs(4)
    frames, labels = torch.tensor([[200.0, 100]]).double().expand(4, 2), torch.tensor([3, 1, 0, 2])
    x = (box_place(boxes, frames), context_features(boxes, frames, pairs), pairs)
    told, alone = net(*x, torch.eye(5, dtype=torch.float64)[labels])
    rows = torch.arange(4)
    expected = -told.log_softmax(-1)[rows, labels].mean() - alone.log_softmax(-1)[rows, labels].mean()
    torch.testing.assert_close(net.nll(*x, labels), expected)
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    net.train()
    assert len({float(net.nll(*x, labels)) for _ in range(20)}) > 3
    net.noise = 0.0
    torch.testing.assert_close(net.nll(*x, labels), expected)


def test_it_learns_which_labels_occur_together() -> None:
    """Two boxes a picture: the label of one is the other's plus 1, wherever they lie; alone it could be any."""
    torch.manual_seed(0)
    net = LabelContext(4, hidden=24, dropout=0.0, embedding=6, noise=0.1)
    pairs = torch.cat([ordered_pairs(2) + 2 * at for at in range(60)])
    first = torch.arange(60) % 2 * 2
    labels = torch.stack([first, first + 1], 1).flatten()
    boxes, frames = some_boxes(120).float(), torch.tensor([[200.0, 100]]).expand(120, 2)
    numbers = torch.cat([context_features(boxes[i : i + 2], frames[:2], ordered_pairs(2)) for i in range(0, 120, 2)])
    net.fit_scale(numbers, labels)
    optimiser = torch.optim.Adam(net.parameters(), 0.005)
    for _ in range(150):
        loss = net.nll(box_place(boxes, frames), numbers, pairs, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    unsure = torch.tensor([[0.5, 0, 0.5, 0], [0.0, 1, 0, 0]]).clamp_min(1e-6).log()
    with torch.no_grad():
        result = net.refine(unsure, boxes[:2], frames[:2], 1.0)
    assert result[0].argmax() == 0
    assert float(result[0].exp()[0]) > 0.8


def test_a_label_head_is_scored_with_context() -> None:
    model, given = model_of("pixels", **LABELS), detections(5)
    assert model.neighbours is not None
    scores, boxes = pairs_of(model, given, photo()), torch.from_numpy(given.boxes).float()
    model.stages = ("triplets",)  # the boxes' stage is still to come: pixels alone
    pixels = pairs_of(model, given, photo()).cp.subject[:, 0].log_softmax(-1)
    first = {int(s): at for at, (s, _) in reversed(list(enumerate(scores.pairs.tolist())))}
    logs = torch.stack([pixels[first[s]] for s in range(5)])
    expected = model.neighbours.refine(logs, boxes, torch.tensor([[100.0, 60]]).expand(5, 2), 0.6).detach()
    torch.testing.assert_close(scores.cp.subject[:, 0], expected[scores.pairs[:, 0]])
    torch.testing.assert_close(scores.cp.object[:, 0], expected[scores.pairs[:, 1]])
    assert not torch.allclose(expected, logs, atol=1e-3)
    deaf = pairs_of(model_of("pixels", **{**LABELS, "neighbours.exponent": 0.0}), given, photo())
    torch.testing.assert_close(deaf.cp.subject[:, 0], logs[scores.pairs[:, 0]])


def test_images_together_or_in_blocks_have_their_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("pixels", **LABELS)
    given, pictures = [detections(n, seed=n) for n in (4, 2, 6)], [photo(seed) for seed in range(3)]
    alone = [rank(model, picture, item, k=None, top=50) for picture, item in zip(pictures, given, strict=True)]
    together = [scored.rank(None, 50) for scored in model.score_many(pictures, given)]
    monkeypatch.setattr(scoring, "BLOCK", 7)
    monkeypatch.setattr(scoring, "KEPT", 0)
    blocks = [rank(model, picture, item, k=None, top=50) for picture, item in zip(pictures, given, strict=True)]
    for result in (together, blocks):
        for a, b in zip(alone, result, strict=True):
            agree(a, entries(b))


def test_a_label_head_without_priors_is_refused() -> None:
    model, given = model_of("pixels", **{**LABELS, "ranking.prior": 0.0}), detections(3)
    refused("every predicate scores the same", lambda: rank(model, photo(), given, terms=ScoreTerms(geometry=False)))
    refused(
        "every predicate scores the same",
        lambda: prepared(model, given, photo()).rank(terms=ScoreTerms(geometry=False)),
    )
    assert len(rank(model, photo(), given, terms=ScoreTerms(geometry=False, prior_exponent=1.0)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"boxes.epochs": 0}, "set boxes.epochs"),
        ({"head.rank": 2}, "head.labels has rank 1"),
        ({"head.context": True}, "head.context must be false"),
        ({"pixels.mirror": True, "sources": ("evidence",)}, "pixels.mirror is for labels from pixels"),
        ({"pixels.detector": "nano.onnx"}, "add stride 32"),
        ({"pixels.mirror": True, "head.labels": False}, "pixels.mirror is for labels from pixels"),
        ({"neighbours.noise": 1.0}, "neighbours.noise: expected"),
    ],
)
def test_a_label_head_requires_matching_config(values: dict[str, Any], message: str) -> None:
    base = {"head.labels": True, "head.rank": 1, "boxes.epochs": 1, "selection.epochs": 0}
    Config().change(**base)
    refused(message, Config().change, **{**base, **values})


@pytest.mark.parametrize("crops", [0, 32])
def test_with_mirror_a_photo_and_its_mirror_image_have_the_same_labels(crops: int) -> None:
    """A theorem about the mean of both; without it, and of one alone, they differ."""
    values: dict[str, Any] = {**LABELS, "pixels.crops": crops, "pixels.place": True, "neighbours.exponent": 0.0}
    given, image = detections(4), photo()
    assert given.size is not None
    x1, y1, x2, y2 = given.boxes.T
    turned = replace(given, boxes=np.stack([given.size[0] - x2, y1, given.size[0] - x1, y2], 1))
    flipped = np.ascontiguousarray(np.asarray(image)[:, ::-1])
    for mirror in (True, False):
        model = model_of("pixels", **{**values, "pixels.mirror": mirror})
        assert isinstance(model.head, LabelHead)
        one, other = (prepared(model, boxes, x).inputs for boxes, x in ((given, image), (turned, flipped)))
        assert one.log_labels is not None
        assert other.log_labels is not None
        assert torch.allclose(one.log_labels, other.log_labels, atol=1e-3) == mirror
        labels = torch.from_numpy(given.labels)
        assert model.label_nll(one, labels).isfinite()
        if mirror:
            views = [model.head.labels(model.features.boxes(x)) for x in (one, one.mirrored())]
            log = torch.stack(views).mean(0).log_softmax(-1)
            torch.testing.assert_close(one.log_labels, log.detach())
            nll = -torch.stack(views)[:, range(4), labels].mean()
            torch.testing.assert_close(model.label_nll(one, labels), nll)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_label_head_and_context_work_in_half_precision(precision: str) -> None:
    model, given = model_of("pixels", **LABELS, precision=precision), detections(5)
    exact = pairs_of(model_of("pixels", **LABELS), given, photo())
    result = pairs_of(model, given, photo())
    assert result.cp.subject.dtype == torch.float32
    torch.testing.assert_close(result.cp.subject, exact.cp.subject, rtol=0.05, atol=0.1)
    inputs = prepared(model, given, photo()).inputs_of(slice(None))
    loss = model.label_nll(inputs, torch.from_numpy(given.labels))
    loss.backward()
    assert loss.isfinite()
    assert any(x.grad is not None for x in model.head.parameters())
