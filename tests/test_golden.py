"""Golden outputs of version 0.1.0, each through the command, and the official numbers of the stored VRD predictions.

The golden files are what the tests themselves write with POLYADIC_WRITE_GOLDEN=1 (see golden_files.py).
"""

from __future__ import annotations

import json
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_files import (
    GOLDEN,
    WRITE,
    assert_golden,
    assert_weights,
    differences,
    draw_photo,
    read_lines,
    read_log,
    read_recalls,
)
from shared_data import real_vrd, shared
from tiny_runs import Command, call

from polyadic import RelationModel, Relations, evaluate, get_protocol, read_detections, read_relations
from polyadic.model.scoring import ScoredPairs
from polyadic.pretrained import coco_to_vrd


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


pytestmark = pytest.mark.usefixtures("unchecked")  # as users run it: shapes are checked in all other tests


def printed(result: Any) -> str:
    assert result.code == 0, result.err
    return str(result.out)


# predict, with the model that comes with the package

PHOTOS = [
    {
        "image": "rider.png",
        "size": [240, 160],
        "boxes": [[30, 20, 80, 130], [20, 80, 180, 155], [38, 14, 70, 40], [150, 40, 230, 150], [0, 0, 240, 60]],
        "labels": ["person", "horse", "hat", "car", "sky"],
        "scores": [0.95, 0.9, 0.6, 0.75, 0.5],
    },
    {  # COCO's names; two boxes nearly the same; a class that VRD lacks
        "image": "desk.png",
        "size": [240, 160],
        "boxes": [[5, 70, 235, 158], [60, 20, 120, 84], [62, 22, 121, 86], [140, 60, 170, 84], [180, 10, 238, 150],
                  [20, 66, 50, 80], [130, 84, 160, 92], [100, 100, 150, 140]],
        "labels": ["dining table", "tv", "tv", "cup", "person", "keyboard", "mouse", "zebra"],
        "scores": [0.9, 0.85, 0.8, 0.5, 0.97, 0.66, 0.4, 0.3],
    },
    {"image": "alone.png", "size": [240, 160], "boxes": [[5, 5, 50, 60]], "labels": ["dog"], "scores": [0.5]},
]  # fmt: skip
RANKINGS: dict[str, Callable[[ScoredPairs], Relations]] = {
    "best": lambda scored: scored.rank(1, 20),
    "several": lambda scored: scored.rank(None, 12),
    "two": lambda scored: (ranking := scored.rank(2, 9))[ranking.f_spo >= 0.004],
    "subject": lambda scored: scored.query(subject="person", top=6),
    "predicate": lambda scored: scored.query(predicate="on", top=6),
    "ends": lambda scored: scored.query(subject="person", object="table", top=5),
}
ANSWERS: dict[str, tuple[str, ...]] = {
    "answers": (),
    "likely": ("--order", "likely", "--mirror", "keep", "--k", "2", "--top", "12", "--min-probability", "0"),
    "refined": ("--labels", "refine", "--unknown", "keep"),
    "asked": ("--subject", "person", "--object", "table", "--top", "5"),
}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: three photos, and boxes of each."""
    monkeypatch.chdir(tmp_path)
    for record in PHOTOS:
        draw_photo(tmp_path / str(record["image"]))
    (tmp_path / "boxes.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in PHOTOS))
    return tmp_path


@pytest.mark.parametrize("name", RANKINGS)
def test_the_paper_s_ranking_and_queries_are_the_same(photos: Path, name: str) -> None:
    model = RelationModel.pretrained()
    unknown: Any = "keep" if name == "two" else "drop"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # boxes of a class that VRD lacks
        boxes = list(read_detections("boxes.jsonl", model.vocabulary, coco_to_vrd(), unknown=unknown))
    records = [RANKINGS[name](model.score(each.image, each)).to_dict() for each in boxes]
    golden = json.loads((GOLDEN / f"predict-{name}.json").read_text())
    for record in golden:
        for relation in record["relations"]:
            if "given" not in record:
                del relation["probability"]  # of version 0.1.0: P(triplet | its pair)
    assert not differences(golden, records)


@pytest.mark.parametrize("name", ANSWERS)
def test_predict_prints_the_same_answers(command: Command, photos: Path, name: str) -> None:
    words = ("rider.png", "desk.png", "alone.png", "--detections", "boxes.jsonl", "--json")
    records = read_lines(printed(command("predict", *words, *ANSWERS[name])))
    assert [record["image"] for record in records] == ["rider.png", "desk.png", "alone.png"]
    assert_golden(f"predict-{name}.json", records)


@pytest.fixture
def drawn(command: Command, photos: Path) -> tuple[list[Any], list[Any]]:
    """Elements of a picture and of its golden file, whose photo is left out."""
    words = ("rider.png", "--detections", "boxes.jsonl", "--top", "7", "--draw", "drawn", "--draw-as", "svg")
    printed(command("predict", *words))
    text, data = re.subn(r'href="data:image/jpeg;base64,[^"]+"', 'href=""', (photos / "drawn/rider.svg").read_text())
    assert data == 1
    if WRITE:
        (GOLDEN / "drawing.svg").write_text(text)
    return _elements((GOLDEN / "drawing.svg").read_text()), _elements(text)


def _elements(text: str) -> list[Any]:
    """Tag, attributes, text; numbers and points as lists of numbers."""
    found = []
    for element in ET.fromstring(text).iter():
        attributes: dict[str, Any] = dict(element.attrib)
        for name, value in element.attrib.items():
            if re.fullmatch(r"[-\d., ]+", value):
                attributes[name] = [float(number) for number in re.split("[ ,]", value)]
        found.append([element.tag, attributes, (element.text or "").strip()])
    return found


def _in_graph(element: Any) -> bool:
    """The scene graph is the last panel, right of the photo (640) and the list (320)."""
    first = next((element[1][name] for name in ("x", "cx", "points") if name in element[1]), [0.0])
    return bool(first[0] >= 960)


def test_photo_and_list_are_drawn_at_the_same_places(drawn: tuple[list[Any], list[Any]]) -> None:
    golden, value = ([each for each in side[2:] if not _in_graph(each)] for side in drawn)
    assert {"photo", "box", "arrow", "head", "name", "label", "row"} <= {each[1]["class"] for each in golden}
    assert not differences(golden, value, tiny=0.015)


def test_the_scene_graph_is_drawn_at_the_same_places(drawn: tuple[list[Any], list[Any]]) -> None:
    golden, value = ([*side[:2], *filter(_in_graph, side)] for side in drawn)
    assert {"node", "label", "head"} <= {each[1].get("class") for each in golden}
    assert not differences(golden, value, tiny=0.015)


# training

_SMALL = """
preset = "toy"
threads = 1
device = "cpu"
world = { train = 24, test = 6 }
selector = { hidden = 8 }
geometry = { rank = 12, hidden = 16, embedding = 8 }
evidence = { embedding = 8, geometry = 8 }
"""
RUNS = {
    "both": """
