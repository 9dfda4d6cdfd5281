"""``compressedDepth`` of ROS (compressed_depth_image_transport): 16-bit depth, or float depth as 16-bit codes.

    format  "16UC1; compressedDepth png", "32FC1; compressedDepth rvl"; older: "16UC1; compressedDepth"
    data    kind int32, 0 | a float32 | b float32 | PNG of 16 bits, or RVL: width u32 | height u32 | words

16UC1 is depth in millimeters as it is. 32FC1 is depth in meters: ``a / (code - b)``, NaN for code 0.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.images import PNG

HEADER = struct.Struct("<iff")
INVERSE_DEPTH = 0
"""The only kind of header that ROS writes."""
NAME = "compressedDepth"
INTEGER, FLOAT = ("16UC1", "mono16"), ("32FC1",)
RVL_BOUND = 1 << 16
"""Most pixels for one byte of RVL: a byte may code a run of zeros, but a whole frame of them is not a recording."""


@dataclass(frozen=True)
class CompressedDepth:
    """``png``: the picture, or empty where ``codes`` has its decoded values. ``inverse``: a and b of float depth."""

    png: bytes
    codes: NDArray[np.uint16] | None
    inverse: tuple[float, float] | None


def is_compressed_depth(format: str, data: bytes) -> bool:
    """By the name of the format, or by a PNG after the header: some recorders write another name."""
    return NAME in format or (data[HEADER.size :].startswith(PNG) and not data.startswith((PNG, b"\xff\xd8")))


def read_compressed_depth(format: str, data: bytes, where: str, budget: Budget) -> CompressedDepth:
    encoding, _, rest = format.partition(";")
    encoding = encoding.strip()
    if encoding not in (*INTEGER, *FLOAT):
        known = ", ".join((*INTEGER, *FLOAT))
        raise FormatError(f"{where}: {NAME} must name one of {known} in its format, got {format[:80]!r}")
    if len(data) <= HEADER.size:
        raise FormatError(f"{where}: {NAME} must have {HEADER.size} bytes before the picture, got {len(data)} in all")
    kind, a, b = HEADER.unpack_from(data)
    if kind != INVERSE_DEPTH:
        raise FormatError(f"{where}: the header of {NAME} must have kind {INVERSE_DEPTH}, got {kind}")
    inverse = (a, b) if encoding in FLOAT else None
    if inverse is not None and not (math.isfinite(a) and math.isfinite(b) and a != 0.0):
        raise FormatError(f"{where}: {NAME} of 32FC1 must have two finite parameters, the first not 0, got {a}, {b}")
    way = rest.replace(NAME, "").strip().lower() or "png"
    if way == "rvl":
        return CompressedDepth(b"", decode_rvl(data[HEADER.size :], where, budget), inverse)
    if way.split()[0] != "png" and not data[HEADER.size :].startswith(PNG):
        raise FormatError(f"{where}: {NAME} must be png or rvl, got {format[:80]!r}")
    if not data[HEADER.size :].startswith(PNG):
        raise FormatError(f"{where}: {NAME} must have a PNG after {HEADER.size} bytes, got {data[12:20]!r}")
    return CompressedDepth(data[HEADER.size :], None, inverse)


def decode_rvl(data: bytes, where: str, budget: Budget) -> NDArray[np.uint16]:
    """RVL (Wilson 2017): runs of zeros and of differences, as numbers of 3 bits per nibble, the least first.

    width u32 | height u32 | u32 words, each with 8 nibbles from the highest on; bit 3 of a nibble: more to come.
    Numbers: zeros, values, then as many differences (zigzag); and so on until all pixels are there.
    """
    if len(data) < 8:
        raise FormatError(f"{where}: RVL must have a width and a height, got {len(data)} bytes")
    width, height = struct.unpack_from("<II", data)
    num_pixels = width * height
    if num_pixels == 0 or num_pixels > len(data) * RVL_BOUND:
        raise FormatError(f"{where}: RVL must have 1 to {RVL_BOUND} pixels a byte, got {height} x {width}")
    budget.check(where, num_pixels * 2 + len(data) * 16, len(data))
    numbers = _numbers(data[8:])
    if (numbers < 0).any():
        raise FormatError(f"{where}: RVL must have numbers of up to 32 bits, got a longer one")
    differences = np.zeros(num_pixels, np.int64)
    is_value = np.zeros(num_pixels, bool)
    place = at = 0
    while at < num_pixels:
        zeros, values = (int(x) for x in numbers[place : place + 2]) if place + 2 <= len(numbers) else (0, 0)
        place, begin = place + 2, at + zeros
        end = begin + values
        if end == at or end > num_pixels or place + values > len(numbers):
            raise FormatError(f"{where}: RVL must have {num_pixels} pixels, got a damaged run at pixel {at}")
        differences[begin:end] = numbers[place : place + values]
        is_value[begin:end] = True
        place, at = place + values, end
        budget.count(where)
    signed = (differences >> 1) ^ -(differences & 1)
    pixels = np.cumsum(signed).astype(np.uint16)  # zeros are no values: the next difference is to the last value
    return np.where(is_value, pixels, np.uint16(0)).reshape(height, width)


def _numbers(data: bytes) -> NDArray[np.int64]:
    """All numbers of the words. One with more than 32 bits, which no encoder writes, is -1 here."""
    words = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(">u4").view(np.uint8)
    nibbles = np.stack([words >> 4, words & 15], axis=1).reshape(-1).astype(np.int64)
    ends = np.flatnonzero(nibbles < 8)
    if not len(ends):
        return np.zeros(0, np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends + 1 - begins
    shifts = np.arange(ends[-1] + 1) - np.repeat(begins, sizes)
    numbers = np.add.reduceat((nibbles[: ends[-1] + 1] & 7) << np.minimum(3 * shifts, 30), begins)
    return np.where(sizes > 11, -1, numbers)
