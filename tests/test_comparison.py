"""Predictions beside the count table and the ceiling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vrd_files import write_vrd

from polyadic.comparison import COUNT_TABLE, KEPT, PREDICTIONS, RELABELLED, Comparison, compare
from polyadic.counting import CountTable
from polyadic.datasets import load_dataset
from polyadic.evaluation import Protocol, evaluate, get_protocol
from polyadic.scenes import Dataset, Detections, Predictions

LU = get_protocol("lu2016").change(tops=(2, 5))


@pytest.fixture
def data(tmp_path: Path) -> tuple[Dataset, Dataset]:
    root = write_vrd(tmp_path)
    return load_dataset("vrd", root, "train"), load_dataset("vrd", root, "test")


def true_predictions(test: Dataset, labelled: bool) -> list[Predictions]:
    """The truths themselves as predictions."""
    return [
        Predictions(
            scene.name,
            scene.boxes,
            scene.relations[:, ::2],
            scene.triplets,
            np.ones(len(scene.relations)),
            scene.labels if labelled else None,
            np.full(len(scene.boxes), 0.5) if labelled else None,
        )
        for scene in test
    ]


def values(result: Comparison, what: str, protocol: Protocol) -> list[float]:
    return [row.recall for name, row in result.rows if name == what and row.protocol == protocol]


def test_the_count_table_beside_is_that_of_the_same_boxes(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    protocols = [LU.change(k=1), LU.change(k=2), LU.change(task="phrase", subset="zero-shot")]
    result = compare(test, true_predictions(test, labelled=True), protocols, train)
    table = CountTable.fit(train, train.vocabulary)
    found = [
        table.predict(Detections(scene.name, scene.boxes, scene.labels, np.full(len(scene.boxes), 0.5)))
        for scene in test
    ]
    expected = evaluate(test, found, protocols, 2, train.triplets())
    for protocol in protocols:
        assert values(result, COUNT_TABLE, protocol) == [row.recall for row in expected if row.protocol == protocol]
    assert values(result, PREDICTIONS, LU.change(k=2)) == [100, 100]
    # one truth of four relates a box to itself, which no pair of two boxes can hit
    assert {(what, each.task): value for what, each, value in result.ceilings if each.subset == "all"} == {
        (KEPT, "relationship"): 75,
        (RELABELLED, "relationship"): 75,
    }
    assert result.notes == ()


def test_without_labels_there_is_a_ceiling_for_relabelled_boxes_alone_and_a_note(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    result = compare(test, true_predictions(test, labelled=False), [LU], train)
    assert {what for what, _ in result.rows} == {PREDICTIONS}
    assert [what for what, _, _ in result.ceilings] == [RELABELLED]
    assert "needs the boxes' labels and confidences" in result.notes[0]
    labelled = {each.image: each.detections for each in true_predictions(test, labelled=True) if each.detections}
    beside = compare(test, true_predictions(test, labelled=False), [LU], train, labelled)
    assert {what for what, _ in beside.rows} == {PREDICTIONS, COUNT_TABLE}


def test_classification_tasks_are_compared_on_the_true_boxes(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    tasks = [LU.change(task="phrase-classification"), LU.change(task="predicate-classification")]
    result = compare(test, true_predictions(test, labelled=False), tasks, train)
    assert {(what, row.protocol.task) for what, row in result.rows} == {
        (what, protocol.task) for what in (PREDICTIONS, COUNT_TABLE) for protocol in tasks
    }
    assert {(what, each.task) for what, each, _ in result.ceilings} == {
        (RELABELLED, "phrase-classification"),
        (KEPT, "predicate-classification"),
    }


def test_without_a_training_split_the_count_table_is_missed_aloud(data: tuple[Dataset, Dataset]) -> None:
    result = compare(data[1], true_predictions(data[1], labelled=True), [LU])
    assert {what for what, _ in result.rows} == {PREDICTIONS}
    assert result.notes == ("no count table: it needs the training split",)


def test_every_number_in_the_json_says_what_where_and_under_which_protocol(data: tuple[Dataset, Dataset]) -> None:
    value = compare(data[1], true_predictions(data[1], labelled=True), [LU], data[0]).to_json()
    for record in [*value["recalls"], *value["ceilings"]]:
        assert (record["dataset"], record["split"]) == ("vrd", "test")
        assert record["protocol"].startswith("lu2016 relationship, any k")
        assert record["what"]
