from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import model_cases
import numpy as np
import pytest
import torch
from model_cases import (
    ALL_BOXES,
    EXPONENTS,
    NAMES,
    SOURCES,
    agree,
    dense,
    detections,
    entries,
    pairs_of,
    photo,
    prepared,
    rank,
    same,
    with_geometry,
)
from oracles import ranked
from refusals import refused

from polyadic.boxes import context_features, ordered_pairs
from polyadic.model.backbone import prepare_picture
from polyadic.model.features import PairInputs, pair_inputs
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoredBlock, ScoreTerms
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations

model_of: Any = model_cases.model_of  # every part of these models is there


def inputs_of(given: Detections, sources: tuple[str, ...], **more: Any) -> PairInputs:
    words: dict[str, Any] = {"labels": given.labels, "scores": given.scores}
    return pair_inputs(given.boxes, ordered_pairs(len(given)), (100.0, 60.0), sources=sources, **words, **more)


def rank_with(
    model: RelationModel, given: Detections, block: ScoredBlock, labels: np.ndarray, **more: Any
) -> Relations:
    """Rank scores of boxes whose labels are fixed."""
    return replace(prepared(model, replace(given, labels=labels)), kept=(block,)).rank(**more)


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
@pytest.mark.parametrize("k", [None, 2])
def test_predictions_are_the_best_entries_of_the_dense_f_spo(sources: tuple[str, ...], k: int | None) -> None:
    model, given = model_of(*sources, **EXPONENTS), detections(3)
    scores = pairs_of(model, given, photo())
    psi_c = with_geometry(scores)
    assert bool((psi_c.sum((1, 2, 3)) < 0.999).all()) == ("evidence" in sources)  # else the limit of 1 counts
    psi_u = model.prior.log_prob(torch.cartesian_prod(*(torch.arange(n) for n in NAMES.sizes))).view(NAMES.sizes)
    f = torch.zeros_like(psi_c)
    for at, (s, o) in enumerate((s, o) for s in range(3) for o in range(3) if s != o):
        boxes = math.log(given.scores[s]) + math.log(given.scores[o])
        f[at] = psi_c[at].log() + 0.7 * psi_u + 1.3 * float(scores.log_selected[at]) + 0.4 * boxes
    agree(rank(model, photo(), given, k=k, top=40), ranked(f, k, 40))


def test_each_pair_is_scored_as_if_it_were_alone() -> None:
    """Regions, unions, masks and geometry of the right boxes reach each pair; its prior knows the other boxes too."""
    model, given = model_of("pixels"), detections(4)
    scores, boxes = pairs_of(model, given, photo()), torch.from_numpy(given.boxes).float()
    picture, frame = prepare_picture(photo(), model.config.pixels), torch.tensor([[100.0, 60.0]])
    for at, (s, o) in enumerate(scores.pairs.tolist()):
        two = boxes[[s, o]]
        around = torch.cat([two[:, :2].amin(0), two[:, 2:].amax(0)])[None]
        regions, union = (model.backbone(picture, x, (100.0, 60.0)).half().float() for x in (two, around))
        alone = model.score_block(PairInputs(torch.tensor([[0, 1]]), two, frame.expand(2, 2), regions, union))
        torch.testing.assert_close(scores.log_selected[at : at + 1], alone.log_selected)
        for result, expected in zip(scores.cp.factors, alone.cp.factors, strict=True):
            torch.testing.assert_close(result[at], expected[0], rtol=1e-5, atol=1e-6)
        expected_prior = model.geometry(context_features(boxes, frame.expand(4, 2), torch.tensor([[s, o]])))
        for result, expected in zip(scores.geometry.factors, expected_prior.factors, strict=True):
            torch.testing.assert_close(result[at], expected[0])


@pytest.mark.parametrize(("selected", "prior", "geometry"), list(itertools.product([False, True], repeat=3)))
def test_score_terms_leave_out_exactly_what_they_name(selected: bool, prior: bool, geometry: bool) -> None:
    model = model_of("evidence")
    scores = pairs_of(model, detections(3))
    f = with_geometry(scores) if geometry else dense(scores.cp)
    if prior:
        triplets = torch.cartesian_prod(*(torch.arange(n) for n in NAMES.sizes))
        f = f * model.prior.log_prob(triplets).exp().view(NAMES.sizes)
    if selected:
        f = f * scores.log_selected.double().exp()[:, None, None, None]
    f = f * scores.log_boxes.exp()[:, None, None, None]
    terms = ScoreTerms(selected, prior, geometry)
    agree(prepared(model, detections(3)).rank(top=25, terms=terms), ranked(f.log(), None, 25))


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0])
def test_score_terms_may_change_the_exponent_of_the_prior(exponent: float) -> None:
    other, given = ScoreTerms(prior_exponent=exponent), detections(3)
    result, expected = (
        model_of("evidence", **EXPONENTS),
        model_of("evidence", **{**EXPONENTS, "ranking.prior": exponent}),
    )
    for k in (None, 2):
        agree(rank(result, None, given, k=k, top=40, terms=other), entries(rank(expected, None, given, k=k, top=40)))


