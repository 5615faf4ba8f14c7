"""Read and write files: what may be replaced, atomic writes, locks, one-line errors for damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


WEIGHTS = "model.safetensors"
LOCK_FILE = ".lock"  # in folders
MARK = "polyadic"  # in our pictures: the text Software of a PNG, a comment of an SVG
_RECORD = b'{"image": '  # the start of a record of `polyadic predict`
_LONGEST = 1 << 26  # bytes that are read of a first line, or of a JSON file

Kind = Literal["predictions", "records", "drawing", "results"]


Identities = frozenset[str | tuple[int, int]]


def identify(paths: Iterable[Path | None]) -> Identities:
    """Collect what identifies files and folders under any name: real path, device and inode. None are left out."""
    found: set[str | tuple[int, int]] = set()
    for path in paths:
        if path is not None:
            found.add(os.path.realpath(path.expanduser()))
            with suppress(OSError):
                status = path.expanduser().stat()
                found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def check_output(
    path: Path, kind: Kind, *, option: str = "", inputs: Identities = frozenset(), replace: bool = False
) -> Path:
    """Check that a file may be written: it is new, or `replace` and one of ours; and it is never an input.

    Args:
        path: The file.
        kind: What will be written; only a file of the same kind is replaced.
        option: The option that names it, for errors.
        inputs: What is read.
        replace: Whether an existing file may be replaced.
    """
    check_place(path, option=option, inputs=inputs)
    name = f"{option}: {path}" if option else str(path)
    if path.exists() and path.stat().st_size:
        if not replace:
            raise PolyadicError(
                f"{name} exists; choose another name, or {'--overwrite' if option else 'overwrite=True'}"
            )
        if not is_ours(path, kind):
            raise PolyadicError(f"{name} was not written by polyadic ({kind}), so it is not replaced: move it")
    return path


def check_place(path: Path, *, option: str = "", inputs: Identities = frozenset()) -> None:
    """Check that a path is, or can be, a file in an existing folder, and is not an input."""
    before = f"{option}: " if option else ""
    if path.is_dir():
        raise PolyadicError(f"{before}{path} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise PolyadicError(f"{before}{path} is not a regular file; choose another name")
    if not path.parent.is_dir():
        raise PolyadicError(f"{before}no folder {path.parent} to write {path.name} in")
    if identify([path]) & inputs:
        raise PolyadicError(f"{before}{path} is one of the inputs: choose another name")


def is_ours(path: Path, kind: Kind) -> bool:
    """Recognise a file that we wrote by its content."""
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(0)
        if kind == "drawing":
            return f"Software\0{MARK}".encode() in head or f"<!-- {MARK} -->".encode() in head
        if path.suffix == ".csv":
            return head.startswith(b"what,")
        if kind == "records" and path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            return b"polyadic detections" in file.read(min(length, _LONGEST))
        line = file.read(_LONGEST) if kind == "results" else file.readline(_LONGEST)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return kind == "predictions" and line[-1:] != b"\n" and line.startswith(_RECORD)  # truncated
    key = {"predictions": "made", "records": "image"}.get(kind, "versions")
    return isinstance(record, dict) and key in record


@contextmanager
def lock(path: Path, busy: str) -> Iterator[None]:
    """Lock a file, which is created if need be; `busy` is the error if another process holds the lock.

    The system drops the lock when the process ends; without `fcntl` there is none.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise PolyadicError(f"cannot write to {path} ({error.strerror})") from error
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PolyadicError(busy) from None
        except (ImportError, OSError):  # a system or a file system without locks
            pass
        if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            raise PolyadicError(busy)  # who held the lock has removed the file, or moved it
        yield


