"""What does the loss cost, against the dense cross-entropy, against autograd, and within a training step?

    python benchmarks/loss.py --csv results/loss.csv

Forward and backward. `closed` is `CPTensor.nll` (the supplement's gradient), `autograd` is `-CPTensor.log_prob`,
`dense` forms the tensor y and takes the logarithm of its target entry. The step is the paper's three branches, two
fully connected layers of 4,096 each, fed with 7 x 7 x 512 RoI features (+ 512 spatial ones for the predicate):
forward, backward, no optimiser. Peak memory is what the operators allocate beyond the factors themselves, from
torch's profiler.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler's chatter

import torch
from ranking import SIZES, factors, seconds
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from polyadic import CPTensor


def closed(cp: CPTensor, triplet: Tensor) -> Tensor:
    return cp.nll(triplet).mean()


def autograd(cp: CPTensor, triplet: Tensor) -> Tensor:
    return -cp.log_prob(triplet).mean()


def dense(cp: CPTensor, triplet: Tensor) -> Tensor:
    weight, s, p, o = (x.exp() for x in cp.mixture())
    y = torch.einsum("br,bri,brj,brk->bijk", weight, s, p, o)
    i, j, k = triplet.unbind(-1)
    return -y[torch.arange(len(i)), i, j, k].log().mean()


def step_of(loss: Callable[[CPTensor, Tensor], Tensor], scores: list[Tensor], triplet: Tensor) -> Callable[[], None]:
    leaves = [x.detach().requires_grad_() for x in scores]

    def run() -> None:
        torch.autograd.grad(loss(CPTensor(*leaves), triplet), leaves)

    return run


def peak_bytes(run: Callable[[], None]) -> int:
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    found = recorded.profiler
    assert found is not None
    assert found.kineto_results is not None
    changes = sorted((e.start_ns(), e.nbytes()) for e in found.kineto_results.events() if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def targets(pairs: int, sizes: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.stack([torch.randint(n, (pairs,), generator=generator) for n in sizes], -1)


def branches(rank: int, sizes: tuple[int, int, int]) -> nn.ModuleList:
    widths = (25_088, 25_088 + 512, 25_088)
    return nn.ModuleList(
        nn.Sequential(nn.Linear(w, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, rank * n))
        for w, n in zip(widths, sizes, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the numbers there, too")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("Loss alone      pairs   R  time, ms (quartiles)       peak, MB   against closed")
    for name, pairs, rank in [
        ("VRD", 16, 5),
        ("VRD", 512, 1),
        ("VRD", 512, 5),
        ("VRD", 512, 10),
        ("VG200", 512, 5),
    ]:
        scores, triplet = factors(pairs, rank, SIZES[name], 1.0), targets(pairs, SIZES[name])
        losses = {"closed": closed, "autograd": autograd} | ({"dense": dense} if pairs == 16 else {})
        base: tuple[float, int] | None = None
        for kind, loss in losses.items():
            run = step_of(loss, scores, triplet)
            middle, low, high = seconds(run, 7 if kind == "dense" else 41)
            peak = peak_bytes(run)
            base = base or (middle, peak)
            ratio = f"{middle / base[0]:.1f}x time, {peak / base[1]:.1f}x memory"
            print(
                f"{name:6} {kind:9} {pairs:4} {rank:3} {middle * 1e3:9.2f} ({low * 1e3:.2f}-{high * 1e3:.2f}) "
                f"{peak / 1e6:12.2f}   {ratio}",
                flush=True,
            )
            rows.append(
                {
                    "data": name,
                    "kind": kind,
                    "pairs": pairs,
                    "rank": rank,
                    "ms": middle * 1e3,
                    "peak_mb": peak / 1e6,
                }
            )
    print("\nWithin a training step of the paper's size, VRD, 128 pairs:")
    pairs, sizes = 128, SIZES["VRD"]
    for rank in (1, 5, 10):
        network, triplet = branches(rank, sizes), targets(pairs, sizes)
        inputs = [torch.randn(pairs, layers[0].in_features) for layers in network]  # type: ignore[index]
        scores = factors(pairs, rank, sizes, 1.0)

        def layers_alone() -> None:
            outputs = [layers(x) for layers, x in zip(network, inputs, strict=True)]  # noqa: B023
            torch.autograd.grad([x.mean() for x in outputs], list(network.parameters()))  # noqa: B023

        layers_time = seconds(layers_alone, 3)[0]
        loss_time = seconds(step_of(closed, scores, triplet), 41)[0]
        share = loss_time / (layers_time + loss_time)
        print(
            f"  R = {rank:2}: layers {layers_time:.2f} s, loss {loss_time * 1e3:.2f} ms: {share:.2%} of the step",
            flush=True,
        )
        rows.append(
            {
                "data": "VRD",
                "kind": "step",
                "pairs": pairs,
                "rank": rank,
                "ms": layers_time * 1e3,
                "share": share,
            }
        )
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["data", "kind", "pairs", "rank", "ms", "peak_mb", "share"])
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
