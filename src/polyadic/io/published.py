"""The official files of VRD (Lu et al. 2016): `relationship_det_result.mat` and `objectDetRCNN.mat`.

They hold one cell per test image, without names: `imagePath.mat` beside them has the order. Classes count from 1. Small
unsigned integers would wrap in differences, so everything is cast on reading.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


def read_lu_predictions(path: Path, vocabulary: Vocabulary) -> Iterator[Relations]:
    """Scored triplets. A detection is told by its box and its label: the file repeats both in each prediction."""
    fields = {"rlp_labels": 3, "rlp_confs": 1, "sub_bboxes": 4, "obj_bboxes": 4}
    for name, cells in _images(path, fields, "relationship_det_result.mat"):
        where = f"{path.name}, image {name}"
        labels, scores, subjects, objects = cells
        triplets = _classes(
            labels, [len(vocabulary.objects), len(vocabulary.predicates), len(vocabulary.objects)], where
        )
        ends = np.concatenate([np.c_[subjects, triplets[:, 0]], np.c_[objects, triplets[:, 2]]])
        found, index = np.unique(ends, axis=0, return_inverse=True)
        pairs = index.reshape(2, -1).T
        yield _named(where, lambda: Relations(name, found[:, :4], pairs, triplets, scores[:, 0]))  # noqa: B023


def read_lu_detections(path: Path, vocabulary: Vocabulary) -> Iterator[Detections]:
    """A detector's boxes, labels and confidences."""
    fields = {"detection_bboxes": 4, "detection_labels": 1, "detection_confs": 1}
    for name, (boxes, labels, scores) in _images(path, fields, "objectDetRCNN.mat"):
        where = f"{path.name}, image {name}"
        classes = _classes(labels, [len(vocabulary.objects)], where)[:, 0]
        yield _named(where, lambda: Detections(name, boxes, classes, scores[:, 0]))  # noqa: B023


def _images(path: Path, fields: dict[str, int], like: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    content = _load(path)
    names = [
        str(np.ravel(cell)[0]) for cell in _cells(_load(path.with_name("imagePath.mat")), "imagePath", "imagePath.mat")
    ]
    columns = []
    for field in fields:
        key = next((key for key in content if key == field or key.startswith(f"{field}_")), None)
        if key is None:
            has = ", ".join(k for k in content if k[0] != "_")
            raise PolyadicError(f"{path.name}: no field {field!r}; it has {has}. Expected a file like Lu's {like}")
        cells = _cells(content, key, path.name)
        if len(cells) != len(names):
            raise PolyadicError(f"{path.name}, {key}: {len(cells)} images, but imagePath.mat names {len(names)}")
        columns.append(cells)
    for row, name in enumerate(names):
        cells = [np.asarray(column[row], np.float64) for column in columns]
        arrays = [
            cell.reshape(-1, width) if cell.size % width == 0 else cell
            for cell, width in zip(cells, fields.values(), strict=True)
        ]
        if len({len(array) for array in arrays}) > 1:
            raise PolyadicError(
                f"{path.name}, image {name}: fields of different lengths {[len(array) for array in arrays]}"
            )
        yield name, arrays


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    if not path.exists():
        raise PolyadicError(f"no {path}; Lu's files name their images in imagePath.mat, in the same folder")
    try:
        return dict(loadmat(path, mat_dtype=True))
    except Exception as error:  # a damaged file raises almost anything
        raise PolyadicError(
            f"{path} is not a complete MATLAB file of version 5 ({error})".replace("\n", " ")
        ) from error


def _cells(content: dict[str, Any], key: str, file: str) -> Any:
    if key not in content or content[key].dtype != object:
        raise PolyadicError(f"{file}: expected a cell array {key!r}")
    return content[key].ravel()


def _classes(labels: np.ndarray, sizes: list[int], where: str) -> np.ndarray:
    """From classes that count from 1 to ours, which count from 0."""
    classes = labels.astype(np.int64) - 1
    wrong = (classes < 0) | (classes >= np.array(sizes))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise PolyadicError(f"{where}, row {row}: class {labels[row, column]:g} is outside 1 to {sizes[column]}")
    return classes


def _named(where: str, make: Any) -> Any:
    try:
        return make()
    except PolyadicError as error:
        raise PolyadicError(f"{where}: {error}") from error


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


def from_motifs(entry: Mapping[str, Any], image: str, vocabulary: Vocabulary) -> Relations:
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
    return Relations(image, boxes, pairs[each], triplets, scores.ravel(), labels=classes, confidences=confidences)


def read_motifs(path: Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Relations]:
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