@contextmanager
def lock_folder(folder: Path, busy: str) -> Iterator[None]:
    """Lock a folder by a file in it. The folder is created if need be, and removed if nothing else gets into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolyadicError(f"cannot write to {folder} ({error.strerror})") from error
    with lock(folder / LOCK_FILE, busy):
        try:
            yield
        finally:
            with suppress(OSError):  # it may have been moved
                if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                    shutil.rmtree(folder)


PARTS = ("config.json", "vocabulary.json")  # beside the weights


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it gets its name at the end, and is removed on an error.

    Readers and a crash see the old file or the new one, never a part of it.
    """
    name = path.name if len(os.fsencode(path.name)) <= 200 else path.name[:50]  # names have 255 bytes
    part = path.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        yield part
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)  # safetensors creates files for their owner only
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `folder` to fill; it gets its name at the end. Refuse one that holds something."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise PolyadicError(f"{folder} is not empty, and nothing in it is overwritten; choose another folder")
        part.mkdir(parents=True)
        yield part
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    except OSError as error:
        raise PolyadicError(f"cannot write to {folder} ({error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write text atomically."""
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def write_weights(
    folder: Path, weights: dict[str, Tensor], metadata: dict[str, str], parts: Sequence[str] = PARTS
) -> None:
    """Write the file `WEIGHTS` of a folder atomically; its header has digests of its content and of `parts`."""
    from safetensors.torch import save_file

    tensors = {name: x.detach().cpu().contiguous() for name, x in weights.items()}
    digests = {WEIGHTS: _digest(tensors, metadata), **{part: _digest_of(folder / part) for part in parts}}
    with atomic_write(folder / WEIGHTS) as part:
        save_file(tensors, part, metadata | {"digests": json.dumps(digests)})


def write_about(folder: Path, config: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Write what belongs beside the weights: config, class names, versions."""
    hide_paths(config)
    write_text(folder / "config.json", json.dumps(config, indent=1))
    write_text(folder / "vocabulary.json", vocabulary.to_json())
    write_text(folder / "versions.json", json.dumps(versions(), indent=1))


def is_model(folder: Path) -> bool:
    """Whether a folder is meant to hold a saved model or a run, even one that lacks something."""
    places = (folder / WEIGHTS, folder / "vocabulary.json", folder / "model" / WEIGHTS, folder / "last.pt")
    return any(place.is_file() for place in places)


def find_model(folder: Path, maker: str) -> Path:
    """Find the folder of a saved model, or of a run's best one; `maker` names the command that creates one."""
    folder = folder.expanduser()
    if not (folder / WEIGHTS).exists() and (folder / "model" / WEIGHTS).exists():
        folder = folder / "model"  # a training run
    missing = [name for name in (WEIGHTS, *PARTS) if not (folder / name).is_file()]
    if missing:
        what = "no such folder" if not folder.is_dir() else f"{missing[0]} is missing"
        raise PolyadicError(f"{folder} holds no saved model: {what}; {maker} make one")
    return folder


def read_vocabulary(folder: Path, expected: Vocabulary | None) -> Vocabulary:
    """Read the vocabulary of a saved model, which must be the expected one."""
    try:
        names = Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolyadicError(f"{folder / 'vocabulary.json'} cannot be read: {error}") from error
    difference = names.difference(expected) if expected is not None else None
    if difference:
        raise PolyadicError(f"{folder} was trained with another vocabulary ({difference}); train again on this dataset")
    return names


def read_weights(folder: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str], set[str] | None]:
    """Read tensors and metadata of `WEIGHTS`, which must be of this format and fit the files beside it.

    Also return the parts that were saved with it; None for a model saved before there were digests.
    """
    path = folder / WEIGHTS
    tensors, metadata = _read_tensors(path)
    if metadata.get("format") != kind:
        raise PolyadicError(f"{path} is not a saved model: expected {kind}, got {metadata.get('format')}")
    text = metadata.pop("digests", None)
    if text is None:
        if any(WEIGHTS in value for name, value in metadata.items() if name != "about"):  # digests under a damaged key
            raise PolyadicError(f"{path} is damaged: its header has no digests; copy it again")
        return tensors, metadata, None
    digests = parse_json(text.encode(), f"{path}, digests", dict[str, str])
    for part, expected in digests.items():
        if not (folder / part).is_file():
            raise PolyadicError(f"{folder}: {part} is missing, a part of this model; copy it from where it was saved")
        if expected != (_digest(tensors, metadata) if part == WEIGHTS else _digest_of(folder / part)):
            raise PolyadicError(
                f"{folder / part} was changed after the model was saved, or is of another model; copy it again"
            )
    return tensors, metadata, set(digests)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PolyadicError(f"{path} cannot be read: it is damaged or cut off ({error})") from error


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Compute the SHA-256 of names, types, shapes and numbers, whatever their order in a file."""
    import torch

    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {list(x.shape)} ".encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest_of(path: Path) -> str:
    """Compute the SHA-256 of a part's content: of JSON its values, whatever the spaces and line ends."""
    if path.suffix == ".safetensors":
        return _digest(*_read_tensors(path))
    return hashlib.sha256(json.dumps(parse_json(path.read_bytes(), str(path)), sort_keys=True).encode()).hexdigest()


def fill_model(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Load the weights into the model that the config beside them describes."""
    for name, x in model.state_dict().items():
        if name in weights and weights[name].is_floating_point() != x.is_floating_point():
            raise PolyadicError(f"{folder / WEIGHTS}: {name} must be {x.dtype} or the like, got {weights[name].dtype}")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{folder / WEIGHTS} does not fit config.json beside it ({reason:.200})") from error


def move_model(model: nn.Module, device: torch.device, folder: Path) -> None:
    """Move the model to a device, if it is available."""
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise PolyadicError(f"cannot load {folder} to the device {device} ({reason:.120}); cpu always works") from error


_FOLDERS = (("data", "root"), ("cache", "folder"))
_FILES = (
    *(("data", name) for name in ("detections", "detector", "simulate", "teachers")),
    *(("pixels", name) for name in ("weights", "detector")),
)


def hide_paths(config: dict[str, Any]) -> None:
    """Remove this machine's folders from a config; of a file only its name is kept."""
    for section, name in (*_FOLDERS, *_FILES):
        value = config.get(section, {}).get(name)
        if value is not None:
            short = [Path(file).name for file in value] if isinstance(value, list) else Path(value).name
            config[section][name] = "" if (section, name) in _FOLDERS else short
    if "weights" in config:
        config["weights"] = Path(config["weights"]).name


def versions() -> dict[str, str]:
    """List the versions of Python, the platform and our dependencies."""
    names = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("polyadic", "torch", "torchvision", "timm", "numpy", "pillow"):
        with suppress(PackageNotFoundError):
            names[name] = version(name)
    return names


def parse_json(text: bytes, where: str, kind: Any = Any) -> Any:
    """Decode one JSON text as a type that msgspec knows; `where` names it in errors."""
    if text[:2] == b"\x1f\x8b":
        raise PolyadicError(f"{where}: a gzip file; unpack it first")
    if text[:64].lstrip()[:1] == b"<":
        raise PolyadicError(f"{where}: a web page or XML, not JSON")
    try:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):  # json allows NaN, and file names that are not Unicode
            return msgspec.convert(json.loads(text), kind)
    except msgspec.ValidationError as error:
        raise PolyadicError(f"{where}: {error}") from error
    except RecursionError as error:
        raise PolyadicError(f"{where}: JSON nested too deeply") from error
    except ValueError as error:
        hint = "is it cut off, or a file of another kind?"
        raise PolyadicError(f"{where}: not complete JSON ({error}); {hint}") from error
