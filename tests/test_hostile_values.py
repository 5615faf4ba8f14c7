"""Well-formed files of wrong content: any array in any place, any text in any header, and damaged containers.

As in test_hostile_properties.py, a reader raises `PolyadicError` or returns a valid value, nothing else.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from engine_cases import job_of, plan_of, write_photos
from hostile_cases import CATEGORIES, RESULTS, change
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from model_cases import NAMES, model_of
from onnx_files import detr, yolox
from PIL import Image
from safetensors.numpy import load_file, save_file
from scipy.io import savemat
from test_hostile_properties import EXAMPLES, SCALARS, VALUES, WORDS, places, survives
from vg_files import FIELDS, OBJECTS, PREDICATES, VG200, image_data, write_vg150, write_vg200

from polyadic.datasets import load_dataset
from polyadic.detectors.onnx import OnnxDetector
from polyadic.engines.sources import Entry, find_entries, read_archive, read_list
from polyadic.engines.storage import Folder
from polyadic.files import PARTS, WEIGHTS, read_weights, write_weights
from polyadic.io.parquet import read_parquet, relations_schema
from polyadic.io.records import read_detections, read_relations, write_detections
from polyadic.model.relation_model import RelationModel
from polyadic.model.storage import FORMAT
from polyadic.prior import TripletPrior
from polyadic.structures.detections import Detections
from polyadic.structures.vocabulary import PolyadicError

pytestmark = pytest.mark.usefixtures("unchecked")
KINDS = ["<i8", "<i4", "<u1", "<u8", "<f8", "<f4", "<f2", "?"]
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 255, 2**31, 2**62, -(2**63), 0.5, -1e300, np.nan, np.inf])


@st.composite
def any_array(draw: st.DrawFn, like: np.ndarray, kinds: list[str] = KINDS) -> np.ndarray:
    """The array itself in another type, with another number, cut or repeated; or one of any shape."""
    kind = np.dtype(draw(st.sampled_from([*kinds, like.dtype.str] if like.dtype.kind in "iufb" else kinds)))
    with np.errstate(all="ignore"):
        if draw(st.booleans()):
            shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
            return np.full(shape, draw(NUMBERS)).astype(kind)
        array = like.astype(kind) if like.dtype.kind in "iufb" else np.zeros(like.shape, kind)
        if array.size and draw(st.booleans()):
            array.flat[draw(st.integers(0, array.size - 1))] = np.array(draw(NUMBERS)).astype(kind)
        rows = st.sampled_from([len(array), len(array) - 1, 0, 2 * len(array)] if array.ndim and len(array) else [0])
        return np.resize(array, (draw(rows), *array.shape[1:])) if array.ndim and draw(st.booleans()) else array


# ---- HDF5


@EXAMPLES
@given(data=st.data())
def test_any_array_in_vg150(data: st.DataObject, tmp_path: Path) -> None:
    name = data.draw(st.sampled_from(sorted(FIELDS)))
    write_vg150(tmp_path, **{name: data.draw(any_array(FIELDS[name]))})
    survives(lambda: load_dataset("vg150", tmp_path, data.draw(st.sampled_from(["train", "test"]))))


@EXAMPLES
@given(data=st.data())
def test_any_value_beside_vg150(data: st.DataObject, tmp_path: Path) -> None:
    records, dicts = image_data(), {"label_to_idx": OBJECTS, "predicate_to_idx": PREDICATES}
    good: Any = data.draw(st.sampled_from([records, dicts]))
    path = data.draw(st.sampled_from(places(good)[1:]))
    changed = change(good, path, data.draw(VALUES))
    write_vg150(tmp_path, *((changed, dicts) if good is records else (records, changed)))
    survives(lambda: load_dataset("vg150", tmp_path, "train"))


@EXAMPLES
@given(data=st.data())
def test_any_array_in_vg200(data: st.DataObject, tmp_path: Path) -> None:
    write_vg200(tmp_path)
    with h5py.File(tmp_path / "vg1_2_meta.h5", "r+") as file:
        found: list[str] = []
        file.visit(found.append)
        name = data.draw(st.sampled_from(found))
        like = file[name][()] if isinstance(file[name], h5py.Dataset) else np.zeros(2)
        del file[name]
        if isinstance(like, np.ndarray) or data.draw(st.booleans()):
            file[name] = data.draw(
                any_array(np.asarray(like)) if isinstance(like, np.ndarray) else st.binary().map(np.bytes_)
            )
        elif data.draw(st.booleans()):
            file.create_group(name)
    survives(lambda: load_dataset("vg200", tmp_path, "train"))


@EXAMPLES
@given(data=st.data())
def test_any_bytes_in_vg200(data: st.DataObject, tmp_path: Path) -> None:
    path = write_vg200(tmp_path) / "vg1_2_meta.h5"
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    survives(lambda: load_dataset("vg200", tmp_path, "train"))


@pytest.mark.parametrize("name", [b"\xff", b"a\xffb", b"..", b"."])
def test_names_in_hdf5_that_are_no_text_or_paths(name: bytes, tmp_path: Path) -> None:
    with h5py.File(write_vg200(tmp_path, {**VG200, "train": {}}) / "vg1_2_meta.h5", "r+") as file:
        images = file["gt/train"]
        group = h5py.Group(h5py.h5g.create(images.id, name)) if name not in (b"..", b".") else images
        group["rlp_labels"] = np.array([[1, 0, 2]])
    survives(lambda: load_dataset("vg200", tmp_path, "train"))


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A file with a few bytes changed, a part replaced, or its end cut off."""
    if draw(st.booleans()):
        content = bytearray(good)
        for at in draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
            content[at] = draw(st.integers(0, 255))
        return bytes(content)
    start, end = sorted(draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    return good[:start] + draw(st.binary(max_size=20)) + draw(st.sampled_from([good[end:], b""]))


# ---- MATLAB, COCO


@EXAMPLES
@given(data=st.data())
def test_any_cell_of_lu_s_files(data: st.DataObject, tmp_path: Path) -> None:
    cells: dict[str, Any] = {
        "rlp_labels_ours": np.array([[1, 1, 2]]),
        "rlp_confs_ours": np.array([[0.5]]),
        "sub_bboxes_ours": np.array([[1, 2, 30, 40]]),
        "obj_bboxes_ours": np.array([[5, 6, 70, 80]]),
        "detection_bboxes": np.array([[1, 2, 30, 40]]),
        "detection_labels": np.array([[1]]),
        "detection_confs": np.array([[0.5]]),
        "imagePath": np.array("c.jpg"),
    }
    name = data.draw(st.sampled_from(sorted(cells)))
    odd = st.sampled_from(["", "x", ["x", "yz"], {"a": 1}, [], [[1, 2], ["x", "y"]], 1 + 2j])
    cells[name] = data.draw(any_array(cells[name]) | odd)
    bare = data.draw(st.booleans())  # the value itself, not in a cell
    content: dict[str, Any] = {}
    for key, cell in cells.items():
        content[key] = np.empty((1, 1), object)
        content[key][0, 0] = cell
    content[name] = cells[name] if bare else content[name]
    for file, keys in {"imagePath.mat": ["imagePath"], "r.mat": list(cells)}.items():
        stream = io.BytesIO()
        savemat(stream, {key: content[key] for key in keys})
        (tmp_path / file).write_bytes(stream.getvalue())
    survives(lambda: read_relations(tmp_path / "r.mat", WORDS, ["c.jpg"]))
    survives(lambda: read_detections(tmp_path / "r.mat", WORDS))


@EXAMPLES
@given(data=st.data())
def test_any_value_in_coco_s_results(data: st.DataObject, tmp_path: Path) -> None:
    good = {"results": [RESULTS, RESULTS], "categories": CATEGORIES}
    changed = change(good, data.draw(st.sampled_from(places(good)[1:])), data.draw(VALUES))
    for name, value in changed.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    survives(lambda: read_detections(tmp_path / "results.json", NAMES))


# ---- safetensors


@EXAMPLES
@given(data=st.data())
def test_any_tensor_and_text_in_a_file_of_detections(data: st.DataObject, tmp_path: Path) -> None:
    path, boxes = tmp_path / "d.safetensors", np.array([[1.0, 2, 30, 40], [5, 6, 70, 50]])
    some = Detections("a", boxes, np.array([0, 1]), np.array([0.5, 0.6]), (100.0, 60.0), source=np.array(["x", "y"]))
    told = Detections("b", boxes, np.array([2, 3]), np.array([0.5, 0.6]), distribution=np.full((2, 4), 0.2, np.float32))
    write_detections(path, [some, told], NAMES, overwrite=True)
    tensors = load_file(path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    texts = json.loads(header["__metadata__"]["polyadic"])
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        tensors[name] = data.draw(any_array(tensors[name]))
    else:
        name = data.draw(st.sampled_from(["images", "sizes", "vocabulary", "sources"]))
        value = json.loads(texts[name])
        changed = data.draw(st.sampled_from(places(value)))
        value = change(value, changed, data.draw(VALUES)) if changed else data.draw(VALUES)
        texts[name] = data.draw(st.sampled_from([json.dumps(value), "[" * 9999]) | st.text(max_size=5) | SCALARS)
    save_file(tensors, path, {"polyadic": json.dumps(texts)})
    survives(lambda: read_detections(path, NAMES))


@EXAMPLES
@given(data=st.data())
def test_any_tensor_and_text_in_a_prior(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "prior.safetensors"
    prior = model_of("evidence").prior
    assert prior is not None
    prior.save(path)
    tensors = load_file(path)
    texts = {"format": "polyadic.TripletPrior/1", "sizes": "[4, 3, 4]", "smoothing": "0.1", "vocabulary": ""}
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        tensors[name] = data.draw(any_array(tensors[name]))
    else:
        name = data.draw(st.sampled_from(["sizes", "smoothing", "vocabulary"]))
        texts[name] = data.draw(VALUES.map(json.dumps) | st.just("[" * 9999) | st.text(max_size=5))
    save_file(tensors, path, texts)
    survives(lambda: TripletPrior.load(path))


@EXAMPLES
@given(data=st.data())
def test_any_tensor_in_a_model_whose_digests_fit(data: st.DataObject, tmp_path: Path) -> None:
    """Digests find damage; who writes a model on purpose writes them, too."""
    if not (tmp_path / WEIGHTS).exists():
        model_of("evidence").save(tmp_path)
    tensors, metadata, parts = read_weights(tmp_path, FORMAT)
    good = (tmp_path / WEIGHTS).read_bytes()
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        kinds = ["<i8", "<i4", "<u1", "<f8", "<f4", "<f2", "?"]
        array = torch.from_numpy(data.draw(any_array(tensors[name].numpy(), kinds)))
        tensors[name] = torch.empty(array.shape, dtype=array.dtype).copy_(array)
    else:
        metadata = {**metadata, "stages": data.draw(VALUES.map(json.dumps) | st.text(max_size=5))}
    write_weights(tmp_path, tensors, metadata, sorted((parts or set(PARTS)) - {WEIGHTS}))
    survives(lambda: RelationModel.load(tmp_path))
    (tmp_path / WEIGHTS).write_bytes(good)


# ---- ONNX models that run


@EXAMPLES
@given(data=st.data())
def test_any_output_of_an_onnx_model(data: st.DataObject, tmp_path: Path) -> None:
    path, kinds = tmp_path / "m.onnx", ["<f4", "<i8"]
    if data.draw(st.booleans()):
        path.write_bytes(yolox(data.draw(any_array(np.full((1, 84, 7), 0.5, np.float32), kinds))))
    else:
        labels, boxes, scores = np.zeros((1, 2), np.int64), np.ones((1, 2, 4), np.float32), np.ones((1, 2), np.float32)
        labels, boxes, scores = (data.draw(any_array(array, kinds)) for array in (labels, boxes, scores))
        path.write_bytes(detr(labels, boxes, scores))
    photo = Image.new("RGB", (64, 64))
    survives(lambda: OnnxDetector(path, NAMES, names=["dog", "cat"])(photo))


# ---- photos by the million


def relations_file(path: Path) -> bytes:
    end = {"box": 0, "name": "person"}
    relation = {"subject": end, "predicate": "ride", "object": {"box": 1, "name": "horse"}, "score": 0.5}
    boxes = [{"box": [1.0, 2.0, 30.0, 40.0], "score": 0.5}, {"box": [5.0, 6.0, 70.0, 80.0], "score": 0.5}]
    row = {"image": "c.jpg", "size": [100.0, 90.0], "boxes": boxes, "relations": [relation]}
    pq.write_table(pa.Table.from_pylist([row] * 3, schema=relations_schema()), path)
    return path.read_bytes()


def photos_list(path: Path) -> bytes:
    pq.write_table(pa.table({"id": [1, 2, 3], "url": ["a.jpg", "b.jpg", "s3://b/c.jpg"]}), path)
    return path.read_bytes()


def photos_archive(path: Path) -> bytes:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.jpg", "b" * 120 + ".jpg", "é.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes(range(7)) * 100))
    return path.read_bytes()


def shard(path: Path) -> bytes:
    rows = pa.table({"image": ["a.jpg"], "url": pa.array([b"/a.jpg"], pa.binary())})
    pq.write_table(rows, path)
    return path.read_bytes()


SCALE: list[tuple[str, Callable[[Path], bytes], Callable[[Path], Any]]] = [
    ("r.parquet", relations_file, lambda path: read_parquet(path, WORDS)),
    ("l.parquet", photos_list, lambda path: find_entries(str(path))),
    ("l.txt", lambda path: b"a.jpg\n/b.jpg\nhttps://x.org/c.jpg\n", lambda path: find_entries(str(path))),
    ("a.tar", photos_archive, lambda path: read_archive(Entry("a.tar", str(path)))),
    ("a.tgz", photos_archive, lambda path: read_archive(Entry("a.tgz", str(path)))),
    ("_photos.list", shard, lambda path: read_list(Folder(str(path.parent)), 0)),
]


@pytest.mark.parametrize(("name", "write", "read"), SCALE, ids=[case[0] for case in SCALE])
@EXAMPLES
@given(data=st.data())
def test_any_bytes_of_a_job_s_files(data: st.DataObject, tmp_path: Path, name: str, write: Any, read: Any) -> None:
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(write(path))))
    survives(lambda: read(path))


