"""An image's relations for people and programs: JSON values, a graph, a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from polyadic.ranking.relations import Relations
from polyadic.scenes import UNKNOWN, open_photo

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from polyadic.draw import Drawing

# the parts of a score, by the names under which they are written
PARTS = {
    "detector": "log_boxes",
    "psi_c": "log_cp",
    "psi_u": "log_prior",
    "selected": "log_selected",
    "repeat": "log_repeat",
}


def to_dict(found: Relations, probability: Tensor | None = None) -> dict[str, Any]:
    """The score of a relation, f_spo, is the product of its parts; `probability` is by default that given its pair."""
    shares = (found.probability() if probability is None else probability).tolist()
    origin, names, pairs = found.known_origin(), found.names(), _pairs(found)
    columns = {part: getattr(found, column).exp().tolist() for part, column in PARTS.items()}
    relations = [
        {
            "subject": {"box": pairs[at][0], "name": names[at][0]},
            "predicate": names[at][1],
            "object": {"box": pairs[at][1], "name": names[at][2]},
            "probability": share,
            "score": score,
            "parts": {part: values[at] for part, values in columns.items()},
        }
        for at, (share, score) in enumerate(zip(shares, found.log_score.exp().tolist(), strict=True))
    ]
    given = origin.detections
    boxes = [
        {"box": box, "label": _label(found, label), "score": score}
        for box, label, score in zip(given.boxes.tolist(), given.labels.tolist(), given.scores.tolist(), strict=True)
    ]
    return {"image": given.image, "size": list(origin.size), "boxes": boxes, "relations": relations}


def to_networkx(found: Relations) -> MultiDiGraph:
    """See `Relations.to_networkx`."""
    from networkx import MultiDiGraph

    record, shown = to_dict(found), box_names(found)
    graph = MultiDiGraph(image=record["image"], size=tuple(record["size"]))
    for each in record["relations"]:
        ends = each["subject"]["box"], each["object"]["box"]
        for at in ends:
            box = record["boxes"][at]
            graph.add_node(
                at, name=shown[at], box=tuple(box["box"]), detected=box["label"], detector_score=box["score"]
            )
        words = {"subject": each["subject"]["name"], "object": each["object"]["name"]}
        graph.add_edge(*ends, predicate=each["predicate"], score=each["score"], parts=each["parts"], **words)
    return graph


def box_names(found: Relations) -> list[str]:
    """See `Relations.box_names`."""
    names = [_label(found, label) or "unknown" for label in found.detections.labels.tolist()]
    for (s, o), words in reversed(list(zip(_pairs(found), found.names(), strict=True))):
        names[s], names[o] = words[0], words[2]
    return names


def named_boxes(found: Relations) -> tuple[list[int], list[str], Int[np.ndarray, "M 2"]]:
    """The boxes as the relations call them: rows, names, and the relations' pairs among these.

    A box that goes by two names stands there twice, so that a picture shows each relation as it is; without relations
    all boxes are there.
    """
    places: dict[tuple[int, str], int] = {}
    pairs = [
        [places.setdefault((box, word), len(places)) for box, word in zip(ends, words[::2], strict=True)]
        for ends, words in zip(_pairs(found), found.names(), strict=True)
    ]
    if not pairs:
        places = {(box, name): box for box, name in enumerate(box_names(found))}
    return [box for box, _ in places], [name for _, name in places], np.array(pairs, np.int64).reshape(-1, 2)


def drawing(
    found: Relations, image: Any, arrows: int, width: int, graph: bool, hits: Bool[np.ndarray, " M"] | None = None
) -> Drawing:
    """The photo, with boxes scaled to it; `hits` where truths are known."""
    from polyadic.draw import plan_drawing, relations_to_draw

    origin, words = found.known_origin(), found.vocabulary
    assert words is not None, "an origin comes with names"
    rows, names, pairs = named_boxes(found)
    scores = found.log_score.exp().cpu().double().numpy()
    drawn = relations_to_draw(words, pairs, found.triplet.cpu().numpy(), scores, hits)
    return plan_drawing(
        open_photo(image).image,
        origin.detections.boxes[rows],
        names,
        drawn,
        arrows=arrows,
        width=width,
        frame=origin.size,
        graph=graph,
    )


def _pairs(found: Relations) -> list[list[int]]:
    pairs: list[list[int]] = found.known_origin().pairs.cpu()[found.pair.cpu()].tolist()
    return pairs


def _label(found: Relations, label: int) -> str | None:
    assert found.vocabulary is not None, "an origin comes with names"
    return None if label == UNKNOWN else found.vocabulary.objects[label]
