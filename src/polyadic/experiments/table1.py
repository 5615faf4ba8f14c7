"""The paper's Table 1: relationship and phrase detection on given proposals, from data to numbers.

Training sees simulated detections like the proposals (`data.simulate`). Where those are of the test images, the noise
model has seen unlabelled detections of the scored images, so there are two fits. Plain: noise from all proposals.
Cross-fitted: noise from those of one half of the images, scored on the other half, both ways. A third kind of run holds
training images out, to measure the effect of each ingredient. `paper.paper_table` has one fit: any model, any detector.

Runs and scores that are already in the output folder are kept: an interrupted experiment continues when started again.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyadic.config import PRESETS
from polyadic.config.schema import Config
from polyadic.evaluation import Evaluator
from polyadic.evaluation.compare import PREDICTIONS, compare
from polyadic.evaluation.misses import OUTCOMES, MissCounter
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.results import (
    FREE,
    Cell,
    Column,
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
    evaluate_run,
    free_ks,
    mean_scores,
    open_run,
    read_detections_of,
    run_regions,
    train_run,
    training_seconds,
)
from polyadic.io.records import read_detections, write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.model.scoring import ALL, ScoredPairs, ScoreTerms
from polyadic.progress import say
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.examples import BoxSource, Example, load_split, load_training, pictures_of
from polyadic.training.validation import annotated_loss, score_scenes

TASKS, KS, TOPS = ("relationship", "phrase"), (1, 10), (50, 100)
COLUMNS = tuple((task, k, top) for task in TASKS for k in ("1", "10", FREE) for top in TOPS)
FIXED = tuple(column for column in COLUMNS if column[1] != FREE)
FULL, MEAN = "full", "mean of the seeds' models"
EVIDENCE, BOTH = "evidence", "pixels and evidence"

_NO = (math.nan, math.nan)

# in the order of COLUMNS
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "vrd": {
        "Lang. Cues, Lu's proposals": (
            *(*_NO, 16.89, 20.70, 16.89, 20.70),
            *(*_NO, 15.08, 18.37, 15.08, 18.37),
        ),
        "VRD, Lu's proposals": (
            *(13.80, 14.70, 17.43, 22.03, 17.43, 22.03),
            *(16.17, 17.03, 20.42, 25.52, 20.42, 25.52),
        ),
        "LargeVRU, Lu's proposals": (
            *(16.08, 17.07, 19.18, 22.64, 19.18, 22.64),
            *(18.32, 19.78, 21.69, 25.92, 21.69, 25.92),
        ),
        "the paper, Lu's proposals": (
            *(17.67, 18.64, 24.08, 28.29, 24.08, 28.29),
            *(20.80, 22.13, 29.17, 34.33, 29.17, 34.33),
        ),
        "Yu et al., better proposals": (
            *(19.17, 21.34, 22.56, 29.89, 22.68, 31.89),
            *(23.14, 24.03, 26.47, 29.76, 26.47, 29.76),
        ),
        "Zoom-Net, better proposals": (
            *(18.92, 21.41, *_NO, 21.37, 27.30),
            *(24.82, 28.09, *_NO, 29.05, 37.34),
        ),
        "CAI+SCA-M, better proposals": (
            *(19.54, 22.39, *_NO, 22.34, 28.52),
            *(25.21, 28.89, *_NO, 29.64, 38.39),
        ),
        "LargeVRU, better proposals": (
            *(23.68, 26.67, 26.98, 32.63, 26.98, 32.63),
            *(28.93, 32.85, 32.90, 39.66, 32.90, 39.66),
        ),
        "MF-URLN, better proposals": (
            *(23.9, 26.8, *_NO, 23.9, 26.8),
            *(31.5, 36.1, *_NO, 31.5, 36.1),
        ),
        "the paper, better proposals": (
            *(24.20, 25.87, 27.09, 34.93, 27.09, 34.93),
            *(28.53, 30.92, 32.29, 41.28, 32.29, 41.28),
        ),
    }
}


@dataclass(frozen=True)
class Variant:
    """The model with one ingredient changed."""

    name: str
    training: Mapping[str, Any] = field(default_factory=dict)  # config changes that need another training
    ranking: Mapping[str, Any] = field(default_factory=dict)  # config changes of ranking alone
    parts: ScoreTerms = ALL


def variants(config: Config) -> list[Variant]:
    """List the full model, then one ingredient changed at a time."""
    true_boxes = {f"triplets.{name}": value for name, value in asdict(config.proposals).items()}
    return [
        Variant(FULL),
        Variant("labels as detected", parts=ScoreTerms(relabel=False)),
        Variant("no dedup", parts=ScoreTerms(dedup=False)),
        Variant("no P(X_sel)", parts=ScoreTerms(selected=False)),
        Variant("no prior", parts=ScoreTerms(prior=False)),
        Variant("prior^0.5", ranking={"ranking.prior": 0.5}),
        Variant("prior^1", ranking={"ranking.prior": 1.0}),
        Variant("confidences^1", ranking={"ranking.boxes": 1.0}),
        Variant("NMS at 0.7", ranking={"ranking.nms": 0.7}),
        *(Variant(f"rank {rank}", training={"head.rank": rank}) for rank in (1, 2, 5)),
        Variant(
            "trained on true boxes",
            training={**true_boxes, "proposals.epochs": 0},
            ranking={"ranking.boxes": 4.0, "ranking.prior": 0.25},
        ),
    ]


def boxes_table(
    config: Config, proposals: Path, out: Path, *, seeds: Sequence[int], ingredients: Sequence[int] = ()
) -> Results:
    """Train and score models of boxes and labels, without pixels, on a detector's proposals of the test images.

    Args:
        config: The model, with the dataset.
        proposals: A file of boxes of the test images.
        out: A folder for runs and scores.
        seeds: One training of each fit per seed.
        ingredients: The seeds with which each ingredient is changed in turn; those are many runs.
    """
    experiment = Experiment(config, proposals.expanduser().resolve(), out.expanduser().resolve(), tuple(seeds))
    plain = config.change(**{"data.simulate": str(experiment.proposals)})
    rows = [*experiment.baseline(), *experiment.fitted("plain", [("plain", plain, experiment.test)])]
    rows += experiment.fitted("cross-fitted", experiment.halves(config, experiment.boxes))
    if ingredients:
        rows += experiment.held_out(ingredients)
    about = {"config": config_record(config), "seeds": experiment.seeds, "dataset": experiment.test.name}
    return Results(tuple(rows), {**about, "training_seconds": experiment.trained})


@dataclass(frozen=True, eq=False)
class Group:
    """Models, averaged, and the images that they score."""

    models: Sequence[RelationModel]
    data: Dataset


class Experiment:
    """The data, the runs and the scores."""

    def __init__(self, config: Config, proposals: Path, out: Path, seeds: tuple[int, ...]) -> None:
        self.config, self.proposals, self.out, self.seeds = config, proposals, out, seeds  # `boxes` may be replaced
        self.trained: dict[str, float] = {}
        self.free: dict[str, int | None] = {}  # by task, the k of the columns of free k; none without `choose_k`
        self.test = load_split(config, "test")
        self.seen = load_split(config, "train").triplets()  # [M, 3], for zero-shot recall
        self.boxes = read_proposals(proposals, self.test)

    def baseline(self, fit: str = "baseline") -> Iterator[Row]:
        """Score the count table on the same boxes, and the ceilings that no ranking of them exceeds."""
        cuts = cuts_of(self.free)
        protocols = list(dict.fromkeys(protocol for _, _, some in cuts for protocol in some))
        train = load_split(self.config, "train")
        result = compare(self.test, [], protocols, train=train, detections=self.boxes)
        common: dict[str, Any] = {"dataset": self.test.name, "split": self.test.split, "fit": fit}
        for word, _, some in cuts:
            for what, row in (*result.rows, *result.ceilings):
                if what != PREDICTIONS and row.protocol in some:
                    yield recall_row(what, row, **common, k=word)

    def choose_k(self, name: str, config: Config) -> None:
        """Choose the free k of each task on held-out images, with a model that has not seen them, of the first seed."""
        seed = self.seeds[0]
        data = load_training(config.change(seed=seed))
        if not any(len(scene.relations) for scene in data.validation):
            say(f"{name}: no held-out image has a relation, so no free k is chosen")
            return
        model = self._train(config, f"{name}-held-out-seed-{seed}", seed)
        asked = [(protocol, ALL) for protocol in protocols_of(None) if protocol.subset == "all"]
        images = Images(data.validation, data.proposals, run_regions(model, config, self.out / name))
        chosen = free_ks(model, images, asked)
        self.free = {protocol.task: k for (protocol, _), k in zip(asked, chosen, strict=True)}

    def fitted(self, fit: str, parts: Sequence[tuple[str, Config, Dataset]]) -> Iterator[Row]:
        """Train one model per part and seed, score each part with its models, all counted together, then their means.

        A part has the name of its runs, their config, and the images to score.
        """
        models: list[list[RelationModel]] = [[] for _ in parts]
        for seed in self.seeds:
            for (name, config, _), some in zip(parts, models, strict=True):
                some.append(self._train(config.change(**{"validation.images": 0}), f"{name}-seed-{seed}", seed))
            groups = [Group(some[-1:], data) for (_, _, data), some in zip(parts, models, strict=True)]
            yield from self.score(f"{fit}-seed-{seed}", groups, fit, seed=seed)
        if len(self.seeds) > 1:
            groups = [Group(some, data) for (_, _, data), some in zip(parts, models, strict=True)]
            yield from self.score(f"{fit}-mean", groups, fit)

    def held_out(self, seeds: Sequence[int]) -> Iterator[Row]:
        """Train each variant without the held-out images; score it on the test images and on those."""
        trainings: dict[str, list[Variant]] = {}
        for variant in variants(self.config):
            trainings.setdefault(json.dumps(dict(variant.training), sort_keys=True), []).append(variant)
        config = self.config.change(**{"data.simulate": str(self.proposals)})
        validation, boxes = load_split(config, "validation"), load_training(config).proposals
        for seed in seeds:
            for same in trainings.values():
                name = f"held-out-{same[0].name.replace(' ', '-')}-seed-{seed}"
                model = self._train(config.change(**same[0].training), name, seed)
                groups = [Group([model], self.test)], [Group([model], validation)]
                yield from self.score(f"{name}-test", groups[0], "held-out", seed=seed, asked=same)
                scored = self.score(f"{name}-validation", groups[1], "held-out", seed=seed, asked=same, source=boxes)
                for row in scored:
                    yield row if row.loss is None else replace(row, seconds=self.trained[name])

    def halves(
        self, config: Config, boxes: Mapping[str, Detections], prefix: str = ""
    ) -> list[tuple[str, Config, Dataset]]:
        """List the parts of a cross-fit: noise from the boxes of one half of the test images, scored on the other."""
        parts = []
        for half in (0, 1):
            path = self.out / f"{prefix}proposals-{1 - half}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            chosen = [detections for name, detections in boxes.items() if half_of(name) == 1 - half]
            write_detections(path, chosen, self.test.vocabulary, overwrite=True)
            scored = self.test.keep(lambda scene, half=half: half_of(scene.name) == half, self.test.split)  # type: ignore[misc]
            parts.append((f"{prefix}from-half-{1 - half}", config.change(**{"data.simulate": str(path)}), scored))
        return parts

    def _train(self, config: Config, name: str, seed: int) -> RelationModel:
        model = train_run(config.change(seed=seed), self.out / name)
        self.trained[name] = round(training_seconds(self.out / name), 1)
        return model

    def score(
        self,
        name: str,
        groups: Sequence[Group],
        fit: str,
        *,
        seed: int | None = None,
        asked: Sequence[Variant] = (Variant(FULL),),
        source: BoxSource | None = None,
    ) -> list[Row]:
        """Score these models on their images and boxes, cached in a file."""
        source = source or BoxSource(self.boxes)
        parts = [repr(asked), repr(self.free), *(source.detections or {}).values()]
        parts += [part for noise in source.noise for item in noise.to_arrays().items() for part in item]
        parts += [part for group in groups for part in (group.data.split, *group.data, *group.models)]
        path = self.out / "scores" / f"{name}.json"
        return cached_rows(
            path,
            parts,
            lambda: score_groups(
                groups, source, asked, fit=fit, seed=seed, seen=self.seen, free=self.free, folder=self.out / name
            ),
        )


def read_proposals(path: Path, test: Dataset) -> dict[str, Detections]:
    """Read a detector's boxes of the test images; refuse a file that has none of them."""
    boxes = {image.image: image for image in read_detections(path, test.vocabulary, sizes=test.sizes)}
    missing = sum(scene.name not in boxes for scene in test)
    if missing == len(test):
        raise PolyadicError(f"{path.name} has boxes of none of the {missing:,} test images")
    if missing:
        say(f"{path.name} has no boxes of {missing:,} of {len(test):,} test images")
    return boxes


