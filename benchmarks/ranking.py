"""How much faster is exact ranking than the best dense way, at which sizes, and how close is it to its lower limit?

    python benchmarks/ranking.py --csv results/ranking.csv    # all of it, about 20 minutes on 2 cores
    python benchmarks/ranking.py --pairs 380                  # about 8 minutes

Both sides get the same float32 scores N(0, t) and give the image's top 100. The dense way is what a skilled user
would write: softmax once, then blocks that fit the cache by matrix multiplication, times a dense prior, against a
running threshold; its loop order and block size are tuned for every case before it is timed. It is timed without
P(X_sel) and box confidences on either side: they would close more pairs, in favour of the bounds. Compilation (once
per machine, then cached on disk) and the making of the CPTensor, which is the network's output, are outside the times.

Columns: `ratio` dense / fast; `limit` fast / one pass over the factors (read, exponentiate in float64, add up), which
any exact way needs; `same` how many of the 100 entries both found (fewer where equal scores fill the last places,
which the dense way takes in no stated order).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from polyadic import CPTensor, TripletPrior, rank_relations

SIZES = {"VRD": (100, 70, 100), "VG150": (150, 50, 150), "VG200": (200, 100, 200)}
SEEN = {"VRD": 6_672, "VG150": 30_000, "VG200": 19_237}  # distinct triplets: VRD's own; the others assumed
TOP = 100
ROWS: list[dict[str, object]] = []


def factors(pairs: int, rank: int, sizes: tuple[int, ...], t: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(pairs, rank, n, generator=generator) * t for n in sizes]


def sparse_prior(sizes: tuple[int, int, int], seen: int) -> TripletPrior:
    """`seen` random triplets whose counts have a heavy tail, up to 5,000."""
    generator = torch.Generator().manual_seed(1)
    triplets = torch.stack([torch.randint(n, (seen,), generator=generator) for n in sizes], -1)
    counts = torch.rand(seen, generator=generator).pow(-1 / 0.9).clamp(max=5000).round()
    return TripletPrior.from_triplets(triplets, sizes, counts=counts)


def dense_prior(prior: TripletPrior) -> Tensor:
    weight = torch.full((prior.sizes[0] * prior.sizes[1] * prior.sizes[2],), prior.log_rest)
    weight[prior.keys] = prior.log_seen.float()
    return weight.exp().view(prior.sizes)


def dense_top(
    s: Tensor, p: Tensor, o: Tensor, weight: Tensor | None, block: int, pairs_first: bool
) -> tuple[Tensor, Tensor]:
    """Top entries by blocks of subjects: values and flat indices."""
    mixture = (s.logsumexp(-1) + p.logsumexp(-1) + o.logsumexp(-1)).softmax(-1)
    a = (s.softmax(-1) * mixture[..., None]).transpose(1, 2).contiguous()  # [B, S, R]
    b, c = p.softmax(-1), o.softmax(-1)
    (B, S, _), P, O = a.shape, b.shape[-1], c.shape[-1]
    rows = min(S, max(1, block // (P * O)))
    buffer = torch.empty(rows, P * O)
    low, values, indices = -1.0, torch.empty(0), torch.empty(0, dtype=torch.long)
    for pair in range(B):
        outer = (b[pair, :, :, None] * c[pair, :, None, :]).flatten(1) if pairs_first else None  # [R, PO]
        for i in range(0, S, rows):
            part = a[pair, i : i + rows]
            y = buffer[: len(part)]
            if outer is not None:
                torch.mm(part, outer, out=y)
            else:
                torch.mm((part[:, None, :] * b[pair].T).flatten(0, 1), c[pair], out=y.view(-1, O))
            y = y.flatten()
            if weight is not None:
                y *= weight[i : i + rows].flatten()
            if float(y.max()) <= low:
                continue
            found = (y > low).nonzero()[:, 0]
            values, indices = (
                torch.cat([values, y[found]]),
                torch.cat([indices, found + (pair * S + i) * P * O]),
            )
            if len(values) > TOP:
                values, order = values.topk(TOP)
                indices, low = indices[order], float(values[-1])
    return values, indices


def best_dense(scores: list[Tensor], weight: Tensor | None) -> Callable[[], tuple[Tensor, Tensor]]:
    """The dense way with the block size and loop order that are fastest on the first pairs of this case."""
    (s, p, o), (s24, p24, o24) = scores, (x[:24] for x in scores)
    settings = [(2**n, first) for n in (17, 18, 19, 20, 22) for first in (True, False)]
    block, pairs_first = min(settings, key=lambda z: seconds(lambda: dense_top(s24, p24, o24, weight, *z), 3)[0])
    return lambda: dense_top(s, p, o, weight, block, pairs_first)


def seconds(run: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Median and quartiles, after one run to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    if len(times) < 2:
        return times[0], times[0], times[0]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return middle, low, high


def one_pass(scores: list[Tensor]) -> None:
    """The lower limit: read every score once, exponentiate in float64, add up."""
    for x in scores:
        x.double().exp_().sum(-1)


def flat_index(scores: list[Tensor], prior: TripletPrior | None) -> set[int]:
    found = rank_relations(CPTensor(*scores), prior, top=TOP)
    _, P, O = (x.shape[-1] for x in scores)
    S = scores[0].shape[-1]
    s, p, o = found.triplet.unbind(-1)
    return set((((found.pair * S + s) * P + p) * O + o).tolist())


def compare(name: str, pairs: int, rank: int, t: float, with_prior: bool, scores: list[Tensor] | None = None) -> float:
    sizes = SIZES[name]
    scores = factors(pairs, rank, sizes, t) if scores is None else scores
    prior = sparse_prior(sizes, SEEN[name]) if with_prior else None
    weight = dense_prior(prior) if prior else None
    dense = best_dense(scores, weight)
    repeats = 15 if pairs <= 380 else 5
    cp = CPTensor(*scores)
    fast, low, high = seconds(lambda: rank_relations(cp, prior, top=TOP), repeats)
    answers: list[tuple[Tensor, Tensor]] = []
    slow = seconds(lambda: answers.append(dense()), 3 if pairs <= 380 else 1)[0]
    limit = seconds(lambda: one_pass(scores), repeats)[0]
    same = len(set(answers[-1][1].tolist()) & flat_index(scores, prior))
    print(
        f"{name:6} {pairs:5} {rank:3} {t:5g} {'yes' if prior else 'no':>5} {slow * 1e3:9.1f} {fast * 1e3:8.2f} "
        f"{low * 1e3:6.2f}-{high * 1e3:<7.2f} {slow / fast:6.0f}x {fast / limit:6.1f}x {same:5}",
        flush=True,
    )
    ROWS.append(
        {"data": name, "pairs": pairs, "rank": rank, "t": t, "prior": bool(prior), "dense_ms": slow * 1e3}
        | {"fast_ms": fast * 1e3, "ratio": slow / fast, "one_pass_ms": limit * 1e3, "same": same}
    )
    return slow / fast


def growth() -> None:
    """Time against each size, the others held: VRD's classes, 380 pairs, R = 5, t = 2."""
    base, times = SIZES["VRD"], {}
    for label, pairs, rank, times_classes in [
        *((f"{n} pairs", n, 5, 1) for n in (95, 190, 380, 760, 1520)),
        *((f"R = {n}", 380, n, 1) for n in (1, 2, 5, 10, 20)),
        *((f"classes x {n}", 380, 5, n) for n in (1, 2, 4, 8)),
    ]:
        scores = factors(pairs, rank, tuple(n * times_classes for n in base), 2.0)
        times[label] = seconds(lambda: rank_relations(CPTensor(*scores), top=TOP), 15)[0]  # noqa: B023
    print("\n".join(f"  {label:12} {run * 1e3:8.2f} ms" for label, run in times.items()), flush=True)


