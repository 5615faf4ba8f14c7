"""f_spo: the image's best triplets over all pairs, exactly and without the dense tensor.

Paper: Modeling missing annotations.

    P(B_s, B_o | I) · ψ_c(s, p, o | B_s, B_o, I) · ψ_u(s, p, o) · P(X_sel | B_s, B_o, I)

The factors are non-negative, so their norms and peaks bound what entries can reach, and nearly all pairs, subjects and
(subject, predicate) cells are pruned unseen; ψ_u is sparse + constant, so seen triplets and the rest are bounded
separately. `kernel` searches on the CPU, `search` on a GPU and wherever float64 would underflow; both return the list
that sorting the dense tensor would. What depends on the prior alone is kept with it: an image of few pairs takes a
tenth of a millisecond.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from polyadic.cp import CPTensor, require_tensor
from polyadic.prior import SparsePrior, TripletPrior
from polyadic.ranking import search as tensors
from polyadic.ranking.answer import RankedTriplet, Ranking, flat_index, merge_rankings
from polyadic.ranking.dedup import Dedup, Search, deduplicate
from polyadic.ranking.search import SAFE, RankingProblem, Weights, weights_of
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from polyadic.ranking.kernel.outline import SeenIndex

__all__ = ["RankedTriplet", "Ranking", "flat_index", "merge_rankings", "rank_relations"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def rank_relations(
    cp: CPTensor,
    prior: SparsePrior | None = None,
    log_selected: Float[Tensor, " B"] | None = None,
    log_boxes: Float[Tensor, " B"] | None = None,
    *,
    k: SupportsIndex | Int[Tensor, " B"] | None = None,
    top: SupportsIndex = 100,
    prior_exponent: float = 1.0,
    selected_exponent: float = 1.0,
    boxes_exponent: float = 1.0,
    k_unit: Literal["triplet", "predicate"] = "triplet",
    labels: Int[Tensor, "B 2"] | None = None,
    dedup: Dedup | None = None,
    vocabulary: Vocabulary | None = None,
) -> Ranking:
    """Find the best `top` triplets of one image, at most `k` per ordered pair, by falling log f_spo.

    log f_spo = log ψ_c + prior_exponent · log ψ_u + selected_exponent · log P(X_sel) + boxes_exponent · log P(B_s,
    B_o | I), with all exponents 1 in the paper. Equal scores are ordered by (pair, subject, predicate, object),
    smallest first; triplets of score -inf are left out. Memory O(B·R·(S+P+O) + seen triplets); time mostly one pass
    over the factors.

    Args:
        cp: ψ_c of the image's B pairs, factors [B, R, ·].
        prior: ψ_u, a `TripletPrior` of the same sizes.
        log_selected: log P(X_sel) per pair.
        log_boxes: log P(B_s, B_o | I) per pair, for instance the sum of the two log-confidences.
        k: entries per pair, one number for all or one for each; None for no limit.
        top: entries per image.
        prior_exponent: 1 in the paper.
        selected_exponent: 1 in the paper.
        boxes_exponent: 1 in the paper.
        k_unit: what k counts: "triplet" (the paper), or "predicate", which needs `labels` (other papers).
        labels: (subject, object) class of each pair, from a detector or the ground truth; only predicates compete, so
            both units count the same. The score stays the joint ψ_c(s, p, o); rank
            `cp.given(subject=..., object=...)` for P(p | s, o) instead.
        dedup: reduces the score of a triplet repeated on nearly the same boxes.
        vocabulary: the names of the CP tensor's classes, for the result; a prior with other names is refused.

    On the CPU the search is compiled at its first use on a machine, which takes some seconds.

    >>> cp = CPTensor(torch.zeros(2, 1, 3), torch.tensor([[[0.0, 5.0]], [[0.0, 1.0]]]), torch.zeros(2, 1, 3))
    >>> [(r.pair, r.subject, r.predicate, r.object) for r in rank_relations(cp, k=1, top=2)]
    [(0, 0, 1, 0), (1, 0, 1, 0)]
    """
    _check_types(cp, prior, dedup)
    exponents = {"prior": prior_exponent, "selected": selected_exponent, "boxes": boxes_exponent}
    for name, number in exponents.items():
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise PolyadicError(f"rank_relations: {name}_exponent must be a finite number, got {number!r}")
    if k_unit not in ("triplet", "predicate") or (k_unit == "predicate" and labels is None):
        raise PolyadicError(
            f"rank_relations: k_unit is 'triplet', or 'predicate' together with labels [B, 2]; "
            f"got k_unit={k_unit!r} {'with' if labels is not None else 'without'} labels"
        )
    _check_names(cp, prior, vocabulary)
    B, sizes = len(cp.subject), cp.sizes
    triplets_per_pair = math.prod(sizes)
    caps, top = _caps(k, B, triplets_per_pair if labels is None else sizes[1]), _positive(top, "top")

    with torch.no_grad():
        pairs = _weigh(log_selected, log_boxes, (selected_exponent, boxes_exponent), B)
        home = cp.device
        if home.type == "mps":  # which has no float64
            cp = cp.to(_CPU)
        prepared = _prepare(prior, prior_exponent, sizes, cp.device)
        if labels is not None:
            search = _label_search(_problem(cp, pairs, prepared), _checked_labels(labels, cp))
        else:
            search = _triplet_search(cp, pairs, prepared)
        if dedup is None:
            score, flat = search(caps, top)
            repeat = np.zeros(len(score))
        else:
            score, flat, repeat = deduplicate(search, dedup, triplets_per_pair, caps, top)
        ranking = _ranking(cp, (score, flat, repeat), pairs, prepared, vocabulary)
    if home.type == "cpu":
        return ranking
    return ranking.map(lambda x: (x.float() if home.type == "mps" and x.is_floating_point() else x).to(home))


def _ranking(
    cp: CPTensor,
    entries: tuple[Floats, Ints, Floats],
    pairs: _PairWeights,
    prepared: _Prepared,
    vocabulary: Vocabulary | None,
) -> Ranking:
    """Look up the terms of the log-scores, flat indices and penalties that were found."""
    score, flat, repeat = entries
    pair, triplet, log_cp, log_prior, log_selected, log_boxes, least = _kernel().describe(
        flat, score, repeat, pairs.selected, pairs.boxes, cp.sizes, *prepared.host
    )
    tensor = torch.from_numpy
    ranking = Ranking(
        tensor(pair),
        tensor(triplet),
        tensor(score),
        tensor(log_cp),
        tensor(log_prior),
        tensor(log_selected),
        tensor(log_boxes),
        tensor(repeat),
        vocabulary,
    )
    if least >= -1e6:
        return ranking
    exact = _log_cp(cp, ranking.pair.to(cp.device), ranking.triplet.to(cp.device))
    return replace(ranking, log_cp=exact.cpu())  # the difference has lost the digits of ψ_c


def _log_cp(cp: CPTensor, pair: Tensor, triplet: Tensor) -> Tensor:
    """Compute log ψ_c [N] of ranked entries, in float64, with Z of their pairs alone."""
    pairs, place = pair.unique(return_inverse=True)
    log_z = cp[pairs].to(torch.float64).log_z()[place]
    parts = zip(cp.factors, triplet.unbind(-1), strict=True)
    joint = torch.stack([x[pair, :, label].double() for x, label in parts]).sum(0)  # [N, R]
    return joint.logsumexp(-1) - log_z


def _check_types(cp: CPTensor, prior: SparsePrior | None, dedup: Dedup | None) -> None:
    known = isinstance(prior, TripletPrior | None | SparsePrior)  # in this order: a protocol is slow to check
    if not isinstance(cp, CPTensor) or not known or not isinstance(dedup, Dedup | None):
        raise PolyadicError(
            f"rank_relations: expected a CPTensor, a TripletPrior or None, and a Dedup or None, "
            f"got {type(cp).__name__}, {type(prior).__name__} and {type(dedup).__name__}"
        )
    if len(cp.batch_shape) != 1:
        raise PolyadicError(
            f"rank_relations: expected the pairs of one image, factors [B, R, classes], "
            f"got batch shape {list(cp.batch_shape)}"
        )
    B = cp.batch_shape[0]
    if B * math.prod(cp.sizes) >= 2**62:
        raise PolyadicError(f"rank_relations: {B} pairs of sizes {cp.sizes} overflow a 64-bit index; split the pairs")
    if prior is not None and tuple(prior.sizes) != cp.sizes:
        raise PolyadicError(
            f"rank_relations: the prior counts triplets of sizes {tuple(prior.sizes)}, the CP tensor has {cp.sizes}; "
            "use the prior of the same vocabulary"
        )
    if dedup is not None and len(dedup.boxes) != B:
        raise PolyadicError(f"rank_relations: dedup has the boxes of {len(dedup.boxes)} pairs, the CP tensor {B} pairs")


def _check_names(cp: CPTensor, prior: SparsePrior | None, vocabulary: Vocabulary | None) -> None:
    if vocabulary is None:
        return
    if vocabulary.sizes != cp.sizes:
        raise PolyadicError(f"rank_relations: the vocabulary has sizes {vocabulary.sizes}, the CP tensor {cp.sizes}")
    counted: Vocabulary | None = getattr(prior, "vocabulary", None)
    difference = counted.difference(vocabulary) if counted else None
    if difference:
        raise PolyadicError(
            f"rank_relations: the prior belongs to another vocabulary ({difference}); "
            "count the triplets again with this one"
        )


def _check_weights(weights: Weights, triplets_per_pair: int) -> None:
    keys, logs = weights.keys, weights.log_seen
    inside = not len(keys) or (int(keys[0]) >= 0 and int(keys[-1]) < triplets_per_pair)
    if keys.shape != logs.shape or not inside or bool((keys.diff() <= 0).any()):
        raise PolyadicError("rank_relations: the prior's keys must rise strictly within its sizes, one log_seen each")
    if not weights.log_rest < math.inf or not bool((logs < math.inf).all()):  # NaN is not below
        raise PolyadicError(
            "rank_relations: the prior's weights must not be NaN or infinite; "
            "a negative prior_exponent needs a prior with smoothing above 0"
        )


def _positive(number: SupportsIndex, name: str) -> int:
    whole = operator.index(number) if hasattr(number, "__index__") and not isinstance(number, bool) else 0
    if whole < 1:
        unlimited = " or None for no limit" if name == "k" else ""
        raise PolyadicError(f"rank_relations: {name} must be a whole number from 1 up{unlimited}, got {number!r}")
    return whole


def _caps(k: SupportsIndex | Tensor | None, pairs: int, most: int) -> Ints:
    """Check k and expand it to [B], at most `most`."""
    if not isinstance(k, Tensor) or k.ndim == 0:
        return np.full(pairs, most if k is None else min(_positive(k, "k"), most), np.int64)
    if k.shape != (pairs,) or k.dtype not in (torch.int64, torch.int32) or bool((k < 1).any()):
        raise PolyadicError(
            f"rank_relations: k of each pair must be whole numbers from 1 up [{pairs}], got {k.dtype} {list(k.shape)}"
            + (f" from {int(k.min())} up" if k.numel() else "")
        )
    return k.cpu().long().clamp_max(most).numpy()


class _PairWeights(NamedTuple):
    """The weights of an image's pairs, [B]."""

    selected: Floats  # b log P(X_sel)
    boxes: Floats  # c log P(B_s, B_o | I)
    log_weight: Floats  # their sum
    weight: Floats  # its exponential, scaled to a largest one of 1
    log_scale: float


