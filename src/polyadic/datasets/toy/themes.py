"""What the drawn world holds: 12 appearances, 20 names for them, 3 hidden themes, and the tint that hints at the theme.

Eight appearances have one name. The other four are called after the theme of their scene: the round one is a pumpkin,
a wheel or a buoy. Nothing in the picture depends on the theme but the tint of its background, two whole numbers whose
distribution under each theme is a table; so P(theme | picture) is known exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from polyadic.vocabulary import Vocabulary

THEMES = ("farm", "city", "sea")


@dataclass(frozen=True)
class Appearance:
    """A drawn thing: its names by theme (or one for all), how large and how common it is, how often a subject."""

    key: str
    names: tuple[str, ...]
    side: tuple[int, int]  # least and greatest length of the longer side, in pixels
    ratio: float  # height / width
    share: float  # how often it is drawn, against the others
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
INDEX = {each.key: i for i, each in enumerate(APPEARANCES)}
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
VOCABULARY = Vocabulary(tuple(name for each in APPEARANCES for name in each.names), PREDICATES)
# class by appearance and theme, [12, 3]
CLASS = np.array(
    [[VOCABULARY.objects.index(each.names[k % len(each.names)]) for k in range(len(THEMES))] for each in APPEARANCES]
)

TINT = 45  # the tint's two numbers lie in [-45, 45]
_SPREAD = 13.0  # their standard deviation under a theme
_CENTRES = np.array([[0.0, -10.0], [8.7, 5.0], [-8.7, 5.0]])  # by theme, around no tint


def _tints() -> Float[np.ndarray, "K 2 T"]:
    """P(number | theme) of the tint's two numbers, which are independent under a theme."""
    values = np.arange(-TINT, TINT + 1)
    density = np.exp(-0.5 * ((values - _CENTRES[..., None]) / _SPREAD) ** 2)
    return np.asarray(density / density.sum(-1, keepdims=True))


TINTS = _tints()


def tint_posterior(tint: Sequence[int]) -> Float[np.ndarray, " K"]:
    """P(theme | picture), by Bayes' rule: themes are equally common."""
    joint = TINTS[:, 0, tint[0] + TINT] * TINTS[:, 1, tint[1] + TINT]
    return np.asarray(joint / joint.sum())
