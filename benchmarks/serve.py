"""How quickly does the page answer, how much can it answer, and does its memory stay bounded?

    python benchmarks/serve.py --csv results/serve.csv   # 4 minutes

Starts `polyadic serve` with the pretrained model and one thread, and sends `/api/relations` as the page does. Latency
by number of boxes: of the server's computation and its CPU time (header Server-Timing) and of the whole request, the
median and the 95th percentile of 200. Beside it what a user would run instead, `RelationModel.predict` in this process,
in the same run. Then requests per second of 10 boxes at saturation with 1, 8 and 32 clients, with the share that got
503; and the server's resident memory before and after 10,000 requests with changing boxes.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyadic import Detections, RelationModel

TOKEN = "benchmark-of-the-server"
BOXES = (2, 5, 10, 20, 40)
TIMES = 200
SECONDS = 8.0


class Client:
    """A connection that stays open, as a browser's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as browsers do

    def ask(self, body: dict[str, Any]) -> tuple[int, list[float]]:
        """Send a request; return its status, and in ms the server's time, its CPU time and the whole time."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        start = time.perf_counter()
        self.connection.request("POST", "/api/relations", json.dumps(body), headers)
        response = self.connection.getresponse()
        response.read()
        whole = 1000 * (time.perf_counter() - start)
        inside = re.findall(r"dur=([\d.]+)", response.headers.get("Server-Timing", ""))
        return response.status, [*map(float, inside), whole]


def scene(n: int, rng: np.random.Generator, names: tuple[str, ...]) -> dict[str, Any]:
    """Random boxes with random names."""
    low = rng.random((n, 2)) * 400
    boxes = np.concatenate([low, low + 20 + rng.random((n, 2)) * 180], 1)
    chosen = rng.integers(0, len(names), n)
    rows = zip(boxes.tolist(), chosen.tolist(), rng.random(n).tolist(), strict=True)
    return {"size": [640, 640], "boxes": [{"box": box, "label": names[at], "score": score} for box, at, score in rows]}


def latency(port: int, model: RelationModel, rows: list[dict[str, Any]]) -> None:
    rng, client = np.random.default_rng(0), Client(port)
    names = tuple(model.vocabulary.objects)
    for n in BOXES:
        kinds: dict[str, list[float]] = {"server": [], "server, CPU": [], "request": [], "predict": []}
        for at in range(TIMES + 10):
            body = scene(n, rng, names)
            status, times = client.ask(body)
            assert status == 200
            corners = np.array([box["box"] for box in body["boxes"]])
            labels = np.array([names.index(box["label"]) for box in body["boxes"]])
            scores = np.array([box["score"] for box in body["boxes"]])
            start = time.perf_counter()
            model.predict(None, Detections("x", corners, labels, scores, (640, 640)))
            times.append(1000 * (time.perf_counter() - start))
            if at >= 10:  # warm
                for kind, value in zip(kinds, times, strict=True):
                    kinds[kind].append(value)
        for kind, values in kinds.items():
            for measure, value in (("median", np.median(values)), ("p95", np.percentile(values, 95))):
                rows.append(
                    {"what": "latency", "of": kind, "boxes": n, "measure": measure, "value": round(float(value), 2)}
                )


def throughput(port: int, names: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    for clients in (1, 8, 32):
        answered, refused = [0] * clients, [0] * clients
        end = time.perf_counter() + SECONDS

        def work(at: int, end: float = end, answered: list[int] = answered, refused: list[int] = refused) -> None:
            rng, client = np.random.default_rng(at), Client(port)
            while time.perf_counter() < end:
                status = client.ask(scene(10, rng, names))[0]
                answered[at] += status == 200
                refused[at] += status == 503
                if status == 503:
                    time.sleep(0.05)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = sum(answered) + sum(refused)
        for measure, value in (
            ("answers per second", sum(answered) / SECONDS),
            ("503, percent", 100 * sum(refused) / total),
        ):
            rows.append(
                {
                    "what": "saturation",
                    "of": f"{clients} clients",
                    "boxes": 10,
                    "measure": measure,
                    "value": round(value, 1),
                }
            )


def memory(process: int, port: int, names: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    rng, client = np.random.default_rng(1), Client(port)
    done = 0
    for goal in (0, 100, 1_000, 10_000):
        while done < goal:
            assert client.ask(scene(4, rng, names))[0] == 200
            done += 1
        status = Path(f"/proc/{process}/status").read_text()
        megabytes = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024
        rows.append(
            {"what": "memory", "of": f"{goal} requests", "boxes": 4, "measure": "MB", "value": round(megabytes, 1)}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = RelationModel.pretrained()
    environment = {**os.environ, "POLYADIC_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    code = "from polyadic.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    rows: list[dict[str, Any]] = []
    try:
        assert server.stdout is not None
        port = int(re.findall(r":(\d+)/", server.stdout.readline())[0])
        names = tuple(model.vocabulary.objects)
        latency(port, model, rows)
        throughput(port, names, rows)
        memory(server.pid, port, names, rows)
    finally:
        server.kill()
    for row in rows:
        print(*row.values(), sep="\t")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
