"""Training in stages (Modeling missing annotations; Implementation details).

0. backbone (ours, optional): the backbone learns the labels of true boxes, then is frozen for good.
   boxes (ours, optional): the prior that knows the boxes, on annotations alone.
1. triplets: ψ_c on annotated pairs of true boxes; 1b. proposals: the same on a detector's boxes.
2. selection: P(X_sel) on equally many annotated and null pairs, everything else frozen.

A run is a folder: config.json, model/ (the best so far, complete), last.pt, log.jsonl, tensorboard/.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polyadic.config import Config, difference, load_config, value_at
from polyadic.training.trainer import Trainer, pick_device
from polyadic.training.watch import Interrupted, Silent, Stop, Watcher
from polyadic.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.model import RelationModel

__all__ = ["Interrupted", "Silent", "Stop", "Watcher", "pick_device", "run_config", "train"]

# what may differ when a run is resumed: where things are, and how fast
_FREE = ("data.root", "pixels.weights", "data.detections", "data.simulate", "device", "workers", "cache.", "threads")


def train(
    config: Config, out: str | Path, *, resume: bool = False, watcher: Watcher | None = None, stop: Stop | None = None
) -> RelationModel:
    """Train into the folder `out`, which must be new or empty; with `resume`, go on in it. Returns the best model."""
    folder = Path(out).expanduser()
    if resume:
        _check_config(config, folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolyadicError(
            f"{folder} exists already: go on in it with --resume, or choose another folder (--overwrite begins anew)"
        )
    return Trainer(config, folder, watcher or Silent(), stop or Stop()).run(resume)


def run_config(folder: Path) -> Config:
    """The config of a run."""
    path = folder / "config.json"
    if not path.is_file():
        raise PolyadicError(f"{folder} is not a run: it has no config.json")
    return load_config(path)


def _check_config(config: Config, folder: Path) -> None:
    before = run_config(folder)
    for key in difference(config, before, _FREE):
        raise PolyadicError(
            f"{folder} was started with {key} = {value_at(before, key)!r}, not {value_at(config, key)!r}: "
            "resume it as it was, or start another run"
        )
