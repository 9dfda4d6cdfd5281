"""PNG to pixels: gray and color of 8 bits, gray of 16 bits, not interlaced. Pillow decodes the other kinds.

Part: length u32 | name | content | crc u32, in this order: IHDR, others, IDAT one after the other, IEND.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core

SIGNATURE = b"\x89PNG\r\n\x1a\n"
FORMS = {(8, 0): 1, (8, 2): 3, (8, 6): 4, (16, 0): 2}
"""(bits, color type): bytes of a pixel. Color types: 0 gray, 2 RGB, 6 RGB and alpha."""
MOST_BYTES = 2**32 - 1
"""Of the pixels of a picture: an index counts them in 32 bits."""
PIXEL_PARTS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
WIDE_COLORS = (b"\2", b"\4", b"\6")
"""Color types of several channels that can have 16 bits: RGB, gray and alpha, RGB and alpha."""


def is_wide_color(data: bytes) -> bool:
    """A PNG of 16 bits per channel with more than gray. Pillow reads it with 8 bits: the low ones would be lost."""
    is_png = data.startswith(SIGNATURE) and data[12:16] == b"IHDR"
    return is_png and data[24:25] == b"\x10" and data[25:26] in WIDE_COLORS


def has_plain_pixels(data: bytes) -> bool:
    """A PNG of the kinds that are decoded here, or such a one that is interlaced: no palette, no gray with alpha."""
    return (data[24], data[25]) in FORMS


def check_bytes(where: str, width: int, height: int, pixel_bytes: int) -> None:
    if width * height * pixel_bytes > MOST_BYTES:
        raise _core.FormatError(
            f"{where} must have at most {MOST_BYTES} bytes of pixels, got {width} x {height} x {pixel_bytes}"
        )


def decode_png(data: bytes, where: str, max_pixels: int) -> NDArray[Any] | None:
    """uint8 (H, W), (H, W, 3) or (H, W, 4), or uint16 (H, W); None for other kinds of PNG. Zlib and the filters run
    without the GIL. FormatError where a checksum is wrong, a part is missing, or there are more pixels than allowed."""
    if not data.startswith(SIGNATURE) or data[12:16] != b"IHDR" or len(data) < 33:
        return None
    width, height, bits, color, *rest = struct.unpack_from(">IIBBBBB", data, 16)
    pixel_bytes = FORMS.get((bits, color))
    if pixel_bytes is None or rest != [0, 0, 0]:
        return None
    if not 0 < width * height <= max_pixels:
        raise _core.FormatError(f"{where} must have at most {max_pixels} pixels (max_pixels), got {width} x {height}")
    check_bytes(where, width, height, pixel_bytes)
    num_bytes = height * (1 + width * pixel_bytes)
    inflater = zlib.decompressobj()
    try:
        packed = packed_pixels(data, where)
        if num_bytes > 1032 * len(packed) + 1032:  # the most that zlib can compress: no memory for a bomb
            raise _core.FormatError(f"{where} must be a whole picture, got {len(packed)} bytes for {width} x {height}")
        filtered = inflater.decompress(packed, num_bytes)
    except zlib.error as error:
        raise _core.FormatError(f"{where} must be a whole picture, got {error}") from error
    if len(filtered) != num_bytes:
        raise _core.FormatError(f"{where} must be a whole picture, got {len(filtered)} bytes of {num_bytes}")
    pixels = np.empty(height * width * pixel_bytes, np.uint8)
    try:
        _core.unfilter_png(np.frombuffer(filtered, np.uint8), height, pixel_bytes, pixels)
    except _core.FormatError as error:
        raise _core.FormatError(f"{where} must be a whole picture, got: {error}") from None
    if bits == 16:
        return pixels.view(">u2").astype(np.uint16).reshape(height, width)
    return pixels.reshape((height, width) if pixel_bytes == 1 else (height, width, pixel_bytes))


def packed_pixels(data: bytes, where: str) -> bytes:
    """The contents of all IDAT, with the checksums of what decides about pixels compared."""
    view, at, parts = memoryview(data), len(SIGNATURE), []
    while at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            break
        if name in PIXEL_PARTS:
            if zlib.crc32(view[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
                raise _core.FormatError(f"{where} must be a whole picture, got a wrong checksum at byte {at}")
            if name == b"IDAT":
                parts.append(view[at + 8 : end - 4])
            if name == b"IEND":
                return b"".join(parts)
        at = end
    raise _core.FormatError(f"{where} must be a whole picture, got {len(data)} bytes without an end")
