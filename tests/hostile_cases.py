"""Bad inputs: what is wrong, the file, the command that reads it, and a key fragment of the one line that says so."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.io import savemat
from vrd_files import OBJECTS, PREDICATES, TRAIN

PREDICT = ("predict", "evidence", "--detections")
EVALUATE = ("--dataset", "vrd", "--root", "vrd")
DEEP = b"[" * 100_000
WRONG: list[Any] = [None, True, "x", {}, [], [1], 1e300, -1]
DETECTIONS = {
    "image": "a.jpg",
    "size": [100, 60],
    "boxes": [[1, 2, 30, 40], [5, 6, 70, 50]],
    "labels": ["dog", "cat"],
    "scores": [0.9, 0.8],
}
RELATIONS = {
    "image": "c.jpg",
    "boxes": [[1, 2, 30, 40], [5, 6, 70, 50]],
    "pairs": [[0, 1]],
    "triplets": [["person", "ride", "horse"]],
    "scores": [0.5],
}
RESULTS = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40], "score": 0.5}
CATEGORIES = {"categories": [{"id": 1, "name": "dog"}]}
OWN: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 60}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40]},
        {"id": 2, "image_id": 1, "category_id": 2, "bbox": [5, 6, 7, 8]},
    ],
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
    "rel_categories": [{"id": 1, "name": "on"}],
    "rel_annotations": [{"id": 1, "image_id": 1, "subject_id": 1, "predicate_id": 1, "object_id": 2}],
}


class Row(NamedTuple):
    name: str
    files: dict[str, bytes]
    command: tuple[str, ...]
    fragment: str


def change(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Copy a JSON value with one place changed."""
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


def drop(value: Any, path: tuple[Any, ...]) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return value


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def damaged_texts(name: str, command: tuple[str, ...], fragment: str) -> Iterator[Row]:
    """Bytes that are no complete JSON."""
    bytes_of = {
        "empty": b"",
        "cut off": b'{"image": "a.jp',
        "deep": DEEP,
        "zeros": bytes(64),
        "utf-16": b"\xff\xfe{\x00",
    }
    bytes_of |= {"a page": b"<html></html>", "gzip": b"\x1f\x8b\x08\x00", "a number": b"3", "a text": b'"x"'}
    for what, content in bytes_of.items():
        yield Row(f"{name}, {what}", {name: content}, command, fragment)


def detections() -> Iterator[Row]:
    command = (*PREDICT, "bad.jsonl")
    yield from damaged_texts("bad.json", (*PREDICT, "bad.json"), "bad.json")
    valid: list[tuple[str, Any]] = [("image", "x"), ("boxes", []), ("labels", []), ("scores", []), ("size", None)]
    for field, _ in valid:
        for wrong in WRONG:
            if (field, wrong) not in [*valid, ("scores", None)]:
                content = text(change(DETECTIONS, (field,), wrong))
                yield Row(f"detections, {field} {wrong}", {"bad.jsonl": content}, command, "bad.jsonl, line 1: ")
    for path, wrong, fragment in [
        (("boxes", 0), "1234", "$.boxes[0]"),
        (("boxes", 0), [1, 2, True, 40], "$.boxes[0]"),
        (("boxes", 0), [1, 2, 3], "$.boxes[0]"),
        (("boxes", 0), [50, 2, 3, 4], "x1 <= x2"),
        (("boxes", 0), [1, 2, 3, 10**400], "line 1"),
        (("labels", 0), 3, "$.labels[0]"),
        (("labels",), ["dog"], "line 1"),
        (("scores", 0), 2, "must lie in [0, 1]"),
        (("scores", 0), "0.5", "$.scores[0]"),
        (("size",), [0, 5], "$.size[0]"),
        (("size",), [100], "$.size"),
        (("extra",), 1, "unknown field `extra`"),
    ]:
        content = text(change(DETECTIONS, path, wrong))
        yield Row(f"detections, {path} {wrong!r:.30}", {"bad.jsonl": content}, command, fragment)
    for number in ("NaN", "Infinity", "1e999"):
        content = text(DETECTIONS).replace(b"[1, 2, 30", b"[%b, 2, 30" % number.encode())
        yield Row(f"detections, corner {number}", {"bad.jsonl": content}, command, "line 1")
    twice = text(DETECTIONS) + b"\n" + text(DETECTIONS)
    yield Row("detections, an image twice", {"bad.jsonl": twice}, command, "occurs twice")
    yield Row("detections, no file", {}, command, "no file")
    yield Row("detections, safetensors", {"bad.safetensors": b"x" * 99}, (*PREDICT, "bad.safetensors"), "safetensors")


