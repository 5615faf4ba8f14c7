"""The paper's heads on the drawn world, fed with what a perfect backbone would see: appearance, tint and geometry.

Vision aside, so that what is measured is the method, in seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from polyadic.boxes import ordered_pairs, pair_geometry
from polyadic.cp import CPTensor
from polyadic.datasets.toy.annotator import selected, truth
from polyadic.datasets.toy.layout import INDEX, VOCABULARY
from polyadic.datasets.toy.world import World
from polyadic.evaluation import Evaluator
from polyadic.evaluation.protocol import get_protocol
from polyadic.model.heads import SelectionHead, TripletHead
from polyadic.prior import TripletPrior
from polyadic.ranking import rank_relations
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Scene
from polyadic.training.pairs import selection_pairs, true_boxes

BOX, PAIR = 14, 24 + 2 * 14


@dataclass(frozen=True)
class Seen:
    """All ordered pairs of one scene."""

    scene: Scene
    pairs: Tensor
    box: Tensor
    pair: Tensor

    def rows(self, pairs: np.ndarray) -> Tensor:
        n = len(self.scene.boxes)
        s, o = torch.from_numpy(pairs).unbind(-1)
        return s * (n - 1) + o - (o > s).long()


def look(scene: Scene, mistakes: float = 0.0) -> Seen:
    """`mistakes`: how often one appearance is taken for another."""
    kinds = torch.tensor([INDEX[key] for key in scene.extra["appearances"]])
    rng = torch.Generator().manual_seed(zlib.crc32(scene.name.encode()))
    wrong = torch.rand(len(kinds), generator=rng) < mistakes
    kinds = torch.where(wrong, torch.randint(12, kinds.shape, generator=rng), kinds)
    tint = torch.tensor(scene.extra["tint"], dtype=torch.float32).expand(len(kinds), 2) / 15
    box = torch.cat([one_hot(kinds, 12).float(), tint], 1)
    pairs = ordered_pairs(len(kinds))
    corners = torch.from_numpy(scene.boxes).float()[pairs]
    geometry = pair_geometry(corners[:, 0], corners[:, 1], torch.tensor(scene.frame).float().expand(len(pairs), 2))
    return Seen(scene, pairs, box, torch.cat([geometry, box[pairs[:, 0]], box[pairs[:, 1]]], 1))


def scenes(split: str, count: int, mistakes: float = 0.0) -> list[Seen]:
    world = replace(World(1, 1), **{split: count})
    return [look(scene, mistakes) for scene in world.dataset(split)]


@torch.no_grad()
def cp_of(head: TripletHead, seen: Seen) -> CPTensor:
    found: CPTensor = head(seen.box, seen.box, seen.pair, seen.pairs)
    return found


def fit(data: list[Seen], rank: int, seed: int, steps: int = 1200) -> TripletHead:
    """Stage 1."""
    torch.manual_seed(seed)
    known = [true_boxes(seen.scene) for seen in data]
    offsets = np.cumsum([0, *(len(seen.box) for seen in data)])
    box = torch.cat([seen.box for seen in data])
    pair = torch.cat([seen.pair[seen.rows(each.pairs)] for seen, each in zip(data, known, strict=True)])
    pairs = torch.cat([torch.from_numpy(x.pairs + start) for x, start in zip(known, offsets, strict=False)])
    target = torch.cat([torch.from_numpy(each.triplets) for each in known])
    head = TripletHead(BOX, PAIR, VOCABULARY.sizes, rank=rank, hidden=128, dropout=0.1)

    def loss(at: Tensor) -> Tensor:
        ends = box[pairs[at].flatten()]
        cp: CPTensor = head(ends, ends, pair[at], torch.arange(2 * len(at)).view(-1, 2))
        return cp.nll(target[at]).mean()

    _descend(head, steps, len(target), loss)
    return head.eval()


def fit_selection(data: list[Seen], seed: int, steps: int = 500) -> SelectionHead:
    """Stage 2: equally many annotated and null pairs."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    chosen = [selection_pairs(true_boxes(seen.scene), rng) for seen in data]
    features = torch.cat([seen.pair[seen.rows(x)] for seen, (x, _) in zip(data, chosen, strict=True)])
    annotated = torch.cat([torch.from_numpy(y) for _, y in chosen]).float()
    head = SelectionHead(PAIR, hidden=128, dropout=0.1)
    _descend(
        head, steps, len(annotated), lambda at: binary_cross_entropy_with_logits(head(features[at]), annotated[at])
    )
    return head.eval()


def count(data: list[Seen]) -> TripletPrior:
    return TripletPrior.from_triplets(torch.cat([torch.from_numpy(seen.scene.triplets) for seen in data]), VOCABULARY)


def _descend(module: torch.nn.Module, steps: int, rows: int, loss: Callable[[Tensor], Tensor]) -> None:
    optimiser = torch.optim.AdamW(module.parameters(), 1e-2, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    module.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss(torch.randint(rows, (256,))).backward()
        optimiser.step()
        schedule.step()


def log_likelihood(head: TripletHead, data: list[Seen]) -> float:
    """Mean over annotated rows, in nats."""
    total = rows = 0.0
    for seen in data:
        known = true_boxes(seen.scene)
        total += float(cp_of(head, seen)[seen.rows(known.pairs)].log_prob(torch.from_numpy(known.triplets)).sum())
        rows += len(known.pairs)
    return total / rows


def divergence(head: TripletHead, data: list[Seen]) -> float:
    """KL(truth || ψ_c), mean over pairs weighted by how likely they are annotated."""
    total = weight = 0.0
    for seen in data:
        p = torch.from_numpy(truth(seen.scene, seen.pairs.numpy()))
        q = cp_of(head, seen).to(torch.float64).dense()
        each = torch.where(p > 0, p * (p.clamp_min(1e-300).log() - q.log()), 0.0).sum((1, 2, 3))
        mass = torch.from_numpy(selected(seen.scene, seen.pairs.numpy()))
        total += float((each * mass).sum())
        weight += float(mass.sum())
    return total / weight


def recall(
    head: TripletHead,
    data: list[Seen],
    log_selected: Callable[[Seen], Tensor] | None,
    prior: TripletPrior | None = None,
) -> float:
    """R@50 of phrase classification (lu2016), any k."""
    protocol = get_protocol("lu2016").change(task="phrase-classification", k=None, tops=(50,))
    evaluator = Evaluator([protocol], len(VOCABULARY.predicates))
    for seen in data:
        with torch.no_grad():
            log = None if log_selected is None else log_selected(seen)
        found = rank_relations(cp_of(head, seen), prior, log, top=50)
        pairs = seen.pairs[found.pair].numpy()
        answer = Relations(seen.scene.name, seen.scene.boxes, pairs, found.triplet.numpy(), found.log_score.numpy())
        evaluator.update(seen.scene, answer)
    return float(evaluator.result()[0].recall)


def true_selection(seen: Seen) -> Tensor:
    """The exact log P(X_sel)."""
    return torch.from_numpy(selected(seen.scene, seen.pairs.numpy())).clamp_min(1e-12).log()
