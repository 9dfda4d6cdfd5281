"""ROS 2 message definitions, and messages in CDR read by them. Nothing is read outside of a message.

    definition = parse_definition("sensor_msgs/msg/Imu", b"std_msgs/Header header\\n...")
    definition.read(message).header.stamp.sec

Every field takes at least one byte of the message, so reading ends however fields are nested and repeated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..reading.budget import Budget

MAX_DEFINITION_BYTES = 1 << 20
MAX_FIELDS = 4096
MAX_DEPTH = 16
TYPE = re.compile(r"([A-Za-z][A-Za-z0-9_/]*)(?:<=[0-9]{1,10})?(\[(?:<=)?([0-9]{0,10})\])?", re.ASCII)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
NUMBERS = {
    **{"bool": "?", "byte": "B", "char": "B", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H"},
    **{"int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d"},
}
ZSTD = b"\x28\xb5\x2f\xfd"
"""How a message begins that rosbag2 has compressed by itself."""
BYTES = ("byte", "char", "uint8")
TIME = (("sec", "int32", None), ("nanosec", "uint32", None))
BUILT_IN = {("builtin_interfaces", "Time"): TIME, ("builtin_interfaces", "Duration"): TIME}

Field = tuple[str, str, int | None]
"""Name, type, and the size of an array: None where it is no array, 0 where the message has its size."""
Read = Callable[["_Cursor"], Any]


class _Cursor:
    """A place in a message. Numbers are aligned to their size, counted from behind the 4 bytes of the head."""

    __slots__ = ("at", "budget", "data", "little")

    def __init__(self, data: memoryview, budget: Budget) -> None:
        if data[:4] == ZSTD:
            raise ValueError("the bag has compression_mode MESSAGE; 'ros2 bag convert' writes it without")
        if len(data) < 4 or data[0] != 0 or data[1] > 1:
            raise ValueError(f"a message must begin as plain CDR, got {bytes(data[:4])!r}")
        self.data, self.at, self.little, self.budget = data, 4, data[1] == 1, budget

    def take(self, count: int, size: int) -> int:
        """Moves over ``count`` numbers of ``size`` bytes, and returns where they begin."""
        begin = self.at + (4 - self.at) % size
        end = begin + count * size
        if end > len(self.data):
            raise ValueError(f"{count} values of {size} bytes at byte {begin} of a message of {len(self.data)} bytes")
        self.at = end
        return begin


class Definition:
    """How messages of a type are read."""

    def __init__(self, read: Read, budget: Budget) -> None:
        self._read = read
        self._budget = budget

    def read(self, data: memoryview) -> Any:
        """The message: an object with its fields. Arrays of numbers are NumPy arrays, of bytes memoryviews."""
        return self._read(_Cursor(data, self._budget))


def parse_definition(name: str, text: bytes, budget: Budget) -> Definition:
    """Raises ValueError where the text does not define the type of this name."""
    if len(text) > MAX_DEFINITION_BYTES:
        raise ValueError(f"a definition of {len(text)} bytes, more than {MAX_DEFINITION_BYTES}")
    types: dict[tuple[str, str], tuple[Field, ...]] = dict(BUILT_IN)
    key = _key(name, "")
    fields: list[Field] = []
    for line in text.decode("utf-8").splitlines():
        plain = line.strip()
        if len(plain) >= 3 and not plain.strip("="):  # a line of =: another type begins
            _define(types, key, fields)
            fields = []
        elif plain.startswith("MSG:"):
            key, fields = _key(plain[4:].strip(), ""), []
        elif field := _field(plain.partition("#")[0]):
            fields.append(field)
            budget.count(f"the definition of {name}")
    _define(types, key, fields)
    return Definition(_Compiler(types).message(_key(name, ""), 0), budget)


def _define(types: dict[tuple[str, str], tuple[Field, ...]], key: tuple[str, str], fields: list[Field]) -> None:
    """A type may be repeated, but stands for one thing."""
    if key not in BUILT_IN and types.get(key, tuple(fields)) != tuple(fields):
        raise ValueError(f"{'/'.join(key)} is defined twice, and differently")
    types[key] = tuple(fields)


def _key(name: str, package: str) -> tuple[str, str]:
    """(package, type): ``geometry_msgs/msg/Pose``, ``geometry_msgs/Pose``, or ``Pose`` beside another of a package."""
    parts = name.split("/")
    return (parts[0] if len(parts) > 1 else package, parts[-1])


def _field(line: str) -> Field | None:
    """``type name [default]``; None for empty lines and constants, ``type NAME=value``."""
    parts = line.split(None, 2)
    if not parts or "=" in (parts[1] if len(parts) > 1 else "") or (len(parts) > 2 and parts[2].startswith("=")):
        return None
    kind = TYPE.fullmatch(parts[0])
    if kind is None or len(parts) < 2 or not NAME.fullmatch(parts[1]):
        raise ValueError(f"not a field: {line[:80]!r}")
    if kind[2] is None:
        return parts[1], kind[1], None
    return parts[1], kind[1], 0 if "<" in kind[2] or not kind[3] else int(kind[3])


class _Compiler:
    def __init__(self, types: dict[tuple[str, str], tuple[Field, ...]]) -> None:
        self._types = types
        self._made: dict[tuple[str, str], Read] = {}
        self._num_fields = 0

    def message(self, key: tuple[str, str], depth: int) -> Read:
        if key in self._made:
            return self._made[key]
        if key not in self._types:
            raise ValueError(f"{'/'.join(key)} is not defined")
        fields = self._types[key]
        self._num_fields += len(fields)
        if depth > MAX_DEPTH or self._num_fields > MAX_FIELDS:
            raise ValueError(f"types nested more than {MAX_DEPTH} deep, or more than {MAX_FIELDS} fields")
        readers = [(name, self._reader(kind, size, key[0], depth)) for name, kind, size in fields]

        def read(cursor: _Cursor) -> Any:
            return SimpleNamespace(**{name: one(cursor) for name, one in readers})

        def read_empty(cursor: _Cursor) -> Any:
            cursor.take(1, 1)  # IDL has no empty structures: ROS 2 adds a byte
            return SimpleNamespace()

        self._made[key] = read if readers else read_empty
        return self._made[key]

    def _reader(self, kind: str, size: int | None, package: str, depth: int) -> Read:
        if kind in NUMBERS:
            return _number(NUMBERS[kind]) if size is None else _numbers(kind, size)
        if kind == "wstring":
            raise ValueError("wstring is not read")
        one: Read = _string if kind == "string" else self.message(_key(kind, package), depth + 1)
        return one if size is None else _list(one, size)


def _number(code: str) -> Read:
    little, big = struct.Struct("<" + code), struct.Struct(">" + code)
    size = little.size

    def read(cursor: _Cursor) -> Any:
        at = cursor.take(1, size)
        return (little if cursor.little else big).unpack_from(cursor.data, at)[0]

    return read


def _numbers(kind: str, fixed: int) -> Read:
    little = np.dtype("<" + NUMBERS[kind])
    big = little.newbyteorder(">")

    def read(cursor: _Cursor) -> Any:
        count = fixed or _length(cursor)
        at = cursor.take(count, little.itemsize if count else 1)
        if kind in BYTES:
            return cursor.data[at : at + count]
        return np.frombuffer(cursor.data, little if cursor.little else big, count, at if count else 0)

    return read


def _string(cursor: _Cursor) -> str:
    """With a 0 at the end, which the length counts; some writers give 0 as the length of an empty one."""
    length = _length(cursor)
    at = cursor.take(length, 1)
    return str(cursor.data[at : at + length - 1], "utf-8") if length > 1 else ""


def _list(one: Read, fixed: int) -> Read:
    def read(cursor: _Cursor) -> Any:
        count = fixed or _length(cursor)
        if count > len(cursor.data) - cursor.at:
            raise ValueError(f"{count} values in {len(cursor.data) - cursor.at} bytes")
        cursor.budget.count("an array", count)
        return [one(cursor) for _ in range(count)]

    return read


_length = _number("I")
