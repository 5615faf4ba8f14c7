"""Bad detectors, weights and arrays, and bad calls of `detect` and `reproduce`: further rows of the table."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np
from hostile_cases import DEEP, DETECTIONS, Row, change, drop, text
from onnx_files import BOOL, FLOAT, INT8, STRING, detr, graph, node, yolox
from vg_files import FIELDS, OBJECTS, PREDICATES, image_data

CELLS = 8 * 8 + 4 * 4 + 2 * 2  # of an image of 64 x 64
HALVES = np.full((1, CELLS, 7), 0.5, np.float32)
ONE = (np.zeros((1, 1), np.int64), np.array([[[1, 2, 30, 40]]], np.float32), np.array([[0.9]], np.float32))
YOLOX, DETR = yolox(HALVES), detr(*ONE)
NAMES = {"c.names": b"dog\ncat\n"}
PREDICT = ("predict", "evidence", "p.png", "--names", "c.names", "--detector")


def onnx_detectors() -> Iterator[Row]:
    images = {"images": (FLOAT, [1, 3, 64, 64])}
    halves = {"output": (FLOAT, list(HALVES.shape))}
    give = [node("Identity", ["c"], "output")]
    fill = {number: np.full_like(HALVES, number) for number in (np.nan, np.inf, -1, 2)}
    labels, boxes, scores = ONE
    two = np.zeros((1, 2), np.int64)
    content = {
        "empty file": (b"", "not an ONNX model"),
        "cut off": (YOLOX[:200], "not an ONNX model"),
        "text": (b"no model\n" * 30, "not an ONNX model"),
        "names that are no text": (YOLOX.replace(b"images", b"\xff\xff\xff\xff\xff\xff"), "not an ONNX model"),
        "no input": (graph(give, {}, halves, {"c": HALVES}), "got no input"),
        "two inputs": (graph(give, {**images, "b": (FLOAT, [1])}, halves, {"c": HALVES}), "expected one float input"),
        "no output": (graph(give, images, {}, {"c": HALVES}), "cannot run"),
        "bytes in": (yolox(HALVES, kind=INT8), "expected one float input"),
        "three axes in": (yolox(HALVES, (3, 64, 64)), "expected one float input"),
        "a batch of 8": (yolox(HALVES, (8, 3, 64, 64)), "[8, 3, 64, 64]"),
        "grey images": (yolox(HALVES, (1, 1, 64, 64)), "expected one float input"),
        "odd sides": (yolox(HALVES, (1, 3, 33, 64)), "multiples of 32"),
        "sides of nothing": (yolox(HALVES, (1, 3, 0, 0)), "multiples of 32"),
        "sides of a named axis": (yolox(HALVES, (1, 3, "h", "w")), "'h'"),
        "sides beyond memory": (yolox(HALVES, (1, 3, 3_200_000, 3_200_000)), "up to 4096"),
        "a classifier": (yolox(np.zeros((1, 1000), np.float32)), "expected YOLOX's output"),
        "other cells": (yolox(np.zeros((1, 85, 7), np.float32)), "expected YOLOX's output"),
        "no classes": (yolox(np.zeros((1, CELLS, 5), np.float32)), "expected YOLOX's output"),
        "a single number": (yolox(np.array(1, np.float32)), "expected YOLOX's output"),
        "words out": (yolox(HALVES, cast=STRING), "expected outputs of numbers"),
        "truths out": (yolox(HALVES, cast=BOOL), "expected outputs of numbers"),
        **{f"{number} out": (yolox(array), "class scores in [0, 1]") for number, array in fill.items()},
        "3 classes": (yolox(np.full((1, CELLS, 8), 0.5, np.float32)), "2 names, but bad.onnx has 3 classes"),
        "DETR, cut off": (DETR[:-30], "not an ONNX model"),
        "DETR, a batch of 8": (detr(*ONE, shape=(8, 3, 64, 64)), "[8, 3, 64, 64]"),
        "DETR, sides beyond memory": (detr(*ONE, shape=(1, 3, 10**6, 10**6)), "at most 4096"),
        "DETR, named sides": (detr(*ONE, shape=(1, 3, "h", "w")), "H and W fixed"),
        "DETR, sizes as floats": (detr(*ONE, sizes=FLOAT), "orig_target_sizes"),
        "DETR, labels as floats": (detr(scores, boxes, scores), "whole numbers"),
        "DETR, two labels for one box": (detr(two, boxes, scores), "expected whole numbers labels [1, n]"),
        "DETR, flat boxes": (detr(labels, boxes[0], scores), "got int64 [1, 1], [1, 4]"),
        "DETR, boxes of 5": (detr(labels, np.zeros((1, 1, 5), np.float32), scores), "[1, 1, 5]"),
        "DETR, one number": (detr(np.array(0), boxes, scores), "boxes [1, n, 4]"),
        "DETR, nan": (detr(labels, boxes * np.float32(np.nan), scores), "finite boxes"),
        "DETR, score 7": (detr(labels, boxes, scores + 7), "scores in [0, 1]"),
        "DETR, score nan": (detr(labels, boxes, scores * np.float32(np.nan)), "scores in [0, 1]"),
        "DETR, unknown label": (detr(labels + 5, boxes, scores), "label 5 has no name"),
        "DETR, label below 0": (detr(labels - 1, boxes, scores), "label -1 has no name"),
    }
    for what, (model, fragment) in content.items():
        yield Row(f"onnx, {what}", NAMES | {"bad.onnx": model}, (*PREDICT, "bad.onnx"), fragment)
    for what, names, fragment in [
        ("too few", b"dog\n", "1 names, but bad.onnx has 2 classes"),
        ("empty", b"", "0 names"),
        ("no text", b"\xff\xfe\x00", "cannot be read"),
    ]:
        yield Row(f"names, {what}", {"bad.onnx": YOLOX, "c.names": names}, (*PREDICT, "bad.onnx"), fragment)
    alone = ("predict", "evidence", "p.png", "--detector", "bad.onnx")
    yield Row("names, none", {"bad.onnx": YOLOX}, alone, "no .names file")
    yield Row("names, two files", {"bad.onnx": YOLOX, "a.names": b"", "b.names": b""}, alone, "a.names, b.names")
    yield Row("onnx, missing", NAMES, (*PREDICT, "none.onnx"), "no file none.onnx")


def several_detectors() -> Iterator[Row]:
    files = NAMES | {"a.onnx": YOLOX, "b.onnx": DETR, "d.jsonl": text({**DETECTIONS, "image": "p.png"})}
    for what, words, fragment in [
        ("one twice", ("a.onnx", "--detector", "a.onnx"), "given twice"),
        ("one missing", ("a.onnx", "--detector", "none.onnx"), "no file none.onnx"),
        ("other names", ("a.onnx", "--detector", "detector"), "another vocabulary"),
        ("a model", ("a.onnx", "--detector", "evidence"), "not a saved model"),
        ("a folder", ("a.onnx", "--detector", "vrd"), "holds no saved model"),
        ("the default's names", ("b.onnx", "--detector", "vrd-detector"), "another vocabulary"),
        ("names of neither", ("a.onnx", "--detector", "b.onnx", "--mapping", "m.json"), "no detector has a class"),
    ]:
        yield Row(f"detectors, {what}", files | {"m.json": b'{"gnu": "dog"}'}, (*PREDICT, *words), fragment)
    other = files | {"d.jsonl": text({**DETECTIONS, "image": "p.png", "size": [60, 100]})}
    yield Row("detectors, other frame", other, (*PREDICT, "b.onnx", "--detections", "d.jsonl"), "give size as")


def hub_detectors() -> Iterator[Row]:
    """Names that the hub cannot have, and folders without a model; whole models are in test_hub.py."""
    command = ("predict", "evidence", "p.png", "--detector")
    for name in ("", "a b", "x/y/z", "../vrd/none", "none/", "\x1b[31m"):
        yield Row(f"hf:{name!r}", {}, (*command, f"hf:{name}"), "no such folder, and the hub does not give it")
    yield Row("hf: twice", {}, (*command, "hf:vrd", "--detector", "hf:vrd"), "hf:vrd is given twice")
    yield Row("hf: a run", {}, (*command, "hf:evidence"), "hf:evidence: not a model that transformers can load")
    yield Row("hf: another witness", {}, (*command, "detector", "--detector", "hf:vrd"), "another vocabulary")
    for what, config in [
        ("no config", None),
        ("empty", b""),
        ("deep", DEEP),
        ("no text", b"\xff\xfe"),
        ("a list", b"[]"),
        ("no type", b"{}"),
        ("another type", b'{"model_type": "bert"}'),
        ("type 5", b'{"model_type": 5}'),
        ("no processor", b'{"model_type": "yolos"}'),
        ("code", b'{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}'),
    ]:
        files = {"m/x": b"", **({} if config is None else {"m/config.json": config})}
        yield Row(f"hf: config, {what}", files, (*command, "hf:m"), "hf:m: ")


def damaged_detectors() -> Iterator[Row]:
    names = {"m/config.json": b"{}", "m/vocabulary.json": b"{}"}
    for what, files, fragment in [
        ("no weights", names, "model.safetensors is missing"),
        ("no config", {"m/model.safetensors": b""}, "is missing"),
        ("empty weights", {**names, "m/model.safetensors": b""}, "damaged or cut off"),
        ("cut weights", {**names, "m/model.safetensors": b"\x09" + b"\0" * 7 + b"{}"}, "damaged or cut off"),
    ]:
        yield Row(f"detector, {what}", files, ("predict", "evidence", "p.png", "--detector", "m"), fragment)


def weights() -> Iterator[Row]:
    """Initial weights of a detector."""
    command = ("detect", "train", "yolox-nano", "--data", "vrd", "--data.dataset", "vrd", "--out", "run", "--weights")
    conv = np.zeros((2, 2, 1, 1), np.float32)
    heads = {
        f"head.{kind}_preds.{level}.{part}": np.zeros((n, 64, 1, 1) if part == "weight" else n, np.float32)
        for kind, n in (("cls", 2), ("reg", 4), ("obj", 1))
        for level in range(3)
        for part in ("weight", "bias")
    }
    shapes: dict[str, Any] = {"images": (FLOAT, [1, 3, 64, 64])}
    give = [node("Identity", ["images"], "output")]

    def model(constants: Mapping[str, np.ndarray]) -> bytes:
        return graph(give, shapes, {"output": shapes["images"]}, constants)

    for what, content, fragment in [
        ("empty", b"", "bad.onnx"),
        ("cut off", YOLOX[:100], "bad.onnx"),
        ("text", b"no model", "not an ONNX model"),
        ("another network", YOLOX, "not an exported YOLOX-Nano"),
        ("no convolutions", model(heads), "other sizes"),
        ("other convolutions", model({**heads, "onnx::Conv_1": conv}), "other sizes"),
        ("no class scores", model({**heads, "head.cls_preds.0.bias": np.array(1, np.float32)}), "head.cls_preds.0"),
        ("other class scores", model({**heads, "head.cls_preds.1.bias": np.zeros(3, np.float32)}), "cls_preds.1.bias"),
    ]:
        yield Row(f"weights, {what}", NAMES | {"bad.onnx": content}, (*command, "bad.onnx"), fragment)
    yield Row("weights, missing", {}, (*command, "none.onnx"), "no file none.onnx")
    yield Row("weights, a folder", {}, (*command, "vrd"), "vrd is a folder")
    small = ("detect", "train", "det.toml", "--out", "run", "--weights")
    for what, name, content in [
        ("damaged", "bad.safetensors", b"x" * 99),
        ("damaged", "bad.pth", b"x" * 99),
        ("of another kind", "bad.pth", b"\x80\x04N."),
    ]:
        yield Row(f"weights, {name}, {what}", {name: content}, (*small, name), f"weights: {name}")
    yield Row("weights, of torchvision's", {}, (*small, "torchvision"), "torchvision has none")
    yield Row("weights, no such file", {}, (*small, "none.pth"), "no file none.pth")


def detect() -> Iterator[Row]:
    for what, content, fragment in [
        ("unknown key", b"netwrok = 1", "did you mean network"),
        ("a relation model's", b"[head]\nrank = 2", "head"),
        ("network", b'network = "yolo"', "network"),
        ("a long side of 0", b"longest = 0", "longest"),
        ("sides of yolox", b'network = "yolox-nano"\nside = 64\nlongest = 96', "square inputs"),
        ("odd sides of yolox", b'network = "yolox-nano"\nside = 50\nlongest = 50', "multiple of 32"),
        ("zoom", b"zoom = 0.5", "zoom"),
        ("a score of 2", b"score = 2", "score"),
        ("no boxes", b"most = 0", "most"),
        ("a fold without folds", b"[data]\nfold = 2", "data.fold"),
        ("a fold beyond", b"[data]\nfolds = 3\nfold = 3", "data.fold"),
        ("a single fold", b"[data]\nfolds = 1", "data.folds"),
        ("a fold below 0", b"[data]\nfolds = 3\nfold = -1", "data.fold"),
        ("parts that are no list", b"parts = 3", "parts"),
        ("teachers that are a list", b'[data]\nteachers = ["a"]', "data.teachers"),
        ("a teacher's score of 2", b"[data]\nteacher_score = 2", "data.teacher_score"),
        ("no text", b"\xff", "bad.toml"),
        ("deep", b"x = " + b"[" * 9000, "bad.toml"),
    ]:
        for name, words in {"config": ("bad.toml",), "train": ("bad.toml", "--out", "run")}.items():
            yield Row(f"detect {name}, {what}", {"bad.toml": content}, ("detect", name, *words), fragment)
    train = ("detect", "train", "det.toml", "--out")
    boxes = {"t.jsonl": text({**DETECTIONS, "labels": ["car", "tree"]}), "deep.json": b"[" * 99_999, "cut.jsonl": b"{"}
    for what, words, fragment in [
        ("no preset", ("detect", "train", "--out", "run"), "CONFIG is missing"),
        ("no such preset", ("detect", "train", "yolo", "--out", "run"), "no preset and no file"),
        ("no data", ("detect", "train", "vgg16", "--out", "run"), "where is it"),
        ("no such data", ("detect", "train", "vgg16", "--data", "none", "--out", "run"), "no folder"),
        ("other data", ("detect", "train", "vgg16", "--data", "evidence", "--out", "run"), "annotations_train.json"),
        ("no such dataset", (*train, "run", "--dataset", "vdr"), "did you mean vrd"),
        ("no epochs", (*train, "run", "--training.epochs", "0"), "nothing to train"),
        ("a file as a run", (*train, "det.toml"), "exists already"),
        ("a full folder", (*train, "vrd"), "exists already"),
        ("a folder in a file", (*train, "p.png/run"), "cannot write"),
        ("nothing to replace", (*train, "vrd", "--overwrite"), "replaces runs only"),
        ("nothing to resume", ("detect", "train", "--resume", "--out", "none"), "no config.json"),
        ("resume and overwrite", (*train, "run", "--resume", "--overwrite"), "mutually exclusive"),
        ("two presets", (*train, "run", "--preset", "toy"), "expected one CONFIG"),
        ("no memory", (*train, "run", "--side", "99999999", "--longest", "99999999"), "not enough memory"),
        ("a rate of 1e30", (*train, "run", "--training.rate", "1e30"), "the loss is"),
        ("no teachers", (*train, "run", "--data.teachers", "none.jsonl"), "no file none.jsonl"),
        ("a folder as teachers", (*train, "run", "--data.teachers", "vrd"), "is a folder"),
        ("teachers of other images", (*train, "run", "--data.teachers", "t.jsonl"), "no box of a training image"),
        ("teachers, cut off", (*train, "run", "--data.teachers", "cut.jsonl"), "cut.jsonl, line 1"),
        ("teachers, deep", (*train, "run", "--data.teachers", "deep.json"), "deep.json"),
        ("device", (*train, "run", "--device", "bogus"), "cannot be used"),
        ("an option without a value", (*train, "run", "--seed"), "needs a value"),
    ]:
        yield Row(f"detect train, {what}", boxes, words, fragment)
    run = ("detect", "run", "detector", "--out")
    for what, words, fragment in [
        ("no such run", ("detect", "run", "none", "--out", "a.jsonl"), "no such folder"),
        ("no run", ("detect", "run", "vrd", "--out", "a.jsonl"), "holds no saved model"),
        ("a model", ("detect", "run", "evidence", "--out", "a.jsonl"), "not a run of a detector"),
        ("a text file", (*run, "a.txt"), "written as .safetensors"),
        ("no folder", (*run, "none/a.jsonl"), "no folder"),
        ("a folder", (*run, "folder.jsonl"), "is a folder"),
        ("somebody's file", (*run, "mine.jsonl"), "exists"),
        ("somebody's file, replaced", (*run, "mine.jsonl", "--overwrite"), "was not written by polyadic"),
        ("the detector", (*run, "detector/model.safetensors", "--overwrite"), "was not written by polyadic"),
        ("split", (*run, "a.jsonl", "--split", "tset"), "no split"),
        ("no data", (*run, "a.jsonl", "--dataset", "vrd"), "where is it"),
        ("other names", (*run, "a.jsonl", "--dataset", "vrd", "--data", "vrd"), "another vocabulary"),
        ("no batch", (*run, "a.jsonl", "--batch", "0"), "Invalid value"),
        ("resume and overwrite", (*run, "a.jsonl", "--resume", "--overwrite"), "mutually exclusive"),
    ]:
        yield Row(f"detect run, {what}", {"mine.jsonl": b"a note\n", "folder.jsonl/x": b""}, words, fragment)
    beside = {
        "b.jsonl": text({**DETECTIONS, "labels": ["car", "tree"]}),
        "cut.jsonl": b"{",
        "bad.safetensors": b"x" * 99,
    }
    for what, words, fragment in [
        ("no such file", ("a.jsonl", "--with", "none.jsonl"), "no file none.jsonl"),
        ("no such detector", ("a.jsonl", "--with", "none.onnx"), "no file none.onnx"),
        ("a folder", ("a.jsonl", "--with", "vrd"), "is a folder"),
        ("cut off", ("a.jsonl", "--with", "cut.jsonl"), "cut.jsonl, line 1"),
        ("damaged", ("a.jsonl", "--with", "bad.safetensors"), "not a complete safetensors file"),
        ("a photo", ("a.jsonl", "--with", "p.png"), "p.png, line 1"),
        ("itself", ("b.jsonl", "--with", "b.jsonl", "--overwrite"), "is one of the inputs"),
        ("itself by another path", ("b.jsonl", "--with", "./b.jsonl", "--resume"), "is one of the inputs"),
    ]:
        yield Row(f"detect run --with, {what}", beside, (*run, *words), fragment)


def reproduce() -> Iterator[Row]:
    files = {"cut.jsonl": b"{", "none.jsonl": b"", "bad.mat": b"x" * 500, "w.safetensors": b"x" * 99}
    files |= {
        "mine.csv": b"name,age\n",
        "old.csv": b"what,seed\nx,1\n",
        "cut.csv": b'what,seed\n"x',
        "beside.json": b"{}",
    }
    lu, both = ("vrd-lu", "--data", "vrd"), ("vrd-lu-pixels", "--data", "vrd")
    table = ("table1", "vrd-boxes", "--data", "vrd")
    for what, words, fragment in [
        ("no such table", ("table9",), "No such command"),
        ("no data", ("table1",), "Missing option '--data'"),
        ("no folder", ("table1", "--data", "none"), "no folder none"),
        ("no dataset", ("table1", "--data", "evidence"), "layout of no dataset"),
        ("table 1 of VG150", ("table1", "--data", "vg150"), "Table 1 is of vrd"),
        ("table 2 of VRD", ("table2", "--data", "vrd"), "Table 2 is of vg200"),
        ("table 3 of VRD", ("table3", "--data", "vrd"), "Table 3 is of vg150"),
        ("table 2 without boxes", ("table2", "--data", "vg200"), "--proposals is missing"),
        ("table 2, no such boxes", ("table2", "--data", "vg200", "--proposals", "x.jsonl"), "no file x.jsonl"),
        ("table 1 without Lu's", ("table1", "--data", "vrd"), "objectDetRCNN.mat"),
        ("table 1, cut off", (*table, "--proposals", "cut.jsonl"), "cut.jsonl, line 1"),
        ("table 1, no images", (*table, "--proposals", "none.jsonl"), "boxes of none of the"),
        ("table 1, damaged", (*table, "--proposals", "bad.mat"), "not a complete MATLAB file"),
        ("table 1, a folder", (*table, "--proposals", "vrd"), "is a folder"),
        ("table 1, no training boxes", (*table, "--proposals", "x", "--training-proposals", "y"), "no file"),
        ("table 1, a field", (*table, "--hed.rank", "3"), "did you mean head.rank"),
        ("table 1, seeds", (*table, "--seeds", "0"), "Invalid value"),
        ("table 4, a rank", ("table4", "--data", "vrd", "--head.rank", "3"), "give --ranks"),
        ("table 4, ranks", ("table4", "--data", "vrd", "--ranks", "0"), "Invalid value"),
        ("vrd-lu, no folder", ("vrd-lu", "--data", "none"), "no folder"),
        ("vrd-lu, cut off", (*lu, "--proposals", "cut.jsonl"), "cut.jsonl, line 1"),
        ("vrd-lu, no images", (*lu, "--proposals", "none.jsonl"), "boxes of none of the"),
        ("vrd-lu, ingredients", (*lu, "--ingredients", "-1"), "Invalid value"),
        ("vrd-lu-pixels, no weights", (*both, "--weights", "x"), "--weights: no file x"),
        ("vrd-ablation, no weights", ("vrd-ablation", "--data", "vrd", "--weights", "x"), "--weights: no file x"),
        ("vrd-ablation, a folder", ("vrd-ablation", "--data", "vrd", "--weights", "vrd"), "--weights: no file vrd"),
        ("vrd-pictures, no run", ("vrd-pictures", "none", "--detections", "x"), "not a run"),
        ("vrd-pictures, no data", ("vrd-pictures", "evidence", "--detections", "x"), "where is it"),
        ("csv, suffix", (*table, "--csv", "x.txt"), "ends in .csv"),
        ("csv, somebody's", (*table, "--csv", "mine.csv"), "was not written by polyadic"),
        ("csv, cut off", ("table3", "--data", "vg150", "--csv", "cut.csv"), "cut.csv"),
        ("csv, other rows", ("table3", "--data", "vg150", "--csv", "old.csv"), "would be lost"),
        ("csv, beside", ("table3", "--data", "vg150", "--csv", "beside.csv"), "beside.json was not written"),
        ("csv, in a file", ("table3", "--data", "vg150", "--csv", "mine.csv/x.csv"), "no folder can be made"),
        ("toy-two-stages, csv", ("toy-two-stages", "--csv", "mine.csv"), "was not written by polyadic"),
        ("toy-two-stages, csv in a file", ("toy-two-stages", "--csv", "p.png/x.csv"), "no folder can be made"),
        ("toy-two-stages, seed", ("toy-two-stages", "--seed", "-1"), "Invalid value"),
    ]:
        yield Row(f"reproduce, {what}", files, ("reproduce", *words), fragment)
    yield Row("demo, a file", {}, ("demo", "--out", "p.png"), "p.png")
    yield Row("ablate, nothing", {}, ("ablate",), "CONFIG is missing")


def arrays(**changes: np.ndarray | None) -> bytes:
    """VG150's arrays, some of them changed or left out."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in {**FIELDS, **changes}.items():
            if values is not None:
                file[name] = values
    return buffer.getvalue()


