"""Arrange things: some anywhere, some beside, above or inside another; hats on heads, small things near hands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from polyadic.datasets.toy.drawing import SIDE, Thing
from polyadic.structures.vocabulary import Vocabulary

THEMES = ("farm", "city", "sea")


@dataclass(frozen=True)
class Appearance:
    """A kind of thing: its names by theme (or one for all), its size, how common it is, how often a subject."""

    key: str
    names: tuple[str, ...]
    side: tuple[int, int]  # least and greatest length of the longer side, in pixels
    ratio: float  # height / width
    share: float  # how often it is drawn, relative to the others
    subject: float  # added to the log-odds that the annotator takes it as a subject


APPEARANCES = (
    Appearance("person", ("person",), (40, 58), 1.9, 1.8, 2.0),
    Appearance("dog", ("dog",), (30, 42), 0.8, 0.9, 1.5),
    Appearance("bird", ("bird",), (24, 30), 0.8, 0.7, 1.3),
    Appearance("tree", ("tree",), (40, 64), 1.3, 0.7, -1.0),
    Appearance("flag", ("flag",), (24, 34), 1.2, 0.7, -0.5),
    Appearance("box", ("box",), (22, 46), 0.9, 0.7, -0.5),
    Appearance("hat", ("hat",), (22, 30), 0.65, 1.3, -1.0),
    Appearance("kite", ("kite",), (26, 36), 1.3, 0.7, 0.0),
    Appearance("round", ("pumpkin", "wheel", "buoy"), (24, 44), 1.0, 3.6, 0.6),
    Appearance("tall", ("silo", "tower", "lighthouse"), (46, 64), 2.1, 3.0, 0.0),
    Appearance("vehicle", ("tractor", "car", "boat"), (38, 58), 0.7, 3.6, 1.0),
    Appearance("lattice", ("fence", "gate", "net"), (36, 62), 0.7, 3.0, -0.4),
)
INDEX = {appearance.key: i for i, appearance in enumerate(APPEARANCES)}
PREDICATES = (
    "above",
    "below",
    "left of",
    "right of",
    "inside",
    "around",
    "touching",
    "overlapping",
    "bigger than",
    "near",
    "holding",
    "wearing",
)
VOCABULARY = Vocabulary(tuple(name for appearance in APPEARANCES for name in appearance.names), PREDICATES)
# class by appearance and theme, [12, 3]
CLASS = np.array(
    [
        [VOCABULARY.objects.index(appearance.names[k % len(appearance.names)]) for k in range(len(THEMES))]
        for appearance in APPEARANCES
    ]
)

TINT = 45  # the tint's two numbers lie in [-45, 45]
_SPREAD = 13.0  # their standard deviation under a theme
_CENTRES = np.array([[0.0, -10.0], [8.7, 5.0], [-8.7, 5.0]])  # by theme, around no tint


def _tints() -> Float[np.ndarray, "K 2 T"]:
    """Compute P(number | theme) of the tint's two numbers, which are independent given the theme."""
    values = np.arange(-TINT, TINT + 1)
    density = np.exp(-0.5 * ((values - _CENTRES[..., None]) / _SPREAD) ** 2)
    return np.asarray(density / density.sum(-1, keepdims=True))


TINTS = _tints()


def tint_posterior(tint: Sequence[int]) -> Float[np.ndarray, " K"]:
    """Return P(theme | picture) by Bayes' rule; themes are equally common."""
    joint = TINTS[:, 0, tint[0] + TINT] * TINTS[:, 1, tint[1] + TINT]
    return np.asarray(joint / joint.sum())


SEEN = 0.45  # the least share of a thing's pixels that the others leave visible
_LEAST, _MOST = 6, 10  # things in a scene
_SHARED = 0.7  # the greatest share of a larger thing's box in the box of a smaller one
_TRIES = 30
_SHADE = 18  # the largest shift of a colour, in each channel
# near whom a small thing is drawn, if there is one
_BEARERS = dict.fromkeys(("flag", "box", "kite", "round"), ("person", "dog")) | {"hat": ("person", "dog", "round")}
_SHARES = [appearance.share for appearance in APPEARANCES]