def _weigh(
    log_selected: Tensor | None, log_boxes: Tensor | None, exponents: tuple[float, float], pairs: int
) -> _PairWeights:
    """Multiply log-probabilities by their exponents and add them; 0 without any."""
    given = {"log_selected": log_selected, "log_boxes": log_boxes}
    arrays = []
    for name, log in given.items():
        if log is not None and require_tensor(log, f"rank_relations: {name}").shape != (pairs,):
            raise PolyadicError(f"rank_relations: {name} must be one number per pair [{pairs}], got {list(log.shape)}")
        arrays.append(np.zeros(pairs) if log is None else _array(log.to(_CPU, torch.float64)))
    *weights, bad = _kernel().weigh(*arrays, *map(float, exponents))
    if bad >= 0:
        at = bad // pairs
        raise PolyadicError(
            f"rank_relations: {list(given)[at]} must be the logarithm of a probability, at most 0, with a finite "
            f"product with its exponent; pair {bad % pairs} has {arrays[at][bad % pairs]}"
        )
    return _PairWeights(*weights)


def _array(x: Tensor) -> NDArray[np.floating]:
    """Return the numbers of a tensor on the CPU, in order."""
    return (x.detach() if x.requires_grad else x).contiguous().numpy()


_CPU = torch.device("cpu")


