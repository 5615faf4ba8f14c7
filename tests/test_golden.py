"""The official evaluator's numbers on the stored official predictions of VRD, and the same under other switches."""

from __future__ import annotations

from typing import Any

import pytest
from shared_data import real_vrd, shared

from polyadic.evaluation import evaluate
from polyadic.evaluation.protocol import Recalls, get_protocol
from polyadic.io.records import read_predictions

LU = get_protocol("lu2016")
OFFICIAL = {
    ("relationship", "all"): (11.599895, 14.113642, 14.964650),
    ("phrase", "all"): (13.524483, 16.457188, 17.334381),
    ("relationship", "zero-shot"): (3.336185, 4.790419, 5.389222),
    ("phrase", "zero-shot"): (3.592814, 5.132592, 5.731394),
}
VARIANTS: list[tuple[dict[str, Any], tuple[float, float]]] = [  # R@50, R@100
    ({"match": "many-to-one"}, (14.48, 15.34)),
    ({"match": "many-to-one", "task": "phrase"}, (17.12, 17.98)),
    ({"aggregate": "image-mean"}, (14.06, 14.63)),
    ({"match": "many-to-one", "aggregate": "image-mean"}, (14.27, 14.85)),
    ({"no_prediction": "drop"}, (14.17, 15.02)),
]


@pytest.fixture(scope="module")
def table() -> Recalls:
    train, test = real_vrd("train"), real_vrd("test")
    file = shared("data", "vrd", "lu2016", "relationship_det_result.mat")
    found = read_predictions(file, test.vocabulary, [])
    protocols = [LU.change(task=task, subset=subset) for task, subset in OFFICIAL]
    protocols += [LU.change(**switches) for switches, _ in VARIANTS]
    return evaluate(test, found, protocols, len(test.vocabulary.predicates), train.triplets())


@pytest.mark.parametrize(("task", "subset"), OFFICIAL)
def test_the_twelve_official_numbers_to_six_decimals(table: Recalls, task: str, subset: str) -> None:
    protocol = LU.change(task=task, subset=subset)
    for top, expected in zip((20, 50, 100), OFFICIAL[task, subset], strict=True):
        assert f"{table.at(protocol, top).recall:.6f}" == f"{expected:.6f}"


@pytest.mark.parametrize(("switches", "expected"), VARIANTS)
def test_the_variants_to_two_decimals(table: Recalls, switches: dict[str, Any], expected: tuple[float, float]) -> None:
    for top, number in zip((50, 100), expected, strict=True):
        assert f"{table.at(LU.change(**switches), top).recall:.2f}" == f"{number:.2f}"
