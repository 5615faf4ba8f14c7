"""YOLOX-Nano: initial weights, assignment, losses, boxes, a second look and parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from detector_cases import NAMES, photo
from onnx import helper, numpy_helper
from refusals import refused
from torch import Tensor
from torchvision.ops import roi_align

from polyadic.boxes import ordered_pairs
from polyadic.config import DETECTOR_PRESETS, DetectorConfig
from polyadic.config.schema import Config, PixelsConfig
from polyadic.detectors import yolox_nano
from polyadic.detectors.detector import Detector, part_labels
from polyadic.detectors.yolox_nano import NamedBoxes, Truth, YoloxNano, assign, cells, decode, find_parts
from polyadic.model.backbone import Backbone
from polyadic.model.features import PairFeatures, PairInputs, pool_regions
from polyadic.structures.detections import Detections
from polyadic.structures.scenes import Scene
from polyadic.training.proposals import _teach, in_fold, part_pairs, part_places, zoom

SIDE = 64


def config(**changes: Any) -> DetectorConfig:
    small = {"side": SIDE, "longest": SIDE, "weights": "random", "precision": "float32", "threads": 1, "workers": 0}
    return DETECTOR_PRESETS["yolox-nano"].change(**{**small, "device": "cpu", **changes})


def truth(boxes: list[list[float]], labels: list[int], parts: list[list[int]] | None = None) -> Truth:
    pairs = torch.tensor(parts or [], dtype=torch.long).reshape(-1, 2)
    return Truth(torch.tensor(boxes), torch.tensor(labels), torch.ones(len(labels)), pairs)


def exported(folder: Path, network: YoloxNano, names: list[str], **changed: np.ndarray) -> Path:
    """Write the weights as YOLOX's exporter does: folded convolutions by number in order, heads by name."""
    values: dict[str, Tensor] = {}
    for layer in yolox_nano._in_order(network):
        for value in (layer.conv.weight, layer.conv.bias):
            assert value is not None
            values[f"onnx::Conv_{1000 + len(values)}"] = value
    heads: dict[str, Any] = {"cls": network.class_scores, "reg": network.offsets, "obj": network.objectness}
    for kind, layers in heads.items():
        for level, head in enumerate(layers):
            values |= {f"head.{kind}_preds.{level}.{part}": getattr(head, part) for part in ("weight", "bias")}
    arrays = {name: value.detach().numpy() for name, value in values.items()} | changed
    stored = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
    path = folder / "nano.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "nano", [], [], stored)), str(path))
    (folder / "nano.names").write_text("\n".join(names))
    return path


def test_exported_weights_fill_the_network_and_the_scores_of_known_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = YoloxNano(3)
    path = exported(tmp_path, theirs, ["zebra", "horse", "person"])
    detector = Detector(config(weights=str(path)), NAMES)
    ours = detector.network
    assert isinstance(ours, YoloxNano)
    x = torch.rand(1, 3, SIDE, SIDE)
    with torch.no_grad():
        a, b = theirs.eval()(x)[0], ours.eval()(x)[0]
    torch.testing.assert_close(b[:, :5], a[:, :5])
    torch.testing.assert_close(b[:, 5:7], a[:, [7, 6]])  # person, horse
    assert not torch.allclose(b[:, 7], a[:, 5])


@pytest.mark.parametrize("mirror", [False, True])
def test_a_backbone_pools_the_features_of_an_exported_detector(tmp_path: Path, mirror: bool) -> None:
    torch.manual_seed(0)
    theirs = YoloxNano(3)
    path = exported(tmp_path, theirs, ["zebra", "horse", "person"])
    values: dict[str, Any] = {"side": 64, "longest": 96, "pool": 2, "crops": 32, "mirror": mirror}
    pixels = PixelsConfig("test_byobnet", "random", strides=(8, 32), detector=str(path), **values)
    net = Backbone(pixels)
    plain = Backbone(replace(pixels, detector=""))
    plain.load_state_dict({name: x for name, x in net.state_dict().items() if not name.startswith("detector.")})
    image = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
    boxes, frame = torch.tensor([[8.0, 4, 40, 40], [30, 10, 190, 120]]), (192.0, 128.0)
    with torch.no_grad():
        maps = theirs.eval().maps(image.float()[None] / 255)
        parts = [
            roi_align(theirs.class_towers[i](theirs.stems[i](x)), [boxes / (2 * 8 * 2**i)], 2, 1.0, 2, True).flatten(1)
            for i, x in enumerate(maps)
        ]
    regions, unions = pool_regions(net, image, boxes, frame)
    before, other = pool_regions(plain, image, boxes, frame)
    start = net.width + net.crop_width
    assert torch.equal(regions[:, :start], before[:, :start])
    assert torch.equal(unions, other)
    torch.testing.assert_close(
        regions[:, start : start + 3 * 64 * 4].float(), torch.cat(parts, 1), rtol=2e-3, atol=1e-3
    )
    assert regions.shape == (2, net.box_width)
    assert Backbone(pixels).fingerprint() != net.fingerprint(), "another random backbone"
    again = Backbone(replace(pixels, detector="elsewhere.onnx"), fetch=False)  # as a saved model is loaded
    again.load_state_dict(net.state_dict())
    assert again.fingerprint() == net.fingerprint() != plain.fingerprint()
    refused("pixels.detector: no file", Backbone, replace(pixels, detector=str(tmp_path / "none.onnx")))


