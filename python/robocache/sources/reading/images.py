"""Encoded pictures: PNG and JPEG to uint8 (height, width, channels), with the work checked before they are decoded."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError, jpeg_shape
from ...cache.episode import StreamSpec
from ...cache.pictures import codec_of, codec_problem
from ...ops.decode import decode_images
from ...ops.decode.other_formats import CONVERT, SCAN, SIZE_MARKERS, is_scan_bomb, jpeg_markers
from ...ops.decode.png import is_wide_color, packed_pixels
from .budget import Budget
from .paths import need

MAX_PICTURE_BYTES = 256 << 20
"""Of an encoded picture."""
MODES = {"L": 1, "RGB": 3, "RGBA": 4}
PNG = b"\x89PNG\r\n\x1a\n"
PNG_PARTS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
"""The parts that decide what the pixels are. Texts and profiles may be bombs of their own, so they are left out."""
JPEG = b"\xff\xd8"


def picture_size(data: bytes, extra: str, where: str, budget: Budget) -> tuple[tuple[int, ...], str]:
    """(height, width, channels) and dtype of an encoded picture, from its header."""
    if codec_of(data) == "jpeg":  # its header is valid: Pillow, which takes a tenth of a millisecond, is not needed
        return _jpeg_shape(data, where, budget), "uint8"
    with _opened(data, extra, where, budget) as image:
        if (channels := _channels(image.mode)) == 0:
            return (image.height, image.width), "uint16" if image.mode.startswith("I") else "float32"
        return (image.height, image.width, channels), "uint8"


def _channels(mode: str) -> int:
    """Of a picture with this mode of Pillow; 0 for depth."""
    return 0 if mode.startswith("I") or mode == "F" else MODES.get(mode, 3)


def _kind(channels: int) -> str:
    return f"{channels} channels of 8 bits" if channels else "depth of 16 bits"


def decode_picture(data: bytes, shape: tuple[int, ...], extra: str, where: str, budget: Budget) -> NDArray[Any]:
    """The picture, which must have that shape; 16-bit grey pictures (depth) give uint16 (height, width)."""
    if codec_of(data) == "jpeg" and len(shape) == 3 and shape[2] in (1, 3):
        return _decoded_jpeg(data, shape, where, budget)
    if data.startswith(PNG):  # Pillow does not compare the checksums of pixels
        packed_pixels(data, f"{where}: the image cannot be decoded: it")
    with _opened(data, extra, where, budget) as image:
        _check_shape((image.height, image.width, _channels(image.mode)), shape, where)
        try:
            if len(shape) == 2:
                return np.asarray(image).astype(np.uint16 if image.mode.startswith("I") else np.float32)
            mode = next((mode for mode, channels in MODES.items() if channels == shape[2]), "RGB")
            pixels = np.asarray(image if image.mode == mode else image.convert(mode), np.uint8)
        except (OSError, ValueError, SyntaxError) as error:
            raise FormatError(f"{where}: the image cannot be decoded: {error}") from error
    return pixels.reshape(shape)


def _check_shape(have: tuple[int, int, int], shape: tuple[int, ...], where: str) -> None:
    if have[:2] != tuple(shape[:2]):
        raise FormatError(f"{where}: the image is {have[0]} x {have[1]}, but the stream has {shape[0]} x {shape[1]}")
    want = shape[2] if len(shape) == 3 else 0
    if have[2] > want or (have[2] == 0 and want > 0):  # less would be stored than was recorded
        raise FormatError(f"{where}: the image has {_kind(have[2])}, but the stream has {_kind(want)}")


def _decoded_jpeg(data: bytes, shape: tuple[int, ...], where: str, budget: Budget) -> NDArray[Any]:
    """By the native decoder, which refuses a damaged scan. Pillow gives other pixels for it, and no error."""
    _check_shape(_jpeg_shape(data, where, budget), shape, where)
    try:
        (pixels,) = decode_images([data], channels=shape[2], max_pixels=shape[0] * shape[1])
    except FormatError as error:
        raise FormatError(f"{where}: the image cannot be decoded: it {str(error).partition('[0] ')[2]}") from None
    return np.asarray(pixels)


PICTURES = "pictures"
"""Key of ``StreamSpec.meta``: why pixels of a source that keeps encoded pictures are not encoded."""
RAW_PICTURES = "raw camera messages"
DECODED_DEPTH = "depth that is stored decoded (RVL, TIFF or video)"
OTHER_PICTURES = "pictures that are stored decoded (progressive or CMYK JPEG, or another kind of PNG)"
WIDE_PICTURES = "PNG of 16 bits per channel in color, decoded to 8 bits: the lower 8 are lost"


def not_encoded(spec: StreamSpec) -> str | None:
    """Why the pictures of a stream are not encoded, if a source that keeps encoded pictures says so."""
    mark = spec.meta.get(PICTURES)
    return mark if mark in (RAW_PICTURES, OTHER_PICTURES, WIDE_PICTURES, DECODED_DEPTH) else None


def stored_codec(data: bytes, kind: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """The codec of a stream whose first picture this is; None where such pictures cannot be stored as they are."""
    codec = _codec_of(data)
    return None if codec is None or codec_problem(codec, kind, dtype, shape) else codec


def mark_of(data: bytes, encoded: bool) -> dict[str, str]:
    """For the ``meta`` of a stream whose first picture this is, without a ``stored_codec``. ``encoded``: the source
    keeps encoded pictures where it can."""
    if is_wide_color(data):
        return {PICTURES: WIDE_PICTURES}
    return {PICTURES: OTHER_PICTURES} if encoded else {}


def _codec_of(data: bytes) -> str | None:
    return None if is_wide_color(data) else codec_of(data)


def encoded_picture(data: bytes, spec: StreamSpec, extra: str, where: str, budget: Budget) -> bytes:
    """The same bytes, if the picture is what the stream has: of its size, dtype and codec, by its header."""
    shape, dtype = picture_size(data, extra, where, budget)
    if (shape, dtype) != (spec.shape, spec.dtype):
        raise FormatError(f"{where}: the image is {dtype} {shape}, but the stream has {spec.dtype} {spec.shape}")
    codec = _codec_of(data)
    if codec != spec.codec:
        raise FormatError(other_codec(where, codec, spec.codec))
    return data


def other_codec(where: str, codec: str | None, first: str | None) -> str:
    """The message for a picture that is encoded in another way than the first of its stream."""
    other = "of another kind (progressive or CMYK JPEG, or a color PNG of 16 bits)"
    names = {"jpeg": "JPEG", "png": "PNG", None: other}
    return (
        f"{where}: the picture is {names.get(codec, codec)}, but the first of its stream is "
        f"{names.get(first, first)}; to store pixels "
        'instead, pass images="raw" to ingest'
    )


def _opened(data: bytes, extra: str, where: str, budget: Budget) -> Any:
    pillow = need("PIL.Image", extra)
    budget.count(where)
    budget.check_time(where)
    try:
        plain = checked_picture(data, where, budget)
        return pillow.open(io.BytesIO(plain), formats=("PNG", "JPEG"))
    except FormatError:
        raise
    except (OSError, ValueError, SyntaxError, struct.error, pillow.DecompressionBombError) as error:
        raise FormatError(f"{where}: neither a PNG nor a JPEG image: {error}") from error


def _jpeg_shape(data: bytes, where: str, budget: Budget) -> tuple[int, int, int]:
    """Of a JPEG whose header the native decoder accepts. Its scan is read when it is indexed."""
    _check_length(data, where)
    budget.count(where)
    budget.check_time(where)
    shape = jpeg_shape("picture_size", np.frombuffer(data, np.uint8))
    if shape is None:
        raise FormatError(f"{where}: the picture is not a JPEG that can be decoded")
    budget.check(where, shape[0] * shape[1] * 4, len(data))
    return shape


def _check_length(data: bytes, where: str) -> None:
    if len(data) > MAX_PICTURE_BYTES:
        raise FormatError(f"{where}: the picture has {len(data)} bytes, more than {MAX_PICTURE_BYTES}")


def checked_picture(data: bytes, where: str, budget: Budget) -> bytes:
    """The picture without parts that its pixels do not need; FormatError where decoding would take too much.

    Raises ValueError, IndexError or struct.error where the parts do not fit together.
    """
    _check_length(data, where)
    if data.startswith(PNG):
        return _checked_png(data, where, budget)
    if data.startswith(JPEG):
        _check_jpeg(data, where, budget)
        return data
    raise ValueError("unknown file signature")


def _checked_png(data: bytes, where: str, budget: Budget) -> bytes:
    """Part: length u32 | name | content | checksum u32."""
    width, height = struct.unpack_from(">II", data, 16)
    budget.check(where, height * width * 4, len(data))
    at, kept, dropped = len(PNG), [PNG], False
    while at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        if length > len(data) - at - 12:
            break  # cut off: the decoder says so
        budget.count(where)
        if name in PNG_PARTS:
            kept.append(data[at : at + 12 + length])
        else:
            dropped = True
        at += 12 + length
        if name == b"IEND":
            break
    return b"".join([*kept, data[at:]]) if dropped else data


def _check_jpeg(data: bytes, where: str, budget: Budget) -> None:
    pixels = scans = 0
    for marker, at in jpeg_markers(data):
        budget.count(where)
        if marker in SIZE_MARKERS:
            bits, height, width = struct.unpack_from(">BHH", data, at + 2)
            if bits != 8:
                raise FormatError(f"{where}: the picture is a JPEG of {bits} bits per sample, {CONVERT}")
            pixels = height * width
            budget.check(where, pixels * 4, len(data))
        scans += marker == SCAN
        if is_scan_bomb(scans, pixels):
            raise FormatError(f"{where}: a JPEG of {pixels} pixels in more than {scans - 1} scans, rejected as a bomb")
