from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from polyadic.boxes import ordered_pairs
from polyadic.model.heads import Branch, LabelHead, SelectionHead, TripletHead

BOX, PAIR, HIDDEN, SIZES = 6, 9, 7, (5, 3, 4)  # all unequal


def head_of(context: bool = False, copies: int = 0, rank: int = 2) -> TripletHead:
    torch.manual_seed(0)
    head = TripletHead(BOX, PAIR, SIZES, rank=rank, hidden=HIDDEN, context=context, copies=copies).double().eval()
    for branch in (head.subject, head.object):
        if branch.lift is not None:  # as after training
            nn.init.normal_(branch.lift.weight)
            nn.init.normal_(branch.lift.bias)
    return head


def features(n: int, pairs: Tensor, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = (n, BOX), (n, BOX), (len(pairs), PAIR)
    subject, object, pair = (torch.randn(*item, dtype=torch.float64, generator=generator) for item in rows)
    return subject, object, pair


def plain_branch(branch: Branch, x: Tensor, labels: list[int]) -> Tensor:
    """One row: fully connected layers with ReLU, R·classes outputs, lifted labels. [R, classes]."""
    layers = [item for item in branch.hidden if isinstance(item, nn.Linear)]
    for layer in layers:
        x = (layer.weight @ x + layer.bias).clamp_min(0)
    flat = branch.scores.weight @ x + branch.scores.bias
    out = torch.stack([flat[r * branch.classes : (r + 1) * branch.classes] for r in range(branch.rank)])
    if branch.lift is not None:
        lift = branch.lift.weight @ x + branch.lift.bias
        for r in range(branch.rank):
            for a, label in enumerate(labels):
                if label >= 0:
                    out[r, label] += lift[r * len(labels) + a]
    return out


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("copies", [0, 2])
def test_the_head_equals_three_branches_run_per_pair(context: bool, copies: int) -> None:
    head, n = head_of(context, copies), 4
    pairs = torch.cat([ordered_pairs(n), torch.tensor([[2, 1], [2, 1]])])  # repeats are allowed
    subject, object, pair = features(n, pairs)
    labels = torch.tensor([[0, 2], [3, -1], [-1, -1], [1, 0]]) if copies else None
    with torch.no_grad():
        cp = head(subject, object, pair, pairs, labels=labels)
        for at, (s, o) in enumerate(pairs.tolist()):
            left, right = subject[s], object[o]
            if context:
                left, right = torch.cat([left, pair[at]]), torch.cat([right, pair[at]])
            names = ([], []) if labels is None else (labels[s].tolist(), labels[o].tolist())
            torch.testing.assert_close(cp.subject[at], plain_branch(head.subject, left, names[0]))
            torch.testing.assert_close(cp.predicate[at], plain_branch(head.predicate, pair[at], []))
            torch.testing.assert_close(cp.object[at], plain_branch(head.object, right, names[1]))


def test_each_branch_has_the_layers_of_the_paper() -> None:
    head = TripletHead(BOX, PAIR, SIZES, rank=5, hidden=HIDDEN)
    for branch, width, classes in zip(
        (head.subject, head.predicate, head.object), (BOX, PAIR, BOX), SIZES, strict=True
    ):
        linear = [item for item in branch.modules() if isinstance(item, nn.Linear)]
        shapes = [(item.in_features, item.out_features) for item in linear]
        assert shapes == [(width, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 5 * classes)]
    assert TripletHead(1, 1, (1, 1, 1)).subject.hidden[0].out_features == 4096
    assert SelectionHead(3).layers[0].out_features == 4096


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("context", [False, True])
def test_without_pairs_there_are_no_tensors(n: int, context: bool) -> None:
    head, pairs = head_of(context, copies=2), ordered_pairs(n)
    cp = head(*features(n, pairs), pairs, labels=torch.zeros(n, 2, dtype=torch.long))
    assert cp.batch_shape == (0,)
    assert cp.sizes == SIZES
    assert cp.rank == 2


def test_before_training_a_detected_label_adds_two_to_its_log_score() -> None:
    branch = Branch(BOX, 3, 5, hidden=HIDDEN, dropout=0.0, copies=2)
    x = torch.randn(2, BOX, generator=torch.Generator().manual_seed(3))
    change = branch(x, torch.tensor([[1, -1], [2, 4]])) - branch(x)
    expected = torch.zeros(2, 3, 5)
    expected[0, :, 1] = expected[1, :, 2] = expected[1, :, 4] = 2
    torch.testing.assert_close(change, expected)


@pytest.mark.parametrize("context", [False, True])
def test_gradients_reach_every_weight(context: bool) -> None:
    head, pairs = head_of(context, copies=2), ordered_pairs(5)
    cp = head(*features(5, pairs), pairs, labels=torch.tensor([[0, 1], [2, -1], [3, 0], [1, 2], [2, 3]]))
    generator = torch.Generator().manual_seed(4)
    target = torch.stack([torch.randint(n, (len(pairs),), generator=generator) for n in SIZES], 1)
    cp.nll(target).mean().backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_dropout_is_active_in_training_only() -> None:
    torch.manual_seed(0)
    head = TripletHead(BOX, PAIR, SIZES, rank=2, hidden=HIDDEN, dropout=0.0, input_dropout=0.5).double()
    pairs = ordered_pairs(3)
    x = features(3, pairs)
    for at in range(3):
        assert not torch.equal(head(*x, pairs).factors[at], head(*x, pairs).factors[at])
    head.eval()
    assert torch.equal(head(*x, pairs).predicate, head(*x, pairs).predicate)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_of_labels_is_one_classifier_for_both_boxes(layers: int) -> None:
    torch.manual_seed(0)
    head = LabelHead(BOX, (5, 3, 5), hidden=HIDDEN, dropout=0.5, input_dropout=0.5, layers=layers).double().eval()
    pairs = ordered_pairs(4)
    subject, object, pair = features(4, pairs)
    cp = head(subject, object, pair, pairs)
    assert (cp.rank, cp.sizes) == (1, (5, 3, 5))
    with torch.no_grad():
        share = torch.stack([plain_branch(head.label, row, [])[0].softmax(-1) for row in subject])  # [N, S]
    for at, (s, o) in enumerate(pairs.tolist()):
        expected = share[s][:, None, None] * share[o][None, None] / 3
        torch.testing.assert_close(cp.dense()[at].detach(), expected.expand(5, 3, 5))
    assert not head(subject[:0], object[:0], pair[:0], pairs[:0]).batch_shape[0]


def test_the_logit_equals_one_hidden_layer_by_hand() -> None:
    torch.manual_seed(0)
    head = SelectionHead(5, hidden=7).double().eval()
    first, last = (entry for entry in head.layers if isinstance(entry, nn.Linear))
    x = torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        result, logs = head(x).tolist(), head.log_selected(x).tolist()
        hidden = [(first.weight @ row + first.bias).clamp_min(0) for row in x]
        logits = [float(last.weight[0] @ h + last.bias) for h in hidden]
    for logit, log, expected in zip(result, logs, logits, strict=True):
        assert math.isclose(logit, expected, abs_tol=1e-6)
        assert math.isclose(log, -math.log1p(math.exp(-expected)), abs_tol=1e-6)


def test_a_very_unlikely_pair_has_a_finite_log() -> None:
    head = SelectionHead(1, 1)
    with torch.no_grad():
        for weight in head.parameters():
            weight.fill_(-1e4)
    assert head.log_selected(torch.zeros(1, 1)).item() == -1e4
    assert head.log_selected(torch.zeros(0, 1)).shape == (0,)
