"""Detectors of the Hugging Face hub: tiny random ones in folders, against transformers' own output and plain loops."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_files import write_grounding, write_owl, write_yolos
from model_cases import NAMES as MODEL_NAMES
from model_cases import model_of
from PIL import Image
from refusals import refused
from tiny_runs import Command

from polyadic import Detections, Vocabulary, load_detector
from polyadic.detectors.hub import HubDetector

transformers: Any = pytest.importorskip("transformers", reason="needs transformers")

NAMES = Vocabulary(objects=("dog", "person", "traffic light", "sky", "Big hat"), predicates=("on",))
CLASSES = ["dog", "zebra", "people"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_yolos(folder / "yolos", CLASSES)
    write_owl(folder / "owl")
    write_grounding(folder / "grounding")
    return folder


def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), dtype=np.uint8))


def run(folder: Path, auto: Any, **text: Any) -> tuple[Any, Any, Any]:
    """The network's output, as transformers' documentation shows."""
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor(images=photo(), return_tensors="pt", **text)
    with torch.no_grad():
        return processor, inputs, auto.from_pretrained(folder)(**inputs)


def by_score(detections: Detections) -> Detections:
    return detections.inside((90, 60)).take(np.argsort(-detections.scores, kind="stable"))


def test_a_detector_with_its_own_classes_equals_transformers_output(models: Path) -> None:
    detector = load_detector(f"hf:{models / 'yolos'}", NAMES)
    assert isinstance(detector, HubDetector)
    assert detector.score == 0.3
    detector = HubDetector(str(models / "yolos"), NAMES, score=0.0, nms=1.0, unknown="keep")
    processor, _, output = run(models / "yolos", transformers.AutoModelForObjectDetection)
    result = processor.post_process_object_detection(output, threshold=0.0, target_sizes=[(60, 90)])[0]
    expected = Detections.from_transformers(result, dict(enumerate(CLASSES)), NAMES, size=(90, 60), unknown="keep")
    found = detector(photo())
    assert found == by_score(expected)
    assert set(found.labels.tolist()) <= {-1, 0, 1}
    assert len(found) == 6
    assert detector.dropped.total() == (found.labels == -1).sum()
    assert detector.detect([photo(), photo()]) == [found, found]
    assert len(HubDetector(str(models / "yolos"), NAMES, score=0.0, most=1)(photo())) <= 1
    mapped = HubDetector(str(models / "yolos"), NAMES, score=0.0, nms=1.0, mapping={"zebra": "sky", "people": "sky"})
    assert set(mapped(photo()).labels.tolist()) <= {0, 3}


def test_owl_is_asked_for_the_vocabulary_and_equals_transformers_output(models: Path) -> None:
    detector = HubDetector(str(models / "owl"), NAMES, nms=1.0)
    assert detector.score == 0.1  # OWL-ViT's own
    words = [name.lower() for name in NAMES.objects]
    auto = transformers.AutoModelForZeroShotObjectDetection
    processor, _, output = run(models / "owl", auto, text=[words])
    process = processor.post_process_grounded_object_detection
    result = process(output, threshold=0.1, target_sizes=[(60, 90)], text_labels=[words])[0]
    found = detector(photo())
    assert found == by_score(Detections.from_transformers(result, None, NAMES, size=(90, 60)))
    assert len(found) == 4
    refused("no text_labels", Detections.from_transformers, {**result, "text_labels": None}, None, NAMES)


def test_grounding_scores_each_name_by_the_mean_of_its_tokens_over_several_prompts(models: Path) -> None:
    detector = HubDetector(str(models / "grounding"), NAMES, score=0.0, nms=1.0)
    assert HubDetector(str(models / "grounding"), NAMES).score == 0.25  # Grounding DINO's own
    assert [list(prompt) for prompt in detector.prompts] == [[0, 1], [2, 3], [4]]  # 24 tokens each
    expected = []
    for prompt in detector.prompts:
        words = [NAMES.objects[at].lower() for at in prompt]
        text = ". ".join(words) + "."
        auto = transformers.AutoModelForZeroShotObjectDetection
        processor, inputs, output = run(models / "grounding", auto, text=text)
        assert inputs["input_ids"].shape[1] <= 24
        spans = processor.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for row, box in zip(output.logits[0].sigmoid().tolist(), output.pred_boxes[0].tolist(), strict=True):
            scores, start = [], 0
            for word in words:
                inside = [at for at, (low, high) in enumerate(spans) if start <= low < high <= start + len(word)]
                scores.append(sum(row[at] for at in inside) / len(inside))
                start += len(word) + 2
            best = max(range(len(words)), key=scores.__getitem__)
            x, y, width, height = box
            corners = [(x - width / 2) * 90, (y - height / 2) * 60, (x + width / 2) * 90, (y + height / 2) * 60]
            expected.append((scores[best], prompt[best], np.clip(corners, 0, [90, 60, 90, 60])))
    found = detector(photo())
    expected.sort(key=lambda row: -row[0])
    np.testing.assert_allclose(found.scores, [score for score, _, _ in expected], atol=1e-6)
    assert found.labels.tolist() == [label for _, label, _ in expected]
    np.testing.assert_allclose(found.boxes, np.stack([box for _, _, box in expected]), atol=1e-4)
    assert len(set(found.labels.tolist())) > 2


def test_text_labels_of_grounding_dino_are_read(models: Path) -> None:
    """`labels` of its output warns: it will be numbers."""
    auto = transformers.AutoModelForZeroShotObjectDetection
    processor, inputs, output = run(models / "grounding", auto, text="sky. dog.")
    process = processor.post_process_grounded_object_detection
    result = process(output, inputs["input_ids"], threshold=0.0, text_threshold=0.0, target_sizes=[(60, 90)])[0]
    result["text_labels"] = ["sky"] * len(result["boxes"])
    assert set(Detections.from_transformers(result, None, NAMES).labels.tolist()) == {3}


@pytest.mark.usefixtures("unchecked")
def test_bad_models_are_one_line(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(name: str, file: str, content: bytes | None) -> str:
        folder = shutil.copytree(models / name, tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}")
        if content is None:
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(content)
        return f"hf:{folder}"

    weights = "model.safetensors"
    refused("not a model that transformers can load", load_detector, damaged("yolos", "config.json", b"{"), NAMES)
    refused("not a model that transformers can load", load_detector, damaged("yolos", "config.json", None), NAMES)
    refused("not a model that transformers can load", load_detector, damaged("yolos", weights, None), NAMES)
    refused("not a model that transformers can load", load_detector, damaged("yolos", weights, b"x" * 99), NAMES)
    cut = (models / "yolos" / weights).read_bytes()[:-100]
    refused("not a model that transformers can load", load_detector, damaged("yolos", weights, cut), NAMES)
    refused("not a model that", load_detector, damaged("yolos", "preprocessor_config.json", None), NAMES)
    other = (models / "owl" / weights).read_bytes()
    refused("weights are missing, such as", load_detector, damaged("yolos", weights, other), NAMES)
    config = json.loads((models / "yolos" / "config.json").read_text())
    changes: list[tuple[str, Any, str]] = [
        ("model_type", "bert", "got a model of type 'bert'"),
        ("model_type", "omdet-turbo", "OWL-ViT or Grounding DINO, got a model of type 'omdet-turbo'"),
        ("model_type", 5, "not a model that transformers can load"),
        ("hidden_size", 10**9, "its weights are not of its config"),
        ("hidden_size", "x", "not a model that transformers can load"),
        ("patch_size", 0, "not a model that transformers can load"),
        ("id2label", {"a": "dog"}, "not a model that transformers can load"),
        ("id2label", {"0": "dog"}, "its weights are not of its config"),
    ]
    for key, value, message in changes:
        content = json.dumps({**config, key: value}).encode()
        refused(message, load_detector, damaged("yolos", "config.json", content), NAMES)
    nothing = b'{"image_processor_type": "YolosImageProcessor", "size": {"shortest_edge": 0, "longest_edge": 0}}'
    running = load_detector(damaged("yolos", "preprocessor_config.json", nothing), NAMES)
    refused("yolos-.* fails on image", running, photo())
    refused("the detector has no class 'cow'", load_detector, f"hf:{models / 'yolos'}", NAMES, mapping={"cow": "dog"})
    long = Vocabulary(objects=("dog", "x" * 30), predicates=("on",))
    for name in ("owl", "grounding"):
        refused("'xxx.* is too long for its prompts", load_detector, f"hf:{models / name}", long)
    refused("expected score and nms", HubDetector, str(models / "owl"), NAMES, score=2.0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/no-such-model", "a b", "x/y/z", "", "nowhere/", str(models / "owl" / weights)):
        refused("no such folder, and the hub does not give it", load_detector, f"hf:{name}", NAMES)
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(r"pip install 'polyadic\[hf\]'", load_detector, f"hf:{models / 'owl'}", NAMES)


def test_a_model_in_the_cache_is_used_without_asking_the_hub(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0"
    shutil.copytree(models / "owl", snapshot)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    assert HubDetector("a/b", NAMES).folder == snapshot


def test_predict_takes_a_folder_and_resumes_with_the_same_weights_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    model_of("evidence").save("run")
    photo().save("a.png")
    shutil.copytree(models / "owl", "owl")
    words = ("predict", "run", "a.png", "--detector", "hf:owl", "--out", "r.jsonl", "--min-probability", "0")
    assert command(*words).code == 0
    record = json.loads(Path("r.jsonl").read_text())
    assert len(record["boxes"]) > 1
    assert {box["label"] for box in record["boxes"]} <= set(MODEL_NAMES.objects)
    assert len(record["relations"]) > 0
    assert command(*words, "--resume").code == 0
    assert "is one of the inputs" in command(*words[:-3], "owl/config.json", "--overwrite").message
    weights = Path("owl/model.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + bytes([content[-4] ^ 1, *content[-3:]]))
    assert "another model" in command(*words, "--resume").message
