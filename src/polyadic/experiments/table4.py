"""The paper's Table 4 (Ablation Study): ranks, P(X_sel) and priors over several seeds, on any dataset.

An experiment is a list of config changes. Each rank and seed is a run of its own, OUT/rank-R-seed-S (with -all: trained
on all images), and keeps its scores: an interrupted experiment continues when it is started again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyadic.config import PRESETS
from polyadic.config.schema import Config
from polyadic.evaluation.compare import COUNT_TABLE, PREDICTIONS, compare
from polyadic.evaluation.protocol import FREE_K, Protocol, get_protocol
from polyadic.experiments.results import (
    FREE,
    Results,
    Row,
    TableLine,
    cached_rows,
    cell,
    config_record,
    recall_cells,
    recall_row,
    select,
)
from polyadic.experiments.runs import (
    Images,
    at_k,
    best_k,
    best_of,
    free_ks,
    recalls_of,
    run_regions,
    train_run,
    training_seconds,
    validation_scenes,
)
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ScoreTerms
from polyadic.progress import say
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import BoxSource, load_split, pictures_of
from polyadic.training.region_cache import fill

RANKS = (1, 2, 3, 4, 5)  # paper
TOPS = (50, 100)
PHRASES, PREDICATES = "phrase-classification", "predicate-classification"  # ground-truth boxes; labels as well
MODEL, OURS = "model", "ours, box-conditioned prior"
ALL = ", all images"  # after the name: trained once more, with the held-out images
TOGETHER = ", mean of the seeds' models"  # after the name
REFIT = {"validation.images": 0}  # the config change of such a run
FEATURES = "features"
TEMPERED = "psi_c + selected + tempered prior"
PARTS = {
    "psi_c": ScoreTerms(selected=False, prior=False, geometry=False),
    "psi_c + selected": ScoreTerms(selected=True, prior=False, geometry=False),
    "psi_c + selected + prior": ScoreTerms(selected=True, prior=True, geometry=False, prior_exponent=1.0),
    TEMPERED: ScoreTerms(selected=True, prior=True, geometry=False),  # ours: with the config's exponent
    "psi_c + geometry": ScoreTerms(selected=False, prior=False, geometry=True),  # ours
}
_ADDED = {
    "psi_c + selected": "w/ X_sel",
    "psi_c + selected + prior": "w/ X_sel & prior",
    TEMPERED: "w/ X_sel & prior^{exponent:g}",
    "psi_c + geometry": "w/ box-conditioned prior",
}
COLUMNS = ((FREE, 50), (FREE, 100), ("1", 50), ("1", 100))  # k, N

# in the order of COLUMNS
PAPER: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "vg150": {
        "Rank-1": (37.35, 44.49, 32.16, 34.30),
        "Rank-2": (42.53, 47.52, 33.64, 35.26),
        "Rank-3": (41.89, 48.35, 33.89, 35.31),
        "Rank-4": (41.74, 48.22, 33.29, 35.14),
        "Rank-5": (42.71, 48.95, 32.21, 35.35),
        "Rank-5 w/ X_sel": (46.25, 53.05, 34.57, 36.57),
        "Rank-5 w/ X_sel & prior": (47.54, 54.69, 35.60, 37.68),
    },
    "vrd": {
        "Rank-1": (39.01, 46.3, 31.12, 33.04),
        "Rank-2": (41.29, 51.58, 33.43, 35.16),
        "Rank-3": (40.28, 49.5, 32.46, 34.96),
        "Rank-4": (39.63, 49.64, 32.03, 33.52),
        "Rank-5": (40.47, 50.75, 32.59, 34.06),
        "Rank-5 w/ X_sel": (42.89, 52.47, 33.51, 35.78),
        "Rank-5 w/ X_sel & prior": (44.02, 53.99, 34.14, 36.07),
    },
}


def ablate(
    config: Config,
    out: str | Path,
    ranks: Sequence[int] = RANKS,
    *,
    seeds: int = 3,
    tasks: Sequence[str] = (PHRASES,),
    refit: Sequence[int] = (),
) -> Results:
    """Train and score each rank with each seed, beside the count table and the ceiling.

    Args:
        config: The model; its seed is the first of the seeds.
        out: A folder for the runs.
        ranks: R of ψ_c.
        seeds: How many.
        tasks: Classification tasks to score.
        refit: Ranks to train once more with the held-out images on which k was chosen; they get rows of their own, and
            so does the mean of several seeds' models, where they have the same backbone.
    """
    out = Path(out).expanduser().resolve()
    ranks, numbers = tuple(dict.fromkeys(ranks)), tuple(range(config.seed, config.seed + seeds))
    _check(config, ranks, numbers, refit)
    test, held_out = load_split(config, "test", pictures_of(config)), validation_scenes(config)
    if not len(test):
        raise PolyadicError(f"ablate: no test image of {test.name} has a picture")
    if not any(len(scene.relations) for scene in held_out):
        raise PolyadicError(f"ablate: {test.name} has no validation images with relations, on which k is chosen")
    name = "motifs" if config.data.dataset == "vg150" else "lu2016"
    protocols = [get_protocol(name).change(task=task, k=None, k_unit="triplet", tops=TOPS) for task in tasks]
    rows = [row for protocol in protocols for row in baselines(config, test, protocol)]
    scorer = _Scorer(test, held_out, protocols)
    if "evidence" in config.sources:
        say("ground-truth labels are given (sources has evidence): not comparable with models that see pixels alone")
    trained: dict[tuple[int, str], list[RelationModel]] = {}  # by rank and name
    for seed in numbers:
        base = _shared_backbone(config.change(seed=seed), out)
        for rank in ranks:
            folder, changed = out / f"rank-{rank}-seed-{seed}", base.change(**{"head.rank": rank})
            model = train_run(changed, folder)
            scored = scorer.score([model], changed, folder)
            rows += scored
            if rank in refit:
                folder, changed = folder.with_name(f"{folder.name}-all"), changed.change(**REFIT)
                again = train_run(changed, folder)
                rows += scorer.score([again], changed, folder, first=scored)
                for name, one in ((MODEL, model), (MODEL + ALL, again)):
                    trained.setdefault((rank, name), []).append(one)
            del model  # gigabytes at the paper's sizes, while the next one trains
    for rank in refit:
        if seeds == 1 or not _same_backbone(trained[rank, MODEL]):
            continue
        folder, changed = out / f"rank-{rank}-mean", config.change(**{"head.rank": rank})
        scored = scorer.score(trained[rank, MODEL], changed, folder)
        rows += scored
        folder = folder.with_name(f"{folder.name}-all")
        rows += scorer.score(trained[rank, MODEL + ALL], changed.change(**REFIT), folder, first=scored)
    return Results(tuple(rows), {"config": config_record(config), "ranks": ranks, "seeds": numbers})


def _check(config: Config, ranks: Sequence[int], seeds: Sequence[int], refit: Sequence[int]) -> None:
    if not ranks or not seeds or min(ranks) < 1:
        raise PolyadicError(
            f"ablate: expected ranks from 1 and at least one seed, got {list(ranks)}, {len(seeds)} seeds"
        )
    if not set(refit) <= set(ranks):
        raise PolyadicError(f"ablate: refit has ranks {sorted(set(refit) - set(ranks))}, which are not among the ranks")
    if not config.triplets.epochs and not config.proposals.epochs:
        raise PolyadicError("ablate: triplets.epochs and proposals.epochs are 0: there is nothing to compare")
    for rank in ranks:
        config.change(**{"head.rank": rank})  # raises before the work


def _same_backbone(models: Sequence[RelationModel]) -> bool:
    """Whether the models can share region features."""
    return len({None if model.backbone is None else model.backbone.fingerprint() for model in models}) == 1


def _shared_backbone(config: Config, out: Path) -> Config:
    """Train the backbone alone, once for all ranks; return the config that starts from it."""
    if not config.backbone.epochs or "pixels" not in config.sources:
        return config
    folder = out / f"backbone-seed-{config.seed}"
    alone: dict[str, Any] = {f"{stage}.epochs": 0 for stage in ("boxes", "triplets", "proposals", "selection")}
    train_run(config.change(**alone, **{"head.labels": False}), folder)
    return config.change(**{"backbone.epochs": 0, "pixels.weights": str(folder)})


@dataclass(frozen=True, eq=False)
class _Scorer:
    """Scores runs on the same images under the same protocols."""

    test: Dataset
    held_out: Sequence[Scene]
    protocols: Sequence[Protocol]  # without k

    def score(
        self, models: Sequence[RelationModel], config: Config, folder: Path, *, first: Sequence[Row] = ()
    ) -> list[Row]:
        """Choose k on the held-out images; for models trained on them, take it from the rows of the `first` ones.

        Several models are averaged.
        """
        model, *others = models
        names = [name for name, parts in PARTS.items() if _trained(model, parts)]
        if config.ranking.prior in (0.0, 1.0):
            names = [name for name in names if name != TEMPERED]
        known = {(row.task, row.parts): row.used for row in first if row.k == FREE}

        def measure() -> list[Row]:
            asked = [
                (protocol, name, replace(PARTS[name], labels=protocol.task == PREDICATES))
                for protocol in self.protocols
                for name in names
            ]
            if first:
                ks = [known[protocol.task, name] for protocol, name, _ in asked]
            else:
                images = self._images(model, config, folder, self.held_out)
                ks = free_ks(model, images, [(protocol, terms) for protocol, _, terms in asked], others=others)
            settings = [
                (protocol.change(k=used), name, terms, word)
                for (protocol, name, terms), free in zip(asked, ks, strict=True)
                for word, used in ((FREE, free), ("1", 1))
            ]
            images = self._images(model, config, folder, self.test.scenes)
            tables = recalls_of(model, images, [(protocol, terms) for protocol, _, terms, _ in settings], others=others)
            common: dict[str, Any] = {
                "dataset": self.test.name,
                "rank": config.head.rank,
                "seed": None if others else config.seed,
                "loss": None if first or others else float(best_of(folder)["held_out"]["loss"]),
                "seconds": None if others else round(training_seconds(folder), 1),
            }
            what = f"{MODEL}{TOGETHER if others else ''}{ALL if first else ''}"
            return [
                recall_row(what, row, parts=name, k=word, **common)
                for (_, name, _, word), table in zip(settings, tables, strict=True)
                for row in table
            ]

        depends = [*(protocol.label for protocol in self.protocols), repr(known), *models, *self.test]
        return cached_rows(folder / "scores.json", [*depends, *(() if first else self.held_out)], measure)

    def _images(self, model: RelationModel, config: Config, folder: Path, scenes: Sequence[Scene]) -> Images:
        regions = run_regions(model, config, folder)
        if regions is not None and model.backbone is not None:
            fill(regions, model.backbone, scenes, [scene.boxes for scene in scenes], config.workers)
        return Images(scenes, BoxSource(), regions, config.workers)


def _trained(model: RelationModel, parts: ScoreTerms) -> bool:
    """Check that the parts were trained. ψ_u is counted; a ψ_c of labels alone has no predicates."""
    has_parts = (not parts.selected or "selection" in model.stages) and (not parts.geometry or "boxes" in model.stages)
    return has_parts and (parts.geometry or not model.config.head.labels)


def baselines(config: Config, test: Dataset, protocol: Protocol) -> Iterator[Row]:
    """Score the count table, its k chosen like the model's, and the ceiling of the ground-truth boxes."""
    swept = [at_k(protocol, k) for k in FREE_K]
    reads = "evidence" in config.sources
    fit, held_out = load_split(config, "fit"), load_split(config, "validation")
    before = compare(held_out, [], swept, train=fit, reads_labels=reads)
    counted = [row for what, row in before.rows if what.startswith(COUNT_TABLE)]
    free = best_k([[row for row in counted if row.protocol == tried] for tried in swept])
    cuts = {FREE: free, "1": 1}
    protocols = list(dict.fromkeys(protocol.change(k=k) for k in cuts.values()))
    result = compare(test, [], protocols, train=load_split(config, "train"), reads_labels=reads)
    for word, k in cuts.items():
        for what, row in (*result.rows, *result.ceilings):
            if what != PREDICTIONS and row.protocol.k == k:
                mean = None if math.isnan(row.mean_recall) else row.mean_recall  # a ceiling has none
                yield recall_row(what, row, dataset=test.name, k=word, mean_recall=mean)


