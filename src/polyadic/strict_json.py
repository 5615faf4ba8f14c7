"""JSON from outside: cut, foreign, absurdly deep or with a key twice, it is refused in one line."""

from __future__ import annotations

import json
from typing import Any

from polyadic.vocabulary import PolyadicError

LARGEST = 1e18  # no pixel, score or size is larger; a whole number beyond float64 would not even convert


def parse_json(text: bytes, where: str) -> Any:
    """The value of one JSON text; `where` names it in the error."""
    if text[:2] == b"\x1f\x8b":
        raise PolyadicError(f"{where}: a gzip file; unpack it first")
    if text[:64].lstrip()[:1] == b"<":
        raise PolyadicError(f"{where}: a web page or XML, not JSON")
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        cure = "is it cut off, or a file of another kind?"
        raise PolyadicError(f"{where}: not complete JSON ({error}); {cure}") from error
    except RecursionError as error:
        raise PolyadicError(f"{where}: JSON nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise PolyadicError(f"{where}: not usable JSON ({error})") from error
    except _TwiceError as error:
        raise PolyadicError(f"{where}: {error.key!r} occurs twice in one object; each needs one record") from error


class _TwiceError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(key)
            seen.add(key)
    return value


def is_positive(value: Any) -> bool:
    """A number above 0: the side of a frame."""
    return is_number(value) and value > 0


def is_number(value: Any) -> bool:
    """A number of a sane size: no truth value, no NaN, no infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
