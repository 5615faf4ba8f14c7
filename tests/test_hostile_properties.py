"""Any bytes, any JSON value in any field: a reader raises `PolyadicError` or returns a valid value, nothing else."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hostile_cases import DETECTIONS, OWN, RELATIONS, RESULTS, change, lu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_cases import NAMES, model_of
from vg_files import FIELDS
from vrd_files import OBJECTS, PREDICATES, TRAIN

from polyadic.config import load_config
from polyadic.datasets import load_dataset
from polyadic.datasets.reading import open_h5, read_array
from polyadic.files import read_vocabulary
from polyadic.io.records import read_detections, read_relations
from polyadic.model.relation_model import RelationModel
from polyadic.prior import TripletPrior
from polyadic.structures.labels import read_mapping
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

pytestmark = pytest.mark.usefixtures("unchecked")
EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
WORDS = Vocabulary(objects=OBJECTS, predicates=PREDICATES)
SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
WHOLE = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [RESULTS],
    "categories": [{"id": 1, "name": "dog"}],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths to all places in a JSON value, itself included."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in keys for place in places(inner, (*path, key)))]


def survives(read: Callable[[], Any]) -> None:
    """Call a reader, to its end."""
    with warnings.catch_warnings(), suppress(PolyadicError):
        warnings.simplefilter("ignore")
        result = read()
        if hasattr(result, "__next__"):
            list(result)


def detections(folder: Path, name: str) -> object:
    return read_detections(folder / name, NAMES)


def relations(folder: Path, name: str) -> object:
    return read_relations(folder / name, WORDS, ["c.jpg"])


def dataset(kind: str) -> Callable[[Path, str], object]:
    return lambda folder, _: load_dataset(kind, folder, "train")


JSON: list[tuple[str, Any, Callable[[Path, str], object]]] = [
    ("a.jsonl", DETECTIONS, detections),
    ("a.json", [DETECTIONS], detections),
    ("b.json", WHOLE, detections),
    ("r.jsonl", RELATIONS, relations),
    ("train.json", OWN, dataset("coco")),
    ("annotations_train.json", TRAIN, dataset("vrd")),
    ("objects.json", OBJECTS, dataset("vrd")),
    ("train_image_metadata.json", {"a.jpg": {"width": 100, "height": 100}}, dataset("vrd")),
    ("config.json", load_config("vrd").to_json(), lambda folder, name: load_config(folder / name)),
    ("mapping.json", {"a": "dog"}, lambda folder, name: read_mapping(folder / name)),
    ("vocabulary.json", json.loads(NAMES.to_json()), lambda folder, _: read_vocabulary(folder, None)),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in {"objects": OBJECTS, "predicates": PREDICATES, "annotations_train": TRAIN}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


@pytest.mark.parametrize(("name", "good", "read"), JSON, ids=[case[0] for case in JSON])
@EXAMPLES
@given(data=st.data())
def test_any_value_in_any_field(data: st.DataObject, folder: Path, name: str, good: Any, read: Any) -> None:
    path, value = data.draw(st.sampled_from(places(good))), data.draw(VALUES)
    (folder / name).write_text(json.dumps(change(good, path, value) if path else value))
    survives(lambda: read(folder, name))


BYTES = [*((name, json.dumps(good).encode(), read) for name, good, read in JSON)]
BYTES += [(name, lu()[name], lambda folder, _: relations(folder, "bad.mat")) for name in ("bad.mat", "imagePath.mat")]
BYTES.append(("a.pkl", pickle.dumps({"c.jpg": {"pred_boxes": np.ones((1, 4)), "pred_classes": [1]}}), relations))
BYTES.append(("config.toml", load_config("vrd").to_toml().encode(), lambda folder, name: load_config(folder / name)))


@pytest.mark.parametrize(("name", "good", "read"), BYTES, ids=[case[0] for case in BYTES])
@EXAMPLES
@given(data=st.data())
def test_any_bytes(data: st.DataObject, folder: Path, name: str, good: bytes, read: Any) -> None:
    """A good file with a part replaced by others; often all of it."""
    for other, content in lu().items():
        (folder / other).write_bytes(content)
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    rest = data.draw(st.sampled_from([good[end:], b""]))
    (folder / name).write_bytes(good[:start] + data.draw(st.binary(max_size=20)) + rest)
    survives(lambda: read(folder, name))


@pytest.mark.parametrize("name", ["model.safetensors", "prior.safetensors", "vocabulary.json", "config.json"])
@EXAMPLES
@given(data=st.data())
def test_any_change_of_a_saved_model_is_refused(data: st.DataObject, tmp_path: Path, name: str) -> None:
    if not (tmp_path / name).exists():
        model_of("evidence").save(tmp_path)
    good = (tmp_path / name).read_bytes()
    at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    (tmp_path / name).write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
    try:
        with pytest.raises(PolyadicError):
            RelationModel.load(tmp_path)
    finally:
        (tmp_path / name).write_bytes(good)


@EXAMPLES
@given(content=st.binary(max_size=200), head=st.booleans())
def test_any_prior(content: bytes, head: bool, tmp_path: Path) -> None:
    (tmp_path / "p.safetensors").write_bytes((len(content).to_bytes(8, "little") if head else b"") + content)
    survives(lambda: TripletPrior.load(tmp_path / "p.safetensors"))
    survives(lambda: read_detections(tmp_path / "p.safetensors", NAMES))


@EXAMPLES
@given(data=st.data())
def test_any_hdf5(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, values in FIELDS.items():
            file[name] = values
    good = path.read_bytes()
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    path.write_bytes(good[:start] + data.draw(st.binary(max_size=20)) + data.draw(st.sampled_from([good[end:], b""])))

    def read() -> None:
        with open_h5(path, "") as file:
            for name in ("labels", "boxes_1024", "split"):
                read_array(file, name, 4, path)

    survives(read)