def large_vocabulary() -> None:
    sizes = (5000, 500, 5000)
    prior = sparse_prior(sizes, 1_000_000)
    for t in (1.0, 2.0, 4.0):
        scores = factors(380, 5, sizes, t)
        for given in (None, prior):
            run = seconds(lambda: rank_relations(CPTensor(*scores), given, top=TOP), 3)[0]  # noqa: B023
            print(
                f"  t = {t:g}, {'1,000,000 seen triplets' if given else 'no prior':24} {run:6.2f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[20, 380, 2450])
    parser.add_argument("--csv", type=Path, help="write the rows there, too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, top {TOP}; times in ms, median (quartiles)")
    print("data   pairs   R     t prior     dense     fast  quartiles       ratio  limit  same")
    ratios: dict[int, list[float]] = {}
    for pairs in arguments.pairs:
        for name in SIZES:
            for rank in (1, 5, 10):
                for t in (1.0, 2.0, 4.0):
                    for with_prior in (False, True):
                        ratios.setdefault(pairs, []).append(compare(name, pairs, rank, t, with_prior))
    for pairs, found in ratios.items():
        print(f"{pairs} pairs: median {statistics.median(found):.0f}x, from {min(found):.0f}x to {max(found):.0f}x")
    print("\nExactly uniform factors (t = 0: all equal, ties by index) and nearly uniform ones, 380 pairs:")
    for name, sizes in SIZES.items():
        for with_prior in (False, True):
            compare(name, 380, 5, 0.0, with_prior, [torch.zeros(380, 5, n) for n in sizes])
        for t in (0.01, 0.1):
            compare(name, 380, 5, t, False)
    print("\nHow time grows, without a prior (VRD's classes, 380 pairs, R = 5, t = 2, one of them changed):")
    growth()
    print("\n5,000 x 500 x 5,000 classes, 380 pairs, R = 5 (dense: 50 GB per pair in float32; not run):")
    large_vocabulary()
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in ROWS)


if __name__ == "__main__":
    main()
