"""What comes with the package: a model, COCO's class names as VRD's, and torchvision's detector."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.models.detection as theirs
from detector_cases import photo
from model_cases import NAMES, detections, entries, model_of, rank
from safetensors import safe_open
from shared_data import real_vrd, shared
from tiny_runs import Command, call

from polyadic.config import DETECTOR_PRESETS
from polyadic.detectors import load_detector
from polyadic.detectors.coco import CocoDetector
from polyadic.detectors.detector import Detector
from polyadic.model.relation_model import RelationModel
from polyadic.pretrained import MODELS, coco_to_vrd, detector_folder, model_folder, synonyms, table_file
from polyadic.structures.detections import Detections
from polyadic.structures.labels import UNKNOWN, LabelMap, Synonyms, read_file
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

ROOT = Path(__file__).parents[1]
COCO = [name for name in theirs.FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"][1:] if name != "N/A"]
NETWORKS = {
    "resnet50-fpn": ("fasterrcnn_resnet50_fpn", theirs.FasterRCNN_ResNet50_FPN_Weights.COCO_V1),
    "mobilenetv3-fpn": (
        "fasterrcnn_mobilenet_v3_large_fpn",
        theirs.FasterRCNN_MobileNet_V3_Large_FPN_Weights.COCO_V1,
    ),
}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def model() -> RelationModel:
    return RelationModel.pretrained()


# the model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_small_and_needs_neither_pixels_nor_data(name: str) -> None:
    model = RelationModel.pretrained(name)
    assert model.config.sources == ("evidence",)
    assert model.backbone is None
    assert model.config.data.root == ""
    assert model.vocabulary.sizes == (100, 70, 100)
    assert sum(path.stat().st_size for path in model_folder(name).iterdir()) < 6e6
    assert {x.dtype for x in model.state_dict().values() if x.is_floating_point()} == {torch.float32}


def test_the_model_has_vrd_s_names_in_vrd_s_order(model: RelationModel) -> None:
    assert model.vocabulary == real_vrd("test").vocabulary


def test_an_unknown_model_name_is_refused() -> None:
    with pytest.raises(PolyadicError, match="only vrd-boxes"):
        RelationModel.pretrained("coco")


def test_half_precision_weights_give_nearly_the_same_answers(tmp_path: Path) -> None:
    whole = model_of("evidence")
    whole.save(tmp_path / "whole")
    whole.save(tmp_path / "half", half=True)
    with safe_open(tmp_path / "half" / "model.safetensors", framework="pt") as file:
        kinds = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118  (not a dict)
    assert kinds.pop("geometry.predicates") == torch.int64  # whole numbers stay
    assert set(kinds.values()) == {torch.float16}
    half = RelationModel.load(tmp_path / "half")
    kinds = {name: x.dtype for name, x in half.state_dict().items()}
    assert kinds.pop("geometry.predicates") == torch.int64
    assert set(kinds.values()) == {torch.float32}
    boxes = detections(6)
    every = 6 * 5 * 4 * 3 * 4  # ordered pairs, S, P, O
    score = {entry[1:]: entry[0] for entry in entries(rank(whole, None, boxes, k=None, top=every))}
    other = {entry[1:]: entry[0] for entry in entries(rank(half, None, boxes, k=None, top=every))}
    assert score.keys() == other.keys()
    assert len(score) == every
    difference = max(abs(score[key] - other[key]) for key in score)
    assert 0 < difference < 0.01


def test_weights_beyond_float16_are_refused(tmp_path: Path) -> None:
    model = model_of("evidence")
    with torch.no_grad():
        next(model.head.parameters())[0] = 1e5
    with pytest.raises(PolyadicError, match=r"head\..*beyond float16.*half=True"):
        model.save(tmp_path / "half", half=True)


# COCO's names


def test_every_coco_class_is_listed_once() -> None:
    table = read_file(table_file(), "a table")
    assert list(table) == ["objects", "doubtful", "spellings", "without"]
    without = table["without"]["names"]
    assert Counter([*table["objects"], *without]) == Counter(COCO)
    assert len(COCO) == 80
    assert set(table["spellings"].values()) <= set(COCO)
    assert set(table["doubtful"]) <= set(table["objects"])
    assert not set(table["spellings"]) & set(COCO)


def test_coco_classes_map_to_vrd_objects_and_shared_names_to_themselves(model: RelationModel) -> None:
    objects = model.vocabulary.objects
    table = coco_to_vrd()
    assert set(table.values()) <= set(objects)
    assert all(table[name] == name for name in COCO if name in objects)
    few = ("dining table", "tv", "couch", "cell phone")
    assert [table[name] for name in few] == ["table", "monitor", "sofa", "phone"]


def test_coco_classes_left_out_of_the_table_are_unknown(model: RelationModel) -> None:
    """So such boxes are unknown, which may be kept, and not dropped on purpose."""
    label_map = LabelMap.match(COCO, model.vocabulary, coco_to_vrd())
    none = [name for name in COCO if name not in coco_to_vrd()]
    assert len(none) == 30
    assert {label_map.targets[name] for name in none} == {UNKNOWN}
    assert sum(at >= 0 for at in label_map.targets.values()) == 50


def test_the_docs_state_the_right_counts_of_classes(model: RelationModel) -> None:
    reached = set(coco_to_vrd().values())
    text = (ROOT / "docs" / "detections.md").read_text()
    assert f"({len([name for name in COCO if name in coco_to_vrd()])} of them)" in text
    assert f"{100 - len(reached)} of VRD's 100 objects (sky, building, shirt, ...) no COCO detector" in text
    assert f"finds {len(reached)} of the 100 objects" in (model_folder() / "CARD.md").read_text()


def test_darknet_spellings_map_to_the_same_objects(model: RelationModel) -> None:
    names = shared("weights", "coco.names").read_text().split("\n")[:80]
    targets = LabelMap.match(names, model.vocabulary, coco_to_vrd()).targets
    assert sorted(targets.values()) == sorted(LabelMap.match(COCO, model.vocabulary, coco_to_vrd()).targets.values())


def test_the_table_serves_detectors_that_have_some_of_its_names_and_no_other_vocabulary(model: RelationModel) -> None:
    few = LabelMap.match(["tv", "dog", "sofa"], model.vocabulary, synonyms(model.vocabulary))
    assert [model.vocabulary.objects[at] for at in few.targets.values()] == ["monitor", "dog", "sofa"]
    with pytest.raises(PolyadicError, match="the detector has no class 'person'"):
        LabelMap.match(["tv", "dog"], model.vocabulary, dict(coco_to_vrd()))
    assert synonyms(NAMES) is None
    assert isinstance(synonyms(model.vocabulary), Synonyms)


def test_a_vocabulary_with_cocos_names_knows_darknets_spellings_and_the_other_way_round() -> None:
    predicates = ("on",)
    darknet = {"motorbike", "aeroplane", "sofa", "pottedplant", "diningtable", "tvmonitor"}
    standard = ("motorcycle", "airplane", "couch", "potted plant", "dining table", "tv")
    own = Vocabulary(objects=("person", *standard), predicates=predicates)
    found = LabelMap.match(sorted(darknet), own, synonyms(own))
    assert {name: own.objects[at] for name, at in found.targets.items()} == {
        "motorbike": "motorcycle",
        "aeroplane": "airplane",
        "sofa": "couch",
        "pottedplant": "potted plant",
        "diningtable": "dining table",
        "tvmonitor": "tv",
    }
    other = Vocabulary(objects=("Motorbike", "TVmonitor", "sofa", "couch"), predicates=predicates)
    found = LabelMap.match(["motorcycle", "tv", "couch", "sofa"], other, synonyms(other))
    assert [other.objects[at] for at in found.targets.values()] == ["Motorbike", "TVmonitor", "couch", "sofa"]


# the command, without RUN

BOXES = {
    "image": "desk.jpg",
    "size": [90, 70],
    "boxes": [[5, 5, 30, 40], [0, 30, 90, 70], [40, 10, 60, 60], [60, 5, 85, 35]],
    "labels": ["tv", "dining table", "person", "zebra"],
    "scores": [0.9, 0.8, 0.7, 0.6],
}
FEW = ("--top", "2")
OURS = "model: vrd-boxes (pretrained)"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    photo().save(tmp_path / "desk.jpg")
    (tmp_path / "boxes.json").write_text(json.dumps(BOXES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_predict_needs_no_run_and_no_training(command: Command, here: Path) -> None:
    result = command("predict", "desk.jpg", "--detections", "boxes.json", "--json", *FEW)
    record = json.loads(result.out)
    assert [box["label"] for box in record["boxes"]] == ["monitor", "table", "person"]
    assert record["relations"]
    assert OURS in command("predict", "desk.jpg", "--detections", "boxes.json").err
    assert "zebra (1)" in result.err
    alone = command("predict", "--detections", "boxes.json", "--json", *FEW)
    assert json.loads(alone.out)["relations"] == record["relations"]
    kept = command("predict", "desk.jpg", "--detections", "boxes.json", "--json", "--unknown", "keep", *FEW)
    assert [box["label"] for box in json.loads(kept.out)["boxes"]] == ["monitor", "table", "person", None]


def test_the_command_and_the_model_agree(command: Command, here: Path, model: RelationModel) -> None:
    boxes = Detections.from_arrays(
        BOXES["boxes"][:3], BOXES["labels"][:3], BOXES["scores"][:3],
        vocabulary=model.vocabulary, size=(90, 70), mapping=coco_to_vrd(),
    )  # fmt: skip
    expected = [relation.names for relation in model.predict("desk.jpg", boxes, top=4)]
    record = json.loads(command("predict", "desk.jpg", "--detections", "boxes.json", "--json", "--top", "4").out)
    rows = record["relations"]
    assert [(row["subject"]["name"], row["predicate"], row["object"]["name"]) for row in rows] == expected


def test_a_user_mapping_replaces_the_table(command: Command, here: Path) -> None:
    Path("own.toml").write_text('tv = "laptop"\n')
    words = ("predict", "desk.jpg", "--detections", "boxes.json", "--json", "--mapping", "own.toml", *FEW)
    assert [box["label"] for box in json.loads(command(*words).out)["boxes"]] == ["laptop", "person"]


def test_resume_requires_the_same_model_and_table(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("predict", "desk.jpg", "--detections", "boxes.json", "--out", "r.jsonl", *FEW)
    assert command(*words).code == 0
    assert "already in r.jsonl" in command(*words, "--resume").err
    other = here / "other"
    shutil.copytree(model_folder(), other)
    config = json.loads((other / "config.json").read_text())
    config["ranking"]["boxes"] = 0.123
    (other / "config.json").write_text(json.dumps(config))
    with monkeypatch.context() as patch:
        patch.setattr("polyadic.pretrained.model_folder", lambda name="vrd-boxes": other)
        assert "another model" in command(*words, "--resume").err
    table = here / "table.toml"
    table.write_text(table_file().read_text().replace('tv = "monitor"', 'tv = "laptop"'))
    with monkeypatch.context() as patch:
        patch.setattr("polyadic.pretrained.table_file", lambda: table)
        assert "another model" in command(*words, "--resume").err


# torchvision's detector


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TORCH_HOME as after a first use, but with random weights that have opinions, and for one class most of all."""
    home = tmp_path_factory.mktemp("torch")
    (home / "hub" / "checkpoints").mkdir(parents=True)
    for builder, weights in NETWORKS.values():
        torch.manual_seed(0)
        state = getattr(theirs, builder)(weights=None, weights_backbone=None).state_dict()
        state["roi_heads.box_predictor.cls_score.weight"] *= 30
        state["roi_heads.box_predictor.cls_score.bias"][72] = 5.0  # tv
        first = next(name for name in state if name.endswith("running_var"))
        state[first].fill_(1e-3)  # so small that the batch norm's epsilon is seen
        torch.save(state, home / "hub" / "checkpoints" / Path(weights.url).name)
    return home


