"""The server: its answers are those of the Python API, and hostile clients get a short refusal."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serve_cases import ROOT, Served, served

from polyadic import Detections, RelationModel, load_dataset
from polyadic.model.answers import AnswerOptions, answer
from polyadic.serve import guard
from polyadic.serve.answers import Answerer
from polyadic.serve.app import Page
from polyadic.serve.folder import Project
from polyadic.serve.openapi import OPERATIONS, document

BOXES = [
    {"box": [20, 14, 363, 512], "label": "person", "score": 0.9},
    {"box": [20, 205, 363, 512], "label": "jacket", "score": 0.8},
    {"box": [278, 344, 512, 512], "label": "helmet", "score": 0.7},
]
SCENE: dict[str, Any] = {"size": [512, 512], "boxes": BOXES}


@pytest.fixture(scope="module")
def model() -> RelationModel:
    return RelationModel.pretrained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    Image.new("RGB", (400, 450), "gray").save(folder / "a.jpg")
    (folder / "b.jpg").write_bytes(b"no photo")
    return folder


@pytest.fixture(scope="module")
def server(model: RelationModel, folder: Path) -> Iterator[Served]:
    opened = Project.open(folder, model.vocabulary, 0.1)
    with opened as project, served(Page(Answerer(model, None), project=project)) as running:
        yield running


@pytest.fixture(scope="module")
def detections(model: RelationModel) -> Detections:
    names = [str(box["label"]) for box in BOXES]
    boxes, scores = [box["box"] for box in BOXES], [box["score"] for box in BOXES]
    return Detections.from_arrays(boxes, names, scores, vocabulary=model.vocabulary, size=(512, 512))


# ---- answers


def test_relations_are_those_of_predict(server: Served, model: RelationModel, detections: Detections) -> None:
    ours = server.post("/api/relations", {**SCENE, "options": {"top": 5, "k": 2}})
    expected = model.predict(None, detections, top=5, k=2).to_dict()
    assert [x["predicate"] for x in ours["relations"]] == [x["predicate"] for x in expected["relations"]]
    for mine, other in zip(ours["relations"], expected["relations"], strict=True):
        assert mine["probability"] == pytest.approx(other["probability"])
        assert mine["parts"] == pytest.approx(other["parts"])
    label = model.score(None, detections).label_probability()
    assert ours["boxes"][2]["names"][0]["probability"] == pytest.approx(label[2].max())


def test_boxes_by_hand_are_answered_by_the_model_of_given_boxes() -> None:
    answerer = Answerer.open()
    content = (ROOT / "examples" / "astronaut.jpg").read_bytes()
    with served(Page(answerer)) as server:
        found = server.post("/api/detect", photo(content, "a.jpg"))
        scene = {"size": found["size"], "photo": found["photo"]}

        def ask(boxes: list[dict[str, Any]]) -> tuple[str, list[tuple[int, str, int, float]]]:
            record = server.post("/api/relations", {**scene, "boxes": boxes})
            assert len(record["boxes"]) == len(boxes)
            rows = [
                (x["subject"]["box"], x["predicate"], x["object"]["box"], x["probability"]) for x in record["relations"]
            ]
            return record["model"], rows

        boxes = found["boxes"]
        model, whole = ask(boxes)
        opened = answerer.shelf.get(found["photo"])
        assert opened.found is not None
        assert model == "vrd-photos"
        assert len(opened.found) > len(boxes)  # weak ones are evidence, but not shown
        moved = [{**boxes[0], "box": [x + 0.1 for x in boxes[0]["box"]]}, *boxes[1:]]
        model, changed = ask(moved)
        shown = opened.found.take(np.array(opened.rows))
        expected = RelationModel.pretrained("vrd-photos").predict(None, shown)
        assert model == "vrd-photos"
        assert changed != whole
        assert [x[:3] for x in changed] == [(x.pair[0], x.names[1], x.pair[1]) for x in expected]
        assert [x[3] for x in changed] == pytest.approx([x.probability for x in expected], rel=0.02)
        mine = [{"box": box["box"], "label": box["label"]} for box in boxes]
        assert ask([mine[0], *boxes[1:]])[0] == "vrd-photos"
        model, hand = ask(mine)
        assert model == "vrd-boxes"
        assert hand == ask([{**box, "score": 1.0} for box in boxes])[1]
        for pair in ([0, 1], [len(boxes) - 1, 0]):  # numbers are those of the page, also among hidden boxes
            asked = server.post("/api/ask", {**scene, "boxes": boxes, "pair": pair})
            assert [asked["subject"], asked["object"]] == [boxes[at]["label"] for at in pair]
        fixed = server.post("/api/ask", {**scene, "boxes": boxes, "fix": {"box": len(boxes) - 1, "label": "dog"}})
        assert fixed["boxes"][-1]["names"][0]["name"] == "dog"
        answerer.shelf.photos.clear()
        assert server.error("/api/relations", {**scene, "boxes": boxes})[0] == 410


def test_rank_and_prior_change_what_is_answered(server: Served, model: RelationModel, detections: Detections) -> None:
    ours = server.post("/api/relations", {**SCENE, "options": {"rank": 2, "prior": 0.7, "order": "likely", "top": 3}})
    from dataclasses import replace

    from polyadic.experiments.table1 import with_config

    scored = with_config(model, {"ranking.prior": 0.7}).score(None, detections)
    scored = replace(scored, kept=tuple(replace(x, cp=x.cp.heaviest(2)) for x in scored.blocks()))
    expected = answer(scored, AnswerOptions(order="likely", top=3))
    assert [x["probability"] for x in ours["relations"]] == pytest.approx([x.probability for x in expected])
    plain = server.post("/api/relations", {**SCENE, "options": {"order": "likely", "top": 3}})
    assert plain["relations"][0]["probability"] != pytest.approx(ours["relations"][0]["probability"], rel=1e-3)
    assert model.config.ranking.prior == 0.15  # the model itself is as it was


def test_a_pair_has_its_conditional_and_its_components(
    server: Served, model: RelationModel, detections: Detections
) -> None:
    ours = server.post("/api/ask", {**SCENE, "pair": [0, 1]})
    expected = model.score(None, detections).query(subject="person", object="jacket", pair=(0, 1))
    assert sum(x["probability"] for x in ours["predicates"]) == pytest.approx(1)
    assert [x["name"] for x in ours["predicates"]] == [x.names[1] for x in expected]
    assert [x["probability"] for x in ours["predicates"]] == pytest.approx([x.probability for x in expected])
    weights = [x["weight"] for x in ours["components"]]
    assert len(weights) == model.config.head.rank
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-5)


def test_a_certain_label_moves_the_rest_exactly(server: Served, model: RelationModel, detections: Detections) -> None:
    """P(rest | label) of each pair is the dense joint, sliced and renormalised."""
    ours = server.post("/api/ask", {**SCENE, "fix": {"box": 1, "label": "shirt"}, "options": {"prior": 0, "k": 1}})
    shirt = model.vocabulary.objects.index("shirt")
    scored = model.score(None, detections)
    (block,) = scored.blocks()
    for relation in ours["relations"]:
        pair = (relation["subject"]["box"], relation["object"]["box"])
        row = scored.pairs.tolist().index(list(pair))
        dense = block.cp[row].dense().double().numpy()
        triplet = model.vocabulary.encode(
            [relation["subject"]["name"], relation["predicate"], relation["object"]["name"]]
        )
        where = [slice(None)] * 3
        for column, box in ((0, pair[0]), (2, pair[1])):
            if box == 1:
                where[column] = slice(shirt, shirt + 1)
                assert triplet[column] == shirt
        expected = dense[triplet] / dense[tuple(where)].sum()
        assert relation["parts"]["psi_c"] == pytest.approx(expected, rel=1e-4)
    assert ours["boxes"][1]["names"][0] == {"name": "shirt", "probability": pytest.approx(1)}


def test_boxes_outside_empty_and_unnamed_are_answered(server: Served) -> None:
    boxes = [
        {"box": [-50, -50, 900, 900]},
        {"box": [600, 600, 700, 700], "label": "no such name"},
        {"box": [5, 9, 5, 2]},
    ]
    assert len(server.post("/api/relations", {"size": [512, 512], "boxes": boxes})["boxes"]) == 3
    assert server.post("/api/relations", {"size": [512, 512], "boxes": []})["relations"] == []
    assert server.post("/api/relations", {"size": [512, 512], "boxes": boxes[:1]})["relations"] == []


def test_ten_boxes_take_less_than_100_ms(server: Served, model: RelationModel) -> None:
    corners = np.random.default_rng(0).random((10, 2)) * 300
    boxes = [
        {"box": [x, y, x + 150, y + 150], "label": model.vocabulary.objects[at]}
        for at, (x, y) in enumerate(corners.tolist())
    ]
    times = []
    for _ in range(7):
        status, headers, _ = server.send("POST", "/api/relations", {"size": [512, 512], "boxes": boxes})
        assert status == 200
        times.append(float(headers["server-timing"].split("cpu;dur=")[1]))
    assert np.median(times) < 100  # of this thread: other programs may be busy


def test_small_answers_are_sent_without_delay(server: Served) -> None:
    """A second packet that waits for the first one's acknowledgement would cost 40 ms per request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        connection.request("GET", "/api/photo/none", headers={"Authorization": f"Bearer {server.token}"})
        connection.getresponse().read()
        times.append(time.perf_counter() - start)
    connection.close()
    assert min(times[2:]) < 0.03


