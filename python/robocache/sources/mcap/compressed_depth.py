"""``compressedDepth`` of ROS (compressed_depth_image_transport): 16-bit depth, or float depth as 16-bit codes.

    format  "16UC1; compressedDepth png", "32FC1; compressedDepth rvl"; older: "16UC1; compressedDepth"
    data    kind int32, 0 | a float32 | b float32 | PNG of 16 bits, or RVL: width u32 | height u32 | words

16UC1 is depth in millimeters as it is. 32FC1 is depth in meters: ``a / (code - b)``, NaN for code 0.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
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
PIXEL_BYTES = 6
"""Of a pixel at most, while it is read: uint16, and float32 where it is depth in meters."""
BLOCK_BYTES = 1 << 16
"""Of RVL that are decoded at once: their numbers take about 100 times that."""
MAX_NIBBLES = 11
"""Of a number: 33 bits. Encoders write up to 17."""


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
    budget.check(where, num_pixels * PIXEL_BYTES, len(data))
    pixels = np.zeros(num_pixels, np.uint16)
    begin = at = last = left = 0  # a run begins at pixel ``begin``; ``left`` of its differences are still to come
    zeros = -1  # the first number of a run, once it is read

    def damaged() -> FormatError:
        return FormatError(f"{where}: RVL must have {num_pixels} pixels, got a damaged run at pixel {begin}")

    for numbers in _blocks(memoryview(data)[8:], where):
        read, place, pieces = numbers.tolist(), 0, []
        while place < len(read) and at < num_pixels:
            if left:
                count = min(left, len(read) - place)
                pieces.append((at, place, count))
                at, place, left = at + count, place + count, left - count
                continue
            if zeros < 0:
                zeros, begin = read[place], at
            else:
                at, left, zeros = at + zeros, read[place], -1
                if at + left == begin or at + left > num_pixels:
                    raise damaged()
                budget.count(where)
            place += 1
        last = _put(pixels, pieces, numbers, last)
        if at == num_pixels:
            return pixels.reshape(height, width)
    raise damaged()


def _put(pixels: NDArray[np.uint16], pieces: list[tuple[int, int, int]], numbers: NDArray[np.int64], last: int) -> int:
    """Pixels of differences to the value before, also before a run of zeros. Returns the last value. ``pieces``: first
    pixel, place of its number, and how many follow."""
    if not pieces:
        return last
    at, place, count = np.array(pieces, np.int64).T
    before = np.cumsum(count) - count
    steps = np.arange(int(count.sum()))
    differences = numbers[np.repeat(place - before, count) + steps]
    values = last + np.cumsum((differences >> 1) ^ -(differences & 1))
    pixels[np.repeat(at - before, count) + steps] = values.astype(np.uint16)
    return int(values[-1]) & 0xFFFF


def _blocks(data: memoryview, where: str) -> Iterator[NDArray[np.int64]]:
    """The numbers of the words, from some words at a time."""
    rest = np.zeros(0, np.uint8)
    size = len(data) // 4 * 4
    for begin in range(0, size, BLOCK_BYTES):
        words = np.frombuffer(data[begin : min(begin + BLOCK_BYTES, size)], "<u4").astype(">u4").view(np.uint8)
        nibbles = np.concatenate([rest, np.stack([words >> 4, words & 15], axis=1).reshape(-1)])
        ends = np.flatnonzero(nibbles < 8)
        begins = np.concatenate([[0], ends + 1])
        sizes = np.diff(np.append(begins, len(nibbles)))
        if (sizes > MAX_NIBBLES).any():
            raise FormatError(f"{where}: RVL must have numbers of up to 32 bits, got a longer one")
        whole = begins[-1]
        rest = nibbles[whole:]
        if len(ends):
            shifts = np.arange(whole) - np.repeat(begins[:-1], sizes[:-1])
            yield np.add.reduceat((nibbles[:whole] & 7).astype(np.int64) << 3 * shifts, begins[:-1])