def test_untrained_stages_are_not_used() -> None:
    scores = pairs_of(model_of("evidence", stages=("triplets",)), detections(3))
    assert scores.log_selected is None
    assert scores.geometry is None
    assert model_of("evidence", stages=(), **{"boxes.epochs": 0}).geometry is None


def test_selection_uses_the_pair_feature_and_trains_its_head_alone() -> None:
    model, given = model_of("evidence"), detections(4)
    inputs = inputs_of(given, ("evidence",))
    logit = model.selection_logit(inputs)
    logit.sum().backward()
    taught = {name.split(".")[0] for name, x in model.named_parameters() if x.grad is not None}
    assert taught == {"selector"}
    with torch.no_grad():
        pair = model.features(inputs)[2]
        torch.testing.assert_close(logit, model.selector(pair))
    torch.testing.assert_close(model.score_block(inputs).log_selected, torch.nn.functional.logsigmoid(logit.detach()))


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
def test_the_triplet_loss_trains_features_and_head_but_not_the_backbone(sources: tuple[str, ...]) -> None:
    model, given = model_of(*sources), detections(4)
    model.train()
    inputs = pairs_of(model, given, photo())
    assert not inputs.cp.subject.requires_grad
    width = 0 if model.backbone is None else model.backbone.width
    regions, unions = (torch.randn(k, width) if width else None for k in (4, 12))
    made = inputs_of(given, sources, regions=regions, unions=unions)
    model(made).nll(torch.tensor([[0, 1, 2]]).expand(12, 3)).mean().backward()
    taught = {name.split(".")[0] for name, x in model.named_parameters() if x.grad is not None}
    assert taught == {"features", "head"}


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
@pytest.mark.parametrize("values", [{}, {"ranking.repeat": 0.5}, {"precision": "bfloat16"}], ids=str)
def test_one_box_or_none_has_no_relations(sources: tuple[str, ...], values: dict[str, Any]) -> None:
    model = model_of(*sources, **values)
    for n in (0, 1):
        result = rank(model, photo(), detections(n))
        assert len(result) == 0
    assert len(rank(model, photo(), detections(2), k=None, top=3)) == 3


def test_boxes_without_area_have_finite_scores() -> None:
    model = model_of("evidence", "pixels")
    boxes = np.array([[5.0, 5, 5, 5], [5, 5, 5, 5], [100, 60, 100, 60], [0, 0, 100, 0]])
    given = Detections("a", boxes, np.array([0, 1, 2, 3]), np.array([0.0, 1, 0.5, 0.5]))
    result = prepared(model, given, photo()).rank()
    assert len(result) == 100
    assert np.isfinite(result.scores).all()


def test_repeated_triplets_get_the_penalty_of_the_config() -> None:
    dear: dict[str, Any] = {"ranking.repeat": 0.25}
    model, plain = model_of("evidence", **ALL_BOXES, **dear), model_of("evidence", **ALL_BOXES)
    box = [10.0, 10, 50, 40]
    boxes = np.array([box, box, [60, 10, 90, 50]])
    given = Detections("a", boxes, np.array([0, 0, 1]), np.array([0.9, 0.9, 0.8]), (100.0, 60.0))
    result = np.unique(np.asarray(rank(model, None, given, k=None, top=500).log_repeat))
    assert result.tolist() == pytest.approx([math.log(0.25), 0])
    assert not np.any(rank(plain, None, given, k=None, top=500).log_repeat)


def test_predict_keeps_training_mode_and_disables_dropout() -> None:
    model = model_of("evidence").train()
    first = rank(model, None, detections(3))
    assert model.training
    assert same(rank(model, None, detections(3)), first)  # dropout is off


