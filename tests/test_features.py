"""Backbone, spatial feature, reduction, and how sources are joined; evidence has its own file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from refusals import refused
from safetensors.torch import save_file
from shared_data import real_vrd, shared
from torch import Tensor, nn

from polyadic.boxes import box_place, ordered_pairs, pair_geometry, union_boxes
from polyadic.config.schema import Config, PixelsConfig
from polyadic.model.backbone import Backbone, prepare_picture
from polyadic.model.features import PairFeatures, PairInputs, Reduction, SpatialFeature, pool_regions, union_rows
from polyadic.structures.vocabulary import PolyadicError

TINY = PixelsConfig("test_byobnet", "random", strides=(8, 16), side=64, longest=80, pool=2, mask=16, spatial=5)


def tiny(**values: Any) -> PixelsConfig:
    return PixelsConfig(**{**{name: getattr(TINY, name) for name in TINY.__dataclass_fields__}, **values})


def picture(width: int = 80, height: int = 64, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def same_weights(net: Backbone, model: nn.Module) -> bool:
    """All that the feature maps need is the other model's, whatever they call it."""
    theirs = {key.replace(".", "_"): x for key, x in model.state_dict().items()}
    own = {key.replace(".", "_"): x for key, x in net.maps.state_dict().items()}
    return all(torch.equal(x, theirs[key]) for key, x in own.items())


