"""Any value in any field of a message to the page, and of the files that it reads: an answer or a short refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_cases import OWN, change
from hypothesis import given
from hypothesis import strategies as st
from model_cases import NAMES, model_of
from PIL import Image
from serve_cases import Served, served
from test_hostile_properties import EXAMPLES, VALUES, places, survives

from polyadic.experiments.runs import training_seconds
from polyadic.serve.answers import Answerer
from polyadic.serve.app import Page
from polyadic.serve.folder import FILE, MADE, Project
from polyadic.serve.run import RunView
from polyadic.training.run import log_entry

pytestmark = pytest.mark.usefixtures("unchecked")
BOXES = [{"box": [1, 2, 30, 40], "label": "dog", "score": 0.9}, {"box": [5, 6, 70, 50], "label": "cat", "score": 0.8}]
OPTIONS = {
    "k": 2,
    "top": 5,
    "rank": 1,
    "prior": 0.5,
    "least": 0.1,
    "order": "likely",
    "labels": "keep",
    "mirror": "drop",
}
SCENE: dict[str, Any] = {"image": "a.jpg", "size": [100, 60], "boxes": BOXES, "photo": None, "options": OPTIONS}
STATED = {"relations": [{"subject": 0, "predicate": "on", "object": 1, "probability": 0.5}]}
MESSAGES: list[tuple[str, Any]] = [
    ("/api/detect", {"name": "a", "photo": None, "example": "astronaut"}),
    ("/api/relations", SCENE),
    ("/api/ask", {**SCENE, "pair": [0, 1]}),
    ("/api/ask", {**SCENE, "pair": [0, 1], "given": {"subject": "dog", "predicate": None, "object": None}}),
    ("/api/ask", {**SCENE, "fix": {"box": 0, "label": "cup"}}),
    ("/api/export", {**SCENE, **STATED, "format": "coco"}),
    ("/api/export", {**SCENE, **STATED, "format": "svg"}),
    ("/api/folder/open", {"number": 0}),
    ("/api/folder/save", {**SCENE, **STATED, "number": 0, "done": True}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("photos")
    Image.new("RGB", (100, 60), "gray").save(folder / "a.jpg")
    opened = Project.open(folder, NAMES, 0.1)
    with opened as project, served(Page(Answerer(model_of("evidence"), None), project=project)) as running:
        yield running


@pytest.mark.parametrize(("path", "good"), MESSAGES, ids=[f"{path} {at}" for at, (path, _) in enumerate(MESSAGES)])
@EXAMPLES
@given(data=st.data())
def test_any_value_in_any_field_of_a_message(data: st.DataObject, server: Served, path: str, good: Any) -> None:
    place = data.draw(st.sampled_from(places(good)))
    value = data.draw(VALUES | st.sampled_from([0, 1, 99, 1e5, -1e5, 1e-300, "dog", "a" * 100]))
    body = json.dumps(change(good, place, value) if place else value).encode()
    status, _, content = server.send("POST", path, body)
    assert status in (200, 400, 410, 422), content
    if status != 200:
        assert len(json.loads(content)["error"]) < 600


def test_the_messages_are_good(server: Served) -> None:
    for path, good in MESSAGES:
        assert server.send("POST", path, good)[0] == 200


@EXAMPLES
@given(data=st.data())
def test_any_value_in_the_file_of_a_folder(data: st.DataObject, tmp_path: Path) -> None:
    photo = tmp_path / "a.jpg"
    if not photo.exists():
        Image.new("RGB", (100, 60), "gray").save(photo)
    draft = {"size": [100, 60], "boxes": BOXES, **STATED}
    good = {"made": MADE, **OWN, "drafts": {"b.jpg": draft}}
    place = data.draw(st.sampled_from(places(good)))
    (tmp_path / FILE).write_text(json.dumps(change(good, place, data.draw(VALUES)) if place else data.draw(VALUES)))

    def read() -> None:
        with Project.open(tmp_path, NAMES) as project:
            json.dumps(project.describe(), allow_nan=False)

    survives(read)


ENTRY = {"event": "step", "stage": "triplets", "total": 3, "loss": 0.5, "seconds": 2.0, "R@50": 20.0}


@EXAMPLES
@given(data=st.data())
def test_any_value_in_the_log_of_a_run(data: st.DataObject, tmp_path: Path) -> None:
    place = data.draw(st.sampled_from(places(ENTRY)))
    line = json.dumps(change(ENTRY, place, data.draw(VALUES)) if place else data.draw(VALUES))
    lines = [json.dumps(ENTRY), line, json.dumps({**ENTRY, "event": "epoch"}), "[" * 9999, line[: len(line) // 2]]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    view = RunView.__new__(RunView)
    view.run = type("Run", (), {"folder": tmp_path})()
    json.dumps(view.curves(), allow_nan=False)
    assert isinstance(training_seconds(tmp_path), float)
    assert log_entry(lines[3]) is None
