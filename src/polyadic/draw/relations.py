"""What is drawn: relations between boxes, best first, and which of them are hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.draw.colours import ARROW, HIT, HIT_ARROW
from polyadic.draw.text import PAPER, Colour
from polyadic.vocabulary import PolyadicError, Vocabulary

MOST_LINES = 5  # of one arrow; the list has all


@dataclass(frozen=True)
class Drawn:
    """One relation to draw; `subject` and `object` are indices of boxes."""

    subject: int
    object: int
    text: str  # "person ride horse", in the list
    predicate: str  # "ride", on the arrow
    score: float | None = None
    hit: bool | None = None  # None: nobody knows

    @property
    def pair(self) -> tuple[int, int]:
        return self.subject, self.object


@dataclass(frozen=True)
class Bundle:
    """What is said of one pair, subject first: one arrow, with a line of text for each predicate."""

    pair: tuple[int, int]
    lines: tuple[tuple[str, Colour], ...]
    colour: Colour


def relations_to_draw(
    vocabulary: Vocabulary,
    pairs: Int[np.ndarray, "M 2"],
    triplets: Int[np.ndarray, "M 3"],
    scores: Float[np.ndarray, " M"] | None = None,
    hits: Bool[np.ndarray, " M"] | None = None,
) -> list[Drawn]:
    """Best first if there are scores, else in the given order; all columns are in one order, `hits` too.

    Of a scene: `relations_to_draw(vocabulary, scene.relations[:, ::2], scene.triplets)`.
    """
    lengths = {len(column) for column in (pairs, triplets, scores, hits) if column is not None}
    if len(lengths) > 1:
        raise PolyadicError(f"relations_to_draw: pairs, triplets, scores, hits need one length, got {sorted(lengths)}")
    order = range(len(pairs)) if scores is None else np.argsort(-scores, kind="stable").tolist()
    drawn = []
    for i in order:
        words = vocabulary.decode(triplets[i].tolist())
        subject, object = pairs[i].tolist()
        score = None if scores is None else float(scores[i])
        drawn.append(Drawn(subject, object, " ".join(words), words[1], score, None if hits is None else bool(hits[i])))
    return drawn


def bundle(relations: Sequence[Drawn]) -> list[Bundle]:
    """Relations by pair, in order of the best of each; green where at least one is a hit."""
    pairs: dict[tuple[int, int], dict[str, bool]] = {}
    for each in relations:
        hits = pairs.setdefault(each.pair, {})
        hits[each.predicate] = hits.get(each.predicate, False) or bool(each.hit)
    bundles = []
    for pair, hits in pairs.items():
        lines = [(predicate, HIT if hit else PAPER) for predicate, hit in hits.items()]
        if len(lines) > MOST_LINES:
            lines[MOST_LINES - 1 :] = [(f"and {len(lines) - MOST_LINES + 1} more", PAPER)]
        bundles.append(Bundle(pair, tuple(lines), HIT_ARROW if any(hits.values()) else ARROW))
    return bundles


def boxes_of(relations: Sequence[Drawn]) -> list[int]:
    """The boxes that take part, in order of their first relation."""
    return list(dict.fromkeys(i for relation in relations for i in relation.pair))


def number_names(boxes: Float[np.ndarray, "N 4"], names: Sequence[str]) -> list[str]:
    """Names of boxes; of a class that occurs several times with a number, from left to right."""
    numbered = list(names)
    for name in set(names):
        same = [i for i, other in enumerate(names) if other == name]
        same.sort(key=lambda i: (boxes[i, 0] + boxes[i, 2], boxes[i, 1] + boxes[i, 3]))
        for number, i in enumerate(same if len(same) > 1 else (), start=1):
            numbered[i] = f"{name} {number}"
    return numbered
