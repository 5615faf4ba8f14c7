"""The drawn world: its truth against counting, its pictures against its boxes, and the way to disk and back."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from tiny_runs import Command

from polyadic.datasets import load_dataset
from polyadic.datasets.toy.annotator import (
    TWO,
    WEIGHTS,
    all_pairs,
    annotate,
    expected_rows,
    holds,
    picked,
    selected,
    truth,
)
from polyadic.datasets.toy.drawing import Thing, draw
from polyadic.datasets.toy.layout import (
    APPEARANCES,
    CLASS,
    INDEX,
    PREDICATES,
    SEEN,
    THEMES,
    VOCABULARY,
    pick,
    tint_posterior,
)
from polyadic.datasets.toy.world import World, write
from polyadic.structures.scenes import Dataset, Scene


@pytest.fixture(scope="module")
def scenes() -> Dataset:
    return World(train=300, test=0, seed=0).dataset("train")


def appearances(scene: Scene) -> np.ndarray:
    return np.array([INDEX[key] for key in scene.extra["appearances"]])


def things(scene: Scene) -> tuple[Thing, ...]:
    return scene.source.args[1]  # type: ignore[union-attr, no-any-return]


def certainty(scene: Scene) -> float:
    """Of the theme."""
    return float(tint_posterior(scene.extra["tint"]).max())


def picks(scene: Scene) -> float:
    """Expected pairs, if one could pick none."""
    return float(picked(appearances(scene), scene.boxes, all_pairs(len(scene.boxes))).sum())


@pytest.mark.parametrize("least", [certainty, picks])
def test_annotating_a_picture_many_times_gives_the_rows_that_truth_and_selected_predict(
    scenes: Dataset, least: Any
) -> None:
    scene, times, rng = min(scenes, key=least), 2500, np.random.default_rng(1)
    pairs, what = all_pairs(len(scene.boxes)), appearances(scene)
    number = {tuple(pair): i for i, pair in enumerate(pairs.tolist())}
    rows = np.zeros((len(pairs), *VOCABULARY.sizes))
    annotated = np.zeros(len(pairs))
    for _ in range(times):
        theme = pick(rng, tint_posterior(scene.extra["tint"]).tolist())
        relations = annotate(rng, what, scene.boxes, theme)
        at = [number[s, o] for s, _, o in relations.tolist()]
        names = CLASS[what[relations[:, ::2]], theme]
        rows[at, names[:, 0], relations[:, 1], names[:, 1]] += 1  # no row of an annotation occurs twice
        annotated[list(set(at))] += 1
    chance = selected(scene, pairs)
    several = holds(what, scene.boxes, pairs).sum(1) > 1
    cells = (chance * (1 + TWO * several))[:, None, None, None] * truth(scene, pairs)
    for count, p in ((annotated, chance), (rows, cells)):  # a cell is hit once or not at all: a binomial count
        assert not count[p == 0].any()
        common = times * p > 10
        z = (count - times * p)[common] / np.sqrt(times * p * (1 - p))[common]
        assert len(z) > 5
        assert abs(z).max() < 4
        assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / len(z))


def test_the_theme_is_as_probable_as_the_tint_says(scenes: Dataset) -> None:
    said = np.array([tint_posterior(scene.extra["tint"]) for scene in scenes])
    came = np.array([[scene.extra["theme"] == theme for theme in THEMES] for scene in scenes])
    for weight in (np.ones_like(said), said):
        noise = np.sqrt((weight**2 * said * (1 - said)).sum(0))
        assert (abs((weight * (came - said)).sum(0)) < 4 * noise).all()
    assert said.max(1).min() < 0.4
    assert said.max(1).max() > 0.93
    shuffled = np.roll(came, 1, axis=0)  # the test can fail
    assert (abs((said * (shuffled - said)).sum(0)) > 4 * np.sqrt((said**3 * (1 - said)).sum(0))).any()


def test_truth_is_a_mixture_of_one_slice_per_theme_whose_rank_is_known(scenes: Dataset) -> None:
    seen = set()
    for scene in scenes[:20]:
        pairs, what = all_pairs(len(scene.boxes)), appearances(scene)
        true = holds(what, scene.boxes, pairs).sum(1)
        for (s, o), n, joint in zip(pairs, true, truth(scene, pairs), strict=True):
            assert joint.sum() == pytest.approx(1, abs=1e-12)
            assert joint[scene.labels[s], :, scene.labels[o]].any()
            assert joint.any(1).sum() <= len(THEMES)  # each (s, o) that occurs is one term of a CP decomposition
            unfolded = [np.moveaxis(joint, axis, 0).reshape(joint.shape[axis], -1) for axis in range(3)]
            rank = max(np.linalg.matrix_rank(matrix, tol=1e-10) for matrix in unfolded)
            many_names = sum(len(APPEARANCES[what[i]].names) > 1 for i in (s, o))
            assert rank == {0: 1, 1: min(3, n), 2: 3}[many_names]
            seen.add((many_names, int(rank)))
    assert seen == {(0, 1), (1, 1), (1, 2), (1, 3), (2, 3)}


def test_rank_and_selection_gain_what_the_documents_say() -> None:
    nats: dict[str, list[float]] = {"truth": [], "rank 1": []}
    hits = {"truth": 0, "rank 1": 0, "unselected": 0}
    rows = 0
    for scene in World().dataset("test"):
        pairs = all_pairs(len(scene.boxes))
        at = [pairs.tolist().index(pair) for pair in scene.relations[:, ::2].tolist()]
        joint = truth(scene, pairs)
        # no distribution of rank 1 is closer than the product of the marginals
        product = np.einsum("bs, bp, bo -> bspo", joint.sum((2, 3)), joint.sum((1, 3)), joint.sum((1, 2)))
        chance = selected(scene, pairs)[:, None, None, None]
        for name, score in (("truth", joint * chance), ("rank 1", product * chance), ("unselected", joint)):
            top = np.argsort(-score.ravel(), kind="stable")[:20]
            annotated = np.ravel_multi_index((np.array(at), *scene.triplets.T), score.shape)
            hits[name] += int(np.isin(annotated, top).sum())
        for name, score in (("truth", joint), ("rank 1", product)):
            nats[name] += (-np.log(score[(at, *scene.triplets.T)])).tolist()
        rows += len(at)
    text = (Path(__file__).parents[1] / "docs" / "datasets.md").read_text()
    exact, closest = (f"{np.mean(nats[name]):.2f}" for name in ("truth", "rank 1"))
    recall = {name: f"{100 * n / rows:.1f}" for name, n in hits.items()}
    assert f"| the truth | {exact} | {recall['truth']} |" in text
    assert f"| the best of rank 1 | {closest} | {recall['rank 1']} |" in text
    assert f"| the truth, every pair alike | {exact} | {recall['unselected']} |" in text


def test_expected_rows_are_those_of_every_order_of_draws() -> None:
    rng = np.random.default_rng(2)
    weights = rng.random((3, 5)) * [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0]]
    expected = weights / weights.sum(1, keepdims=True)
    for number, row in enumerate(weights):
        for a, b in permutations(np.flatnonzero(row), 2):
            expected[number, b] += TWO * row[a] / row.sum() * row[b] / (row.sum() - row[a])
    np.testing.assert_allclose(expected_rows(weights), expected, rtol=1e-12)


def test_the_theme_changes_names_and_predicates_but_not_the_pairs_picked(scenes: Dataset) -> None:
    scene = scenes[3]
    rows = [annotate(np.random.default_rng(4), appearances(scene), scene.boxes, theme) for theme in range(3)]
    pairs = [sorted(set(map(tuple, relations[:, ::2].tolist()))) for relations in rows]
    assert pairs[0] == pairs[1] == pairs[2]
    open_names = np.flatnonzero([len(appearance.names) > 1 for appearance in APPEARANCES])
    favourites = [WEIGHTS[CLASS[a, :2], :, CLASS[b, :2]].argmax(1) for a in open_names for b in open_names]
    assert np.mean([farm != city for farm, city in favourites]) > 0.6


BOX = (50, 50, 70, 90)  # a subject; objects beside it
CASES: list[tuple[str, str, str, tuple[int, int, int, int], set[str]]] = [
    ("dog", "tree", "straight above", (55, 10, 65, 20), {"below", "bigger than"}),
    ("dog", "tree", "straight to the right", (150, 60, 160, 70), {"left of", "bigger than"}),
    ("dog", "tree", "down and left", (10, 105, 30, 145), {"above", "right of"}),
    ("dog", "tree", "close by", (82, 50, 102, 90), {"left of", "near"}),
    ("dog", "tree", "side by side", (72, 50, 92, 90), {"left of", "near", "touching"}),
    ("dog", "tree", "half over", (60, 50, 80, 90), {"left of", "near", "overlapping"}),
    ("dog", "tree", "all around", (40, 40, 80, 100), {"near", "inside"}),
    ("dog", "tree", "within", (55, 65, 65, 75), {"near", "around", "bigger than"}),
    ("person", "flag", "at hand", (69, 60, 89, 80), {"left of", "near", "touching", "holding", "bigger than"}),
    ("tree", "flag", "at hand of a tree", (69, 60, 89, 80), {"left of", "near", "touching", "bigger than"}),
    ("person", "hat", "on the head", (48, 40, 72, 55), {"below", "near", "overlapping", "wearing", "bigger than"}),
    ("person", "hat", "at the belt", (52, 55, 68, 68), {"below", "near", "around", "holding", "bigger than"}),
    ("person", "kite", "over the head", (48, 40, 72, 55), {"below", "near", "overlapping", "bigger than"}),
    ("tree", "hat", "on the crown", (48, 40, 72, 55), {"below", "near", "overlapping", "bigger than"}),
]


@pytest.mark.parametrize(
    ("subject", "object", "where", "box", "expected"),
    CASES,
    ids=lambda x: str(sorted(x) if isinstance(x, set) else x)[:24],
)
def test_predicates_hold_where_a_reader_expects(subject: str, object: str, where: str, box: Any, expected: Any) -> None:
    what = np.array([INDEX[subject], INDEX[object]])
    true = holds(what, np.array([BOX, box], float), np.array([[0, 1]]))[0]
    assert {name for name, holds_here in zip(PREDICATES, true, strict=True) if holds_here} == expected


corner = st.tuples(st.integers(0, 120), st.integers(0, 120), st.integers(1, 64), st.integers(1, 64))


@given(corner, corner, st.integers(0, 11), st.integers(0, 11))
def test_some_predicate_always_holds_and_opposites_mirror_each_other(a: Any, b: Any, first: int, second: int) -> None:
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in (a, b)], float)
    there, back = holds(np.array([first, second]), boxes, np.array([[0, 1], [1, 0]]))
    assert there.any()
    assert back.any()
    opposite = [1, 0, 3, 2, 5, 4, 6, 7, 9]  # touching, overlapping and near are their own
    assert there[[0, 1, 2, 3, 4, 5, 6, 7, 9]].tolist() == back[opposite].tolist()


def test_a_scene_depends_on_seed_split_and_number_alone() -> None:
    large, small = World(train=9, test=4, seed=5), World(train=5, test=3, seed=5)
    for split in ("train", "test"):
        a, b = large.dataset(split), small.dataset(split)
        assert list(a)[: len(b)] == list(b)
        assert [scene.digest() for scene in b] == [scene.digest() for scene in a][: len(b)]
    others = [small.dataset("train")[0], small.dataset("test")[0], replace(small, seed=6).dataset("train")[0]]
    assert len({scene.digest() for scene in [*others, large.dataset("train")[1]]}) == 4


def test_pictures_are_the_same_on_every_machine() -> None:
    scene = World(seed=7, train=1).dataset("train")[0]
    assert scene.digest() == "5a9855743860d5292a7868f12ddc8547e438f684dd0143606e0d553aa9f80a73"
    assert scene.relations.tolist() == [[0, 3, 1], [0, 6, 2], [2, 0, 0]]


def test_boxes_lie_in_the_frame_and_hold_their_pixels_tightly_and_nothing_is_hidden(scenes: Dataset) -> None:
    for scene in scenes[:25]:
        tint, drawn = tuple(scene.extra["tint"]), things(scene)
        assert (scene.boxes >= 0).all()
        assert (scene.boxes <= 160).all()
        whole, empty = np.array(scene.open()), np.array(draw(tint, ()))
        for number, (thing, box) in enumerate(zip(drawn, scene.boxes, strict=True)):
            alone = (np.array(draw(tint, [thing])) != empty).any(-1)
            y, x = np.nonzero(alone)
            assert [x.min(), y.min(), x.max() + 1, y.max() + 1] == box.tolist()
            repainted = replace(thing, shade=(thing.shade[0] - 30, thing.shade[1] - 30, thing.shade[2] - 30))
            changed = (np.array(draw(tint, [*drawn[:number], repainted, *drawn[number + 1 :]])) != whole).any(-1)
            assert changed.sum() >= SEEN * alone.sum()


def test_300_scenes_hold_every_name_and_predicate_and_five_to_eight_relations_each(scenes: Dataset) -> None:
    assert set(np.concatenate([scene.labels for scene in scenes])) == set(range(20))
    assert set(scenes.triplets()[:, 1]) == set(range(12))
    assert min(len(scene.relations) for scene in scenes) >= 1
    assert 5 < np.mean([len(scene.relations) for scene in scenes]) < 8
    assert {len(scene.boxes) for scene in scenes} == set(range(6, 11))
    for scene in scenes:
        true = holds(appearances(scene), scene.boxes, scene.relations[:, ::2])
        assert true[np.arange(len(true)), scene.relations[:, 1]].all()
        assert len(np.unique(scene.relations, axis=0)) == len(scene.relations)


def test_a_written_world_is_read_as_coco_with_the_same_truth(tmp_path: Path) -> None:
    world = World(train=4, test=2, seed=3)
    paths = write(world, tmp_path / "toy")
    assert paths == [tmp_path / "toy" / "train.json", tmp_path / "toy" / "test.json"]
    for split in ("train", "test"):
        drawn, read = world.dataset(split), load_dataset("coco", tmp_path / "toy", split, images="required")
        assert read.vocabulary == drawn.vocabulary
        for a, b in zip(drawn, read, strict=True):
            assert b.image.parent == tmp_path / "toy" / "images"
            assert replace(b, image=a.image) == a
            assert b.open().tobytes() == a.open().tobytes()
            pairs = all_pairs(len(a.boxes))
            np.testing.assert_array_equal(truth(b, pairs), truth(a, pairs))
            np.testing.assert_array_equal(selected(b, pairs), selected(a, pairs))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default world with fewer scenes."""
    monkeypatch.setattr("polyadic.datasets.toy.world.World", lambda *sizes: World(*(sizes or (40, 9))))


