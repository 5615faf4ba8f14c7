"""The annotator: which predicates hold, which pairs and predicates are annotated, and their exact distribution.

A pair is picked by distance, sizes and the subject's appearance. One or two of the predicates that hold are written,
drawn by weights of (subject name, predicate, object name). Under one theme the names are certain, so the rows of a pair
have one subject, one object and a distribution over predicates: CP rank 1. The picture leaves the theme open: the truth
is a mixture over themes, of CP rank up to 3.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from polyadic.datasets.toy.layout import APPEARANCES, CLASS, INDEX, PREDICATES, VOCABULARY, pick, tint_posterior
from polyadic.structures.scenes import Scene
from polyadic.structures.vocabulary import PolyadicError

TWO = 0.25  # how often a second predicate is written, where a second one holds
_TOUCH = 3.0  # pixels between boxes that touch
_NEAR = 20.0
_HOLDERS = [INDEX[key] for key in ("person", "dog", "bird")]
_HELD = [INDEX[key] for key in ("flag", "box", "kite", "round", "hat")]
_WEARERS = [INDEX[key] for key in ("person", "dog", "round")]
_SUBJECT = np.array([appearance.subject for appearance in APPEARANCES])
_NOTED = np.array([1, 1, 1, 1, 8, 8, 2, 1.5, 1, 0.6, 20, 40])  # by predicate: rare ones are noticed more
_PEAKED = 6.0  # weights of a predicate differ by up to exp(6) between two pairs of names
# [S, P, O], a part of the world: no dataset's seed changes them
WEIGHTS = np.exp(_PEAKED * np.random.default_rng(2020).random(VOCABULARY.sizes)) * _NOTED[:, None]


def all_pairs(n: int) -> Int[np.ndarray, "B 2"]:
    """Return all ordered pairs of different boxes."""
    return np.argwhere(~np.eye(n, dtype=bool))


def holds(
    appearances: Int[np.ndarray, " N"], boxes: Float[np.ndarray, "N 4"], pairs: Int[np.ndarray, "B 2"]
) -> Bool[np.ndarray, "B P"]:
    """Mark the predicates that hold for each pair; at least one always does."""
    subject, object = pairs.T
    s, o = boxes[subject].T, boxes[object].T
    right, down = (s[0] + s[2] - o[0] - o[2]) / 2, (s[1] + s[3] - o[1] - o[3]) / 2  # from object to subject
    s_area, o_area = _area(s), _area(o)
    common = _common(s, o)
    inside, around = (common >= 0.8 * s_area) & (s_area < o_area), (common >= 0.8 * o_area) & (o_area < s_area)
    gap = _gap(s, o)
    overlapping = (common >= 0.1 * np.minimum(s_area, o_area)) & ~inside & ~around
    height, centre, middle = s[3] - s[1], (o[1] + o[3]) / 2, (o[0] + o[2]) / 2
    holding = np.isin(appearances[subject], _HOLDERS) & np.isin(appearances[object], _HELD) & (o_area < s_area)
    wearing = np.isin(appearances[subject], _WEARERS) & (appearances[object] == INDEX["hat"])
    on_top = (o[1] < s[1]) & (o[3] >= s[1] - 2) & (o[3] <= s[1] + 0.5 * height) & (middle > s[0]) & (middle < s[2])
    tests = {
        "above": (down < 0) & (2 * abs(down) >= abs(right)),
        "below": (down > 0) & (2 * abs(down) >= abs(right)),
        "left of": (right < 0) & (2 * abs(right) >= abs(down)),
        "right of": (right > 0) & (2 * abs(right) >= abs(down)),
        "inside": inside,
        "around": around,
        "touching": (gap <= _TOUCH) & ~overlapping & ~inside & ~around,
        "overlapping": overlapping,
        "bigger than": s_area >= 1.5 * o_area,
        "near": gap <= _NEAR,
        "holding": holding & (gap <= _TOUCH) & (centre > s[1] + 0.2 * height) & (centre < s[3]),
        "wearing": wearing & on_top,
    }
    return np.stack([tests[name] for name in PREDICATES], axis=1)


def _area(box: np.ndarray) -> np.ndarray:
    return np.asarray((box[2] - box[0]) * (box[3] - box[1]))


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    return np.asarray(sides.clip(0).prod(0))


def _gap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the distance between two boxes in pixels."""
    apart = np.maximum(a[:2], b[:2]) - np.minimum(a[2:], b[2:])
    return np.asarray(np.hypot(*apart.clip(0)))