@cache
def _kernel() -> ModuleType:
    """Import the compiled search where it is used first: numba takes a while."""
    from polyadic.ranking import kernel

    return kernel


def _checked_labels(labels: Tensor, cp: CPTensor) -> Tensor:
    B, (S, _, O) = cp.batch_shape[0], cp.sizes
    if require_tensor(labels, "rank_relations: labels").shape != (B, 2) or labels.is_floating_point():
        raise PolyadicError(
            f"rank_relations: labels must be integers [{B}, 2], got {labels.dtype} {list(labels.shape)}"
        )
    bad = ((labels < 0) | (labels >= torch.tensor([S, O], device=labels.device))).any(-1)
    if bool(bad.any()):
        raise PolyadicError(
            f"rank_relations: labels must lie below (S, O) = {(S, O)} and not be negative, "
            f"got {labels[bad][0].tolist()} for pair {int(bad.nonzero()[0, 0])}"
        )
    return labels.to(cp.device).long()


class _Prepared(NamedTuple):
    """ψ_u^a as the searches need it, and the tensors that it was computed from."""

    weights: Weights
    host: tuple[NDArray[np.int64], NDArray[np.float64], float]  # the same on the CPU
    seen: SeenIndex | None  # for the CPU
    log_best: float
    source: tuple[Tensor, Tensor] | None