COLUMNS: dict[str, pa.DataType] = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "number": pa.int64(),
    "list": pa.list_(pa.float64()),
    "struct": pa.struct([("box", pa.list_(pa.float64()))]),
    "null": pa.null(),
}


def column(kind: str, values: list[Any]) -> pa.Array:
    """Three values, as far as the type takes them."""
    try:
        return pa.array(values, COLUMNS[kind])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.nulls(len(values), COLUMNS[kind])


@EXAMPLES
@given(data=st.data())
def test_any_column_of_a_parquet_file(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    relations_file(path)
    table = pq.read_table(path)
    at = data.draw(st.integers(0, len(table.schema) - 1))
    name = data.draw(st.sampled_from([table.schema.names[at], "url", "image", ""]))
    values = data.draw(st.lists(SCALARS, min_size=3, max_size=3))
    table = table.set_column(at, name, column(data.draw(st.sampled_from(sorted(COLUMNS))), values))
    pq.write_table(table, path)
    survives(lambda: read_parquet(path, WORDS))
    survives(lambda: find_entries(str(path)))
    (tmp_path / "_photos.list").write_bytes(path.read_bytes())
    survives(lambda: read_list(Folder(str(tmp_path)), 0))


@EXAMPLES
@given(data=st.data())
def test_any_value_in_the_file_of_a_job(data: st.DataObject, tmp_path: Path) -> None:
    job, photos = job_of(tmp_path / "out"), tmp_path / "photos"
    if not photos.exists():
        plan_of(job, write_photos(photos, 1))
    about = tmp_path / "out" / "_job.json"
    good = about.read_bytes()
    content = json.loads(good)
    path = data.draw(st.sampled_from(places(content)))
    about.write_text(json.dumps(change(content, path, data.draw(VALUES)) if path else data.draw(VALUES)))
    survives(lambda: plan_of(job, photos, resume=True))
    about.write_bytes(good)


def test_an_archive_whose_header_claims_a_length_beyond_64_bits_is_one_line(tmp_path: Path) -> None:
    record = b"99999999999999999999999 path=a.jpg\n"  # tarfile raises OverflowError
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    (tmp_path / "a.tar").write_bytes(info.tobuf() + record.ljust(512, b"\0") + bytes(1024))
    with pytest.raises(PolyadicError, match="not a readable archive"):
        list(read_archive(Entry("a.tar", str(tmp_path / "a.tar"))))


def test_the_files_written_here_are_valid(tmp_path: Path) -> None:
    """Without damage, every reader reads: the properties above are of files that are nearly right."""
    for name, write, read in SCALE:
        (tmp_path / name).write_bytes(write(tmp_path / name))
        assert len(list(read(tmp_path / name))) >= 1
    assert len(load_dataset("vg150", write_vg150(tmp_path / "a"), "train")) == 1
    assert len(load_dataset("vg200", write_vg200(tmp_path / "b"), "train")) == 2