def vg150() -> Iterator[Row]:
    command = ("data", "check", "vg150", "--root", ".", "--split", "train", "--allow-missing-images")
    dicts = {"label_to_idx": OBJECTS, "predicate_to_idx": PREDICATES}
    good = {"VG-SGG.h5": arrays(), "VG-SGG-dicts.json": text(dicts), "image_data.json": text(image_data())}
    whole = good["VG-SGG.h5"]
    for what, content in {"cut off": whole[: len(whole) // 2], "zeros": bytes(999), "text": b"x" * 999}.items():
        yield Row(f"VG150, {what}", good | {"VG-SGG.h5": content}, command, "not complete HDF5")
    read = [name for name in FIELDS if name not in ("boxes_512", "active_object_mask")]
    for name in read:
        ones = np.ones(FIELDS[name].shape)
        shapes: dict[str, np.ndarray | None] = {
            "missing": None,
            "fractions": ones,
            "truths": ones.astype(bool),
            "texts": ones.astype("S1"),
            "three axes": np.ones((2, 2, 2), np.int32),
            "a number": np.array(3),
            "shorter": FIELDS[name][:-1],
        }
        for what, array in shapes.items():
            files = good | {"VG-SGG.h5": arrays(**{name: array})}
            yield Row(f"VG150, {name} {what}", files, command, name)
    for name, number, fragment in [
        ("split", 1, "unknown split"),
        ("labels", 0, "unknown class"),
        ("labels", 2**62, "unknown class"),
        ("predicates", -1, "unknown class"),
        ("img_to_first_box", 99, "invalid rows"),
        ("img_to_last_rel", -7, "invalid rows"),
        ("relationships", 2**31 - 1, "dangling relation"),
        ("relationships", -(2**31), "dangling relation"),
        ("boxes_1024", -9, "inverted box"),
    ]:
        files = good | {"VG-SGG.h5": arrays(**{name: np.full_like(FIELDS[name], number)})}
        yield Row(f"VG150, {name} {number}", files, command, fragment)
    records = image_data()
    fields: list[tuple[tuple[Any, ...], Any, str]] = [
        ((0, "image_id"), "x", "image_id"),
        ((0, "image_id"), None, "image_id"),
        ((0, "width"), 0, "width"),
        ((0, "height"), [1], "height"),
        ((0,), 3, "bad record"),
        ((3, "image_id"), 10, "duplicate image"),
    ]
    for path, wrong, fragment in fields:
        files = good | {"image_data.json": text(change(records, path, wrong))}
        yield Row(f"VG150, image_data {path} {wrong}", files, command, fragment)
    yield Row("VG150, fewer records", good | {"image_data.json": text(records[1:])}, command, "are they of one version")
    for key in dicts:
        yield Row(f"VG150, no {key}", good | {"VG-SGG-dicts.json": text(drop(dicts, (key,)))}, command, key)
        values: list[Any] = [3, {"a": 2}, {"a": 1, "b": 1}, {"a": "1"}, {"a": True}, ["a"], {}]
        for wrong in values:
            files = good | {"VG-SGG-dicts.json": text({**dicts, key: wrong})}
            yield Row(f"VG150, {key} {json.dumps(wrong)}", files, command, "VG-SGG-dicts.json" if wrong else "")


def usage() -> Iterator[Row]:
    escape = "a\x1b[2J\x9b31m"
    for words in (
        (f"--{escape}",),
        (escape,),
        ("predict", f"--{escape}"),
        ("predict", f"-{escape}"),
        ("predict", "--labels", escape),
        ("predict", "--top", escape),
        ("predict", "--top"),
        ("detect", escape),
        ("reproduce", escape),
        ("data", "check", "vrd", f"--{escape}"),
        ("evaluate",),
        ("train",),
    ):
        yield Row(f"usage, {' '.join(words)!r}", {}, words, "--help")


ROWS = [
    row
    for rows in (
        onnx_detectors,
        several_detectors,
        hub_detectors,
        damaged_detectors,
        weights,
        detect,
        reproduce,
        vg150,
        usage,
    )
    for row in rows()
]
