"""The API as an OpenAPI document, from the messages themselves; every example is run by the tests."""

from __future__ import annotations

from typing import Any

import msgspec

import polyadic
from polyadic.serve.messages import (
    AskRequest,
    DetectRequest,
    ExportRequest,
    Message,
    OpenRequest,
    RelationsRequest,
    SaveRequest,
)

_BOXES: list[dict[str, Any]] = [
    {"box": [60, 30, 200, 300], "label": "person", "score": 0.9},
    {"box": [40, 160, 330, 420], "label": "horse", "score": 0.8},
]
_SCENE: dict[str, Any] = {"size": [400, 450], "boxes": _BOXES}
_STATED = [{"subject": 0, "predicate": "ride", "object": 1}]

Operation = tuple[str, type[Message] | None, str, list[dict[str, Any]]]  # method, message, what it does, examples

OPERATIONS: dict[str, Operation] = {
    "/api/about": ("get", None, "Names of the model, its rank and prior's exponent, class names, limits.", []),
    "/api/detect": (
        "post",
        DetectRequest,
        "Find the boxes of a photo; its id is for later requests, and for /api/photo/{photo}.",
        [{"example": "astronaut"}],
    ),
    "/api/photo/{photo}": ("get", None, "A photo that was sent, upright, as JPEG; 410 once it was dropped.", []),
    "/api/relations": (
        "post",
        RelationsRequest,
        "Who does what to whom: the record of Relations.to_json, with the most probable names of each box.",
        [_SCENE, {**_SCENE, "options": {"k": None, "top": 5, "rank": 3, "prior": 0.5, "order": "likely"}}],
    ),
    "/api/ask": (
        "post",
        AskRequest,
        "One question: about a pair of boxes, about given names, or what changes if a label is certain (fix).",
        [
            {**_SCENE, "pair": [0, 1]},
            {**_SCENE, "given": {"predicate": "ride"}},
            {**_SCENE, "fix": {"box": 1, "label": "elephant"}},
        ],
    ),
    "/api/export": (
        "post",
        ExportRequest,
        "A file of boxes and relations: COCO with rel_annotations, the JSON record of predict, SVG or PNG.",
        [{**_SCENE, "relations": _STATED, "format": name} for name in ("coco", "json", "svg", "png")],
    ),
    "/api/folder": ("get", None, "With FOLDER: its photos and how far they are.", []),
    "/api/folder/open": ("post", OpenRequest, "With FOLDER: a photo with its annotations.", [{"number": 0}]),
    "/api/folder/save": (
        "post",
        SaveRequest,
        "With FOLDER: write a photo's annotations to disk, then answer.",
        [{**_SCENE, "number": 0, "relations": _STATED, "done": True}],
    ),
    "/api/run": ("get", None, "With --run: table, curves, errors, confusions and test photos.", []),
    "/api/run/open": ("post", OpenRequest, "With --run: a test photo with predictions and hits.", [{"number": 0}]),
}
_REFUSALS = {
    "400": "not JSON, or not of this schema: `error` names the place",
    "401": "no token, or a wrong one",
    "403": "a foreign Host or Origin",
    "413": "too large",
    "415": "not application/json",
    "422": "understood, but impossible: `error` says why",
    "503": "too many requests are waiting: try again after the seconds of Retry-After",
}


def document() -> dict[str, Any]:
    """Build the OpenAPI document."""
    kinds = [kind for _, kind, _, _ in OPERATIONS.values() if kind is not None]
    unique = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schema = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, (method, kind, text, examples) in OPERATIONS.items():
        operation: dict[str, Any] = {"summary": text, "security": [{"token": []}]}
        operation["responses"] = {
            "200": {"description": "the answer"},
            **{status: {"description": words} for status, words in _REFUSALS.items()},
        }
        if kind is not None:
            cases = {str(at): {"value": value} for at, value in enumerate(examples)}
            body = {"schema": schema[kind], "examples": cases}
            operation["requestBody"] = {"required": True, "content": {"application/json": body}}
        if "{photo}" in path:
            operation["parameters"] = [
                {"name": "photo", "in": "path", "required": True, "schema": {"type": "string"}},
            ]
        paths[path] = {method: operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "polyadic serve", "version": polyadic.__version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
