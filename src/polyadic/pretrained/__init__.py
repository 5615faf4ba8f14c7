"""What comes with the package: relation models, a detector, and a table from COCO's class names to VRD's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from polyadic.structures.labels import Synonyms, fold, read_file
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

MODELS = {  # a folder each, beside this file; see its CARD.md
    "vrd-boxes": "VRD, boxes and labels",
    "vrd-photos": "VRD, boxes of vrd-detector with its P(class | box)",
}

DETECTOR = "vrd-detector"  # of VRD's objects; likewise


def model_for(detectors: Sequence[str]) -> str:
    """Name the model for boxes of these detectors: the one that was trained for `vrd-detector`, or for any boxes."""
    return "vrd-photos" if DETECTOR in detectors else "vrd-boxes"


def detector_folder() -> Path:
    """Return the folder of the detector, as `Detector.save` wrote it."""
    return _place(DETECTOR)


def model_folder(name: str = "vrd-boxes") -> Path:
    """Return the folder of a model, as `RelationModel.save` wrote it."""
    if name not in MODELS:
        raise PolyadicError(f"no model {name!r} comes with polyadic, only {', '.join(MODELS)}")
    return _place(name)


def table_file() -> Path:
    """Return the path of the table from COCO's names to VRD's objects, with reasons for those without one."""
    return _place("coco_to_vrd.toml")


def coco_to_vrd() -> Synonyms:
    """Map COCO's class names, in the spelling of COCO and of darknet, to VRD's objects; leave out those without one.

    >>> coco_to_vrd()["dining table"], coco_to_vrd()["tvmonitor"], "zebra" in coco_to_vrd()
    ('table', 'monitor', False)
    """
    table = read_file(table_file(), "a table of names")
    objects = table["objects"]
    other = {name: objects[standard] for name, standard in table["spellings"].items() if standard in objects}
    return Synonyms(objects | other, table["doubtful"])


def synonyms(vocabulary: Vocabulary) -> Synonyms | None:
    """Return `coco_to_vrd` for a vocabulary that has all of its objects; for others darknet's and COCO's spellings.

    >>> synonyms(Vocabulary(objects=("person", "motorcycle", "sofa"), predicates=("on",)))
    {'motorbike': 'motorcycle', 'couch': 'sofa'}
    """
    table = coco_to_vrd()
    if set(table.values()) <= set(vocabulary.objects):
        return table
    spellings = read_file(table_file(), "a table of names")["spellings"]
    known = {fold(name) for name in vocabulary.objects}
    both = (pair for one, other in spellings.items() for pair in ((one, other), (other, one)))
    table = Synonyms({name: target for name, target in both if fold(target) in known and fold(name) not in known})
    return table or None


def _place(name: str) -> Path:
    return Path(str(files(__name__).joinpath(name)))