def coco_results() -> Iterator[Row]:
    command = (*PREDICT, "bad.json")
    for field in ("image_id", "category_id", "bbox"):
        yield Row(
            f"results without {field}",
            {"bad.json": text([RESULTS, drop(RESULTS, (field,))]), "categories.json": text(CATEGORIES)},
            command,
            f"`{field}`",
        )
        for wrong in WRONG:
            allowed = {"image_id": ["x", -1], "category_id": [], "bbox": []}[field]
            if wrong not in allowed:
                files = {"bad.json": text([RESULTS, change(RESULTS, (field,), wrong)])}
                files["categories.json"] = text(CATEGORIES)
                yield Row(f"results, {field} {wrong}", files, command, "bad.json: ")
    whole = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [RESULTS], **CATEGORIES}
    for path, wrong in [
        (("images", 0, "id"), [1]),
        (("images", 0, "id"), None),
        (("images", 0, "file_name"), 3),
        (("images", 0, "width"), "3"),
        (("images",), [{"id": 2, "file_name": "b.jpg"}]),
        (("annotations",), None),
        (("annotations", 0, "bbox"), "1234"),
        (("annotations", 0, "bbox"), [1, 2, True, 4]),
        (("annotations", 0, "bbox"), [1, 2, -3, 4]),
        (("annotations", 0, "category_id"), 7),
        (("annotations", 0, "score"), 7),
        (("categories",), 3),
        (("categories", 0), 3),
        (("categories", 0, "id"), "one"),
        (("categories", 0, "name"), 3),
    ]:
        yield Row(f"COCO, {path} {wrong}", {"bad.json": text(change(whole, path, wrong))}, command, "bad.json: ")
    lines = {"bad.json": text([RESULTS])}
    yield Row("no categories", lines, command, "categories")
    yield Row("categories missing", lines, (*command, "--categories", "none.json"), "no file none.json")
    jsonl = {"bad.jsonl": text(DETECTIONS)}
    for option in ("--categories", "--mapping"):
        yield Row(f"{option}, no such file", jsonl, (*PREDICT, "bad.jsonl", option, "none.json"), "none.json")


def mappings() -> Iterator[Row]:
    command = (*PREDICT, "d.jsonl", "--mapping", "bad.json")
    good = {"d.jsonl": text(DETECTIONS)}
    for what, content, fragment in [
        ("absent class", b'{"zebra": "dog"}', "zebra"),
        ("no object", b'{"dog": "zebra"}', "zebra"),
        ("a list", b'["dog"]', "names to names"),
        ("a number", b'{"dog": 3}', "names to names"),
        ("twice", b'{"dog": "cat", "dog": "cup"}', "given twice"),
        ("cut off", b'{"dog": ', "bad.json"),
        ("deep", DEEP, "bad.json"),
        ("empty", b"", "bad.json"),
    ]:
        yield Row(f"mapping, {what}", good | {"bad.json": content}, command, fragment)


def relations() -> Iterator[Row]:
    command = ("evaluate", "bad.jsonl", *EVALUATE)
    for field in ("image", "boxes", "pairs", "triplets", "scores"):
        yield Row(f"relations without {field}", {"bad.jsonl": text(drop(RELATIONS, (field,)))}, command, "line 1: ")
        for wrong in WRONG:
            if (field, wrong) not in (("image", "x"), ("scores", [1])):
                content = text(change(RELATIONS, (field,), wrong))
                yield Row(f"relations, {field} {wrong}", {"bad.jsonl": content}, command, "line 1: ")
    for path, wrong, fragment in [
        (("pairs", 0), [0, 9], "9"),
        (("pairs", 0), [0, -1], ">= 0"),
        (("pairs", 0), [0, 10**30], "line 1"),
        (("triplets", 0), ["person", "ride", "zebra"], "zebra"),
        (("triplets", 0), ["person", "rides", "horse"], "did you mean 'ride'"),
        (("triplets", 0), ["person", "ride"], "$.triplets[0]"),
        (("scores", 0), None, "$.scores[0]"),
    ]:
        content = text(change(RELATIONS, path, wrong))
        yield Row(f"relations, {path} {wrong!r:.40}", {"bad.jsonl": content}, command, fragment)


