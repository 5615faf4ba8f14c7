"""The paper's two figures on test photos: which photos, which triplets are hits, and what a person sees."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evaluation_oracle as oracle
import numpy as np
import pytest
import torch
from draw_cases import BOXES, NAMES, RIDE, grey, overlap
from evaluation_cases import as_plain
from model_cases import rank
from PIL import Image
from refusals import refused
from tiny_runs import Command, call, write_tiny
from vrd_files import HAT, HORSE, RIDER, relation, write_vrd

from polyadic.draw import plan_column
from polyadic.draw.shapes import HIT, SPURIOUS, Polyline, Rectangle, Text
from polyadic.experiments.pictures import TRIPLETS, TRUTHS, choose_scenes, draw_figures
from polyadic.experiments.results import read_rows
from polyadic.experiments.runs import open_run
from polyadic.experiments.spurious import LU, WITH, WITHOUT, Counts, Lists
from polyadic.io.records import write_detections
from polyadic.model.scoring import ScoreTerms
from polyadic.prior import TripletPrior
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene

# --- which photos


def a_scene(number: int, classes: list[int], truths: int, folder: Path) -> Scene:
    """A scene of so many different triplets, with boxes of these classes."""
    n = len(classes)
    relations = [(i % n, i, (i + 1) % n) for i in range(truths)]
    boxes = np.array([[0, 0, 9, 9]] * n, float)
    image = folder / f"{number}.png"
    return Scene(
        image.name, image, (50.0, 50.0), boxes, np.array(classes), np.array(relations, np.int64).reshape(-1, 3)
    )


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    folder = tmp_path_factory.mktemp("photos")
    rng = random.Random(0)
    made = [a_scene(i, rng.sample(range(20), 4), rng.randint(0, 16), folder) for i in range(60)]
    for scene in made:
        grey(8, 6).save(scene.image)
    return made


def test_chosen_photos_do_not_depend_on_file_order(
    scenes: list[Scene],
) -> None:
    chosen = [scene.name for scene in choose_scenes(scenes, 12)]
    assert len(set(chosen)) == 12
    mixed = random.Random(1).sample(scenes, len(scenes))
    assert [scene.name for scene in choose_scenes(mixed, 12)] == chosen
    assert [scene.name for scene in choose_scenes(scenes, 5)] == chosen[:5]


def test_chosen_photos_have_4_to_12_relations_and_new_classes_first(scenes: list[Scene]) -> None:
    chosen, known, old = choose_scenes(scenes, 100), set[int](), False
    assert {scene.name for scene in chosen} == {scene.name for scene in scenes if 4 <= len(scene.relations) <= 12}
    varied = 0
    for scene in chosen:
        classes = set(scene.labels.tolist())
        new = len(classes - known) >= 2
        assert not (new and old)  # those that bring nothing new are the last
        old |= not new
        known |= classes if new else set()
        varied += new
    assert 3 < varied < len(chosen)


def test_repeated_relations_count_once_and_missing_photos_are_skipped(tmp_path: Path) -> None:
    few = a_scene(0, [0, 1], 3, tmp_path)
    grey(8, 6).save(few.image)
    assert choose_scenes([replace(few, relations=np.concatenate([few.relations] * 3))], 12) == []
    assert choose_scenes([a_scene(1, [0, 1], 6, tmp_path)], 12) == []


# --- a column


@pytest.mark.parametrize("hits", [[True, False, True], [False, False, False], [None, None, None]])
def test_ticks_of_hits_touch_no_text(hits: list[bool | None]) -> None:
    relations = [replace(RIDE, predicate=f"p{i}", text=f"person p{i} horse", hit=hit) for i, hit in enumerate(hits)]
    drawing = plan_column(grey(), BOXES, NAMES, relations, title="with", width=400)
    ticks = [shape for shape in drawing.shapes if isinstance(shape, Polyline) and shape.kind == "tick"]
    assert len(ticks) == 2 * sum(bool(hit) for hit in hits)
    texts = [shape for shape in drawing.shapes if isinstance(shape, Text)]
    for tick in ticks:
        x, y = (tuple(sorted(point[axis] for point in tick.points)) for axis in (0, 1))
        mark = x[0], y[0], x[-1], y[-1]
        for text in texts:
            left, base = text.points[0]
            assert not overlap(mark, (left, base - 0.7 * text.size, left + text.length, base)), text.text
        shades = [s for s in drawing.shapes if isinstance(s, Rectangle) and s.fill == HIT]
        assert any(overlap(mark, (*shade.points[0], *shade.points[1])) for shade in shades)


def test_a_column_may_list_other_relations() -> None:
    far = replace(RIDE, subject=7, object=9, text="dog on sofa (2 times)")
    drawing = plan_column(grey(), BOXES, NAMES, [], title="given", width=400, listed=[far])
    words = [shape.text for shape in drawing.shapes if isinstance(shape, Text)]
    assert {"given", "person", "horse", "dog on sofa (2 times)"} <= set(words)
    assert "no relations" not in words
    refused(
        "a relation points to box 7, but there are 2", lambda: plan_column(grey(), BOXES, NAMES, [far], title="given")
    )


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data in VRD's layout, whose photos are half as large as the annotated frame, proposals, and a run."""
    folder = tmp_path_factory.mktemp("pictures")
    ends = [(RIDER, 0, HORSE), (RIDER, 1, HAT), (HORSE, 1, HAT), (HAT, 0, HORSE), (RIDER, 1, HORSE)]
    truths = [relation(*each) for each in ends]
    train = {f"{i}.jpg": truths[: 2 + i % 4] for i in range(16)}
    test = {"a.jpg": truths[:4], "b.jpg": [*truths, truths[0]], "c.jpg": truths[1:], "d.jpg": truths[:2]}
    root = write_vrd(folder / "vrd", train, test)
    options = ("--data.dataset", "vrd", "--data", root)
    assert call("train", write_tiny(folder), "--out", folder / "run", *options) == 0
    data = open_run(folder / "run").data
    boxes = [Detections(s.name, s.boxes + 2, s.labels, np.full(len(s.boxes), 0.9)) for s in data if s.name != "c.jpg"]
    write_detections(folder / "boxes.jsonl", boxes, data.vocabulary)
    return folder