@pytest.mark.usefixtures("small")
def test_load_dataset_needs_no_root_and_splits_the_training_scenes() -> None:
    parts = {split: load_dataset("toy", split=split, images="required") for split in ("fit", "validation", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"fit": 36, "validation": 4, "test": 9}
    assert not {scene.name for scene in parts["fit"]} & {scene.name for scene in parts["validation"]}
    assert parts["test"][0] == World(test=1).dataset("test")[0]


PAIR = np.array([[0, 1]])
BAD: list[tuple[Any, str]] = [
    (lambda: World(train=-1), "train must be .*got -1"),
    (lambda: World(1, 1).dataset("fit"), "'fit'; known: train, test"),
    (lambda: load_dataset("toy", "data"), "takes no root"),
    (lambda: load_dataset("vrd"), "no root"),
    (lambda: truth(World(1).dataset("train")[0], np.array([[0, 1], [0, 99]])), "two different boxes of 0 to"),
    (lambda: selected(World(1).dataset("train")[0], np.array([[2, 2]])), r"got \[2, 2\]"),
    (lambda: truth(replace(World(1).dataset("train")[0], extra={}), PAIR), "not a toy scene"),
]


@pytest.mark.usefixtures("unchecked")
def test_impossible_arguments_are_refused() -> None:
    for make, message in BAD:
        refused(message, make)


@pytest.mark.usefixtures("small")
def test_the_command_counts_checks_and_writes_the_world(command: Command, tmp_path: Path) -> None:
    assert "20 of 20" in command("data", "stats", "toy").out
    checked = command("data", "check", "toy", "--split", "test")
    assert (checked.code, checked.out.splitlines()[-1].strip()) == (0, "no problems")
    draw = ("data", "draw", "--out", tmp_path / "new", "--train", "3", "--test", "2", "--seed", "8")
    drawn = command(*draw)
    assert drawn.out.split() == [str(tmp_path / "new" / f"{split}.json") for split in ("train", "test")]
    assert drawn.err.startswith("5 ")
    assert len(list((tmp_path / "new" / "images").iterdir())) == 5
    assert command("data", "check", "coco", "--root", tmp_path / "new").code == 0
    assert "is not empty" in command(*draw).message
    convert = ("data", "convert", "toy", "--root", tmp_path, "--to", "coco", "--out", tmp_path / "b")
    assert "takes no root" in command(*convert).message
    assert "as root" in command("data", "stats", "vrd").message
