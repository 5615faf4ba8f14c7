"""How evaluation is called: what is refused, in one line, and what each number carries."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from evaluation_cases import LU, TWO, predictions, recall_of, scene

from polyadic.evaluation import Evaluator, evaluate
from polyadic.evaluation.protocol import Protocol
from polyadic.structures.vocabulary import PolyadicError


def test_unknown_and_repeated_images_are_refused() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    answer = predictions([(0, 1)], [(0, 1, 2)], [0.5])
    with pytest.raises(PolyadicError, match="'a' occurs twice"):
        evaluate([truth], [answer, answer], [LU], 5)
    with pytest.raises(PolyadicError, match="'a' is none of the 0 images"):
        evaluate([], [answer], [LU], 5)
    with pytest.raises(PolyadicError, match="scenes: image 'a' occurs twice"):
        evaluate([truth, truth], [], [LU], 5)
    with pytest.raises(PolyadicError, match="predictions of 'a' were given for the image 'b'"):
        Evaluator([LU], 5).update(scene([], [0, 2], TWO, "b"), answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocols": "lu2017"}, "no protocol is called 'lu2017'"),
        ({"protocols": []}, "give at least one"),
        ({"predictions": {"a": None}}, "must be Relations, one per image, got a str"),
        ({"predicates": 1}, "ground truths of a: classes count from 0, got (0, 1, 2) among 1 predicates"),
        ({"seen": np.zeros((2, 2), int)}, "seen must be whole numbers [n, 3]"),
        ({"seen": np.full((2, 3), 0.5)}, "seen must be whole numbers [n, 3]"),
        ({"bootstrap": -1}, "bootstrap must be a number of replicates"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_evaluated_is_one_line(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"scenes": [scene([(0, 1, 1)], [0, 2], TWO)], "predictions": [], "protocols": [LU]}
    with pytest.raises(PolyadicError) as error:
        evaluate(**(arguments | {"predicates": 5} | change))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_predicted_classes_out_of_range_and_unknown_frames_are_refused() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    for triplet in ((0, 5, 2), (0, -1, 2), (1 << 20, 0, 0)):
        with pytest.raises(PolyadicError, match="predictions of a: classes count from 0"):
            recall_of(truth, predictions([(0, 1)], [triplet], [0.5]))
    unknown = replace(truth, size=None)
    small = replace(predictions([(0, 1)], [(0, 1, 2)], [0.5]), size=(50.0, 50.0))
    with pytest.raises(PolyadicError, match="the size of the annotated frame is unknown"):
        recall_of(unknown, small)


def test_there_is_no_row_for_a_protocol_that_was_not_evaluated() -> None:
    with pytest.raises(PolyadicError, match="no row for lu2016 relationship, any k at N = 30"):
        evaluate([scene([], [0, 2], TWO)], [], [LU], 5).at(LU, 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"match": "some"}, "match must be one-to-one or many-to-one"),
        ({"k": 0}, "k must be a positive whole number"),
        ({"tops": ()}, "tops must be"),
        ({"iou_offset": 2}, "iou_offset 0 or 1"),
        ({"colour": 1}, "no switch is called 'colour'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_protocols_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolyadicError, match=message):
        LU.change(**changes)


def test_every_number_carries_its_protocol() -> None:
    truth = scene([(0, 1, 1)], [0, 2], TWO)
    protocol = LU.change(task="phrase", k=10, match="many-to-one", subset="zero-shot")
    table = evaluate([truth], [], [protocol], 5, seen=np.zeros((0, 3), np.int64))
    assert protocol.label == "lu2016 zero-shot phrase, k = 10 triplets, match = many-to-one"
    assert all(protocol.label in line for line in str(table).splitlines())
    record = table.to_json()[0]
    assert record["protocol"] == protocol.label
    assert {"match", "aggregate", "k", "k_unit", "no_prediction", "subset", "tie", "iou_offset", "task", "N"} <= set(
        record
    )


def test_no_truths_give_no_number() -> None:
    row = evaluate([scene([], [0], TWO[:1])], [], [LU], 5)[0]
    assert math.isnan(row.recall)
    assert row.to_json()["recall"] is None


def test_zero_shot_needs_the_training_triplets() -> None:
    with pytest.raises(PolyadicError, match="zero-shot recall needs the training triplets"):
        Evaluator([LU.change(subset="zero-shot")], 5)


def test_the_evaluator_loads_no_torch() -> None:
    code = "import sys, polyadic.evaluation; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_protocol_of_one_s_own_has_a_label() -> None:
    label = Protocol("mine", "one-to-one", "pooled", k=3, iou=0.7).label
    assert label.startswith("mine relationship, k = 3 triplets, match = one-to-one, aggregate = pooled")
    assert "iou = 0.7" in label
    assert LU.change(iou=0.7).label == "lu2016 relationship, any k, iou = 0.7"


def test_protocols_may_be_given_by_name_alone_or_in_a_list() -> None:
    truth, answer = scene([(0, 1, 1)], [0, 2], TWO), predictions([(0, 1)], [(0, 1, 2)], [0.5])
    expected = evaluate([truth], [answer], [LU], 5)
    for protocols in ("lu2016", LU, ["lu2016"]):
        assert evaluate([truth], [answer], protocols, 5) == expected
