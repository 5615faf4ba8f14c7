from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import prior_tensor, probability_tensor
from refusals import refused
from torch import Tensor

from polyadic.cp import CPTensor
from polyadic.prior import TripletPrior
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

SIZES = (4, 3, 5)
OTHER = CPTensor(torch.zeros(1, 4), torch.zeros(1, 3), torch.zeros(1, 6))
ALL = torch.cartesian_prod(*(torch.arange(n) for n in SIZES))
NAMES = Vocabulary(objects=("person", "horse", "street"), predicates=("ride", "on"))


def random_triplets(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(size, (n,), generator=generator) for size in SIZES], -1)


@pytest.mark.parametrize("smoothing", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("n", [1, 40, 500])
def test_log_prob_equals_the_smoothed_counts_of_the_paper(n: int, smoothing: float) -> None:
    triplets = random_triplets(n)
    prior = TripletPrior.from_triplets(triplets, SIZES, smoothing=smoothing)
    expected = prior_tensor([tuple(x) for x in triplets.tolist()], SIZES, smoothing)
    torch.testing.assert_close(prior.log_prob(ALL).exp().view(SIZES), expected)
    torch.testing.assert_close(prior.log_prob(ALL).exp().sum(), torch.tensor(1.0).double())


def test_it_sums_to_one_through_the_sparse_and_constant_form() -> None:
    sizes = (10_000, 1_000, 10_000)
    triplets = torch.stack([torch.randint(n, (5_000,), generator=torch.Generator().manual_seed(n)) for n in sizes], -1)
    prior = TripletPrior.from_triplets(triplets, sizes)
    seen = float(prior.log_seen.exp().sum())
    rest = (math.prod(sizes) - len(prior.keys)) * math.exp(prior.log_rest)
    assert seen > 0
    assert seen + rest == pytest.approx(1, abs=1e-12)


def test_weighted_counts_add_up_and_no_triplets_is_uniform() -> None:
    triplets = torch.tensor([[0, 1, 2], [3, 2, 4], [0, 1, 2]])
    prior = TripletPrior.from_triplets(triplets, SIZES, counts=torch.tensor([2, 5, 0.5]))
    assert prior.triplets.tolist() == [[0, 1, 2], [3, 2, 4]]
    assert prior.counts.tolist() == [2.5, 5]
    none = TripletPrior.from_triplets(torch.empty(0, 3, dtype=torch.long), SIZES)
    torch.testing.assert_close(none.log_prob(ALL).exp(), torch.full((60,), 1 / 60).double())


@pytest.mark.parametrize("smoothing", [1.0, 0.0])
def test_normaliser_of_the_product_is_the_dense_sum(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    triplets = random_triplets(40)
    prior = TripletPrior.from_triplets(triplets, SIZES, smoothing=smoothing)
    factors = [torch.randn(2, 3, 2, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in SIZES]
    cp = CPTensor(*factors)
    psi_u = prior_tensor([tuple(x) for x in triplets.tolist()], SIZES, smoothing)
    expected = torch.stack(
        [(probability_tensor(*(x[a, b] for x in factors)) * psi_u).sum().log() for a in range(2) for b in range(3)]
    )
    torch.testing.assert_close(prior.log_normaliser(cp), expected.view(2, 3))
    monkeypatch.setattr("polyadic.prior._CHUNK", 50)  # in many pieces
    torch.testing.assert_close(prior.log_normaliser(cp), expected.view(2, 3))


BIG = """
import torch
from pathlib import Path
from polyadic import TripletPrior
generator = torch.Generator().manual_seed(0)
sizes = (10_000, 1_000, 10_000)
triplets = torch.stack([torch.randint(n, (1_000_000,), generator=generator) for n in sizes], -1)
prior = TripletPrior.from_triplets(triplets, sizes)
assert bool((prior.log_prob(triplets) > prior.log_rest).all())
print(next(x.split()[1] for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_large_vocabulary_with_a_million_seen_triplets_stays_under_a_gigabyte() -> None:
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 1e9  # the whole process, torch included


def test_save_and_load_with_the_vocabulary(tmp_path: Path) -> None:
    triplets = torch.tensor([[0, 0, 1], [0, 1, 2], [0, 0, 1]])
    prior = TripletPrior.from_triplets(triplets, NAMES, smoothing=0.5)
    prior.save(tmp_path / "prior.safetensors")
    loaded = TripletPrior.load(tmp_path / "prior.safetensors", NAMES)
    assert (loaded.sizes, loaded.smoothing, loaded.vocabulary) == (prior.sizes, prior.smoothing, NAMES)
    assert torch.equal(loaded.keys, prior.keys)
    assert torch.equal(loaded.counts, prior.counts)
    assert [x.name for x in tmp_path.iterdir()] == ["prior.safetensors"]
    other = Vocabulary(objects=("person", "zebra", "street"), predicates=("ride", "on"))
    with pytest.raises(PolyadicError, match=r"another vocabulary \(object 1 is 'horse' against 'zebra'"):
        TripletPrior.load(tmp_path / "prior.safetensors", other)


def test_invalid_files_are_refused_in_one_line(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("not a prior")
    save_file({"x": torch.zeros(1)}, tmp_path / "weights")
    save_file({"x": torch.zeros(1)}, tmp_path / "tagged", {"format": "polyadic.TripletPrior/1"})
    for name in ("tagged", "missing", "text", "weights"):
        says = "not a saved prior" if name == "weights" else "cannot read"
        refused(f"{name}.*{says}|{says}.*{name}", partial(TripletPrior.load, tmp_path / name))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prior"
    prior = TripletPrior.from_triplets(torch.tensor([[0, 0, 1]]), NAMES)
    prior.save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(PolyadicError, match=r"cannot write .*No space left"):
        prior.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TripletPrior.from_triplets(torch.tensor([[0, 3, 0]]), SIZES), r"below \(S, P, O\) = .*\[0, 3, 0\]"),
        (lambda: TripletPrior.from_triplets(torch.zeros(2, 3), SIZES), "integers"),
        (lambda: TripletPrior.from_triplets(ALL[:1], SIZES, counts=torch.tensor([-1])), "not be negative, got -1"),
        (lambda: TripletPrior.from_triplets(ALL[:2], SIZES, counts=torch.tensor([1])), "one count per triplet"),
        (lambda: TripletPrior.from_triplets(ALL[:1], SIZES, smoothing=-1), "smoothing must be a number from 0 up"),
        (lambda: TripletPrior.from_triplets([[0, 0, 0]], SIZES), "torch tensor, got list"),  # type: ignore[arg-type]
        (lambda: TripletPrior.from_triplets(ALL[0], SIZES), r"must be \[T, 3\], got \[3\]"),
        (lambda: TripletPrior(SIZES, torch.tensor([1, 2]), torch.ones(3)), "one count each"),
        (lambda: TripletPrior.from_triplets(ALL[:0], SIZES, smoothing=0), "at least one triplet"),
        (lambda: TripletPrior.from_triplets(ALL[:0], (4, 0, 5)), "three class counts"),
        (lambda: TripletPrior(SIZES, torch.tensor([3, 2]), torch.ones(2)), "rise strictly"),
        (lambda: TripletPrior(SIZES, torch.tensor([2]), torch.ones(1), vocabulary=NAMES), "the vocabulary has sizes"),
        (lambda: TripletPrior.from_triplets(ALL[:1], SIZES).log_normaliser(OTHER), "made for sizes"),
    ],
)
def test_invalid_input_is_refused_in_one_line(make: Any, says: str) -> None:
    refused(says, make)
