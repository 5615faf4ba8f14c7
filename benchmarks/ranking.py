"""How much faster is the exact ranking than the best dense kernel, at which sizes, and on a trained model's tensors?

    python benchmarks/ranking.py --vrd data/vrd --csv results/ranking.csv | tee results/ranking.txt  # 5 minutes
    python benchmarks/ranking.py --pairs 20                                                          # half a minute

Both sides get the same float32 log-factors on one thread and give the image's top 100. The dense side is fused and
compiled: softmax once, then every cell of every pair in float32, unrolled over the components and vectorised, against
a running threshold, without storing the tensor; once over all pairs, and once by falling bounds of the pairs until no
later one can count. The mark is the faster of the two on that very tensor. Synthetic factors are N(0, t), the same
without P(X_sel) and confidences on either side, because these would close more pairs in favour of the bounds. With
--vrd, the tensors are those of the shipped model with Lu's published boxes, on test images with 20 to 60 pairs, with
its prior exponent and P(X_sel).

Times are CPU seconds of the thread, which a busy machine disturbs least, the median of several calls; wall time is
beside them in the CSV. A case has several random tensors, and the summary is over all tensors of a group: median,
quartiles and least. Compilation (once per machine, then cached on disk) and the making of the CPTensor, which is the
network's output, are outside the times. `same`: how many of the 100 entries both found, fewer where float32 rounding
or equal scores decide the last places.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from polyadic import CPTensor, RelationModel, TripletPrior, load_dataset, rank_relations, read_detections
from polyadic.model.scoring import ALL

SIZES = {"VRD": (100, 70, 100), "VG150": (150, 50, 150), "VG200": (200, 100, 200)}
SEEN = {"VRD": 6_672, "VG150": 30_000, "VG200": 19_237}  # distinct triplets: VRD's own; the others assumed
TOP = 100


@dataclass
class Case:
    """One image: the log-factors, and what goes with them."""

    group: str
    name: str
    t: float | None
    seed: int
    factors: Sequence[Tensor]
    prior: TripletPrior | None = None
    exponent: float = 1.0
    log_selected: Tensor | None = None


def factors(pairs: int, rank: int, sizes: tuple[int, ...], t: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(pairs, rank, n, generator=generator) * t for n in sizes]


def synthetic(name: str, pairs: int, rank: int, t: float, prior: TripletPrior | None, seed: int) -> Case:
    return Case(f"{pairs} pairs", name, t, seed, factors(pairs, rank, SIZES[name], t, seed), prior)


@cache
def sparse_prior(name: str) -> TripletPrior:
    """Random triplets whose counts have a heavy tail, up to 5,000."""
    generator, sizes, seen = torch.Generator().manual_seed(1), SIZES[name], SEEN[name]
    triplets = torch.stack([torch.randint(n, (seen,), generator=generator) for n in sizes], -1)
    counts = torch.rand(seen, generator=generator).pow(-1 / 0.9).clamp(max=5000).round()
    return TripletPrior.from_triplets(triplets, sizes, counts=counts)


def shipped(root: Path, images: int) -> Iterator[Case]:
    """The tensors of the shipped model with Lu's boxes, as `rank` hands them to the ranking."""
    model = RelationModel.pretrained()
    sizes = load_dataset("vrd", root, "test").sizes
    found = 0
    for detections in read_detections(root / "lu2016/objectDetRCNN.mat", model.vocabulary, sizes=sizes):
        if not 20 <= len(detections) * (len(detections) - 1) <= 60:
            continue
        config = model.config.ranking
        (block,) = model.score(None, detections).blocks()
        selected = block.log_pair(ALL, config.selected)
        yield Case("shipped model", "VRD", None, found, block.joint().factors, model.prior, config.prior, selected)
        found += 1
        if found == images:
            return


# The dense side. The rank is written out, because only then the sum over r stays in registers.