# ---- the API as documented


def test_every_route_is_documented_and_every_example_runs(server: Served) -> None:
    described = server.get("/api/openapi.json")
    assert described == json.loads(json.dumps(document()))
    for path, (method, _, text, examples) in OPERATIONS.items():
        assert text
        assert described["paths"][path][method]["responses"]["200"]
        if path.startswith("/api/run") or "{" in path:
            continue
        if method == "get":
            server.get(path)
        for example in examples:
            status, _, content = server.send("POST", path, example)
            assert status == 200, (path, content)
            assert content
    markdown = (ROOT / "docs" / "serve.md").read_text()
    assert all(f"`{path}`" in markdown for path in OPERATIONS)


def test_the_saved_folder_is_a_dataset(server: Served, folder: Path) -> None:
    save = OPERATIONS["/api/folder/save"][3][0]
    assert server.post("/api/folder/save", save) == {"state": "done"}
    (scene,) = load_dataset("coco", folder)
    assert (scene.name, scene.size, len(scene.relations)) == ("a.jpg", (400, 450), 1)
    opened = server.post("/api/folder/open", {"number": 0})
    assert [x["box"] for x in opened["boxes"]] == [x["box"] for x in save["boxes"]]
    assert opened["relations"][0]["predicate"] == "ride"
    unnamed = {**save, "boxes": [save["boxes"][0], {"box": [1, 2, 30, 40]}]}
    assert server.error("/api/folder/save", unnamed) == (
        422,
        "box 2 has no name: name it or delete it, then the photo is done",
    )
    assert server.post("/api/folder/save", {**unnamed, "done": False}) == {"state": "draft"}
    assert len(load_dataset("coco", folder)) == 0  # a draft is not trained on
    assert [x["state"] for x in server.get("/api/folder")["photos"]] == ["draft", "todo"]
    status, text = server.error("/api/folder/open", {"number": 1})
    assert (status, text) == (422, "b.jpg is not a readable image (unknown format)")
    for number in (2, 10**9):
        assert server.error("/api/folder/open", {"number": number})[0] in (400, 422)