def score_groups(
    groups: Sequence[Group],
    source: BoxSource,
    asked: Sequence[Variant] = (Variant(FULL),),
    *,
    fit: str,
    seed: int | None,
    seen: Any,
    free: Mapping[str, int | None],
    folder: Path,
) -> list[Row]:
    """Score each group on its own images, all counted together: recalls, outcomes of ground truths, held-out loss.

    Features of pixels are cached beside `folder`.
    """
    split = groups[0].data.split
    n = len(groups[0].data.vocabulary.predicates)
    cuts = cuts_of(free)
    evaluators = {
        (variant.name, word, protocols[0].task): Evaluator(protocols, n, seen)
        for variant in asked
        for word, _, protocols in cuts
    }
    outcomes = {} if fit == "held-out" else {k: MissCounter(protocols_of(k)[0], seen) for k in KS}
    loss, pairs = 0.0, 0
    for group in groups:
        for variant, model, example, scores in _scored(group, source, asked, folder):
            boxes, labels = example.boxes.boxes, example.boxes.labels
            ranked = {
                k: replace(scores, model=model).rank(k, max(TOPS), terms=variant.parts)
                for k in dict.fromkeys(k for _, k, _ in cuts)
            }
            for word, k, protocols in cuts:
                evaluators[variant.name, word, protocols[0].task].update(example.scene, ranked[k])
            if variant.name == FULL:
                for k, counter in outcomes.items():
                    counter.update(example.scene, ranked[k], boxes, labels)
            if variant is asked[0]:
                loss, pairs = loss + annotated_loss(example, scores), pairs + len(example.boxes.pairs)
    common: dict[str, Any] = {"dataset": groups[0].data.name, "split": split, "fit": fit, "seed": seed}
    averaged = len(groups[0].models) > 1
    rows = [
        recall_row(MEAN if averaged else name, row, **common, k=word)
        for (name, word, _), evaluator in evaluators.items()
        for row in evaluator.result()
    ]
    rows += [
        Row(
            what=MEAN if averaged else FULL,
            **common,
            protocol=row.protocol.label,
            task=row.protocol.task,
            k=str(k),
            N=row.top,
            outcome=outcome,
            ground_truths=count,
            share=share,
        )
        for k, counter in outcomes.items()
        for row in counter.result()
        for outcome, count, share in zip(OUTCOMES, row.counts, row.shares, strict=True)
        if row.truths
    ]
    if split == "validation" and pairs:
        rows.append(Row(what=asked[0].name, **common, loss=loss / pairs))
    return rows


