"""Encoded pictures: PNG and JPEG to uint8 (height, width, channels), with the size checked before they are decoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ._budget import Budget
from ._paths import need

MAX_PICTURE_BYTES = 256 << 20
"""Of an encoded picture."""
MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def picture_size(data: bytes, extra: str, where: str, budget: Budget) -> tuple[tuple[int, ...], str]:
    """(height, width, channels) and dtype of an encoded picture, from its header."""
    with _opened(data, extra, where) as image:
        budget.check(where, image.height * image.width * 4, len(data))
        wide = image.mode.startswith("I") or image.mode == "F"
        if wide:
            return (image.height, image.width), "uint16" if image.mode.startswith("I") else "float32"
        return (image.height, image.width, MODES.get(image.mode, 3)), "uint8"


def decode_picture(data: bytes, shape: tuple[int, ...], extra: str, where: str, budget: Budget) -> NDArray[Any]:
    """The picture, which must have that shape; 16-bit grey pictures (depth) give uint16 (height, width)."""
    with _opened(data, extra, where) as image:
        size = (image.height, image.width)
        if size != tuple(shape[:2]):
            raise FormatError(
                f"{where}: the picture is {size[0]} x {size[1]}, the stream's are {shape[0]} x {shape[1]}"
            )
        budget.check(where, size[0] * size[1] * 4, len(data))
        try:
            if len(shape) == 2:
                return np.asarray(image).astype(np.uint16 if image.mode.startswith("I") else np.float32)
            mode = next((mode for mode, channels in MODES.items() if channels == shape[2]), "RGB")
            pixels = np.asarray(image if image.mode == mode else image.convert(mode), np.uint8)
        except (OSError, ValueError, SyntaxError) as error:
            raise FormatError(f"{where}: the picture cannot be decoded: {error}") from error
    return pixels.reshape(shape)


def _opened(data: bytes, extra: str, where: str) -> Any:
    pillow = need("PIL.Image", extra)
    try:
        return pillow.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise FormatError(f"{where}: neither a PNG nor a JPEG picture: {error}") from error
