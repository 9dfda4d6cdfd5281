"""Encoded pictures of a stream: bytes as they were recorded, what they must be, and their pixels."""

from __future__ import annotations

import io
import re
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import FormatError, picture_kinds
from ..ops.decode import PictureIndex, decode_images, index_pictures
from ..ops.decode.index import MAX_PIXELS
from ..ops.decode.png import decode_png
from ..ops.decode.video import DECODERS
from .depth_codes import CODES, codes_problem, depth_of_codes

if TYPE_CHECKING:
    from .episode import StreamSpec

VIDEO_CODECS = tuple(DECODERS)
CODECS = {"jpeg": "image/jpeg", "png": "image/png"}
"""Codec: media type."""
KINDS = ("jpeg", None, "png", None)
"""Codec of each number that ``picture_kinds`` returns; None: JPEG of another kind (progressive, CMYK), and unknown."""
PNG = b"\x89PNG\r\n\x1a\n"
DECODED_BYTES = 64 << 20
"""Most pixels that are decoded at once where they are looked at one after the other."""
CACHED_BYTES = 8 << 20
"""About as many as stay in the cache of a processor; memory of this size is used again instead of new pages."""


def codec_of(picture: bytes) -> str | None:
    """``"jpeg"`` where the native decoder reads it, ``"png"``, or None: another JPEG, or something else."""
    data = np.frombuffer(picture, np.uint8)
    return KINDS[picture_kinds("codec_of", data, np.array([0, len(data)], np.int64))[0]]


def codec_problem(
    codec: str, kind: str, dtype: str, shape: tuple[int, ...], meta: Mapping[str, Any] | None = None
) -> str:
    """Why a stream cannot be encoded so, for a message; empty if it can. ``meta``: of its spec, where there is one."""
    if codec not in CODECS and codec not in VIDEO_CODECS:
        return f"codec must be one of {', '.join((*CODECS, *VIDEO_CODECS))} or None, got {codec!r}"
    if codec == "png" and kind == "depth" and dtype == "float32" and len(shape) == 2 and meta and CODES in meta:
        return codes_problem(meta)
    channels = shape[2] if len(shape) == 3 else 1 if len(shape) == 2 else 0
    if codec in VIDEO_CODECS:
        fits = kind == "image" and dtype == "uint8" and len(shape) == 3 and channels == 3
        what = "uint8 images with 3 channels"
    elif codec == "jpeg":
        fits = kind == "image" and dtype == "uint8" and channels in (1, 3)
        what = "uint8 images with 1 or 3 channels"
    else:
        fits = (kind == "image" and dtype == "uint8" and channels in (1, 3, 4)) or (
            kind == "depth" and dtype == "uint16" and len(shape) == 2
        )
        what = "uint8 images with 1, 3 or 4 channels, or uint16 depth (height, width)"
    return "" if fits else f"codec {codec!r} must be for {what}, got {dtype} {kind} of shape {shape}"


