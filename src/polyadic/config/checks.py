"""Fields of nested dataclasses by dotted key, their types and ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from polyadic.structures.vocabulary import PolyadicError


def keys(config: Any) -> list[str]:
    """All dotted keys; of a section, its own names."""
    return [key for key, _ in leaves(config)]


def difference(a: Any, b: Any, but: tuple[str, ...] = ()) -> list[str]:
    """Keys whose values differ, except those that start with a word of `but`."""
    other = dict(leaves(b))
    return [key for key, value in leaves(a) if value != other[key] and not key.startswith(but)]


def value_at(config: Any, key: str) -> Any:
    return dict(leaves(config))[key]


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    for name in names_of(config):
        value = getattr(config, name)
        if is_dataclass(value):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in names_of(value))
        else:
            yield name, value


def names_of(owner: Any) -> list[str]:
    return [each.name for each in fields(owner)]


def plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in names_of(value)}
    return list(value) if isinstance(value, tuple) else value


def check(config: Any) -> None:
    """Types and ranges, once."""
    for section in ("", *(name for name in names_of(config) if is_dataclass(getattr(config, name)))):
        owner = getattr(config, section) if section else config
        for name, kind in get_type_hints(type(owner)).items():
            if not is_dataclass(kind):
                key = f"{section}.{name}" if section else name
                value = _checked(key, getattr(owner, name), kind)
                object.__setattr__(owner, name, value)
    for key, value in leaves(config):
        name = key.rpartition(".")[2]
        if key in _LEAST and value < _LEAST[key]:
            raise PolyadicError(f"{key} must be at least {_LEAST[key]}, got {value}")
        if (name.endswith("dropout") or name == "noise") and not 0 <= value < 1:
            raise PolyadicError(f"{key} must lie in [0, 1), got {value}")
        if name in ("nms", "score") and not 0 <= value <= 1:
            raise PolyadicError(f"{key} must lie in [0, 1], got {value}")
        if name in ("rate", "clip") and not value > 0:
            raise PolyadicError(f"{key} must be above 0, got {value}")
        if name in ("epochs", "decay", "momentum", "workers", "threads", "nulls") and value < 0:
            raise PolyadicError(f"{key} must not be negative, got {value}")
        least = 0 if key == "validation.images" else 1
        if name == "images" and value < least:
            raise PolyadicError(f"{key} must be at least {least}, got {value}")


def check_sources(config: Any) -> None:
    """What a relation model is fed with."""
    if not config.sources or len(set(config.sources)) < len(config.sources):
        raise PolyadicError(f"sources must be pixels, evidence or both, got {list(config.sources)}")
    if not config.pixels.strides:
        raise PolyadicError("pixels.strides must name at least one stride")
    if len(set(config.pixels.strides)) < len(config.pixels.strides):
        raise PolyadicError(f"pixels.strides must be different, got {list(config.pixels.strides)}")
    if config.head.labels:
        _check_labels(config)


def _check_labels(config: Any) -> None:
    """A head that tells labels alone needs somebody to tell the rest."""
    if not config.boxes.epochs:
        raise PolyadicError("head.labels leaves predicates to the prior that knows the boxes: set boxes.epochs")
    if config.head.rank != 1:
        raise PolyadicError(f"head.labels is of rank 1, got head.rank {config.head.rank}")
    if config.head.context:
        raise PolyadicError("head.labels looks at one box at a time: head.context must be false")
    if config.proposals.epochs:
        raise PolyadicError("head.labels learns from true boxes: proposals.epochs must be 0")
    if config.selection.epochs:
        raise PolyadicError("with head.labels the prior that knows the boxes selects: selection.epochs must be 0")


_LEAST = {
    "head.rank": 1,
    "head.hidden": 1,
    "head.layers": 1,
    "selector.hidden": 1,
    "geometry.rank": 1,
    "geometry.hidden": 1,
    "geometry.embedding": 1,
    "neighbours.hidden": 1,
    "neighbours.embedding": 1,
    "neighbours.exponent": 0,
    "pixels.pool": 1,
    "pixels.mask": 8,
    "pixels.spatial": 1,
    "pixels.side": 8,
    "pixels.longest": 8,
    "pixels.reduce": 0,
    "pixels.crops": 0,
    "evidence.embedding": 1,
    "evidence.geometry": 1,
    "ranking.smoothing": 0,
    "ranking.selected": 0,
    "cache.gigabytes": 0,
    "validation.k": 0,
    "world.train": 1,
    "world.test": 1,
    "side": 32,
    "longest": 32,
    "most": 1,
}


def _checked(key: str, value: Any, kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind):
            near = get_close_matches(str(value), list(get_args(kind)), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PolyadicError(f"{key} must be {', '.join(get_args(kind))}, got {value!r}{hint}")
        return value
    if origin is tuple:
        if not isinstance(value, tuple | list):
            raise PolyadicError(f"{key} must be a list, got {value!r}")
        return tuple(_checked(key, each, get_args(kind)[0]) for each in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise PolyadicError(f"{key} must be {kind_of(kind)}, got {value!r}")
    if kind is float and not abs(value) < float("inf"):
        raise PolyadicError(f"{key} must be a finite number, got {value}")
    return value


def kind_of(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, str(kind))
