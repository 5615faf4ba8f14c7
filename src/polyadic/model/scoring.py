"""The scores of an image's ordered pairs: ranked by f_spo, or queried for some names (Formulation).

The factors of a crowded image's pairs are computed in blocks, the most likely pairs first, so that ranking can stop
early; an image with too many pairs to keep them computes its blocks again at each use.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.boxes import Closeness, context_features, union_boxes
from polyadic.cp import VARIABLES, CPTensor
from polyadic.model import kernel
from polyadic.model.evidence import Nearness
from polyadic.model.features import PairInputs, pool_boxes, union_rows
from polyadic.prior import TripletPrior
from polyadic.ranking import Ranking, flat_index, merge_rankings, rank_relations
from polyadic.ranking.dedup import Dedup, Floats, Ints, deduplicate
from polyadic.ranking.search import Weights, weights_of
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.model.relation_model import RelationModel

BLOCK = 1024  # pairs per pass through the heads: 32 boxes of one image, or several images with fewer
KEPT = 1 << 26  # numbers of an image's factors to keep; those of a larger image are computed at each use
SLACK = 1e-3  # of bounds: the same pair in another block may differ in the last digits
ANSWERS = 10  # of a query, where the pair is not fixed
_CPU = torch.device("cpu")


def check_count(call: str, name: str, number: Any, *, optional: bool = False) -> None:
    """Refuse what is not a whole number from 1; `optional`: None means any number."""
    if number is None and optional:
        return
    if isinstance(number, bool) or not hasattr(number, "__index__") or operator.index(number) < 1:
        raise PolyadicError(f"{call}: {name} must be a whole number from 1, got {number!r:.40}")


@dataclass(frozen=True)
class ScoreTerms:
    """Which terms of f_spo count, beside ψ_c: the rows of the paper's Table 4 are values of this."""

    selected: bool = True
    prior: bool = True
    geometry: bool = True  # ours: the box-conditioned prior λ
    labels: bool = False  # the true labels are given, and only predicates compete
    relabel: bool = True  # ours: False keeps a detector's labels, and only predicates compete
    dedup: bool = True  # ours: repeated triplets score less, where the config says so
    prior_exponent: float | None = None  # of ψ_u; None: the config's


ALL = ScoreTerms()


