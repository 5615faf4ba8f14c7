"""Asking the distribution: P(the rest | some names, a pair of boxes), from the CP form.

    f(s, p, o, pair) = P(given | pair) · P(rest | given, pair) · ψ_u · P(X_sel) · P(B_s, B_o | I)

A CP tensor with some labels known is a CP tensor again, so the best answers are found by the same exact search, and
the sum that normalises them needs the seen triplets alone: ψ_u is one constant for all others.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyadic.cp import VARIABLES, CPTensor
from polyadic.ranking.origin import Block, Origin, merge
from polyadic.ranking.problem import Weights, weights_of
from polyadic.ranking.relations import Box, Relation, Relations
from polyadic.vocabulary import PolyadicError

TOP = 10  # answers, where the pair is not fixed
_CHUNK = 1 << 22  # numbers [pairs, seen triplets] held at once


class Answer(NamedTuple):
    """One completion of what was asked."""

    names: tuple[str, str, str]
    boxes: tuple[Box, Box]  # of subject and object
    probability: float  # P(the rest | given, this pair)
    score: float  # f_spo


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """Completions, best first; `probability` is that of what was not given, for the answer's own pair of boxes."""

    given: dict[str, str]
    relations: Relations
    probability: Float[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.relations)

    def __getitem__(self, at: int) -> Answer:
        return self._answer(self.relations[at], float(self.probability[at]))

    def __iter__(self) -> Iterator[Answer]:
        for relation, probability in zip(self.relations, self.probability.tolist(), strict=True):
            yield self._answer(relation, probability)

    def _answer(self, relation: Relation, probability: float) -> Answer:
        assert relation.names is not None, "an origin comes with names"
        assert relation.boxes is not None, "an origin comes with boxes"
        return Answer(relation.names, relation.boxes, probability, math.exp(relation.log_score))

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={word!r}" for name, word in self.given.items())
        first = [f"{' '.join(each.names)} {each.probability:.3f}" for each in list(self)[:3]]
        return f"Answers({known}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def to_dict(self) -> dict[str, Any]:
        """As `Relations.to_dict`, with what was given, and a probability beside each relation."""
        from polyadic.ranking.showing import to_dict

        return {**to_dict(self.relations, self.probability), "given": self.given}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)


def answer(origin: Origin, given: dict[str, str], pair: tuple[int, int] | None, top: int | None) -> Answers:
    """See `Relations.query`."""
    labels = _labels(origin, given)
    fixed = None if pair is None else _number_of(origin, pair)
    weights = weights_of(origin.prior, origin.prior_exponent, torch.device("cpu"))
    if fixed is None and {"subject", "object"} <= set(labels) and len(origin.pairs):
        fixed = _likeliest(origin, labels, weights)
    rest = math.prod(n for name, n in zip(VARIABLES, origin.vocabulary.sizes, strict=True) if name not in labels)
    most = top if top is not None else rest if rest <= max(origin.vocabulary.sizes) and fixed is not None else TOP
    found, sums = [], []
    for block in _chosen(origin, fixed):
        relations, log_sum = _best(origin, block, labels, most, weights)
        found.append(relations)
        sums.append(log_sum)
    held = torch.cat([torch.zeros(0, dtype=torch.float64), *sums])
    places = torch.cat([torch.zeros(0, dtype=torch.long), *(each.pair for each in found)])
    log_sum_of = dict(zip(places.tolist(), held.tolist(), strict=True))
    best = replace(merge(found, most, origin.vocabulary), origin=origin)
    norm = torch.tensor([log_sum_of[at] for at in best.pair.tolist()], dtype=torch.float64)
    return Answers(given, best, (best.log_cp + best.log_prior - norm).exp())


def triplet_probability(found: Relations) -> Float[Tensor, " N"]:
    """P(triplet | its pair of boxes), ψ_c ψ_u over its sum: what the network and the prior say, detector aside."""
    origin = found.known_origin()
    weights = weights_of(origin.prior, origin.prior_exponent, torch.device("cpu"))
    if not len(found):
        return torch.zeros(0, dtype=torch.float64)
    wanted, place = found.pair.cpu().unique(return_inverse=True)
    sums = _log_sum(origin.some(wanted).to("cpu").to(torch.float64), {}, weights)
    return (found.log_cp.cpu() + found.log_prior.cpu() - sums[place]).exp()


