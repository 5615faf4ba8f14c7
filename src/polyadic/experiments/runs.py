"""Training runs on disk: train or continue one, open it with its data, predict a split, evaluate it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from polyadic.config import DetectorConfig
from polyadic.config.schema import Config
from polyadic.cp import CPTensor
from polyadic.datasets import format_of
from polyadic.detectors.detector import Detector
from polyadic.evaluation import Evaluator
from polyadic.evaluation.compare import Comparison, compare
from polyadic.evaluation.misses import Misses
from polyadic.evaluation.protocol import FREE_K, Protocol, Recall, Recalls
from polyadic.experiments.results import FREE, RunScores
from polyadic.files import WEIGHTS, check_place, parse_json
from polyadic.io.records import read_detections, write_relations
from polyadic.model.relation_model import PRECISION, RelationModel
from polyadic.model.scoring import ALL, ScoredPairs, ScoreTerms
from polyadic.model.storage import pick_device
from polyadic.pretrained import synonyms
from polyadic.progress import say
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import run_config, train
from polyadic.training.examples import BoxSource, load_split, load_training, pictures_of
from polyadic.training.proposals import FOUND, detected
from polyadic.training.region_cache import FeatureCache, Regions
from polyadic.training.run import log_entry
from polyadic.training.validation import score_scenes

Setting = tuple[int | None, ScoreTerms]  # k triplets per pair (None: any number), and the terms of f_spo
K = int | Literal["free"] | None
AnyConfig = TypeVar("AnyConfig", Config, DetectorConfig)


@dataclass(frozen=True, eq=False)
class Images:
    """Images to predict, where their boxes come from, and their region features."""

    scenes: Sequence[Scene]
    boxes: BoxSource = field(default_factory=BoxSource)  # the ground-truth boxes
    regions: Regions | None = None
    workers: int = 0


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A trained model with a split of its data."""

    folder: Path
    config: Config
    model: RelationModel
    data: Dataset
    regions: Regions | None

    def validation(self) -> tuple[Scene, ...]:
        """List the held-out images that training validated on."""
        return validation_scenes(self.config)

    def images(self, scenes: Sequence[Scene] | None = None, boxes: BoxSource | None = None) -> Images:
        """Prepare the split, or other scenes, on ground-truth boxes or on others."""
        chosen = self.data.scenes if scenes is None else scenes
        return Images(chosen, boxes or BoxSource(), self.regions, self.config.workers)


def train_run(config: Config, folder: Path) -> RelationModel:
    """Train into a folder. A run in it is continued; a complete one is loaded."""
    begun = check_run_folder(folder)
    say(folder.name)
    return train(config, folder, resume=begun)


def check_run_folder(folder: Path) -> bool:
    """Tell whether a run was begun in the folder; refuse one with other content."""
    begun = (folder / "config.json").is_file()
    if folder.exists() and not begun and (not folder.is_dir() or any(folder.iterdir())):
        raise PolyadicError(f"{folder} exists and is not a run: move it, or choose another --out")
    return begun


def open_run(
    folder: str | Path, split: str = "test", dataset: str | None = None, *, root: str | Path | None = None
) -> OpenRun:
    """Open a run, or a saved model, with a split of its dataset or of another one with the same vocabulary."""
    folder = Path(folder).expanduser()
    if folder.name == "model" and (folder.parent / "config.json").is_file():
        folder = folder.parent  # the run's config has the path of the data
    config = change_data(run_config(folder), dataset, root)
    data = load_split(config, split, pictures_of(config))
    if config.threads:
        torch.set_num_threads(config.threads)
    device = pick_device("cpu" if config.device == "cpu" else "auto")  # the run may be from another machine
    model = RelationModel.load(folder, device, data.vocabulary)
    return OpenRun(folder, config, model, data, run_regions(model, config, folder))