# By prior, then by exponent and device.
_PREPARED: WeakKeyDictionary[SparsePrior, dict[tuple[float, torch.device], _Prepared]] = WeakKeyDictionary()
_KEPT = 8  # per prior


def _prepare(
    prior: SparsePrior | None, exponent: float, sizes: tuple[int, int, int], device: torch.device
) -> _Prepared:
    """Compute ψ_u^exponent once per prior; again if the prior has other tensors by now."""
    if prior is None or exponent == 0:
        return _prepare_constant(sizes, device)
    try:
        kept = _PREPARED.setdefault(prior, {})
    except TypeError:  # a user's prior that has no weak references
        kept = {}
    ready = kept.get((exponent, device))
    if (
        ready is None
        or ready.source is None
        or ready.source[0] is not prior.keys
        or ready.source[1] is not prior.log_seen
    ):
        if len(kept) >= _KEPT:
            kept.clear()
        with torch.inference_mode(False):  # for later calls, perhaps outside
            ready = kept[exponent, device] = _prepared(prior, exponent, sizes, device)
    return ready


@cache
def _prepare_constant(sizes: tuple[int, int, int], device: torch.device) -> _Prepared:
    with torch.inference_mode(False):
        return _prepared(None, 0.0, sizes, device)


def _prepared(
    prior: SparsePrior | None, exponent: float, sizes: tuple[int, int, int], device: torch.device
) -> _Prepared:
    weights = weights_of(prior, exponent, device)
    _check_weights(weights, math.prod(sizes))
    host = weights.keys.cpu().numpy(), weights.log_seen.cpu().numpy(), weights.log_rest
    seen = None
    if device.type == "cpu":
        from polyadic.ranking.kernel import index_seen

        seen = index_seen(*host, sizes)
    return _Prepared(weights, host, seen, weights.log_best, None if prior is None else (prior.keys, prior.log_seen))


def _problem(cp: CPTensor, pairs: _PairWeights, prepared: _Prepared) -> RankingProblem:
    return RankingProblem(cp, torch.from_numpy(pairs.log_weight).to(cp.device), prepared.weights)


