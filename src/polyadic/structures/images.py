"""Open pictures in RGB; the format is detected from the content, not from the name.

`open_image` gives a dataset's picture as it is stored: its boxes were drawn on those rows and columns. `open_photo`
gives any picture upright, as its EXIF orientation says, and no larger in memory than a network needs.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from polyadic.structures.inputs import regular_file
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from PIL.Image import Image


MOST = 400_000_000  # pixels that are decoded; a JPEG can be decoded at a fraction of its size
MOST_SENT = 64_000_000  # likewise of a picture that is given as bytes: nobody may know who sent it
SENT = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # its formats: none whose decoder starts other programs
LARGE = 4096  # px of a photo's longer side that are kept: no network here needs more
UNNAMED = "image"  # the name of a picture that is not a file
_SCALABLE = ("L", "LA", "RGB", "RGBA", "CMYK")  # modes whose pixels can be averaged
_ORIENTATION = 0x0112  # EXIF tag
_LIMIT = threading.Lock()


@dataclass(frozen=True, eq=False)
class Photo:
    """An upright picture. Boxes on it are in pixels of `size`; `image` may be a smaller copy."""

    name: str
    image: Image  # RGB
    size: tuple[float, float]  # (width, height)
    orientation: int = 1  # EXIF orientation of the stored rows and columns

    @property
    def stored(self) -> tuple[float, float]:
        """(width, height) of the file's rows and columns."""
        return self.size[::-1] if self.orientation >= 5 else self.size

    def upright(self, boxes: Float[np.ndarray, "N 4"]) -> Float[np.ndarray, "N 4"]:
        """Turn boxes found on the stored rows and columns, by a detector that ignores EXIF, with the picture."""
        width, height = self.stored
        x1, y1, x2, y2 = boxes.T
        if self.orientation in (2, 3, 7, 8):
            x1, x2 = width - x2, width - x1
        if self.orientation in (3, 4, 6, 7):
            y1, y2 = height - y2, height - y1
        if self.orientation >= 5:
            x1, y1, x2, y2 = y1, x1, y2, x2
        return np.stack([x1, y1, x2, y2], 1)

    def as_stored(self, boxes: Float[np.ndarray, "N 4"]) -> Float[np.ndarray, "N 4"]:
        """Turn boxes on the upright picture back to the file's rows and columns, which datasets are annotated on."""
        back = {6: 8, 8: 6}.get(self.orientation, self.orientation)
        return Photo(self.name, self.image, self.stored, back).upright(boxes)


def open_image(path: Path) -> Image:
    """Open a picture in RGB, rows and columns as stored; the first frame of an animation."""
    with _readable(path), _opened(path) as image:
        _check_size(image, path, MOST)
        return to_rgb(image)


def open_photo(source: Any, name: str | None = None) -> Photo:
    """Open a path, a file's bytes, a PIL image, an array [H, W], [H, W, 3] or [H, W, 4], or a tensor [3, H, W].

    A file is turned upright as its EXIF says; a PIL image is taken as it is. Arrays and tensors hold bytes, or floats
    from 0 to 1. Of a file's bytes, which may come over a network, fewer pixels and formats are decoded.
    """
    from PIL.Image import Image, fromarray

    if isinstance(source, Photo):
        return source
    if isinstance(source, str | Path):
        return _open_file(Path(source).expanduser(), str(source) if name is None else name)
    if isinstance(source, bytes):
        return _open_file(source, name or UNNAMED)
    if isinstance(source, Image):
        upright = to_rgb(source)  # not turned: its boxes were found on it as it is
    elif isinstance(source, np.ndarray) or hasattr(source, "detach"):
        upright = fromarray(_bytes(source))
    else:
        raise PolyadicError(
            f"expected an image: a path, a PIL image, an array [H, W, 3] or a tensor [3, H, W], "
            f"got {type(source).__name__}"
        )
    return Photo(name or UNNAMED, upright, (float(upright.width), float(upright.height)))


def path_ends(path: str | Path) -> Iterator[str]:
    """List the names that a file may have in a dataset, the longest first; the last is without suffix.

    >>> list(path_ends("a/b/c.jpg"))
    ['a/b/c.jpg', 'b/c.jpg', 'c.jpg', 'c']
    """
    whole = PurePath(path)
    for at in range(len(whole.parts)):
        yield str(PurePath(*whole.parts[at:]))
    yield whole.stem


def _open_file(source: Path | bytes, name: str) -> Photo:
    from PIL import ImageOps

    path: Path | str = source if isinstance(source, Path) else name
    most = MOST if isinstance(source, Path) else MOST_SENT
    with _readable(path), _opened(source) as image:
        width, height = image.size
        times, fraction = max(image.size) / LARGE, None
        if times >= 2:  # decode at a fraction of the size, which only JPEGs can
            fraction = image.draft(None, (max(1, int(width / times)), max(1, int(height / times))))
        _check_size(image, path, most)
        image.load()  # before EXIF: errors in the pixels must be reported, errors in EXIF must not
        if fraction is None:
            width, height = image.size  # Pillow turns TIFFs itself when it loads them
        orientation = _orientation(image)
        upright = _shrunk(image)
        upright.info = {}  # the file's other EXIF tags may be damaged
        upright.getexif()[_ORIENTATION] = orientation
        ImageOps.exif_transpose(upright, in_place=True)
    size = (height, width) if orientation >= 5 else (width, height)
    return Photo(name, upright, (float(size[0]), float(size[1])), orientation)