def test_relations_are_plain_data_for_the_evaluation() -> None:
    model, given = model_of("evidence"), detections(3)
    result = prepared(model, given).rank(top=9)
    assert (result.image, result.size) == (given.image, (100.0, 60.0))
    np.testing.assert_array_equal(result.boxes, given.boxes)
    assert all(not isinstance(getattr(result, field.name), torch.Tensor) for field in fields(result))
    terms: list[Any] = [result.log_cp, result.log_prior, result.log_selected, result.log_boxes, result.log_repeat]
    np.testing.assert_allclose(np.sum(terms, axis=0), result.scores)


def test_bad_pictures_and_labels_are_refused_in_one_line(tmp_path: Path) -> None:
    pixels, words = model_of("pixels"), model_of("evidence")
    (tmp_path / "a.jpg").write_bytes(b"not a picture")
    outside = replace(detections(2), labels=np.array([0, 4]))
    for act, says in (
        (lambda: rank(pixels, tmp_path / "a.jpg", detections(2)), r"a\.jpg is not a readable image"),
        (lambda: rank(pixels, None, detections(2)), r"a\.jpg: this model needs pixels"),
        (lambda: rank(words, None, detections(2, size=None)), "the size of the image is needed"),
        (lambda: rank(words, None, outside), r"a\.jpg: label 4 is outside the 4 object classes"),
    ):
        refused(says, act)


def test_with_known_labels_only_predicates_compete() -> None:
    model = model_of("evidence", **EXPONENTS)
    result = detections(4)
    scores, labels = pairs_of(model, result), np.array([2, 0, 3, 1])
    predicted = rank_with(model, result, scores, labels, top=100, terms=ScoreTerms(labels=True))
    assert len(predicted) == 12 * 3  # each predicate of each pair
    np.testing.assert_array_equal(labels[predicted.pairs], predicted.triplets[:, ::2])
    psi_c = scores.cp.to(torch.float64).dense()
    s, p, o = (x.double().exp() for x in scores.geometry.factors)
    expects = torch.einsum("bri,brj,brk->bijk", s, p, o)
    place = {tuple(pair): at for at, pair in enumerate(scores.pairs.tolist())}
    for pair, (s, p, o), score in zip(
        predicted.pairs.tolist(), predicted.triplets.tolist(), predicted.scores, strict=True
    ):
        at = place[tuple(pair)]
        row = psi_c[at, s, :, o] / psi_c[at, s, :, o].sum() * expects[at, s, :, o]
        conditional = row[p] / row.sum().clamp_min(1)
        prior = 0.7 * float(model.prior.log_prob(torch.tensor([s, p, o])))
        rest = prior + 1.3 * float(scores.log_selected[at]) + 0.4 * float(scores.log_boxes[at])
        assert score == pytest.approx(math.log(conditional) + rest, abs=1e-4)


def test_fixed_detector_labels_are_scored_by_the_joint_distribution() -> None:
    """A detector's labels may be wrong, and how likely they are counts; unlike true ones."""
    model, result = model_of("evidence", **EXPONENTS), detections(4)
    scores = pairs_of(model, result)
    joint = with_geometry(scores)
    for known in (np.array([1, 1, 0, 2]), np.array([2, 0, 3, 1])):
        predicted = rank_with(model, result, scores, known, terms=ScoreTerms(relabel=False))
        expected = {}
        for at, (a, b) in enumerate(scores.pairs.tolist()):
            rest = 1.3 * float(scores.log_selected[at]) + 0.4 * float(scores.log_boxes[at])
            for p in range(3):
                s, o = int(known[a]), int(known[b])
                prior = 0.7 * float(model.prior.log_prob(torch.tensor([s, p, o])))
                expected[a, b, s, p, o] = math.log(joint[at, s, p, o]) + prior + rest
        order = sorted(expected, key=lambda key: -expected[key])
        assert [(*pair, *t) for pair, t in zip(predicted.pairs, predicted.triplets, strict=True)] == order
        assert predicted.scores.tolist() == pytest.approx([expected[key] for key in order], abs=1e-4)
        one = rank_with(model, result, scores, known, k=1, terms=ScoreTerms(relabel=False))
        assert len(one) == 12


def test_terms_can_switch_dedup_off() -> None:
    repeat: dict[str, Any] = {"ranking.repeat": 0.25}
    dear, plain = model_of("evidence", **ALL_BOXES, **repeat), model_of("evidence", **ALL_BOXES)
    result = detections(4)
    result = replace(result, boxes=result.boxes[[0, 0, 1, 2]], labels=result.labels[[0, 0, 1, 2]])
    off = rank(dear, None, result, k=None, top=50, terms=ScoreTerms(dedup=False))
    assert same(off, rank(plain, None, result, k=None, top=50))
    assert not same(off, rank(dear, None, result, k=None, top=50))
