"""Ranked triplets of one image: f_spo and what it is made of; where the image is known, also in words and pictures."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyadic.cp import VARIABLES, CPTensor, SparsePrior
from polyadic.ranking.dedup import Dedup, deduplicate
from polyadic.ranking.search import Weights, weights_of
from polyadic.structures.detections import Detections
from polyadic.structures.images import open_photo
from polyadic.structures.labels import UNKNOWN
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    from networkx import MultiDiGraph
    from PIL.Image import Image

    from polyadic.draw.shapes import Drawing


Box = tuple[float, float, float, float]
_PLAIN = ("vocabulary", "origin")


class RankedTriplet(NamedTuple):
    """One row of `Ranking` in plain Python numbers; in words where they are known."""

    pair: int
    subject: int
    predicate: int
    object: int
    log_score: float
    names: tuple[str, str, str] | None = None
    boxes: tuple[Box, Box] | None = None  # of subject and object

    @property
    def triplet(self) -> tuple[int, int, int]:
        return self.subject, self.predicate, self.object

    @property
    def score(self) -> float:
        """f_spo itself."""
        return math.exp(self.log_score)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The ranked triplets of one image, best first: f_spo and what it is made of.

    The parts have their exponents applied, so that
    `log_score = log_cp + log_prior + log_selected + log_boxes + log_repeat`; a part that was not given is 0.
    Where a model has predicted them (`origin`), they can be drawn, written and asked.
    """

    pair: Int[Tensor, " N"]  # which ordered box pair
    triplet: Int[Tensor, "N 3"]  # (subject, predicate, object)
    log_score: Float[Tensor, " N"]  # log f_spo
    log_cp: Float[Tensor, " N"]  # log ψ_c
    log_prior: Float[Tensor, " N"]  # a log ψ_u
    log_selected: Float[Tensor, " N"]  # b log P(X_sel)
    log_boxes: Float[Tensor, " N"]  # c log P(B_s, B_o | I)
    log_repeat: Float[Tensor, " N"]  # the price of repeating a triplet on nearly the same boxes
    vocabulary: Vocabulary | None = None
    origin: Origin | None = None  # the image they are of

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self._columns().items()}
        if len(set(lengths.values())) > 1:
            raise PolyadicError(f"Ranking: all columns need one length, got {lengths}")
        if tuple(self.triplet.shape[1:]) != (3,):
            raise PolyadicError(f"Ranking: triplet must be [N, 3], got {list(self.triplet.shape)}")

    def _columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _PLAIN}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Ranking:
        changed: dict[str, Any] = {name: change(column) for name, column in self._columns().items()}
        return replace(self, **changed)

    @classmethod
    def join(cls, parts: Sequence[Ranking], vocabulary: Vocabulary | None = None) -> Ranking:
        """One list after the other, in no new order."""
        none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        parts = [cls(none, none.view(0, 3), zero, zero, zero, zero, zero, zero), *parts]
        columns: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0]._columns()
        }
        return cls(**columns, vocabulary=vocabulary)

    def __len__(self) -> int:
        return len(self.pair)

    def __repr__(self) -> str:
        first = []
        for relation in self[:3]:
            words = self.vocabulary.decode(relation.triplet) if self.vocabulary else relation.triplet
            first.append(f"{' '.join(map(str, words))} {relation.log_score:.3f}")
        return f"Ranking({len(self)}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def names(self) -> list[tuple[str, str, str]]:
        """The triplets in words, best first."""
        if self.vocabulary is None:
            raise PolyadicError("Ranking: no names are known; rank with rank_relations(..., vocabulary=...)")
        return [self.vocabulary.decode(relation.triplet) for relation in self]

    @overload
    def __getitem__(self, index: int) -> RankedTriplet: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> Ranking: ...
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> RankedTriplet | Ranking:
        """One `RankedTriplet` by number, or the `Ranking` of a slice, an index tensor or a mask."""
        if isinstance(index, slice) or (isinstance(index, Tensor) and index.ndim > 0):
            return self._map(lambda column: column[index])
        at = operator.index(index)
        return self._row(int(self.pair[at]), self.triplet[at].tolist(), float(self.log_score[at]))

    def __iter__(self) -> Iterator[RankedTriplet]:
        for row in zip(self.pair.tolist(), self.triplet.tolist(), self.log_score.tolist(), strict=True):
            yield self._row(*row)

    def _row(self, pair: int, triplet: list[int], score: float) -> RankedTriplet:
        subject, predicate, object = triplet
        names = self.vocabulary.decode((subject, predicate, object)) if self.vocabulary else None
        boxes = None
        if self.origin is not None:
            s, o = (tuple(self.origin.detections.boxes[at].tolist()) for at in self.origin.pairs[pair].tolist())
            boxes = s, o
        return RankedTriplet(pair, subject, predicate, object, score, names, boxes)

    def to(self, device: torch.device | str) -> Ranking:
        """On another device; scores become float32 where there is no float64 (MPS)."""
        single = torch.device(device).type == "mps"
        return self._map(lambda x: (x.float() if single and x.is_floating_point() else x).to(device))

    def above(self, score: float) -> Ranking:
        """Those of at least this score, f_spo."""
        return self[self.log_score.exp() >= score]

    def probability(self) -> Float[Tensor, " N"]:
        """P(triplet | its pair of boxes): ψ_c ψ_u over its sum for the pair; detector and P(X_sel) are left aside."""
        # merged

        return triplet_probability(self)

    def query(
        self,
        subject: str | None = None,
        predicate: str | None = None,
        object: str | None = None,
        pair: tuple[int, int] | None = None,
        top: int | None = None,
    ) -> Answers:
        """What the distribution says of the rest, given some names: exact, and without the dense tensor.

        `query(subject="person", object="horse")` is P(predicate | person, horse, pair), all of it, for the pair of
        boxes that is most likely a person and a horse, or for `pair` (subject box, object box).
        `query(predicate="ride")` are the pairs and labels most likely for it. All parts of f_spo count.
        """
        # merged

        given = {"subject": subject, "predicate": predicate, "object": object}
        return answer(self.known_origin(), {name: word for name, word in given.items() if word is not None}, pair, top)

    def to_dict(self) -> dict[str, Any]:
        """In JSON values: the image, its boxes, and the relations, best first, each with the parts of its score."""
        # merged

        return to_dict(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    def to_networkx(self) -> MultiDiGraph:
        """The scene graph: a node for each box that takes part, an edge for each relation, with all that is known."""
        # merged

        return to_networkx(self)

    def box_names(self) -> list[str]:
        """A name for each box: as its best relation calls it, else as the detector does."""
        # merged

        return box_names(self)

    def draw(self, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True) -> Image:
        """The photo (a path, a PIL image, an array or a tensor) with boxes, arrows, the list and the scene graph."""
        from polyadic.draw.render import render_png
        # merged

        return render_png(drawing(self, image, arrows, width, graph))

    def save_drawing(
        self, path: str | Path, image: Any, *, arrows: int = 5, width: int = 640, graph: bool = True
    ) -> None:
        """`draw` into a file: .svg, with the photo inside, or .png, .jpg and so on."""
        from polyadic.draw import save_drawing
        # merged

        save_drawing(drawing(self, image, arrows, width, graph), Path(path))

    @property
    def detections(self) -> Detections:
        """The boxes that were related, those that overlapped too much left out."""
        return self.known_origin().detections

    def known_origin(self) -> Origin:
        """`origin`, where it must be known."""
        if self.origin is None:
            raise PolyadicError(
                "Ranking: these were ranked from bare tensors and know no image; RelationModel.predict gives ones "
                "that do"
            )
        return self.origin


# the parts of a score, by the names under which they are written
PARTS = {
    "detector": "log_boxes",
    "psi_c": "log_cp",
    "psi_u": "log_prior",
    "selected": "log_selected",
    "repeat": "log_repeat",
}


def to_dict(found: Ranking, probability: Tensor | None = None) -> dict[str, Any]:
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


def to_networkx(found: Ranking) -> MultiDiGraph:
    """See `Ranking.to_networkx`."""
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


def box_names(found: Ranking) -> list[str]:
    """See `Ranking.box_names`."""
    names = [_label(found, label) or "unknown" for label in found.detections.labels.tolist()]
    for (s, o), words in reversed(list(zip(_pairs(found), found.names(), strict=True))):
        names[s], names[o] = words[0], words[2]
    return names


def named_boxes(found: Ranking) -> tuple[list[int], list[str], Int[np.ndarray, "M 2"]]:
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
    found: Ranking, image: Any, arrows: int, width: int, graph: bool, hits: Bool[np.ndarray, " M"] | None = None
) -> Drawing:
    """The photo, with boxes scaled to it; `hits` where truths are known."""
    from polyadic.draw import plan_drawing
    from polyadic.draw.panels import relations_to_draw

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


