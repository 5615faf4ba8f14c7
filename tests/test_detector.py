from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detector_cases import NAMES, detector_of, photo, photo_file, tiny
from oracles import plain_iou
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor

from polyadic.config import DETECTOR_PRESETS
from polyadic.detectors.detector import Detector
from polyadic.detectors.faster_rcnn import SmallBackbone, build_network, choose, find_boxes, prevailing_colour
from polyadic.detectors.weights import load_weights
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo
from polyadic.structures.vocabulary import Vocabulary

NETWORKS = sorted({config.network for config in DETECTOR_PRESETS.values()})


def slow_choice(boxes: list[list[float]], scores: list[float], limit: float, least: float, most: int) -> list[int]:
    kept: list[int] = []
    for at in sorted(range(len(boxes)), key=lambda one: -scores[one]):
        left, top, right, bottom = boxes[at]
        if scores[at] < least or right - left < 1e-2 or bottom - top < 1e-2:
            continue
        if all(plain_iou(boxes[at], boxes[other]) <= limit for other in kept):
            kept.append(at)
    return kept[:most]


@pytest.mark.parametrize("seed", range(6))
def test_overlapping_boxes_are_suppressed_across_classes_as_in_a_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner, extent = rng.uniform(0, 30, (60, 2)), rng.uniform(5, 30, (60, 2))
    boxes = torch.from_numpy(np.concatenate([corner, corner + extent], 1)).float()
    boxes[7] = boxes[3]
    boxes[9, 2] = boxes[9, 0]
    scores = torch.from_numpy(rng.random(60)).float()
    for limit, least, most in ((0.7, 0.0, 100), (0.4, 0.3, 100), (1.0, 0.5, 100), (0.7, 0.2, 9)):
        expected = slow_choice(boxes.tolist(), scores.tolist(), limit, least, most)
        assert choose(boxes, scores, limit, least, most).tolist() == expected
        assert 3 < len(expected) < 60


def recomputed(network: Any, pictures: list[Tensor], limit: float, least: float, most: int) -> list[list[Any]]:
    """From what torchvision's own modules say on its own way through the network, in plain Python numbers."""
    said: dict[str, Any] = {}
    hooks = [
        network.rpn.register_forward_hook(lambda module, inputs, out: said.update(images=inputs[0], proposals=out[0])),
        network.roi_heads.box_predictor.register_forward_hook(lambda module, inputs, out: said.update(out=out)),
    ]
    with torch.no_grad():
        network(pictures)
    for hook in hooks:
        hook.remove()
    logits, shifts = (x.double().tolist() for x in said["out"])
    detections, row = [], 0
    for picture, proposals, (rows, columns) in zip(
        pictures, said["proposals"], said["images"].image_sizes, strict=True
    ):
        boxes, scores, classes = [], [], []
        for left, top, right, bottom in proposals.double().tolist():
            total = sum(math.exp(x) for x in logits[row])
            shares = [math.exp(x) / total for x in logits[row]]
            label = max(range(1, len(shares)), key=lambda at: shares[at])
            dx, dy, dw, dh = shifts[row][4 * label : 4 * label + 4]
            width, height = right - left, bottom - top
            x, y = left + width / 2 + dx / 10 * width, top + height / 2 + dy / 10 * height
            half = [width * math.exp(min(dw / 5, math.log(1000 / 16))) / 2]
            half += [height * math.exp(min(dh / 5, math.log(1000 / 16))) / 2]
            scale = [picture.shape[2] / columns, picture.shape[1] / rows]
            ends = [x - half[0], y - half[1], x + half[0], y + half[1]]
            limits = [picture.shape[2], picture.shape[1]] * 2
            boxes.append([min(max(end * scale[i % 2], 0.0), limits[i]) for i, end in enumerate(ends)])
            scores.append(shares[label])
            classes.append((label - 1, shares[1:]))
            row += 1
        kept = slow_choice(boxes, scores, limit, least, most)
        detections.append([(boxes[at], classes[at][0], scores[at], classes[at][1]) for at in kept])
    return detections