def dense_source(rank: int, weighted: bool) -> str:
    cell = " + ".join(f"ab{r} * c[pair, {r}, k]" for r in range(rank))
    products = "\n".join(f"                ab{r} = a[pair, {r}, i] * b[pair, {r}, j]" for r in range(rank))
    return f"""
def kernel(a, b, c, weight, order, bound, top):
    S, P, O = a.shape[2], b.shape[2], c.shape[2]
    room, size, low = 32 * top, 0, np.float32(-1)
    values, indices = np.empty(room + O, np.float32), np.empty(room + O, np.int64)
    row = np.empty(O, np.float32)
    for pair in order:
        if bound[pair] < low:
            break
        for i in range(S):
            for j in range(P):
{products}
                for k in range(O):
                    row[k] = {f"({cell}) * weight[i, j, k]" if weighted else cell}
                above = 0
                for k in range(O):
                    above += row[k] > low
                if above == 0:
                    continue
                for k in range(O):
                    if row[k] > low:
                        values[size], indices[size] = row[k], ((pair * S + i) * P + j) * O + k
                        size += 1
                if size >= room:
                    best = np.argsort(-values[:size])[:top]
                    values[:top], indices[:top] = values[best], indices[best]
                    size, low = top, values[top - 1]
        if size > top:
            best = np.argsort(-values[:size])[:top]
            values[:top], indices[:top] = values[best], indices[best]
            size, low = top, values[top - 1]
    return indices[:size]
"""


@cache
def dense_kernel(rank: int, weighted: bool) -> Any:
    space: dict[str, Any] = {"np": np}
    exec(dense_source(rank, weighted), space)
    return njit(fastmath=True)(space["kernel"])


class Dense:
    """The dense side of one case; a dense prior exists before the first image does."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.weight = np.empty((1, 1, 1), np.float32)
        if case.prior is not None:
            log_weight = torch.full((int(np.prod(case.prior.sizes)),), case.prior.log_rest)
            log_weight[case.prior.keys] = case.prior.log_seen.float()
            self.weight = (log_weight * case.exponent).exp().view(case.prior.sizes).numpy()
        self.heaviest = self.weight.max() if case.prior is not None else np.float32(1)
        self.kernel = dense_kernel(case.factors[0].shape[1], case.prior is not None)

    def run(self, bounded: bool) -> Any:
        a, b, c = (x.numpy() for x in self.normalised())
        order, bound = np.arange(len(a)), np.full(len(a), np.inf, np.float32)
        if bounded:
            bound = (a.max(-1) * b.max(-1) * c.max(-1)).sum(-1) * self.heaviest * np.float32(1 + 1e-5)
            order = np.argsort(-bound)
        return self.kernel(a, b, c, self.weight, order, bound, TOP)

    def pairwise(self) -> Any:
        """The paper's way, in torch: form the tensor of each pair, times the prior, and keep the best of all.

        One pair at a time: blocks of several pairs leave the processor's cache, and are slower.
        """
        scores, places = torch.zeros(0), torch.zeros(0, dtype=torch.long)
        for pair in range(len(self.case.factors[0])):
            a, b, c = (x[0] for x in self.normalised(slice(pair, pair + 1)))
            ab = (a[:, :, None] * b[:, None]).flatten(1)  # [R, S P]
            tensor = (ab.T @ c).view(a.shape[1], b.shape[1], c.shape[1]).mul_(torch.from_numpy(self.weight))
            best = tensor.flatten().topk(min(TOP, tensor.numel()))
            scores = torch.cat([scores, best.values])
            places = torch.cat([places, best.indices + pair * tensor.numel()])
            scores, kept = scores.topk(min(TOP, len(scores)))
            places = places[kept]
        return places.numpy()

    def normalised(self, rows: slice = slice(None)) -> list[Tensor]:
        """The factors as probabilities; the subject's carry the components' weights and P(X_sel)."""
        s, p, o = (x[rows] for x in self.case.factors)
        mixture = (s.logsumexp(-1) + p.logsumexp(-1) + o.logsumexp(-1)).log_softmax(-1)
        if self.case.log_selected is not None:
            mixture = mixture + self.case.log_selected[rows, None].float()
        return [s.softmax(-1) * mixture.exp()[..., None], p.softmax(-1), o.softmax(-1)]


def seconds(run: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Median and quartiles of wall time, after one run to warm up."""
    low, middle, high = np.quantile(times(run, repeats)[1], (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


def times(run: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    """CPU and wall seconds, after one run to warm up."""
    run()
    cpu, wall = [], []
    for _ in range(repeats):
        start, begin = time.thread_time(), time.perf_counter()
        run()
        cpu.append(time.thread_time() - start)
        wall.append(time.perf_counter() - begin)
    return cpu, wall


def medians(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median CPU and wall seconds."""
    cpu, wall = times(run, repeats)
    return statistics.median(cpu), statistics.median(wall)


def compare(case: Case) -> dict[str, Any]:
    cp, dense = CPTensor(*case.factors), Dense(case)

    def rank() -> Any:
        return rank_relations(cp, case.prior, case.log_selected, top=TOP, prior_exponent=case.exponent)

    fast, fast_wall = medians(rank, 25)
    plain, plain_wall = medians(lambda: dense.run(False), 3)
    bounded, bounded_wall = medians(lambda: dense.run(True), 3)
    ranking = rank()
    place = np.ravel_multi_index(tuple(torch.cat([ranking.pair[:, None], ranking.triplet], 1).T.numpy()), shape(case))
    same = len(np.intersect1d(place, dense.run(True)[:TOP]))
    B, R = case.factors[0].shape[:2]
    return {
        "group": case.group,
        "data": case.name,
        "pairs": B,
        "rank": R,
        "t": case.t if case.t is not None else "",
        "prior": case.prior is not None,
        "seed": case.seed,
        "dense_ms": plain * 1e3,
        "bounded_ms": bounded * 1e3,
        "exact_ms": fast * 1e3,
        "exact_wall_ms": fast_wall * 1e3,
        "ratio": min(plain, bounded) / fast,
        "wall_ratio": min(plain_wall, bounded_wall) / fast_wall,
        "same": same,
    }


def shape(case: Case) -> tuple[int, ...]:
    return (len(case.factors[0]), *(x.shape[-1] for x in case.factors))


def summary(rows: list[dict[str, Any]], by: tuple[str, ...]) -> None:
    """Print the ratios of each group: over all its tensors, median, quartiles and least."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    print(f"\n{' '.join(f'{name:>14}' for name in by)}  tensors  exact ms   median  quartiles     least  same")
    for key, part in groups.items():
        ratio, exact = [row["ratio"] for row in part], statistics.median(row["exact_ms"] for row in part)
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        print(
            f"{' '.join(f'{value!s:>14}' for value in key)} {len(part):8} {exact:9.3f} {middle:7.1f}x "
            f" {low:5.1f}-{high:<6.1f} {min(ratio):6.1f}x  {min(row['same'] for row in part):4}",
            flush=True,
        )


def fixed_cost() -> None:
    """What a call costs where there is nothing to search."""
    cp, zero = CPTensor(*(torch.zeros(1, 1, n) for n in (2, 2, 2))), torch.zeros(1)
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 0]]), (2, 2, 2))
    cost = medians(lambda: rank_relations(cp, prior, zero, zero, top=1), 500)[0]
    print(f"\nFixed cost of a call with all terms: {cost * 1e3:.3f} ms")


