from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import plain_iou
from torch import Tensor

from polyadic.boxes import GEOMETRY, ordered_pairs, pair_geometry
from polyadic.config.schema import EvidenceConfig
from polyadic.model.evidence import EvidenceFeature, Nearness, box_evidence, witness_evidence

FRAME = torch.tensor([100.0, 50.0])


def crowd(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes in a few heaps, so that some rival others and some repeat them."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.randint(0, 3, (n, 2), generator=generator) * torch.tensor([25.0, 12.0])
    low = corner + torch.rand(n, 2, generator=generator) * 7
    boxes = torch.cat([low, low + 15 + torch.rand(n, 2, generator=generator) * 5], 1)
    return boxes, torch.randint(0, 3, (n,), generator=generator), torch.rand(n, generator=generator)


def test_evidence_of_a_small_scene_by_hand() -> None:
    """A dog, the same place called cat (twice), a surer dog nearby, and a dog far off."""
    boxes = torch.tensor([[0.0, 0, 20, 10], [0, 0, 20, 9], [0, 0, 20, 8], [5, 0, 25, 10], [60, 20, 80, 50]])
    dog, cat = 2, 1
    labels, scores = torch.tensor([dog, cat, cat, dog, dog]), torch.tensor([0.5, 0.4, 0.9, 0.8, 0.3])
    names, numbers = box_evidence(boxes, labels, scores, FRAME)
    assert names[0].tolist() == [dog, cat]
    assert names[4].tolist() == [dog, -1]  # nothing else is there
    first = [
        *(0.5, 0.0),  # score, logit
        *(0.8, 0.9),  # the rival: overlap .8 times (.5 + .9) beats .9 times (.5 + .4)
        0.6,  # the surer dog: 15 of 25 columns
        *(math.log(5), math.log(3)),
        *(math.log(200 / 5000), math.log(2)),
        *(0.1, 0.1),
    ]
    torch.testing.assert_close(numbers[0], torch.tensor(first))
    last = [0.3, math.log(3 / 7) / 3, 0, 0, 0, math.log(5), math.log(3), math.log(0.12), math.log(2 / 3), 0.7, 0.7]
    torch.testing.assert_close(numbers[4], torch.tensor(last))


@pytest.mark.parametrize("n", [1, 2, 12, 30])
def test_boxes_equal_a_loop_over_the_others(n: int) -> None:
    boxes, labels, scores = (x.double() if x.is_floating_point() else x for x in crowd(n))
    names, numbers = box_evidence(boxes, labels, scores, FRAME.double())
    for i in range(n):
        best, rival, repeat = (0.0, 0.0, 0.0), -1, 0.0
        for j in range(n):
            overlap = plain_iou(boxes[i].tolist(), boxes[j].tolist(), 0.0)
            if j != i and labels[j] != labels[i] and overlap > 0.5:
                worth = overlap * (0.5 + float(scores[j]))
                if worth > best[0]:
                    best, rival = (worth, overlap, float(scores[j])), int(labels[j])
            if j != i and labels[j] == labels[i] and scores[j] > scores[i]:
                repeat = max(repeat, overlap)
        assert names[i].tolist() == [int(labels[i]), rival]
        same = int((labels == labels[i]).sum())
        result = numbers[i].tolist()
        assert result[2:7] == pytest.approx([best[1], best[2], repeat, math.log(n), math.log(same)])
    assert n < 12 or (names[:, 1] >= 0).sum() > 3, "the case shows nothing"


@pytest.mark.parametrize("n", [1, 12, 30])
def test_witnesses_equal_a_loop_over_the_others(n: int) -> None:
    boxes, labels, scores = (x.double() if x.is_floating_point() else x for x in crowd(n))
    source = np.array(["fold0", "Vrd-Detector", "lu", "other"])[np.arange(n) % 4]
    witnesses = ("fold?|vrd-detector", "lu")
    numbers = witness_evidence(boxes, labels, scores, source=source, witnesses=witnesses)
    for i in range(n):
        expected = []
        for names in (("fold0", "Vrd-Detector"), ("lu",)):
            best, score, same = 0.0, 0.0, 0.0
            for j in range(n):
                overlap = plain_iou(boxes[i].tolist(), boxes[j].tolist(), 0.0) if j != i and source[j] in names else 0.0
                if overlap > best:
                    best, score = overlap, float(scores[j])
                same = max(same, overlap * float(labels[j] == labels[i]))
            expected += [float(source[i] in names), best, score if best > 0.5 else 0.0, same]
        assert numbers[i].tolist() == pytest.approx(expected)
    assert n < 12 or (numbers[:, 6] > 0).sum() >= 3, "the case shows nothing"


def test_boxes_of_unknown_detectors_are_no_witness() -> None:
    boxes, labels, scores = crowd(5)
    unknown = witness_evidence(boxes, labels, scores, source=None, witnesses=("a", "b"))
    assert torch.equal(unknown, torch.zeros(5, 8))
    assert witness_evidence(boxes, labels, scores, source=np.full(5, "a"), witnesses=()).shape == (5, 0)


@pytest.mark.parametrize("n", [2, 7, 40])  # torch rounds the distances of many points unless told not to
def test_pairs_equal_a_loop_over_the_others(n: int) -> None:
    boxes, labels, _ = crowd(n)
    boxes = (boxes * 2).round() / 2 + 3000  # far from the origin, on a grid that float32 holds
    pairs = ordered_pairs(n)
    result = Nearness(boxes, labels, FRAME).evidence(pairs)
    s, o = pairs.unbind(-1)
    torch.testing.assert_close(
        result[:, :GEOMETRY], pair_geometry(boxes[s], boxes[o], FRAME.expand(len(pairs), 2)), rtol=0, atol=0
    )
    middle = [((x1 + x2) / 2, (y1 + y2) / 2) for x1, y1, x2, y2 in boxes.tolist()]

    def nearer(i: int, j: int, like: int | None = None) -> float:
        """Boxes nearer to i than j is (of the label of j), log1p."""
        count = sum(
            math.dist(middle[k], middle[i]) < math.dist(middle[j], middle[i])
            for k in range(n)
            if k not in (i, j) and (like is None or labels[k] == like)
        )
        return math.log1p(count)

    for at, (i, j) in enumerate(pairs.tolist()):
        apart = math.dist(middle[i], middle[j]) / math.hypot(100, 50)
        expected = [apart, math.log(max(apart, 0.01)), nearer(i, j), nearer(j, i)]
        expected += [nearer(i, j, int(labels[j])), nearer(j, i, int(labels[i]))]
        assert result[at, GEOMETRY:].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_order_of_boxes_does_not_matter() -> None:
    boxes, labels, scores = crowd(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    names, numbers = box_evidence(boxes, labels, scores, FRAME)
    moved = box_evidence(boxes[order], labels[order], scores[order], FRAME)
    assert torch.equal(moved[0], names[order])
    torch.testing.assert_close(moved[1], numbers[order])
    pairs = ordered_pairs(9)
    torch.testing.assert_close(
        Nearness(boxes[order], labels[order], FRAME).evidence(pairs),
        Nearness(boxes, labels, FRAME).evidence(order[pairs]),
    )


def test_scores_of_0_and_1_and_boxes_without_area_are_finite() -> None:
    boxes = torch.tensor([[5.0, 5, 5, 5], [5, 5, 5, 5], [0, 0, 100, 50]])
    names, numbers = box_evidence(boxes, torch.tensor([0, 1, 0]), torch.tensor([0.0, 1, 1]), FRAME)
    assert numbers.isfinite().all()
    assert names[:, 1].tolist() == [-1, -1, -1]
    assert Nearness(boxes, torch.tensor([0, 1, 0]), FRAME).evidence(ordered_pairs(3)).isfinite().all()


def feature_of(n: int) -> tuple[EvidenceFeature, tuple[Tensor, Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    boxes, labels, scores = crowd(n)
    pairs = ordered_pairs(n)
    names, numbers = box_evidence(boxes, labels, scores, FRAME)
    given = names, numbers, Nearness(boxes, labels, FRAME).evidence(pairs), pairs
    return EvidenceFeature(EvidenceConfig(embedding=6, geometry=5), 3), given


def test_features_have_the_label_as_subject_and_as_object() -> None:
    net, (names, numbers, pair_numbers, pairs) = feature_of(5)
    net.eval()
    subject, object, pair = net(names, numbers, pair_numbers, pairs)
    assert (subject.shape, pair.shape) == ((5, net.box), (20, net.pair))
    for at, (s, o) in enumerate(pairs.tolist()):
        assert torch.equal(subject[s, :6], net.subject.weight[names[s, 0] + 1])
        assert torch.equal(object[o, :6], net.object.weight[names[o, 0] + 1])
        assert torch.equal(pair[at, : 2 * net.box], torch.cat([subject[s], object[o]]))
    assert torch.equal(subject[:, 6:], object[:, 6:])  # all but the embedding


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_boxes_give_finite_features_in_training(n: int) -> None:
    net, (names, numbers, pair_numbers, pairs) = feature_of(n)
    net.train()
    result = net(names, numbers, pair_numbers[:1], pairs[:1])  # one pair has no variance
    assert all(x.isfinite().all() for x in result)
    assert all(x.isfinite().all() for x in net.state_dict().values())
