"""Predictions on disk, read image by image: our JSON Lines, Lu's `.mat`, neural-motifs' pickled dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from polyadic.predictions.jsonl import read_jsonl, write_jsonl
from polyadic.predictions.lu_mat import read_lu_detections, read_lu_predictions
from polyadic.predictions.motifs import from_motifs, read_motifs
from polyadic.scenes import Detections, Predictions
from polyadic.vocabulary import PolyadicError, Vocabulary

__all__ = [
    "from_motifs",
    "read_detections",
    "read_jsonl",
    "read_lu_detections",
    "read_lu_predictions",
    "read_motifs",
    "read_predictions",
    "write_jsonl",
]


def read_predictions(path: str | Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Predictions]:
    """Predictions of a `.jsonl`, `.mat` or `.pkl` file. `images` are the dataset's, in order: motifs names none."""
    path = _existing(path)
    if path.suffix == ".mat":
        return read_lu_predictions(path, vocabulary)
    if path.suffix in (".pkl", ".pickle"):
        return read_motifs(path, vocabulary, images)
    return read_jsonl(path, vocabulary)


def read_detections(path: str | Path, vocabulary: Vocabulary) -> Iterator[Detections]:
    """Detections of Lu's `objectDetRCNN.mat`, or of a predictions file whose boxes have labels and confidences."""
    path = _existing(path)
    if path.suffix == ".mat":
        yield from read_lu_detections(path, vocabulary)
        return
    for each in read_jsonl(path, vocabulary):
        if each.detections is None:
            raise PolyadicError(f"{path.name}: image {each.image!r} has no labels and confidences of its boxes")
        yield each.detections


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected a file of predictions")
    if not path.exists():
        raise PolyadicError(f"no file {path}")
    return path
