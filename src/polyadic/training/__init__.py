"""Training in stages (Modeling missing annotations; Implementation details).

0. backbone (ours, optional): the backbone learns the labels of true boxes, then is frozen for good.
   boxes (ours, optional): the prior that knows the boxes, and what neighbours say of labels, on annotations alone.
1. triplets: ψ_c on annotated pairs of true boxes; 1b. proposals: the same on a detector's boxes.
2. selection: P(X_sel) on equally many annotated and null pairs, everything else frozen.

A run is a folder: config.json, model/ (the best so far, complete), last.pt, log.jsonl, tensorboard/.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polyadic.config import load_config
from polyadic.config.schema import Config
from polyadic.training.run import check_new, check_same, config_path
from polyadic.training.trainer import Trainer, pick_device

if TYPE_CHECKING:
    from polyadic.model.relation_model import RelationModel

__all__ = ["pick_device", "run_config", "train"]

# what may differ when a run is resumed: where things are, and how fast
_FREE = (
    *("data.root", "data.detections", "data.detector", "data.simulate", "pixels.weights"),
    *("device", "workers", "cache.", "threads"),
)


def train(config: Config, out: str | Path, *, resume: bool = False) -> RelationModel:
    """Train into the folder `out`, which must be new or empty; with `resume`, go on in it. Returns the best model."""
    folder = Path(out).expanduser()
    if resume:
        check_same(config, run_config(folder), folder, _FREE)
    else:
        check_new(folder)
    return Trainer(config, folder).run(resume)


def run_config(folder: Path) -> Config:
    """The config of a run."""
    return load_config(config_path(folder))