class Ramp(nn.Module):
    """Feature maps that are linear in the place: of a picture scaled to [0, 1]^2, 2x - 3y and x + 5y."""

    def __init__(self, shapes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.shapes = shapes

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for height, width in self.shapes:
            u = ((torch.arange(width) + 0.5) / width).expand(height, width)
            v = ((torch.arange(height) + 0.5) / height)[:, None].expand(height, width)
            maps.append(torch.stack([2 * u - 3 * v, u + 5 * v])[None])
        return maps


def test_pooling_a_linear_map_averages_it_over_each_bin() -> None:
    """The average of a linear map over a bin is its value at the bin's centre, in whatever frame the box is given."""
    net = Backbone(tiny(pool=3))
    net.maps = Ramp([(16, 20), (8, 10)])
    frame = (400.0, 160.0)  # the annotated frame; the picture has another size and shape
    boxes = torch.tensor([[40.0, 20, 200, 100], [100, 30, 101, 120], [200, 50, 360, 140]])
    result = net(picture(), boxes, frame).view(3, 2, 2, 3, 3)  # [box, map, channel, row, column]
    for at, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        for row in range(3):
            for column in range(3):
                u = (x1 + (column + 0.5) * (x2 - x1) / 3) / frame[0]
                v = (y1 + (row + 0.5) * (y2 - y1) / 3) / frame[1]
                expected = torch.tensor([2 * u - 3 * v, u + 5 * v])
                for level in (0, 1):
                    torch.testing.assert_close(result[at, level, :, row, column], expected, rtol=0, atol=1e-4)


def test_many_boxes_are_pooled_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    net, generator = Backbone(TINY), torch.Generator().manual_seed(0)
    boxes = torch.rand(11, 2, 2, generator=generator).sort(1).values.flatten(1) * 60
    whole = net(picture(), boxes, (80.0, 64.0))
    monkeypatch.setattr("polyadic.model.backbone._REGIONS", 4)
    torch.testing.assert_close(net(picture(), boxes, (80.0, 64.0)), whole)
    assert whole.shape == (11, net.width)


def test_boxes_without_area_and_no_boxes_at_all() -> None:
    net = Backbone(TINY)
    points = torch.tensor([[7.0, 7, 7, 7], [80, 64, 80, 64], [0, 0, 0, 30]])
    assert net(picture(), points, (80.0, 64.0)).isfinite().all()
    assert net(picture(), torch.zeros(0, 4), (80.0, 64.0)).shape == (0, net.width)


def test_the_backbone_is_frozen_until_learning_is_on() -> None:
    net = Backbone(TINY)
    before = {key: x.clone() for key, x in net.state_dict().items()}
    net.train()
    assert not net(picture(), torch.tensor([[0.0, 0, 9, 9]]), (80.0, 64.0)).requires_grad
    assert not any(module.training for module in net.modules())
    assert all(torch.equal(x, before[key]) for key, x in net.state_dict().items())
    net.learn(True)
    assert net(picture(), torch.tensor([[0.0, 0, 9, 9]]), (80.0, 64.0)).requires_grad
    assert not all(torch.equal(x, before[key]) for key, x in net.state_dict().items())  # batch statistics move
    net.learn(False)
    assert not any(weight.requires_grad for weight in net.parameters())
    assert not net.maps.training


def test_the_fingerprint_depends_on_everything_that_affects_features() -> None:
    torch.manual_seed(0)
    net = Backbone(TINY)
    saved = {key: x.clone() for key, x in net.state_dict().items()}

    def mark(**values: Any) -> str:
        other = Backbone(tiny(**values))
        other.load_state_dict(saved)
        return other.fingerprint()

    assert mark() == net.fingerprint()
    assert mark(reduce=3, mask=32, spatial=9) == net.fingerprint()  # these come after
    assert mark(place=True) == net.fingerprint()
    different = [
        mark(pool=3),
        mark(side=72),
        mark(longest=96),
        mark(crops=32),
        mark(mirror=True),
        Backbone(TINY).fingerprint(),
    ]
    different += [Backbone(tiny(strides=(8,))).fingerprint(), Backbone(tiny(strides=(8, 32))).fingerprint()]
    with torch.no_grad():
        next(net.parameters()).view(-1)[0] += 1
    assert len({mark(), net.fingerprint(), *different}) == 2 + len(different)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((160, 128), (80, 64)),
        ((128, 160), (64, 80)),
        ((400, 100), (80, 16)),
        ((20, 16), (80, 64)),
        ((900, 2), (80, 16)),
    ],
)
def test_images_are_scaled_to_the_configured_sides(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """The shorter to 64, the longer to at most 80, both to multiples of the largest stride, which is 16."""
    result = prepare_picture(Image.new("L", size, 77), TINY)
    assert result.shape == (3, expected[1], expected[0])
    assert result.eq(77).all()
    assert Backbone(TINY)(result, torch.tensor([[0.0, 0, 9, 9]]), (9.0, 9.0)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("tf_efficientnet_lite0", (127.0,) * 3, (128.0,) * 3),
        ("lcnet_035", (0.485 * 255, 0.456 * 255, 0.406 * 255), (0.229 * 255, 0.224 * 255, 0.225 * 255)),
    ],
)
def test_pixels_are_normalised_as_in_pretraining(name: str, mean: tuple[float], std: tuple[float]) -> None:
    net, seen = Backbone(tiny(backbone=name)), list[Tensor]()
    net.maps.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net.feature_maps(picture()[None])
    for channel in range(3):
        expected = (picture()[channel].float() - mean[channel]) / std[channel]
        torch.testing.assert_close(seen[0][0, channel], expected)


@pytest.mark.parametrize("name", ["lcnet_035", "test_byobnet"])  # the two ways in which timm makes feature maps
@pytest.mark.parametrize("kind", ["a.safetensors", "a.pth", "wrapped.pth"])
def test_weights_of_a_classifier_come_from_a_file(tmp_path: Path, name: str, kind: str) -> None:
    torch.manual_seed(1)
    classifier = timm.create_model(name, num_classes=7)
    with torch.no_grad():
        for x in classifier.state_dict().values():
            if x.is_floating_point():
                x.add_(torch.rand_like(x) * 0.01)  # batch statistics, too
    path = tmp_path / kind
    if path.suffix == ".safetensors":
        save_file(classifier.state_dict(), path)
    else:
        torch.save({"state_dict": classifier.state_dict()} if "wrapped" in kind else classifier.state_dict(), path)
    net = Backbone(tiny(backbone=name, weights=str(path)))
    assert same_weights(net, classifier)


