"""Chunks of zarr arrays, unpacked: never further than a chunk is, whatever its bytes declare."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError, crc32c
from ...cache.episode import DTYPES
from ..reading.budget import FREE_BYTES
from ..reading.paths import need, num_bytes

JPEGXL = "imagecodecs_jpegxl"
COMPRESSORS = ("blosc", "zstd", "lz4", "gzip", "zlib", JPEGXL)
FILTERS = ("delta", "shuffle", "fixedscaleoffset", "astype", "bitround", "crc32c")
MAX_BLOCK_BYTES = 128 << 10
"""Of a block of zstd, unpacked."""


class Step(NamedTuple):
    """One codec of a chunk. ``size_bytes``: of what it packed."""

    name: str
    config: dict[str, Any]
    size_bytes: int


def make_steps(where: str, codecs: list[tuple[str, dict[str, Any]]], dtype: np.dtype[Any], count: int) -> list[Step]:
    """The codecs in the order in which they packed ``count`` numbers; FormatError for those that are not read."""
    steps, itemsize, extra = [], dtype.itemsize, 0
    unknown = [name for name, _ in codecs if name not in (*FILTERS, *COMPRESSORS)]
    compressors = [name for name, _ in codecs if name in COMPRESSORS]
    if unknown or len(compressors) > 1:
        raise FormatError(f"{where} is stored with {', '.join(unknown or compressors)}, which is not supported")
    for name, config in codecs:
        steps.append(Step(name, config, count * itemsize + extra))
        if name in ("delta", "fixedscaleoffset", "astype"):
            key = "encode_dtype" if name == "astype" else "astype"
            itemsize = number_type(where, config.get(key, config.get("dtype"))).itemsize
            number_type(where, config.get("decode_dtype" if name == "astype" else "dtype"))
        extra += 4 if name == "crc32c" else 0
    if JPEGXL in compressors:
        need("imagecodecs.numcodecs", "zarr").register_codecs()
    return steps


def number_type(where: str, text: Any) -> np.dtype[Any]:
    """A dtype by its name in a file: only numbers, so neither objects nor structures."""
    try:
        found = np.dtype(text) if isinstance(text, str) else None
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise FormatError(f"{where} has dtype {str(text)[:80]!r}; only numeric dtypes are supported")
    return found


def unpack_chunk(data: bytes, steps: list[Step], chunk_bytes: int, where: str) -> Any:
    """The bytes of a chunk without its codecs; FormatError unless they are as many as a chunk has."""
    found: Any = data
    for step in reversed(steps):
        found = _unpack(found, step, where)
    size = memoryview(found).nbytes
    if size != chunk_bytes:
        raise FormatError(f"{where} decompresses to {size} bytes where a chunk has {chunk_bytes}")
    return found


def _unpack(data: Any, step: Step, where: str) -> Any:
    name, config, size = step
    if name in ("gzip", "zlib"):
        return _inflate(data, size, where)
    if name == "crc32c":
        return _checked_crc32c(bytes(data), config, where)
    if name in DECLARED:
        declared = DECLARED[name](memoryview(data), size)
        if declared is not None and declared != size:
            shown = "another size" if declared < 0 else f"{declared} bytes"
            raise FormatError(f"{where} decompresses to {shown} where a chunk has {size}")
    codec = need("numcodecs", "zarr").get_codec({**config, "id": name})
    try:
        found = codec.decode(data)
    except Exception as error:  # codecs have many kinds of errors
        raise FormatError(f"{where} cannot be decompressed: {type(error).__name__}: {error}") from error
    if memoryview(found).nbytes != size:
        raise FormatError(f"{where} decompresses to {memoryview(found).nbytes} bytes where a chunk has {size}")
    return found


def _checked_crc32c(data: bytes, config: dict[str, Any], where: str) -> bytes:
    start = config.get("location") == "start"
    stated, rest = (data[:4], data[4:]) if start else (data[-4:], data[:-4])
    if struct.pack("<I", crc32c(rest)) != stated:
        raise FormatError(f"{where} has a wrong checksum")
    return rest


def _inflate(data: bytes, size: int, where: str) -> bytes:
    """Deflate does not declare its size: unpacked up to one byte more than expected."""
    unpacker = zlib.decompressobj(wbits=47)
    try:
        found = unpacker.decompress(data, size + 1)
        if len(found) <= size and not unpacker.eof:
            found += unpacker.decompress(unpacker.unconsumed_tail, size + 1 - len(found) or 1)
    except zlib.error as error:
        raise FormatError(f"{where} cannot be decompressed: {error}") from error
    if len(found) > size or not unpacker.eof or unpacker.unused_data:
        raise FormatError(f"{where} decompresses to more than the {size} bytes that a chunk has, or is cut off")
    return found


def _blosc_bytes(data: memoryview, size: int) -> int:
    """Head: versions u8 u8, flags u8, type size u8, then u32 each: bytes unpacked, of a block, and packed."""
    if len(data) < 16:
        return -1
    unpacked, _, packed = struct.unpack_from("<III", data, 4)
    return int(unpacked) if packed == len(data) else -1


def _lz4_bytes(data: memoryview, size: int) -> int:
    return int(struct.unpack_from("<I", data)[0]) if len(data) >= 4 else -1


def _zstd_bytes(data: memoryview, size: int) -> int | None:
    """The content size of the one zstd frame that these bytes are; -1 where they are anything else (the codec would
    unpack a second frame too), None where the frame does not declare it and cannot be much larger than ``size``.

    Frame: magic u32 | flags u8 | window u8? | dictionary | content size | blocks | checksum u32?
    Block: last bit 0, type bits 1-2 (1: one byte repeated), size bits 3-23 | content
    """
    if len(data) < 6 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
        return -1
    flags = data[4]
    single = flags >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    declared = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    at += width
    last, most = 0, 0
    while not last and at + 3 <= len(data):
        block = int.from_bytes(data[at : at + 3], "little")
        last = block & 1
        most += block >> 3 if block >> 1 & 3 < 2 else MAX_BLOCK_BYTES
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    at += 4 if flags >> 2 & 1 else 0
    if not last or at != len(data) or most < size or (width and declared > most):
        return -1
    if width == 0:
        return None if most <= size + FREE_BYTES else -1
    return declared


def _jpegxl_bytes(data: memoryview, size: int) -> int | None:
    """None where the picture has no more pixels than the chunk has bytes; -1 otherwise."""
    height, width = _jpegxl_size(bytes(data[:4096]))
    return None if 0 < height * width <= size else -1


def _jpegxl_size(data: bytes) -> tuple[int, int]:
    """(height, width) of the head of a JPEG XL codestream, ``FF 0A``, which may be in a box of a container."""
    at = data.find(b"\xff\x0a")
    bits, place = int.from_bytes(data[at + 2 : at + 14], "little"), 0
    if at < 0:
        return 0, 0

    def take(count: int) -> int:
        nonlocal place
        found = bits >> place & ((1 << count) - 1)
        place += count
        return found

    def side(small: int) -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    small = take(1)
    height = side(small)
    ratio = take(3)
    across, down = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio]
    return height, side(small) if ratio == 0 else height * across // down


DECLARED: dict[str, Callable[[memoryview, int], int | None]] = {
    "blosc": _blosc_bytes,
    "lz4": _lz4_bytes,
    "zstd": _zstd_bytes,
    JPEGXL: _jpegxl_bytes,
}
"""Bytes that packed ones declare to have unpacked: None where they do not, and cannot be many more; -1 where wrong."""


def as_array(data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of a chunk. ``axes``: the order in which they are stored, slowest first."""
    if num_bytes(shape, dtype.itemsize) == 0:
        return np.empty(shape, dtype)
    stored: NDArray[Any] = np.frombuffer(data, dtype).reshape([shape[axis] for axis in axes])
    return np.transpose(stored, np.argsort(axes).tolist())
