"""Training the last layers from cached maps: bit for bit what the whole network with frozen layers learns."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor
from training_cases import Crash, Ended, Spy, SpyAt, a_setup, crash, finish, log_of, same, tiny, watched

from polyadic.model.backbone import Backbone, laid_out
from polyadic.model.relation_model import RelationModel
from polyadic.model.split import SplitBackbone
from polyadic.progress import Interrupted
from polyadic.structures.vocabulary import PolyadicWarning
from polyadic.training import loop, stages, train
from polyadic.training.region_cache import FeatureCache

LAST = {"backbone.train_from": 8, "backbone.epochs": 2, "backbone.optimiser": "adamw", "backbone.rate": 0.01}
ALONE = {"triplets.epochs": 0, "selection.epochs": 0}
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later, of threads


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return finish(tiny(**LAST), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images passed through the frozen layers."""
    seen: list[int] = []
    before = SplitBackbone.before

    def count(self: SplitBackbone, image: Tensor, precision: torch.dtype) -> dict[str, Tensor]:
        seen.append(1)
        return before(self, image, precision)

    monkeypatch.setattr(SplitBackbone, "before", count)
    monkeypatch.setattr(SplitBackbone, "bytes_per_pixel", lambda self: 1.0)
    return seen


@pytest.mark.parametrize(
    ("strides", "optimiser", "precision"),
    [((8,), "sgd", "float32"), ((8,), "adamw", "bfloat16"), ((4, 8), "adamw", "float32")],
)
def test_it_equals_training_the_whole_network_with_its_first_layers_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strides: tuple[int, ...], optimiser: str, precision: str
) -> None:
    changes = {"pixels.strides": strides, "backbone.optimiser": optimiser, "precision": precision}
    config = tiny(**LAST | ALONE | changes)
    got = finish(config, tmp_path / "cached")

    def slow_maps(self: Backbone, images: Tensor) -> list[Tensor]:
        x = laid_out((images.float() - self.mean) / self.std)
        frozen = torch.cat([self.maps.stages_0(self.maps.stem(x[at : at + 1])) for at in range(len(x))])
        frozen = laid_out(frozen.half().float())
        return [frozen, self.maps.stages_1(frozen)][-len(strides) :]

    def freeze(self: Any) -> None:
        self.net.learn(True)
        for layer in (self.net.maps.stem, self.net.maps.stages_0):
            layer.requires_grad_(False).eval()

    monkeypatch.setattr(Backbone, "feature_maps", slow_maps)
    monkeypatch.setattr(stages.BackboneStage, "train_mode", freeze)
    expected = finish(config.change(**{"backbone.train_from": 0}), tmp_path / "slow")
    assert same(got.model.state_dict(), expected.model.state_dict())
    assert same(got.result, expected.result)
    assert log_of(got.folder) == log_of(expected.folder)


def test_frozen_layers_stay_bit_for_bit_and_the_others_move(tmp_path: Path) -> None:
    config = tiny(**LAST | ALONE)
    setup = a_setup(config, tmp_path)
    torch.manual_seed(config.seed)
    fresh: Any = RelationModel(config, setup.data.vocabulary)
    before = fresh.backbone.state_dict()
    after = finish(config, tmp_path / "run").model.backbone.state_dict()
    for name, x in after.items():
        assert torch.equal(x, before[name]) == (not name.startswith("maps.stages_1")), name
    assert any("running_var" in name and "stages_1" in name for name in after)


@forks
@pytest.mark.parametrize("change", [{"workers": 2}, {"cache.gigabytes": 0.0}, {"cache.gigabytes": 2e-5}])
def test_workers_and_the_room_in_the_cache_change_nothing(whole: Ended, tmp_path: Path, change: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PolyadicWarning)
        got = finish(tiny(**LAST | change), tmp_path / "run")
    assert same(got.result, whole.result)
    assert log_of(got.folder) == log_of(whole.folder)
    full = any("the other feature maps are recomputed in each epoch" in str(each.message) for each in caught)
    assert full == (change.get("cache.gigabytes") == 2e-5)