def _scored(
    group: Group, source: BoxSource, asked: Sequence[Variant], folder: Path
) -> Iterator[tuple[Variant, RelationModel, Example, ScoredPairs]]:
    """Run the networks once for all variants with the same boxes; the first model ranks."""
    rankers = {variant.name: with_config(group.models[0], variant.ranking) for variant in asked}
    for overlap in dict.fromkeys(ranker.config.ranking.nms for ranker in rankers.values()):
        models = [with_config(model, {"ranking.nms": overlap}) for model in group.models]
        same = [variant for variant in asked if rankers[variant.name].config.ranking.nms == overlap]
        regions = [run_regions(model, model.config, folder) for model in models]
        each = zip(models, regions, strict=True)
        passes = [score_scenes(model, group.data.scenes, source, regions=cached) for model, cached in each]
        for scored in zip(*passes, strict=True):
            averaged = mean_scores([scores for _, scores in scored])
            for variant in same:
                yield variant, rankers[variant.name], scored[0][0], averaged


def with_config(model: RelationModel, changes: Mapping[str, Any]) -> RelationModel:
    """Copy a model: the same weights under another config."""
    model = copy.copy(model)
    model.config = model.config.change(**changes)
    return model


def cuts_of(free: Mapping[str, int | None]) -> list[tuple[str, int | None, list[Protocol]]]:
    """List each k of the columns, by its name, with its protocols; free k is each task's own."""
    fixed: list[tuple[str, int | None, list[Protocol]]] = [(str(k), k, protocols_of(k)) for k in KS]
    return fixed + [(FREE, k, [each for each in protocols_of(k) if each.task == task]) for task, k in free.items()]


