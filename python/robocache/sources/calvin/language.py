"""CALVIN's language file, a pickled dict: read without unpickling.

Nothing in the file is called. Its opcodes are walked as data; they can build lists, tuples, dicts, texts, bytes,
numbers and NumPy arrays of these, and a name of anything else is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._core import FormatError
from ..reading.budget import BUDGET, FREE_BYTES, Budget
from ..reading.paths import checked_shape, num_bytes, read_file
from .npy import read_npy_header

MAX_BYTES = 256 << 20
MAX_TYPE = 64
"""Characters of the name of a dtype."""
MAX_DEPTH = 32
MAX_REPEATS = 4
"""Characters of all texts for each byte of the file: texts may be shared."""
ARRAYS = {f"{core}.multiarray" for core in ("numpy.core", "numpy._core")}


@dataclass(frozen=True)
class Annotation:
    """Steps [begin, end) are described by a text and belong to a named task."""

    begin: int
    end: int
    text: str
    task: str | None


def read_annotations(path: Path, budget: Budget) -> tuple[list[Annotation], list[str]]:
    """The annotations, and the names of what else the file has about the language: embeddings."""
    where = f"calvin: {path}"
    data = read_file(path, MAX_BYTES)
    file = io.BytesIO(data)
    dtype, _, _, _ = read_npy_header(file, len(data), where, objects=True)
    if dtype != np.dtype(object):
        raise FormatError(f"{where} must have a dict, got {dtype}")
    found = read_plain(file.read(), where, budget)
    while isinstance(found, list) and len(found) == 1:
        found = found[0]
    try:
        texts, ranges = found["language"]["ann"], found["info"]["indx"]
        tasks = found["language"].get("task") or [None] * len(texts)
        rows = list(zip(texts, ranges, tasks, strict=True))
        annotations = [
            Annotation(_number(indx[0]), _number(indx[1]) + 1, _text(text), None if task is None else _text(task))
            for text, indx, task in rows
        ]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FormatError(f"{where} must have language.ann and info.indx of the same length: {error}") from error
    for row, one in enumerate(annotations):
        if not 0 <= one.begin < one.end:
            raise FormatError(f"{where}, row {row}: steps {one.begin} to {one.end - 1}")
    total = sum(len(one.text) + len(one.task or "") for one in annotations)
    if total > FREE_BYTES and total > MAX_REPEATS * len(data):
        raise FormatError(
            f"{where} has {total} characters of text in {len(data)} bytes: rejected as a decompression bomb"
        )
    others = [key for key in found["language"] if isinstance(key, str) and key not in ("ann", "task")]
    return annotations, others


def _text(value: Any) -> str:
    """Only texts: the text of a list whose parts are shared may be longer than any memory."""
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind == "U":
        value = value.item()
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got a {type(value).__name__}")
    return str(value)


def _number(value: Any) -> int:
    if isinstance(value, (int, np.integer)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise TypeError(f"expected a number, got a {type(value).__name__}")


class _Mark:
    pass


@dataclass
class _Name:
    """A global that the file names: never looked up, only compared."""

    module: str
    name: str


@dataclass
class _Type:
    text: str
    order: str = "|"

    def dtype(self) -> np.dtype[Any]:
        found = np.dtype(self.text[:MAX_TYPE])
        return found.newbyteorder(">") if self.order == ">" else found


@dataclass
class _Array:
    """An array under construction. ``content``: the array, or a list where the elements are objects."""

    content: Any = None


def read_plain(data: bytes, where: str, budget: Budget = BUDGET) -> Any:
    """The value in pickled bytes, if it is made of plain things; FormatError otherwise."""
    reader = _Reader(where)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            budget.count(where)
            if opcode.name == "STOP":
                return _finished(reader.stack.pop(), {}, 0)
            reader.step(opcode.name, argument)
    except FormatError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FormatError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    raise FormatError(f"{where} has no end")


class _Reader:
    """A stack, a memo, and the few opcodes that plain data needs."""

    CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}  # noqa: RUF012
    LITERALS = {  # noqa: RUF012
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    }

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            **{name: lambda _: None for name in ("PROTO", "FRAME")},
            **{name: self._put for name in ("PUT", "BINPUT", "LONG_BINPUT")},
            **{name: self._get for name in ("GET", "BINGET", "LONG_BINGET")},
            "MEMOIZE": lambda _: self._put(len(self.memo)),
            "MARK": lambda _: self.stack.append(_Mark()),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_TUPLE": lambda _: self.stack.append(()),
            "TUPLE": lambda _: self.stack.append(tuple(self._marked())),
            "LIST": lambda _: self.stack.append(self._marked()),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._marked()),
            "SETITEM": lambda _: self._set([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._set(self._marked()),
            "GLOBAL": lambda text: self.stack.append(_Name(*text.split(" ", 1))),
            "STACK_GLOBAL": lambda _: self.stack.append(_Name(_text(self.stack.pop(-2)), _text(self.stack.pop()))),
            "REDUCE": lambda _: self._reduce(*self._tuple_pair()),
            "BUILD": lambda _: self._build(self.stack.pop()),
        }

    def step(self, name: str, argument: Any) -> None:
        if name in self.LITERALS:
            self.stack.append(argument)
        elif name in self.CONSTANTS:
            self.stack.append(self.CONSTANTS[name])
        elif name in self._steps:
            self._steps[name](argument)
        else:
            raise FormatError(f"{self.where} uses the pickle opcode {name}, which plain data does not need; rejected")

    def _put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def _get(self, number: int) -> None:
        self.stack.append(self.memo[number])

    def _marked(self) -> list[Any]:
        at = next((i for i in range(len(self.stack) - 1, -1, -1) if isinstance(self.stack[i], _Mark)), -1)
        if at < 0:
            raise FormatError(f"{self.where} closes a mark that it did not open")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def _tuple_pair(self) -> tuple[Any, Any]:
        arguments = self.stack.pop()
        return self.stack.pop(), arguments

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise FormatError(f"{self.where} appends to an object that is not a list")
        self.stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise FormatError(f"{self.where} sets items of an object that is not a dict")
        plain = all(isinstance(key, (str, int, float, bytes)) for key in items[::2])
        if not plain:  # a tuple of shared tuples takes exponential time to hash
            raise FormatError(f"{self.where} has keys that are neither strings nor numbers")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _reduce(self, called: Any, arguments: Any) -> None:
        """What a file may construct."""
        name = (called.module, called.name) if isinstance(called, _Name) else ("", "")
        if name[0] in ARRAYS and name[1] == "_reconstruct":
            self.stack.append(_Array())
        elif name == ("numpy", "dtype"):
            self.stack.append(_Type(_text(arguments[0])))
        elif name[0] in ARRAYS and name[1] == "scalar" and isinstance(arguments[0], _Type):
            dtype = arguments[0].dtype()
            if dtype.hasobject:
                raise FormatError(f"{self.where} has a scalar of objects")
            self.stack.append(np.frombuffer(_bytes(arguments[1]), dtype)[0].item())
        elif name == ("_codecs", "encode") and arguments[1:] in (("latin1",), ("latin-1",)):
            self.stack.append(_text(arguments[0]).encode("latin1"))
        else:
            shown = f"{name[0]}.{name[1]}" if name[0] else f"a {type(called).__name__}"
            raise FormatError(f"{self.where} calls {shown}; only arrays, strings and numbers are read")

    def _build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, _Type):
            target.order = _text(state[1])
        elif isinstance(target, _Array):
            _, shape, kind, fortran, raw = state
            sizes = checked_shape(self.where, [_number(size) for size in shape])
            target.content = self._content(sizes, kind.dtype(), bool(fortran), raw)
        else:
            raise FormatError(f"{self.where} sets the state of a {type(target).__name__}; only arrays are read")

    def _content(self, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool, raw: Any) -> Any:
        if dtype == np.dtype(object):
            if not isinstance(raw, list) or len(raw) != num_bytes(shape, 1):
                raise FormatError(f"{self.where} has an array of objects of shape {shape} without as many objects")
            return raw
        data = _bytes(raw)
        if dtype.hasobject or num_bytes(shape, dtype.itemsize) != len(data):
            raise FormatError(f"{self.where} has an array {dtype} {shape} in {len(data)} bytes")
        flat = np.frombuffer(data, dtype)
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _text(value).encode("latin1")


def _finished(value: Any, done: dict[int, Any], depth: int) -> Any:
    """The value with arrays in the place of arrays under construction. Shared parts stay shared."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _Array):
        made = _finished(value.content, done, depth + 1)
    elif isinstance(value, list):
        made = [_finished(item, done, depth + 1) for item in value]
    elif isinstance(value, tuple):
        made = tuple(_finished(item, done, depth + 1) for item in value)
    elif isinstance(value, dict):
        made = {key: _finished(item, done, depth + 1) for key, item in value.items()}
    elif isinstance(value, (_Name, _Type, _Mark)):
        raise ValueError("the name of a class where a value should be")
    else:
        return value
    done[id(value)] = made
    return made