def test_each_image_passes_the_frozen_layers_once(whole: Ended, tmp_path: Path, passed: list[int]) -> None:
    config = tiny(**LAST | ALONE | {"cache.folder": str(tmp_path / "features")})
    finish(config, tmp_path / "cold")
    assert len(passed) == 24
    finish(config.change(**{"backbone.rate": 0.02}), tmp_path / "warm")
    assert len(passed) == 24, "another rate trains from the same maps"
    finish(config.change(**{"cache.gigabytes": 0.0}), tmp_path / "without")
    assert len(passed) == 24 + 2 * 24
    assert "say features" not in str(whole.spy.seen[: whole.spy.seen.index("begin backbone 1/2")])


def test_the_expected_size_is_said_before_the_work(tmp_path: Path) -> None:
    config = tiny(**LAST | ALONE | {"cache.folder": str(tmp_path / "features")})
    seen = finish(config, tmp_path / "run").spy.seen
    cache = FeatureCache(tmp_path / "features", 10**9)
    keys = [path.stem for path in (tmp_path / "features").rglob("*.safetensors")]
    stored = sum(x.numel() * 2 for key in keys for x in (cache.load(key) or {}).values())
    (line,) = (line for line in seen if line.startswith("say feature maps of"))
    assert len(keys) == 24
    assert line == f"say feature maps of 24 images: {stored / 1000:.1f} kB; limit 500 MB"
    assert seen.index(line) < seen.index("feature maps, step 1")


def test_maps_of_other_weights_sizes_precisions_and_cuts_are_not_reused(tmp_path: Path, passed: list[int]) -> None:
    config = tiny(**LAST | ALONE | {"cache.folder": str(tmp_path / "features"), "backbone.epochs": 1})
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"pixels.side": 56},
        {"precision": "bfloat16"},
        {"backbone.train_from": 4},
    ]
    for n, change in enumerate(changes):
        finish(config.change(**change), tmp_path / f"run{n}")
        assert len(passed) == 24 * (n + 1)


@pytest.mark.parametrize(
    "place", ["feature maps, step 9", "backbone 1/2, step 1", "backbone 2/2, step 2", "say backbone 1"]
)
@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_an_interrupted_run_resumes_bit_for_bit(
    whole: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, how: str
) -> None:
    monkeypatch.setattr(loop, "MINUTES", 0)  # a checkpoint after each step
    spy = SpyAt(place, crash) if how == "crashed" else SpyAt(place)
    with pytest.raises(Crash if how == "crashed" else Interrupted), watched(spy):
        train(tiny(**LAST), tmp_path / "run")
    got = finish(tiny(**LAST), tmp_path / "run", resume=True)
    assert same(got.model.state_dict(), whole.model.state_dict())
    for stage, state in got.kept.states.items():
        assert same(state, whole.kept.states[stage]), stage
    assert log_of(got.folder) == log_of(whole.folder)


def test_a_damaged_entry_is_computed_again(whole: Ended, tmp_path: Path) -> None:
    def damage() -> None:
        for path in sorted((tmp_path / "features").rglob("*.safetensors"))[::3]:
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            path.write_bytes(data)

    at = next(i for i, seen in enumerate(whole.spy.seen) if seen == "begin backbone 1/2")
    with pytest.warns(PolyadicWarning, match="checksum"):
        got = finish(tiny(**LAST), tmp_path / "run", spy=Spy(at, damage))
    assert same(got.result, whole.result)


def test_a_stride_that_the_network_lacks_leaves_no_run(tmp_path: Path) -> None:
    wrong = tiny(**LAST | {"backbone.train_from": 16})
    refused(r"can be trained from the strides \[4, 8\], not 16", train, wrong, tmp_path / "run")
    assert not list(tmp_path.rglob("*.*")) or {path.name for path in tmp_path.rglob("*.*")} == {".lock"}
    finish(wrong.change(**{"backbone.epochs": 0, "triplets.epochs": 1}), tmp_path / "other")  # unused there
