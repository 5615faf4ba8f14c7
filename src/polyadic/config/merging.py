"""Other values for some fields: from a file, or from flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from polyadic.config.checks import keys, kind_of, names_of
from polyadic.structures.vocabulary import PolyadicError


def parse_value(config: Any, key: str, text: str) -> Any:
    """The text of a flag as a value of the field `section.name`."""
    section, _, name = key.rpartition(".")
    owner = getattr(config, section, None) if section else config
    if owner is None or not is_dataclass(owner) or name not in names_of(owner):
        raise PolyadicError(_unknown(config, key))
    kind = get_type_hints(type(owner))[name]
    if is_dataclass(kind):
        raise PolyadicError(f"{key} is a section; set one of its fields, like {key}.{names_of(kind)[0]}")
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(_word(part, item, key) for part in text.replace(",", " ").split())
    return _word(text, kind, key)


def _word(text: str, kind: Any, key: str) -> Any:
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise PolyadicError(f"{key} must be true or false, got {text!r}")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            raise PolyadicError(f"{key} must be {kind_of(kind)}, got {text!r}") from error
    return text


def merge(owner: Any, values: Mapping[str, Any], prefix: str = "", file: str = "") -> Any:
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names_of(owner):
            raise PolyadicError(_unknown(owner, name, prefix, file))
        now = getattr(owner, name)
        if is_dataclass(now):
            if not isinstance(value, Mapping):
                raise PolyadicError(f"{_where(file)}{prefix}{name} is a section, got {value!r}")
            changes[name] = merge(now, value, f"{prefix}{name}.", file)
        else:
            changes[name] = tuple(value) if isinstance(value, list) else value
    try:
        return replace(owner, **changes)
    except PolyadicError as error:
        raise PolyadicError(f"{_where(file)}{error}") from error


def _unknown(owner: Any, name: str, prefix: str = "", file: str = "") -> str:
    known = [f"{prefix}{each}" for each in keys(owner)]
    sections = [each for each in names_of(owner) if is_dataclass(getattr(owner, each))]
    key = f"{prefix}{name}"
    near = get_close_matches(key, [*known, *sections], n=1, cutoff=0.6)
    if not near:  # the right field of a forgotten section
        near = [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    hint = f"; did you mean {near[0]}?" if near else "; `polyadic config` lists them"
    return f"{_where(file)}no config key {key}{hint}"


def _where(file: str) -> str:
    return f"{file}: " if file else ""
