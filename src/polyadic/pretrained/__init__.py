"""What comes with the package: a model that needs no dataset and no training, and COCO's names as VRD's."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from polyadic.structures.labels import Synonyms, read_file
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

MODELS = {"vrd-boxes": "VRD, boxes and labels"}  # a folder each, beside this file; see its CARD.md


def model_folder(name: str = "vrd-boxes") -> Path:
    """Where a model lies, as `RelationModel.save` wrote it."""
    if name not in MODELS:
        raise PolyadicError(f"no model {name!r} comes with polyadic, only {', '.join(MODELS)}")
    return _place(name)


def table_file() -> Path:
    """Where the table of COCO's names lies: each with VRD's object, or without one, and why."""
    return _place("coco_to_vrd.toml")


def coco_to_vrd() -> Synonyms:
    """COCO's class names, in COCO's spelling and in darknet's, to VRD's objects; those without an object are left out.

    >>> coco_to_vrd()["dining table"], coco_to_vrd()["tvmonitor"], "zebra" in coco_to_vrd()
    ('table', 'monitor', False)
    """
    table = read_file(table_file(), "a table of names")
    objects = table["objects"]
    other = {name: objects[standard] for name, standard in table["spellings"].items() if standard in objects}
    return Synonyms(objects | other)


def synonyms(vocabulary: Vocabulary) -> Synonyms | None:
    """`coco_to_vrd`, for a vocabulary that has all those objects; None for others, which it was not made for."""
    table = coco_to_vrd()
    return table if set(table.values()) <= set(vocabulary.objects) else None


def _place(name: str) -> Path:
    return Path(str(files(__name__).joinpath(name)))