def test_weights_may_come_from_a_saved_model(tmp_path: Path) -> None:
    net = Backbone(TINY)
    save_file({f"backbone.{key}": x for key, x in net.state_dict().items()}, tmp_path / "model.safetensors")
    assert Backbone(tiny(weights=str(tmp_path))).fingerprint() == net.fingerprint()
    with pytest.raises(
        PolyadicError, match=r"pixels\.weights: the backbone of .* is not test_byobnet with these strides"
    ):
        Backbone(tiny(weights=str(tmp_path), strides=(32,)))
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:5000])
    refused("is corrupt", lambda: Backbone(tiny(weights=str(tmp_path))))


def test_bad_weights_and_names_are_refused_in_one_line(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole.safetensors", tmp_path / "other.safetensors"
    save_file(timm.create_model("test_byobnet").state_dict(), whole)
    save_file(timm.create_model("lcnet_035").state_dict(), other)
    torch.save(timm.create_model("test_byobnet").state_dict(), tmp_path / "half.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    save_file({"x": torch.zeros(1, dtype=torch.long)}, tmp_path / "numbers.safetensors")
    for name, source in (("half.safetensors", whole), ("half.pth", tmp_path / "half.pth")):
        (tmp_path / name).write_bytes(source.read_bytes()[:100_000])
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "folder").mkdir()
    fine = "is not a file of test_byobnet's weights"
    weights = timm.create_model("test_byobnet").state_dict()
    weights["stem.conv.weight"][0] = torch.nan
    save_file(weights, tmp_path / "nan.safetensors")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"weights": str(tmp_path / "half.safetensors")}, f"half.safetensors {fine}"),
        ({"weights": str(tmp_path / "half.pth")}, f"half.pth {fine}"),
        ({"weights": str(tmp_path / "list.pth")}, f"list.pth {fine}"),
        ({"weights": str(tmp_path / "empty.safetensors")}, f"empty.safetensors {fine}"),
        ({"weights": str(tmp_path / "numbers.safetensors")}, f"numbers.safetensors {fine} (no weights at all)"),
        ({"weights": str(tmp_path / "nan.safetensors")}, f"nan.safetensors {fine} (not all numbers are finite in stem"),
        ({"weights": str(other)}, f"other.safetensors {fine}"),
        ({"weights": str(tmp_path / "none.pth")}, "no file "),
        ({"weights": str(tmp_path / "folder")}, "has no saved model"),
        ({"backbone": "lcnet_53"}, "timm has no model 'lcnet_53'; similar names: lcnet_035"),
        ({"backbone": "nothing at all"}, "timm has no model 'nothing at all'"),
        ({"strides": (8, 7)}, "pixels.strides: test_byobnet has strides [2, 4, 8, 16, 32], not 7"),
    ]
    for values, message in cases:
        refused(re.escape(message), Backbone, tiny(**values))


