"""Arrays of zarr formats 2 and 3: what their metadata declares, and their rows, read chunk by chunk."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.paths import checked_shape, num_bytes
from .codecs import Step, as_array, make_steps, number_type, unpack_chunk
from .files import ARRAY_V2, Files

MAX_CHUNKS_PER_ROW = 1 << 20
ENCODED_TYPE = {"delta": ("astype", "dtype"), "fixedscaleoffset": ("astype", "dtype"), "astype": ("encode_dtype",)}
"""Where the filters that make other numbers have the dtype of these."""
SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""Names of floats that JSON cannot write."""
SLACK_BYTES = 8 << 20
"""What a stored chunk may have above its size: codecs add heads, and pack noise badly."""


@dataclass(frozen=True)
class ArrayInfo:
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    """In the byte order of the file."""
    axes: tuple[int, ...]
    """In the order in which a chunk stores them."""
    fill: Any
    """The value of chunks that are absent."""
    steps: list[Step]
    prefix: str
    """Before the numbers in a chunk's name: ``c/`` in zarr v3."""
    separator: str

    @property
    def chunk_bytes(self) -> int:
        return num_bytes(self.chunks, self.dtype.itemsize)


def array_infos(files: Files, budget: Budget) -> tuple[dict[str, ArrayInfo], list[str]]:
    """Every array of data/ and meta/ by name, checked, and the names of arrays elsewhere."""
    infos, others = {}, []
    for name, file in files.nodes():
        described = files.load(file) or {}
        if not file.endswith(ARRAY_V2) and described.get("node_type") != "array":
            continue
        if name.split("/")[0] not in ("data", "meta") or "/" not in name:
            others.append(name)
            continue
        info = _info_v2(name, described) if file.endswith(ARRAY_V2) else _info_v3(name, described)
        budget.check(f"zarr: {name}: a chunk", info.chunk_bytes)
        infos[name] = info
    return infos, others


def _info_v2(name: str, array: dict[str, Any]) -> ArrayInfo:
    where = f"zarr: {name}"
    filters, compressor = array.get("filters") or [], array.get("compressor")
    described = [*(filters if isinstance(filters, list) else [filters]), *([] if compressor is None else [compressor])]
    codecs = [(_text(codec, "id"), codec if isinstance(codec, dict) else {}) for codec in described]
    shape, chunks = _shapes(where, array.get("shape"), array.get("chunks"))
    axes = tuple(range(len(shape)))
    order = array.get("order", "C")
    if order not in ("C", "F"):
        raise FormatError(f"{where}: order must be C or F, got {str(order)[:80]!r}")
    return _info(where, array.get("dtype"), (shape, chunks, axes if order == "C" else axes[::-1]), codecs,
                 array.get("fill_value"), ("", str(array.get("dimension_separator", "."))))  # fmt: skip


def _info_v3(name: str, array: dict[str, Any]) -> ArrayInfo:
    where = f"zarr: {name}"
    shape, chunks = _shapes(where, array.get("shape"), _config(array.get("chunk_grid")).get("chunk_shape"))
    axes: tuple[int, ...] = tuple(range(len(shape)))
    big = False
    codecs: list[tuple[str, dict[str, Any]]] = []
    for codec in array.get("codecs") or []:
        kind, config = _text(codec, "name").removeprefix("numcodecs."), _config(codec)
        if kind == "bytes":
            big = config.get("endian") == "big"
            _check_order(where, codecs, big)
        elif kind == "transpose" and not codecs and axes == tuple(range(len(shape))):
            axes = checked_shape(f"{where}: transpose", config.get("order"))
            if sorted(axes) != list(range(len(shape))):
                raise FormatError(f"{where}: transpose must be an order of {len(shape)} axes, got {axes}")
        else:
            codecs.append((kind, config))
    if array.get("storage_transformers"):
        raise FormatError(f"{where} has storage transformers, which are not supported")
    keys = array.get("chunk_key_encoding")
    v2 = _text(keys, "name") == "v2"
    separator = str(_config(keys).get("separator", "." if v2 else "/"))
    data_type = array.get("data_type")
    dtype = number_type(where, data_type).newbyteorder(">" if big else "<").str
    return _info(where, dtype, (shape, chunks, axes), codecs, array.get("fill_value"),
                 ("" if v2 else f"c{separator}", separator))  # fmt: skip


def _check_order(where: str, filters: list[tuple[str, dict[str, Any]]], big: bool) -> None:
    """Filters give numbers in the byte order of their own dtype. In another one they are other numbers, also to the
    library that wrote them."""
    for name, config in filters:
        if keys := ENCODED_TYPE.get(name):
            made = number_type(where, next((config[key] for key in keys if key in config), None))
            if made.itemsize > 1 and (made.byteorder == ">") != big:
                raise FormatError(f"{where}: {name} makes {made.str}, and bytes has the other byte order")