def slow_counts(folder: Path, names: Sequence[str], shift: float) -> dict[str, int]:
    """The counts by loops: hits by the slow evaluator's overlap, what was seen from the annotations of training."""
    run, count = open_run(folder / "run"), Counter[str]()
    seen = {tuple(t) for scene in open_run(folder / "run", "train").data for t in scene.triplets.tolist()}
    for scene in run.data:
        if scene.name not in names:
            continue
        boxes = Detections(scene.name, scene.boxes + shift, scene.labels, np.full(len(scene.boxes), 0.9), scene.frame)
        listed: dict[bool, dict[Any, bool]] = {True: {}, False: {}}  # with and without the prior: whether it is a hit
        for prior, hits in listed.items():
            found = rank(run.model, scene.open(), boxes, k=None, top=TRIPLETS, terms=ScoreTerms(prior=prior))
            answers, truths = as_plain(scene, found.in_frame(scene.frame))
            for pair, answer in zip(found.pairs.tolist(), answers, strict=True):
                same = [truth for truth in truths if truth["triplet"] == answer["triplet"]]
                overlaps = [oracle.overlap(answer, truth, "relationship", LU.iou_offset) for truth in same]
                hits[(*pair, *answer["triplet"])] = any(overlap >= LU.iou for overlap in overlaps)
        for prior, hits in listed.items():
            word = "" if prior else "_without"
            count[f"listed{word}"] += len(hits)
            count[f"hits{word}"] += sum(hits.values())
            count[f"unseen{word}"] += sum(row[2:] not in seen for row in hits)
        lost = {row: hit for row, hit in listed[False].items() if row not in listed[True]}
        count["lost_hits"] += sum(lost.values())
        count["lost_unseen_hits"] += sum(hit and row[2:] not in seen for row, hit in lost.items())
        count["spurious"] += sum(not hit and row[2:] not in seen for row, hit in lost.items())
    return {"photos": len(names), **count}


