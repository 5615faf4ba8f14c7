"""Bad input ends in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyadic.structures.vocabulary import PolyadicError


def refused(message: str, call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the text of the error, which must be one line that matches `message`."""
    with pytest.raises(PolyadicError, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