@dataclass(frozen=True, eq=False)
class ScoredBlock:
    """The network's output for some ordered pairs of one image."""

    pairs: Int[Tensor, "B 2"]
    cp: CPTensor  # ψ_c
    log_selected: Float[Tensor, " B"] | None  # log P(X_sel)
    log_boxes: Float[Tensor, " B"] | None  # log P(B_s, B_o | I)
    geometry: CPTensor | None = None  # λ, not normalised

    def joint(self, terms: ScoreTerms = ALL) -> CPTensor:
        """Multiply ψ_c by the box-conditioned prior, normalised."""
        return self._product if terms.geometry else self.cp

    @cached_property
    def _product(self) -> CPTensor:
        return self.cp if self.geometry is None else self.cp.product(self.geometry)

    def log_pair(self, terms: ScoreTerms, exponent: float) -> Float[Tensor, " B"] | None:
        """Sum log P(X_sel) times its exponent and log Σ ψ_c λ, at most 0: the mass that `joint` normalises away."""
        log = None
        if terms.selected and exponent and self.log_selected is not None:
            log = self.log_selected.cpu().double() * exponent  # on the CPU: MPS has no float64
        if self.geometry is None or not terms.geometry:
            return log
        expected = (self._product.log_z() - self.cp.log_z()).clamp_max(0).cpu().double()
        return expected if log is None else expected + log

    def given(self, labels: Int[Tensor, "B 2"]) -> ScoredBlock:
        """Fix the labels of subject and object: ψ_c becomes P(predicate | labels)."""
        labels = labels.to(self.cp.device)
        return replace(self, cp=self.cp.given(subject=labels[:, 0], object=labels[:, 1])) if len(labels) else self

    def take(self, rows: slice | Int[Tensor, " M"]) -> ScoredBlock:
        """Select some of the pairs."""
        rows = rows if isinstance(rows, slice) else rows.to(self.pairs.device)
        return ScoredBlock(
            self.pairs[rows],
            self.cp[rows],
            None if self.log_selected is None else self.log_selected[rows],
            None if self.log_boxes is None else self.log_boxes[rows.cpu() if isinstance(rows, Tensor) else rows],
            None if self.geometry is None else self.geometry[rows],
        )


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """All ordered pairs of an image's boxes, ready to be ranked and queried under the config of their model."""

    model: RelationModel
    detections: Detections  # with the size of their frame
    inputs: PairInputs  # of all ordered pairs
    maps: list[Tensor] | None = None  # feature maps of the image [1, C, H, W], to pool union boxes from
    kept: tuple[ScoredBlock, ...] | None = None  # None: blocks are computed on demand
    _: KW_ONLY
    nearness: Nearness | None = None  # describes pairs on demand; None: `inputs` has their evidence
    closeness: Closeness | None = None  # likewise for scene context
    log_selected: Float[Tensor, " B"] | None = None  # log P(X_sel), falling: the order of the pairs
    first_blocks: list[ScoredBlock] = field(default_factory=list)  # computed so far, where they fit into memory

    def __len__(self) -> int:
        return len(self.inputs.pairs)

    @property
    def pairs(self) -> Int[Tensor, "B 2"]:
        """(subject box, object box) of each row."""
        return self.inputs.pairs.cpu()

    def blocks(self) -> Iterator[ScoredBlock]:
        """Score all pairs in order."""
        if self.kept is not None:
            yield from self.kept
            return
        for at, start in enumerate(range(0, len(self), BLOCK)):
            if at < len(self.first_blocks):
                yield self.first_blocks[at]
                continue
            block = self._compute(slice(start, start + BLOCK))
            if self.model.numbers_per_pair * len(self) <= KEPT:
                self.first_blocks.append(block)
            yield block

    def take(self, rows: Int[Tensor, " M"]) -> ScoredBlock:
        """Score a few pairs, by number, in rising order."""
        kept = self.first_blocks if self.kept is None else self.kept
        if self.kept is None and (not kept or int(rows.max()) >= len(kept) * BLOCK):
            blocks = [self._compute(part) for part in rows.split(BLOCK)]
        else:
            blocks, first = [], 0
            for block in kept:
                inside = rows[(rows >= first) & (rows < first + len(block.pairs))] - first
                if len(inside):
                    blocks.append(block.take(inside))
                first += len(block.pairs)
        return blocks[0] if len(blocks) == 1 else _join(blocks)

    def _compute(self, rows: slice | Int[Tensor, " M"]) -> ScoredBlock:
        with self.model.evaluation_mode():
            return self.model.score_block(self.inputs_of(rows), torch.from_numpy(self.detections.scores))

    @torch.no_grad()
    def inputs_of(self, rows: slice | Int[Tensor, " M"]) -> PairInputs:
        """Build the inputs of some pairs; the union box of a pair is pooled once for both directions."""
        whole, backbone = self.inputs, self.model.backbone
        rows = rows if isinstance(rows, slice) else rows.to(whole.pairs.device)
        chosen = whole.take(rows)
        if self.nearness is not None:
            chosen = replace(chosen, pair_evidence=self.nearness.evidence(chosen.pairs))
        if self.closeness is not None:
            context = context_features(whole.boxes, whole.frames, chosen.pairs, self.closeness)
            chosen = replace(chosen, context=context)
        if self.maps is None or backbone is None or whole.log_labels is not None:
            return chosen
        unique, place = union_rows(chosen.pairs, len(whole.boxes)).unique(return_inverse=True)
        first = torch.zeros_like(unique).scatter_(0, place, torch.arange(len(place), device=place.device))
        ends = whole.boxes[chosen.pairs[first]]  # [U, 2, 4]
        assert self.detections.size is not None, "known where boxes meet pixels"
        around = union_boxes(ends[:, 0], ends[:, 1])
        pooled = pool_boxes(backbone, self.maps, around, self.detections.size, self.model.precision)
        return replace(chosen, unions=pooled.float()[place])

    def rank(
        self, k: int | None = None, top: int = 100, *, terms: ScoreTerms = ALL, probability: bool = False
    ) -> Relations:
        """Rank the image's best triplets under the config's exponents, at most `k` per ordered pair (None: any number).

        Where labels are fixed, only predicates compete: by P(predicate | labels) if the labels are true
        (`terms.labels`), else by ψ_c, because a detector's labels may be wrong (`terms.relabel=False`).
        `probability` adds P(B_s, B_o | I) · P(X_sel) · P(triplet | its pair of boxes), that an annotator states this.
        """
        check_count("rank", "k", k, optional=True)
        check_count("rank", "top", top)
        config = self.model.config.ranking
        if config.repeat < 1 and terms.dedup and len(self):
            ranking = self._rank_deduplicated(k, top, terms)
        else:
            ranking = self._rank_blocks(k, top, terms)
        return self._relations(ranking, self._probability(ranking, terms) if probability else None)

    def query(
        self,
        subject: str | None = None,
        predicate: str | None = None,
        object: str | None = None,
        *,
        pair: tuple[int, int] | None = None,
        top: int | None = None,
        terms: ScoreTerms = ALL,
    ) -> Relations:
        """Query the distribution for the rest, given some names: exact, and without the dense tensor.

        `query(subject="person", object="horse")` is P(predicate | person, horse, pair), all of it, for the pair of
        boxes that is most likely a person and a horse, or for `pair` (subject box, object box).
        `query(predicate="ride")` are the pairs and labels most likely for it. All terms of f_spo count;
        `probability` is that of what was not given, for the answer's own pair of boxes.
        """
        words = {"subject": subject, "predicate": predicate, "object": object}
        given = {name: word for name, word in words.items() if word is not None}
        if not 1 <= len(given) <= 2:
            raise PolyadicError("query: give one or two of subject, predicate and object; the rest is the answer")
        check_count("query", "top", top, optional=True)
        vocabulary = self.model.vocabulary
        labels = {name: vocabulary.index(name, word) for name, word in given.items()}
        row = None if pair is None else self._row_of(pair)
        if row is None and {"subject", "object"} <= set(labels) and len(self):
            row = self._most_likely(labels, terms)
        rest = math.prod(n for name, n in zip(VARIABLES, vocabulary.sizes, strict=True) if name not in labels)
        if top is None:
            top = rest if rest <= max(vocabulary.sizes) and row is not None else ANSWERS
        rankings, log_sums, first = [], dict[int, float](), row or 0
        for block in self.blocks() if row is None else [self.take(torch.tensor([row]))]:
            ranking, log_sum = self._best_given(block, labels, top, terms)
            rankings.append(replace(ranking, pair=ranking.pair + first))
            log_sums.update(zip(rankings[-1].pair.tolist(), log_sum.tolist(), strict=True))
            first += len(block.pairs)
        best = merge_rankings(rankings, vocabulary.sizes, top)
        norm = torch.tensor([log_sums[at] for at in best.pair.tolist()], dtype=torch.float64)
        return replace(self._relations(best, (best.log_cp + best.log_prior - norm).exp()), given=given)

    def select(self, rows: Int[Tensor, " M"]) -> ScoredPairs:
        """Keep some pairs, by number, in rising order; all boxes stay."""
        kept: tuple[ScoredBlock, ...] | None = ()
        if len(rows):
            kept = None if self.kept is None else (self.take(rows),)
        return replace(
            self,
            inputs=self.inputs.take(rows.to(self.inputs.pairs.device)),
            kept=kept,
            log_selected=None if self.log_selected is None else self.log_selected[rows],
            first_blocks=[],
        )

    def label_probability(self) -> Float[np.ndarray, "N S"]:
        """Compute the class distribution of each box: the mean over its pairs in both roles, weighted by P(X_sel)²."""
        total = torch.zeros(len(self.detections), self.model.vocabulary.sizes[0], dtype=torch.float64)
        weights = torch.zeros(len(self.detections), dtype=torch.float64)
        for block in self.blocks():
            log_pair = block.log_pair(ALL, 1.0)
            weight = torch.ones(len(block.pairs)).double() if log_pair is None else (2 * log_pair).exp()
            weight = weight.clamp_min(1e-12)  # a box without any likely pair still has a name
            joint = block.joint()
            shares = joint.log_marginal("subject"), joint.log_marginal("object")  # [B, S] each
            for column, share in enumerate(log.cpu().double().exp() for log in shares):
                boxes = block.pairs[:, column].cpu()
                total.index_add_(0, boxes, share * weight[:, None])
                weights.index_add_(0, boxes, weight)
        return (total / weights.clamp_min(1e-300)[:, None]).numpy()

    def score_predicate(self, predicate: int, labels: Int[np.ndarray, " N"]) -> Relations:
        """Score one triplet per pair, this predicate between boxes of these labels; best first."""
        prior, exponent = self._prior(ALL)
        rankings, first = [], 0
        for block in self.blocks():
            ends = torch.from_numpy(labels)[block.pairs.cpu()]
            triplet = torch.stack([ends[:, 0], torch.full((len(ends),), predicate), ends[:, 1]], -1)
            log_cp = block.joint().to("cpu").to(torch.float64).log_prob(triplet)
            log_prior = torch.zeros_like(log_cp) if prior is None else exponent * prior.to("cpu").log_prob(triplet)
            selected, boxes = self._pair_terms(block, ALL)
            score, rows = log_cp + log_prior + selected + boxes, torch.arange(first, first + len(ends))
            none = torch.zeros_like(score)
            rankings.append(Ranking(rows, triplet, score, log_cp, log_prior, selected, boxes, none))
            first += len(ends)
        ranking = merge_rankings(rankings, self.model.vocabulary.sizes, len(self))
        ranking = ranking[ranking.log_score.argsort(descending=True, stable=True)]
        return self._relations(ranking, self._probability(ranking, ALL))

    def _prior(self, terms: ScoreTerms) -> tuple[TripletPrior | None, float]:
        """Return ψ_u and its exponent, as far as they are used."""
        config = self.model.config
        exponent = config.ranking.prior if terms.prior_exponent is None else terms.prior_exponent
        used = terms.prior and exponent != 0
        if config.head.labels and not terms.geometry and not used:
            raise PolyadicError(
                "this model's head predicts labels alone: without the box-conditioned prior (geometry) and the triplet "
                "prior, every predicate scores the same"
            )
        return self.model.prior if used else None, exponent

    def _fixed(self, block: ScoredBlock, first: int, terms: ScoreTerms) -> tuple[ScoredBlock, Tensor | None]:
        """Condition the block from pair `first` on on fixed labels; also return these labels [B, 2]."""
        if terms.relabel and not terms.labels:
            return block, None
        labels = torch.from_numpy(self.detections.labels)[self.pairs[first : first + len(block.pairs)]]
        return (block.given(labels) if terms.labels else block), labels

    def _bounds(self, terms: ScoreTerms, weights: Weights) -> Float[Tensor, " B"] | None:
        """Bound the log-score of each pair and of all behind it: ψ_c is at most 1. None where no order is known."""
        config = self.model.config.ranking
        if self.log_selected is None or not terms.selected or not config.selected:
            return None
        bound = self.log_selected * config.selected
        if config.boxes:
            logs = torch.from_numpy(self.detections.scores).clamp_min(1e-12).log()
            bound = bound + config.boxes * logs[self.pairs].sum(-1)
        if terms.relabel and not terms.labels:
            bound = bound + weights.log_best
        else:
            labels = torch.from_numpy(self.detections.labels)[self.pairs]
            bound = bound + _best_predicates(weights, self.model.vocabulary.sizes)[labels[:, 0], labels[:, 1]]
        return bound.flip(0).cummax(0).values.flip(0)

    def _rank_blocks(self, k: int | Int[Tensor, " B"] | None, top: int, terms: ScoreTerms) -> Ranking:
        config, sizes, (prior, exponent) = self.model.config.ranking, self.model.vocabulary.sizes, self._prior(terms)
        bounds = self._bounds(terms, weights_of(prior, exponent, _CPU))
        best, first = merge_rankings([], sizes, top), 0
        for scores in self.blocks():
            block, labels = self._fixed(scores, first, terms)
            ranking = rank_relations(
                block.joint(terms),
                prior,
                block.log_pair(terms, config.selected),
                block.log_boxes,
                k=k[first : first + len(block.pairs)] if isinstance(k, Tensor) else k,
                top=top,
                prior_exponent=exponent,
                boxes_exponent=config.boxes,
                labels=labels,
                vocabulary=self.model.vocabulary,
            )
            ranking = ranking if ranking.pair.is_cpu else ranking.map(Tensor.cpu)
            ranking = replace(ranking, pair=ranking.pair + first)
            best = merge_rankings([best, ranking], sizes, top) if first else ranking
            first += len(block.pairs)
            full = len(best) == top and first < len(self)
            if bounds is not None and full and float(bounds[first]) < float(best.log_score[-1]) - SLACK:
                break  # no other pair can reach the answer
        return best

    def _rank_deduplicated(self, k: int | None, top: int, terms: ScoreTerms) -> Ranking:
        config, sizes = self.model.config.ranking, self.model.vocabulary.sizes
        cells = math.prod(sizes)
        pool: list[Ranking] = []

        def search(caps: Ints, deep: int) -> tuple[Floats, Ints]:
            pool[:] = [self._rank_blocks(torch.from_numpy(caps), max(deep, 1), terms)]
            return pool[0].log_score.cpu().double().numpy(), flat_index(pool[0], sizes).cpu().numpy()

        dedup = Dedup(torch.from_numpy(self.detections.boxes)[self.pairs], config.repeat_iou, config.repeat)
        score, flat, penalty = deduplicate(search, dedup, cells, np.full(len(self), min(k or cells, cells)), top)
        place = {key: at for at, key in enumerate(flat_index(pool[0], sizes).tolist())}
        chosen = pool[0][torch.tensor([place[key] for key in flat.tolist()], dtype=torch.long)]
        log_score, log_repeat = (torch.from_numpy(x).to(chosen.log_score) for x in (score, penalty))
        return replace(chosen, log_score=log_score, log_repeat=log_repeat)

    def _relations(self, ranking: Ranking, probability: Tensor | None) -> Relations:
        boxes = self.detections
        relations = ranking.relations(boxes.boxes, self.pairs, image=boxes.image, size=boxes.size)
        return replace(
            relations,
            labels=boxes.labels,
            confidences=boxes.scores,
            source=boxes.source,
            probability=None if probability is None else probability.numpy(),
            vocabulary=self.model.vocabulary,
        )

    def _probability(self, ranking: Ranking, terms: ScoreTerms) -> Float[Tensor, " N"]:
        """Compute P(B_s, B_o | I) · P(X_sel) · P(triplet | its pair), the last as ψ_c ψ_u over its sum."""
        if not len(ranking):
            return torch.zeros(0, dtype=torch.float64)
        weights = weights_of(*self._prior(terms), _CPU)
        rows, place = ranking.pair.unique(return_inverse=True)
        sums = _log_sum(self.take(rows).joint(terms).to("cpu").to(torch.float64), {}, weights)
        return (ranking.log_cp + ranking.log_prior - sums[place] + ranking.log_selected + ranking.log_boxes).exp()

    def _pair_terms(self, block: ScoredBlock, terms: ScoreTerms) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Compute weighted log P(X_sel) and log P(B_s, B_o | I), in float64 on the CPU; 0 where there is none."""
        config, none = self.model.config.ranking, torch.zeros(len(block.pairs), dtype=torch.float64)
        selected = block.log_pair(terms, config.selected)
        boxes = none if block.log_boxes is None else block.log_boxes.cpu().double() * config.boxes
        return none if selected is None else selected, boxes

    def _best_given(
        self, block: ScoredBlock, labels: dict[str, int], top: int, terms: ScoreTerms
    ) -> tuple[Ranking, Float[Tensor, " N"]]:
        """Find the block's best completions, and for each the log of Σ ψ_c ψ_u over all completions of its pair."""
        prior, exponent = self._prior(terms)
        known, evidence = _condition(block.joint(terms).to("cpu").to(torch.float64), labels)
        selected, boxes = self._pair_terms(block, terms)
        weight = evidence + selected + boxes
        shift = float(weight.max().clamp_min(0)) if len(weight) else 0.0
        best = rank_relations(
            known,
            prior,
            log_boxes=weight - shift,
            top=top,
            prior_exponent=exponent,
            vocabulary=self.model.vocabulary,
        )
        at = best.pair
        pairs, place = at.unique(return_inverse=True)
        log_sum = torch.zeros(0, dtype=torch.float64)
        if len(pairs):
            sums = _log_sum(known[pairs], labels, weights_of(prior, exponent, _CPU))
            log_sum = (sums + evidence[pairs])[place]
        ranking = replace(
            best,
            log_score=best.log_score + shift,
            log_cp=best.log_cp + evidence[at],
            log_selected=selected[at],
            log_boxes=boxes[at],
        )
        return ranking, log_sum

    def _most_likely(self, labels: dict[str, int], terms: ScoreTerms) -> int:
        """Find the pair with the largest Σ f over all completions."""
        weights = weights_of(*self._prior(terms), _CPU)
        best, row, first = -math.inf, 0, 0
        for block in self.blocks():
            known, evidence = _condition(block.joint(terms).to("cpu").to(torch.float64), labels)
            selected, boxes = self._pair_terms(block, terms)
            mass = _log_sum(known, labels, weights) + evidence + selected + boxes
            if float(mass.max()) > best:
                best, row = float(mass.max()), first + int(mass.argmax())
            first += len(block.pairs)
        return row

    def _row_of(self, pair: tuple[int, int]) -> int:
        n = len(self.detections)
        numbers = [operator.index(at) if hasattr(at, "__index__") and not isinstance(at, bool) else -1 for at in pair]
        if len(numbers) != 2 or numbers[0] == numbers[1] or not all(0 <= at < n for at in numbers):
            raise PolyadicError(f"query: pair must be two different boxes of the {n}, counted from 0, got {pair}")
        return int((self.pairs == torch.tensor(numbers)).all(-1).nonzero()[0, 0])


