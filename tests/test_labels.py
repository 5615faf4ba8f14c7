"""A detector's class names are matched with the vocabulary's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from polyadic.structures.labels import IGNORED, UNKNOWN, LabelMap
from polyadic.structures.vocabulary import Vocabulary

NAMES = Vocabulary(
    objects=("person", "traffic light", "shoe", "shoes", "shelf", "monitor", "glass", "Wine-glass", "bus", "sky"),
    predicates=("on",),
)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("person", "person"),
        ("people", "person"),
        ("Traffic_Light", "traffic light"),
        ("trafficlights", "traffic light"),
        ("shoe", "shoe"),  # exactly, though the plural is an object too
        ("shelves", "shelf"),
        ("wine glass", "Wine-glass"),
        ("buses", "bus"),
        ("bu", None),
        ("", None),
    ],
)
def test_names_match_exactly_then_folded_then_as_plurals(theirs: str, ours: str | None) -> None:
    expected = UNKNOWN if ours is None else NAMES.objects.index(ours)
    assert LabelMap.match([theirs], NAMES).targets == {theirs: expected}


def test_an_ambiguous_name_matches_nothing() -> None:
    names = Vocabulary(objects=("t-shirt", "T shirt", "hat"), predicates=("on",))
    assert LabelMap.match(["t_shirt", "t-shirt"], names).targets == {"t_shirt": UNKNOWN, "t-shirt": 0}


def test_a_mapping_overrides_names_and_may_drop_classes() -> None:
    mapping = {"TV": "Monitor", "person": None, "bus": "", "zebra": "person"}
    label_map = LabelMap.match({3: "tv", 7: "person", 8: "bus", 11: "zebra", 90: "sky"}, NAMES, mapping)
    assert label_map.targets == {"tv": 5, "person": IGNORED, "bus": IGNORED, "zebra": 0, "sky": 9}


def test_boxes_of_unknown_class_are_dropped_or_kept_and_counted() -> None:
    label_map = LabelMap.match(["__background__", "zebra", "sky", "tie", "bus"], NAMES, {"tie": ""})
    labels = np.array([2, 1, 3, 4, 1, 0])
    dropped, kept = label_map.apply(labels), label_map.apply(labels, "keep")
    assert (dropped.rows.tolist(), dropped.labels.tolist()) == ([0, 3], [9, 8])
    assert (kept.rows.tolist(), kept.labels.tolist()) == ([0, 1, 3, 4, 5], [9, -1, 8, -1, -1])
    for mapped in (dropped, kept):
        assert mapped.unknown == {"zebra": 2, "__background__": 1}
        assert mapped.ignored == {"tie": 1}  # on purpose, so never kept
    assert label_map.apply([]).labels.tolist() == []


def test_the_report_lists_matched_unmatched_and_unreachable_names() -> None:
    theirs = ["__background__", "Person", "tv", "N/A", "zebra", "N/A", "tie", "bus"]
    lines = LabelMap.match(theirs, NAMES, {"tv": "monitor", "tie": None}).report().splitlines()
    assert lines == [
        "3 of the detector's 5 classes are objects of the vocabulary",
        "  2 under another name: Person -> person, tv -> monitor",
        "  1 dropped by the mapping: tie",
        "  1 without an object (dropped, or unknown): zebra",
        "  7 of the 10 objects that no class reaches: traffic light, shoe, shoes, shelf, glass, Wine-glass, sky",
    ]
    assert LabelMap.match(NAMES.objects, NAMES).report().count("\n") == 0
    many = LabelMap.match([f"thing {i}" for i in range(99)], NAMES).report()
    assert "thing 39 and 59 more" in many


def test_a_distribution_over_their_classes_becomes_one_over_ours() -> None:
    label_map = LabelMap.match({4: "sky", 2: "zebra", 9: "Person", 1: "people"}, NAMES)
    spread = label_map.spread(np.array([[0.1, 0.2, 0.3, 0.4], [0.9, 0.9, 0.3, 0.3], [0, 1, 0, 0]]))
    assert spread.shape == (3, 10)
    # columns are those of the labels 1, 2, 4, 9: people, zebra, sky, Person
    np.testing.assert_allclose(spread[:, [9, 0]], np.array([[0.3, 0.5], [0.2, 0.8], [0, 0]]), atol=1e-6)
    assert np.count_nonzero(spread) == 4


@pytest.mark.parametrize(
    ("file", "text"),
    [("m.json", '{"tv": "monitor", "tie": null}'), ("m.toml", '"tv" = "monitor"\ntie = ""\n')],
)
def test_a_mapping_file_is_json_or_toml(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    label_map = LabelMap.match(["tv", "tie"], NAMES, tmp_path / file)
    assert label_map == LabelMap.match(["tv", "tie"], NAMES, {"tv": "monitor", "tie": None})
    assert label_map.targets == {"tv": 5, "tie": IGNORED}


BAD_FILES = {
    "cut": ('{"tv": ', r"m\.json is not a mapping in JSON or TOML"),
    "list": ("[1]", r"m\.json: expected names to names"),
    "target": ('{"tv": "monitr"}', "'monitr', which is not an object; did you mean 'monitor'"),
    "class": ('{"tvs": "monitor"}', "the detector has no class 'tvs'; did you mean 'tv'"),
}


@pytest.mark.parametrize("case", sorted(BAD_FILES))
def test_a_bad_mapping_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    text, message = BAD_FILES[case]
    (tmp_path / "m.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(message, LabelMap.match, ["tv", "tie"], NAMES, tmp_path / "m.json")
    refused("cannot read", LabelMap.match, ["tv"], NAMES, tmp_path / "none.toml")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("names", ["person", [], [1, 2], {}])
def test_an_empty_or_wrong_list_of_names_is_refused(names: Any) -> None:
    refused("expected the names of a detector's classes", LabelMap.match, names, NAMES)


@pytest.mark.usefixtures("unchecked")
def test_a_label_without_a_name_and_an_unknown_policy_are_refused() -> None:
    label_map = LabelMap.match({1: "sky", 5: "bus"}, NAMES)
    refused("label 2 has no name among the 2 from 1 to 5", label_map.apply, [1, 2])
    policy: Any = "forget"
    refused("expected 'drop' or 'keep', got 'forget'", label_map.apply, [1], policy)