def change_data(config: AnyConfig, dataset: str | None, root: str | Path | None) -> AnyConfig:
    """Change the dataset or its folder in the config of a run or a detector."""
    if dataset is not None and dataset != config.data.dataset:
        format_of(dataset)
        config = config.change(**{"data.dataset": dataset, "data.root": ""})
    if root is None:
        return config
    if config.data.dataset == "toy":
        raise PolyadicError(f"the toy dataset is generated and takes no folder, got {root}")
    return config.change(**{"data.root": str(root)})


def validation_scenes(config: Config) -> tuple[Scene, ...]:
    return load_split(config, "validation", pictures_of(config)).scenes[: config.validation.images]


def run_regions(model: RelationModel, config: Config, folder: Path) -> Regions | None:
    """Open the region features, from the cache that training filled if it still exists."""
    if model.backbone is None:
        return None
    cache_folder = Path(config.cache.folder).expanduser() if config.cache.folder else folder.parent / "features"
    cache = FeatureCache(cache_folder, int(config.cache.gigabytes * 1e9))
    return Regions(config.pixels, cache, model.backbone.fingerprint(), PRECISION[config.precision])


# everything that a run's folder may hold
RUN_FILES = {"config.json", "model", "last.pt", "log.jsonl", "tensorboard", "detected", ".lock"}
RUN_FILES |= {"scores.json", "page.json"}  # of tables, of `polyadic serve --run`


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "last.pt").is_file()


def best_of(folder: Path) -> dict[str, Any]:
    """Read the stage, epoch and held-out metrics of a run's best model."""
    from safetensors import SafetensorError, safe_open

    path = folder / "model" / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})["about"]
    except (SafetensorError, OSError, KeyError) as error:
        raise PolyadicError(f"{path} cannot be read: it is damaged or truncated ({error})") from error
    about: dict[str, Any] = parse_json(text.encode(), f"{path}, about", dict[str, Any])
    return about


def training_seconds(folder: Path) -> float:
    """Sum the time of a run's training steps, without interruptions, region features and validation."""
    total = last = 0.0
    path = folder / "log.jsonl"
    if not path.exists():
        return math.nan  # the log could not be written
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        entry = log_entry(line)
        if entry is not None and entry.event == "step":
            now = entry.numbers.get("seconds", last)
            total += now - last if now > last else now  # the clock restarts with each epoch
            last = now
        else:
            last = 0.0
    return total


def read_detections_of(path: Path, run: OpenRun) -> dict[str, Detections]:
    given = read_detections(path, run.data.vocabulary, synonyms(run.data.vocabulary), sizes=run.data.sizes)
    return {detections.image: detections for detections in given}


def predict_scenes(
    model: RelationModel,
    images: Images,
    settings: Sequence[Setting],
    *,
    top: int = 100,
    text: str = "predicting",
    others: Sequence[RelationModel] = (),
) -> Iterator[tuple[Scene, list[Relations]]]:
    """Rank each image once per setting, after one pass through the network; `others` are averaged with it."""
    seed = model.config.seed  # of simulated boxes: the same as in validation
    common: dict[str, Any] = {"regions": images.regions, "workers": images.workers, "seed": seed, "text": text}
    passes = [score_scenes(one, images.scenes, images.boxes, **common) for one in (model, *others)]
    for scored in zip(*passes, strict=True):
        example = scored[0][0]
        ranked = _rank_each(mean_scores([scores for _, scores in scored]), settings, top)
        if images.boxes.true:
            ranked = {key: replace(relations, labels=None, confidences=None) for key, relations in ranked.items()}
        yield example.scene, [ranked[setting] for setting in settings]


def predict_split(
    model: RelationModel, images: Images, settings: Sequence[Setting], *, top: int = 100
) -> list[list[Relations]]:
    """Collect all predictions of each setting, in the order of the scenes."""
    per_scene = [predictions for _, predictions in predict_scenes(model, images, settings, top=top)]
    return [[predictions[at] for predictions in per_scene] for at in range(len(settings))]


