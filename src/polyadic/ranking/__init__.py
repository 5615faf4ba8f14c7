"""f_spo: the image's best triplets over all pairs, exactly and without the dense tensor.

Paper: Modeling missing annotations.

    P(B_s, B_o | I) · ψ_c(s, p, o | B_s, B_o, I) · ψ_u(s, p, o) · P(X_sel | B_s, B_o, I)

The factors are non-negative, so the peaks of one factor bound what the others can reach, and nearly all pairs,
subjects and (subject, predicate) cells are pruned unseen; ψ_u is sparse + constant, so seen triplets and the rest
are bounded separately. `kernel` searches on the CPU, `search` on a GPU and wherever float64 would underflow; both
return the list that sorting the dense tensor would. The checks run on NumPy views, and what depends on the prior alone
is kept with it: an image of few pairs takes a tenth of a millisecond.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from polyadic.boxes import ordered_pairs
from polyadic.cp import CPTensor, require_tensor
from polyadic.prior import SparsePrior, TripletPrior
from polyadic.ranking import search as tensors
from polyadic.ranking.dedup import Dedup, Search, deduplicate
from polyadic.ranking.search import SAFE, RankingProblem, Weights, weights_of
from polyadic.structures.relations import TERMS, Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from polyadic.ranking.kernel import SeenIndex


class RankedTriplet(NamedTuple):
    """One row of a `Ranking` in plain Python values."""

    pair: int
    subject: int
    predicate: int
    object: int
    log_score: float
    names: tuple[str, str, str] | None = None

    @property
    def triplet(self) -> tuple[int, int, int]:
        return self.subject, self.predicate, self.object


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The best triplets of one image's pairs, best first: log f_spo and its terms.

    The terms have their exponents applied, so that
    `log_score = log_cp + log_prior + log_selected + log_boxes + log_repeat`; a term that was not given is 0.
    """

    pair: Int[Tensor, " N"]  # which row of the CP tensor
    triplet: Int[Tensor, "N 3"]  # (subject, predicate, object)
    log_score: Float[Tensor, " N"]  # log f_spo
    log_cp: Float[Tensor, " N"]  # log ψ_c
    log_prior: Float[Tensor, " N"]  # a log ψ_u
    log_selected: Float[Tensor, " N"]  # b log P(X_sel)
    log_boxes: Float[Tensor, " N"]  # c log P(B_s, B_o | I)
    log_repeat: Float[Tensor, " N"]  # penalty for a triplet repeated on nearly the same boxes
    vocabulary: Vocabulary | None = None

    def _columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)[:-1]}

    def map(self, change: Callable[[Tensor], Tensor]) -> Ranking:
        """Apply one function to every column."""
        columns: dict[str, Any] = {name: change(column) for name, column in self._columns().items()}
        return replace(self, **columns)

    def __len__(self) -> int:
        return len(self.pair)

    def __repr__(self) -> str:
        first = [f"{' '.join(map(str, row.names or row.triplet))} {row.log_score:.3f}" for row in self[:3]]
        return f"Ranking({len(self)}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def names(self) -> list[tuple[str, str, str]]:
        """Return the triplets in words, best first."""
        if self.vocabulary is None:
            raise PolyadicError("Ranking: class names are unknown; rank with rank_relations(..., vocabulary=...)")
        return [self.vocabulary.decode(triplet) for triplet in self.triplet.tolist()]

    def relations(
        self,
        boxes: Any,
        pairs: Any = None,
        *,
        image: str = "image",
        size: tuple[float, float] | None = None,
    ) -> Relations:
        """Put the triplets on their boxes, to be evaluated, drawn and written.

        Args:
            boxes: [N, 4] xyxy.
            pairs: [B, 2], the (subject box, object box) of each row of the CP tensor; by default all ordered pairs of
                two boxes, `polyadic.boxes.ordered_pairs(N)`.
            image: The image's name, as in the ground truth.
            size: (width, height) of the frame of the boxes; None for the annotated one.
        """
        corners = np.asarray(boxes.cpu() if isinstance(boxes, Tensor) else boxes, np.float64).reshape(-1, 4)
        ends = ordered_pairs(len(corners)) if pairs is None else torch.as_tensor(pairs).cpu()
        rows = self.map(Tensor.cpu)
        if len(rows) and int(rows.pair.max()) >= len(ends):
            raise PolyadicError(
                f"Ranking: pair {int(rows.pair.max())} is ranked, but {len(corners)} boxes have {len(ends)} ordered "
                "pairs; give pairs=[B, 2], the boxes of each row of the CP tensor"
            )
        terms = {name: getattr(rows, name).double().numpy() for name in TERMS.values()}
        return Relations(
            image,
            corners,
            ends[rows.pair].numpy(),
            rows.triplet.numpy(),
            rows.log_score.double().numpy(),
            size=size,
            vocabulary=self.vocabulary,
            **terms,
        )

    @overload
    def __getitem__(self, index: int) -> RankedTriplet: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> Ranking: ...
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> RankedTriplet | Ranking:
        """Return one `RankedTriplet` by number, or the `Ranking` of a slice, an index tensor or a mask."""
        if isinstance(index, slice) or (isinstance(index, Tensor) and index.ndim > 0):
            return self.map(lambda column: column[index])
        at = operator.index(index)
        return self._row(int(self.pair[at]), self.triplet[at].tolist(), float(self.log_score[at]))

    def __iter__(self) -> Iterator[RankedTriplet]:
        for row in zip(self.pair.tolist(), self.triplet.tolist(), self.log_score.tolist(), strict=True):
            yield self._row(*row)

    def _row(self, pair: int, triplet: list[int], score: float) -> RankedTriplet:
        names = None if self.vocabulary is None else self.vocabulary.decode(triplet)
        subject, predicate, object = triplet
        return RankedTriplet(pair, subject, predicate, object, score, names)