def test_weights_of_another_network_are_refused_with_the_layers_that_differ(tmp_path: Path) -> None:
    """Some fit in part: a deeper network of a family has every layer of the other one."""
    with torch.device("meta"):
        files = {name: timm.create_model(name, features_only=True) for name in ("resnet14t", "resnet26t")}
        wide = timm.create_model("vgg11").state_dict()
    weights = {name: net.state_dict() for name, net in files.items()}
    weights["vgg11"] = {key: x for key, x in wide.items() if key.startswith("features.")}
    weights["renamed"] = {f"conv{number}.kernel": x for number, x in enumerate(weights["vgg11"].values())}
    weights["surplus"] = {**weights["vgg11"], "features.99.weight": torch.zeros(1)}
    weights["torchvision"] = {**weights["vgg11"], "classifier.9.weight": torch.zeros(1)}
    for name, tensors in weights.items():
        save_file({key: torch.zeros(x.shape) for key, x in tensors.items()}, tmp_path / f"{name}.safetensors")
    cases = [
        ("vgg13", "vgg11", r"lacks features_2\.weight, .* features_22\.bias; it has features\.11\.bias"),
        ("vgg11", "renamed", r"lacks features_0\.weight, .*; it has conv0\.kernel, .*conv9\.kernel"),
        ("vgg11", "surplus", r"\(it has features\.99\.weight\)"),
        ("resnet14t", "resnet26t", r"\(it has layer1\.1\.\w+"),
        ("resnet26t", "resnet14t", r"\(it lacks layer1\.1\.\w+"),
    ]
    for network, file, message in cases:
        refused(message, Backbone, tiny(backbone=network, strides=(16,), weights=str(tmp_path / f"{file}.safetensors")))
    Backbone(tiny(backbone="vgg11", strides=(16,), weights=str(tmp_path / "torchvision.safetensors")))


def test_pretrained_weights_without_a_network_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: Any, **more: Any) -> None:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr("timm.models._builder.load_pretrained", no_network)
    refused(r"timm's weights of test_byobnet \(We couldn't connect to the hub\)", Backbone, tiny(weights="timm"))


def test_the_feature_map_of_the_paper_is_conv5_3() -> None:
    with torch.device("meta"):
        net = Backbone(Config().pixels, fetch=False)
        layers = [item for item in net.maps.modules() if isinstance(item, nn.Conv2d)]
    assert len(layers) == 2 + 2 + 3 + 3 + 3
    assert net.maps.feature_info.module_name() == ["features.29"]  # its ReLU, before the last pooling
    assert net.width == 512 * 7 * 7


def test_feature_maps_of_a_photo_equal_those_of_timm() -> None:
    weights = shared("weights", "tf_efficientnet_lite0.safetensors")
    scene = next(scene for scene in real_vrd("test") if scene.has_picture())
    pixels = tiny(backbone="tf_efficientnet_lite0", weights=str(weights), strides=(16, 32), side=128, longest=200)
    net = Backbone(pixels)
    photo = prepare_picture(scene.open(), pixels)
    model: Any = timm.create_model("tf_efficientnet_lite0", checkpoint_path=str(weights))
    x = ((photo.float() - 127) / 128)[None]
    with torch.no_grad():
        expected = model.eval().forward_intermediates(x, indices=[3, 4], intermediates_only=True)
        result = net.feature_maps(photo[None])
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b)
    boxes = torch.from_numpy(scene.boxes).float()
    assert net(photo, boxes, scene.frame).isfinite().all()


def test_regions_are_the_boxes_and_the_unions_of_all_pairs() -> None:
    net, n = Backbone(TINY), 4
    boxes = torch.rand(n, 2, 2, generator=torch.Generator().manual_seed(0)).sort(1).values.flatten(1) * 60
    regions, unions = pool_regions(net, picture(), boxes, (80.0, 64.0))
    pairs = ordered_pairs(n)
    around = union_boxes(boxes[pairs[:, 0]], boxes[pairs[:, 1]])
    assert torch.equal(regions, net(picture(), boxes, (80.0, 64.0)).half())
    assert torch.equal(unions[union_rows(pairs, n)], net(picture(), around, (80.0, 64.0)).half())


@pytest.mark.parametrize("side", [8, 9, 12, 13, 15, 64])
def test_the_spatial_feature_takes_masks_of_any_side(side: int) -> None:
    net = SpatialFeature(side, 5)
    assert net(torch.zeros(3, 2, side, side)).shape == (3, 5)
    assert net(torch.zeros(0, 2, side, side)).shape == (0, 5)
    assert sum(isinstance(item, nn.Conv2d) for item in net.modules()) == 2


