"""A config as TOML, with a comment beside each value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from polyadic.config.checks import plain


def toml(config: Any) -> Iterator[str]:
    sections = []
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            sections.append((each.name, value))
        else:
            yield _line(each.name, value, _whose(each.metadata.get("about", ""), value, each.default))
    for name, section in sections:
        title = _STAGES.get(name) or (type(section).__doc__ or "").split("] ")[-1]
        yield f"\n[{name}]  # {title}"
        for each in fields(section):
            yield _line(
                each.name,
                getattr(section, each.name),
                _whose(each.metadata.get("about", ""), getattr(section, each.name), each.default),
            )


def _whose(about: str, value: Any, default: Any) -> str:
    """A value that is not the paper's is ours, with the paper's beside it."""
    if not about.startswith("paper: ") or value == default or default is MISSING:
        return about
    return f"ours; the paper has {json.dumps(plain(default))}: {about.removeprefix('paper: ')}"


def _line(name: str, value: Any, about: str) -> str:
    text = f"{name} = {json.dumps(plain(value), ensure_ascii=False)}"
    return f"{text:34}  # {about}" if about else text


_STAGES = {
    "backbone": "Stage 0 (ours): the backbone learns the labels of true boxes, then is frozen. 0 epochs: as given.",
    "boxes": "Ours: the prior that knows the boxes and what neighbours say, on annotations alone. 0 epochs: none.",
    "triplets": "Stage 1: annotated pairs of true boxes.",
    "proposals": "Stage 1b: pairs of proposals, at most 4 per true box at IoU 0.5 or more.",
    "training": "The detector, on all boxes of an image.",
    "selection": "Stage 2: P(X_sel), everything else frozen.",
}