def table4(rows: Iterable[Row], task: str = PHRASES, *, exponent: float) -> list[TableLine]:
    """List the plain ranks, the first and last with each part added, the same trained on all images, then baselines.

    The paper's numbers are of phrase classification. `exponent` is that of the tempered prior.
    """
    rows = select(rows, task=task)
    paper = PAPER.get(rows[0].dataset, {}) if task == PHRASES else {}
    ranks = list(dict.fromkeys(row.rank for row in select(rows, what=MODEL)))
    named = [(f"Rank-{rank}", rank, "psi_c") for rank in ranks]
    for rank in dict.fromkeys((ranks[0], ranks[-1])):
        for parts, words in _ADDED.items():
            named.append((f"Rank-{rank} {words.format(exponent=exponent)}", rank, parts))
    chosen = {
        label + what.removeprefix(MODEL): select(rows, what=what, rank=rank, parts=parts)
        for what in (MODEL, MODEL + TOGETHER, MODEL + ALL, MODEL + TOGETHER + ALL)
        for label, rank, parts in named
    }
    others = dict.fromkeys(row.what for row in rows if not row.what.startswith(MODEL))
    chosen |= {what: select(rows, what=what) for what in others}
    columns = [(task, k, n) for k, n in COLUMNS]
    lines = []
    for label, some in chosen.items():
        losses = {row.seed: row.loss for row in some if row.loss is not None}
        loss = cell(losses.values()) if losses else None
        if some:  # not every model has every part
            lines.append(TableLine(label, recall_cells(some, columns), loss, paper.get(label)))
    return lines