def between(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a whole number from `low` to `high`, by `rng.random` alone: its stream is the same in every NumPy."""
    return low + int(rng.random() * (high - low + 1))


def pick(rng: np.random.Generator, weights: Sequence[float]) -> int:
    """Draw an index with probability proportional to its weight."""
    left = rng.random() * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return max(i for i, weight in enumerate(weights) if weight > 0)


def arrange(rng: np.random.Generator) -> tuple[Thing, ...]:
    """Place the things of a scene, larger ones first, as they are drawn; `SEEN` of each stays visible."""
    while True:
        drawn = [APPEARANCES[pick(rng, _SHARES)] for _ in range(between(rng, _LEAST, _MOST))]
        sized = sorted(
            ((appearance, size_of(appearance, between(rng, *appearance.side))) for appearance in drawn),
            key=lambda item: -item[1][0] * item[1][1],
        )
        owner = np.zeros((SIDE, SIDE), np.int64)  # number of the thing that owns the pixel, from 1; 0 is background
        placed: list[Thing] = []
        for appearance, size in sized:
            thing = _place(rng, appearance, size, placed=placed, owner=owner)
            if thing is None:
                break
            placed.append(thing)
        else:
            return tuple(placed)


def size_of(appearance: Appearance, side: int) -> tuple[int, int]:
    """Return (width, height), given the longer side."""
    ratio = appearance.ratio
    return (side, round(side * ratio)) if ratio <= 1 else (round(side / ratio), side)


def _place(
    rng: np.random.Generator,
    appearance: Appearance,
    size: tuple[int, int],
    *,
    placed: list[Thing],
    owner: Int[np.ndarray, "H W"],
) -> Thing | None:
    """Place a thing where it hides no other too much and mark its pixels in `owner`; None if no try succeeds."""
    key, (width, height) = appearance.key, size
    shade = (between(rng, -_SHADE, _SHADE), between(rng, -_SHADE, _SHADE), between(rng, -_SHADE, _SHADE))
    visible = np.bincount(owner.ravel(), minlength=len(placed) + 1)[1:]
    needed = np.array([SEEN * np.count_nonzero(one.stencil) for one in placed])
    for _ in range(_TRIES):
        x, y = _propose(rng, key, width, height, placed)
        if not (0 <= x <= SIDE - width and 0 <= y <= SIDE - height):
            continue
        thing = Thing(key, x, y, width, height, shade)
        if any(thing.common(one) > (0 if one.key == key else _SHARED * one.width * one.height) for one in placed):
            continue  # two of a kind, or in one place, would look like one
        part, inked = owner[thing.rows_and_columns], thing.stencil > 0
        if (visible - np.bincount(part[inked], minlength=len(placed) + 1)[1:] >= needed).all():
            part[inked] = len(placed) + 1
            return thing
    return None


def _propose(rng: np.random.Generator, key: str, width: int, height: int, placed: list[Thing]) -> tuple[int, int]:
    """Propose the top left corner of a place."""
    bearers = [one for one in placed if one.key in _BEARERS.get(key, ())]
    if bearers and rng.random() < 0.75:
        one = bearers[between(rng, 0, len(bearers) - 1)]
        if key == "hat":
            head = one.x + int((0.8 if one.key == "dog" else 0.5) * one.width)
            return head - width // 2 + between(rng, -2, 2), one.y - height + between(rng, 1, one.height // 6)
        right = one.x + one.width - between(rng, 2, 6) if rng.random() < 0.5 else one.x - width + between(rng, 2, 6)
        return right, one.y + int(0.4 * one.height) - height // 2 + between(rng, -4, 8)
    if not placed or rng.random() < 0.5:
        return between(rng, 0, SIDE - width), between(rng, 0, SIDE - height)
    one = placed[between(rng, 0, len(placed) - 1)]
    spare = one.width - width, one.height - height
    if min(spare) >= 0 and rng.random() < 0.5:
        return one.x + between(rng, 0, spare[0]), one.y + between(rng, 0, spare[1])
    gap, along = between(rng, -4, 6), rng.random()
    if rng.random() < 0.5:
        beside = one.x + one.width + gap if rng.random() < 0.5 else one.x - width - gap
        return beside, one.y + int(along * one.height) - height // 2
    over = one.y + one.height + gap if rng.random() < 0.5 else one.y - height - gap
    return one.x + int(along * one.width) - width // 2, over
