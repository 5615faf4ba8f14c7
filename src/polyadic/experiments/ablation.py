"""The paper's Table 4 on any dataset: ranks, P(X_sel) and priors, over several seeds (Ablation Study).

Each rank and seed is a run of its own, OUT/rank-R-seed-S (and -all, from all images), which keeps its scores: what is
there is not made twice, so that an interrupted ablation goes on when it is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyadic import progress
from polyadic.config.schema import Config
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.ablation_scores import PHRASES, Row, Scorer, baselines
from polyadic.experiments.runs import pictured, validation_of
from polyadic.model.relation_model import RelationModel
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import train

RANKS = (1, 2, 3, 4, 5)  # paper
REFIT = {"validation.images": 0}  # how a run that learns from all images differs from the one before it
TOPS = (50, 100)


@dataclass(frozen=True, eq=False)
class Ablation:
    """All rows, and what they were made with."""

    config: Config
    ranks: tuple[int, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]


def ablate(
    config: Config,
    out: str | Path,
    ranks: Sequence[int] = RANKS,
    seeds: int = 3,
    tasks: Sequence[str] = (PHRASES,),
    refit: Sequence[int] = (),
) -> Ablation:
    """Train and score each rank with each seed, beside the count table and the ceiling.

    `refit`: ranks that are trained once more, with the held-out images on which k was chosen; rows of their own.
    A backbone that is to be trained is trained once per seed, and shared by all ranks.
    """
    out = Path(out).expanduser().resolve()
    ranks, numbers = tuple(dict.fromkeys(ranks)), tuple(range(config.seed, config.seed + seeds))
    if not ranks or not numbers or min(ranks) < 1:
        raise PolyadicError(f"ablate: expected ranks from 1 up and at least one seed, got {list(ranks)} and {seeds}")
    if not set(refit) <= set(ranks):
        raise PolyadicError(f"ablate: refit has ranks {sorted(set(refit) - set(ranks))}, which are not among the ranks")
    if not config.triplets.epochs and not config.proposals.epochs:
        raise PolyadicError("ablate: triplets.epochs and proposals.epochs are 0: there is nothing to compare")
    for rank in ranks:
        config.change(**{"head.rank": rank})  # refused before the work
    test, held_out = pictured(config, "test"), validation_of(config)
    if not len(test):
        raise PolyadicError(f"ablate: no test image of {test.name} has a picture to score on")
    if not any(len(scene.relations) for scene in held_out):
        raise PolyadicError(f"ablate: {test.name} has no validation images with relations, on which k is chosen")
    protocols = [_protocol(config.data.dataset, task) for task in tasks]
    rows = [row for protocol in protocols for row in baselines(config, test, protocol)]
    scorer = Scorer(test, held_out, protocols)
    if "evidence" in config.sources:
        progress.say("true boxes are given with their labels (sources has evidence): not comparable with pixels alone")
    for seed in numbers:
        base = _shared_backbone(config.change(seed=seed), out)
        for rank in ranks:
            progress.say(f"rank {rank}, seed {seed}")
            folder, mine = out / f"rank-{rank}-seed-{seed}", base.change(**{"head.rank": rank})
            model = _train(mine, folder)
            scored = scorer.score(model, mine, folder)
            rows += scored
            if rank in refit:
                progress.say(f"rank {rank}, seed {seed}, all images")
                folder, mine = folder.with_name(f"{folder.name}-all"), mine.change(**REFIT)
                rows += scorer.score_refit(_train(mine, folder), mine, folder, scored)
    return Ablation(config, ranks, numbers, tuple(rows))


def _protocol(dataset: str, task: str) -> Protocol:
    name = "motifs" if dataset == "vg150" else "lu2016"
    return get_protocol(name).change(task=task, k=None, k_unit="triplet", tops=TOPS)


def _train(config: Config, folder: Path) -> RelationModel:
    """Goes on in a run that is there; one that is complete has nothing left to do."""
    return train(config, folder, resume=(folder / "config.json").is_file())


def _shared_backbone(config: Config, out: Path) -> Config:
    """A run of the stage [backbone] alone, and the config that starts from its backbone."""
    if not config.backbone.epochs or "pixels" not in config.sources:
        return config
    folder = out / f"backbone-seed-{config.seed}"
    alone: dict[str, Any] = {f"{stage}.epochs": 0 for stage in ("boxes", "triplets", "proposals", "selection")}
    alone["head.labels"] = False
    progress.say(f"backbone, seed {config.seed}")
    _train(config.change(**alone), folder)
    return config.change(**{"backbone.epochs": 0, "pixels.weights": str(folder)})
