"""The records of an MCAP file: read with the mcap package, chunks unpacked here, never further than they declare."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core import FormatError
from ._budget import Budget
from ._paths import need, open_regular

MAGIC = b"\x89MCAP0\r\n"
MAX_RECORD_BYTES = 1 << 30
MAX_WINDOW_BYTES = 128 << 20
"""What zstd may keep of the past; more than its encoder uses at any level."""


@dataclass(frozen=True)
class Topic:
    name: str
    schema: str
    encoding: str


def read_topics(path: Path, budget: Budget) -> list[Topic]:
    """The topics of the file: from its summary where it has one, else from all of it."""
    reader = need("mcap.reader", "mcap")
    try:
        with open_regular(path) as file:
            summary = reader.SeekingReader(file, record_size_limit=MAX_RECORD_BYTES).get_summary()
    except Exception as error:  # a truncated file has no summary; whether it can be read shows below
        if not path.is_file():
            raise FormatError(f"mcap: {path}: {error}") from error
        summary = None
    if summary is not None and summary.channels:
        for chunk in summary.chunk_indexes:
            budget.check(f"mcap: {path}: a chunk", chunk.uncompressed_size, chunk.compressed_size)
        names = {number: schema.name for number, schema in summary.schemas.items()}
        channels = summary.channels.values()
        return [Topic(c.topic, names.get(c.schema_id, ""), c.message_encoding) for c in channels]
    found: dict[str, Topic] = {}
    for schema, channel in _channels(path, budget):
        found[channel.topic] = Topic(channel.topic, "" if schema is None else schema.name, channel.message_encoding)
    return list(found.values())


def _channels(path: Path, budget: Budget) -> Iterator[tuple[Any, Any]]:
    records = need("mcap.records", "mcap")
    schemas: dict[int, Any] = {}
    for record in _records(path, budget):
        if isinstance(record, records.Schema):
            schemas[record.id] = record
        elif isinstance(record, records.Channel):
            yield schemas.get(record.schema_id), record


def read_messages(path: Path, topics: set[str], budget: Budget) -> Iterator[tuple[Any, Any, Any]]:
    """(schema, channel, message) of these topics, in the order of the file."""
    records = need("mcap.records", "mcap")
    schemas: dict[int, Any] = {}
    channels: dict[int, Any] = {}
    for record in _records(path, budget):
        if isinstance(record, records.Message):
            channel = channels.get(record.channel_id)
            if channel is None:
                raise FormatError(f"mcap: {path}: a message of channel {record.channel_id}, which is not declared")
            if channel.topic in topics:
                yield schemas.get(channel.schema_id), channel, record
        elif isinstance(record, records.Schema):
            schemas[record.id] = record
        elif isinstance(record, records.Channel):
            channels[record.id] = record


def _records(path: Path, budget: Budget) -> Iterator[Any]:
    stream = need("mcap.stream_reader", "mcap")
    records = need("mcap.records", "mcap")
    errors = need("mcap.exceptions", "mcap").McapError
    try:
        with open_regular(path) as file:
            _check_lengths(file, path)
            reader = stream.StreamReader(file, emit_chunks=True, record_size_limit=MAX_RECORD_BYTES)
            for record in reader.records:
                if isinstance(record, records.Chunk):
                    yield from stream.breakup_chunk(_unpacked(path, record, budget))
                elif isinstance(record, records.DataEnd):
                    return  # what follows repeats schemas and channels
                else:
                    yield record
    except FormatError:
        raise
    except (errors, ValueError, EOFError, OSError, IndexError, KeyError) as error:
        raise FormatError(f"mcap: {path}: {type(error).__name__}: {error}") from error
    except Exception as error:
        if type(error).__module__ != "struct":
            raise
        raise FormatError(f"mcap: {path} ends in the middle of a record") from error


def _check_lengths(file: Any, path: Path) -> None:
    """Walks over the records, whose lengths must stay inside the file: nothing is read by a length that lies."""
    size = path.stat().st_size
    if file.read(len(MAGIC)) != MAGIC:
        raise FormatError(f"mcap: {path} does not begin as an MCAP file")
    at = len(MAGIC)
    while at + 9 <= size:
        file.seek(at)
        head = file.read(9)
        if head.startswith(MAGIC):
            break
        length = int.from_bytes(head[1:], "little")
        if length > size - at - 9:
            raise FormatError(f"mcap: {path}: the record at byte {at} has {length} bytes, the file {size - at - 9}")
        at += 9 + length
        if head[0] == 0x0F:  # end of data
            break
    file.seek(0)


def _unpacked(path: Path, chunk: Any, budget: Budget) -> Any:
    """The chunk without compression, checked against its size and its checksum."""
    where, size = f"mcap: {path}: a chunk", int(chunk.uncompressed_size)
    budget.check(where, size, len(chunk.data))
    if chunk.compression == "lz4":
        data = _unpack_lz4(chunk.data, size + 1, where)
    elif chunk.compression == "zstd":
        data = _unpack_zstd(chunk.data, size + 1, where)
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise FormatError(f"{where} is packed with {chunk.compression!r}; lz4 and zstd are read")
    if len(data) != size:
        raise FormatError(f"{where} declares {size} bytes and unpacks to {'more' if len(data) > size else len(data)}")
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise FormatError(f"{where} does not have the checksum that it declares")
    chunk.compression, chunk.data = "", bytes(data)
    return chunk


def _unpack_lz4(data: bytes, most: int, where: str) -> bytes:
    lz4 = need("lz4.frame", "mcap")
    try:
        return bytes(lz4.LZ4FrameDecompressor().decompress(data, max_length=most))
    except (RuntimeError, EOFError) as error:
        raise FormatError(f"{where} cannot be unpacked: {error}") from error


def _unpack_zstd(data: bytes, most: int, where: str) -> bytes:
    zstandard = need("zstandard", "mcap")
    try:
        return bytes(zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(data).read(most))
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"{where} cannot be unpacked: {error}") from error