def large_vocabulary() -> None:
    sizes = (5000, 500, 5000)
    SIZES["large"], SEEN["large"] = sizes, 1_000_000
    print("\n5,000 x 500 x 5,000 classes, 380 pairs, R = 5 (dense: 50 GB per pair in float32; not run):")
    for t in (1.0, 2.0, 4.0):
        for prior in (None, sparse_prior("large")):
            cp = CPTensor(*synthetic("large", 380, 5, t, None, 0).factors)
            run = medians(lambda: rank_relations(cp, prior, top=TOP), 3)[0]  # noqa: B023
            print(f"  t = {t:g}, {'1,000,000 seen triplets' if prior else 'no prior':24} {run:6.3f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[20, 380])
    parser.add_argument("--tensors", type=int, default=3, help="random tensors per case")
    parser.add_argument("--vrd", type=Path, help="VRD's folder with lu2016/objectDetRCNN.mat: the shipped model, too")
    parser.add_argument("--images", type=int, default=60, help="of these")
    parser.add_argument("--csv", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, top {TOP}; CPU times, ratio to the faster dense kernel")
    rows = []
    if arguments.vrd:
        rows += [compare(case) for case in shipped(arguments.vrd, arguments.images)]
    for pairs in arguments.pairs:
        for name in SIZES:
            for rank in (1, 5, 10):
                for t in (1.0, 2.0, 4.0):
                    for prior in (None, sparse_prior(name)):
                        for seed in range(arguments.tensors):
                            rows.append(compare(synthetic(name, pairs, rank, t, prior, seed)))
    summary(rows, ("group",))
    summary(rows, ("group", "data", "prior"))
    summary(rows, ("group", "rank", "t"))
    flat = [synthetic(name, 380, 5, t, None, 0) for name in SIZES for t in (0.0, 0.01, 0.1)]
    print("\nEqual factors (t = 0: ties by index) and nearly equal ones, which bounds prune least, 380 pairs, R = 5:")
    summary([compare(case) for case in flat], ("t", "data"))
    fixed_cost()
    large_vocabulary()
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