def protocols_of(k: int | None) -> list[Protocol]:
    """List the protocols of a k, relationship detection first."""
    base = get_protocol("lu2016").change(k=k, k_unit="triplet", tops=TOPS)
    return [base.change(task=task, subset=subset) for task in TASKS for subset in ("all", "zero-shot")]


def half_of(name: str) -> int:
    """Assign an image to half 0 or 1 by its name: the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


def columns_of(rows: Iterable[Row]) -> tuple[Column, ...]:
    """List the columns that the rows fill: not every experiment chooses a free k."""
    return COLUMNS if any(row.k == FREE for row in rows) else FIXED


def headline(
    rows: Iterable[Row],
    dataset: str = "",
    *,
    subset: str = "all",
    metric: str = "recall",
    columns: Sequence[Column] | None = None,
) -> list[TableLine]:
    """List baselines and ceilings, each fit and the averaged models; for the whole test set, the dataset's in PAPER."""
    rows = list(rows)
    columns = columns or columns_of(rows)
    scored = [row for row in rows if row.recall is not None and row.subset in ("", subset) and row.fit != "held-out"]
    lines = []
    for fit, what in dict.fromkeys((row.fit, row.what) for row in scored):
        name = what if fit in ("", "baseline") else fit if what == FULL else f"{fit}, {what}"
        lines.append(TableLine(name, recall_cells(select(scored, fit=fit, what=what), columns, metric)))
    if subset == "all" and metric == "recall":
        for name, numbers in PAPER.get(dataset, {}).items():
            place = dict(zip(COLUMNS, numbers, strict=True))
            lines.append(TableLine(name, tuple(Cell(place[column]) for column in columns)))
    return lines


