"""A person and a horse in one picture: why a box pair needs a joint distribution of triplets, and their ranking.

python examples/joint.py
"""

from __future__ import annotations

import math
import time

import torch

from polyadic import CPTensor, TripletPrior, Vocabulary, rank_relations

NAMES = Vocabulary(
    objects=("person", "horse", "hat", "street", "grass"),
    predicates=("ride", "next to", "wear", "on", "feed"),
)
# What annotators wrote about one pair of boxes: several relations, all true.
SEEN_HERE = [
    (("person", "ride", "horse"), 5),
    (("person", "wear", "hat"), 3),
    (("horse", "on", "grass"), 2),
    (("person", "next to", "horse"), 2),
]
# What annotators wrote about all training images.
SEEN_EVERYWHERE = [
    (("person", "wear", "hat"), 120),
    (("person", "ride", "horse"), 40),
    (("person", "next to", "horse"), 35),
    (("horse", "on", "grass"), 30),
    (("person", "on", "street"), 60),
    (("person", "on", "grass"), 20),
    (("person", "next to", "person"), 50),
    (("person", "feed", "horse"), 3),
]


def encode(counted: list[tuple[tuple[str, str, str], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([NAMES.encode(x) for x, _ in counted]), torch.tensor([float(n) for _, n in counted])


def fit(rank: int, target: torch.Tensor, weight: torch.Tensor) -> CPTensor:
    """Factors of one pair by gradient descent on the paper's loss."""
    torch.manual_seed(1)
    factors = [torch.randn(1, rank, n, requires_grad=True) for n in NAMES.sizes]
    optimiser = torch.optim.Adam(factors, lr=0.1)
    for _ in range(500):
        optimiser.zero_grad()
        CPTensor(*factors).nll(target[None], weight[None]).sum().backward()
        optimiser.step()
    return CPTensor(*(x.detach() for x in factors))


def show(cp: CPTensor, prior: TripletPrior | None, here: set[tuple[str, str, str]]) -> list[str]:
    found = rank_relations(cp, prior, top=6)
    score = found.log_score
    if prior is not None:  # the product of the two is not normalised per pair
        score = score - prior.log_normaliser(cp)[found.pair]
    lines = []
    for relation, log_probability in zip(found, score.tolist(), strict=True):
        names = NAMES.decode((relation.subject, relation.predicate, relation.object))
        lines.append(f"{'*' if names in here else ' '} {' '.join(names):22} {math.exp(log_probability):6.1%}")
    return lines


def main() -> None:
    target, count = encode(SEEN_HERE)
    weight = count / count.sum()
    entropy = -float((weight * weight.log()).sum())
    prior = TripletPrior.from_triplets(*encode(SEEN_EVERYWHERE)[:1], NAMES, counts=encode(SEEN_EVERYWHERE)[1])
    here = {x for x, _ in SEEN_HERE}

    print("One pair of boxes, four true relations. Rank 1 treats subject, predicate and object as independent.\n")
    print(f"{'rank':>6} {'loss':>7}   on the four   invented   (no loss can be below {entropy:.3f}, the entropy)")
    models = {rank: fit(rank, target, weight) for rank in (1, 2, 3)}
    for rank, cp in models.items():
        true = float(cp.log_prob(target[None]).exp().sum())
        print(f"{rank:6} {float(cp.nll(target[None], weight[None])):7.3f}   {true:11.1%}   {1 - true:8.1%}")

    print("\nThe best six triplets of the pair (* = annotated):\n")
    columns = [
        ("rank 1", show(models[1], None, here)),
        ("rank 1 with the prior", show(models[1], prior, here)),
        ("rank 3 with the prior", show(models[3], prior, here)),
    ]
    print("   ".join(f"{title:31}" for title, _ in columns))
    for lines in zip(*(lines for _, lines in columns), strict=True):
        print("   ".join(f"{line:31}" for line in lines))

    asked = models[3].log_conditional("predicate", subject=0, object=1).exp()[0]
    answer = ", ".join(f"{name} {p:.0%}" for name, p in zip(NAMES.predicates, asked.tolist(), strict=True) if p > 0.005)
    print(f"\nAsk the distribution: P(predicate | person, horse) = {answer}")

    print("\nNow an image of VRD's size: 20 boxes, 380 ordered pairs, 100 x 70 x 100 classes, rank 5.")
    torch.manual_seed(0)
    cp = CPTensor(*(2 * torch.randn(380, 5, n) for n in (100, 70, 100)))
    rank_relations(cp[:1])  # compiled once per machine
    start = time.perf_counter()
    found = rank_relations(cp, top=100)
    fast = time.perf_counter() - start
    start = time.perf_counter()
    dense = torch.cat(
        [part.dense().flatten(1).topk(100).values.flatten() for part in (cp[i : i + 10] for i in range(0, 380, 10))]
    )
    best = dense.topk(100).values.double().log()
    slow = time.perf_counter() - start
    same = torch.allclose(best, found.log_score, atol=1e-3)
    print(f"266,000,000 triplets; the exact top 100 in {fast * 1e3:.1f} ms, without looking at nearly all of them.")
    print(f"Forming and sorting them took {slow:.1f} s and gave {'the same' if same else 'ANOTHER'} list.")
    print("(`python benchmarks/ranking.py` tunes the dense way before it compares.)")


if __name__ == "__main__":
    main()
