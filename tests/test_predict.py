"""From photos to relations: every kind of picture, many boxes, many images."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detector_cases import detector_of
from model_cases import ALL_BOXES, EXPONENTS, NAMES, SOURCES, detections, entries, model_of, photo, rank, same
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from polyadic.detectors.detector import Detector
from polyadic.draw.render import render_svg
from polyadic.model import backbone, box_prior
from polyadic.model import scoring as predicting
from polyadic.model.features import PairInputs
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredBlock, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning


def close(a: Relations, b: Relations) -> None:
    assert [entry[1:] for entry in entries(a)] == [entry[1:] for entry in entries(b)]
    np.testing.assert_allclose(a.scores, b.scores, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(a.log_cp), np.asarray(b.log_cp), rtol=1e-4, atol=1e-4)


def test_a_path_an_image_an_array_and_a_tensor_predict_the_same(tmp_path: Path) -> None:
    model, given, image = model_of("pixels"), detections(4), photo()
    image.save(tmp_path / "a.png")
    array = np.asarray(image)
    expected = rank(model, image, given)
    kinds: list[Any] = [tmp_path / "a.png", str(tmp_path / "a.png"), array, array / 255]
    kinds += [torch.from_numpy(array.copy()).permute(2, 0, 1), torch.from_numpy(array / 255).permute(2, 0, 1).float()]
    for kind in kinds:
        assert same(rank(model, kind, given), expected)


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
@pytest.mark.parametrize("values", [{}, {"ranking.repeat": 0.3}, {"head.context": True}], ids=str)
def test_blocks_change_nothing(
    sources: tuple[str, ...], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = model_of(*sources, **EXPONENTS, **values, **ALL_BOXES), detections(6, seed=4)
    given = replace(given, boxes=np.concatenate([given.boxes[:5], given.boxes[:1] + 1]))
    for k in (None, 1):
        whole = rank(model, photo(), given, k=k, top=60)
        for block, kept in ((7, 0), (7, 1 << 20), (29, 0)):
            with monkeypatch.context() as patch:
                patch.setattr(predicting, "BLOCK", block)
                patch.setattr(predicting, "KEPT", kept)
                close(rank(model, photo(), given, k=k, top=60), whole)


def test_300_boxes_are_scored_in_bounded_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng = model_of("evidence", **ALL_BOXES), np.random.default_rng(0)
    corner = rng.uniform(0, 900, (300, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 90, (300, 2))], 1)
    given = Detections("crowd", boxes, rng.integers(0, 4, 300), rng.uniform(0.1, 1, 300), (1000.0, 1000.0))
    seen: list[int] = []
    score = RelationModel.score_block

    def spy(self: RelationModel, inputs: PairInputs, confidences: torch.Tensor | None = None) -> ScoredBlock:
        seen.append(len(inputs.pairs))
        return score(self, inputs, confidences)

    monkeypatch.setattr(RelationModel, "score_block", spy)
    monkeypatch.setattr(predicting, "KEPT", 0)
    result = model.score(None, given).rank(1, 100)
    assert len(result) == 100
    assert sum(seen) == 300 * 299
    assert max(seen) <= predicting.BLOCK


@pytest.mark.parametrize("terms", [ScoreTerms(), ScoreTerms(relabel=False), ScoreTerms(selected=False)], ids=str)
def test_pairs_that_cannot_reach_the_answer_are_left_out_without_changing_it(
    terms: ScoreTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "BLOCK", 20)
    model = model_of("evidence", **EXPONENTS, **ALL_BOXES)
    last: Any = model.selector.layers[-1]
    with torch.no_grad():
        last.weight *= 60  # P(X_sel) from 0 to 1
    scored = model.score(None, detections(20, seed=3))
    everything = replace(scored, log_selected=None, first_blocks=[])
    close(scored.rank(1, 15, terms=terms), everything.rank(1, 15, terms=terms))
    assert (len(scored.first_blocks) < len(everything.first_blocks) == 19) == terms.selected


@pytest.mark.parametrize(
    "values", [{}, {"head.labels": True, "head.rank": 1, "selection.epochs": 0, "neighbours.hidden": 8}], ids=str
)
def test_no_array_grows_faster_than_the_pairs(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers of all pairs at once, or of all threes of boxes, would be larger."""
    monkeypatch.setattr(predicting, "BLOCK", 100)
    monkeypatch.setattr(predicting, "KEPT", 0)
    monkeypatch.setattr(box_prior, "_MESSAGES", 100)
    largest = [0]

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = op(*args, **(kwargs or {}))
            largest[0] = max(largest[0], result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    model, n = model_of("evidence", **ALL_BOXES, **values), 120
    with Sizes():
        model.score(None, detections(n)).rank(1, 10)
    assert largest[0] <= 4 * n**2


def test_too_many_boxes_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyadic.structures.detections.MOST_BOXES", 5)
    with pytest.raises(PolyadicError, match="6 boxes, more than the 5"):
        model_of("evidence").predict(None, detections(6))


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
def test_many_images_at_once_predict_the_same_as_one_by_one(
    sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(*sources, **EXPONENTS)
    photos = [photo(0), photo(1).resize((50, 90)), photo(2), photo(3), photo(4)]
    result = [detections(n, seed=n) for n in (3, 5, 0, 1, 4)]
    alone = [rank(model, *both, top=30) for both in zip(photos, result, strict=True)]
    for block in (1024, 20, 12):  # all together; in groups; some too large for one
        monkeypatch.setattr(predicting, "BLOCK", block)
        for item, expected in zip(model.score_many(photos, result), alone, strict=True):
            close(item.rank(1, 30), expected)


def test_images_of_one_size_pass_the_backbone_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = model_of("pixels"), []
    assert model.backbone is not None
    maps = model.backbone.feature_maps

    def spy(pictures: torch.Tensor) -> list[torch.Tensor]:
        batches.append(len(pictures))
        return maps(pictures)

    monkeypatch.setattr(model.backbone, "feature_maps", spy)
    photos = [photo(0), photo(1).resize((50, 90)), photo(2)]
    model.predict_many(photos, [detections(2)] * 3)
    assert sorted(batches) == [1, 2]
    batches.clear()
    monkeypatch.setattr(backbone, "_PIXELS", 1)  # large images are faster one by one on a CPU
    model.predict_many(photos, [detections(2)] * 3)
    assert batches == [1, 1, 1]


def test_boxes_are_clipped_and_those_outside_the_image_skipped() -> None:
    model = model_of("evidence")
    boxes = np.array([[-20.0, -5, 30, 40], [50, 10, 140, 70], [200, 10, 300, 50], [20, 20, 20, 40]])
    given = Detections("a", boxes, np.array([0, 1, 2, 3]), np.full(4, 0.9), (100.0, 60.0))
    with pytest.warns(PolyadicWarning, match="a: skipped 2 of 4 boxes that lie outside the image"):
        result = rank(model, None, given)
    assert result.boxes.tolist() == [[0, 0, 30, 40], [50, 10, 100, 60]]
    assert np.asarray(result.labels).tolist() == [0, 1]


def test_boxes_in_another_frame_come_out_in_the_photos_pixels() -> None:
    model, given = model_of("pixels"), detections(3)
    small = replace(given, boxes=given.boxes / 4, size=(25.0, 15.0))
    result = rank(model, photo(), small)
    assert result.size == (100.0, 60.0)
    np.testing.assert_allclose(result.boxes, given.boxes)
    close(result, rank(model, photo(), given))


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
def test_boxes_without_size_are_in_the_annotated_frame_of_their_scene(tmp_path: Path, sources: tuple[str, ...]) -> None:
    photo().resize((50, 30)).save(tmp_path / "a.png")  # stored at half the annotated size
    given = detections(3)
    none = np.zeros((0, 3), np.int64)
    scene = Scene("a", tmp_path / "a.png", (100.0, 60.0), given.boxes, given.labels, none)
    model = model_of(*sources)
    expected = rank(model, scene.image, given)
    unsized = replace(given, size=None)
    close(rank(model, scene.photo(), unsized), expected)
    with pytest.raises(PolyadicError, match=r"reach 82 x 56 .* 50 x 30; .* size"):
        rank(model, scene.image, unsized)  # nothing tells that the photo is smaller than its annotated frame


def test_overlapping_boxes_are_suppressed_by_score() -> None:
    model = model_of("evidence")
    boxes = np.array([[10.0, 10, 50, 50], [10, 10, 50, 48], [60, 10, 90, 50]])
    given = Detections("a", boxes, np.array([0, 1, 2]), np.array([0.5, 0.8, 0.4]), (100.0, 60.0))
    assert np.asarray(rank(model, None, given).labels).tolist() == [1, 2]
    assert len(rank(model_of("evidence", **ALL_BOXES), None, given).boxes) == 3


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
def test_boxes_of_unknown_class_are_still_scored(sources: tuple[str, ...]) -> None:
    model, given = model_of(*sources), detections(3)
    result = rank(model, photo(), replace(given, labels=np.array([UNKNOWN, 1, UNKNOWN])))
    assert len(result) == 6
    assert np.isfinite(result.scores).all()
    assert result.to_dict()["boxes"][0]["label"] is None
    assert all(name in NAMES.objects for name in result.box_classes())


def test_an_unknown_class_is_the_mean_of_all_classes() -> None:
    model = model_of("evidence")
    feature = model.features.evidence
    assert feature is not None
    numbers = torch.zeros(5, 11), torch.zeros(1, 30)
    labels = torch.tensor([[0, -1], [1, -1], [2, -1], [3, -1], [UNKNOWN, -1]])
    subject, object, _ = feature(labels, *numbers, torch.tensor([[0, 1]]))
    for x in (subject, object):
        torch.testing.assert_close(x[4], x[:4].mean(0))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_rotated_photo_is_upright_in_either_frame_of_its_boxes(tmp_path: Path, orientation: int) -> None:
    model, image = model_of("pixels"), photo()
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}[orientation]
    stored, note = image.transpose(turn), Image.Exif()
    note[0x0112] = orientation
    stored.save(tmp_path / "turned.png", exif=note)
    upright = replace(detections(3), size=None)
    expected = rank(model, image, upright)
    result = rank(model, tmp_path / "turned.png", upright)
    close(result, expected)
    assert result.size == (100.0, 60.0)
    if orientation == 3:
        return  # the sizes tell no difference
    x1, y1, x2, y2 = upright.boxes.T
    sideways = {6: [y1, 100 - x2, y2, 100 - x1], 8: [60 - y2, x1, 60 - y1, x2]}[orientation]
    given = replace(upright, boxes=np.stack(sideways, 1), size=(60.0, 100.0))
    result = rank(model, tmp_path / "turned.png", given)
    close(result, expected)
    np.testing.assert_allclose(result.boxes, upright.boxes)


class Fixed(torch.nn.Module):
    """A detector with a weight that always returns the same boxes."""

    def __init__(self, given: Detections) -> None:
        super().__init__()
        self.given, self.weight = given, torch.nn.Parameter(torch.ones(1))

    def forward(self, photo: Photo) -> Detections:
        assert list(photo.size) == [100, 60]
        return self.given


def test_without_detections_the_detector_of_the_model_runs() -> None:
    model, given = model_of("evidence"), detections(3)
    with pytest.raises(PolyadicError, match="this model has no detector: give detections"):
        rank(model, photo())
    before = list(model.state_dict())
    model.set_detector(Fixed(given))
    assert same(rank(model, photo()), rank(model, photo(), given))
    assert list(model.state_dict()) == before  # a detector is no part of the model
    with pytest.raises(PolyadicError, match="without detections an image is needed"):
        rank(model, None)
    with pytest.raises(PolyadicError, match="2 images need as many detections, got 1"):
        model.predict_many([photo(), photo()], [given])


def test_a_saved_model_keeps_its_detector(tmp_path: Path) -> None:
    detector = detector_of(names=NAMES)
    model, none = model_of("evidence"), model_of("evidence")
    model.set_detector(detector)
    model.save(tmp_path / "m")
    loaded = RelationModel.load(tmp_path / "m")
    assert isinstance(loaded.detector, Detector)
    assert loaded.detector(photo()) == detector(photo())
    loaded.save(tmp_path / "m")  # onto itself
    assert RelationModel.load(tmp_path / "m").detector is not None
    loaded.set_detector(None)
    none.save(tmp_path / "m")
    assert RelationModel.load(tmp_path / "m").detector is None
    none.set_detector(Fixed(detections(3)))
    with pytest.warns(PolyadicWarning, match=r"Fixed is not saved with the model: call model\.set_detector"):
        none.save(tmp_path / "m")
    assert RelationModel.load(tmp_path / "m").detector is None


def test_relations_in_json_have_boxes_names_and_score_terms() -> None:
    model, given = model_of("evidence", **EXPONENTS), detections(3)
    result = rank(model, None, given, top=4)
    record = json.loads(result.to_json())
    assert record == result.to_dict()
    assert (record["image"], record["size"]) == ("a.jpg", [100, 60])
    assert [box["label"] for box in record["boxes"]] == [NAMES.objects[label] for label in given.labels]
    assert len(record["relations"]) == 4
    for item, relation in zip(record["relations"], result, strict=True):
        assert (item["subject"]["name"], item["predicate"], item["object"]["name"]) == relation.names
        assert item["score"] == relation.score
        assert item["score"] == pytest.approx(math.prod(item["parts"].values()))
        s, o = item["subject"]["box"], item["object"]["box"]
        assert item["parts"]["detector"] == pytest.approx((given.scores[s] * given.scores[o]) ** 0.4)
        assert list(relation.boxes[0]) == record["boxes"][s]["box"]


def test_relations_as_a_graph() -> None:
    result = rank(model_of("evidence"), None, detections(4), k=2, top=5)
    graph, record = result.to_networkx(), result.to_dict()
    assert graph.number_of_edges() == 5
    ends = {at for item in record["relations"] for at in (item["subject"]["box"], item["object"]["box"])}
    assert set(graph.nodes) == ends
    edges = sorted((s, o, data["predicate"], data["score"]) for s, o, data in graph.edges(data=True))
    assert edges == sorted(
        (item["subject"]["box"], item["object"]["box"], item["predicate"], item["score"])
        for item in record["relations"]
    )
    assert all(data["name"] == result.box_names()[at] and len(data["box"]) == 4 for at, data in graph.nodes(data=True))
    assert all(0 < data["probability"] < 1 for _, _, data in graph.edges(data=True))


def test_a_box_has_the_most_probable_name_of_all_its_relations() -> None:
    several = 0
    for seed in range(5):
        result = rank(model_of("evidence"), None, detections(4, seed=seed), k=None, top=60)
        votes: list[Counter[str]] = [Counter() for _ in result.boxes]
        for relation in result:
            for at, name in zip(relation.pair, relation.names[::2], strict=True):
                votes[at][name] += round(relation.probability * 1e12)
        several += sum(len(vote) > 1 for vote in votes)
        assert result.box_classes() == [vote.most_common(1)[0][0] for vote in votes]
    assert several  # else any relation would do


def test_boxes_of_one_class_are_numbered_from_left_to_right_everywhere() -> None:
    boxes = np.array([[50.0, 0, 60, 10], [0, 0, 10, 10], [20, 0, 30, 10]])
    pairs, triplets = np.array([[0, 2], [1, 0]]), np.array([[0, 1, 2], [0, 0, 0]])
    result = Relations("a", boxes, pairs, triplets, np.array([0.5, 0.25]), vocabulary=NAMES)
    assert result.box_names() == ["dog 2", "dog 1", "cup"]
    assert [row.box_names for row in result] == [("dog 2", "cup"), ("dog 1", "dog 2")]
    assert [box["name"] for box in result.to_dict()["boxes"]] == result.box_names()
    assert [data["name"] for _, data in sorted(result.to_networkx().nodes(data=True))] == result.box_names()
    texts = "".join(re.findall(r"<text[^>]*>(.*?)</text>", render_svg(result.drawing(photo()))))
    assert "dog 2 by cup" in texts.replace("\u00a0", " ")


def test_relations_are_named_after_their_photo(tmp_path: Path) -> None:
    photo().save(tmp_path / "a.png")
    model, given = model_of("evidence"), replace(detections(3), image="image")
    assert rank(model, tmp_path / "a.png", given).to_dict()["image"] == str(tmp_path / "a.png")
    assert rank(model, photo(), replace(given, image="b.jpg")).to_dict()["image"] == "b.jpg"


def test_relations_can_be_drawn_and_saved(tmp_path: Path) -> None:
    result = rank(model_of("evidence"), None, detections(3))
    assert result.draw(photo()).width > 640
    for name in ("a.png", "a.svg", "a.jpg"):
        result.save_drawing(tmp_path / name, photo())
        assert (tmp_path / name).stat().st_size > 1000
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_invalid_images_are_refused() -> None:
    model = model_of("pixels")
    for kind, says in (
        (7, "expected an image: .* got int"),
        (np.zeros((2, 3, 4, 5)), r"expected an image \[H, W, 3\], got an array \[2, 3, 4, 5\]"),
        (np.full((4, 5, 3), 3.0), "floats must lie in 0 to 1, got 3 to 3"),
        (torch.zeros(7, 4, 5), r"expected an image \[3, H, W\], got a tensor \[7, 4, 5\]"),
    ):
        with pytest.raises(PolyadicError, match=says):
            rank(model, kind, detections(2))


def test_invalid_detections_are_refused(unchecked: None) -> None:
    model: Any = model_of("evidence")
    with pytest.raises(PolyadicError, match=r"expected Detections, got list; build them with Detections\.from_arrays"):
        model.predict(photo(), [[1, 2, 3, 4]])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", ["a", 0, -1, 1.5, True, [1]], ids=repr)
def test_k_and_top_are_whole_numbers_from_1(wrong: Any) -> None:
    values: dict[str, Any] = {"ranking.repeat": 0.5}
    model, given = model_of("evidence", **values), detections(4)
    scored = model.score(None, given)
    calls: list[Any] = [lambda **x: model.predict(None, given, **x), scored.rank]
    for call in calls:
        for name in ("k", "top"):
            with pytest.raises(PolyadicError, match=f"{name} must be a whole number from 1"):
                call(**{name: wrong})
        with pytest.raises(PolyadicError, match="top must be a whole number from 1"):
            call(top=None)
    with pytest.raises(PolyadicError, match="top must be a whole number from 1"):
        scored.query(predicate="on", top=wrong)


@pytest.mark.parametrize("hidden", [10**12, 10**17])  # petabytes; more than torch can count
def test_a_network_that_memory_cannot_hold_is_one_line(hidden: int) -> None:
    values: dict[str, Any] = {"head.hidden": hidden}
    with pytest.raises(PolyadicError, match="memory cannot hold"):
        model_of("evidence", **values)