def test_a_reduction_keeps_what_the_full_decomposition_keeps() -> None:
    torch.manual_seed(0)
    rows, width, kept = 300, 40, 6
    spectrum = 0.6 ** torch.arange(width)
    sample = torch.randn(rows, width) * spectrum @ torch.linalg.qr(torch.randn(width, width))[0] + torch.randn(width)
    reduction = Reduction(width, kept)
    reduction.fit(sample)
    centred = sample - sample.mean(0)
    best = torch.linalg.svd(centred, full_matrices=False).Vh[:kept].T
    result = reduction(sample)
    basis = torch.linalg.qr(reduction.basis)[0]
    lost, least = (float((centred - centred @ b @ b.T).square().sum()) for b in (basis, best))
    assert result.shape == (rows, kept)
    assert lost <= least * 1.001
    assert float(result.square().mean()) == pytest.approx(1, rel=1e-4)  # unit variance on average
    assert result.mean(0).abs().max() < 1e-4


@pytest.mark.parametrize(("rows", "width", "kept"), [(3, 10, 6), (30, 4, 6)])
def test_a_reduction_to_more_components_than_available_pads_with_zeros(rows: int, width: int, kept: int) -> None:
    reduction = Reduction(width, kept)
    reduction.fit(torch.randn(rows, width, generator=torch.Generator().manual_seed(0)))
    result = reduction(torch.ones(2, width))
    assert result.shape == (2, kept)
    assert result.isfinite().all()
    assert not result[:, min(rows, width) :].any()


def test_a_crop_shows_a_box_with_a_margin_in_any_frame() -> None:
    """On a picture whose colours are linear in the place: the mean is the centre's, the spread that of 1.15 boxes."""

    class Eyes(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x[:, :2], x[:, 2:].square()]

    net = Backbone(tiny(crops=32))
    net.maps, net.mean, net.std = Eyes(), torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
    u, v = torch.arange(80).expand(64, 80) + 0.5, torch.arange(64)[:, None].expand(64, 80) + 0.5
    shown = torch.stack([u * 2, v * 3, u * 2]).round().to(torch.uint8)
    boxes = torch.tensor([[20.0, 20, 40, 28], [4, 30, 60, 50], [-10.0, 40, 30, 90]])
    scaled = boxes * torch.tensor([3.0, 2, 3, 2])
    result = net.cut(shown, scaled, (240.0, 128.0))
    assert result.shape == (3, 3)
    half = 0.5 * 1.15
    for at, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        x, y, w, h = (x1 + x2) / 2, (y1 + y2) / 2, (x2 - x1) * half, (y2 - y1) * half
        left, right, top, bottom = max(x - w, 0), min(x + w, 80), max(y - h, 0), min(y + h, 64)
        middle, reach = (left + right) / 2, (right - left) / 2
        square = 4 * (middle**2 + reach**2 / 3)
        expected = torch.tensor([2 * middle, 1.5 * (top + bottom), square])
        torch.testing.assert_close(result[at], expected, rtol=0.02, atol=1.5)


def test_crops_in_chunks_equal_all_at_once_and_follow_the_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Backbone(tiny(crops=32))
    boxes = torch.rand(5, 2, 2, generator=torch.Generator().manual_seed(0)).sort(1).values.flatten(1) * 60
    boxes[3, 2:] = boxes[3, :2]  # no area
    whole = net.cut(picture(), boxes, (80.0, 64.0))
    assert whole.shape == (5, net.crop_width)
    assert whole.isfinite().all()
    regions, unions = pool_regions(net, picture(), boxes, (80.0, 64.0))
    assert torch.equal(regions[:, net.width :], whole.half())
    assert torch.equal(regions[:, : net.width], net(picture(), boxes, (80.0, 64.0)).half())
    assert unions.shape == (10, net.width)
    monkeypatch.setattr("polyadic.model.backbone._CROPS", 2)
    torch.testing.assert_close(net.cut(picture(), boxes, (80.0, 64.0)), whole)
    assert net.cut(picture(), boxes[:0], (80.0, 64.0)).shape == (0, net.crop_width)
    assert Backbone(TINY).crop_width == 0


