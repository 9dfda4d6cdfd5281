"""The records of an MCAP file. Lengths, checksums, the index and the statistics are checked against each other.

File:    magic | header | data: schemas, channels, messages, chunks of these | end of data | summary | footer | magic
Record:  opcode u8 | length u64 | content
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.paths import need, open_regular

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = 1, 2, 3, 4, 5, 6
CHUNK_INDEX, ATTACHMENT, STATISTICS, METADATA, DATA_END = 8, 9, 11, 12, 15
HEAD = struct.Struct("<BQ")
FOOTER_FIELDS = struct.Struct("<QQI")
MESSAGE_FIELDS = struct.Struct("<HIQQ")
CHUNK_FIELDS = struct.Struct("<QQQI")
STATISTICS_FIELDS = struct.Struct("<QHIIIIQQI")
FOOTER_BYTES = HEAD.size + FOOTER_FIELDS.size
END_BYTES = HEAD.size + 4
MAX_RECORD_BYTES = 512 << 20
MAX_WINDOW_BYTES = 128 << 20
"""What zstd may keep of the past; more than its encoder uses at any level."""


class Schema(NamedTuple):
    name: str
    encoding: str
    data: bytes


class Channel(NamedTuple):
    topic: str
    encoding: str
    schema_id: int


class Message(NamedTuple):
    log_time: int
    publish_time: int
    data: memoryview


@dataclass
class Statistics:
    num_messages: int
    num_attachments: int
    num_metadata: int
    num_chunks: int
    by_channel: dict[int, int]
    """Messages of each channel; empty where the file does not say."""


@dataclass
class Summary:
    """What the file says of itself at its end."""

    data_end: int
    """Where the data section ends, its last record included."""
    checked: bool = False
    """Whether it has a checksum, which was checked."""
    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    chunks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By offset of the chunk: bytes of its record, compressed bytes and uncompressed bytes."""
    statistics: Statistics | None = None


class Damage(FormatError):
    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"mcap: {path} {what}: it is damaged or truncated; 'mcap recover {path.name} -o recovered.mcap' (the MCAP "
            "command-line tool) saves the readable part"
        )


def read_summary(path: Path, budget: Budget) -> Summary:
    """The summary, whose checksum must be right where it has one (is not 0)."""
    with open_regular(path) as file:
        return _read_summary(file, path, budget)


def _read_summary(file: IO[bytes], path: Path, budget: Budget) -> Summary:
    size = os.fstat(file.fileno()).st_size
    if file.read(len(MAGIC)) != MAGIC:
        raise FormatError(f"mcap: {path} does not begin as an MCAP file")
    footer_at = size - len(MAGIC) - FOOTER_BYTES
    if footer_at < len(MAGIC) + END_BYTES:
        raise Damage(path, "has no footer")
    file.seek(footer_at)
    footer = file.read(FOOTER_BYTES)
    if file.read(len(MAGIC)) != MAGIC or HEAD.unpack_from(footer) != (FOOTER, FOOTER_FIELDS.size):
        raise Damage(path, "does not end as an MCAP file")
    begin, offsets, crc = FOOTER_FIELDS.unpack_from(footer, HEAD.size)
    end = begin or footer_at
    if not len(MAGIC) + END_BYTES <= end <= footer_at or (offsets and not end <= offsets <= footer_at):
        raise Damage(path, f"has a footer that places the summary at byte {begin} of {size}")
    if footer_at - end > MAX_RECORD_BYTES:
        raise FormatError(f"mcap: {path} has a summary of {footer_at - end} bytes, more than {MAX_RECORD_BYTES}")
    file.seek(end)
    data = file.read(footer_at - end)
    if crc and zlib.crc32(footer[:-4], zlib.crc32(data)) != crc:
        raise Damage(path, "has a summary with a wrong checksum")
    summary = Summary(end, bool(crc and begin))
    view = memoryview(data)
    for opcode, at, length in _walk(view, f"mcap: {path}: the summary", budget):
        _add_to_summary(summary, opcode, view[at : at + length])
    return summary


def _add_to_summary(summary: Summary, opcode: int, content: memoryview) -> None:
    if opcode == SCHEMA:
        number, schema = _schema(content)
        summary.schemas[number] = schema
    elif opcode == CHANNEL:
        number, channel = _channel(content)
        summary.channels[number] = channel
    elif opcode == CHUNK_INDEX:
        offset, length, skip = struct.unpack_from("<16xQQI", content)
        at = 36 + skip + 8
        compression = int.from_bytes(content[at : at + 4], "little")
        summary.chunks[offset] = (length, *struct.unpack_from("<QQ", content, at + 4 + compression))
    elif opcode == STATISTICS:
        messages, _, _, attachments, metadata, chunks, _, _, length = STATISTICS_FIELDS.unpack_from(content)
        counts = dict(struct.iter_unpack("<HQ", content[STATISTICS_FIELDS.size : STATISTICS_FIELDS.size + length]))
        summary.statistics = Statistics(messages, attachments, metadata, chunks, counts)