def _best_predicates(weights: Weights, sizes: tuple[int, int, int]) -> Float[Tensor, "S O"]:
    """Compute the largest log ψ_u over the predicates of each subject and object."""
    S, P, O = sizes
    best = torch.full((S * O,), weights.log_rest, dtype=torch.float64)
    ends = weights.keys // (P * O) * O + weights.keys % O
    return best.scatter_reduce(0, ends, weights.log_seen, "amax").view(S, O)


def _join(blocks: list[ScoredBlock]) -> ScoredBlock:
    cps = [block.cp for block in blocks]
    geometry = [block.geometry for block in blocks if block.geometry is not None]
    selected = [block.log_selected for block in blocks if block.log_selected is not None]
    boxes = [block.log_boxes for block in blocks if block.log_boxes is not None]
    return ScoredBlock(
        torch.cat([block.pairs for block in blocks]),
        _join_factors(cps),
        torch.cat(selected) if selected else None,
        torch.cat(boxes) if boxes else None,
        _join_factors(geometry) if geometry else None,
    )


def _join_factors(cps: list[CPTensor]) -> CPTensor:
    return CPTensor(*(torch.cat(factors) for factors in zip(*(cp.factors for cp in cps), strict=True)))


def _condition(cp: CPTensor, labels: dict[str, int]) -> tuple[CPTensor, Float[Tensor, " B"]]:
    """Condition the CP tensor on these labels; also return log P(labels) per pair."""
    known = cp.given(**labels)
    return known, known.log_z() - cp.log_z()


