"""`polyadic evaluate RUN`: what a run needs beside what a file needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.evaluation.protocol import Protocol
    from polyadic.experiments.evaluating import RunScores

PARTS = ("prior", "selected", "geometry", "relabel", "dedup")


def scores_of(
    folder: Path,
    protocols: Sequence[Protocol],
    ks: Sequence[int | Literal["free"] | None],
    split: str,
    dataset: str | None,
    root: Path | None,
    detections: Path | None,
    without: Sequence[str],
    save: Path | None,
    bootstrap: int,
    misses: bool,
) -> RunScores:
    """Open the run, predict, score; with a bar, and stopped by Ctrl-C between two images."""
    from polyadic import progress
    from polyadic.evaluation.compare import PREDICTIONS
    from polyadic.experiments.evaluating import detections_of, evaluate_run
    from polyadic.experiments.runs import open_run
    from polyadic.model.scoring import Parts

    for word in without:
        if word not in PARTS:
            near = get_close_matches(word, PARTS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PolyadicError(f"--without: expected {', '.join(PARTS)}, got {word!r}{hint}")
    run = open_run(folder, split, dataset, root)
    boxes = None if detections is None else detections_of(detections, run)
    parts = Parts(**{name: name not in without for name in PARTS})
    with progress.showing(), progress.interruptible():
        found = evaluate_run(run, protocols, ks, boxes, parts, bootstrap, save, misses)
    if not without:
        return found
    mine = f"{PREDICTIONS} without {', '.join(sorted(set(without), key=PARTS.index))}"
    rows = tuple((mine if what == PREDICTIONS else what, row) for what, row in found.result.rows)
    return replace(found, result=replace(found.result, rows=rows))