def _triplet_search(cp: CPTensor, pairs: _PairWeights, prepared: _Prepared) -> Search:
    """Search all triplets: linear and fast, or in logs where float64 would underflow."""
    linear = _compiled(cp, pairs, prepared) if prepared.seen else _torch(_problem(cp, pairs, prepared))

    def search(k: Ints, top: int) -> tuple[Floats, Ints]:
        most = min(top, int(k.sum()))
        if most == 0:
            return np.empty(0), np.empty(0, np.int64)
        value, flat, log_scale = linear(k, most)
        if len(value) == most and value[-1] >= SAFE:
            return np.log(value) + log_scale, flat
        safe = value >= SAFE  # too few, or too small to be trusted
        return _search_logs(_problem(cp, pairs, prepared), (np.log(value[safe]) + log_scale, flat[safe]), k, most)

    return search


# A search in float64: k [B] and top to values, flat indices and the log of the values' unit.
_Linear = Callable[[Ints, int], tuple[Floats, Ints, float]]


def _compiled(cp: CPTensor, pairs: _PairWeights, prepared: _Prepared) -> _Linear:
    factors, log_scale = [_array(x) for x in cp.factors], pairs.log_scale + prepared.log_best
    return lambda k, top: (*_kernel().search(*factors, pairs.weight, prepared.seen, k, top), log_scale)


def _torch(problem: RankingProblem) -> _Linear:
    terms = problem.terms(logs=False)

    def linear(k: Ints, top: int) -> tuple[Floats, Ints, float]:
        value, flat = tensors.search(terms, torch.from_numpy(k.clip(max=top)).to(terms.a.device), top)
        return value.cpu().numpy(), flat.cpu().numpy(), terms.log_scale

    return linear


def _search_logs(problem: RankingProblem, entries: tuple[Floats, Ints], k: Ints, most: int) -> tuple[Floats, Ints]:
    """Search the pairs that lack entries again in logs."""
    (score, flat), triplets_per_pair = entries, math.prod(problem.cp.sizes)
    k = k.clip(max=most)
    counts = np.bincount(flat // triplets_per_pair, minlength=len(k))
    short = (counts < k) & (problem.log_pair > -math.inf).cpu().numpy()
    place = short.nonzero()[0]
    part = torch.from_numpy(place).to(problem.log_pair.device)
    again = RankingProblem(problem.cp[part], problem.log_pair[part], problem.weights).terms(logs=True)
    value, more = tensors.search(again, torch.from_numpy(k[place]).to(part.device), most)
    more = part[more // triplets_per_pair] * triplets_per_pair + more % triplets_per_pair
    enough = ~short[flat // triplets_per_pair]
    scores = np.concatenate([score[enough], again.log_score(value).cpu().numpy()])
    return _sorted(scores, np.concatenate([flat[enough], more.cpu().numpy()]), most)


def _sorted(score: Floats, flat: Ints, top: int) -> tuple[Floats, Ints]:
    """Sort by falling score, then by index; keep the first `top`."""
    order = np.lexsort((flat, -score))[:top]
    return score[order], flat[order]


def _label_search(problem: RankingProblem, labels: Tensor) -> Search:
    """Search predicates of fixed labels: B x P scores, few enough to sort."""
    cp, (S, P, O) = problem.cp.to(dtype=torch.float64), problem.cp.sizes
    pair, (subject, object) = torch.arange(len(labels), device=labels.device), labels.unbind(-1)
    ends = cp.subject[pair, :, subject] + cp.object[pair, :, object]  # [B, R]
    log_cp = (ends[..., None] + cp.predicate).logsumexp(1) - cp.log_z()[:, None]  # [B, P]
    key = (subject[:, None] * P + torch.arange(P, device=labels.device)) * O + object[:, None]
    score = log_cp + problem.weights.at(key) + problem.log_pair[:, None]
    flat = key + pair[:, None] * (S * P * O)

    best, place = score.sort(dim=-1, descending=True, stable=True)
    scores, index = best.cpu().numpy(), flat.gather(-1, place).cpu().numpy()

    def search(k: Ints, top: int) -> tuple[Floats, Ints]:
        inside = (np.arange(P) < k[:, None]) & (scores > -math.inf)
        return _sorted(scores[inside], index[inside], top)

    return search
