from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from polyadic.structures.vocabulary import PolyadicError
from polyadic.training.region_cache import FeatureCache, announce, digest, in_bytes

NUMBERS = arrays(
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]), array_shapes(min_dims=0, min_side=0, max_side=3)
)
PARTS = st.lists(
    st.one_of(
        st.text(),
        st.binary(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        NUMBERS,
        NUMBERS.map(torch.from_numpy),
    ),
    max_size=4,
)


def told(part: Any) -> tuple[Any, ...]:
    """All that tells a part from another, in plain values."""
    if isinstance(part, np.ndarray | Tensor):
        return type(part), str(part.dtype), tuple(part.shape), np.asarray(part).tobytes()
    return type(part), repr(part)


@given(PARTS, PARTS)
def test_digests_are_equal_just_where_the_parts_are(a: list[Any], b: list[Any]) -> None:
    assert (digest(*a) == digest(*b)) == ([told(x) for x in a] == [told(x) for x in b])
    assert digest(*a) == digest(*pickle.loads(pickle.dumps(a)))


DIFFERENT: list[tuple[Any, ...]] = [
    *((), ("",), ("", ""), (b"",), ("ab", "c"), ("a", "bc"), ("abc",), (b"abc",)),
    *(("1",), (1,), (1.0,), (True,), (-1,), (0.0,), (-0.0,)),
    *((np.zeros((2, 3)),), (np.zeros((3, 2)),), (np.zeros(6),), (np.zeros(6, np.float32),), (np.zeros(6, np.int64),)),
    *((torch.zeros(6),), (torch.zeros(6).half(),), (torch.zeros(6).bfloat16(),), (torch.zeros(6).int(),)),
    *((torch.zeros(0, 3),), (torch.zeros(3, 0),), (torch.zeros(()),), (torch.zeros(1),)),
    *((torch.tensor([1j]),), (torch.tensor([1j]).conj(),)),
]


def test_types_shapes_and_borders_count() -> None:
    assert len({digest(*parts) for parts in DIFFERENT}) == len(DIFFERENT)


def test_a_digest_is_the_same_on_every_machine_and_for_every_layout() -> None:
    by_hand = b"str 3\nnet" + b"bytes 1\n\x00" + b"int 2\nff" + b"float 8\n" + bytes.fromhex("000000000000e03f")
    by_hand += b"array int16 (1, 2) 4\n" + b"\x02\x01\x00\x00" + b"tensor torch.bfloat16 (1,) 2\n" + b"\x80\x3f"
    parts = ("net", b"\x00", 255, 0.5, np.array([[258, 0]], np.int16), torch.ones(1, dtype=torch.bfloat16))
    assert digest(*parts) == hashlib.blake2b(by_hand, digest_size=20).hexdigest()
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    assert digest(values) == digest(values.astype("<f4")) == digest(np.asfortranarray(values))
    tensor = torch.arange(6.0).view(2, 3)
    assert digest(tensor) == digest(tensor.T.contiguous().T.requires_grad_())
    assert digest(10**5_000) != digest(10**5_000 + 1)


@pytest.mark.parametrize("bad", [None, [1], np.array(["a"]), np.array([object()]), torch.eye(2).to_sparse()])
def test_parts_without_stable_bytes_are_refused(bad: Any, unchecked: None) -> None:
    with pytest.raises(PolyadicError, match="digest: parts must be"):
        digest("x", bad)


def test_the_announcement_says_what_fits(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, 20_000_000_000)
    assert announce(1_227, 1_140_000, cache) == "features of 1,227 images: 1.4 GB; limit 20 GB"
    assert announce(1_227, 1_140_000, cache, 300) == (
        "features of 1,227 images: 1.4 GB, of which 342 MB are there; limit 20 GB"
    )
    cache.limit = 1_000_000_000
    assert announce(1_227, 1_140_000, cache).endswith("limit 1 GB: 350 images will be computed anew each epoch")
    assert announce(10, 100_000_000, cache).endswith("; limit 1 GB")  # to the last byte
    cache.limit = 0
    assert announce(1_227, 1_140_000, cache).endswith("limit 0 B: 1,227 images will be computed anew each epoch")


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_960, "1 MB"),
        (1_440_000_000, "1.4 GB"),
        (2 * 10**15, "2000 TB"),
    ],
)
def test_sizes_are_for_people(n: int, text: str) -> None:
    assert in_bytes(n) == text