def _rank_each(scores: ScoredPairs, settings: Sequence[Setting], top: int) -> dict[Setting, Relations]:
    """Rank from the largest k down: a k that no pair of the previous list exceeds changes nothing."""
    ranked: dict[Setting, Relations] = {}
    for parts in dict.fromkeys(parts for _, parts in settings):
        ks = {k for k, other in settings if other == parts}
        last: Relations | None = None
        for k in sorted(ks, key=lambda k: -(k or math.inf)):
            if last is None or (k or math.inf) < _largest_k(last):
                last = scores.rank(k, top, terms=parts)
            ranked[k, parts] = last
    return ranked


def _largest_k(predictions: Relations) -> int:
    """Count the predictions of the pair that has most."""
    keys = predictions.pairs[:, 0] * len(predictions.boxes) + predictions.pairs[:, 1]
    return int(np.unique(keys, return_counts=True)[1].max(initial=0))


def mean_scores(scores: Sequence[ScoredPairs]) -> ScoredPairs:
    """Average models: the mean of their ψ_c is a CP tensor of all their components; likewise P(X_sel)."""
    if len(scores) == 1 or not len(scores[0]):
        return scores[0]
    blocks = [block for pairs in scores for block in pairs.blocks()]  # one per model
    logs = [block.log_selected for block in blocks if block.log_selected is not None]
    selected = torch.stack(logs).logsumexp(0) - torch.tensor(float(len(logs))).log() if logs else None
    mean = replace(blocks[0], cp=CPTensor.mean([block.cp for block in blocks]), log_selected=selected)
    return replace(scores[0], kept=(mean,))


def recalls_of(
    model: RelationModel,
    images: Images,
    asked: Sequence[tuple[Protocol, ScoreTerms]],
    *,
    text: str = "predicting",
    others: Sequence[RelationModel] = (),
) -> list[Recalls]:
    """Compute recall under each protocol, ranked for its k, without keeping the predictions."""
    evaluators = [Evaluator([protocol], len(model.vocabulary.predicates)) for protocol, _ in asked]
    settings = [(protocol.k, parts) for protocol, parts in asked]
    top = max(max(protocol.tops) for protocol, _ in asked)
    for scene, predictions in predict_scenes(model, images, settings, top=top, text=text, others=others):
        for evaluator, ranked in zip(evaluators, predictions, strict=True):
            evaluator.update(scene, ranked)
    return [evaluator.result() for evaluator in evaluators]


def free_ks(
    model: RelationModel,
    images: Images,
    asked: Sequence[tuple[Protocol, ScoreTerms]],
    *,
    others: Sequence[RelationModel] = (),
) -> list[int | None]:
    """Choose k for each protocol on held-out images; unlike `choose_k`, rank again for each k."""
    swept = [(at_k(protocol, k), parts) for protocol, parts in asked for k in FREE_K]
    tables = recalls_of(model, images, swept, text="choosing k", others=others)
    return [best_k(tables[at : at + len(FREE_K)]) for at in range(0, len(tables), len(FREE_K))]


def at_k(protocol: Protocol, k: int | None) -> Protocol:
    """Change a protocol to try a k."""
    return protocol.change(k=k, subset="all", tops=(50, 100))


def best_k(tables: Sequence[Iterable[Recall]]) -> int | None:
    """Choose the k of FREE_K with the largest summed recall, the smallest of equals; `tables` has one table per k."""
    score = {k: sum(row.recall for row in table) for k, table in zip(FREE_K, tables, strict=True)}
    return max(FREE_K, key=lambda k: (score[k], k is not None, -(k or 0)))


