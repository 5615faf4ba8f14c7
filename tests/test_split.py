"""A backbone in two parts is the whole one, but for the rounding between them."""

from __future__ import annotations

import re

import pytest
import torch
from refusals import refused
from torch import Tensor

from polyadic.config.schema import PixelsConfig
from polyadic.model.backbone import Backbone
from polyadic.model.split import SplitBackbone

FLOAT = torch.float32
IMAGE = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
# network, strides, train_from, the first layer that is trained, shapes of what is kept
NETS = [
    ("vgg11", (16,), 16, "features_16", {"start": (512, 4, 6)}),
    ("vgg11_bn", (8, 16), 16, "features_22", {"0": (512, 8, 12), "start": (512, 4, 6)}),
    ("test_byobnet", (8,), 8, "stages_1", {"start": (32, 16, 24)}),
    ("test_byobnet", (4, 8), 8, "stages_1", {"0": (32, 16, 24)}),
    ("test_resnet", (8, 32), 16, "layer3", {"0": (48, 8, 12)}),
    ("test_convnext", (16,), 8, "stages_1", {"start": (24, 16, 24)}),
    ("tf_efficientnet_lite0", (16, 32), 16, "blocks.3", {"start": (40, 8, 12)}),
    ("mobilenetv3_small_050", (32,), 32, "blocks.4", {"start": (24, 4, 6)}),
]


def network(name: str, strides: tuple[int, ...], side: int = 64, longest: int = 96) -> Backbone:
    torch.manual_seed(1)
    net = Backbone(PixelsConfig(backbone=name, weights="random", strides=strides, side=side, longest=longest))
    for key, statistic in net.named_buffers():
        if key.endswith("running_mean"):
            torch.nn.init.uniform_(statistic, -0.2, 0.2)
    return net


@pytest.mark.parametrize(("name", "strides", "train_from", "first", "shapes"), NETS)
def test_both_parts_together_are_the_whole_network_with_rounded_maps_between_them(
    name: str, strides: tuple[int, ...], train_from: int, first: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    net = network(name, strides)
    split, rounded = SplitBackbone(net, train_from), list[Tensor]()

    def cut(_: torch.nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        rounded.append(given[0].half())
        return (rounded[0].float(),)

    parts = split.before(IMAGE, FLOAT)
    assert {key: tuple(x.shape) for key, x in parts.items()} == shapes
    assert {x.dtype for x in parts.values()} == {torch.float16}
    hook = net.maps.get_submodule(first).register_forward_pre_hook(cut)
    with torch.no_grad():
        expected = net.feature_maps(IMAGE[None])
    hook.remove()
    assert torch.equal(parts["start" if "start" in parts else "0"], rounded[0][0])
    got = split.after([parts])
    n = sum(key != "start" for key in parts)
    assert len(got) == len(strides)
    for whole, part in zip(expected[:n], got[:n], strict=True):
        assert torch.equal(whole.half().float(), part)
    for whole, part in zip(expected[n:], got[n:], strict=True):
        assert torch.equal(whole, part)
    assert split.bytes_per_pixel() == sum(x.numel() * 2 for x in parts.values()) / (64 * 96)


@pytest.mark.parametrize(("name", "strides", "train_from", "first", "shapes"), NETS)
def test_only_the_layers_from_the_stride_on_learn(
    name: str, strides: tuple[int, ...], train_from: int, first: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    net = network(name, strides)
    split = SplitBackbone(net, train_from)
    split.learn()
    split.after([split.before(IMAGE, FLOAT)] * 2)[-1].sum().backward()
    order = [key for key, _ in net.maps.named_parameters()]
    start = next(at for at, key in enumerate(order) if key.startswith(f"{first}."))
    learned = [p.grad is not None for p in net.maps.parameters()]
    assert not any(learned[:start])
    assert learned[start]
    assert [p.requires_grad for p in net.maps.parameters()][:start] == [False] * start
    modes = {key: module.training for key, module in net.maps.named_modules() if list(module.parameters(False))}
    assert all(
        modes[key.rpartition(".")[0]] == (at >= start) for at, key in enumerate(order) if learned[at] or at < start
    )


def test_large_activations_stay_finite() -> None:
    net = network("test_byobnet", (8,))
    torch.nn.init.constant_(net.maps.stem.bn.bias, 1e9)
    (start,) = SplitBackbone(net, 8).before(IMAGE, FLOAT).values()
    assert start.isfinite().all()


@pytest.mark.parametrize(
    ("name", "strides", "train_from", "message"),
    [
        ("vgg11", (16,), 5, "vgg11 can be trained from the strides [2, 4, 8, 16], not 5; 0 trains all of it"),
        ("vgg11", (8,), 16, "vgg11 can be trained from the strides [2, 4, 8], not 16"),
        ("vgg11", (32,), 32, "vgg11 can be trained from the strides [2, 4, 8, 16], not 32"),  # pooling alone
        ("test_byobnet", (8,), 2, "test_byobnet can be trained from the strides [4, 8], not 2"),
        ("test_vit", (16,), 16, "test_vit does not run its layers one after another"),
        ("dpn48b", (16,), 16, "dpn48b does not run its layers one after another"),
    ],
)
def test_a_network_that_cannot_be_split_there_is_refused(
    name: str, strides: tuple[int, ...], train_from: int, message: str
) -> None:
    refused("backbone.train_from: " + re.escape(message), SplitBackbone, network(name, strides), train_from)


def test_the_fingerprint_is_of_the_frozen_layers_and_of_the_size() -> None:
    def fingerprint(train_from: int = 8, strides: tuple[int, ...] = (8,), change: str = "", **size: int) -> str:
        net = network("test_byobnet", strides, **size)
        if change:
            next(x for name, x in net.state_dict().items() if name.startswith(change)).add_(1)
        return SplitBackbone(net, train_from).fingerprint()

    first = fingerprint()
    assert fingerprint(change="maps.stages_1") == first
    others = {
        fingerprint(change="maps.stages_0"),
        fingerprint(change="maps.stem.bn.running_mean"),
        fingerprint(change="mean"),
        fingerprint(train_from=4),
        fingerprint(strides=(4, 8)),
        fingerprint(strides=(8, 16)),  # another size of pictures
        fingerprint(side=56),
        fingerprint(longest=88),
    }
    assert len(others - {first}) == 8
