"""Experiments with trained models: predict and evaluate a run, and reproduce the paper's Tables 1 and 4."""