def own_data() -> Iterator[Row]:
    command = ("data", "check", "coco", "--root", ".", "--split", "train", "--allow-missing-images")
    yield from damaged_texts("train.json", command, "train.json")
    for key in OWN:
        for wrong in [*WRONG[:1], 3, {}, "x"]:
            yield Row(f"own, {key} {wrong}", {"train.json": text(change(OWN, (key,), wrong))}, command, key)
        for field in OWN[key][0]:
            content = text(drop(OWN, (key, 0, field)))
            yield Row(f"own, {key} without {field}", {"train.json": content}, command, field)
            for wrong in (WRONG[5], WRONG[1]):
                content = text(change(OWN, (key, 0, field), wrong))
                yield Row(f"own, {key}.{field} {wrong}", {"train.json": content}, command, field)
    for path, wrong, fragment in cast(
        "list[tuple[Any, Any, str]]",
        [
            (("images", 0, "file_name"), "/etc/passwd", "stay inside"),
            (("images", 0, "file_name"), "../a.jpg", "stay inside"),
            (("images", 0, "file_name"), "x/../../a.jpg", "stay inside"),
            (("images", 0, "file_name"), "C:\\a.jpg", "stay inside"),
            (("images", 0, "file_name"), "..\\a.jpg", "stay inside"),
            (("images", 0, "file_name"), "", "file_name"),
            (("images", 0, "width"), -3, "width"),
            (("annotations", 0, "bbox"), "1234", "bbox"),
            (("annotations", 0, "bbox"), [1, 2, True, 4], "bbox"),
            (("annotations", 0, "bbox"), [1, 2, -3, 4], "inverted box"),
            (("annotations", 0, "image_id"), 9, "no id 9"),
            (("rel_annotations", 0, "subject_id"), 9, "no id 9"),
            (("categories", 1, "name"), "dog", "unique"),
            (("categories", 1, "id"), 1, "again"),
        ],
    ):
        yield Row(f"own, {path} {wrong}", {"train.json": text(change(OWN, path, wrong))}, command, fragment)


def vrd_layout() -> Iterator[Row]:
    command = ("data", "check", "vrd", "--root", ".", "--split", "train", "--allow-missing-images")
    good = {"objects.json": text(OBJECTS), "predicates.json": text(PREDICATES), "annotations_train.json": text(TRAIN)}
    for name in good:
        for row in damaged_texts(name, command, name):
            yield row._replace(files=good | row.files)
    first = ("a.jpg", 0)
    for path, wrong, fragment in [
        (("a.jpg",), 3, "a.jpg"),
        (first, 3, "relation 0"),
        ((*first, "subject"), [], "subject"),
        ((*first, "subject", "category"), 99, "subject.category"),
        ((*first, "subject", "category"), 0.5, "category"),
        ((*first, "subject", "bbox"), "1234", "bbox"),
        ((*first, "subject", "bbox"), [1, 2, 3, True], "bbox"),
        ((*first, "subject", "bbox"), [9, 2, 3, 4], "inverted box"),
        ((*first, "predicate"), -1, "predicate"),
        ((*first, "predicate"), None, "predicate"),
        (("../a.jpg",), [], "stay inside"),
    ]:
        files = good | {"annotations_train.json": text(change(TRAIN, path, wrong))}
        yield Row(f"VRD, {path} {wrong}", files, command, fragment)


