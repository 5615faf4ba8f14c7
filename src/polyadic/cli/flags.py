"""`--section.field value`: any config field as an option, beside a command's own."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from polyadic.config.settings import C, leaves
from polyadic.structures.vocabulary import PolyadicError

ANY = {"allow_extra_args": True, "ignore_unknown_options": True}  # typer leaves unknown options to us


def split_words(words: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The config's name, if it is there, and the fields that are set; `--a.b c` and `--a.b=c` are one."""
    names: list[str] = []
    fields: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            names.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        if not equals:
            after = next(rest, None)
            if after is None or after.startswith("--"):
                raise PolyadicError(f"--{key} needs a value")
            value = after
        fields[key] = value
    if len(names) > 1:
        raise PolyadicError(
            f"expected one CONFIG, got {' and '.join(names)}; several values of a field are joined by commas: "
            "--pixels.strides 8,16"
        )
    return (names[0] if names else None), fields


def with_fields(config: C, fields: dict[str, str], own: Sequence[str]) -> C:
    """The config with these fields; an unknown one is refused with the nearest of all options, `own` included."""
    known = dict(leaves(config))
    for key in fields:
        near = get_close_matches(key, [*known, *own], n=1)
        if key not in known and near and near[0] in own:
            raise PolyadicError(f"no option --{key}; did you mean --{near[0]}?")
    return config.change_text(fields)
