"""Relations beside the count table and the ceiling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vrd_files import write_vrd

from polyadic.datasets import load_dataset
from polyadic.evaluation import evaluate
from polyadic.evaluation.baselines import CountTable
from polyadic.evaluation.compare import COUNT_TABLE, KEPT, PREDICTIONS, RELABELLED, Comparison, compare
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset

LU = get_protocol("lu2016").change(tops=(2, 5))


@pytest.fixture
def data(tmp_path: Path) -> tuple[Dataset, Dataset]:
    root = write_vrd(tmp_path)
    return load_dataset("vrd", root, "train"), load_dataset("vrd", root, "test")


def true_predictions(test: Dataset, labelled: bool) -> list[Relations]:
    """The truths themselves as predictions."""
    return [
        Relations(
            scene.name,
            scene.boxes,
            scene.relations[:, ::2],
            scene.triplets,
            np.ones(len(scene.relations)),
            labels=scene.labels if labelled else None,
            confidences=np.full(len(scene.boxes), 0.5) if labelled else None,
        )
        for scene in test
    ]


def values(result: Comparison, what: str, protocol: Protocol) -> list[float]:
    return [row.recall for name, row in result.rows if name == what and row.protocol == protocol]


def test_the_count_table_row_uses_the_same_boxes(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    protocols = [LU.change(k=1), LU.change(k=2), LU.change(task="phrase", subset="zero-shot")]
    result = compare(test, true_predictions(test, labelled=True), protocols, train)
    table = CountTable.fit(train, train.vocabulary)
    tabled = [
        table.predict(Detections(scene.name, scene.boxes, scene.labels, np.full(len(scene.boxes), 0.5)))
        for scene in test
    ]
    expected = evaluate(test, tabled, protocols, 2, seen=train.triplets())
    for protocol in protocols:
        assert values(result, COUNT_TABLE, protocol) == [row.recall for row in expected if row.protocol == protocol]
    assert values(result, PREDICTIONS, LU.change(k=2)) == [100, 100]
    assert [row.protocol for _, row in result.rows] == [
        protocol for protocol in protocols for _ in range(4)
    ]  # two N, two rows
    # one truth of four relates a box to itself, which no pair of two boxes can hit
    # and of the two unseen ones, one
    ceilings = {(what, row.protocol): row.recall for what, row in result.ceilings if row.top == max(LU.tops)}
    assert ceilings == {
        (what, protocol): value
        for what in (KEPT, RELABELLED)
        for protocol, value in zip(protocols, (75, 75, 50), strict=True)
    }
    assert "a larger k changes nothing" in result.notes[0]


def test_without_labels_only_the_ceiling_of_relabelled_boxes_is_known(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    result = compare(test, true_predictions(test, labelled=False), [LU], train)
    assert {what for what, _ in result.rows} == {PREDICTIONS}
    assert {what for what, _ in result.ceilings} == {RELABELLED}
    assert "needs the boxes' labels and confidences" in result.notes[-1]
    labelled = {p.image: p.detections for p in true_predictions(test, labelled=True) if p.detections}
    beside = compare(test, true_predictions(test, labelled=False), [LU], train, labelled)
    assert {what for what, _ in beside.rows} == {PREDICTIONS, COUNT_TABLE}


def test_classification_tasks_are_compared_on_the_true_boxes(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    tasks = [LU.change(task="phrase-classification"), LU.change(task="predicate-classification")]
    result = compare(test, true_predictions(test, labelled=False), tasks, train)
    assert {(what, row.protocol.task) for what, row in result.rows} == {
        (what, protocol.task) for what in (PREDICTIONS, COUNT_TABLE) for protocol in tasks
    }
    assert {(what, row.protocol.task) for what, row in result.ceilings} == {
        (RELABELLED, "phrase-classification"),
        (KEPT, "predicate-classification"),
    }


def test_without_a_training_split_a_note_replaces_the_count_table(data: tuple[Dataset, Dataset]) -> None:
    result = compare(data[1], true_predictions(data[1], labelled=True), [LU])
    assert {what for what, _ in result.rows} == {PREDICTIONS}
    assert "needs the training split" in result.notes[0]


def test_a_count_tables_recall_does_not_depend_on_the_other_protocols(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    one = get_protocol("motifs").change(task="phrase-classification", tops=(2, 5))
    for unit in ("predicate", "triplet"):
        alone = compare(test, true_predictions(test, labelled=False), [one.change(k_unit=unit)], train)
        others = [one.change(k_unit=unit), one.change(k=10, k_unit="triplet"), one.change(k=None)]
        together = compare(test, true_predictions(test, labelled=False), others, train)
        assert values(together, COUNT_TABLE, others[0]) == values(alone, COUNT_TABLE, others[0])
        assert values(together, COUNT_TABLE, others[1]) != []


def test_rows_ceilings_and_intervals_share_images_frames_and_replicates(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    table = CountTable.fit(train, train.vocabulary)
    half = [
        replace(
            table.predict(Detections(s.name, s.boxes * (0.5, 0.25, 0.5, 0.25), s.labels, np.ones(len(s.boxes)))),
            size=(50.0, 25.0),
        )
        for s in test
    ]
    drop = LU.change(no_prediction="drop")
    protocols = [drop.change(k=1), LU.change(k=1), LU.change(k=1, k_unit="predicate")]
    empty = replace(half[0], pairs=half[0].pairs[:0], triplets=half[0].triplets[:0], scores=half[0].scores[:0])
    result = compare(test, [empty, half[1]], protocols, train, bootstrap=30)
    mine = [row for what, row in result.rows if what == PREDICTIONS]
    theirs = [row for what, row in result.rows if what == COUNT_TABLE]
    assert [row.protocol for row in mine] == [row.protocol for row in theirs] == [p for p in protocols for _ in p.tops]
    assert [row.truths for row in mine] == [row.truths for row in theirs] == [2, 2, 4, 4, 4, 4]
    ceilings = {
        (what, row.protocol.no_prediction): row.recall for what, row in result.ceilings if row.protocol in protocols[:2]
    }
    # image c has two truths in reach, image d one and a self-pair; with "drop", c counts nowhere
    assert ceilings == {(KEPT, "count"): 75, (RELABELLED, "count"): 75, (KEPT, "drop"): 50, (RELABELLED, "drop"): 50}
    # the predictions are the count table on the same boxes, in a frame of another shape: the same numbers on image d
    assert [row.recall for row in mine[:2]] == [row.recall for row in theirs[:2]]
    assert [row.recall_interval for row in mine[:2]] == [row.recall_interval for row in theirs[:2]] != [None, None]


def test_predicate_classification_gives_the_count_table_the_true_labels_at_full_confidence(
    data: tuple[Dataset, Dataset],
) -> None:
    train, test = data
    protocol = LU.change(task="predicate-classification", k=1)
    result = compare(test, true_predictions(test, labelled=False), [protocol], train)
    table = CountTable.fit(train, train.vocabulary)
    tabled = [table.predict(Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes))), k=1) for s in test]
    expected = [row.recall for row in evaluate(test, tabled, [protocol], 2)]
    assert values(result, COUNT_TABLE, protocol) == expected
    assert expected[-1] > 0


def test_the_count_table_gets_labels_where_the_model_does_and_the_rows_say_so(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    phrases, predicates = (LU.change(task=f"{task}-classification", k=1) for task in ("phrase", "predicate"))
    mine = true_predictions(test, labelled=False)
    result = compare(test, mine, [phrases, predicates], train, reads_labels=True)
    assert [what for what, row in result.rows if row.top == 2] == [
        PREDICTIONS,
        f"{COUNT_TABLE}, labels given",
        PREDICTIONS,
        COUNT_TABLE,
    ]
    given = values(result, f"{COUNT_TABLE}, labels given", phrases)
    assert given == values(result, COUNT_TABLE, predicates)
    without = compare(test, mine, [phrases], train, reads_labels=False)
    assert values(without, COUNT_TABLE, phrases) != given
    assert {what for what, _ in without.rows} == {PREDICTIONS, COUNT_TABLE}


def test_a_count_table_that_alone_reads_the_detectors_labels_says_so(data: tuple[Dataset, Dataset]) -> None:
    train, test = data
    names = {
        reads: {what for what, _ in compare(test, true_predictions(test, True), [LU], train, reads_labels=reads).rows}
        for reads in (True, False, None)
    }
    assert names[True] == names[None] == {PREDICTIONS, COUNT_TABLE}
    assert names[False] == {PREDICTIONS, f"{COUNT_TABLE}, given the detector's labels"}