def test_a_full_disk_is_reported_and_nothing_is_lost(
    server: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = OPERATIONS["/api/folder/save"][3][0]
    server.post("/api/folder/save", save)
    before = (folder / "train.json").read_bytes()

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        status, text = server.error("/api/folder/save", {**save, "relations": []})
    assert (status, "No space left" in text) == (422, True)
    assert (folder / "train.json").read_bytes() == before
    assert server.post("/api/folder/open", {"number": 0})["relations"]


# ---- who may ask


def refusal(server: Served, path: str = "/api/relations", **headers: str) -> int:
    return server.send("POST", path, SCENE, **headers)[0]


def test_only_our_host_origin_token_and_content_type_are_answered(server: Served) -> None:
    ours = f"http://127.0.0.1:{server.port}"
    assert refusal(server, origin=ours) == 200
    for host in (f"localhost:{server.port}", f"[::1]:{server.port}"):
        assert refusal(server, host=host) == 200
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"192.168.1.5:{server.port}",
    ):
        assert refusal(server, host=host) == 403
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{server.port}", f"{ours}.evil.example"):
        assert refusal(server, origin=origin) == 403
    assert refusal(server, sec_fetch_site="cross-site") == 403
    for token in ("", "Bearer ", "Bearer wrong", f"Basic {server.token}"):
        assert refusal(server, authorization=token) == (401 if server.token not in token or "Basic" in token else 200)
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert refusal(server, content_type=kind) == 415
    assert refusal(server, content_type="application/json; charset=utf-8") == 200
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert server.send(method, "/api/about")[0] == 405


def test_the_page_itself_needs_the_token_and_has_a_strict_policy(server: Served) -> None:
    status, _, content = server.send("GET", "/", authorization="")
    assert (status, b"polyadic serve" in content) == (401, True)
    assert server.send("GET", "/?token=wrong")[0] == 401
    status, headers, _ = server.send("GET", f"/?token={server.token}", authorization="")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    for path in ("/api/about", "/api/openapi.json", "/api/photo/x", "/api/folder"):
        assert server.send("GET", path, authorization="")[0] == 401


