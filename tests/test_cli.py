"""The command as a person types it: exit codes, one line for a mistake, JSON for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tiny_runs import Command
from vrd_files import RIDER, TEST, relation, write_vrd

from polyadic.cli import spread
from polyadic.datasets import load_dataset
from polyadic.io.parquet import relations_schema, to_batch
from polyadic.io.records import write_relations
from polyadic.structures.relations import Relations


def write_predictions(root: Path, split: str, path: Path) -> Path:
    """The truths of a split and, behind them, a wrong triplet for each pair; boxes with labels and confidences."""
    dataset = load_dataset("vrd", root, split)
    found = []
    for scene in dataset:
        wrong = scene.triplets.copy()
        wrong[:, 1] = 1 - wrong[:, 1]
        pairs = np.concatenate([scene.relations[:, ::2]] * 2)
        n = len(wrong)
        scores = np.concatenate([np.full(n, 0.4), np.full(n, 0.9)])  # the wrong one first
        rows = pairs, np.concatenate([scene.triplets, wrong]), scores
        found.append(
            Relations(scene.name, scene.boxes, *rows, labels=scene.labels, confidences=np.full(len(scene.boxes), 0.5))
        )
    return write_relations(path, found, dataset.vocabulary)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_vrd(tmp_path / "vrd")


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, polyadic.cli\n"
        "try: polyadic.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'numba', 'scipy', 'h5py', 'PIL'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "evaluate" in out
    assert "data" in out
    assert out.endswith("[]\n")


def test_an_option_with_several_values_takes_all_words_up_to_the_next_option(tmp_path: Path) -> None:
    assert spread(["p", "--k", "1", "10", "free", "--json"]) == ["p", "--k", "1", "--k", "10", "--k", "free", "--json"]
    file = tmp_path / "p.jsonl"
    file.touch()
    assert spread(["--k", "1", "any", str(file)]) == ["--k", "1", "--k", "any", str(file)]
    assert spread(["--root", "a", "b", "--task", "phrase"]) == ["--root", "a", "b", "--task", "phrase"]


def test_evaluate_reports_recall_baseline_and_ceiling_per_protocol(
    command: Command, root: Path, tmp_path: Path
) -> None:
    file = write_predictions(root, "test", tmp_path / "p.jsonl")
    arguments = (file, "--dataset", "vrd", "--root", root, "--protocol", "lu2016", "--task", "phrase", "--k", "1", "10")
    shown = command("evaluate", *arguments)
    assert shown.code == 0
    for text in (
        "lu2016 phrase, k = 1 triplet (4 truths in 2 images)",
        "zero-shot phrase, k = 10",
        "count table",
        "ceiling",
    ):
        assert text in shown.out
    lines = command("evaluate", *arguments, "--csv").out.splitlines()
    assert lines[0] == "what,dataset,split,protocol,task,k,k_unit,subset,N,recall,mean_recall"
    assert 'predictions,vrd,test,"lu2016 phrase, k = 10 triplets",phrase,10,triplet,all,50,100.0,100.0' in lines
    assert '"ceiling, relabelled",vrd,test,"lu2016 phrase, k = 1 triplet",phrase,1,triplet,all,50,75.0,' in lines
    value = json.loads(command("evaluate", *arguments, "--json").out)
    recalls = {(r["what"], r["k"], r["subset"], r["N"]): r["recall"] for r in value["recalls"]}
    assert recalls["predictions", 1, "all", 50] == 0
    assert recalls["predictions", 10, "all", 50] == 100
    assert ("count table", 10, "zero-shot", 100) in recalls
    assert value["ceilings"][0]["protocol"] == "lu2016 phrase, k = 1 triplet"
    assert "no file or run is called runs/nothing" in command("evaluate", "runs/nothing").message


def test_a_folder_of_parquet_is_scored_like_the_file_and_by_several_processes_to_the_bit(
    command: Command, root: Path, tmp_path: Path
) -> None:
    file, folder = write_predictions(root, "test", tmp_path / "p.jsonl"), tmp_path / "parts"
    folder.mkdir()
    schema = relations_schema()
    for number, line in enumerate(file.read_text().splitlines()):
        record = json.loads(line)
        rows = [{**record, "image": f"/photos/{record['image']}"}, {"image": "other.jpg", "error": "no image"}]
        table = pa.Table.from_batches([to_batch(rows, schema)])
        pq.write_table(table, folder / f"relations-{number:06}.parquet")
    rest = ("--dataset", "vrd", "--root", root, "--protocol", "lu2016", "reldn", "--k", "1", "10", "--bootstrap", "5")
    expected = json.loads(command("evaluate", file, *rest, "--misses", "--json").out)
    for workers in ((), ("--workers", "2")):
        value = json.loads(command("evaluate", folder, *rest, "--misses", "--json", *workers).out)
        assert {**value, "predictions": ""} == {**expected, "predictions": ""}
    (folder / "relations-000009.parquet").write_bytes((folder / "relations-000000.parquet").read_bytes())
    assert "c.jpg' occurs twice" in command("evaluate", folder, *rest).message
    assert "c.jpg' is in two files" in command("evaluate", folder, *rest, "--workers", "2").message
    (folder / "relations-000009.parquet").write_bytes(b"PAR1 cut off")
    assert "is damaged or cut off" in command("evaluate", folder, *rest).message
    assert "--workers is for a folder" in command("evaluate", file, *rest, "--workers", "2").message


def test_free_k_is_chosen_on_validation_predictions_and_never_on_the_test_split(
    command: Command, tmp_path: Path
) -> None:
    many: dict[str, Any] = {f"{i}.jpg": [relation(RIDER, 0, (1, [40, 90, 5, 80]))] for i in range(20)}
    root = write_vrd(tmp_path / "vrd", train=many, pictures=False)
    test = write_predictions(root, "test", tmp_path / "test.jsonl")
    validation = write_predictions(root, "validation", tmp_path / "validation.jsonl")
    base = (test, "--dataset", "vrd", "--root", root, "--k", "1", "free")
    without = command("evaluate", *base)
    assert without.code == 0
    assert "no row for free k" in without.out
    assert "k = 2" not in without.out
    with_validation = command("evaluate", *base, "--validation", validation)
    assert "free k = 2, chosen on 2 validation images" in with_validation.out
    assert "lu2016 relationship, k = 2 triplets" in with_validation.out
    value = json.loads(command("evaluate", *base, "--validation", validation, "--json").out)
    assert value["free_k"] == {"lu2016 relationship": 2}
    alone = command("evaluate", test, "--dataset", "vrd", "--root", root, "--k", "free")
    assert (alone.code, alone.out) == (1, "")
    mixed = command("evaluate", test, "--dataset", "vrd", "--root", root, "--k", "free", "--validation", test)
    assert mixed.code == 1
    assert "test.jsonl, record 1: image 'c.jpg' is not among the 2 images of vrd validation" in mixed.err


def test_every_switch_has_an_option(command: Command, root: Path, tmp_path: Path) -> None:
    file = write_predictions(root, "test", tmp_path / "p.jsonl")
    switches = (
        "--match many-to-one --aggregate image-mean --k-unit predicate --no-prediction drop --tie last --iou-offset 0"
    )
    shown = command(
        "evaluate", file, "--dataset", "vrd", "--root", root, *switches.split(), "--top", "5", "7", "--bootstrap", "10"
    )
    assert shown.code == 0
    for text in (
        "match = many-to-one",
        "aggregate = image-mean",
        "no_prediction = drop",
        "tie = last",
        "iou_offset = 0",
    ):
        assert text in shown.out
    assert "R@7" in shown.out
    assert "95% interval" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--k", "0"), "--k: expected a whole number from 1"),
        (("--protocol", "lu2017"), "no protocol is called 'lu2017'; known: lu2016, reldn, motifs, vtranse, dsr"),
        (("--task", "nothing"), "task must be relationship or phrase"),
        (("--split", "dev"), "no split is called 'dev'"),
        (("--top", "0"), "tops must be increasing"),
        (("--detections", "none.mat"), "no file none.mat"),
        (("--validation", "none.jsonl", "--k", "free"), "vrd has no validation images"),
        (("--validation", "none.jsonl"), "--validation is for choosing k: give --k free as well"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_print_one_line(
    command: Command, root: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    file = write_predictions(root, "test", tmp_path / "p.jsonl")
    assert message in command("evaluate", file, "--dataset", "vrd", "--root", root, *arguments).message
    for name in ("check", "stats"):
        assert (
            "Give the folder that holds the dataset" in command("data", name, "vrd", "--root", tmp_path / "no").message
        )


def test_suspicious_predictions_are_scored_with_a_note_and_foreign_ones_refused(
    command: Command, root: Path, tmp_path: Path
) -> None:
    file = write_predictions(root, "test", tmp_path / "p.jsonl")
    first, second = file.read_text().splitlines()
    arguments = (file, "--dataset", "vrd", "--root", root, "--k", "5")
    file.write_text(first + "\n")
    assert "1 of 2 images have no record in the predictions" in command("evaluate", *arguments).out
    far = json.loads(first)
    far["boxes"][0]["box"] = [0, 0, 400, 500]
    file.write_text(json.dumps(far) + "\n" + second)
    assert (
        "boxes leave the frame in 1 images (c.jpg: [0.0, 0.0, 400.0, 500.0] in 100 x 100)"
        in command("evaluate", *arguments).out
    )
    lines = [json.loads(line) for line in (first, second)]
    small = [[{**box, "box": [x / 100 for x in box["box"]]} for box in line["boxes"]] for line in lines]
    file.write_text("\n".join(json.dumps({**x, "boxes": y}) for x, y in zip(lines, small, strict=True)))
    assert "all boxes lie within 2 pixels" in command("evaluate", *arguments).out
    file.write_text("\n".join(json.dumps({**x, "size": [100, 50]}) for x in lines))
    assert "another aspect ratio than the annotated frame in 2 images" in command("evaluate", *arguments).out
    assert "at most 2 per pair of boxes: a larger k changes nothing" in command("evaluate", *arguments).out
    (root / "annotations_train.json").unlink()
    assert "no count table and no zero-shot recall" in command("evaluate", *arguments).out
    for content, message in (
        ("", "p.jsonl: no predictions in the file"),
        (
            second.replace('"d.jpg"', '"z.jpg"'),
            "p.jsonl, record 1: image 'z.jpg' is not among the 2 images of vrd test",
        ),
        (second.replace('"d.jpg"', '"images/d.png"'), "did you mean 'd.jpg'?"),
    ):
        file.write_text(f"{content}\n")
        assert message in command("evaluate", *arguments).message


def test_names_the_terminal_cannot_encode_are_replaced(root: Path) -> None:
    (root / "objects.json").write_text(json.dumps(["person", "horse", "hüt"]))
    code = f"from polyadic.cli import main; main(['data', 'stats', 'vrd', '--root', {str(root)!r}])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "h?t 1" in done.stdout


def test_check_reports_file_record_and_field(command: Command, tmp_path: Path) -> None:
    bad = [
        relation((7, [1, 5, 1, 5]), 0, RIDER),
        relation(RIDER, 9, (1, [9, 5, 1, 5])),
        relation(RIDER, 0, (1, [0, 5, 0, 500])),
    ]
    root = write_vrd(tmp_path / "vrd", train={"a.jpg": bad, "b.jpg": []})
    folder = root / "sg_dataset" / "sg_train_images"
    (folder / "b.jpg").unlink()
    result = command("data", "check", "vrd", "--root", root)
    assert result.code == 1
    for line in (
        "vrd train: 2 images",
        "error: unknown class: 2",
        "annotations_train.json, a.jpg, relation 0, subject.category: expected a class from 0 to 2, got 7",
        "annotations_train.json, a.jpg, relation 1, predicate: expected a class from 0 to 1, got 9",
        "error: inverted box: 1",
        "warning: box outside the frame: 1",
        "missing pictures: 1 of 2",
        "    b.jpg",
        "vrd test: 2 images, 4 relations",
        "no problems",
    ):
        assert line in result.out
    value = json.loads(command("data", "check", "vrd", "--root", root, "--json").out)
    assert value["splits"][0]["missing images"] == ["b.jpg"]
    assert len(value["splits"][0]["problems"]) == 4
    assert {"kind", "file", "record", "field", "message", "severity"} == set(value["splits"][0]["problems"][0])


def test_check_reports_pictures_and_splits_that_cannot_be_read(command: Command, root: Path) -> None:
    pictures = root / "sg_dataset"
    check = ("data", "check", "vrd", "--root", root)
    assert command(*check).code == 0
    (pictures / "sg_test_images" / "c.jpg").unlink()
    assert command(*check).code == 1
    assert command(*check, "--allow-missing-images").code == 0
    (pictures / "sg_train_images" / "a.jpg").write_text("no picture")
    Image.new("RGB", (90, 50)).save(pictures / "sg_train_images" / "b.jpg")
    result = command(*check, "--allow-missing-images")
    assert result.code == 1
    assert "a.jpg: not a picture, or damaged" in result.out
    assert "b.jpg: the picture is 90 x 50, its frame 100 x 100" in result.out
    (root / "annotations_train.json").write_text("{")
    result = command(*check)
    assert result.code == 1
    assert "annotations_train.json: not complete JSON" in result.out
    assert "vrd test: 2 images" in result.out


def test_check_reports_empty_splits_and_images_in_two_splits(command: Command, tmp_path: Path) -> None:
    both = {"c.jpg": TEST["c.jpg"]}
    result = command("data", "check", "vrd", "--root", write_vrd(tmp_path / "a", train=both))
    assert result.code == 1
    assert "c.jpg: is in train and in test" in result.out
    result = command("data", "check", "vrd", "--root", write_vrd(tmp_path / "b", train={}))
    assert result.code == 1
    assert "the split train has no images" in result.out


def test_stats_print_a_table_or_json(command: Command, root: Path) -> None:
    assert "zero-shot test truths: 2 of 4 (50.0%)" in command("data", "stats", "vrd", "--root", root).out
    value = json.loads(command("data", "stats", "vrd", "--root", root, "--json").out)
    train, test = value["splits"]
    assert (train["images"], train["relations"], train["distinct triplets"]) == (3, 5, 3)
    assert (train["images without relations"], train["relations repeated exactly"]) == (1, 1)
    assert (train["annotated pairs"], train["pairs with several predicates"]) == (3, 1)
    assert test["relations of a box with itself"] == 1
    assert train["boxes per image"] == {"mean": 5 / 3, "median": 2.0, "min": 0, "max": 3}
    assert train["predicates"]["counts"] == {"ride": 3, "wear": 2}
    assert train["predicates"]["perplexity"] == pytest.approx(np.exp(-(0.6 * np.log(0.6) + 0.4 * np.log(0.4))))
    assert value["zero-shot"] == {"truths": 4, "zero-shot truths": 2, "share": 0.5}


def test_converting_to_coco_and_back_gives_the_same_annotations(command: Command, root: Path, tmp_path: Path) -> None:
    assert command("data", "convert", "vrd", "--root", root, "--to", "coco", "--out", tmp_path / "coco").code == 0
    assert (
        command("data", "convert", "coco", "--root", tmp_path / "coco", "--to", "vrd", "--out", tmp_path / "back").code
        == 0
    )
    assert json.loads((tmp_path / "back" / "annotations_test.json").read_text()) == TEST
    again = command("data", "convert", "vrd", "--root", root, "--to", "coco", "--out", tmp_path / "coco")
    assert again.code == 1
    assert again.err.count("\n") == 1