def configs() -> Iterator[Row]:
    for what, name, content, fragment in [
        ("unknown key", "bad.toml", b"sed = 1", "did you mean seed"),
        ("unknown section key", "bad.toml", b"[head]\nhiden = 1", "did you mean head.hidden"),
        ("a text for a number", "bad.toml", b'seed = "x"', "seed"),
        ("a fraction", "bad.toml", b"[head]\nrank = 1.5", "head.rank"),
        ("zero", "bad.toml", b"[head]\nrank = 0", "head.rank"),
        ("true", "bad.toml", b"[head]\nrank = true", "head.rank"),
        ("infinite", "bad.toml", b"[ranking]\nprior = inf", "ranking.prior"),
        ("nan", "bad.toml", b"[ranking]\nprior = nan", "ranking.prior"),
        ("negative prior", "bad.toml", b"[ranking]\nprior = -3", "ranking.prior"),
        ("negative boxes", "bad.toml", b"[ranking]\nboxes = -1", "ranking.boxes"),
        ("large repeat", "bad.toml", b"[ranking]\nrepeat = 2", "ranking.repeat"),
        ("share", "bad.toml", b"[head]\ndropout = 1.5", "head.dropout"),
        ("list", "bad.toml", b"sources = 3", "sources"),
        ("choice", "bad.toml", b'[data]\ndataset = "vdr"', "did you mean vrd"),
        ("section as a value", "bad.toml", b"head = 3", "head is a section"),
        ("twice", "bad.toml", b"seed = 1\nseed = 2", "bad.toml"),
        ("twice", "bad.json", b'{"seed": 1, "seed": 2}', "given twice"),
        ("twice inside", "bad.json", b'{"head": {"rank": 1, "rank": 2}}', "given twice"),
        ("deep", "bad.json", DEEP, "bad.json"),
        ("deep", "bad.toml", b"x = " + DEEP, "bad.toml"),
        ("empty", "bad.json", b"", "bad.json"),
        ("a list", "bad.json", b"[]", "keys and values"),
        ("no text", "bad.toml", b"\xff\xfe", "bad.toml"),
        ("preset", "bad.toml", b'preset = "vdr"', "no preset"),
        ("a list as preset", "bad.toml", b"preset = [1]", "no preset"),
        ("no strides", "bad.toml", b"[pixels]\nstrides = []", "pixels.strides"),
        ("large number", "bad.json", b'{"seed": 1' + b"0" * 5000 + b"}", "bad.json"),
    ]:
        yield Row(f"config {name}, {what}", {name: content}, ("config", name), fragment)


def lu(**changes: Any) -> dict[str, bytes]:
    """Lu's file of one image, with some cells replaced, and the file of its names."""
    content: dict[str, Any] = {
        "rlp_labels_ours": np.array([[1, 1, 2]]),
        "rlp_confs_ours": np.array([[0.5]]),
        "sub_bboxes_ours": np.array([[1, 2, 30, 40]]),
        "obj_bboxes_ours": np.array([[5, 6, 70, 80]]),
        "imagePath": "c.jpg",
    }
    files = {}
    for name, keys in {"bad.mat": tuple(content)[:4], "imagePath.mat": ("imagePath",)}.items():
        cells = {}
        for key in keys:
            cells[key] = np.empty((1, 1), object)
            cells[key][0, 0] = changes.get(key, content[key])
        stream = io.BytesIO()
        savemat(stream, cells)
        files[name] = stream.getvalue()
    return files


def published() -> Iterator[Row]:
    command = ("evaluate", "bad.mat", *EVALUATE)
    nested = np.empty((1, 1), object)
    nested[0, 0] = np.array([[1, 2]])
    for what, wrong in {"text": "abc", "struct": {"a": 1}, "nested": nested, "width": np.ones((1, 7))}.items():
        for key in ("rlp_labels_ours", "rlp_confs_ours", "sub_bboxes_ours"):
            if (what, key) != ("width", "rlp_confs_ours"):
                yield Row(f".mat, {key} {what}", lu(**{key: wrong}), command, "expected numbers")
    names: dict[str, Any] = {"empty": np.zeros((0, 0)), "number": np.ones((1, 1)), "struct": {"a": 1}}
    for what, wrong in names.items():
        yield Row(f".mat, name {what}", lu(imagePath=wrong), command, "name of an image")
    yield Row(".mat, fraction", lu(rlp_labels_ours=np.array([[1.5, 1, 2]])), command, "whole numbers")
    yield Row(".mat, class 0", lu(rlp_labels_ours=np.array([[0, 1, 2]])), command, "outside 1 to")
    yield Row(".mat, nan", lu(rlp_labels_ours=np.array([[np.nan, 1, 2]])), command, "whole numbers")
    yield Row(".mat, lengths", lu(rlp_confs_ours=np.ones((3, 1))), command, "different lengths")
    yield Row(".mat, damaged", lu() | {"bad.mat": b"x" * 500}, command, "MATLAB")
    yield Row(".mat, no names", {"bad.mat": lu()["bad.mat"]}, command, "imagePath.mat")
    entry = {
        "pred_boxes": np.array([[1, 2, 30, 40.0], [5, 6, 70, 80]]),
        "pred_classes": np.array([1, 2]),
        "obj_scores": np.array([0.9, 0.8]),
        "pred_rel_inds": np.array([[0, 1]]),
        "rel_scores": np.array([[0.1, 0.5, 0.4]]),
    }
    command = ("evaluate", "bad.pkl", *EVALUATE)
    for key, wrong, fragment in cast(
        "list[tuple[str, Any, str]]",
        [
            ("pred_classes", np.array([1.5, 2]), "whole numbers"),
            ("pred_classes", [10**30, 2], "whole numbers"),
            ("pred_classes", ["a", "b"], "whole numbers"),
            ("pred_classes", np.array([1, 9]), "pred_classes"),
            ("pred_rel_inds", np.array([[0, 0.5]]), "whole numbers"),
            ("pred_rel_inds", np.array([[0, 7]]), "pred_rel_inds"),
            ("pred_rel_inds", np.array([0, 1, 1]), "bad.pkl"),
            ("pred_boxes", np.ones(3), "bad.pkl"),
            ("pred_boxes", None, "bad.pkl"),
            ("obj_scores", ["a", "b"], "bad.pkl"),
            ("obj_scores", np.ones(5), "bad.pkl"),
            ("rel_scores", np.ones((1, 9)), "rel_scores"),
            ("rel_scores", [[10**400, 1, 2]], "bad.pkl"),
        ],
    ):
        content = pickle.dumps({"c.jpg": {**entry, key: wrong}})
        yield Row(f".pkl, {key} {wrong!r:.30}", {"bad.pkl": content}, command, fragment)
    for key in entry:
        yield Row(f".pkl without {key}", {"bad.pkl": pickle.dumps({"c.jpg": drop(entry, (key,))})}, command, key)
    values: dict[str, Any] = {"a number": 3, "a list": [3], "code": np.sum, "an entry": {"c.jpg": 3}}
    for what, value in values.items():
        yield Row(f".pkl, {what}", {"bad.pkl": pickle.dumps(value)}, command, "bad.pkl")
    yield Row(".pkl, cut off", {"bad.pkl": pickle.dumps(entry)[:50]}, command, "not a pickle")