def _pairs(found: Ranking) -> list[list[int]]:
    pairs: list[list[int]] = found.known_origin().pairs.cpu()[found.pair.cpu()].tolist()
    return pairs


def _label(found: Ranking, label: int) -> str | None:
    assert found.vocabulary is not None, "an origin comes with names"
    return None if label == UNKNOWN else found.vocabulary.objects[label]


@dataclass(frozen=True, eq=False)
class Block:
    """Some of an image's pairs, in order, from number `first` on."""

    first: int
    cp: CPTensor  # ψ_c, times the prior that knows the boxes
    log_selected: Float[Tensor, " B"] | None
    log_boxes: Float[Tensor, " B"] | None

    def log_pair(self, origin: Origin) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Weighted log P(X_sel) and log P(B_s, B_o | I), in float64 on the CPU; 0 where there is none."""
        none = torch.zeros(self.cp.batch_shape[0], dtype=torch.float64)
        selected = none if self.log_selected is None else self.log_selected.cpu().double() * origin.selected_exponent
        boxes = none if self.log_boxes is None else self.log_boxes.cpu().double() * origin.boxes_exponent
        return selected, boxes


@dataclass(frozen=True, eq=False)
class Origin:
    """An image, its boxes, and on request what the network says of their ordered pairs."""

    detections: Detections
    size: tuple[float, float]  # (width, height), the frame of the boxes
    pairs: Int[Tensor, "B 2"]
    blocks: Callable[[], Iterable[Block]]  # all pairs in order; may compute them anew
    some: Callable[[Int[Tensor, " M"]], CPTensor]  # the blocks' distribution of a few pairs
    vocabulary: Vocabulary
    prior: SparsePrior | None = None
    prior_exponent: float = 1.0
    selected_exponent: float = 1.0
    boxes_exponent: float = 1.0
    repeat: tuple[float, float] | None = None  # overlap and weight of `Dedup`

    def rank(self, k: int | None, top: int) -> Ranking:
        """As `rank_relations` on all pairs at once."""
        if self.repeat is None:
            return self._plain(k, top)
        sizes, held = self.vocabulary.sizes, dict[str, Ranking]()
        boxes = torch.from_numpy(self.detections.boxes)[self.pairs.cpu()]  # [B, 2, 4]
        cells = math.prod(sizes)

        def search(wide: Tensor, deep: int) -> tuple[Tensor, Tensor]:
            held["pool"] = pool = self._plain(wide, max(deep, 1))
            return pool.log_score, _flat(pool, sizes)

        dedup = Dedup(boxes, *self.repeat)
        caps = torch.full((len(boxes),), min(k or cells, cells))
        score, flat, lost = deduplicate(search, dedup, cells, caps, top)
        pool = held["pool"]
        place = {key: at for at, key in enumerate(_flat(pool, sizes).tolist())}
        chosen = pool[torch.tensor([place[key] for key in flat.tolist()], dtype=torch.long)]
        return replace(chosen, log_score=score, log_repeat=lost)

    def _plain(self, k: int | Int[Tensor, " B"] | None, top: int) -> Ranking:
        from polyadic.ranking import rank_relations

        found = []
        for block in self.blocks():
            best = rank_relations(
                block.cp,
                self.prior,
                block.log_selected,
                block.log_boxes,
                k[block.first : block.first + block.cp.batch_shape[0]] if isinstance(k, Tensor) else k,
                top,
                prior_exponent=self.prior_exponent,
                selected_exponent=self.selected_exponent,
                boxes_exponent=self.boxes_exponent,
                vocabulary=self.vocabulary,
            )
            best = best if best.pair.is_cpu else best.to("cpu")
            found.append(replace(best, pair=best.pair + block.first) if block.first else best)
        whole = found[0] if len(found) == 1 else merge(found, top, self.vocabulary)
        return replace(whole, origin=self)


def merge(parts: list[Ranking], top: int, vocabulary: Vocabulary) -> Ranking:
    """The best of several lists with different pairs; equal scores by (pair, subject, predicate, object)."""
    joined = Ranking.join(parts, vocabulary)
    order = _flat(joined, vocabulary.sizes).argsort()
    order = order[joined.log_score[order].argsort(descending=True, stable=True)]
    return joined[order[:top]]


def _flat(found: Ranking, sizes: tuple[int, int, int]) -> Int[Tensor, " N"]:
    S, P, O = sizes
    s, p, o = found.triplet.unbind(-1)
    return ((found.pair * S + s) * P + p) * O + o


TOP = 10  # answers, where the pair is not fixed
_CHUNK = 1 << 22  # numbers [pairs, seen triplets] held at once


class Answer(NamedTuple):
    """One completion of what was asked."""

    names: tuple[str, str, str]
    boxes: tuple[Box, Box]  # of subject and object
    probability: float  # P(the rest | given, this pair)
    score: float  # f_spo


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """Completions, best first; `probability` is that of what was not given, for the answer's own pair of boxes."""

    given: dict[str, str]
    relations: Ranking
    probability: Float[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.relations)

    def __getitem__(self, at: int) -> Answer:
        return self._answer(self.relations[at], float(self.probability[at]))

    def __iter__(self) -> Iterator[Answer]:
        for relation, probability in zip(self.relations, self.probability.tolist(), strict=True):
            yield self._answer(relation, probability)

    def _answer(self, relation: RankedTriplet, probability: float) -> Answer:
        assert relation.names is not None, "an origin comes with names"
        assert relation.boxes is not None, "an origin comes with boxes"
        return Answer(relation.names, relation.boxes, probability, math.exp(relation.log_score))

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={word!r}" for name, word in self.given.items())
        first = [f"{' '.join(each.names)} {each.probability:.3f}" for each in list(self)[:3]]
        return f"Answers({known}: {', '.join(first)}{', ...' if len(self) > 3 else ''})"

    def to_dict(self) -> dict[str, Any]:
        """As `Ranking.to_dict`, with what was given, and a probability beside each relation."""
        # merged

        return {**to_dict(self.relations, self.probability), "given": self.given}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)


