"""The direction of imports, and that importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "polyadic"

# A room is a module or a folder. It may import rooms of the layers before its own; rooms of one layer do not import
# each other.
LAYERS = [
    {"structures"},
    {"files", "progress", "config", "compiled", "boxes", "cp", "pretrained"},
    {"prior", "draw"},
    {"ranking", "evaluation", "io", "datasets", "detectors"},
    {"model"},
    {"training"},
    {"experiments"},
    {"engines", "serve"},
    {"cli"},
    {"__main__"},
]
# The one door that leads up: a result can draw itself. It is opened lazily.
UPWARD = {("structures/relations.py", "draw")}
LAYER = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(text: str) -> set[str]:
    """Rooms that a file imports anywhere, lazily or for type checking included."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "polyadic" else [module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("polyadic.")}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_the_layers(path: Path) -> None:
    room = room_of(path)
    assert room in LAYER, f"{room} has no layer: give it one in LAYERS"
    upward = {other for file, other in UPWARD if file == str(path.relative_to(SOURCE))}
    for other in imported_rooms(path.read_text()) - {room} - upward:
        assert LAYER[other] < LAYER[room], f"{room} must not import {other}"


def test_lazy_and_indirect_imports_are_seen() -> None:
    text = "def f():\n from polyadic.ranking.dedup import Dedup\n from polyadic import prior\n import polyadic.cp\n"
    assert imported_rooms(text) == {"ranking", "prior", "cp"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = loaded_after("import polyadic")
    assert "polyadic" in loaded
    assert not loaded & {"torch", "numpy", "numba", "jaxtyping", "safetensors"}


def test_the_distribution_needs_torch_alone() -> None:
    loaded = loaded_after("from polyadic import CPTensor, TripletPrior, rank_relations")
    assert "torch" in loaded
    assert not loaded & {"numba", "safetensors", "torchvision", "timm", "h5py"}


def test_functions_take_few_positional_arguments_and_class_names_are_unique() -> None:
    """Outside commands and kernels at most five positional arguments; no class name is defined twice."""
    names: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names.append(node.name)
            if (
                isinstance(node, ast.FunctionDef)
                and "cli" not in path.parts
                and path.name != "kernel.py"
                and "kernel" not in path.parts
            ):
                arguments = [x.arg for x in (*node.args.posonlyargs, *node.args.args) if x.arg not in ("self", "cls")]
                assert len(arguments) <= 5, f"{path}: {node.name}"
    assert [name for name in set(names) if names.count(name) > 1] == []
