"""The method does what the paper claims, on the drawn world, whose exact distribution is known; margins over seeds."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest
from toy_heads import (
    Seen,
    count,
    divergence,
    fit,
    fit_selection,
    log_likelihood,
    recall,
    scenes,
    true_selection,
)

SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    """Without shape checks, which would cost most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def test_scenes() -> list[Seen]:
    return scenes("test", 120)


@pytest.fixture(scope="module")
def train_scenes() -> list[Seen]:
    return scenes("train", 1200)


def test_rank_three_beats_rank_one_in_likelihood_and_in_recall(
    train_scenes: list[Seen], test_scenes: list[Seen]
) -> None:
    better = []  # seen: likelihood +0.12, +0.29, +0.25; recall +2.9, +5.0, +4.3
    for seed in SEEDS:
        one, three = (fit(train_scenes, rank, seed) for rank in (1, 3))
        likelihood = log_likelihood(three, test_scenes) - log_likelihood(one, test_scenes)
        better.append(recall(three, test_scenes, true_selection) - recall(one, test_scenes, true_selection))
        assert likelihood > 0.05
    assert min(better) > 0
    assert sum(better) / len(better) > 1.5


def test_p_sel_helps(train_scenes: list[Seen], test_scenes: list[Seen]) -> None:
    for seed in SEEDS:
        few = train_scenes[100 * seed : 100 * seed + 300]
        head, selection = fit(few, 3, seed, steps=400), fit_selection(few, seed)
        learned = recall(head, test_scenes, lambda seen: selection.log_selected(seen.pair))  # noqa: B023
        assert learned > recall(head, test_scenes, None) + 8  # seen: 34.0, 35.9, 36.7 against 17.3, 18.2, 17.3


def test_the_prior_helps_a_network_that_errs() -> None:
    train, test = scenes("train", 600, mistakes=0.2), scenes("test", 120, mistakes=0.2)
    for seed in SEEDS:
        few = train[100 * seed : 100 * seed + 400]
        head = fit(few, 3, seed, steps=500)
        gain = recall(head, test, true_selection, count(few)) - recall(head, test, true_selection)
        assert gain > 0.5  # seen: 3.0, 2.9, 1.3


def test_the_learned_conditional_approaches_the_known_one(test_scenes: list[Seen]) -> None:
    data = scenes("train", 4000)
    found = [divergence(fit(data[:n], 3, 0, steps), test_scenes) for n, steps in ((100, 150), (600, 600), (4000, 2500))]
    assert found[1] < 0.6 * found[0]  # seen: 2.15, 0.69, 0.28
    assert found[2] < 0.6 * found[1]
    assert found[2] < 0.35
