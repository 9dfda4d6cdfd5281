"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A record:  length u64 | CRC of length u32 | data | CRC of data u32       all little-endian; CRC32C, masked
An Example: Features features = 1;   Features: map<string, Feature> feature = 1;
Feature:    one of BytesList = 1, FloatList = 2, Int64List = 3;          each: repeated value = 1
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError, crc32c
from ..reading.budget import BUDGET, Budget
from ..reading.paths import allocated_bytes, open_regular

HEAD_BYTES = 12
Feature = list[bytes] | NDArray[Any]
"""The values of a feature: bytes, float32 or int64."""


def masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record_offsets(path: Path, budget: Budget) -> list[tuple[int, int]]:
    """Where the data of each record begins and how long it is. Reads and checks only the lengths."""
    found: list[tuple[int, int]] = []
    at = 0
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        size, stored = state.st_size, allocated_bytes(state)
        while at < size:
            where = f"rlds: {path}: record {len(found)}"
            budget.count(where)
            file.seek(at)
            head = file.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                raise FormatError(f"{where}: the file ends inside its length field")
            length, crc = struct.unpack("<QI", head)
            if crc != masked_crc(head[:8]):
                raise FormatError(f"{where}: the length has a wrong checksum")
            if length > size - at - HEAD_BYTES - 4:
                raise FormatError(f"{where}: {length} bytes, more than the file has left")
            budget.check(where, length, stored)
            found.append((at + HEAD_BYTES, length))
            at += HEAD_BYTES + length + 4
    return found


def read_record(path: Path, offset: int, length: int, where: str) -> bytes:
    """The data of a record, with its checksum checked."""
    with open_regular(path) as file:
        file.seek(offset)
        data = file.read(length)
        tail = file.read(4)
    if len(data) != length or len(tail) != 4:
        raise FormatError(f"{where}: the file ends inside it")
    if struct.unpack("<I", tail)[0] != masked_crc(data):
        raise FormatError(f"{where}: the data has a wrong checksum")
    return data


def read_example(data: bytes, where: str, budget: Budget = BUDGET) -> dict[str, Feature]:
    """The features of a tf.train.Example by name."""
    found: dict[str, Feature] = {}
    try:
        for features in _messages(memoryview(data), 1):
            for entry in _messages(features, 1):
                budget.count(where)
                fields: dict[int, Any] = {}
                for number, kind, part in _fields(entry):
                    if kind == 2 and fields.setdefault(number, part) is not part:  # readers differ in what they take
                        raise ValueError(f"an entry has field {number} twice")
                name = bytes(fields.get(1, b"")).decode("utf-8")
                if name in found:
                    raise ValueError(f"the feature {name!r} is there twice")
                found[name] = _feature(fields.get(2, memoryview(b"")), where, budget)
    except (ValueError, IndexError, struct.error) as error:
        raise FormatError(f"{where}: not a tf.train.Example: {error}") from error
    return found


def _feature(data: Any, where: str, budget: Budget) -> Feature:
    found: Feature | None = None
    for number, kind, part in _fields(data):
        budget.count(where)
        if kind != 2 or number not in (1, 2, 3):
            continue
        if found is not None:  # readers differ in what they take
            raise ValueError("a feature has several lists of values")
        if number == 1:
            found = []
            for value in _messages(part, 1):
                budget.count(where)
                found.append(bytes(value))
        else:
            found = (_floats if number == 2 else _integers)(part, where, budget)
    return [] if found is None else found


def _floats(data: Any, where: str, budget: Budget) -> NDArray[np.float32]:
    """Packed, or one by one, or both."""
    found = bytearray()
    for number, kind, part in _fields(data):
        budget.count(where)
        if number == 1 and kind in (2, 5):
            if len(part) % 4:
                raise ValueError("floats of a length that is not a multiple of 4")
            found += part
    return np.frombuffer(found, "<f4").astype(np.float32)


def _integers(data: Any, where: str, budget: Budget) -> NDArray[np.int64]:
    found = array.array("Q")
    for number, kind, part in _fields(data):
        budget.count(where)
        if number == 1 and kind == 2:
            found.frombytes(unpack_varints(np.frombuffer(part, np.uint8)).tobytes())
        elif number == 1 and kind == 0:
            found.append(part)
    return np.frombuffer(found, np.int64) if len(found) else np.empty(0, np.int64)


def unpack_varints(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Packed varints: 7 bits a byte, lowest first, the last byte of each below 128."""
    ends = np.flatnonzero(data < 128)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("a truncated varint")
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    lengths = ends - begins + 1
    if len(lengths) and lengths.max() > 10:
        raise ValueError("a varint of more than 10 bytes")
    values = np.zeros(len(ends), np.uint64)
    for i in range(int(lengths.max()) if len(lengths) else 0):
        has = lengths > i
        bits = (data[begins[has] + i] & np.uint8(127)).astype(np.uint64)
        values[has] |= bits << np.uint64(7 * i)
    return values.view(np.int64)


def _messages(data: Any, wanted: int) -> Iterator[Any]:
    return (part for number, kind, part in _fields(data) if number == wanted and kind == 2)


def _fields(data: Any) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value): an int for varints, else the bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, kind, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or length > len(data) - at:
            raise ValueError("a field that is longer than its message")
        yield tag >> 3, kind, data[at : at + length]
        at += length


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        byte = data[at + i]
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise ValueError("a varint of more than 10 bytes")
