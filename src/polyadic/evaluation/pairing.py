"""Truths and predictions of the same image, brought together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polyadic.scenes import Predictions, Scene
from polyadic.vocabulary import PolyadicError


def paired(scenes: Iterable[Scene], predictions: Iterable[Predictions]) -> Iterator[tuple[Scene, Predictions | None]]:
    """Each scene with its predictions, in the order of the predictions; at the end the scenes that have none.

    A prediction for an unknown image, or a second one for the same image, is an error.
    """
    waiting: dict[str, Scene] = {}
    for scene in scenes:
        if scene.name in waiting:
            raise PolyadicError(f"scenes: image {scene.name!r} is there twice")
        waiting[scene.name] = scene
    known = set(waiting)
    for each in predictions:
        if not isinstance(each, Predictions):
            raise PolyadicError(f"predictions must be Predictions, one per image, got a {type(each).__name__}")
        found = waiting.pop(each.image, None)
        if found is None:
            why = "is there twice" if each.image in known else f"is none of the {len(known):,} images evaluated"
            raise PolyadicError(f"predictions: image {each.image!r} {why}")
        yield found, each
    yield from ((scene, None) for scene in waiting.values())