sources = ["pixels", "evidence"]
pixels = { strides = [8], side = 64, longest = 64, pool = 2, mask = 8, spatial = 8 }
head = { rank = 2, hidden = 16 }
backbone = { epochs = 1, images = 12, optimiser = "sgd", rate = 1e-2 }
boxes = { epochs = 1, images = 12, rate = 1e-2 }
triplets = { epochs = 2, images = 12, optimiser = "sgd", rate = 1e-2, schedule = "constant", clip = 0.5 }
selection = { epochs = 1, images = 12, rate = 1e-3 }
""",
    "labels": """
sources = ["pixels"]
pixels = { strides = [8], side = 64, longest = 64, pool = 2, mask = 8, spatial = 8, reduce = 6, crops = 32, place=true }
head = { rank = 1, hidden = 16, layers = 1, input_dropout = 0.1, labels = true }
neighbours = { hidden = 16, embedding = 8 }
backbone = { epochs = 0 }
boxes = { epochs = 2, images = 12, optimiser = "adam", rate = 1e-3 }
triplets = { epochs = 1, images = 12, optimiser = "sgd", rate = 1e-2, schedule = "cosine" }
selection = { epochs = 0 }
""",
    "proposals": """
sources = ["evidence"]
data = { simulate = "boxes.jsonl" }
head = { rank = 3, hidden = 16, context = true }
backbone = { epochs = 0 }
triplets = { epochs = 0 }
proposals = { epochs = 2, images = 8, optimiser = "sgd", rate = 2e-2, momentum = 0.8, schedule = "one-cycle" }
selection = { epochs = 1, images = 12, optimiser = "sgd", rate = 2e-2 }
validation = { k = 3 }
""",
}
DETECTOR = """
preset = "toy"
side = 64
longest = 96
score = 0.0
most = 5
device = "cpu"
threads = 1
world = { train = 12, test = 5 }
training = { epochs = 1, images = 4, optimiser = "sgd", rate = 1e-3 }
"""


def _check_run(out: Path, golden: str) -> None:
    assert_golden(f"{golden}-log.json", read_log(out), rel=1e-4)
    assert_weights(f"{golden}-weights.json", out / "model" / "model.safetensors")


def _write_boxes(path: Path) -> None:
    """Twelve images with boxes of the toy world's names, for the simulated detector."""
    names = ("person", "dog", "tree", "hat", "car", "wheel", "boat", "fence")
    with path.open("w") as file:
        for at in range(12):
            boxes = [[x := (at * 31 + i * 47) % 110, y := (at * 17 + i * 29) % 110, x + 30, y + 40] for i in range(6)]
            labels = [names[(at * 3 + i * 5) % 8] for i in range(6)]
            scores = [((at * 13 + i * 7) % 17 + 2) / 20 for i in range(6)]
            record = {"image": f"{at}.png", "size": [160, 160], "boxes": boxes, "labels": labels, "scores": scores}
            file.write(json.dumps(record) + "\n")