def evaluate_run(
    run: OpenRun,
    protocols: Sequence[Protocol],
    ks: Sequence[K] = (FREE,),
    *,
    detections: Mapping[str, Detections] | None = None,
    parts: ScoreTerms = ALL,
    bootstrap: int = 0,
    save: Path | None = None,
    misses: bool = False,
) -> RunScores:
    """Predict the run's split, and score it under each protocol and k.

    Args:
        run: The run, opened with the split to predict.
        protocols: Their k is ignored.
        ks: Triplets per pair, ranked again for each k. "free" is chosen on the validation split.
        detections: The boxes of each image; by default those of the run's detector, or the ground-truth boxes for
            tasks that start from them.
        parts: The terms of f_spo to use.
        bootstrap: Replicates for 95% intervals.
        save: A new .jsonl file for the predictions, which must be of one k.
        misses: Count the outcome of each ground truth, too.
    """
    held_out: Mapping[str, Detections] | None = None  # the detector's boxes of the images on which k is chosen
    if detections is None and not any(_on_true_boxes(protocol) for protocol in protocols):
        detections, held_out = _own_detections(run, FREE in ks)
    _check_request(protocols, parts, detections, save)
    notes = [*model_notes(run.model, true_boxes=detections is None), *_split_notes(run)]
    chosen: dict[Protocol, int | None] = {}
    if FREE in ks:
        images = _validation_images(run, detections, held_out)
        asked = [(protocol, _parts(protocol, parts)) for protocol in protocols]
        chosen = dict(zip(protocols, free_ks(run.model, images, asked), strict=True))
        where = f"chosen on {len(images.scenes):,} validation images"
        notes += [f"{protocol.name} {protocol.task}: free k = {k or 'any'}, {where}" for protocol, k in chosen.items()]
    full = list(dict.fromkeys(base.change(k=chosen[base] if k == FREE else k) for base in protocols for k in ks))
    settings = list(dict.fromkeys((protocol.k, _parts(protocol, parts)) for protocol in full))
    if save is not None and len(settings) > 1:
        several = ", ".join(f"{k or 'any'}{' with labels' * setting.labels}" for k, setting in settings)
        raise PolyadicError(f"--save keeps the predictions of one k, but these are k = {several}: give one with --k")
    train_data, why = _training_split(run)
    notes += why
    if train_data is not None:
        full = [protocol.change(subset=subset) for protocol in full for subset in ("all", "zero-shot")]
    top = max(max(protocol.tops) for protocol in full)
    lists = predict_split(run.model, run.images(boxes=BoxSource(detections)), settings, top=top)
    if save is not None:
        write_relations(save, lists[0], run.data.vocabulary)
    results = [
        compare(
            run.data,
            predictions,
            [protocol for protocol in full if (protocol.k, _parts(protocol, parts)) == setting],
            train=train_data,
            detections=detections,
            reads_labels="evidence" in run.model.config.sources,
            bootstrap=bootstrap,
            misses=misses,
        )
        for setting, predictions in zip(settings, lists, strict=True)
    ]
    free = {protocol.change(k=k): k for protocol, k in chosen.items()}
    return RunScores(_joined(results, full), free, tuple(notes))


def model_notes(model: RelationModel, *, true_boxes: bool) -> Iterator[str]:
    """List caveats about a model that reads labels."""
    if "evidence" not in model.config.sources:
        return
    if true_boxes:
        yield (
            "this model is given the labels of the ground-truth boxes (sources has evidence): not comparable with "
            "models that see pixels alone"
        )
    elif "proposals" not in model.stages:
        yield "this model was trained on ground-truth boxes only; the stage [proposals] adapts it to detections"


def _split_notes(run: OpenRun) -> Iterator[str]:
    if run.data.split == "validation" and not run.config.validation.images:
        yield "this run was trained on the validation images too (validation.images = 0)"
    whole = len(load_split(run.config, run.data.split))
    if len(run.data) < whole:
        yield f"only {len(run.data):,} of {whole:,} {run.data.split} images have a picture; the others are left out"