def _log_sum(cp: CPTensor, labels: dict[str, int], weights: Weights) -> Float[Tensor, " B"]:
    """Compute log Σ ψ_c ψ_u over the triplets with these labels; `cp` is conditioned on them."""
    (B,), (_, P, O) = cp.batch_shape, cp.sizes
    columns = {"subject": weights.keys // (P * O), "predicate": weights.keys // O % P, "object": weights.keys % O}
    fits = torch.ones(len(weights.keys), dtype=torch.bool)
    for name, label in labels.items():
        fits &= columns[name] == label
    if not bool(fits.any()):
        return torch.full((B,), weights.log_rest, dtype=torch.float64)
    triplets = torch.stack([columns[name][fits] for name in VARIABLES], -1)  # [M, 3]
    mixture, peak = cp.mixture(), weights.log_best
    parts = [mixture.subject + mixture.log_weight[..., None], mixture.predicate, mixture.object]
    s, p, o = (part.exp().transpose(1, 2).contiguous().numpy() for part in parts)  # [B, ·, R]
    seen = (weights.log_seen[fits] - peak).exp().numpy()
    weighted, plain = map(torch.from_numpy, kernel.sum_seen(s, p, o, triplets.numpy(), seen))
    return (weighted + (1 - plain).clamp_min(0) * math.exp(weights.log_rest - peak)).log() + peak
