"""Answers for a person who looks at one photo: probable relations, informative ones first, each stated once (ours).

The paper's ranking (`ScoredPairs.rank`) lists the same relation both ways and for every pair in a crowd, and gives a
box another name in each relation. Here each box has one name, two boxes of a name that overlap by half are one object,
of two names for one place the surer stays, and an answer's number is the probability that an annotator states it:
P(B_s, B_o | I) · P(X_sel) · P(s, p, o | B_s, B_o, I).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from polyadic.boxes import box_iou
from polyadic.model.scoring import ScoredPairs, ScoreTerms, check_count
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.prior import TripletPrior

Order = Literal["informative", "likely"]
Labels = Literal["keep", "refine"]
Mirror = Literal["drop", "keep"]
TELLING = 0.5  # weight of what a triplet tells, in nats, beside the log of its probability
TIMES = 2  # the same triplet in an informative answer
SAME = 0.5  # IoU from which two boxes of a name are one object
RIVALS = 0.7  # IoU from which two boxes of different names are one object
POOL = 1000  # likeliest triplets of an image, among which answers are chosen
_FIXED = ScoreTerms(relabel=False)


@dataclass(frozen=True)
class AnswerOptions:
    """What is answered, for one photo."""

    k: int | None = 1  # relations per ordered pair of boxes; None: any number
    top: int = 10  # relations per photo
    order: Order = "informative"  # by probability and what the relation tells, few repeats; or by probability
    labels: Labels = "keep"  # boxes keep the detector's names, or get the most probable one over all their pairs
    mirror: Mirror = "drop"  # of "A behind B" and "B behind A" the likelier alone; "next to" and the like once a pair
    least: float = 0.01  # the smallest probability

    def __post_init__(self) -> None:
        for name, allowed in (("order", Order), ("labels", Labels), ("mirror", Mirror)):
            if getattr(self, name) not in get_args(allowed):
                words = " or ".join(map(repr, get_args(allowed)))
                raise PolyadicError(f"predict: {name} must be {words}, got {getattr(self, name)!r}")
        check_count("predict", "k", self.k, optional=True)
        check_count("predict", "top", self.top)
        if not isinstance(self.least, int | float) or not 0 <= self.least <= 1:
            raise PolyadicError(f"predict: least must be a probability from 0 to 1, got {self.least!r}")


def answer(scored: ScoredPairs, options: AnswerOptions) -> Relations:
    """Choose the answers for one photo."""
    named = name_boxes(scored, options.labels)
    pool = _merged(_rank_named(scored, named, POOL), options)
    if options.mirror == "drop":
        pool = drop_rivals(pool)
    return _or_note(choose(pool, scored.model.prior, options), pool, options.least)


def _or_note(chosen: Relations, pool: Relations, least: float) -> Relations:
    """Note why none is chosen: too few boxes, or the likeliest candidate."""
    if len(chosen):
        return chosen
    if not len(pool):
        few = ("no boxes were found", "only one box was found")
        return replace(chosen, note=few[len(chosen.boxes)] if len(chosen.boxes) < 2 else "all boxes are of one object")
    best = pool[0]
    ends = " ".join((best.box_names[0], best.names[1], best.box_names[1]))
    return replace(
        chosen, note=f"none at or above {100 * least:.3g}%; the likeliest is {ends} ({best.probability:.2%})"
    )


def choose(pool: Relations, prior: TripletPrior | None, options: AnswerOptions) -> Relations:
    """Select and order answers among candidates that are sorted by probability.

    First each ordered pair gets its k best relations of at least the smallest probability; then, of relations that
    state the same, the likeliest stays. The informative order prefers what tells much (`TripletPrior.told`) and says
    little twice (`_varied`).
    """
    assert pool.probability is not None, "ranked with probability"
    assert pool.log_repeat is not None, "ours"
    value: Float[np.ndarray, " M"] = pool.probability * np.exp(pool.log_repeat)
    informative = options.order == "informative" and prior is not None
    weight = value
    if informative and prior is not None:
        weight = value * np.exp(TELLING * prior.told(torch.from_numpy(pool.triplets)).numpy())
    rows = np.flatnonzero(value >= options.least)
    rows = _best_of_pairs(rows[np.argsort(-weight[rows], kind="stable")], pool, options.k)
    if options.mirror == "drop":
        stated = Statements(None if prior is None else prior.restates.numpy())
        likeliest = rows[np.argsort(-value[rows], kind="stable")]
        said = {row for row in likeliest.tolist() if stated.add(pool.pairs[row].tolist(), int(pool.triplets[row, 1]))}
        rows = np.array([row for row in rows.tolist() if row in said], np.int64)
    if informative and options.mirror == "drop":
        rows = _once_per_box(rows, pool, value)
    if informative:
        rows = _varied(rows, pool, weight, options)
    return pool[rows[: options.top]]


def _once_per_box(
    rows: Int[np.ndarray, " M"], pool: Relations, value: Float[np.ndarray, " N"]
) -> Int[np.ndarray, " L"]:
    """Of a triplet stated of two pairs that share a box, keep the likelier: a person wears one shirt."""
    said: set[tuple[int, ...]] = set()
    kept = []
    for row in rows[np.argsort(-value[rows], kind="stable")].tolist():
        triplet, pair = pool.triplets[row].tolist(), pool.pairs[row].tolist()
        ends = {(column, box, *triplet) for column, box in enumerate(pair)}
        if not ends & said:
            said |= ends
            kept.append(row)
    return rows[np.isin(rows, kept)]


def _varied(
    rows: Int[np.ndarray, " M"], pool: Relations, weight: Float[np.ndarray, " N"], options: AnswerOptions
) -> Int[np.ndarray, " L"]:
    """Order by weight with diminishing returns, one answer after the other.

    The n-th answer of a subject's name and a predicate ("person wear ...") counts 1/n, and each repeat of the whole
    triplet half as much as the one before; one that has been said `TIMES` times is left out.
    """
    _, triplet = np.unique(pool.triplets[rows], axis=0, return_inverse=True)
    _, phrase = np.unique(pool.triplets[rows][:, :2], axis=0, return_inverse=True)
    triplet, phrase = triplet.ravel(), phrase.ravel()
    times, phrases = np.zeros(len(rows)), np.zeros(len(rows))  # at most that many of each
    order: list[int] = []
    for _ in range(min(options.top, len(rows))):
        gain = weight[rows] * 0.5 ** times[triplet] / (1 + phrases[phrase])
        gain[order] = -1
        if options.mirror == "drop":
            gain[times[triplet] >= TIMES] = -1
        best = int(gain.argmax())
        if gain[best] < 0:
            break
        order.append(best)
        times[triplet[best]] += 1
        phrases[phrase[best]] += 1
    return rows[order]


def merge_boxes(pool: Relations) -> Relations:
    """Make boxes of one name that overlap a surer one by half that object, and keep its likeliest relations.

    Detectors see an object twice. Boxes that are equally sure, as those drawn by hand, stay apart.
    """
    assert pool.named is not None, "answers name boxes"
    assert pool.confidences is not None, "ours"
    boxes, stands_for = torch.from_numpy(pool.boxes), np.arange(len(pool.boxes))
    for box in np.argsort(-pool.confidences, kind="stable").tolist():
        if stands_for[box] == box:
            overlap = box_iou(boxes[box], boxes).numpy() >= SAME
            less = (pool.named == pool.named[box]) & (pool.confidences < pool.confidences[box])
            stands_for[overlap & less & (stands_for == np.arange(len(boxes)))] = box
    pairs = stands_for[pool.pairs]
    _, first = np.unique(np.concatenate([pairs, pool.triplets], 1), axis=0, return_index=True)
    rows = np.sort(first[pairs[first, 0] != pairs[first, 1]])
    return replace(pool[rows], pairs=pairs[rows])


def drop_rivals(pool: Relations) -> Relations:
    """Drop the relations of a box whose place has a surer box under another name: a road is not a street as well.

    Two annotated objects are hardly ever in one place. Boxes that are equally sure, as those drawn by hand, stay.
    """
    assert pool.named is not None, "answers name boxes"
    assert pool.confidences is not None, "ours"
    boxes, kept = torch.from_numpy(pool.boxes), np.ones(len(pool.boxes), bool)
    for box in np.argsort(-pool.confidences, kind="stable").tolist():
        if kept[box]:
            overlap = box_iou(boxes[box], boxes).numpy() >= RIVALS
            kept &= ~(overlap & (pool.named != pool.named[box]) & (pool.confidences < pool.confidences[box]))
    return pool[np.flatnonzero(kept[pool.pairs].all(1))]


def _merged(pool: Relations, options: AnswerOptions) -> Relations:
    return merge_boxes(pool) if options.mirror == "drop" else pool


def _best_of_pairs(rows: Int[np.ndarray, " M"], pool: Relations, k: int | None) -> Int[np.ndarray, " L"]:
    """Keep the first k rows of each ordered pair."""
    if k is None:
        return rows
    per_pair: Counter[tuple[int, ...]] = Counter()
    kept = []
    for row, pair in zip(rows.tolist(), map(tuple, pool.pairs[rows].tolist()), strict=True):
        per_pair[pair] += 1
        if per_pair[pair] <= k:
            kept.append(row)
    return np.array(kept, np.int64)


class Statements:
    """What has been said of each unordered pair of boxes."""

    def __init__(self, restates: Bool[np.ndarray, "P P"] | None) -> None:
        self._restates = restates
        self._said: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}

    def add(self, pair: Sequence[int], predicate: int) -> bool:
        """Add a relation, unless it says again what has been said."""
        said = self._said.setdefault(tuple(sorted(pair)), [])
        if any(self._repeats(pair != other, predicate, before) for other, before in said):
            return False
        said.append((pair, predicate))
        return True

    def _repeats(self, is_reverse: bool, predicate: int, before: int) -> bool:
        same = self._restates
        if same is not None and same[predicate, predicate] and same[before, before]:
            return True  # both hold both ways: next to, near
        return is_reverse and (predicate == before or (same is not None and bool(same[before, predicate])))


def ask(scored: ScoredPairs, given: Mapping[str, str], options: AnswerOptions) -> Relations:
    """Answer for given names: subject, predicate, object, one or two of them.

    Boxes have the names that `answer` gives them. With subject and object, the answer is P(predicate | both names, the
    pair that most likely shows them); else the relations with these names, by probability. If no box has a name that
    is asked for, there is no answer, and `note` says so.
    """
    named, vocabulary = name_boxes(scored, options.labels), scored.model.vocabulary
    labels = {variable: vocabulary.index(variable, word) for variable, word in given.items()}
    pairs = scored.pairs.numpy()
    fits = np.ones(len(pairs), bool)
    for column, variable in enumerate(("subject", "object")):
        if variable in labels:
            fits &= named[pairs[:, column]] == labels[variable]
    some = scored.select(torch.from_numpy(np.flatnonzero(fits)))
    if not fits.any():
        return replace(_rank_named(some, named, 1), given=dict(given), note=_absence(scored, named, given))
    if {"subject", "object"} <= set(given):
        answers = some.query(subject=given["subject"], object=given["object"], top=options.top)
        return replace(answers, labels=scored.detections.labels, named=named)
    if "predicate" in given:
        pool = _as_named(some.score_predicate(labels["predicate"], named), scored, named)
    else:
        pool = _rank_named(some, named, POOL)
    pool = _merged(pool, options)
    chosen = choose(pool, scored.model.prior, replace(options, order="likely"))
    return replace(_or_note(chosen, pool, options.least), given=dict(given))


def name_boxes(scored: ScoredPairs, labels: Labels) -> Int[np.ndarray, " N"]:
    """Name each box once: as detected, or, for `refine` and for unknown classes, its most probable class."""
    detected = scored.detections.labels
    unknown: Bool[np.ndarray, " N"] = detected == UNKNOWN
    if not len(scored) or (labels == "keep" and not unknown.any()):
        return detected
    best = scored.label_probability().argmax(1)
    return np.where(unknown | (labels == "refine"), best, detected)


def _rank_named(scored: ScoredPairs, named: Int[np.ndarray, " N"], top: int) -> Relations:
    """Rank triplets in which each box has its name: only predicates compete."""
    fixed = replace(scored, detections=replace(scored.detections, labels=named))
    return _as_named(fixed.rank(None, top, terms=_FIXED, probability=True), scored, named)


def _as_named(relations: Relations, scored: ScoredPairs, named: Int[np.ndarray, " N"]) -> Relations:
    return replace(relations, labels=scored.detections.labels, named=named)


def _absence(scored: ScoredPairs, named: Int[np.ndarray, " N"], given: Mapping[str, str]) -> str:
    """Say which name no box has, and the highest probability that one has it."""
    for variable in ("subject", "object"):
        label = scored.model.vocabulary.index(variable, given[variable]) if variable in given else UNKNOWN
        if label != UNKNOWN and not (named == label).any():
            best = f"best {scored.label_probability()[:, label].max():.1%}" if len(scored) else "fewer than two boxes"
            return f"none of the boxes is likely {_article(given[variable])} ({best})"
    return "no two boxes have these names"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"
