"""What a zarr store says of its arrays, read before zarr opens them: no objects, no unknown codecs, no bombs."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .._core import FormatError
from .._episode import DTYPES, JSON
from ._budget import Budget
from ._json import parse_json
from ._paths import Tree, checked_shape, need, num_bytes, open_regular, regular

SIZED = ("blosc", "zstd", "lz4")
"""Codecs whose chunks begin with their size."""
FILTERS = ("delta", "shuffle", "fixedscaleoffset", "astype", "bitround", "crc32c", "bytes", "transpose")
JPEGXL = "imagecodecs_jpegxl"
MAX_METADATA_BYTES = 16 << 20
UNKNOWN_BYTES = 1 << 62


@dataclass(frozen=True)
class ArrayInfo:
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    codec: str
    """The compressor, or an empty string."""
    prefix: str
    """Before the numbers in a chunk's name: ``c/`` in zarr v3."""
    separator: str


class Files(ABC):
    """The files of a store by name."""

    budget: Budget

    @abstractmethod
    def names(self) -> list[str]: ...
    @abstractmethod
    def size(self, name: str) -> int | None:
        """None where there is no such file."""

    @abstractmethod
    def read(self, name: str, num_bytes: int) -> bytes: ...
    @abstractmethod
    def group(self) -> Any: ...
    @abstractmethod
    def paths(self) -> list[Path]: ...
    @abstractmethod
    def stored_bytes(self) -> int: ...

    def attributes(self) -> JSON:
        for name in (".zattrs", "zarr.json"):
            if self.size(name) is not None:
                found = self.load(name)
                return found.get("attributes", {}) if name == "zarr.json" else found
        return {}

    def load(self, name: str) -> dict[str, Any]:
        if (self.size(name) or 0) > MAX_METADATA_BYTES:
            raise FormatError(f"zarr: {name} is larger than {MAX_METADATA_BYTES} bytes")
        try:
            data = self.read(name, MAX_METADATA_BYTES)
        except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError) as error:
            raise FormatError(f"zarr: {name} cannot be read: {error}") from error
        found = parse_json(data, f"zarr: {name}", self.budget)
        if not isinstance(found, dict):
            raise FormatError(f"zarr: {name} must be an object")
        return found


class FolderFiles(Files):
    def __init__(self, tree: Tree, budget: Budget) -> None:
        self.tree = tree
        self.budget = budget
        for path in tree.root.rglob("*"):
            if path.is_symlink():
                tree.check(path)

    def names(self) -> list[str]:
        found = [p for name in (".zarray", "zarr.json") for p in self.tree.root.rglob(name)]
        return [path.relative_to(self.tree.root).as_posix() for path in found]

    def size(self, name: str) -> int | None:
        path = self.tree.root / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str, num_bytes: int) -> bytes:
        with open_regular(self.tree.inside(name)) as file:
            return file.read(num_bytes)

    def group(self) -> Any:
        return need("zarr", "zarr").open_group(str(self.tree.root), mode="r")

    def paths(self) -> list[Path]:
        return self.tree.glob("**/*")

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths())