def picked(
    appearances: Int[np.ndarray, " N"], boxes: Float[np.ndarray, "N 4"], pairs: Int[np.ndarray, "B 2"]
) -> Float[np.ndarray, " B"]:
    """Return P(the annotator picks the pair), independently of the other pairs."""
    s, o = boxes[pairs[:, 0]].T, boxes[pairs[:, 1]].T
    sizes = np.log(_area(s) * _area(o)) - np.log(1000.0**2)
    odds = -1.9 + _SUBJECT[appearances[pairs[:, 0]]] - _gap(s, o) / 8 + 0.5 * sizes
    return np.asarray(1 / (1 + np.exp(-odds)))


def annotate(
    rng: np.random.Generator, appearances: Int[np.ndarray, " N"], boxes: Float[np.ndarray, "N 4"], theme: int
) -> Int[np.ndarray, "M 3"]:
    """Draw rows (subject box, predicate, object box); an annotator who picked nothing starts over."""
    pairs = all_pairs(len(boxes))
    chances = picked(appearances, boxes, pairs)
    chosen = np.zeros(len(pairs), bool)
    while not chosen.any():
        chosen = rng.random(len(pairs)) < chances
    rows = []
    names = CLASS[appearances, theme]
    for (subject, object), true in zip(pairs[chosen], holds(appearances, boxes, pairs[chosen]), strict=True):
        weights = np.where(true, WEIGHTS[names[subject], :, names[object]], 0.0)
        for _ in range(2 if rng.random() < TWO and true.sum() > 1 else 1):
            predicate = pick(rng, weights.tolist())
            rows.append((subject, predicate, object))
            weights[predicate] = 0.0
    return np.array(rows)


def selected(scene: Scene, pairs: Int[np.ndarray, "B 2"]) -> Float[np.ndarray, " B"]:
    """Return the exact P(the pair is annotated | picture)."""
    appearances, _ = _from_extra(scene, pairs)
    others = 1 - picked(appearances, scene.boxes, all_pairs(len(scene.boxes)))
    anything = 1 - others.prod()  # an annotator who picks nothing starts over
    return np.asarray(picked(appearances, scene.boxes, pairs) / anything)


def truth(scene: Scene, pairs: Int[np.ndarray, "B 2"]) -> Float[np.ndarray, "B S P O"]:
    """Return the exact P(s, p, o | picture, pair, a row of its annotation): the mean over themes of expected rows."""
    appearances, themes = _from_extra(scene, pairs)
    true = holds(appearances, scene.boxes, pairs)
    joint = np.zeros((len(pairs), *VOCABULARY.sizes))
    for theme, share in enumerate(themes):
        subject, object = CLASS[appearances[pairs], theme].T
        rows = expected_rows(np.where(true, WEIGHTS[subject, :, object], 0.0))
        joint[np.arange(len(pairs)), subject, :, object] += share * rows / rows.sum(1, keepdims=True)
    return joint


def expected_rows(weights: Float[np.ndarray, "B P"]) -> Float[np.ndarray, "B P"]:
    """Return the expected number of rows per predicate of a picked pair: two draws without replacement."""
    first = weights / weights.sum(1, keepdims=True)
    several = (weights > 0).sum(1, keepdims=True) > 1
    odds = np.divide(first, 1 - first, out=np.zeros_like(first), where=several)
    second = first * (odds.sum(1, keepdims=True) - odds)  # Σ over the first draw a ≠ p: P(a) P(p) / (1 - P(a))
    return np.asarray(first + TWO * second)


def _from_extra(scene: Scene, pairs: Int[np.ndarray, "B 2"]) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " K"]]:
    """Return appearances and P(theme | picture); refuse pairs that do not exist."""
    n = len(scene.boxes)
    try:
        appearances = np.array([INDEX[key] for key in scene.extra["appearances"]])
        themes = tint_posterior(scene.extra["tint"])
    except (KeyError, IndexError, TypeError) as error:
        raise PolyadicError(f"Scene {scene.name}: not a toy scene, so its true distribution is unknown") from error
    wrong = ((pairs < 0) | (pairs >= n)).any(1) | (pairs[:, 0] == pairs[:, 1])
    if wrong.any():
        got = pairs[wrong.argmax()].tolist()
        raise PolyadicError(f"Scene {scene.name}: a pair is two different boxes of 0 to {n - 1}, got {got}")
    return appearances, themes
