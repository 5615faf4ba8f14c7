"""Golden files: what version 0.1.0 printed, wrote and learned, and how new output is compared with it.

Numbers agree within a tolerance, everything else exactly; keys that a golden record lacks may be added. With
POLYADIC_WRITE_GOLDEN=1 the tests write their golden files instead: the tests are the recipe.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "golden"
WRITE = bool(os.environ.get("POLYADIC_WRITE_GOLDEN"))


def differences(golden: Any, value: Any, rel: float = 1e-5, tiny: float = 1e-12, where: str = "") -> list[str]:
    """Where `value` is not what the golden file has."""
    if isinstance(golden, dict) and isinstance(value, dict):
        missing = [f"{where}.{key} is missing" for key in golden if key not in value]
        shared = [key for key in golden if key in value]
        return missing + [
            x for key in shared for x in differences(golden[key], value[key], rel, tiny, f"{where}.{key}")
        ]
    if isinstance(golden, list) and isinstance(value, list):
        if len(golden) != len(value):
            return [f"{where} has {len(value)} entries, not {len(golden)}"]
        pairs = enumerate(zip(golden, value, strict=True))
        return [x for at, (old, new) in pairs for x in differences(old, new, rel, tiny, f"{where}[{at}]")]
    if isinstance(golden, float) and isinstance(value, float | int) and not isinstance(value, bool):
        same = math.isclose(golden, value, rel_tol=rel, abs_tol=tiny)
    else:
        same = golden == value
    return [] if same else [f"{where} is {value!r}, not {golden!r}"]


def assert_golden(name: str, value: Any, rel: float = 1e-5, tiny: float = 1e-12) -> None:
    """Compare JSON values with golden/`name`, one entry per line."""
    path = GOLDEN / name
    if WRITE:
        rows = ",\n".join(json.dumps(row) for row in value) if isinstance(value, list) else json.dumps(value)
        path.write_text(f"[\n{rows}\n]\n" if isinstance(value, list) else f"{rows}\n")
    assert not differences(json.loads(path.read_text()), value, rel, tiny)


def draw_photo(path: Path, width: int = 240, height: int = 160) -> Path:
    """A picture of rectangles, the same everywhere."""
    image = Image.new("RGB", (width, height), (120, 170, 220))
    draw = ImageDraw.Draw(image)
    for at in range(12):
        x, y = (at * 53) % width, (at * 37) % height
        draw.rectangle((x, y, x + 20 + at, y + 30 - at), fill=(at * 20, 250 - at * 15, (at * 70) % 256))
    image.save(path)
    return path


def read_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def read_recalls(text: str) -> list[dict[str, Any]]:
    """Lines of CSV, without the protocol in words; recalls as numbers."""
    rows: list[dict[str, Any]] = [dict(row) for row in csv.DictReader(io.StringIO(text))]
    for row in rows:
        del row["protocol"]
        row |= {name: float(row[name]) for name in ("recall", "mean_recall") if row[name]}
    return rows


def read_log(run: Path) -> list[Any]:
    """The log of a run, without times."""
    times = ("time", "seconds")
    rows = read_lines((run / "log.jsonl").read_text())
    return [{name: value for name, value in row.items() if name not in times} for row in rows]


def machine() -> str:
    """What bit-identical weights depend on, beside the code."""
    model = ""
    if (info := Path("/proc/cpuinfo")).exists():
        model = next((line.partition(":")[2] for line in info.read_text().splitlines() if "model name" in line), "")
    cpu = f"{platform.machine()}{model} {torch.backends.cpu.get_cpu_capability()}"
    return f"torch {torch.__version__}, numpy {np.__version__}, {cpu}"


def weights_of(path: Path) -> dict[str, Any]:
    """A summary of a .safetensors file in which tensors have no names, so that they may be renamed."""
    tensors = [np.ascontiguousarray(x) for x in load_file(path).values()]
    digests = sorted(hashlib.sha256(f"{x.dtype} {x.shape}".encode() + x.tobytes()).hexdigest() for x in tensors)
    rows = [[list(x.shape), float(x.sum(dtype=float)), float(np.linalg.norm(x.astype(float)))] for x in tensors]
    return {
        "machine": machine(),
        "digest": hashlib.sha256("".join(digests).encode()).hexdigest(),
        "tensors": sorted(rows, key=lambda row: (len(row[0]), row)),
    }


def assert_weights(name: str, path: Path, tolerance: float = 1e-5) -> None:
    """Compare with golden/`name`: shapes, sums and norms; and all bits, on the machine that wrote the golden file."""
    value = weights_of(path)
    if WRITE:
        (GOLDEN / name).write_text(json.dumps(value).replace("[[", "\n[[") + "\n")
    golden = json.loads((GOLDEN / name).read_text())
    unmatched = list(value["tensors"])
    for shape, total, norm in golden["tensors"]:
        most = tolerance * (math.sqrt(math.prod(shape)) + norm)
        close = [x for x in unmatched if x[0] == shape and abs(x[1] - total) <= most and abs(x[2] - norm) <= most]
        assert close, f"no tensor of shape {shape} has sum {total} and norm {norm}"
        unmatched.remove(close[0])
    assert not unmatched
    if golden["machine"] == value["machine"]:
        assert value["digest"] == golden["digest"], "close to the golden weights, but not bit-identical"


def fill_weights(folder: Path) -> Path:
    """Write model.safetensors by the names and shapes in tensors.json, with numbers that are the same everywhere."""
    from safetensors.numpy import save_file

    content = json.loads((folder / "tensors.json").read_text())
    tensors = {name: _numbers(name, **entry) for name, entry in content["tensors"].items()}
    save_file(tensors, folder / "model.safetensors", content["metadata"])
    return folder


def _numbers(name: str, shape: list[int], values: list[int] | None = None) -> np.ndarray:
    if values is not None:
        return np.array(values, np.int64).reshape(shape)
    count = math.prod(shape)
    stream = hashlib.shake_256(name.encode()).digest(2 * count)
    numbers = np.frombuffer(stream, "<u2").astype(float) / 2**15 - 1  # in [-1, 1)
    if len(shape) > 1:
        numbers *= math.sqrt(3 / math.prod(shape[1:])) * (0.15 if "bbox_pred" in name else 1.0)  # boxes near anchors
    elif name.endswith(("weight", "running_var", "scale", "frequency")):
        numbers = 1 + numbers / 4
    else:
        numbers /= 4
    return numbers.reshape(shape).astype(np.float32)