def answer(origin: Origin, given: dict[str, str], pair: tuple[int, int] | None, top: int | None) -> Answers:
    """See `Ranking.query`."""
    labels = _labels(origin, given)
    fixed = None if pair is None else _number_of(origin, pair)
    weights = weights_of(origin.prior, origin.prior_exponent, torch.device("cpu"))
    if fixed is None and {"subject", "object"} <= set(labels) and len(origin.pairs):
        fixed = _likeliest(origin, labels, weights)
    rest = math.prod(n for name, n in zip(VARIABLES, origin.vocabulary.sizes, strict=True) if name not in labels)
    most = top if top is not None else rest if rest <= max(origin.vocabulary.sizes) and fixed is not None else TOP
    found, sums = [], []
    for block in _chosen(origin, fixed):
        relations, log_sum = _best(origin, block, labels, most, weights)
        found.append(relations)
        sums.append(log_sum)
    held = torch.cat([torch.zeros(0, dtype=torch.float64), *sums])
    places = torch.cat([torch.zeros(0, dtype=torch.long), *(each.pair for each in found)])
    log_sum_of = dict(zip(places.tolist(), held.tolist(), strict=True))
    best = replace(merge(found, most, origin.vocabulary), origin=origin)
    norm = torch.tensor([log_sum_of[at] for at in best.pair.tolist()], dtype=torch.float64)
    return Answers(given, best, (best.log_cp + best.log_prior - norm).exp())


