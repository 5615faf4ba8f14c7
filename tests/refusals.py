"""A user's mistake is one line, a `PolyadicError`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyadic.structures.vocabulary import PolyadicError


def refused(match: str, act: Callable[[], object]) -> None:
    """Check that the call is refused in one line that has these words."""
    with pytest.raises(PolyadicError, match=match) as caught:
        act()
    assert "\n" not in str(caught.value)
