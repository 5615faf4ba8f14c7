"""What all configs can do: be changed by dotted key, and become JSON or TOML."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

from polyadic.config.checks import names_of, plain
from polyadic.config.merging import merge
from polyadic.config.text import toml

T = TypeVar("T")


def paper(default: T, about: str) -> T:
    """A field whose default is the paper's."""
    value: T = field(default=default, metadata={"about": f"paper: {about}"})
    return value


def ours(default: T, about: str) -> T:
    """A field whose default is ours."""
    value: T = field(default=default, metadata={"about": f"ours: {about}"})
    return value


class Settings:
    """The abstract config: a frozen dataclass of values, and of sections, which hold values alone."""

    def change(self: C, **values: Any) -> C:
        """Other values by dotted key: `change(**{"head.rank": 3})`."""
        nested: dict[str, Any] = {}
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[name] = value
        changed: C = merge(self, nested)
        return changed

    def to_json(self) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in names_of(self)}

    def to_toml(self) -> str:
        """With a comment beside each value: what it is and whose."""
        return "\n".join(toml(self))


C = TypeVar("C", bound=Settings)