class Pictures:
    """Encoded pictures: ``data (bytes,)`` uint8, and picture m is ``[splits[m], splits[m + 1])``. Immutable."""

    def __init__(self, data: NDArray[np.uint8], splits: NDArray[np.int64], index: Any = None) -> None:
        """``index``: of JPEG pictures, a ``PictureIndex`` or its bytes; None: it is made where it is needed."""
        self.data, self.splits = np.asarray(data), np.asarray(splits)
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise ValueError(f"pictures: bytes must be (n,) uint8, got {self.data.dtype} {self.data.shape}")
        if self.splits.dtype != np.int64 or self.splits.ndim != 1 or len(self.splits) == 0:
            raise ValueError(f"pictures: splits must be (n + 1,) int64, got {self.splits.dtype} {self.splits.shape}")
        if self.splits[0] != 0 or self.splits[-1] != len(self.data) or bool((np.diff(self.splits) < 0).any()):
            raise ValueError(f"pictures: splits must rise from 0 to {len(self.data)}")
        self._index = index

    @classmethod
    def of(cls, given: Any) -> Pictures:
        """From a list of ``bytes``, or from ``(bytes, splits)``: arrays."""
        if isinstance(given, Pictures):
            return given
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], np.ndarray):
            return cls(*given)
        if not isinstance(given, Sequence) or not all(isinstance(x, bytes | bytearray | memoryview) for x in given):
            raise ValueError(
                f"pictures: must be a list of bytes or (bytes, splits), got {type(given).__name__}; decoded pixels "
                "are stored where the codec of the stream is None"
            )
        buffer = PictureBuffer()
        for picture in given:
            buffer.add(picture)
        return buffer.pictures()

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, rows: Any) -> Pictures:
        """Some of the pictures, by a slice, a mask or numbers, in their order."""
        picked = np.arange(len(self))[rows]
        parts = [self.data[self.splits[i] : self.splits[i + 1]] for i in picked.tolist()]
        sizes = np.diff(self.splits)[picked]
        data = np.concatenate(parts) if parts else self.data[:0]
        index = None if self._index is None else PictureIndex.join([self.index], picked)
        return Pictures(data, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), index)

    def __iter__(self) -> Iterator[bytes]:
        return (self.picture(i) for i in range(len(self)))

    def picture(self, i: int) -> bytes:
        return self.data[self.splits[i] : self.splits[i + 1]].tobytes()

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def index(self) -> PictureIndex:
        """Of JPEG pictures. Made once, which reads every scan to its end: FormatError for a damaged picture."""
        if self._index is None:
            self._index = index_pictures((self.data, self.splits))
        elif not isinstance(self._index, PictureIndex):
            self._index = PictureIndex.from_bytes(self._index)
        if len(self._index) != len(self):
            raise FormatError(f"pictures: the index must have {len(self)} pictures, got {len(self._index)}")
        return self._index

    def decoded(self, spec: StreamSpec, rows: Iterable[int] | None = None) -> NDArray[Any]:
        """Pixels ``(n, *spec.shape)`` of all pictures, or of these."""
        if rows is not None and (spec.codec != "jpeg" or self._index is None):
            return self[list(rows)].decoded(spec)
        picked = None if rows is None else np.fromiter(rows, np.int64)
        count = len(self) if picked is None else len(picked)
        if count == 0:
            return np.empty((0, *spec.shape), spec.numpy_dtype)
        channels = spec.shape[2] if len(spec.shape) == 3 else 1
        try:
            if channels == 4:
                pixels: Any = [_rgba(picture, i) for i, picture in enumerate(self)]
                pixels = np.stack(pixels) if len({p.shape for p in pixels}) == 1 else pixels
            elif spec.kind == "depth":
                pixels = decode_images((self.data, self.splits), dtype="uint16")
                if spec.dtype == "float32" and isinstance(pixels, np.ndarray):
                    pixels = depth_of_codes(pixels, spec.meta)
            else:
                index = self.index if spec.codec == "jpeg" and self._index is not None else None
                pixels = decode_images((self.data, self.splits), channels=channels, index=index, rows=picked)
        except (ValueError, NotImplementedError) as error:
            raise FormatError(f"stream {spec.name!r}: {error}") from error
        except FormatError as error:
            raise FormatError(f"stream {spec.name!r}: {error}") from None
        sizes = {pixels.shape[1:3]} if isinstance(pixels, np.ndarray) else {p.shape[:2] for p in pixels}
        if sizes != {tuple(spec.shape[:2])}:
            raise FormatError(f"stream {spec.name!r}: pictures must be {spec.shape[:2]}, got {sorted(sizes)}")
        return np.asarray(pixels).reshape(count, *spec.shape)

    def problems(self, spec: StreamSpec) -> dict[int, str]:
        """``{number of a picture: what is wrong with it}``. Reads every byte; empty where all can be stored."""
        found: dict[int, str] = {}
        if spec.codec == "png":
            for i, picture in enumerate(self):
                if problem := png_problem(picture, spec.shape, spec.dtype):
                    found[i] = problem
            return found
        try:
            shapes = self.index.shapes_of()
        except (FormatError, NotImplementedError) as error:
            bad = re.search(r"pictures\[(\d+)\] (.*)", str(error), re.S)
            if bad is None or len(self) == 1:
                return {0: bad[2] if bad else str(error)}
            # Only the first fault is in the message: each picture by itself, which is slow, but rare.
            alone = ((i, self[i : i + 1].problems(spec)) for i in range(len(self)))
            return {i: problem[0] for i, problem in alone if problem}
        expected = (*spec.shape[:2], spec.shape[2] if len(spec.shape) == 3 else 1)
        for i in np.flatnonzero((shapes != np.array(expected)).any(axis=1)).tolist():
            shape = shapes[i].tolist()
            found[i] = f"must be {_size(spec.shape)} as the stream, got {_size(shape)}"
            if shape[:2] == list(spec.shape[:2]):
                found[i] = f"must have as many channels as the stream ({expected[2]}), got {shape[2]}"
        return found