def _walk(data: memoryview, where: str, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """(opcode, place and length of the content) of the records in these bytes."""
    at, end = 0, len(data)
    while at < end:
        if end - at < HEAD.size:
            raise FormatError(f"{where} ends in the middle of a record")
        opcode, length = HEAD.unpack_from(data, at)
        at += HEAD.size
        if length > end - at:
            raise FormatError(f"{where}: a record has {length} bytes where {end - at} are left")
        budget.count(where)
        yield opcode, at, length
        at += length


def _text(content: memoryview, at: int) -> tuple[str, int]:
    """A text behind its length, and where it ends."""
    (length,) = struct.unpack_from("<I", content, at)
    end = at + 4 + length
    if end > len(content):
        raise ValueError("a text is longer than its record")
    return str(content[at + 4 : end], "utf-8"), end


def _schema(content: memoryview) -> tuple[int, Schema]:
    (number,) = struct.unpack_from("<H", content)
    name, at = _text(content, 2)
    encoding, at = _text(content, at)
    (length,) = struct.unpack_from("<I", content, at)
    if at + 4 + length > len(content):
        raise ValueError("a definition is longer than its record")
    return number, Schema(name, encoding, bytes(content[at + 4 : at + 4 + length]))


def _channel(content: memoryview) -> tuple[int, Channel]:
    number, schema_id = struct.unpack_from("<HH", content)
    topic, at = _text(content, 4)
    encoding, _ = _text(content, at)
    return number, Channel(topic, encoding, schema_id)


@dataclass
class Data:
    """The data section. ``messages`` walks over it; all that the summary repeats must be the same."""

    path: Path
    budget: Budget
    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    """Messages by channel."""
    num_attachments: int = 0
    num_metadata: int = 0
    num_chunks: int = 0

    def statistics(self) -> Statistics:
        """Of what ``messages`` has walked over."""
        num_messages = sum(self.counts.values())
        return Statistics(num_messages, self.num_attachments, self.num_metadata, self.num_chunks, self.counts)

    def messages(self) -> Iterator[tuple[Channel, Message]]:
        """In the order of the file. What can only be compared at the end is compared when the last one was taken."""
        where = f"mcap: {self.path}"
        try:
            with open_regular(self.path) as file:
                summary = _read_summary(file, self.path, self.budget)
                yield from self._messages(file, summary)
        except FormatError:
            raise
        except (struct.error, ValueError, IndexError) as error:
            raise FormatError(f"{where}: {type(error).__name__}: {error}") from error

    def _messages(self, file: IO[bytes], summary: Summary) -> Iterator[tuple[Channel, Message]]:
        crc, wanted = 0, self._data_crc(file, summary)
        at = len(MAGIC)
        file.seek(at)
        if wanted:
            crc = zlib.crc32(MAGIC)
        last = summary.data_end - END_BYTES
        while at < last:
            head = file.read(HEAD.size)
            opcode, length = HEAD.unpack(head)
            if length > last - at - HEAD.size:
                raise FormatError(
                    f"mcap: {self.path}: the record at byte {at} has {length} bytes, the data section "
                    f"{last - at - HEAD.size}: the file is damaged"
                )
            self.budget.count(f"mcap: {self.path}")
            if opcode in (FOOTER, DATA_END):
                raise Damage(self.path, f"has an end of data at byte {at}, before its end")
            if opcode not in (SCHEMA, CHANNEL, MESSAGE, CHUNK):  # indices, attachments, metadata
                self.num_attachments += opcode == ATTACHMENT
                self.num_metadata += opcode == METADATA
                if wanted:
                    crc = self._skip(file, length, zlib.crc32(head, crc))
                file.seek(at + HEAD.size + length)
                at += HEAD.size + length
                continue
            content = self._read(file, at, length)
            if wanted:
                crc = zlib.crc32(content, zlib.crc32(head, crc))
            if opcode == CHUNK:
                self.num_chunks += 1
                yield from self._chunk(content, at, summary)
            else:
                yield from self._record(opcode, content, summary)
            at += HEAD.size + length
        if wanted and crc != wanted:
            raise Damage(self.path, "has data with a wrong checksum")
        self._compare(summary)

    def _data_crc(self, file: IO[bytes], summary: Summary) -> int:
        """What the end of data declares; 0 where it declares none."""
        file.seek(summary.data_end - END_BYTES)
        end = file.read(END_BYTES)
        if HEAD.unpack_from(end) != (DATA_END, 4):
            raise Damage(self.path, "has no end of data before its summary")
        return int.from_bytes(end[-4:], "little")

    def _read(self, file: IO[bytes], at: int, length: int) -> memoryview:
        if length > MAX_RECORD_BYTES:
            raise FormatError(
                f"mcap: {self.path}: the record at byte {at} has {length} bytes, more than {MAX_RECORD_BYTES}"
            )
        self.budget.check(f"mcap: {self.path}: the record at byte {at}", length)
        content = file.read(length)
        if len(content) != length:
            raise Damage(self.path, f"ends in the record at byte {at}")
        return memoryview(content)

    def _skip(self, file: IO[bytes], length: int, crc: int) -> int:
        """The checksum of what follows, read piece by piece."""
        while length and (piece := file.read(min(length, 1 << 20))):
            self.budget.check_time(f"mcap: {self.path}")
            crc = zlib.crc32(piece, crc)
            length -= len(piece)
        return crc

    def _chunk(self, content: memoryview, at: int, summary: Summary) -> Iterator[tuple[Channel, Message]]:
        where = f"mcap: {self.path}: the chunk at byte {at}"
        _, _, size, crc = CHUNK_FIELDS.unpack_from(content)
        compression, place = _text(content, CHUNK_FIELDS.size)
        (length,) = struct.unpack_from("<Q", content, place)
        packed = content[place + 8 :]
        if length != len(packed):
            raise FormatError(f"{where} declares {length} bytes and has {len(packed)}")
        if summary.chunks and summary.chunks.get(at) != (HEAD.size + len(content), length, size):
            raise Damage(self.path, f"has a chunk at byte {at} that its index does not have")
        data = _unpacked(packed, compression, size, where, self.budget)
        if crc and zlib.crc32(data) != crc:
            raise Damage(self.path, f"has a chunk with a wrong checksum at byte {at}")
        view = memoryview(data)
        for opcode, begin, size in _walk(view, where, self.budget):
            yield from self._record(opcode, view[begin : begin + size], summary)

    def _record(self, opcode: int, content: memoryview, summary: Summary) -> Iterator[tuple[Channel, Message]]:
        if opcode == MESSAGE:
            number, _, log_time, publish_time = MESSAGE_FIELDS.unpack_from(content)
            channel = self.channels.get(number)
            if channel is None:
                raise FormatError(f"mcap: {self.path}: a message of channel {number}, which is not declared")
            self.counts[number] = self.counts.get(number, 0) + 1
            yield channel, Message(log_time, publish_time, content[MESSAGE_FIELDS.size :])
        elif opcode == SCHEMA:
            number, schema = _schema(content)
            self._same("schema", number, schema, self.schemas, summary.schemas)
        elif opcode == CHANNEL:
            number, channel = _channel(content)
            self._same("channel", number, channel, self.channels, summary.channels)

    def _same(self, what: str, number: int, found: Any, known: dict[int, Any], repeated: dict[int, Any]) -> None:
        """Adds a schema or channel. A number stands for one thing in all of the file."""
        if known.setdefault(number, found) != found:
            raise FormatError(f"mcap: {self.path}: {what} {number} is declared twice, and differently")
        if repeated and repeated.get(number) != found:
            raise Damage(self.path, f"has a {what} {number} that its summary does not have")

    def _compare(self, summary: Summary) -> None:
        stated, found = summary.statistics, self.statistics()
        if summary.chunks and found.num_chunks != len(summary.chunks):
            raise Damage(self.path, f"has {found.num_chunks} chunks, its index {len(summary.chunks)}")
        if stated is None:
            return
        if (found.num_messages, found.num_chunks) != (stated.num_messages, stated.num_chunks):
            raise Damage(
                self.path,
                f"has {found.num_messages} messages in {found.num_chunks} chunks, its statistics "
                f"{stated.num_messages} in {stated.num_chunks}",
            )
        for number in {*self.counts, *stated.by_channel} if stated.by_channel else ():
            have, declared = self.counts.get(number, 0), stated.by_channel.get(number, 0)
            if have != declared:
                raise Damage(self.path, f"has {have} messages of channel {number}, its statistics {declared}")


def _unpacked(packed: memoryview, compression: str, size: int, where: str, budget: Budget) -> bytes | memoryview:
    """The content of a chunk, of the size that it declares."""
    budget.check(where, size, len(packed))
    data: bytes | memoryview
    if compression == "lz4":
        data = _unpack_lz4(packed, size + 1, where)
    elif compression == "zstd":
        data = _unpack_zstd(packed, size + 1, where)
    elif compression == "":
        data = packed
    else:
        raise FormatError(f"{where} is compressed with {compression!r}; only lz4 and zstd are supported")
    if len(data) != size:
        raise FormatError(
            f"{where} declares {size} bytes and decompresses to {'more' if len(data) > size else len(data)}"
        )
    return data


def _unpack_lz4(data: memoryview, most: int, where: str) -> bytes:
    lz4 = need("lz4.frame", "mcap")
    try:
        return bytes(lz4.LZ4FrameDecompressor().decompress(data, max_length=most))
    except (RuntimeError, EOFError) as error:
        raise FormatError(f"{where} cannot be decompressed: {error}") from error


def _unpack_zstd(data: memoryview, most: int, where: str) -> bytes:
    zstandard = need("zstandard", "mcap")
    try:
        return bytes(zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(data).read(most))
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"{where} cannot be decompressed: {error}") from error