@pytest.mark.parametrize("crops", [0, 32])
def test_features_of_the_mirror_image_follow_those_of_the_image(crops: int) -> None:
    net = Backbone(tiny(crops=crops, mirror=True))
    boxes = torch.tensor([[3.0, 4, 30, 40], [20, 10, 78, 60], [0, 0, 9, 9]])
    regions, unions = pool_regions(net, picture(), boxes, (80.0, 64.0))
    flipped = torch.from_numpy(picture().numpy()[:, :, ::-1].copy())
    turned = torch.tensor([[50.0, 4, 77, 40], [2, 10, 60, 60], [71, 0, 80, 9]])
    expected = [net(picture(), boxes, (80.0, 64.0)), net(flipped, turned, (80.0, 64.0))]
    if crops:
        expected.insert(1, net.cut(picture(), boxes, (80.0, 64.0)))
        expected.append(net.cut(flipped, turned, (80.0, 64.0)))
    assert torch.equal(regions, torch.cat(expected, 1).half())
    assert regions.shape == (3, net.box_width)
    assert unions.shape == (3, net.width)


def test_crops_reach_the_boxes_and_places_both_boxes_and_pairs() -> None:
    torch.manual_seed(0)
    features = PairFeatures(Config(pixels=tiny(crops=32, place=True, reduce=4)), 3, 7, 6).eval()
    regions, unions = torch.randn(3, 7 + 6), torch.randn(6, 7)
    x = replace(inputs_of(3, 7, seed=1), regions=regions, unions=unions)
    features.fit(regions, unions)
    subject, object, pair = features(x)
    assert (features.box, features.pair) == (4 + 4 + 7 + 5, 4 + 5 + 24 + 5)
    assert torch.equal(subject, object)
    s, o = x.pairs.unbind(-1)
    for result, layer, numbers in (
        (subject[:, 8:], features.place, box_place(x.boxes, x.frames)),
        (pair[:, 9:], features.places, pair_geometry(x.boxes[s], x.boxes[o], x.frames[s])),
    ):
        assert layer is not None
        wide = numbers @ layer.layer.weight.T + layer.layer.bias
        torch.testing.assert_close(result, torch.cat([numbers, wide.clamp_min(0)], 1))
    moved = torch.cat([regions[:, :7], torch.randn(3, 6)], 1)
    other = features(replace(x, regions=moved))
    assert torch.equal(other[0][:, :4], subject[:, :4])
    assert not torch.allclose(other[0][:, 4:8], subject[:, 4:8])
    assert torch.equal(other[2], pair)


def inputs_of(n: int, width: int, seed: int) -> PairInputs:
    generator, pairs = torch.Generator().manual_seed(seed), ordered_pairs(n)
    boxes = torch.rand(n, 2, 2, generator=generator).sort(1).values.flatten(1) * 60
    rows = (torch.randn(k, width, generator=generator) for k in (n, len(pairs)))
    return PairInputs(pairs, boxes, torch.tensor([[80.0, 64]]).expand(n, 2), *rows)


def test_joined_images_have_the_features_of_each_alone() -> None:
    torch.manual_seed(0)
    features = PairFeatures(Config(pixels=TINY), 3, 7).eval()
    parts = [inputs_of(n, 7, seed=n) for n in (3, 0, 2, 1)]
    joined = features(PairInputs.join(parts))
    alone = [features(part) for part in parts]
    for at in range(3):
        torch.testing.assert_close(joined[at], torch.cat([item[at] for item in alone]))
    assert (features.box, features.pair) == (7, 7 + 5)
    assert joined[2].shape == (8, 12)