def _orientation(image: Image) -> int:
    """Read the EXIF orientation; 1 where it is missing or damaged."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises errors of many kinds on damaged EXIF
        return 1
    return orientation if orientation in range(2, 9) else 1


def _shrunk(image: Image) -> Image:
    """Shrink to at most `LARGE` and convert to RGB; shrink first where possible, to save memory."""
    if image.mode not in _SCALABLE or "transparency" in image.info:
        image = to_rgb(image)
    image.thumbnail((LARGE, LARGE), reducing_gap=2.0)
    return to_rgb(image)


def to_rgb(image: Image) -> Image:
    """Convert to eight bits per channel: deeper pictures are scaled, not clipped; transparent pixels become white."""
    from PIL import Image as Pillow

    image.load()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Pillow.fromarray(_scaled(np.asarray(image), deep=image.mode.startswith("I;16"))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _scaled(values: Shaped[np.ndarray, "H W"], deep: bool) -> Shaped[np.ndarray, "H W"]:
    """Scale to bytes; unless 16 bits are certain (`deep`), from the range that the values seem to have."""
    values = np.nan_to_num(values.astype(np.float32), copy=False, nan=0.0, posinf=0.0, neginf=0.0).clip(0)
    highest = float(values.max(initial=0.0))
    ranges = (65535.0,) if deep else (1.0, 255.0, 65535.0)
    full = next((top for top in ranges if highest <= top), highest)
    scaled: np.ndarray = (values * (255 / full)).round().astype(np.uint8)
    return scaled


def _bytes(source: Any) -> np.ndarray:
    """Convert an array or a tensor to bytes [H, W, 3]."""
    tensor = hasattr(source, "detach")
    if tensor:
        plain = source.detach().cpu()
        source = (plain.float() if "bfloat16" in str(plain.dtype) else plain).numpy()  # NumPy has no bfloat16
    array = np.asarray(source)
    shape = list(array.shape)
    if tensor or (array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4)):
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        layout = "[3, H, W]" if tensor else "[H, W, 3]"
        raise PolyadicError(f"expected an image {layout}, got {'a tensor' if tensor else 'an array'} {shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise PolyadicError(
                f"an image of floats must lie in 0 to 1, got {array.min():g} to {array.max():g}; "
                "give bytes, or undo the normalisation"
            )
        array = (array * 255).round()
    elif array.dtype.kind == "b":
        array = array * 255
    elif array.dtype == np.uint16:
        array = array // 257
    elif array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise PolyadicError(f"an image of integers must lie in 0 to 255, got {array.dtype}")
    array = array.astype(np.uint8)
    if array.shape[2] == 4:
        from PIL.Image import fromarray

        return np.asarray(to_rgb(fromarray(array)))
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Image]:
    """Open without Pillow's limit on pixels, which ignores decoding at a smaller size; ours is `MOST`."""
    from PIL import Image as Pillow

    file: Path | IO[bytes] = io.BytesIO(source) if isinstance(source, bytes) else regular_file(source)
    Pillow.init()  # Pillow registers most formats only when it needs them
    with _LIMIT:
        before, Pillow.MAX_IMAGE_PIXELS = Pillow.MAX_IMAGE_PIXELS, None
        try:
            image = Pillow.open(file, formats=SENT if isinstance(source, bytes) else None)
        finally:
            Pillow.MAX_IMAGE_PIXELS = before
    with image:
        yield image


def _check_size(image: Image, path: Path | str, most: int) -> None:
    if image.width * image.height > most:
        raise PolyadicError(
            f"{path} has {image.width:,} x {image.height:,} pixels, more than {most:,}: make it smaller"
        )


@contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    from PIL import UnidentifiedImageError

    try:
        yield
    except PolyadicError:
        raise
    except FileNotFoundError as error:
        raise PolyadicError(f"no image {path}") from error
    except IsADirectoryError as error:
        raise PolyadicError(f"{path} is a folder, expected an image") from error
    except PermissionError as error:
        raise PolyadicError(f"{path} cannot be read (permission denied)") from error
    except UnidentifiedImageError as error:
        raise PolyadicError(f"{path} is not a readable image (unknown format)") from error
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PolyadicError(f"{path} is not a readable image ({reason:.120})") from error


def picture_size(path: Path) -> tuple[float, float] | None:
    """Read (width, height) as stored, or None when the file is not a picture."""
    try:
        with _readable(path), _opened(path) as image:
            return float(image.width), float(image.height)
    except PolyadicError:
        return None