@pytest.mark.parametrize("proposals", [True, False])
def test_one_command_draws_the_photos_and_counts_what_the_prior_pushes_out(
    command: Command, folder: Path, tmp_path: Path, proposals: bool
) -> None:
    out, rows = tmp_path / "new" / "out", tmp_path / "rows.csv"
    options: list[str | Path] = ["--data", folder / "vrd", "--out", out, "--csv", rows]
    if proposals:
        options += ["--detections", folder / "boxes.jsonl"]
    shown = command("reproduce", "vrd-pictures", folder / "run", *options)
    assert shown.code == 0
    # d.jpg has too few truths; c.jpg has no proposals, which is seen
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "all.png", "b.png", "c.png"]
    shift = 2.0 if proposals else 0.0
    names = ["a.jpg", "b.jpg"] if proposals else ["a.jpg", "b.jpg", "c.jpg"]
    drawn = Counts(**{**slow_counts(folder, names, shift), "photos": 3})
    total = Counts(**{**slow_counts(folder, [*names, "d.jpg"], shift), "photos": 4})
    assert f"drawn: {drawn}\n" in shown.out
    assert f"all: {total}\n" in shown.out
    assert total.hits > 0
    assert total.spurious > 0
    assert total.unseen == total.unseen_without - total.spurious - total.lost_unseen_hits  # none can enter
    listed = {(row.parts, row.outcome): row.triplets for row in read_rows(rows)}
    assert listed[WITHOUT, "spurious"] == total.spurious
    assert (listed[WITHOUT, "hit"], listed[WITH, "hit"]) == (total.hits_without, total.hits)
    with Image.open(out / "a.png") as picture, Image.open(out / "all.png") as sheet:
        assert picture.width > 3 * 480
        assert sheet.width > 2 * picture.width
        assert (np.asarray(picture) == HIT).all(-1).any()
        assert drawn.spurious > 0
        assert (np.asarray(sheet) == SPURIOUS).all(-1).any()
    again = command("reproduce", "vrd-pictures", folder / "run", *options[:4], "--images", "1")
    assert again.out.startswith("drawn: 1 photos")
    assert "all:" not in again.out


def test_figures_use_the_given_prior_or_the_papers(folder: Path, tmp_path: Path) -> None:
    run = open_run(folder / "run")
    boxes = {s.name: Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes))) for s in run.data}
    whole = draw_figures(run, boxes, tmp_path / "whole", prior=1.0)
    own = run.model.config
    run.model.config = own.change(**{"ranking.prior": 0.0})
    left = draw_figures(run, boxes, tmp_path / "left")
    assert left.drawn == whole.drawn
    assert left.exponent == 1
    assert run.model.config.ranking.prior == 0  # as it was given
    strong = draw_figures(run, boxes, tmp_path / "strong", prior=50.0)
    assert [a.read_bytes() for a in strong.files] != [a.read_bytes() for a in left.files]
    assert strong.drawn.hits < strong.drawn.hits_without == left.drawn.hits_without  # only the commonest triplet
    run.model.prior = None
    refused("no triplet prior", draw_figures, run, boxes, tmp_path / "none")


def test_spurious_is_what_nobody_annotated_and_the_prior_pushed_out_of_the_list() -> None:
    boxes = np.array([[0, 0, 10, 10], [20, 20, 40, 40]], float)
    truths = np.array([[0, 0, 1], [0, 2, 1], [1, 1, 0]])  # box 0 has class 0, box 1 class 1
    scene = Scene("a", Path("a.png"), (50.0, 50.0), boxes, np.array([0, 1]), truths)
    seen = torch.tensor([[0, 0, 1], [1, 1, 0], [1, 0, 0], [2, 1, 1]])
    prior = TripletPrior.from_triplets(seen, (3, 3, 3), counts=torch.tensor([5, 1, 2, 0]))  # the last: never

    def listed(*rows: tuple[int, ...]) -> Relations:
        array = np.array(rows)
        return Relations("a", boxes, array[:, :2], array[:, 2:], -np.arange(len(rows), dtype=float))

    kept, elsewhere = (0, 1, 0, 0, 1), (1, 0, 2, 1, 1)
    spurious, lost_hit, lost_unseen_hit, lost = (0, 1, 2, 1, 1), (1, 0, 1, 1, 0), (0, 1, 0, 2, 1), (1, 0, 1, 0, 0)
    without = listed(kept, spurious, elsewhere, lost_unseen_hit, lost, lost_hit)
    lists = Lists.compare(scene, without, listed(kept, elsewhere), prior)
    assert lists.spurious.tolist() == [False, True, False, False, False, False]
    assert lists.hits_without.tolist() == [True, False, False, True, False, True]
    assert lists.found.all()
    numbers = {"listed_without": 6, "unseen_without": 3, "hits_without": 3, "listed": 2, "unseen": 1, "hits": 1}
    expected = Counts(photos=1, **numbers, spurious=1, lost_hits=2, lost_unseen_hits=1)
    assert lists.counts == expected
    assert (expected + expected).lost_hits == 4


def test_a_dataset_without_suitable_photos_is_an_error(command: Command, folder: Path, tmp_path: Path) -> None:
    root = write_vrd(tmp_path / "vrd")
    options = ("--detections", folder / "boxes.jsonl", "--out", tmp_path / "out", "--data", root)
    shown = command("reproduce", "vrd-pictures", folder / "run", *options).message
    assert "has 4 to 12 annotated triplets" in shown
    assert (TRUTHS[0], TRUTHS[-1]) == (4, 12)
    assert not (tmp_path / "out").exists()
