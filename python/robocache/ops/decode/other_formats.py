"""Pictures that the op does not read: PNG, and JPEG of other kinds. They become pixels first, on several threads."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from .png import check_bytes, decode_png, is_wide_color, packed_pixels

OP = "decode_images"
JPEG, OTHER_JPEG, PNG = 0, 1, 2  # PictureKind in C++
NAMES = {OTHER_JPEG: "a JPEG that is progressive, CMYK or of another kind", PNG: "a PNG of another kind"}

CONVERT = "which neither RoboCache nor Pillow decodes; convert it to 8 bits first"
"""Of a JPEG of 12 or 16 bits per sample; its only decoders are those of libjpeg-turbo 3 with this precision."""

JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""The next marker, behind other bytes, as libjpeg finds it: neither a stuffed byte nor a restart."""
BARE_MARKERS = (0x01, 0xD8)
"""Markers without a length, beside those of restarts."""
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
SCAN, END = 0xDA, 0xD9
MAX_SCANS = 16
MAX_SCANNED_PIXELS = 1 << 29
"""Of all scans of a progressive JPEG, where it has more than MAX_SCANS: each goes over the whole picture."""

Replaced = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]


def replace_other_formats(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], max_pixels: int, rows: NDArray[np.int64] | None
) -> Replaced | None:
    """Bytes and offsets with pixels in place of other formats, and their shapes; None where there are none. Pictures
    that are not among ``rows`` are left out."""
    kinds = np.frombuffer(_core.picture_kinds(OP, data, offsets, rows), np.uint8)
    if not np.isin(kinds, (OTHER_JPEG, PNG)).any():
        return None
    parts, shapes = [], np.zeros((len(kinds), 4), np.int32)
    is_read = np.ones(len(kinds), bool) if rows is None else np.isin(np.arange(len(kinds)), rows)
    others = [(i, kind) for i, kind in enumerate(kinds.tolist()) if kind in (OTHER_JPEG, PNG)]
    decoded = decode_all([(data[offsets[i] : offsets[i + 1]].tobytes(), i, kind, max_pixels) for i, kind in others])
    for i in range(len(kinds)):
        part = data[offsets[i] : offsets[i + 1] if is_read[i] else offsets[i]]
        if i in decoded:
            pixels = decoded[i]
            if pixels.dtype != np.uint8:
                raise ValueError(
                    f"{OP}: dtype must be 'uint16' for PNG of 16 bits, got pictures[{i}] of {pixels.dtype}"
                )
            shapes[i, :3] = (*pixels.shape, 1)[:3]
            part = pixels.reshape(-1)
        parts.append(part)
    ends = np.cumsum([len(part) for part in parts])
    return np.concatenate(parts), np.concatenate([[0], ends]).astype(np.int64), shapes


def decode_all(jobs: list[tuple[bytes, int, int, int]]) -> dict[int, NDArray[Any]]:
    """Pixels by number, decoded on several threads; zlib, the filters of PNG and Pillow release the GIL."""
    if len(jobs) < 2 or _core.num_threads() == 1:
        return {job[1]: _decode(*job) for job in jobs}
    with ThreadPoolExecutor(min(len(jobs), _core.num_threads())) as threads:
        return dict(zip([job[1] for job in jobs], threads.map(lambda job: _decode(*job), jobs), strict=True))


def jpeg_markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Each marker and where it ends, to the end of the picture. struct.error where a segment has no length.

    Segment: FF, marker u8 | length u16, itself included | content. After a scan's header, coded data. Bytes between
    segments are skipped, as libjpeg does."""
    at = 2
    while (found := JPEG_MARKER.search(data, at)) is not None:
        at = found.end()
        marker = data[at - 1]
        yield marker, at
        if marker == END:
            return
        if marker not in BARE_MARKERS:
            at += struct.unpack_from(">H", data, at)[0]


def is_scan_bomb(num_scans: int, num_pixels: int) -> bool:
    return num_scans > MAX_SCANS and num_scans * num_pixels > MAX_SCANNED_PIXELS


def _check_scans(data: bytes, where: str) -> None:
    num_scans = num_pixels = 0
    for marker, at in jpeg_markers(data):
        if marker in SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 3)
            num_pixels = height * width
        num_scans += marker == SCAN
        if is_scan_bomb(num_scans, num_pixels):
            raise _core.FormatError(
                f"{where} must have at most {MAX_SCANNED_PIXELS} pixels in all scans together, got {num_pixels} "
                f"in each of more than {num_scans - 1}"
            )


def _decode(data: bytes, i: int, kind: int, max_pixels: int) -> NDArray[Any]:
    """uint8 (H, W, 3) or (H, W), or uint16 (H, W)."""
    if kind == PNG and (pixels := decode_png(data, f"{OP}: pictures[{i}]", max_pixels)) is not None:
        return pixels if pixels.ndim == 2 else np.ascontiguousarray(pixels[:, :, :3])
    if is_wide_color(data):
        raise _core.FormatError(
            f"{OP}: pictures[{i}] must have 8 bits per channel, got a PNG of 16 bits in color, of which Pillow drops "
            "the lower 8; convert it to 8 bits first"
        )
    if kind == PNG:
        packed_pixels(data, f"{OP}: pictures[{i}]")  # Pillow compares the checksums of headers alone
    if kind == OTHER_JPEG and (bits := _core.jpeg_bits(OP, np.frombuffer(data, np.uint8))) not in (0, 8):
        raise _core.FormatError(
            f"{OP}: pictures[{i}] must have 8 bits per sample, got a JPEG of {bits} bits, {CONVERT}"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise NotImplementedError(
            f"{OP}: pictures[{i}] is {NAMES[kind]}, which needs the package Pillow: pip install 'robocache[images]'"
        ) from error
    try:
        if kind == OTHER_JPEG:
            _check_scans(data, f"{OP}: pictures[{i}]")
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > max_pixels:
                raise _core.FormatError(
                    f"{OP}: pictures[{i}] must have at most {max_pixels} pixels (max_pixels), "
                    f"got {image.width} x {image.height}"
                )
            check_bytes(f"{OP}: pictures[{i}]", image.width, image.height, 1 if image.mode == "L" else 3)
            if image.mode.startswith("I"):
                return np.asarray(image).astype(np.uint16)
            return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"), np.uint8)
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
        raise _core.FormatError(f"{OP}: pictures[{i}] must be a whole picture, got {error}") from error