def test_features_of_a_detector_reach_the_boxes() -> None:
    torch.manual_seed(0)
    pixels = PixelsConfig("test_byobnet", "random", strides=(8,), reduce=4)
    features = PairFeatures(Config(pixels=pixels), 3, 7, 6, 9).eval()
    generator, pairs = torch.Generator().manual_seed(1), ordered_pairs(3)
    boxes = torch.rand(3, 2, 2, generator=generator).sort(1).values.flatten(1) * 60
    regions, unions = torch.randn(3, 7 + 6 + 9), torch.randn(6, 7)
    x = PairInputs(pairs, boxes, torch.tensor([[80.0, 64]]).expand(3, 2), regions, unions)
    features.fit(regions, unions)
    subject, _, pair = features(x)
    moved = torch.cat([regions[:, :13], torch.randn(3, 9), torch.randn(3, 22)], 1)  # and of a mirror image
    other = features(replace(x, regions=moved))
    assert features.box == 4 + 4 + 4
    assert torch.equal(other[0][:, :8], subject[:, :8])
    assert not torch.allclose(other[0][:, 8:], subject[:, 8:])
    assert torch.equal(other[2], pair)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    narrow = {"onnx::Conv_1000": np.zeros((8, 12, 3, 3), np.float32)}
    path = exported(tmp_path, YoloxNano(2), ["person", "horse"], **narrow)
    refused("not an exported YOLOX-Nano", lambda: Detector(config(weights=str(path)), NAMES))
    (tmp_path / "text.onnx").write_text("no model")
    refused("is not an ONNX model", lambda: Detector(config(weights=str(tmp_path / "text.onnx")), NAMES))
    refused("one multiple of 32", lambda: config(side=60, longest=60))


def test_cells_go_to_the_box_whose_centre_they_are_near() -> None:
    grid = cells(SIDE, SIDE, torch.device("cpu"))
    raw = torch.zeros(len(grid[0]), 9)
    boxes = decode(raw, SIDE, SIDE)
    given = truth([[0.0, 0, 16, 16], [32, 32, 64, 64]], [1, 2])
    cell, row, overlap = assign(boxes, raw, given, grid)
    middle = (grid[0][cell] + 0.5) * grid[1][cell]
    inside = (middle >= given.boxes[row, :2]) & (middle <= given.boxes[row, 2:])
    assert inside.all()
    assert set(row.tolist()) == {0, 1}
    assert len(cell.unique()) == len(cell)
    assert (overlap > 0).all()
    large = row == 1
    assert (grid[1][cell[large]] >= 16).any()  # a cell of stride 32 fits the box of side 32


def test_it_overfits_one_image_and_finds_boxes_and_parts_again() -> None:
    """The person overlaps by more than 0.5 after 150 steps, the hat, found in that box, by 0.44."""
    torch.manual_seed(0)
    detector = Detector(config(whole="person", parts=("hat",), score=0.05), NAMES)
    network = detector.network
    assert isinstance(network, YoloxNano)
    assert network.parts is not None
    network.parts.places.copy_(torch.tensor([[0.2, 0.0, 0.8, 0.3]]))
    pixels = np.full((SIDE, SIDE, 3), 90, np.uint8)
    pixels[8:56, 10:42], pixels[8:24, 16:36] = (200, 40, 40), (30, 60, 220)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    boxes, labels = torch.tensor([[10.0, 8, 42, 56], [16, 8, 36, 24]]), torch.tensor([0, 2])
    optimiser = torch.optim.AdamW(detector.parameters(), 2e-3)
    detector.train()
    for _ in range(150):
        losses = detector.losses([image], [boxes], [labels], [torch.ones(2)], [torch.tensor([[0, 1]])])
        assert set(losses) == {"box", "class", "objectness", "regions", "parts"}
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
    found = detector(pixels)
    assert found.labels[0] == 0
    assert _iou(found.boxes[0], boxes[0].numpy()) > 0.5
    hats = found.take(found.labels == 2)
    assert max(_iou(box, boxes[1].numpy()) for box in hats.boxes) > 0.35
    assert found.distribution is not None
    assert found.distribution.shape == (len(found), 4)
    named = detector.name_boxes(pixels, Detections("image", boxes.double().numpy(), labels.numpy(), np.ones(2)))
    assert named.distribution is not None
    assert named.distribution.argmax(1).tolist() == [0, 2]


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    shared = (np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])).clip(0).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