@pytest.fixture
def small(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(hub))
    for name in NETWORKS:
        preset = DETECTOR_PRESETS[name].change(side=96, longest=128, most=4)
        monkeypatch.setitem(DETECTOR_PRESETS, name, preset)
    return hub


@pytest.mark.parametrize("network", NETWORKS)
def test_the_best_box_equals_that_of_torchvision(small: Path, network: str, model: RelationModel) -> None:
    builder, weights = NETWORKS[network]
    sizes = {"min_size": 96, "max_size": 128, "box_score_thresh": 0.0}
    reference = getattr(theirs, builder)(weights=weights, progress=False, **sizes).eval()
    image = photo()
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    with torch.no_grad():
        best = {key: value[0] for key, value in reference([pixels])[0].items()}
    every = Vocabulary(COCO, ("on",))
    actual = CocoDetector(every, network, score=0.0, unknown="keep")(image)
    np.testing.assert_allclose(actual.boxes[0], best["boxes"], atol=1e-3)
    assert actual.scores[0] == pytest.approx(float(best["scores"]), abs=1e-5)
    name = weights.meta["categories"][int(best["labels"])]
    assert actual.labels[0] == (COCO.index(name) if name in COCO else UNKNOWN)
    assert actual.size == (90.0, 70.0)


def test_detected_classes_are_mapped_and_unmapped_ones_counted(small: Path, model: RelationModel) -> None:
    detector = CocoDetector(model.vocabulary, "mobilenetv3-fpn", score=0.02)
    actual = detector(photo())
    monitor = model.vocabulary.objects.index("monitor")
    assert len(actual) > 0
    assert set(actual.labels.tolist()) == {monitor}
    assert actual.distribution is not None
    assert actual.distribution.shape == (len(actual), 100)
    np.testing.assert_allclose(actual.distribution[:, monitor], actual.scores, rtol=1e-4)
    assert "50 of the detector's 80 classes are objects of the vocabulary" in detector.label_map.report()
    dropping = CocoDetector(Vocabulary(("dog", "cat"), ("on",)), "mobilenetv3-fpn", score=0.02)
    assert len(dropping(photo())) == 0
    assert dropping.dropped["tv"] == len(actual)
    own = CocoDetector(model.vocabulary, "mobilenetv3-fpn", mapping={"tv": "laptop"}, score=0.02)
    assert set(own(photo()).labels.tolist()) == {model.vocabulary.objects.index("laptop")}


