"""Pictures of every format open upright in RGB; unreadable ones are one clear line."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Transpose
from refusals import refused

from polyadic.structures import images as pictures
from polyadic.structures.images import open_image, open_photo
from polyadic.structures.vocabulary import PolyadicError

COLOUR = (200, 120, 40)
# how an upright picture is stored, by EXIF orientation
STORED = {
    1: None,
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}


def noise(width: int = 30, height: int = 20) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def flat(size: tuple[int, int] = (30, 20)) -> Image.Image:
    return Image.new("RGB", size, COLOUR)


def write_deep(path: Path, pixels: np.ndarray) -> None:
    """A PNG of 16 bits per colour [H, W, 3] or [H, W, 4], which Pillow does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, colours = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[colours], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def shade(value: int) -> tuple[int, int, int]:
    return value, value, value


def grey(value: float, dtype: type) -> Image.Image:
    return Image.fromarray(np.full((20, 30), value, dtype))


DEEP = np.full((20, 30, 3), COLOUR, np.uint16) * 257
BLACK: dict[str, Any] = {"save_all": True, "append_images": [Image.new("RGB", (30, 20), "black")]}
# kind -> write a picture of one colour; the colour as displayed
KINDS: dict[str, tuple[Callable[[Path], object], tuple[int, int, int]]] = {
    "16-bit grey": (lambda path: grey(30_000, np.uint16).save(path, "PNG"), shade(round(30_000 / 257))),
    # scaled by its depth, not by its brightest pixel
    "16-bit grey, dark": (lambda path: grey(200, np.uint16).save(path, "PNG"), shade(1)),
    "16-bit RGB": (lambda path: write_deep(path, DEEP), COLOUR),
    "16-bit RGBA": (
        lambda path: write_deep(path, np.concatenate([DEEP, np.full((20, 30, 1), 65535, np.uint16)], 2)),
        COLOUR,
    ),
    "CMYK": (lambda path: flat().convert("CMYK").save(path, "JPEG", quality=100), COLOUR),
    "grey": (lambda path: Image.new("L", (30, 20), 77).save(path, "JPEG", quality=100), shade(77)),
    "one bit": (lambda path: Image.new("1", (30, 20), 1).save(path, "PNG"), shade(255)),
    "palette": (lambda path: flat().quantize(4).save(path, "PNG"), COLOUR),
    "transparent palette": (lambda path: flat().quantize(4).save(path, "PNG", transparency=0), shade(255)),
    "transparent": (lambda path: Image.new("RGBA", (30, 20), (*COLOUR, 0)).save(path, "PNG"), shade(255)),
    # 0.2 of the colour, 0.8 of white
    "half transparent": (lambda path: Image.new("RGBA", (30, 20), (*COLOUR, 51)).save(path, "PNG"), (244, 228, 212)),
    "floats": (lambda path: grey(0.4, np.float32).save(path, "TIFF"), shade(102)),
    "whole numbers": (lambda path: grey(25_700, np.int32).save(path, "TIFF"), shade(100)),
    "GIF": (lambda path: flat().save(path, "GIF", **BLACK), COLOUR),
    "WEBP": (lambda path: flat().save(path, "WEBP", lossless=True, **BLACK), COLOUR),
    "AVIF": (lambda path: flat().save(path, "AVIF", quality=100), COLOUR),
}