def _own_detections(
    run: OpenRun, choose_k: bool
) -> tuple[Mapping[str, Detections] | None, Mapping[str, Detections] | None]:
    """Run the run's detector on its split and, to choose k, on the validation images."""
    detector = run.model.detector
    if not isinstance(detector, Detector):
        return None, None
    cache, workers = run.folder / FOUND if is_run(run.folder) else None, run.config.workers
    tested = detected(detector, run.data.scenes, cache, workers)
    return tested, detected(detector, run.validation(), cache, workers) if choose_k else None


def _parts(protocol: Protocol, parts: ScoreTerms) -> ScoreTerms:
    """Add ground-truth labels where the task gives them."""
    return replace(parts, labels=protocol.task == "predicate-classification")


def _on_true_boxes(protocol: Protocol) -> bool:
    return protocol.task.endswith("classification")


def _check_request(
    protocols: Sequence[Protocol], parts: ScoreTerms, detections: Mapping[str, Detections] | None, save: Path | None
) -> None:
    for protocol in protocols:
        if detections is not None and _on_true_boxes(protocol):
            raise PolyadicError(f"--task {protocol.task} uses the ground-truth boxes: leave out --detections")
        if detections is None and not _on_true_boxes(protocol):
            raise PolyadicError(
                f"--task {protocol.task} needs a detector's boxes: give --detections FILE (or train with a detector, "
                "data.detector), and leave out tasks on ground-truth boxes"
            )
        if protocol.k_unit == "predicate":
            raise PolyadicError("--k-unit predicate does not apply to a run, which counts triplets per pair of boxes")
    if not parts.relabel and detections is None:
        raise PolyadicError("--without relabel keeps a detector's labels; it does not apply to ground-truth boxes")
    if save is not None:
        check_place(save.expanduser(), option="--save")
        if save.expanduser().exists():
            raise PolyadicError(f"--save: {save} already exists; choose another name")


def _validation_images(
    run: OpenRun, detections: Mapping[str, Detections] | None, held_out: Mapping[str, Detections] | None
) -> Images:
    """Prepare the images on which k is chosen, with boxes of the same kind as in the evaluated split."""
    if run.data.split != "test":
        raise PolyadicError(
            f"--k free: k is chosen on held-out training images, so {run.data.split} cannot be scored with it"
        )
    if not run.config.validation.images:
        raise PolyadicError("--k free: this run was trained on the validation images too: give --k a number")
    scenes = run.validation()
    if not any(len(scene.relations) for scene in scenes):
        raise PolyadicError(f"--k free: {run.data.name} has no validation images with relations: give --k a number")
    if detections is None:
        return run.images(scenes)
    if held_out is None and any(scene.name in detections for scene in scenes):
        held_out = detections
    if held_out is not None:
        return run.images(scenes, BoxSource(held_out))
    if run.config.data.detections or run.config.data.simulate:
        return run.images(scenes, load_training(run.config).proposals)
    raise PolyadicError("--k free: no detections of validation images to choose k on: give --k a number")


def _training_split(run: OpenRun) -> tuple[Dataset | None, list[str]]:
    split = "fit" if run.data.split == "validation" else "train"
    try:
        return load_split(run.config, split), []
    except PolyadicError as error:
        return None, [f"no count table and no zero-shot recall: the training split cannot be read ({error})"]


def _joined(results: Sequence[Comparison], order: Sequence[Protocol]) -> Comparison:
    """Join the comparisons of several settings, in the order of the protocols."""
    place = {protocol: number for number, protocol in enumerate(order)}
    rows, ceilings = (
        sorted((row for result in results for row in getattr(result, name)), key=lambda row: place[row[1].protocol])
        for name in ("rows", "ceilings")
    )
    notes = dict.fromkeys(note for result in results for note in result.notes)
    outcomes = sorted((row for result in results for row in result.misses or ()), key=lambda row: place[row.protocol])
    return replace(
        results[0],
        rows=tuple(rows),
        ceilings=tuple(ceilings),
        notes=tuple(notes),
        misses=None if results[0].misses is None else Misses(tuple(outcomes)),
    )