def test_no_path_of_the_machine_is_readable(server: Served, folder: Path) -> None:
    for path in (
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/config/schema.py",
        "/static//etc/passwd",
        "/../../../../etc/passwd",
        "//etc/passwd",
        "/static/astronaut.jpg/../../guard.py",
        "/api/photo/..%2f..%2fetc%2fpasswd",
        "/api/photo/%00",
        f"{folder}/a.jpg",
    ):
        status, _, content = server.send("GET", path)
        assert status in (404, 410), path
        assert len(content) < 200
    everything = json.dumps([server.get("/api/about"), server.get("/api/folder")])
    assert str(folder) not in everything
    assert str(ROOT) not in everything


def test_nothing_of_the_page_builds_markup_or_fetches_from_elsewhere() -> None:
    folder = ROOT / "src" / "polyadic" / "serve" / "static"
    names = list(folder.glob("*.js"))
    assert len(names) >= 10
    for path in [*names, *folder.glob("*.html"), *folder.glob("*.css")]:
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "<style",
            ' style="',
        ):
            assert word not in text, (path.name, word)
        links = [line for line in text.splitlines() if "://" in line and "http://www.w3.org/2000/svg" not in line]
        assert links == [], path.name
        assert path.suffix != ".js" or len(text.splitlines()) < 400


# ---- hostile photos and messages


def photo(content: bytes, name: str = "x.png") -> dict[str, str]:
    return {"name": name, "photo": base64.b64encode(content).decode()}


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size, with hardly any pixels: a decompression bomb."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(10_000_000), 9))
        + chunk(b"IEND", b"")
    )


def test_hostile_photos_are_refused_in_one_line(server: Served) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG")
    for content, fragment in [
        (png_header(50_000, 50_000), "more than 64,000,000"),
        (svg, "not a readable image"),
        (eps, "not a readable image"),
        (b"", "not a readable image"),
        (b"GIF89a", "not a readable image"),
        (buffer.getvalue()[:300], "not a readable image"),
        (b"\x00" * 1000, "not a readable image"),
    ]:
        status, text = server.error("/api/detect", photo(content))
        assert (status, fragment in text) == (422, True), text
        assert "/" not in text
    name = "<img src=x onerror=alert(1)>.png"
    assert server.error("/api/detect", photo(b"x", name)) == (422, f"{name} is not a readable image (unknown format)")
    assert server.error("/api/detect", {"photo": "no base64!"})[0] == 400
    assert server.error("/api/detect", {})[0] == 422


@pytest.mark.parametrize(
    "change",
    [
        {"boxes": [{"box": [0, 0, 1e300, 1]}]},
        {"boxes": [{"box": [0, 0, 1]}]},
        {"boxes": [{"box": ["0", 0, 1, 1]}]},
        {"boxes": [{"box": [0, 0, 5, 5], "score": 2}]},
        {"boxes": [{"box": [0, 0, 5, 5], "label": "x" * 101}]},
        {"boxes": [{"box": [0, 0, 5, 5], "path": "/etc/passwd"}]},
        {"boxes": BOXES * 40},
        {"size": [0, 5]},
        {"size": [1e9, 5]},
        {"options": {"top": 10**9}},
        {"options": {"prior": -1}},
        {"options": {"rank": 0}},
        {"options": {"order": "<script>"}},
        {"unknown": 1},
        {"image": "x" * 201},
        {"photo": "../" * 40},
    ],
)
def test_a_message_out_of_bounds_is_refused(server: Served, change: dict[str, Any]) -> None:
    status, text = server.error("/api/relations", {**SCENE, **change})
    assert status == 400
    assert "$" in text or "unknown field" in text


def test_bytes_that_are_no_message_are_refused(server: Served) -> None:
    for content in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"size": [NaN, 5], "boxes": []}', b"null", b'"x"'):
        assert server.error("/api/relations", content)[0] == 400
    assert server.send("POST", "/api/relations", b"x" * (guard.SMALL + 1))[0] == 413
    assert server.send("POST", "/api/relations", b"{}", content_length="99999999999")[0] == 413
    assert server.error("/api/ask", SCENE)[0] == 422
    for pair in ([0, 0], [0, 7]):
        assert server.error("/api/ask", {**SCENE, "pair": pair})[0] == 422
    for fix in ({"box": 9, "label": "dog"}, {"box": 0, "label": "<b>"}):
        assert server.error("/api/ask", {**SCENE, "fix": fix})[0] == 422
    narrow = {"size": [100_000, 1], "boxes": [], "format": "png"}
    assert "too narrow" in server.error("/api/export", narrow)[1]
    self_relation = {**SCENE, "format": "json", "relations": [{"subject": 1, "predicate": "on", "object": 1}]}
    assert "two different boxes" in server.error("/api/export", self_relation)[1]
    beyond = {**SCENE, "format": "coco", "relations": [{"subject": 1, "predicate": "on", "object": 9}]}
    assert server.error("/api/export", beyond)[0] == 422