def hdf5() -> Iterator[Row]:
    for name, file in (("vg150", "VG-SGG.h5"), ("vg200", "vg1_2_meta.h5")):
        command = ("data", "check", name, "--root", ".", "--split", "train", "--allow-missing-images")
        for what, content in {"empty": b"", "text": b"x" * 900, "header alone": b"\x89HDF\r\n\x1a\n"}.items():
            files = {file: content, "VG-SGG-dicts.json": b"{}", "image_data.json": b"[]"}
            yield Row(f"{file}, {what}", files, command, "." if name == "vg150" else file)
        yield Row(f"{file}, absent", {}, command, "no ")


def serving() -> Iterator[Row]:
    command = ("serve", "--model", "evidence", "--no-browser", "--port", "0")
    picture = b"P5 4 4 255\n" + bytes(16)
    ours = {"made": "polyadic serve", **OWN}
    for name, files, more, fragment in cast(
        "list[tuple[str, dict[str, bytes], tuple[str, ...], str]]",
        [
            ("no folder", {}, ("nowhere",), "nowhere is not a folder of photos"),
            ("a file", {"a.jpg": picture}, ("a.jpg",), "a.jpg is not a folder"),
            ("no photos", {}, ("evidence",), "no image in this folder"),
            ("a foreign train.json", {"a.jpg": picture, "train.json": text(OWN)}, (".",), "not written by polyadic"),
            ("a cut-off train.json", {"a.jpg": picture, "train.json": b'{"made"'}, (".",), "train.json"),
            ("drafts", {"a.jpg": picture, "train.json": text({**ours, "drafts": [1]})}, (".",), "drafts"),
            ("no run", {}, ("--run", "nowhere"), "nowhere"),
            ("no such model", {}, ("--model", "vrd"), "holds no saved model"),
            ("folder and run", {}, ("vrd", "--run", "vrd"), "mutually exclusive"),
            ("prefill", {}, ("--prefill", "0.5"), "--prefill needs FOLDER"),
            ("boxes", {}, ("--detections", "x.jsonl"), "--detections needs --run"),
            ("detector", {}, ("--detector", "nowhere.onnx"), "nowhere.onnx"),
            ("public", {}, ("--host", "0.0.0.0"), "add --public"),
            ("address", {}, ("--host", "203.0.113.7", "--public"), "cannot listen on 203.0.113.7"),
        ],
    ):
        yield Row(f"serve, {name}", files, (*command, *more), fragment)


ROWS = [
    row
    for rows in (detections, coco_results, mappings, relations, own_data, vrd_layout, configs, published, hdf5, serving)
    for row in rows()
]
