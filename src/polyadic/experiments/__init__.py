"""What is done with trained models: predict a split, evaluate a run, the paper's Table 4."""

from __future__ import annotations

from polyadic.experiments.ablation import Ablation, ablate
from polyadic.experiments.evaluating import FREE, RunScores, evaluate_run
from polyadic.experiments.predicting import predict_split
from polyadic.experiments.runs import Run, open_run

__all__ = ["FREE", "Ablation", "Run", "RunScores", "ablate", "evaluate_run", "open_run", "predict_split"]
