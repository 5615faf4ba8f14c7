"""The size of a picture from its header, without decoding it."""

from __future__ import annotations

from pathlib import Path


def picture_size(path: Path) -> tuple[float, float] | None:
    """(width, height), or None when the file is not a picture."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return float(image.width), float(image.height)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
