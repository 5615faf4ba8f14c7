"""Many photos: which ones are meant, whose boxes are whose, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import detections, model_of, photo

from polyadic.experiments import photos
from polyadic.experiments.photos import Item, Question, find_photos, match_detections, predict_photos
from polyadic.model.answers import AnswerOptions
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredPairs
from polyadic.progress import Interrupted, interruptible, request_stop
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def given(*names: str) -> dict[str, Detections]:
    return {name: replace(detections(2, seed=at), image=name) for at, name in enumerate(names)}


def matched(paths: Sequence[str], found: dict[str, Detections]) -> list[str | None]:
    """Whose boxes each photo got; None: it is passed over."""
    items = match_detections([Path(path) for path in paths], found)
    assert [item.name for item in items] == list(paths)
    assert all((item.problem is None) == (item.detections is not None) for item in items)
    return [None if item.detections is None else item.detections.image for item in items]


def items_of(folder: Path, boxes: Sequence[int]) -> list[Item]:
    """Photos on disk, with so many boxes each."""
    items = []
    for at, n in enumerate(boxes):
        path = folder / f"{at}.png"
        photo(at).save(path)
        items.append(Item(str(path), path, replace(detections(n, seed=at), image=path.name)))
    return items


def spy_on_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    predict = RelationModel.score_many

    def spy(self: RelationModel, images: Sequence[Any], *rest: Any, **more: Any) -> list[ScoredPairs]:
        sizes.append(len(images))
        return predict(self, images, *rest, **more)

    monkeypatch.setattr(RelationModel, "score_many", spy)
    return sizes


def test_folders_are_searched_and_patterns_expanded(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.JPG", "b/1.png", "b/deep/er/3.webp", "b/note.txt", "b/.hidden.jpg", "b/._1.png", "b/.t/4.jpg")
    (tmp_path / "b" / "folder.jpg").mkdir()
    touch(tmp_path, "a.gif", "c [1].png")

    def names(*words: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in find_photos([f"{tmp_path}/{word}" for word in words])]

    assert names("b") == ["b/1.png", "b/2.JPG", "b/deep/er/3.webp"]
    assert names("a.gif", "b/2.JPG", "b") == ["a.gif", "b/2.JPG", "b/1.png", "b/deep/er/3.webp"]  # each once
    assert names("b/*.png", "*.gif") == ["b/1.png", "a.gif"]
    assert names("**/[13].*") == ["b/1.png", "b/deep/er/3.webp"]
    assert names("c [1].png", "none.jpg") == [
        "c [1].png",
        "none.jpg",
    ]  # a file's name is no pattern; the absent is message
    (tmp_path / "b" / "lost.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert names("b")[-1] == "b/lost.jpg"


def test_drawings_are_not_taken_for_photos(tmp_path: Path) -> None:
    drawn = tmp_path / "photos" / "drawn"
    drawn.mkdir(parents=True)
    for path in (tmp_path / "photos" / "a.jpg", drawn / "a.png"):
        path.touch()
    photos = str(tmp_path / "photos")
    assert find_photos([photos], drawn) == [tmp_path / "photos" / "a.jpg"]
    assert find_photos([photos, str(drawn / "a.png")], drawn) == [tmp_path / "photos" / "a.jpg", drawn / "a.png"]
    with pytest.raises(PolyadicError, match=r"--draw: .* is a folder of photos"):
        find_photos([photos], tmp_path / "photos")


def test_detections_match_the_photo_whose_path_ends_with_their_image_name() -> None:
    two = given("a/x.jpg", "b/x.jpg")
    assert matched(["/data/b/x.jpg", "/data/a/x.jpg"], two) == ["b/x.jpg", "a/x.jpg"]
    assert matched(["b/x.jpg", "c/x.jpg"], given("x.jpg", "b/x.jpg")) == ["b/x.jpg", "x.jpg"]  # the longest end
    assert matched(["p/x.jpg", "p/y.jpg"], given("y.jpg", "x.jpg", "z.jpg")) == ["x.jpg", "y.jpg"]
    assert matched(["p/ax.jpg", "p/y.jpg"], given("x.jpg", "y.jpg")) == [None, "y.jpg"]  # whole names alone


def test_names_match_without_suffix_and_leading_zeros() -> None:
    assert matched(["p/000000000139.jpg", "p/285.jpg"], given("285", "139")) == ["139", "285"]
    assert matched(["p/a.png", "p/b.png"], given("images/a.jpg", "images/b.jpg")) == ["images/a.jpg", "images/b.jpg"]
    assert matched(["p/a.png", "p/a.jpg"], given("a.jpg", "a.png")) == ["a.png", "a.jpg"]


def test_ambiguous_detections_match_no_photo() -> None:
    paths = [Path("a/x.jpg"), Path("b/x.jpg"), Path("y.jpg"), Path("z.jpg"), Path("q/w.gif")]
    items = match_detections(paths, given("x.jpg", "y.jpg", "a/w.jpg", "b/w.jpg"))
    assert [item.problem for item in items] == [
        "a/x.jpg: the detections of 'x.jpg' match 2 photos: use full paths",
        "b/x.jpg: the detections of 'x.jpg' match 2 photos: use full paths",
        None,
        "z.jpg: no detections",
        "q/w.gif: detections of 2 images match, 'a/w.jpg' and 'b/w.jpg': use full paths",
    ]


def test_a_single_photo_takes_the_only_detections() -> None:
    assert matched(["p/x.jpg"], given("x.png")) == ["x.png"]
    with pytest.warns(PolyadicWarning, match="using the boxes of 'other' for p/x.jpg"):
        assert matched(["p/x.jpg"], given("other")) == ["other"]


def test_no_match_at_all_is_an_error() -> None:
    message = r"none of the 2 photos \(the first is x.jpg\) matches the detections of 3 images"
    with pytest.raises(PolyadicError, match=message):
        matched(["x.jpg", "y.jpg"], given("a", "b", "c"))
    with pytest.raises(PolyadicError, match=r"the detections of 0 images$"):
        matched(["x.jpg", "y.jpg"], {})


@pytest.mark.parametrize("sources", [("pixels",), ("evidence",)], ids="+".join)
def test_batched_results_equal_single_predictions_in_order(tmp_path: Path, sources: tuple[str, ...]) -> None:
    model, items = model_of(*sources), items_of(tmp_path, (3, 0, 4, 1, 2))
    results = list(predict_photos(model, items, Question(AnswerOptions(top=7, least=0)), batch=2))
    assert [each.name for each in results] == [item.name for item in items]
    for item, result in zip(items, results, strict=True):
        alone = model.predict(item.path, item.detections, top=7, least=0)
        assert [r.triplet for r in result.relations] == [r.triplet for r in alone]
        np.testing.assert_allclose(result.relations.scores, alone.scores, rtol=1e-5, atol=1e-5)


def test_one_bad_photo_does_not_affect_the_others(tmp_path: Path) -> None:
    items = items_of(tmp_path, (3, 2, 2, 3))
    (tmp_path / "1.png").write_text("no picture")
    assert items[2].detections is not None
    items[2] = replace(items[2], detections=replace(items[2].detections, labels=items[2].detections.labels + 9))
    items.append(Item("x.png", Path("x.png"), None, "x.png: there are no detections of it"))
    results = list(predict_photos(model_of("evidence"), items, Question(), batch=8))
    assert [each.problem is None for each in results] == [True, False, False, True, False]
    assert "1.png is not a readable image" in str(results[1].problem)
    assert "2.png: label" in str(results[2].problem)
    assert results[4].problem == "x.png: there are no detections of it"


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_a_photo_that_needs_too_much_memory_is_skipped(
    tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    items, predict = items_of(tmp_path, (2, 3, 2)), RelationModel.score_many

    def tight(
        self: RelationModel, images: Sequence[Any], found: Sequence[Detections], **more: Any
    ) -> list[ScoredPairs]:
        if sum(map(len, found)) > 2:
            raise kind("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        return predict(self, images, found, **more)

    monkeypatch.setattr(RelationModel, "score_many", tight)
    results = list(predict_photos(model_of("evidence"), items, Question()))
    message = f"{items[1].name}: not enough memory"
    assert [each.problem for each in results] == [None, message, None]


def test_skipping_done_photos_does_not_change_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, items, sizes = model_of("pixels", "evidence"), items_of(tmp_path, (2, 3, 4, 2, 3, 2, 4)), []
    whole = list(predict_photos(model, items, Question(), batch=3))
    sizes = spy_on_batches(monkeypatch)
    done = {items[at].name for at in (0, 1, 2, 3)}
    rest = list(predict_photos(model, items, Question(), batch=3, done=done))
    assert sizes == [3, 1]
    assert [each.name for each in rest] == [item.name for item in items[4:]]
    for one, other in zip(rest, whole[4:], strict=True):
        assert np.array_equal(one.relations.scores, other.relations.scores)


def test_crowded_photos_come_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, sizes = items_of(tmp_path, (4, 4, 9, 2, 2, 2)), spy_on_batches(monkeypatch)
    monkeypatch.setattr(photos, "PAIRS", 24)  # 4 boxes have 12 ordered pairs
    found = list(predict_photos(model_of("evidence"), items, Question(), batch=8))
    assert sizes == [2, 1, 3]
    assert [each.name for each in found] == [item.name for item in items]


def test_an_interrupt_takes_effect_between_batches(tmp_path: Path) -> None:
    items = items_of(tmp_path, (2,) * 5)
    results = predict_photos(model_of("evidence"), items, Question(), batch=2)
    with interruptible():
        assert next(results).name == items[0].name
        request_stop()
        assert next(results).name == items[1].name  # of the same batch
        with pytest.raises(Interrupted):
            next(results)
