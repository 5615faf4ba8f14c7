"""Write tiny ONNX graphs without the package onnx: protocol buffers, field by field, as onnx.proto numbers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

FLOAT, INT8, INT64, STRING, BOOL = 1, 3, 7, 8, 9  # TensorProto.DataType
SQUARE = (1, 3, 64, 64)
Shapes = Mapping[str, tuple[int, Sequence[int | str]]]  # of inputs and outputs: a type and a shape each


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field: a whole number from 0, a text, or an encoded message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low = bytes([value & 127 | (128 if value > 127 else 0)])
    return low + (varint(value >> 7) if value > 127 else b"")


def tensor(name: str, values: np.ndarray) -> bytes:
    kind = {"float32": FLOAT, "int64": INT64}[values.dtype.name]
    dims = b"".join(field(1, size) for size in values.shape)
    return dims + field(2, kind) + field(8, name) + field(9, values.tobytes())


def value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(field(1, field(1 if isinstance(size, int) else 2, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, dims)))


def node(kind: str, inputs: Sequence[str], output: str, **numbers: int) -> bytes:
    attributes = b"".join(field(5, field(1, name) + field(3, n) + field(20, 2)) for name, n in numbers.items())
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind) + attributes


def graph(
    nodes: Sequence[bytes],
    inputs: Shapes,
    outputs: Shapes,
    constants: Mapping[str, np.ndarray],
) -> bytes:
    """Encode a model."""
    parts = [
        *(field(1, entry) for entry in nodes),
        field(2, "tiny"),
        *(field(5, tensor(name, array)) for name, array in constants.items()),
        *(field(11, value(name, *of)) for name, of in inputs.items()),
        *(field(12, value(name, *of)) for name, of in outputs.items()),
    ]
    return field(1, 8) + field(7, b"".join(parts)) + field(8, field(1, "") + field(2, 13))


def yolox(output: np.ndarray, shape: Sequence[int | str] = SQUARE, kind: int = FLOAT, cast: int = 0) -> bytes:
    """Encode a network that returns the same array for every image, `cast` to another type."""
    nodes = [node("Cast", ["c"], "output", to=cast) if cast else node("Identity", ["c"], "output")]
    of = cast or {"float32": FLOAT, "int64": INT64}[output.dtype.name]
    return graph(nodes, {"images": (kind, shape)}, {"output": (of, output.shape)}, {"c": output})


def write_detr(
    path: Path,
    seen: Sequence[tuple[Sequence[float], int, float]],
    *,
    batch: int | str = "N",
    sides: tuple[int | str, int | str] = (48, 64),
    outputs: Sequence[str] = ("labels", "boxes", "scores"),
) -> Path:
    """Write a detector of the DETR family that sees the same boxes (as shares of the photo), labels and scores in all.

    Scores are multiplied by the least red of all pixels, so a photo that is all red, and not padded, keeps them.
    """
    n = len(seen)
    constants: dict[str, np.ndarray] = {
        "parts": np.array([box for box, _, _ in seen], np.float32).reshape(1, n, 4),
        "classes": np.array([[label for _, label, _ in seen]], np.int64).reshape(1, n),
        "sure": np.array([[score for _, _, score in seen]], np.float32).reshape(1, n),
        "first": np.array(0, np.int64),
    }
    nodes = [
        node("Identity", ["classes"], outputs[0]),
        node("Cast", ["orig_target_sizes"], "frame", to=FLOAT),
        node("Concat", ["frame", "frame"], "frames", axis=1),
        node("Mul", ["parts", "frames"], outputs[1]),
        node("Gather", ["images", "first"], "red", axis=1),
        node("ReduceMin", ["red"], "least", keepdims=0),
        node("Mul", ["sure", "least"], outputs[2]),
    ]
    inputs: Shapes = {"images": (FLOAT, [batch, 3, *sides]), "orig_target_sizes": (INT64, ["N", 2])}
    shapes = {outputs[0]: (INT64, [1, n]), outputs[1]: (FLOAT, [1, n, 4]), outputs[2]: (FLOAT, [1, n])}
    path.write_bytes(graph(nodes, inputs, shapes, constants))
    return path


def detr(
    labels: np.ndarray, boxes: np.ndarray, scores: np.ndarray, sizes: int = INT64, shape: Sequence[int | str] = SQUARE
) -> bytes:
    """Encode a network with the DETR family's names that returns the same arrays for every image."""
    constants = {"l": labels, "b": boxes, "s": scores}
    outputs = ("labels", "boxes", "scores")
    nodes = [node("Identity", [name], output) for name, output in zip(constants, outputs, strict=True)]
    of = {
        output: ({"float32": FLOAT, "int64": INT64}[array.dtype.name], array.shape)
        for output, array in zip(outputs, constants.values(), strict=True)
    }
    return graph(nodes, {"images": (FLOAT, shape), "orig_target_sizes": (sizes, [1, 2])}, of, constants)
