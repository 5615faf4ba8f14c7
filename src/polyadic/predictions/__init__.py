"""Predictions and detections on disk, read image by image.

Predictions: our JSON Lines, Lu's `.mat`, neural-motifs' pickled dictionaries. Detections: see `detections`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from polyadic.predictions.detections import existing, read_detections, write_detections
from polyadic.predictions.jsonl import read_jsonl, write_jsonl
from polyadic.predictions.lu_mat import read_lu_detections, read_lu_predictions
from polyadic.predictions.motifs import from_motifs, read_motifs
from polyadic.scenes import Predictions
from polyadic.vocabulary import Vocabulary

__all__ = [
    "from_motifs",
    "read_detections",
    "read_jsonl",
    "read_lu_detections",
    "read_lu_predictions",
    "read_motifs",
    "read_predictions",
    "write_detections",
    "write_jsonl",
]


def read_predictions(path: str | Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Predictions]:
    """Predictions of a `.jsonl`, `.mat` or `.pkl` file. `images` are the dataset's, in order: motifs names none."""
    path = existing(path)
    if path.suffix == ".mat":
        return read_lu_predictions(path, vocabulary)
    if path.suffix in (".pkl", ".pickle"):
        return read_motifs(path, vocabulary, images)
    return read_jsonl(path, vocabulary, images)