def merge_rankings(parts: Sequence[Ranking], sizes: tuple[int, int, int], top: int) -> Ranking:
    """Merge several rankings of different pairs; equal scores by (pair, subject, predicate, object)."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        return Ranking(none, none.view(0, 3), zero, zero, zero, zero, zero, zero)
    columns: dict[str, Any] = {
        field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Ranking)[:-1]
    }
    joined = Ranking(**columns, vocabulary=parts[0].vocabulary)
    order = flat_index(joined, sizes).argsort()
    order = order[joined.log_score[order].argsort(descending=True, stable=True)]
    return joined[order[:top]]


def flat_index(ranking: Ranking, sizes: tuple[int, int, int]) -> Int[Tensor, " N"]:
    """Return the index of each entry in the flattened [B, S, P, O] tensor."""
    S, P, O = sizes
    s, p, o = ranking.triplet.unbind(-1)
    return ((ranking.pair * S + s) * P + p) * O + o


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
    caps, top = _caps(k, B, triplets_per_pair), _positive(top, "top")

    with torch.no_grad():
        home = cp.device
        work = torch.device("cpu") if home.type == "mps" else home  # MPS has no float64
        selected = _weighted(log_selected, "log_selected", selected_exponent, B)
        boxes = _weighted(log_boxes, "log_boxes", boxes_exponent, B)
        prepared = _prepare(prior, prior_exponent, sizes, work)
        log_pair = torch.from_numpy(selected + boxes).to(work)
        problem = RankingProblem(cp if work == home else cp.to(work), log_pair, prepared.weights)
        if labels is not None:
            search = _label_search(problem, _checked_labels(labels, cp, work))
            caps = caps.clamp_max(sizes[1])
        else:
            search = _triplet_search(problem, prepared)
        if dedup is None:
            score, flat = search(caps, top)
            repeat = torch.zeros_like(score)
        else:
            score, flat, repeat = deduplicate(search, dedup, triplets_per_pair, caps, top)
        entries = score, flat, repeat
        ranking = _ranking(problem.cp, entries, prepared, selected=selected, boxes=boxes, device=home)
        return replace(ranking, vocabulary=vocabulary)


def _ranking(
    cp: CPTensor,
    entries: tuple[Tensor, Tensor, Tensor],
    prepared: _Prepared,
    *,
    selected: NDArray[np.float64],
    boxes: NDArray[np.float64],
    device: torch.device,
) -> Ranking:
    """Look up the terms of the log-scores, flat indices and penalties that were found."""
    from polyadic.ranking import kernel

    score, flat, repeat = (x.cpu() for x in entries)
    arrays = (x.numpy() for x in (flat, score, repeat))
    *columns, least = kernel.describe(*arrays, selected, boxes, cp.sizes, *prepared.host)
    pair, triplet, terms = (torch.from_numpy(x) for x in columns)
    log_cp, log_prior, log_selected, log_boxes = terms
    if least < -1e6:  # the difference would lose the digits of ψ_c
        log_cp = _log_cp(cp, pair.to(cp.device), triplet.to(cp.device)).cpu()
    ranking = Ranking(pair, triplet, score, log_cp, log_prior, log_selected, log_boxes, repeat)
    if device.type == "cpu":
        return ranking
    return ranking.map(lambda x: (x.float() if device.type == "mps" and x.is_floating_point() else x).to(device))


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


def _caps(k: SupportsIndex | Tensor | None, pairs: int, most: int) -> Tensor:
    """Check k and expand it to [B] on the CPU, at most `most`."""
    if not isinstance(k, Tensor) or k.ndim == 0:
        return torch.full((pairs,), most if k is None else min(_positive(k, "k"), most))
    if k.shape != (pairs,) or k.dtype not in (torch.int64, torch.int32) or bool((k < 1).any()):
        raise PolyadicError(
            f"rank_relations: k of each pair must be whole numbers from 1 up [{pairs}], got {k.dtype} {list(k.shape)}"
            + (f" from {int(k.min())} up" if k.numel() else "")
        )
    return k.cpu().long().clamp_max(most)


def _weighted(log_probability: Tensor | None, name: str, exponent: float, pairs: int) -> NDArray[np.float64]:
    """Multiply log-probabilities by their exponent, [B]; 0 without any."""
    if log_probability is None:
        return np.zeros(pairs)
    if require_tensor(log_probability, f"rank_relations: {name}").shape != (pairs,):
        raise PolyadicError(
            f"rank_relations: {name} must be one number per pair [{pairs}], got {list(log_probability.shape)}"
        )
    log = log_probability.detach().cpu().double().numpy()
    weighted = log * exponent if exponent else np.zeros(pairs)  # 0 · -inf is 0: the term is left out
    good = log <= 1e-6  # NaN is not below
    if exponent < 0:
        good &= weighted < math.inf
    if not good.all():
        bad = int(good.argmin())
        raise PolyadicError(
            f"rank_relations: {name} must be the logarithm of a probability, at most 0, with a finite product with its "
            f"exponent; pair {bad} has {log[bad]}"
        )
    return weighted


def _checked_labels(labels: Tensor, cp: CPTensor, device: torch.device) -> Tensor:
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
    return labels.to(device).long()


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


def _triplet_search(problem: RankingProblem, prepared: _Prepared) -> Search:
    """Search all triplets: linear and fast, or in logs where float64 would underflow."""
    B, triplets_per_pair, device = len(problem.log_pair), math.prod(problem.cp.sizes), problem.log_pair.device
    linear = _compiled(problem, prepared) if prepared.seen else _torch(problem)

    def search(k: Tensor, top: int) -> tuple[Tensor, Tensor]:
        most = min(top, int(k.sum()))
        if most == 0:
            return torch.empty(0).to(problem.log_pair), torch.empty(0, dtype=torch.long, device=device)
        k = k.to(device).clamp_max(most)
        value, flat, log_scale = linear(k, most)
        if len(value) == most and float(value[-1]) >= SAFE:
            return value.log() + log_scale, flat
        # Too few, or too small to be trusted: search the pairs that lack entries again in logs.
        value, flat = value[value >= SAFE], flat[value >= SAFE]
        score, counts = value.log() + log_scale, torch.bincount(flat // triplets_per_pair, minlength=B)
        short = (counts < k) & (problem.log_pair > -math.inf)
        part = short.nonzero()[:, 0]
        again = RankingProblem(problem.cp[part], problem.log_pair[part], problem.weights).terms(logs=True)
        more, place = tensors.search(again, k[part], most)
        place = part[place // triplets_per_pair] * triplets_per_pair + place % triplets_per_pair
        enough = ~short[flat // triplets_per_pair]
        return _sorted(torch.cat([score[enough], again.log_score(more)]), torch.cat([flat[enough], place]), most)

    return search


# A search in float64: k [B] and top to values, flat indices and the log of the values' unit.
_Linear = Callable[[Tensor, int], tuple[Tensor, Tensor, float]]


def _torch(problem: RankingProblem) -> _Linear:
    terms = problem.terms(logs=False)
    return lambda k, top: (*tensors.search(terms, k, top), terms.log_scale)


def _compiled(problem: RankingProblem, prepared: _Prepared) -> _Linear:
    from polyadic.ranking import kernel

    factors = [x.detach().contiguous().numpy() for x in problem.cp.factors]
    log_pair = problem.log_pair.numpy()
    scale = float(log_pair.max(initial=-math.inf))
    scale = scale if scale > -math.inf else 0.0
    pair_weight = np.exp(log_pair - scale)

    def linear(k: Tensor, top: int) -> tuple[Tensor, Tensor, float]:
        value, flat = kernel.search(*factors, pair_weight, prepared.seen, k.numpy(), top)
        return torch.from_numpy(value), torch.from_numpy(flat), scale + prepared.log_best

    return linear


def _sorted(score: Tensor, flat: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Sort by falling score, then by index; keep the first `top`."""
    flat, order = flat.sort()
    score, order = score[order].sort(descending=True, stable=True)
    return score[:top], flat[order[:top]]


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
    index = flat.gather(-1, place)

    def search(k: Tensor, top: int) -> tuple[Tensor, Tensor]:
        inside = torch.arange(P, device=key.device) < k.to(key.device)[:, None]
        inside &= best > -math.inf
        return _sorted(best[inside], index[inside], top)

    return search