def _best(
    origin: Origin, block: Block, labels: dict[str, int], top: int, weights: Weights
) -> tuple[Relations, Float[Tensor, " N"]]:
    """The block's best completions, and for each the log of Σ ψ_c ψ_u over all completions of its pair."""
    from polyadic.ranking import rank_relations

    cp = block.cp.to("cpu").to(torch.float64)
    known, evidence = _condition(cp, labels)
    selected, boxes = block.log_pair(origin)
    weight = evidence + selected + boxes
    shift = float(weight.max().clamp_min(0)) if len(weight) else 0.0
    best = rank_relations(
        known,
        origin.prior,
        log_boxes=weight - shift,
        top=top,
        prior_exponent=origin.prior_exponent,
        vocabulary=origin.vocabulary,
    )
    at = best.pair
    pairs, place = at.unique(return_inverse=True)
    log_sum = (_log_sum(known[pairs], labels, weights) + evidence[pairs])[place] if len(pairs) else weight[at]
    found = replace(
        best,
        pair=at + block.first,
        log_score=best.log_score + shift,
        log_cp=best.log_cp + evidence[at],
        log_selected=selected[at],
        log_boxes=boxes[at],
    )
    return found, log_sum


def _condition(cp: CPTensor, labels: dict[str, int]) -> tuple[CPTensor, Float[Tensor, " B"]]:
    """The CP tensor with these labels known, and log P(labels) per pair."""
    known = cp.given(**labels)
    return known, known.log_z() - cp.log_z()


def _log_sum(cp: CPTensor, labels: dict[str, int], weights: Weights) -> Float[Tensor, " B"]:
    """Log Σ ψ_c ψ_u over the triplets with these labels; `cp` is conditioned on them."""
    keys, kept = _seen(labels, weights, cp.sizes)
    B, (_, P, O) = cp.batch_shape[0], cp.sizes
    if not len(keys):
        return torch.full((B,), weights.log_rest, dtype=torch.float64)
    triplet = torch.stack([keys // (P * O), keys // O % P, keys % O], -1)
    found = []
    for part in torch.arange(B).split(max(1, _CHUNK // (len(keys) * cp.rank))):
        seen = cp[part].log_prob(triplet.expand(len(part), -1, -1))  # [b, M]
        other = (1 - seen.exp().sum(-1)).clamp_min(0).log() + weights.log_rest
        found.append(torch.logaddexp((seen + kept).logsumexp(-1), other))
    return torch.cat(found)


def _seen(labels: dict[str, int], weights: Weights, sizes: tuple[int, int, int]) -> tuple[Int[Tensor, " M"], Tensor]:
    """The seen triplets with these labels, and their log-weights."""
    _, P, O = sizes
    columns = {"subject": weights.keys // (P * O), "predicate": weights.keys // O % P, "object": weights.keys % O}
    fits = torch.ones(len(weights.keys), dtype=torch.bool)
    for name, label in labels.items():
        fits &= columns[name] == label
    return weights.keys[fits], weights.log_seen[fits]


def _likeliest(origin: Origin, labels: dict[str, int], weights: Weights) -> int:
    """The pair with the largest Σ f over all completions."""
    best, at = -math.inf, 0
    for block in origin.blocks():
        known, evidence = _condition(block.cp.to("cpu").to(torch.float64), labels)
        mass = _log_sum(known, labels, weights) + evidence + sum(block.log_pair(origin))
        if len(mass) and float(mass.max()) > best:
            best, at = float(mass.max()), block.first + int(mass.argmax())
    return at


def _chosen(origin: Origin, pair: int | None) -> Iterator[Block]:
    for block in origin.blocks():
        if pair is None:
            yield block
        elif block.first <= pair < block.first + block.cp.batch_shape[0]:
            row = slice(pair - block.first, pair - block.first + 1)
            selected = None if block.log_selected is None else block.log_selected[row]
            boxes = None if block.log_boxes is None else block.log_boxes[row]
            yield Block(pair, block.cp[row], selected, boxes)


def _labels(origin: Origin, given: dict[str, str]) -> dict[str, int]:
    if not 1 <= len(given) <= 2:
        raise PolyadicError(
            "query: give one or two of subject, predicate and object, by name; what is left is what you ask"
        )
    return {name: origin.vocabulary.index(name, word) for name, word in given.items()}


def _number_of(origin: Origin, pair: tuple[int, int]) -> int:
    n = len(origin.detections)
    numbers = [operator.index(at) if hasattr(at, "__index__") and not isinstance(at, bool) else -1 for at in pair]
    if len(numbers) != 2 or numbers[0] == numbers[1] or not all(0 <= at < n for at in numbers):
        raise PolyadicError(f"query: pair must be two different boxes of the {n}, counted from 0, got {pair}")
    return int((origin.pairs.cpu() == torch.tensor(numbers)).all(-1).nonzero()[0, 0])