class PictureBuffer:
    """Joins pictures that come one by one. Its memory grows in place, so that a long episode is copied once."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("q", [0])

    def add(self, picture: bytes | bytearray | memoryview) -> None:
        self._data += picture
        self._ends.append(len(self._data))

    def pictures(self) -> Pictures:
        """All pictures so far, without a copy. Nothing can be added afterwards."""
        data = np.frombuffer(self._data, np.uint8)
        data.flags.writeable = False
        return Pictures(data, np.frombuffer(self._ends, np.int64))


def _size(shape: Sequence[int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def _rgba(picture: bytes, i: int) -> NDArray[np.uint8]:
    pixels = decode_png(picture, f"pictures[{i}]", MAX_PIXELS)
    if pixels is not None and pixels.ndim == 3 and pixels.shape[2] == 4:
        return pixels
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture), formats=("PNG",)) as image:
            return np.asarray(image.convert("RGBA"), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FormatError(f"pictures[{i}] must be a whole picture, got {error}") from error


def png_problem(picture: bytes, shape: Sequence[int], dtype: str) -> str:
    """What is wrong with a PNG: its size, its bits, or a part that is missing or damaged.

    Part: length u32 | name | content | crc u32.
    """
    if not picture.startswith(PNG) or len(picture) < 33 or picture[12:16] != b"IHDR":
        return "must be a PNG"
    width, height = struct.unpack_from(">II", picture, 16)
    if (height, width) != tuple(shape[:2]):
        return f"must be {_size(shape)} as the stream, got {height} x {width}"
    if dtype == "uint8" and picture[24] == 16:
        return "must have 8 bits per channel as the stream, got 16"
    at, has_pixels = len(PNG), False
    view = memoryview(picture)
    while at + 12 <= len(picture):
        length, name = struct.unpack_from(">I4s", picture, at)
        end = at + 12 + length
        if end > len(picture):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != struct.unpack_from(">I", picture, end - 4)[0]:
            return f"must be undamaged, got a wrong checksum of the part at byte {at}"
        has_pixels = has_pixels or name == b"IDAT"
        if name == b"IEND":
            return "" if has_pixels else "must have pixels, got none"
        at = end
    return f"must be whole, got {len(picture)} bytes without an end"


class PictureStatistics:
    """Statistics of at most 512 pictures, evenly spread over all that pass by: every ``stride``-th, from the first.

    Which ones depends on their number alone, so that a resumed ingest has the same numbers. They are decoded at the
    end, or earlier where their bytes take too much memory. Of each 8-bit picture a histogram is kept then, of each
    16-bit picture 4,096 evenly spread pixels.
    """

    MOST = 512
    PIXELS = 4096
    MOST_BYTES = 256 << 20

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.stride = 1
        self.seen = 0
        self.encoded: dict[int, bytes] = {}
        self.kept: dict[int, NDArray[Any]] = {}

    def choose(self, count: int) -> range:
        """The numbers of the next ``count`` pictures that are kept; drops earlier ones where there are too many."""
        while True:
            new = range(-(-self.seen // self.stride) * self.stride, self.seen + count, self.stride)
            if len(self.encoded) + len(self.kept) + len(new) <= self.MOST:
                return new
            self.stride *= 2
            self.encoded = {number: x for number, x in self.encoded.items() if number % self.stride == 0}
            self.kept = {number: x for number, x in self.kept.items() if number % self.stride == 0}

    def add(self, pictures: Pictures) -> None:
        new = self.choose(len(pictures))
        self.encoded |= {number: pictures.picture(number - self.seen) for number in new}
        self.seen += len(pictures)
        if sum(map(len, self.encoded.values())) > self.MOST_BYTES:
            self.decode()

    def decode(self) -> None:
        numbers = sorted(self.encoded)
        row_bytes = max(1, self.spec.row_bytes)
        few = max(CACHED_BYTES // row_bytes, 4 * _core.num_threads())
        step = max(1, min(DECODED_BYTES // row_bytes, few))
        for first in range(0, len(numbers), step):
            part = numbers[first : first + step]
            pixels = Pictures.of([self.encoded[number] for number in part]).decoded(self.spec)
            self.kept.update(zip(part, map(self.summary, pixels), strict=True))
        self.encoded = {}

    def summary(self, picture: NDArray[Any]) -> NDArray[Any]:
        if self.spec.dtype != "uint8":
            flat = picture.reshape(-1)
            return np.array(flat[:: -(-len(flat) // self.PIXELS)])
        rows = np.ascontiguousarray(picture).reshape(-1, picture.shape[2] if picture.ndim == 3 else 1)
        counts = np.zeros((rows.shape[1], 256), np.int64)
        _core.count_bytes(rows, counts)
        return counts.astype(np.uint32)

    def result(self) -> dict[str, Any]:
        """As ``Statistics.result``, and ``sampled``: how many pictures of how many."""
        from .statistics import Statistics

        self.decode()
        statistics = Statistics(self.spec)
        for _, values in sorted(self.kept.items()):
            if statistics.histogram is not None:
                statistics.histogram += values
            else:
                statistics.add(values)
        return statistics.result() | {"sampled": {"pictures": len(self.kept), "of": self.seen}}