def _shapes(where: str, shape: Any, chunks: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes, chunk_sizes = checked_shape(where, shape), checked_shape(f"{where}: chunks", chunks)
    if len(sizes) != len(chunk_sizes) or 0 in chunk_sizes:
        raise FormatError(f"{where} has shape {sizes} and chunks {chunk_sizes}")
    return sizes, chunk_sizes


def _text(described: Any, key: str) -> str:
    return str(described.get(key)) if isinstance(described, dict) else str(described)[:80]


def _config(described: Any) -> dict[str, Any]:
    config = described.get("configuration") if isinstance(described, dict) else None
    return config if isinstance(config, dict) else {}


def _info(
    where: str,
    dtype: Any,
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    codecs: list[tuple[str, dict[str, Any]]],
    fill: Any,
    key: tuple[str, str],
) -> ArrayInfo:
    found = number_type(where, dtype)
    shape, chunks, axes = shapes
    steps = make_steps(where, codecs, found, num_bytes(chunks, 1))
    filled = _fill_value(found.newbyteorder("="), fill)
    if filled is None:
        raise FormatError(f"{where}: fill_value must be a number of dtype {found.name}, got {str(fill)[:80]!r}")
    if key[1] not in (".", "/"):
        raise FormatError(f"{where}: chunks must be named with '.' or '/', got {key[1][:80]!r}")
    return ArrayInfo(shape, chunks, found, axes, filled, steps, *key)


def _fill_value(dtype: np.dtype[Any], fill: Any) -> NDArray[Any] | None:
    """The number of absent chunks, 0 where the file names none; None where the dtype has no such number. Floats may be
    a name or, in format 3, their bits in hexadecimal digits: ``0x7fc00000``."""
    if isinstance(fill, str):
        if dtype.kind != "f":
            return None
        if fill in SPECIAL:
            return np.array(SPECIAL[fill], dtype)
        if not re.fullmatch(f"0x[0-9a-fA-F]{{{2 * dtype.itemsize}}}", fill):
            return None
        return np.array(int(fill, 16), f"u{dtype.itemsize}").view(dtype)
    if fill is None:
        return np.zeros((), dtype)
    if not isinstance(fill, (bool, int, float)):
        return None
    with np.errstate(all="ignore"):
        try:
            found = np.array(fill).astype(dtype)
        except (ValueError, TypeError, OverflowError):
            return None
    rounded = dtype.kind == "f"  # to the nearest float; any other dtype must hold the number itself
    return found if rounded or found.item() == fill else None


@dataclass
class ChunkReader:
    """Reads rows of arrays. What it has unpacked so far may not be far more than what was stored of it."""

    files: Files
    budget: Budget
    unpacked: int = 0
    stored: int = 0
    absent: dict[str, int] = field(default_factory=dict)
    """Chunks without a file, by array: their rows have the fill value."""

    def rows(self, name: str, info: ArrayInfo, begin: int, end: int) -> NDArray[Any]:
        """Rows [begin, end), in the byte order of this machine."""
        counts = tuple(-(-size // chunk) for size, chunk in zip(info.shape[1:], info.chunks[1:], strict=True))
        if num_bytes(counts, 1) > MAX_CHUNKS_PER_ROW:
            raise FormatError(f"zarr: {name} has {num_bytes(counts, 1)} chunks for each row")
        self.budget.check(f"zarr: {name}", num_bytes((end - begin, *info.shape[1:]), info.dtype.itemsize))
        values = np.empty((end - begin, *info.shape[1:]), info.dtype.newbyteorder("="))
        for first in range(begin // info.chunks[0], -(-end // info.chunks[0])):
            low, high = max(begin, first * info.chunks[0]), min(end, (first + 1) * info.chunks[0])
            for rest in np.ndindex(*counts):
                chunk = f"{name}/{info.prefix}" + info.separator.join(str(i) for i in (first, *rest))
                self.budget.count(f"zarr: {chunk}")
                begins = [i * size for i, size in zip(rest, info.chunks[1:], strict=True)]
                ends = [min(at + size, full) for at, size, full in zip(begins, info.chunks[1:], info.shape[1:],
                                                                       strict=True)]  # fmt: skip
                place = (slice(low - begin, high - begin), *map(slice, begins, ends))
                found = self._chunk(chunk, info)
                if found is None:  # a store that is nearly all fill values is a bomb too
                    self._add(f"zarr: {chunk}", values[place].nbytes, 0)
                    values[place] = info.fill
                    self.absent[name] = self.absent.get(name, 0) + 1
                    continue
                inside = (slice(low - first * info.chunks[0], high - first * info.chunks[0]),
                          *(slice(stop - start) for start, stop in zip(begins, ends, strict=True)))  # fmt: skip
                values[place] = found[inside]
        return values

    def _chunk(self, chunk: str, info: ArrayInfo) -> NDArray[Any] | None:
        where = f"zarr: {chunk}"
        data = self.files.read(chunk, info.chunk_bytes + info.chunk_bytes // 8 + SLACK_BYTES)
        if data is None:
            return None
        self.budget.check(where, info.chunk_bytes, len(data))
        self._add(where, info.chunk_bytes, len(data))
        return as_array(unpack_chunk(data, info.steps, info.chunk_bytes, where), info.dtype, info.chunks, info.axes)

    def _add(self, where: str, unpacked: int, stored: int) -> None:
        self.unpacked += unpacked
        self.stored += stored
        self.budget.check(f"{where}, with the chunks before it,", self.unpacked, self.files.stored(self.stored))