def triplet_probability(found: Ranking) -> Float[Tensor, " N"]:
    """P(triplet | its pair of boxes), ψ_c ψ_u over its sum: what the network and the prior say, detector aside."""
    origin = found.known_origin()
    weights = weights_of(origin.prior, origin.prior_exponent, torch.device("cpu"))
    if not len(found):
        return torch.zeros(0, dtype=torch.float64)
    wanted, place = found.pair.cpu().unique(return_inverse=True)
    sums = _log_sum(origin.some(wanted).to("cpu").to(torch.float64), {}, weights)
    return (found.log_cp.cpu() + found.log_prior.cpu() - sums[place]).exp()


def _best(
    origin: Origin, block: Block, labels: dict[str, int], top: int, weights: Weights
) -> tuple[Ranking, Float[Tensor, " N"]]:
    """The block's best completions, and for each the log of Σ ψ_c ψ_u over all completions of its pair."""
    from polyadic.ranking import rank_relations

    cp = block.cp.to("cpu").to(torch.float64)
    known, evidence = _condition(cp, labels)
    selected, boxes = block.log_pair(origin)
    weight = evidence + selected + boxes
    shift = float(weight.max().clamp_min(0)) if len(weight) else 0.0
    best = rank_relations(
        known,
        origin.prior,
        log_boxes=weight - shift,
        top=top,
        prior_exponent=origin.prior_exponent,
        vocabulary=origin.vocabulary,
    )
    at = best.pair
    pairs, place = at.unique(return_inverse=True)
    log_sum = (_log_sum(known[pairs], labels, weights) + evidence[pairs])[place] if len(pairs) else weight[at]
    found = replace(
        best,
        pair=at + block.first,
        log_score=best.log_score + shift,
        log_cp=best.log_cp + evidence[at],
        log_selected=selected[at],
        log_boxes=boxes[at],
    )
    return found, log_sum


