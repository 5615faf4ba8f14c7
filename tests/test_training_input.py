"""Bad input to training is reported in one line, and nothing is lost."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_cases import Ended, Spy, SpyAt, detect, finish, log_of, same, tiny, watched, write_detections

from polyadic.config.schema import Config
from polyadic.datasets.toy.world import World, write
from polyadic.model.relation_model import RelationModel
from polyadic.progress import Interrupted, interruptible
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning
from polyadic.training import examples as data
from polyadic.training import run_config, train
from polyadic.training.budget import in_bytes
from polyadic.training.region_cache import FeatureCache
from polyadic.training.run import Checkpoint, MetricLog

pytestmark = pytest.mark.usefixtures("unchecked")
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later, of threads
EVIDENCE = tiny(sources=("evidence",))  # a run of half a second


def refused(match: str, config: Config, folder: Path, **more: Any) -> None:
    with pytest.raises(PolyadicError, match=match) as caught:
        train(config, folder, **more)
    assert "\n" not in str(caught.value)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Stop a run in the second epoch of its first stage."""
    with pytest.raises(Interrupted), watched(SpyAt("triplets 2/2, step 1")):
        train(EVIDENCE, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return finish(EVIDENCE, tmp_path_factory.mktemp("whole") / "run")


# the folder of a run


def test_existing_folders_and_files_are_never_overwritten(stopped: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    refused("exists already: continue it with --resume", EVIDENCE, stopped)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    refused("exists already", EVIDENCE, tmp_path)
    refused("exists already", EVIDENCE, tmp_path / "letter.txt")
    refused("cannot write", EVIDENCE, tmp_path / "letter.txt" / "run")


def test_an_error_before_the_start_leaves_no_folder(tmp_path: Path) -> None:
    none = on_disk(tmp_path / "data", lambda file: file["rel_annotations"].clear())
    cases = {
        "no stage has epochs": EVIDENCE.change(**{"triplets.epochs": 0, "selection.epochs": 0}),
        "proposals.* needs boxes": EVIDENCE.change(**{"proposals.epochs": 1}),
        "no file .*none.jsonl": EVIDENCE.change(**{"data.simulate": str(tmp_path / "none.jsonl")}),
        "no detector matches 'lu'; there are: none": EVIDENCE.change(**{"evidence.witnesses": "lu"}),
        "coco: .*--data": EVIDENCE.change(**{"data.dataset": "coco"}),
        "device 'gpu' cannot be used": EVIDENCE.change(device="gpu"),
        "no image has a relation": none,
    }
    for message, config in cases.items():
        refused(message, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# resuming


def test_resuming_with_another_config_names_the_key_and_both_values(stopped: Path) -> None:
    refused("head.rank = 3, not 4", EVIDENCE.change(**{"head.rank": 4}), stopped, resume=True)
    assert run_config(stopped) == EVIDENCE


def test_a_missing_or_damaged_checkpoint_is_refused_and_the_model_stays(stopped: Path) -> None:
    refused("none is not a run", EVIDENCE, stopped.parent / "none", resume=True)
    path = stopped / "last.pt"
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[:-1000], b"hello"):
        path.write_bytes(content)
        refused("last.pt cannot be read.*best model so far is in model/", EVIDENCE, stopped, resume=True)
    torch.save({"position": {"step": 1}}, path)
    refused("last.pt cannot be read", EVIDENCE, stopped, resume=True)
    path.unlink()
    refused("no checkpoint .*last.pt", EVIDENCE, stopped, resume=True)
    assert RelationModel.load(stopped).stages == ("triplets",)


def _relabelled(scenes: Dataset) -> Dataset:
    """Boxes that no relation has, so that the triplets stay."""
    changed = []
    for scene in scenes:
        labels = scene.labels.copy()
        labels[np.setdiff1d(np.arange(len(labels)), scene.relations[:, ::2])] = 0
        changed.append(replace(scene, labels=labels))
    return replace(scenes, scenes=tuple(changed))


def _moved(scenes: Dataset) -> Dataset:
    return replace(scenes, scenes=(replace(scenes[0], boxes=scenes[0].boxes * 0.99), *scenes[1:]))


@pytest.mark.parametrize("change", [_relabelled, _moved, lambda scenes: replace(scenes, scenes=scenes[:-1])])
def test_resuming_on_other_data_is_refused(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Dataset], Dataset]
) -> None:
    load = data.load_split
    monkeypatch.setattr(data, "load_split", lambda *given: change(load(*given)))
    refused("was trained on other data than this toy", EVIDENCE, stopped, resume=True)