@pytest.mark.parametrize("network", ["small", "resnet50-fpn"])
def test_boxes_and_distributions_are_those_of_torchvisions_modules(network: str) -> None:
    detector = detector_of(tiny(network))
    pictures = [torch.rand(3, 50, 75, generator=torch.Generator().manual_seed(at)) for at in (1, 2, 3)]
    with torch.no_grad():
        got = find_boxes(detector.network, pictures, 0.5, 0.1, 9)
    expected = recomputed(detector.network, pictures, 0.5, 0.1, 9)
    for mine, theirs in zip(got, expected, strict=True):
        assert 2 <= len(theirs) == len(mine.labels)
        boxes, labels, scores, distribution = zip(*theirs, strict=True)
        assert mine.labels.tolist() == list(labels)
        torch.testing.assert_close(mine.boxes, torch.tensor(boxes), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(mine.scores, torch.tensor(scores), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.distribution, torch.tensor(distribution), rtol=1e-4, atol=1e-5)


def near(a: Detections, b: Detections) -> bool:
    columns = ("boxes", "labels", "scores", "distribution")
    return a.size == b.size and all(
        np.shape(getattr(a, name)) == np.shape(getattr(b, name))
        and np.allclose(getattr(a, name), getattr(b, name), atol=1e-3)
        for name in columns
    )


def test_every_kind_of_photo_gives_boxes_in_its_own_pixels(tmp_path: Path) -> None:
    detector, image = detector_of(), photo(width=201, height=133)
    path = photo_file(tmp_path, width=201, height=133)
    found = detector(image)
    assert found.size == (201.0, 133.0)
    assert (found.boxes >= 0).all()
    assert found.boxes[:, 2].max() > 120
    assert (found.boxes[:, 2] <= 201).all()
    assert (found.boxes[:, 3] <= 133).all()
    array = np.asarray(image)
    for same in (path, str(path), array, torch.from_numpy(array.copy()).permute(2, 0, 1)):
        assert near(detector(same), found)
    assert detector(path).image == str(path)
    smaller = Photo("large", image, (402.0, 266.0))  # a copy of a photo of twice the size
    twice = detector(smaller)
    assert (twice.image, twice.size) == ("large", (402.0, 266.0))
    np.testing.assert_allclose(twice.boxes, 2 * found.boxes)


def test_a_batch_gives_each_photo_the_boxes_it_gets_alone() -> None:
    detector = detector_of(tiny(score=0.7))
    sizes = [(90, 70), (70, 90), (90, 70), (120, 60), (90, 70), (70, 90), (33, 95)]
    photos = [Photo(str(at), photo(*size, seed=at), size) for at, size in enumerate(sizes)]
    alone = [detector(shot) for shot in photos]
    assert len({len(boxes) for boxes in alone}) > 1
    for batch in (1, 3, 8):
        together = detector.detect(photos, batch)
        assert [boxes.image for boxes in together] == [str(at) for at in range(7)]
        assert all(map(near, together, alone))
    assert detector.detect([]) == []


@pytest.mark.parametrize("network", sorted(set(NETWORKS) - {"yolox-nano"}))
def test_every_network_learns_and_detects(network: str) -> None:
    torch.manual_seed(0)
    detector = Detector(tiny(network, score=0.0, most=7), NAMES)
    pictures = [torch.randint(0, 256, (3, 64, 80), dtype=torch.uint8) for _ in range(2)]
    boxes = [torch.tensor([[5.0, 5, 40, 50], [30, 20, 70, 60]]), torch.zeros(0, 4)]  # the second has none
    detector.train()
    weights, parts = [torch.ones(2), torch.ones(0)], [torch.zeros(0, 2, dtype=torch.long)] * 2
    labels = [torch.tensor([3, 0]), torch.zeros(0, dtype=torch.long)]
    losses = detector.losses(pictures, boxes, labels, weights, parts)
    assert len(losses) == 4
    torch.stack(list(losses.values())).sum().backward()
    made: Any = detector.network
    assert all(p.grad is not None for p in made.rpn.parameters())
    assert made.roi_heads.box_predictor.cls_score.out_features == 5
    found = detector(photo())
    assert 0 < len(found) <= 7
    assert found.distribution is not None
    assert found.distribution.shape[1] == 4


def test_vgg16_has_the_layers_of_the_paper() -> None:
    with torch.device("meta"):
        network: Any = build_network(DETECTOR_PRESETS["vgg16"], 100, fetch=False)
        maps = network.backbone(torch.zeros(1, 3, 320, 640))
    assert maps.shape == (1, 512, 20, 40)  # conv5_3, stride 16
    assert [x.out_features for x in network.roi_heads.box_head if hasattr(x, "out_features")] == [4096, 4096]
    assert network.roi_heads.box_roi_pool.output_size == (7, 7)
    learns = [p.requires_grad for p in network.backbone.parameters()]
    assert learns == [False] * 8 + [True] * 18  # conv1 and conv2 stay


def test_the_small_network_sees_the_prevailing_colour_everywhere() -> None:
    pictures = torch.zeros(2, 3, 32, 40)
    pictures[1, 0, :, :25] = 0.2  # red, in most places
    pictures[1, 2, :3] = 9.0  # very blue, in few
    assert prevailing_colour(pictures).tolist() == [[0, 0], pytest.approx([1.0, 0])]
    torch.manual_seed(0)
    backbone = SmallBackbone(16)
    assert backbone(pictures).shape == (2, 32, 4, 5)


def test_a_saved_detector_finds_the_same_elsewhere(tmp_path: Path) -> None:
    detector, image = detector_of(tiny(**{"data.root": str(tmp_path)})), photo()
    detector.save(tmp_path / "here" / "model", epoch=3)
    files = sorted(path.name for path in (tmp_path / "here" / "model").iterdir())
    assert files == ["config.json", "model.safetensors", "versions.json", "vocabulary.json"]
    assert str(tmp_path) not in (tmp_path / "here" / "model" / "config.json").read_text()
    shutil.move(tmp_path / "here", tmp_path / "there")
    for folder in ("there", "there/model"):  # a run, and the folder itself
        loaded = Detector.load(tmp_path / folder, vocabulary=NAMES)
        assert loaded(image) == detector(image)
        assert (loaded.vocabulary, loaded.training) == (NAMES, False)
    assert loaded.config == detector.config.change(**{"data.root": ""})
    assert Detector.load(tmp_path / "there", device="meta").device.type == "meta"


def test_weights_of_a_detector_are_loaded_except_for_a_head_of_other_classes(tmp_path: Path) -> None:
    source = build_network(tiny("mobilenetv3-fpn"), 7)
    path = tmp_path / "own.pth"
    torch.save({"model": source.state_dict(), "epoch": 3}, path)
    config = tiny("mobilenetv3-fpn", weights=str(path))
    same, other = build_network(config, 7).state_dict(), build_network(config, 4).state_dict()
    for key, value in source.state_dict().items():
        if not key.endswith("num_batches_tracked"):  # frozen batch norm counts none
            assert torch.equal(same[key], value), key
            assert torch.equal(other[key], value) == ("box_predictor" not in key), key
    assert other["roi_heads.box_predictor.cls_score.weight"].shape == (5, 1024)


def test_a_classifier_fills_the_backbone(tmp_path: Path) -> None:
    from torchvision.models import mobilenet_v3_large

    torch.manual_seed(1)
    classifier = mobilenet_v3_large(weights=None).state_dict()
    save_file(classifier, tmp_path / "backbone.safetensors")
    config = tiny("mobilenetv3-fpn", weights=str(tmp_path / "backbone.safetensors"))
    network = build_network(config, 4)
    filled = network.state_dict()
    body = {key for key in filled if key.startswith("backbone.body.")}
    assert len(body) > 200
    for key in body:
        assert torch.equal(filled[key], classifier[key.replace("backbone.body.", "features.")]), key
    learns = [name for name, p in network.backbone.body.named_parameters() if p.requires_grad]
    assert learns
    assert len(learns) < len(list(network.backbone.body.parameters()))


def test_vgg16s_classifier_fills_maps_and_head() -> None:
    from torchvision.models import vgg16

    with torch.device("meta"):
        network = build_network(tiny("vgg16"), 4)
        classifier = vgg16(weights=None).state_dict()
    seen: dict[str, Tensor] = {}
    network.load_state_dict = lambda found, strict: seen.update(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyadic.detectors.weights._fetch", lambda name: classifier)
        load_weights(network, "vgg16", "torchvision")
    rest = {key for key in network.state_dict() if key not in seen}
    assert {key.split(".")[0] + key.split(".")[1] for key in rest} == {"rpnhead", "roi_headsbox_predictor"}
    assert seen["backbone.28.weight"] is classifier["features.28.weight"]
    assert seen["roi_heads.box_head.1.weight"] is classifier["classifier.0.weight"]
    assert seen["roi_heads.box_head.4.bias"] is classifier["classifier.3.bias"]


def test_torchvisions_resnet_gives_the_same_numbers_though_trained_without_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchvision.models.detection._utils import overwrite_eps

    config = tiny("resnet50-fpn", weights="torchvision")
    torch.manual_seed(2)
    theirs = build_network(config, 4, fetch=False)
    for name, buffer in theirs.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(1e-4, 1e-3)
    overwrite_eps(theirs, 0.0)
    monkeypatch.setattr("polyadic.detectors.weights._fetch", lambda name: theirs.state_dict())
    mine = build_network(config, 4)
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = (net.eval().backbone.body.conv1(picture) for net in (mine, theirs))
        torch.testing.assert_close(mine.backbone.body.bn1(a), theirs.backbone.body.bn1(b), rtol=1e-5, atol=1e-5)


def test_a_damaged_or_foreign_detector_is_refused_in_one_line(tmp_path: Path) -> None:
    detector_of().save(tmp_path / "whole")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "whole", tmp_path / name))

    cases: dict[str, Path] = {"no such folder": tmp_path / "nothing"}
    for name in ("model.safetensors", "config.json", "vocabulary.json"):
        cases[f"{name} is missing"] = copy(f"no {name}")
        (cases[f"{name} is missing"] / name).unlink()
        damage = f"{name}: not complete JSON" if name.endswith(".json") else f"{name} cannot be read"
        half = cases[damage] = copy(f"half {name}")
        (half / name).write_bytes((half / name).read_bytes()[: (half / name).stat().st_size // 2])
    foreign = cases["expected polyadic.Detector/1, got polyadic.RelationModel/1"] = copy("foreign")
    save_file({"x": torch.zeros(2)}, foreign / "model.safetensors", {"format": "polyadic.RelationModel/1"})
    other = cases["config.json was changed"] = copy("other network")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "network": "mobilenetv3-fpn"}))
    for message, folder in cases.items():
        refused(re.escape(message), Detector.load, folder)
    names = Vocabulary(objects=("person", "horse", "cap", "tree"), predicates=NAMES.predicates)
    refused("object 2 is 'hat' against 'cap'", Detector.load, tmp_path / "whole", vocabulary=names)


def test_unusable_weights_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.error import URLError

    def fail(*_: Any, **__: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    (tmp_path / "text.pth").write_bytes(b"text")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"features.0.weight": torch.zeros(3)}, tmp_path / "other.pth")
    cases = {
        "none.pth": "weights: no file ",
        "text.pth": " cannot be read as weights (",
        "list.pth": " holds no state dict",
        "other.pth": "does not hold weights of mobilenetv3-fpn (it lacks backbone.body.0.0",
        "torchvision": "cannot get torchvision's weights of mobilenetv3-fpn (<urlopen error no route to host>): put https://",
    }
    for name, message in cases.items():
        weights = name if name == "torchvision" else str(tmp_path / name)
        refused(re.escape(message), build_network, tiny("mobilenetv3-fpn", weights=weights), 4)


def test_a_torchvision_that_does_not_fit_torch_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    code = (
        "import polyadic\ntry:\n    polyadic.RelationModel.pretrained()\nexcept polyadic.PolyadicError as e: print(e)"
    )
    places = os.pathsep.join([str(tmp_path), *sys.path])
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=True)
    assert re.search(
        r"^torch .* and the installed torchvision do not fit .*nms does not exist.*install both", result.stdout
    )