def vrd_ablation(root: Path, weights: Path, out: Path, *, seeds: int = 3, ranks: Sequence[int] = RANKS) -> Results:
    """Pixels with ground-truth boxes on VRD: that half of Table 4 and, apart from it, our model of the same pixels.

    The paper's recipe (preset vrd-pixels) varies the rank and adds P(X_sel) and ψ_u. Ours (vrd-pixels-grown) takes
    labels from pixels, and all else from the box-conditioned prior. Both are scored with and without ground-truth
    labels. The first and the last rank, and ours, are trained twice: without the held-out images, on which k is chosen,
    and with all images. `weights` are the backbone's.
    """
    if not weights.expanduser().is_file():
        raise PolyadicError(f"--weights: no file {weights}; expected the backbone's, tf_efficientnet_lite0 of timm")
    out = out.expanduser().resolve()
    place = {
        "data.root": str(root.expanduser().resolve()),
        "pixels.weights": str(weights.expanduser().resolve()),
        "cache.folder": str(out / FEATURES),
    }
    recipe, ours = (PRESETS[name].change(**place) for name in ("vrd-pixels", "vrd-pixels-grown"))
    tasks, ranks = (PHRASES, PREDICATES), sorted(set(ranks))
    table = ablate(recipe, out / "paper", ranks, seeds=seeds, tasks=tasks, refit=_ends(ranks))
    boxes = ablate(ours, out / "ours", (1,), seeds=seeds, tasks=tasks, refit=(1,))
    # the loss of a head of labels is not that of triplets
    extra = (
        replace(row, what=row.what.replace(MODEL, OURS, 1), loss=None)
        for row in boxes.rows
        if row.what.startswith(MODEL)
    )
    configs = {"the paper's recipe": config_record(recipe), OURS: config_record(ours), "all images": REFIT}
    about = {"configs": configs, "ranks": ranks, "seeds": table.about["seeds"]}
    return Results((*table.rows, *extra), about)


def vrd_planned(ranks: Sequence[int], seeds: Iterable[int]) -> set[tuple[str, int | None, int | None]]:
    """List what, rank and seed of the rows of `vrd_ablation`."""
    kinds = {MODEL: ranks, MODEL + ALL: _ends(ranks), OURS: (1,), OURS + ALL: (1,)}
    return {(what, rank, seed) for seed in seeds for what, some in kinds.items() for rank in some}


def _ends(ranks: Sequence[int]) -> list[int]:
    return [min(ranks), max(ranks)] if ranks else []
