from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import EXPONENTS, NAMES, SOURCES, STAGES, TINY, detections, model_of, photo, rank, same
from refusals import refused
from safetensors import safe_open
from safetensors.torch import save_file

from polyadic.config.schema import Config
from polyadic.model.relation_model import RelationModel
from polyadic.prior import TripletPrior
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


@pytest.mark.parametrize("sources", SOURCES, ids="+".join)
def test_a_saved_model_predicts_the_same_elsewhere(tmp_path: Path, sources: tuple[str, ...]) -> None:
    model, given = model_of(*sources, **EXPONENTS), detections(4)
    model.save(tmp_path / "here" / "model", epoch=3)
    (tmp_path / "there").mkdir()
    shutil.move(tmp_path / "here" / "model", tmp_path / "there" / "other name")
    loaded = RelationModel.load(tmp_path / "there" / "other name")
    assert same(rank(loaded, photo(), given), rank(model, photo(), given))
    assert (loaded.stages, loaded.vocabulary, loaded.training) == (STAGES, NAMES, False)
    assert loaded.config == model.config.change(**{"data.root": ""})
    files = sorted(path.name for path in (tmp_path / "there" / "other name").iterdir())
    assert files == ["config.json", "model.safetensors", "prior.safetensors", "versions.json", "vocabulary.json"]
    assert {"torch", "timm", "python"} <= set(json.loads((tmp_path / "there/other name/versions.json").read_text()))


def test_a_model_without_a_prior_leaves_none_behind(tmp_path: Path) -> None:
    model = model_of("evidence")
    model.save(tmp_path)
    model.prior = None
    model.save(tmp_path)
    assert RelationModel.load(tmp_path).prior is None


def test_a_model_loads_onto_a_device(tmp_path: Path) -> None:
    model_of("evidence").save(tmp_path)
    loaded = RelationModel.load(tmp_path, device="meta")
    assert loaded.device.type == "meta"
    if not torch.cuda.is_available():
        with pytest.raises(PolyadicError, match=r"cannot load .* to the device cuda .*; cpu always works"):
            RelationModel.load(tmp_path, device="cuda")


def test_pixel_models_load_without_their_initial_weights(tmp_path: Path) -> None:
    model = model_of("pixels")
    model.config = model.config.change(**{"pixels.weights": str(tmp_path / "gone.pth")})
    model.save(tmp_path / "model")
    assert same(
        rank(RelationModel.load(tmp_path / "model"), photo(), detections(3)), rank(model, photo(), detections(3))
    )


def rewrite(folder: Path, dtype: torch.dtype | None = None, **changes: str | None) -> None:
    """Write the weights again with another header (None leaves an entry out), or of another type."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, Any] = {**file.metadata(), **changes}
        tensors = {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {name: text for name, text in metadata.items() if text is not None})


def damage(folder: Path, how: str) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    values = json.loads(config.read_text())
    if how.startswith("no "):
        (folder / how.removeprefix("no ")).unlink()
    elif how.startswith("half "):
        path = folder / how.removeprefix("half ")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "foreign":
        save_file({"x": torch.zeros(2)}, weights)
    elif how == "another shape":
        config.write_text(json.dumps({**values, "head": {**values["head"], "rank": 3}}))
    elif how == "unknown key":
        config.write_text(json.dumps({**values, "sed": 3}))
    elif how == "other prior":
        TripletPrior.from_triplets(torch.zeros(1, 3, dtype=torch.long), (2, 2, 2)).save(folder / "prior.safetensors")
    elif how == "other order":
        names = json.loads((folder / "vocabulary.json").read_text())
        (folder / "vocabulary.json").write_text(json.dumps({**names, "objects": names["objects"][::-1]}))
    elif how == "flipped bit":
        content = bytearray(weights.read_bytes())
        content[-3] ^= 4
        weights.write_bytes(content)
    elif how == "other stages":
        rewrite(folder, stages="[]")
    elif how == "bad stages":
        rewrite(folder, stages="3")
    elif how == "bad digests":
        rewrite(folder, digests="[1]")
    elif how == "int8":
        rewrite(folder, torch.int8)
    elif how == "bytes":
        (folder / "vocabulary.json").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no model.safetensors", "holds no saved model: model.safetensors is missing; `polyadic train`"),
        ("no vocabulary.json", "holds no saved model: vocabulary.json is missing"),
        ("half model.safetensors", "model.safetensors cannot be read: it is damaged or cut off"),
        ("foreign", "model.safetensors is not a saved model: expected polyadic.RelationModel/1, got None"),
        ("no prior.safetensors", "prior.safetensors is missing, a part of this model"),
        ("another shape", "config.json was changed after the model was saved"),
        ("other prior", "prior.safetensors was changed after the model was saved"),
        ("other order", "vocabulary.json was changed after the model was saved"),
        ("flipped bit", "model.safetensors was changed after the model was saved"),
        ("other stages", "model.safetensors was changed after the model was saved"),
        ("bad digests", "digests: "),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(tmp_path: Path, how: str, message: str) -> None:
    model_of("evidence").save(tmp_path)
    damage(tmp_path, how)
    refused(re.escape(message), lambda: RelationModel.load(tmp_path))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("another shape", "model.safetensors does not fit config.json beside it"),
        ("unknown key", "config.json: no config key sed; did you mean seed?"),
        ("other prior", "the vocabulary has sizes (4, 3, 4), the prior (2, 2, 2)"),
        ("bad stages", "model.safetensors, stages: "),
        ("int8", "must be torch.float32 or the like, got torch.int8"),
    ],
)
def test_a_damaged_model_of_an_older_version_is_refused_in_one_line(tmp_path: Path, how: str, message: str) -> None:
    model_of("evidence").save(tmp_path)
    rewrite(tmp_path, digests=None)
    damage(tmp_path, how)
    refused(re.escape(message), lambda: RelationModel.load(tmp_path))


def test_a_model_saved_before_there_were_digests_is_loaded(tmp_path: Path) -> None:
    model = model_of("evidence")
    model.save(tmp_path)
    rewrite(tmp_path, digests=None)
    assert same(rank(RelationModel.load(tmp_path), None, detections(4)), rank(model, None, detections(4)))


def test_formatting_and_line_ends_do_not_count_as_a_change(tmp_path: Path) -> None:
    model_of("evidence").save(tmp_path)
    path = tmp_path / "vocabulary.json"
    path.write_bytes(json.dumps(json.loads(path.read_text()), indent=2).replace("\n", "\r\n").encode())
    assert RelationModel.load(tmp_path).vocabulary == NAMES


def test_missing_models_and_other_vocabularies_are_refused(tmp_path: Path) -> None:
    model_of("evidence").save(tmp_path)
    other = Vocabulary(objects=NAMES.objects, predicates=("on", "by", "over"))
    prior = TripletPrior.from_triplets(torch.zeros(1, 3, dtype=torch.long), (2, 2, 2))
    config = Config().change(sources=("evidence",), **TINY)
    refused("holds no saved model: no such folder", lambda: RelationModel.load(tmp_path / "nothing"))
    refused("another vocabulary .predicate 2 is 'under' ag", lambda: RelationModel.load(tmp_path, vocabulary=other))
    refused(r"the prior has sizes \(2, 2, 2\)", lambda: RelationModel(config, NAMES, prior))


def test_a_failed_save_keeps_the_previous_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("evidence")
    model.save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    model.prior = None
    with pytest.raises(PolyadicError, match=r"cannot write the model to .*No space left"):
        model.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