@pytest.mark.parametrize("large", [4096, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_keeps_its_displayed_colours(
    tmp_path: Path, kind: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "LARGE", large)
    path = tmp_path / "picture.jpg"  # whatever its format
    write, colour = KINDS[kind]
    write(path)
    photo = open_photo(path)
    assert (photo.image.mode, photo.size, photo.orientation) == ("RGB", (30, 20), 1)
    assert photo.image.size == ((30, 20) if large > 30 else (16, 11))
    assert np.abs(np.asarray(photo.image).astype(int) - colour).max() <= 2
    assert np.abs(np.asarray(open_image(path)).astype(int) - colour).max() <= 2


@pytest.mark.parametrize("orientation", STORED)
def test_a_photo_and_boxes_in_stored_orientation_are_turned_upright(tmp_path: Path, orientation: int) -> None:
    seen, turn, exif = noise(), STORED[orientation], Image.Exif()
    box = (4, 3, 19, 11)
    mark = Image.new("1", seen.size)
    mark.paste(1, box)
    stored, mark = (image if turn is None else image.transpose(turn) for image in (seen, mark))
    exif[0x0112] = orientation
    path = tmp_path / "turned.png"
    stored.save(path, exif=exif)
    photo = open_photo(path)
    assert (photo.size, photo.stored, photo.orientation) == ((30, 20), stored.size, orientation)
    assert np.array_equal(np.asarray(photo.image), np.asarray(seen))
    assert photo.upright(np.array([mark.getbbox()], float)).tolist() == [list(box)]
    assert np.array_equal(np.asarray(open_image(path)), np.asarray(stored))  # a dataset's boxes are on its rows
    stored.save(tmp_path / "turned.tif", exif=exif)  # Pillow turns TIFFs itself
    photo = open_photo(tmp_path / "turned.tif")
    assert list(photo.size) == list(photo.image.size) == [30, 20]
    assert np.array_equal(np.asarray(photo.image), np.asarray(seen))


@pytest.mark.parametrize("exif", [b"Exif\0\0no tags", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_exif_is_ignored(tmp_path: Path, exif: bytes) -> None:
    path = tmp_path / "a.jpg"
    noise().save(path, exif=exif)
    assert open_photo(path).orientation == 1


def test_a_huge_jpeg_is_decoded_smaller_and_boxes_stay_in_full_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = noise(12, 8).resize((600, 400), Image.Resampling.NEAREST)
    image.save(tmp_path / "huge.jpg", quality=95)
    image.save(tmp_path / "huge.png")
    monkeypatch.setattr(pictures, "LARGE", 64)
    monkeypatch.setattr(pictures, "MOST", 10_000)  # the whole has 240,000, an eighth of each side 3,750
    photo = open_photo(tmp_path / "huge.jpg")
    assert (photo.size, photo.image.size) == ((600, 400), (64, 43))
    small = np.asarray(image.resize((64, 43), Image.Resampling.BOX)).astype(float)
    assert np.abs(np.asarray(photo.image) - small).mean() < 12
    refused(r"huge\.png has 600 x 400 pixels, more than 10,000", open_photo, tmp_path / "huge.png")
    refused("more than 10,000", open_image, tmp_path / "huge.jpg")


def cut(path: Path) -> bytes:
    noise(90, 80).save(path)
    return path.read_bytes()[:3000]


def damaged(path: Path) -> bytes:
    """A PNG with one byte of its pixels changed; its EXIF would come after them."""
    noise().save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    return bytes(content)


BAD: dict[str, tuple[Any, str]] = {
    "text": (b"I am no picture\n" * 9, "unknown format"),
    "empty": (b"", "unknown format"),
    "cut": (cut, "truncated"),
    "damaged": (damaged, "broken data stream|unrecognized data stream|checksum|cannot be read"),
    "header": (b"\xff\xd8\xff\xe0\0\x10JFIF", "Truncated File Read|unknown format"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unreadable_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    content, reason = BAD[case]
    path = tmp_path / "bad.png"
    path.write_bytes(content(path) if callable(content) else content)
    for read in (open_photo, open_image):
        assert refused(f"is not a readable image.*({reason})", read, path).startswith(str(path))


def test_missing_files_and_folders_have_their_own_messages(tmp_path: Path) -> None:
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    refused("no image ", open_photo, tmp_path / "no.jpg")
    refused("not a readable image", open_photo, tmp_path / "loop.jpg")
    refused("folder", open_photo, tmp_path)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged files
@pytest.mark.parametrize("seed", range(3))
def test_a_corrupted_picture_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for suffix in ("jpg", "png", "gif", "webp", "tif", "bmp", "ppm"):
        path = tmp_path / f"a.{suffix}"
        noise().save(path)
        content = np.frombuffer(path.read_bytes(), np.uint8).copy()
        at = rng.integers(0, len(content), 6)
        content[at] = rng.integers(0, 256, 6)
        path.write_bytes(content.tobytes())
        with suppress(PolyadicError):
            assert open_photo(path).image.mode == "RGB"


def test_the_bytes_of_a_file_are_the_file_with_lower_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jpg", "a.png", "a.webp", "a.gif", "a.bmp", "a.tiff"):
        noise(40, 30).save(tmp_path / name)
        assert open_photo((tmp_path / name).read_bytes()).size == (40, 30)
    path = tmp_path / "a.png"
    photo = open_photo(path.read_bytes(), "a.png")
    assert (photo.name, photo.size) == ("a.png", (40, 30))
    assert np.array_equal(np.asarray(photo.image), np.asarray(open_photo(path).image))
    noise(4, 4).save(tmp_path / "a.eps")  # decoding it would start ghostscript
    refused("a.eps is not a readable image", open_photo, (tmp_path / "a.eps").read_bytes(), "a.eps")
    monkeypatch.setattr(pictures, "MOST_SENT", 1000)
    refused("a.png has 40 x 30 pixels, more than 1,000", open_photo, path.read_bytes(), "a.png")
    assert open_photo(path).size == (40, 30)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turned_upright_are_turned_back(orientation: int) -> None:
    size = (30.0, 40.0) if orientation >= 5 else (40.0, 30.0)  # upright; stored as 40 x 30
    photo = pictures.Photo("a", noise(4, 4), size, orientation)
    boxes = np.array([[1.0, 2.0, 11.0, 7.0], [20.0, 3.0, 40.0, 30.0]])
    assert np.array_equal(photo.as_stored(photo.upright(boxes)), boxes)
