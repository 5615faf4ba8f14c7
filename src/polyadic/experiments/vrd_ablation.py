"""Pixels with true boxes on VRD: that half of the paper's Table 4 and, apart from it, what we make of the same pixels.

The paper's recipe (`vrd-pixels`) varies the rank and adds P(X_sel) and ψ_u. Ours (`vrd-pixels-grown`) takes labels from
pixels, and all else from a prior that knows the boxes. Both are scored with and without true labels. The first
and the last rank, and ours, are trained twice: without the held-out images, on which k is chosen, and with all images.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyadic.config import PRESETS
from polyadic.config.schema import Config
from polyadic.experiments.ablation import RANKS, REFIT, Ablation, ablate
from polyadic.experiments.ablation_scores import ALL, MODEL, PHRASES, PREDICATES
from polyadic.experiments.table4 import check_file, to_csv
from polyadic.files import hide_paths, versions, write_text
from polyadic.structures.vocabulary import PolyadicError

OURS = "ours, grown prior"
FEATURES = "features"
_OURS_RANKS = (1,)  # labels of boxes, which are independent


@dataclass(frozen=True, eq=False)
class VrdAblation:
    """The rows of both, and what they were made with."""

    table: Ablation  # its config is the paper's recipe
    ours: Config
    seconds: float  # of this call; what was there before is not made again


def vrd_ablation(
    root: Path,
    weights: Path,
    out: Path,
    seeds: int = 3,
    ranks: Sequence[int] = RANKS,
) -> VrdAblation:
    """`weights`: the backbone's. Interrupted, it goes on when it is called again."""
    start = time.monotonic()
    if not weights.expanduser().is_file():
        raise PolyadicError(f"--weights: no file {weights}; it is the backbone's, tf_efficientnet_lite0 of timm")
    out = out.expanduser().resolve()
    place = {
        "data.root": str(root.expanduser().resolve()),
        "pixels.weights": str(weights.expanduser().resolve()),
        "cache.folder": str(out / FEATURES),
    }
    recipe, ours = (PRESETS[name].change(**place) for name in ("vrd-pixels", "vrd-pixels-grown"))
    tasks = PHRASES, PREDICATES
    ranks = sorted(set(ranks))
    table = ablate(recipe, out / "paper", ranks, seeds, tasks, refit=_ends(ranks))
    grown = ablate(ours, out / "ours", _OURS_RANKS, seeds, tasks, refit=_OURS_RANKS)
    # a head of labels says nothing of predicates: its loss is another one
    mine = (row for row in grown.rows if row.what.startswith(MODEL))
    rows = (*table.rows, *(replace(row, what=row.what.replace(MODEL, OURS, 1), loss=None) for row in mine))
    return VrdAblation(replace(table, rows=rows), ours, time.monotonic() - start)


def _ends(ranks: Sequence[int]) -> list[int]:
    return [min(ranks), max(ranks)] if ranks else []  # none: for `ablate` to refuse


def check(path: Path, ranks: Sequence[int], seeds: Iterable[int]) -> None:
    """Before the work: a file stays that has more than these ranks and seeds give, or is none of an ablation."""
    kinds = {MODEL: ranks, MODEL + ALL: _ends(ranks), OURS: _OURS_RANKS, OURS + ALL: _OURS_RANKS}
    numbers = list(seeds)
    check_file(path, {(what, str(r), str(s)) for what, found in kinds.items() for r in found for s in numbers})


def write(found: VrdAblation, path: Path) -> tuple[Path, Path]:
    """The rows, and beside them as JSON the configs, seeds, versions and seconds."""
    check(path, found.table.ranks, found.table.seeds)
    configs = {"the paper's recipe": found.table.config.to_json(), OURS: found.ours.to_json()}
    for config in configs.values():
        hide_paths(config)
    configs[ALL.removeprefix(", ")] = REFIT
    about = {"configs": configs, "ranks": found.table.ranks, "seeds": found.table.seeds, "versions": versions()}
    beside = path.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_csv(found.table))
    write_text(beside, json.dumps({**about, "seconds": round(found.seconds)}, indent=1) + "\n")
    return path, beside
