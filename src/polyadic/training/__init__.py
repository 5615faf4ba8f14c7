"""Train a relation model in stages (Modeling missing annotations; Implementation details).

0. backbone (ours, optional): the backbone on the labels of true boxes, then frozen.
   boxes (ours, optional): the box-conditioned prior and the label context, on annotations only.
1. triplets: ψ_c on annotated pairs of true boxes; 1b. proposals: the same on a detector's boxes.
2. selection: P(X_sel) on equally many annotated and null pairs, everything else frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polyadic import progress
from polyadic.config import Config, load_config
from polyadic.config.settings import C
from polyadic.detectors.detector import Detector
from polyadic.model.heads import compile_heads
from polyadic.model.relation_model import DetectorSlot, RelationModel
from polyadic.model.storage import pick_device
from polyadic.prior import TripletPrior
from polyadic.structures.vocabulary import PolyadicError
from polyadic.training import ranks
from polyadic.training.loop import fit
from polyadic.training.proposals import FOUND, KEPT, detected, fingerprint, keep_detector
from polyadic.training.run import Run, check_new, check_same, code_digest, compared, config_path, only_one
from polyadic.training.stages import STAGES, RelationStage, Setup, planned

__all__ = ["pick_device", "run_config", "train"]

# what may differ when a run is resumed: paths and speed
SLICES = tuple(f"{name}.slices" for name in STAGES)
_FREE = (
    *("data.root", "data.detections", "data.detector", "data.simulate", "pixels.weights", "pixels.detector"),
    *("device", "workers", "cache.", "threads"),
)


def train(config: Config, out: str | Path, *, resume: bool = False) -> RelationModel:
    """Train into the folder `out`, which must be new or empty; with `resume`, continue in it. Return the best model.

    Under torchrun all processes call this with the same arguments, and share the work.
    """
    with ranks.joined():
        folder = Path(out).expanduser()
        resume = ranks.first_does(lambda: check_folder(config, folder, resume))
        config = (
            share_steps(config, planned(config)) if not resume else ranks.together(lambda: run_slices(config, folder))
        )
        setup, detector = ranks.together(lambda: Setup(config, folder)), None
        about = {"data": setup.data.fingerprint()}
        if config.data.detector:
            detector = ranks.together(lambda: _load_detector(config, folder, setup))
            about["detector"] = fingerprint(detector)
        ranks.compare(code=code_digest(), config=compared(config, _FREE), **about)
        with only_one(folder, new=not resume):
            run = ranks.together(lambda: _start(setup, Run(folder, config, about), resume))
            if detector is not None:
                _detect(setup, detector)
            with run.training():
                for name in planned(config):
                    if name not in run.checkpoint.done:
                        stage = _begin_stage(setup, run, name)
                        fit(stage, run)
                        _end_stage(setup, run, stage)
        ranks.wait()
    return setup.model.eval()


def check_folder(config: Config, folder: Path, resume: bool) -> bool:
    """Check that a run may begin in a folder, or continue; return which. torchrun's restarts continue."""
    resume = resume or ranks.restarted_in(folder)
    if resume:
        check_same(config, run_config(folder), folder, (*_FREE, *SLICES))
    else:
        check_new(folder)
    return resume


def share_steps(config: C, stages: Sequence[str]) -> C:
    """Cut the steps of a new run into at least as many slices as there are processes."""
    slices = {f"{name}.slices": max(getattr(config, name).slices, ranks.world()) for name in stages}
    return config.change(**slices)


def run_slices(config: Config, folder: Path) -> Config:
    """Keep the slices of a run that continues: the random numbers depend on them."""
    before = run_config(folder)
    return config.change(**{f"{name}.slices": getattr(before, name).slices for name in STAGES})


def run_config(folder: Path) -> Config:
    """Load the config of a run."""
    return load_config(config_path(folder))


def _load_detector(config: Config, folder: Path, setup: Setup) -> Detector:
    kept = folder / "model" / KEPT
    return Detector.load(kept if kept.is_dir() else Path(config.data.detector), setup.device, setup.data.vocabulary)


def _start(setup: Setup, run: Run, resume: bool) -> Run:
    """Build the model, and create the folder or read its checkpoint."""
    config, names, annotations = setup.config, setup.data.vocabulary, setup.data.annotations
    if config.threads:
        torch.set_num_threads(config.threads)
    weights: dict[str, Any] | None = run.resume() if resume else None
    torch.manual_seed(config.seed)
    counted, reversals = map(torch.from_numpy, (annotations.triplets(), annotations.reversals()))
    prior = TripletPrior.from_triplets(counted, names, smoothing=config.ranking.smoothing, reversals=reversals)
    run.model = setup.model = RelationModel(config, names, prior, fetch=not resume).to(setup.device)
    setup.split_backbone()  # raises before the run is written
    if config.head.compile:
        compile_heads(setup.model.head, setup.model.selector)
    if weights is not None:
        setup.model.load_state_dict(weights)
        setup.model.stages = tuple(run.checkpoint.done)
    else:
        run.begin(setup.model.state_dict())
    return run


def _detect(setup: Setup, detector: Detector) -> None:
    """Keep the detector with the model; where proposals are needed and not given, compute them."""
    config, folder, data = setup.config, setup.folder, setup.data
    try:
        if ranks.is_first():
            keep_detector(Path(config.data.detector), folder / "model")
        ranks.wait()
        setup.model.detector_slot = DetectorSlot(folder=folder / "model" / KEPT)
        if config.proposals.epochs and data.detections is None:
            scenes = (*data.fit, *data.validation)
            ranks.in_turn(lambda: detected(detector, scenes, folder / FOUND, config.workers))
            proposals = detected(detector, scenes, folder / FOUND, config.workers)
            boxes = sum(map(len, proposals.values()))
            if not boxes:
                raise PolyadicError("the detector finds no box in any training image: train it longer")
            progress.say(f"the detector finds {boxes / len(proposals):.1f} boxes per image")
            setup.data = replace(data, detections=proposals)
    except OSError as error:
        raise PolyadicError(f"cannot write the run to {folder} ({error.strerror})") from error


def _begin_stage(setup: Setup, run: Run, name: str) -> RelationStage:
    """Create a stage, or restore it in the middle."""
    resumed = run.checkpoint.stage == name and run.state is not None
    if not resumed:
        run.checkpoint.next_stage(name)
        run.state = None
    torch.manual_seed(setup.config.seed)
    stage = STAGES[name](setup, not resumed)
    if run.state is not None:
        for key, module in stage.modules.items():
            module.load_state_dict(run.state["modules"][key])
    setup.model.stages = (*setup.model.stages, name)
    return stage


def _end_stage(setup: Setup, run: Run, stage: RelationStage) -> None:
    """Continue with the best model of the stage."""
    stage.finish()
    ranks.wait()  # for the first process to save it
    setup.model.load_state_dict(RelationModel.load(run.folder / "model", setup.device).state_dict())
    run.checkpoint.done.append(stage.name)
    run.checkpoint.stage, run.state = "", None
    run.save()
