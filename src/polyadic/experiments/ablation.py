"""The paper's Table 4 on any dataset: ranks, P(X_sel) and priors, over several seeds (Ablation Study).

Each rank and seed is a run of its own, OUT/rank-R-seed-S, which keeps its scores: what is there is not made twice, so
that an interrupted ablation goes on when it is started again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polyadic
from polyadic.cache import digest
from polyadic.comparison import COUNT_TABLE, compare
from polyadic.config import Config
from polyadic.evaluation import FREE_K, Protocol, get_protocol
from polyadic.experiments.predicting import best_k, free_ks, recalls_of, sweep
from polyadic.experiments.runs import best_of, pictured, regions_of, seconds_of, validation_of
from polyadic.model import Parts, RelationModel
from polyadic.scenes import Dataset, Scene
from polyadic.storing import WEIGHTS, write_text
from polyadic.training import Silent, Stop, Watcher, train
from polyadic.training.data import load_split
from polyadic.training.examples import BoxSource
from polyadic.training.regions import fill
from polyadic.vocabulary import PolyadicError

RANKS = (1, 2, 3, 4, 5)  # paper
TOPS = (50, 100)
MODEL = "model"
PHRASES, PREDICATES = "phrase-classification", "predicate-classification"  # true boxes; true labels as well
TEMPERED = "psi_c + selected + tempered prior"

PARTS = {
    "psi_c": Parts(selected=False, prior=False, geometry=False),
    "psi_c + selected": Parts(selected=True, prior=False, geometry=False),
    "psi_c + selected + prior": Parts(selected=True, prior=True, geometry=False, prior_exponent=1.0),
    TEMPERED: Parts(selected=True, prior=True, geometry=False),  # ours: with the config's exponent
    "psi_c + geometry": Parts(selected=False, prior=False, geometry=True),  # ours
}


@dataclass(frozen=True)
class Row:
    """One number. `k` is what was asked for, free or 1, and `used` what it came to."""

    what: str  # model, count table or ceiling
    dataset: str
    protocol: str
    rank: int | None
    seed: int | None
    parts: str
    k: str
    used: str
    N: str
    recall: float
    loss: float | None = None  # -log ψ_c of held-out annotated pairs
    seconds: float | None = None  # of training steps


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
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    tasks: Sequence[str] = (PHRASES,),
) -> Ablation:
    """Train and score each rank with each seed, beside the count table and the ceiling.

    A backbone that is to be trained is trained once per seed, and shared by all ranks.
    """
    out, watcher, stop = Path(out).expanduser().resolve(), watcher or Silent(), stop or Stop()
    ranks, numbers = tuple(dict.fromkeys(ranks)), tuple(range(config.seed, config.seed + seeds))
    if not ranks or not numbers or min(ranks) < 1:
        raise PolyadicError(f"ablate: expected ranks from 1 up and at least one seed, got {list(ranks)} and {seeds}")
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
    rows = [row for protocol in protocols for row in _baselines(config, test, protocol)]
    if "evidence" in config.sources:
        watcher.say("true boxes are given with their labels (sources has evidence): not comparable with pixels alone")
    for seed in numbers:
        base = _shared_backbone(config.change(seed=seed), out, watcher, stop)
        for rank in ranks:
            watcher.say(f"rank {rank}, seed {seed}")
            folder, mine = out / f"rank-{rank}-seed-{seed}", base.change(**{"head.rank": rank})
            model = _train(mine, folder, watcher, stop)
            rows += _scores(model, mine, folder, test, held_out, protocols, watcher, stop)
    return Ablation(config, ranks, numbers, tuple(rows))


def _protocol(dataset: str, task: str) -> Protocol:
    name = "motifs" if dataset == "vg150" else "lu2016"
    return get_protocol(name).change(task=task, k=None, k_unit="triplet", tops=TOPS)


def _train(config: Config, folder: Path, watcher: Watcher, stop: Stop) -> RelationModel:
    """Goes on in a run that is there; one that is complete has nothing left to do."""
    return train(config, folder, resume=(folder / "config.json").is_file(), watcher=watcher, stop=stop)


def _shared_backbone(config: Config, out: Path, watcher: Watcher, stop: Stop) -> Config:
    """A run of the stage [backbone] alone, and the config that starts from its backbone."""
    if not config.backbone.epochs or "pixels" not in config.sources:
        return config
    folder = out / f"backbone-seed-{config.seed}"
    alone: dict[str, Any] = {f"{stage}.epochs": 0 for stage in ("boxes", "triplets", "proposals", "selection")}
    alone["head.labels"] = False
    watcher.say(f"backbone, seed {config.seed}")
    _train(config.change(**alone), folder, watcher, stop)
    return config.change(**{"backbone.epochs": 0, "pixels.weights": str(folder)})


def _scores(
    model: RelationModel,
    config: Config,
    folder: Path,
    test: Dataset,
    held_out: Sequence[Scene],
    protocols: Sequence[Protocol],
    watcher: Watcher,
    stop: Stop,
) -> list[Row]:
    """From the file that an earlier ablation left, if it is of this model and these images."""
    path, weights = folder / "scores.json", (folder / "model" / WEIGHTS).stat()
    images = [part for scene in (*test, *held_out) for part in (scene.name, scene.boxes, scene.relations)]
    asked = [protocol.label for protocol in protocols]
    key = digest(polyadic.__version__, weights.st_size, weights.st_mtime_ns, *asked, *images)
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] == key:
            return [Row(**row) for row in found["rows"]]
    rows = _score(model, config, folder, test, held_out, protocols, watcher, stop)
    write_text(path, json.dumps({"key": key, "rows": [asdict(row) for row in rows]}, indent=1))
    return rows


def _score(
    model: RelationModel,
    config: Config,
    folder: Path,
    test: Dataset,
    held_out: Sequence[Scene],
    protocols: Sequence[Protocol],
    watcher: Watcher,
    stop: Stop,
) -> list[Row]:
    regions, true = regions_of(model, config, folder), BoxSource()
    if regions is not None and model.backbone is not None:
        scenes = (*held_out, *test)
        fill(regions, model.backbone, scenes, [scene.boxes for scene in scenes], config.workers, watcher, stop)
    names = [name for name, parts in PARTS.items() if _trained(model, parts)]
    if config.ranking.prior in (0.0, 1.0):
        names = [name for name in names if name != TEMPERED]
    how = (true, regions)
    used = [(each, name, replace(PARTS[name], labels=each.task == PREDICATES)) for each in protocols for name in names]
    free = free_ks(model, held_out, *how, [(each, parts) for each, _, parts in used], config.workers, watcher, stop)
    cuts = [(name, word, k) for (_, name, _), each in zip(used, free, strict=True) for word, k in _ks(each)]
    settings = [
        (each.change(k=k), parts) for (each, _, parts), own in zip(used, free, strict=True) for _, k in _ks(own)
    ]
    tables = recalls_of(model, test.scenes, *how, settings, config.workers, watcher, stop)
    loss, seconds = float(best_of(folder)["held_out"]["loss"]), round(seconds_of(folder), 1)
    return [
        Row(
            MODEL,
            test.name,
            row.protocol.label,
            config.head.rank,
            config.seed,
            name,
            word,
            str(k or "any"),
            str(row.top),
            row.recall,
            loss,
            seconds,
        )
        for (name, word, k), table in zip(cuts, tables, strict=True)
        for row in table
    ]


def _ks(free: int | None) -> tuple[tuple[str, int | None], ...]:
    return ("free", free), ("1", 1)


def _trained(model: RelationModel, parts: Parts) -> bool:
    """Whether the parts are there; ψ_u is counted, not trained. A ψ_c of labels alone says nothing of predicates."""
    there = (not parts.selected or "selection" in model.stages) and (not parts.geometry or "boxes" in model.stages)
    return there and (parts.geometry or not model.config.head.labels)


def _baselines(config: Config, test: Dataset, protocol: Protocol) -> Iterator[Row]:
    """What counts alone reach, its k chosen like the model's, and what no ranking of these boxes exceeds."""
    swept = [sweep(protocol, k) for k in FREE_K]
    before = compare(load_split(config, "validation"), [], swept, load_split(config, "fit"))
    counted = [row for what, row in before.rows if what == COUNT_TABLE]
    free = best_k([[row for row in counted if row.protocol == each] for each in swept])
    cuts = {"free": free, "1": 1}
    protocols = dict.fromkeys(protocol.change(k=k) for k in cuts.values())
    found = compare(test, [], list(protocols), load_split(config, "train"))
    for word, k in cuts.items():
        for what, row in found.rows:
            if what == COUNT_TABLE and row.protocol.k == k:
                place: dict[str, Any] = {"rank": None, "seed": None, "parts": "", "k": word, "used": str(k or "any")}
                yield Row(what, test.name, row.protocol.label, **place, N=str(row.top), recall=row.recall)
    for what, base, value in found.ceilings:
        yield Row(what, test.name, base.label, None, None, "", "any", "any", "any", value)