RESNET = ("--detector", "resnet50-fpn")


def test_torchvisions_detector_can_be_chosen(command: Command, here: Path, small: Path, model: RelationModel) -> None:
    result = command("predict", "desk.jpg", *RESNET, *FEW)
    assert result.code == 0
    context = next(line for line in result.err.splitlines() if line.startswith(OURS))
    assert "resnet50-fpn (50 of its 80 classes" in context
    assert "dining table -> table" not in result.err
    assert "dining table -> table" in command("predict", "desk.jpg", "-v", *RESNET, *FEW).err
    assert command("predict", "desk.jpg", "--out", "r.jsonl", *RESNET, *FEW).code == 0
    record = json.loads(Path("r.jsonl").read_text())
    with warnings.catch_warnings():  # random weights may find a doubtful class
        warnings.simplefilter("ignore")
        expected = CocoDetector(model.vocabulary)("desk.jpg")
    assert [box["label"] for box in record["boxes"]] == [model.vocabulary.objects[at] for at in expected.labels]
    assert len(expected) > 0
    other = command("predict", "desk.jpg", "--detector", "mobilenetv3-fpn", "--out", "r.jsonl", "--resume", *FEW)
    assert "another model" in other.err.splitlines()[-1]


@pytest.mark.parametrize("content", [None, b"", b"cut off"], ids=["no network", "empty", "damaged"])
def test_unavailable_weights_are_one_line_with_three_fixes(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(here / "torch"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    url = NETWORKS["resnet50-fpn"][1].url
    folder = here / "torch" / "hub" / "checkpoints"
    if content is not None:
        folder.mkdir(parents=True)
        (folder / Path(url).name).write_bytes(content)
    result = command("predict", "desk.jpg", *RESNET)
    assert (result.code, result.out) == (1, "")
    *notes, last = result.err.splitlines()
    assert any("downloading" in note for note in notes) == (content is None)
    assert last.startswith("polyadic: cannot get torchvision's weights of resnet50-fpn (")
    assert all(cure in last for cure in (f"put {url} into {folder}", "--detector FILE.onnx", "--detections FILE"))


@pytest.mark.usefixtures("unchecked")
def test_other_networks_and_scores_are_refused_before_anything_is_fetched() -> None:
    with pytest.raises(PolyadicError, match="expected resnet50-fpn or mobilenetv3-fpn, got 'vgg16'"):
        CocoDetector(NAMES, "vgg16")
    with pytest.raises(PolyadicError, match=r"expected a score from 0 to 1, got 2\.0"):
        CocoDetector(NAMES, score=2.0)


def test_a_missing_photo_is_reported_before_anything_is_loaded(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RelationModel, "load", lambda *_: pytest.fail("a model was loaded"))
    assert command("predict", "gone.jpg").message == "polyadic: no image gone.jpg"
    assert command("predict", "runs/gone", "desk.jpg").message == "polyadic: runs/gone: no such run, photo or folder"
    assert command("predict").message.startswith("polyadic: PATHS are missing")


def test_a_real_photo_and_a_real_detector_give_relations_without_a_mapping(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    picture = sorted(shared("data", "vrd", "sg_dataset", "sg_test_images").glob("*.jpg"))[3]
    file = shared("weights", "yolox_nano.onnx")
    assert call("predict", picture, "--detector", file, "--json", *FEW) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") <= 2  # a class that the model lacks may be noted
    assert json.loads(out)["relations"]


def test_a_photo_alone_is_enough(command: Command, tmp_path: Path) -> None:
    result = command("predict", Path(__file__).parents[1] / "examples" / "astronaut.jpg", "--top", "5")
    assert result.code == 0
    assert "model: vrd-photos (pretrained); boxes: vrd-detector" in result.err
    assert "person" in result.out
    detector = load_detector("vrd-detector", RelationModel.pretrained().vocabulary)
    assert sum(path.stat().st_size for path in detector_folder().iterdir()) < 15e6
    assert isinstance(detector, Detector)
    with pytest.raises(PolyadicError, match="vocabulary"):
        load_detector("vrd-detector", Vocabulary(("dog", "cat"), ("on",)))
