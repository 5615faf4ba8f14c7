"""Which predictions agree with the annotations, to be shown in pictures."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool

from polyadic.boxes import box_iou
from polyadic.evaluation.protocol import Protocol
from polyadic.ranking.relations import Ranking
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene


def matches(scene: Scene, found: Relations, protocol: Protocol) -> Bool[np.ndarray, "M T"]:
    """Which predictions name which annotated triplet, on boxes that both overlap its own as the protocol asks."""
    mine = torch.from_numpy(found.in_frame(scene.frame).boxes[found.pairs])  # [M, 2, 4]
    truths = torch.from_numpy(scene.pair_boxes)  # [T, 2, 4]
    overlap = box_iou(mine[:, None], truths[None], protocol.iou_offset)  # [M, T, 2]
    near = (overlap >= protocol.iou).all(-1).numpy()
    same = (found.triplets[:, None] == scene.triplets[None]).all(-1)
    return np.asarray(near & same)


def hits_of(scene: Scene, found: Relations, protocol: Protocol) -> Bool[np.ndarray, " M"]:
    """Which predictions hit; each truth may be hit twice."""
    return np.asarray(matches(scene, found, protocol).any(1))


def as_predictions(scene: Scene, relations: Ranking) -> Relations:
    """The relations of a scene's photo, as the evaluation takes them."""
    origin = relations.known_origin()
    pairs, triplets = origin.pairs[relations.pair].numpy(), relations.triplet.numpy()
    boxes, scores = origin.detections.boxes, relations.log_score.exp().numpy()
    return Relations(scene.name, boxes, pairs, triplets, scores, size=origin.size)