@pytest.mark.parametrize("key", ["data.detections", "data.simulate"])
def test_resuming_with_other_proposals_is_refused_wherever_the_file_is(tmp_path: Path, key: str) -> None:
    found = detect(World(24, 0).dataset("train"))
    one, copy = (str(write_detections(tmp_path / name, found)) for name in ("one.jsonl", "copy.jsonl"))
    surer = [replace(image, scores=np.sqrt(image.scores)) for image in found]
    other = str(write_detections(tmp_path / "other.jsonl", surer))
    config = EVIDENCE.change(**{"proposals.epochs": 1})
    with pytest.raises(Interrupted), watched(SpyAt("proposals 1/1, step 1")):
        train(config.change(**{key: one}), tmp_path / "run")
    refused("other data", config.change(**{key: other}), tmp_path / "run", resume=True)
    moved = finish(config.change(**{key: copy}), tmp_path / "run", resume=True)
    assert same(moved.model.state_dict(), finish(config.change(**{key: one}), tmp_path / "again").model.state_dict())


# a full disk


def full(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_torch(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed\nmore")


@pytest.mark.parametrize(
    ("owner", "name", "act"),
    [(torch, "save", full), (torch, "save", full_for_torch), (os, "fsync", full)],
)
def test_a_full_disk_during_a_checkpoint_leaves_the_one_before_and_the_model(
    whole: Ended, stopped: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Any
) -> None:
    before = (stopped / "last.pt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, act)
        refused(r"cannot write a checkpoint .*one before is kept: free some space", EVIDENCE, stopped, resume=True)
    assert (stopped / "last.pt").read_bytes() == before
    assert not list(stopped.glob(".*.part"))
    RelationModel.load(stopped)
    assert same(train(EVIDENCE, stopped, resume=True).state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("place", ["device", "board", "start"])
def test_training_goes_on_without_log_and_curves_and_says_so_once(
    whole: Ended, stopped: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        if place == "device":  # really full
            patch.setattr("polyadic.training.run._start_board", lambda *_: open("/dev/full", "wb"))  # noqa: SIM115
        else:
            patch.setattr(f"polyadic.training.run.{'_add_scalars' if place == 'board' else '_start_board'}", full)
        with pytest.warns(PolyadicWarning, match="continues without log and curves") as notes:
            model = train(EVIDENCE, stopped, resume=True)
    assert same(model.state_dict(), whole.model.state_dict())
    assert len([note for note in notes if "without log" in str(note.message)]) == 1
    for line in (stopped / "log.jsonl").read_text().splitlines():
        json.loads(line)  # none is partial


def test_a_log_that_cannot_grow_has_no_partial_line(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    log = MetricLog(tmp_path, Checkpoint())
    log.write("step", 1, {"loss": 1.0}, stage="triplets")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 20, hard))
    try:
        with pytest.warns(PolyadicWarning, match="continues without log"):
            log.write("step", 2, {"loss": 2.0}, stage="triplets")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("step", 3, {"loss": 3.0}, stage="triplets")
    assert [json.loads(line)["total"] for line in log.path.read_text().splitlines()] == [1]


def test_a_full_disk_while_the_best_model_is_written_leaves_the_one_before(
    whole: Ended, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (stopped / "model" / "model.safetensors").read_bytes()
    replaced = os.replace

    def no_room(source: Any, target: Any) -> None:
        if str(target).endswith("model.safetensors"):
            full()
        replaced(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_room)
        patch.setattr("polyadic.training.stages.held_out_metrics", lambda *_, **__: {"loss": 1e-3, "R@50": 99.0})
        refused("cannot write the model to .*No space left", EVIDENCE, stopped, resume=True)
    assert (stopped / "model" / "model.safetensors").read_bytes() == before
    assert same(train(EVIDENCE, stopped, resume=True).state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("values", [{}, {"crops": 32}, {"crops": 32, "mirror": True}], ids=str)
def test_the_announced_size_of_the_features_is_exact(tmp_path: Path, values: dict[str, Any]) -> None:
    pixels, labels = {f"pixels.{name}": value for name, value in values.items()}, {}
    if "mirror" in values:
        labels = {"head.labels": True, "head.rank": 1, "boxes.epochs": 1}
    said = Spy()
    with watched(said):
        train(tiny(**pixels, **labels, **{"selection.epochs": 0}), tmp_path / "run")
    entries = [load_file(path) for path in (tmp_path / "features").rglob("*.safetensors")]
    numbers = sum(x.numel() for entry in entries for x in entry.values())
    assert all(x.dtype == torch.float16 for entry in entries for x in entry.values())
    (line,) = (line for line in said.seen if line.startswith("say features of"))
    size = in_bytes(len(entries) * round(2 * numbers / len(entries)))  # images times the size of one
    assert line == f"say features of {len(entries)} images: {size}; limit 500 MB"


def test_a_full_disk_during_the_cache_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, store = tiny(**{"selection.epochs": 0}), FeatureCache.store
    calls: list[str] = []

    def run_out(self: FeatureCache, key: str, tensors: Any) -> bool:
        calls.append(key)
        if len(calls) == 8:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "write_bytes", full)
                return store(self, key, tensors)
        return store(self, key, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureCache, "store", run_out)
        refused("feature cache: cannot write .*earlier entries are kept", config, tmp_path / "run")
    assert len(list((tmp_path / "features").rglob("*.safetensors"))) == 7
    assert not list((tmp_path / "features").rglob("*.part"))
    resumed = finish(config, tmp_path / "run", resume=True)
    other = finish(config, tmp_path / "other")
    assert same(resumed.result, other.result)


# pictures and annotations


def on_disk(folder: Path, change: Callable[[dict[str, Any]], None] = lambda file: None, scenes: int = 24) -> Config:
    """The drawn world in files, with another train.json."""
    write(World(scenes, 1), folder)
    path = folder / "train.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    change(file)
    path.write_text(json.dumps(file), encoding="utf-8")
    stages = {"triplets.epochs": 1, "selection.epochs": 1}
    return tiny(**stages, **{"data.dataset": "coco", "data.root": str(folder)})


@forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("gigabytes", [0.5, 0.0])
def test_an_image_that_does_not_decode_is_named(tmp_path: Path, workers: int, gigabytes: float) -> None:
    config = on_disk(tmp_path / "data").change(workers=workers, **{"cache.gigabytes": gigabytes})
    bad = tmp_path / "data" / "images" / "train_000004.png"
    bad.write_bytes(bad.read_bytes()[:200])
    refused(r"^\S*train_000004.png is not a readable image", config, tmp_path / "run")
    bad.write_bytes(b"")
    refused(r"^\S*train_000004.png is not a readable image", config, tmp_path / "run", resume=True)


def test_missing_images_are_refused_or_skipped_and_the_prior_counts_them_all(tmp_path: Path) -> None:
    config = on_disk(tmp_path / "data")
    for number in (3, 5, 8):
        (tmp_path / "data" / "images" / f"train_{number:06}.png").unlink()
    refused(r"coco fit: \d+ of 22 pictures are missing", config, tmp_path / "run")
    run = finish(config.change(**{"data.pictures": "present"}), tmp_path / "run")
    alone = finish(config.change(sources=("evidence",)), tmp_path / "alone")
    assert torch.equal(run.model.prior.counts, alone.model.prior.counts)
    assert sum("features, step" in seen for seen in run.spy.seen) < 24


def _few_boxes(file: dict[str, Any]) -> None:
    """Image 1 has one box, image 2 none, image 3 boxes and no relations, image 5 boxes without area."""
    kept = next(box["id"] for box in file["annotations"] if box["image_id"] == 1)
    wanted = {1: {kept}, 2: set[int]()}
    file["annotations"] = [x for x in file["annotations"] if x["id"] in wanted.get(x["image_id"], {x["id"]})]
    file["rel_annotations"] = [x for x in file["rel_annotations"] if x["image_id"] not in (1, 2, 3)]
    for box in file["annotations"]:
        if box["image_id"] == 5:
            box["bbox"][2:] = [0, 0]
        if box["image_id"] == 6:
            box["bbox"][3] = 0


@pytest.mark.filterwarnings("ignore::polyadic.structures.vocabulary.PolyadicWarning")
@pytest.mark.parametrize("sources", [("pixels",), ("evidence",), ("pixels", "evidence")])
def test_few_boxes_and_boxes_without_area_train_to_finite_weights(tmp_path: Path, sources: Any) -> None:
    config = on_disk(tmp_path / "data", _few_boxes).change(
        sources=sources, **{"boxes.epochs": 1, "boxes.rate": 0.01, "backbone.epochs": 1, "triplets.images": 1}
    )
    run = finish(config, tmp_path / "run")
    assert all(x.isfinite().all() for x in run.model.state_dict().values())
    assert all(math.isfinite(entry["loss"]) for entry in log_of(run.folder) if "loss" in entry)


@pytest.mark.parametrize("held_out", ["nothing", "no relations"])
def test_without_held_out_relations_the_last_epoch_is_kept(tmp_path: Path, held_out: str) -> None:
    config = on_disk(tmp_path / "data", scenes=4 if held_out == "nothing" else 24)
    if held_out == "no relations":
        file = json.loads((tmp_path / "data" / "train.json").read_text(encoding="utf-8"))
        file["rel_annotations"] = []
        (tmp_path / "data" / "validation.json").write_text(json.dumps(file), encoding="utf-8")
    stages = {f"{name}.epochs": 2 for name in ("boxes", "triplets", "selection")} | {"backbone.epochs": 2}
    run = finish(config.change(**stages), tmp_path / "run")
    epochs = [entry for entry in log_of(run.folder) if entry["event"] == "epoch"]
    assert not any("R@50" in entry or ("loss" in entry and entry["stage"] != "backbone") for entry in epochs)
    for stage, module in (("boxes", "geometry"), ("triplets", "head"), ("selection", "selector")):
        last = run.kept.epochs[stage, 2]["modules"][module]
        assert same(last, getattr(run.model, module).state_dict()), stage
        assert not same(last, run.kept.epochs[stage, 1]["modules"][module])
    assert any("nothing is held out" in seen for seen in run.spy.seen)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    from polyadic.training.run import only_one

    with (
        only_one(tmp_path),
        pytest.raises(PolyadicError, match="another process is training in it"),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):  # free again
        pass


def test_ctrl_c_waits_until_a_checkpoint_is_written() -> None:
    import signal

    from polyadic.progress import check, undisturbed

    with interruptible():
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            check()  # not yet
        with pytest.raises(Interrupted):
            check()
        with pytest.raises(KeyboardInterrupt), undisturbed():
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_sigterm_and_sighup_stop_a_run_like_ctrl_c(name: str) -> None:
    import signal

    from polyadic.progress import check

    before = signal.getsignal(getattr(signal, name))
    with interruptible():
        signal.raise_signal(getattr(signal, name))
        with pytest.raises(Interrupted):
            check()
    assert signal.getsignal(getattr(signal, name)) == before