@pytest.mark.parametrize("name", RUNS)
def test_training_goes_the_same_way_to_the_same_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(_SMALL + RUNS[name])
    _write_boxes(tmp_path / "boxes.jsonl")
    assert call("train", "tiny.toml", "--out", "run") == 0
    _check_run(tmp_path / "run", f"train-{name}")


def test_a_detector_s_training_goes_the_same_way_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(DETECTOR)
    assert call("detect", "train", tmp_path / "tiny.toml", "--out", tmp_path / "run") == 0
    _check_run(tmp_path / "run", "train-detector")


# VRD

LU = get_protocol("lu2016")
OFFICIAL = {
    ("relationship", "all"): (11.599895, 14.113642, 14.964650),
    ("phrase", "all"): (13.524483, 16.457188, 17.334381),
    ("relationship", "zero-shot"): (3.336185, 4.790419, 5.389222),
    ("phrase", "zero-shot"): (3.592814, 5.132592, 5.731394),
}
VARIANTS: list[tuple[dict[str, Any], tuple[float, float]]] = [  # R@50, R@100
    ({"match": "many-to-one"}, (14.48, 15.34)),
    ({"match": "many-to-one", "task": "phrase"}, (17.12, 17.98)),
    ({"aggregate": "image-mean"}, (14.06, 14.63)),
    ({"match": "many-to-one", "aggregate": "image-mean"}, (14.27, 14.85)),
    ({"no_prediction": "drop"}, (14.17, 15.02)),
]


def test_the_twelve_official_numbers_to_six_decimals(command: Command) -> None:
    """And the whole table: Lu's stored predictions, the count table, the ceilings of their boxes."""
    root = shared("data", "vrd")
    words = ("--dataset", "vrd", "--root", root, "--task", "relationship", "phrase", "--csv")
    rows = read_recalls(printed(command("evaluate", root / "lu2016" / "relationship_det_result.mat", *words)))
    for (task, subset), expected in OFFICIAL.items():
        mine = [row for row in rows if (row["what"], row["task"], row["subset"]) == ("predictions", task, subset)]
        assert [row["N"] for row in mine] == ["20", "50", "100"]
        assert [f"{row['recall']:.6f}" for row in mine] == [f"{number:.6f}" for number in expected]
    assert_golden("evaluate-lu.json", rows, rel=1e-9)


def test_the_official_predictions_under_other_switches_to_two_decimals() -> None:
    train, test = real_vrd("train"), real_vrd("test")
    file = shared("data", "vrd", "lu2016", "relationship_det_result.mat")
    protocols = [LU.change(**switches) for switches, _ in VARIANTS]
    predictions = read_relations(file, test.vocabulary, [])
    table = evaluate(test, predictions, protocols, len(test.vocabulary.predicates), seen=train.triplets())
    for protocol, (_, expected) in zip(protocols, VARIANTS, strict=True):
        numbers = [f"{table.at(protocol, top).recall:.2f}" for top in (50, 100)]
        assert numbers == [f"{number:.2f}" for number in expected], protocol


def test_the_model_that_comes_with_the_package_on_lus_boxes_of_fifty_images() -> None:
    test, model = real_vrd("test"), RelationModel.pretrained()
    sizes = {scene.name: scene.size for scene in test if scene.size}
    boxes = list(read_detections(shared("data", "vrd", "lu2016", "objectDetRCNN.mat"), test.vocabulary))[:50]
    summary = []
    for each in boxes:
        ranking = model.score(None, replace(each, size=sizes[each.image])).rank(3, 40)
        best = [" ".join(names) for names in ranking.names()[:3]]
        total = float(ranking.f_spo.sum())
        summary.append({"image": each.image, "relations": len(ranking), "scores": total, "best": best})
    assert_golden("predict-lu.json", summary)