def test_names_with_markup_are_escaped_in_pictures(server: Served) -> None:
    evil = '"><script>alert(1)</script>&'
    boxes = [{**BOXES[0], "label": evil}, BOXES[1]]
    body = {"image": evil, "size": [512, 512], "boxes": boxes, "format": "svg"}
    stated = [{"subject": 0, "predicate": "<i>on</i>", "object": 1}]
    status, headers, content = server.send("POST", "/api/export", {**body, "relations": stated})
    assert status == 200
    assert b"<script" not in content
    assert b"<i>" not in content
    assert headers["content-disposition"] == "attachment"


# ---- load


def test_100_parallel_clients_get_answers_or_503(server: Served) -> None:
    statuses: Counter[int] = Counter()

    def ask() -> None:
        statuses[server.send("POST", "/api/relations", SCENE)[0]] += 1

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(statuses.values()) == 100
    assert set(statuses) <= {200, 503}
    assert statuses[200] >= 10
    assert refusal(server) == 200  # it still answers


def test_a_full_queue_is_503_with_retry_after(model: RelationModel) -> None:
    page = Page(Answerer(model, None))
    release = threading.Event()
    page.worker.start(release.wait)
    with served(page) as server:
        threads = [threading.Thread(target=refusal, args=(server,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 10
        while page.worker.waiting() < 16 and time.monotonic() < end:
            time.sleep(0.01)
        status, headers, content = server.send("POST", "/api/relations", SCENE)
        release.set()
        for thread in threads:
            thread.join(30)
    assert (status, headers["retry-after"]) == (503, "1")
    assert "busy" in json.loads(content)["error"]


def test_slow_clients_are_cut_off_and_block_nobody(model: RelationModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyadic.serve import app

    monkeypatch.setattr(guard, "SLOW", 0.6)
    monkeypatch.setattr(app, "SLOW", 0.6)
    with served(Page(Answerer(model, None))) as server:
        head = f"POST /api/relations HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        slow_head = socket.create_connection(("127.0.0.1", server.port))
        slow_head.sendall(head.encode())  # never complete
        slow_body = socket.create_connection(("127.0.0.1", server.port))
        rest = (
            f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{{"
        )
        slow_body.sendall((head + rest).encode())
        assert refusal(server) == 200  # others are served meanwhile
        for connection, expected in ((slow_head, b""), (slow_body, b"408")):
            connection.settimeout(10)
            received = connection.recv(4000)
            assert expected in received
            connection.close()


def test_a_client_that_leaves_costs_nothing(model: RelationModel) -> None:
    """A request whose client has gone before its turn is not computed."""
    computed = []

    class Counting(Answerer):
        def relations(self, request: Any) -> Any:
            computed.append(request.image)
            return super().relations(request)

    page = Page(Counting(model, None))
    release = threading.Event()
    page.worker.start(release.wait)
    with served(page) as server:
        body = json.dumps({**SCENE, "image": "gone"}).encode()
        head = (
            f"POST /api/relations HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(head.encode() + body)
        while not page.worker.waiting():
            time.sleep(0.01)
        connection.close()
        time.sleep(0.3)
        release.set()
        assert refusal(server) == 200
    assert "gone" not in computed


# ---- public hosts


def test_a_public_server_answers_to_addresses_but_not_to_foreign_names() -> None:
    public = guard.Guard(lambda *x: None, "t" * 20, 80, public=True)  # type: ignore[arg-type]
    assert public._is_ours("192.168.1.5:80")
    assert public._is_ours("[fe80::1]:80")
    assert public._is_ours(f"{socket.gethostname()}:80")
    assert not public._is_ours("evil.example:80")
    assert not public._is_ours("192.168.1.5:81")


# ---- the command


def test_a_port_in_use_a_short_token_and_a_missing_extra_are_one_line(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another --port" in command("serve", "--no-browser", "--port", port).message
    monkeypatch.setenv("POLYADIC_TOKEN", "short")
    assert "at least 16" in command("serve", "--no-browser", "--port", "0").message
    monkeypatch.setattr("polyadic.cli.serve.find_spec", lambda name: None)
    assert "pip install 'polyadic[serve]'" in command("serve", "--no-browser").message