def _condition(cp: CPTensor, labels: dict[str, int]) -> tuple[CPTensor, Float[Tensor, " B"]]:
    """The CP tensor with these labels known, and log P(labels) per pair."""
    known = cp.given(**labels)
    return known, known.log_z() - cp.log_z()


def _log_sum(cp: CPTensor, labels: dict[str, int], weights: Weights) -> Float[Tensor, " B"]:
    """Log Σ ψ_c ψ_u over the triplets with these labels; `cp` is conditioned on them."""
    keys, kept = _seen(labels, weights, cp.sizes)
    B, (_, P, O) = cp.batch_shape[0], cp.sizes
    if not len(keys):
        return torch.full((B,), weights.log_rest, dtype=torch.float64)
    triplet = torch.stack([keys // (P * O), keys // O % P, keys % O], -1)
    found = []
    for part in torch.arange(B).split(max(1, _CHUNK // (len(keys) * cp.rank))):
        seen = cp[part].log_prob(triplet.expand(len(part), -1, -1))  # [b, M]
        other = (1 - seen.exp().sum(-1)).clamp_min(0).log() + weights.log_rest
        found.append(torch.logaddexp((seen + kept).logsumexp(-1), other))
    return torch.cat(found)


def _seen(labels: dict[str, int], weights: Weights, sizes: tuple[int, int, int]) -> tuple[Int[Tensor, " M"], Tensor]:
    """The seen triplets with these labels, and their log-weights."""
    _, P, O = sizes
    columns = {"subject": weights.keys // (P * O), "predicate": weights.keys // O % P, "object": weights.keys % O}
    fits = torch.ones(len(weights.keys), dtype=torch.bool)
    for name, label in labels.items():
        fits &= columns[name] == label
    return weights.keys[fits], weights.log_seen[fits]


def _likeliest(origin: Origin, labels: dict[str, int], weights: Weights) -> int:
    """The pair with the largest Σ f over all completions."""
    best, at = -math.inf, 0
    for block in origin.blocks():
        known, evidence = _condition(block.cp.to("cpu").to(torch.float64), labels)
        mass = _log_sum(known, labels, weights) + evidence + sum(block.log_pair(origin))
        if len(mass) and float(mass.max()) > best:
            best, at = float(mass.max()), block.first + int(mass.argmax())
    return at


def _chosen(origin: Origin, pair: int | None) -> Iterator[Block]:
    for block in origin.blocks():
        if pair is None:
            yield block
        elif block.first <= pair < block.first + block.cp.batch_shape[0]:
            row = slice(pair - block.first, pair - block.first + 1)
            selected = None if block.log_selected is None else block.log_selected[row]
            boxes = None if block.log_boxes is None else block.log_boxes[row]
            yield Block(pair, block.cp[row], selected, boxes)


def _labels(origin: Origin, given: dict[str, str]) -> dict[str, int]:
    if not 1 <= len(given) <= 2:
        raise PolyadicError(
            "query: give one or two of subject, predicate and object, by name; what is left is what you ask"
        )
    return {name: origin.vocabulary.index(name, word) for name, word in given.items()}


def _number_of(origin: Origin, pair: tuple[int, int]) -> int:
    n = len(origin.detections)
    numbers = [operator.index(at) if hasattr(at, "__index__") and not isinstance(at, bool) else -1 for at in pair]
    if len(numbers) != 2 or numbers[0] == numbers[1] or not all(0 <= at < n for at in numbers):
        raise PolyadicError(f"query: pair must be two different boxes of the {n}, counted from 0, got {pair}")
    return int((origin.pairs.cpu() == torch.tensor(numbers)).all(-1).nonzero()[0, 0])
