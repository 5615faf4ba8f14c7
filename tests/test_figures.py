"""The paper's two figures on test photos: which photos, which triplets are hits, and what a person sees."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import evaluation_oracle as oracle
import numpy as np
import pytest
from draw_cases import BOXES, NAMES, RIDE, grey, overlap
from evaluation_cases import as_plain
from model_cases import rank
from PIL import Image
from refusals import refused
from tiny_runs import Command, call, write_tiny
from vrd_files import HAT, HORSE, RIDER, relation, write_vrd

from polyadic.draw import plan_column
from polyadic.draw.shapes import HIT, Polyline, Rectangle, Text
from polyadic.experiments.pictures import LU, TRIPLETS, TRUTHS, choose_scenes, draw_figures
from polyadic.experiments.runs import open_run
from polyadic.io.records import write_detections
from polyadic.model.scoring import ALL, ScoreTerms
from polyadic.structures.detections import Detections
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


def slow_hits(folder: Path, parts: ScoreTerms) -> int:
    """Of the shown triplets, those that the slow evaluator's overlap finds annotated."""
    run, count = open_run(folder / "run"), 0
    for scene in run.data:
        if scene.name not in ("a.jpg", "b.jpg"):
            continue
        given = Detections(scene.name, scene.boxes + 2, scene.labels, np.full(len(scene.boxes), 0.9), scene.frame)
        found = rank(run.model, scene.open(), given, k=None, top=TRIPLETS, terms=parts)
        answers, truths = as_plain(scene, found.in_frame(scene.frame))
        for answer in answers:
            same = [truth for truth in truths if truth["triplet"] == answer["triplet"]]
            count += any(oracle.overlap(answer, truth, "relationship", LU.iou_offset) >= LU.iou for truth in same)
    return count


def test_one_command_draws_the_photos_and_counts_the_annotated_triplets(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    options = ("--detections", folder / "boxes.jsonl", "--data", folder / "vrd", "--out", out)
    shown = command("reproduce", "vrd-pictures", folder / "run", *options)
    assert shown.code == 0
    # d.jpg has too few truths; c.jpg has no proposals, which is seen
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "all.png", "b.png", "c.png"]
    (hits, total), (without, of) = (tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+)", shown.out))
    assert (total, of) == (2 * TRIPLETS, 2 * TRIPLETS)
    assert (hits, without) == (slow_hits(folder, ALL), slow_hits(folder, ScoreTerms(prior=False)))
    assert hits > 0
    with Image.open(out / "a.png") as picture, Image.open(out / "all.png") as sheet:
        assert picture.width > 3 * 480
        assert sheet.width > 2 * picture.width
        shade = (np.asarray(picture) == HIT).all(-1)
        assert shade.any()
    again = command("reproduce", "vrd-pictures", folder / "run", *options, "--images", "1")
    assert again.out.startswith("1 photos")


def test_figures_use_the_given_prior_or_the_papers(folder: Path, tmp_path: Path) -> None:
    run = open_run(folder / "run")
    boxes = {s.name: Detections(s.name, s.boxes, s.labels, np.ones(len(s.boxes))) for s in run.data}
    whole = draw_figures(run, boxes, tmp_path / "whole", prior=1.0)
    own = run.model.config
    run.model.config = own.change(**{"ranking.prior": 0.0})
    left = draw_figures(run, boxes, tmp_path / "left")
    assert (left.hits, left.hits_without) == (whole.hits, whole.hits_without)
    assert run.model.config.ranking.prior == 0  # as it was given
    strong = draw_figures(run, boxes, tmp_path / "strong", prior=50.0)
    assert [a.read_bytes() for a in strong.files] != [a.read_bytes() for a in left.files]
    assert strong.hits < strong.hits_without == left.hits_without  # nothing but the commonest triplet
    run.model.prior = None
    refused("no triplet prior", draw_figures, run, boxes, tmp_path / "none")


def test_a_dataset_without_suitable_photos_is_an_error(command: Command, folder: Path, tmp_path: Path) -> None:
    root = write_vrd(tmp_path / "vrd")
    options = ("--detections", folder / "boxes.jsonl", "--out", tmp_path / "out", "--data", root)
    shown = command("reproduce", "vrd-pictures", folder / "run", *options).message
    assert "has 4 to 12 annotated triplets" in shown
    assert (TRUTHS[0], TRUTHS[-1]) == (4, 12)
    assert not (tmp_path / "out").exists()
