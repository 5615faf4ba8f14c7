from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polyadic.ranking import Ranking
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

NAMES = Vocabulary(objects=("person", "horse"), predicates=("ride", "on", "next to"))


def relations(n: int = 3) -> Ranking:
    score = 0 - torch.arange(n, dtype=torch.float64)
    zeros = torch.zeros_like(score)
    triplet = torch.arange(3 * n).view(n, 3)
    return Ranking(torch.arange(n), triplet, score, score, zeros, zeros, zeros, zeros)


def test_vocabulary_encodes_and_decodes() -> None:
    assert NAMES.sizes == (2, 3, 2)
    assert NAMES.encode(("person", "next to", "horse")) == (0, 2, 1)
    assert NAMES.decode((0, 2, 1)) == ("person", "next to", "horse")
    assert Vocabulary.from_json(NAMES.to_json()) == NAMES
    assert NAMES.difference(NAMES) is None


def test_relations_have_length_rows_and_slices() -> None:
    result = relations()
    assert len(result) == 3
    assert result[1][:5] == (1, 3, 4, 5, -1.0)
    assert result[-1].pair == 2
    numbers: list[Any] = [np.int64(1), torch.tensor(1)]
    assert [result[one] for one in numbers] == [result[1]] * 2
    assert result[1].triplet == (3, 4, 5)
    assert repr(result) == "Ranking(3: 0 1 2 0.000, 3 4 5 -1.000, 6 7 8 -2.000)"
    assert [r.log_score for r in result] == [0, -1, -2]
    assert list(result[1:]) == list(result)[1:]
    assert list(result[result.log_score > -2]) == list(result)[:2]
    assert len(relations(0)) == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Vocabulary((), ("on",)), "objects must be a list of non-empty names"),
        (lambda: NAMES.encode(("person", "on")), "expected .subject, predicate, object."),
        (lambda: Vocabulary(("a",), ("on", "on")), "'on' twice"),
        (
            lambda: NAMES.encode(("persn", "on", "horse")),
            "no object is called 'persn'; did you mean 'person'",
        ),
        (lambda: NAMES.decode((0, 3, 0)), "outside the sizes"),
        (lambda: Vocabulary.from_json("{}"), "expected JSON"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_invalid_input_is_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises(PolyadicError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
