"""ψ_u: how often each triplet occurs in any image (paper: Formulation, "constructed from the training set").

Counts of the seen triplets plus one smoothing constant for all, divided by the sum. About 1% of the tensor is ever
seen, so it is kept as a sorted list of flat indices and one number for the rest; it is never dense.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyadic.cp import CPTensor, require_tensor
from polyadic.files import atomic_write, parse_json
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

_FORMAT = "polyadic.TripletPrior/1"
_SHRINK = 20.0  # annotations that smooth P(s, o | p) by P(s, o), and P(s, o)
_CHUNK = 1 << 24  # numbers of [B, R, M] held at once by log_normaliser


@runtime_checkable
class SparsePrior(Protocol):
    """A prior ψ_u as ranking needs it: one log-weight for all triplets but a sorted list of seen ones."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(S, P, O)."""

    @property
    def keys(self) -> Int[Tensor, " M"]:
        """Seen triplets as strictly rising flat indices (s·P + p)·O + o."""

    @property
    def log_seen(self) -> Float[Tensor, " M"]:
        """Their log-probabilities, float64."""

    @property
    def log_rest(self) -> float:
        """The log-probability of each other triplet."""


@dataclass(frozen=True, eq=False, repr=False)
class TripletPrior:
    """P(s, p, o) = (count + smoothing) / Σ, over sizes S x P x O.

    >>> prior = TripletPrior.from_triplets(torch.tensor([[0, 1, 2], [0, 1, 2]]), (3, 2, 4))
    >>> (prior.log_prob(torch.tensor([[0, 1, 2], [0, 0, 0]])).exp() * (2 + 24)).round()
    tensor([3., 1.], dtype=torch.float64)
    """

    sizes: tuple[int, int, int]
    keys: Int[Tensor, " M"]  # seen triplets, strictly rising (s·P + p)·O + o
    counts: Float[Tensor, " M"]
    smoothing: float = 1.0  # paper: 1
    vocabulary: Vocabulary | None = None
    reversals: Int[Tensor, "P P"] | None = None  # `Dataset.reversals`, for `restates`

    def __post_init__(self) -> None:
        _check_sizes(self.sizes)
        P = self.sizes[1]
        if self.reversals is not None and tuple(self.reversals.shape) != (P, P):
            raise PolyadicError(f"TripletPrior: reversals must be [{P}, {P}], got {list(self.reversals.shape)}")
        if self.vocabulary is not None and self.vocabulary.sizes != tuple(self.sizes):
            raise PolyadicError(
                f"TripletPrior: the vocabulary has sizes {self.vocabulary.sizes}, the prior {tuple(self.sizes)}"
            )
        if not (isinstance(self.smoothing, int | float) and math.isfinite(self.smoothing) and self.smoothing >= 0):
            raise PolyadicError(f"TripletPrior: smoothing must be a number from 0 up, got {self.smoothing!r}")
        keys, counts = self.keys.contiguous(), self.counts.to(torch.float64)
        if keys.dtype != torch.long or keys.ndim != 1 or keys.shape != counts.shape:
            raise PolyadicError(
                f"TripletPrior: keys must be int64 [M] with one count each, got {keys.dtype} {list(keys.shape)} and "
                f"{list(counts.shape)}; use TripletPrior.from_triplets"
            )
        if bool((~(counts >= 0) | counts.isinf()).any()):
            bad = int((~(counts >= 0) | counts.isinf()).nonzero()[0, 0])
            raise PolyadicError(
                f"TripletPrior: counts must be finite and not negative, got {float(counts[bad])} "
                f"for triplet {_unflatten(self.keys[bad], self.sizes).tolist()}"
            )
        outside = len(self.keys) and not (0 <= int(self.keys[0]) <= int(self.keys[-1]) < math.prod(self.sizes))
        if outside or bool((keys.diff() <= 0).any()):
            raise PolyadicError(
                "TripletPrior: keys must rise strictly within the sizes; use TripletPrior.from_triplets"
            )
        if self.smoothing == 0 and not bool((counts > 0).any()):
            raise PolyadicError("TripletPrior: without smoothing at least one triplet must be counted")
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def from_triplets(
        cls,
        triplets: Int[Tensor, "T 3"],
        sizes: tuple[int, int, int] | Vocabulary,
        *,
        smoothing: float = 1.0,
        counts: Float[Tensor, " T"] | Int[Tensor, " T"] | None = None,
        reversals: Int[Tensor, "P P"] | None = None,
    ) -> TripletPrior:
        """Count the annotated triplets of the training set, each worth 1 or its entry of `counts`; O(T log T)."""
        vocabulary = sizes if isinstance(sizes, Vocabulary) else None
        shape = sizes.sizes if isinstance(sizes, Vocabulary) else sizes
        _check_sizes(shape)
        flat = _flatten(triplets, shape)
        if flat.ndim != 1:
            raise PolyadicError(f"TripletPrior: triplets must be [T, 3], got {list(triplets.shape)}")
        counts = (
            torch.ones(len(flat), device=flat.device)
            if counts is None
            else require_tensor(counts, "TripletPrior: counts")
        )
        if counts.shape != flat.shape:
            raise PolyadicError(f"TripletPrior: expected one count per triplet [{len(flat)}], got {list(counts.shape)}")
        if bool((counts < 0).any()):
            bad = int((counts < 0).nonzero()[0, 0])
            raise PolyadicError(
                f"TripletPrior: counts must not be negative, got {float(counts[bad])} for {triplets[bad].tolist()}"
            )
        keys, place = flat.unique(return_inverse=True)
        total = torch.zeros(len(keys), dtype=torch.float64, device=keys.device)
        return cls(shape, keys, total.index_add_(0, place, counts.to(total)), smoothing, vocabulary, reversals)

    def __repr__(self) -> str:
        return f"TripletPrior(sizes={self.sizes}, seen={len(self.keys)}, smoothing={self.smoothing})"

    @property
    def triplets(self) -> Int[Tensor, "M 3"]:
        """The seen triplets."""
        return _unflatten(self.keys, self.sizes)

    @cached_property
    def log_total(self) -> float:
        """Log of the sum that normalises: all counts, and the smoothing of every cell."""
        return math.log(float(self.counts.sum()) + self.smoothing * math.prod(self.sizes))

    @cached_property
    def log_seen(self) -> Float[Tensor, " M"]:
        """Log-probability of each seen triplet."""
        with torch.inference_mode(False):  # kept for later, perhaps outside
            return (self.counts + self.smoothing).log() - self.log_total

    @property
    def log_rest(self) -> float:
        """Log-probability of each triplet that was never seen."""
        return math.log(self.smoothing) - self.log_total if self.smoothing else -math.inf

    @cached_property
    def restates(self) -> Bool[Tensor, "P P"]:
        """Mark predicates p, q where "B q A" says again what "A p B" says, as behind and in front of, wear and on.

        Those are used for the reverse of a pair in more than a quarter of the cases, seen from p or from q, smoothed by
        one in twelve. The diagonal marks predicates that hold both ways, as next to. Without `reversals`, none is.
        """
        P = self.sizes[1]
        if self.reversals is None:
            return torch.zeros(P, P, dtype=torch.bool)
        counts = self.reversals.cpu().double()
        often = (counts + 1) / (counts.sum(1, keepdim=True) + 12) > 0.25
        return often | often.T

    @cached_property
    def information(self) -> Float[Tensor, " P"]:
        """Compute what a predicate tells of its pair, in nats: mean log P(s, o | p) / P(s, o) over its annotations.

        Each annotation is left out of its own estimate, which is smoothed by P(s, o); predicates with few annotations
        are drawn towards 0. "next to" goes with anything and tells nothing, "ride" names its pair.
        """
        _, P, O = self.sizes
        counts, (subject, predicate, object) = self.counts.cpu(), self.triplets.cpu().unbind(-1)
        pairs, often = self._pairs
        share = often[torch.searchsorted(pairs, subject * O + object)] / counts.sum().clamp_min(1)  # P(s, o)
        total = torch.zeros(P, dtype=torch.float64).index_add_(0, predicate, counts)
        others, all_others = (counts - 1).clamp_min(0), (total[predicate] - 1).clamp_min(0)
        log_ratio = ((others + _SHRINK * share) / (all_others + _SHRINK)).log() - share.log()
        told = torch.where(counts > 0, counts * log_ratio, 0.0)
        return torch.zeros(P, dtype=torch.float64).index_add_(0, predicate, told) / (total + 5)

    @cached_property
    def _pairs(self) -> tuple[Int[Tensor, " K"], Float[Tensor, " K"]]:
        """Count the annotations of each pair of classes s·O + o, whatever the predicate."""
        triplets = self.triplets.cpu()
        pairs, place = (triplets[:, 0] * self.sizes[2] + triplets[:, 2]).unique(return_inverse=True)
        return pairs, torch.zeros(len(pairs), dtype=torch.float64).index_add_(0, place, self.counts.cpu())

    def told(self, triplet: Int[Tensor, "*T 3"]) -> Float[Tensor, "*T"]:
        """Compute what a triplet tells, in nats: its predicate's `information` and −log P(s, o), how rare its pair is.

        Person and shirt are in most photos, person and horse in few. P(s, o) is smoothed by 20 annotations, so that a
        pair that was never annotated is no better than a rare one.
        """
        flat = _flatten(triplet, self.sizes).cpu()
        seen, counts = self._pairs
        ends = flat // (self.sizes[1] * self.sizes[2]) * self.sizes[2] + flat % self.sizes[2]
        often = torch.zeros(flat.shape, dtype=torch.float64)
        if len(seen):
            place = torch.searchsorted(seen, ends).clamp_max(len(seen) - 1)
            often = torch.where(seen[place] == ends, counts[place], 0.0)
        rarity = (counts.sum() + _SHRINK).log() - (often + _SHRINK).log()
        return rarity + self.information[flat // self.sizes[2] % self.sizes[1]]

    def log_prob(self, triplet: Int[Tensor, "*T 3"]) -> Float[Tensor, "*T"]:
        """Compute log ψ_u of any triplets, by bisection: O(log M) each."""
        flat = _flatten(triplet, self.sizes).to(self.keys.device)
        if not len(self.keys):
            return torch.full(flat.shape, self.log_rest, dtype=torch.float64, device=self.keys.device)
        place = torch.searchsorted(self.keys, flat).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place] == flat, self.log_seen[place], self.log_rest)

    def log_normaliser(self, cp: CPTensor) -> Float[Tensor, "*B"]:
        """Compute log Σ ψ_c ψ_u per pair, exactly: ψ_c sums to 1, so only seen triplets are visited. O(B · R · M).

        The paper ranks by the unnormalised product; subtract this for P(s, p, o | B, I) as a distribution.
        """
        if cp.sizes != self.sizes:
            raise PolyadicError(f"TripletPrior: made for sizes {self.sizes}, the CP tensor has {cp.sizes}")
        triplets = self.triplets.to(cp.device)
        log_count = self.counts.to(cp.subject).log()
        smoothing = math.log(self.smoothing) if self.smoothing else -math.inf
        total = torch.full(cp.batch_shape, smoothing, dtype=cp.subject.dtype, device=cp.device)
        step = max(1, _CHUNK // max(1, cp.batch_shape.numel() * cp.rank))
        for part, logs in zip(triplets.split(step), log_count.split(step), strict=True):
            many = part.expand(*cp.batch_shape, *part.shape)
            total = torch.logaddexp(total, (cp.log_prob(many) + logs).logsumexp(-1))
        return total - self.log_total

    def to(self, device: torch.device | str) -> TripletPrior:
        return replace(self, keys=self.keys.to(device), counts=self.counts.to(device))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, counts, sizes, smoothing and vocabulary; whole or not at all."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {"keys": self.keys, "counts": self.counts}
        if self.reversals is not None:
            tensors["reversals"] = self.reversals
        metadata = {
            "format": _FORMAT,
            "sizes": json.dumps(self.sizes),
            "smoothing": json.dumps(self.smoothing),
            "vocabulary": self.vocabulary.to_json() if self.vocabulary else "",
        }
        try:
            with atomic_write(path) as part:
                save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, metadata)
        except (OSError, SafetensorError) as error:
            raise PolyadicError(f"TripletPrior: cannot write {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path, vocabulary: Vocabulary | None = None) -> TripletPrior:
        """Read what `save` wrote. A `vocabulary` given here must be the one that was saved."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise PolyadicError(
                        f"TripletPrior: {path} is not a saved prior (expected format {_FORMAT}, "
                        f"got {metadata.get('format')!r}); write one with TripletPrior.save"
                    )
                keys, counts = file.get_tensor("keys"), file.get_tensor("counts")
                reversals = file.get_tensor("reversals") if "reversals" in file.keys() else None  # noqa: SIM118
                sizes, smoothing = (metadata[name].encode() for name in ("sizes", "smoothing"))
                names = metadata["vocabulary"]
        except (OSError, SafetensorError, KeyError) as error:
            raise PolyadicError(f"TripletPrior: cannot read {path}: {error!r}") from error
        saved = Vocabulary.from_json(names) if names else None
        if vocabulary is not None:
            difference = saved.difference(vocabulary) if saved else "the file has no names"
            if difference:
                raise PolyadicError(
                    f"TripletPrior: {path} belongs to another vocabulary ({difference}); "
                    "count the triplets again with this one"
                )
        read_sizes: tuple[int, int, int] = parse_json(sizes, f"{path}, sizes", tuple[int, int, int])
        return cls(read_sizes, keys, counts, parse_json(smoothing, f"{path}, smoothing", float), saved, reversals)


def _check_sizes(sizes: tuple[int, int, int]) -> None:
    if len(sizes) != 3 or any(not isinstance(n, int) or n < 1 for n in sizes) or math.prod(sizes) >= 2**63:
        raise PolyadicError(f"TripletPrior: sizes must be three class counts (S, P, O) from 1 up, got {sizes}")


def _flatten(triplet: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    require_tensor(triplet, "TripletPrior: triplets")
    if triplet.is_floating_point() or triplet.shape[-1:] != (3,):
        raise PolyadicError(
            f"TripletPrior: triplets must be integers [..., 3], got {triplet.dtype} {list(triplet.shape)}"
        )
    bad = ((triplet < 0) | (triplet >= torch.tensor(sizes, device=triplet.device))).any(-1)
    if bool(bad.any()):
        raise PolyadicError(
            f"TripletPrior: labels count from 0, below (S, P, O) = {sizes}, and must not be negative, "
            f"got {triplet[bad][0].tolist()} ({int(bad.sum())} such triplets)"
        )
    s, p, o = triplet.long().unbind(-1)
    return (s * sizes[1] + p) * sizes[2] + o


def _unflatten(keys: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    return torch.stack([keys // (sizes[1] * sizes[2]), keys // sizes[2] % sizes[1], keys % sizes[2]], -1)