def test_a_saved_detector_detects_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    detector = Detector(config(whole="person", parts=("hat",), score=0.0), NAMES).eval()
    detector.save(tmp_path)
    assert Detector.load(tmp_path)(photo()) == detector(photo())


def test_parts_are_looked_for_in_wholes_alone() -> None:
    network = YoloxNano(4, 0, [2]).eval()
    maps = network.maps(torch.rand(1, 3, SIDE, SIDE))
    horse = NamedBoxes(torch.tensor([[0.0, 0, 30, 30]]), torch.tensor([1]), torch.tensor([0.9]))
    person = NamedBoxes(torch.tensor([[0.0, 0, 30, 60]]), torch.tensor([0]), torch.tensor([0.9]))
    assert len(find_parts(network, maps, horse, (SIDE, SIDE)).boxes) == 0
    network.parts.places.copy_(torch.tensor([[0.0, 0.0, 1.0, 0.5]]))  # type: ignore[union-attr]
    found = find_parts(network, maps, person, (SIDE, SIDE))
    assert found.labels.tolist() == [2]
    torch.testing.assert_close(found.boxes, torch.tensor([[0.0, 0, 30, 30]]))  # its usual place, before any training
    assert part_labels(config(whole="person", parts=("hat", "shoe")), NAMES) == (0, [2])


def scene(boxes: list[list[float]], labels: list[int], relations: list[list[int]]) -> Scene:
    rows = np.array(relations, np.int64).reshape(-1, 3)
    return Scene("a.jpg", Path("a.jpg"), (100.0, 100.0), np.array(boxes, float), np.array(labels), rows)


def test_parts_are_what_is_related_to_a_whole() -> None:
    one = scene([[0, 0, 40, 80], [10, 0, 30, 20], [50, 50, 90, 90]], [0, 2, 1], [[0, 1, 1], [2, 0, 1]])
    assert part_pairs(one, 0, [2]).tolist() == [[0, 1]]
    np.testing.assert_allclose(part_places([one], 0, [2, 3]), np.array([[0.25, 0, 0.75, 0.25], [0, 0, 1, 1]]))


def test_teachers_add_what_nobody_annotated() -> None:
    one = scene([[0, 0, 40, 80]], [0], [])
    boxes = np.array([[1.0, 1, 40, 80], [0, 0, 40, 78], [50, 50, 90, 90], [60, 60, 99, 99]])
    taught = _teach(one, Detections("a.jpg", boxes, np.array([0, 1, 3, 3]), np.array([0.9, 0.9, 0.5, 0.1])), 0.3)
    assert taught.labels.tolist() == [0, 3]  # same name, other name in that place, new, unsure
    assert taught.boxes[1].tolist() == [50, 50, 90, 90]


def test_folds_are_a_partition() -> None:
    scenes = [replace(scene([[0, 0, 4, 8]], [0], []), name=f"{at}.jpg") for at in range(7)]
    folds = [in_fold(scenes, 3, fold) for fold in range(3)]
    assert sorted(name for fold in folds for name in fold) == sorted(one.name for one in scenes)


@pytest.mark.parametrize("seed", range(6))
def test_a_zoomed_box_holds_the_same_pixels(seed: int) -> None:
    pixels = np.zeros((80, 120, 3), np.uint8)
    pixels[20:50, 30:80] = 255
    from PIL import Image

    rng = np.random.default_rng(seed)
    shown, boxes, kept = zoom(Image.fromarray(pixels), np.array([[30.0, 20, 80, 50]]), 96, 1.5, rng)
    assert shown.shape == (96, 96, 3)
    if len(kept):
        left, top, right, bottom = boxes[0].round().astype(int)
        white = shown[..., 0] == 255
        assert white[top + 2 : bottom - 2, left + 2 : right - 2].all()
        rows, columns = np.nonzero(shown[..., 0] > 200)
        assert abs(rows.min() - top) <= 2
        assert abs(columns.max() + 1 - right) <= 2