def ingredients(rows: Iterable[Row], split: str) -> list[TableLine]:
    """List the variants, trained without the held-out images, on a split, with the held-out loss."""
    rows = select(rows, fit="held-out")
    scored = [row for row in select(rows, split=split, subset="all") if row.recall is not None]
    losses = {
        what: cell(row.loss for row in select(rows, what=what)) for what in {row.what for row in rows if row.loss}
    }
    return [
        TableLine(what, recall_cells(select(scored, what=what), FIXED), losses.get(what))
        for what in dict.fromkeys(row.what for row in scored)
    ]


def shares(rows: Iterable[Row], fit: str, k: int, top: int) -> dict[str, Cell]:
    """Compute the percentage of ground truths by outcome, over seeds."""
    chosen = [row for row in select(rows, fit=fit, k=str(k), N=top) if row.outcome and row.seed is not None]
    outcomes = dict.fromkeys(row.outcome for row in chosen)
    return {outcome: cell(row.share for row in select(chosen, outcome=outcome)) for outcome in outcomes}


def vrd_both(root: Path, weights: Path, proposals: Path, *, out: Path, seeds: Sequence[int]) -> Results:
    """Train on pixels and detector evidence beside evidence alone, on VRD's images that have a picture.

    Some training images may have none, so a model trained on all annotations would not be a fair comparison.
    """
    for name, path in (("--weights", weights), ("--proposals", proposals)):
        if not path.expanduser().is_file():
            raise PolyadicError(f"{name}: no file {path}")
    root, weights, proposals = (path.expanduser().resolve() for path in (root, weights, proposals))
    configs = both_configs(root, weights, proposals)
    protocols = [get_protocol("lu2016").change(task=task, k_unit="triplet", tops=TOPS) for task in TASKS]
    if not len(load_split(configs[BOTH], "test", pictures_of(configs[BOTH]))):
        raise PolyadicError("no test image of vrd has a picture")
    rows = []
    for seed in seeds:
        for what, config in configs.items():
            folder = out.expanduser().resolve() / f"{what.replace(' ', '-')}-seed-{seed}"
            train_run(config.change(seed=seed), folder)
            run = open_run(folder)
            scores = evaluate_run(run, protocols, KS, detections=read_detections_of(proposals, run))
            seconds = round(training_seconds(folder), 1)
            for name, row in scores.result.rows:
                if name == PREDICTIONS and row.protocol.subset == "all":
                    rows.append(recall_row(what, row, seed=seed, seconds=seconds))
    return Results(tuple(rows), {"configs": {what: config_record(config) for what, config in configs.items()}})


def both_configs(root: Path, weights: Path, proposals: Path) -> dict[str, Config]:
    """Build the configs of both kinds of model, as similar as possible."""
    place = {"data.root": str(root), "data.pictures": "present", "data.simulate": str(proposals)}
    alone = PRESETS["vrd-boxes"].change(**place, **{"validation.images": 0})
    pixels = replace(PRESETS["vrd-pixels"].pixels, weights=str(weights), side=384, longest=384, place=False)
    cache = replace(alone.cache, gigabytes=0.0)  # simulated boxes never repeat
    head = replace(alone.head, input_dropout=0.3)  # many pixels, few images
    both = replace(alone, sources=("pixels", "evidence"), pixels=pixels, head=head, cache=cache, workers=1)
    return {EVIDENCE: alone, BOTH: both}
