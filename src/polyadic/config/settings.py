"""What every config can do: check its values, be changed by dotted key, and become JSON or TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from polyadic.structures.vocabulary import PolyadicError

T = TypeVar("T")

# msgspec checks the bounds; upper ones keep infinity out
Positive = Annotated[float, Meta(gt=0, lt=1e300)]
NonNegative = Annotated[float, Meta(ge=0, lt=1e300)]
Finite = Annotated[float, Meta(gt=-1e300, lt=1e300)]
Share = Annotated[float, Meta(ge=0, lt=1)]
UnitInterval = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
MOST_SEED, MOST_THREADS = 2**32 - 1, 1024  # torch crashes where a thread cannot be started
Seed = Annotated[int, Meta(ge=0, le=MOST_SEED)]
Threads = Annotated[int, Meta(ge=0, le=MOST_THREADS)]  # or processes


def paper(default: T, about: str) -> T:
    """Declare a field whose default is the paper's."""
    value: T = field(default=default, metadata={"about": f"paper: {about}"})
    return value


def ours(default: T, about: str) -> T:
    """Declare a field whose default is ours."""
    value: T = field(default=default, metadata={"about": f"ours: {about}"})
    return value


class Settings:
    """A config: a frozen dataclass of values and of sections, which hold values only."""

    def __post_init__(self) -> None:
        """Check the values, whether they come from a file, a flag or Python."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            if name in _names(self):
                _convert(msgspec.to_builtins(getattr(self, name)), hint, prefix=name)
        self.check()

    def check(self) -> None:
        """Check values that depend on one another."""

    def change(self: C, **values: Any) -> C:
        """Return a copy with other values by dotted key: `change(**{"head.rank": 3})`."""
        nested: dict[str, Any] = {}
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[name] = value
        return self.merge(nested)

    def merge(self: C, values: Mapping[str, Any]) -> C:
        """Return a copy with the values of a nested dict, such as a file's."""
        merged = msgspec.to_builtins(self)
        for name, value in values.items():
            if name not in _names(self):
                raise PolyadicError(_unknown(self, name))
            section = getattr(self, name)
            if not is_dataclass(section):
                merged[name] = _listed(value, section)
            elif not isinstance(value, Mapping):
                raise PolyadicError(f"{name} is a section, got {value!r}")
            else:
                for inner in value:
                    if inner not in _names(section):
                        raise PolyadicError(_unknown(self, f"{name}.{inner}"))
                merged[name] |= {inner: _listed(given, getattr(section, inner)) for inner, given in value.items()}
        changed: C = _convert(merged, type(self))
        return changed

    def change_text(self: C, values: Mapping[str, str]) -> C:
        """Return a copy with values as text by dotted key, as on the command line; commas separate those of a list."""
        return self.change(**{key: self._parse(key, text) for key, text in values.items()})

    def _parse(self, key: str, text: str) -> Any:
        section, _, name = key.rpartition(".")
        owner = getattr(self, section, None) if section else self
        if not is_dataclass(owner) or name not in _names(owner):
            raise PolyadicError(_unknown(self, key))
        hint = get_type_hints(type(owner))[name]
        if is_dataclass(hint):
            raise PolyadicError(f"{key} is a section; set one of its fields, such as {key}.{_names(hint)[0]}")
        words = text.replace(",", " ").split()
        return _convert(words if get_origin(hint) is tuple else text, hint, prefix=key, strict=False)

    def to_json(self) -> dict[str, Any]:
        """Convert to values of JSON."""
        value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return value

    def to_toml(self) -> str:
        """Convert to TOML, with a comment beside each value: its meaning, and the paper's or ours."""
        lines, sections = list[str](), list[str]()
        for entry in fields(self):  # type: ignore[arg-type]
            value = getattr(self, entry.name)
            if is_dataclass(value):
                title = entry.metadata.get("about") or (type(value).__doc__ or "").split("] ")[-1]
                sections.append(f"\n[{entry.name}]  # {title}")
                sections += [_line(inner, getattr(value, inner.name)) for inner in fields(value)]
            else:
                lines.append(_line(entry, value))
        return "\n".join(lines + sections)


C = TypeVar("C", bound=Settings)


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield each dotted key and its value."""
    for name in _names(config):
        value = getattr(config, name)
        if is_dataclass(value):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in _names(value))
        else:
            yield name, value


def difference(a: Settings, b: Settings, ignore: tuple[str, ...] = ()) -> list[str]:
    """List the keys whose values differ, except those that start with one of `ignore`."""
    other = dict(leaves(b))
    return [key for key, value in leaves(a) if value != other[key] and not key.startswith(ignore)]


def _listed(value: Any, present: Any) -> Any:
    """Read text in place of a list as a list of one, and empty text as none."""
    return ([value] if value else []) if isinstance(value, str) and isinstance(present, tuple) else value


def _names(owner: Any) -> list[str]:
    return [entry.name for entry in fields(owner)]


def _line(entry: Field[Any], value: Any) -> str:
    """Format `name = value  # comment`; a value other than the paper's is ours, with the paper's beside it."""
    about = entry.metadata["about"]
    if about.startswith("paper: ") and entry.default not in (value, MISSING):
        about = f"ours; the paper has {json.dumps(entry.default)}: {about.removeprefix('paper: ')}"
    return f"{f'{entry.name} = {json.dumps(value, ensure_ascii=False)}':34}  # {about}"


_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list"}


def _convert(value: Any, hint: Any, *, prefix: str = "", strict: bool = True) -> Any:
    """Convert plain values to a type, or say in one line which key is wrong and why."""
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        if isinstance(error.__cause__, PolyadicError):  # of `check`
            raise error.__cause__ from None
        for part in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[part[0] or int(part[1])]
        names = [name for name, _ in re.findall(r"\.(\w+)|\[(\d+)\]", path) if name]
        key = ".".join([*([prefix] if prefix else []), *names])
        raise PolyadicError(f"{key}: {_expected(reason, value, hint, names)}, got {value!r}") from None


def _expected(reason: str, value: Any, hint: Any, names: list[str]) -> str:
    if not reason.startswith("Invalid enum value"):
        words = re.sub(r"`(\w+)`", lambda match: _WORDS.get(match[1], match[1]), reason.partition(", got")[0])
        return words.replace("Expected", "expected")
    for name in names:
        hint = get_type_hints(hint)[name]
    options = get_args(hint if get_origin(hint) is Literal else get_args(hint)[0])
    near = get_close_matches(str(value), options, n=1)
    return f"expected one of {', '.join(options)}{f' (did you mean {near[0]}?)' if near else ''}"


def _unknown(config: Settings, key: str) -> str:
    known = [name for name, _ in leaves(config)]
    near = get_close_matches(key, [*known, *_names(config)], n=1, cutoff=0.6)
    if not near:  # the right field of a forgotten section
        near = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    return f"no config key {key}; " + (f"did you mean {near[0]}?" if near else "`polyadic config` lists them")
