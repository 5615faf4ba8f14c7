"""neural-motifs' dictionaries, one per image in a pickled list.

Keys `pred_boxes`, `pred_classes`, `obj_scores`, `pred_rel_inds`, `rel_scores`. Classes count from 1, column 0 of
`rel_scores` is background; a triplet's score is the product of both objects' and the predicate's. Boxes are in VG150's
frame of 1024 pixels. Unpickling admits arrays and plain values only.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.scenes import Predictions
from polyadic.vocabulary import PolyadicError, Vocabulary

_KEYS = ("pred_boxes", "pred_classes", "obj_scores", "pred_rel_inds", "rel_scores")
_ALLOWED = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _ArraysOnly(pickle.Unpickler):
    """A pickle can run any code; this one can only make arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, expected arrays only")


def from_motifs(entry: Mapping[str, Any], image: str, vocabulary: Vocabulary) -> Predictions:
    """One image's dictionary, every predicate of every pair as one prediction."""
    missing = next((key for key in _KEYS if key not in entry), None)
    if missing:
        raise PolyadicError(f"{image}: no {missing!r}; an entry has {', '.join(_KEYS)}")
    boxes, classes, confidences, pairs, rel = (np.asarray(entry[key]) for key in _KEYS)
    classes, pairs = classes.astype(np.int64) - 1, pairs.astype(np.int64).reshape(-1, 2)
    n = len(vocabulary.predicates)
    rel = rel.astype(np.float64).reshape(-1, n + 1) if rel.size == len(pairs) * (n + 1) else rel
    if rel.shape != (len(pairs), n + 1):
        raise PolyadicError(
            f"{image}: rel_scores must be [{len(pairs)}, {n + 1}] (background first), got {list(rel.shape)}"
        )
    if len(classes) and not 0 <= classes.min() <= classes.max() < len(vocabulary.objects):
        raise PolyadicError(f"{image}: pred_classes must lie in 1 to {len(vocabulary.objects)}")
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(classes):
        raise PolyadicError(f"{image}: pred_rel_inds point to box {pairs.max()} of {len(classes)}")
    confidences = confidences.astype(np.float64)
    scores = confidences[pairs].prod(1)[:, None] * rel[:, 1:]  # [pairs, P]
    each, predicate = np.divmod(np.arange(scores.size), n)
    ends = classes[pairs[each]]
    triplets = np.stack([ends[:, 0], predicate, ends[:, 1]], axis=1)
    return Predictions(image, boxes, pairs[each], triplets, scores.ravel(), classes, confidences)


def read_motifs(path: Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Predictions]:
    """The entries of a pickled list, in the order of `images`, or of a dictionary by image name."""
    try:
        with path.open("rb") as file:
            entries = _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise PolyadicError(f"{path} is not a pickle of neural-motifs entries ({error})".replace("\n", " ")) from error
    if isinstance(entries, Mapping):
        rows = [(str(image), entry) for image, entry in entries.items()]
    elif isinstance(entries, list) and len(entries) == len(images):
        rows = list(zip(images, entries, strict=True))
    else:
        what = f"{len(entries)} entries" if isinstance(entries, list) else f"a {type(entries).__name__}"
        raise PolyadicError(f"{path.name}: expected one entry for each of the {len(images):,} images, got {what}")
    for number, (image, entry) in enumerate(rows):
        where = f"{path.name}, entry {number}"
        if not isinstance(entry, Mapping):
            raise PolyadicError(f"{where}: expected a dictionary, got a {type(entry).__name__}")
        try:
            yield from_motifs(entry, image, vocabulary)
        except PolyadicError as error:
            raise PolyadicError(f"{where}: {error}") from error
        except (TypeError, ValueError, IndexError) as error:
            raise PolyadicError(f"{where}: arrays of the wrong kind ({error})".replace("\n", " ")) from error
