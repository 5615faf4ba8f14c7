"""Counts of a dataset: sizes, class balance, what is unusual, how much of the test set training has never seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyadic.scenes import Dataset


def statistics(dataset: Dataset) -> dict[str, Any]:
    """One split in JSON values."""
    relations = [scene.relations for scene in dataset]
    boxes = np.array([len(scene.boxes) for scene in dataset] or [0])
    per_image = np.array([len(rows) for rows in relations] or [0])
    triplets = dataset.triplets()
    pairs = 0
    several = 0
    repeated = 0
    two_classes = 0
    for scene, rows in zip(dataset, relations, strict=True):
        distinct = set(map(tuple, rows.tolist()))
        repeated += len(rows) - len(distinct)
        predicates = Counter((s, o) for s, _, o in distinct)
        pairs += len(predicates)
        several += sum(n > 1 for n in predicates.values())
        classes = Counter(
            box for box, _ in {(tuple(b), c) for b, c in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True)}
        )
        two_classes += sum(n > 1 for n in classes.values())
    ends = [(scene, scene.relations[:, [0, 2]]) for scene in dataset]
    return {
        "split": dataset.split,
        "images": len(dataset),
        "images without relations": int((per_image[: len(dataset)] == 0).sum()),
        "relations": len(triplets),
        "relations repeated exactly": repeated,
        "relations of a box with itself": sum(
            int((scene.boxes[rows[:, 0]] == scene.boxes[rows[:, 1]]).all(1).sum()) for scene, rows in ends
        ),
        "distinct triplets": len(np.unique(triplets, axis=0)),
        "annotated pairs": pairs,
        "pairs with several predicates": several,
        "pairs with several predicates, share": several / pairs if pairs else None,
        "boxes": int(boxes.sum()),
        "boxes with two classes": two_classes,
        "boxes per image": _spread(boxes),
        "relations per image": _spread(per_image),
        "object classes": _balance(
            np.concatenate([np.zeros(0, np.int64), *(s.labels for s in dataset)]), dataset.vocabulary.objects
        ),
        "predicates": _balance(triplets[:, 1], dataset.vocabulary.predicates),
    }


def zero_shot(train: Dataset, test: Dataset) -> dict[str, Any]:
    """Test truths whose triplet never occurs in training."""
    seen = set(map(tuple, train.triplets().tolist()))
    truths = [tuple(triplet) for triplet in test.triplets().tolist()]
    unseen = sum(triplet not in seen for triplet in truths)
    return {"truths": len(truths), "zero-shot truths": unseen, "share": unseen / len(truths) if truths else None}


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "min": int(values.min()),
        "max": int(values.max()),
    }


def _balance(classes: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """How often each class occurs, and how even that is: the perplexity is the number of equally frequent classes."""
    counts = np.bincount(classes, minlength=len(names))
    share = counts[counts > 0] / max(int(counts.sum()), 1)
    order: list[int] = np.argsort(-counts, kind="stable").tolist()
    return {
        "known": len(names),
        "occurring": int((counts > 0).sum()),
        "perplexity": float(np.exp(-(share * np.log(share)).sum())),
        "counts": {names[i]: int(counts[i]) for i in order},
    }