class ZipFiles(Files):
    """A zip of a store. Nothing is unpacked to disk."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        self.budget = budget
        self._archive: zipfile.ZipFile | None = None
        self._pid = -1
        try:
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                self._members = {member.filename: member for member in archive.infolist()}
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise FormatError(f"zarr: {path} is not a readable zip: {error}") from error
        for name, member in self._members.items():
            if name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name:
                raise FormatError(f"zarr: {path}: the member {name[:200]!r} leads out of the archive")
            budget.check(f"zarr: {path}: {name}", member.file_size, member.compress_size)

    def names(self) -> list[str]:
        return [name for name in self._members if name.rpartition("/")[2] in (".zarray", "zarr.json")]

    def size(self, name: str) -> int | None:
        return self._members[name].file_size if name in self._members else None

    def read(self, name: str, num_bytes: int) -> bytes:
        if self._archive is None or self._pid != os.getpid():  # processes must not share a place in the file
            regular(self.path)
            self._archive, self._pid = zipfile.ZipFile(self.path), os.getpid()
        with self._archive.open(name) as file:
            return file.read(num_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def group(self) -> Any:
        zarr = need("zarr", "zarr")
        store = zarr.storage.ZipStore if hasattr(zarr, "storage") else zarr.ZipStore
        return zarr.open_group(store(str(self.path), mode="r"), mode="r")

    def paths(self) -> list[Path]:
        return [self.path]

    def stored_bytes(self) -> int:
        return self.path.stat().st_size


def array_infos(files: Files, budget: Budget) -> dict[str, ArrayInfo]:
    """Every array of data/ and meta/ by name, checked."""
    infos = {}
    for file in files.names():
        name, _, last = file.rpartition("/")
        if name.split("/")[0] not in ("data", "meta") or "/" not in name:
            continue
        described = files.load(file)
        if last == "zarr.json" and described.get("node_type") != "array":
            continue
        info = _info_v2(name, described) if last == ".zarray" else _info_v3(name, described)
        budget.check(f"zarr: {name}: a chunk", num_bytes(info.chunks, info.dtype.itemsize))
        infos[name] = info
    return infos


def _info_v2(name: str, array: dict[str, Any]) -> ArrayInfo:
    filters = [_field(f, "id") for f in array.get("filters") or []]
    codec = _field(array["compressor"], "id") if array.get("compressor") is not None else ""
    separator = str(array.get("dimension_separator", "."))
    return _info(name, array.get("shape"), array.get("chunks"), array.get("dtype"), filters, codec, ("", separator))


def _info_v3(name: str, array: dict[str, Any]) -> ArrayInfo:
    names = [_field(codec, "name").removeprefix("numcodecs.") for codec in array.get("codecs", [])]
    compressors = [codec for codec in names if codec not in FILTERS]
    if len(compressors) > 1:
        raise FormatError(f"zarr: {name} has several compressors, {', '.join(compressors)}")
    grid = array.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    separator = str(array.get("chunk_key_encoding", {}).get("configuration", {}).get("separator", "/"))
    codec = compressors[0] if compressors else ""
    return _info(name, array.get("shape"), grid, array.get("data_type"), [], codec, (f"c{separator}", separator))


def _field(described: Any, key: str) -> str:
    return str(described.get(key)) if isinstance(described, dict) else str(described)[:80]


def _info(
    name: str, shape: Any, chunks: Any, dtype: Any, filters: list[str], codec: str, key: tuple[str, str]
) -> ArrayInfo:
    try:
        found = np.dtype(dtype) if isinstance(dtype, str) else None
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:  # also refuses objects, which zarr would unpickle
        raise FormatError(f"zarr: {name} has dtype {str(dtype)[:80]!r}; only numbers are read")
    unknown = [f for f in filters if f not in FILTERS]
    if unknown or codec not in ("", *SIZED, "zlib", "gzip", JPEGXL):
        raise FormatError(f"zarr: {name} is stored with {', '.join([*unknown, codec])}, which is not read")
    if codec == JPEGXL:
        need("imagecodecs.numcodecs", "zarr").register_codecs()
    sizes, chunk_sizes = checked_shape(f"zarr: {name}", shape), checked_shape(f"zarr: {name}: chunks", chunks)
    if len(sizes) != len(chunk_sizes) or 0 in chunk_sizes:
        raise FormatError(f"zarr: {name} has shape {sizes} and chunks {chunk_sizes}")
    return ArrayInfo(sizes, chunk_sizes, found, codec, *key)


def check_chunks(files: Files, name: str, info: ArrayInfo, begin: int, end: int, budget: Budget) -> None:
    """FormatError where a chunk of the rows [begin, end) would unpack to more than a chunk is."""
    expected = num_bytes(info.chunks, info.dtype.itemsize)
    grid = [range(-(-size // chunk)) for size, chunk in zip(info.shape[1:], info.chunks[1:], strict=True)]
    counts = tuple(len(axis) for axis in grid)
    if num_bytes(counts, 1) > 1 << 20:
        raise FormatError(f"zarr: {name} has {num_bytes(counts, 1)} chunks for each row")
    missing = 0
    for first in range(begin // info.chunks[0], -(-end // info.chunks[0])):
        for rest in np.ndindex(*counts):
            chunk = f"{name}/{info.prefix}" + info.separator.join(str(i) for i in (first, *rest))
            size = files.size(chunk)
            if size is None:  # zarr fills it; a store that is nearly all fill values is a bomb too
                missing += expected
                budget.check(
                    f"zarr: {name}: absent chunks", missing, files.stored_bytes() if missing > 1 << 26 else None
                )
                continue
            where = f"zarr: {chunk}"
            if info.codec in ("gzip", "zlib"):
                _check_deflated(where, files.read(chunk, size), expected)
            elif (
                declared := _declared_bytes(files.read(chunk, size if info.codec == "zstd" else 32), info.codec)
            ) is not None and declared > expected:
                raise FormatError(f"{where} unpacks to {declared} bytes where a chunk has {expected}")


def _check_deflated(where: str, data: bytes, expected: int) -> None:
    """Deflate does not say how much it unpacks to; so it is unpacked piece by piece, and thrown away."""
    unpacker = zlib.decompressobj(wbits=47)
    total = 0
    try:
        while data and total <= expected:
            total += len(unpacker.decompress(data, 1 << 20))
            data = unpacker.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"{where}: {error}") from error
    if total > expected or unpacker.unused_data:
        raise FormatError(f"{where} unpacks to more than the {expected} bytes that a chunk has")


def _declared_bytes(head: bytes, codec: str) -> int | None:
    """The unpacked size that a chunk's first bytes give."""
    if codec == "blosc":  # version, version of the codec, flags, type size, then sizes: unpacked, block, packed
        return int(struct.unpack_from("<I", head, 4)[0]) if len(head) >= 16 else UNKNOWN_BYTES
    if codec == "lz4":
        return int(struct.unpack_from("<I", head)[0]) if len(head) >= 4 else UNKNOWN_BYTES
    if codec == "zstd":
        return _zstd_bytes(head)
    return None


def _zstd_bytes(data: bytes) -> int:
    """The content size of the one zstd frame that these bytes are; too large a number where they are anything else:
    the codec would unpack a second frame too.

    Frame: magic u32 | flags u8 | window u8? | dictionary | content size | blocks | checksum u32?
    Block: last bit 0, type bits 1-2 (1: one byte repeated), size bits 3-23 | content
    """
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        return UNKNOWN_BYTES
    flags = data[4]
    single = flags >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    if width == 0:
        return UNKNOWN_BYTES
    declared = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    at += width
    last = 0
    while not last and at + 3 <= len(data):
        block = int.from_bytes(data[at : at + 3], "little")
        last = block & 1
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    at += 4 if flags >> 2 & 1 else 0
    return declared if last and at == len(data) else UNKNOWN_BYTES
